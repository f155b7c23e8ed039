"""What ``/proc`` says of processes, and the signals to them."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

if sys.platform != "win32":
    import resource


def _has_proc() -> bool:
    try:
        # In a PID namespace, /proc may be that of another namespace.
        return sys.platform == "linux" and os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _has_children() -> bool:
    me = os.getpid()
    try:
        os.close(os.open(f"/proc/{me}/task/{me}/children", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


HAS_PROC = _has_proc()
"""Whether ``/proc`` shows the processes that we know by their pids."""
HAS_CHILDREN = HAS_PROC and _has_children()
"""Whether it lists the children of a process: some kernels are built without that."""
PR_SET_DUMPABLE = 4
_RLIMIT_LOCKS = 10
_LOCKS_LINE = b"Max file locks"


class Seen:
    """A process as one look at ``/proc`` showed it."""

    __slots__ = ("alive", "pages", "parent", "pid", "session", "started", "ticks")

    def __init__(
        self,
        pid: int,
        *,
        parent: int,
        session: int,
        started: int,
        alive: bool,
        ticks: int,
        pages: int,
    ) -> None:
        self.pid = pid
        self.parent = parent
        self.session = session
        self.started = started
        """Clock ticks since boot."""
        self.alive = alive
        """False for a zombie."""
        self.ticks = ticks
        """The CPU time that it and the children it waited for have used."""
        self.pages = pages
        """Resident memory."""


def open_pidfd(pid: int) -> int | None:
    """Return a pidfd, or None where there are none.

    Raises:
        ProcessLookupError: if there is no such process.
    """
    if sys.platform == "linux":
        try:
            return os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except OSError:  # An old kernel, or a sandbox.
            pass
    return None


def prctl(option: int, value: int) -> None:
    """Set a property of this process.

    Raises:
        OSError: if the kernel refuses.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def all_pids() -> list[int]:
    """Return every process that ``/proc`` shows us, the newest first."""
    names = os.listdir("/proc")
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)


def newest_pid() -> int:
    """Return the pid that was given out last, or 0 if the system does not say."""
    last = read("/proc/loadavg", 256).split()[-1:]
    return int(last[0]) if last else 0


def look_at_processes() -> Iterator[Seen]:
    """Yield every process that ``/proc`` shows us, the newest first."""
    for pid in all_pids():
        if (seen := look_at(pid)) is not None:
            yield seen


def look_at(pid: int) -> Seen | None:
    """Return what ``/proc`` says of a process, or None if it is not there."""
    stat = read(f"/proc/{pid}/stat", 1024)
    if not stat:
        return None
    # The name in parentheses may contain anything, parentheses too: find the last.
    fields = stat[stat.rindex(b")") + 2 :].split()
    # A process whose first thread has ended reads as a zombie while others run.
    alive = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1
    return Seen(
        pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        started=int(fields[19]),
        alive=alive,
        ticks=sum(map(int, fields[11:15])),
        pages=int(fields[21]),
    )


def is_alive(pid: int) -> bool:
    """Return whether there is such a process and it is not a zombie."""
    seen = look_at(pid)
    if seen is not None:
        return seen.alive
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # It is another user's, and hidden.
        pass
    return True


def is_frozen(pid: int) -> bool:
    """Return whether a tracer holds a process, and not only for a system call."""
    for _ in range(10):
        stat = read(f"/proc/{pid}/stat", 1024) if HAS_PROC else b""
        if stat[stat.rfind(b")") + 2 :][:1] != b"t":
            return False
        time.sleep(0.002)
    return True


class Children:
    """Lists the children of this process, which must have only one thread.

    The list is exact. A child that has ended stays until we reap it, so nothing leaves
    the list while we read it, and a new child is added at its end.
    """

    def __init__(self) -> None:
        self._me = os.getpid()
        self._file: int | None = None
        if HAS_CHILDREN:
            path = f"/proc/{self._me}/task/{self._me}/children"
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __call__(self) -> list[int]:
        """Return the children, nearly in the order in which they became ours."""
        if self._file is None:
            # This is exact, too: only we can reap a child, so all stay meanwhile.
            return _find_children(self._me)
        names = b""
        while chunk := os.pread(self._file, 1 << 16, len(names)):
            names += chunk
        return [int(name) for name in names.split()]


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


def adopted_by(guardian: int) -> list[int]:
    """Return the children of a guardian, also of one that ``/proc`` hides."""
    if os.path.exists(f"/proc/{guardian}/task/{guardian}/children"):
        return children_of(guardian)
    return _find_children(guardian)


def _find_children(parent: int) -> list[int]:
    # The oldest first, as in the kernel's list: `chase` begins with the newest.
    seen = [it for it in look_at_processes() if it.parent == parent]
    return [it.pid for it in sorted(seen, key=lambda it: it.started)]


def descendants_of(pids: Iterable[int]) -> list[int]:
    """Return these processes and all their descendants, each once."""
    children = _children_at_once()
    found: dict[int, None] = {}
    new = [*pids]
    while new:
        pid = new.pop()
        if pid not in found:
            found[pid] = None
            new += children(pid)
    return [*found]


def _children_at_once() -> Callable[[int], list[int]]:
    if HAS_CHILDREN:
        return children_of
    found: defaultdict[int, list[int]] = defaultdict(list)
    for seen in look_at_processes():
        found[seen.parent].append(seen.pid)
    return lambda pid: found.get(pid, [])


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
    if sys.platform == "linux":
        hard = resource.getrlimit(_RLIMIT_LOCKS)[1]
        if hard == resource.RLIM_INFINITY or hard > mark:
            resource.setrlimit(_RLIMIT_LOCKS, (mark, hard))


def mark_of(pid: int) -> int | None:
    """Return the mark that a process bears, if any; also that of a zombie."""
    if sys.platform != "linux":
        return None
    try:
        # This works for the same user's processes also where /proc hides them.
        soft = resource.prlimit(pid, _RLIMIT_LOCKS)[0]
    except ProcessLookupError:
        return None
    except OSError:
        limits = read(f"/proc/{pid}/limits", 4096) if HAS_PROC else b""
        _, _, line = limits.partition(_LOCKS_LINE)
        word = line.split(None, 1)[0] if line else b""
        return int(word) if word.isdigit() else None
    return None if soft == resource.RLIM_INFINITY else soft


def files_of(pid: int) -> Iterator[str]:
    """Yield what ``/proc`` calls the files that a process has open, if readable."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for descriptor in descriptors:
        try:
            yield os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except OSError:
            continue


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
    """Signal a process, or with a negative ``pid`` a group. An absent one is ignored.

    No pidfd is needed to guard against a pid that is used anew: pids are given
    out in turn, so tens of thousands of processes would have to start between
    the look at ``/proc`` and this call.
    """
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def signal_groups(pids: Iterable[int], number: int) -> None:
    """Signal the groups of descendants, so that no fork slips through.

    A group lies within one session, and the session of a descendant within one tree.
    Each group is signalled once: the kernel walks all its processes, which may be
    thousands of zombies.
    """
    for group in {_group_of(pid) for pid in pids} - {0}:
        send_signal(-group, number)


def _group_of(pid: int) -> int:
    if not HAS_PROC:
        return pid  # The leader of a tree leads its group; it may have ended.
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


def group_exists(group: int) -> bool:
    """Return whether a process group has a member."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
