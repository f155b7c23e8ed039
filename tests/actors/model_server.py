"""A real HTTP server on the loopback that answers as the APIs of models do, and
as they do when something is wrong with them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import attrs
import trio

Events: TypeAlias = list[bytes]


@attrs.define(eq=False)
class Request:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    stream: trio.SocketStream

    async def begin(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} X", *(f"{k}: {v}" for k, v in headers.items())]
        await self.stream.send_all("\r\n".join([*lines, "", ""]).encode())

    async def begin_events(self) -> None:
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "transfer-encoding": "chunked",
            "request-id": "req_1",
        }
        await self.begin(200, headers)

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(b"%x\r\n%s\r\n" % (len(data), data))

    async def wait_gone(self) -> None:
        """Wait until the client has closed the connection."""
        try:
            while await self.stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass


class Cut(Exception):
    """Ends the connection where it is."""


Answer: TypeAlias = Callable[[Request], Awaitable[None]]


@attrs.define(eq=False)
class ModelServer:
    url: str
    answers: list[Answer]
    """What is answered, one after the other; the last one for ever."""
    requests: list[Request] = attrs.Factory(list[Request])
    asked: trio.Event = attrs.Factory(trio.Event)
    """Set by the first request."""
    connections: int = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        received = b""
        try:
            while True:
                while b"\r\n\r\n" not in received:
                    if not (more := await stream.receive_some()):
                        return
                    received += more
                head, _, received = received.partition(b"\r\n\r\n")
                first, *lines = head.decode().split("\r\n")
                headers = {
                    name.lower(): value
                    for name, _, value in (line.partition(": ") for line in lines)
                }
                length = int(headers.get("content-length", "0"))
                while len(received) < length:
                    if not (more := await stream.receive_some()):
                        return
                    received += more
                body, received = received[:length], received[length:]
                request = Request(
                    first.split()[1], headers, json.loads(body or b"{}"), stream
                )
                self.requests.append(request)
                self.asked.set()
                place = min(len(self.requests), len(self.answers)) - 1
                await self.answers[place](request)
        except (Cut, trio.BrokenResourceError):
            pass
        finally:
            await trio.aclose_forcefully(stream)


@asynccontextmanager
async def open_model_server(*answers: Answer) -> AsyncGenerator[ModelServer]:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    server = ModelServer(f"http://127.0.0.1:{port}", [*answers])
    async with listener, trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, server.serve, [listener])
        yield server
        nursery.cancel_scope.cancel()


# ---- Answers, right and wrong ------------------------------------------------


def streams(events: Iterable[bytes]) -> Answer:
    """Stream them, each in a chunk of its own."""

    async def answer(request: Request) -> None:
        await request.begin_events()
        for event in events:
            await request.send(event)
        await request.stream.send_all(b"0\r\n\r\n")

    return answer


def breaks_off(events: Sequence[bytes]) -> Answer:
    """Stream them, and close the connection in the middle of the response."""

    async def answer(request: Request) -> None:
        await request.begin_events()
        for event in events:
            await request.send(event)
        raise Cut

    return answer


def goes_silent(events: Sequence[bytes], gone: trio.Event) -> Answer:
    """Stream them one byte at a time, then send nothing more; tell when the client
    has gone."""

    async def answer(request: Request) -> None:
        await request.begin_events()
        for byte in b"".join(events):
            await request.send(bytes([byte]))
        await request.wait_gone()
        gone.set()
        raise Cut

    return answer


def fails(status: int, body: object, **headers: str) -> Answer:
    async def answer(request: Request) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        length = {"content-length": str(len(data))}
        await request.begin(
            status, {"content-type": "application/json", **length, **named}
        )
        await request.stream.send_all(data)

    return answer


# ---- What the Messages API of Anthropic streams ------------------------------


def sse(data: dict[str, Any], event: str | None = None) -> bytes:
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(data)}\n\n".encode()


def of_anthropic(*blocks: Events, stop: str = "end_turn") -> Events:
    message = {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 25,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 100,
            "output_tokens": 1,
        },
    }
    events = [sse({"type": "message_start", "message": message}, "message_start")]
    events.append(sse({"type": "ping"}, "ping"))
    for index, block in enumerate(blocks):
        events += [piece.replace(b'"INDEX"', b"%d" % index) for piece in block]
    delta = {
        "type": "message_delta",
        "delta": {"stop_reason": stop, "stop_sequence": None},
        "usage": {"output_tokens": 15},
    }
    events.append(sse(delta, "message_delta"))
    events.append(sse({"type": "message_stop"}, "message_stop"))
    return events


def _block(start: dict[str, Any], deltas: Iterable[dict[str, Any]]) -> Events:
    place = {"index": "INDEX"}
    begun = {"type": "content_block_start", **place, "content_block": start}
    events = [sse(begun, "content_block_start")]
    events += [
        sse(
            {"type": "content_block_delta", **place, "delta": delta},
            "content_block_delta",
        )
        for delta in deltas
    ]
    events.append(sse({"type": "content_block_stop", **place}, "content_block_stop"))
    return events


def text_block(*pieces: str) -> Events:
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    return _block({"type": "text", "text": ""}, deltas)


def thinking_block(text: str, signature: str) -> Events:
    deltas = [
        {"type": "thinking_delta", "thinking": text},
        {"type": "signature_delta", "signature": signature},
    ]
    return _block({"type": "thinking", "thinking": "", "signature": ""}, deltas)


def tool_block(id: str, name: str, *pieces: str) -> Events:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return _block({"type": "tool_use", "id": id, "name": name, "input": {}}, deltas)


def anthropic_error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


# ---- What the Chat Completions API of OpenAI streams -------------------------


def of_openai(*deltas: dict[str, Any], finish: str = "stop") -> Events:
    def chunk(choices: list[dict[str, Any]], **more: Any) -> bytes:
        fields = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1700000000,
            "model": "gpt-test",
            "choices": choices,
            **more,
        }
        return sse(fields)

    def choice(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}

    events = [chunk([choice({"role": "assistant", "content": ""})], usage=None)]
    events += [chunk([choice(delta)], usage=None) for delta in deltas]
    events.append(chunk([choice({}, finish)], usage=None))
    usage = {
        "prompt_tokens": 125,
        "completion_tokens": 15,
        "total_tokens": 140,
        "prompt_tokens_details": {"cached_tokens": 100},
    }
    events.append(chunk([], usage=usage))
    events.append(b"data: [DONE]\n\n")
    return events


def says(*pieces: str) -> list[dict[str, Any]]:
    return [{"content": piece} for piece in pieces]


def calls(index: int, id: str, name: str, *pieces: str) -> list[dict[str, Any]]:
    first = {"index": index, "id": id, "type": "function"}
    deltas = [{"tool_calls": [{**first, "function": {"name": name, "arguments": ""}}]}]
    deltas += [
        {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
        for piece in pieces
    ]
    return deltas


def openai_error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": code, "param": None, "code": code}}
