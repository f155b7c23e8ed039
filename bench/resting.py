"""PF28: the memory of the guardian's two processes, which stay while no shell runs."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import trio

from actors.shell import Shell

from ._case import Case, Figures, Row, Target
from ._listened import listened_runtime


def cases(small: bool) -> list[Case]:
    """Return the cases of this theme, which are of one size."""
    rows = [
        Row(
            id="PF28",
            what="memory of the guardian's two processes / of a Python that waits",
            ours="guardian",
            base="python",
            unit="MB",
            target=Target("<=", 4),
        )
    ]
    return [
        Case(name="resting", parts=[partial(trio.run, _guardian), _python], rows=rows)
    ]


async def _guardian() -> Figures:
    async with listened_runtime(journal=False) as runtime:
        task = await runtime.launch(Shell("true"))
        await task.wait()
        outer = _children(os.getpid())
        return {"guardian": sum(map(_megabytes, [*outer, *_children(*outer)]))}


def _python() -> Figures:
    argv = [sys.executable, "-c", "input('begun')"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as waits:
        assert waits.stdin is not None and waits.stdout is not None
        waits.stdout.read(5)
        figures = {"python": _megabytes(waits.pid)}
        waits.stdin.write(b"\n")
    return figures


def _children(*pids: int) -> list[int]:
    """Return the children of these."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # It has ended.
        if parent in pids:
            found.append(int(stat.parent.name))
    return found


def _megabytes(pid: int) -> float:
    """Return its memory without what comes from files, which others share. (What counts
    the shared in part, nobody but root may read of a guardian.)"""
    _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE") / 2**20
