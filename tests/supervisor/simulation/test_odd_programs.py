"""Programs and callbacks that do odd things: a run tells the truth about them, ends,
and hides nothing that was meant for who has called."""

from __future__ import annotations

import contextlib
import gc
import math
import re
import signal
import sys
import warnings
from collections.abc import AsyncGenerator, Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trio

from supervisor.simulation import (
    Deadlock,
    Hang,
    Sim,
    SimulationFailed,
    cancel_everywhere,
    explore,
    raise_everywhere,
    simulate,
)

NO_SECONDS = [-1, -math.inf, math.nan]


async def sleeper() -> None:
    await trio.sleep(1)


async def three(sim: Sim) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(sleeper)


# ---- What is for the caller -------------------------------------------------------------


async def interrupts() -> None:
    await trio.sleep(1)
    signal.raise_signal(signal.SIGINT)
    await trio.sleep(1)


async def interrupted(sim: Sim) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(interrupts)


@pytest.mark.parametrize("call", [simulate, cancel_everywhere, explore])
def test_a_ctrl_c_is_raised_though_nurseries_put_it_into_groups(call: Any) -> None:
    options = {"seeds": 3} if call is explore else {}
    with pytest.raises(KeyboardInterrupt):
        call(interrupted, **options)


def test_an_interrupt_of_the_program_itself_is_raised_out_of_groups() -> None:
    """Nobody knows whether somebody has pressed it."""

    async def raises() -> None:
        raise KeyboardInterrupt

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(raises)

    with pytest.raises(KeyboardInterrupt):
        simulate(program)


def test_a_ctrl_c_ends_a_sweep_of_keyboard_interrupts() -> None:
    """Though one that was put in has come out of the run before, and though the program
    keeps the real one to itself."""
    presses = 0

    async def press() -> None:
        nonlocal presses
        with contextlib.suppress(KeyboardInterrupt):
            try:
                await trio.sleep(1)
            finally:
                if sys.exc_info()[0] is KeyboardInterrupt:
                    presses += 1
                    signal.raise_signal(signal.SIGINT)

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(press)
            nursery.start_soon(sleeper)

    with pytest.raises(KeyboardInterrupt):
        raise_everywhere(program, KeyboardInterrupt)
    assert presses == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    "error", [SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError]
)
@pytest.mark.parametrize("first", [1, 3])
def test_what_a_policy_raises_is_raised_and_no_deadlock(
    error: type[BaseException], first: int
) -> None:
    class Broken:
        asked = 0

        def start(self, seed: int) -> Any:
            return self.pick

        def pick(self, runnable: Any, step: int) -> int:
            self.asked += 1
            if self.asked >= first:
                raise error
            return 0

    with pytest.raises(error):
        simulate(three, policy=Broken())


@pytest.mark.parametrize(
    "error", [SystemExit, KeyboardInterrupt, pytest.fail.Exception]
)
def test_what_a_timer_or_a_maker_of_errors_raises_is_raised(
    error: type[BaseException],
) -> None:
    def ends() -> None:
        raise error

    async def program(sim: Sim) -> None:
        sim.at(0.5, ends)
        await trio.sleep(1)

    with pytest.raises(error):
        simulate(program)

    made: list[OSError] = []

    def make() -> OSError:
        if made:
            raise error
        made.append(OSError())
        return made[0]

    with pytest.raises(error):
        raise_everywhere(three, make)


# ---- What cannot be told, or meant -------------------------------------------------------


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_error_without_a_text_is_told_by_its_name() -> None:
    async def program(sim: Sim) -> None:
        raise Mute

    (failure,) = explore(program, seeds=2, check=False).failures
    assert failure.error.startswith("Mute: its text raises RuntimeError\n")


@pytest.mark.parametrize("seconds", NO_SECONDS)
def test_time_never_goes_back(seconds: float) -> None:
    async def program(sim: Sim) -> None:
        await trio.sleep(10)
        for call in (lambda: sim.at(seconds, list), lambda: sim.suspend(seconds)):
            with pytest.raises(ValueError, match="seconds"):
                call()
        with pytest.raises(ValueError, match="seconds"), sim.within(seconds):
            raise AssertionError("it was entered")
        await trio.sleep(1)

    run = simulate(program)
    assert run.error is None
    assert run.seconds == 11


@pytest.mark.parametrize("limit", NO_SECONDS)
def test_a_limit_that_is_no_time_is_refused(limit: float) -> None:
    with pytest.raises(ValueError, match="limit"):
        simulate(three, limit=limit)


