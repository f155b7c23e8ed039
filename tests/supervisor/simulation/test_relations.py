"""What must hold of any program, whatever it does: relations between sweeps, and between
schedules, of programs by chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
import trio

from supervisor.simulation import Sim, SweepReport, cancel_everywhere, simulate
from supervisor.simulation._search.explore import Search, tries
from supervisor.simulation._steering.policies import NAMED
from tests.supervisor.simulation.test_generated import Made

Program = Callable[[Sim], Awaitable[Any]]


def with_a_leak(number: int) -> Program:
    """Return a program by chance, beside a task that keeps a lock if it is cancelled."""
    made = Made(number)

    async def leaks(lock: trio.Lock) -> None:
        await lock.acquire()
        await trio.sleep(1)
        lock.release()

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leaks, trio.Lock())
            await made.program(sim)

    return program


def swept(program: Program, **options: Any) -> SweepReport:
    return cancel_everywhere(program, schedules=2, check=False, **options)


def rows(*reports: SweepReport) -> Counter[tuple[str, str, str]]:
    found: Counter[tuple[str, str, str]] = Counter()
    for row in (it for report in reports for it in report.rows):
        found[row.site, row.arrival, row.error] += row.count
    return found


@pytest.mark.parametrize("number", [0, 8, 9])
def test_parts_of_a_sweep_add_up_to_it(number: int) -> None:
    program = with_a_leak(number)
    whole = swept(program)
    assert whole.rows
    by_arrival = [swept(program, arrivals=(it,)) for it in whole.arrivals]
    by_name = [swept(program, targets=it) for it in whole.struck]
    for parts in (by_arrival, by_name):
        assert sum(it.points for it in parts) == whole.points
        assert rows(*parts) == rows(whole)


def few_steps(number: int, scale: float = 1.0) -> Program:
    """Return a program of three tasks so small that all its schedules can be tried."""
    chance = Random(f"few {number}")
    seconds = [[chance.choice([0, 0.5, 1, 2]) for _ in range(2)] for _ in range(3)]

    async def task(sim: Sim, name: int) -> None:
        for it in seconds[name]:
            await trio.sleep(it * scale)
            sim.log(name)

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            for name in range(3):
                nursery.start_soon(task, sim, name)

    return program


@pytest.mark.parametrize("number", [0, 1, 3, 5])
def test_what_any_policy_does_is_among_all_schedules(number: int) -> None:
    program, most = few_steps(number), 1_000
    found = [it.digest for it in tries(Search(program, "exhaustive"), range(most))]
    assert len({*found}) == len(found) < most
    for policy in NAMED:
        for seed in range(12):
            assert simulate(program, seed=seed, policy=policy).digest in found


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("scale", [0.25, 8.0])
def test_a_program_that_waits_longer_has_the_same_schedules(
    number: int, scale: float
) -> None:
    for seed in range(12):
        run = simulate(few_steps(number), seed=seed)
        other = simulate(few_steps(number, scale), seed=seed)
        assert other.trail == run.trail
        assert [it[1:] for it in other.log] == [it[1:] for it in run.log]
        times: list[Any] = [it[0] for it in run.log]
        assert [it[0] for it in other.log] == [scale * it for it in times]
