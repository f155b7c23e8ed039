"""The record of a task: what is known of it, and who waits to hear of it. And the table:
every record of a task that has not ended, and a bounded history.

The live records are apart from the history, so that what happens all the time costs
the same however much has happened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush
from inspect import isawaitable
from pathlib import Path
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import attrs
import trio

from actors import ActorRef, Context, Progress
from actors.env import Env
from actors.hosting import ProcessUsage
from actors.shell import Shell
from actors.work import Report, Work

from .._delivery.outbox import Notification, Notify
from ..tree._spec import Backoff, Restart
from .kinds import KINDS
from .snapshot import Pause, TaskError, TaskSnapshot, Usage

if TYPE_CHECKING:
    from actors.agent import Agent, AgentEvent
    from actors.transcript import AgentMeta

    from .agent_task import AgentTask
    from .endings import EndedBy


_MILLISECOND = timedelta(milliseconds=1)
_HALF = _MILLISECOND / 2


class EndReader(Protocol):
    """Who wants to hear of the end of a task, in the step in which it ends."""

    def task_ended(self, task: Task) -> None:
        """``task`` has ended."""
        ...


class RestartPolicy(NamedTuple):
    """How often a task that fails is run again."""

    restart: Restart
    intensity: int
    period: float
    backoff: Backoff | None


@attrs.define(eq=False, repr=False)
class Order:
    """What is to be started: `orders` has checked it."""

    work: Work
    task_type: str
    shutdown: float
    writes_output: bool
    takes_input: bool
    description: str | None
    owner: str | None
    tool_use_id: str | None
    policy: RestartPolicy | None
    notify: Notify
    has_tasks: bool = False
    takes_messages: bool = False
    limit_key: str | None = None
    key: str | None = None
    """With which it was launched, if any."""
    what: str = ""
    """What it does, for a launch with the same key."""


class Teller(Protocol):
    """Who tells what the work of a task says."""

    def progressed(self, task: Task) -> None:
        """The progress of ``task`` is worth telling."""
        ...

    def warn(
        self, task: Task | None, text: str, error: BaseException | None = None
    ) -> None:
        """Something about ``task`` is not as it should be, because of ``error``."""
        ...

    def prompted(self, task: Task) -> None:
        """``task`` probably waits for an answer."""
        ...

    def agent_said(self, task: Task, event: AgentEvent) -> None:
        """The agent of ``task`` has said something."""
        ...

    def answered(self, task: Task) -> None:
        """The model of the agent ``task`` has answered, after it had failed."""
        ...


class Task(Report):
    """The record of one task."""

    limit_key: str | None = None
    """Of an agent: what it counts for besides its type, such as its model."""
    depth: int | None = None
    """Of an agent: how many agents are above it."""
    pause: Pause | None = None
    """Of an agent that is paused: why it waits, and until when."""
    as_agent: AgentTask | None = None
    """Itself, if it is an agent. Whoever asks need not load what an agent is."""
    given: Agent | AgentMeta | None = None
    """Of an agent: what says with which prompt, type and model it was started."""

    __slots__ = (
        "background",
        "changed",
        "cut_by",
        "description",
        "end_number",
        "ended_at",
        "ended_by",
        "error",
        "is_released",
        "launched_by",
        "note",
        "notify",
        "owner",
        "parent",
        "policy",
        "ref",
        "sets",
        "shutdown",
        "started_at",
        "stop_reason",
        "stopping",
        "task_type",
        "teller",
        "work",
        "writes_output",
    )

    def __init__(
        self,
        task_id: str,
        run_id: str,
        env: Env,
        order: Order,
        teller: Teller,
        background: bool,
        launched_by: Task | None = None,
        parent: AgentTask | None = None,
    ) -> None:
        # Not by super(), which costs as much again; thousands are made.
        Report.__init__(self, task_id, run_id, env)
        if order.takes_input:
            self.takes_input = True
        self.work = order.work
        self.task_type = order.task_type
        self.shutdown = order.shutdown
        self.writes_output = order.writes_output
        self.description = order.description or task_id
        self.owner = order.owner
        if order.tool_use_id is not None:
            self.tool_use_id = order.tool_use_id
        self.background = background
        self.notify: Notify = order.notify
        # The record of its end, until that is acknowledged.
        self.note: Notification | None = None
        self.policy = order.policy
        self.teller = teller
        self.launched_by = launched_by
        # The agent whose own task it is, until it has ended.
        self.parent = parent
        # Its actor.
        self.ref: ActorRef[Any] | None = None
        # What follows is among the rare things for most. But thousands are stopped
        # together, and a dict for each would cost more.
        self.stopping = False
        self.stop_reason: str | None = None
        # Who or what has cut it short, if anything did; who has ended it in the end.
        self.cut_by: EndedBy | None = None
        self.ended_by: EndedBy | None = None
        self.end_number = 0
        # Whether nobody waits to hear of its end any more, so that it may be forgotten.
        self.is_released = False
        self.error: TaskError | None = None
        self.started_at: datetime | None = None
        self.ended_at: datetime | None = None
        # Made by the first who waits for the end or for the move to the background.
        self.changed: trio.Event | None = None
        # The sets that wait for its end.
        self.sets: list[EndReader] | None = None

    @property
    def entered_as(self) -> str:
        """The id of its first run, which is that of this record."""
        return self.first_run or self.run_id

    @property
    def parent_id(self) -> str | None:
        """The id of the agent whose own task it is, or was."""
        return self.last_parent if self.parent is None else self.parent.task_id

    def was_own_of(self, agent_id: str | None) -> None:
        """It was the own task of an agent of an earlier runtime."""
        self.last_parent = agent_id

    @property
    def output_source(self) -> Path | None:
        """The file that its output is read from, if it is there."""
        return None if self.output_lost else self.output_file

    def on_progress(self) -> None:
        self.teller.progressed(self)

    def on_prompt(self) -> None:
        self.teller.prompted(self)

    def warn(self, text: str, error: BaseException | None = None) -> None:
        self.teller.warn(self, text, error)

    def report_survivors(self, pids: tuple[int, ...]) -> None:
        super().report_survivors(pids)
        if pids:
            self.warn(f"still there after SIGKILL: {', '.join(map(str, pids))}")

    def on_input(self) -> None:
        self.tell_change()

    async def wait_changed(self) -> None:
        """Wait for the end of the task, for its move to the background, or for
        an input to write to."""
        if self.changed is None:
            self.changed = trio.Event()
        await self.changed.wait()

    def tell_change(self) -> None:
        """Wake all who wait for one."""
        if self.changed is not None:
            self.changed.set()
            self.changed = None

    def tell_end(self) -> None:
        """Wake all who wait for its end, alone or in a set."""
        changed = self.changed
        if changed is not None:
            # As `tell_change`, without a call.
            changed.set()
            self.changed = None
        if self.rare is not None and "_growth" in self.rare:
            # Whoever follows the output waits for the end as well.
            self.output_changed()
        if self.sets is not None:
            while self.sets:
                self.sets[-1].task_ended(self)
                self.sets.pop()
            self.sets = None

    async def wait_ended(self) -> None:
        """Wait for its end."""
        while self.ended_at is None:
            # As `wait_changed`, without a frame more to go through.
            if self.changed is None:
                self.changed = trio.Event()
            await self.changed.wait()

    def begin_run(self, ctx: Context[object]) -> Awaitable[object]:
        """Begin what the work does.

        Raises:
            TypeError: if it is not an async function.
        """
        run: object = self.work.run(ctx, self)
        if type(run) is CoroutineType or isawaitable(run):
            return run
        work, what = type(self.work).__name__, type(run).__name__
        raise TypeError(f"{work}.run is not an async function: it returned {what}")

    def begin_again(self, run_id: str) -> None:
        """Forget what the last run has left, but not its progress."""
        self.first_run = self.entered_as
        self.run_id = run_id
        self.exit_code = self.signal = self.pid = self.own_exit = None
        self.result = self.output_tail = None
        self.output_truncated = self.output_lost = False
        self.left_behind = 0
        self.output_run = self.output_bytes

    def let_go(self) -> None:
        """It has ended: keep the record, but nothing that it ran with."""
        if self.ref is not None:
            # Or a chain of tasks, each launched by the one before, is never freed.
            self.ref.spawned_by = None
        self.ref = self.launched_by = self.own_exit = None
        if self.parent is not None:
            self.last_parent, self.parent = self.parent.task_id, None
        if self.rare is not None:
            for name in ("context", "input", "measure", "runs"):
                self.rare.pop(name, None)
            said = self.last_said()
            if said is not None:
                self.quiet_for = trio.current_time() - said
                if self.active_at is not None and self.active_at[0] != said:
                    self.active_at = None
        # What its notification says of it.
        if isinstance(self.work, Shell):
            self.command, self.cwd = self.work.command, self.work.cwd
        del self.work

    def last_said(self) -> float | None:
        """Return when it last said something, on trio's clock."""
        return self.said_at

    def last_activity_at(self) -> datetime | None:
        """Return when it last said something, or had progress."""
        known = self.active_at
        if self.ended_at is not None:
            quiet: float | None = (self.rare or {}).get("quiet_for")
            if known is not None or quiet is None:
                return None if known is None else known[1]
            return self.ended_at - timedelta(seconds=quiet)
        said = self.last_said()
        if said is None:
            return None
        if known is None or known[0] != said:
            silence = trio.current_time() - said
            known = said, self.env.clock.now() - timedelta(seconds=silence)
            # Kept, or each who asks would get another time by some microseconds.
            self.active_at = known
        return known[1]

    def snapshot(self) -> TaskSnapshot:
        """Return what is known now."""
        rare, given, is_over = self.rare, self.given, self.status.is_terminal
        agent, shell = self.as_agent, None
        if self.ended_at is None and isinstance(self.work, Shell):
            shell = self.work
        parent = None if self.parent is None else self.parent.task_id
        runs: ActorRef[Any] | None = None
        if rare is not None:
            runs = rare.get("runs")
            if parent is None:
                parent = rare.get("last_parent")
        usual = (
            self.task_id,
            self.run_id,
            self.task_type,
            self.status,
            self.description,
            self.owner,
            parent,
            self.background,
            self.notify,
            self.background and self.note is None and is_over,
            self.stopping and not is_over,
            runs is not None and runs.state == "restarting",
            self.progress,
            self.result if agent is None else agent.said_last(),
            self.error,
            self.ended_by,
            self.started_at,
            self.ended_at,
            self.usage(),
        )
        if rare is None and given is None and shell is None:
            # Most tasks have none of the rest.
            return TaskSnapshot(*usual)
        # As they lie there.
        rare = rare or {}
        command = rare.get("command") if shell is None else shell.command
        return TaskSnapshot(
            *usual,
            depth=self.depth,
            tool_use_id=rare.get("tool_use_id"),
            waiting=rare.get("waiting"),
            terminate=rare.get("terminate"),
            activities=rare.get("recent", ()),
            last_activity_at=self.last_activity_at() if rare else None,
            exit_code=rare.get("exit_code"),
            signal=rare.get("signal"),
            pid=rare.get("pid"),
            pause=self.pause,
            command=command,
            prompt=rare.get("prompt") if given is None else given.prompt,
            agent_type=None if given is None else given.type,
            model=None if given is None else given.model,
            left_behind=rare.get("left_behind", 0),
            output_file=rare.get("output_file"),
        )

    def usage(self) -> Usage:
        """Return what it has used so far; a shell uses no tokens."""
        tokens = tools = None
        progress, kind = self.progress, self.task_type
        # What else it may be the work has written there.
        if (
            progress is not None
            and isinstance(progress, Progress)
            and KINDS[kind].progress_by != "bytes"
        ):
            tokens, tools = progress.total_tokens, progress.tool_uses
        rare = self.rare
        if rare is None:
            return Usage(self.duration_ms(), tokens, tools)
        # As they lie there.
        spent = rare.get("spent") or (None, None, None, None)
        now = _measure(rare.get("measure"))
        if now is None:
            cpu = rare.get("cpu_seconds")
            return Usage(self.duration_ms(), tokens, tools, cpu, None, None, *spent)
        return Usage(
            self.duration_ms(),
            tokens,
            tools,
            now.cpu_seconds,
            now.memory_bytes,
            now.processes,
            *spent,
        )

    def duration_ms(self) -> int | None:
        """Return the milliseconds from its start to its end or to now. Nobody knows
        when one has ended that has died with its program."""
        # In wall time: it is for people.
        if self.started_at is None or self.cut_by == "crash":
            return None
        took = (self.ended_at or self.env.clock.now()) - self.started_at
        return max(0, (took + _HALF) // _MILLISECOND)


def _measure(measure: Callable[[], ProcessUsage | None] | None) -> ProcessUsage | None:
    # The boundary: a work's own function, and a question must not fail.
    try:
        return None if measure is None else measure()
    except Exception:
        return None


# ---- The table ----

HISTORY = 32
"""Ended tasks of each type, and of those as many in the background as waited for,
that are kept once nobody waits to hear of them."""


class Table:
    """Every task by id."""

    def __init__(self) -> None:
        self.live: dict[str, Task] = {}
        self.ended: dict[str, Task] = {}
        # Made by the first who waits until none is live.
        self._empty: trio.Event | None = None
        # The ended tasks that may be forgotten: a heap for each type, in which the
        # first to end is the first to go. Tasks in the foreground have heaps of their
        # own, or they would drive out those in the background.
        self._evictable: dict[tuple[str, bool], list[tuple[int, str]]] = {}
        self._ends = 0
        # The ids of background tasks, by owner. An owner without any has no entry.
        self._unfinished: dict[str | None, dict[str, None]] = {}

    def is_live(self, task: Task) -> bool:
        """Whether it is one of ours and has not ended."""
        return self.live.get(task.task_id) is task

    def find(self, task_id: object) -> Task | None:
        """Return the task, or None when it is unknown or forgotten."""
        if not isinstance(task_id, str):
            return None
        return self.live.get(task_id) or self.ended.get(task_id)

    def all(self) -> list[Task]:
        """Return every task: those that ended first, then the live ones."""
        return [*self.ended.values(), *self.live.values()]

    def unfinished(self, owner: str | None) -> list[Task]:
        """Return those that have not ended, of ``owner`` or, with None, of all."""
        live = self.live.values()
        return [task for task in live if owner is None or task.owner == owner]

    def foreground(self, owner: str | None) -> list[Task]:
        """Return those of them in the foreground; with None the agents' own are left
        out."""
        return [
            task
            for task in self.unfinished(owner)
            if not task.background and (owner is not None or task.parent is None)
        ]

    def add(self, task: Task) -> None:
        """Enter a new task."""
        self.live[task.task_id] = task
        if task.background:
            # As `moved_to_background`, without a call.
            self._unfinished.setdefault(task.owner, {})[task.task_id] = None

    def moved_to_background(self, task: Task) -> None:
        """Count it among those whose end is told."""
        self._unfinished.setdefault(task.owner, {})[task.task_id] = None

    def end(self, task: Task) -> int:
        """Move a task that ended to the history, without what it ran with; return
        how many background tasks of its owner have not ended. Called again after a
        failure it goes on."""
        left = self.take_out(task)
        if not task.end_number:
            task.end_number = self._ends = self._ends + 1
        # The one thing that takes much memory: without it the task is forgotten.
        self.ended[task.task_id] = task
        task.let_go()
        return left

    def replace(self, ended: Task, task: Task) -> None:
        """Enter ``task`` under the id of a task that has ended, whose record is
        forgotten. What is told of that end is told all the same."""
        del self.ended[ended.task_id]
        if ended.is_released:
            evictable = self._evictable[ended.task_type, ended.background]
            evictable.remove((ended.end_number, ended.task_id))
            heapify(evictable)
            ended.is_released = False
        self.add(task)

    def has_ended(self, task: Task) -> bool:
        """Whether it is one of ours, has ended and is not forgotten."""
        return self.ended.get(task.task_id) is task

    def may_go(self, task: Task) -> bool:
        """Whether nobody waits to hear of this ended task any more."""
        return task.is_released and self.has_ended(task)

    def take_out(self, task: Task) -> int:
        """Forget a task that has not ended; return how many background tasks of
        its owner have not. Twice the same does no harm."""
        unfinished = self._unfinished.get(task.owner)
        if unfinished is not None:
            unfinished.pop(task.task_id, None)
            if not unfinished:
                self._unfinished.pop(task.owner, None)
        self.live.pop(task.task_id, None)
        if self._empty is not None and not self.live:
            self._empty.set()
            self._empty = None
        return 0 if unfinished is None else len(unfinished)

    async def wait_empty(self) -> None:
        """Wait until no task is unfinished."""
        while self.live:
            if self._empty is None:
                self._empty = trio.Event()
            await self._empty.wait()

    def put_back(self, ended: Task) -> None:
        """Enter the record of a task that has ended, where it was before
        `replace`."""
        self.ended[ended.task_id] = ended
        in_order = sorted(self.ended.values(), key=lambda task: task.end_number)
        self.ended = {task.task_id: task for task in in_order}

    def release(self, task: Task) -> Task | None:
        """Nobody waits to hear of this ended task any more: it may be forgotten.
        Return the one that is, which has ended first of those that may. Twice the
        same does no harm."""
        task_id, kind = task.task_id, (task.task_type, task.background)
        evictable = self._evictable.get(kind)
        if evictable is None:
            evictable = self._evictable[kind] = []
        if not task.is_released:
            if self.ended.get(task_id) is not task:
                return None
            heappush(evictable, (task.end_number, task_id))
            task.is_released = True
        if len(evictable) <= HISTORY:
            return None
        _, oldest = heappop(evictable)
        return self.ended.pop(oldest, None)
