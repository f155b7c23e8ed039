"""Which call on the world goes wrong, and how: the seam that each fake asks.

An operation has a name, such as ``processes.spawn``. Each fake says in its ``SEAMS``
what can go wrong with each of its operations, and only what the protocol of
`actors.env` allows. A way that is called as an errno is an OSError with it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Protocol, TypeAlias, TypeVar

E = TypeVar("E", bound=BaseException)

Ways: TypeAlias = Mapping[str, str]
"""What can go wrong with one operation, by name, and what each means."""


class Faults(Protocol):
    """It decides which calls go wrong."""

    def next(self, operation: str, what: str = "") -> str:
        """Return how the call goes wrong that is being made now; "" if it does not.

        ``what`` is the command, the path or the like that it is about.
        """
        ...

    def put_in(self, error: E) -> E:
        """Return an error that is about to be raised because of a fault."""
        ...

    def suspend(self, seconds: float) -> None:
        """Let time go on at once, as if the machine had slept."""
        ...


def goes_wrong(faults: Faults | None, operation: str, what: str = "") -> str:
    """Return how a call goes wrong that is being made; "" if it does not.

    Raises:
        OSError: if that is how, with ``what`` as its filename.
    """
    if faults is None:
        return ""
    way = faults.next(operation, what)
    if way and hasattr(errno, way):
        number: int = getattr(errno, way)
        raise faults.put_in(OSError(number, os.strerror(number), what or None))
    return way


def errors(*names: str) -> Ways:
    """Return the ways that are errors of the system, with what it says of them."""
    return {name: os.strerror(getattr(errno, name)) for name in names}
