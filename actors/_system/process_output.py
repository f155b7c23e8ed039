"""The output of a process tree: a pipe or a terminal to read from."""

from __future__ import annotations

import errno
import os
import sys
from typing import Final

import trio

_CHUNK: Final = 65_536
"""The bytes read at once: what a pipe holds on Linux."""

_LARGE_PIPE: Final = 1_048_576
_LARGE_CHUNK: Final = 131_072
"""The bytes read at once of a large pipe. Where more is asked for and less is there, the
C library gives the memory back to the kernel and takes it anew for the next piece: at
256 KiB that was a seventh of the CPU time."""

_FULL_READS: Final = 16
"""After so many reads that found the pipe full, it is made larger, because its
writer is then stopped less often: a fifth more throughput."""

_MOST_LARGE: Final = 4
"""How many pipes may be large at once. A user has 64 MiB for all pipes; beyond
that new ones get two pages each."""

_READS_A_TURN: Final = 8
"""How many outputs are read in one turn of the event loop. With 200 programs
that print all the time, a task then waits 4 ms for its turn and not 200."""


class OutputTurns:
    """What the outputs share that are read by one event loop.

    Hundreds of programs that print as fast as they can can all be read at any time.
    If each turn of the loop read them all, every other task would wait for that. So
    a few are read, and the others stand in line.
    """

    def __init__(self) -> None:
        self._places = trio.Semaphore(_READS_A_TURN)
        self.large = 0
        """How many pipes are larger than others."""

    async def wait(self) -> None:
        """Wait for a turn; always a checkpoint."""
        # A place is held for one turn of the loop and not until the output is
        # dealt with, which takes as long as a slow disk does.
        async with self._places:
            pass


class ProcessOutput:
    """See `actors.env.Process.receive`. It owns the descriptor."""

    def __init__(
        self, descriptor: int, turns: OutputTurns, *, terminal: bool = False
    ) -> None:
        self._descriptor = descriptor
        self._terminal = terminal
        self._turns = turns
        self._is_large = False
        self._full_reads = 0
        # Whether a task may wait for more.
        self._is_waited_for = False
        self.has_ended = False
        """Whether its end was read."""

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def receive_nowait(self, max_bytes: int) -> bytes | None:
        """Return the next output, ``b""`` at its end, and None if there is none yet.

        It takes no turn: ``max_bytes`` must be few.
        """
        try:
            data = os.read(self._descriptor, max_bytes)
        except BlockingIOError:
            return None
        except OSError as error:
            # A terminal reports so that nobody has its other side open.
            if error.errno != errno.EIO or not self._terminal:
                raise
            data = b""
        self.has_ended = not data
        return data

    async def receive(self, max_bytes: int) -> bytes:
        """Return the next output, ``b""`` at its end."""
        limit = min(max_bytes, _LARGE_CHUNK if self._is_large else _CHUNK)
        while True:
            await self._turns.wait()
            if self._descriptor < 0:
                raise trio.ClosedResourceError
            data = self.receive_nowait(limit)
            if data is None:
                self._is_waited_for = True
                await trio.lowlevel.wait_readable(self._descriptor)
                self._is_waited_for = False
            else:
                if len(data) == _CHUNK and not self._is_large:
                    self._count_full_read()
                return data

    def close(self) -> None:
        """Give back the descriptor."""
        if self._descriptor >= 0:
            # At its end hardly anybody waits for more.
            if self._is_waited_for or not self.has_ended:
                trio.lowlevel.notify_closing(self._descriptor)
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
            self._turns.large -= self._is_large

    def _count_full_read(self) -> None:
        self._full_reads += 1
        if self._full_reads >= _FULL_READS and self._turns.large < _MOST_LARGE:
            self._full_reads = 0
            self._is_large = _enlarge(self._descriptor)
            self._turns.large += self._is_large


def _enlarge(pipe: int) -> bool:
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _LARGE_PIPE)
    except OSError:  # It is a terminal, or its user has too many pipes.
        return False
    return True
