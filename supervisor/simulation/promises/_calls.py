"""What whoever calls may rely on: a stop is for whom it names, and a wait ends at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...runtime import (
    MonitorEnded,
    MonitorStarted,
    Notified,
    TaskBackgrounded,
    TaskEnded,
    TaskResumed,
    TaskStarted,
    TaskStopRequested,
)
from ...tree import (
    Event,
)
from ..log import (
    Began,
    Called,
    Closing,
    Entry,
    LogStarted,
    Raised,
    Returned,
    RuntimeOpened,
    Suspended,
)
from ._checker import (
    Broken,
    Checker,
    Judge,
)


class Aim(Checker):
    """A stop or a cancellation ends those that it is for, and nobody else."""

    promise = "P8"
    title = "a cancellation touches no other"

    def __init__(self, broken: Broken) -> None:
        super().__init__(broken)
        self._asked = set[str]()
        self._background = set[str]()
        self._runs: dict[int, str] = {}  # {call: its task}
        self._of_run: dict[str, int] = {}
        self._stops: dict[int, tuple[Sequence[str], str | None]] = {}
        self._names: dict[int, str] = {}
        # Of those that launch and run: whose task it will be.
        self._for: dict[int, str | None] = {}
        self._owners: dict[str, str | None] = {}
        # {monitor: its task}: one that is stopped, or gives up, stops that itself.
        self._monitors: dict[str, str] = {}
        self._closing = False
        self._knows_all = False

    def judges(self) -> Mapping[type[Event], Judge]:
        return {
            RuntimeOpened: self._opened,
            Called: self._called,
            Began: self._began,
            Returned: self._over,
            Raised: self._raised,
            TaskStarted: self._started,
            TaskBackgrounded: self._moved,
            MonitorStarted: self._monitor_started,
            MonitorEnded: self._monitor_ended,
            TaskStopRequested: self._stop_requested,
            TaskEnded: self._ended,
            Closing: self._is_closing,
        }

    def _opened(self, event: RuntimeOpened, at: Entry) -> None:
        self._knows_all, self._closing = True, False

    def _called(self, event: Called, at: Entry) -> None:
        self._names[event.call] = event.what
        if event.what in ("stop", "stop_all", "stop_foreground"):
            self._stops[event.call] = event.tasks, event.owner
        elif event.what in ("launch", "run"):
            self._for[event.call] = event.owner

    def _began(self, event: Began, at: Entry) -> None:
        if self._names.get(event.call) == "run":
            self._runs[event.call] = event.task_id
            self._of_run[event.task_id] = event.call
        # It may wait for its place, and has not started then.
        said = self._for.get(event.call)
        owner = self._owners.setdefault(event.task_id, said)
        # An agent owns what is launched in its run.
        if owner != said and (self._knows_all or said is not None):
            text = f"it was launched for {said}, and is of {owner}"
            self.breaks(f"task {event.task_id}", text, at.number)

    def _over(self, event: Returned, at: Entry) -> None:
        self._names.pop(event.call, None)
        self._stops.pop(event.call, None)
        self._for.pop(event.call, None)
        self._of_run.pop(self._runs.pop(event.call, ""), None)

    def _raised(self, event: Raised, at: Entry) -> None:
        task_id = self._runs.get(event.call)
        if task_id is not None and event.error == "Cancelled":
            self.judged += 1
            if task_id in self._owners and task_id not in (
                self._background | self._asked
            ):
                text = "whoever ran it was cancelled, and it was not"
                self.breaks(f"task {task_id}", text, at.number)
        self._over(Returned(0, 0, event.call, event.what), at)

    def _started(self, event: TaskStarted, at: Entry) -> None:
        self._owners[event.task_id] = event.owner
        if event.task_type != "local_bash":
            self._knows_all = False  # An agent stops tasks by itself.

    def _moved(self, event: TaskBackgrounded, at: Entry) -> None:
        self._background.add(event.task_id)

    def _monitor_started(self, event: MonitorStarted, at: Entry) -> None:
        self._monitors[event.monitor_id] = event.task_id

    def _monitor_ended(self, event: MonitorEnded, at: Entry) -> None:
        self._monitors.pop(event.monitor_id, None)

    def _is_closing(self, event: Closing, at: Entry) -> None:
        self._closing = self._closing or "/" not in event.supervisor

    def _stop_requested(self, event: TaskStopRequested, at: Entry) -> None:
        task_id = event.task_id
        self._asked.add(task_id)
        if not self._knows_all:
            return
        self.judged += 1
        is_run = task_id in self._of_run and task_id not in self._background
        if self._closing or is_run or task_id in self._monitors.values():
            return
        owner = self._owners.get(task_id)
        for call, (tasks, of_owner) in self._stops.items():
            if task_id in tasks:
                return
            if self._names[call] != "stop" and of_owner in (None, owner):
                return
        text = "nobody has asked for its stop"
        self.breaks(f"task {task_id}", text, at.number)

    def _ended(self, event: TaskEnded, at: Entry) -> None:
        task_id = event.task_id
        if event.status == "killed" and task_id in self._owners:
            self.judged += 1
            if task_id not in self._asked and not self._closing and self._knows_all:
                text = "it was killed, and nobody has asked for its stop"
                self.breaks(f"task {task_id}", text, at.number)
        self._asked.discard(task_id)
        self._background.discard(task_id)
        self._owners.pop(task_id, None)


class Prompt(Checker):
    """Who waits for an end goes on in the moment of the end. For simulated logs: in
    real ones nobody can tell how long a step had to wait."""

    promise = "P9"
    title = "waiting is event-driven"

    def __init__(self, broken: Broken) -> None:
        super().__init__(broken)
        self._simulated = False
        self._called: dict[int, tuple[float, Sequence[str], int]] = {}
        self._ends: dict[str, float] = {}
        self._last = 0.0
        self._notified = 0.0

    def judges(self) -> Mapping[type[Event], Judge]:
        return {
            LogStarted: self._log_started,
            Suspended: self._suspended,
            Called: self._calls,
            Began: self._began,
            TaskEnded: self._ended,
            TaskBackgrounded: self._ended,
            TaskResumed: self._resumed,
            Notified: self._was_notified,
            Returned: self._returned,
            Raised: self._raised,
        }

    def _log_started(self, event: LogStarted, at: Entry) -> None:
        self._simulated = event.simulated

    def _suspended(self, event: Suspended, at: Entry) -> None:
        self._called.clear()  # Nobody can tell how long they have waited.

    def _calls(self, event: Called, at: Entry) -> None:
        # Nobody can tell how long one has waited that has to wait for its place, too.
        if self._simulated and not event.lends:
            self._called[event.call] = event.time, event.tasks, at.number

    def _began(self, event: Began, at: Entry) -> None:
        if event.call in self._called:
            time, _, line = self._called[event.call]
            self._called[event.call] = time, (event.task_id,), line

    def _ended(self, event: TaskEnded, at: Entry) -> None:
        if self._simulated:
            self._ends[event.task_id] = self._last = event.time

    def _resumed(self, event: TaskResumed, at: Entry) -> None:
        self._ends.pop(event.task_id, None)

    def _was_notified(self, event: Notified, at: Entry) -> None:
        self._notified = event.time

    def _raised(self, event: Raised, at: Entry) -> None:
        self._called.pop(event.call, None)

    def _returned(self, event: Returned, at: Entry) -> None:
        if event.call not in self._called:
            return
        called, tasks, line = self._called.pop(event.call)
        ends = [self._ends[it] for it in tasks if it in self._ends]
        due = called
        if event.what in ("wait", "wait_all", "run", "stop"):
            due = max([called, *ends])
            if event.survivors:
                return
        elif event.what == "wait_any":
            due = max(called, min(ends, default=called))
        elif event.what == "wait_idle":
            due = max(called, self._last)
        elif event.what in ("next", "receive_batch"):
            due = max(called, self._notified)
        elif event.what != "launch":
            return
        self.judged += 1
        if event.time > due:
            text = f"it returned {event.time - due:g} s late"
            self.breaks(f"{event.what}()", text, line, at.number)
