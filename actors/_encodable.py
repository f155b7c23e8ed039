"""Text and data that UTF-8 and JSON can hold, whatever they were made of.

What models and tools say may hold half a surrogate pair, for JSON can spell one; a
number that is none; one that is too large. It goes through here where it is encoded:
for a model, for an event, for people.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final, cast

import orjson

# Parsers refuse what is nested much deeper, and what a program meant never is.
_DEPTH: Final = 200
_TOO_DEEP: Final = "[nested too deeply]"


def encodable(text: str) -> str:
    """Return ``text`` as UTF-8 can hold it: two halves of a surrogate pair are the
    character that they are, and a half without the other is a question mark."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        return whole.encode("utf-8", "replace").decode()
    return text


def encodable_data(data: Any) -> Any:
    """Return ``data``, of dicts, lists, text and numbers, as JSON in UTF-8 can hold
    it: each text and each key is `encodable`, a number that is none is null, and
    what is nested more than 200 levels deep is a text that says so. It is the same
    object if nothing had to be changed."""
    try:
        json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
    # A TypeError is one of a value of the host's, for whoever encodes it to name.
    except (ValueError, RecursionError, TypeError):
        return _encodable(data, _DEPTH)
    return data


def _encodable(data: Any, depth: int) -> Any:
    if isinstance(data, str):
        return encodable(data)
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if not isinstance(data, Mapping | list | tuple):
        return data
    if depth == 0:
        return _TOO_DEEP
    if isinstance(data, Mapping):
        return {
            encodable(key) if isinstance(key, str) else key: _encodable(item, depth - 1)
            for key, item in cast("Mapping[object, object]", data).items()
        }
    return [_encodable(item, depth - 1) for item in cast("list[object]", data)]


def to_line(data: Any) -> bytes:
    """Return ``data`` as JSON on one line, of what it can hold: see
    `encodable_data`.

    Raises:
        TypeError: if it is nothing that JSON can hold.
    """
    try:
        return orjson.dumps(data)
    except TypeError:
        pass
    # Also of an integer that is too large for orjson.
    sound = encodable_data(data)
    return json.dumps(sound, ensure_ascii=False, separators=(",", ":")).encode()
