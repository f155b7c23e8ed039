"""That a log can be right at all: nothing is missing in it, and time goes on.

A log of `record` says itself where it begins and ends. One of a stream, as ``run
--json`` prints it, ends with the end of the outermost supervisor. Who reads a stream
cannot have been told of the starts of that one's own children, and of nothing else: so
each event before its first one must be such a start.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ...runtime import TaskStarted, Warned
from ...tree import ChildExited, ChildStarted, Event, Gap, SupervisorEnded
from .. import log
from ..log import KINDS, Entry, LogEnded, LogStarted, RuntimeOpened, Supervised
from ._checker import Broken, Checker, Judge

_SEEN = {it for it in KINDS.values() if it.__module__ == log.__name__}
"""What no stream has told: it has the number of the last event before it."""


class Whole(Checker):
    """Numbers count up, time goes on, and it has a beginning and an end."""

    promise = "log"
    title = "the log is whole"

    def __init__(self, broken: Broken) -> None:
        super().__init__(broken)
        self._last: Entry | None = None
        self._is_recorded = False
        self._unseen = 0
        """How many events came before the first one."""
        self._started: set[tuple[str, int]] = set()
        """The outermost supervisor's own children, each with its incarnation."""
        self._exited: set[tuple[str, int]] = set()
        self._early = 0
        self._opened = 0
        """The number of the last event before the runtime was recorded."""
        # What agents say has numbers, too, and is not in the log.
        self._has_agents = False

    def judges(self) -> Mapping[type[Event], Judge]:
        return {
            Gap: self._gap,
            TaskStarted: self._task_started,
        }

    def see(self, at: Entry) -> None:
        """Look at any entry."""
        self.judged += 1
        event, last = at.event, self._last
        if last is None and isinstance(event, Warned):
            # It may have been kept for the first reader, since before what follows.
            self._early += 1
            return
        self._last = at
        if last is None:
            self._is_recorded = isinstance(event, LogStarted)
            unseen = event.seq - 1 - self._early
            self._unseen = 0 if self._is_recorded else max(unseen, 0)
        if not self._is_recorded:
            self._look_for_own(event)
        if last is None:
            return
        before = last.event
        if isinstance(event, RuntimeOpened | Supervised):
            self._opened = event.seq
        if at.number != last.number + 1:
            text = f"line {at.number} follows line {last.number}"
            self.breaks("the log", text, last.number, at.number)
        elif isinstance(event, Warned) and event.seq <= self._opened:
            # It is from before the first line, and was kept for the first reader.
            self._last = attrs.evolve(at, event=before, step=last.step)
            return
        elif not self._follows(event, before.seq):
            text = f"event {event.seq} follows event {before.seq}"
            self.breaks("the log", text, last.number, at.number)
        if event.time < before.time:
            self.breaks("the log", "time goes back", last.number, at.number)
        if at.step is not None and last.step is not None and at.step < last.step:
            self.breaks("the log", "steps go back", last.number, at.number)

    def end(self) -> None:
        """Hear that there are no more entries."""
        if self._last is None:
            self.breaks("the log", "it is empty")
        elif not self._is_end(self._last.event):
            text = "its end is missing: it was cut, or its program was killed"
            self.breaks("the log", text, self._last.number)
        elif isinstance(self._last.event, LogEnded):
            if not self._is_recorded:
                self.breaks("the log", "its beginning is missing", 1)
        elif self._unseen != (own := len(self._exited - self._started)):
            text = f"{self._unseen} events came before its first line, not {own}"
            self.breaks("the log", f"{text}: its beginning is missing", 1)

    def _is_end(self, event: Event) -> bool:
        if self._is_recorded or isinstance(event, LogEnded):
            return isinstance(event, LogEnded)
        return isinstance(event, SupervisorEnded) and _is_outermost(event.supervisor)

    def _follows(self, event: Event, seq: int) -> bool:
        if type(event) in (RuntimeOpened, Supervised):
            return True  # Another stream begins.
        if type(event) in _SEEN:
            return event.seq == seq
        return event.seq == seq + 1 or (self._has_agents and event.seq > seq)

    def _task_started(self, event: TaskStarted, at: Entry) -> None:
        self._has_agents = self._has_agents or event.task_type != "local_bash"

    def _look_for_own(self, event: Event) -> None:
        if isinstance(event, ChildStarted | ChildExited) and _is_outermost(
            event.supervisor
        ):
            seen = self._started if isinstance(event, ChildStarted) else self._exited
            seen.add((event.child, event.incarnation))

    def _gap(self, event: Gap, at: Entry) -> None:
        text = f"{event.missed} events are missing: what follows proves little"
        self.breaks("the log", text, at.number)


def _is_outermost(path: str) -> bool:
    return "/" not in path
