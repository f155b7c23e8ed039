"""Starting the leader of a tree.

Most are started by ``posix_spawn``, which copies nothing of the guardian. It cannot set
niceness, limits or a terminal, nor pass on a descriptor above the host's limit of
files: these take a fork.

The leader of a tree with a terminal does not lead its session: when the leader
of a session ends, the kernel takes the terminal from everybody else in it. A
holder leads it instead: a fork of the guardian that only waits until nothing else is
left, so that a process in the background can still print its last words. The guardian
keeps the terminal open for the same time. Otherwise the output would end as soon as
nobody has the terminal open, although a process that is left may open it again.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import resource
import signal
import sys
import termios
from collections.abc import Callable, Iterator

from .proc import HAS_PROC, PR_SET_DUMPABLE, prctl, send_signal, set_mark
from .requests import Request

CATCHABLE = tuple(
    sorted(
        {int(number) for number in signal.valid_signals()}
        - {signal.SIGKILL, signal.SIGSTOP}
    )
)
"""Signals that can be ignored. A program starts with none of them ignored, whatever
its host ignores."""

_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
_NO_MEMORY = f"failed {errno.ENOMEM} program\n".encode()


class Started:
    """A leader, and our ends of its streams."""

    def __init__(self, pid: int, holder: int | None, streams: _Streams) -> None:
        self.pid = pid
        self.session = holder or pid
        self.holder = holder
        """The process that leads the session in its place."""
        self.streams = streams.ours
        """Of the output, of an input to write to, if any, and of a separate stderr."""
        self.terminal = streams.terminal
        """The programs' side of a terminal. While it is open here the output does not
        end, even if every program has closed it: one may open it again."""
        self.name = streams.name
        """What ``/proc`` calls the other end of the output."""


def use_all_descriptors() -> None:
    """Let this process open as many files as it may.

    Programs are started with the limit that was there before.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # macOS has another, hidden maximum.
        pass


def descriptor_limit() -> int:
    """Return how many files this process may open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def start(request: Request, env: dict[bytes, bytes], mark: int) -> Started:
    """Start a leader in a session of its own; its descendants bear ``mark``.

    Raises:
        OSError: with the WHAT of the protocol as its filename.
    """
    what = "program" if request.terminal is None else "terminal"
    try:
        if request.terminal is None:
            streams = _open_pipes(request.writable, request.errors)
        else:
            streams = _open_terminal(*request.terminal)
        try:
            # posix_spawn cannot set a directory, so the guardian changes its own. It has
            # one thread, so nothing else sees that.
            what = "cwd"
            os.chdir(request.cwd)
            what = "program"
            try:
                set_mark(mark)
                if _is_plain(request, streams):
                    return Started(_spawn(request, env, streams), None, streams)
                what = ""
                return Started(*_fork(request, env, streams), streams)
            finally:
                # Somebody may want to unmount the directory. A failure here must not
                # hide that the leader was started.
                try:
                    os.chdir("/")
                except OSError:
                    pass
        except BaseException:
            for descriptor in streams.ours:
                os.close(descriptor)
            if streams.terminal is not None:
                os.close(streams.terminal)
            raise
        finally:
            for descriptor in streams.theirs:
                os.close(descriptor)
    except OSError as error:
        if not what or error.errno is None:
            raise  # A fork says itself what has failed.
        raise OSError(error.errno, error.strerror, what) from None


def _is_plain(request: Request, streams: _Streams) -> bool:
    """Whether ``posix_spawn`` can start it."""
    if request.terminal is not None or request.nice is not None or request.limits:
        return False
    # It runs under the lower limit of programs, and cannot move a descriptor from above
    # it.
    return _FILES[0] == _FILES[1] or max(streams.theirs) < _FILES[0]


class _Failing:
    """Puts what failed into an OSError raised in the block, as its filename."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, self._what) from None


# Streams


