"""Put the output of a process where it is kept.

`OutputLog` makes it clean, writes it to a file, up to a quota, and remembers its
end. It never holds more than a fixed amount, however much a process prints.
`Growth` wakes those who follow what is written.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import attrs
import trio

from .._kernel.public import publish as _publish
from ..env import OutputFile
from ..text import Cleaner, whole_characters
from ._quota import DirectoryQuotaExceeded, DiskQuota, QuotaExceeded

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "DirectoryQuotaExceeded",
    "OutputLog",
    "QuotaExceeded",
]

SNIFF: Final = 4096
"""The number of first bytes that are searched for a NUL. No text has one."""

BINARY_NOTE: Final = b"[Binary output: not kept from here on]\n"
"""The line that stands in the file for binary output."""

LOST_NOTE: Final = b"[The output file was removed or replaced; this is the end]\n"
"""The line before the end of output whose file was removed or replaced."""

_CLOSE_BUDGET: Final = 5.0


class Growth:
    """Wakes those who follow an output.

    It says only that something may have changed: look, and if there is nothing
    to see `wait` without a checkpoint in between.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting = trio.lowlevel.ParkingLot()

    def grew(self) -> None:
        """Wake all who wait: there is more, or nothing more will come."""
        self._waiting.unpark_all()

    async def wait(self) -> None:
        """Wait for the next `grew`."""
        await self._waiting.park()


def older_file(path: Path) -> Path:
    """Return where the file that was rotated out of ``path`` is."""
    return path.with_name(f"{path.name}.1")


