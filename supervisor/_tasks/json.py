"""Events as JSON, for whoever reads them in another process or another year."""

from __future__ import annotations

from typing import Any, Final, cast, get_type_hints

import attrs
import orjson

from actors.text import encodable

from .. import tree
from ..tree._events import SCHEMA_VERSION, Event
from . import task_events
from .task_events import AgentSaid

# For help(), which shows only what a module defines itself or lists here.
__all__ = ["SCHEMA_VERSION", "from_json", "to_json"]

_SAID: Final = "AgentEvent"
_EVENT_TYPES: Final[dict[str, type[Event]]] = {
    _SAID if kind is AgentSaid else kind.__name__: kind
    for module in (tree, task_events)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
}


def to_json(event: Event) -> bytes:
    """Return an event of a tree or of a runtime as a JSON object on one line.

    It has the ``kind`` of the event, which is the name of its class, the ``version`` of
    the schema, and the fields. An `AgentSaid` is of the kind ``AgentEvent``, and what
    was said is in its ``event``. A question mark replaces half a surrogate pair, which
    UTF-8 cannot hold.
    """
    # A command line may hold bytes that are not UTF-8; JSON cannot.
    fields: dict[str, Any] = {
        name: encodable(value) if isinstance(value, str) else value
        for name, value in attrs.asdict(event, recurse=False).items()
    }
    kind = type(event).__name__
    if isinstance(event, AgentSaid):
        from actors.agent import to_json as said_to_json

        kind, fields["event"] = _SAID, orjson.Fragment(said_to_json(event.event))
    return orjson.dumps({"kind": kind, "version": SCHEMA_VERSION, **fields})


def from_json(data: bytes | str) -> Event:
    """Return the event from which `to_json` has made ``data``. Fields that it does not
    know are left out.

    Raises:
        ValueError: if it is not an event, is of a kind that is not known here, or has
            another version of the schema. It names what is wrong.
    """
    loaded: object = orjson.loads(data)
    if not isinstance(loaded, dict):
        raise ValueError(f"expected an event, a JSON object, got {loaded!r}")
    fields = cast("dict[str, Any]", loaded)
    name, version = fields.get("kind"), fields.get("version")
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"expected version {SCHEMA_VERSION} of the schema of events, got {version!r}"
        )
    if not isinstance(name, str) or name not in _EVENT_TYPES:
        raise ValueError(
            f"unknown kind of event: {name!r}; known are {', '.join(_EVENT_TYPES)}"
        )
    kind = _EVENT_TYPES[name]
    types, given = get_type_hints(kind), dict[str, Any]()
    for field in attrs.fields(kind):
        if field.name in fields:
            value, wanted = fields[field.name], types[field.name]
            if wanted is Any:
                from actors.agent.hosting import from_data

                value = from_data(value)
            elif not isinstance(value, int | float if wanted is float else wanted):
                what = getattr(wanted, "__name__", wanted)
                raise ValueError(
                    f"{field.name} of {name}: expected {what}, got {value!r}"
                )
            given[field.name] = value
        elif field.default is attrs.NOTHING:
            raise ValueError(f"{name} lacks {field.name}")
    return kind(**given)
