"""The observer of `bench.zoo`: a process that reads ``/proc`` and nothing of ours."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import trio

from ._animals import Specimen

SETTLING = 60.0
"""Seconds within which an animal has become what it is to be."""

_OBSERVER = """
import json, os, sys

def look(pid, words):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        arguments = file.read()
    hits = [word for word in words if word.encode() in arguments]
    if not hits:
        return
    with open(f"/proc/{pid}/stat") as file:
        state, parent, _, session, *_ = file.read().rpartition(") ")[2].split()
    with open(f"/proc/{pid}/environ", "rb") as file:
        marked = b"TRIO_SUPERVISOR_" in file.read()
    with open(f"/proc/{pid}/status") as file:
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

for line in sys.stdin:
    words = line.split()
    found = {word: {} for word in words}
    # One pass can miss a process whose parent ended as it was made.
    for _ in range(3):
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    for word, process in look(int(name), words):
                        if process["state"] not in "ZX":
                            found[word][process["pid"]] = process
                except (OSError, ValueError):
                    pass
    print(json.dumps({word: [*seen.values()] for word, seen in found.items()}), flush=True)
"""


class Observer:
    """The independent process. Made by `open_observer`."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._heard = b""

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

    async def check_gone(self, specimens: list[Specimen]) -> None:
        """Note as misses what is left of them now, and end it."""
        found = await self.look(specimen.word for specimen in specimens)
        for specimen in specimens:
            for process in found[specimen.word]:
                specimen.misses.append(f"left: {process}")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process["pid"], signal.SIGKILL)


@asynccontextmanager
async def open_observer() -> AsyncGenerator[Observer]:
    """Start the observer and end it afterwards."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-S", "-c", _OBSERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield Observer(process)
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
    with trio.fail_after(SETTLING):
        unsettled = specimens
        while unsettled:
            found = await observer.look(it.word for it in unsettled)
            for specimen in unsettled:
                specimen.look(found[specimen.word])
            unsettled = [it for it in unsettled if not it.is_settled(found[it.word])]
