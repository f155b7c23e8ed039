"""``python -m bench.zoo``: what tries to outlive its task, and what ends it.

Each animal is a real process tree that leaves its task in some way. Each way is
a way in which the task, or the runtime, or its guardian ends. An observer, a
process of its own that reads ``/proc`` and nothing of ours, says what is left:
a single process, or a task that does not tell the truth, is a miss.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs
import trio

from actors import TaskStatus
from actors.shell import Shell
from supervisor.runtime import Runtime, TaskHandle, TaskSnapshot, open_runtime

from ._animals import ANIMALS, Animal, Specimen
from ._observer import SETTLING, Observer, open_observer, settle

GRACE = 0.4
LINGER = 0.2
RUNTIME_DEATH = 2.0
"""Seconds after which nothing may be left of a runtime that was killed."""

_HOST = """
import json, sys, trio
from actors.shell import Shell
from supervisor.runtime import open_runtime

async def main():
    order = json.loads(sys.stdin.readline())
    async with open_runtime(order["directory"]) as runtime:
        tasks = [await runtime.launch(Shell(command)) for command in order["commands"]]
        while any(task.snapshot().pid is None for task in tasks):
            await trio.sleep(0.005)
        print(json.dumps([task.snapshot().pid for task in tasks]), flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@attrs.frozen(kw_only=True)
class Meeting:
    """What came of one animal and one way."""

    animal: str
    way: str
    escaped: tuple[str, ...]
    """What tied it to its task and no longer does, as the observer saw it."""
    ended_by: str
    seconds: float
    misses: tuple[str, ...]


@attrs.frozen
class Loose:
    """A specimen and its task."""

    specimen: Specimen
    task: TaskHandle

    def snapshot(self) -> TaskSnapshot:
        return self.task.snapshot()


async def let_loose(
    runtime: Runtime,
    specimens: list[Specimen],
    observer: Observer,
    *,
    leader_ends: bool = False,
) -> list[Loose]:
    loose: list[Loose] = []
    for specimen in specimens:
        shell = Shell(
            specimen.command(leader_ends=leader_ends), grace=GRACE, linger=LINGER
        )
        loose.append(Loose(specimen, await runtime.launch(shell)))
    with trio.fail_after(SETTLING):
        for it in loose:
            while (pid := it.snapshot().pid) is None:  # noqa: ASYNC110 - no event tells
                await trio.sleep(0.002)
            it.specimen.pid = pid
    await settle(specimens, observer)
    return loose


async def _each(
    loose: list[Loose], end: Callable[[Loose], Awaitable[str]]
) -> list[tuple[str, float]]:
    """End each, all at once; return what has ended it, and how long it took."""
    results = [("", 0.0)] * len(loose)

    async def one(index: int) -> None:
        began = trio.current_time()
        ended_by = await end(loose[index])
        results[index] = ended_by, trio.current_time() - began

    async with trio.open_nursery() as nursery:
        for index in range(len(loose)):
            nursery.start_soon(one, index)
    return results


def _by_signal(began: float) -> str:
    # What heeds SIGTERM is gone before the grace is over.
    return "SIGTERM" if trio.current_time() - began < GRACE else "SIGKILL"


def _expect_stopped(it: Loose, snapshot: TaskSnapshot, *signals: int) -> None:
    it.specimen.expect("status", snapshot.status, TaskStatus.KILLED)
    it.specimen.expect("exit code", snapshot.exit_code, None)
    it.specimen.expect("signal", snapshot.signal, *signals)
    it.specimen.expect("the task's status", it.task.status, snapshot.status)


Outcome = list[tuple[str, float]]


async def stop(
    directory: Path, specimens: list[Specimen], observer: Observer
) -> Outcome:
    """One stop: SIGTERM, the grace, SIGKILL."""
    async with open_runtime(directory) as runtime:

        async def end(it: Loose) -> str:
            began = trio.current_time()
            result = await runtime.stop(it.task.id)
            ended_by = _by_signal(began)
            await observers.check(it)
            it.specimen.expect("survivors", result.survivors, ())
            _expect_stopped(it, result.snapshot, 9 if it.specimen.animal.deaf else 15)
            return ended_by

        observers = _Shared(observer)
        return await _each(await let_loose(runtime, specimens, observer), end)


class _Shared:
    """An observer that several tasks ask, one after the other."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._lock = trio.Lock()

    async def check(self, it: Loose) -> None:
        async with self._lock:
            await self._observer.check_gone([it.specimen])


async def stop_now(
    directory: Path, specimens: list[Specimen], observer: Observer
) -> Outcome:
    """A stop without any grace."""
    async with open_runtime(directory) as runtime:
        observers = _Shared(observer)

        async def end(it: Loose) -> str:
            result = await runtime.stop(it.task.id, now=True)
            await observers.check(it)
            it.specimen.expect("survivors", result.survivors, ())
            _expect_stopped(it, result.snapshot, 9)
            return "SIGKILL"

        return await _each(await let_loose(runtime, specimens, observer), end)


async def two_stops(
    directory: Path, specimens: list[Specimen], observer: Observer
) -> Outcome:
    """Two stops at once, one of them without a grace as it may happen."""
    async with open_runtime(directory) as runtime:
        observers = _Shared(observer)

        async def end(it: Loose) -> str:
            async def one(now: bool) -> None:
                result = await runtime.stop(it.task.id, now=now)
                it.specimen.expect("survivors", result.survivors, ())
                _expect_stopped(it, result.snapshot, 9, 15)

            hurried = random.random() < 0.5
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one, False)
                nursery.start_soon(one, hurried)
            ended_by = "SIGKILL" if hurried else _by_signal(began)
            await observers.check(it)
            return ended_by

        return await _each(await let_loose(runtime, specimens, observer), end)


async def stop_as_it_ends(
    directory: Path, specimens: list[Specimen], observer: Observer
) -> Outcome:
    """The leader ends by itself while it is being stopped."""
    async with open_runtime(directory) as runtime:
        observers = _Shared(observer)

        async def end(it: Loose) -> str:
            it.specimen.go.touch()
            await trio.sleep(random.uniform(0, 0.03))
            began = trio.current_time()
            result = await runtime.stop(it.task.id)
            ended_by = _by_signal(began)
            await observers.check(it)
            it.specimen.expect("survivors", result.survivors, ())
            snapshot = result.snapshot
            ends = {
                (TaskStatus.FAILED, 3, None),
                (TaskStatus.KILLED, 3, None),
                (TaskStatus.KILLED, None, 15),
                (TaskStatus.KILLED, None, 9),
            }
            it.specimen.expect(
                "the end", (snapshot.status, snapshot.exit_code, snapshot.signal), *ends
            )
            return ended_by

        loose = await let_loose(runtime, specimens, observer, leader_ends=True)
        return await _each(loose, end)


async def stop_as_it_starts(
    directory: Path, specimens: list[Specimen], observer: Observer
) -> Outcome:
    """The stop comes before, during or just after the start."""
    async with open_runtime(directory) as runtime:
        loose: list[Loose] = []
        for specimen in specimens:
            shell = Shell(specimen.command(leader_ends=False), grace=GRACE)
            loose.append(Loose(specimen, await runtime.launch(shell)))
        observers = _Shared(observer)

        async def end(it: Loose) -> str:
            for _ in range(random.randrange(40)):
                await trio.lowlevel.checkpoint()
            began = trio.current_time()
            result = await runtime.stop(it.task.id)
            ended_by = _by_signal(began)
            await observers.check(it)
            it.specimen.expect("survivors", result.survivors, ())
            it.specimen.expect("status", result.snapshot.status, TaskStatus.KILLED)
            return ended_by

        return await _each(loose, end)


async def end_of_the_leader(
    directory: Path, specimens: list[Specimen], observer: Observer
) -> Outcome:
    """The leader exits; the rest has a moment, and is ended before the task is."""
    outcome: Outcome = []
    async with open_runtime(directory) as runtime:
        # One after the other: an orphan with nothing left that ties it to its
        # task belongs to the only one there is.
        for specimen in specimens:
            (it,) = await let_loose(runtime, [specimen], observer, leader_ends=True)
            began = trio.current_time()
            specimen.go.touch()
            snapshot = await it.task.wait()
            seconds = trio.current_time() - began
            await observer.check_gone([specimen])
            specimen.expect("status", snapshot.status, TaskStatus.FAILED)
            specimen.expect("exit code", snapshot.exit_code, 3)
            specimen.expect("signal", snapshot.signal, None)
            outcome.append(("exit" if seconds < LINGER else "SIGKILL", seconds))
    return outcome


async def end_of_the_block(
    directory: Path, specimens: list[Specimen], observer: Observer
) -> Outcome:
    """The runtime's block is left."""
    async with open_runtime(directory) as runtime:
        loose = await let_loose(runtime, specimens, observer)
        began = trio.current_time()
    seconds = trio.current_time() - began
    await observer.check_gone(specimens)
    told = Counter(note.task_id for note in runtime.notifications.drain())
    for it in loose:
        it.specimen.expect("the number of records", told[it.task.id], 1)
        _expect_stopped(it, it.snapshot(), 9 if it.specimen.animal.deaf else 15)
    return [("the end of the block", seconds)] * len(loose)


async def _kill_guardian(
    directory: Path, specimens: list[Specimen], observer: Observer, *, outer: bool
) -> Outcome:
    async with open_runtime(directory) as runtime:
        loose = await let_loose(runtime, specimens, observer)
        guardian = _parent(specimens[0].pid)
        if outer:
            guardian = _parent(guardian)
        assert guardian not in (os.getpid(), 1)
        os.kill(guardian, signal.SIGKILL)

        async def end(it: Loose) -> str:
            snapshot = await it.task.wait()
            async with lock:
                await observer.check_gone([it.specimen])
            it.specimen.expect("status", snapshot.status, TaskStatus.FAILED)
            it.specimen.expect("exit code", snapshot.exit_code, None)
            it.specimen.expect("signal", snapshot.signal, None)
            message = "" if snapshot.error is None else snapshot.error.message
            it.specimen.expect(
                f"that {message!r} names the guardian", "guardian" in message, True
            )
            return "its other half"

        lock = trio.Lock()
        outcome = await _each(loose, end)
        after = await runtime.run(Shell("exit 4"))
        specimens[0].expect("the next exit code", after.exit_code, 4)
        return outcome


async def kill_guardian(
    directory: Path, specimens: list[Specimen], observer: Observer
) -> Outcome:
    """kill -9 of the working guardian."""
    return await _kill_guardian(directory, specimens, observer, outer=False)


async def kill_outer_guardian(
    directory: Path, specimens: list[Specimen], observer: Observer
) -> Outcome:
    """kill -9 of the guardian's outer process."""
    return await _kill_guardian(directory, specimens, observer, outer=True)


async def kill_runtime(
    directory: Path, specimens: list[Specimen], observer: Observer
) -> Outcome:
    """kill -9 of the process with the runtime in it."""
    host = await trio.lowlevel.open_process(
        [sys.executable, "-c", _HOST],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )
    assert host.stdin is not None and host.stdout is not None
    try:
        order = {
            "directory": str(directory),
            "commands": [it.command(leader_ends=False) for it in specimens],
        }
        await host.stdin.send_all(json.dumps(order).encode() + b"\n")
        line = b""
        with trio.fail_after(SETTLING):
            while not line.endswith(b"\n"):
                line += await host.stdout.receive_some()
        for specimen, pid in zip(specimens, json.loads(line), strict=True):
            specimen.pid = pid
        await settle(specimens, observer)
        host.kill()
        began = trio.current_time()
        seconds = dict.fromkeys((it.word for it in specimens), 0.0)
        left = specimens
        while left and trio.current_time() - began < RUNTIME_DEATH:
            found = await observer.look(it.word for it in left)
            for it in left:
                seconds[it.word] = trio.current_time() - began
            left = [it for it in left if found[it.word]]
        await observer.check_gone(specimens)
        return [("the guardian", seconds[it.word]) for it in specimens]
    finally:
        host.kill()
        with trio.move_on_after(10, shield=True):
            await host.wait()
            await host.stdin.aclose()
            await host.stdout.aclose()


def _parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(") ")[2].split()[1])


