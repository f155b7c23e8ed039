"""The calls of a run that can go wrong by themselves, and the one that does.

A *seam* is an operation on the world, by its name. What can go wrong with it is data:
only what its protocol allows, or a sweep would accuse programs that are right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

import attrs

from . import sites
from .checks import require_count
from .run import Driver, current_task
from .tape import Fault

E = TypeVar("E", bound=BaseException)

SEAMS: Mapping[str, Mapping[str, str]] = {
    "network.connect": {
        "refused": "ConnectionRefusedError",
        "unreachable": "another OSError",
        "slow": "it takes some virtual seconds, as `Network.slow` says",
    },
    "network.send": {
        "reset": "nothing is sent, and the connection is lost for both",
        "cut": "the first half is sent, and then the connection is lost",
        "lost": "all is sent, and then the connection is lost",
        "half": "all is sent, and then nothing more goes this way",
        "bytes": "it comes one byte at a time",
        "apart": "the host is cut off, and heals after some virtual seconds",
    },
    "network.receive": {
        "reset": "the connection is lost for both",
        "end": "the other end seems to be closed, in the middle of what it sends",
        "byte": "one byte comes alone",
        "slow": "it takes some virtual seconds",
    },
    "network.datagram": {
        "lost": "it does not come",
        "twice": "it comes twice",
        "late": "it comes some virtual seconds later, after others",
    },
}
"""What can go wrong with each operation, and what that means."""


BY_HAND = "fault by hand"
"""In a log: a call goes wrong because the program says so."""

UNMET = "sim.fault"
"""So a note begins of a call that was to go wrong so, and never came."""


class Seams:
    """Counts the operations of one run, and lets those fail that faults name."""

    def __init__(self, driver: Driver, faults: Sequence[Fault]) -> None:
        self.points: list[Fault] = []
        """A fault for each call and each way in which it can go wrong."""
        self.fired: list[Fault] = []
        """The faults that have been met."""
        self.counting = False
        """Write down the points; to find their sites takes time."""
        self.ways = dict(SEAMS)
        """What can go wrong with each operation of this run."""
        self._driver = driver
        self._calls: Counter[str] = Counter()
        self._by_hand: dict[tuple[str, int], str] = {}
        self._armed = {(it.target, it.point): it for it in faults if it.kind == "fault"}

    def set(self, operation: str, way: str, call: int) -> None:
        """Let a call go wrong because the program says so."""
        require_count("call", call)
        ways = self.ways.get(operation)
        if ways is None:
            text = f"no operation is called {operation!r}; there are"
            raise ValueError(f"{text} {', '.join(sorted(self.ways))}")
        if way not in ways:
            text = f"{operation} does not go wrong by {way!r}, but by"
            raise ValueError(f"{text} {', '.join(ways)}")
        made = self._calls[operation]
        if call <= made:
            raise ValueError(f"call must be above {made}, which were made, not {call}")
        self._by_hand[operation, call] = way

    def unmet(self) -> list[str]:
        """Return a note for each call that the program lets go wrong, and never makes."""
        return [
            f"{UNMET}({operation!r}, {way!r}, call={call}) has no effect: "
            f"{self._calls[operation]} such calls were made"
            for (operation, call), way in self._by_hand.items()
            if call > self._calls[operation]
        ]

    def next(self, operation: str, what: str = "") -> str:
        """Return how the call that is being made goes wrong; "" if it does not.

        ``what`` is what the call is about, for those who want to know.
        """
        self._calls[operation] += 1
        number = self._calls[operation]
        if self.counting:
            site = sites.asked_by(current_task())[1]
            for way in self.ways[operation]:
                step = self._driver.steps
                self.points.append(
                    Fault("fault", operation, way, number, site=site, step=step)
                )
        fault = self._armed.get((operation, number))
        if fault is None:
            way = self._by_hand.get((operation, number), "")
            if way:
                self._driver.note(BY_HAND, f"{operation} {way} {number}")
            return way
        driver, task = self._driver, current_task()
        who, site = sites.asked_by(task)
        by, place = driver.name(task), sites.place_here()
        if not place and who is not None and who is not task:
            place = sites.place(who)
        fault = attrs.evolve(
            fault,
            site=site,
            after=by,
            step=driver.steps,
            line=sites.text(place),
            place=place,
        )
        self.fired.append(fault)
        driver.note("fault", str(fault), site)
        return fault.arrival

    def arm(self, operation: str, way: str) -> None:
        """Let the next call of an operation go wrong."""
        number = self._calls[operation] + 1
        self._armed[operation, number] = Fault("fault", operation, way, number)

    def suspend(self, seconds: float) -> None:
        """Let the machine sleep: time goes on at once, which nobody is blamed for."""
        self._driver.suspend(seconds)

    def put_in(self, error: E) -> E:
        """Return an error that is ours, so that it is not wrong if it leaves."""
        self._driver.thrown.append(error)
        return error
