"""The states of a task: one end, at once, and as its work has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from ...runtime import (
    TaskBackgrounded,
    TaskContinued,
    TaskEnded,
    TaskPaused,
    TaskProgress,
    TaskRestarted,
    TaskRestartScheduled,
    TaskResumed,
    TaskStarted,
    TaskStopRequested,
)
from ...tree import (
    ChildExited,
    ChildStarted,
    Event,
    SupervisorEnded,
)
from ..log import (
    Called,
    Closed,
    Entry,
    LogEnded,
    LogStarted,
    ProcessExited,
    ProcessStarted,
    Returned,
)
from ._checker import (
    Broken,
    Checker,
    Judge,
)

_OfTask: TypeAlias = (
    TaskProgress | TaskPaused | TaskContinued | TaskRestarted | TaskStopRequested
)


class Once(Checker):
    """The first terminal state is the only one, in the step in which the work ends. What
    is paused does nothing until it goes on, and does not when it is to stop."""

    promise = "P3"
    title = "one terminal state, recorded at once"

    def __init__(self, broken: Broken) -> None:
        super().__init__(broken)
        self._live: dict[str, str] = {}  # {task: its type}
        self._over: dict[str, int] = {}
        self._revived: dict[str, int] = {}
        self._paused: dict[str, int] = {}
        self._asked: dict[str, int] = {}
        # The task whose actor has ended, with that line.
        self._ending: tuple[str, Entry] | None = None

    def judges(self) -> Mapping[type[Event], Judge]:
        found: dict[type[Event], Judge] = dict.fromkeys(
            (
                TaskProgress,
                TaskBackgrounded,
                TaskRestartScheduled,
            ),
            self._says,
        )
        found |= {
            LogStarted: self._log_started,
            TaskStarted: self._started,
            TaskResumed: self._resumed,
            TaskEnded: self._ended,
            TaskPaused: self._is_paused,
            TaskContinued: self._continues,
            TaskRestarted: self._runs_again,
            TaskStopRequested: self._stop_requested,
            ChildExited: self._actor_ended,
            ChildStarted: self._something_else,
            Called: self._something_else,
            Returned: self._something_else,
            ProcessStarted: self._something_else,
            ProcessExited: self._something_else,
            Closed: self._something_else,
            LogEnded: self._something_else,
        }
        return found

    def _log_started(self, event: LogStarted, at: Entry) -> None:
        self._over.clear()
        self._paused.clear()
        self._asked.clear()

    def _is_paused(self, event: TaskPaused, at: Entry) -> None:
        self._says(event, at)
        since = self._paused.get(event.task_id)
        if since is not None:
            text = "it was paused while it was paused"
            self.breaks(f"task {event.task_id}", text, since, at.number)
        self._paused[event.task_id] = at.number

    def _continues(self, event: TaskContinued, at: Entry) -> None:
        self._says(event, at)
        owner = f"task {event.task_id}"
        if self._paused.pop(event.task_id, None) is None:
            self.breaks(owner, "it goes on, and was not paused", at.number)
        asked = self._asked.get(event.task_id)
        if asked is not None:
            self.breaks(owner, "it goes on, and was to stop", asked, at.number)

    def _runs_again(self, event: TaskRestarted, at: Entry) -> None:
        self._says(event, at)
        since = self._paused.get(event.task_id)
        if since is not None:
            text = "it was run again while it was paused"
            self.breaks(f"task {event.task_id}", text, since, at.number)

    def _stop_requested(self, event: TaskStopRequested, at: Entry) -> None:
        self._says(event, at)
        self._asked[event.task_id] = at.number

    def _started(self, event: TaskStarted, at: Entry) -> None:
        self._something_else(event, at)
        self.judged += 1
        task_id = event.task_id
        if task_id in self._live:
            self.breaks(f"task {task_id}", "it started a second time", at.number)
        if task_id in self._over:
            # Right only for an agent that is resumed, which is told next.
            self._revived[task_id] = self._over.pop(task_id)
        self._live[task_id] = event.task_type

    def _resumed(self, event: TaskResumed, at: Entry) -> None:
        # Its start was told before this or, if it waits for a place, will be.
        self._revived.pop(event.task_id, None)
        self._over.pop(event.task_id, None)

    def _says(self, event: _OfTask, at: Entry) -> None:
        self.judged += 1
        ended = self._over.get(event.task_id)
        if ended is not None:
            text = f"{type(event).__name__} after its end"
            self.breaks(f"task {event.task_id}", text, ended, at.number)

    def _ended(self, event: TaskEnded, at: Entry) -> None:
        self.judged += 1
        task_id = event.task_id
        ended = self._over.get(task_id)
        if ended is not None:
            self.breaks(f"task {task_id}", "it ended twice", ended, at.number)
        ended = self._revived.pop(task_id, None)
        if ended is not None:
            text = "it started after its end"
            self.breaks(f"task {task_id}", text, ended, at.number)
        self._asked.pop(task_id, None)
        paused = self._paused.pop(task_id, None)
        if paused is not None and event.status == "completed":
            text = "it has completed while it was paused"
            self.breaks(f"task {task_id}", text, paused, at.number)
        self._live.pop(task_id, None)
        self._over[task_id] = at.number
        if self._ending is None:
            return
        ending, since = self._ending
        if ending == task_id:
            self._ending = None
            if at.step != since.step:
                text = f"it was recorded {_steps(since, at)} after its actor ended"
                self.breaks(f"task {task_id}", text, since.number, at.number)

    def _actor_ended(self, event: ChildExited, at: Entry) -> None:
        self._something_else(event, at)
        if event.child in self._live:
            self._ending = event.child, at

    def _something_else(self, event: Event, at: Entry) -> None:
        if self._ending is None:
            return
        task_id, since = self._ending
        self._ending = None
        text = f"its actor ended, and {type(event).__name__} came before the record"
        self.breaks(f"task {task_id}", text, since.number, at.number)


def _steps(since: Entry, at: Entry) -> str:
    assert since.step is not None and at.step is not None
    return f"{at.step - since.step} steps"


class Failure(Checker):
    """The status of a task is what became of its work."""

    promise = "P10"
    title = "a failure is neither swallowed nor spread"

    def __init__(self, broken: Broken) -> None:
        super().__init__(broken)
        self._live = set[str]()
        self._exits: dict[str, ChildExited] = {}
        self._supervised = set[str]()  # those that are run by a supervisor of their own

    def judges(self) -> Mapping[type[Event], Judge]:
        return {
            TaskStarted: self._started,
            TaskResumed: self._started,
            SupervisorEnded: self._supervisor_ended,
            ChildExited: self._actor_ended,
            TaskEnded: self._ended,
        }

    def _started(self, event: TaskStarted, at: Entry) -> None:
        self._live.add(event.task_id)

    def _supervisor_ended(self, event: SupervisorEnded, at: Entry) -> None:
        task_id = event.supervisor.rpartition("/")[2]
        if task_id in self._live:
            self._supervised.add(task_id)

    def _actor_ended(self, event: ChildExited, at: Entry) -> None:
        if event.child in self._live:
            self._exits[event.child] = event

    def _ended(self, event: TaskEnded, at: Entry) -> None:
        task_id, owner = event.task_id, f"task {event.task_id}"
        self._live.discard(task_id)
        exit = self._exits.pop(task_id, None)
        is_plain = task_id not in self._supervised
        self._supervised.discard(task_id)
        self.judged += 1
        if event.status == "failed" and event.error is None:
            self.breaks(owner, "it failed, and does not say why", at.number)
        if event.status != "failed" and event.error is not None:
            self.breaks(owner, f"it has an error and is {event.status}", at.number)
        if event.status == "completed" and event.ended_by is not None:
            self.breaks(owner, f"it is completed by {event.ended_by}", at.number)
        if event.status == "killed" and event.ended_by is None:
            self.breaks(owner, "it was killed, and does not say by whom", at.number)
        if exit is None:
            return
        wanted = _STATUS[exit.exit]
        if exit.exit == "completed" and is_plain:
            wanted = ("completed",)
        if exit.exit == "stopped" and exit.detail.startswith("deadline"):
            wanted = ("failed", "completed")
        if event.status not in wanted:
            text = f"its work has {exit.exit}, and it is {event.status}"
            self.breaks(owner, text, at.number)


_STATUS = {
    "failed": ("failed",),
    # Its work may have ended otherwise before its actor did.
    "completed": ("completed", "failed", "killed"),
    # Or before the stop came.
    "stopped": ("killed", "completed", "failed"),
}
