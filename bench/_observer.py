"""The observer of `bench.zoo`: a process that reads ``/proc`` and nothing of ours."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from ._animals import Specimen

SETTLING = 50.0
"""Seconds within which an animal has become what it is to be."""

_OBSERVER = """
import json, os, sys

def look(pid, words):
    place = f"/proc/{pid}"
    with open(f"{place}/cmdline", "rb") as file:
        arguments = file.read()
    if not arguments and len(threads := os.listdir(f"{place}/task")) > 1:
        # Its first thread has ended: that one reads as a zombie.
        place = f"{place}/task/{threads[1]}"
        with open(f"{place}/cmdline", "rb") as file:
            arguments = file.read()
    hits = [word for word in words if word.encode() in arguments]
    if not hits:
        return
    with open(f"{place}/stat") as file:
        state, parent, _, session, *_ = file.read().rpartition(") ")[2].split()
    with open(f"{place}/environ", "rb") as file:
        marked = b"TRIO_SUPERVISOR_" in file.read()
    with open(f"{place}/status") as file:
        (ignored,) = (line.split()[1] for line in file if line.startswith("SigIgn"))
    for word in hits:
        yield word, {
            "pid": pid,
            "program": os.path.basename(arguments.split(b"\\0")[0].decode()),
            "state": state,
            "parent": int(parent),
            "session": int(session),
            "marked": marked,
            "deaf": bool(int(ignored, 16) & 1 << 14),
        }

def newest():
    with open("/proc/loadavg") as file:
        return int(file.read().split()[-1])

def candidates():
    # One pass can miss a process whose parent ended as it was made.
    for _ in range(3):
        yield from sorted(map(int, filter(str.isdigit, os.listdir("/proc"))), reverse=True)
        # What lives for less than a pass is met as it is born, or not at all.
        for _ in range(30):
            last = newest()
            yield from range(last, max(last - 3, 0), -1)

for line in sys.stdin:
    words = line.split()
    found = {word: {} for word in words}
    for pid in candidates():
        try:
            for word, process in look(pid, words):
                if process["state"] not in "ZX":
                    found[word][process["pid"]] = process
        except (OSError, ValueError):
            pass
    print(json.dumps({word: [*seen.values()] for word, seen in found.items()}), flush=True)
"""


class Observer:
    """The independent process. Made by `open_observer`."""

    def __init__(self, process: trio.Process, beast: Path, slow: bool) -> None:
        self._process = process
        self._heard = b""
        self.beast = beast
        """The program of `beast.c`, if there is a compiler."""
        self.slow = slow
        """Whether the guardians of other processes are to be held up, too."""

    async def look(self, words: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
        """Return the living processes with each of ``words`` in their command line."""
        assert self._process.stdin is not None and self._process.stdout is not None
        await self._process.stdin.send_all(" ".join(words).encode() + b"\n")
        while b"\n" not in self._heard:
            data = await self._process.stdout.receive_some()
            assert data, "the observer has died"
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        found: dict[str, list[dict[str, Any]]] = json.loads(line)
        return found

    async def sees(self, specimen: Specimen) -> bool:
        """Tell whether it is seen to be what it is to be, leader and all."""
        found = (await self.look([specimen.word]))[specimen.word]
        leader = any(process["pid"] == specimen.pid for process in found)
        return leader and specimen.is_settled(found)

    async def check_gone(self, specimens: list[Specimen]) -> None:
        """Note as misses what is left of them now, and end it."""
        found = await self.look(specimen.word for specimen in specimens)
        for specimen in specimens:
            for process in found[specimen.word]:
                specimen.misses.append(f"left: {process}")
                _kill(process["pid"])
        for specimen in specimens:
            if specimen.is_held():
                specimen.misses.append("left: whoever holds its pipe")
                await self._chase(specimen)

    async def _chase(self, specimen: Specimen) -> None:
        until = trio.current_time() + SETTLING
        while specimen.is_held() and trio.current_time() < until:
            for process in (await self.look([specimen.word]))[specimen.word]:
                _kill(process["pid"])


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def bear_mark() -> int:
    """Mark this process and all that comes from it, and return the mark.

    It is a limit that Linux shows and does not use, so that whatever was missed
    can be found at the end, without regard to its name.
    """
    mark = 1 << 50 | random.getrandbits(40)
    hard = resource.getrlimit(resource.RLIMIT_RSS)[1]
    resource.setrlimit(resource.RLIMIT_RSS, (mark, hard))
    return mark


_LEAVING = 2.0
"""Seconds for whoever goes by itself."""


def end_marked(mark: int) -> list[str]:
    """Kill whoever else bears the mark, until nobody does; return who it was."""
    # A guardian that has nothing left goes by itself, if slowly.
    leaving = time.monotonic() + _LEAVING
    while time.monotonic() < leaving and any(
        name.isdigit() and int(name) != os.getpid() and _bears(int(name), mark)
        for name in os.listdir("/proc")
    ):
        time.sleep(0.01)
    found: dict[int, str] = {}
    clean, until = 0, time.monotonic() + SETTLING
    while clean < 5 and time.monotonic() < until:
        clean += 1
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid() and _bears(int(name), mark):
                clean = 0
                with contextlib.suppress(OSError):
                    line = Path(f"/proc/{name}/cmdline").read_bytes()
                    found[int(name)] = f"{name} {line.replace(bytes(1), b' ').decode()}"
                _kill(int(name))
    return [*found.values()]


def _bears(pid: int, mark: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1]
        limits = Path(f"/proc/{pid}/limits").read_bytes()
    except OSError:
        return False
    return state not in b"ZX" and str(mark).encode() in limits.split()


def _build_beast(directory: Path) -> Path:
    """Compile `beast.c`, where there is a compiler."""
    directory.mkdir(parents=True, exist_ok=True)
    beast = directory / "beast"
    compiler = shutil.which("cc")
    if compiler is not None and not beast.exists():
        source = Path(__file__).with_name("beast.c")
        subprocess.run([compiler, "-O1", "-pthread", "-o", beast, source], check=True)
    return beast


@asynccontextmanager
async def open_observer(
    directory: Path, *, slow: bool = False
) -> AsyncGenerator[Observer]:
    """Start the observer and end it afterwards."""
    beast = _build_beast(directory)
    process = await trio.lowlevel.open_process(
        [sys.executable, "-S", "-c", _OBSERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield Observer(process, beast, slow)
    finally:
        process.kill()
        with trio.move_on_after(10, shield=True):
            await process.wait()
        assert process.stdin is not None and process.stdout is not None
        with trio.move_on_after(10, shield=True):
            await process.stdin.aclose()
            await process.stdout.aclose()


async def settle(specimens: list[Specimen], observer: Observer) -> None:
    """Wait until each has become what it is to be, and note how it escaped."""
    unsettled = specimens
    until = trio.current_time() + SETTLING
    while unsettled and trio.current_time() < until:
        found = await observer.look(it.word for it in unsettled)
        for specimen in unsettled:
            specimen.look(found[specimen.word])
        unsettled = [it for it in unsettled if not it.is_settled(found[it.word])]
    for specimen in unsettled:
        # One that attacks its guardian may have ended itself meanwhile.
        if not specimen.animal.attacks:
            specimen.misses.append("it has not become what it is to be")
