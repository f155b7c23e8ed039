"""What is wrong without any assert: each invariant with a planted bug, with a neighbour
that is right, and switched off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from supervisor.simulation import (
    ProgramFailed,
    Sim,
    SweepReport,
    cancel_everywhere,
    simulate,
)
from supervisor.simulation._steering.watch import KINDS

Bug = Callable[..., Awaitable[None]]


async def beat() -> None:
    await trio.sleep(30)


@attrs.define(eq=False)
class Owner:
    """Has a nursery as an attribute."""

    nursery: trio.Nursery


async def leaves(
    sim: Sim, *, mended: bool, wrap: Callable[[Any], Any], keyword: bool = False
) -> None:
    async def keep(scope: trio.CancelScope) -> None:
        with scope:
            await beat()

    async def connect(owner: Any) -> None:
        nursery: trio.Nursery = getattr(owner, "nursery", owner)
        scope = trio.CancelScope()
        nursery.start_soon(keep, scope)
        try:
            await trio.sleep(1)
        except trio.Cancelled:
            if mended:
                scope.cancel()
            raise

    async with trio.open_nursery() as nursery:
        if keyword:
            nursery.start_soon(sim.target(partial(connect, owner=wrap(nursery))))
        else:
            nursery.start_soon(sim.target(connect), wrap(nursery))


async def holds_a_lock(sim: Sim, *, mended: bool) -> None:
    async def hold(lock: trio.Lock) -> None:
        await lock.acquire()
        if not mended:
            await trio.sleep(1)
        try:
            await trio.sleep(1)
        finally:
            lock.release()

    lock = trio.Lock()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sim.target(hold), lock)


async def holds_a_token(sim: Sim, *, mended: bool) -> None:
    async def hold(limiter: trio.CapacityLimiter) -> None:
        await limiter.acquire()
        if not mended:
            await trio.sleep(1)
        try:
            await trio.sleep(1)
        finally:
            limiter.release()

    limiter = trio.CapacityLimiter(2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sim.target(hold), limiter)


async def holds_a_slot(sim: Sim, *, mended: bool) -> None:
    """Also one that it has waited for."""

    async def hold(slots: trio.Semaphore) -> None:
        await slots.acquire()
        if not mended:
            await trio.sleep(1)
        try:
            await trio.sleep(1)
        finally:
            slots.release()

    slots = trio.Semaphore(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, slots)
        nursery.start_soon(sim.target(hold), slots)


async def leaves_a_stream(sim: Sim, *, mended: bool) -> None:
    network = sim.network()

    async def talk() -> None:
        stream = await network.open_tcp_stream("localhost", 7)
        if not mended:
            await trio.sleep(1)
        async with stream:
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        (listener,) = await network.open_tcp_listeners(7)
        nursery.start_soon(sim.target(talk))
        await trio.sleep(5)
        await listener.aclose()


async def leaves_a_socket(sim: Sim, *, mended: bool) -> None:
    sim.network(patch=True)

    async def talk() -> None:
        stream = await trio.open_tcp_stream("localhost", 7)
        if not mended:
            await trio.sleep(1)
        async with stream:
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(7, host="127.0.0.1")
        nursery.start_soon(sim.target(talk))
        await trio.sleep(5)
        await listener.aclose()


async def swallows(sim: Sim, *, mended: bool) -> None:
    async def work() -> None:
        try:
            await trio.sleep(1)
        except trio.Cancelled:
            if mended:
                raise

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sim.target(work))


async def drops_a_generator(sim: Sim, *, mended: bool) -> None:
    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(3):
                yield number
        finally:
            await trio.lowlevel.checkpoint()

    async def drop() -> None:
        made: Any = numbers()
        if mended:
            async with aclosing(made):
                async for _ in made:
                    await trio.sleep(1)
        else:
            async for _ in made:
                await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sim.target(drop))
    await trio.sleep(1)


async def waits_for_nobody(sim: Sim, *, mended: bool) -> None:
    done = trio.Event()

    async def work() -> None:
        try:
            await trio.sleep(1)
        finally:
            if mended:
                done.set()
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sim.target(work))
        await done.wait()


async def goes_on_for_ever(sim: Sim, *, mended: bool) -> None:
    done = trio.Event()

    async def work() -> None:
        try:
            await trio.sleep(1)
        finally:
            if mended:
                done.set()
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sim.target(work))
        while not done.is_set():
            await trio.sleep(10)


def itself(nursery: trio.Nursery) -> Any:
    return nursery


CASES: dict[str, tuple[str, Bug, str]] = {
    "left, an argument": (
        "left",
        partial(leaves, wrap=itself),
        "connect has ended and left keep in a nursery it was given; it is at",
    ),
    "left, an attribute": (
        "left",
        partial(leaves, wrap=Owner),
        "connect has ended and left keep in a nursery it was given; it is at",
    ),
    "left, a keyword": (
        "left",
        partial(leaves, wrap=itself, keyword=True),
        "connect has ended and left keep in a nursery it was given; it is at",
    ),
    "a lock": ("held", holds_a_lock, "a Lock is held by hold, which has ended"),
    "a token": ("held", holds_a_token, "a CapacityLimiter is held by hold, which has"),
    "a slot": ("held", holds_a_slot, "a slot of a Semaphore is held by hold#2, which"),
    "a stream": ("streams", leaves_a_stream, "closed by nobody; it was got by talk at"),
    "a socket": ("streams", leaves_a_socket, "closed by nobody; it was got by talk at"),
    "a cancel": ("swallowed", swallows, "work was cancelled and returned"),
    "a generator": (
        "generators",
        drops_a_generator,
        "numbers was dropped with something left to await, begun by drop; it stands at test_invariants.py",
    ),
    "a deadlock": ("deadlock", waits_for_nobody, "main: test_invariants.py"),
    "a hang": ("hang", goes_on_for_ever, "main: test_invariants.py"),
}


def swept(bug: Bug, *, mended: bool, ignored: str = "") -> SweepReport:
    async def program(sim: Sim) -> None:
        if ignored:
            sim.ignore(ignored)
        await bug(sim, mended=mended)

    return cancel_everywhere(program, schedules=1, limit=200, check=False)


@pytest.mark.parametrize("case", CASES)
def test_each_invariant_is_looked_for_and_names_the_owner(case: str) -> None:
    kind, bug, owner = CASES[case]
    report = swept(bug, mended=False)
    assert {row.error.partition(":")[0].lower() for row in report.rows} == {kind}
    for row in report.rows:
        assert owner in row.error


@pytest.mark.parametrize("case", CASES)
def test_a_neighbour_that_is_right_is_clean(case: str) -> None:
    _, bug, _ = CASES[case]
    report = swept(bug, mended=True)
    assert report.rows == []
    assert report.points > 2


@pytest.mark.parametrize("case", CASES)
def test_each_invariant_can_be_switched_off(case: str) -> None:
    kind, bug, _ = CASES[case]
    assert swept(bug, mended=False, ignored=kind).rows == []


def test_what_a_living_task_of_the_system_has_is_no_leak() -> None:
    async def background(lock: trio.Lock, tokens: trio.CapacityLimiter) -> None:
        async with lock, tokens:
            await trio.sleep_forever()

    async def program(sim: Sim) -> None:
        lock, tokens = trio.Lock(), trio.CapacityLimiter(1)
        trio.lowlevel.spawn_system_task(background, lock, tokens)
        await trio.sleep(1)

    assert simulate(program).findings == []


def test_what_a_dead_task_of_the_system_has_is_named_by_it() -> None:
    async def background(lock: trio.Lock) -> None:
        await lock.acquire()

    async def program(sim: Sim) -> None:
        trio.lowlevel.spawn_system_task(background, trio.Lock())
        await trio.sleep(1)

    (found,) = simulate(program).findings
    assert "held by system task" in found.text
    assert "background, which has ended; taken at test_invariants.py" in found.text


def test_no_invariant_is_forgotten_here() -> None:
    """But ``always``, which a program asks for itself."""
    assert {kind for kind, _, _ in CASES.values()} | {"always"} == {*KINDS}


# ---- What is no slot ------------------------------------------------------------------


async def counts_down(sim: Sim) -> None:
    """Each of three tries uses one up, for good."""
    tries = trio.Semaphore(3)

    async def attempt() -> None:
        await tries.acquire()
        await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(attempt)


async def signals(sim: Sim) -> None:
    """One gives what the other takes, and in part gives back."""
    ready = trio.Semaphore(0)

    async def make() -> None:
        for _ in range(3):
            await trio.sleep(1)
            ready.release()

    async def use() -> None:
        for _ in range(3):
            with trio.move_on_after(5):
                await ready.acquire()
        ready.release()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(make)
        nursery.start_soon(use)


async def keeps_back(sim: Sim) -> None:
    """One takes most of them, and keeps one for good."""
    slots = trio.Semaphore(3)

    async def limit() -> None:
        for _ in range(2):
            await slots.acquire()
        slots.release()

    async def use() -> None:
        async with slots:
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(limit)
        nursery.start_soon(sim.target(use))


@pytest.mark.parametrize("program", [counts_down, signals, keeps_back])
def test_a_semaphore_that_is_no_pool_is_left_alone(program: Any) -> None:
    assert cancel_everywhere(program).rows == []


# ---- Notes ------------------------------------------------------------------------------


def test_a_generator_with_nothing_to_await_is_a_note() -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(3):
            yield number

    async def drop() -> None:
        async for _ in numbers():
            await trio.sleep(1)

    async def program(sim: Sim, *, ignore: bool = False) -> None:
        if ignore:
            sim.ignore("generators")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drop)
        await trio.sleep(1)

    report = cancel_everywhere(program, schedules=1)
    ((note, runs),) = report.notes.items()
    assert "numbers was dropped with nothing left to await, begun by drop; it" in note
    assert f"  note: {note} (in {runs} runs)" in str(report)
    run = simulate(program, tape="cancel drop blocked 2")
    assert (list(run.notes), run.findings) == ([note], [])
    quiet = cancel_everywhere(partial(program, ignore=True), schedules=1)
    assert quiet.notes == {}


def test_a_plain_run_that_breaks_an_invariant_is_not_swept() -> None:
    """It would break it in each run, and so the sweep would tell nothing."""

    async def program(sim: Sim) -> None:
        await waits_for_nobody(sim, mended=False)
        await trio.Lock().acquire()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.Lock().acquire)

    with pytest.raises(ProgramFailed, match="a Lock is held by acquire"):
        cancel_everywhere(program)


def test_what_a_task_of_trio_does_is_told_of_who_is_above_it() -> None:
    """Not of who has called the simulator: that is no part of the program."""

    async def takes(sim: Sim) -> None:
        lock = trio.Lock()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lock.acquire)

    (found,) = simulate(takes).findings
    assert found.text.startswith("a Lock is held by acquire, which has ended; taken at")
    assert found.text.endswith(" takes")

    async def connects(sim: Sim) -> None:
        sim.network(patch=True)
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream("localhost", 7)

    async def served(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            sim.network(patch=True)
            await nursery.start(trio.serve_tcp, trio.sleep, 7)
            await connects(sim)
            nursery.cancel_scope.cancel()

    (fault,) = simulate(served, tape="fault network.connect refused 1").faults
    assert fault.site.endswith(" connects")
    assert fault.line == 'await trio.open_tcp_stream("localhost", 7)'
