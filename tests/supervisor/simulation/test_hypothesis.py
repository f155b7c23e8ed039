"""Tapes that Hypothesis draws and makes smaller."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import trio
from hypothesis import Phase, find, given, settings
from hypothesis.errors import NoSuchExample

from supervisor.simulation import NothingToStrike, Sim, Tape, simulate
from supervisor.simulation.hypothesis import tapes

QUIET: dict[str, Any] = {"deadline": None, "database": None}


async def checks_then_acts(sim: Sim) -> None:
    """A bug that needs the second of three to act between two steps of the first."""
    free, owners = [True], []

    async def take(name: str) -> None:
        await trio.lowlevel.checkpoint()
        if name == "c" and free[0]:
            await trio.lowlevel.checkpoint()
            owners.append(name)
        elif name != "c":
            free[0] = False

    async with trio.open_nursery() as nursery:
        for name in ("a", "b", "c"):
            nursery.start_soon(take, name)
    assert not owners, owners


async def leaks(sim: Sim) -> None:
    lock = trio.Lock()

    async def work() -> None:
        await lock.acquire()
        await trio.sleep(1)
        lock.release()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        nursery.start_soon(work)


def test_a_race_is_found_and_shrinks_to_few_deviations() -> None:
    tried: list[Tape] = []

    def fails(tape: Tape) -> bool:
        tried.append(tape)
        return simulate(checks_then_acts, tape=tape).error is not None

    assert not fails(Tape())
    found = find(
        tapes(checks_then_acts), fails, settings=settings(max_examples=500, **QUIET)
    )
    assert 1 <= len(found.deviations) <= 2
    assert not found.faults
    assert len(tried) < 400


def test_a_fault_is_found_and_shrinks_to_one() -> None:
    def fails(tape: Tape) -> bool:
        return bool(simulate(leaks, tape=tape).findings)

    few = settings(max_examples=100, **QUIET)
    found = find(tapes(leaks, faults="cancel"), fails, settings=few)
    assert not found.deviations
    assert len(found.faults) == 1
    found = find(tapes(leaks, faults="cancel", targets="work#2"), fails, settings=few)
    assert [it.target for it in found.faults] == ["work#2"]
    with pytest.raises(NoSuchExample):
        find(tapes(leaks), fails, settings=settings(max_examples=10, **QUIET))


@given(tapes(leaks, faults="swarm"))
@settings(max_examples=40, phases=[Phase.generate], **QUIET)
def test_each_tape_fits(tape: Tape) -> None:
    assert simulate(leaks, tape=tape).tape == tape


def test_no_tape_strikes_one_point_twice() -> None:
    """There are few points, so two that are drawn are often the same."""

    async def once(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            nursery.start_soon(sleeps)

    async def sleeps() -> None:
        await trio.sleep(1)

    sizes: set[int] = set()

    @given(tapes(once, faults="cancel"))
    @settings(max_examples=100, phases=[Phase.generate], **QUIET)
    def strikes(tape: Tape) -> None:
        points = [(it.target, it.arrival, it.point) for it in tape.faults]
        assert len({*points}) == len(points)
        sizes.add(len(points))

    strikes()
    assert 1 in sizes and 2 in sizes


def test_faults_that_no_point_has_are_refused() -> None:
    with pytest.raises(NothingToStrike):
        find(tapes(leaks, faults="network.*"), lambda _: True)
    with pytest.raises(NothingToStrike, match="nobody"):
        find(tapes(leaks, faults="cancel", targets="nobody"), lambda _: True)
    with pytest.raises(ValueError, match="'cancle' is no kind of fault"):
        find(tapes(leaks, faults="cancle"), lambda _: True)
    with pytest.raises(ValueError, match="there are no faults"):
        tapes(leaks, targets="leak")


def test_nobody_needs_hypothesis_for_the_rest() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import supervisor.simulation, supervisor.simulation.campaign"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
