"""One request to an API that answers with a stream of events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Protocol, cast

from ..agent import AssistantMessage, TextDelta, TokensUsed, ToolAnswer
from ..text import cut
from ._model import ModelFailed, Told
from ._server_events import read

_ERROR_LIMIT = 8192
"""Characters of what an API says of an error."""


class ErrorEvent(Exception):
    """Raised by a `PartialReply` for an event that is an error.

    ``body`` is what the API says of it, as the body of an error response has it.
    """

    def __init__(self, body: Any) -> None:
        super().__init__(body)
        self.body = body


class Response(Protocol):
    """A response as an SDK has it."""

    def iter_bytes(self) -> AsyncIterator[bytes]:
        """Read its body."""
        ...


class PartialReply(Protocol):
    """What has come of a reply."""

    @property
    def text(self) -> str:
        """What has come of its text."""
        ...

    @property
    def tokens(self) -> TokensUsed | None:
        """What it has used, as far as that was told."""
        ...

    def add(self, event: Mapping[str, Any]) -> str:
        """Take the next event, and return what it adds to the text.

        Raises:
            ErrorEvent: if it is an error.
            LookupError, TypeError, ValueError, AttributeError: if it is not an
                event of the API.
        """
        ...

    def end(self) -> tuple[AssistantMessage, list[ToolAnswer]]:
        """Return the whole message, and answers to those of its calls that could
        not be read.

        Raises:
            ModelFailed: if it is not whole.
            LookupError, TypeError, ValueError, AttributeError: as `add`.
        """
        ...


async def ask(
    request: AbstractAsyncContextManager[Response],
    reply: PartialReply,
    explain: Callable[[Exception], ModelFailed | None],
) -> AsyncGenerator[Told, None]:
    """Make a request and tell the reply.

    ``explain`` says what an `ErrorEvent` or an error of the SDK means, and returns None
    for others.

    Raises:
        ModelFailed: if there is no whole message.
    """
    failure: ModelFailed | None = None
    whole: tuple[AssistantMessage, list[ToolAnswer]] | None = None
    try:
        async with request as response:
            try:
                async with aclosing(read(response.iter_bytes())) as events:
                    async for event in events:
                        if text := reply.add(event):
                            yield TextDelta(text)  # noqa: ASYNC119 - who reads closes
                whole = reply.end()
                _check_calls(whole[0])
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                why = f"the API sent what cannot be read: {error!r:.200}"
                raise ModelFailed(why, temporary=True, at_once=True) from error
    except ModelFailed as error:
        failure = error
    except Exception as error:  # Only the SDK's own go no further.
        failure = explain(error)
        if failure is None:
            raise
        failure.__cause__ = error
    # Broken off or not, it has cost that.
    if reply.tokens is not None:
        yield reply.tokens
    if failure is not None:
        failure.partial = reply.text
        failure.message = cut(failure.message, _ERROR_LIMIT)
        raise failure
    assert whole is not None
    message, refusals = whole
    for refusal in refusals:
        yield refusal
    yield message


def _check_calls(message: AssistantMessage) -> None:
    """Raise if an answer could not be told from that to another call."""
    seen: set[str] = set()
    for use in message.tool_uses:
        for value in (use.id, use.name):
            if not isinstance(value, str) or not value:
                raise TypeError(f"a tool call with {value!r:.80} for an id or a name")
        if use.id in seen:
            raise ValueError(f"two tool calls with the id {use.id!r:.80}")
        seen.add(use.id)


def read_arguments(text: str) -> dict[str, Any] | None:
    """Return the arguments of a tool call, or None if they cannot be read. An empty
    text means no arguments."""
    if not text.strip():
        return {}
    try:
        arguments: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(arguments, dict):
        return None
    return cast(dict[str, Any], arguments)


def unreadable(tool_use_id: str, *, cut: bool) -> ToolAnswer:
    """Return the answer to a call that must not be made."""
    why = (
        "it was cut off at the limit of the tokens of one message. Make it again,"
        " with less in it"
        if cut
        else "its arguments are not a JSON object. Make it again"
    )
    return ToolAnswer(tool_use_id, f"This call was not made: {why}.", is_error=True)
