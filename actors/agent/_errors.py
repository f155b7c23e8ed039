"""What agents and their inboxes raise.

WorkFailed
+- AgentFailed
AgentError
+- InboxClosed
+- InboxFull
+- ForkRefused
"""

from __future__ import annotations

from typing import Literal

import attrs

from ..work import WorkFailed
from ._events import Terminate


@attrs.define(slots=False, repr=False)
class AgentFailed(WorkFailed):
    """Raised by the run of an agent that has not reached its goal.

    ``mode`` says why it has ended. ``message`` says the same in words. If it has said
    anything, that is the task's result.
    """

    mode: Terminate
    message: str

    def __str__(self) -> str:
        return self.message


class AgentError(Exception):
    """The root of what `actors.agent` raises by itself, `AgentFailed` apart."""


@attrs.define(slots=False, repr=False)
class InboxClosed(AgentError):
    """Raised when an agent takes no more messages: it is about to end or has
    ended, or it is one that takes none."""

    reason: str = "the agent takes no more messages"

    def __str__(self) -> str:
        return self.reason


@attrs.define(slots=False, repr=False)
class InboxFull(AgentError):
    """Raised when more messages wait for an agent than its inbox may hold: it
    takes them more slowly than they come, or not at all. ``unit`` says of what the
    ``limit`` is: ``messages``, their ``characters``, or the ``bytes`` that are kept
    of an agent, with its prompt."""

    limit: int
    unit: Literal["messages", "characters", "bytes"] = "messages"

    def __str__(self) -> str:
        if self.unit == "messages":
            return f"{self.limit} messages wait for the agent already"
        if self.unit == "bytes":
            return (
                "with its prompt and what waits for it the agent would have more than "
                f"{self.limit:,} bytes to be kept, so another program could not go on "
                "with it"
            )
        return f"more than {self.limit:,} characters would wait for the agent"


class ForkRefused(AgentError):
    """Raised by `AgentContext.fork` inside a fork, and inside what a fork has started.
    Nothing was made."""

    def __str__(self) -> str:
        return "a fork cannot fork again, nor can what it has started"
