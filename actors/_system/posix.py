"""The clock, the names and the processes of a Unix system.

Processes are started by a guardian (`actors._system.guardian`), a small process of its
own that outlives this one just long enough to leave nothing behind. One control
socket leads to it. Each tree has a socket of its own, and whoever waits for a tree
reads that socket. While somebody waits, one task in the background looks every few
seconds whether a command holds the guardian, which no event reports. No thread or
signal handler runs there.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from weakref import WeakSet

import trio
from trio.lowlevel import enable_ki_protection

from .._kernel.checks import check_spawn
from ..env import Clock, Ids, Processes, Terminal
from .guardian.proc import is_frozen, look_at, send_signal
from .guardian.requests import encode_environment, encode_request
from .orphans import end_orphans, program
from .process import GUARDIAN_DIED, PATIENCE, Guardian, PosixProcess, wait_process_end
from .process_output import OutputTurns

_ATTEMPTS = 5
"""How many guardians a start may outlive before it fails."""
_AHEAD = 100
"""Names that are read at once."""
_SCRIPT = "__main__.py"
_LOOK_EVERY = 1.0
"""The least seconds between two looks whether a tracer holds the guardian."""


class SystemClock(Clock):
    """The wall clock of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class SystemIds(Ids):
    """Names and chance from the operating system's randomness."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()
        # Read ahead, by their length: each call of the system takes longer than the rest.
        self._ahead: dict[int, list[str]] = {}
        _read_ahead.add(self)

    def hex(self, digits: int) -> str:
        try:
            # In one step: two threads may share these names.
            return self._ahead[digits].pop()
        except (KeyError, IndexError):
            text = secrets.token_hex((_AHEAD * digits + 1) // 2)
            names = [text[at : at + digits] for at in range(0, _AHEAD * digits, digits)]
            self._ahead[digits] = names
            return names.pop()

    def forget(self) -> None:
        """Read new names: a fork must not go on with those of its parent."""
        self._ahead = {}

    def uniform(self) -> float:
        return self._random.random()


_read_ahead: WeakSet[SystemIds] = WeakSet()


def _forget_names() -> None:
    for ids in _read_ahead:
        ids.forget()


os.register_at_fork(after_in_child=_forget_names)


class PosixProcesses(Processes):
    """Starts process trees through a guardian process.

    The guardian is started at the first `spawn`, again by the next one if it
    died, and ended by `aclose`, after which the object can be used anew. Several
    objects, in one or in several trio runs, are independent.
    """

    def __init__(self) -> None:
        self._variable = f"TRIO_SUPERVISOR_{secrets.token_hex(8).upper()}"
        self._guardian: _Guardian | None = None
        self._dying: list[_Guardian] = []
        """Guardians that are used no longer, until they have ended what they started."""
        self._trees: set[PosixProcess] = set()
        self._turns = OutputTurns()
        self._marks = itertools.count(secrets.randbits(32) << 28)
        self._environment: dict[str, str] = {}
        self._raw_environment: dict[object, object] = {}
        self._encoded: tuple[dict[str, str], bytes] | None = None
        """The last environment: most are the same."""

    def directory(self) -> str:
        return os.getcwd()

    def environment(self) -> dict[str, str]:
        # os.environ decodes every variable at each look; its bytes do not change.
        raw: object = getattr(os.environ, "_data", None)
        if not isinstance(raw, dict):
            return dict(os.environ)
        if raw != self._raw_environment:
            self._environment = dict(os.environ)
            self._raw_environment = raw.copy()
        return self._environment.copy()

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
    ) -> PosixProcess:
        if sys.platform == "win32":
            raise OSError(errno.ENOSYS, "shell tasks need a Unix system", argv[0])
        size = None if terminal is None else (terminal.rows, terminal.columns)
        check_spawn(stdin, stderr, size, nice, rlimits or {}, _is_limit)
        mark = next(self._marks)
        request = encode_request(
            argv,
            _absolute(cwd),  # The guardian works in a directory of its own.
            marker,
            mark,
            self._encode(env),
            writable=stdin == "pipe" and terminal is None,
            errors=stderr == "pipe",
            terminal=size,
            nice=nice,
            limits=rlimits,
        )
        await trio.lowlevel.checkpoint_if_cancelled()
        for _ in range(_ATTEMPTS):
            guardian = self._living_guardian(argv[0])
            try:
                ours, theirs = socket.socketpair()
            except OSError as error:
                raise OSError(error.errno, error.strerror, argv[0]) from None
            tree = PosixProcess(
                ours,
                self._trees,
                self._variable,
                marker,
                mark,
                guardian,
                self._turns,
                writable=stdin == "pipe" or terminal is not None,
                errors=stderr == "pipe",
                terminal=terminal is not None,
            )
            try:
                with theirs:
                    tree.ask(request)
                    await guardian.hand_over(theirs)
            except (BrokenPipeError, ConnectionResetError):  # The guardian has died.
                tree.discard()
                if self._guardian is guardian:
                    self._retire()
                continue
            except BaseException:
                tree.discard()
                raise
            try:
                if await tree.wait_started(argv[0], cwd):
                    return tree
            except BaseException:
                with trio.move_on_after(3 * PATIENCE, shield=True):
                    await tree.aclose()
                raise
            # The guardian has died before it read the request.
            tree.discard()
        raise OSError(errno.EPIPE, GUARDIAN_DIED, argv[0])

    def program(self) -> str:
        return program()

    async def end_orphans(
        self, program: str, prefixes: Collection[str]
    ) -> tuple[int, list[int]]:
        wanted, is_over = tuple(map(os.fsencode, prefixes)), False
        try:
            return await trio.to_thread.run_sync(
                lambda: end_orphans(program, wanted, lambda: is_over),
                abandon_on_cancel=True,
            )
        finally:
            is_over = True

    async def aclose(self) -> None:
        with trio.move_on_after(5 * PATIENCE, shield=True):
            try:
                async with trio.open_nursery() as nursery:
                    for tree in [*self._trees]:
                        nursery.start_soon(tree.aclose)
            finally:
                # The guardian ends what we could not, for whatever reason.
                self._retire()
                dying, self._dying = self._dying, []
                for guardian in dying:
                    await guardian.aclose()

    def _encode(self, env: Mapping[str, str]) -> bytes:
        if self._encoded is None or self._encoded[0] != env:
            self._encoded = dict(env), encode_environment(env)
        return self._encoded[1]

    def _retire(self) -> None:
        """Use the guardian no longer; what is left of it ends what it started."""
        guardian, self._guardian = self._guardian, None
        if guardian is not None:
            self._dying.append(guardian)
        self._dying = [one for one in self._dying if not one.has_ended()]

    def _living_guardian(self, program: str) -> _Guardian:
        if self._guardian is not None and self._guardian.host != os.getpid():
            self._guardian = None  # We are a fork: it watches somebody else.
            self._dying = []
        if self._guardian is not None and not self._guardian.wake():
            self._retire()
        if self._guardian is None:
            try:
                self._guardian = _Guardian(self._variable)
            except OSError as error:
                raise OSError(error.errno, f"no guardian: {error}", program) from error
        return self._guardian


class _Guardian(Guardian):
    """The runtime's end of its guardian process."""

    # An interrupt must leave no process that nobody knows of.
    @enable_ki_protection
    def __init__(self, variable: str) -> None:
        self.host = os.getpid()
        self.inner = 0
        """The pid of the inner one, which comes with the first tree."""
        self.waiting = 0
        self._watch: trio.CancelScope | None = None
        self._looked = 0.0
        self._control, theirs = socket.socketpair()
        self._sending = trio.Lock()
        try:
            self._control.setblocking(False)
            self._popen = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    str(Path(__file__).with_name("guardian").absolute() / _SCRIPT),
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

    async def hand_over(self, channel: socket.socket) -> None:
        """Give the guardian its end of a tree's socket.

        Raises:
            BrokenPipeError, ConnectionResetError: if the guardian has died.
        """
        while True:
            try:
                socket.send_fds(self._control, [b"+"], [channel.fileno()])
                return
            except BlockingIOError:
                # Only one task may wait for a socket.
                async with self._sending:
                    await trio.lowlevel.wait_writable(self._control)

    def watch(self) -> None:
        # One task for all who wait: a deadline for each would cost more than the wait.
        if self._watch is None:
            scope = trio.CancelScope()
            try:
                trio.lowlevel.spawn_system_task(self._keep_going, scope)
            except RuntimeError:
                return  # The last steps of a trio run: closing has a deadline of its own.
            self._watch = scope

    async def _keep_going(self, scope: trio.CancelScope) -> None:
        try:
            with scope:
                while True:
                    await trio.sleep(PATIENCE)
                    if not self.waiting:
                        return
                    try:
                        self.wake()
                        self.free()
                    # The boundary: the next look may succeed, and here it would end
                    # the host.
                    except Exception:
                        pass
        finally:
            # Also at the end of a trio run. We may be used in another one.
            if self._watch is scope:
                self._watch = None

    def _end_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def wake(self) -> bool:
        """Continue the guardian if a command has stopped it; return whether it is there.

        It is the outer one, our child, which does the same for the inner one.
        """
        if self._popen.returncode is None:
            self._popen.send_signal(signal.SIGCONT)
        return self._popen.returncode is None

    def free(self) -> None:
        """End it if a tracer holds it: nothing else frees it, and it hears nothing.

        The outer one looks after the inner one, when asked to.
        """
        now = time.monotonic()
        if now < self._looked + _LOOK_EVERY or self._popen.returncode is not None:
            return
        self._looked = now
        if is_frozen(self._popen.pid):
            inner = look_at(self.inner)
            if inner is not None and inner.parent == self._popen.pid:
                send_signal(self.inner, signal.SIGKILL)
            self._popen.kill()
        else:
            # A guardian that has just begun has no handler yet, and ignores it.
            self._popen.send_signal(signal.SIGCHLD)

    def has_ended(self) -> bool:
        """Return whether it has ended; if so, release what it used."""
        if self._popen.poll() is None:
            return False
        self._end_watch()
        if self._control.fileno() >= 0:
            trio.lowlevel.notify_closing(self._control)
            self._control.close()
        return True

    async def wait_ended(self) -> None:
        while self._popen.returncode is None and self._popen.poll() is None:
            if await wait_process_end(self._popen.pid):
                return  # Even if a tracer keeps us from reaping it.

    @enable_ki_protection
    async def aclose(self) -> None:
        """Let the guardian end every process left, and wait for its end."""
        # Not only close: a fork of this process would keep the stream open.
        try:
            self._control.shutdown(socket.SHUT_WR)
        except OSError:  # The guardian has died.
            pass
        self.wake()
        self.free()
        with trio.move_on_after(PATIENCE, shield=True):
            await self.wait_ended()
        if not self.has_ended():
            self._popen.kill()
            with trio.move_on_after(PATIENCE, shield=True):
                await self.wait_ended()
            self.has_ended()


def _absolute(directory: str | None) -> str:
    return os.path.abspath(directory) if directory else os.getcwd()


def _is_limit(name: str) -> bool:
    import resource

    return name.islower() and hasattr(resource, f"RLIMIT_{name.upper()}")
