"""The task table: every task that has not ended, and a bounded history.

The live table is apart from the history, so that what happens all the time
costs the same however much has happened.
"""

from __future__ import annotations

import contextvars
import traceback
from collections import Counter
from datetime import datetime
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Protocol

import attrs
import trio

from actors import ActorRef, Exit, Failed, Progress, Stopped, TaskStatus
from actors.env import Env
from actors.work import Report, Work

from ._errors import RestartIntensityExceeded
from ._spec import Backoff, Restart

HISTORY = 32
"""Ended tasks of each type that are kept once nobody waits to hear of them."""

TEXT_LIMIT = 65_536
"""Characters kept of an error's message, and of its traceback."""


@attrs.frozen
class TaskError:
    """What went wrong, as text."""

    type: str
    message: str
    traceback: str


@attrs.frozen
class Usage:
    """What a task has used so far."""

    duration_ms: int | None
    """From its start to its end or to now; None before its start."""
    total_tokens: int | None = None
    tool_uses: int | None = None


@attrs.frozen(kw_only=True)
class TaskSnapshot:
    """A task at one moment."""

    id: str
    run_id: str
    """Of the latest run; a restarted task keeps its id and gets a new run id."""
    type: str
    """``local_bash``, ``local_agent`` or ``remote_agent``."""
    status: TaskStatus
    description: str
    owner: str | None
    tool_use_id: str | None
    background: bool
    """Whether its end is told by a notification."""
    stopping: bool
    """Whether it was asked to stop and has not ended."""
    restarting: bool
    """Whether it is between two runs."""
    progress: Progress | None
    result: str | None
    """Of a shell: the tail of its output, cleaned."""
    error: TaskError | None
    exit_code: int | None
    signal: int | None
    pid: int | None
    output_file: Path | None
    started_at: datetime | None
    """When it got its place; aware, in UTC."""
    ended_at: datetime | None
    usage: Usage


@attrs.frozen(kw_only=True)
class RestartPolicy:
    """How often a task that fails is run again."""

    restart: Restart
    intensity: int
    period: float
    backoff: Backoff | None


class Host(Protocol):
    """Whom a task tells of what its work says."""

    def on_progress(self, task: Task) -> None:
        """The progress of ``task`` is worth telling."""
        ...

    def on_warning(self, task: Task | None, text: str) -> None:
        """Something about ``task`` is not as it should be."""
        ...


class Task(Report):
    """The record of one task."""

    __slots__ = (
        "background",
        "changed",
        "context",
        "description",
        "end_number",
        "ended_at",
        "error",
        "launched_by",
        "host",
        "owner",
        "policy",
        "ref",
        "run_id",
        "runs",
        "shutdown",
        "started_at",
        "stop_reason",
        "stopping",
        "task_type",
        "tool_use_id",
        "waits",
        "work",
        "writes_output",
    )

    def __init__(
        self,
        task_id: str,
        run_id: str,
        work: Work,
        env: Env,
        *,
        task_type: str,
        shutdown: float,
        writes_output: bool,
        description: str,
        owner: str | None,
        tool_use_id: str | None,
        background: bool,
        policy: RestartPolicy | None,
        launched_by: Task | None,
        host: Host,
    ) -> None:
        super().__init__(task_id, env)
        self.run_id = run_id
        self.work = work
        self.task_type = task_type
        self.shutdown = shutdown
        self.writes_output = writes_output
        self.description = description
        self.owner = owner
        self.tool_use_id = tool_use_id
        self.background = background
        self.policy = policy
        self.host = host
        self.launched_by = launched_by
        # Its actor, and the child of that which is one run after the other.
        self.ref: ActorRef[Any] | None = None
        self.runs: ActorRef[Any] | None = None
        # How many of its calls wait for tasks that it launched.
        self.waits = 0
        # That of whoever launched it, if it has to wait for a place.
        self.context: contextvars.Context | None = None
        self.stopping = False
        self.stop_reason: str | None = None
        self.end_number = 0
        self.error: TaskError | None = None
        self.started_at: datetime | None = None
        self.ended_at: datetime | None = None
        # Made by the first who waits for the end or for the move to the background.
        self.changed: trio.Event | None = None

    def on_progress(self) -> None:
        self.host.on_progress(self)

    def warn(self, text: str) -> None:
        self.host.on_warning(self, text)

    def report_survivors(self, pids: tuple[int, ...]) -> None:
        super().report_survivors(pids)
        if pids:
            self.warn(f"still there after SIGKILL: {', '.join(map(str, pids))}")

    async def wait_changed(self) -> None:
        """Wait for the end of the task or for its move to the background."""
        if self.changed is None:
            self.changed = trio.Event()
        await self.changed.wait()

    def tell_change(self) -> None:
        """Wake all who wait for one."""
        if self.changed is not None:
            self.changed.set()
            self.changed = None

    def begin_again(self, run_id: str) -> None:
        """Forget what the last run has left, but not its progress."""
        self.run_id = run_id
        self.exit_code = self.signal = self.pid = self.own_exit = None
        self.result = self.output_tail = None
        self.output_truncated = False

    def let_go(self) -> None:
        """It has ended: keep the record, but nothing that it ran with."""
        if self.ref is not None:
            # Or a chain of tasks, each launched by the one before, is never freed.
            self.ref.spawned_by = None
        self.ref = self.runs = self.launched_by = self.own_exit = None
        del self.work

    def snapshot(self) -> TaskSnapshot:
        """Return what is known now."""
        return TaskSnapshot(
            id=self.task_id,
            run_id=self.run_id,
            type=self.task_type,
            status=self.status,
            description=self.description,
            owner=self.owner,
            tool_use_id=self.tool_use_id,
            background=self.background,
            stopping=self.stopping and not self.status.is_terminal,
            restarting=self.runs is not None and self.runs.state == "restarting",
            progress=self.progress,
            result=self.result,
            error=self.error,
            exit_code=self.exit_code,
            signal=self.signal,
            pid=self.pid,
            output_file=self.output_file,
            started_at=self.started_at,
            ended_at=self.ended_at,
            usage=self.usage(),
        )

    def usage(self) -> Usage:
        """Return what it has used so far; a shell uses no tokens."""
        if not isinstance(self.progress, Progress) or self.task_type == "local_bash":
            return Usage(self._duration_ms())
        return Usage(
            self._duration_ms(), self.progress.total_tokens, self.progress.tool_uses
        )

    def _duration_ms(self) -> int | None:
        # In wall time: it is for people.
        if self.started_at is None:
            return None
        end = self.ended_at or self.env.clock.now()
        return max(0, round((end - self.started_at).total_seconds() * 1000))


