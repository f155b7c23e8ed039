"""A text that somebody has written: a file, read whole, or JSON."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import attrs

from actors.text import one_line

FILE_LIMIT: Final = 1_000_000
"""Bytes that such a file may have."""


@attrs.define(slots=False, repr=False)
class BadText(Exception):
    """Raised for a text that cannot be read: in which line, if it is one, and what to
    do."""

    line: int | None
    text: str

    def __str__(self) -> str:
        return self.text if self.line is None else f"{self.text}, line {self.line}"


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        BadText: if it is none, or there is none.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadText(None, "it is not a regular file")
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
            line, "this is not UTF-8: save the file in that encoding"
        ) from None


def _open_at_once(path: str, flags: int) -> int:
    # A named pipe that nobody writes to would hold up whoever opens it.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_json(text: str, *, strict: bool = True) -> dict[str, Any]:
    """Return the JSON object that a text is.

    Args:
        strict: whether the texts in it may hold no line breaks and the like.

    Raises:
        BadText: if it is none, or a key stands there twice.
    """
    try:
        value: object = json.loads(
            text,
            strict=strict,
            object_pairs_hook=_once_each,
            parse_constant=_no_constant,
        )
    except json.JSONDecodeError as error:
        raise BadText(error.lineno, error.msg) from None
    except ValueError as error:
        raise BadText(None, str(error)) from None
    except RecursionError:
        raise BadText(None, "it is nested too deeply") from None
    if not isinstance(value, dict):
        raise BadText(None, f"it must be an object, not {one_line(repr(value), 80)}")
    return cast("dict[str, Any]", value)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            # One of the two would be passed over, and it may be one that denies.
            raise ValueError(
                f"the key {one_line(key, 80)!r} stands twice in one object"
            )
        found[key] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")
