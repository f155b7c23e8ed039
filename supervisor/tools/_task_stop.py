"""TaskStop, and KillShell, as it was called before: ending a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from actors.text import one_line

from ._arguments import Field, some
from ._owned import find, is_told, state
from ._tool import Call, Tool, ToolResult

if TYPE_CHECKING:
    from ..runtime import Runtime

_REASON: Final = "the model asked for it"
_LISTED: Final = 20

_DESCRIPTION: Final = """\
Stops a running task, and waits until it has really ended.

- Use it to end a background task that you need no longer, such as a server, or one that does not end by itself.
- All processes that the task has started are ended: first they are asked to, some seconds later they are killed.
- With an agent all that it has started itself, commands and agents, is ended too, and named in the answer. A stopped agent is not started again by itself.
- Returns how the task ended; you are not told of that end again. If something could not be ended, the answer is an error that names it. A task that had ended before is left as it is, and you are told so.
- Takes task_id, from the answer that started the task or from TaskList. Only your own tasks can be stopped.
"""

_KILL_SHELL: Final = """\
Older name of TaskStop. Stops the background shell that shell_id names, and waits until it has really ended.
"""


def task_stop(runtime: Runtime, owner: str | None) -> Tool:
    """Return the tool for ``owner``."""
    return _stop(runtime, owner, "TaskStop", _DESCRIPTION, "task_id")


def kill_shell(runtime: Runtime, owner: str | None) -> Tool:
    """Return the tool for ``owner`` under its older name."""
    return _stop(runtime, owner, "KillShell", _KILL_SHELL, "shell_id")


def _stop(
    runtime: Runtime, owner: str | None, name: str, description: str, id_field: str
) -> Tool:
    async def act(call: Call) -> ToolResult:
        task = find(runtime, owner, call.arguments[id_field])
        before = task.snapshot()
        data: dict[str, Any] = {
            "task_id": task.id,
            "task_type": before.type,
            "status": before.status.value,
            "description": one_line(before.description),
            "stopped": False,
            "stopped_tasks": [],
            "survivors": [],
        }
        if before.status.is_terminal:
            return ToolResult(
                f"Task {task.id} had ended already: {state(before)}. "
                "There was nothing to stop.",
                data=data,
            )
        result = await task.stop(_REASON)
        after = result.snapshot
        data["status"] = after.status.value
        data["stopped_tasks"] = list(result.stopped)
        if not after.status.is_terminal:
            data["survivors"] = list(result.survivors)
            return ToolResult(
                f"Task {task.id} was told to stop and has not ended. Still there: "
                f"{some(result.survivors, _LISTED)}. It is waited for, and you will be told "
                f"when it ends.{_with_it(result.stopped)}",
                is_error=True,
                data={"error": "survivors", **data},
            )
        data["stopped"] = True
        if is_told(after, owner):
            # By this answer.
            runtime.consume(task.id)
        return ToolResult(
            f"Task {task.id} has ended: {state(after)}.{_with_it(result.stopped)}",
            data=data,
        )

    fields = (Field(id_field, "The id of the task to stop."),)
    return Tool(name, description, fields, act)


def _with_it(stopped: tuple[str, ...]) -> str:
    if not stopped:
        return ""
    what = "1 task" if len(stopped) == 1 else f"{len(stopped)} tasks"
    return f" With it ended {what} that it or its agents had started: {some(stopped, _LISTED)}."
