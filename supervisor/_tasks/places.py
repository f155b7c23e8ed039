"""How many tasks may run at once, and who has a place: each task from its start to its
end, except while it waits. The others wait, first in first out.

A task that waits for another lends its place, or the two could wait for each other
for ever. When its wait is over it goes on as soon as it has a place again, before
every task that has not started. If several calls of a task wait, the task has no place
until the last of these waits is over. A call that has waited enough before that goes on
without a place, because what the other calls wait for may itself wait for that call.

Some waits end while the task that was waited for runs on: a wait for its output, for
its input, or for a child that was then moved to the background. Such a child may run
until its launcher tells it something or stops it. So the launcher must go on even if
no place is free: then these two share one place, as long as both run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import (
    Awaitable,
    Callable,
    Generator,
    Hashable,
    Iterable,
    Sequence,
)
from contextlib import contextmanager
from itertools import islice
from typing import Generic, Protocol, TypeVar

import attrs
from trio.lowlevel import ParkingLot, enable_ki_protection

from .kinds import KINDS, POOLS
from .limits import Limits
from .record import Table, Task

# ---- The places, and those who wait for one ----


class Counted(Protocol):
    """Anything that takes a place: it has a task type and may have a model."""

    task_type: str

    @property
    def limit_key(self) -> str | None:
        """``model`` or ``provider/model``; it does not change."""
        ...


T = TypeVar("T", bound=Counted)


@attrs.define(eq=False, repr=False)
class _Cap:
    free: int
    """How many of its places are free."""


class _Lane(Generic[T]):
    """The tasks that count for the same caps, and so wait for the same places."""

    __slots__ = ("caps", "queue", "returning")

    def __init__(self, caps: tuple[_Cap, ...]) -> None:
        self.caps = caps
        # Tasks with their number in the order of all lanes. First those that wait
        # for their first place:
        self.queue: OrderedDict[T, int] = OrderedDict()
        # and those that want a place again, which are served first:
        self.returning: OrderedDict[T, int] = OrderedDict()

    def has_room(self) -> bool:
        # A loop: a generator costs as much again as all the rest of a start.
        for cap in self.caps:  # noqa: SIM110
            if cap.free <= 0:
                return False
        return True


class Slots(Generic[T]):
    """The places that `Limits` gives out, and those who wait for one.

    Those who have had a place and want it again are served first, then the others,
    each first in first out. A task that waits for its own type, model or provider
    does not hold up tasks of another. The cost of a start grows with the number of
    models that have a cap, and with nothing else.
    """

    def __init__(self, limits: Limits) -> None:
        total = _caps(limits.total)
        caps: dict[str | None, tuple[_Cap, ...]] = {None: total}
        for pool in POOLS:
            caps[pool] = (*total, *_caps(getattr(limits, pool)))
        self._of_type = {name: caps[kind.cap] for name, kind in KINDS.items()}
        self._models = {name: _Cap(cap) for name, cap in limits.models.items()}
        self._providers = {name: _Cap(cap) for name, cap in limits.providers.items()}
        # One for each set of caps, not for each name: a lane without any cap serves
        # all models that have none.
        self._lanes: dict[tuple[_Cap, ...], _Lane[T]] = {}
        # The lanes of tasks without a model, which most tasks are: found by one look.
        self._plain = {
            task_type: self._lane_with(own) for task_type, own in self._of_type.items()
        }
        self._has_models = bool(self._models or self._providers)
        # By guest: its host, and the caps that only the host counts for although both
        # run. By host: its guest.
        self._shares: dict[T, tuple[T, tuple[_Cap, ...]]] = {}
        self._shared_by: dict[T, T] = {}
        self._order = 0
        self.waiting = 0
        """How many wait."""

    def take(self, task: T) -> bool:
        """Give ``task`` a place, or put it in the queue and return False."""
        # Every task comes here and to `give_back`: no call where `_lane` has no choice.
        lane = self._lane(task) if self._has_models else self._plain[task.task_type]
        if not lane.queue and not lane.returning:
            if not lane.caps:
                return True
            if lane.has_room():
                _move(lane.caps, -1)
                return True
        self._wait(lane.queue, task)
        return False

    def take_again(self, task: T, beside: T | None = None) -> bool:
        """Give ``task`` a place again, or put it in the queue before all tasks that
        have not had one, and return False.

        If no place is free, it shares the place of ``beside``, unless another task
        does already. That place is free again when neither needs it.
        """
        lane = self._lane(task)
        if not lane.returning and lane.has_room():
            _move(lane.caps, -1)
            return True
        if beside is not None and self._share(task, lane, beside):
            return True
        self._wait(lane.returning, task)
        return False

    def _share(self, task: T, lane: _Lane[T], other: T) -> bool:
        """Let ``task`` run in the place of ``other``: of the caps that both count for
        only ``other`` takes a place. Return False if that cannot be."""
        # At most two in one place, or a cap could be exceeded without bound.
        if other in self._shared_by:
            return False
        # ``other`` may be a guest itself. It took no place of the caps that it shares
        # with its own host, so it cannot pass these on.
        _, borrowed = self._shares.get(other, (None, ()))
        owned = [cap for cap in self._lane(other).caps if cap not in borrowed]
        common = tuple(cap for cap in lane.caps if cap in owned)
        # For the caps that ``other`` does not count for, ``task`` takes its own place.
        rest = [cap for cap in lane.caps if cap not in owned]
        if not common or any(cap.free <= 0 for cap in rest):
            return False
        self._shares[task] = other, common
        try:
            self._shared_by[other] = task
            _move(rest, -1)
        except BaseException:  # for instance a MemoryError: all of it or nothing
            self._shared_by.pop(other, None)
            del self._shares[task]
            raise
        return True

    def _wait(self, queue: OrderedDict[T, int], task: T) -> None:
        order, waiting = self._order + 1, self.waiting + 1
        queue[task] = order
        self._order, self.waiting = order, waiting

    def take_next(self) -> T | None:
        """Give a free place to the first of those who wait and may have one;
        return it, or None."""
        heads = [
            (not lane.returning, order, lane, task)
            for lane in self._lanes.values()
            if (lane.returning or lane.queue) and lane.has_room()
            for task, order in islice((lane.returning or lane.queue).items(), 1)
        ]
        if not heads:
            return None
        # No two have the same order, so tasks are never compared.
        _, _, lane, task = min(heads, key=lambda head: head[:2])
        waiting = self.waiting - 1
        _move(lane.caps, -1)
        # From here nothing can fail: the place is taken and the task has left.
        del (lane.returning or lane.queue)[task]
        self.waiting = waiting
        return task

    def wait_again(self, task: T) -> None:
        """Take back the place of ``task``, which could not use it, and put the task
        before all that have not had one. If it fails, it can be called again."""
        queue = self._lane(task).returning
        if task not in queue:
            self._wait(queue, task)
        self.give_back(task)

    def leave_queue(self, task: T) -> None:
        """Wait no longer. Nothing happens if it does not wait."""
        lane = self._lane(task)
        for queue in (lane.queue, lane.returning):
            if queue.pop(task, None) is not None:
                self.waiting -= 1

    def give_back(self, task: T) -> None:
        """Take the place of ``task`` back; `take_next` says whose it is now. If this
        fails, the task still has its place."""
        lane = self._lane(task) if self._has_models else self._plain[task.task_type]
        caps = lane.caps
        if not caps:
            return
        if not self._shares:
            _move(caps, 1)
            return
        # A place that is shared stays taken for the one of the two that runs on: these
        # caps do not get it back now.
        other, kept = self._shares.get(task, (None, ()))
        guest = self._shared_by.get(task)
        if guest is not None:
            kept = (*kept, *self._shares[guest][1])
        _move([cap for cap in caps if cap not in kept], 1)
        # From here nothing can fail: neither of the two shares any more.
        if other is not None:
            del self._shares[task], self._shared_by[other]
        if guest is not None:
            del self._shares[guest], self._shared_by[task]

    def _lane(self, task: T) -> _Lane[T]:
        if not self._has_models or task.limit_key is None:
            return self._plain[task.task_type]
        key = task.limit_key
        provider, slash, model = key.partition("/")
        caps = self._of_type[task.task_type]
        of_model = self._models.get(key) or (self._models.get(model) if slash else None)
        if of_model is not None:
            caps = (*caps, of_model)
        if slash and (of_provider := self._providers.get(provider)) is not None:
            caps = (*caps, of_provider)
        return self._lane_with(caps)

    def _lane_with(self, caps: tuple[_Cap, ...]) -> _Lane[T]:
        lane = self._lanes.get(caps)
        if lane is None:
            lane = self._lanes[caps] = _Lane(caps)
        return lane


def _move(caps: Iterable[_Cap], change: int) -> None:
    """Change the free places of each cap by ``change``, or of none if that fails."""
    moved: list[tuple[_Cap, int]] = []
    # A loop: before Python 3.12 a comprehension is a call of its own, and every task
    # comes here twice.
    for cap in caps:
        moved.append((cap, cap.free + change))  # noqa: PERF401
    # All memory has been taken: plain assignments cannot fail half-way.
    for cap, free in moved:
        cap.free = free


def _caps(limit: int | None) -> tuple[_Cap, ...]:
    return () if limit is None else (_Cap(limit),)


# ---- Places that are lent ----


@attrs.define(eq=False, repr=False)
class Wait:
    """One call of a task that waits."""

    task: Task
    sources: Sequence[Hashable]
    """What it waits for."""
    ends: int
    """How many of the sources have to end before the wait is over."""
    is_over: bool = False


class Places:
    """The places of one runtime.

    Args:
        start: starts a task that has waited for its first place.
    """

    def __init__(
        self, limits: Limits, table: Table, start: Callable[[Task], None]
    ) -> None:
        self.slots: Slots[Task] = Slots(limits)
        self._table = table
        self._start = start
        # Tasks that want their place again, each with its calls that wait for it.
        self._returning: dict[Task, ParkingLot] = {}
        self.waits: dict[Hashable, dict[Wait, None]] = {}
        """The waits by source. While there are none, no end needs to be told of."""

    @enable_ki_protection
    def start_pending(self) -> None:
        """Give the free places to those who wait for one."""
        while (task := self.slots.take_next()) is not None:
            try:
                calls = self._returning.get(task)
                if calls is None:
                    self._start(task)
                else:
                    calls.unpark_all()
                    del self._returning[task]
            except Exception:
                # It has a place and does not run: without this nobody would start it
                # or give the place back.
                has_begun = task.ref is not None or not self._table.is_live(task)
                if task in self._returning or not has_begun:
                    self._wait_again(task)
                raise

    def _wait_again(self, task: Task) -> None:
        try:
            self.slots.wait_again(task)
        # The boundary: memory may have run out, and nobody else would try again.
        except Exception:
            self.slots.wait_again(task)

    @enable_ki_protection
    def give_up(self, task: Task) -> None:
        """Give up the place of a started task that has ended. Call `start_pending`
        then. If it fails, it can be called again."""
        # If it waits its place is lent, and it has none to give up. (Most tasks have
        # nothing rare, and each look there costs a call.)
        if task.rare is None or not task.waits:
            if task in self._returning:
                self._leave_queue(task)
            else:
                self.slots.give_back(task)

    # A place that is lent

    @enable_ki_protection
    def lend(self, task: Task, sources: Sequence[Hashable] = (), ends: int = 1) -> Wait:
        """Let others have the place of ``task`` until `over`; see `Wait`."""
        # Over until everything is recorded, so that `over` undoes nothing if this
        # fails half-way.
        wait = Wait(task, sources, ends, is_over=True)
        if task.ref is None or not self._table.is_live(task):
            # The call has outlived its task, which has no place to lend.
            return wait
        for source in sources:
            self.waits.setdefault(source, {})[wait] = None
        task.waits += 1
        # Only the first wait frees the place. A task that still waits to have it again
        # has none, and just leaves that queue.
        is_free = task.waits == 1 and task not in self._returning
        try:
            if is_free:
                self.slots.give_back(task)
            elif task.waits == 1:
                self._leave_queue(task)
        except BaseException:
            task.waits -= 1
            raise
        wait.is_over = False
        if is_free:
            try:
                self.start_pending()
            except BaseException:
                self.over(wait)
                raise
        return wait

    def begun_without(self, task: Task) -> Wait:
        """Return the wait of a started task that was given no place, because it begins
        with a wait. `over` gives it one."""
        task.waits += 1
        return Wait(task, (), 1)

    def _leave_queue(self, task: Task) -> None:
        """Take ``task`` out of the queue of those that want their place again."""
        self.slots.leave_queue(task)
        # Its calls in `regain` go on: see there.
        self._returning[task].unpark_all()
        del self._returning[task]

    @enable_ki_protection
    def over(self, wait: Wait) -> None:
        """End a wait: ``wait.task`` has its place again, or is in the queue for it,
        and `regain` waits until it has it. Idempotent."""
        if wait.is_over:
            return
        for source in wait.sources:
            waits = self.waits.get(source)
            if waits is not None:
                waits.pop(wait, None)
                if not waits:
                    del self.waits[source]
        task = wait.task
        task.waits -= 1
        try:
            if not task.waits and self._table.is_live(task):
                self._want_place(task, self._partner(wait))
        except BaseException:
            task.waits += 1
            raise
        # Last, so that after a failure the call can be repeated.
        wait.is_over = True

    def _want_place(self, task: Task, partner: Task | None) -> None:
        if not self.slots.take_again(task, partner):
            try:
                self._returning[task] = ParkingLot()
            except BaseException:
                # `start_pending` would take it for one that has not started.
                self.slots.leave_queue(task)
                raise

    def _partner(self, wait: Wait) -> Task | None:
        """Return the task with which ``wait.task`` may share a place: its own child,
        the only one that it waited for, which runs on and has a place. (Such a child
        may end only by what ``wait.task`` does now.)"""
        if len(wait.sources) != 1:
            return None
        (other,) = wait.sources
        if not isinstance(other, Task) or not self._table.is_live(other):
            return None
        if wait.task is not other.launched_by and wait.task is not other.parent:
            return None
        has_place = other.ref is not None and not other.waits
        return other if has_place and other not in self._returning else None

    @enable_ki_protection
    def ended(self, source: Hashable) -> None:
        """End the waits for ``source``, in the step in which it ends. Call it before
        the place that this frees is given away: those who waited for the source come
        first, although their tasks have not run yet. If it fails, it can be called
        again."""
        waits = self.waits.get(source)
        while waits:
            wait = next(iter(waits))
            if wait.ends == 1:
                self.over(wait)
            else:
                wait.ends -= 1
            waits.pop(wait, None)
        if waits is not None:
            self.waits.pop(source, None)

    async def regain(self, task: Task) -> None:
        """Wait until ``task`` has its place, or another call of it waits. If that is so
        already, it is not a checkpoint. When cancelled it leaves the task in the
        queue."""
        # A loop: once woken, the task may have lent its place and want it again.
        calls = self._returning.get(task)
        while calls is not None:
            await calls.park()
            calls = self._returning.get(task)

    @contextmanager
    @enable_ki_protection
    def lent(
        self, task: Task | None, *sources: Hashable, ends: int = 1
    ) -> Generator[None, None, None]:
        """Lend the place of ``task``, if that is not None, while the block waits. Call
        `regain` after the block, before you go on."""
        if task is None:
            yield
            return
        wait = self.lend(task, sources, ends)
        try:
            yield
        finally:
            self.over(wait)

    @enable_ki_protection
    async def wait(
        self,
        task: Task,
        wait: Callable[[], Awaitable[object]],
        *sources: Hashable,
        ends: int = 1,
    ) -> None:
        """Call ``wait`` while ``task`` lends its place, then wait for the place. What
        ``wait`` raises comes out at once, without a wait for the place."""
        with self.lent(task, *sources, ends=ends):
            await wait()
        await self.regain(task)
