"""What an agent says while it runs: the events that its `run` yields.

Messages make up the conversation and are kept in the transcript; the others tell
how it goes and are not. All are plain values that JSON can hold, so that they can
be told to another process: see `to_json` and `from_json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, cast, get_args

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
_ORIGINS: Final = get_args(Origin)

TodoStatus: TypeAlias = Literal["pending", "in_progress", "completed", "cancelled"]
_STATUSES: Final = get_args(TodoStatus)


# A bad value is an error where it is made, and not when somebody reads it. Some
# events come 10,000 times a second: what is right is seen without a call.


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


def _as_input(arguments: Mapping[str, Any] | None) -> Mapping[str, Any]:
    # Models say null of a tool without arguments.
    return {} if arguments is None else arguments


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {value!r}")


def _check_text_or_none(name: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a str or None, not {value!r}")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")


def _check_input(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be the arguments by name, a dict, not {value!r}")


def _check_all(name: str, values: object, kind: type) -> None:
    if not isinstance(values, tuple):
        raise TypeError(
            f"{name} must be a tuple or list of {kind.__name__}, not {values!r}"
        )
    for value in cast("tuple[object, ...]", values):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must hold only {kind.__name__}, not {value!r}")


def _check_one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < 0:
        raise ValueError(f"{name} must be 0 or more, not {value!r}")


def _check_cost(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must be finite, 0 or more, not {value!r}")


@attrs.frozen
class ToolUse:
    """A tool call that the model asks for."""

    id: str
    """The model's own id of the call."""
    name: str
    input: Mapping[str, Any] = attrs.field(factory=dict[str, Any], converter=_as_input)
    """The arguments, as JSON has them."""

    def __attrs_post_init__(self) -> None:
        _check_text("ToolUse.id", self.id)
        _check_text("ToolUse.name", self.name)
        _check_input("ToolUse.input", self.input)


@attrs.frozen
class ToolAnswer:
    """What came of a tool call."""

    tool_use_id: str
    text: str
    is_error: bool = False

    def __attrs_post_init__(self) -> None:
        _check_text("ToolAnswer.tool_use_id", self.tool_use_id)
        _check_text("ToolAnswer.text", self.text)
        _check_flag("ToolAnswer.is_error", self.is_error)


@attrs.frozen
class AssistantMessage:
    """One whole message of the model. All its tool calls are independent."""

    text: str = ""
    tool_uses: tuple[ToolUse, ...] = attrs.field(default=(), converter=_as_uses)
    raw: Any = attrs.field(default=None, kw_only=True)
    """The content as the model's provider has it, if it must be sent back in just
    that form; what JSON can hold, or None."""

    def __attrs_post_init__(self) -> None:
        _check_text("AssistantMessage.text", self.text)
        _check_all("AssistantMessage.tool_uses", self.tool_uses, ToolUse)


@attrs.frozen
class UserMessage:
    """One message to the model, from whomever: see `origin`."""

    text: str = ""
    tool_answers: tuple[ToolAnswer, ...] = attrs.field(
        default=(), converter=_as_answers
    )
    origin: Origin = attrs.field(default="prompt", kw_only=True)
    """``prompt``: the task it was given. ``tools``: answers to tool calls.
    ``message``: sent by `sender` while it ran. ``notification``: the end of one
    of its own tasks. ``reminder``, ``hook``: of the program round it.
    ``summary``: what a compaction has left of earlier messages. None of these
    but ``prompt`` may be taken for words of a person, and none for an approval."""
    sender: str | None = attrs.field(default=None, kw_only=True)
    """Who sent a ``message``."""

    def __attrs_post_init__(self) -> None:
        _check_text("UserMessage.text", self.text)
        _check_all("UserMessage.tool_answers", self.tool_answers, ToolAnswer)
        _check_one_of("UserMessage.origin", self.origin, _ORIGINS)
        _check_text_or_none("UserMessage.sender", self.sender)


