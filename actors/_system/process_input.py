"""The standard input of a process tree: a pipe or a terminal to write to."""

from __future__ import annotations

import errno
import os
import select
import sys

import trio

_CHUNK = 65536


class ProcessInput:
    """See `actors.env.Process.send` and `actors.env.Process.send_eof`."""

    def __init__(self, descriptor: int, *, terminal: bool) -> None:
        self._descriptor = descriptor
        self._terminal = terminal
        self._turn = trio.Lock()
        self._ended = False
        self._line_begun = False

    async def send(self, data: bytes) -> None:
        """Write all of it, after what others write."""
        async with self._turn:
            if self._ended:
                raise trio.ClosedResourceError("the end of the input was sent")
            await self._write(data)

    async def send_eof(self) -> None:
        """End the input, after what others write."""
        async with self._turn:
            if self._ended:
                return
            if self._descriptor < 0:
                raise trio.ClosedResourceError("the process was closed")
            if self._terminal:
                # In the middle of a line the first one only hands over what is there.
                await self._write(self._eof() * (1 + self._line_begun))
            else:
                self.close()
            self._ended = True

    def close(self) -> None:
        """Give back the descriptor."""
        if self._descriptor >= 0:
            trio.lowlevel.notify_closing(self._descriptor)
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    async def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            if self._descriptor < 0:
                raise trio.ClosedResourceError("the process was closed")
            try:
                if self._terminal and _is_hung_up(self._descriptor):
                    raise BrokenPipeError(errno.EPIPE, "hung up")
                written = os.write(self._descriptor, rest[:_CHUNK])
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._descriptor)
            except OSError as error:
                if error.errno not in (errno.EPIPE, errno.EIO):
                    raise
                raise trio.BrokenResourceError("nobody reads the input") from None
            else:
                self._line_begun = rest[written - 1] != ord("\n")
                rest = rest[written:]
                await trio.lowlevel.checkpoint()

    def _eof(self) -> bytes:
        assert sys.platform != "win32"
        import termios

        character = termios.tcgetattr(self._descriptor)[6][termios.VEOF]
        assert isinstance(character, bytes)
        return character


def _is_hung_up(descriptor: int) -> bool:
    assert sys.platform != "win32"
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))
