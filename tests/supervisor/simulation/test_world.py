"""The simulated processes, files, clock and ids of a run, and what goes wrong there."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import trio

from actors.testing import Program
from supervisor.simulation import (
    Deadlock,
    NothingToStrike,
    Sim,
    SimulationFailed,
    cancel_everywhere,
    fault_everywhere,
    simulate,
)

ERRORS = {"ENOENT", "EACCES", "EAGAIN", "ENOMEM", "EMFILE"}


async def spawns(sim: Sim) -> None:
    """Starts one command twice."""
    env = sim.env({"true": 0})
    for _ in range(2):
        tree = await env.processes.spawn(["true"], cwd=None, env={}, marker="M")
        while await tree.receive():
            pass
        assert (await tree.wait_exit()).code in {0, 1, None}
        await tree.aclose()


async def reads(sim: Sim) -> None:
    tree = await sim.env({"x": "out"}).processes.spawn(
        ["x"], cwd=None, env={}, marker="M"
    )
    while await tree.receive():
        pass


def test_each_start_of_a_process_may_fail_with_each_error_that_it_may_raise() -> None:
    report = fault_everywhere(spawns, seams="processes.spawn", schedules=1)
    assert report.points == 2 * 10
    ends = {"code", "signal", "flood", "orphan"}
    assert set(report.arrivals) == {*ERRORS, "slow", *ends}


def test_a_process_id_comes_again_only_where_one_has_ended() -> None:
    """Elsewhere that would be a fault without an effect."""

    async def program(sim: Sim) -> int:
        env = sim.env({"x": "out"})
        pids: list[int] = []
        for _ in range(3):
            tree = await env.processes.spawn(["x"], cwd=None, env={}, marker="M")
            while await tree.receive():
                pass
            await tree.wait_exit()
            await tree.wait_gone()
            pids.append(tree.pid)
        return len({*pids})

    report = fault_everywhere(program, seams="processes.pid", schedules=1)
    assert report.points == 2
    for call in 1, 2:
        assert simulate(program, tape=f"fault processes.pid reused {call}").value == 2
    assert simulate(program).value == 3


def test_a_sweep_of_nothing_says_what_there_is() -> None:
    with pytest.raises(
        NothingToStrike, match=r"names proceses\.\*; there are process\.r"
    ):
        fault_everywhere(reads, seams="proceses.*", schedules=1)

    async def program(sim: Sim) -> None:
        await trio.lowlevel.checkpoint()

    with pytest.raises(NothingToStrike, match="nothing is called"):
        fault_everywhere(program, schedules=1)


def test_a_fault_names_the_line_of_the_program_that_has_called() -> None:
    run = simulate(spawns, tape="fault processes.spawn EMFILE 2")
    assert isinstance(run.error, OSError)
    (fault,) = run.faults
    assert fault.site.startswith("test_world.py:")
    assert fault.site.endswith(" spawns")


# ---- By hand ---------------------------------------------------------------------------


async def by_hand(sim: Sim) -> list[str]:
    world = sim.env({"true": 0})
    sim.fault("processes.spawn", "EMFILE", call=2)
    ends: list[str] = []
    for _ in range(3):
        try:
            tree = await world.processes.spawn(["true"], cwd=None, env={}, marker="M")
        except OSError as error:
            ends.append(str(error.strerror))
        else:
            while await tree.receive():
                pass
            ends.append(str((await tree.wait_exit()).code))
            await tree.aclose()
    return ends


def test_a_program_lets_one_call_go_wrong_in_every_run() -> None:
    run = simulate(by_hand)
    assert run.value == ["0", "Too many open files", "0"]
    assert run.faults == []
    assert simulate(by_hand, seed=5).value == run.value


def test_a_sweep_adds_its_faults_to_those_that_are_set_by_hand() -> None:
    report = fault_everywhere(by_hand, seams="processes.spawn", schedules=1)
    assert report.points == 3 * 10
    assert report.never_fired == []


@pytest.mark.parametrize(
    ("operation", "way", "call", "told"),
    [
        ("processes.fork", "ENOENT", 1, "'processes.fork'.*network.send.*processes"),
        ("processes.spawn", "EIO", 1, "'EIO'.*EMFILE"),
        ("clock.now", "back", 1, "above 1.*not 1"),
    ],
)
def test_a_fault_that_can_never_happen_is_refused(
    operation: str, way: str, call: int, told: str
) -> None:
    async def program(sim: Sim) -> None:
        sim.env().clock.now()
        sim.fault(operation, way, call=call)

    with pytest.raises(ValueError, match=told):
        raise simulate(program).error or AssertionError


# ---- Time that nobody is blamed for ------------------------------------------------------


async def sleeps(sim: Sim) -> float:
    """Takes two hours, in which the machine sleeps, and two seconds."""
    with sim.within(3):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 2)
            sim.suspend(7200)
    with trio.move_on_after(10) as scope:
        await trio.lowlevel.checkpoint()
        sim.suspend(20)
        await trio.sleep(1)
    assert scope.cancelled_caught, "what was due while it slept is due"
    with sim.within(3):
        await trio.sleep(2)
    return trio.current_time()


def test_a_machine_that_sleeps_uses_up_no_limit_and_lets_all_deadlines_pass() -> None:
    run = simulate(sleeps, limit=5)
    assert run.error is None
    assert run.value == 7224


async def sleeps_too_long(sim: Sim) -> None:
    with sim.within(3):
        sim.suspend(3600)
        await trio.sleep(3603.5)


def test_what_takes_too_long_after_a_sleep_does_so() -> None:
    run = simulate(sleeps_too_long)
    assert isinstance(run.error, AssertionError)
    assert "sleeps_too_long" in str(run.error)


# ---- Scripts --------------------------------------------------------------------------


async def waits(program: Program) -> None:
    await program.read_line()


@pytest.mark.parametrize("enters", [True, False])
def test_a_script_is_named_with_its_line_where_nobody_can_run(enters: bool) -> None:
    async def program(sim: Sim) -> None:
        world = sim.env({"x": waits})
        async with world if enters else nullcontext():
            tree = await world.processes.spawn(
                ["x"], cwd=None, env={}, marker="M", stdin="pipe"
            )
            await tree.wait_exit()

    error = simulate(program).error
    assert isinstance(error, Deadlock)
    assert "program 1000: test_world.py" in error.tree


def test_a_script_is_a_target_if_it_is_named() -> None:
    """Its process ends then, and is no longer there to be written to."""

    async def sends(sim: Sim) -> None:
        world = sim.env({"x": sim.target(waits)})
        tree = await world.processes.spawn(
            ["x"], cwd=None, env={}, marker="M", stdin="pipe"
        )
        with sim.within(60):
            await trio.sleep(1)
            await tree.send(b"go\n")
            await world.processes.aclose()

    with pytest.raises(SimulationFailed, match="BrokenResourceError"):
        cancel_everywhere(sends, schedules=1)
