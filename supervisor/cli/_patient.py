"""Standard streams that are waited for when they take nothing more.

Whoever has the other end of standard output may have made it non-blocking, which
changes it for us, too, at any moment: node, ssh and other event loops do so. And it
is not ours to change back. So "try again later" is never a failure here.
"""

from __future__ import annotations

import io
import os
import select
import sys
from typing import Any, cast


def make_streams_patient() -> None:
    """Let every write to `sys.stdout` and `sys.stderr` wait until there is room, and
    none to `sys.stderr` fail: there is nobody left to tell. One to `sys.stdout` that
    fails raises `Unwritten`."""
    for name, kind in (("stdout", _Telling), ("stderr", _Unfailing)):
        stream = getattr(sys, name)
        stream.flush()
        raw = kind(stream.fileno(), "w", closefd=False)
        patient = io.TextIOWrapper(
            # Unbuffered output, as PYTHONUNBUFFERED has it, stays so.
            cast("io.BufferedWriter", raw)
            if stream.write_through
            else io.BufferedWriter(raw),
            encoding=stream.encoding,
            # What it cannot show is shown by its number: it is no reason to say nothing.
            errors="backslashreplace" if stream.errors == "strict" else stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, patient)


class Unwritten(Exception):
    """Raised when standard output takes nothing more; the cause says why.

    It is no OSError: it must not be taken for one of a file that a command writes, nor
    be click's, which ends with 1 for a reader that has gone.
    """

    code = 1
    """What to exit with, unless the reader has gone."""


def say_aside(text: str) -> None:
    """Say on standard error what is not output."""
    print(f"trio-supervisor: {text}", file=sys.stderr)


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``, however long that takes."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            _wait_for_room(fd)


class _Patient(io.FileIO):
    def write(self, data: Any, /) -> int:
        # All of it: nobody asks how much, where there is no buffer.
        left = memoryview(data).cast("B")
        while left:
            # None is what a file says that would block.
            if (written := super().write(left)) is None:
                _wait_for_room(self.fileno())
            else:
                left = left[written:]
        return memoryview(data).nbytes


class _Telling(_Patient):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise Unwritten from error


class _Unfailing(_Patient):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            # Or it would fail again at the end, with another exit code.
            return memoryview(data).nbytes


def _wait_for_room(fd: int) -> None:
    select.select([], [fd], [])
