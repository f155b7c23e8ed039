"""A text file that somebody has written, read whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

import attrs

FILE_LIMIT: Final = 1_000_000
"""Bytes that such a file may have."""


@attrs.define(slots=False)
class BadText(Exception):
    """Raised for a text that cannot be read: in which line, if it is one, and what to
    do."""

    line: int | None
    text: str


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        BadText: if it is none, or there is none.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadText(None, "it is no regular file")
            data = file.read(FILE_LIMIT + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise BadText(None, f"it cannot be read: {why}") from error
    if len(data) > FILE_LIMIT:
        raise BadText(None, f"it has more than {FILE_LIMIT} bytes")
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadText(
            line, "this is no UTF-8: save the file in that encoding"
        ) from None


def _open_at_once(path: str, flags: int) -> int:
    # A named pipe that nobody writes to would hold up whoever opens it.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