def test_a_negative_seed_and_a_policy_that_says_true_are_replayed_from_text() -> None:
    class Second:
        def start(self, seed: int) -> Any:
            return lambda runnable, step: len(runnable) > 1

    for run in (simulate(three, seed=-1), simulate(three, policy=Second())):
        assert run.schedule
        assert simulate(three, tape=str(run.tape)).digest == run.digest


# ---- What is the program's own mistake ---------------------------------------------------


def synchronous() -> None:
    pass


async def generator() -> AsyncGenerator[None]:
    yield


async def told(start: Callable[[trio.Nursery], object]) -> str:
    async with trio.open_nursery() as nursery:
        try:
            start(nursery)
        except TypeError as error:
            return re.sub(" at 0x.*", "", str(error))
    return "nothing"


@pytest.mark.parametrize(
    "start",
    [
        lambda nursery: nursery.start_soon(synchronous),
        lambda nursery: nursery.start_soon(generator),
        lambda nursery: nursery.start_soon(sleeper()),
        lambda nursery: nursery.start_soon(sleeper, 1),
        lambda nursery: nursery.start_soon(lambda: 3),
    ],
)
def test_what_cannot_be_started_is_told_as_trio_tells_it(start: Any) -> None:
    told_by_trio = trio.run(told, start)

    async def program(sim: Sim) -> str:
        return await told(start)

    assert told_by_trio != "nothing"
    run = simulate(program)
    assert (run.error, run.value) == (None, told_by_trio)


def test_a_task_that_never_ran_in_a_run_that_was_broken_off_is_told_by_nobody() -> None:
    class First:
        def start(self, seed: int) -> Any:
            return lambda runnable, _: runnable.index(min(runnable))

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sleeper)
            while True:
                await trio.lowlevel.cancel_shielded_checkpoint()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert isinstance(simulate(program, policy=First()).error, Hang)
    assert seen == []


def test_a_task_with_an_address_in_its_name_is_the_same_in_each_run() -> None:
    kept: list[object] = []  # Or both runs have them at one address.

    async def program(sim: Sim) -> None:
        kept.extend([object(), AsyncMock()])
        async with trio.open_nursery() as nursery:
            for name in kept[-2:]:
                nursery.start_soon(sleeper, name=name)

    one, other = simulate(program), simulate(program)
    assert one.digest == other.digest
    assert [*one.called.values()][1:] == ["<object object>", "<AsyncMock>"]


async def wakes_who_has_gone(sim: Sim) -> None:
    parked: list[trio.lowlevel.Task] = []

    async def waits() -> None:
        parked.append(trio.lowlevel.current_task())
        await trio.lowlevel.wait_task_rescheduled(
            lambda _: trio.lowlevel.Abort.SUCCEEDED
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(waits)
        await trio.sleep(1)
        trio.lowlevel.reschedule(parked.pop())


def test_who_wakes_a_task_that_has_ended_is_found() -> None:
    """trio fails by it, and no method of ours."""
    report = cancel_everywhere(wakes_who_has_gone, check=False)
    errors = {row.error.split(":")[0] for row in report.rows}
    assert errors == {"TrioInternalError", "AssertionError"}

    async def wakes_itself(sim: Sim) -> None:
        trio.lowlevel.reschedule(trio.lowlevel.current_task())

    error = simulate(wakes_itself).error
    assert isinstance(error, trio.TrioInternalError)
    assert isinstance(error.__cause__, KeyError)


# ---- What does not end by itself ---------------------------------------------------------


def test_a_thread_that_waits_for_a_task_lets_time_go_on() -> None:
    async def program(sim: Sim) -> float:
        def work() -> float:
            trio.from_thread.run(trio.sleep, 50)
            return trio.from_thread.run_sync(trio.current_time)

        return await trio.to_thread.run_sync(work)

    assert simulate(program).value == 50


async def goes_on() -> None:
    while True:
        try:
            await trio.sleep(1)
        except BaseException:  # noqa: ASYNC103
            pass


def test_a_task_that_goes_on_after_any_error_hangs_in_the_simulation_only() -> None:
    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(goes_on)

    run = simulate(program)
    assert isinstance(run.error, Hang)
    assert "goes_on" in run.error.tree


def test_a_task_that_was_broken_off_is_unwound_through_each_of_its_awaits() -> None:
    ended: list[str] = []

    async def stubborn() -> None:
        try:
            while True:
                try:
                    await trio.sleep(1)
                except trio.Cancelled:  # noqa: ASYNC103
                    pass
        finally:
            try:
                await trio.sleep(1)  # noqa: ASYNC102
            finally:
                ended.append("unwound")

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stubborn)

    assert isinstance(simulate(program).error, Hang)
    assert ended == ["unwound"]


