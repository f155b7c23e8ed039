"""The seam between the runtime and the world: clock, ids, processes, files.

Everything that a rerun of the same program could see differently goes through
one `Env`: the wall clock, fresh names, child processes and files. (Monotonic
time is trio's own, `trio.current_time`, which a trio clock already replaces.)
Code takes its `Env` as an argument, so that a simulator can hand in another;
a test holds the rest of the project to that.

`real_env` makes the one that talks to the operating system.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Literal, Protocol, TypeVar

from ._kernel.public import publish as _publish
from ._kernel.values import frozen

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "Clock",
    "Env",
    "Files",
    "Ids",
    "Processes",
    "real_env",
]

T = TypeVar("T")


class Clock(Protocol):
    """The time on the wall clock. People and files are told it. Only two things are
    decided by it: when a scheduled prompt is due, and how long to wait for an API that
    has named a date."""

    def now(self) -> datetime:
        """Return the current time, aware and in UTC."""
        ...


class Ids(Protocol):
    """Fresh names and chance."""

    def hex(self, digits: int) -> str:
        """Return ``digits`` random lower-case hexadecimal digits."""
        ...

    def uniform(self) -> float:
        """Return a random number, at least 0.0 and below 1.0."""
        ...


@frozen(kw_only=True)
class ProcessExit:
    """How the first process of a tree, its leader, ended."""

    code: int | None
    """The exit code, or None when a signal ended it or the code was lost."""
    signal: int | None = None
    """The number of the signal that ended it, or None."""
    lost: str | None = None
    """Why neither could be read, for instance because the guardian died."""
    after_stop: bool = False
    """Whether it ended only after `Process.terminate` or `Process.kill` had
    sent it a signal. False means that its end came first and counts."""
    cpu_seconds: float | None = None
    """CPU time, user and system, of the leader and of every descendant that it
    had waited for; None when that could not be read."""


@frozen(kw_only=True)
class Terminal:
    """The size of a pseudo-terminal that a tree is given."""

    rows: int = 24
    columns: int = 80


@frozen(kw_only=True)
class ProcessUsage:
    """What a process tree has used, at one moment."""

    cpu_seconds: float
    """CPU time, user and system, of its members and of those that have ended
    and were waited for, by a member or by the keeper of the tree. CPU time of
    orphans is reported late: each time it has grown by a quarter."""
    memory_bytes: int
    """Resident memory, the sum over its members: pages they share count for
    each of them."""
    processes: int
    """The number of its members."""


class Process(Protocol):
    """A process tree: its leader and whatever belongs to it.

    Every descendant of the leader belongs to the tree. So does every process of its
    session, and every process that carries the tree's marker variable, whatever it did
    to leave (``setsid``, double fork, ``env -i``).
    """

    @property
    def pid(self) -> int:
        """The leader's process id."""
        ...

    async def receive(self, max_bytes: int = 262_144) -> bytes:
        """Return the next output (stdout and stderr in order of arrival, or only
        stdout if the tree was started so).

        It waits for at least one byte. ``b""`` means the end, when no process holds the
        pipe or the terminal any more. A cancellation loses nothing.
        """
        ...

    async def receive_or_exit(self, max_bytes: int) -> bytes | ProcessExit | None:
        """Return the next output, at most ``max_bytes`` of it, or, once the leader has
        ended and no output is there, how it has ended. More may then come from others.

        None means that one task cannot wait for both here: let two of them wait, in
        `receive` and `wait_exit`. A cancellation loses nothing.
        """
        ...

    @property
    def is_over(self) -> bool:
        """Whether it is known that no process is left and that all of the output was
        received. False says nothing: `receive` and `wait_gone` tell."""
        ...

    async def receive_stderr(self, max_bytes: int = 262_144) -> bytes:
        """Return the next bytes of a separate stderr, as `receive` does of stdout.

        Raises:
            trio.ClosedResourceError: after `aclose`, and if the tree was started
                without one.
        """
        ...

    async def send(self, data: bytes) -> None:
        """Write to the standard input. Wait while nobody reads and it is full.

        After a cancellation an unknown part of ``data`` was written. Calls at
        the same time are written one after the other, in the order of the calls.

        Raises:
            trio.BrokenResourceError: if nobody can read it any more.
            trio.ClosedResourceError: after `send_eof` or `aclose`, and if the
                tree was started without an input to write to.
        """
        ...

    async def send_eof(self) -> None:
        """End the standard input, after everything that `send` still has to write.

        A pipe is closed. On a terminal its end-of-file character is typed once, so a
        program that reads on after that end sees no other one. A second call does
        nothing.

        Raises:
            trio.BrokenResourceError: as for `send`.
            trio.ClosedResourceError: after `aclose`, and if the tree was started
                without an input to write to.
        """
        ...

    def usage(self) -> ProcessUsage | None:
        """Return what the tree uses now, or None if that cannot be known.

        This never blocks. Its cost grows with the tree. Processes that left the tree's
        lineage may be missing until the next `members` or stop.
        """
        ...

    async def wait_exit(self) -> ProcessExit:
        """Wait until the leader has ended, and return how. It may be called again."""
        ...

    async def wait_gone(self) -> None:
        """Wait until no process belongs to the tree any more."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM, then SIGCONT, to every member. This never blocks."""
        ...

    def kill(self) -> None:
        """Begin to send SIGKILL to every member until none is left. This never
        blocks."""
        ...

    async def members(self) -> tuple[int, ...]:
        """Return the process ids that belong to the tree now."""
        ...

    async def aclose(self) -> None:
        """Kill whatever is left, and then give back every descriptor.

        It may be called in a cancelled scope, and more than once. It is not interrupted
        and raises no `trio.Cancelled`. It returns when the tree is gone, or when nothing
        more can be done about it.
        """
        ...


