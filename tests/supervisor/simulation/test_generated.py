"""Programs made by chance, which nobody has written with the simulator in mind, and
what is known of them by other means than the simulator's own.

What they do is correct, whatever is put into them, by the way in which they are made:
locks are taken in one order, what is taken is given back, and nobody waits for ever for
somebody who may have ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing
from functools import wraps
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from trio.lowlevel import Task

from supervisor.simulation import (
    Sim,
    cancel_everywhere,
    raise_everywhere,
    simulate,
)
from supervisor.simulation._steering.policies import policy_of
from supervisor.simulation._steering.session import session
from supervisor.simulation._steering.simulate import once

Step = Callable[[Any], Awaitable[None]]


class Shared:
    """What the tasks of one program share."""

    def __init__(self) -> None:
        self.locks: list[Any] = [
            trio.Lock(),
            trio.StrictFIFOLock(),
            trio.CapacityLimiter(1),
            trio.Semaphore(2),
        ]
        self.event = trio.Event()
        self.ticks = 0
        self.sent = 0
        self.received = 0


async def numbers(upto: int) -> AsyncGenerator[int]:
    try:
        for number in range(upto):
            await trio.sleep(number % 2)
            yield number
    finally:
        with trio.move_on_after(1, shield=True):
            await trio.lowlevel.checkpoint()


class Made:
    """A program by chance: a tree of steps. ``steady`` leaves out what a schedule may
    decide."""

    def __init__(self, seed: int, *, steady: bool = False) -> None:
        self.chance = Random(f"made {seed}")
        self.steady = steady
        self.spy: Callable[[Any], Any] = lambda fn: fn
        self.tops = [self.block(2, -1) for _ in range(self.chance.randint(1, 3))]

    async def program(self, sim: Any) -> int:
        it = Shared()
        async with trio.open_nursery() as nursery:
            for top in self.tops:
                nursery.start_soon(self.call, top, it)
        assert not any(lock.statistics().owner for lock in it.locks[:2])
        assert it.locks[2].borrowed_tokens == 0
        assert it.locks[3].value == 2
        assert it.sent == it.received
        return it.ticks

    @property
    def call(self) -> Any:
        async def work(block: Step, it: Shared) -> None:
            await block(it)
            await trio.sleep(0.5)  # So each has a point at which an error may come.

        return self.spy(work)

    @property
    def started(self) -> Any:
        async def begins(block: Step, it: Shared, *, task_status: Any) -> None:
            await trio.sleep(1)
            task_status.started()
            await block(it)

        return self.spy(begins)

    def block(self, depth: int, rank: int) -> Step:
        steps = [self.step(depth, rank) for _ in range(self.chance.randint(1, 2))]

        async def run(it: Shared) -> None:
            for step in steps:
                await step(it)

        return run

    def step(self, depth: int, rank: int) -> Step:
        """Return a step; it takes only locks above a rank, so there is no deadlock."""
        kinds = ["sleep", "tick"]
        if depth:
            kinds += ["cleanup", "lock", "nursery", "start", "channel", "numbers"]
        if depth and not self.steady:
            kinds += ["until", "event"]
        kind = self.chance.choice(kinds)
        seconds = self.chance.choice([0, 0.5, 1, 1, 2])
        if kind == "lock":
            rank = self.chance.randint(rank + 1, 3) if rank < 3 else 3
            kind = "lock" if rank < 3 else "sleep"
        inner = self.block(depth - 1, rank) if depth else None

        async def sleep(_: Shared) -> None:
            await trio.sleep(seconds)

        async def tick(it: Shared) -> None:
            it.ticks += 1
            await trio.lowlevel.checkpoint()

        if inner is None:
            return sleep if kind == "sleep" else tick

        async def lock(it: Shared) -> None:
            async with it.locks[rank]:
                await inner(it)

        async def until(it: Shared) -> None:
            with trio.move_on_after(seconds):
                await inner(it)

        async def event(it: Shared) -> None:
            it.event.set()
            with trio.move_on_after(seconds):
                await inner(it)
                await it.event.wait()

        async def cleanup(it: Shared) -> None:
            try:
                await inner(it)
            finally:
                with trio.move_on_after(1, shield=True):
                    await trio.sleep(seconds)

        async def nursery(it: Shared) -> None:
            async with trio.open_nursery() as children:
                children.start_soon(self.call, inner, it)
                await trio.sleep(seconds)

        async def start(it: Shared) -> None:
            async with trio.open_nursery() as children:
                await children.start(self.started, inner, it)

        async def channel(it: Shared) -> None:
            send, receive = trio.open_memory_channel[int](0)

            async def put(it: Shared) -> None:
                async with send:
                    for number in range(3):
                        try:
                            await send.send(number)
                        except trio.BrokenResourceError:
                            return
                        it.sent += 1

            async def get(it: Shared) -> None:
                async with receive:
                    async for _ in receive:
                        it.received += 1
                        await inner(it)

            async with trio.open_nursery() as children:
                children.start_soon(self.call, put, it)
                children.start_soon(self.call, get, it)

        async def goes_through(it: Shared) -> None:
            async with aclosing(numbers(3)) as found:
                async for _ in found:
                    it.ticks += 1
                    await inner(it)

        made: dict[str, Step] = {
            "sleep": sleep,
            "tick": tick,
            "lock": lock,
            "until": until,
            "event": event,
            "cleanup": cleanup,
            "nursery": nursery,
            "start": start,
            "channel": channel,
            "numbers": goes_through,
        }
        return made[kind]


# ---- The same again ----------------------------------------------------------------------


@pytest.mark.parametrize("number", range(12))
def test_a_program_by_chance_is_replayed_by_the_text_of_its_tape(number: int) -> None:
    program = Made(number).program
    for seed in range(5):
        run = simulate(program, seed=seed)
        assert run.error is None
        assert not run.findings
        assert simulate(program, seed=seed).digest == run.digest
        assert simulate(program, tape=str(run.tape)).digest == run.digest


@pytest.mark.parametrize("number", range(12))
def test_what_no_schedule_decides_is_as_under_trio_alone(number: int) -> None:
    program = Made(number, steady=True).program
    clock = trio.testing.MockClock(autojump_threshold=0)
    alone = trio.run(program, SimpleNamespace(), clock=clock)
    assert {simulate(program, seed=seed).value for seed in range(5)} == {alone}


# ---- Every point ---------------------------------------------------------------------------


class Spy(trio.abc.Instrument):
    """Counts points with neither a scope nor a scheduler: it drives each coroutine by
    hand, and sees where it is suspended."""

    def __init__(self) -> None:
        self.points: Counter[tuple[str, str]] = Counter()
        self.live: dict[str, Task] = {}
        self.calls: Counter[str] = Counter()
        self.now = -1.0

    def __call__(self, fn: Any) -> Any:
        name = fn.__name__

        @wraps(fn)
        def call(*args: Any, **options: Any) -> Any:
            self.calls[name] += 1
            times = self.calls[name]
            return self.by_hand(
                fn(*args, **options), name if times == 1 else f"{name}#{times}"
            )

        return call

    async def by_hand(self, coro: Any, name: str) -> None:
        self.live[name] = trio.lowlevel.current_task()
        try:
            await Driven(coro, lambda kind: self.add(name, kind))
        finally:
            del self.live[name]

    def add(self, name: str, *kinds: str) -> None:
        # Whom `nursery.start` waits for only its starter could cancel.
        if self.live[name].eventual_parent_nursery is None:
            self.points.update((name, kind) for kind in kinds)

    def before_task_step(self, task: Task) -> None:
        before, self.now = self.now, trio.current_time()
        for name in self.live if 0 <= before < self.now else ():
            self.add(name, "elsewhere", "late")

    def after_task_step(self, task: Task) -> None:
        for name, own in self.live.items():
            self.add(name, "late", *(["elsewhere"] if task is not own else []))


class Driven:
    def __init__(self, coro: Any, add: Callable[[str], None]) -> None:
        self.coro, self.add = coro, add

    def __await__(self) -> Generator[Any, Any, Any]:
        go, given = self.coro.send, None
        while True:
            try:
                trap = go(given)
            except StopIteration as ended:
                return ended.value
            self.add("blocked")
            try:
                given, go = (yield trap), self.coro.send
            except BaseException as error:  # noqa: ASYNC103
                given, go = error, self.coro.throw
            self.add("woken")


@pytest.mark.parametrize("number", range(12))
def test_the_points_are_those_that_are_counted_by_hand(number: int) -> None:
    arrivals = ("blocked", "woken", "elsewhere", "late")
    for seed in range(3):
        made, spy = Made(number), Spy()
        made.spy = spy

        async def program(sim: Sim) -> None:
            trio.lowlevel.add_instrument(spy)  # noqa: B023
            await made.program(sim)  # noqa: B023

        with session():
            pick = policy_of(None).start(seed)
            _, faults = once(program, pick, seed=seed, count=[("cancel", arrivals)])
        counted = Counter((it.target, it.arrival) for it in faults)
        assert by_target(counted) == by_target(+spy.points)


def by_target(points: Counter[tuple[str, str]]) -> list[dict[str, int]]:
    """Return the points of each target, without its number, which the spy gives later."""
    found: dict[str, dict[str, int]] = {}
    for (name, arrival), count in sorted(points.items()):
        found.setdefault(name, {})[arrival] = count
    return sorted(found.values(), key=repr)


# ---- Whatever is put in ----------------------------------------------------------------------


@pytest.mark.parametrize("number", range(6))
def test_what_is_correct_by_the_way_it_is_made_has_no_finding(number: int) -> None:
    program = Made(number).program
    reports = [
        cancel_everywhere(program, max_points=40, twice=True, pairs=5),
        raise_everywhere(program, OSError, max_points=25, pairs=5),
        raise_everywhere(program, KeyboardInterrupt, max_points=15),
    ]
    assert all(report.runs > 10 for report in reports)
