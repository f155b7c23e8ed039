"""Models behind the Messages API of Anthropic, by its own SDK.

It needs the extra ``anthropic``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from .._kernel.public import publish as _publish
from ..agent import (
    AgentTool,
    AssistantMessage,
    Message,
    TokensUsed,
    ToolAnswer,
    ToolUse,
    UserMessage,
)
from ..agent.hosting import since_compaction
from ..env import Env
from ..text import encodable, encodable_data
from ._api import Api, described, open_api
from ._asking import ErrorEvent, read_arguments, unreadable
from ._model import Model, ModelFailed
from ._retry import RETRIES
from ._wording import wording

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

# For help(), which shows only what a module defines itself or lists here.
__all__ = ["open_model"]

_MAX_TOKENS = 8192
_CONTEXT_TOKENS = 200_000
"""Every Claude has so many, or more."""


def open_model(
    name: str,
    *,
    client: AsyncAnthropic | None = None,
    base_url: str | None = None,
    request: Mapping[str, Any] | None = None,
    retries: int = RETRIES,
    env: Env | None = None,
) -> AbstractAsyncContextManager[Model]:
    """Open the model called ``name``, for any number of agents, until the block ends.

    Entering the block imports the SDK. That takes about two seconds, in which nothing
    else runs. The end of the block closes the connections, but not those of a
    ``client`` that was given.

    A request that fails with an error that passes (408, 409, 429, 5xx, an overloaded
    API, a connection that breaks) is made again, up to ``retries`` times, unless the
    reply has said anything. First it waits as long as the API asks, for a minute at
    most, or else for 0.5, 1, 2, 4 and 8 seconds. Each wait is told as a
    `actors.agent.Retrying`. When that does not help, or the API asks for more than a
    minute, `actors.models.loop` ends the run with a `actors.agent.TransientError`.

    Args:
        name: the model's name in the API, for instance ``claude-sonnet-4-5``.
        client: the client of the SDK. None makes one with the key in the environment
            variable ``ANTHROPIC_API_KEY``.
        base_url: the address of the API, for a client of ours. None means the SDK's
            own.
        request: further fields of each request, in the API's form, for instance
            ``thinking``, or ``max_tokens``, which is 8192 by default.
        retries: how often a request is made again.
        env: the effects, for chance and the time. None makes a real one.

    Raises:
        ValueError: for a bad argument, and without a key.
        ImportError: if the SDK is not installed.
    """
    return open_api(_API, name, client, base_url, request, retries, env)


def _sdk() -> tuple[ModuleType, type[Exception], Callable[..., Any]]:
    import anthropic

    return anthropic, anthropic.AnthropicError, anthropic.AsyncAnthropic


def _request(
    messages: Sequence[Message], tools: Sequence[AgentTool], system: str | None
) -> dict[str, Any]:
    return {
        "max_tokens": _MAX_TOKENS,
        "messages": to_anthropic(messages),
        "tools": described(tools, "input_schema") or None,
        "system": None if system is None else encodable(system),
    }


def _told(body: Any) -> str:
    fields = cast(Any, body).get("error") if isinstance(body, dict) else None
    if not isinstance(fields, dict):
        return ""
    fields = cast(dict[str, Any], fields)
    return f"{fields.get('type')}: {fields.get('message')}"


def to_anthropic(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return a conversation as the API takes it."""
    converted: list[dict[str, Any]] = []
    for message in since_compaction(messages):
        if isinstance(message, AssistantMessage):
            role, content = "assistant", _of_assistant(message)
        else:
            assert isinstance(message, UserMessage)
            role, content = "user", _of_user(message)
        if not content:  # The API takes no message without any.
            continue
        converted.append({"role": role, "content": content})
    return cast(list[dict[str, Any]], encodable_data(converted))


def _of_assistant(message: AssistantMessage) -> list[dict[str, Any]]:
    raw: Any = message.raw
    if isinstance(raw, dict) and "anthropic" in raw:
        return cast(list[dict[str, Any]], raw["anthropic"])
    content: list[dict[str, Any]] = []
    if message.text.strip():
        content.append({"type": "text", "text": message.text})
    content += [
        {"type": "tool_use", "id": use.id, "name": use.name, "input": {**use.input}}
        for use in message.tool_uses
    ]
    return content


