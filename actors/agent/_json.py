"""Events as JSON, for another process, another year, or a transcript."""

from __future__ import annotations

import json
from typing import Any, cast, get_args

import orjson

from ..text import encodable_data
from ._events import AgentEvent

_EVENT_TYPES = {kind.__name__: kind for kind in get_args(AgentEvent)}


def to_data(event: AgentEvent) -> dict[str, Any]:
    """Return ``event`` as a dict that JSON can hold: its ``type``, which is the
    name of its class, and its fields. Of half a surrogate pair, which no UTF-8 can
    hold, a question mark is left, and a number that is not one becomes null.

    Raises:
        TypeError: if it is not an event.
    """
    data: dict[str, Any] = encodable_data(_data(event))
    return data


def _data(event: object) -> Any:
    if _EVENT_TYPES.get(type(event).__name__) is not type(event):
        raise TypeError(f"expected an agent's event, got {event!r}")
    from ._converter import converter

    return converter.unstructure(event, unstructure_as=AgentEvent)


def from_data(data: object) -> AgentEvent:
    """Return the event that `to_data` has made ``data`` of. What it does not know
    besides is left out.

    Raises:
        ValueError: naming what is wrong with it.
    """
    if not isinstance(data, dict):
        raise ValueError(f"an event must be a JSON object, not {data!r}")
    fields = cast("dict[str, object]", data)
    kind = fields.get("type")
    if not isinstance(kind, str) or kind not in _EVENT_TYPES:
        raise ValueError(
            f"unknown type of event: {kind!r}; known are {', '.join(_EVENT_TYPES)}"
        )
    from ._converter import converter

    try:
        # cattrs does not take a union for a class, and has no other type for it.
        event: AgentEvent = converter.structure(fields, cast("Any", AgentEvent))
    # The boundary: cattrs raises groups, and a group tells nobody what is wrong.
    except Exception as error:
        raise ValueError(f"this is not a valid {kind}: {_reason(error)}") from error
    return event


def to_json(event: AgentEvent) -> bytes:
    """Return ``event`` as a JSON object on one line.

    Raises:
        TypeError: if it is not an event, or holds what JSON cannot.
    """
    data = _data(event)
    try:
        return orjson.dumps(data)
    except TypeError:  # Also of half a surrogate, and of a very large integer.
        sound = encodable_data(data)
        return json.dumps(sound, ensure_ascii=False, separators=(",", ":")).encode()


def from_json(data: bytes | str) -> AgentEvent:
    """Return the event from which `to_json` has made ``data``.

    Raises:
        ValueError: if it is no such object. It names what is wrong.
    """
    return from_data(orjson.loads(data))


def _reason(error: Exception) -> str:
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} is missing"
    return str(error)
