"""PF21 to PF24: what the journal of a runtime costs."""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

import trio

from actors.shell import Shell
from supervisor.runtime import Runtime, open_runtime

from ._case import Case, Figures, Row, Target
from ._listened import listened_runtime
from .tasks import InProcess, launch_and_ack

_WAVE = 1_000
_AT_ONCE = 20
_COMMAND = "make test"
_NAME = "journal.jsonl"


def cases(small: bool) -> list[Case]:
    """Return the cases of this theme."""
    return [
        _launch_case(200 if small else 5_000),
        _durable_case(40 if small else 2_000),
        _recovery_case(100 if small else 10_000),
        _bytes_case(4 if small else 40),
    ]


async def _listen(runtime: Runtime) -> None:
    async for _ in runtime.events:
        pass


# Launching


def _launch_case(count: int) -> Case:
    return Case(
        name="the journal, launching",
        parts=[
            partial(_launched, "off", count, journal=False),
            partial(_launched, "on", count, journal=True),
        ],
        rows=[
            Row(
                id="PF21",
                what="launch to ack, with the journal / without",
                ours="on",
                base="off",
                unit="tasks/s",
                target=Target(">=", 0.7),
            )
        ],
    )


def _launched(name: str, count: int, *, journal: bool) -> Figures:
    async def run() -> float:
        async with listened_runtime(journal=journal) as runtime:
            began = perf_counter()
            for done in range(0, count, _WAVE):
                wave = min(_WAVE, count - done)
                await launch_and_ack(runtime, InProcess(), wave)
            seconds = perf_counter() - began
        return count / seconds

    return {name: trio.run(run)}


def _durable_case(count: int) -> Case:
    return Case(
        name="the journal, durable",
        parts=[
            partial(_at_once, "off", count, journal=False, durable=False),
            partial(_at_once, "durable", count, journal=True, durable=True),
        ],
        rows=[
            Row(
                id="PF22",
                what=f"launch to ack, {_AT_ONCE} at once, durable / without a journal",
                ours="durable",
                base="off",
                unit="tasks/s",
                target=Target(">=", 0.5),
            )
        ],
    )


def _at_once(name: str, count: int, *, journal: bool, durable: bool) -> Figures:
    return {name: trio.run(_launch_at_once, count, journal, durable)}


async def _launch_at_once(count: int, journal: bool, durable: bool) -> float:
    """Launch tasks by 20 who each go on when `launch` has returned."""
    work = InProcess()
    turns = iter(range(count))
    with tempfile.TemporaryDirectory() as directory:
        async with open_runtime(directory, journal=journal, durable=durable) as runtime:

            async def launch() -> None:
                for _ in turns:
                    await runtime.launch(work, owner="main")
                    await trio.lowlevel.checkpoint()

            async def read() -> None:
                told = 0
                async for note in runtime.notifications:
                    note.ack()
                    told += 1
                    if told == count:
                        break

            began = perf_counter()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_listen, runtime)
                async with trio.open_nursery() as launching:
                    launching.start_soon(read)
                    for _ in range(_AT_ONCE):
                        launching.start_soon(launch)
                await runtime.synced()
                nursery.cancel_scope.cancel()
            return count / (perf_counter() - began)


# Recovery


def _recovery_case(count: int) -> Case:
    return Case(
        name="the journal, recovery",
        parts=[partial(_recovered, count)],
        rows=[
            Row(
                id="PF23",
                what=f"{count:,} shells of a program that died recovered / lines read",
                ours="recovery",
                base="read",
                unit="s",
                target=Target("<=", 2.0, of="ours"),
            )
        ],
    )


def _recovered(count: int) -> Figures:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        _leave(directory, count)
        began = perf_counter()
        with (directory / _NAME).open("rb") as file:
            assert sum(1 for _ in map(json.loads, file)) > count
        read = perf_counter() - began
        return {"recovery": trio.run(_recover, directory, count), "read": read}


def _leave(directory: Path, count: int) -> None:
    """Write what a program leaves that dies with so many shells. Half of them have
    ended, and nobody has acknowledged that."""
    at = "2026-11-23T00:00:00.000+00:00"
    lines: list[dict[str, object]] = [{"k": "journal", "v": 1, "at": at}]
    for number in range(count):
        task = f"s{number:08x}"
        run, output = f"{task}-{number + 1:06}", f"{task}.output"
        (directory / output).write_text("line 1\nline 2\n")
        start: dict[str, object] = {
            "k": "start",
            "r": run,
            "y": "local_bash",
            "at": at,
            "d": _COMMAND,
        }
        lines.append(start | {"o": "main", "c": _COMMAND, "f": output})
        if number % 2:
            note = f"n{number // 2 + 1:06}"
            end: dict[str, object] = {
                "k": "end",
                "r": run,
                "s": "completed",
                "at": at,
                "n": note,
            }
            summary = f'Background command "{_COMMAND}" completed (exit code 0)'
            lines.append(end | {"m": summary, "x": 0, "z": 12})
    text = "".join(f"{json.dumps(it)}\n" for it in lines)
    (directory / _NAME).write_text(text)


async def _recover(directory: Path, count: int) -> float:
    began = perf_counter()
    async with open_runtime(directory) as runtime:
        seconds = perf_counter() - began
        notes = runtime.notifications.drain()
        while len(notes) < count:
            await trio.lowlevel.checkpoint()
            notes += runtime.notifications.drain()
        assert len(notes) == count, len(notes)
        for note in notes:
            note.ack()
    return seconds


# Size


def _bytes_case(count: int) -> Case:
    return Case(
        name="the journal, size",
        parts=[lambda: trio.run(_written, count)],
        rows=[
            Row(
                id="PF24",
                what="bytes of the journal for a shell, from launch to ack / its records",
                ours="bytes",
                base="records",
                unit="bytes",
                target=Target("<=", 800, of="ours"),
            )
        ],
    )


async def _written(count: int) -> Figures:
    with tempfile.TemporaryDirectory() as directory:
        async with open_runtime(directory) as runtime:
            before = len(_journal(directory))
            for _ in range(count):
                await runtime.launch(Shell("make -C /srv/app test"), owner="main")
            told = 0
            async for note in runtime.notifications:
                note.ack()
                told += 1
                if told == count:
                    break
            lines = _journal(directory)[before:]
    return {"bytes": len(lines) / count, "records": lines.count(b"\n") / count}


def _journal(directory: str) -> bytes:
    return Path(directory, _NAME).read_bytes()
