"""TaskList: which tasks there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import trio

from actors.text import one_line

from .._tasks.snapshot import TaskSnapshot
from . import _facts
from ._owned import described, owned
from ._tool import Call, Tool, ToolResult

if TYPE_CHECKING:
    from ..runtime import Runtime

_LISTED: Final = 100

_DESCRIPTION: Final = f"""\
Lists your tasks: background tasks, and foreground commands and agents that are still running.

- Takes no arguments.
- Use it when you do not know the id of a task, or which tasks are still running.
- Returns one line for each task: its id, type, state (of an agent, also what it waits for) and description, then how long it has run, and when it was last active; of an agent also its type, the tokens and tools that it has used, and what it did last; of a command also the command. Tasks that have not ended come first, in the order of their start, and below each agent, indented, what it has started itself and has not ended; then ended ones, the latest first. At most {_LISTED} lines; ended tasks are forgotten after a while.
- The tasks of other agents and sessions are not listed.
"""


def task_list(runtime: Runtime, owner: str | None) -> Tool:
    """Return the tool for ``owner``."""

    async def act(_: Call) -> ToolResult:
        # It looks at each task's processes: others that can go on do so first.
        await trio.lowlevel.checkpoint()
        tasks = owned(runtime, owner)
        running = [t for t in tasks if not t.status.is_terminal]
        # The answer of a foreground command has told of its end already.
        ended = [t for t in reversed(tasks) if t.status.is_terminal and t.background]
        found = [*_with_own(runtime, running), *((0, task) for task in ended)]
        listed = found[:_LISTED]
        lines = [
            "  " * depth + described(task) + _facts.row(task) for depth, task in listed
        ]
        if len(found) > _LISTED:
            lines.append(f"and {len(found) - _LISTED} more")
        return ToolResult(
            "\n".join(lines) or "There are no tasks.",
            data={"tasks": [_data(task) for _, task in listed], "total": len(found)},
        )

    return Tool("TaskList", _DESCRIPTION, (), act)


def _with_own(
    runtime: Runtime, tasks: list[TaskSnapshot]
) -> Iterator[tuple[int, TaskSnapshot]]:
    """Yield ``tasks``, below each what it has started and has not ended, with how
    many of them are above it."""
    own: dict[str | None, list[TaskSnapshot]] = {}
    if any(task.depth is not None for task in tasks):
        for task in runtime.tasks():
            if not task.status.is_terminal:
                own.setdefault(task.parent, []).append(task)
    rest = [(0, task) for task in reversed(tasks)]
    while rest:
        depth, task = rest.pop()
        yield depth, task
        rest += [(depth + 1, below) for below in reversed(own.get(task.id, []))]


def _data(task: TaskSnapshot) -> dict[str, Any]:
    return {
        "task_id": task.id,
        "task_type": task.type,
        "status": task.status.value,
        "description": one_line(task.description),
        "background": task.background,
        "waiting": task.waiting,
        "parent": task.parent,
        "outputFile": None if task.output_file is None else str(task.output_file),
        "notified": task.notified,
        **_facts.given(task),
        **_facts.used(task),
        **(_facts.activities(task) if _facts.is_agent(task) else {}),
    }
