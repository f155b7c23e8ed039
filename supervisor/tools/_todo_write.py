"""TodoWrite: the plan of an agent."""

from __future__ import annotations

from typing import Any, Final

import trio

from actors.agent.hosting import TODO_STATUSES, TODO_WRITE, read_todos

from ._arguments import Field
from ._tool import Call, Tool, ToolResult

_DESCRIPTION: Final = """\
Writes your plan: the steps of the task and how far each is. The last call is the plan, so give all steps each time.

- Use it for a task of three steps or more, and when a step turns out to be several. Not for a single step.
- Before you begin a step, set it to in_progress, and only that one; when it is done, set it to completed at once. A step that is not needed any more is cancelled.
- A step is completed only if it is done wholly: not while tests fail or something is missing.
- You are reminded of steps that are neither completed nor cancelled before your answer counts.
"""


class _Todos(Field):
    """The steps of a plan."""

    __slots__ = ()

    def schema(self) -> dict[str, Any]:
        return {
            "type": "array",
            "description": self.description,
            "items": {
                "type": "object",
                "properties": {
                    "content": {
                        "type": "string",
                        "description": "What is to be done.",
                        "minLength": 1,
                    },
                    "status": {"type": "string", "enum": [*TODO_STATUSES]},
                    # Some models were trained to give it, so it is taken.
                    "activeForm": {
                        "type": "string",
                        "description": "The same as it is being done. May be left out.",
                    },
                },
                "required": ["content", "status"],
                "additionalProperties": False,
            },
        }

    def check(self, value: object) -> object:
        read_todos(value)
        return value


def todo_write() -> Tool:
    """Return the tool. The agent reads its plan from the conversation, so it only says
    whether a call is one."""

    async def act(call: Call) -> ToolResult:
        await trio.lowlevel.checkpoint()
        plan = read_todos(call.arguments["todos"])
        count = {
            status: sum(item.status == status for item in plan.items)
            for status in TODO_STATUSES
        }
        listed = ", ".join(f"{many} {status}" for status, many in count.items() if many)
        return ToolResult(
            f"The plan is written: {listed or 'it is empty'}.", data={"count": count}
        )

    todos = _Todos("todos", "All steps of the plan, in order.")
    return Tool(TODO_WRITE, _DESCRIPTION, (todos,), act)