class Processes(Protocol):
    """It starts process trees. None of them outlives it."""

    def environment(self) -> dict[str, str]:
        """Return a copy of the environment that programs inherit."""
        ...

    def directory(self) -> str:
        """Return the absolute directory in which a program starts if it is given none.

        Raises:
            OSError: if it is gone.
        """
        ...

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None,
        env: Mapping[str, str],
        marker: str,
        stdin: Literal["null", "pipe"] = "null",
        stderr: Literal["stdout", "pipe"] = "stdout",
        terminal: Terminal | None = None,
        nice: int | None = None,
        rlimits: Mapping[str, int] | None = None,
    ) -> Process:
        """Start ``argv`` in a session of its own and return the tree.

        Standard input is ``/dev/null``, or with ``"pipe"`` what `Process.send` writes.
        Stdout and stderr are one pipe, or with ``stderr="pipe"`` two. With a
        ``terminal``, all three are a new pseudo-terminal of that size. It has no echo
        and controls the session. `Process.send` types on it.

        ``nice`` is the niceness of the leader. ``rlimits`` sets its resource
        limits, soft and hard. The names are those of the module `resource` without
        ``RLIMIT_``, in lower case, such as ``cpu`` or ``as``. -1 means no limit.
        Descendants inherit both.

        ``env`` is the whole environment. The marker variable is added to it. Each tree
        has its own ``marker``, which is the value of that variable. ``cwd`` None means
        the directory of this process. A program without a slash is looked for in the
        ``PATH`` of ``env``, beginning from ``cwd``. A cancellation while it starts
        leaves no process behind.

        Raises:
            OSError: if it could not be started, for instance on a system that is not
                Unix. It has the errno of the failing call. Its filename is what failed:
                ``cwd``, ``argv[0]``, ``"terminal"``, ``"nice"`` or ``"rlimit NAME"``.
            ValueError: if ``argv`` is empty, a string cannot be given to any
                program (a NUL, a variable without a name), a limit has no such
                name here, a number is out of range, or a terminal comes with a
                separate stderr.
        """
        ...

    def program(self) -> str:
        """Return what this program is known by, also to a later one: no other on this
        machine has it. It is empty where nobody can tell."""
        ...

    async def end_orphans(
        self, program: str, prefixes: Collection[str]
    ) -> tuple[int, list[int]]:
        """End what still lives of trees whose markers begin with one of these, if the
        `program` that has started them is dead. Return how many processes that were,
        and the pids of those that cannot be ended. A process is known by its marker
        variable, never by its pid. Nothing is ended where nobody can tell, and nothing
        once the call was cancelled."""
        ...

    async def aclose(self) -> None:
        """End every process left and give back every resource. It may be called in a
        cancelled scope, and more than once."""
        ...


