"""Sweeps that go further than one fault in one process: second cancels, pairs, children
of the test's process; and the moments that are easily missed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio

from supervisor.simulation import (
    Fault,
    Sim,
    SweepReport,
    Tape,
    cancel_everywhere,
    raise_everywhere,
    simulate,
)
from supervisor.simulation._search import jobs

Program = Callable[[Sim], Awaitable[Any]]


def kinds(report: SweepReport) -> set[str]:
    return {row.error.partition(":")[0] for row in report.rows}


# ---- A second cancel ------------------------------------------------------------------


def gives_back(*, first: bool) -> Program:
    """A place is given back in a clean-up that may take five seconds: ``first``, or
    after something else."""

    async def use(places: trio.CapacityLimiter) -> None:
        await places.acquire()
        try:
            await trio.sleep(1)
        finally:
            deadline = trio.current_time() + 5
            with trio.CancelScope(shield=True, deadline=deadline):
                if first:
                    places.release()
                await trio.sleep(1)
                if not first:
                    places.release()

    async def program(sim: Sim) -> None:
        places = trio.CapacityLimiter(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(use, places)

    return program


def test_a_shield_that_ends_too_early_is_tried() -> None:
    program = gives_back(first=False)
    assert not cancel_everywhere(program).rows
    report = cancel_everywhere(program, twice=True, check=False)
    assert kinds(report) == {"held"}
    assert report.again > 0
    assert f"{report.again} second cancels of a target" in str(report)
    assert report.never_fired == []
    for row in report.rows:
        assert [it.kind for it in row.tape.faults] == ["cancel", "again"]
        assert "end the shield of use after step" in row.tape.words()
        assert simulate(program, tape=str(row.tape)).findings


def test_a_clean_up_that_begins_with_what_matters_is_clean() -> None:
    report = cancel_everywhere(gives_back(first=True), twice=True)
    assert report.again > 0
    assert report.runs == report.points + 6 + report.again


def test_a_shield_without_a_deadline_is_left_alone() -> None:
    """Nobody can end it, so a second cancel would be one that nobody could make."""

    async def use() -> None:
        try:
            await trio.sleep(1)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(use)

    assert cancel_everywhere(program, twice=True).again == 0


# ---- Pairs ----------------------------------------------------------------------------


async def two_of_three(sim: Sim) -> None:
    """It works for as long as two of three are there."""
    here = [0]
    done = trio.Event()

    async def member() -> None:
        here[0] += 1
        try:
            await trio.sleep(1)
            if here[0] >= 2:
                done.set()
        except trio.Cancelled:
            here[0] -= 1
            raise
        await done.wait()

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(member)


def test_what_takes_two_cancels_is_found_by_pairs() -> None:
    assert not cancel_everywhere(two_of_three).rows
    report = cancel_everywhere(two_of_three, pairs=60, check=False)
    assert kinds(report) == {"Deadlock"}
    assert {len(row.tape.faults) for row in report.rows} == {2}
    assert report.never_fired == []


def test_which_pairs_were_tried_is_told() -> None:
    """They are the same each time, never two cancels of one target, and the second
    comes after the first."""
    reports = [cancel_everywhere(two_of_three, pairs=30, check=False) for _ in range(2)]
    assert reports[0] == reports[1]
    pairs = reports[0].pairs
    assert 20 <= len(pairs) <= 30
    assert len(set(pairs)) > 15
    assert all(one.target != other.target for one, other in pairs)
    assert f"{len(pairs)} pairs, as {pairs[0][0]}, {pairs[0][1]}" in str(reports[0])


def test_what_could_not_be_added_is_told() -> None:
    async def alone(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.target(trio.sleep), 1)

    report = cancel_everywhere(alone, pairs=20, twice=True)
    assert (report.pairs, report.again) == ([], 0)
    assert "no second cancel: no target has a shield" in str(report)
    assert "0 of 20 pairs: " in str(report)


def test_an_error_in_the_clean_up_after_an_error_is_tried() -> None:
    """One target may have both."""

    async def work(log: list[str]) -> None:
        try:
            await trio.sleep(1)
        except OSError:
            await trio.sleep(1)
            log.append("ended")
            raise
        log.append("ended")

    async def program(sim: Sim) -> None:
        log: list[str] = []
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, log)
        finally:
            assert log == ["ended"], log

    assert not raise_everywhere(program, OSError).rows
    report = raise_everywhere(program, OSError, pairs=20, check=False)
    assert kinds(report) == {"AssertionError"}
    for row in report.rows:
        assert [it.target for it in row.tape.faults] == ["work", "work"]


# ---- In several processes -----------------------------------------------------------------


@pytest.fixture
def forks() -> None:
    if not jobs.can_fork():
        pytest.skip("this system cannot fork")


def test_several_processes_find_the_same(forks: None) -> None:
    options: dict[str, Any] = {"pairs": 20, "twice": True, "check": False}
    for program in (two_of_three, gives_back(first=False)):
        one = cancel_everywhere(program, **options)
        three = cancel_everywhere(program, jobs=3, **options)
        assert three == one
        assert three.rows


def test_a_run_that_cannot_be_ended_costs_one_process(
    forks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told as a hang, and all other points are struck."""
    # Those that work are silent, too, on a machine with much else to do.
    monkeypatch.setattr(jobs, "PATIENCE", 3.0)

    async def work() -> None:
        try:
            await trio.sleep(1)
            await trio.sleep(1)
        except trio.Cancelled:
            if trio.current_time() == 1:
                while True:  # It never awaits.
                    pass
            raise

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)

    options: dict[str, Any] = {"schedules": 1, "arrivals": ["blocked"]}
    report = cancel_everywhere(program, jobs=2, check=False, **options)
    (row,) = report.rows
    assert row.error.startswith("Hang: it cannot be ended: no end in 3 seconds")
    assert str(row.tape) == "cancel work blocked 2"
    assert report.points == report.runs - 2


