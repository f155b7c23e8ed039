"""What still lives of process trees whose program and guardian have both died."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from .guardian import proc

# The marker variable of some program; its value names the tree.
_MARKER: Final = re.compile(rb"(?:\A|\0)TRIO_SUPERVISOR_[0-9A-F]{16}=([^\0]*)")
_PASSES: Final = 100
_PAUSE: Final = 0.01


def program() -> str:
    """Return the boot of the machine, and the pid and the start of this process."""
    boot = proc.read("/proc/sys/kernel/random/boot_id", 64).decode().strip()
    seen = proc.look_at(os.getpid()) if proc.HAS_PROC and boot else None
    return "" if seen is None else f"{boot} {seen.pid} {seen.started}"


def _is_dead(of: str) -> bool:
    """Return whether the process that `program` has told is known to have ended, on
    this machine and since it was booted."""
    boot, pid, started = [*of.split(), "", "", ""][:3]
    here = program().partition(" ")[0]
    if not here or boot != here or not (pid.isdecimal() and started.isdecimal()):
        # What ran before the machine was booted does not run now.
        return False
    seen = proc.look_at(int(pid))
    return seen is None or not seen.alive or seen.started != int(started)


def end_orphans(
    of: str, prefixes: tuple[bytes, ...], is_over: Callable[[], bool]
) -> tuple[int, list[int]]:
    """If the program ``of`` is dead, kill every process with a marker in its
    environment that begins so, and wait about a second, at most, until none is left.
    Return how many were killed, and the pids of those that still live.

    Each is looked at again through a pidfd before it is killed, so another process
    with the same pid is never struck. It blocks: it is for a thread. The kernel may
    hold up who reads the environment of a process that hangs in it, for as long as
    that does; so the thread may be left alone, and strikes nobody once ``is_over``.
    """
    killed: set[tuple[int, int]] = set()
    living: list[int] = []
    if not proc.HAS_PROC or not prefixes or not _is_dead(of):
        return 0, living
    ours = _ours()
    for _ in range(_PASSES):
        living = []
        for seen in proc.look_at_processes():
            if seen.pid in ours or not seen.alive:
                continue
            if _is_one(seen.pid, prefixes):
                living.append(seen.pid)
                if _kill(seen.pid, prefixes, is_over):
                    # One that dies may be seen again.
                    killed.add((seen.pid, seen.started))
        if not living or is_over():
            break
        time.sleep(_PAUSE)
    return len(killed), living


def _ours() -> set[int]:
    """Return this process and those above it: it may itself have been started there."""
    ours: set[int] = set()
    seen = proc.look_at(os.getpid())
    while seen is not None and seen.pid not in ours:
        ours.add(seen.pid)
        seen = proc.look_at(seen.parent)
    return ours


def _is_one(pid: int, prefixes: tuple[bytes, ...]) -> bool:
    found = _MARKER.findall(proc.read(f"/proc/{pid}/environ", 2**20))
    return any(marker.startswith(prefixes) for marker in found)


def _kill(pid: int, prefixes: tuple[bytes, ...], is_over: Callable[[], bool]) -> bool:
    try:
        fd = proc.open_pidfd(pid)
    except ProcessLookupError:
        return False
    if fd is None:
        # Without one, the pid might be another's by now.
        return False
    try:
        # From here on the pid can be given to nobody else that the signal would strike.
        if not _is_one(pid, prefixes) or is_over():
            return False
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            return True
    finally:
        os.close(fd)
    return False
