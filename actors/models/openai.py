"""Models behind the Chat Completions API of OpenAI, and of others that have it.

It needs the extra ``openai``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from .._kernel.public import publish as _publish
from .._kernel.values import define
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
from ..text import encodable_data
from ._api import Api, described, open_api
from ._asking import ErrorEvent, read_arguments, unreadable
from ._model import Model, ModelFailed
from ._retry import RETRIES
from ._wording import wording

if TYPE_CHECKING:
    from openai import AsyncOpenAI

# For help(), which shows only what a module defines itself or lists here.
__all__ = ["open_model"]


def open_model(
    name: str,
    *,
    client: AsyncOpenAI | None = None,
    base_url: str | None = None,
    request: Mapping[str, Any] | None = None,
    retries: int = RETRIES,
    env: Env | None = None,
) -> AbstractAsyncContextManager[Model]:
    """Open the model called ``name``, for any number of agents, until the block ends.

    It is like `actors.models.anthropic.open_model`, except for these arguments:

    Args:
        name: the model's name in the API, for instance ``gpt-5``.
        client: None makes one with the key in the environment variable
            ``OPENAI_API_KEY``.
        request: further fields of each request, in the API's form, for instance
            ``max_completion_tokens``.

    Raises:
        ValueError: for a bad argument, and without a key.
        ImportError: if the SDK is not installed.
    """
    return open_api(_API, name, client, base_url, request, retries, env)


def _sdk() -> tuple[ModuleType, type[Exception], Callable[..., Any]]:
    import openai

    return openai, openai.OpenAIError, openai.AsyncOpenAI


def _request(
    messages: Sequence[Message], tools: Sequence[AgentTool], system: str | None
) -> dict[str, Any]:
    functions = described(tools, "parameters")
    return {
        "messages": to_openai(messages, system),
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": it} for it in functions] or None,
    }


def _told(body: Any) -> str:
    if not isinstance(body, dict):
        return ""
    fields = cast(dict[str, Any], body)
    return f"{fields.get('code') or fields.get('type')}: {fields.get('message')}"


def to_openai(messages: Iterable[Message], system: str | None) -> list[dict[str, Any]]:
    """Return a conversation as the API takes it."""
    converted: list[dict[str, Any]] = []
    if system is not None:
        converted.append({"role": "system", "content": system})
    for message in since_compaction(messages):
        if isinstance(message, AssistantMessage):
            if message.text or message.tool_uses:
                converted.append(_of_assistant(message))
            continue
        assert isinstance(message, UserMessage)
        converted += [
            {
                "role": "tool",
                "tool_call_id": answer.tool_use_id,
                # The API has no other place for that.
                "content": f"Error: {answer.text}" if answer.is_error else answer.text,
            }
            for answer in message.tool_answers
        ]
        if message.text:
            converted.append({"role": "user", "content": wording(message)})
    return cast(list[dict[str, Any]], encodable_data(converted))


def _of_assistant(message: AssistantMessage) -> dict[str, Any]:
    raw: Any = message.raw
    if isinstance(raw, dict) and "openai" in raw:
        return cast(dict[str, Any], raw["openai"])
    calls = [
        _call(use.id, use.name, json.dumps(encodable_data({**use.input})))
        for use in message.tool_uses
    ]
    return _message(message.text, calls)


def _message(text: str, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    return {**message, "tool_calls": [*calls]} if calls else message


def _call(id: str, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": id, "type": "function", "function": function}


@define
class _PartialCall:
    id: str = ""
    name: str = ""
    arguments: str = ""


_WITHOUT = ("stop",)
_WITH_CALLS = ("tool_calls", "stop", "length")
"""Why a message may have ended that is whole, or of which a part can be used."""


class _PartialReply:
    """One message, put together of its chunks."""

    def __init__(self) -> None:
        self.text = ""
        self.tokens: TokensUsed | None = None
        self._calls: dict[int, _PartialCall] = {}
        self._refusal = ""
        self._finish_reason: str | None = None

    def add(self, event: Mapping[str, Any]) -> str:
        if error := event.get("error"):
            raise ErrorEvent(error)
        if usage := event.get("usage"):
            # Servers that speak this form leave it out, or say null.
            details: Mapping[str, Any] = usage.get("prompt_tokens_details") or {}
            self.tokens = TokensUsed(
                input_tokens=usage["prompt_tokens"],
                output_tokens=usage["completion_tokens"],
                cache_read_tokens=details.get("cached_tokens") or 0,
            )
        added = ""
        for choice in event["choices"]:
            delta = choice["delta"]
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            self._refusal += delta.get("refusal") or ""
            added += delta.get("content") or ""
            for piece in delta.get("tool_calls") or ():
                self._extend(piece)
        self.text += added
        return added

    def _extend(self, piece: Mapping[str, Any]) -> None:
        call = self._calls.setdefault(piece["index"], _PartialCall())
        function: Mapping[str, Any] = piece.get("function") or {}
        call.id = piece.get("id") or call.id
        call.name += function.get("name") or ""
        call.arguments += function.get("arguments") or ""

    def end(self) -> tuple[AssistantMessage, list[ToolAnswer]]:
        if self._finish_reason is None:
            raise ModelFailed("the reply broke off", temporary=True, at_once=True)
        if self._refusal:
            raise ModelFailed(f"the model refused: {self._refusal}")
        is_cut = self._finish_reason == "length"
        uses: list[ToolUse] = []
        refusals: list[ToolAnswer] = []
        calls: list[dict[str, Any]] = []
        for index, call in sorted(self._calls.items()):
            if not call.id or not call.name:
                raise ValueError(f"a tool call without an id or a name: {call}")
            cut = is_cut and index == max(self._calls)
            arguments = read_arguments(call.arguments)
            if cut or arguments is None:
                refusals.append(unreadable(call.id, cut=is_cut))
                # What is not JSON may make the API refuse the conversation.
                arguments, call.arguments = {}, ""
            uses.append(ToolUse(call.id, call.name, arguments))
            calls.append(_call(call.id, call.name, call.arguments or "{}"))
        if self._finish_reason not in (_WITH_CALLS if uses else _WITHOUT):
            why = f"the reply is not whole: it ended with {self._finish_reason}"
            raise ModelFailed(why)
        raw = {"openai": _message(self.text, calls)}
        return AssistantMessage(self.text, tuple(uses), raw=raw), refusals


_API = Api(
    "OPENAI_API_KEY",
    _sdk,
    _request,
    lambda client: client.chat.completions.with_streaming_response.create,
    _PartialReply,
    _told,
)

_publish(globals())
