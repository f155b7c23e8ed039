"""``python -m bench.soak``: a day of work in minutes, and whether anything grows.

Every hour of the day is a batch of real shell commands and of tasks that end at
once; each ends in one notification, which a reader acknowledges. After every
hour the memory, descriptors, threads, processes and files are counted.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import attrs
import trio

from actors.shell import Shell
from supervisor.runtime import Limits, Runtime, open_runtime

from .tasks import InProcess

_HOURS = 24
_SHELLS_AT_ONCE = 16
_UNREAD = 1_000
# Some of everything that a day brings.
_COMMANDS = (
    "true",
    "echo one line",
    "exit 3",
    "seq 200",
    "sleep 0.01 & echo left behind",
    r"printf '\033[31mred\033[0m\rredrawn\n'",
)


@attrs.frozen
class Count:
    """What was there at one moment."""

    rss_kb: int
    """Resident memory of this process and of those that it started."""
    descriptors: int
    threads: int
    processes: int
    files: int
    """In the directory of the output files."""


def main(arguments: list[str] | None = None) -> int:
    """Be the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak")
    parser.description = (
        "Run a day of tasks in minutes and show whether anything grows."
    )
    parser.add_argument("--shells", type=int, default=50_000, metavar="N")
    parser.add_argument(
        "--notifications", type=int, default=500_000, metavar="N", help="all in all"
    )
    options = parser.parse_args(arguments)
    if not 0 < options.shells <= options.notifications:
        parser.error("there is one notification for each shell, and at least one shell")
    if not sys.platform.startswith("linux"):
        parser.error("it counts what there is in /proc, which only Linux has")
    with tempfile.TemporaryDirectory() as directory:
        counts = trio.run(
            _run_day, Path(directory), options.shells, options.notifications
        )
    grown = growth(counts)
    print("nothing grew" if not grown else f"grew: {', '.join(grown)}")
    return 1 if grown else 0


def growth(counts: list[Count]) -> list[str]:
    """Return what there is more of at the end than after the first sixth of the
    day, when all caches are full; of memory, more than a tenth."""
    early, last = counts[len(counts) // 6], counts[-1]
    found: list[str] = []
    if last.rss_kb > early.rss_kb * 1.1:
        found.append(f"memory from {early.rss_kb} kB to {last.rss_kb} kB")
    for name in ("descriptors", "threads", "processes", "files"):
        before, after = getattr(early, name), getattr(last, name)
        if after > before:
            found.append(f"{name} from {before} to {after}")
    return found


async def _run_day(directory: Path, shells: int, notifications: int) -> list[Count]:
    counts: list[Count] = []
    print("hour  shells  notes    MB  fds  threads  processes  files  seconds")
    async with open_runtime(
        directory, limits=Limits(shells=_SHELLS_AT_ONCE)
    ) as runtime:
        told = 0
        async with trio.open_nursery() as nursery:

            async def read_events() -> None:
                async for _ in runtime.events:
                    pass

            nursery.start_soon(read_events)
            for hour in range(_HOURS):
                began = perf_counter()
                number = (hour + 1) * shells // _HOURS - hour * shells // _HOURS
                told += await _run_hour(
                    runtime,
                    number,
                    (hour + 1) * notifications // _HOURS
                    - hour * notifications // _HOURS
                    - number,
                )
                gc.collect()
                counts.append(count(directory))
                last = counts[-1]
                print(
                    f"{hour + 1:4}  {(hour + 1) * shells // _HOURS:6}  {told:5}"
                    f"  {last.rss_kb / 1024:4.0f}  {last.descriptors:3}"
                    f"  {last.threads:7}  {last.processes:9}  {last.files:5}"
                    f"  {perf_counter() - began:7.1f}",
                    flush=True,
                )
            nursery.cancel_scope.cancel()
    assert told == notifications, (told, notifications)
    return counts


async def _run_hour(runtime: Runtime, shells: int, others: int) -> int:
    """Launch the tasks of one hour and acknowledge each; return how many."""
    seen: set[str] = set()
    # As an agent does that reads its notifications: the backlog never fills up.
    room = trio.Semaphore(_UNREAD)

    async def launch_shells() -> None:
        for number in range(shells):
            await room.acquire()
            await runtime.launch(Shell(_COMMANDS[number % len(_COMMANDS)], linger=0.1))

    async def launch_others() -> None:
        for _ in range(others):
            await room.acquire()
            await runtime.launch(InProcess())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(launch_shells)
        nursery.start_soon(launch_others)
        async for note in runtime.notifications:
            # Not the task's id: of so many, two that never met may share one.
            run_id = note.xml.partition("<run-id>")[2].partition("<")[0]
            assert run_id and run_id not in seen, f"told twice: {run_id!r}"
            seen.add(run_id)
            note.ack()
            room.release()
            if len(seen) == shells + others:
                break
    return len(seen)


def count(directory: Path) -> Count:
    """Count what there is now, of this process and those below it."""
    ours = [os.getpid(), *_descendants(os.getpid())]
    return Count(
        rss_kb=sum(_resident_kb(pid) for pid in ours),
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=len(os.listdir("/proc/self/task")),
        processes=len(ours),
        files=sum(1 for _ in directory.iterdir()),
    )


def _descendants(pid: int) -> Iterator[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # It has ended meanwhile.
        return
    for child in map(int, children):
        yield child
        yield from _descendants(child)


def _resident_kb(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


if __name__ == "__main__":
    sys.exit(main())