# ---- What was put in ----------------------------------------------------------------------


async def translates() -> None:
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sleeper)
    except* OSError as group:
        raise RuntimeError("it is lost") from group


def test_an_error_raised_from_a_group_of_those_put_in_is_not_wrong() -> None:
    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(translates)

    raise_everywhere(program, OSError)


def test_both_faults_of_a_pair_strike_though_time_has_gone_on_before_them() -> None:
    async def waits(seconds: float) -> None:
        try:
            await trio.sleep(seconds)
        except OSError:
            await trio.sleep(seconds)

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            for seconds in (1, 2, 3):
                nursery.start_soon(waits, seconds)

    report = raise_everywhere(program, OSError, pairs=200)
    assert len(report.pairs) >= 50
    assert not report.never_fired


async def keeps_it() -> None:
    for _ in range(2):
        try:
            await trio.sleep(1)
        except trio.Cancelled:  # noqa: ASYNC103
            return  # noqa: ASYNC104


@pytest.mark.parametrize("arrival", ["blocked", "woken", "elsewhere", "late"])
def test_who_keeps_a_cancelled_is_found_however_it_arrives(arrival: Any) -> None:
    """A sleep ends by a Cancelled of its own, which goes up to the target's scope."""

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeps_it)
            nursery.start_soon(sleeper)

    report = cancel_everywhere(program, arrivals=(arrival,), check=False)
    assert {row.error.partition(":")[0] for row in report.rows} == {"swallowed"}


async def reads_its_name(seen: list[str]) -> None:
    coroutine: Any = trio.lowlevel.current_task().coro
    seen += [coroutine.__name__, coroutine.__qualname__]


async def reads_names(sim: Sim | None = None) -> list[str]:
    seen: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reads_its_name, seen)
    return seen


def test_the_coroutine_of_a_target_has_the_name_that_it_has_without_the_simulator() -> (
    None
):
    assert simulate(reads_names).value == trio.run(reads_names)


# ---- What trio itself fails at ----------------------------------------------------------


def refuses(_: object) -> trio.lowlevel.Abort:
    raise ValueError("it cannot be given up")


async def waits_for_ever() -> None:
    await trio.lowlevel.wait_task_rescheduled(refuses)


async def cannot_be_cancelled(sim: Sim) -> None:
    with trio.move_on_after(1):
        await waits_for_ever()


def fails() -> None:
    raise ValueError("it fails")


async def has_a_callback_that_fails(sim: Sim) -> None:
    trio.lowlevel.current_trio_token().run_sync_soon(fails)
    await trio.sleep(1)


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        (cannot_be_cancelled, ValueError),
        (has_a_callback_that_fails, ExceptionGroup),
    ],
)
def test_what_trio_fails_at_is_the_end_of_the_run_as_without_the_simulator(
    program: Any, cause: type[Exception]
) -> None:
    """And nobody hears afterwards of the tasks that trio has left as they were."""
    error = simulate(program).error
    assert isinstance(error, trio.TrioInternalError)
    assert type(error.__cause__) is cause
    gc.collect()


async def is_struck(sim: Sim) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waits_for_ever)
        await trio.sleep(1)
        nursery.cancel_scope.shield = True
        for task in nursery.child_tasks:
            trio.lowlevel.reschedule(task)


@pytest.mark.parametrize(
    "sweep",
    [cancel_everywhere, lambda program, **_: raise_everywhere(program, OSError)],
)
def test_an_abort_function_that_raises_is_told_with_its_line(sweep: Any) -> None:
    with pytest.raises(SimulationFailed) as caught:
        sweep(is_struck)
    report = caught.value.report
    assert "TrioInternalError: from ValueError: it cannot be given up" in str(report)
    assert re.search(r"at test_odd_programs.py:\d+ refuses", str(report))


async def never_ends(sim: Sim) -> None:
    await waits_for_ever()


def test_a_deadlock_that_cannot_even_be_cancelled_is_a_deadlock() -> None:
    error = simulate(never_ends).error
    assert isinstance(error, Deadlock)
    assert "test_odd_programs.py" in str(error)
