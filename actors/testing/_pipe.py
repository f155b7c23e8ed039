"""A pipe in memory, as wide as Linux's."""

from __future__ import annotations

from collections.abc import Callable

import trio

CAPACITY = 65_536
"""The bytes that wait in it before a writer must wait."""


class Pipe:
    """Bytes on their way from writers to one reader.

    Whoever opens and closes its ends calls `changed`, so that those who wait
    look again.
    """

    def __init__(
        self, has_reader: Callable[[], bool], has_writer: Callable[[], bool]
    ) -> None:
        self._has_reader = has_reader
        self._has_writer = has_writer
        self._data = bytearray()
        self._waiting = trio.lowlevel.ParkingLot()
        self._turn = trio.StrictFIFOLock()

    def changed(self) -> None:
        """One of its ends was closed."""
        self._waiting.unpark_all()

    def put(self, data: bytes) -> None:
        """Put ``data`` in without waiting, however full it is."""
        self._data += data
        self._waiting.unpark_all()

    async def write(self, data: bytes) -> None:
        """Put ``data`` in, after that of earlier calls; wait while it is full.

        Raises:
            trio.BrokenResourceError: if nobody can read it any more.
        """
        async with self._turn:
            rest = memoryview(data)
            while True:
                if not self._has_reader():
                    raise trio.BrokenResourceError
                room = max(0, CAPACITY - len(self._data))
                self.put(bytes(rest[:room]))
                rest = rest[room:]
                if not rest:
                    return
                await self._waiting.park()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to take."""
        return not self._data

    async def read(
        self, max_bytes: int, until: Callable[[], bool] = lambda: False
    ) -> bytes:
        """Take at most ``max_bytes``, waiting for one or for `changed` when ``until``
        is true; ``b""`` is the end, or that."""
        await trio.lowlevel.checkpoint()
        while not self._data and self._has_writer() and not until():
            await self._waiting.park()
        taken = bytes(self._data[:max_bytes])
        del self._data[: len(taken)]
        if taken:
            self._waiting.unpark_all()
        return taken

    def close(self) -> None:
        """Drop what is in it."""
        self._data.clear()
        self._waiting.unpark_all()
