"""The invariants that need no assert.

Each is a kind of `Finding`, which names whose it is. A program that does not hold to
one says so by `Sim.ignore`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import trio
from trio.lowlevel import Task

from . import loop, sites
from .run import Driver, Finding, current_task
from .targets import Target, Targets

if TYPE_CHECKING:
    from ..network import Stream

KINDS = (
    *("left", "held", "streams", "swallowed", "generators", "always"),
    *("deadlock", "hang"),
)

PATIENCE = 1.0
"""Virtual seconds after which what a dead target has left is looked at."""


@attrs.define
class _Slots:
    """Who has slots of one semaphore, which has no owner itself."""

    held: dict[Task, list[str]] = attrs.Factory(dict[Task, list[str]])
    """Where each task has taken those that it has."""
    lent: bool = False
    """Somebody has given back what he had taken."""
    otherwise: bool = False
    """Somebody has given what he had not taken, or has had several at once."""

    @property
    def is_lent(self) -> bool:
        """Each takes one slot and gives it back, as far as it was seen."""
        return self.lent and not self.otherwise


class Watch:
    """Looks for what is wrong in one run."""

    def __init__(self, driver: Driver, targets: Targets) -> None:
        self._driver = driver
        self._targets = targets
        self._locks: dict[Any, dict[Task, str]] = {}
        # {lock: {who has asked for it: where}}
        self._slots: dict[trio.Semaphore, _Slots] = {}
        targets.on_end.append(self._ended)

    def starts(self, fn: Any, name: object) -> tuple[Any, object]:
        """Return what a nursery is to start instead of a function, and its name."""
        return self._targets.starts(fn), fn if name is None else name

    def took(self, lock: Any, owner: object) -> None:
        """Hear that somebody asks for a lock or a token."""
        if isinstance(owner, Task):
            asked = self._locks.setdefault(lock, {})
            asked[owner] = self._owner(owner)

    def holds(self, slots: trio.Semaphore, more: int) -> int:
        """Hear of slots that the task that runs has taken, or given back."""
        task = current_task()
        if task is None:
            return 0
        known = self._slots.setdefault(slots, _Slots())
        held = known.held.setdefault(task, [])
        if more > 0:
            held.append(self._owner(task))
            known.otherwise = known.otherwise or len(held) > 1
        elif more < 0 and held:
            known.lent = True
            held.pop()
        elif more < 0:
            known.otherwise = True
        return len(held)

    def finish(self, streams: Iterable[Stream]) -> None:
        """Look at what is left, when the program has come to its end by itself: also
        at the streams of its network that are open."""
        for stream in streams:
            text = f"a stream to {stream.name} is closed by nobody"
            self._find("streams", f"{text}; it was got by {stream.got_by}")
        for lock, asked in self._locks.items():
            owners = _owners(lock)
            for owner, by in asked.items():  # trio has the owners in a set.
                if owner in owners and not self._driver.lives(owner):
                    self._find("held", f"a {type(lock).__name__} is held by {by}")
        for slots in self._slots.values():
            # What is never given back is used up, what others give is a signal, and who
            # has several keeps some back for a while.
            for task, held in slots.held.items() if slots.is_lent else ():
                if held and not self._driver.lives(task):
                    self._find("held", f"a slot of a Semaphore is held by {held[0]}")

    def _owner(self, task: Task) -> str:
        name = (
            self._driver.name(task) or f"system task {sites.ADDRESS.sub('', task.name)}"
        )
        where = sites.asked_by(current_task())[1]
        return f"{name}, which has ended; taken at {where}"

    def _find(self, kind: str, text: str) -> None:
        self._driver.findings.append(Finding(kind, text))

    def _ended(self, target: Target, returned: bool) -> None:
        if returned and target.told:
            text = f"{target.name} was cancelled and returned: it keeps Cancelled to itself"
            self._find("swallowed", text)
        if returned or not target.struck:
            return
        if target.given and target.started:
            at = trio.current_time() + PATIENCE
            self._driver.at(at, lambda: self._look(target))

    def _look(self, target: Target) -> None:
        for task in target.started:
            name = self._driver.name(task)
            nursery = task.parent_nursery
            if not name or nursery not in target.given:
                continue
            if not loop.is_cancelled(nursery.cancel_scope):
                where = sites.site(task)
                text = (
                    f"{target.name} has ended and left {name} in a nursery it was given"
                )
                self._find("left", f"{text}; it is at {where}")


def _owners(lock: Any) -> Sequence[object]:
    found = lock.statistics()
    if isinstance(lock, trio.CapacityLimiter):
        return tuple(found.borrowers)
    return (found.owner,)
