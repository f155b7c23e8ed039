"""What an agent says while it runs: the events that its `run` yields.

Messages make up the conversation and are kept in the transcript. The other events
report how it goes and are not kept. All are plain values that JSON can hold, so that
another process can be told them: see `to_json` and `from_json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import attrs

from .._kernel.checks import (
    by,
    check_all,
    check_number,
    check_one_of,
    check_type,
    check_whole,
    of,
)
from .._kernel.values import frozen
from ._errors import TERMINATE_MODES, Terminate

Origin: TypeAlias = Literal[
    "prompt", "tools", "message", "notification", "reminder", "hook", "summary"
]
_ORIGINS: Final = get_args(Origin)

TodoStatus: TypeAlias = Literal["pending", "in_progress", "completed", "cancelled"]
_STATUSES: Final = get_args(TodoStatus)


# A bad value is an error where it is made, and not when somebody reads it. Some
# events come 10,000 times a second: what is right is seen with one call at most.


# What is neither list nor tuple stays as it is, for the check to name it.


def _as_uses(uses: Sequence[ToolUse]) -> tuple[ToolUse, ...]:
    return tuple(uses) if isinstance(uses, list) else cast("tuple[ToolUse, ...]", uses)


def _as_answers(answers: Sequence[ToolAnswer]) -> tuple[ToolAnswer, ...]:
    if isinstance(answers, list):
        return tuple(answers)
    return cast("tuple[ToolAnswer, ...]", answers)


def _as_items(items: Sequence[TodoItem]) -> tuple[TodoItem, ...]:
    if isinstance(items, list):
        return tuple(items)
    return cast("tuple[TodoItem, ...]", items)


def _as_kept(
    messages: Sequence[AssistantMessage | UserMessage],
) -> tuple[AssistantMessage | UserMessage, ...]:
    if isinstance(messages, list):
        return tuple(messages)
    return cast("tuple[AssistantMessage | UserMessage, ...]", messages)


def _as_input(arguments: Mapping[str, Any] | None) -> Mapping[str, Any]:
    # Models say null of a tool without arguments.
    return {} if arguments is None else arguments


@frozen
class ToolUse:
    """A tool call that the model asks for."""

    id: str = attrs.field(validator=of(str))
    """The model's own id of the call."""
    name: str = attrs.field(validator=of(str))
    input: Mapping[str, Any] = attrs.field(
        factory=dict[str, Any], converter=_as_input, validator=of(Mapping)
    )
    """The arguments, as JSON has them."""


@frozen
class ToolAnswer:
    """The answer to a tool call."""

    tool_use_id: str = attrs.field(validator=of(str))
    text: str = attrs.field(validator=of(str))
    is_error: bool = attrs.field(default=False, validator=of(bool))


@frozen
class AssistantMessage:
    """One whole message of the model. All its tool calls are independent."""

    text: str = attrs.field(default="", validator=of(str))
    tool_uses: tuple[ToolUse, ...] = attrs.field(
        default=(), converter=_as_uses, validator=by(check_all, ToolUse)
    )
    raw: Any = attrs.field(default=None, kw_only=True)
    """The content in the form of the model's provider, if it must be sent back in just
    that form. JSON can hold it. Otherwise it is None."""


@frozen
class UserMessage:
    """One message to the model. `origin` says what kind it is."""

    text: str = attrs.field(default="", validator=of(str))
    tool_answers: tuple[ToolAnswer, ...] = attrs.field(
        default=(), converter=_as_answers, validator=by(check_all, ToolAnswer)
    )
    origin: Origin = attrs.field(
        default="prompt", kw_only=True, validator=by(check_one_of, _ORIGINS)
    )
    """What kind it is:

    - ``prompt``: the task that the agent was given.
    - ``tools``: answers to tool calls.
    - ``message``: a message that `sender` sent while the agent ran.
    - ``notification``: the end of one of the agent's own tasks.
    - ``reminder``, ``hook``: from the program around the agent.
    - ``summary``: what a compaction has left of earlier messages.

    Only a ``prompt`` may count as a person's words. None of them is an approval."""
    sender: str | None = attrs.field(
        default=None, kw_only=True, validator=of(str | None)
    )
    """Who sent a ``message``."""
    display: str | None = attrs.field(
        default=None, kw_only=True, validator=of(str | None)
    )
    """What people are shown in place of `text`, in a few short lines: for instance of a
    ``notification``. The transcript keeps it. A model never gets it."""


_SAID: Final = AssistantMessage | UserMessage


@frozen
class TextDelta:
    """A piece of the text that the model is writing. It is not kept."""

    text: str = attrs.field(validator=of(str))


@frozen
class ToolStarted:
    """A tool call has begun."""

    id: str = attrs.field(validator=of(str))
    name: str = attrs.field(validator=of(str))
    input: Mapping[str, Any] = attrs.field(
        factory=dict[str, Any], converter=_as_input, validator=of(Mapping)
    )


