"""What is told beside standard output."""

from __future__ import annotations

import sys


def say_aside(text: str) -> None:
    """Write ``text`` to standard error, if anybody hears us there."""
    try:
        print(text, file=sys.stderr, end="")
    except OSError:
        pass
