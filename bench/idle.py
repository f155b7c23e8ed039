"""PF5 and PF6: very many idle tasks, how much memory each takes and whether it
makes the others slower.

Each figure comes from a process of its own, ``python -m bench.idle KIND N``:
memory that was freed before would hide what is taken now.
"""

from __future__ import annotations

import gc
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Protocol

import trio
import trio.testing

from actors import ActorRef, Context, Exit
from actors.work import Report
from supervisor.tree import child

from ._case import Case, Figures, Row, Target
from ._listened import listened_pool, listened_runtime
from .tasks import InProcess, launch_and_ack

KINDS = ("actor", "task", "journaled", "bare")
"""Actors under a dynamic supervisor, tasks of a runtime without a journal and of one
with it, tasks of trio."""

_REPEATS = 9
_AT_ONCE = 100
_WOKEN = 1000
# What everything that comes first needs once is there before the count begins.
_WARM = 20


def cases(small: bool) -> list[Case]:
    """Return the cases of this theme."""
    few, many, most = (300, 600, 1_000) if small else (1_000, 10_000, 100_000)
    # What is compared is measured within seconds.
    kinds = [(kind, n) for n in (few, many, most) for kind in KINDS]
    small_enough = Target("<=", 4_000, of="ours")
    flat = Target("<=", 1.15)
    rows = [
        Row(
            id="PF5",
            what=f"memory of one of {n:,} idle {name}s / bare task",
            ours=f"{name} {n} bytes",
            base=f"bare {n} bytes",
            unit="bytes",
            target=small_enough,
        )
        for name in ("actor", "task")
        for n in (few, many, most)
    ]
    rows += [
        Row(
            id="PF5",
            what=f"the same with the journal, of {n:,} / bare task",
            ours=f"journaled {n} bytes",
            base=f"bare {n} bytes",
            unit="bytes",
        )
        for n in (few, many, most)
    ]
    rows += [
        Row(
            id="PF5",
            what=f"flat: one of {most:,} {name}s / of {few:,}",
            ours=f"{name} {most} bytes",
            base=f"{name} {few} bytes",
            unit="bytes",
            target=flat,
        )
        for name in ("actor", "task")
    ]
    rows += [
        Row(
            id="PF6",
            what=f"{verb}: growth from {few:,} to {n:,} live {name}s / bare tasks",
            ours=f"{name} {n} {verb} growth",
            base=f"bare {n} {verb} growth",
            unit="x",
            target=Target("<=", 1.3),
        )
        for name, n in (("actor", most), ("task", many), ("task", most))
        for verb in ("fill", "start", "wake")
    ]
    return [Case(name="idle", parts=[partial(_measure_all, kinds)], rows=rows)]


def _measure_all(kinds: list[tuple[str, int]]) -> Figures:
    figures: dict[str, float] = {}
    fewest = min(n for _, n in kinds)
    for kind, n in kinds:
        for name, value in measure_apart(kind, n).items():
            figures[f"{kind} {n} {name}"] = value
    for kind, n in kinds:
        for verb in ("fill", "start", "wake"):
            figures[f"{kind} {n} {verb} growth"] = (
                figures[f"{kind} {n} {verb}"] / figures[f"{kind} {fewest} {verb}"]
            )
    return figures


def measure_apart(kind: str, n: int) -> Figures:
    """Measure ``n`` idle ones in a fresh process.

    Returns ``bytes`` for each of them, the microseconds that it took on average
    to ``fill`` in one of them, and, with all of them there, the microseconds to
    ``start`` and end one more and to ``wake`` one.
    """
    done = subprocess.run(
        [sys.executable, "-m", "bench.idle", kind, str(n)],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=300,
        check=True,
    )
    figures: Figures = json.loads(done.stdout)
    return figures


# In the fresh process


class _Crowd(Protocol):
    """Where idle ones live."""

    async def add(self, n: int) -> None:
        """Start ``n`` more that stay idle."""
        ...

    async def start_and_end(self, n: int) -> None:
        """Start ``n`` more, all at once, which end at once, and wait for that."""
        ...

    async def wake(self, numbers: list[int]) -> None:
        """Wake these, all at once, and wait until they are idle again."""
        ...


class _Counter:
    """Counts down and then wakes the one who waits."""

    def __init__(self) -> None:
        self._left = 0
        self._done = trio.Event()

    def expect(self, n: int) -> None:
        """Begin to count down from ``n``."""
        self._left = n
        self._done = trio.Event()

    def count(self) -> None:
        """One more has done it."""
        self._left -= 1
        if self._left == 0:
            self._done.set()

    async def wait(self) -> None:
        """Wait until all have."""
        await self._done.wait()


