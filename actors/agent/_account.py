"""What the events of one run add up to, and whether it still gives signs of life."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import trio

from .._kernel.status import Progress
from ..text import first_line
from ._activity import Activity, Draft, Outcome, shortened
from ._budget import Budget
from ._errors import AgentFailed
from ._events import (
    ApprovalRequested,
    AssistantMessage,
    CompactBoundary,
    Message,
    Note,
    Retrying,
    TextDelta,
    TodoList,
    TokensUsed,
    ToolCompleted,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from ._host import AgentHost
from ._plan import PlanReader, how_far
from ._report import AgentReport

if TYPE_CHECKING:
    from ._agent import Agent

_ACTIVITIES = 5
"""Activities that are kept."""

# How long a suspension of the host may go unnoticed: nothing tells of one, only
# that the watch wakes later than it asked for.
LOOK_EVERY = 15.0
LATE = 1.0


class Account:
    """Counts, keeps and tells what one run says.

    `tell` is called for each event, perhaps 10,000 times a second: what it does
    for one that is not kept must be short.
    """

    def __init__(
        self, agent: Agent, report: AgentReport, host: AgentHost, budget: Budget | None
    ) -> None:
        self._agent = agent
        self._report = report
        self._host = host
        self._budget = budget
        self.pulse = Pulse()
        # Those of the runs before, and all since; from the last compaction on.
        self.history: list[Message] = []
        self.answer: str | None = None
        # Why it must not go on.
        self.over: Exception | None = None
        self.plan_changes = 0
        self._plan = PlanReader()
        # What a message has made the plan, until that is told.
        self._written: TodoList | None = None
        # The calls that were made since the run last said something, by id, with
        # the names of their tools; and whether a loss of them was told.
        self._made: dict[str, str] = {}
        self._told_loss = False
        # The texts of the messages since the last answer.
        self._said: list[str] = []
        self._turns = 0
        self._tool_uses = 0
        # Those that were read, written, and of those read the cached ones.
        self._tokens = (0, 0, 0, 0)
        self._activities: tuple[str, ...] = ()
        self._draft = Draft()
        report.draft = self._draft
        report.pulse = self.pulse
        report.spent = None
        self._on: dict[type, Callable[..., object]] = {
            ApprovalRequested: self._approval,
            AssistantMessage: self._assistant,
            CompactBoundary: self._boundary,
            Note: self._note,
            Retrying: self._retrying,
            TextDelta: self._delta,
            TodoList: self._todo,
            TokensUsed: self._used,
            ToolCompleted: self._completed,
            ToolStarted: self._started,
            UserMessage: self._user,
        }

    def tell(self, event: Any) -> bool:
        """Take in one event other than a `FinalResult`; say whether it was one."""
        take = self._on.get(event.__class__)
        if take is None:
            return False
        pulse = self.pulse
        pulse.last = pulse.said = trio.current_time()
        pulse.awaits_answer = False
        take(event)
        self._report.on_agent_event(event)
        if self._written is not None:
            written, self._written = self._written, None
            self._report.on_agent_event(written)
        return True

    @property
    def plan(self) -> TodoList | None:
        """The plan as it is now."""
        return self._report.todos

    def keep(self, message: Message) -> None:
        """Take in a message that the run was given, not one that it has yielded."""
        self.remember(message)
        self._report.on_agent_event(message)

    def remember(self, message: Message) -> None:
        """Put a message into the history and the transcript."""
        self.begin_with(message)
        written = self._plan.read(message)
        if written is not None and self._todo(written):
            self._written = written

    def begin_with(self, message: Message) -> None:
        """Likewise, with one of somebody else's conversation, whose plan is theirs."""
        self.history.append(message)
        why = self._host.record(message)
        if why is not None:
            self.over = why

    def called(self, uses: Iterable[ToolUse]) -> None:
        """These calls were made, and the run has their answers in hand."""
        if not self._told_loss:
            self._made.update((use.id, use.name) for use in uses)

    def check_yielded(self) -> None:
        """Warn, once, of calls that the run has made and not put into the
        conversation, now that it has gone on."""
        made, self._made = self._made, {}
        if not made:
            return
        calls, answers = dict(made), dict(made)
        for message in reversed(self.history):
            if isinstance(message, AssistantMessage):
                for use in message.tool_uses:
                    calls.pop(use.id, None)
            elif isinstance(message, UserMessage):
                for answer in message.tool_answers:
                    answers.pop(answer.tool_use_id, None)
            if not calls and not answers:
                return
        self._told_loss = True
        self._report.warn(_loss(calls, answers))

    def say_answer(self, text: str) -> None:
        """The run has an answer. An empty one does not count: what was said before
        stands. It is in the conversation, also if no message has said it."""
        self.pulse.last = self.pulse.said = trio.current_time()
        self.check_yielded()
        answer = text.strip()
        if answer:
            self._draft.clear()
            self.answer = self._report.result = text
            if all(said.strip() != answer for said in self._said):
                self.remember(AssistantMessage(text))
        self._said = []

    def keep_draft(self) -> None:
        """No more will come: what there is of a message is the last that was said."""
        draft = self._draft.text()
        self._draft.clear()
        if draft.strip():
            self._report.result = draft

    # The kinds of events

    def _assistant(self, message: AssistantMessage) -> None:
        # Unless it is told late, after the answers were asked for.
        if self._made and not any(use.id in self._made for use in message.tool_uses):
            self.check_yielded()
        self.remember(message)
        self._draft.clear()
        if message.text.strip():
            self._said.append(message.text)
            self.answer = self._report.result = message.text
            self._say(message.text)
        if message.tool_uses:
            self._turns += 1
            limit = self._agent.max_turns
            if limit is not None and self._turns > limit:
                why = f"it wanted more than {limit} rounds of tools"
                self.over = AgentFailed("max_turns", why)

    def _user(self, message: UserMessage) -> None:
        # One from the inbox is kept when it is taken, whoever yields it then.
        if message.origin in ("prompt", "tools") or not any(
            message is known for known in self.history
        ):
            self.remember(message)

    def _boundary(self, boundary: CompactBoundary) -> None:
        if boundary.plan is None and self._report.todos is not None:
            boundary = attrs.evolve(boundary, plan=self._report.todos)
        self.history.clear()
        self._made = {}
        self._said = [
            it.text for it in boundary.kept if isinstance(it, AssistantMessage)
        ]
        self.remember(boundary)

    def _delta(self, delta: TextDelta) -> None:
        self._draft.add(delta.text)

    def _note(self, note: Note) -> None:
        self._say(note.text)

    def _retrying(self, event: Retrying) -> None:
        self._say(
            f"Trying again in {event.wait:.3g} s, after try {event.attempt}: "
            f"{event.reason}"
        )

    def _started(self, call: ToolStarted) -> None:
        self._tool_uses += 1
        self._say(call.name, call)

    def _completed(self, call: ToolCompleted) -> None:
        outcome: Outcome = "failed" if call.is_error else "completed"
        self._keep_recent(
            attrs.evolve(it, outcome=outcome, error=call.error)
            if it.outcome == "running" and it.tool_use_id == call.id
            else it
            for it in self._report.recent
        )

    def _used(self, used: TokensUsed) -> None:
        tokens = used.input_tokens + used.output_tokens
        read, written, cached, kept = self._tokens
        self._report.spent = self._tokens = (
            read + used.input_tokens,
            written + used.output_tokens,
            cached + used.cache_read_tokens,
            kept + used.cache_write_tokens,
        )
        self._report.say(self._progress())
        if self._budget is not None:
            self._budget.charge(tokens, used.cost)
            exceeded = self._budget.exceeded
            if exceeded is not None:
                self.over = AgentFailed("budget", exceeded)

    def _todo(self, plan: TodoList) -> bool:
        """Take in the plan; say whether it is another one."""
        if plan == self._report.todos:
            return False
        self._report.todos = plan
        self.plan_changes += 1
        self._say(how_far(plan))
        return True

    def _approval(self, request: ApprovalRequested) -> None:
        self.pulse.awaits_answer = True

    # What is shown

    def _say(self, text: str, call: ToolStarted | None = None) -> None:
        line, report = first_line(text), self._report
        self._activities = (*self._activities[1 - _ACTIVITIES :], line)
        now = report.env.clock.now()
        if call is None:
            activity = Activity(text=line, at=now)
        else:
            activity = Activity(
                text=line,
                at=now,
                tool=call.name,
                tool_use_id=call.id,
                input=shortened(call.input),
                outcome="running",
            )
        self._keep_recent((*report.recent[1 - _ACTIVITIES :], activity))
        report.say(self._progress())

    def _keep_recent(self, recent: Iterable[Activity]) -> None:
        # What an earlier run says late is dropped, as its progress is.
        if not self._report.status.is_terminal:
            self._report.recent = tuple(recent)

    def _progress(self) -> Progress:
        activities = self._activities
        return Progress(
            activities[-1] if activities else "",
            0,
            self._tool_uses,
            self._tokens[0] + self._tokens[1],
            activities,
        )


