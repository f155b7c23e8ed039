"""Process trees for tests, and looks at them from outside, through /proc."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from actors._system.posix import PosixProcess, PosixProcesses

ROOT = Path(__file__).parents[2]

sees_guardians = pytest.mark.skipif(
    os.geteuid() != 0, reason="what /proc tells of a guardian may be for root only"
)


@asynccontextmanager
async def open_processes(seconds: float = 60) -> AsyncGenerator[PosixProcesses, None]:
    processes = PosixProcesses()
    with trio.fail_after(seconds):
        try:
            yield processes
        finally:
            await processes.aclose()


async def shell(
    processes: PosixProcesses,
    script: str,
    *,
    cwd: str | None = None,
    marker: str = "s00000001",
    **extra: str,
) -> PosixProcess:
    env = {**os.environ, **extra}
    return await processes.spawn(
        ["bash", "-c", script], cwd=cwd, env=env, marker=marker
    )


async def read_all(tree: PosixProcess) -> bytes:
    chunks: list[bytes] = []
    while chunk := await tree.receive():
        chunks.append(chunk)
    return b"".join(chunks)


async def read_line(tree: PosixProcess) -> str:
    line = b""
    while not line.endswith(b"\n"):
        chunk = await tree.receive(1)
        assert chunk, f"the output ended after {line!r}"
        line += chunk
    return line.decode().strip()


def fields(pid: int) -> list[str] | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return stat[stat.rindex(")") + 2 :].split()


def alive(pid: int) -> bool:
    found = fields(pid)
    if found is not None:
        return found[0] not in "ZX"
    try:  # It may be hidden from us.
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def living(word: str) -> list[int]:
    """Return the processes that have ``word`` in their command line.

    One that executes another program just now has no command line, and is hidden where
    /proc hides those of others: who knows that somebody lives looks `until` it is seen.
    """
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if word.encode() in command and alive(int(entry.name)):
                found.append(int(entry.name))
    return found


def children() -> set[int]:
    """Return our own children, zombies included."""
    pids = [
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()
    ]
    stats = {pid: fields(pid) for pid in pids}
    return {pid for pid, stat in stats.items() if stat and int(stat[1]) == os.getpid()}


class Held:
    """A pipe with a name: whoever opens it to write holds it, and all that it forks."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "held"
        os.mkfifo(self.path)
        self._reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    def is_held(self) -> bool:
        """Tell whether anybody who holds it is alive, exactly."""
        try:
            while os.read(self._reader, 1 << 16):
                pass
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        os.close(self._reader)


def start_beside(argv: list[str], **extra: str) -> subprocess.Popen[bytes]:
    """Start a process beside the runtime, in a session of its own."""
    return subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **extra},
        start_new_session=True,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def reap_everything() -> None:
    """Do what a careless host does."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


async def until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Wait for what another process does: no event tells of it."""
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.005)


def outer_guardian_of(processes: PosixProcesses) -> int:
    guardian = processes._guardian
    assert guardian is not None
    return guardian._popen.pid


def guardian_of(processes: PosixProcesses) -> int:
    """Return the one that works: the only child of the one that we started."""
    guardian = processes._guardian
    assert guardian is not None
    if guardian.inner:  # It may be hidden from us.
        return guardian.inner
    outer = guardian._popen.pid
    (inner,) = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
    return int(inner)


def stop_guardian(processes: PosixProcesses) -> None:
    """Stop the one that works and the one that would let it go on."""
    inner = guardian_of(processes)
    os.kill(outer_guardian_of(processes), signal.SIGSTOP)
    os.kill(inner, signal.SIGSTOP)


def nicer(by: int) -> int:
    """Return a niceness that anybody may ask for, however nice this run is."""
    return min(19, os.nice(0) + by)


LIFE = 150
"""Seconds after which what a test has left behind ends, which is longer than any
test takes."""


def unused_seconds() -> str:
    """Return a duration for ``sleep`` that no other process uses."""
    return f"{LIFE}.{int.from_bytes(os.urandom(4), 'big'):010d}"


def chain(*, before: str = "", leave: str = "os.setsid()") -> str:
    """Return a Python program of which each link forks the next and ends, as fast
    as it can; but not for ever, whatever becomes of the test."""
    return (
        f"import os, time\n{before}\nend = time.monotonic() + {LIFE}\n"
        f"while time.monotonic() < end:\n if os.fork(): os._exit(0)\n {leave}"
    )


WHEN_TOLD = "until [ -e go ]; do sleep 0.01; done"
"""What a command waits with for a file in its directory."""

ESCAPES = {
    "plain child": "sleep {n} & sleep {n}",
    "setsid": "setsid sleep {n} & wait",
    "cleared environment": "env -i setsid sleep {n} & wait",
    "orphan": "(setsid sleep {n} &); sleep {n}",
    "orphan without an environment": "(env -i setsid sleep {n} &); sleep {n}",
    "orphan without anything": "(env -i setsid sleep {n} </dev/null >/dev/null 2>&1 &)\n"
    "sleep {n}",
    "double fork": "( (sleep {n} &) & ); sleep {n}",
    "nohup": "nohup sleep {n} >/dev/null 2>&1 & sleep {n}",
    "ignores everything": "trap '' TERM INT HUP; sleep {n} & sleep {n}; sleep {n}",
    "stopped": "sleep {n} & sleep 0.1; kill -STOP $!; sleep {n}",
    "leader gone": "setsid sleep {n} & disown; exit 0",
}
