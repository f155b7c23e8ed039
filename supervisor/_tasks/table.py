"""The task table: every task that has not ended, and a bounded history.

The live table is apart from the history, so that what happens all the time
costs the same however much has happened.
"""

from __future__ import annotations

from contextlib import suppress
from heapq import heapify, heappop, heappush

from .record import Task

HISTORY = 32
"""Ended tasks of each type, and of those as many in the background as waited for,
that are kept once nobody waits to hear of them."""


class Table:
    """Every task by id."""

    def __init__(self) -> None:
        self.live: dict[str, Task] = {}
        self._ended: dict[str, Task] = {}
        # Those of the ended that may go, by type and apart those of which nobody
        # was to hear, which would drive out the others, as heaps: the first to end
        # goes first, whatever was heard of first.
        self._evictable: dict[tuple[str, bool], list[tuple[int, str]]] = {}
        self._ends = 0
        # The ids of background tasks, by owner; nobody has none.
        self._unfinished: dict[str | None, dict[str, None]] = {}

    def __contains__(self, task_id: str) -> bool:
        return task_id in self.live or task_id in self._ended

    def is_live(self, task: Task) -> bool:
        """Whether it is one of ours and has not ended."""
        return self.live.get(task.task_id) is task

    def find(self, task_id: object) -> Task | None:
        """Return the task, or None when it is unknown or forgotten."""
        if not isinstance(task_id, str):
            return None
        return self.live.get(task_id) or self._ended.get(task_id)

    def all(self) -> list[Task]:
        """Return every task: those that ended first, then the live ones."""
        return [*self._ended.values(), *self.live.values()]

    def add(self, task: Task) -> None:
        """Enter a new task."""
        self.live[task.task_id] = task
        if task.background:
            self.moved_to_background(task)

    def moved_to_background(self, task: Task) -> None:
        """Count it among those whose end is told."""
        self._unfinished.setdefault(task.owner, {})[task.task_id] = None

    def end(self, task: Task) -> int:
        """Move a task that ended to the history; return how many background
        tasks of its owner have not ended. Called again after a failure it goes on."""
        left = self.take_out(task)
        if not task.end_number:
            task.end_number = self._ends = self._ends + 1
        # The one thing that takes much memory: without it the task is forgotten.
        self._ended[task.task_id] = task
        return left

    def replace(self, ended: Task, task: Task) -> None:
        """Enter ``task`` under the id of a task that has ended, whose record is
        forgotten. What is told of that end is told all the same."""
        del self._ended[ended.task_id]
        evictable = self._evictable.get((ended.task_type, ended.background), [])
        with suppress(ValueError):
            evictable.remove((ended.end_number, ended.task_id))
            heapify(evictable)
        self.add(task)

    def has_ended(self, task: Task) -> bool:
        """Whether it is one of ours, has ended and is not forgotten."""
        return self._ended.get(task.task_id) is task

    def may_go(self, task: Task) -> bool:
        """Whether nobody waits to hear of this ended task any more."""
        evictable = self._evictable.get((task.task_type, task.background), [])
        return (task.end_number, task.task_id) in evictable

    def take_out(self, task: Task) -> int:
        """Forget a task that has not ended; return how many background tasks of
        its owner have not. Twice the same does no harm."""
        unfinished = self._unfinished.get(task.owner)
        if unfinished is not None:
            unfinished.pop(task.task_id, None)
            if not unfinished:
                self._unfinished.pop(task.owner, None)
        self.live.pop(task.task_id, None)
        return 0 if unfinished is None else len(unfinished)

    def put_back(self, ended: Task) -> None:
        """Enter the record of a task that has ended, where it was before
        `replace`."""
        self._ended[ended.task_id] = ended
        in_order = sorted(self._ended.values(), key=lambda task: task.end_number)
        self._ended = {task.task_id: task for task in in_order}

    def release(self, task: Task) -> Task | None:
        """Nobody waits to hear of this ended task any more: it may be forgotten.
        Return the one that is, which has ended first of those that may. Twice the
        same does no harm."""
        evictable = self._evictable.setdefault((task.task_type, task.background), [])
        entry = (task.end_number, task.task_id)
        if entry not in evictable:
            if self._ended.get(task.task_id) is not task:
                return None
            heappush(evictable, entry)
        if len(evictable) <= HISTORY:
            return None
        _, oldest = heappop(evictable)
        return self._ended.pop(oldest, None)
