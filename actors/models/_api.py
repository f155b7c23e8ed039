"""A model behind an API, by the SDK of its maker.

Each SDK is another package with the same classes by the same names, so what is done
with them stands here, once.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any, Final, cast

import trio

from .._kernel.checks import check_text, check_whole
from .._kernel.values import frozen
from ..agent import AgentTool, Message
from ..env import Env, real_env
from ..text import encodable_data
from ._asking import ErrorEvent, PartialReply, ask
from ._model import Model, ModelFailed, Told
from ._outlook import NEVER, SOON, Outlook, is_too_long, of_error, of_response
from ._retry import retrying

_CLOSE: Final = 2.0
"""Seconds for closing a client. The SDKs want to be closed: left to the garbage
collector, they look for a loop of asyncio."""


@frozen
class Api:
    """What one API has of its own."""

    key: str
    """The environment variable with the key."""
    sdk: Callable[[], tuple[ModuleType, type[Exception], Callable[..., Any]]]
    """Imports the SDK; returns it, the root of its errors, and its client."""
    request: Callable[
        [Sequence[Message], Sequence[AgentTool], str | None], dict[str, Any]
    ]
    """A request, without what all have. What is None is left out."""
    create: Callable[[Any], Callable[..., Any]]
    """The method of a client that makes one."""
    reply: Callable[[], PartialReply]
    """A reply that has not begun."""
    told: Callable[[Any], str]
    """What the body of an error says; empty if it says nothing."""
    context_tokens: int | None = None
    """What the context of its models holds, if they all have the same at least."""


@frozen
class _ApiModel:
    api: Api
    client: Any
    name: str
    more: dict[str, Any]
    retries: int
    env: Env

    @property
    def context_tokens(self) -> int | None:
        """What its context holds; None if nobody knows."""
        return self.api.context_tokens

    def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[AgentTool] = (),
        system: str | None = None,
    ) -> AsyncGenerator[Told, None]:
        own = self.api.request(messages, tools, system)
        request = {name: value for name, value in own.items() if value is not None}
        request |= {"model": self.name, "stream": True, "extra_body": self.more}

        def once() -> AsyncGenerator[Told, None]:
            create = self.api.create(self.client)
            return ask(create(**request), self.api.reply(), self._explain)

        return retrying(once, self.retries, self.env)

    def _explain(self, error: Exception) -> ModelFailed | None:
        import httpx2

        sdk, root, _ = self.api.sdk()
        now = self.env.clock.now()
        if isinstance(error, ErrorEvent):
            told = self.api.told(error.body) or f"an error: {error.body!r:.200}"
            return _failed(told, of_error(error.body, now))
        if isinstance(error, sdk.APIStatusError):
            answer: Any = error
            status, body = answer.status_code, answer.body
            return _failed(
                f"HTTP {status}, {self.api.told(body) or answer.message}",
                of_response(status, answer.response.headers, body, now),
            )
        if isinstance(error, (sdk.APIConnectionError, httpx2.RequestError)):
            cause = error.__cause__ or error
            # A mistake in the address or in the request stays one.
            stays = isinstance(
                cause,
                httpx2.UnsupportedProtocol
                | httpx2.LocalProtocolError
                | httpx2.TooManyRedirects
                | httpx2.InvalidURL,
            )
            return _failed(f"no connection: {cause!r:.200}", NEVER if stays else SOON)
        if isinstance(error, (root, httpx2.StreamError)):
            return ModelFailed(f"{type(error).__name__}: {error}")
        return None


def _failed(message: str, outlook: Outlook) -> ModelFailed:
    return ModelFailed(
        message,
        temporary=outlook.passes,
        resume_at=outlook.resume_at,
        at_once=outlook.at_once,
        too_long=not outlook.passes and is_too_long(message),
    )


def described(tools: Sequence[AgentTool], schema: str) -> list[dict[str, Any]]:
    """Return what a request says of the tools, with the key that the API has for the
    ``schema`` of their arguments."""
    told = [
        {"name": tool.name, "description": tool.description, schema: tool.schema}
        for tool in tools
    ]
    return cast("list[dict[str, Any]]", encodable_data(told))


@asynccontextmanager
async def open_api(
    api: Api,
    name: str,
    client: Any,
    base_url: str | None,
    request: Mapping[str, Any] | None,
    retries: int,
    env: Env | None,
) -> AsyncGenerator[Model]:
    """Open a model of this API: see `actors.models.anthropic.open_model`."""
    check_text("name", name)
    check_whole("retries", retries, wrong=ValueError)
    if client is not None and base_url is not None:
        raise ValueError(
            f"base_url is the client's: give either it or a client, not {base_url!r}"
        )
    key = dict(os.environ).get(api.key, "")
    if client is None and not key:
        raise ValueError(f"no key: set {api.key}, or give a client")
    *_, make_client = api.sdk()
    owned = None
    if client is None:
        client = owned = make_client(api_key=key, base_url=base_url, max_retries=0)
    try:
        # One that was given may retry; ours knows when not to.
        client = client.with_options(max_retries=0)
        more = dict(request or {})
        yield _ApiModel(api, client, name, more, retries, env or real_env())
    finally:
        if owned is not None:
            with trio.move_on_after(_CLOSE, shield=True):
                await owned.close()
