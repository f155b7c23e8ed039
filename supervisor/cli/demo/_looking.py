"""What can be seen from outside: an observer is asked, a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import orjson
import trio


@attrs.frozen
class Look:
    """What the observer saw at one moment."""

    marked: dict[int, int]
    """Each living process of the commands, and its session."""
    children: list[int]
    """The processes that this one has started, but for the observer."""
    descriptors: int | None
    """How many this process has open, where that can be seen."""


class Observer:
    """A process of its own that looks at the others. Made by `open_observer`."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._turn = trio.Lock()

    async def look(self) -> Look | None:
        """Look now; None if it has ended."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        answer = b""
        async with self._turn:
            try:
                await stdin.send_all(b"look\n")
                while not answer.endswith(b"\n"):
                    if not (chunk := await stdout.receive_some()):
                        return None
                    answer += chunk
            except trio.BrokenResourceError:
                return None
        seen = orjson.loads(answer)
        marked = {int(pid): session for pid, session in seen["marked"].items()}
        return Look(marked, seen["children"], seen["descriptors"])


@asynccontextmanager
async def open_observer(mark: Path) -> AsyncGenerator[Observer]:
    """Start one that looks for processes with ``mark``, and end it afterwards."""
    program = Path(__file__).with_name("_observer.py")
    process = await trio.lowlevel.open_process(
        [sys.executable, "-I", "-S", str(program), str(mark), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield Observer(process)
    finally:
        process.kill()
        with trio.move_on_after(1.0, shield=True):
            await process.wait()
