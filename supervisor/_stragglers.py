"""Reports of children that do not do what is waited for: end when they were told
to stop, or acknowledge their start."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import trio
from trio.lowlevel import enable_ki_protection

from actors.lowlevel import Incarnation

REPORT_EVERY = 30.0
"""The seconds between two reports of one incarnation."""


class Stragglers:
    """Watches incarnations for which somebody waits, and calls
    ``report(incarnation, seconds since then)`` for each that is still watched
    when the patience with it is over, and every 30 seconds from then on.

    One task does that for all children of a supervisor. It outlives a
    cancellation, as the children do, and ends with `close`.
    """

    def __init__(self, report: Callable[[Incarnation[Any], float], None]) -> None:
        self._report = report
        # Since when it is waited for, and when a report is due.
        self._watched: dict[Incarnation[Any], tuple[float, float]] = {}
        self._nap: trio.CancelScope | None = None
        self._clock = trio.lowlevel.current_clock()

    def watch(
        self, nursery: trio.Nursery, incarnation: Incarnation[Any], patience: float
    ) -> None:
        """Report ``incarnation`` if it is not forgotten within ``patience`` seconds.
        The second time for the same one it does nothing."""
        if incarnation in self._watched or patience == math.inf:
            return
        now = self._clock.current_time()
        self._watched[incarnation] = (now, now + patience)
        if self._nap is None:
            self._nap = trio.CancelScope(shield=True, deadline=now + patience)
            nursery.start_soon(self._report_when_due)
        elif now + patience < self._nap.deadline:
            self._nap.deadline = now + patience

    def forget(self, incarnation: Incarnation[Any]) -> None:
        """It has done what was waited for, or is none of ours."""
        self._watched.pop(incarnation, None)

    def close(self) -> None:
        """End the reports, so that the nursery can be left."""
        self._watched.clear()
        if self._nap is not None:
            self._nap.cancel()

    @enable_ki_protection
    async def _report_when_due(self) -> None:
        while self._watched:
            due = min(due for _, due in self._watched.values())
            self._nap = trio.CancelScope(shield=True, deadline=due)
            with self._nap:
                await trio.sleep_forever()
            now = trio.current_time()
            for incarnation, (asked_at, due) in list(self._watched.items()):
                if due <= now:
                    self._watched[incarnation] = (asked_at, due + REPORT_EVERY)
                    self._report(incarnation, now - asked_at)
        self._nap = None
