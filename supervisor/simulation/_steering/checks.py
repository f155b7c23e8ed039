"""What a caller may say: numbers, functions and names, each refused by its own name."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from numbers import Real
from typing import Any, cast


def require_number(
    name: str, value: object, least: float = 0.0, most: float = inf
) -> None:
    """Raise TypeError for no number, and ValueError for one that is out of bounds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not least <= cast("Any", value) <= most:
        bounds = f"at least {least:g}" if most == inf else f"from {least:g} to {most:g}"
        raise ValueError(f"{name} must be {bounds}, not {value!r}")


def require_seconds(name: str, value: object) -> None:
    """Raise TypeError for no number, and ValueError for a time that never comes."""
    require_number(name, value)
    if value == inf:
        raise ValueError(f"{name} must come to an end, not {value!r}")


def require_time(name: str, value: object) -> None:
    """Raise TypeError for no number, and ValueError for no time or one without end."""
    require_seconds(name, value)
    if not value:
        raise ValueError(f"{name} must be more than 0")


def require_whole(name: str, value: object) -> None:
    """Raise TypeError for no whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r}")


def require_count(name: str, value: object, least: int = 1) -> None:
    """Raise TypeError for no whole number, and ValueError for one that is too small."""
    require_whole(name, value)
    require_number(name, value, least)


def require_most(name: str, value: object) -> None:
    """Raise TypeError and ValueError for what is no bound: a count, or None for none."""
    if value is not None:
        require_count(name, value)


def require_callable(name: str, value: object, what: str = "a function") -> None:
    """Raise TypeError for what cannot be called."""
    if not callable(value):
        raise TypeError(f"{name} must be {what}, not {value!r}")


def require_texts(name: str, value: Iterable[str]) -> tuple[str, ...]:
    """Return texts as a tuple. Raises TypeError for what is none, by its name."""
    if not isinstance(value, Iterable):
        raise TypeError(f"{name} must be names, not {value!r}")
    texts = tuple(value)
    for it in texts:
        if not isinstance(it, str):
            raise TypeError(f"{name} must be names, not {it!r}")
    return texts
