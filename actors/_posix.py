"""The clock, the names and the processes of a Unix system.

Processes are started by a guardian (`actors._guardian`), a small process of its
own that outlives this one just long enough to leave nothing behind. One control
socket leads to it; each tree has a socket of its own, so whoever waits for a
tree reads that socket, and no task, thread or signal handler works behind.
"""

from __future__ import annotations

import errno
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import trio
from trio.lowlevel import enable_ki_protection

from .env import ProcessExit

_PATIENCE = 5.0
"""Seconds that closing waits for what was killed and does not end: a process in
an uninterruptible system call, one of another user, or a guardian that hangs."""
_ATTEMPTS = 3

_GUARDIAN_DIED = "the guardian process died"


class SystemClock:
    """The wall clock of this machine."""

    def now(self) -> datetime:
        """Return the current time, aware and in UTC."""
        return datetime.now(UTC)


class SystemIds:
    """Names and chance from the operating system's randomness."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def hex(self, digits: int) -> str:
        """Return ``digits`` random lower-case hexadecimal digits."""
        return secrets.token_hex((digits + 1) // 2)[:digits]

    def uniform(self) -> float:
        """Return a random number, at least 0.0 and below 1.0."""
        return self._random.random()


class PosixProcesses:
    """Starts process trees through a guardian process.

    The guardian is started at the first `spawn`, again by the next one if it
    died, and ended by `aclose`, after which the object can be used anew. Several
    objects, in one or in several trio runs, are independent.
    """

    def __init__(self) -> None:
        self._variable = f"TRIO_SUPERVISOR_{secrets.token_hex(8).upper()}"
        self._guardian: _Guardian | None = None
        self._trees: set[PosixProcess] = set()

    def environment(self) -> dict[str, str]:
        """Return a copy of this process's environment."""
        return dict(os.environ)

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None,
        env: Mapping[str, str],
        marker: str,
    ) -> PosixProcess:
        """Start ``argv`` in a session of its own and return the tree.

        See `actors.env.Processes.spawn`. A program without a slash is looked for
        in the ``PATH`` of ``env``, beginning from ``cwd``.

        Raises:
            OSError: if it could not be started, with ``cwd`` or ``argv[0]`` as
                its filename; on a system that is not Unix, always.
            ValueError: if ``argv`` is empty, or a string could not be given to
                a program.
        """
        if sys.platform == "win32":
            raise OSError(errno.ENOSYS, "shell tasks need a Unix system", argv[0])
        from ._guardian import encode_request

        # The guardian works in a directory of its own.
        directory = _absolute(cwd)
        request = encode_request(argv, directory, env, marker)
        await trio.lowlevel.checkpoint_if_cancelled()
        for _ in range(_ATTEMPTS):
            tree = await self._ask(argv[0], request, marker)
            try:
                if await tree.wait_started(argv[0], cwd):
                    return tree
            except BaseException:
                with trio.move_on_after(3 * _PATIENCE, shield=True):
                    await tree.aclose()
                raise
            # The guardian has died without having read the request.
            tree.discard()
        raise OSError(errno.EPIPE, _GUARDIAN_DIED, argv[0])

    async def aclose(self) -> None:
        """End every process left, and the guardian.

        Safe in a cancelled scope, and more than once.
        """
        with trio.move_on_after(5 * _PATIENCE, shield=True):
            async with trio.open_nursery() as nursery:
                for tree in [*self._trees]:
                    nursery.start_soon(tree.aclose)
            guardian, self._guardian = self._guardian, None
            if guardian is not None:
                await guardian.aclose()

    async def _ask(self, program: str, request: bytes, marker: str) -> PosixProcess:
        for attempt in range(_ATTEMPTS):
            guardian = self._living_guardian(program)
            ours, theirs = socket.socketpair()
            tree = PosixProcess(
                ours, self._trees, self._variable, marker, guardian.wake
            )
            try:
                tree.ask(request)
                await guardian.hand_over(theirs)
            except (BrokenPipeError, ConnectionResetError) as error:
                tree.discard()
                guardian.kill()
                if self._guardian is guardian:
                    self._guardian = None
                if attempt == _ATTEMPTS - 1:
                    raise OSError(error.errno, _GUARDIAN_DIED, program) from error
            except BaseException:
                tree.discard()
                raise
            else:
                return tree
            finally:
                theirs.close()
        raise AssertionError("unreachable")

    def _living_guardian(self, program: str) -> _Guardian:
        guardian = self._guardian
        if guardian is not None and guardian.host != os.getpid():
            guardian = None  # We are a fork: it watches somebody else.
        if guardian is None:
            try:
                guardian = _Guardian(self._variable)
            except OSError as error:
                raise OSError(error.errno, f"no guardian: {error}", program) from error
            self._guardian = guardian
        return guardian


