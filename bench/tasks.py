"""PF4 and PF7: a task from its launch to its end, over a bare trio task."""

from __future__ import annotations

import asyncio
from time import perf_counter

import trio
import trio.testing

from actors import Context
from actors.work import Report
from supervisor.runtime import Runtime
from supervisor.tree import child

from . import beam, pykka_peer
from ._case import Case, Figures, Row, Target, percentile
from ._listened import listened_pool, listened_runtime
from .limit import Limit

_WAVE = 1000
RESULT = "ordinary result text & more " * 7 + "end."


class InProcess:
    """A work that runs in this process, and is done at once."""

    task_type = "local_agent"
    shutdown = 5.0
    writes_output = False

    def describe(self) -> str:
        """Return a few words."""
        return "a benchmark"

    async def run(self, ctx: Context[object], report: Report) -> object:
        """Return the result, a text of 200 bytes."""
        return RESULT


def cases(small: bool) -> list[Case]:
    """Return the cases of this theme."""
    return [_launch_case(small), _start_child_case(small), _wake_case(small)]


# PF4


def _launch_case(small: bool) -> Case:
    n = 200 if small else 5_000
    parts = [
        lambda: {"launch": trio.run(_launch, n, False)},
        lambda: {"launch, journal": trio.run(_launch, n, True)},
        lambda: {"limit": trio.run(_launch_limit, n)},
        lambda: {"start_soon": trio.run(_start_soon, n)},
        lambda: {"nursery.start": trio.run(_start, n)},
        lambda: {"asyncio": asyncio.run(_create_task(n))},
    ]
    rows = [
        Row(
            id="PF4",
            what="launch to ack of the envelope / bare start_soon",
            ours="launch",
            base="start_soon",
            unit="tasks/s",
        ),
        Row(
            id="PF4",
            what="  the same, with the journal",
            ours="launch, journal",
            base="start_soon",
            unit="tasks/s",
        ),
        Row(
            id="PF4",
            what="the same / the same promises in pure trio (bench/limit.py)",
            ours="launch",
            base="limit",
            unit="tasks/s",
            # 1.6 times as dear. `bench.cost` counts it in instructions.
            target=Target(">=", 0.62),
        ),
        Row(
            id="PF4",
            what="  for comparison: nursery.start / bare start_soon",
            ours="nursery.start",
            base="start_soon",
            unit="tasks/s",
        ),
        Row(
            id="PF4",
            what="launch to ack / asyncio.TaskGroup",
            ours="launch",
            base="asyncio",
            unit="tasks/s",
        ),
    ]
    skipped: list[str] = []
    if beam.is_installed():
        parts.append(lambda: {"beam": beam.measure("spawn", 500 if small else 50_000)})
        rows.append(
            Row(
                id="PF4",
                what="launch to ack / BEAM spawn, finish, reply",
                ours="launch",
                base="beam",
                unit="tasks/s",
            )
        )
    else:
        skipped.append(f"PF4: {beam.MISSING}")
    if pykka_peer.is_installed():
        parts.append(
            lambda: {"pykka": pykka_peer.start_and_stop(50 if small else 1_000)}
        )
        rows.append(
            Row(
                id="PF4",
                what="launch to ack / Pykka start, stop",
                ours="launch",
                base="pykka",
                unit="tasks/s",
            )
        )
    else:
        skipped.append(f"PF4: {pykka_peer.MISSING}")
    return Case(name="launch", parts=parts, rows=rows, skipped=skipped)


def _waves(n: int) -> list[int]:
    return [min(_WAVE, n - done) for done in range(0, n, _WAVE)]


async def launch_and_ack(runtime: Runtime, work: InProcess, n: int) -> None:
    """Launch ``n`` tasks, then read and acknowledge the end of each."""
    for _ in range(n):
        await runtime.launch(work, owner="main")
    told = 0
    async for note in runtime.notifications:
        assert note.xml
        note.ack()
        told += 1
        if told == n:
            break