def _of_user(message: UserMessage) -> list[dict[str, Any]]:
    # The API wants the answers to come first.
    content: list[dict[str, Any]] = [
        {
            "type": "tool_result",
            "tool_use_id": answer.tool_use_id,
            "content": answer.text,
            "is_error": answer.is_error,
        }
        for answer in message.tool_answers
    ]
    if message.text.strip():
        content.append({"type": "text", "text": wording(message)})
    return content


_PIECES = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}
"""What belongs to which field of a block."""

_FULL = "model_context_window_exceeded"
_CUT = ("max_tokens", _FULL)
_WITHOUT = ("end_turn", "stop_sequence")
_WITH_CALLS = ("tool_use", *_WITHOUT, *_CUT)
"""Why a message may have ended that is whole, or of which a part can be used."""


class _PartialReply:
    """One message, put together of its events."""

    def __init__(self) -> None:
        self.text = ""
        self.tokens: TokensUsed | None = None
        self._blocks: list[dict[str, Any]] = []
        self._inputs: dict[int, str] = {}
        self._usage: dict[str, int] = {}
        self._stop_reason: str | None = None
        self._is_whole = False

    def add(self, event: Mapping[str, Any]) -> str:
        match event["type"]:
            case "message_start":
                self._use(event["message"]["usage"])
            case "content_block_start":
                if event["index"] != len(self._blocks):
                    raise ValueError(f"block {event['index']} is not the next")
                self._blocks.append({**event["content_block"]})
            case "content_block_delta":
                return self._extend(event["index"], event["delta"])
            case "message_delta":
                self._stop_reason = event["delta"].get("stop_reason")
                self._use(event["usage"])
            case "message_stop":
                self._is_whole = True
            case "error":
                raise ErrorEvent(event)
            case _:  # There may be new ones at any time.
                pass
        return ""

    def _extend(self, index: int, delta: Mapping[str, Any]) -> str:
        block = self._blocks[index]
        kind = delta["type"]
        if kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
        elif kind in _PIECES:
            field = _PIECES[kind]
            block[field] = (block.get(field) or "") + delta[field]
            if kind == "text_delta":
                self.text += delta["text"]
                return str(delta["text"])
        return ""

    def _use(self, usage: Mapping[str, Any]) -> None:
        # Each tells the sum so far.
        self._usage |= {
            name: count for name, count in usage.items() if isinstance(count, int)
        }
        self.tokens = TokensUsed(
            input_tokens=sum(
                self._usage.get(name, 0)
                for name in (
                    "input_tokens",
                    "cache_creation_input_tokens",
                    "cache_read_input_tokens",
                )
            ),
            output_tokens=self._usage.get("output_tokens", 0),
            cache_read_tokens=self._usage.get("cache_read_input_tokens", 0),
            cache_write_tokens=self._usage.get("cache_creation_input_tokens", 0),
        )

    def end(self) -> tuple[AssistantMessage, list[ToolAnswer]]:
        if not self._is_whole:
            raise ModelFailed("the reply broke off", temporary=True, at_once=True)
        is_cut = self._stop_reason in _CUT
        uses: list[ToolUse] = []
        refusals: list[ToolAnswer] = []
        for index, block in enumerate(self._blocks):
            if block["type"] != "tool_use":
                continue
            cut = is_cut and index == len(self._blocks) - 1
            arguments = read_arguments(self._inputs.get(index, ""))
            if cut or arguments is None:
                refusals.append(unreadable(block["id"], cut=is_cut))
                arguments = {}
            block["input"] = arguments
            uses.append(ToolUse(block["id"], block["name"], arguments))
        if self._stop_reason not in (_WITH_CALLS if uses else _WITHOUT):
            why = f"the reply is not whole: it ended with {self._stop_reason}"
            raise ModelFailed(why, too_long=self._stop_reason == _FULL)
        # It gives empty texts and takes none.
        raw = [block for block in self._blocks if block.get("text") != ""]
        message = AssistantMessage(self.text, tuple(uses), raw={"anthropic": raw})
        return message, refusals


_API = Api(
    "ANTHROPIC_API_KEY",
    _sdk,
    _request,
    lambda client: client.messages.with_streaming_response.create,
    _PartialReply,
    _told,
    context_tokens=_CONTEXT_TOKENS,
)

_publish(globals())
