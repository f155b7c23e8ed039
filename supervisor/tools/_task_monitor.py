"""TaskMonitor: being told what a background command prints, line by line."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

import attrs

from .._life.monitors import MOST, Monitor, TooManyMonitors
from ._arguments import Field, Refused, optional, unfit
from ._owned import find, is_told, state
from ._tool import Call, Tool, ToolResult

if TYPE_CHECKING:
    from ..runtime import Runtime

_DESCRIPTION: Final = """\
Tells you what a background command prints from now on, line by line, until it ends.

- Use it for a command that runs already; to begin one with it, use Bash with monitor: true. The lines come by themselves: do other work meanwhile, and do not ask again and again.
- At most one note a second comes, of at most 200 lines and 4,000 characters; the others are counted, and TaskOutput reads them with the offset that the note names. With only, you are told only the lines that hold this text.
- Returns the id of the monitor. TaskStop with that id ends the monitor, and the command goes on. It ends by itself with the command, and after 10 notes in a row that nobody has read or reacted to.
- Takes task_id, from the answer that started the command or from TaskList. Only a command that you have started yourself can be monitored.
"""


def task_monitor(runtime: Runtime, owner: str | None) -> Tool:
    """Return the tool for ``owner``."""

    async def act(call: Call) -> ToolResult:
        only = check_only(call.arguments["only"], "only")
        task = find(runtime, owner, call.arguments["task_id"])
        snapshot = task.snapshot()
        if not is_told(snapshot, owner):
            raise Refused(
                "access_denied",
                f"Nothing was done: task {task.id} was started by agent "
                f"{snapshot.owner}, who is told what it prints.",
            )
        if snapshot.status.is_terminal:
            raise Refused(
                "not_running",
                f"Nothing was done: task {task.id} has ended: {state(snapshot)}. "
                "TaskOutput reads what it has printed.",
            )
        try:
            monitor = await monitored(runtime.monitor(task, only))
        except ValueError as error:
            raise unfit(f"Nothing was done: {error}.") from None
        return told_lines(
            ToolResult(
                f"What task {task.id} prints from now on is told to you.",
                data={"task_id": task.id},
            ),
            monitor,
        )

    fields = (
        Field("task_id", "The id of the task."),
        optional(
            "only",
            "Text that a line must hold to be told, as it stands: it is no regular "
            "expression.",
        ),
    )
    return Tool("TaskMonitor", _DESCRIPTION, fields, act)


def check_only(text: str | None, name: str) -> str | None:
    """Return the text that lines are to hold, if that can be."""
    if text is not None and (not text or "\n" in text):
        raise unfit(
            f"Nothing was done: {name} must be text that is in one line, and not empty."
        )
    return text


async def monitored(starting: Awaitable[Monitor]) -> Monitor:
    """Return the monitor that is being started."""
    try:
        return await starting
    except TooManyMonitors:
        raise Refused(
            "too_many",
            f"Nothing was done: you have {MOST} monitors already. End one with "
            "TaskStop first.",
        ) from None


def told_lines(answer: ToolResult, monitor: Monitor) -> ToolResult:
    """Return ``answer`` with what is to be known of the monitor. If it has ended, its
    command has, and there is nothing more to say."""
    if monitor.ended is not None:
        return answer
    text = (
        f"{answer.text}\nYou are told its lines as they come, by monitor {monitor.id}."
    )
    return attrs.evolve(answer, text=text, data=answer.data | {"monitorId": monitor.id})
