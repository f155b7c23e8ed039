"""``python -m bench.zoo``: what tries to outlive its task, and what ends it.

Each animal is a real process tree that leaves its task in some way. Each way is
a way in which the task, or the runtime, or its guardian ends. An observer, a
process of its own that reads ``/proc`` and nothing of ours, says what is left:
a single process, or a task that does not tell the truth, is a miss.

``--slow`` holds the guardians up (`_slow_guardian`), ``--busy N`` starts as many
busy loops beside them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from actors import TaskStatus
from actors.shell import Shell
from supervisor.runtime import Runtime, TaskHandle, TaskSnapshot, open_runtime

from ._animals import Animal, Specimen
from ._kinds import ANIMALS
from ._observer import SETTLING, Observer, bear_mark, end_marked, open_observer, settle
from ._slow_guardian import hold_up_guardians

T = TypeVar("T")

GRACE = 0.4
LINGER = 0.2
RUNTIME_DEATH = 2.0
"""Seconds after which nothing may be left of a runtime that was killed."""
TOGETHER = 8
"""How many are met at the same time: many more would starve one another, and load
is for ``--busy`` to make."""
PATIENCE = 15.0
"""Seconds after which a task has ended, however its guardian was attacked."""

_HOST = """
import json, sys, trio
from actors.shell import Shell
from bench._slow_guardian import hold_up_guardians
from supervisor.runtime import open_runtime

async def main():
    order = json.loads(sys.stdin.readline())
    if order["slow"]:
        hold_up_guardians()
    async with open_runtime(order["directory"]) as runtime:
        tasks = [await runtime.launch(Shell(command)) for command in order["commands"]]
        pids = [0] * len(tasks)
        while not all(pid or it.status.is_terminal for pid, it in zip(pids, tasks)):
            await trio.sleep(0.005)
            pids = [pid or it.snapshot().pid or 0 for pid, it in zip(pids, tasks)]
        print(json.dumps(pids), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)  # Until the zoo has ended.

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
            # It may end its guardian, and so itself, at once.
            while not (it.specimen.pid or it.task.status.is_terminal):
                await trio.sleep(0.002)
                it.specimen.pid = it.snapshot().pid or 0
    alive = [it.specimen for it in loose if not it.task.status.is_terminal]
    await settle(alive, observer)
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


End = tuple[TaskStatus, int | None, int | None]


def _expect_end(it: Loose, snapshot: TaskSnapshot, *ends: End) -> None:
    """Note a miss unless it ended in one of these ways, or by its own attack."""
    end = snapshot.status, snapshot.exit_code, snapshot.signal
    if it.specimen.animal.attacks:
        ends = *ends, (TaskStatus.FAILED, None, None), (TaskStatus.KILLED, None, None)
    it.specimen.expect("the end", end, *ends)
    it.specimen.expect("the task's status", it.task.status, snapshot.status)


def _expect_stopped(it: Loose, snapshot: TaskSnapshot, *signals: int) -> None:
    _expect_end(it, snapshot, *[(TaskStatus.KILLED, None, one) for one in signals])


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
            _expect_end(
                it,
                result.snapshot,
                (TaskStatus.FAILED, 3, None),
                (TaskStatus.KILLED, 3, None),
                (TaskStatus.KILLED, None, 15),
                (TaskStatus.KILLED, None, 9),
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
            _expect_end(it, snapshot, (TaskStatus.FAILED, 3, None))
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
    directory: Path,
    specimens: list[Specimen],
    observer: Observer,
    *,
    inner: bool = False,
    outer: bool = False,
) -> Outcome:
    async with open_runtime(directory) as runtime:
        loose = await let_loose(runtime, specimens, observer)
        guardian = _parent(specimens[0].pid)
        other = _parent(guardian)
        assert not {guardian, other} & {os.getpid(), 1}
        for pid in [guardian] * inner + [other] * outer:
            os.kill(pid, signal.SIGKILL)

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
    return await _kill_guardian(directory, specimens, observer, inner=True)


async def kill_outer_guardian(
    directory: Path, specimens: list[Specimen], observer: Observer
) -> Outcome:
    """kill -9 of the guardian's outer process."""
    return await _kill_guardian(directory, specimens, observer, outer=True)


async def kill_both_guardians(
    directory: Path, specimens: list[Specimen], observer: Observer
) -> Outcome:
    """kill -9 of both, so that only the runtime is left to end anything."""
    return await _kill_guardian(directory, specimens, observer, inner=True, outer=True)


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
            "slow": observer.slow,
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
            left = [it for it in left if found[it.word] or it.is_held()]
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
    "kill -9 of both guardians": kill_both_guardians,
}
OF_ATTACKERS = [
    "stop",
    "stop now",
    "end of the leader",
    "end of the block",
    "kill -9 of the runtime",
]
"""The ways that those meet who attack their guardian themselves."""


