"""PF8: shell tasks, eight at a time, over bare trio processes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Awaitable, Callable
from time import perf_counter

import trio

from actors import TaskStatus
from actors.shell import Shell

from ._case import Case, Row, Target
from ._listened import listened_runtime

_PARALLEL = 8
_COMMAND = "true"


def cases(small: bool) -> list[Case]:
    """Return the cases of this theme."""
    n = 16 if small else 400
    return [
        Case(
            name="shells",
            parts=[
                lambda: {"shell": trio.run(_run_shells, n)},
                lambda: {"process": trio.run(_run_processes, n)},
            ],
            rows=[
                Row(
                    id="PF8",
                    what="shell tasks, 8 at once / open_process and wait",
                    ours="shell",
                    base="process",
                    unit="tasks/s",
                    target=Target(">=", 0.8),
                )
            ],
        )
    ]


async def _in_parallel(n: int, run_one: Callable[[], Awaitable[None]]) -> float:
    """Run it ``n`` times, eight at a time; return the rate."""
    turns = iter(range(n))

    async def work() -> None:
        for _ in turns:
            await run_one()

    began = perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(_PARALLEL):
            nursery.start_soon(work)
    return n / (perf_counter() - began)


async def _run_shells(n: int) -> float:
    async with listened_runtime() as runtime:
        shell = Shell(_COMMAND)

        async def run_one() -> None:
            task = await runtime.launch(shell, owner="main")
            snapshot = await task.wait()
            assert snapshot.status is TaskStatus.COMPLETED, snapshot

        async def read() -> None:
            async for note in runtime.notifications:
                assert note.xml
                note.ack()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await run_one()  # the first one starts the helper process
            rate = await _in_parallel(n, run_one)
            nursery.cancel_scope.cancel()
        return rate


async def _run_processes(n: int) -> float:
    argv = ["bash" if shutil.which("bash") else "sh", "-c", _COMMAND]

    async def run_one() -> None:
        process = await trio.lowlevel.open_process(argv, stdin=subprocess.DEVNULL)
        await process.wait()

    await run_one()
    return await _in_parallel(n, run_one)
