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
from ._checker import Checker, Judge, Violation
from ._log import Whole
from ._tasks import TASKS
from ._tree import TREE

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
            *(kind(broken) for kind in (*TASKS, *TREE)),
        ]
        # One list of calls for each kind of event.
        table: dict[type[Event], list[Judge]] = {}
        for checker in self._all:
            for kind, judge in checker.judges().items():
                table.setdefault(kind, []).append(judge)
        self._table: Mapping[type[Event], Sequence[Judge]] = table

    def see(self, entry: Entry) -> None:
        """Look at the next entry of the log."""
        self._whole.see(entry)
        event = entry.event
        for judge in self._table.get(type(event), ()):
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
