"""PF9: capturing the output of a command to a file, over ``cmd > file``."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter

import trio

from actors import TaskStatus
from actors.shell import Shell

from ._case import Case, Figures, Row, Target
from ._listened import listened_runtime

_MIB = 2**20
# Commands that print so many bytes.
_KINDS = {
    "lines": "yes 'a line of ordinary output, 0123456789 and letters' | head -c {}",
    "no newline": "head -c {} /dev/zero | tr '\\0' x",
}
# Run beside what is measured, because that is too busy to look at itself.
_SAMPLER = """
import os, select, sys
page = os.sysconf("SC_PAGE_SIZE")
def resident():
    with open(f"/proc/{sys.argv[1]}/statm") as file:
        return int(file.read().split()[1]) * page
first = most = resident()
print("ready", flush=True)
while not select.select([0], [], [], 0.01)[0]:
    most = max(most, resident())
print(most - first)
"""


def cases(small: bool) -> list[Case]:
    """Return the cases of this theme."""
    size = 4 * _MIB if small else 1024 * _MIB
    return [_case(kind, size) for kind in _KINDS]


def _case(kind: str, size: int) -> Case:
    modes = {"raw": 0.9, "cleaned": 0.6}
    rows = [
        Row(
            id="PF9",
            what=f"{mode} output captured, {kind} / cmd > file",
            ours=mode,
            base="redirected",
            unit="MB/s",
            target=Target(">=", least),
        )
        for mode, least in modes.items()
    ]
    rows += [
        Row(
            id="PF9",
            what=f"memory grown meanwhile, {mode}, {kind} / 1",
            ours=f"{mode} memory",
            base="one",
            unit="MiB",
            target=Target("<=", 20.0, of="ours"),
        )
        for mode in modes
    ]
    command = _KINDS[kind].format(size)
    return Case(
        name=f"capture, {kind}",
        parts=[
            partial(_redirected, command, size),
            partial(_captured, command, size, "raw"),
            partial(_captured, command, size, "cleaned"),
        ],
        rows=rows,
        skipped=[] if _has_proc() else ["memory of PF9: it needs /proc"],
    )


def _redirected(command: str, size: int) -> Figures:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "output")
        began = perf_counter()
        subprocess.run(
            ["bash", "-c", f"({command}) > {shlex.quote(str(file))}"], check=True
        )
        seconds = perf_counter() - began
        assert file.stat().st_size == size
    return {"redirected": size / 1e6 / seconds, "one": 1.0}


def _captured(command: str, size: int, mode: str) -> Figures:
    seconds, grown = trio.run(capture, command, size, mode == "raw")
    # What is less than a page cannot be told.
    memory = max(grown, 4096) / _MIB
    return {mode: size / 1e6 / seconds, f"{mode} memory": memory}


async def capture(command: str, size: int, raw: bool) -> tuple[float, int]:
    """Run ``command``, which prints ``size`` bytes, as a task; return the seconds
    that took and the bytes by which the memory of this process grew."""
    async with listened_runtime() as runtime:
        # The first task starts the helper process.
        await (await runtime.launch(Shell("true"))).wait()
        with _sampled_memory() as grown:
            began = perf_counter()
            task = await runtime.launch(Shell(command, quota=2**40, raw=raw))
            snapshot = await task.wait()
            seconds = perf_counter() - began
        assert snapshot.status is TaskStatus.COMPLETED, snapshot
        assert snapshot.output_file is not None
        assert os.stat(snapshot.output_file).st_size == size
    return seconds, grown[0]


@contextmanager
def _sampled_memory() -> Generator[list[int], None, None]:
    """Have another process look at the resident memory of this one; the list
    holds by how many bytes it grew, after the block."""
    grown: list[int] = []
    if not _has_proc():
        yield [0]
        return
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _SAMPLER, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as sampler:
        assert sampler.stdin is not None
        assert sampler.stdout is not None
        sampler.stdout.readline()
        try:
            yield grown
        finally:
            sampler.stdin.close()
            said = sampler.stdout.read().split()
    grown.append(int(said[-1]))


def _has_proc() -> bool:
    return os.path.exists("/proc/self/statm")
