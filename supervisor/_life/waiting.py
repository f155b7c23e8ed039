"""Waiting for several tasks: for any of them, for all, for each as it ends."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

import trio
from trio.lowlevel import ParkingLot, enable_ki_protection

from .._tasks.record import Task
from .._tasks.snapshot import TaskSnapshot
from .handles import TaskHandle, known, member
from .life import Life


class TaskSet:
    """A set of tasks that somebody waits for. `Runtime.task_set` makes it.

    An iteration gives the snapshot of each member once, in the order in which the tasks
    end, and takes the member out of the set. It ends when the set is empty. Members may
    be added and removed meanwhile. Several tasks may iterate. Each snapshot goes to one
    of them. A cancelled iteration loses nothing and does nothing to the tasks.
    """

    def __init__(self, life: Life, tasks: Iterable[Task] = ()) -> None:
        self._life = life
        self._unfinished: dict[Task, None] = {}
        # With the number of the end, which is another for each task.
        self._ended: list[tuple[int, Task]] = []
        self._readers = ParkingLot()
        for task in tasks:
            self._add(task)

    def __repr__(self) -> str:
        return f"<TaskSet of {len(self)}, {len(self._ended)} ended>"

    def __len__(self) -> int:
        """How many members have not been given out yet, ended or not."""
        return len(self._unfinished) + len(self._ended)

    def __contains__(self, task: object) -> bool:
        found = known(self._life, task)
        return found is not None and self._has(found)

    def add(self, task: TaskHandle | str) -> None:
        """Wait for this task, too. If it is a member already, nothing happens.

        Raises:
            UnknownTask: for an id that is not known.
        """
        self._add(member(self._life, task))

    def _add(self, task: Task) -> None:
        if self._has(task):
            return
        if task.ended_at is not None:
            self._put(task)
            return
        self._unfinished[task] = None
        if task.sets is None:
            task.sets = []
        task.sets.append(self)

    def _has(self, task: Task) -> bool:
        return task in self._unfinished or any(task is t for _, t in self._ended)

    @enable_ki_protection
    def remove(self, task: TaskHandle | str) -> bool:
        """Wait for this task no longer. Return whether it was a member.

        Raises:
            UnknownTask: for an id that is not known.
        """
        found = member(self._life, task)
        if found in self._unfinished:
            del self._unfinished[found]
            assert found.sets is not None
            found.sets.remove(self)
        else:
            left = [entry for entry in self._ended if entry[1] is not found]
            if len(left) == len(self._ended):
                return False
            # Sorted is a heap as well.
            self._ended = sorted(left)
        if not self:
            self._readers.unpark_all()
        return True

    def task_ended(self, task: Task) -> None:
        """Note that a member has ended. This is called in the step in which it ends."""
        if task in self._unfinished:
            heappush(self._ended, (task.end_number, task))
            del self._unfinished[task]
        self._tell()

    def _put(self, task: Task) -> None:
        heappush(self._ended, (task.end_number, task))
        self._tell()

    def _tell(self) -> None:
        self._readers.unpark_all()
        self._life.places.ended(self)

    def close(self) -> None:
        """Stop waiting for all members."""
        for task in self._unfinished:
            assert task.sets is not None
            task.sets.remove(self)
        self._unfinished.clear()
        self._ended.clear()
        self._readers.unpark_all()

    def __aiter__(self) -> TaskSet:
        return self

    @enable_ki_protection
    async def __anext__(self) -> TaskSnapshot:
        """Wait for the next member that ends.

        Raises:
            WouldDeadlock: if the task that asks is a member itself.
        """
        await trio.lowlevel.checkpoint()
        self._life.refuse_own_end(self._life.current_task(), self._unfinished)
        while self and not self._ended:
            # One wait each time, for another reader may be faster.
            await self._life.wait_for(self._readers.park, self)
        if not self:
            raise StopAsyncIteration
        _, task = heappop(self._ended)
        if not self:
            # The last one: whoever waits beside us waits for nothing.
            self._readers.unpark_all()
        # As in `Life.wait_ended`. It cannot be cancelled, so the end is not lost.
        await self._life.journal.settle()
        return task.snapshot()


async def wait_any(life: Life, tasks: list[Task]) -> TaskSnapshot:
    """See `Runtime.wait_any`."""
    members = TaskSet(life, tasks)
    try:
        return await anext(members)
    finally:
        members.close()


async def wait_all(life: Life, tasks: list[Task]) -> list[TaskSnapshot]:
    """See `Runtime.wait_all`."""
    unfinished = [task for task in dict.fromkeys(tasks) if task.ended_at is None]
    life.refuse_own_end(life.current_task(), unfinished)
    await trio.lowlevel.checkpoint()
    unfinished = [task for task in unfinished if task.ended_at is None]

    async def wait() -> None:
        for task in unfinished:
            await task.wait_ended()

    if unfinished:
        await life.wait_for(wait, *unfinished, ends=len(unfinished))
    await life.journal.settle()
    return [task.snapshot() for task in tasks]