def conclude(
    exit: Exit[object], own_exit: Exit[object] | None
) -> tuple[TaskStatus, Exception | None]:
    """Return the terminal status that an exit of the task's actor means.

    ``own_exit`` is the end of the work itself, where that came before the end
    of the actor: it counts, unless the actor failed after it.
    """
    if own_exit is not None and not isinstance(exit, Failed):
        exit = own_exit
    if isinstance(exit, Failed):
        return TaskStatus.FAILED, exit.error
    if isinstance(exit, Stopped):
        if exit.by == "deadline":
            return TaskStatus.FAILED, TimeoutError("the deadline of the task passed")
        return TaskStatus.KILLED, None
    return TaskStatus.COMPLETED, None


def describe_error(error: Exception) -> TaskError:
    """Return ``error`` as text, whatever its own methods do."""
    try:
        trace = "".join(traceback.format_exception(error))
    # The boundary: see `describe`.
    except Exception as second:
        trace = f"a traceback that cannot be shown: {type(second).__name__}"
    if isinstance(error, RestartIntensityExceeded):
        # Of its runs, in the words of one who knows nothing of supervisors.
        message = (
            f"had to be run again more than {error.intensity} time(s) within "
            f"{error.period:g} s; last: {describe(error.__cause__)}"
        )
    else:
        message = describe(error)
    return TaskError(type(error).__name__, message[:TEXT_LIMIT], trace[:TEXT_LIMIT])


def describe(value: object) -> str:
    """Return ``value`` as a real str, whatever its own methods do."""
    try:
        return "".join((str(value), ""))
    # The boundary: somebody's __str__ must not cost the task its end.
    except Exception as error:
        return f"a {type(value).__name__} that cannot be shown: {type(error).__name__}"


class Table:
    """Every task by id."""

    def __init__(self) -> None:
        self.live: dict[str, Task] = {}
        self._ended: dict[str, Task] = {}
        # Those of the ended that may go, by type, as heaps: the first to end
        # goes first, whatever was heard of first.
        self._evictable: dict[str, list[tuple[int, str]]] = {}
        self._ends = 0
        self._unfinished: Counter[str | None] = Counter()

    def __contains__(self, task_id: str) -> bool:
        return task_id in self.live or task_id in self._ended

    def is_live(self, task: Task) -> bool:
        """Whether it is one of ours and has not ended."""
        return self.live.get(task.task_id) is task

    def find(self, task_id: object) -> Task | None:
        """Return the task, or None when it is unknown or forgotten."""
        if not isinstance(task_id, str):
            return None
        return self.live.get(task_id) or self._ended.get(task_id)

    def all(self) -> list[Task]:
        """Return every task: those that ended first, then the live ones."""
        return [*self._ended.values(), *self.live.values()]

    def add(self, task: Task) -> None:
        """Enter a new task."""
        if task.background:
            self._unfinished[task.owner] += 1
        self.live[task.task_id] = task

    def moved_to_background(self, task: Task) -> None:
        """Count it among those whose end is told."""
        self._unfinished[task.owner] += 1

    def end(self, task: Task) -> None:
        """Move a task that ended to the history."""
        del self.live[task.task_id]
        self._ends += 1
        task.end_number = self._ends
        self._ended[task.task_id] = task
        if task.background:
            self._unfinished[task.owner] -= 1
            if not self._unfinished[task.owner]:
                del self._unfinished[task.owner]
        else:
            self.release(task.task_id)

    def unfinished(self, owner: str | None) -> int:
        """Return how many background tasks of ``owner`` have not ended."""
        return self._unfinished[owner]

    def release(self, task_id: str) -> None:
        """Nobody waits to hear of this task any more: it may be forgotten."""
        task = self._ended.get(task_id)
        if task is None:
            return
        evictable = self._evictable.setdefault(task.task_type, [])
        heappush(evictable, (task.end_number, task_id))
        if len(evictable) > HISTORY:
            _, oldest = heappop(evictable)
            del self._ended[oldest]
