"""The plan of an agent, as its calls of TodoWrite say it: pure.

The calls are the plan. Nothing else keeps it, so an agent that goes on from its
transcript has the plan that it wrote last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast, get_args

import attrs

from ._events import (
    AssistantMessage,
    CompactBoundary,
    Message,
    TodoItem,
    TodoList,
    TodoStatus,
    UserMessage,
)

TODO_WRITE: Final = "TodoWrite"
"""The name of the tool."""
TODO_STATUSES: Final[tuple[str, ...]] = get_args(TodoStatus)
_OVER: Final = ("completed", "cancelled")
_SHOWN: Final = 80
_FIELDS: Final = ("content", "status", "activeForm")


def read_todos(todos: object) -> TodoList:
    """Return the plan in the argument ``todos`` of a call.

    Raises:
        ValueError: naming the item and what is wrong with it.
    """
    if not isinstance(todos, list | tuple):
        raise ValueError("must be an array of objects with content and status")
    listed = cast("list[object]", todos)
    return TodoList(
        tuple(_read_item(place, each) for place, each in enumerate(listed, 1))
    )


def _read_item(place: int, item: object) -> TodoItem:
    if not isinstance(item, Mapping):
        raise ValueError(f"must hold objects with content and status: see item {place}")
    fields = cast("Mapping[object, object]", item)
    unknown = [key for key in fields if key not in _FIELDS]
    if unknown:
        raise ValueError(
            f"must have no {repr(unknown[0])[:_SHOWN]} in item {place}; allowed: "
            f"{', '.join(_FIELDS)}"
        )
    content, status = fields.get("content"), fields.get("status")
    if not isinstance(content, str) or not content.strip():
        raise ValueError(f"must have some text as the content of item {place}")
    if not isinstance(status, str) or status not in TODO_STATUSES:
        raise ValueError(
            f"must have one of {', '.join(TODO_STATUSES)} as the status of item "
            f"{place}, not {repr(status)[:_SHOWN]}"
        )
    if not isinstance(fields.get("activeForm", ""), str):
        raise ValueError(f"must have a string as the activeForm of item {place}")
    return TodoItem(content, cast("TodoStatus", status))


@attrs.define(eq=False, repr=False)
class PlanReader:
    """Follows a conversation, and knows the plan that was written last."""

    plan: TodoList | None = None
    # The calls that have no answer yet, by id.
    _asked: dict[str, Any] = attrs.field(factory=dict[str, Any], init=False)

    def read(self, message: Message) -> TodoList | None:
        """Take in the next message. Return the plan that it makes valid, if any.

        That is the one of the last call that was not refused.
        """
        written: TodoList | None = None
        if isinstance(message, CompactBoundary):
            written = message.plan
            self._asked = {}
            for kept in message.kept:
                written = self.read(kept) or written
        elif isinstance(message, AssistantMessage):
            for use in message.tool_uses:
                if use.name == TODO_WRITE:
                    self._asked[use.id] = use.input.get("todos")
        elif self._asked and message.tool_answers:
            written = self._answered(message)
        if written is not None:
            self.plan = written
        return written

    def _answered(self, message: UserMessage) -> TodoList | None:
        granted = {it.tool_use_id: not it.is_error for it in message.tool_answers}
        written: TodoList | None = None
        for id in [id for id in self._asked if id in granted]:
            todos = self._asked.pop(id)
            if granted[id]:
                try:
                    written = read_todos(todos)
                except ValueError:
                    # A tool of the same name that takes something else.
                    continue
        return written


def plan_in(messages: Iterable[Message]) -> TodoList | None:
    """Return the plan that was written last in a conversation."""
    reader = PlanReader()
    for message in messages:
        reader.read(message)
    return reader.plan


def open_items(plan: TodoList | None) -> list[str]:
    """Return what is neither done nor given up."""
    items = () if plan is None else plan.items
    return [item.text for item in items if item.status not in _OVER]


def in_lines(plan: TodoList) -> str:
    """Return a plan as a model reads it, one line for each item."""
    return "\n".join(f"- [{item.status}] {item.text}" for item in plan.items)


def how_far(plan: TodoList) -> str:
    """Return in a few words how much of a plan is done."""
    done = len(plan.items) - len(open_items(plan))
    return f"{done} of {len(plan.items)} steps of its plan done"
