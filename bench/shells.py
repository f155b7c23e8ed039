"""PF8: shell tasks over bare trio processes: what they cost, and when they are told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from actors import TaskStatus
from actors.shell import Shell
from supervisor.runtime import Runtime

from ._case import Case, Figures, Row, Target, percentile
from ._listened import listened_runtime

if sys.platform != "win32":
    import resource

_PARALLEL = 8
_COMMAND = "true"
# Where files cost nearly nothing. A new one costs ext4 some 60 microseconds, and up to 800
# where thousands were deleted in the last minutes, whose inodes it passes over: with a
# disk the figure tells what ran before.
_IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
# What a shell gives to every command. A bash in another language reads other files.
_ENVIRONMENT = {**os.environ, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
# Its last word is the time.
_LAST_WORD = 'echo "$EPOCHREALTIME"'
_LOUD = "while :; do echo as fast as it can; done"


def cases(small: bool) -> list[Case]:
    """Return the cases of this theme."""
    cases = [_cost_case(small)]
    if shutil.which("bash") is not None:
        cases.append(_telling_case(small))
    return cases


def _cost_case(small: bool) -> Case:
    # So many that the start of the guardian, once, does not matter.
    n = 16 if small else 1000
    return Case(
        name="shells",
        parts=[
            lambda: {"shell": _for_each_second(n, partial(_run_shells, n, _IN_MEMORY))},
            lambda: {"on disk": _for_each_second(n, partial(_run_shells, n))},
            lambda: {"process": _for_each_second(n, _run_processes_of(n))},
        ],
        rows=[
            Row(
                id="PF8",
                what="shell tasks, 8 at once / open_process and wait; all processes",
                ours="shell",
                base="process",
                unit="tasks/s CPU",
                target=Target(">=", 0.8),
            ),
            Row(
                id="PF8",
                what="  the same, with their files on the disk",
                ours="on disk",
                base="process",
                unit="tasks/s CPU",
            ),
        ],
    )


def _telling_case(small: bool) -> Case:
    n, loud = (8, 2) if small else (200, _PARALLEL)
    return Case(
        name="last words",
        parts=[
            lambda: trio.run(_tell, n, 0, ""),
            lambda: trio.run(_tell, n, loud, "loud "),
        ],
        rows=[
            Row(
                id="PF8",
                what="p50 from a shell's last word to its envelope / process.wait()",
                ours="envelope p50",
                base="wait p50",
                unit="ms",
                target=Target("<=", 1.2, of="ours"),
            ),
            Row(
                id="PF8",
                what="the same, p99, beside eight loud shells",
                ours="loud envelope p99",
                base="loud wait p99",
                unit="ms",
                target=Target("<=", 3),
            ),
        ],
    )


def _for_each_second(n: int, run: Callable[[], Awaitable[None]]) -> float:
    """Return for how many of ``n`` tasks a second of CPU is enough, of this process and
    of all that it has started and waited for."""
    began = _used()
    trio.run(run)
    return n / (_used() - began)


def _used() -> float:
    uses = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)


async def _in_parallel(n: int, run_one: Callable[[], Awaitable[None]]) -> None:
    """Run it ``n`` times, eight at a time."""
    turns = iter(range(n))

    async def work() -> None:
        for _ in turns:
            await run_one()

    async with trio.open_nursery() as nursery:
        for _ in range(_PARALLEL):
            nursery.start_soon(work)


async def _run_shells(n: int, inside: str | None = None) -> None:
    async with listened_runtime(journal=False, inside=inside) as runtime:
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
            await _in_parallel(n, run_one)
            nursery.cancel_scope.cancel()


def _run_processes_of(n: int) -> Callable[[], Awaitable[None]]:
    argv = ["bash" if shutil.which("bash") else "sh", "-c", _COMMAND]

    async def run_one() -> None:
        process = await trio.lowlevel.open_process(
            argv, stdin=subprocess.DEVNULL, env=_ENVIRONMENT
        )
        await process.wait()

    return partial(_in_parallel, n, run_one)


# From the last word to whoever waits for the end


async def _tell(n: int, loud: int, prefix: str) -> Figures:
    """Run ``n`` commands one after the other as tasks, and as many as bare processes in
    between, beside so many loud shells; return by how many ms their ends come after
    their last words."""
    told: list[float] = []
    waited: list[float] = []
    async with listened_runtime(journal=False) as runtime:
        await _tell_one(runtime)  # The first one starts the helper process.
        for _ in range(loud):
            await runtime.launch(Shell(_LOUD, quota=2**24, rotate=2**20))
        for _ in range(n):
            told.append(await _tell_one(runtime))
            waited.append(await _wait_one())
        await runtime.stop_all(now=True)
    return {
        f"{prefix}{what} p{share}": percentile(values, share / 100) * 1e3
        for what, values in (("envelope", told), ("wait", waited))
        for share in (50, 99)
    }


async def _tell_one(runtime: Runtime) -> float:
    now = 0.0
    task = await runtime.launch(Shell(_LAST_WORD), owner="main")
    async for note in runtime.notifications_for("main"):
        now = time.time()
        assert note.xml
        note.ack()
        if note.task_id == task.id:
            break
    return now - float((await task.wait()).result or "nan")


async def _wait_one() -> float:
    process = await trio.lowlevel.open_process(
        ["bash", "-c", _LAST_WORD],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=_ENVIRONMENT,
    )
    assert process.stdout is not None
    async with process.stdout:
        await process.wait()
        now = time.time()
        return now - float(await process.stdout.receive_some())
