"""``python -m bench.cost``: what a task costs, in figures that no load disturbs.

The figures of `bench.tasks` and `bench.stops` are times, and times of a busy machine
are noise. The number of functions that Python enters for one task is nearly the same in
each run, and so is the number of instructions of the processor, which valgrind counts:
two commits can be compared by them wherever they run. `bench.limit` is what pure trio
can do at most, and "bare" is what trio does if nothing at all is promised.

``--check`` compares the calls with `HELD`, and is part of the tests.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import FrameType
from typing import Final, TypeAlias

import trio
import trio.testing

from supervisor.runtime import Runtime

from ._listened import listened_runtime
from .limit import Limit
from .stops import Idle, sleep
from .tasks import (
    RESULT,
    InProcess,
    Stopwatch,
    launch_and_ack,
    launch_and_ack_in_pure_trio,
)

Measured: TypeAlias = AbstractContextManager[object]
Program: TypeAlias = Callable[[int, Measured], Awaitable[None]]
"""Runs so many tasks, and does within the block what is to be measured."""

# Of each size of which the instructions are counted: the difference has no start-up.
_SIZES: Final = (500, 1_500)


class Still(trio.abc.Clock):
    """A clock on which nothing is slow. A disk is, where another program is busy or
    valgrind looks on, and then a journal takes other ways."""

    def start_clock(self) -> None:
        """Do nothing."""

    def current_time(self) -> float:
        """Return the same time as ever."""
        return 0.0

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return the real seconds until then."""
        return deadline


