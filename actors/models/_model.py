"""What a model is: something that continues a conversation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Protocol, TypeAlias

import attrs

from .._kernel.errors import ActorError
from ..agent import (
    AgentTool,
    AssistantMessage,
    Message,
    Retrying,
    TextDelta,
    TokensUsed,
    ToolAnswer,
)

Told: TypeAlias = TextDelta | TokensUsed | ToolAnswer | Retrying | AssistantMessage
"""What a model tells while it replies."""


class Model(Protocol):
    """It continues conversations, any number at the same time."""

    def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[AgentTool] = (),
        system: str | None = None,
    ) -> AsyncGenerator[Told, None]:
        """Tell the next message of the assistant, as it comes.

        A `Retrying` tells that its request is made again. The last event is the whole
        `AssistantMessage`. A call in it that could not be read has been answered
        before, by a `ToolAnswer` that says why, and must not be made. Cancelling it, or
        closing the generator, breaks off the request and leaves nothing behind.

        Raises:
            ModelFailed: if there is no whole message. The model can be used again.
        """
        ...


@attrs.define(slots=False, repr=False)
class ModelFailed(ActorError):
    """Raised when a model does not give a whole message. Its API reported an error, the
    connection broke, or the text was cut at a limit.

    The program can try again later. What `partial` holds may be of use, but it is not
    an answer.
    """

    message: str
    partial: str = ""
    """The text that came before."""
    temporary: bool = False
    """Whether the error passes, so the same request may succeed later. An agent under a
    runtime is to pause for it."""
    resume_at: datetime | None = None
    """When it has passed, with a time zone, if the API named a time."""
    at_once: bool = False
    """Whether the same request may succeed within seconds. A model of this package has
    tried that."""
    too_long: bool = False
    """Whether the conversation is longer than the model's context."""

    def __str__(self) -> str:
        return self.message
