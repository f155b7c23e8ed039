"""TaskStop, and KillShell, as it was called before: ending a task, or all tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import trio

from actors.text import one_line

from .._life.handles import TaskHandle
from .._life.stops import StopResult
from .._tasks.record import Task
from ..lowlevel import life_of
from ..tree._errors import SupervisorError
from ._arguments import Field, optional, some, unfit
from ._owned import find, is_told, owned, state
from ._tool import Call, Tool, ToolResult

if TYPE_CHECKING:
    from ..runtime import Monitor, Runtime

_REASON: Final = "the model asked for it"
_LISTED: Final = 20

_DESCRIPTION: Final = """\
Stops a running task, and waits until it has really ended.

- Use it to end a background task that you need no longer, such as a server, or one that does not end by itself.
- All processes that the task has started are ended: first they are asked to, some seconds later they are killed.
- With an agent all that it has started itself, commands and agents, is ended too, and named in the answer. A stopped agent is not started again by itself.
- Returns how the task ended; you are not told of that end again. If something could not be ended, the answer is an error that names it. A task that had ended before is left as it is, and you are told so.
- Takes task_id, from the answer that started the task or from TaskList, or the id of a monitor, which ends the command if that was begun with it; or, instead of it, all: true, which stops all of your background tasks together. What you run in the foreground at the same time goes on. Only your own tasks can be stopped.
"""

_KILL_SHELL: Final = """\
Older name of TaskStop. Stops the background shell that shell_id names, and waits until it has really ended.
"""


def task_stop(runtime: Runtime, owner: str | None) -> Tool:
    """Return the tool for ``owner``."""
    one = _stop(runtime, owner, "task_id")

    async def act(call: Call) -> ToolResult:
        wants_all, named = call.arguments["all"], call.arguments["task_id"] is not None
        if wants_all == named:
            raise unfit(
                "Nothing was stopped: give either the task_id of one task, or all: true."
            )
        return await (_stop_all(runtime, owner) if wants_all else one(call))

    fields = (
        optional("task_id", "The id of the task to stop."),
        Field(
            "all",
            "Whether to stop all of your background tasks, instead of one.",
            "boolean",
            default=False,
        ),
    )
    return Tool("TaskStop", _DESCRIPTION, fields, act)


def kill_shell(runtime: Runtime, owner: str | None) -> Tool:
    """Return the tool for ``owner`` under its older name."""
    fields = (Field("shell_id", "The id of the task to stop."),)
    act = _stop(runtime, owner, "shell_id")
    return Tool("KillShell", _KILL_SHELL, fields, act)


def _stop(
    runtime: Runtime, owner: str | None, id_field: str
) -> Callable[[Call], Awaitable[ToolResult]]:
    """Return what stops the task that the argument ``id_field`` names."""

    async def act(call: Call) -> ToolResult:
        for monitor in runtime.monitors():
            if monitor.id == call.arguments[id_field] and monitor.owner == owner:
                return await _stop_monitor(runtime, monitor)
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
        result = await task.stop(_REASON, by="model")
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

    return act


async def _stop_all(runtime: Runtime, owner: str | None) -> ToolResult:
    """Stop the background tasks of ``owner`` together."""
    life = life_of(runtime)
    # Nobody can wait for the end of what calls, nor of what that is below.
    calling: list[Task] = []
    above = life.current_task()
    while above is not None:
        calling.append(above)
        above = above.parent
    mine = [
        runtime.handle(task.id)
        for task in owned(runtime, owner)
        if task.background
        and not task.status.is_terminal
        and life.table.find(task.id) not in calling
    ]
    results = await _stop_together(mine)
    ended: list[str] = []
    survivors: list[str] = []
    below: list[str] = []
    for result in results:
        after = result.snapshot
        below += result.stopped
        if after.status.is_terminal:
            ended.append(f"{after.id} ({state(after)})")
            if is_told(after, owner):
                # By this answer.
                runtime.consume(after.id)
        else:
            survivors += result.survivors
    data: dict[str, Any] = {
        "tasks": [
            {"task_id": it.snapshot.id, "status": it.snapshot.status.value}
            for it in results
        ],
        "stopped_tasks": below,
        "survivors": survivors,
    }
    if not results:
        return ToolResult("You have no background task that has not ended.", data=data)
    what = "1 task has" if len(ended) == 1 else f"{len(ended)} tasks have"
    which = f": {some(ended, _LISTED)}" if ended else ""
    said = f"{what} ended{which}.{_with_it(tuple(below))}"
    if not survivors:
        return ToolResult(said, data=data)
    return ToolResult(
        f"{said} {len(results) - len(ended)} were told to stop and have not ended. "
        f"Still there: {some(survivors, _LISTED)}. They are waited for, and you will be "
        "told when they end.",
        is_error=True,
        data={"error": "survivors", **data},
    )


async def _stop_monitor(runtime: Runtime, monitor: Monitor) -> ToolResult:
    await monitor.stop(_REASON, by="model")
    task = runtime.get(monitor.task_id)
    if task.status.is_terminal and is_told(task, monitor.owner):
        # By this answer.
        runtime.consume(task.id)
    return ToolResult(
        f"Monitor {monitor.id} has ended. Task {task.id}: {state(task)}.",
        data={
            "monitor_id": monitor.id,
            "task_id": task.id,
            "status": task.status.value,
            "stopped": True,
        },
    )


async def _stop_together(tasks: list[TaskHandle]) -> list[StopResult]:
    """Stop ``tasks`` at the same time, and return their results in the same order."""
    results: dict[str, StopResult] = {}
    failures: list[BaseException] = []

    async def stop(task: TaskHandle) -> None:
        try:
            results[task.id] = await task.stop(_REASON, by="model")
        except (SupervisorError, KeyboardInterrupt, SystemExit) as error:
            # Raised below: the nursery would wrap it.
            failures.append(error)

    await trio.lowlevel.checkpoint()
    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(stop, task)
    if failures:
        raise failures[0]
    return [results[task.id] for task in tasks]


def _with_it(stopped: tuple[str, ...]) -> str:
    if not stopped:
        return ""
    what = "1 task" if len(stopped) == 1 else f"{len(stopped)} tasks"
    return f" With it ended {what} that it or its agents had started: {some(stopped, _LISTED)}."