async def _launch(n: int, journal: bool) -> float:
    work = InProcess()
    async with listened_runtime(journal=journal) as runtime:
        began = perf_counter()
        for wave in _waves(n):
            await launch_and_ack(runtime, work, wave)
        return n / (perf_counter() - began)


async def _result() -> str:  # noqa: ASYNC124 - a work
    return RESULT


async def launch_and_ack_in_pure_trio(limit: Limit, n: int) -> None:
    """Do in a `Limit` what `launch_and_ack` does in a runtime."""
    for _ in range(n):
        await limit.launch(_result)
    told = 0
    async for note in limit:
        assert note.xml
        note.ack()
        told += 1
        if told == n:
            break


async def _launch_limit(n: int) -> float:
    async with Limit().opened() as limit:
        began = perf_counter()
        for wave in _waves(n):
            await launch_and_ack_in_pure_trio(limit, wave)
        return n / (perf_counter() - began)


async def _nothing() -> None:
    pass


async def _start_soon(n: int) -> float:
    began = perf_counter()
    for wave in _waves(n):
        async with trio.open_nursery() as nursery:
            for _ in range(wave):
                nursery.start_soon(_nothing)
    return n / (perf_counter() - began)


async def _start(n: int) -> float:
    async def acknowledge(**options: trio.TaskStatus[None]) -> None:
        options["task_status"].started()
        await _nothing()

    began = perf_counter()
    for wave in _waves(n):
        async with trio.open_nursery() as nursery:
            for _ in range(wave):
                await nursery.start(acknowledge)
    return n / (perf_counter() - began)


async def _create_task(n: int) -> float:
    began = perf_counter()
    for wave in _waves(n):
        async with asyncio.TaskGroup() as group:
            for _ in range(wave):
                group.create_task(_nothing())
    return n / (perf_counter() - began)


# A child of a supervisor, which has no target of its own


def _start_child_case(small: bool) -> Case:
    n = 100 if small else 3_000
    parts = [
        lambda: {"start_child": trio.run(_start_child, n)},
        lambda: {"bare": trio.run(_start_and_cancel, n)},
    ]
    rows = [
        Row(
            id="PF4",
            what="start_child, terminate_child / start and cancel a bare task",
            ours="start_child",
            base="bare",
            unit="1/s",
        )
    ]
    skipped: list[str] = []
    if beam.is_installed():
        parts.append(
            lambda: {"beam": beam.measure("start_child", 200 if small else 50_000)}
        )
        rows.append(
            Row(
                id="PF4",
                what="start_child, terminate_child / BEAM supervisor",
                ours="start_child",
                base="beam",
                unit="1/s",
            )
        )
    else:
        skipped.append(f"PF4: {beam.MISSING}")
    return Case(name="start_child", parts=parts, rows=rows, skipped=skipped)


async def _idle(ctx: Context[None]) -> None:
    async for _ in ctx.mailbox:
        pass


async def _start_child(n: int) -> float:
    async with listened_pool() as pool:
        spec = child("idle", _idle, restart="temporary")
        began = perf_counter()
        for _ in range(n):
            await pool.terminate_child(await pool.start_child(spec))
        return n / (perf_counter() - began)


async def _start_and_cancel(n: int) -> float:
    async def idle(
        scope: trio.CancelScope, began: trio.Event, ended: trio.Event
    ) -> None:
        with scope:
            began.set()
            await trio.sleep_forever()
        ended.set()

    async with trio.open_nursery() as nursery:
        first = perf_counter()
        for _ in range(n):
            scope, began, ended = trio.CancelScope(), trio.Event(), trio.Event()
            nursery.start_soon(idle, scope, began, ended)
            await began.wait()
            scope.cancel()
            await ended.wait()
        seconds = perf_counter() - first
    return n / seconds


# PF7


