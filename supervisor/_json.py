"""Events as JSON, for whoever reads them in another process or another year."""

from __future__ import annotations

import orjson
from cattrs.preconf.orjson import make_converter

from actors.text import encodable

from ._events import SCHEMA_VERSION, AgentSaid, Event

_converter = make_converter()
# A command line may hold bytes that are no UTF-8; JSON cannot.
_converter.register_unstructure_hook(str, encodable)


def to_json(event: Event) -> bytes:
    """Return ``event`` as a JSON object on one line: its ``kind``, the
    ``version`` of the schema, and its fields. An `AgentSaid` is of the kind
    ``AgentEvent``; what was said is in its ``event``."""
    if isinstance(event, AgentSaid):
        return _said_to_json(event)
    fields = _converter.unstructure(event)
    return orjson.dumps(
        {"kind": type(event).__name__, "version": SCHEMA_VERSION, **fields}
    )


def _said_to_json(event: AgentSaid) -> bytes:
    # Where an agent has said something this is there already.
    from actors.agent import to_json

    fields = {
        "kind": "AgentEvent",
        "version": SCHEMA_VERSION,
        "seq": event.seq,
        "time": event.time,
        "task_id": event.task_id,
        "run_id": event.run_id,
        "event": orjson.Fragment(to_json(event.event)),
    }
    return orjson.dumps(fields)