def _loss(calls: Mapping[str, str], answers: Mapping[str, str]) -> str:
    """Say which calls the conversation lacks, or the answers of which, by id."""
    names = sorted({*calls.values(), *answers.values()})
    lacking = {
        "the AssistantMessage with the calls, before `use_tools`": calls,
        "the answers that `use_tools` returns": answers,
    }
    wanted = " and ".join(what for what, lost in lacking.items() if lost)
    return (
        f"tool calls ({', '.join(names)}) were made and not yielded: the transcript "
        f"lacks them, and a resumed run knows nothing of them; `yield` {wanted}"
    )


# ---- Signs of life ----


@attrs.define(eq=False, repr=False)
class Pulse:
    """When the agent last gave a sign of life, on trio's clock."""

    last: float = attrs.field(factory=trio.current_time)
    _pauses: int = 0
    awaits_answer: bool = False
    """Until the next event."""
    said: float | None = None
    """When it last said something, which the end of a wait is not."""

    @property
    def is_paused(self) -> bool:
        """Whether it waits for something that may take its time."""
        return self._pauses > 0 or self.awaits_answer

    @contextmanager
    def paused(self) -> Generator[None]:
        """While it waits for something that may take its time."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            self.last = trio.current_time()


async def watch(
    pulse: Pulse,
    *,
    warning: float | None,
    limit: float | None,
    deadline: float,
    on_silence: Callable[[float], None],
    on_stall: Callable[[], None],
    on_deadline: Callable[[], None],
) -> None:
    """Call ``on_silence`` once for each silence of ``warning`` seconds; return
    after ``on_stall``, after one of ``limit`` seconds, or after ``on_deadline``."""
    warned_of = -math.inf
    while True:
        looked = trio.current_time()
        due = min(looked + LOOK_EVERY, deadline)
        if not pulse.is_paused:
            if warning is not None and warned_of < pulse.last:
                due = min(due, pulse.last + warning)
            if limit is not None:
                due = min(due, pulse.last + limit)
        # Or it would wake a moment before its time, again and again.
        await trio.sleep_until(max(due, looked))
        now = trio.current_time()
        if now >= deadline:
            on_deadline()
            return
        if pulse.is_paused:
            continue
        if now - due > LATE:
            # The host was suspended for an unknown part of the time.
            pulse.last = min(now, pulse.last + (now - looked))
        silence = now - pulse.last
        if limit is not None and silence >= limit:
            on_stall()
            return
        if warning is not None and silence >= warning and warned_of < pulse.last:
            warned_of = pulse.last
            on_silence(silence)