class _Guardian:
    """The runtime's end of its guardian process."""

    # An interrupt must leave no process that nobody knows of.
    @enable_ki_protection
    def __init__(self, variable: str) -> None:
        self.host = os.getpid()
        self._control, theirs = socket.socketpair()
        self._sending = trio.Lock()
        try:
            self._control.setblocking(False)
            self._popen = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    str(Path(__file__).with_name("_guardian.py").absolute()),
                    str(self.host),
                    variable,
                ],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()
        try:
            self._pidfd = _open_pidfd(self._popen.pid)
        except ProcessLookupError:  # It has ended already; the socket tells.
            self._pidfd = None

    async def hand_over(self, channel: socket.socket) -> None:
        """Give the guardian its end of a tree's socket.

        Raises:
            BrokenPipeError, ConnectionResetError: if the guardian has died.
        """
        try:
            socket.send_fds(self._control, [b"+"], [channel.fileno()])
        except BlockingIOError:
            async with self._sending:
                while True:
                    await trio.lowlevel.wait_writable(self._control)
                    try:
                        socket.send_fds(self._control, [b"+"], [channel.fileno()])
                    except BlockingIOError:
                        continue
                    return

    @enable_ki_protection
    async def aclose(self) -> None:
        """Let the guardian end every process left, and wait for its end."""
        # Not only close: a fork of this process would keep the stream open.
        try:
            self._control.shutdown(socket.SHUT_WR)
        except OSError:  # The guardian has died.
            pass
        with trio.move_on_after(_PATIENCE, shield=True):
            # Without a pidfd: the stream ends with the guardian, which never
            # writes to it.
            await trio.lowlevel.wait_readable(
                self._control if self._pidfd is None else self._pidfd
            )
        self.kill()

    def wake(self) -> None:
        """Let the guardian go on, if a command has stopped its parent."""
        if self._control.fileno() >= 0:
            self._popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the guardian, if it has not ended, and reap it."""
        if self._control.fileno() < 0:
            return
        trio.lowlevel.notify_closing(self._control)
        self._control.close()
        if self._pidfd is not None:
            trio.lowlevel.notify_closing(self._pidfd)
            os.close(self._pidfd)
        self._popen.kill()
        self._popen.wait()


def _open_pidfd(pid: int) -> int | None:
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


class PosixProcess:
    """A process tree; see `actors.env.Process`."""

    def __init__(
        self,
        channel: socket.socket,
        registry: set[PosixProcess],
        variable: str,
        marker: str,
        wake_guardian: Callable[[], None],
    ) -> None:
        channel.setblocking(False)
        self._wake_guardian = wake_guardian
        self._channel = channel
        self._registry = registry
        self._variable = os.fsencode(variable)
        self._marker = os.fsencode(marker)
        self._unsent = b""
        self._heard = b""
        self._pid = 0
        self._output = -1
        self._failure: tuple[int, str] | None = None
        self._exit: ProcessExit | None = None
        self._gone = False
        self._lost = False
        """Whether the guardian has died."""
        self._unread = False
        """Whether it died without having read the request."""
        self._stopped = False
        self._closed = False
        self._members: tuple[int, ...] = ()
        self._questions = 0
        self._answers = 0
        self._reading = False
        self._news = trio.Event()
        registry.add(self)

    def __repr__(self) -> str:
        return f"<PosixProcess {self._pid} {os.fsdecode(self._marker)!r}>"

    @property
    def pid(self) -> int:
        """The leader's process id."""
        return self._pid

    # Starting

    def ask(self, data: bytes) -> None:
        """Queue bytes for the guardian, and send what goes without waiting."""
        self._unsent += data
        try:
            while self._unsent:
                self._unsent = self._unsent[self._channel.send(self._unsent) :]
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            self._unsent = b""
            while not self._lost:  # What it told before it died still counts.
                self._hear()
            self._announce()

    async def wait_started(self, program: str, cwd: str | None) -> bool:
        """Wait until the leader is started; tell whether the request was read.

        Raises:
            OSError: if the leader could not be started.
        """
        while self._unsent:
            await trio.lowlevel.wait_writable(self._channel)
            self.ask(b"")
        await self._wait_until(lambda: self._pid > 0 or self._gone or self._lost)
        if self._failure is not None:
            number, which = self._failure
            filename = cwd if which == "cwd" else program
            raise OSError(number, os.strerror(number), filename)
        if self._unread:
            return False
        if self._pid == 0:
            raise OSError(errno.EPIPE, _GUARDIAN_DIED, program)
        return True

    def discard(self) -> None:
        """Give up a tree that no guardian knows."""
        self._gone = True
        self._close()

    # What users see

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next output; see `actors.env.Process.receive`.

        Raises:
            trio.ClosedResourceError: after `aclose`.
        """
        await trio.lowlevel.checkpoint()
        while True:
            if self._output < 0:
                raise trio.ClosedResourceError
            try:
                return os.read(self._output, max_bytes)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._output)

    async def wait_exit(self) -> ProcessExit:
        """Wait for the end of the leader and return it. Any number of times."""
        await self._wait_until(lambda: self._exit is not None)
        assert self._exit is not None
        return self._exit

    async def wait_gone(self) -> None:
        """Wait until no process belongs to the tree any more."""
        await self._wait_until(lambda: self._gone or self._lost)
        if not self._gone:
            await self._kill_lost()

    def terminate(self) -> None:
        """Send SIGTERM, then SIGCONT, to every member. Never blocks."""
        self._stop(b"t", signal.SIGTERM, signal.SIGCONT)

    def kill(self) -> None:
        """Begin to send SIGKILL to every member until none is left. Never blocks."""
        self._stop(b"k", signal.SIGKILL)

    async def members(self) -> tuple[int, ...]:
        """Return the process ids that belong to the tree now."""
        if self._gone or self._lost:
            await trio.lowlevel.checkpoint()
        if not self._gone and not self._lost:
            self._questions += 1
            question = self._questions
            self._wake_guardian()
            self.ask(b"m")
            await self._wait_until(lambda: self._answers >= question or self._lost)
        if self._lost and not self._gone:
            return tuple(sorted(self._find_lost()))
        return () if self._gone else self._members

    async def aclose(self) -> None:
        """Give back every descriptor, after killing whatever is left.

        Safe in a cancelled scope and more than once.
        """
        if not self._gone and not self._closed:
            self._stopped = True
            # The end of the stream tells the guardian to kill the tree. Not
            # only close: a fork of this process would keep the stream open.
            try:
                self._channel.shutdown(socket.SHUT_WR)
            except OSError:  # The guardian has died.
                pass
            with trio.move_on_after(_PATIENCE, shield=True):
                await self.wait_gone()
            if not self._gone:
                with trio.move_on_after(_PATIENCE, shield=True):
                    await self._kill_lost()
        self._close()
        await trio.lowlevel.cancel_shielded_checkpoint()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._registry.discard(self)
        trio.lowlevel.notify_closing(self._channel)
        self._channel.close()
        if self._output >= 0:
            trio.lowlevel.notify_closing(self._output)
            output, self._output = self._output, -1
            os.close(output)
        self._announce()

    def _stop(self, wish: bytes, *signals: int) -> None:
        if self._gone or self._closed:
            return
        self._stopped = True
        if not self._lost:
            self._wake_guardian()
            self.ask(wish)
        if self._lost and not self._gone:
            self._signal_lost(self._find_lost(), *signals)

    # What the guardian tells

    async def _wait_until(self, happened: Callable[[], bool]) -> None:
        """Wait for news until something has happened.

        One of the tasks that wait reads for all of them.
        """
        if happened():
            await trio.lowlevel.checkpoint()
            return
        while not happened():
            if self._closed:
                raise trio.ClosedResourceError
            if self._reading:
                await self._news.wait()
                continue
            self._reading = True
            try:
                await trio.lowlevel.wait_readable(self._channel)
                self._hear()
            finally:
                self._reading = False
                self._announce()

    def _announce(self) -> None:
        self._news.set()
        self._news = trio.Event()

    def _hear(self) -> None:
        try:
            if self._pid:
                data = self._channel.recv(65536)
            else:
                data, descriptors, _, _ = socket.recv_fds(self._channel, 65536, 1)
                for descriptor in descriptors:
                    os.set_inheritable(descriptor, False)
                    self._output = descriptor
        except BlockingIOError:
            return
        except ConnectionResetError:
            # It closed its end with bytes of ours unread.
            self._unread = self._pid == 0
            data = b""
        if not data:
            self._lose()
            return
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            self._learn(*line.decode().split(" "))

    def _learn(self, what: str, *values: str) -> None:
        if what == "started":
            self._pid = int(values[0])
        elif what == "failed":
            self._failure = int(values[0]), values[1]
            self._gone = True
        elif what == "exit":
            code, number, after_stop = map(int, values)
            self._exit = ProcessExit(
                code=code if not number else None,
                signal=number or None,
                after_stop=bool(after_stop),
            )
        elif what == "members":
            self._members = tuple(map(int, values))
            self._answers += 1
        elif what == "gone":
            self._gone = True

    def _lose(self) -> None:
        self._lost = True
        if self._exit is None:
            self._exit = ProcessExit(
                code=None, lost=_GUARDIAN_DIED, after_stop=self._stopped
            )

    # Without a guardian

    def _find_lost(self) -> list[int]:
        """Return what can be found of the tree when no guardian knows more."""
        from ._guardian import group_exists, look_at_processes, variable_of

        if sys.platform != "linux":
            return [-self._pid] if self._pid and group_exists(self._pid) else []
        members: set[int] = set()
        seen = {process.pid: process for process in look_at_processes()}
        for process in seen.values():
            if process.alive and (
                (self._pid and process.session == self._pid)
                or variable_of(process.pid, self._variable) == self._marker
            ):
                members.add(process.pid)
        for pid in [*seen]:
            lineage, parent = [pid], seen[pid].parent
            while parent in seen and parent not in members:
                lineage.append(parent)
                parent = seen[parent].parent
            if parent in members:
                members.update(pid for pid in lineage if seen[pid].alive)
        members.discard(os.getpid())
        return sorted(members)

    def _signal_lost(self, pids: Sequence[int], *signals: int) -> None:
        from ._guardian import send_signal

        for number in signals:
            for pid in pids:
                send_signal(pid, number)

    async def _kill_lost(self) -> None:
        # The death of a guardian is rare, so it may cost a look at all processes.
        while pids := self._find_lost():
            self._signal_lost(pids, signal.SIGKILL)
            for pid in pids:
                await _wait_process_end(pid)
        self._gone = True
        self._announce()
        await trio.lowlevel.checkpoint()


def _absolute(directory: str | None) -> str:
    return os.path.abspath(directory or os.getcwd())


async def _wait_process_end(pid: int) -> None:
    """Wait for the end of a process that is no child of ours."""
    try:
        pidfd = _open_pidfd(pid) if pid > 0 else None
    except ProcessLookupError:
        return
    if pidfd is None:
        await trio.sleep(0.05)  # The caller looks again; no event tells.
        return
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        trio.lowlevel.notify_closing(pidfd)
        os.close(pidfd)
