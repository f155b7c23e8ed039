"""The points of a run at which a target can be struck, and one strike.

A *point* is a moment between two steps. It is known by its target, by how the fault
arrives, and by its number among those of the target, from 1:

- ``blocked``: the target has just been suspended; nothing has happened yet.
- ``woken``: what the target waited for is done, and it is about to go on.
- ``elsewhere``: another task has just taken a step, or time has gone on and woken
  somebody who has not run yet.
- ``late``: as these, or the target has just been suspended; it is then held back until
  nobody else can run.
- ``checkpoint``: the target has just made a checkpoint. Only a KeyboardInterrupt arrives
  so.

Runs of one tape are equal up to the strike, so a run without faults has all points.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import attrs
from trio.lowlevel import Task

from .._errors import TapeDoesNotFit
from . import loop, sites
from .run import Driver
from .tape import CHECKPOINT, Fault
from .targets import Target, Targets

CLOCK = "the clock"
"""Stands for who has taken the step before, where time has gone on."""


def is_interrupt(error: Callable[[], BaseException]) -> bool:
    """Tell whether what makes an error makes a Ctrl+C."""
    return isinstance(error(), KeyboardInterrupt)


class Count:
    """Writes down every point of a run, for some arrivals."""

    def __init__(
        self, driver: Driver, targets: Targets, kind: str, arrivals: tuple[str, ...]
    ) -> None:
        self._driver = driver
        self._targets = targets
        self._kind: Any = kind
        self._arrivals = arrivals
        self._points: list[tuple[Target, Fault]] = []
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._sites: dict[Target, str] = {}
        driver.on_step.append(self._stepped)
        driver.on_time.append(self._time)
        if "woken" in arrivals:
            driver.on_next.append(self._next)

    def faults(self) -> list[Fault]:
        """Return a fault for each point, in the order of the run."""
        chosen = self._targets.chosen
        return [it for target, it in self._points if target.chosen or not chosen]

    def _stepped(self, task: Task) -> None:
        for target in self._targets.live.values():
            own = task is target.task
            if own:
                self._sites[target] = sites.site(task)
            for arrival in self._arrivals:
                if arrives(arrival, own):
                    self._add(target, arrival)

    def _time(self) -> None:
        for target in self._targets.live.values():
            for arrival in self._arrivals:
                if arrives(arrival, own=False):
                    self._add(target, arrival, CLOCK)

    def _next(self, task: Task) -> None:
        for target in self._targets.live.values():
            if task is target.task:
                self._add(target, "woken")

    def _add(self, target: Target, arrival: str, after: str = "") -> None:
        if not can_be_struck(target, self._kind, arrival):
            return
        self._numbers[target.name, arrival] += 1
        fault = Fault(
            self._kind,
            target.name,
            arrival,
            self._numbers[target.name, arrival],
            site=self._sites.get(target, ""),
            after=after,
            step=last_step(self._driver, arrival, after),
        )
        self._points.append((target, fault))


def last_step(driver: Driver, arrival: str, after: str) -> int:
    """Return the number of the step that was taken last before a point."""
    # `stepped` is told before a step is counted.
    return driver.steps - (arrival == "woken" or after == CLOCK)


def moment(fault: Fault) -> tuple[int, int]:
    """Return when a fault strikes, to be compared: after which step, and then whether
    before time goes on, after that, or when the next one begins."""
    return fault.step, 2 if fault.arrival == "woken" else int(fault.after == CLOCK)


def arrives(arrival: str, own: bool) -> bool:
    """Tell whether a step, the target's own or another's, is followed by a point."""
    if arrival == CHECKPOINT:
        return own
    return arrival == "late" or arrival == ("blocked" if own else "elsewhere")


def can_be_struck(target: Target, kind: str, arrival: str) -> bool:
    """Tell whether a target has a point of a kind of fault just now.

    A second cancel (``again``) has one only while a target that was cancelled cleans up
    under a shield with a deadline. It ends the shield, as the deadline might. Elsewhere
    it would change nothing: a cancel of trio lasts.
    """
    if not target.can_be_struck:
        return False
    if arrival == CHECKPOINT:
        return kind == "raise" and loop.can_interrupt(target.task)
    if kind == "again":
        return loop.shield_that_expires(target.task, target.scope) is not None
    return kind == "cancel" or loop.can_throw(target.task)


class Strike:
    """Strikes once, at the point of a fault."""

    def __init__(
        self,
        driver: Driver,
        targets: Targets,
        fault: Fault,
        error: Callable[[], BaseException] | None,
    ) -> None:
        self.fired: Fault | None = None
        """The fault, with where and when it struck."""
        self._driver = driver
        self._targets = targets
        self._fault = fault
        self._error = error
        self._left = fault.point
        if fault.kind == "raise" and error is None:
            raise TapeDoesNotFit(f"nobody says which error {fault} is to raise")
        if fault.arrival == CHECKPOINT and not (error and is_interrupt(error)):
            text = "only a KeyboardInterrupt comes out of a checkpoint"
            raise TapeDoesNotFit(f"{text}, and there is no {fault}")
        if fault.arrival == "woken":
            driver.on_next.append(self._next)
        else:
            driver.on_step.append(self._stepped)
            driver.on_time.append(self._time)

    def _stepped(self, task: Task) -> None:
        target = self._target()
        if target and arrives(self._fault.arrival, task is target.task):
            self._reach(target, self._driver.name(task) or "trio")

    def _time(self) -> None:
        target = self._target()
        if target and arrives(self._fault.arrival, own=False):
            self._reach(target, CLOCK)

    def _next(self, task: Task) -> None:
        target = self._target()
        if target and task is target.task:
            self._reach(target, target.name)

    def _target(self) -> Target | None:
        if self.fired is None:
            return self._targets.live.get(self._fault.target)
        return None

    def _reach(self, target: Target, after: str) -> None:
        if can_be_struck(target, self._fault.kind, self._fault.arrival):
            self._left -= 1
            if self._left == 0:
                self._fire(target, after)

    def _fire(self, target: Target, after: str) -> None:
        driver, fault = self._driver, self._fault
        target.struck = sites.site(target.task)
        place = sites.place(target.task)
        self.fired = attrs.evolve(
            fault,
            site=target.struck,
            after=after,
            step=last_step(driver, fault.arrival, after),
            line=sites.text(place),
            place=place,
        )
        driver.note("fault", str(fault), target.struck)
        do = self._prepared(target)
        try:
            do()
        except BaseException as raised:  # noqa: ASYNC103 (as trio has it)
            # By the abort function of what somebody waits for.
            driver.crash(raised)
        if fault.arrival == "late":
            driver.hold(target.task)

    def _prepared(self, target: Target) -> Callable[[], object]:
        """Return what strikes."""
        if self._fault.kind == "cancel":
            self._driver.on_next.append(lambda task: self._listen(target, task))
            return target.scope.cancel
        if self._fault.kind == "again":
            shield = loop.shield_that_expires(target.task, target.scope)
            assert shield is not None
            return shield.cancel
        assert self._error is not None
        error = self._error()
        self._driver.thrown += _with_parts(error)
        if isinstance(error, KeyboardInterrupt) and self._fault.arrival == CHECKPOINT:
            return lambda: loop.interrupt(target.task, error)
        return lambda: loop.throw(target.task, error)

    def _listen(self, target: Target, task: Task) -> None:
        if task is target.task and not target.told:
            target.told = loop.is_told_to_end(task, target.scope)


def _with_parts(error: BaseException) -> list[BaseException]:
    """Return an error, and all that are in it if it is a group: who splits it makes new
    groups of them."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    inside: Sequence[BaseException] = cast("Any", error).exceptions
    return [error, *(part for it in inside for part in _with_parts(it))]
