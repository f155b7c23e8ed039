"""Text from anywhere as one short line."""

from __future__ import annotations

from html import escape
from typing import Final

from actors.envelope import clean_text

# What is cleaned away is less than this many times what is kept, or more is cut.
_READ_AHEAD: Final = 4


def one_line(text: str, limit: int = 200) -> str:
    """Return ``text`` cleaned, with single spaces for all white space, and cut
    to ``limit`` characters, of which the last is then an ellipsis."""
    read = text[: limit * _READ_AHEAD]
    line = " ".join(clean_text(read).split())
    if len(read) < len(text) or len(line) > limit:
        line = line[: limit - 1] + "…"
    return line


def escaped_line(text: str, limit: int = 200) -> str:
    """Return `one_line`, for a place between tags: it opens and closes none."""
    return escape(one_line(text, limit), quote=False)
