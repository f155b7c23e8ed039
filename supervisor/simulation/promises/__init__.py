"""What our own runtime and tree promise, checked over a log of what they did.

In a simulated run, what is broken becomes a finding of the run, so a sweep or an
exploration that meets it fails:

    async def program(sim):
        with watched(sim) as log:
            block = open_runtime("tasks", env=sim.env({"make": 2}))
            async with log.recording(block) as runtime:
                ...

Of a log in a file, `check` says it, and ``trio-supervisor sim check``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import cast

import attrs

from actors.house import publish as _publish

from ...tree import Event
from .. import Sim
from ..log import Entry, Log
from ._calls import Aim, Prompt
from ._checker import Checker, Judge, Violation
from ._log import Whole
from ._states import Failure, Once
from ._told import Patience, Record, Unforged
from ._tree import Children, Order, Restarts, Supervisors
from ._world import Disk, Scope, Truth

__all__ = ["Checkers", "Judged", "Violation", "check", "watched"]


@attrs.frozen
class Judged:
    """How much one checker has really looked at."""

    promise: str
    """``P1`` to ``P10``, or ``log``. Several checkers may share one."""
    title: str
    """What it checks, in a few words."""
    judged: int
    """How many events it could have objected to. 0 says that it has proved nothing."""


def _hearers(broken: Callable[[Violation], object]) -> Sequence[Checker | Supervisors]:
    """Return who hears of the events of one log, in that order."""
    supervisors = Supervisors()
    return (
        Whole(broken),
        Scope(broken),
        Truth(broken),
        Once(broken),
        Record(broken),
        Unforged(broken),
        Patience(broken),
        Disk(broken),
        Aim(broken),
        Prompt(broken),
        Failure(broken),
        Children(broken),
        Order(broken, supervisors),
        Restarts(broken, supervisors),
        supervisors,
    )


def _who_hears() -> Mapping[type[Event], Sequence[tuple[int, str]]]:
    """Return who hears of events of each kind, and by which method."""
    table: dict[type[Event], list[tuple[int, str]]] = {}
    for place, hearer in enumerate(_hearers(lambda _: None)):
        for kind, judge in hearer.judges().items():
            table.setdefault(kind, []).append((place, judge.__name__))
    return table


_WHO = _who_hears()  # It is the same for all logs, and there are many.


class Checkers:
    """All checkers, in one pass over one log. Give each entry to `see`.

    Args:
        broken: called with each violation, in the moment in which it is seen. It must
            not raise.
    """

    def __init__(self, broken: Callable[[Violation], object]) -> None:
        self._hearers = _hearers(broken)
        self._whole = cast("Whole", self._hearers[0])
        self._judges: dict[type[Event], Sequence[Judge]] = {}  # of kinds that were seen

    def see(self, entry: Entry) -> None:
        """Look at the next entry of the log."""
        self._whole.see(entry)
        event = entry.event
        judges = self._judges.get(type(event))
        if judges is None:
            who = _WHO.get(type(event), ())
            judges = [getattr(self._hearers[place], name) for place, name in who]
            self._judges[type(event)] = judges
        for judge in judges:
            judge(event, entry)

    def end(self) -> None:
        """Hear that there are no more entries."""
        self._whole.end()

    def judged(self) -> Sequence[Judged]:
        """Return how much each checker has judged so far."""
        return [
            Judged(it.promise, it.title, it.judged)
            for it in self._hearers
            if isinstance(it, Checker)
        ]


def check(entries: Iterable[Entry]) -> tuple[Sequence[Violation], Sequence[Judged]]:
    """Return what a log shows broken, in its order, and how much was judged."""
    found: list[Violation] = []
    checkers = Checkers(found.append)
    for entry in entries:
        checkers.see(entry)
    checkers.end()
    return found, checkers.judged()


def watched(sim: Sim) -> Log:
    """Return a log of a simulated run, to be used with ``with``: each promise that it
    shows broken becomes a `supervisor.simulation.Finding` of the run.

    The log is in that of the run, too, and so in its digest. Open what is to be watched
    by `Log.recording`, and leave the log after it.
    """
    return _Watched(sim)


class _Watched(Log):
    def __init__(self, sim: Sim) -> None:
        self.checkers = Checkers(lambda it: sim.find(it.promise, str(it)))
        super().__init__(self.checkers.see, sim)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(exc_type, exc, traceback)
        if self.failure is not None:
            # Of a checker: from then on nothing was looked at.
            raise self.failure from exc


_publish(globals())
