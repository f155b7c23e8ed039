"""What agents and their inboxes raise.

WorkFailed
+- AgentFailed
+- TransientError
AgentError
+- InboxClosed
+- InboxFull
+- ForkRefused
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, TypeAlias, get_args

import attrs

from .._kernel.checks import check_text, check_type
from ..work import WorkFailed

Terminate: TypeAlias = Literal[
    "goal", "error", "max_turns", "timeout", "stalled", "budget", "cancelled"
]
"""Why a run has ended. ``goal`` means that it has an answer, and completes the task.
``cancelled`` kills the task. Every other one fails the task, and what the agent has
said last is the result."""
TERMINATE_MODES: Final[tuple[Terminate, ...]] = get_args(Terminate)


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


@attrs.define(slots=False, repr=False)
class TransientError(WorkFailed):
    """Raised by the loop of an agent that cannot go on now, through nobody's mistake,
    and could later: its API is overloaded, or a limit is reached that will be reset.

    What the agent has said and done is kept. A loop raises this only when trying again
    at once is of no use. Under a runtime the agent is to pause and go on from its
    transcript at ``resume_at``. Without one it fails, as by an `AgentFailed`. A loop
    does not raise it for what stays wrong however often it is tried, such as a bad
    request or a refused key. It may come out of a nursery of the loop, in a group, but
    with another error beside it, it is a failure.

    Args:
        reason: what passes, in words for people.
        resume_at: when it is over, with a time zone, if that is known. An agent that
            fails so again, without an answer of its model in between, waits longer: see
            `supervisor.agents.AgentPolicy`.

    Raises:
        TypeError, ValueError: for a bad argument. The error names it and its value.
    """

    reason: str
    resume_at: datetime | None = None

    def __attrs_post_init__(self) -> None:
        check_text("reason", self.reason)
        check_type("resume_at", self.resume_at, datetime | None)
        if self.resume_at is not None and self.resume_at.utcoffset() is None:
            raise ValueError(
                f"resume_at must have a time zone, and {self.resume_at!r} has none"
            )

    def __str__(self) -> str:
        return self.reason


class AgentError(Exception):
    """The root of what `actors.agent` raises by itself, `AgentFailed` and
    `TransientError` apart."""


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
