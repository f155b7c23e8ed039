"""Standard input, line by line, for a program that has other things to do meanwhile."""

from __future__ import annotations

import os
import sys

import trio

_LONGEST = 1 << 20
"""Bytes kept of a line that does not end."""


class Stdin:
    """Reads standard input, whatever it is: a terminal, a pipe, a file. For one task."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno()
        self._read_already = bytearray()

    async def read_line(self) -> bytes | None:
        """Wait for a line and return it without its end; None when there is no more."""
        buffer = self._read_already
        while b"\n" not in buffer:
            # Of a line that is too long the start is enough to see that.
            del buffer[_LONGEST:]
            chunk = await self._read()
            if not chunk:
                rest = bytes(buffer)
                buffer.clear()
                return rest or None
            buffer += chunk
        line, _, rest = bytes(buffer).partition(b"\n")
        buffer[:] = rest
        return line

    async def _read(self) -> bytes:
        while True:
            try:
                await trio.lowlevel.wait_readable(self._fd)
            except PermissionError:  # A file, or /dev/null: these never wait.
                await trio.lowlevel.checkpoint()
            try:
                return os.read(self._fd, 65_536)
            except BlockingIOError:  # Somebody else has read it.
                continue
            except OSError:  # The terminal is gone.
                return b""

    def forget(self) -> None:
        """Drop what was typed at a terminal before now: it answers nothing that
        was not asked yet."""
        # Windows has no such thing, and no terminal that this could be.
        import termios

        self._read_already.clear()
        try:
            termios.tcflush(self._fd, termios.TCIFLUSH)
        except termios.error:
            pass