class _Streams:
    def __init__(
        self,
        ours: list[int],
        input: int | None,
        output: int,
        errors: int,
        name: str,
        *,
        terminal: int | None = None,
    ) -> None:
        self.ours = ours
        """See `Started.streams`."""
        self.input = input
        self.output = output
        """What the leader gets; may be the same."""
        self.errors = errors
        """Likewise."""
        self.name = name
        self.terminal = terminal
        """See `Started.terminal`."""
        # What is closed here once the leader has it.
        self.theirs = {output, errors} - {terminal}
        if input is not None and input != terminal:
            self.theirs.add(input)


def _open_pipes(writable: bool, apart: bool) -> _Streams:
    # Made here, not in the runtime: a fork of that would keep the write end open, and
    # the output would not end.
    pipes: list[tuple[int, int]] = []
    try:
        for _ in range(1 + writable + apart):
            # One by one: if the last fails, the others must be known and closed.
            pipes.append(os.pipe())  # noqa: PERF401
    except OSError:
        for descriptor in itertools.chain(*pipes):
            os.close(descriptor)
        raise
    reader, output = pipes.pop(0)
    ours, input, errors = [reader], None, output
    if writable:
        input, writer = pipes.pop(0)
        ours.append(writer)
    if apart:
        reader_of_errors, errors = pipes.pop(0)
        ours.append(reader_of_errors)
    for descriptor in ours:
        os.set_blocking(descriptor, False)
    name = f"pipe:[{os.fstat(reader).st_ino}]"
    return _Streams(ours, input, output, errors, name)


def _open_terminal(rows: int, columns: int) -> _Streams:
    ours, theirs = os.openpty()
    try:
        os.set_blocking(ours, False)
        attributes = termios.tcgetattr(theirs)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, attributes)
        termios.tcsetwinsize(theirs, (rows, columns))
        return _Streams(
            [ours, os.dup(ours)],
            theirs,
            theirs,
            theirs,
            os.ttyname(theirs),
            terminal=theirs,
        )
    except (OSError, termios.error) as error:
        os.close(ours)
        os.close(theirs)
        raise OSError(*error.args) from None


# Programs


def _spawn(request: Request, env: dict[bytes, bytes], streams: _Streams) -> int:
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)
        if streams.input is None
        else (os.POSIX_SPAWN_DUP2, streams.input, 0),
        (os.POSIX_SPAWN_DUP2, streams.output, 1),
        (os.POSIX_SPAWN_DUP2, streams.errors, 2),
    ]

    def spawn(program: bytes) -> int:
        return os.posix_spawn(
            program,
            request.argv,
            env,
            file_actions=actions,
            setsid=True,
            setsigmask=[],
            setsigdef=CATCHABLE,
        )

    if _FILES[0] == _FILES[1]:
        return _run_first(request, env, spawn)
    # The program inherits the limit that we have at this moment.
    try:
        _use_few_descriptors()
        return _run_first(request, env, spawn)
    finally:
        use_all_descriptors()


def _use_few_descriptors() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or _FILES[0] <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES[0], hard))


def _run_first(
    request: Request, env: dict[bytes, bytes], run: Callable[[bytes], int]
) -> int:
    """Run the first program of this name in the path, as a shell does."""
    failure = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for program in _places(request, env):
        try:
            return run(program)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            failure = error  # Try the next, but report this one.
    raise failure


def _places(request: Request, env: dict[bytes, bytes]) -> Iterator[bytes]:
    program = request.argv[0]
    if b"/" in program:
        yield program
    elif program:
        path = env.get(b"PATH", os.fsencode(os.defpath))
        for directory in path.split(b":"):
            place = directory + b"/" + program if directory else program
            if os.access(place, os.F_OK):
                yield place


# Forks


