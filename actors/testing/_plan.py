"""Faults that a test sets by hand."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

import trio
import trio.testing

from ._env import FakeEnv
from ._faults import Faults

E = TypeVar("E", bound=BaseException)


class FaultPlan(Faults):
    """The calls of a `fake_env` that go wrong, as a test has set them::

        plan = FaultPlan()
        plan.set("processes.spawn", "EMFILE", call=3)
        env = fake_env({"make": 0}, faults=plan)

    `FakeEnv.seams` has all operations, and what can go wrong with each.
    """

    def __init__(self) -> None:
        self.fired: list[str] = []
        """The faults that were met, in order, such as ``processes.spawn EMFILE 3``."""
        self._set: dict[tuple[str, int], str] = {}
        self._calls: Counter[str] = Counter()

    @property
    def waiting(self) -> list[str]:
        """The faults that were not met yet."""
        return [_line(*key, way) for key, way in self._set.items()]

    def set(self, operation: str, way: str, *, call: int = 1) -> None:
        """Let a call of an operation go wrong, in this way.

        Calls are counted from 1 on, from the first one that this plan was asked about.

        Raises:
            ValueError: if there is no such operation or way, with those there are, or
                if the call was made already.
        """
        ways = FakeEnv.seams.get(operation)
        if ways is None:
            known = ", ".join(sorted(FakeEnv.seams))
            raise ValueError(f"no operation is called {operation!r}; there are {known}")
        if way not in ways:
            known = ", ".join(ways)
            raise ValueError(
                f"{operation} does not go wrong by {way!r}, but by {known}"
            )
        if call <= self._calls[operation]:
            made = self._calls[operation]
            raise ValueError(f"call must be above {made}, which were made, not {call}")
        self._set[operation, call] = way

    def next(self, operation: str, what: str = "") -> str:
        self._calls[operation] += 1
        key = operation, self._calls[operation]
        way = self._set.pop(key, "")
        if way:
            self.fired.append(_line(*key, way))
        return way

    def put_in(self, error: E) -> E:
        return error

    def suspend(self, seconds: float) -> None:
        """Let trio's clock jump, if it is a `trio.testing.MockClock`."""
        clock = trio.lowlevel.current_clock()
        if isinstance(clock, trio.testing.MockClock):
            clock.jump(seconds)


def _line(operation: str, call: int, way: str) -> str:
    return f"{operation} {way} {call}"