class OutputFile(Protocol):
    """An output file open for appending.

    One that has a method ``is_in_place() -> bool`` is asked at the end whether its
    path still leads to it, so that a removal is reported. One that has a property
    ``is_quick`` says by it whether the next `append` or `aclose` will wait for nobody;
    whoever must not be held up then needs neither a task nor a deadline for it.
    """

    @property
    def path(self) -> Path:
        """Where it is."""
        ...

    async def append(self, data: bytes) -> None:
        """Append all of ``data``, and meet a cancellation only afterwards.

        Raises:
            OSError: for instance on a full disk. A part of ``data`` may have been
                written.
            trio.ClosedResourceError: if the file was closed.
        """
        ...

    def size(self) -> int:
        """Return how many bytes it has.

        Raises:
            OSError: if that cannot be read.
        """
        ...

    def rotate(self, older: Path) -> int:
        """Move the file to ``older``, replacing what is there, and begin it
        again, empty and as private as a new one. For readers it is one step. It does
        not wait, even for a slow disk. Return the size of the file that was replaced,
        0 if there was none.

        Raises:
            OSError: if it could not be done. Then the old file is written to as before.
            trio.BusyResourceError: while `append` is under way.
            trio.ClosedResourceError: if the file was closed.
        """
        ...

    async def aclose(self) -> None:
        """Flush and close, and meet a cancellation only afterwards. A second call
        does nothing.

        Raises:
            OSError: if data could not be kept.
        """
        ...


@frozen
class FileEntry:
    """A regular file or a link in a directory."""

    name: str
    size: int
    """In bytes. A link has none."""
    modified: float
    """When it was last written to, in seconds since 1970."""


class LogFile(Protocol):
    """A file to which one caller appends whole lines, from `Files.open_log` to `close`.
    Any thread may call it, one at a time."""

    def append(self, lines: bytes, *, durable: bool = False) -> None:
        """Append whole lines, all of them or none, with one write where the system
        takes them at once. With ``durable`` it returns only when they are on the disk.

        Raises:
            FileNotFoundError: if its path leads to it no more, since it was removed,
                moved or replaced. Nothing is written. A move just behind a write may
                be found a few calls later, or by `close`.
            OSError: with the path as its filename. The file is as long as before.
        """
        ...

    def size(self) -> int:
        """Return how many bytes were in it when it was opened and were appended
        since."""
        ...

    def close(self) -> None:
        """Close it. Idempotent.

        Raises:
            FileNotFoundError: if its path leads to it no more.
            OSError: with the path as its filename, if what was written last may be
                lost. It is closed all the same.
        """
        ...


class Share(Protocol):
    """A directory in use, from `Files.share` to `close` or to any death of the
    process, which also ends its claims. It leaves nothing in the directory but, once
    something was claimed, the empty file ``agents.lock``."""

    UNNAMED: ClassVar[str] = "another process"
    """The words for who has a claim and no name. It may be a fork of a process that has
    died, which has all its claims until it runs a program of its own."""

    def is_alone(self) -> bool:
        """Return whether nobody else uses it now, in this or another process. True
        where the system can never know; False if it cannot know now, for instance
        without a free descriptor."""
        ...

    def claim(self, name: str) -> str | None:
        """Claim ``name`` among all who use the directory, and return None; or return
        in words who has it, such as ``process 4711``. It never waits. Idempotent.
        Where the system can never know, it is as if nobody had it.

        Raises:
            OSError: if nobody can know now, for instance without a free descriptor.
        """
        ...

    def holder(self, name: str) -> str | None:
        """Return in words who else has ``name``, or None if nobody has. Where the
        system cannot know, anybody else counts who uses the directory, or may use it:
        the words say which."""
        ...

    def release(self, name: str) -> None:
        """Let others have ``name``. Idempotent."""
        ...

    def close(self) -> None:
        """Release the directory. Idempotent."""
        ...


