"""What is told of tasks: each end once, and in an envelope of its own; progress now and
then."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from xml.etree import ElementTree

from actors.envelope import NOTE

from ...runtime import (
    Acked,
    Notified,
    TaskBackgrounded,
    TaskEnded,
    TaskProgress,
    TaskResumed,
    TaskStarted,
)
from ...tree import (
    Event,
)
from ..log import (
    Began,
    Called,
    Drained,
    Entry,
    Envelope,
    LogEnded,
    Raised,
    Returned,
    RuntimeOpened,
)
from ._checker import (
    Broken,
    Checker,
    Judge,
)


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
    "signal ended-by result error output-tail output-file usage remaining all-terminal note"
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
        self._ends: dict[str, TaskEnded] = {}
        # By notification: what it tells, and how the task had ended then.
        self._notes: dict[str, tuple[str, TaskEnded | None]] = {}

    def judges(self) -> Mapping[type[Event], Judge]:
        return {
            TaskEnded: self._ended,
            Notified: self._notified,
            Envelope: self._given,
        }

    def _ended(self, event: TaskEnded, at: Entry) -> None:
        self._ends[event.task_id] = event

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

    def _wrong_in(self, event: Envelope, ended: TaskEnded | None) -> str:
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
        if ended is not None and ended.status != said["status"]:
            return (
                f"its envelope says {said['status']}, and the task was {ended.status}"
            )
        if ended is not None and ended.ended_by != said.get("ended-by"):
            return f"its envelope has another one by whom it ended: {ended.ended_by}"
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