def test_wrong_numbers_are_refused() -> None:
    wrong: list[dict[str, Any]] = [{"jobs": 0}, {"pairs": -1}]
    for options in wrong:
        with pytest.raises(ValueError, match=next(iter(options))):
            cancel_everywhere(two_of_three, **options)


# ---- Moments that are easily missed ---------------------------------------------------------


def starting(*, mended: bool) -> Program:
    """A child takes a lock before it says that it has started."""

    async def child(lock: trio.Lock, *, task_status: trio.TaskStatus[None]) -> None:
        await lock.acquire()
        if not mended:
            await trio.sleep(1)  # A cancel of the parent comes here.
        try:
            await trio.sleep(1)
            task_status.started()
            await trio.sleep(1)
        finally:
            lock.release()

    async def parent(lock: trio.Lock) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(child, lock)

    async def program(sim: Sim) -> None:
        lock = trio.Lock()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.target(parent), lock)

    return program


def test_a_cancel_of_a_parent_comes_while_its_child_is_starting() -> None:
    report = cancel_everywhere(starting(mended=False), check=False)
    assert kinds(report) == {"held"}
    assert {row.tape.faults[0].target for row in report.rows} == {"parent"}
    assert "held by child" in report.rows[0].error
    assert not cancel_everywhere(starting(mended=True)).rows


def test_a_cancel_comes_at_a_tie_of_a_deadline() -> None:
    """Between the moment and the first step in it: what the timer does has happened for
    nobody, and the cancelled runs after it."""

    async def handed(*, mended: bool) -> int:
        free, waiting = 1, list[trio.Event]()

        async def take() -> None:
            nonlocal free
            if free:
                free -= 1
                return
            waiting.append(trio.Event())
            mine = waiting[-1]
            try:
                await mine.wait()
            except trio.Cancelled:
                if mine in waiting:
                    waiting.remove(mine)
                elif mended:
                    give()
                raise

        def give() -> None:
            nonlocal free
            if waiting:
                waiting.pop(0).set()
            else:
                free += 1

        async def use() -> None:
            await take()
            try:
                await trio.sleep(60)
            finally:
                give()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(use)
            nursery.start_soon(use)
        return free

    async def program(sim: Sim, *, mended: bool) -> None:
        assert await handed(mended=mended) == 1, "a place is lost"

    options: dict[str, Any] = {"arrivals": ["late"], "schedules": 1, "check": False}
    report = cancel_everywhere(lambda sim: program(sim, mended=False), **options)
    assert {row.after for row in report.rows} == {"the clock"}
    assert not cancel_everywhere(lambda sim: program(sim, mended=True), **options).rows


@pytest.mark.parametrize(
    "error", [trio.TooSlowError, trio.BrokenResourceError, KeyboardInterrupt, OSError]
)
def test_what_forgets_an_error_is_found(error: type[BaseException]) -> None:
    async def leak(lock: trio.Lock, *, mended: bool) -> None:
        await lock.acquire()
        try:
            await trio.sleep(1)
        except BaseException as raised:
            if not mended and isinstance(raised, error):
                raise
            lock.release()
            raise
        lock.release()

    async def program(sim: Sim, *, mended: bool) -> None:
        lock = trio.Lock()
        async with trio.open_nursery() as nursery:

            async def work() -> None:
                await leak(lock, mended=mended)

            nursery.start_soon(work)

    found = raise_everywhere(
        lambda sim: program(sim, mended=False), error, schedules=1, check=False
    )
    assert kinds(found) == {"held"}
    assert found.kind == f"raise {error.__name__}"
    assert not raise_everywhere(lambda sim: program(sim, mended=True), error).rows


def test_a_fault_that_never_fires_is_told() -> None:
    """By a sweep whose program is another one in each run, as nothing has noticed."""
    runs = [0]

    async def work() -> None:
        await trio.sleep(1)

    async def program(sim: Sim) -> None:
        runs[0] += 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            if runs[0] <= 2:
                nursery.start_soon(work)

    report = cancel_everywhere(program, schedules=1, check=False)
    assert not report.rows
    missed = {fault.target for fault in report.never_fired}
    assert "work#2" in missed
    assert "never fired, as cancel work" in str(report)


def test_a_tape_keeps_a_second_cancel() -> None:
    fault = Fault("again", "use", "blocked", 2)
    tape = Tape((), (Fault("cancel", "use", "late", 1), fault))
    assert Tape.parse(str(tape)) == tape
    assert Tape.from_json(tape.to_json()) == tape
    assert attrs.evolve(fault, step=7).words() == (
        "end the shield of use after step 7 (blocked)"
    )