def _fork(
    request: Request, env: dict[bytes, bytes], streams: _Streams
) -> tuple[int, int | None]:
    """Return the pids of the leader and of the holder of its terminal, if any."""
    # Without /proc a tree is the group of its leader, which then leads its session, too.
    held = request.terminal is not None and HAS_PROC
    with _Failing("program"):
        reader, writer = os.pipe()
    try:
        with _Failing("program"):
            child = os.fork()
        if child == 0:
            # Whatever fails below fails here, in each of the forks.
            try:
                os.close(reader)
                signal.set_wakeup_fd(-1)
                if sys.platform == "linux":
                    # A fork is not dumpable, as its guardian. If both guardians are
                    # killed, the runtime must be able to find it in /proc.
                    with _Failing("program"):
                        prctl(PR_SET_DUMPABLE, 1)
                if held:
                    _hold(request, env, streams, writer)
                else:
                    _become(request, env, streams)
            except MemoryError:
                os.write(writer, _NO_MEMORY)
            except OSError as error:
                os.write(writer, f"failed {error.errno} {error.filename}\n".encode())
            finally:
                os._exit(127)
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    with open(reader, "rb") as report:
        # It ends when nobody has the write end: at the exec of the leader, or when it
        # has failed.
        lines = dict(line.rstrip(b"\n").split(b" ", 1) for line in report)
    if b"failed" in lines:
        if held:
            # The child is the holder, which would wait for ever. Without one it is the
            # leader, which has ended by itself.
            send_signal(child, signal.SIGKILL)
        number, what = lines[b"failed"].decode().split(" ", 1)
        raise OSError(int(number), os.strerror(int(number)), what)
    if not held:
        return child, None
    if b"pid" not in lines:  # Somebody has killed the holder.
        send_signal(child, signal.SIGKILL)
        raise OSError(errno.ECHILD, os.strerror(errno.ECHILD), "terminal")
    return int(lines[b"pid"]), child


def _hold(
    request: Request, env: dict[bytes, bytes], streams: _Streams, report: int
) -> None:
    """Lead a session with a terminal in which the leader of the tree runs.

    The leader is started by a child of ours that ends. So the leader becomes a child
    of the guardian, which can then read its exit code.
    """
    with _Failing("terminal"):
        os.setsid()
        fcntl.ioctl(streams.output, termios.TIOCSCTTY, 0)
    with _Failing("program"):
        middle = os.fork()
    if middle == 0:
        with _Failing("program"):
            leader = os.fork()
        if leader == 0:
            _become(request, env, streams)
        os.write(report, b"pid %d\n" % leader)
        os._exit(0)
    os.waitpid(middle, 0)
    # This process lives long: it must not keep open the sockets of the guardian or the
    # other side of the terminal.
    os.closerange(0, min(descriptor_limit(), 1 << 20))
    while True:
        signal.pause()


def _become(request: Request, env: dict[bytes, bytes], streams: _Streams) -> None:
    """Turn this fork into the leader. It never returns: it raises if that fails."""
    _set_streams(request, streams)
    if request.nice is not None:
        with _Failing("nice"):
            os.setpriority(os.PRIO_PROCESS, 0, request.nice)
    with _Failing("program"):
        _use_few_descriptors()
    for name, value in request.limits:
        with _Failing(f"rlimit {name}"):
            _limit(name, value)
    with _Failing("program"):
        _run_first(request, env, lambda it: os.execve(it, request.argv, env))


def _set_streams(request: Request, streams: _Streams) -> None:
    with _Failing("program"):
        input = streams.input
        if input is None:
            input = os.open("/dev/null", os.O_RDONLY)
        os.dup2(input, 0)
        os.dup2(streams.output, 1)
        os.dup2(streams.errors, 2)
    with _Failing("terminal"):
        if request.terminal is None:
            os.setsid()
        elif not HAS_PROC:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        else:
            # Make this group the foreground of the terminal. A process outside the
            # foreground that does so is stopped by SIGTTOU, unless it blocks that.
            os.setpgid(0, 0)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
            os.tcsetpgrp(0, os.getpid())
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _limit(name: str, value: int) -> None:
    number = getattr(resource, f"RLIMIT_{name.upper()}")
    try:
        resource.setrlimit(number, (value, value))
    except ValueError:  # Python's error for what only a privileged process may do.
        raise OSError(errno.EPERM, os.strerror(errno.EPERM)) from None
