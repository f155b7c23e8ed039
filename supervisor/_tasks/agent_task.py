"""The record of an agent task, which has tasks of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import attrs
import trio

from actors.agent import (
    Agent,
    AssistantMessage,
    FinalResult,
    Note,
    TokensUsed,
    UserMessage,
)
from actors.agent.hosting import AgentReport, InboxClosed

from .._delivery.outbox import Ack, Notification
from .record import Order, Task
from .snapshot import Pause

if TYPE_CHECKING:
    from actors.agent import AgentEvent, Budget, Message
    from actors.env import Env
    from actors.transcript import AgentMeta
    from actors.transcript.hosting import TranscriptLog

    from ..permissions import Mode
    from ..tree._supervisor import DynamicSupervisor
    from .pausing import Rest, Try
    from .revival import Revival


@attrs.define(eq=False, repr=False)
class Taken:
    """A notification that an agent has acknowledged."""

    note_id: str
    how: Ack
    is_said: bool = False
    """Whether the conversation has it."""
    log: TranscriptLog | None = None
    """Where it is put down. A transcript may refuse it: it is full, or the disk is too
    slow."""
    number: int = 0
    """By which record."""

    @property
    def is_written(self) -> bool:
        """Whether that is in the file."""
        return self.log is not None and self.log.has_written(self.number)

    def is_in(self, message: UserMessage) -> bool:
        """Whether this is the message that says it."""
        if self.how == "consumed":
            return bool(message.tool_answers)
        return message.origin == "notification" and f">{self.note_id}<" in message.text


class AgentTask(Task, AgentReport):
    """The record of one agent task.

    - ``recipe``: the `Agent`, kept after the end, so that it can be resumed.
    - ``own``: its own tasks that have not ended, by id, in the order of launch.
    - ``pool``: the supervisor of these while the agent runs. Without one, tasks
      that are launched wait in ``early``.
    - ``depth``: how many agents are above it.
    - ``home``: its directory, absolute; that of the host if it has no own. None if
      that is gone.
    - ``history``: the messages of the runs before the one that is to come or is
      under way; none for a first run.
    - ``meta``: what the directory says of it, or is to say next.
    - ``lacks``: why it cannot go on before somebody gives it a loop; None if it can.
    - ``pause``: why it waits, and until when, while it is paused.
    - ``routed``: the notifications for it that are not acknowledged, by id.
    - ``taken``: those that are, as long as its transcript does not have what they say.
      So a crash of the program tells them again.
    """

    __slots__ = (
        "above",
        "budget",
        "depth",
        "early",
        "heard",
        "history",
        "home",
        "is_interrupted",
        "lacks",
        "left",
        "limit_key",
        "meta",
        "mode",
        "own",
        "own_end",
        "pause",
        "pool",
        "recipe",
        "rest",
        "resumes",
        "revival",
        "routed",
        "said_text",
        "taken",
        "takes_messages",
        "transcript",
        "transcript_file",
        "tries",
    )

    depth: int
    # What its runs use counts against this.
    budget: Budget | None
    transcript: TranscriptLog | None
    # What its tool calls are judged by.
    mode: Mode

    def __init__(
        self,
        task_id: str,
        run_id: str,
        env: Env,
        order: Order,
        *args: Any,
        depth: int,
        **rest: Any,
    ) -> None:
        super().__init__(task_id, run_id, env, order, *args, **rest)
        # Nothing else has tasks of its own.
        self.recipe = cast("Agent", self.work)
        self.depth = depth  # pyright: ignore[reportIncompatibleVariableOverride]
        self.limit_key = order.limit_key
        self.takes_messages = order.takes_messages
        self.history: Sequence[Message] = ()
        self.meta: AgentMeta | None = None
        self.home: str | None = None
        # How often it was resumed, and the resuming that this record is of.
        self.resumes = 0
        self.revival: Revival | None = None
        self.lacks: str | None = None
        # Whether the end of the runtime has stopped it, and nobody before.
        self.is_interrupted = False
        # The id of the record of the last message that it has read, while no run of
        # it has the transcript open; None if nobody knows.
        self.heard: str | None = ""
        # The messages that nobody had read at its end.
        self.left: list[UserMessage] = []
        # What there is of its pause, and the runs that have ended in one since its
        # model has last answered.
        self.rest: Rest | None = None
        self.tries: tuple[Try, ...] = ()
        # Whether the run that tries anew has told a message of its model.
        self.said_text = False
        self.pause: Pause | None = None
        self.budget = None
        self.transcript = None
        self.transcript_file: Path | None = None
        self.mode = "default"
        # The types of those that were above it, outermost first.
        self.above: tuple[str, ...] = ()
        self.own: dict[str, Task] = {}
        self.pool: DynamicSupervisor | None = None
        self.early: list[Task] = []
        self.routed: dict[str, Notification] = {}
        self.taken: list[Taken] = []
        # Made by the first who waits for the end of its last own task.
        self.own_end: trio.Event | None = None

    @property
    def as_agent(self) -> AgentTask:  # type: ignore[override]
        return self

    @property
    def given(self) -> Agent:  # type: ignore[override]
        return self.recipe

    @property
    def output_source(self) -> Path | None:
        # Its output is a link to that, which is not followed.
        return self.transcript_file

    @property
    def on_begun(self) -> Callable[[], None] | None:
        return None if self.revival is None else self.revival.begun

    # Its own tasks

    def own_ended(self, task: Task) -> None:
        """Called in the step in which an own task ends."""
        self.own.pop(task.task_id, None)
        if not self.own and self.own_end is not None:
            self.own_end.set()
            self.own_end = None

    async def wait_own(self) -> None:
        """Wait until none of its own tasks is unfinished."""
        await trio.lowlevel.checkpoint()
        while self.own:
            if self.own_end is None:
                self.own_end = trio.Event()
            await self.own_end.wait()

    def deliver(self, note: Notification) -> None:
        """Put the end of an own task into the inbox."""
        inbox = self.inbox
        if inbox is None or note.acked is not None:
            return
        message = UserMessage(note.xml, origin="notification", display=note.display)
        try:
            inbox.put(message, key=note.id, on_take=partial(self._take, note))
        except InboxClosed:
            note.ack("consumed")

    def _take(self, note: Notification) -> bool:
        # It leaves the inbox by itself.
        self.routed.pop(note.id, None)
        return note.ack("delivered")

    def acknowledged(self, note: Notification) -> None:
        """Called when a notification for it was acknowledged."""
        if self.routed.pop(note.id, None) is not None and self.inbox is not None:
            self.inbox.discard(note.id)

    def put_down(self, message: Message, log: TranscriptLog) -> Exception | None:
        """Record ``message``, and note what notifications say by it. Return the error of
        a quota that has no room for it."""
        before = log.last_said
        full = log.append(message)
        if self.taken and isinstance(message, UserMessage):
            is_kept = log.last_said > before
            for taken in self.taken:
                if not taken.is_said and taken.is_in(message):
                    taken.is_said = True
                    if is_kept:
                        taken.log, taken.number = log, log.last_said
        return full

    def has_taken(self, note_id: str, how: Ack) -> None:
        """Note that it has acknowledged a notification of which the journal is told once
        its transcript has what it says."""
        self.taken.append(Taken(note_id, how))

    # What it says

    def said_last(self) -> str | None:
        """Return its result or, while it says something, what there is of that."""
        draft = None if self.draft is None else self.draft.text()
        return draft if draft and draft.strip() else self.result

    def last_said(self) -> float | None:
        return self.said_at if self.pulse is None else self.pulse.said

    def on_agent_event(self, event: AgentEvent) -> None:
        if self.tries:
            # A text alone may be what has come of an answer that was cut off, and each
            # try may bring one. Then the model says nothing more.
            is_next = self.said_text and not _may_follow_a_cut(event)
            if is_next or _is_whole_answer(event):
                self.tries = ()
                self.teller.answered(self)
            self.said_text = self.said_text or isinstance(event, AssistantMessage)
        self.teller.agent_said(self, event)

    def let_go(self) -> None:
        self.agent_host = None
        self.waiting = None
        self.history = ()
        self.early = []
        self.pool = None
        self.rest = None
        self.pause = None
        if self.transcript is not None:
            self.transcript.close()
            self.transcript = None
        if isinstance(self.work, Agent):
            # What its notification says of it.
            self.cwd = self.work.cwd
        super().let_go()
        # What is to be known of them is known.
        self.draft = self.pulse = None


class EndedAgent(Task):
    """The record of an agent that has ended in an earlier program. Whoever goes on with
    it does so from the directory."""

    __slots__ = ("depth", "meta")

    def __init__(self, *args: Any, meta: AgentMeta, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.depth = meta.depth
        self.meta = meta
        """What the directory says of it."""

    @property
    def given(self) -> AgentMeta:  # type: ignore[override]
        return self.meta


def _may_follow_a_cut(event: AgentEvent) -> bool:
    """Whether a loop may say it behind an answer that was cut off."""
    if isinstance(event, UserMessage):
        return event.origin == "reminder"
    return isinstance(event, Note | TokensUsed)


def _is_whole_answer(event: AgentEvent) -> bool:
    """Whether the model of an agent has answered, by this event alone."""
    if isinstance(event, AssistantMessage):
        return bool(event.tool_uses)
    return isinstance(event, FinalResult)
