"""How many tasks may run at once; the others wait, first in first out."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from math import inf
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

import attrs

_Kind: TypeAlias = Literal["shells", "agents"]

_KINDS: dict[str, _Kind] = {
    "local_bash": "shells",
    "local_agent": "agents",
    "remote_agent": "agents",
}


@attrs.frozen(kw_only=True)
class Limits:
    """The caps of a runtime, for foreground and background tasks together.

    None is no cap.
    """

    total: int | None = None
    """Tasks of all types that run at once; the others wait."""
    shells: int | None = None
    """Of those, tasks of the type ``local_bash``."""
    agents: int | None = None
    """Of those, tasks of the types ``local_agent`` and ``remote_agent``."""
    backlog: int = 10_000
    """Notifications that are not acknowledged; beyond it nothing is launched."""
    disk: int | None = None
    """Bytes of output in the directory, of all tasks that are not forgotten."""

    def __attrs_post_init__(self) -> None:
        for name in ("total", "shells", "agents", "backlog", "disk"):
            value = getattr(self, name)
            if value is None and name != "backlog":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"{name} must be a whole number, 1 or more, not {value!r}"
                )


class Typed(Protocol):
    """Anything with a task type."""

    task_type: str


T = TypeVar("T", bound=Typed)


class Slots(Generic[T]):
    """The places that `Limits` gives out, and those who wait for one.

    Those who wait are served first in first out; one whose kind is at its cap
    does not hold up the other kind.
    """

    def __init__(self, limits: Limits) -> None:
        # How many places are free; less than none after `occupy`.
        self._free = _cap(limits.total)
        self._free_of: dict[_Kind, float] = {
            "shells": _cap(limits.shells),
            "agents": _cap(limits.agents),
        }
        # Each with its place in the order of all.
        self._waiting: dict[_Kind, OrderedDict[T, int]] = {
            "shells": OrderedDict(),
            "agents": OrderedDict(),
        }
        self._order = 0
        self.waiting = 0
        """How many wait."""

    def take(self, task: T) -> bool:
        """Give ``task`` a place, or put it in the queue and return False."""
        kind = _KINDS[task.task_type]
        queue = self._waiting[kind]
        if not queue and self._free > 0 and self._free_of[kind] > 0:
            self._free -= 1
            self._free_of[kind] -= 1
            return True
        self._order += 1
        queue[task] = self._order
        self.waiting += 1
        return False

    def take_next(self) -> T | None:
        """Give a free place to the first of those who wait and may have one;
        return it, or None."""
        heads = [
            (order, task)
            for kind, queue in self._waiting.items()
            for task, order in islice(queue.items(), 1)
            if self._free > 0 and self._free_of[kind] > 0
        ]
        if not heads:
            return None
        _, task = min(heads, key=lambda head: head[0])
        self.leave_queue(task)
        self.occupy(task)
        return task

    def leave_queue(self, task: T) -> None:
        """Wait no longer. Nothing happens if it does not wait."""
        if self._waiting[_KINDS[task.task_type]].pop(task, None) is not None:
            self.waiting -= 1

    def occupy(self, task: T) -> None:
        """Give ``task`` a place, whether one is free or not."""
        self._free -= 1
        self._free_of[_KINDS[task.task_type]] -= 1

    def give_back(self, task: T) -> None:
        """Take the place of ``task`` back; `take_next` tells whose it is now."""
        self._free += 1
        self._free_of[_KINDS[task.task_type]] += 1


def _cap(limit: int | None) -> float:
    return inf if limit is None else limit
