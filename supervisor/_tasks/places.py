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

from .limits import Limits, Slots
from .record import Task
from .table import Table


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
            try:
                calls = self._returning.get(task)
                if calls is None:
                    self._start(task)
                else:
                    calls.unpark_all()
                    del self._returning[task]
            except Exception:
                # Nobody else would start it, or give its place back.
                has_begun = task.ref is not None or not self._table.is_live(task)
                if task in self._returning or not has_begun:
                    self.slots.wait_again(task)
                raise

    @enable_ki_protection
    def give_up(self, task: Task) -> None:
        """Called when a task that was started has ended. Then call `start_pending`.
        Called again after a failure it goes on."""
        if not task.waits:
            if task in self._returning:
                self._leave_queue(task)
            else:
                self.slots.give_back(task)

    # A place that is lent

    @enable_ki_protection
    def lend(self, task: Task, sources: Sequence[Hashable] = (), ends: int = 1) -> Wait:
        """The place of ``task`` is free until `over`; see `Wait`."""
        # Until it counts: by a failure nothing is lent.
        wait = Wait(task, sources, ends, is_over=True)
        if task.ref is None or not self._table.is_live(task):
            # A call that has outlived its task.
            return wait
        for source in sources:
            self._waits.setdefault(source, {})[wait] = None
        task.waits += 1
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

    def _leave_queue(self, task: Task) -> None:
        """Let ``task``, which wants its place again, want none."""
        self.slots.leave_queue(task)
        self._returning[task].unpark_all()
        del self._returning[task]

    @enable_ki_protection
    def over(self, wait: Wait) -> None:
        """The wait is over: ``wait.task`` has its place again, or waits for it, for
        which there is `regain`. Only the first call counts."""
        if wait.is_over:
            return
        for source in wait.sources:
            waits = self._waits.get(source)
            if waits is not None:
                waits.pop(wait, None)
                if not waits:
                    del self._waits[source]
        task = wait.task
        task.waits -= 1
        try:
            if not task.waits and self._table.is_live(task):
                self._want_place(task, self._partner(wait))
        except BaseException:
            task.waits += 1
            raise
        # Last, so that whoever tries again after a failure goes on.
        wait.is_over = True

    def _want_place(self, task: Task, partner: Task | None) -> None:
        if not self.slots.take_again(task, partner):
            try:
                self._returning[task] = ParkingLot()
            except BaseException:
                # Or it would be taken for one that has not started.
                self.slots.leave_queue(task)
                raise

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
        though they have not noticed yet. Called again after a failure it goes on."""
        waits = self._waits.get(source)
        while waits:
            wait = next(iter(waits))
            if wait.ends == 1:
                self.over(wait)
            else:
                wait.ends -= 1
            waits.pop(wait, None)
        if waits is not None:
            self._waits.pop(source, None)

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