WAYS = {
    "stop": stop,
    "stop now": stop_now,
    "two stops at once": two_stops,
    "stop as it ends": stop_as_it_ends,
    "stop as it starts": stop_as_it_starts,
    "end of the leader": end_of_the_leader,
    "end of the block": end_of_the_block,
    "kill -9 of the runtime": kill_runtime,
    "kill -9 of the guardian": kill_guardian,
    "kill -9 of the outer guardian": kill_outer_guardian,
}


async def meet(
    way: str, animals: list[Animal], observer: Observer, directory: Path
) -> list[Meeting]:
    """Let all ``animals`` loose at the same time and end them in this ``way``."""
    here = directory / f"z{uuid.uuid4().hex}"
    here.mkdir(parents=True)
    specimens = [Specimen(animal, here) for animal in animals]
    outcome = await WAYS[way](here, specimens, observer)
    return [
        Meeting(
            animal=specimen.animal.name,
            way=way,
            escaped=specimen.escaped,
            ended_by=ended_by,
            seconds=seconds,
            misses=tuple(specimen.misses),
        )
        for specimen, (ended_by, seconds) in zip(specimens, outcome, strict=True)
    ]


def format_meetings(meetings: list[Meeting]) -> str:
    """Return the table: a line for each animal and way."""
    groups: dict[tuple[str, str], list[Meeting]] = defaultdict(list)
    for meeting in meetings:
        groups[meeting.animal, meeting.way].append(meeting)
    lines = [
        "| animal | way | escaped | ended by | n | median ms | max ms | misses |",
        "|---|---|---|---|---:|---:|---:|---:|",
    ]
    for (animal, way), group in sorted(
        groups.items(), key=lambda item: [it.name for it in ANIMALS].index(item[0][0])
    ):
        escaped = ", ".join(sorted({name for it in group for name in it.escaped}))
        ended_by = " or ".join(sorted({it.ended_by for it in group}))
        times = [1000 * it.seconds for it in group]
        misses = sum(bool(it.misses) for it in group)
        lines.append(
            f"| {animal} | {way} | {escaped or 'nothing'} | {ended_by} | {len(group)}"
            f" | {statistics.median(times):.0f} | {max(times):.0f} | {misses} |"
        )
    return "\n".join(lines)


async def _all(times: int, directory: Path, meetings: list[Meeting]) -> None:
    async with open_observer() as observer:
        for _ in range(times):
            for way in WAYS:
                meetings += await meet(way, ANIMALS, observer, directory)


def main(arguments: list[str] | None = None) -> int:
    """Be the command; the exit code is 1 if anything was missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.zoo")
    parser.add_argument(
        "--times", type=int, default=10, metavar="N", help="rounds (10)"
    )
    options = parser.parse_args(arguments)
    if options.times < 1:
        parser.error(f"--times must be 1 or more, not {options.times}")
    meetings: list[Meeting] = []
    with tempfile.TemporaryDirectory() as directory:
        try:
            trio.run(_all, options.times, Path(directory), meetings)
        except* KeyboardInterrupt:
            print("interrupted; this is what there was until then")
    print(format_meetings(meetings))
    missed = [meeting for meeting in meetings if meeting.misses]
    for meeting in missed:
        print(meeting.animal, "/", meeting.way, ":", *meeting.misses)
    print(f"{len(meetings)} meetings, {len(missed)} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