def _wake_case(small: bool) -> Case:
    n = 50 if small else 1_000
    return Case(
        name="wake",
        parts=[
            lambda: trio.run(_wait_for_task, n, "wait", False),
            lambda: trio.run(_wait_for_task, n, "journal", True),
            lambda: trio.run(_wait_for_notification, n),
            lambda: trio.run(_wait_for_limit, n),
            lambda: trio.run(_wait_for_event, n),
        ],
        rows=[
            Row(
                id="PF7",
                what="end to task.wait(), p50 / trio.Event, p50",
                ours="wait p50",
                base="event p50",
                unit="us",
                target=Target("<=", 5),
            ),
            Row(
                id="PF7",
                what="  the same, with the journal",
                ours="journal p50",
                base="event p50",
                unit="us",
            ),
            Row(
                id="PF7",
                what="  the same without it, p95",
                ours="wait p95",
                base="event p95",
                unit="us",
            ),
            Row(
                id="PF7",
                what="end to task.wait(), p50 / the same in pure trio, p50",
                ours="wait p50",
                base="limit p50",
                unit="us",
            ),
            Row(
                id="PF7",
                what="end to notification read, p95 / trio.Event, p95",
                ours="note p95",
                base="event p95",
                unit="us",
            ),
            Row(
                id="PF7",
                what="  the same, p50",
                ours="note p50",
                base="event p50",
                unit="us",
            ),
        ],
    )


def _percentiles(name: str, seconds: list[float]) -> Figures:
    return {
        f"{name} p50": percentile(seconds, 0.5) * 1e6,
        f"{name} p95": percentile(seconds, 0.95) * 1e6,
    }


class Stopwatch(InProcess):
    """Runs from the last line of a task to the first of whoever waited for it."""

    def __init__(self) -> None:
        self.go = trio.Event()
        self._began = 0.0

    async def wait_and_begin(self) -> None:
        """Be the task: wait until told to end, and end."""
        await self.go.wait()
        self._began = perf_counter()

    async def run(self, ctx: Context[object], report: Report) -> object:
        """See `wait_and_begin`."""
        await self.wait_and_begin()
        return RESULT

    def read(self) -> float:
        """Return the seconds since the end of the task."""
        return perf_counter() - self._began


async def _wait_for_task(n: int, name: str, journal: bool) -> Figures:
    seconds: list[float] = []
    async with listened_runtime(journal=journal) as runtime:
        for _ in range(n):
            watch = Stopwatch()
            task = await runtime.launch(watch)

            async def wait() -> None:
                await task.wait()  # noqa: B023 - done before the next turn
                seconds.append(watch.read())  # noqa: B023

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                watch.go.set()
            for note in runtime.notifications.drain():
                note.ack()
    return _percentiles(name, seconds)


async def _wait_for_notification(n: int) -> Figures:
    seconds: list[float] = []
    async with listened_runtime(journal=False) as runtime:
        for _ in range(n):
            watch = Stopwatch()
            await runtime.launch(watch)

            async def read() -> None:
                note = await anext(runtime.notifications)
                seconds.append(watch.read())  # noqa: B023 - done before the next turn
                note.ack()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await trio.testing.wait_all_tasks_blocked()
                watch.go.set()
    return _percentiles("note", seconds)


async def _wait_for_limit(n: int) -> Figures:
    seconds: list[float] = []
    async with Limit().opened() as limit:
        for _ in range(n):
            watch = Stopwatch()

            async def run() -> str:
                await watch.wait_and_begin()  # noqa: B023 - done before the next turn
                return RESULT

            task = await limit.launch(run)

            async def wait() -> None:
                await task.wait()  # noqa: B023
                seconds.append(watch.read())  # noqa: B023

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                watch.go.set()
            (await anext(limit)).ack()
    return _percentiles("limit", seconds)


async def _wait_for_event(n: int) -> Figures:
    seconds: list[float] = []
    for _ in range(n):
        watch = Stopwatch()
        ended = trio.Event()

        async def run() -> None:
            await watch.wait_and_begin()  # noqa: B023 - done before the next turn
            ended.set()  # noqa: B023

        async def wait() -> None:
            await ended.wait()  # noqa: B023
            seconds.append(watch.read())  # noqa: B023

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            watch.go.set()
    return _percentiles("event", seconds)
