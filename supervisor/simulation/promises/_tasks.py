"""The promises about tasks: P1 to P10 but for what supervisors do with children."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import cast
from xml.etree import ElementTree

from actors.envelope import NOTE

from ...runtime import (
    Acked,
    Notified,
    TaskBackgrounded,
    TaskEnded,
    TaskProgress,
    TaskRestarted,
    TaskRestartScheduled,
    TaskResumed,
    TaskStarted,
    TaskStopRequested,
    Warned,
)
from ...tree import ChildExited, ChildStarted, Event, SupervisorEnded
from ..log import (
    Began,
    Called,
    Closed,
    Closing,
    Drained,
    Entry,
    Envelope,
    LogEnded,
    LogStarted,
    OutputClosed,
    OutputOpened,
    ProcessExited,
    ProcessGone,
    ProcessSignalled,
    ProcessStarted,
    Raised,
    Returned,
    RuntimeOpened,
    Suspended,
)
from ._checker import Broken, Checker, Judge


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
        self._named: dict[int, Sequence[str]] = {}

    def judges(self) -> Mapping[type[Event], Judge]:
        return {
            TaskStarted: self._began,
            TaskResumed: self._began,
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

    def _again(self, event: TaskRestarted, at: Entry) -> None:
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
        if by_itself and event.status == "killed":
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
        for task_id in event.ended:
            self.judged += 1
            if task_id in self._live:
                text = f"it says that {task_id} has ended"
                self.breaks(owner, text, self._live[task_id], at.number)
        for task_id in tasks:
            self.judged += 1
            if task_id in self._live and not event.survivors:
                text = f"it has returned, {task_id} runs, and it names no survivor"
                self.breaks(owner, text, self._live[task_id], at.number)


class Once(Checker):
    """The first terminal state is the only one, in the step in which the work ends."""

    promise = "P3"
    title = "one terminal state, recorded at once"

    def __init__(self, broken: Broken) -> None:
        super().__init__(broken)
        self._live: dict[str, str] = {}  # {task: its type}
        self._over: dict[str, int] = {}
        self._revived: dict[str, int] = {}
        # The task whose actor has ended, with that line.
        self._ending: tuple[str, Entry] | None = None

    def judges(self) -> Mapping[type[Event], Judge]:
        found: dict[type[Event], Judge] = dict.fromkeys(
            (
                TaskProgress,
                TaskBackgrounded,
                TaskRestartScheduled,
                TaskRestarted,
                TaskStopRequested,
            ),
            self._says,
        )
        found |= {
            LogStarted: self._log_started,
            TaskStarted: self._started,
            TaskResumed: self._resumed,
            TaskEnded: self._ended,
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
        self._revived.pop(event.task_id, None)
        self._over.pop(event.task_id, None)
        self._live[event.task_id] = "local_agent"

    def _says(self, event: TaskProgress, at: Entry) -> None:
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


class Record(Checker):
    """One notification for each background task, in the order of ending, told once."""

    promise = "P4"
    title = "one record of each end, in order"

    def __init__(self, broken: Broken) -> None:
        super().__init__(broken)
        self._ended = ""  # the last
        self._seen = set[str]()  # of the ended: those that were told
        self._over: dict[str, int] = {}
        self._untold: dict[str, int] = {}
        self._background = set[str]()
        self._notes: dict[str, tuple[str, int]] = {}  # {note: (task, line)}
        self._handed: dict[str, int] = {}
        self._last_note = ""
        self._launches = set[int]()
        self._resumed_tasks = set[str]()
        self._drained = False

    def judges(self) -> Mapping[type[Event], Judge]:
        return {
            Called: self._called,
            Began: self._began,
            TaskBackgrounded: self._moved,
            TaskEnded: self._task_ended,
            TaskResumed: self._resumed,
            Notified: self._notified,
            Acked: self._acked,
            Envelope: self._given,
            Drained: self._was_drained,
            LogEnded: self._log_ended,
        }

    def _called(self, event: Called, at: Entry) -> None:
        if event.what == "launch":
            self._launches.add(event.call)

    def _began(self, event: Began, at: Entry) -> None:
        if event.call in self._launches:
            self._launches.discard(event.call)
            self._owes(event.task_id)

    def _moved(self, event: TaskBackgrounded, at: Entry) -> None:
        self._owes(event.task_id)

    def _owes(self, task_id: str) -> None:
        self.judged += 1
        self._background.add(task_id)
        if task_id in self._over and task_id not in self._seen:
            self._untold[task_id] = self._over[task_id]

    def _task_ended(self, event: TaskEnded, at: Entry) -> None:
        self.judged += 1
        self._check_told()
        self._ended = event.task_id
        self._over[event.task_id] = at.number
        # A resume that fails may be undone, and then nothing is told.
        if event.task_id in self._resumed_tasks and event.status != "failed":
            self._background.add(event.task_id)
        self._resumed_tasks.discard(event.task_id)
        if event.task_id in self._background:
            self._untold[event.task_id] = at.number

    def _check_told(self) -> None:
        ended = self._untold.get(self._ended)
        if ended is not None:
            # The next one ends before this one was told: told at all, it will be late.
            self._ended = ""

    def _resumed(self, event: TaskResumed, at: Entry) -> None:
        self._resumed_tasks.add(event.task_id)
        self._background.discard(event.task_id)
        self._seen.discard(event.task_id)
        self._over.pop(event.task_id, None)

    def _notified(self, event: Notified, at: Entry) -> None:
        self.judged += 1
        note, owner = event.notification_id, f"notification {event.notification_id}"
        if note in self._notes or _place(note) <= _place(self._last_note):
            self.breaks(owner, "its id was used before", at.number)
        self._last_note = note
        self._notes[note] = event.task_id, at.number
        if event.what != "task":
            return
        task_id = event.task_id
        self._untold.pop(task_id, None)
        if task_id in self._seen:
            self.breaks(f"task {task_id}", "its end was told twice", at.number)
        elif task_id != self._ended:
            text = "its end was not told in the order of the ends"
            lines = [self._over[task_id]] if task_id in self._over else []
            self.breaks(f"task {task_id}", text, *lines, at.number)
        self._seen.add(task_id)

    def _acked(self, event: Acked, at: Entry) -> None:
        self.judged += 1
        owner = f"notification {event.notification_id}"
        note = self._notes.get(event.notification_id)
        if note is None:
            self.breaks(owner, "it was acknowledged twice, or never told", at.number)
            return
        if note[0] != event.task_id:
            self.breaks(owner, "it was acknowledged for another task", at.number)
        if event.how not in ("delivered", "consumed", "silent", "superseded"):
            self.breaks(owner, f"it was acknowledged as {event.how!r}", at.number)
        del self._notes[event.notification_id]
        self._handed.pop(event.notification_id, None)

    def _given(self, event: Envelope, at: Entry) -> None:
        self.judged += 1
        owner = f"notification {event.notification_id}"
        note = self._notes.get(event.notification_id)
        if note is None:
            self.breaks(owner, "a reader got it untold, or acknowledged", at.number)
            return
        if note[0] != event.task_id:
            self.breaks(owner, "a reader got it for another task", note[1], at.number)
        first = self._handed.get(event.notification_id)
        if first is not None:
            self.breaks(owner, "two readers got it", first, at.number)
        self._handed[event.notification_id] = at.number

    def _was_drained(self, event: Drained, at: Entry) -> None:
        self._drained = True

    def _log_ended(self, event: LogEnded, at: Entry) -> None:
        for task_id, ended in self._untold.items():
            self.breaks(f"task {task_id}", "its end was never told", ended, at.number)
        if self._drained:
            for note, (_, told) in self._notes.items():
                if note not in self._handed:
                    text = "nobody got it, and nobody can"
                    self.breaks(f"notification {note}", text, told, at.number)


def _place(note: str) -> tuple[int, str]:
    return len(note), note


_ORDER = (
    "notification-id task-id run-id tool-use-id task-type status summary exit-code "
    "signal result error output-tail output-file usage remaining all-terminal note"
).split()
_ALWAYS = {"notification-id", "task-id", "run-id", "status", "summary", "note"}
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]"
)


class Unforged(Checker):
    """An envelope has exactly its elements, whatever a task has printed."""

    promise = "P5"
    title = "the envelope cannot be forged"

    def __init__(self, broken: Broken) -> None:
        super().__init__(broken)
        self._ends: dict[str, str] = {}
        # By notification: what it tells, and how the task had ended then.
        self._notes: dict[str, tuple[str, str | None]] = {}

    def judges(self) -> Mapping[type[Event], Judge]:
        return {
            TaskEnded: self._ended,
            Notified: self._notified,
            Envelope: self._given,
        }

    def _ended(self, event: TaskEnded, at: Entry) -> None:
        self._ends[event.task_id] = event.status

    def _notified(self, event: Notified, at: Entry) -> None:
        ended = self._ends.get(event.task_id)
        self._notes[event.notification_id] = event.what, ended

    def _given(self, event: Envelope, at: Entry) -> None:
        what, ended = self._notes.pop(event.notification_id, ("task", None))
        if what != "task":
            return
        self.judged += 1
        wrong = self._wrong_in(event, ended)
        if wrong:
            self.breaks(f"notification {event.notification_id}", wrong, at.number)

    def _wrong_in(self, event: Envelope, ended: str | None) -> str:
        try:
            root = ElementTree.fromstring(event.xml)
        except ElementTree.ParseError as error:
            return f"its envelope is no XML: {error}"
        names = [it.tag for it in root]
        if root.tag != "task-notification" or root.attrib:
            return f"its envelope is a {root.tag}"
        if [it for it in _ORDER if it in names] != names:
            return f"its envelope has the elements {', '.join(names)}"
        if _ALWAYS.difference(names):
            return f"its envelope lacks {', '.join(sorted(_ALWAYS - set(names)))}"
        for element in root:
            if len(element) and element.tag != "usage":
                return f"{element.tag} has an element in it"
        said = {it.tag: it.text or "" for it in root}
        if (forbidden := _FORBIDDEN.search(event.xml)) is not None:
            return f"its envelope has the character {forbidden.group()!r}"
        if said["note"] != NOTE:
            return "the note of its envelope is another one"
        if (said["notification-id"], said["task-id"]) != (
            event.notification_id,
            event.task_id,
        ):
            return "its envelope is about another one"
        if ended not in (None, said["status"]):
            return f"its envelope says {said['status']}, and the task was {ended}"
        return ""


class Patience(Checker):
    """Progress is conflated, and a backlog ends launches, not tasks."""

    promise = "P6"
    title = "progress is conflated, a backlog is refused"

    def __init__(self, broken: Broken) -> None:
        super().__init__(broken)
        self._told: dict[str, deque[tuple[float, int]]] = {}
        self._bytes: dict[str, int] = {}
        self._shells = set[str]()
        self._pending: dict[str, str] = {}  # {task: its note that waits}
        self._task_of: dict[str, str] = {}
        self._limit: int | None = None
        self._waiting = 0
        self._notes = set[str]()
        self._calls: dict[int, int] = {}  # {launch: how many waited}

    def judges(self) -> Mapping[type[Event], Judge]:
        return {
            RuntimeOpened: self._opened,
            TaskStarted: self._started,
            TaskProgress: self._progress,
            TaskEnded: self._ended,
            Notified: self._notified,
            Acked: self._acked,
            Envelope: self._given,
            Called: self._called,
            Returned: self._returned,
            Raised: self._raised,
        }

    def _opened(self, event: RuntimeOpened, at: Entry) -> None:
        self._limit = event.backlog
        self._waiting = 0
        self._notes.clear()

    def _started(self, event: TaskStarted, at: Entry) -> None:
        if event.task_type == "local_bash":
            self._shells.add(event.task_id)
        else:
            self._limit = None  # Its own tasks count otherwise.

    def _progress(self, event: TaskProgress, at: Entry) -> None:
        self.judged += 1
        task_id, owner = event.task_id, f"task {event.task_id}"
        told = self._told.setdefault(task_id, deque(maxlen=3))
        told.append((event.time, at.number))
        if len(told) == 3 and event.time - told[0][0] < 0.999:
            text = "its progress was told three times in a second"
            self.breaks(owner, text, *(line for _, line in told))
        if task_id in self._shells:
            if event.bytes_written < self._bytes.get(task_id, 0):
                self.breaks(owner, "its progress went back", at.number)
            self._bytes[task_id] = event.bytes_written

    def _ended(self, event: TaskEnded, at: Entry) -> None:
        self._told.pop(event.task_id, None)
        self._bytes.pop(event.task_id, None)
        self._shells.discard(event.task_id)

    def _notified(self, event: Notified, at: Entry) -> None:
        self._waiting += 1
        self._notes.add(event.notification_id)
        if event.what == "progress":
            self.judged += 1
            if event.task_id in self._pending:
                text = "two notes of its progress wait"
                self.breaks(f"task {event.task_id}", text, at.number)
            self._pending[event.task_id] = event.notification_id
            self._task_of[event.notification_id] = event.task_id

    def _acked(self, event: Acked, at: Entry) -> None:
        if event.notification_id in self._notes:
            self._notes.discard(event.notification_id)
            self._waiting -= 1
        self._leave(event.notification_id)

    def _given(self, event: Envelope, at: Entry) -> None:
        self._leave(event.notification_id)

    def _leave(self, note: str) -> None:
        task_id = self._task_of.pop(note, None)
        if task_id is not None:
            self._pending.pop(task_id, None)

    def _called(self, event: Called, at: Entry) -> None:
        if event.what == "launch":
            self._calls[event.call] = self._waiting

    def _returned(self, event: Returned, at: Entry) -> None:
        before = self._calls.pop(event.call, None)
        if before is None or self._limit is None:
            return
        self.judged += 1
        if min(before, self._waiting) >= self._limit:
            text = f"it launched, with {before} not acknowledged"
            self.breaks("launch()", text, at.number)

    def _raised(self, event: Raised, at: Entry) -> None:
        before = self._calls.pop(event.call, None)
        if before is None or self._limit is None or event.error != "BacklogFull":
            return
        self.judged += 1
        if max(before, self._waiting) < self._limit:
            text = f"it was refused, with {before} not acknowledged"
            self.breaks("launch()", text, at.number)


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
        self._owners: dict[str, str | None] = {}
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

    def _began(self, event: Began, at: Entry) -> None:
        if self._names.get(event.call) == "run":
            self._runs[event.call] = event.task_id
            self._of_run[event.task_id] = event.call

    def _over(self, event: Returned, at: Entry) -> None:
        self._names.pop(event.call, None)
        self._stops.pop(event.call, None)
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

    def _is_closing(self, event: Closing, at: Entry) -> None:
        self._closing = self._closing or "/" not in event.supervisor

    def _stop_requested(self, event: TaskStopRequested, at: Entry) -> None:
        task_id = event.task_id
        self._asked.add(task_id)
        if not self._knows_all:
            return
        self.judged += 1
        is_run = task_id in self._of_run and task_id not in self._background
        if self._closing or is_run:
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
        if self._simulated:
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

TASKS = (
    Scope,
    Truth,
    Once,
    Record,
    Unforged,
    Patience,
    Disk,
    Aim,
    Prompt,
    Failure,
)
