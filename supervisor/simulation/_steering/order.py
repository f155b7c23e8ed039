"""The order of round robin: of the tasks that can run, who has waited longest is first.

It is kept and never made anew, for a program may have many tasks: one that can run finds
its place among ten thousand in some fourteen looks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from trio.lowlevel import Task

UNBORN = 1 << 60
"""More steps than a run has. Before its first one a task has waited longer than all that
have run, but for those that are older."""


class Order(Sequence[int]):
    """The tasks that can run, as the numbers of their birth: what a policy looks at.

    It is the order itself, and goes on with the run: whoever wants to keep what it was
    makes a list of it.
    """

    __slots__ = ("_births", "_who", "news", "numbers", "since", "tasks")

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        """The same, as tasks. Whoever lets one run takes it out."""
        self.numbers: dict[Task, int] = {}
        """The number of each task that lives."""
        self.since: dict[Task, int] = {}
        """The last step of each task that lives. Whoever lets it take one says so here,
        before it joins again."""
        self.news: list[int] | None = None
        """Who has joined since this was made empty; None until somebody asks for it."""
        self._births = 0
        self._who: dict[int, Task] = {}  # {number: task}

    # ---- Who is in it ----------------------------------------------------------------

    def born(self, task: Task) -> int:
        """Give a new task its number, and return it."""
        number = self.numbers[task] = self._births
        self._who[number] = task
        self.since[task] = number - UNBORN
        self._births += 1
        return number

    def dead(self, task: Task) -> None:
        """Forget a task that has ended."""
        del self._who[self.numbers.pop(task)], self.since[task]

    def join(self, tasks: Iterable[Task]) -> None:
        """Let tasks that can run find their places."""
        waiting, since = self.tasks, self.since.__getitem__
        for task in tasks:
            if task not in self.since:  # It has ended; trio fails when it lets it run.
                self.born(task)
            insort(waiting, task, key=since)
            if self.news is not None:
                self.news.append(self.numbers[task])

    def clear(self) -> None:
        """Forget all tasks."""
        for tasks in (self.tasks, self.numbers, self._who, self.since):
            tasks.clear()

    # ---- As numbers ------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self.numbers[task] for task in self.tasks[place]]
        return self.numbers[self.tasks[place]]

    def __iter__(self) -> Iterator[int]:
        return map(self.numbers.__getitem__, self.tasks)

    def __contains__(self, number: object) -> bool:
        return self._place(number) is not None

    def index(self, number: int, start: int = 0, stop: int | None = None) -> int:
        """Return the place of a number. Raises ValueError if it is not there."""
        place = self._place(number)
        if place is None or place not in range(len(self))[start:stop]:
            raise ValueError(f"task {number!r} cannot run")
        return place

    def _place(self, number: object) -> int | None:
        task = self._who.get(number)  # type: ignore[call-overload]
        if task is None:
            return None
        waiting, since = self.tasks, self.since
        place = bisect_left(waiting, since[task], key=since.__getitem__)
        found = place < len(waiting) and waiting[place] is task
        return place if found else None