@attrs.define(eq=False, repr=False)
class OutputLog:
    """Writes the output of one task to its file, cleaned and up to a quota.

    Output with a NUL among its first `SNIFF` bytes is binary. What precedes the NUL is
    kept, a line says so, and the rest is dropped without an error.

    Args:
        file: The file. The log closes it.
        quota: The most bytes of the task's output that may be on the disk.
        used: The number of bytes that are there already, from earlier runs.
        older: The number of those bytes that are in the `older_file`.
        raw: Keep the bytes as they come, binary or not, instead of cleaning them.
        tail_bytes: How much of the end `tail` can return.
        on_warning: It is called with a message, once at 80 % use of the quota, and once
            for binary output.
        rotate: None, or the number of bytes at which the file is moved to its
            `older_file` and begun again. The move replaces an `older_file` that is
            there. Then output over the quota is not an error. Its beginning is dropped.
        on_rotate: It is called in the step of a rotation, with two sizes: of the file
            that became the older one, and of the file that it replaced.
        disk: The quota of the directory.
        on_output: It is called after each write that was made.

    One task at a time may write.

    Raises:
        ValueError: if two files of ``rotate`` bytes could exceed the quota.
    """

    _file: OutputFile = attrs.field(alias="file")
    _quota: int = attrs.field(alias="quota", kw_only=True)
    _used: int = attrs.field(alias="used", default=0, kw_only=True)
    _older: int = attrs.field(alias="older", default=0, kw_only=True)
    _raw: bool = attrs.field(alias="raw", default=False, kw_only=True)
    _tail_bytes: int = attrs.field(alias="tail_bytes", default=8192, kw_only=True)
    _on_warning: Callable[[str], None] | None = attrs.field(
        alias="on_warning", default=None, kw_only=True
    )
    _rotate: int | None = attrs.field(alias="rotate", default=None, kw_only=True)
    _on_rotate: Callable[[int, int], None] | None = attrs.field(
        alias="on_rotate", default=None, kw_only=True
    )
    _disk: DiskQuota | None = attrs.field(alias="disk", default=None, kw_only=True)
    _on_output: Callable[[], None] | None = attrs.field(
        alias="on_output", default=None, kw_only=True
    )

    bytes_written: int = attrs.field(default=0, init=False)
    """How many bytes this log has written. After an OSError, possibly more have
    reached the file than were counted."""
    binary: bool = attrs.field(default=False, init=False)
    """Whether the output turned out to be binary."""
    lost: bool = attrs.field(default=False, init=False)
    """Whether somebody had removed or replaced the file by the time of its close."""
    warn_at: int = attrs.field(init=False)
    """The number of bytes at which ``on_warning`` is called. Earlier runs' bytes
    count."""

    _cleaner: Cleaner | None = attrs.field(init=False)
    _sniff_left: int = attrs.field(init=False)
    _tail: bytes = attrs.field(default=b"", init=False)
    _seen: int = attrs.field(default=0, init=False)
    _warned: bool = attrs.field(default=False, init=False)
    # The bytes that this log wrote to the two files and took from the disk quota.
    # The files may be larger: a command may write there, too.
    _size: int = attrs.field(init=False)
    # Taken from the disk quota for what is not written yet.
    _reserved: int = attrs.field(default=0, init=False)
    _behind: bool = attrs.field(default=False, init=False)
    _exceeded: QuotaExceeded | None = attrs.field(default=None, init=False)
    _closed: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        if self._rotate is not None and not 0 < 2 * self._rotate <= self._quota:
            raise ValueError(
                "rotate must be between 1 byte and half the quota of"
                f" {self._quota:,} bytes, not {self._rotate!r}"
            )
        self.warn_at = self._quota - self._quota // 5
        self._cleaner = None if self._raw else Cleaner()
        self._sniff_left = 0 if self._raw else SNIFF
        self._size = self._used - self._older

    @property
    def unfinished(self) -> bytes:
        """The unfinished line. It follows what is in the file, if nothing more comes.

        It is held back and may be replaced as a whole. It is empty while anything
        before it is not in the file yet.
        """
        if self._cleaner is None or self._behind:
            return b""
        return self._cleaner.unfinished

    @property
    def is_quick(self) -> bool:
        """Whether the next `write` waits for nobody: see `actors.env.OutputFile`."""
        return self._rotate is None and getattr(self._file, "is_quick", False)

    async def write(self, data: bytes) -> None:
        """Keep the next piece of output.

        The unfinished line is held back but counts for the quotas. `tail` also returns
        what the disk refused.

        Raises:
            QuotaExceeded: if it does not fit. What fits has been written. Every later
                write keeps nothing and raises it, too.
            DirectoryQuotaExceeded: the same, if it is the directory that is full.
            OSError: if the disk failed.
        """
        if self._exceeded is not None:
            # Without the frames of earlier raises, or the traceback would grow.
            raise self._exceeded.with_traceback(None)
        if self.binary:
            return
        held = 0
        if self._cleaner is not None:
            data = self._clean(self._cleaner, data)
            held = len(self._cleaner.unfinished)
        wanted = len(data) + held
        room = self._reserve(wanted)
        if room < wanted:
            if self._cleaner is not None:
                data += self._cleaner.finish()
                data = _whole_to_end(data[:room])
            else:
                data = data[:room]
        await self._keep(data)
        if self._on_output is not None:
            self._on_output()
        if self._exceeded is not None:
            raise self._exceeded

    async def aclose(self) -> None:
        """Write the unfinished line and close the file, within 5 seconds.

        A cancellation is delivered only afterwards. A second call does nothing.

        Raises:
            TimeoutError: if it took longer. The end of the output may be missing.
            OSError: if the disk failed.
        """
        await self.finish()
        await trio.lowlevel.checkpoint_if_cancelled()

    async def finish(self) -> None:
        """Do what `aclose` does, but deliver no cancellation, not even afterwards: for
        whoever must still record what came of it."""
        if self._closed:
            return
        self._closed = True
        in_time = True
        if self.is_quick and (self._cleaner is None or self._cleaner.is_empty):
            # It waits for nobody, so it needs neither a shield nor a deadline.
            await self._let_go()
        else:
            in_time = await self._finish_in_time()
        if self._on_output is not None:
            self._on_output()
        if not in_time:
            raise TimeoutError(
                errno.ETIMEDOUT,
                f"the output could not be closed in {_CLOSE_BUDGET:g} s",
                str(self._file.path),
            )

    def tail(self) -> tuple[bytes, bool]:
        """Return the clean end of the output, and whether output precedes it.

        The unfinished line is part of it. It begins with a whole character and, if
        the file is `lost`, with a line that says so.
        """
        end = self._tail
        if self._cleaner is not None and not self._closed:
            end += self._cleaner.unfinished
        before = self._seen - len(self._tail)
        kept = _end_of(end, self._tail_bytes)
        truncated = before > 0 or len(kept) < len(end)
        if truncated:
            kept = whole_characters(kept)
        if self._cleaner is None:
            cleaner = Cleaner()
            kept = cleaner.feed(kept) + cleaner.finish()
        return LOST_NOTE + kept if self.lost else kept, truncated

    def _clean(self, cleaner: Cleaner, data: bytes) -> bytes:
        if not self._sniff_left:
            return cleaner.feed(data)
        nul = data.find(b"\0", 0, self._sniff_left)
        self._sniff_left = max(0, self._sniff_left - len(data))
        if nul < 0:
            return cleaner.feed(data)
        self.binary = True
        if self._on_warning is not None:
            self._on_warning(f"the output is binary and not kept ({self._file.path})")
        text = cleaner.feed(data[:nul]) + cleaner.finish()
        if (text or self._tail)[-1:] not in (b"", b"\n"):
            text += b"\n"
        return text + BINARY_NOTE

    def _reserve(self, wanted: int) -> int:
        """Take up to ``wanted`` bytes from the quotas and return how many may be
        written. Note which quota they exceed, if one."""
        room = wanted
        if self._rotate is None:
            room = min(room, max(0, self._quota - self._used - self._seen))
            if room < wanted:
                self._exceeded = QuotaExceeded(self._file.path, self._quota)
        if self._disk is not None:
            if room > self._reserved:
                self._reserved += self._disk.take(room - self._reserved)
            else:
                self._give_back(self._reserved - room)
            if self._reserved < room:
                room = self._reserved
                self._exceeded = DirectoryQuotaExceeded(
                    self._file.path, self._disk.limit
                )
        return room

    def _give_back(self, number: int) -> None:
        if self._disk is not None:
            self._reserved -= number
            self._disk.give_back(number)

    async def _keep(self, data: bytes) -> None:
        if not data:
            return
        self._seen += len(data)
        self._tail = _end_of(
            data if len(data) >= self._tail_bytes else self._tail + data,
            self._tail_bytes,
        )
        # True until all of it is in the file, and for good after an error.
        self._behind = True
        if self._rotate is None:
            await self._append(data)
        else:
            for piece in cut_at_lines(data, self._rotate):
                if self._size and self._size + len(piece) > self._rotate:
                    self._begin_file()
                await self._append(piece)
                self._size += len(piece)
        self._behind = False
        if self._rotate is None and self._used + self.bytes_written >= self.warn_at:
            self._warn_of_quota()

    async def _append(self, data: bytes) -> None:
        await self._file.append(data)
        self.bytes_written += len(data)
        if self._disk is not None:
            self._reserved -= len(data)
            self._disk.wrote(len(data))

    def _begin_file(self) -> None:
        self._file.rotate(older_file(self._file.path))
        dropped, self._older, self._size = self._older, self._size, 0
        if self._disk is not None:
            self._disk.freed(dropped)
        if self._on_rotate is not None:
            self._on_rotate(self._older, dropped)

    async def _finish_in_time(self) -> bool:
        with trio.move_on_after(_CLOSE_BUDGET, shield=True) as scope:
            try:
                if self._cleaner is not None and self._exceeded is None:
                    rest = self._cleaner.finish()
                    # This was reserved already, but for the replacement of a
                    # character that the end has cut.
                    await self._keep(_whole_to_end(rest[: self._reserve(len(rest))]))
            finally:
                await self._let_go()  # noqa: ASYNC102 - in the shield above
        return not scope.cancelled_caught

    async def _let_go(self) -> None:
        try:
            self._look_for_file()
            # It tells others, and may raise.
            self._give_back(self._reserved)
        finally:
            await self._file.aclose()

    def _look_for_file(self) -> None:
        is_in_place = getattr(self._file, "is_in_place", None)
        self.lost = is_in_place is not None and not is_in_place()
        if self.lost and self._on_warning is not None:
            self._on_warning(
                "the output file was removed or replaced while the task ran"
                f" ({self._file.path}): only the end of the output is left, in memory"
            )

    def _warn_of_quota(self) -> None:
        if self._warned or self._on_warning is None:
            return
        self._warned = True
        self._on_warning(
            f"the output has used {self._used + self.bytes_written:,} of the"
            f" {self._quota:,} bytes of its quota ({self._file.path})"
        )


def _end_of(data: bytes, size: int) -> bytes:
    return data[max(0, len(data) - size) :]


def _whole_to_end(data: bytes) -> bytes:
    """Return ``data`` without the beginning of a UTF-8 character cut off after it."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            size = 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
            return data if size <= back else data[:-back]
    return data


def cut_at_lines(data: bytes, size: int) -> Iterator[bytes]:
    """Cut ``data`` into pieces of at most ``size`` bytes, at the ends of lines
    where there are any, else between characters."""
    while len(data) > size:
        end = data.rfind(b"\n", 0, size) + 1 or size
        while end > max(0, size - 4) and data[end] & 0xC0 == 0x80:
            end -= 1
        end = end or size
        yield data[:end]
        data = data[end:]
    yield data


_publish(globals())
