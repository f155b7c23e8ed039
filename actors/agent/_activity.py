"""What an agent does at the moment: its last few activities, and the text of a message
that is not whole yet. Neither grows with what the agent does.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import attrs
import orjson

from .._kernel.values import frozen
from ..text import cut, encodable, encodable_data

Outcome: TypeAlias = Literal["running", "completed", "failed"]
"""Where a tool call is: a call that was answered with an error has ``failed``."""

_FIELDS: Final = 20
_VALUE: Final = 200
_DRAFT: Final = 65_536
# Pieces that are kept apart: of one letter each they would take 50 times their size.
_PIECES: Final = 1_024


@frozen(kw_only=True)
class Activity:
    """One thing that an agent did: it called a tool, or said something."""

    text: str
    """It in one line, for people: the name of the tool, or the beginning of what was
    said."""
    at: datetime
    """The time at which it began, aware and in UTC."""
    tool: str | None = None
    """The name of the tool. It is None if the agent said something."""
    tool_use_id: str | None = None
    """The model's own id of the call."""
    input: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    """What the tool was given, shortened: at most 20 arguments, and of a text, or of
    the JSON of a list or an object, at most 200 characters."""
    outcome: Outcome | None = None
    """Where the call is. It is None if the agent said something."""
    error: str | None = None
    """The first line of an answer that is an error."""


def shortened(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call, short enough to be kept when the call is over."""
    short = {
        encodable(str(name)[:_VALUE]): _short(arguments[name])
        for name in [*arguments][:_FIELDS]
    }
    if len(arguments) > _FIELDS:
        short["…"] = f"and {len(arguments) - _FIELDS} more"
    return short


def _short(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and abs(value) < 2**53:
        return value
    if not isinstance(value, str):
        try:
            value = orjson.dumps(encodable_data(value)).decode()
        # The boundary: a loop may have put anything into it.
        except (TypeError, ValueError, RecursionError):
            value = f"a {type(value).__name__}"
    return encodable(cut(value, _VALUE))


class Draft:
    """The text of a message that is not whole yet: the last 65,536 characters.

    `add` is called perhaps 10,000 times a second.
    """

    __slots__ = ("_is_cut", "_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0
        self._is_cut = False

    def add(self, text: str) -> None:
        """Put ``text`` behind what is there."""
        self._pieces.append(text)
        self._size += len(text)
        if self._size > 2 * _DRAFT or len(self._pieces) > _PIECES:
            self._fold()

    def text(self) -> str:
        """Return what is there. If more came before, it begins with an ellipsis."""
        if len(self._pieces) > 1 or self._size > _DRAFT:
            self._fold()
        text = "".join(self._pieces)
        return f"…{text}" if self._is_cut else text

    def clear(self) -> None:
        """Forget it: the message is whole."""
        if self._pieces:
            self._pieces = []
            self._size = 0
            self._is_cut = False

    def _fold(self) -> None:
        text = "".join(self._pieces)
        if len(text) > _DRAFT:
            text = text[-_DRAFT:]
            self._is_cut = True
        self._pieces, self._size = [text], len(text)
