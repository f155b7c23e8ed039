"""What options and the environment say: read, or refused with a reason.

Whoever only asks for help need not wait until a runtime is loaded: what a value needs
is imported where it is read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from pathlib import Path

    from ..permissions import Mode, Rule
    from ..runtime import Limits
    from ..tree import Backoff


def option(read: Callable[[str], object]) -> Callable[[str], object]:
    """Return what click calls with the text of an option: ``read``, which refuses it
    by a ValueError."""

    def convert(text: str) -> object:
        try:
            return read(text)
        except ValueError as error:
            raise click.BadParameter(f"{error}.") from error

    return convert


@contextmanager
def refusing(*kinds: type[Exception], of: str | None = None) -> Generator[None]:
    """Refuse the call for errors of these kinds, by what they say."""
    try:
        yield
    except kinds as error:
        raise refusal(f"{error}.", of) from error


def refusal(text: str, of: str | None = None) -> click.UsageError:
    """Return the error to raise; ``of`` is the option with the wrong value."""
    if of is None:
        return click.UsageError(text)
    return click.BadParameter(text, param_hint=f"'{of}'")


def seconds(text: str) -> float:
    """Return a number of seconds."""
    if (number := _number(text)) is None:
        raise ValueError(f"{text!r} is not a number of seconds, 0 or more")
    return number


def deadline(text: str) -> float:
    """Return a number of seconds that leaves some time."""
    if not (number := seconds(text)):
        raise ValueError(f"{text!r} leaves no time: it must be more than 0")
    return number


def duration(text: str) -> float:
    """Return the seconds of ``30s``, ``10m``, ``2h``, or of a number of seconds."""
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
    number = _number(text if unit is None else text[:-1])
    if not number:
        raise ValueError(f"{text!r} is no time such as 30s, 10m or 2h")
    return number * (unit or 1)


def intensity(text: str) -> tuple[int, float]:
    """Return how many restarts there may be in how many seconds."""
    count, _, period = text.partition("/")
    number = _number(period)
    if not (count.isascii() and count.isdigit()) or not number:
        raise ValueError(f"{text!r} is not N/SECONDS, such as 3/10")
    return int(count), number


def backoff(text: str) -> Backoff:
    """Return the seconds before a restart."""
    from ..tree import Backoff, InvalidChildSpec

    parts = text.split(":")
    numbers = [number for part in parts if (number := _number(part)) is not None]
    if len(parts) != len(numbers) or len(parts) not in (2, 3):
        raise ValueError(f"{text!r} is not MIN:MAX in seconds, such as 0.5:30")
    least, most, *jitter = numbers
    try:
        return Backoff(least, most, jitter=jitter[0] if jitter else 0.0)
    except InvalidChildSpec as error:
        raise ValueError(f"{text!r}: {error}") from error


def mode(text: str) -> Mode:
    """Return the permission mode of that name."""
    from ..permissions import read_mode

    return read_mode(text)


def rule(effect: Literal["allow", "deny"], text: str) -> Rule:
    """Return a rule about tool calls."""
    from ..permissions import Rule

    return Rule(effect, text)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def limits(most: int | None = None) -> Limits:
    """Return the limits that the environment sets, with at most ``most`` tasks if
    that is given."""
    import attrs

    from ..settings import read_limits

    with refusing(ValueError):
        read = read_limits(os.environ)
    return read if most is None else attrs.evolve(read, total=most)


def place(directory: str | None) -> Path:
    """Make the directory that was asked for, or one of our own."""
    import tempfile
    from pathlib import Path

    from actors.env import real_env

    if directory == "":
        raise refusal("'' is not a directory.", "--directory")
    try:
        if directory is None:
            return Path(tempfile.mkdtemp(prefix="trio-supervisor-"))
        return real_env().files.make_directory(Path(directory))
    except OSError as error:
        what = f"{directory or error.filename!r}: {error.strerror}."
        raise refusal(what, "--directory") from error
