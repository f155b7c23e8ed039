"""A process tree, as its runtime sees it."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import attrs
import trio

from ..env import Process, ProcessExit, ProcessUsage
from .guardian import proc
from .process_input import ProcessInput
from .process_output import OutputTurns, ProcessOutput

PATIENCE = 5.0
"""Seconds that closing waits for what was killed and does not end: a process in
an uninterruptible system call, one of another user, or a guardian that hangs."""

GUARDIAN_DIED = "the guardian process died"

_LOOKS_IN_VAIN = 20
_BIRTHS = 10
"""How often a look asks for the newest processes: one that lives for less than the
look is met as it is born, or not at all."""
_NEWEST = 4


class Guardian(Protocol):
    """What a tree needs of its guardian."""

    inner: int
    """The process that starts trees and adopts their orphans."""
    waiting: int
    """How many wait for what it reports."""

    def watch(self) -> None:
        """See to it, while somebody waits, that nobody holds it."""
        ...

    def wake(self) -> object:
        """Let it go on if it was stopped."""
        ...

    def free(self) -> None:
        """End it if a tracer holds it."""
        ...

    async def wait_ended(self) -> None:
        """Wait until it has ended, and everything that it started."""
        ...


# Without hooks, or each attribute that is set would cost a call.
@attrs.define(eq=False, repr=False, slots=False, on_setattr=attrs.setters.NO_OP)
class PosixProcess(Process):
    """A process tree; see `actors.env.Process`."""

    _channel: socket.socket
    _registry: set[PosixProcess]
    _variable: bytes = attrs.field(converter=os.fsencode)
    _marker: bytes = attrs.field(converter=os.fsencode)
    # Known before the start: if the guardian dies while it starts a process, only this
    # mark shows whose that is.
    _mark: int
    _guardian: Guardian
    _turns: OutputTurns
    _has_input: bool = attrs.field(alias="writable")
    _has_errors: bool = attrs.field(alias="errors")
    _terminal: bool = attrs.field(alias="terminal")

    def __attrs_post_init__(self) -> None:
        self._channel.setblocking(False)
        self._unsent = b""
        self._heard = b""
        self._pid = 0
        self._session = 0
        self._output: ProcessOutput | None = None
        self._errors: ProcessOutput | None = None
        self._input: ProcessInput | None = None
        self._failure: tuple[int, str] | None = None
        self._exit: ProcessExit | None = None
        self._gone = False
        self._lost = False
        """Whether the guardian has died."""
        self._unread = False
        """Whether it died without having read the request."""
        self._stopped = False
        self._closed = False
        self._orphans_used = 0.0
        self._most_used = 0.0
        self._members: tuple[int, ...] = ()
        self._questions = 0
        self._answers = 0
        self._reading = False
        self._was_cut = False
        """Whether a wait has ended without its event."""
        self._either: select.epoll | None = None
        """Where news of the guardian and output are waited for at once."""
        self._news: trio.Event | None = None
        """What those wait for who do not read themselves."""
        self._registry.add(self)

    def __repr__(self) -> str:
        return f"<PosixProcess {self._pid} {os.fsdecode(self._marker)!r}>"

    @property
    def pid(self) -> int:
        return self._pid

    # Starting

    def ask(self, data: bytes) -> None:
        """Queue bytes for the guardian, and send what goes without waiting.

        Raises:
            trio.ClosedResourceError: after `aclose`.
        """
        if self._closed:
            raise trio.ClosedResourceError
        self._unsent += data
        try:
            while self._unsent:
                self._unsent = self._unsent[self._channel.send(self._unsent) :]
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            self._unsent = b""
            # What it reported before it died still counts. It need not have died:
            # `aclose`, too, ends the stream.
            while not self._lost and self._hear():
                pass
            self._announce()

    async def wait_started(self, program: str, cwd: str | None) -> bool:
        """Wait until the leader is started; return whether the request was read.

        Raises:
            OSError: if the leader could not be started.
        """
        while self._unsent:
            await trio.lowlevel.wait_writable(self._channel)
            self.ask(b"")
        await self._wait_until(lambda: self._pid > 0 or self._gone or self._lost)
        if self._failure is not None:
            number, what = self._failure
            filename = {"cwd": cwd, "program": program}.get(what, what)
            raise OSError(number, os.strerror(number), filename)
        if self._unread:
            return False
        if self._pid == 0:
            raise OSError(errno.EPIPE, GUARDIAN_DIED, program)
        if self._output is None:
            # The kernel could not give us the descriptors that came with it.
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), program)
        return True

    def discard(self) -> None:
        """Give up a tree that no guardian knows."""
        self._gone = True
        self._close()

    # What users see

    async def receive(self, max_bytes: int = 262_144) -> bytes:
        if self._output is None:
            raise trio.ClosedResourceError
        return await self._output.receive(max_bytes)

    async def receive_or_exit(self, max_bytes: int) -> bytes | ProcessExit | None:
        if self._closed or self._output is None:
            raise trio.ClosedResourceError
        if self._reading or (either := self._watch_either()) is None:
            await trio.lowlevel.checkpoint()
            return None
        while True:
            if self._exit is None:
                await self._listen(either)
                if self._closed:
                    raise trio.ClosedResourceError
            else:
                await trio.lowlevel.checkpoint()
            if not self._output.has_ended:
                if data := self._output.receive_nowait(max_bytes):
                    return data
                if self._output.has_ended:
                    # It would be ready for ever.
                    either.unregister(self._output.fileno())
            if self._exit is not None:
                return self._exit

    @property
    def is_over(self) -> bool:
        return self._gone and self._output is not None and self._output.has_ended

    async def receive_stderr(self, max_bytes: int = 262_144) -> bytes:
        if self._errors is None:
            raise trio.ClosedResourceError("stderr is not a stream of its own")
        return await self._errors.receive(max_bytes)

    async def send(self, data: bytes) -> None:
        await self._writable_input().send(data)

    async def send_eof(self) -> None:
        await self._writable_input().send_eof()

    def _writable_input(self) -> ProcessInput:
        if self._input is None:
            raise trio.ClosedResourceError("there is no input to write to")
        return self._input

    def usage(self) -> ProcessUsage | None:
        if not self._gone and (self._lost or not proc.HAS_PROC):
            return None
        ticks = pages = processes = 0
        for seen in () if self._gone else self._seen():
            ticks += seen.ticks
            pages += seen.pages
            processes += seen.alive
        ended = self._exit.cpu_seconds if self._exit is not None else None
        used = ticks / os.sysconf("SC_CLK_TCK") + (ended or 0.0) + self._orphans_used
        # What ends between two looks must not make the sum smaller.
        self._most_used = max(self._most_used, used)
        return ProcessUsage(
            cpu_seconds=self._most_used,
            memory_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
            processes=processes,
        )

    def _seen(self) -> Iterator[proc.Seen]:
        """Yield the members that descend from the leader, or are orphans of it."""
        roots = [] if self._exit is not None else [self._pid]
        others = {pid for tree in self._registry for pid in (tree._pid, tree._session)}
        roots += [
            pid
            for pid in proc.adopted_by(self._guardian.inner)
            if pid not in others and proc.mark_of(pid) == self._mark
        ]
        for pid in proc.descendants_of(roots):
            if (seen := proc.look_at(pid)) is not None:
                yield seen

    async def wait_exit(self) -> ProcessExit:
        await self._wait_until(lambda: self._exit is not None)
        assert self._exit is not None
        return self._exit

    async def wait_gone(self) -> None:
        await self._wait_until(lambda: self._gone or self._lost)
        if not self._gone:
            await self._kill_lost()

    def terminate(self) -> None:
        self._stop(b"t", signal.SIGTERM, signal.SIGCONT)

    def kill(self) -> None:
        self._stop(b"k", signal.SIGKILL)

    async def members(self) -> tuple[int, ...]:
        if self._gone or self._lost:
            await trio.lowlevel.checkpoint()
        else:
            self._questions += 1
            question = self._questions
            self._guardian.wake()
            self.ask(b"m")
            await self._wait_until(lambda: self._answers >= question or self._lost)
        if self._gone:
            return ()
        return tuple(self._find_lost()) if self._lost else self._members

    async def aclose(self) -> None:
        try:
            if not self._gone and not self._closed:
                await self._end()
                await trio.lowlevel.cancel_shielded_checkpoint()
        finally:
            self._close()

    async def _end(self) -> None:
        self._stopped = True
        self._guardian.wake()
        self._guardian.free()
        # The end of the stream tells the guardian to kill the tree. Not
        # only close: a fork of this process would keep the stream open.
        try:
            self._channel.shutdown(socket.SHUT_WR)
        except OSError:  # The guardian has died.
            pass
        with trio.move_on_after(PATIENCE, shield=True):
            try:
                await self.wait_gone()
            except OSError:
                # A look takes a descriptor: give back those of this tree.
                self._close()
        if not self._gone:
            self._guardian.free()
            with trio.move_on_after(PATIENCE, shield=True):
                await self._kill_lost()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._registry.discard(self)
        # In the usual end nobody waits, and each wait has ended with its event. Then trio
        # watches nothing of this, not even where a fork keeps the sockets open.
        if self._reading or self._was_cut or not self._gone:
            trio.lowlevel.notify_closing(self._channel)
            if self._either is not None:
                trio.lowlevel.notify_closing(self._either)
        self._channel.close()
        if self._either is not None:
            self._either.close()
        for stream in (self._input, self._output, self._errors):
            if stream is not None:
                stream.close()
        self._announce()

    def _stop(self, wish: bytes, *signals: int) -> None:
        if self._gone or self._closed:
            return
        self._stopped = True
        if not self._lost:
            self._guardian.wake()
            self._guardian.free()
            self.ask(wish)
        if self._lost and not self._gone:
            self._signal_lost(self._find_lost(), *signals)

    # What the guardian reports

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
                if self._news is None:
                    self._news = trio.Event()
                await self._news.wait()
            else:
                await self._listen(self._channel)

    async def _listen(self, where: socket.socket | select.epoll) -> None:
        """Wait until there may be news at ``where``, and take in what there is."""
        self._reading = True
        self._guardian.waiting += 1
        try:
            self._guardian.watch()
            await trio.lowlevel.wait_readable(where)
            if not self._closed:
                self._hear()
        except trio.ClosedResourceError:
            pass  # Whoever closed it may have heard what we wait for.
        except BaseException:
            self._was_cut = True
            raise
        finally:
            self._guardian.waiting -= 1
            self._reading = False
            self._announce()

    def _watch_either(self) -> select.epoll | None:
        """Return what to wait for to have news or output, if that can be had."""
        if self._either is None and sys.platform == "linux":
            assert self._output is not None
            try:
                either = select.epoll(2)
            except OSError:  # No descriptor is left.
                return None
            try:
                either.register(self._channel, select.EPOLLIN)
                if not self._output.has_ended:
                    either.register(self._output.fileno(), select.EPOLLIN)
            except BaseException:
                either.close()
                raise
            self._either = either
        return self._either

    def _announce(self) -> None:
        news, self._news = self._news, None
        if news is not None:
            news.set()

    def _hear(self) -> bool:
        """Take in what the guardian has sent; return whether there was anything."""
        try:
            if self._pid:
                data = self._channel.recv(65536)
            else:
                data, descriptors, _, _ = socket.recv_fds(self._channel, 65536, 3)
                self._take(descriptors)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            # It closed its end with bytes of ours unread.
            self._unread = self._pid == 0
            data = b""
        if not data:
            self._lose()
            return True
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            self._learn(*line.decode().split(" "))
        return True

    def _take(self, descriptors: list[int]) -> None:
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        if len(descriptors) < 1 + self._has_input + self._has_errors:
            for descriptor in descriptors:
                os.close(descriptor)
        elif descriptors:
            output, *others = descriptors
            self._output = ProcessOutput(output, self._turns, terminal=self._terminal)
            if self._has_errors:
                self._errors = ProcessOutput(others.pop(), self._turns)
            if others:
                self._input = ProcessInput(others[0], terminal=self._terminal)

    def _learn(self, what: str, *values: str) -> None:
        if what == "started":
            self._pid, self._session, self._guardian.inner = map(int, values)
        elif what == "failed":
            self._failure = int(values[0]), " ".join(values[1:])
            self._gone = True
        elif what == "exit":
            code, number, after_stop = map(int, values[:3])
            self._exit = ProcessExit(
                code=code if not number else None,
                signal=number or None,
                after_stop=bool(after_stop),
                cpu_seconds=float(values[3]),
            )
        elif what == "used":
            self._orphans_used = float(values[0])
        elif what == "lost":
            self._lose_exit()
        elif what == "members":
            self._members = tuple(map(int, values))
            self._answers += 1
        elif what == "gone":
            self._gone = True

    def _lose(self) -> None:
        self._lost = True
        self._lose_exit()

    def _lose_exit(self) -> None:
        if self._exit is None:
            self._exit = ProcessExit(
                code=None, lost=GUARDIAN_DIED, after_stop=self._stopped
            )

    # Without a guardian

    def _find_lost(self) -> list[int]:
        """Return what can be found of the tree when no guardian knows more."""
        if not proc.HAS_PROC:
            return [-self._pid] if self._pid and proc.group_exists(self._pid) else []
        members: set[int] = set()
        seen = {process.pid: process for process in proc.look_at_processes()}
        for process in seen.values():
            if process.alive and (
                (self._pid and process.session == self._session)
                or proc.mark_of(process.pid) == self._mark
                or proc.variable_of(process.pid, self._variable) == self._marker
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
        for number in signals:
            for pid in pids:
                proc.send_signal(pid, number)

    async def _kill_lost(self) -> None:
        # The other half of the guardian ends everything, and then itself.
        self._guardian.wake()
        with trio.move_on_after(PATIENCE / 2):
            await self._guardian.wait_ended()
        # Both halves may have been killed.
        met: set[int] = set()
        while True:
            await trio.lowlevel.checkpoint()
            while pids := self._find_lost():
                self._signal_lost(pids, signal.SIGKILL)
                for pid in pids:
                    await wait_process_end(pid)
            if not await self._hunt(met):
                break
        self._gone = True
        self._announce()
        await trio.lowlevel.checkpoint()

    async def _hunt(self, met: set[int]) -> bool:
        """Kill every process that bears our mark, also those born while we look.

        One look may miss some: a chain of processes that fork and end is always one
        link ahead. Return True once a look has found one that is not in ``met``, to
        which it is added. False is certain if no process was born during a look; on
        a machine where one always is, many looks must have found nothing.
        """
        if not proc.HAS_PROC:
            return False
        for _ in range(_LOOKS_IN_VAIN):
            before = newest = proc.newest_pid()
            bearers: set[int] = set()
            for pid in proc.all_pids():
                if proc.mark_of(pid) == self._mark:
                    proc.send_signal(pid, signal.SIGKILL)
                    bearers.add(pid)
            for _ in range(_BIRTHS):
                for pid in range(newest, max(newest - _NEWEST, 0), -1):
                    if proc.mark_of(pid) == self._mark:
                        proc.send_signal(pid, signal.SIGKILL)
                        bearers.add(pid)
                newest = proc.newest_pid()
            if bearers - met:
                met |= bearers
                return True
            if 0 < before == newest:
                return False
            await trio.lowlevel.checkpoint()
        return False


async def wait_process_end(pid: int) -> bool:
    """Wait for the end of a process; return whether it is known to have ended."""
    try:
        pidfd = proc.open_pidfd(pid) if pid > 0 else None
    except ProcessLookupError:
        return True
    if pidfd is None:
        await trio.sleep(0.05)  # The caller looks again; no event reports it.
        return False
    try:
        await trio.lowlevel.wait_readable(pidfd)
        return True
    finally:
        trio.lowlevel.notify_closing(pidfd)
        os.close(pidfd)
