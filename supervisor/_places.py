"""Who has a place: each task from its start to its end, except while it waits.

A task that waits for another lends its place, or the two could wait for each other
for ever. When its wait is over it goes on as soon as it has a place again, before
every task that has not started. A task of which several calls wait has no place
until the last wait is over; a call whose wait is over before goes on meanwhile, for
whatever the others wait for may wait for that.

Some waits end while the other task, which the one that waits has launched, runs on:
for its output or its input, or since it was moved to the background. It may run
until it is told something, or stopped, by whoever has waited. So if no place is free
these two share one, as long as both run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Hashable, Sequence
from contextlib import contextmanager

import attrs
from trio.lowlevel import ParkingLot, enable_ki_protection

from ._limits import Limits, Slots
from ._table import Table, Task


@attrs.define(eq=False)
class Wait:
    """One call of a task that waits."""

    task: Task
    sources: Sequence[Hashable]
    """What ends the wait by its end."""
    ends: int
    """How many of these have to end."""
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
        # Those that want their place again, each with its calls that wait for it.
        self._returning: dict[Task, ParkingLot] = {}
        # By what ends them.
        self._waits: dict[Hashable, dict[Wait, None]] = {}

    @enable_ki_protection
    def start_pending(self) -> None:
        """Give the free places to those who wait for one."""
        while (task := self.slots.take_next()) is not None:
            calls = self._returning.pop(task, None)
            if calls is None:
                self._start(task)
            else:
                calls.unpark_all()

    @enable_ki_protection
    def give_up(self, task: Task) -> None:
        """Called when a task that was started has ended. Then call `start_pending`."""
        if task.waits:
            return
        calls = self._returning.pop(task, None)
        if calls is None:
            self.slots.give_back(task)
        else:
            self.slots.leave_queue(task)
            calls.unpark_all()

    # A place that is lent

    @enable_ki_protection
    def lend(self, task: Task, sources: Sequence[Hashable] = (), ends: int = 1) -> Wait:
        """The place of ``task`` is free until `over`; see `Wait`."""
        wait = Wait(task, sources, ends)
        if task.ref is None or not self._table.is_live(task):
            # A call that has outlived its task.
            wait.is_over = True
            return wait
        for source in sources:
            self._waits.setdefault(source, {})[wait] = None
        task.waits += 1
        if task.waits == 1:
            calls = self._returning.pop(task, None)
            if calls is None:
                self.slots.give_back(task)
                self.start_pending()
            else:
                self.slots.leave_queue(task)
                calls.unpark_all()
        return wait

    @enable_ki_protection
    def over(self, wait: Wait) -> None:
        """The wait is over: ``wait.task`` has its place again, or waits for it, for
        which there is `regain`. Only the first call counts."""
        if wait.is_over:
            return
        wait.is_over = True
        for source in wait.sources:
            waits = self._waits[source]
            del waits[wait]
            if not waits:
                del self._waits[source]
        task = wait.task
        task.waits -= 1
        if task.waits or not self._table.is_live(task):
            return
        if not self.slots.take_again(task, self._partner(wait)):
            self._returning[task] = ParkingLot()

    def _partner(self, wait: Wait) -> Task | None:
        """Return the running task that ``wait.task`` has launched and waited for,
        if it has a place: it may end only by what that does now."""
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
        """Called in the step in which ``source`` ends, before the place that this
        may have made is given to anybody: those who have waited for it come first,
        though they have not noticed yet."""
        if not self._waits:
            return
        for wait in list(self._waits.get(source, ())):
            wait.ends -= 1
            if wait.ends == 0:
                self.over(wait)

    async def regain(self, task: Task) -> None:
        """Wait until ``task`` has its place, or another call of it waits. It is no
        checkpoint if that is so. Cancelled, it leaves the task in the queue."""
        calls = self._returning.get(task)
        while calls is not None:
            await calls.park()
            calls = self._returning.get(task)

    @contextmanager
    @enable_ki_protection
    def lent(
        self, task: Task | None, *sources: Hashable, ends: int = 1
    ) -> Generator[None, None, None]:
        """While the block waits ``task`` lends its place, if it is one; whoever goes
        on afterwards calls `regain`."""
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
        """Wait by calling ``wait``, in which ``task`` lends its place, and then for
        that place. What ``wait`` raises comes out at once."""
        with self.lent(task, *sources, ends=ends):
            await wait()
        await self.regain(task)