@attrs.frozen
class CompactBoundary:
    """The conversation up to here is replaced by a summary of it."""

    summary: str

    def __attrs_post_init__(self) -> None:
        _check_text("CompactBoundary.summary", self.summary)


@attrs.frozen
class TextDelta:
    """A piece of the text that the model is writing. Not kept."""

    text: str

    def __attrs_post_init__(self) -> None:
        if type(self.text) is not str:
            _check_text("TextDelta.text", self.text)


@attrs.frozen
class ToolStarted:
    """A tool call has begun."""

    id: str
    name: str
    input: Mapping[str, Any] = attrs.field(factory=dict[str, Any], converter=_as_input)

    def __attrs_post_init__(self) -> None:
        _check_text("ToolStarted.id", self.id)
        _check_text("ToolStarted.name", self.name)
        _check_input("ToolStarted.input", self.input)


@attrs.frozen
class ToolCompleted:
    """A tool call has ended."""

    id: str
    name: str
    is_error: bool = False
    error: str | None = attrs.field(default=None, kw_only=True)
    """The first line of an answer that is an error, for people; at most 200
    characters."""

    def __attrs_post_init__(self) -> None:
        _check_text("ToolCompleted.id", self.id)
        _check_text("ToolCompleted.name", self.name)
        _check_flag("ToolCompleted.is_error", self.is_error)
        _check_text_or_none("ToolCompleted.error", self.error)


@attrs.frozen(kw_only=True)
class TokensUsed:
    """What one request to a model has used: it is added to what came before."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    """In whatever unit the budget has, for instance dollars."""

    def __attrs_post_init__(self) -> None:
        if type(self.input_tokens) is not int or self.input_tokens < 0:
            _check_count("TokensUsed.input_tokens", self.input_tokens)
        if type(self.output_tokens) is not int or self.output_tokens < 0:
            _check_count("TokensUsed.output_tokens", self.output_tokens)
        if type(self.cost) is not float or not 0.0 <= self.cost < math.inf:
            _check_cost("TokensUsed.cost", self.cost)


@attrs.frozen
class Note:
    """What the agent is doing, in a few words for people."""

    text: str

    def __attrs_post_init__(self) -> None:
        if type(self.text) is not str:
            _check_text("Note.text", self.text)


@attrs.frozen
class TodoItem:
    """One step of the agent's own plan."""

    text: str
    status: TodoStatus = "pending"

    def __attrs_post_init__(self) -> None:
        _check_text("TodoItem.text", self.text)
        _check_one_of("TodoItem.status", self.status, _STATUSES)


@attrs.frozen
class TodoList:
    """The agent's plan as it is now; it replaces an earlier one. The task does
    not complete while an item is neither completed nor cancelled."""

    items: tuple[TodoItem, ...] = attrs.field(default=(), converter=_as_items)

    def __attrs_post_init__(self) -> None:
        _check_all("TodoList.items", self.items, TodoItem)


@attrs.frozen
class ApprovalRequested:
    """A tool call waits for somebody's answer."""

    request_id: str
    tool_use: ToolUse

    def __attrs_post_init__(self) -> None:
        _check_text("ApprovalRequested.request_id", self.request_id)
        if not isinstance(self.tool_use, ToolUse):
            raise TypeError(
                f"ApprovalRequested.tool_use must be a ToolUse, not {self.tool_use!r}"
            )


@attrs.frozen
class FinalResult:
    """The answer. A run that yields it with ``goal`` is asked for its next event
    only if there is more to do: a message has come, an own task has ended, the
    plan is not done, or a hook has found fault. Then `Inbox.take` says what.

    A text that no `AssistantMessage` has said since the answer before is kept in
    the conversation as one."""

    text: str
    terminate: Terminate = "goal"
    error: str | None = attrs.field(default=None, kw_only=True)
    """What went wrong, with a mode other than ``goal``."""

    def __attrs_post_init__(self) -> None:
        _check_text("FinalResult.text", self.text)
        _check_one_of("FinalResult.terminate", self.terminate, TERMINATE_MODES)
        _check_text_or_none("FinalResult.error", self.error)


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
