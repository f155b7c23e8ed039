"""Who takes the next step: pure, and known only by numbers.

A policy is data. `start` makes one run's choices of it: a function that gets the tasks
that can run, as the numbers of their birth, and the number of the step. It returns a
place among them. They stand in the order of round robin, the one that has waited
longest first, so place 0 is round robin and any other a *deviation*. They are those of
now: a policy that keeps them makes a list of them.

The same policy and seed make the same choices in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Protocol

import attrs

from .checks import require_count, require_most, require_number
from .order import Order

Pick = Callable[[Sequence[int], int], int]
"""From the tasks that can run, and the step, to a place among them."""


class Policy(Protocol):
    """Decides about the schedules of runs."""

    def start(self, seed: int) -> Pick:
        """Return the choices of one run."""
        ...


def _require_policy(policy: object) -> None:
    if not callable(getattr(policy, "start", None)) or isinstance(policy, type):
        text = "policy must be a name, or have `start` as `Policy` says"
        raise TypeError(f"{text}, not {policy!r}")


@attrs.frozen
class RoundRobin:
    """Who has waited longest takes the next step. Seeds make no difference."""

    def start(self, seed: int) -> Pick:
        """Return the choices of one run."""

        def pick(runnable: Sequence[int], _: int) -> int:  # noqa: ARG001
            return 0

        return pick


@attrs.frozen
class OneStep:
    """Each step is taken by anyone who can, all with the same chance."""

    def start(self, seed: int) -> Pick:
        """Return the choices of one run."""
        chance = Random(f"one step {seed}")
        return lambda runnable, _: int(chance.random() * len(runnable))


@attrs.frozen
class Batch:
    """As trio does it: all who can run take one step each, in an order by chance."""

    def start(self, seed: int) -> Pick:
        """Return the choices of one run."""
        chance = Random(f"batch {seed}")
        batch: list[int] = []
        expected = 0

        def pick(runnable: Sequence[int], step: int) -> int:
            nonlocal expected
            if step != expected:
                batch.clear()  # The only one that could run has run, and ended it.
            expected = step + 1
            while batch:
                task = batch.pop()
                if task in runnable:
                    return runnable.index(task)
            batch.extend(runnable)
            chance.shuffle(batch)
            return runnable.index(batch.pop())

        return pick


@attrs.frozen
class Sparse:
    """Round robin, but for a few steps that anyone takes who can."""

    rate: float = 0.1
    """The share of such steps, from 0 to 1."""

    def __attrs_post_init__(self) -> None:
        """Raise TypeError or ValueError for what is no share."""
        require_number("rate", self.rate, 0, 1)

    def start(self, seed: int) -> Pick:
        """Return the choices of one run."""
        chance = Random(f"sparse {seed}")
        rate = self.rate

        def pick(runnable: Sequence[int], _: int) -> int:
            if chance.random() >= rate:
                return 0
            return int(chance.random() * len(runnable))

        return pick


FEW = 32
"""To look at all of so many takes less long than to keep books of them."""


class _Priorities(dict[int, float]):
    """A priority by chance for each task, from when it is first asked for."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self._chance = chance
        self._heap: list[tuple[float, int]] = []
        # The highest is first. What is no more so is left in it until it comes up.

    def __missing__(self, task: int) -> float:
        priority = self[task] = self._chance.random()
        return priority

    def first(self, runnable: Sequence[int]) -> int:
        """Return who has the highest one."""
        if len(runnable) <= FEW or not isinstance(runnable, Order):
            return max(runnable, key=self.__getitem__)
        if runnable.news is None:
            runnable.news = [*runnable]
        news = [it for it in runnable.news if it in runnable]
        runnable.news.clear()
        unseen = {it for it in news if it not in self}
        for task in sorted(unseen, key=runnable.index):
            self[task]  # Chance is asked in the order in which they stand.
        for task in news:
            heappush(self._heap, (-self[task], task))
        while True:
            below, task = self._heap[0]
            if task in runnable and self[task] == -below:
                return task
            heappop(self._heap)

    def lower(self, task: int, priority: float) -> None:
        """Give a task another one."""
        self[task] = priority
        heappush(self._heap, (-priority, task))


STARVED = 1_000
"""So many choices in a row pass over a task that has waited longest."""


