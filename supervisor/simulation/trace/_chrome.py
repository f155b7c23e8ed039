"""Events of a timeline as Chrome's JSON has them."""

from __future__ import annotations

from typing import Any


def named(what: str, number: int, name: str) -> dict[str, Any]:
    """Return the name of a track, or of the process."""
    return {"ph": "M", "name": what, "pid": 1, "tid": number, "args": {"name": name}}


def instant(name: str, number: int, at: float) -> dict[str, Any]:
    """Return an instant on a track, at a time in microseconds."""
    return {"ph": "i", "name": name, "pid": 1, "tid": number, "ts": at, "s": "t"}
