"""What the simulator takes from trio: who runs next, and what time it is."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from supervisor.simulation import (
    Deadlock,
    Hang,
    Sim,
    SimulationError,
    UnsupportedTrio,
    simulate,
)
from supervisor.simulation._steering import loop
from supervisor.simulation._steering.session import session


def test_the_trio_that_is_installed_can_be_steered() -> None:
    loop.require_trio()


@pytest.mark.parametrize("name", ["runq", "deadlines", "init_task"])
def test_a_name_of_trio_that_is_gone_is_told(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One clear error, and no run."""
    monkeypatch.setattr(loop, "_tested", False)
    monkeypatch.setitem(loop._USED, "Runner", f"{name}_as_it_was_never_called")
    with pytest.raises(UnsupportedTrio, match=f"Runner has no {name}_as"):
        simulate(sleeper)


def test_a_trio_that_runs_in_another_order_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "_tested", False)
    monkeypatch.setattr(loop._Backwards, "choose", lambda self, waiting: 0)
    with pytest.raises(UnsupportedTrio, match=r"where .* was decided"):
        simulate(sleeper)


async def sleeper(sim: Sim) -> float:
    await trio.sleep(1000)
    return trio.current_time()


def test_time_is_virtual_and_exact() -> None:
    async def tenths(sim: Sim) -> float:
        for _ in range(10):
            await trio.sleep(0.1)
        return trio.current_time()

    assert simulate(sleeper).value == 1000
    total = 0.0
    for _ in range(10):
        total += 0.1  # Not by `sum`, which rounds less.
    assert simulate(tenths).value == total


def test_a_deadline_that_is_set_to_the_past_ends_the_next_checkpoint() -> None:
    async def program(sim: Sim) -> list[bool]:
        caught: list[bool] = []
        for past in (-math.inf, 0.0):
            with trio.CancelScope() as scope:
                scope.deadline = trio.current_time() + past
                await trio.lowlevel.checkpoint()
            caught.append(scope.cancelled_caught)
        return caught

    assert simulate(program).value == [True, True]


def test_trio_is_itself_again_afterwards() -> None:
    chance, flag = loop._run._r, loop._run._ALLOW_DETERMINISTIC_SCHEDULING
    start, start_soon = loop._ThreadCache.start_thread_soon, trio.Nursery.start_soon
    collects, frozen = gc.isenabled(), gc.get_freeze_count()
    hooks, own = sys.get_asyncgen_hooks(), "acquire_nowait" in vars(trio.Lock)
    simulate(sleeper)
    assert loop._run._r is chance
    assert loop._run._ALLOW_DETERMINISTIC_SCHEDULING is flag
    assert loop._ThreadCache.start_thread_soon is start
    assert trio.Nursery.start_soon is start_soon
    assert ("acquire_nowait" in vars(trio.Lock)) is own
    assert gc.isenabled() is collects
    assert gc.get_freeze_count() == frozen
    assert sys.get_asyncgen_hooks() == hooks


def test_a_simulation_inside_of_one_is_refused() -> None:
    async def nested(sim: Sim) -> None:
        simulate(sleeper)

    assert isinstance(simulate(nested).error, SimulationError)


def test_a_run_of_another_thread_is_left_alone() -> None:
    """It has its own order, and its own chance."""

    def other(result: list[float]) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(trio.sleep, 0.001)
            result.append(trio.current_time())

        trio.run(main)

    async def program(sim: Sim) -> list[float]:
        result: list[float] = []
        thread = threading.Thread(target=other, args=(result,))
        thread.start()
        await trio.sleep(10)
        thread.join()
        await trio.sleep(10)
        return result

    run = simulate(program)
    assert run.error is None
    assert len(run.value) == 1
    assert run.seconds == 20


def test_virtual_time_stands_still_while_a_thread_works() -> None:
    async def program(sim: Sim) -> object:
        done = threading.Event()
        with trio.move_on_after(5):
            await trio.to_thread.run_sync(lambda: done.wait(0.1))
            return trio.current_time()

    assert simulate(program).value == 0


def test_time_goes_on_for_a_thread_that_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "STILL", 0.1)
    gate = threading.Event()

    async def program(sim: Sim) -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, gate.wait)
            for _ in range(3):
                await trio.sleep(0.1)
            gate.set()
        return trio.current_time()

    assert simulate(program).value == pytest.approx(0.3)


def test_time_goes_on_for_a_process_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "STILL", 0.1)

    async def program(sim: Sim) -> bool:
        with trio.move_on_after(0.1) as scope:
            code = "import signal; signal.pause()"
            await trio.run_process([sys.executable, "-S", "-c", code])
        return scope.cancelled_caught

    assert simulate(program).value is True


def test_a_thread_of_the_program_is_no_deadlock() -> None:
    async def program(sim: Sim) -> str:
        token, done = trio.lowlevel.current_trio_token(), trio.Event()

        def work() -> None:
            time.sleep(0.1)
            trio.from_thread.run_sync(done.set, trio_token=token)

        threading.Thread(target=work).start()
        await done.wait()
        return "done"

    assert simulate(program).value == "done"


def test_short_jobs_of_threads_are_no_deadlock() -> None:
    """What they deliver may come just after trio has looked."""

    async def program(sim: Sim) -> float:
        for _ in range(300):
            await trio.to_thread.run_sync(int)
        return trio.current_time()

    for _ in range(3):
        assert simulate(program).value == 0


