"""Server-sent events, as the APIs of models stream them, and nothing left behind.

The SDKs could read them too. But their generators are nested and close each other
only from the inside: of a stream that is left, or that one of them breaks off at the
last event, the rest waits for the garbage collector.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import Any, cast

import trio

_REST = 0.1
"""Seconds in which a response that has told all may end by itself. Then its
connection can be used again."""
_LIMIT = 64 * 2**20
"""The most bytes that a response may have. They are kept until it is whole."""


async def read(
    body: AsyncIterator[bytes],
) -> AsyncGenerator[Mapping[str, Any], None]:
    """Yield the data of each event of a response, to the last one of the message.

    Raises:
        ValueError: if something comes that is not a JSON object in UTF-8.
    """
    decoder = Decoder()
    is_over = False
    size = 0
    try:
        async for chunk in body:
            size += len(chunk)
            if size > _LIMIT:
                raise ValueError(f"more than {_LIMIT} bytes")
            for data in decoder.feed(chunk):
                if data == b"[DONE]":
                    is_over = True
                    return
                event = _parse(data)
                if not isinstance(event, dict):
                    raise ValueError(f"no event: {event!r:.100}")
                fields = cast(dict[str, Any], event)
                is_over = fields.get("type") == "message_stop"
                yield fields
                if is_over:
                    return
    finally:
        # Cancelled in its innermost read, the whole chain unwinds.
        with trio.move_on_after(_REST if is_over else 0.0, shield=True):
            try:
                async for _ in body:
                    pass
            except Exception:  # It is broken, and nobody reads it any more.
                pass


def _parse(data: bytes) -> object:
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError(f"nested too deeply: {data[:100]!r}") from None


class Decoder:
    """Finds the data of each event, however the bytes come."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Take what came and yield the data of each event that is complete."""
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            self._line += part
            line = bytes(self._line).removesuffix(b"\r")
            self._line.clear()
            if line.startswith(b"data:"):
                self._data.append(line.removeprefix(b"data:").removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data.clear()
        self._line += rest
