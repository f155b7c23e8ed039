"""What a checker is: it sees a log line by line, and says what breaks its promise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

import attrs

from ...tree import Event
from ..log import Entry


@attrs.frozen
class Violation:
    """A promise that a log shows broken."""

    promise: str
    """``P1`` to ``P10``; ``log`` if the log itself cannot be right."""
    owner: str
    """Whose it is: a task, a child, a notification or a call."""
    text: str
    """What is wrong."""
    entries: tuple[int, ...]
    """The numbers of the lines that show it, the last one is where it was seen."""

    def __str__(self) -> str:
        lines = ", ".join(map(str, self.entries))
        of = "the log" if self.owner == "the log" else f"{self.promise}: {self.owner}"
        return f"{of}: {self.text} (line {lines})"


Judge: TypeAlias = Callable[[Any, Entry], None]
Broken: TypeAlias = Callable[[Violation], object]


class Checker:
    """Checks one promise in one pass. What it remembers is of those that live."""

    promise: ClassVar[str]
    title: ClassVar[str]
    """The promise in a few words."""

    def __init__(self, broken: Broken) -> None:
        self._broken = broken
        self.judged = 0
        """How many events it has really judged: of which it could have said that they
        break the promise."""

    def judges(self) -> Mapping[type[Event], Judge]:
        """Return what to call with events of each kind."""
        raise NotImplementedError

    def breaks(self, owner: str, text: str, *entries: int) -> None:
        """Say that something breaks the promise."""
        self._broken(Violation(self.promise, owner, text, entries))
