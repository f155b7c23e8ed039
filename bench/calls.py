"""``python -m bench.calls``: Python calls for each task, which no load disturbs.

The figures of `bench.tasks` and `bench.stops` are times, and times of a busy machine
are noise. The number of functions that Python enters for one task is nearly the same in
each run, so two commits can be compared by it wherever they run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from types import FrameType

import trio
import trio.testing

from ._listened import listened_runtime
from .stops import Idle
from .tasks import InProcess, Stopwatch, launch_and_ack


class _Count:
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


async def _launch(n: int) -> float:
    count = _Count()
    async with listened_runtime() as runtime:
        work = InProcess()
        await launch_and_ack(runtime, work, 100)  # warm
        with count:
            await launch_and_ack(runtime, work, n)
    return count.calls / n


async def _wait(n: int) -> float:
    count = _Count()
    async with listened_runtime() as runtime:
        for _ in range(n):
            watch = Stopwatch()
            task = await runtime.launch(watch)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(task.wait)
                await trio.testing.wait_all_tasks_blocked()
                watch.go.set()
                with count:
                    await trio.testing.wait_all_tasks_blocked()
            for note in runtime.notifications.drain():
                note.ack()
    return count.calls / n


async def _stop_all(n: int) -> float:
    count = _Count()
    async with listened_runtime() as runtime:
        for _ in range(n):
            await runtime.launch(Idle())
        await trio.testing.wait_all_tasks_blocked()
        with count:
            await runtime.stop_all()
    return count.calls / n


async def _leave(n: int) -> float:
    count = _Count()
    async with listened_runtime() as runtime:
        for _ in range(n):
            await runtime.launch(Idle())
        await trio.testing.wait_all_tasks_blocked()
        count.__enter__()
    count.__exit__()
    return count.calls / n


_PARTS: dict[str, Callable[[int], Awaitable[float]]] = {
    "PF4 launch to acknowledgement": _launch,
    "PF7 end to wait(), and the end's record": _wait,
    "PF12 stop_all": _stop_all,
    "PF12 leaving with idle tasks": _leave,
}


def main(arguments: list[str] | None = None) -> None:
    """Count the Python calls for each task."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.calls", description=main.__doc__
    )
    parser.add_argument("--tasks", type=int, default=1000, metavar="N")
    options = parser.parse_args(arguments)
    if options.tasks < 1:
        parser.error(f"--tasks must be 1 or more, not {options.tasks}")
    for name, part in _PARTS.items():
        print(f"{name:42} {trio.run(part, options.tasks):8.1f} calls a task")


if __name__ == "__main__":
    main()
