"""Who takes the next step: the same choices for the same seed, and no others."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import pairwise
from random import Random

import pytest
import trio

from supervisor.simulation import (
    PCT,
    Batch,
    OneStep,
    Policy,
    Portfolio,
    RoundRobin,
    Sim,
    Sparse,
    explore,
    simulate,
)
from supervisor.simulation._steering.policies import NAMED, Replay, policy_of

POLICIES = (RoundRobin(), OneStep(), Batch(), Sparse(), PCT(), Portfolio())


def choices(policy: Policy, seed: int, runnable: tuple[int, ...] = (4, 7, 9)) -> str:
    pick = policy.start(seed)
    return "".join(str(pick(runnable, step)) for step in range(60))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda it: type(it).__name__)
def test_a_seed_says_everything(policy: Policy) -> None:
    assert choices(policy, 3) == choices(policy, 3)
    assert set(choices(policy, 3)) <= set("012")


@pytest.mark.parametrize("policy", POLICIES[1:], ids=lambda it: type(it).__name__)
def test_other_seeds_make_other_choices(policy: Policy) -> None:
    assert len({choices(policy, seed) for seed in range(1, 40)}) > 5


def test_a_seed_says_the_same_in_another_process() -> None:
    code = (
        "from tests.supervisor.simulation.test_policies import *; "
        "print(*[choices(it, 5) for it in POLICIES])"
    )
    for hash_seed in ("1", "2"):
        printed = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": "."},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.split()
        assert printed == [choices(it, 5) for it in POLICIES]


def test_a_batch_lets_everybody_run_once() -> None:
    pick = Batch().start(1)
    for turn in range(20):
        taken = [pick([1, 2, 3, 4], 4 * turn + step) for step in range(4)]
        assert sorted(taken) == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(8))
def test_a_batch_ends_where_a_task_ran_because_no_other_could(seed: int) -> None:
    pick = Batch().start(seed)
    pick([1, 2], 0)
    # The other one takes step 1, and nobody is asked.
    assert {pick([1, 2], 2), pick([1, 2], 3)} == {0, 1}


def test_sparse_deviates_as_often_as_it_is_told() -> None:
    counted = Counter(choices(Sparse(0.1), 2, tuple(range(10))) * 1)
    assert counted["0"] > 45
    assert set(choices(Sparse(0.0), 2)) == {"0"}


def test_pct_starves_all_but_one() -> None:
    """Between two of its changes the same task runs on."""
    pick = PCT(depth=1).start(4)
    assert len({pick([1, 2, 3], step) for step in range(100)}) == 1
    changes = choices(PCT(depth=3, length=60), 4)
    runs = sum(one != other for one, other in pairwise(changes))
    assert runs <= 2


@pytest.mark.parametrize("length", [1, 3, 30])
def test_pct_puts_the_first_one_behind_all_others(length: int) -> None:
    """As a queue in which the first one that can run goes on, and is put last at some
    steps; several times at one of them, too."""
    for seed in range(20):
        pick = PCT(depth=9, length=length).start(seed)
        chance = Random(f"pct {seed}")
        changes = sorted(chance.randrange(length) for _ in range(8))
        priority = {task: chance.random() for task in (4, 7, 9, 2)}
        queue = sorted(priority, key=priority.__getitem__, reverse=True)
        which = Random(seed)
        assert [4, 7, 9, 2][pick([4, 7, 9, 2], 0)] == _first(
            queue, [*queue], changes, 0
        )
        for step in range(1, 40):
            runnable = which.sample([4, 7, 9, 2], which.randint(1, 4))
            taken = runnable[pick(runnable, step)]
            assert taken == _first(queue, runnable, changes, step)


def _first(queue: list[int], runnable: list[int], changes: list[int], step: int) -> int:
    """Return who is first of a queue and can run, after the changes of a step."""
    for _ in range(changes.count(step)):
        first = next(it for it in queue if it in runnable)
        queue.remove(first)
        queue.append(first)
    return next(it for it in queue if it in runnable)


def test_pct_does_not_starve_anybody_for_ever() -> None:
    async def polls(done: list[None]) -> None:
        while not done:
            await trio.lowlevel.checkpoint()

    async def program(sim: Sim) -> None:
        done: list[None] = []
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(polls, done)
            await trio.lowlevel.checkpoint()
            done.append(None)

    explore(program, seeds=20, policy="pct")


def test_a_place_that_is_not_there_is_left_out() -> None:
    pick = Replay({2: 5}).start(0)
    assert [pick([1, 2], step) for step in range(4)] == [0, 0, 0, 0]


def test_seed_0_of_the_portfolio_is_round_robin() -> None:
    assert choices(Portfolio(), 0) == "0" * 60


def test_a_policy_has_a_name() -> None:
    assert policy_of("pct") == PCT()
    assert policy_of(None) == Portfolio()
    with pytest.raises(
        ValueError, match=r"policy must be one of round robin, .*'fair'"
    ):
        policy_of("fair")
    assert set(NAMED) >= {"round robin", "batch", "portfolio"}


# ---- What the schedules of a run look like -----------------------------------------


async def three(sim: Sim) -> str:
    seen: list[str] = []

    async def steps(name: str) -> None:
        for _ in range(4):
            seen.append(name)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(steps, name)
    return "".join(seen)


def test_round_robin_is_fair() -> None:
    assert simulate(three).value == "abcabcabcabc"


def test_one_task_may_run_alone() -> None:
    """trio itself never lets one starve."""
    values = {simulate(three, seed=seed, policy="pct").value for seed in range(30)}
    assert any("aaaa" in value for value in values)
    batches = {simulate(three, seed=seed, policy="batch").value for seed in range(30)}
    assert all(sorted(value[:3]) == ["a", "b", "c"] for value in batches)


def lock_step() -> object:
    async def program(sim: Sim) -> None:
        total = 0

        async def add() -> None:
            nonlocal total
            read = total
            await trio.lowlevel.checkpoint()
            total = read + 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(add)
            for _ in range(2):
                await trio.lowlevel.checkpoint()
            nursery.start_soon(add)
        assert total == 2

    return program


def test_the_portfolio_finds_what_round_robin_does_not() -> None:
    program = lock_step()
    assert simulate(program).error is None  # type: ignore[arg-type]
    found = explore(program, seeds=60, check=False)  # type: ignore[arg-type]
    assert found.failed
    assert found.distinct > 5
