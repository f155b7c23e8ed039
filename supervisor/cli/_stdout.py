"""Standard output, for a program that must go on when nobody reads it."""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import stat
import sys
from collections.abc import Callable
from contextlib import suppress

import trio

from ._patient import write_all

_LAST_WORDS = 1.0
"""Seconds of waiting for a reader, in all, once the user is in a hurry."""


class Stdout:
    """Writes to standard output, in the order of the calls.

    A reader that does not read holds up the writing task and nothing else. When
    nobody can read any more, ``on_broken`` is told the number of the signal that
    says so best (0: none, a full disk for instance), and from then on nothing is
    written.
    """

    def __init__(self, on_broken: Callable[[int], None]) -> None:
        self.failure: OSError | None = None
        """Why nothing is written any more."""
        self.is_terminal = sys.stdout.isatty()
        self.encoding = sys.stdout.encoding or "utf-8"
        self._fd = sys.stdout.fileno()
        self._on_broken = on_broken
        self._silent = False
        self._turn = trio.Lock()
        self._writing = trio.CancelScope()
        # Spent only in writes: an end may take long to come, or this program be held.
        self._patience = float("inf")
        self._hurried_at = 0.0

    @property
    def width(self) -> int | None:
        """The columns of the terminal; None if it is not a terminal."""
        return shutil.get_terminal_size().columns if self.is_terminal else None

    async def write(self, text: str) -> None:
        """Write ``text`` and return when all of it is written, or none can be."""
        await self.write_bytes(text.encode(self.encoding, "replace"))

    async def write_bytes(self, data: bytes) -> None:
        """Write ``data``, likewise."""
        async with self._turn:
            if self._silent:
                return
            # Half a line may be out when this is cancelled: nothing fits after it.
            self._silent = True
            began = trio.current_time()
            with trio.CancelScope(deadline=began + self._patience) as self._writing:
                try:
                    await self._write_all(data)
                    self._silent = False
                except OSError as error:
                    self._break(error)
            self._patience -= trio.current_time() - max(began, self._hurried_at)

    async def _write_all(self, data: bytes) -> None:
        try:
            # A blocked write in this thread would block every signal too.
            await trio.to_thread.run_sync(
                write_all, self._fd, data, abandon_on_cancel=True
            )
        except RuntimeError:
            # There can be no more threads: a command may have used up all processes,
            # and must not end what others do.
            while data:
                with suppress(PermissionError):  # A file, which is always writable.
                    await trio.lowlevel.wait_writable(self._fd)
                with suppress(BlockingIOError):
                    data = data[os.write(self._fd, data[: select.PIPE_BUF]) :]

    def hurry(self) -> None:
        """Let nobody wait for long any more."""
        self._patience, self._hurried_at = _LAST_WORDS, trio.current_time()
        deadline = self._hurried_at + _LAST_WORDS
        self._writing.deadline = min(self._writing.deadline, deadline)

    async def watch(self) -> None:
        """Notice at once, not at the next write, when a pipe's reader goes."""
        if sys.platform != "linux" or not stat.S_ISFIFO(os.fstat(self._fd).st_mode):
            return
        # A pipe's write end never becomes readable; it only reports that.
        await trio.lowlevel.wait_readable(self._fd)
        self._silent = True
        self._break(OSError(errno.EPIPE, os.strerror(errno.EPIPE)))

    def _break(self, error: OSError) -> None:
        if self.failure is None:
            self.failure = error
            said = {errno.EPIPE: signal.SIGPIPE}
            if self.is_terminal:  # Of a file it tells that the disk is bad.
                said[errno.EIO] = signal.SIGHUP
            self._on_broken(said.get(error.errno or 0, 0))
