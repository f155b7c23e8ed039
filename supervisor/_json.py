"""Events as JSON, for whoever reads them in another process or another year."""

from __future__ import annotations

import orjson
from cattrs.preconf.orjson import make_converter

from ._events import SCHEMA_VERSION, Event


def _text(value: str) -> str:
    # A command line may hold bytes that are no UTF-8; JSON cannot.
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


_converter = make_converter()
_converter.register_unstructure_hook(str, _text)


def to_json(event: Event) -> bytes:
    """Return ``event`` as a JSON object on one line: its ``kind``, the
    ``version`` of the schema, and its fields."""
    fields = _converter.unstructure(event)
    return orjson.dumps(
        {"kind": type(event).__name__, "version": SCHEMA_VERSION, **fields}
    )