async def meet(
    way: str, animals: list[Animal], observer: Observer, directory: Path
) -> list[Meeting]:
    """Let all ``animals`` loose at the same time and end them in this ``way``."""
    here = directory / f"z{uuid.uuid4().hex}"
    here.mkdir(parents=True)
    here.chmod(0o755)
    specimens = [Specimen(animal, here, observer.beast) for animal in animals]
    try:
        outcome = await WAYS[way](here, specimens, observer)
    finally:
        for specimen in specimens:
            specimen.close()
    for specimen, (_, seconds) in zip(specimens, outcome, strict=True):
        if specimen.animal.attacks and seconds > PATIENCE:
            specimen.misses.append(f"it took {seconds:.1f} s")
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


def bound(missed: int, meetings: int, confidence: float = 0.95) -> float:
    """Return the share of misses that is not exceeded, with this confidence.

    The one at which so few would be missed with a probability of 5 %.
    """
    if missed >= meetings:
        return 1.0
    low, high = missed / meetings, 1.0
    for _ in range(60):
        share = (low + high) / 2
        few = math.fsum(
            math.exp(
                math.lgamma(meetings + 1)
                - math.lgamma(n + 1)
                - math.lgamma(meetings - n + 1)
                + n * math.log(share)
                + (meetings - n) * math.log1p(-share)
            )
            for n in range(missed + 1)
        )
        low, high = (share, high) if few > 1 - confidence else (low, share)
    return high


def format_bound(missed: int, meetings: int) -> str:
    """Return what so many meetings show: ``0 of 300: below 1 % at 95 %``."""
    percent = 100 * bound(missed, meetings)
    scale = 10 ** (math.floor(math.log10(percent)) - 1)
    return (
        f"{missed} of {meetings}: below"
        f" {math.ceil(percent / scale - 1e-6) * scale:.2g} % at 95 %"
    )


def select(what: str, wanted: str | None, known: dict[str, T]) -> list[T]:
    """Return those whose name is, or else contains, one of the words between commas.

    Raises:
        ValueError: for a word that none contains; it names them all.
    """
    if wanted is None:
        return [*known.values()]
    chosen: set[str] = set()
    for word in map(str.strip, wanted.split(",")):
        found = {word} & {*known} or {name for name in known if word in name}
        if not found:
            raise ValueError(f"no {what} {word!r}, only {'; '.join(known)}")
        chosen |= found
    return [it for name, it in known.items() if name in chosen]


@contextmanager
def _busy(loops: int) -> Generator[None]:
    program = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
    busy = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


async def _all(
    rounds: int,
    animals: list[Animal],
    ways: list[str],
    slow: bool,
    directory: Path,
    meetings: list[Meeting],
) -> None:
    together = [animal for animal in animals if not animal.attacks]
    alone = [animal for animal in animals if animal.attacks]
    async with open_observer(directory, slow=slow) as observer:
        for _ in range(rounds):
            for way in ways:
                random.shuffle(together)
                for some in range(0, len(together), TOGETHER):
                    meetings += await meet(
                        way, together[some : some + TOGETHER], observer, directory
                    )
                for animal in alone if way in OF_ATTACKERS else []:
                    meetings += await meet(way, [animal], observer, directory)


def main(arguments: list[str] | None = None) -> int:
    """Be the command; the exit code is 1 if anything was missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.zoo")
    parser.add_argument(
        "--rounds", type=int, default=10, metavar="N", help="meetings of each (10)"
    )
    parser.add_argument(
        "--kinds", metavar="A,B", help="those whose name is or contains A or B"
    )
    parser.add_argument("--ways", metavar="A,B", help="likewise")
    parser.add_argument("--slow", action="store_true", help="hold the guardians up")
    parser.add_argument(
        "--busy", type=int, default=0, metavar="N", help="busy loops beside them (0)"
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds must be 1 or more, not {options.rounds}")
    if options.busy < 0:
        parser.error(f"--busy must be 0 or more, not {options.busy}")
    try:
        animals = select("kind", options.kinds, {it.name: it for it in ANIMALS})
        ways = select("way", options.ways, {way: way for way in WAYS})
    except ValueError as error:
        parser.error(str(error))
    skipped = {it.name: reason for it in animals if (reason := it.missing())}
    animals = [animal for animal in animals if animal.name not in skipped]
    meetings: list[Meeting] = []
    mark = bear_mark()
    if options.slow:
        hold_up_guardians()
    # Where another user may go, too.
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    try:
        with _busy(options.busy):
            trio.run(_all, options.rounds, animals, ways, options.slow, place, meetings)
    except* KeyboardInterrupt:
        print("interrupted; this is what there was until then")
    finally:
        strays = end_marked(mark)
        shutil.rmtree(place, ignore_errors=True)
    print(format_meetings(meetings))
    missed = [meeting for meeting in meetings if meeting.misses]
    for meeting in missed:
        print(meeting.animal, "/", meeting.way, ":", *meeting.misses)
    for name, reason in skipped.items():
        print(f"left out: {name}: {reason}")
    for stray in strays:
        print(f"left at the end: {stray}")
    kinds = len({meeting.animal for meeting in meetings})
    print(f"{len(meetings)} meetings of {kinds} kinds, {len(skipped)} kinds left out")
    if meetings:
        print(f"missed: {format_bound(len(missed), len(meetings))}")
    return 1 if missed or strays else 0


if __name__ == "__main__":
    sys.exit(main())
