"""A text file that somebody has written, read whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

FILE_LIMIT: Final = 1_000_000
"""Bytes that such a file may have."""


class BadFile(Exception):
    """Raised for a file that cannot be read as text: in which line, if it is one, and
    what to do."""

    def __init__(self, line: int | None, text: str) -> None:
        super().__init__(line, text)
        self.line = line
        self.text = text


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        BadFile: if it is none, or there is none.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadFile(None, "it is no regular file")
            data = file.read(FILE_LIMIT + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise BadFile(None, f"it cannot be read: {why}") from error
    if len(data) > FILE_LIMIT:
        raise BadFile(None, f"it has more than {FILE_LIMIT} bytes")
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadFile(
            line, "this is no UTF-8: save the file in that encoding"
        ) from None


def _open_at_once(path: str, flags: int) -> int:
    # A named pipe that nobody writes to would hold up whoever opens it.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
