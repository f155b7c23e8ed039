"""What an agent says while it runs: the events that its `run` yields.

Messages make up the conversation and are kept in the transcript; the others tell
how it goes and are not. All are plain values that JSON can hold, so that they can
be told to another process: see `to_json` and `from_json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "TERMINATE_MODES",
    "AgentEvent",
    "ApprovalRequested",
    "AssistantMessage",
    "CompactBoundary",
    "FinalResult",
    "Message",
    "Note",
    "Terminate",
    "TextDelta",
    "TodoItem",
    "TodoList",
    "TokensUsed",
    "ToolAnswer",
    "ToolCompleted",
    "ToolStarted",
    "ToolUse",
    "UserMessage",
]

Terminate: TypeAlias = Literal[
    "goal", "error", "max_turns", "timeout", "stalled", "budget", "cancelled"
]
"""Why a run has ended: ``goal`` is its own answer, and completes the task;
``cancelled`` kills it; every other fails it, with what there is of an answer."""
TERMINATE_MODES: Final[tuple[Terminate, ...]] = get_args(Terminate)

Origin: TypeAlias = Literal[
    "prompt", "tools", "message", "notification", "reminder", "hook", "summary"
]


@attrs.frozen
class ToolUse:
    """A tool call that the model asks for."""

    id: str
    """The model's own id of the call."""
    name: str
    input: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    """The arguments, as JSON has them."""


@attrs.frozen
class ToolAnswer:
    """What came of a tool call."""

    tool_use_id: str
    text: str
    is_error: bool = False


@attrs.frozen
class AssistantMessage:
    """One whole message of the model. All its tool calls are independent."""

    text: str = ""
    tool_uses: tuple[ToolUse, ...] = ()
    raw: Any = attrs.field(default=None, kw_only=True)
    """The content as the model's provider has it, if it must be sent back in just
    that form; what JSON can hold, or None."""


@attrs.frozen
class UserMessage:
    """One message to the model, from whomever: see `origin`."""

    text: str = ""
    tool_answers: tuple[ToolAnswer, ...] = ()
    origin: Origin = attrs.field(default="prompt", kw_only=True)
    """``prompt``: the task it was given. ``tools``: answers to tool calls.
    ``message``: sent by `sender` while it ran. ``notification``: the end of one
    of its own tasks. ``reminder``, ``hook``: of the program round it.
    ``summary``: what a compaction has left of earlier messages. None of these
    but ``prompt`` may be taken for words of a person, and none for an approval."""
    sender: str | None = attrs.field(default=None, kw_only=True)
    """Who sent a ``message``."""


@attrs.frozen
class CompactBoundary:
    """The conversation up to here is replaced by a summary of it."""

    summary: str


@attrs.frozen
class TextDelta:
    """A piece of the text that the model is writing. Not kept."""

    text: str


@attrs.frozen
class ToolStarted:
    """A tool call has begun."""

    id: str
    name: str
    input: Mapping[str, Any] = attrs.field(factory=dict[str, Any])


@attrs.frozen
class ToolCompleted:
    """A tool call has ended."""

    id: str
    name: str
    is_error: bool = False


@attrs.frozen(kw_only=True)
class TokensUsed:
    """What one request to a model has used: it is added to what came before."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    """In whatever unit the budget has, for instance dollars."""


@attrs.frozen
class Note:
    """What the agent is doing, in a few words for people."""

    text: str


@attrs.frozen
class TodoItem:
    """One step of the agent's own plan."""

    text: str
    status: Literal["pending", "in_progress", "completed", "cancelled"] = "pending"


@attrs.frozen
class TodoList:
    """The agent's plan as it is now; it replaces an earlier one. The task does
    not complete while an item is neither completed nor cancelled."""

    items: tuple[TodoItem, ...] = ()


@attrs.frozen
class ApprovalRequested:
    """A tool call waits for somebody's answer."""

    request_id: str
    tool_use: ToolUse


@attrs.frozen
class FinalResult:
    """The answer. A run that yields it with ``goal`` is asked for its next event
    only if there is more to do: a message has come, an own task has ended, the
    plan is not done, or a hook has found fault. Then `Inbox.take` says what."""

    text: str
    terminate: Terminate = "goal"
    error: str | None = attrs.field(default=None, kw_only=True)
    """What went wrong, with a mode other than ``goal``."""


Message: TypeAlias = AssistantMessage | UserMessage | CompactBoundary
"""What the conversation consists of, and the transcript keeps."""

AgentEvent: TypeAlias = (
    AssistantMessage
    | UserMessage
    | CompactBoundary
    | TextDelta
    | ToolStarted
    | ToolCompleted
    | TokensUsed
    | Note
    | TodoList
    | ApprovalRequested
    | FinalResult
)
"""What a run may yield."""