async def _listen(ctx: Context[None], counter: _Counter) -> None:
    async for _ in ctx.mailbox:
        counter.count()


async def _end(ctx: Context[object]) -> None:
    pass


@asynccontextmanager
async def _actors() -> AsyncGenerator[_Crowd, None]:
    async with listened_pool() as pool:
        counter = _Counter()
        idle = child("idle", _listen, counter, restart="temporary")
        short = child("short", _end, restart="temporary")
        refs: list[ActorRef[None]] = []

        def count(ref: ActorRef[object], exit: Exit[object]) -> None:
            counter.count()

        class Actors:
            async def add(self, n: int) -> None:
                refs.extend([await pool.start_child(idle) for _ in range(n)])

            async def start_and_end(self, n: int) -> None:
                counter.expect(n)
                for _ in range(n):
                    pool.start_child_nowait(short, watcher=count)
                await counter.wait()

            async def wake(self, numbers: list[int]) -> None:
                counter.expect(len(numbers))
                for number in numbers:
                    refs[number].tell(None)
                await counter.wait()

        yield Actors()


@asynccontextmanager
async def _tasks(*, journal: bool) -> AsyncGenerator[_Crowd, None]:
    async with listened_runtime(journal=journal) as runtime:
        counter = _Counter()
        refs: list[ActorRef[object]] = []

        class Idle(InProcess):
            async def run(self, ctx: Context[object], report: Report) -> object:
                refs.append(ctx.ref)
                async for _ in ctx.mailbox:
                    counter.count()
                return None

        idle, short = Idle(), InProcess()

        class Tasks:
            async def add(self, n: int) -> None:
                for _ in range(n):
                    await runtime.launch(idle)

            async def start_and_end(self, n: int) -> None:
                await launch_and_ack(runtime, short, n)

            async def wake(self, numbers: list[int]) -> None:
                counter.expect(len(numbers))
                for number in numbers:
                    refs[number].tell(None)
                await counter.wait()

        yield Tasks()


@asynccontextmanager
async def _bare() -> AsyncGenerator[_Crowd, None]:
    async with trio.open_nursery() as nursery:
        counter = _Counter()
        tasks: list[trio.lowlevel.Task] = []

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            return trio.lowlevel.Abort.SUCCEEDED

        async def listen() -> None:
            tasks.append(trio.lowlevel.current_task())
            while True:
                await trio.lowlevel.wait_task_rescheduled(abort)
                counter.count()

        async def end() -> None:
            pass

        class Bare:
            async def add(self, n: int) -> None:
                for _ in range(n):
                    nursery.start_soon(listen)
                await trio.lowlevel.checkpoint()

            async def start_and_end(self, n: int) -> None:
                async with trio.open_nursery() as inner:
                    for _ in range(n):
                        inner.start_soon(end)

            async def wake(self, numbers: list[int]) -> None:
                counter.expect(len(numbers))
                for number in numbers:
                    trio.lowlevel.reschedule(tasks[number])
                await counter.wait()

        yield Bare()
        nursery.cancel_scope.cancel()


def _resident() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def _measure(kind: str, n: int) -> Figures:
    crowds: dict[str, Callable[[], AbstractAsyncContextManager[_Crowd]]] = {
        "actor": _actors,
        "task": partial(_tasks, journal=False),
        "journaled": partial(_tasks, journal=True),
        "bare": _bare,
    }
    async with crowds[kind]() as crowd:
        await crowd.add(_WARM)
        await crowd.start_and_end(1)
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        before = _resident()
        began = perf_counter()
        await crowd.add(n)
        await trio.testing.wait_all_tasks_blocked()
        fill = perf_counter() - began
        gc.collect()
        taken = _resident() - before
        start = await _median_seconds(partial(crowd.start_and_end, _AT_ONCE))
        woken = random.Random(n).sample(range(n + _WARM), min(n, _WOKEN))
        wake = await _median_seconds(partial(crowd.wake, woken))
    return {
        "bytes": taken / n,
        "fill": fill / n * 1e6,
        "start": start / _AT_ONCE * 1e6,
        "wake": wake / len(woken) * 1e6,
    }


async def _median_seconds(do: Callable[[], Awaitable[None]]) -> float:
    await do()
    seconds: list[float] = []
    for _ in range(_REPEATS):
        began = perf_counter()
        await do()
        seconds.append(perf_counter() - began)
    return statistics.median(seconds)


if __name__ == "__main__":
    _, this_kind, number = sys.argv
    print(json.dumps(trio.run(_measure, this_kind, int(number))))
