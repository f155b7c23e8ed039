"""What ``/proc`` tells of processes, and the signals to them."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from typing import NamedTuple

HAS_PROC = sys.platform == "linux"
_RLIMIT_LOCKS = 10
_LOCKS_LINE = b"Max file locks"


class Seen(NamedTuple):
    """A process as one look at ``/proc`` showed it."""

    pid: int
    parent: int
    group: int
    session: int
    started: int
    """Clock ticks since boot."""
    alive: bool
    """False for a zombie."""
    ticks: int
    """The CPU time that it and the children it waited for have used."""
    pages: int
    """Resident memory."""


def look_at_processes() -> Iterator[Seen]:
    """Yield every process, the newest first: what forks on and on is there."""
    pids = sorted(
        (int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True
    )
    for pid in pids:
        if (seen := look_at(pid)) is not None:
            yield seen


def look_at(pid: int) -> Seen | None:
    """Return what is told of one process, or None if there is none."""
    stat = read(f"/proc/{pid}/stat", 1024)
    if not stat:
        return None
    # The name in parentheses may itself contain anything.
    fields = stat[stat.rindex(b")") + 2 :].split()
    # A process whose first thread has ended reads as a zombie while others run.
    alive = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1
    return Seen(
        pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        started=int(fields[19]),
        alive=alive,
        ticks=sum(map(int, fields[11:15])),
        pages=int(fields[21]),
    )


def children_of(pid: int) -> list[int]:
    """Return the children of every thread of a process."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        names = read(f"/proc/{pid}/task/{thread}/children", 1 << 22)
        found += map(int, names.split())
    return found


class LastPid:
    """Tells the pid that was given out last."""

    def __init__(self) -> None:
        self._file = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)

    def __call__(self) -> int:
        return int(os.pread(self._file, 128, 0).split()[-1])

    def close(self) -> None:
        """Give back the descriptor."""
        os.close(self._file)


def variable_of(pid: int, name: bytes) -> bytes | None:
    """Return the value of an environment variable of a process, if readable."""
    prefix = name + b"="
    for variable in read(f"/proc/{pid}/environ", 1 << 22).split(b"\0"):
        if variable.startswith(prefix):
            return variable[len(prefix) :]
    return None


def set_mark(mark: int) -> None:
    """Mark this process and all that it will start.

    A limit that Linux keeps, shows to everybody and does not use since 2.4, the
    one for file locks, stays with a process and its descendants, whatever else
    they give up: their parent, session, environment and files.
    """
    if HAS_PROC:
        import resource

        hard = resource.getrlimit(_RLIMIT_LOCKS)[1]
        if hard == resource.RLIM_INFINITY or hard > mark:
            resource.setrlimit(_RLIMIT_LOCKS, (mark, hard))


def mark_of(pid: int) -> int | None:
    """Return the mark that a process bears, if any; also that of a zombie."""
    limits = read(f"/proc/{pid}/limits", 4096)
    at = limits.find(_LOCKS_LINE)
    if at < 0:
        return None
    soft = limits[at + len(_LOCKS_LINE) :].split(None, 1)[0]
    return int(soft) if soft.isdigit() else None


def holds(pid: int, names: Collection[str]) -> bool:
    """Tell whether a process has a file open that ``/proc`` calls so."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for descriptor in descriptors:
        try:
            if os.readlink(f"/proc/{pid}/fd/{descriptor}") in names:
                return True
        except OSError:
            continue
    return False


def read(path: str, limit: int) -> bytes:
    """Return the beginning of a file, empty if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # It is gone, or not ours to read.
        return b""
    try:
        chunks: list[bytes] = []
        while limit > 0 and (chunk := os.read(descriptor, min(limit, 1 << 16))):
            chunks.append(chunk)
            limit -= len(chunk)
        return b"".join(chunks)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def send_signal(pid: int, number: int) -> None:
    """Signal a process, or with a negative ``pid`` a group; an absent one is fine.

    No pidfd is needed to guard against a pid that is used anew: pids are given
    out in turn, so tens of thousands of processes would have to start between
    the look at ``/proc`` and this call.
    """
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def group_exists(group: int) -> bool:
    """Tell whether a process group has a member."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
