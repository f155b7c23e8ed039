"""What tasks have in the world: it ends with them, what is said of it is so, and it has
bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from ...runtime import (
    Notified,
    TaskEnded,
    TaskRestarted,
    TaskRestartScheduled,
    TaskResumed,
    TaskStarted,
    Warned,
)
from ...tree import (
    ChildExited,
    ChildStarted,
    Event,
)
from ..log import (
    Began,
    Called,
    Closed,
    Entry,
    LogEnded,
    OutputClosed,
    OutputOpened,
    ProcessExited,
    ProcessGone,
    ProcessSignalled,
    ProcessStarted,
    Raised,
    Returned,
    RuntimeOpened,
)
from ._checker import (
    Broken,
    Checker,
    Judge,
)


def task_of(run_id: str) -> str:
    """Return the task of a run."""
    return run_id.rpartition("-")[0]


class Scope(Checker):
    """When a runtime is closed, no task, process or output of it is left."""

    promise = "P1"
    title = "nothing outlives its scope"

    def __init__(self, broken: Broken) -> None:
        super().__init__(broken)
        # What is there, with the line that began it.
        self._there: dict[str, int] = {}
        self._closed = False

    def judges(self) -> Mapping[type[Event], Judge]:
        return {
            RuntimeOpened: self._opened,
            TaskStarted: self._begins,
            TaskResumed: self._begins,
            TaskEnded: self._ends,
            ProcessStarted: self._begins,
            ProcessGone: self._ends,
            OutputOpened: self._begins,
            OutputClosed: self._ends,
            Closed: self._is_closed,
            LogEnded: self._log_ended,
        }

    def _opened(self, event: RuntimeOpened, at: Entry) -> None:
        self._closed = False

    def _begins(self, event: Event, at: Entry) -> None:
        self.judged += 1
        owner = _owner_of(event)
        self._there[owner] = at.number
        if self._closed:
            self.breaks(owner, "it began after the end of all", at.number)

    def _ends(self, event: Event, at: Entry) -> None:
        self._there.pop(_owner_of(event), None)

    def _is_closed(self, event: Closed, at: Entry) -> None:
        if "/" not in event.supervisor:
            self._look(at)
            self._closed = True

    def _log_ended(self, event: LogEnded, at: Entry) -> None:
        self._look(at)

    def _look(self, at: Entry) -> None:
        for owner, begun in self._there.items():
            self.breaks(owner, "it was left behind", begun, at.number)
        self._there.clear()


def _owner_of(event: Event) -> str:
    if isinstance(event, ProcessStarted | ProcessGone):
        return f"process {event.pid} of run {event.run_id}"
    what = "output" if isinstance(event, OutputOpened | OutputClosed) else "task"
    return f"{what} {cast('TaskEnded', event).task_id}"


class Truth(Checker):
    """What is said of an end is so when it is said."""

    promise = "P2"
    title = "a terminal state is the truth"

    def __init__(self, broken: Broken) -> None:
        super().__init__(broken)
        # What a task still has, and its status, by its id.
        self._actors: dict[str, int] = {}
        self._processes: dict[str, dict[int, int]] = {}
        self._outputs: dict[str, int] = {}
        self._codes: dict[str, tuple[int | None, int | None]] = {}
        self._signalled = set[str]()  # before they exited
        self._live: dict[str, int] = {}
        self._restart: dict[str, str] = {}
        self._named: dict[int, Sequence[str]] = {}
        self._resumed: dict[str, str] = {}  # {agent: its run}

    def judges(self) -> Mapping[type[Event], Judge]:
        return {
            Began: self._was_told,
            TaskStarted: self._began,
            TaskResumed: self._was_resumed,
            TaskRestarted: self._again,
            ChildStarted: self._actor_began,
            ChildExited: self._actor_ended,
            ProcessStarted: self._process_began,
            ProcessSignalled: self._process_signalled,
            ProcessExited: self._process_exited,
            ProcessGone: self._process_gone,
            TaskRestartScheduled: self._again,
            OutputOpened: self._output_opened,
            OutputClosed: self._output_closed,
            TaskEnded: self._ended,
            Notified: self._notified,
            Called: self._called,
            Returned: self._returned,
            Raised: self._raised,
        }

    def _began(self, event: TaskStarted, at: Entry) -> None:
        self._live[event.task_id] = at.number

    def _was_resumed(self, event: TaskResumed, at: Entry) -> None:
        self._live[event.task_id] = at.number
        self._resumed[event.task_id] = event.run_id

    def _was_told(self, event: Began, at: Entry) -> None:
        self._restart[event.task_id] = event.restart

    def _again(self, event: TaskRestarted | TaskRestartScheduled, at: Entry) -> None:
        if event.task_id in self._resumed and isinstance(event, TaskRestarted):
            self._resumed[event.task_id] = event.run_id
        self._codes.pop(event.task_id, None)
        self._signalled.discard(event.task_id)

    def _actor_began(self, event: ChildStarted, at: Entry) -> None:
        if event.child in self._live:
            self._actors[event.child] = at.number

    def _actor_ended(self, event: ChildExited, at: Entry) -> None:
        self._actors.pop(event.child, None)

    def _process_began(self, event: ProcessStarted, at: Entry) -> None:
        of_task = self._processes.setdefault(task_of(event.run_id), {})
        of_task[event.pid] = at.number

    def _process_signalled(self, event: ProcessSignalled, at: Entry) -> None:
        if task_of(event.run_id) not in self._codes:
            self._signalled.add(task_of(event.run_id))

    def _process_exited(self, event: ProcessExited, at: Entry) -> None:
        self._codes[task_of(event.run_id)] = event.code, event.signal

    def _process_gone(self, event: ProcessGone, at: Entry) -> None:
        task_id = task_of(event.run_id)
        of_task = self._processes.get(task_id, {})
        of_task.pop(event.pid, None)
        if not of_task:
            self._processes.pop(task_id, None)

    def _output_opened(self, event: OutputOpened, at: Entry) -> None:
        self._outputs[event.task_id] = at.number

    def _output_closed(self, event: OutputClosed, at: Entry) -> None:
        self._outputs.pop(event.task_id, None)

    def _ended(self, event: TaskEnded, at: Entry) -> None:
        self.judged += 1
        task_id, owner = event.task_id, f"task {event.task_id}"
        self._live.pop(task_id, None)
        self._resumed.pop(task_id, None)
        begun = self._actors.pop(task_id, None)
        if begun is not None:
            self.breaks(owner, "it ended while its actor ran", begun, at.number)
        for pid, begun in self._processes.pop(task_id, {}).items():
            text = f"it ended while process {pid} or one below it was there"
            self.breaks(owner, text, begun, at.number)
        begun = self._outputs.pop(task_id, None)
        if begun is not None:
            self.breaks(owner, "it ended while its output was open", begun, at.number)
        said = event.exit_code, event.signal
        told = self._codes.pop(task_id, None)
        if said != (None, None) and told is not None and said != told:
            text = f"its exit code and signal were {told}, and it says {said}"
            self.breaks(owner, text, at.number)
        if event.status == "completed" and told not in (None, (0, None)):
            self.breaks(owner, f"it completed, with {told}", at.number)
        if said == (None, None) and told not in (None, said):
            self.breaks(owner, f"it does not tell its exit, {told}", at.number)
        by_itself = task_id not in self._signalled and told is not None
        self._signalled.discard(task_id)
        # Of one that comes back after such an end this was not the last run.
        restart = self._restart.pop(task_id, "temporary")
        is_last = restart == "temporary" or (
            restart == "transient" and told == (0, None)
        )
        if by_itself and is_last and event.status == "killed":
            text = f"it is killed, and its command had ended by itself, with {told}"
            self.breaks(owner, text, at.number)

    def _notified(self, event: Notified, at: Entry) -> None:
        if event.what != "task":
            return
        self.judged += 1
        begun = self._live.get(event.task_id)
        if begun is not None:
            text = "its end was told before it ended"
            self.breaks(f"task {event.task_id}", text, begun, at.number)

    def _called(self, event: Called, at: Entry) -> None:
        if event.what == "stop":
            self._named[event.call] = event.tasks

    def _raised(self, event: Raised, at: Entry) -> None:
        self._named.pop(event.call, None)

    def _returned(self, event: Returned, at: Entry) -> None:
        tasks = self._named.pop(event.call, ())
        owner = f"{event.what}()"
        said = dict(zip(event.ended, event.runs, strict=False))

        def runs(task_id: str) -> bool:
            # What is said of an agent may be of a run before the present one.
            run_id, told = self._resumed.get(task_id), said.get(task_id)
            is_before = None not in (run_id, told) and run_id != told
            return task_id in self._live and not is_before

        for task_id in event.ended:
            self.judged += 1
            if runs(task_id):
                text = f"it says that {task_id} has ended"
                self.breaks(owner, text, self._live[task_id], at.number)
        for task_id in tasks:
            self.judged += 1
            if runs(task_id) and not event.survivors:
                text = f"it has returned, {task_id} runs, and it names no survivor"
                self.breaks(owner, text, self._live[task_id], at.number)


class Disk(Checker):
    """A task keeps no more output than its quota, and is warned before."""

    promise = "P7"
    title = "output is bounded"

    def __init__(self, broken: Broken) -> None:
        super().__init__(broken)
        self._quota: dict[str, int] = {}
        self._kept: dict[str, int] = {}
        self._warned = set[str]()

    def judges(self) -> Mapping[type[Event], Judge]:
        return {
            Began: self._began,
            Warned: self._was_warned,
            OutputClosed: self._closed,
            TaskEnded: self._ended,
        }

    def _began(self, event: Began, at: Entry) -> None:
        if event.quota is not None:
            self._quota[event.task_id] = event.quota

    def _was_warned(self, event: Warned, at: Entry) -> None:
        if event.task_id is not None:
            self._warned.add(event.task_id)

    def _closed(self, event: OutputClosed, at: Entry) -> None:
        quota = self._quota.get(event.task_id)
        if quota is None or event.rotated:
            return
        self.judged += 1
        kept = self._kept.get(event.task_id, 0) + event.bytes_written
        self._kept[event.task_id] = kept
        if kept > quota:
            text = f"it kept {kept} bytes of output, with a quota of {quota}"
            self.breaks(f"task {event.task_id}", text, at.number)
        if kept == quota and event.task_id not in self._warned:
            text = "it has reached its quota and was not warned"
            self.breaks(f"task {event.task_id}", text, at.number)

    def _ended(self, event: TaskEnded, at: Entry) -> None:
        for of_task in (self._quota, self._kept):
            of_task.pop(event.task_id, None)
        self._warned.discard(event.task_id)