class Count:
    """Counts the Python functions that are entered while it is on."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self) -> None:
        sys.setprofile(self._see)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":  # A coroutine that goes on counts again.
            self.calls += 1


# PF4: from the launch to the acknowledgement


async def _launch(n: int, measured: Measured, *, journal: bool) -> None:
    async with listened_runtime(journal=journal) as runtime:
        work = InProcess()
        await launch_and_ack(runtime, work, 100)  # warm
        with measured:
            await launch_and_ack(runtime, work, n)


async def _launch_limit(n: int, measured: Measured) -> None:
    async with Limit().opened() as limit:
        with measured:
            await launch_and_ack_in_pure_trio(limit, n)


async def _nothing() -> None:
    pass


async def _launch_bare(n: int, measured: Measured) -> None:
    with measured:
        async with trio.open_nursery() as nursery:
            for _ in range(n):
                nursery.start_soon(_nothing)


# PF7: from the end to whoever waits for it


async def _wait(n: int, measured: Measured, *, journal: bool) -> None:
    async with listened_runtime(journal=journal) as runtime:
        for _ in range(n):
            watch = Stopwatch()
            task = await runtime.launch(watch)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(task.wait)
                await trio.testing.wait_all_tasks_blocked()
                watch.go.set()
                with measured:
                    await trio.testing.wait_all_tasks_blocked()
            for note in runtime.notifications.drain():
                note.ack()


async def _wait_limit(n: int, measured: Measured) -> None:
    async with Limit().opened() as limit:
        for _ in range(n):
            go = trio.Event()

            async def work() -> str:
                await go.wait()  # noqa: B023 - done before the next turn
                return RESULT

            task = await limit.launch(work)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(task.wait)
                await trio.testing.wait_all_tasks_blocked()
                go.set()
                with measured:
                    await trio.testing.wait_all_tasks_blocked()
            (await anext(limit)).ack()


async def _wait_bare(n: int, measured: Measured) -> None:
    for _ in range(n):
        go, ended = trio.Event(), trio.Event()

        async def work() -> None:
            await go.wait()  # noqa: B023 - done before the next turn
            ended.set()  # noqa: B023

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            nursery.start_soon(ended.wait)
            await trio.testing.wait_all_tasks_blocked()
            go.set()
            with measured:
                await trio.testing.wait_all_tasks_blocked()


# PF12: the stop of idle tasks


async def _stop(n: int, measured: Measured, *, journal: bool) -> None:
    async with listened_runtime(journal=journal) as runtime:
        for _ in range(n):
            await runtime.launch(Idle())
        await trio.testing.wait_all_tasks_blocked()
        with measured:
            await runtime.stop_all()


async def _stop_limit(n: int, measured: Measured) -> None:
    async with Limit().opened() as limit:
        for _ in range(n):
            await limit.launch(sleep)
        await trio.testing.wait_all_tasks_blocked()
        with measured:
            await limit.stop_all()


async def _stop_bare(n: int, measured: Measured) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(n):
            nursery.start_soon(trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        measured.__enter__()
    measured.__exit__(None, None, None)


async def _leave(n: int, measured: Measured, *, journal: bool) -> None:
    async with listened_runtime(journal=journal) as runtime:
        for _ in range(n):
            await runtime.launch(Idle())
        await trio.testing.wait_all_tasks_blocked()
        measured.__enter__()
    measured.__exit__(None, None, None)


def _of(program: Callable[..., Awaitable[None]]) -> dict[str, Program]:
    return {
        "ours": partial(program, journal=False),
        "with the journal": partial(program, journal=True),
    }


PARTS: Final[dict[str, dict[str, Program]]] = {
    "PF4 launch to acknowledgement": {
        **_of(_launch),
        "limit": _launch_limit,
        "bare": _launch_bare,
    },
    "PF7 end to wait(), and the end's record": {
        **_of(_wait),
        "limit": _wait_limit,
        "bare": _wait_bare,
    },
    "PF12 stop_all": {**_of(_stop), "limit": _stop_limit, "bare": _stop_bare},
    "PF12 leaving with idle tasks": _of(_leave),
}


# The calls a task, of so many as ``--tasks`` has by default. They hold for the Python
# and the trio with which they were taken: others enter other functions of their own, and
# there nothing is compared. What makes a task cheaper lowers them.
_HELD_FOR: Final = ((3, 11), "0.35.0")
_SLACK: Final = 1.03
HELD: Final[dict[str, dict[str, float]]] = {
    "PF4 launch to acknowledgement": {"ours": 180.4, "with the journal": 227.7},
    "PF7 end to wait(), and the end's record": {
        "ours": 277.0,
        "with the journal": 300.1,
    },
    # With the journal it depends on the chance by which trio runs the notifier, which
    # decides how many records go out in one write.
    "PF12 stop_all": {"ours": 145.8},
    "PF12 leaving with idle tasks": {"ours": 155.2},
}


def is_held_here() -> bool:
    """Whether `HELD` is for the Python and the trio that run this."""
    return (sys.version_info[:2], trio.__version__) == _HELD_FOR


def calls(program: Program, n: int) -> float:
    """Return the Python calls for each of ``n`` tasks."""
    count = Count()
    trio.run(program, n, count, clock=Still())
    return count.calls / n


def run(part: str, name: str, n: int) -> None:
    """Run a program, and measure nothing."""
    trio.run(PARTS[part][name], n, nullcontext(), clock=Still())


def tracked(n: int) -> float:
    """Return how many objects the garbage collector has to look at for each of ``n``
    tasks that wait."""
    return trio.run(_tracked, n)


async def _tracked(n: int) -> float:
    async with listened_runtime(journal=False) as runtime:
        before = await _objects_with(runtime, 100)  # with what is made once
        return (await _objects_with(runtime, n) - before) / n


async def _objects_with(runtime: Runtime, more: int) -> int:
    work = Idle()
    for _ in range(more):
        await runtime.launch(work)
    await trio.testing.wait_all_tasks_blocked()
    gc.collect()
    return len(gc.get_objects())


def instructions(part: str, name: str) -> float:
    """Return the instructions of the processor for each task, whatever else a program
    does with it; those of a program of one size less those of a smaller one."""
    small, large = (_instructions(part, name, n) for n in _SIZES)
    return (large - small) / (_SIZES[1] - _SIZES[0])


def _instructions(part: str, name: str, n: int) -> int:
    tool = ["valgrind", "--tool=cachegrind", "--cache-sim=no"]
    done = subprocess.run(
        [
            *tool,
            "--cachegrind-out-file=/dev/null",
            sys.executable,
            "-c",
            f"from bench.cost import run; run({part!r}, {name!r}, {n})",
        ],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"I +refs: +([0-9,]+)", done.stderr)
    assert found is not None, done.stderr
    return int(found[1].replace(",", ""))


def main(arguments: list[str] | None = None) -> None:
    """Count the Python calls, and the instructions, for each task."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.cost", description=main.__doc__
    )
    parser.add_argument("--tasks", type=int, default=1000, metavar="N")
    parser.add_argument(
        "--instructions",
        action="store_true",
        help="count these too; it takes minutes and needs valgrind",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="fail if a task takes more calls than are held, with 3 % of slack",
    )
    options = parser.parse_args(arguments)
    if options.tasks < 1:
        parser.error(f"--tasks must be 1 or more, not {options.tasks}")
    if options.instructions and shutil.which("valgrind") is None:
        parser.error("--instructions needs valgrind, and it is not installed")
    too_many = 0
    for part, programs in PARTS.items():
        print(f"{part}: Python calls a task")
        for name, program in programs.items():
            found, held = calls(program, options.tasks), HELD.get(part, {}).get(name)
            verdict = ""
            if options.check and is_held_here() and held is not None:
                is_more = found > held * _SLACK
                verdict = (
                    f"  {'MORE THAN' if is_more else 'as'} {held:.1f}, which is held"
                )
                too_many += is_more
            print(f"    {name:20} {found:10.1f}{verdict}", flush=True)
    objects = tracked(options.tasks)
    print(f"an idle task: tracked objects\n    {'ours':20} {objects:10.1f}", flush=True)
    if options.instructions:
        for part, programs in PARTS.items():
            print(f"{part}: thousands of instructions a task")
            counted = {it: instructions(part, it) / 1e3 for it in programs}
            limit = counted.get("limit")
            for name, thousands in counted.items():
                over = f"  {thousands / limit:.2f} times the limit" if limit else ""
                print(f"    {name:20} {thousands:10.1f}{over}", flush=True)
    if options.check and not is_held_here():
        python, version = _HELD_FOR
        on = f"Python {'.'.join(map(str, python))} and trio {version}"
        print(f"nothing is compared here: what is held was counted with {on}")
    if too_many:
        sys.exit(1)


if __name__ == "__main__":
    main()
