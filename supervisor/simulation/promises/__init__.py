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
from ._tree import Children, Order, Restarts
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


_CHECKERS: Sequence[type[Checker]] = (
    Whole,
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
    Children,
    Order,
    Restarts,
)
"""In the order in which they look at an event."""


def _who_judges() -> Mapping[type[Event], Sequence[tuple[int, str]]]:
    """Return which checkers look at events of each kind, and by which method."""
    table: dict[type[Event], list[tuple[int, str]]] = {}
    for place, checker in enumerate(_CHECKERS):
        for kind, judge in checker(lambda _: None).judges().items():
            table.setdefault(kind, []).append((place, judge.__name__))
    return table


_JUDGES = _who_judges()  # It is the same in each run, and there are many runs.


class Checkers:
    """All checkers, in one pass over one log. Give each entry to `see`.

    Args:
        broken: called with each violation, in the moment in which it is seen. It must
            not raise.
    """

    def __init__(self, broken: Callable[[Violation], object]) -> None:
        self._whole = Whole(broken)
        self._all: Sequence[Checker] = [
            self._whole,
            *(kind(broken) for kind in _CHECKERS[1:]),
        ]
        self._judges: dict[type[Event], Sequence[Judge]] = {}  # of kinds that were seen

    def see(self, entry: Entry) -> None:
        """Look at the next entry of the log."""
        self._whole.see(entry)
        event = entry.event
        kind = type(event)
        judges = self._judges.get(kind)
        if judges is None:
            named = _JUDGES.get(kind, ())
            judges = [getattr(self._all[place], name) for place, name in named]
            self._judges[kind] = judges
        for judge in judges:
            judge(event, entry)

    def end(self) -> None:
        """Hear that there are no more entries."""
        self._whole.end()

    def judged(self) -> Sequence[Judged]:
        """Return how much each checker has judged so far."""
        return [Judged(it.promise, it.title, it.judged) for it in self._all]


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
