"""The order of round robin: as if it were sorted at each step, and never sorted."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import trio

from supervisor.simulation import (
    PCT,
    Batch,
    OneStep,
    Policy,
    RoundRobin,
    Sim,
    Sparse,
    simulate,
)
from supervisor.simulation._steering import order
from supervisor.simulation._steering.policies import FEW, Replay


def test_it_is_what_sorting_at_each_step_would_make() -> None:
    """A model: each task with its last step; before that its birth."""
    chance = Random(3)
    kept, steps = order.Order(), 0
    waiting: list[Any] = []
    blocked: list[Any] = []
    since: dict[Any, tuple[int, int]] = {}
    for _ in range(3_000):
        way = chance.random()
        if way < 0.2:
            task: Any = object()
            since[task] = (-1, kept.born(task))
            blocked.append(task)
        elif way < 0.5 and blocked:
            woken = [
                blocked.pop(chance.randrange(len(blocked)))
                for _ in range(chance.randint(1, min(3, len(blocked))))
            ]
            kept.join(woken)
            waiting += woken
            waiting.sort(key=since.__getitem__)
        elif waiting:
            place = chance.randrange(len(waiting))
            task = kept.tasks.pop(place)
            assert task is waiting.pop(place)
            if chance.random() < 0.2:
                number = kept.numbers[task]
                kept.dead(task)
                assert number not in kept
            else:
                kept.since[task] = steps
                since[task] = (0, steps)
                blocked.append(task)
            steps += 1
        assert kept.tasks == waiting
        numbers = [kept.numbers[it] for it in waiting]
        assert (list(kept), len(kept)) == (numbers, len(waiting))
        assert kept[1:3] == numbers[1:3]
        for place, number in enumerate(numbers):
            assert (kept.index(number), kept[place]) == (place, number)
        assert not any(kept.numbers[it] in kept for it in blocked)
    assert steps > 1_000


POLICIES = (OneStep(), Sparse(0.5), Batch(), PCT(), PCT(9, 300))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda it: type(it).__name__)
def test_a_policy_chooses_from_it_as_from_a_list(policy: Policy) -> None:
    """With few tasks, and with more than `FEW`."""
    largest: list[int] = []
    for seed in range(20):
        chance = Random(seed)
        kept, blocked = order.Order(), list[Any]()
        pick, model = policy.start(seed), policy.start(seed)
        for step in range(400):
            for _ in range(chance.choice([0, 0, 1, 1, 3])):
                blocked.append(object())
                kept.born(blocked[-1])
            chance.shuffle(blocked)
            kept.join(
                [
                    blocked.pop()
                    for _ in range(min(len(blocked), chance.randint(0, 2 + seed % 2)))
                ]
            )
            if len(kept) > 1:
                numbers = [*kept]
                held = chance.random() < 0.1  # Without the last one, as a list.
                able = numbers[:-1] if held else kept
                place = pick(able, step)
                assert place == model(numbers[:-1] if held else numbers, step)
            elif len(kept):
                place = 0  # Who is alone is taken, and no policy is asked.
            else:
                continue
            task = kept.tasks.pop(place)
            if chance.random() < 0.1:
                kept.dead(task)
            else:
                kept.since[task] = step
                blocked.append(task)
            largest.append(len(kept))
    assert sum(it <= FEW for it in largest) > 1_000
    assert sum(it > FEW + 9 for it in largest) > 1_000


def test_who_cannot_run_has_no_place() -> None:
    kept = order.Order()
    first: Any = object()
    kept.join([first] if kept.born(first) == 0 else [])
    strange: list[object] = [0, 1, "0"]
    assert [it in kept for it in strange] == [True, False, False]
    with pytest.raises(ValueError, match="task 1 cannot run"):
        kept.index(1)
    with pytest.raises(ValueError, match="task 0 cannot run"):
        kept.index(0, 1)


MANY = 1_000


async def many(sim: Sim) -> None:
    async def three() -> None:
        for _ in range(3):
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for _ in range(MANY):
            nursery.start_soon(three)


@pytest.mark.parametrize(
    "policy",
    [RoundRobin(), OneStep(), Sparse(), Batch(), PCT(), Replay({9: 700})],
    ids=lambda it: type(it).__name__,
)
def test_a_step_among_many_looks_at_few(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To sort them, or to copy them, takes a look at each of them at each step."""
    looks = 0

    class Counted(dict[Any, Any]):
        def __getitem__(self, key: Any) -> Any:
            nonlocal looks
            looks += 1
            return super().__getitem__(key)

    make: Callable[..., None] = order.Order.__init__

    def init(self: order.Order) -> None:
        make(self)
        self.since, self.numbers = Counted(), Counted()

    monkeypatch.setattr(order.Order, "__init__", init)
    run = simulate(many, policy=policy, seed=2)
    assert run.steps > 3 * MANY
    assert max(count for _, count in run.choices) >= MANY
    assert looks < 50 * run.steps