@attrs.frozen
class PCT:
    """Probabilistic concurrency testing: each task has a priority by chance, and at
    ``depth - 1`` steps the first one is put behind all others.

    It finds what needs somebody to starve, for 1,000 choices at most: then the first one
    is put behind all others too, or a program that waits by polling would go on for
    ever, as it does not under trio.
    """

    depth: int = 3
    length: int = 200
    """About how many steps a run has in which there is a choice."""

    def __attrs_post_init__(self) -> None:
        """Raise TypeError or ValueError for what is no number of steps."""
        require_count("depth", self.depth)
        require_count("length", self.length)

    def start(self, seed: int) -> Pick:
        """Return the choices of one run."""
        chance = Random(f"pct {seed}")
        priority = _Priorities(chance)
        changes = sorted(chance.randrange(self.length) for _ in range(self.depth - 1))
        count, lowest = 0, 0.0
        longest, passed = -1, 0  # Who has waited longest, and how often in vain.

        def pick(runnable: Sequence[int], _: int) -> int:
            nonlocal count, lowest, longest, passed
            first = priority.first(runnable)
            passed = passed + 1 if runnable[0] == longest != first else 0
            longest = runnable[0]
            if passed >= STARVED:
                changes.insert(0, count)
                passed = 0
            while changes and changes[0] <= count:
                del changes[0]
                lowest -= 1
                priority.lower(first, lowest)
                first = priority.first(runnable)
            count += 1
            return runnable.index(first)

        return pick


@attrs.frozen
class Replay:
    """Round robin, but for the deviations of a tape: places by step."""

    places: Mapping[int, int]

    def start(self, seed: int) -> Pick:
        """Return the choices of one run."""
        places = self.places

        def pick(runnable: Sequence[int], step: int) -> int:
            place = places.get(step, 0)
            return place if place < len(runnable) else 0

        return pick


@attrs.frozen
class Exhaustive:
    """No schedule is tried twice and none is left out: first round robin, then all with
    one deviation from it, then all with two, and so on.

    It is for `explore` alone, because only runs tell which schedules there are.
    """

    deviations: int | None = None
    """The most that a schedule has. Without it only the number of seeds is a bound."""

    def __attrs_post_init__(self) -> None:
        """Raise TypeError or ValueError for what is no number of deviations."""
        require_most("deviations", self.deviations)


@attrs.frozen
class Portfolio:
    """Each seed has one of several policies; seed 0 is round robin.

    None of them finds every bug that another finds.
    """

    policies: tuple[Policy, ...] = (
        Sparse(),
        OneStep(),
        Batch(),
        Sparse(0.3),
        PCT(),
        PCT(2, 50),
    )

    def __attrs_post_init__(self) -> None:
        """Raise TypeError or ValueError where a seed would have no policy."""
        if not self.policies:
            raise ValueError("a portfolio must have a policy")
        for policy in self.policies:
            _require_policy(policy)

    def start(self, seed: int) -> Pick:
        """Return the choices of one run."""
        if seed == 0:
            return RoundRobin().start(0)
        return self.policies[(seed - 1) % len(self.policies)].start(seed)


NAMED: Mapping[str, Policy] = {
    "round robin": RoundRobin(),
    "one step": OneStep(),
    "batch": Batch(),
    "sparse": Sparse(),
    "pct": PCT(),
    "portfolio": Portfolio(),
}
"""What a policy may be called instead."""


EXHAUSTIVE = "exhaustive"
"""What `Exhaustive` without a bound may be called instead."""

POLICY = "portfolio"
"""The policy where none is named."""


def exhaustive_of(policy: Policy | Exhaustive | str) -> Exhaustive | None:
    """Return the policy that an argument of `explore` stands for if it is exhaustive."""
    if isinstance(policy, Exhaustive):
        return policy
    return Exhaustive() if policy == EXHAUSTIVE else None


def policy_of(policy: Policy | Exhaustive | str | None) -> Policy:
    """Return the policy that an argument stands for; the portfolio without one."""
    if isinstance(policy, str) and policy in NAMED:
        return NAMED[policy]
    if isinstance(policy, str | Exhaustive):
        raise ValueError(
            f"policy must be one of {', '.join(NAMED)}, or {EXHAUSTIVE} for explore; "
            f"not {policy!r}"
        )
    if policy is None:
        return NAMED[POLICY]
    _require_policy(policy)
    return policy
