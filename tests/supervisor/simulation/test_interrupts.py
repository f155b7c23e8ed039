"""A KeyboardInterrupt comes out of a checkpoint as a real Ctrl+C of trio does."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.lowlevel import Task, enable_ki_protection

from supervisor.simulation import (
    Campaign,
    NothingToStrike,
    Sim,
    TapeDoesNotFit,
    cancel_everywhere,
    explore,
    raise_everywhere,
    simulate,
)

INTERRUPT = "builtins:KeyboardInterrupt"


async def polite(state: dict[str, bool]) -> None:
    """It never waits, and forgets that a checkpoint may fail."""
    state["open"] = True
    try:
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
    except Exception:
        state["open"] = False
        raise
    state["open"] = False


async def careless(sim: Sim) -> None:
    state: dict[str, bool] = {}
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(polite, state)
    finally:
        assert not state["open"]


def test_what_forgets_a_ctrl_c_at_a_checkpoint_is_found() -> None:
    report = raise_everywhere(careless, KeyboardInterrupt, schedules=1, check=False)
    assert report.points == 2
    assert [(row.arrival, row.count) for row in report.rows] == [
        ("checkpoint", 1),
        ("checkpoint", 1),
    ]
    for row in report.rows:
        assert not row.tape.deviations
        assert isinstance(simulate(careless, tape=str(row.tape)).error, AssertionError)
    found = explore(careless, seeds=40, faults="raise KeyboardInterrupt", check=False)
    assert isinstance(found, Campaign)
    assert found.failures


def test_no_other_error_comes_out_of_a_checkpoint() -> None:
    with pytest.raises(NothingToStrike, match=r"or a KeyboardInterrupt can strike it$"):
        raise_everywhere(careless, OSError)
    for call in (
        lambda: cancel_everywhere(careless, arrivals=["checkpoint"]),
        lambda: raise_everywhere(careless, OSError, arrivals=["checkpoint"]),
    ):
        with pytest.raises(ValueError, match=r"; not 'checkpoint'$"):
            call()
    for tape, text in {
        "raise polite checkpoint 1 builtins:OSError": "only a KeyboardInterrupt comes",
        "cancel polite checkpoint 1": "only a KeyboardInterrupt comes out of a checkpoint",
        f"raise polite checkpoint 3 {INTERRUPT}": "no point at which to raise polite",
    }.items():
        with pytest.raises(TapeDoesNotFit, match=text):
            simulate(careless, tape=tape)


# ---- As trio does it ---------------------------------------------------------------------


async def works(done: list[str]) -> None:
    """Operations that make a checkpoint before they do anything, and others behind what
    they have done. What is done is written down by what it has done."""
    event, lock = trio.Event(), trio.Lock()
    send, receive = trio.open_memory_channel[int](1)
    event.set()
    try:
        await trio.lowlevel.checkpoint()
        done.append("checkpoint")
        await lock.acquire()
        done.append("lock")
        await send.send(1)
        done.append("send")
        await event.wait()
        done.append("event")
        assert await receive.receive() == 1
        done.append("receive")
        async with trio.open_nursery():
            pass
        await trio.lowlevel.checkpoint()
        done.append("again")
        await trio.lowlevel.cancel_shielded_checkpoint()
    finally:
        assert lock.locked() == ("lock" in done)
        if lock.locked():
            lock.release()
        # One that has come and is not known of would be lost.
        sent, got = "send" in done, "receive" in done
        assert receive.statistics().current_buffer_used == sent - got


def pressed_at(step: int) -> tuple[str, ...]:
    """What trio has done when a real Ctrl+C comes out that was pressed after a step."""
    done: list[str] = []
    steps = 0

    class Press(trio.abc.Instrument):
        def after_task_step(self, task: Task) -> None:
            nonlocal steps
            if task is not mine:
                return
            if steps == step:
                signal.raise_signal(signal.SIGINT)
            steps += 1

    async def main() -> None:
        nonlocal mine
        mine = trio.lowlevel.current_task()
        await works(done)

    mine: Task | None = None
    with pytest.raises(KeyboardInterrupt):
        trio.run(main, instruments=[Press()])
    return tuple(done)


def put_in(main: bool) -> list[tuple[str, ...]]:
    """What is done when one comes out that was put in at a checkpoint, at each of them."""
    ends: list[tuple[str, ...]] = []

    async def program(sim: Sim) -> None:
        done: list[str] = []
        work = sim.target(works)
        try:
            if main:
                await work(done)
            else:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(work, done)
        except* KeyboardInterrupt:
            ends.append(tuple(done))
            raise

    options: dict[str, Any] = {"schedules": 1, "arrivals": ["checkpoint"]}
    report = raise_everywhere(program, KeyboardInterrupt, **options)
    assert not report.rows
    # The first one is done twice.
    return ends[:1] + ends[2:] if ends[:1] == ends[1:2] else ends


@pytest.mark.parametrize("main", [True, False])
def test_it_comes_where_a_real_one_may_and_what_is_done_stays_done(main: bool) -> None:
    real = {pressed_at(step) for step in range(7)}
    put = put_in(main)
    assert put == [(), ("checkpoint", "lock", "send"), put[-1]]
    assert put[-1][-1] == "receive"
    assert {*put} <= real


# ---- Who is protected --------------------------------------------------------------------


@enable_ki_protection
async def protected(_: object) -> None:
    await trio.lowlevel.checkpoint()


async def inner(_: object) -> None:
    await trio.lowlevel.checkpoint()


@enable_ki_protection
async def outer(_: object) -> None:
    await inner(_)


async def shielded(_: object) -> None:
    await trio.lowlevel.cancel_shielded_checkpoint()


def points_of(work: Callable[[object], Awaitable[None]], *, main: bool) -> int:
    async def program(sim: Sim) -> None:
        target: Any = sim.target(work)
        if main:
            await target(None)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(target, None)

    try:
        return raise_everywhere(program, KeyboardInterrupt, schedules=1).points
    except NothingToStrike as error:
        told = str(error)
    assert "so only a cancel (cancel_everywhere) can strike it" in told
    return 0


@pytest.mark.parametrize(
    ("work", "in_main", "elsewhere"),
    [(inner, 1, 1), (protected, 1, 0), (outer, 1, 0), (shielded, 0, 0)],
)
def test_who_is_protected_from_it_is_struck_in_the_main_task_only(
    work: Any, in_main: int, elsewhere: int
) -> None:
    assert points_of(work, main=True) == in_main
    assert points_of(work, main=False) == elsewhere