@frozen
class ToolCompleted:
    """A tool call has ended."""

    id: str = attrs.field(validator=of(str))
    name: str = attrs.field(validator=of(str))
    is_error: bool = attrs.field(default=False, validator=of(bool))
    error: str | None = attrs.field(
        default=None, kw_only=True, validator=of(str | None)
    )
    """The first line of an answer that is an error, for people. It has at most 200
    characters."""


@frozen(kw_only=True)
class TokensUsed:
    """What one request to a model has used. It is added to what came before."""

    input_tokens: int = 0
    """The tokens that the model has read, from a cache or not."""
    output_tokens: int = 0
    cache_read_tokens: int = 0
    """How many of ``input_tokens`` came from the provider's cache."""
    cache_write_tokens: int = 0
    """How many of ``input_tokens`` went into the provider's cache."""
    cost: float = 0.0
    """The cost in the unit of the budget, for instance dollars."""

    def __attrs_post_init__(self) -> None:
        check_whole("TokensUsed.input_tokens", self.input_tokens)
        check_whole("TokensUsed.output_tokens", self.output_tokens)
        check_whole("TokensUsed.cache_read_tokens", self.cache_read_tokens)
        check_whole("TokensUsed.cache_write_tokens", self.cache_write_tokens)
        check_number("TokensUsed.cost", self.cost)


@frozen(kw_only=True)
class Retrying:
    """A request to the model has failed with an error that may pass, and is made again
    after a wait. It is not kept. When that does not help, the run ends with a
    `TransientError`."""

    attempt: int
    """Which try has failed, counted from 1 for each message of the model."""
    reason: str
    """Why it has failed, in words for people."""
    wait: float
    """The seconds until the next try, from this event on."""

    def __attrs_post_init__(self) -> None:
        check_whole("Retrying.attempt", self.attempt, 1)
        check_type("Retrying.reason", self.reason, str)
        check_number("Retrying.wait", self.wait, "seconds")


@frozen
class Note:
    """What the agent is doing, in a few words for people."""

    text: str = attrs.field(validator=of(str))


@frozen
class TodoItem:
    """One step of the agent's own plan."""

    text: str = attrs.field(validator=of(str))
    status: TodoStatus = attrs.field(
        default="pending", validator=by(check_one_of, _STATUSES)
    )


@frozen
class TodoList:
    """The agent's plan as it is now. It replaces an earlier one. The task does not
    complete while an item is neither completed nor cancelled, unless
    ``AgentPolicy(todo_aware=False)`` says so.

    A run yields it if its plan comes from elsewhere. A plan that a model writes by
    calls of the tool TodoWrite is known from the conversation, and is told in the same
    way."""

    items: tuple[TodoItem, ...] = attrs.field(
        default=(), converter=_as_items, validator=by(check_all, TodoItem)
    )


@frozen
class CompactBoundary:
    """The conversation up to here is replaced by a summary of it, and by the last
    messages, which stay as they are. A run yields it; what it yields after it follows
    these messages.

    All of it is one record of the transcript, so a crash leaves all of it or nothing.
    """

    summary: str = attrs.field(validator=of(str))
    kept: tuple[AssistantMessage | UserMessage, ...] = attrs.field(
        default=(), converter=_as_kept, validator=by(check_all, _SAID), kw_only=True
    )
    """The messages that stay. A tool call among them has its answer there, too."""
    plan: TodoList | None = attrs.field(
        default=None, validator=of(TodoList | None), kw_only=True
    )
    """The plan as it is now. None means the plan that the agent has."""


@frozen
class ApprovalRequested:
    """A tool call waits for somebody's answer."""

    request_id: str = attrs.field(validator=of(str))
    tool_use: ToolUse = attrs.field(validator=of(ToolUse))


@frozen
class FinalResult:
    """The answer. A run that yields it with ``goal`` is asked for its next event only
    if there is more to do: a message has come, an own task has ended, the plan is not
    done, or a hook objects. Then `Inbox.take` says what.

    If no `AssistantMessage` has said its text since the last answer, the text is kept
    in the conversation as one."""

    text: str = attrs.field(validator=of(str))
    terminate: Terminate = attrs.field(
        default="goal", validator=by(check_one_of, TERMINATE_MODES)
    )
    error: str | None = attrs.field(
        default=None, kw_only=True, validator=of(str | None)
    )
    """What went wrong, with a mode other than ``goal``."""


Message: TypeAlias = AssistantMessage | UserMessage | CompactBoundary
"""One message of a conversation. The transcript keeps it."""

AgentEvent: TypeAlias = (
    AssistantMessage
    | UserMessage
    | CompactBoundary
    | TextDelta
    | ToolStarted
    | ToolCompleted
    | TokensUsed
    | Retrying
    | Note
    | TodoList
    | ApprovalRequested
    | FinalResult
)
"""What a run may yield."""