def test_a_process_comes_before_a_deadline() -> None:
    async def program(sim: Sim) -> bool:
        with trio.move_on_after(50) as scope:
            code = "import time; time.sleep(0.1); print(input())"
            await trio.run_process(
                [sys.executable, "-S", "-c", code], stdin=b"x\n", capture_stdout=True
            )
        return scope.cancelled_caught

    assert simulate(program).value is False


def test_wait_all_tasks_blocked_comes_before_time() -> None:
    async def program(sim: Sim) -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 7)
            await trio.testing.wait_all_tasks_blocked()
            return trio.current_time()

    assert simulate(program).value == 0


def test_a_deadlock_is_told_with_every_task() -> None:
    async def take(first: trio.Lock, second: trio.Lock) -> None:
        async with first:
            await trio.sleep(1)
            async with second:
                pass

    async def program(sim: Sim) -> None:
        one, two = trio.Lock(), trio.Lock()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, one, two)
            nursery.start_soon(take, two, one)

    error = simulate(program).error
    assert isinstance(error, Deadlock)
    assert error.what == "a deadlock at 1 virtual seconds"
    lines = error.tree.splitlines()
    assert [line.split(":")[0] for line in lines] == ["main", "  take", "  take#2"]
    assert all(" take" in line for line in lines[1:])


def test_a_run_that_shields_itself_ends() -> None:
    """A heartbeat beside it would keep it alive for ever."""

    async def beat() -> None:
        while True:
            await trio.sleep(1)

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(beat)
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()

    error = simulate(program, limit=100).error
    assert isinstance(error, Hang)
    assert "the limit is 100" in error.what
    assert "beat" in error.tree


def test_a_run_that_spins_ends() -> None:
    async def program(sim: Sim) -> None:
        while True:
            await trio.lowlevel.checkpoint()

    error = simulate(program).error
    assert isinstance(error, Hang)
    assert "100000 steps" in error.what


def test_a_run_that_cannot_be_ended_is_broken_off(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It keeps every Cancelled to itself. Nothing is printed of what is left."""

    async def program(sim: Sim) -> None:
        while True:
            try:
                await trio.sleep(1)
            except trio.Cancelled:
                pass

    assert isinstance(simulate(program, limit=10).error, Hang)
    assert simulate(sleeper).value == 1000
    gc.collect()
    assert capfd.readouterr() == ("", "")


def test_a_ctrl_c_is_raised() -> None:
    """Nobody has put it in, so it is the user's."""

    async def program(sim: Sim) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(program)
    assert simulate(sleeper).error is None


def test_the_core_loads_nothing_but_trio_and_attrs() -> None:
    """A user with a plain trio program pays for trio."""
    code = "import supervisor.simulation, sys; print(*sys.modules)"
    listed = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()
    ours = {
        name for name in listed if name.partition(".")[0] in ("actors", "supervisor")
    }
    assert {name for name in ours if not name.startswith("supervisor.simulation")} == {
        "supervisor"
    }
    assert not {"orjson", "cattrs", "json", "trio.testing"} & set(listed)


def test_a_step_of_a_policy_that_is_wrong_is_raised() -> None:
    class Wrong:
        def start(self, seed: int) -> Any:
            return lambda runnable, step: 99

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            nursery.start_soon(trio.sleep, 1)

    with pytest.raises(IndexError, match="a policy chose 99 of 2 tasks"):
        simulate(program, policy=Wrong())


COUNTS = """
import sys
calls = 0
def see(frame, event, argument):
    global calls
    calls += event in ("call", "c_call")
sys.setprofile(see)
import {module}
sys.setprofile(None)
print(calls)
"""


def test_the_core_takes_little_more_to_load_than_trio(tmp_path: Path) -> None:
    """Counted in calls, which are the same each time, on whatever machine.

    Both are compiled before: a user's installer, or the first import, has done so.
    """
    compiled = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    compiled.pop("PYTHONDONTWRITEBYTECODE", None)

    def calls(module: str) -> int:
        printed = subprocess.run(
            [sys.executable, "-c", COUNTS.format(module=module)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env=compiled,
        ).stdout
        return int(printed)

    calls("supervisor.simulation")
    assert calls("supervisor.simulation") <= 1.3 * calls("trio")


@pytest.mark.parametrize("place", ["step", "time", "spawn"])
def test_a_mistake_of_ours_comes_out(
    place: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """trio would swallow it, and go on without the one who decides."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError(place)

    async def program(sim: Sim) -> None:
        if place == "time":
            sim.at(1, lambda: fail())
        if place == "step":
            sim._driver.on_step.append(fail)
        if place == "spawn":
            sim._driver.on_spawn.append(fail)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 5)
            nursery.start_soon(trio.sleep, 5)

    with pytest.raises(ZeroDivisionError, match=place):
        simulate(program)
    assert simulate(sleeper).value == 1000
    assert capfd.readouterr() == ("", "")


def test_what_was_made_for_a_run_goes_with_it() -> None:
    """In a session the collector comes seldom: what waits for it costs twice."""
    made: list[weakref.ref[Any]] = []

    async def program(sim: Sim) -> None:
        made.extend(map(weakref.ref, (sim, sim._driver, sim._targets)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.target(trio.sleep), 1)
            nursery.start_soon(trio.sleep, 2)

    simulate(program)
    with session():
        made.clear()
        run = simulate(program)
        assert run.seconds == 2
        assert [it() for it in made] == [None] * 3
