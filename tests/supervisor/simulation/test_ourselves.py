"""Our own runtime in the simulator: the same each time, and right when it is struck."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence

import attrs
import pytest
import trio

from actors import Context
from actors.shell import Shell
from actors.testing import Program, fake_env
from supervisor.runtime import open_runtime
from supervisor.simulation import (
    Sim,
    cancel_everywhere,
    raise_everywhere,
    simulate,
)
from supervisor.tree import ChildRestarting, ChildRunning, child, open_supervisor


async def build(program: Program) -> int:
    for number in range(3):
        await program.print(f"line {number}\n")
        await trio.sleep(0.1)
    return 2


async def deaf(program: Program) -> None:
    program.ignore_sigterm()
    await trio.sleep_forever()


async def shells(sim: Sim) -> None:
    """Two that end, and one that is stopped and does not hear."""
    env = fake_env({"make": build, "true": "done\n", "deaf": deaf})
    async with open_runtime("tasks", env=env) as runtime:
        with runtime.events.subscribe() as events:

            async def job(command: str) -> None:
                await trio.sleep(sim.random.choice([0, 0.1]))
                task = await runtime.launch(Shell(command))
                await task.wait()

            async def stopped() -> None:
                task = await runtime.launch(Shell("deaf"))
                await trio.sleep(0.1)
                await runtime.stop(task.id)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(job, "make")
                nursery.start_soon(job, "true")
                nursery.start_soon(stopped)
            for event in events.drain():
                sim.log(type(event).__name__, attrs.asdict(event))
        for note in runtime.notifications.drain():
            sim.log(note.xml)
            note.ack()
        with sim.within(60):
            snapshot = await runtime.run(Shell("true"))
            assert snapshot.exit_code == 0


async def count(ctx: Context[int], stop_at: int) -> int:
    total = 0
    async for number in ctx.mailbox:
        total += number
        if total == stop_at:
            raise LookupError("it is told to fail")
    return total


async def tree(sim: Sim) -> None:
    """Children that fail and are started again, and are stopped by hand."""
    children = [child(f"count{at}", count, 3 + at) for at in range(3)]
    async with open_supervisor(
        children=children, strategy="rest_for_one", intensity=10
    ) as supervisor:
        refs = [it.ref for it in supervisor.which_children()]

        async def tell(at: int) -> None:
            for number in (1, 2, 1):
                refs[at].tell(number)
                await trio.sleep(0.5)

        async def by_hand() -> None:
            await trio.sleep(0.5)
            try:
                await supervisor.terminate_child("count1")
                await supervisor.restart_child("count1")
            except (ChildRestarting, ChildRunning):
                pass  # The group is being started again.

        async with trio.open_nursery() as nursery:
            # Nobody speaks to one that may stay stopped, where its starter is struck.
            nursery.start_soon(tell, 0)
            nursery.start_soon(tell, 2)
            nursery.start_soon(by_hand)
        with sim.within(60):
            await trio.sleep(1)
            states = {it.id: it.state for it in supervisor.which_children()}
            for name in ("count0", "count2"):
                assert states[name] == "running"


@pytest.fixture(autouse=True)
def _silent(caplog: pytest.LogCaptureFixture) -> None:
    """What fails on purpose is logged some hundred times."""
    caplog.set_level(logging.CRITICAL, "supervisor")


def digests(seeds: Sequence[int]) -> list[str]:
    found: list[str] = []
    for seed in seeds:
        run = simulate(shells, seed=seed)
        if run.error is not None:
            raise run.error
        found.append(run.digest)
    return found


def test_the_runtime_is_the_same_run_for_the_same_seed() -> None:
    """With all events and their fields, and the ids."""
    found = digests(range(30))
    assert digests(range(30)) == found
    assert len(set(found)) == 30


def test_the_runtime_is_the_same_run_in_another_process() -> None:
    code = (
        "from tests.supervisor.simulation.test_ourselves import *; "
        "print(*digests(range(4)))"
    )
    for hash_seed in ("1", "77"):
        printed = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": "."},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.split()
        assert printed == digests(range(4))


@pytest.mark.parametrize("program", [shells, tree], ids=["shells", "tree"])
def test_a_cancel_of_a_caller_breaks_nothing(program: object) -> None:
    report = cancel_everywhere(program, schedules=1, max_points=200)  # type: ignore[arg-type]
    assert report.points > 100


@pytest.mark.parametrize("program", [shells, tree], ids=["shells", "tree"])
def test_an_error_of_a_caller_breaks_nothing(program: object) -> None:
    report = raise_everywhere(
        program,  # type: ignore[arg-type]
        KeyboardInterrupt,
        schedules=1,
        max_points=100,
    )
    assert report.points == 100