class Files(Protocol):
    """The few file operations the runtime needs."""

    def make_directory(self, path: Path) -> Path:
        """Make ``path`` (mode 0700) and its parents, and return it as an absolute path.
        A directory that is there already keeps its mode.

        Raises:
            OSError: if it cannot be made or is not a directory one can write to.
        """
        ...

    def create_output(self, path: Path) -> OutputFile:
        """Create ``path`` exclusively (mode 0600), following no link.

        Raises:
            FileExistsError: if anything is there already, even a dangling link.
            OSError: if it cannot be created.
        """
        ...

    def reserve(self, path: Path) -> None:
        """Create ``path`` as `create_output` does, and leave the file empty and closed.

        Raises:
            FileExistsError, OSError: as `create_output`.
        """
        ...

    def open_output(self, path: Path) -> OutputFile:
        """Open the regular file at ``path`` for appending, following no link.

        Raises:
            OSError: if it is not there, or cannot be opened.
        """
        ...

    def read_tail(self, path: Path, limit: int) -> tuple[bytes, bool]:
        """Return the last ``limit`` bytes of a regular file, and whether bytes precede
        them. If so, the rest of a UTF-8 character that was cut is left out. Missing
        files, links, FIFOs and directories read as ``(b"", False)``. Nothing blocks.

        Raises:
            OSError: if it is there and cannot be read, with ``path`` as its filename.
        """
        ...

    def read_at(self, path: Path, offset: int, limit: int) -> bytes:
        """Return at most ``limit`` bytes of a regular file from ``offset`` on. After
        the end it returns ``b""``, and also where `read_tail` reads nothing.

        Raises:
            OSError: as for `read_tail`.
        """
        ...

    def size(self, path: Path) -> int | None:
        """Return the size of a regular file in bytes, or None if there is none.

        Raises:
            OSError: as for `read_tail`.
        """
        ...

    def remove(self, path: Path) -> None:
        """Remove a file. It may be gone already.

        Raises:
            OSError: if it is there and cannot be removed.
        """
        ...

    def names(self, directory: Path) -> list[str]:
        """Return the names of what is in a directory, sorted. If it is not there,
        return none.

        Raises:
            OSError: if it cannot be read.
        """
        ...

    def entries(self, directory: Path) -> list[FileEntry]:
        """Return the regular files and the links in a directory, sorted by name. What
        goes meanwhile may be left out. If the directory is not there, return none.

        Raises:
            OSError: if it cannot be read.
        """
        ...

    def append_lines(self, path: Path, lines: bytes, *, durable: bool = False) -> None:
        """Append whole lines to the regular file at ``path``, all of them or none.

        A file that is missing is created (mode 0600). No link is followed and
        nothing blocks. After a crash the file may end in the middle of a line. Then a
        newline is written first. After an error the file is as long as before. With
        ``durable`` it returns only when the lines, and the entry of a new file, are on
        the disk. One caller at a time may append to a file. Any thread may call this.

        Raises:
            OSError: with ``path`` as its filename.
        """
        ...

    def open_log(self, path: Path) -> LogFile:
        """Open the regular file at ``path`` for appending whole lines, following no
        link. A file that is missing is created (mode 0600). `append_lines` is for a
        file to which one appends now and then; this is for one that is always open.

        Raises:
            OSError: with ``path`` as its filename.
        """
        ...

    def replace(self, path: Path, contents: bytes, *, durable: bool = False) -> None:
        """Put a new file (mode 0600) with these contents at ``path``, in one step.
        Readers see the old file or the new one. A link is replaced, too. After an error
        the old file is there, and nothing else is left in the directory. With
        ``durable`` a crash of the machine also leaves the old file or the new one, and
        the call returns only when the new one is on the disk. After an error in that,
        it may be either.

        Raises:
            OSError: with ``path`` as its filename, for instance if that is a directory.
        """
        ...

    def link(self, path: Path, target: str) -> None:
        """Make ``path`` a symbolic link to ``target``, in one step. It replaces a file
        or a link that is there.

        Raises:
            OSError: with ``path`` as its filename. What was there is still there.
        """
        ...

    def is_within(self, path: str, directory: str | None) -> bool:
        """Whether ``path`` is ``directory`` or below it, once all links are followed.
        Relative paths begin in the host's directory. None means that directory. If a
        path cannot be looked at, the answer is False."""
        ...

    def follow(self, path: str) -> str | None:
        """Return the absolute path to which ``path`` leads once all links are followed,
        whether anything is there or not. Return None if that is unknown. Relative paths
        begin in the host's directory, so ``"."`` is that directory."""
        ...

    def share(self, directory: Path) -> Share:
        """Mark the directory as in use, until the share is closed."""
        ...

    async def in_thread(self, fn: Callable[..., T], *args: object) -> T:
        """Call ``fn`` where it blocks nobody, and return the result. Use it for large
        files and slow disks. The caller meets a cancellation only at its next
        checkpoint, so the result is not lost."""
        ...


@frozen(kw_only=True)
class Env:
    """What a runtime was given to reach the world: a clock, ids, processes and
    files."""

    clock: Clock
    ids: Ids
    processes: Processes
    files: Files


def real_env() -> Env:
    """Return an `Env` on the operating system. It starts nothing yet."""
    from ._system.files import PosixFiles
    from ._system.posix import PosixProcesses, SystemClock, SystemIds

    return Env(
        clock=SystemClock(),
        ids=SystemIds(),
        processes=PosixProcesses(),
        files=PosixFiles(),
    )


_publish(globals())
