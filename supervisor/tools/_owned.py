"""The tasks of one owner: finding one, and saying how it is."""

from __future__ import annotations

import signal as signals
from typing import TYPE_CHECKING, Final

from actors import TaskStatus

from .._errors import UnknownTask
from .._line import one_line
from .._table import TaskSnapshot
from ._arguments import Refused, shown

if TYPE_CHECKING:
    from .._handles import TaskHandle
    from ..runtime import Runtime

_LISTED: Final = 20
_ERROR_SHOWN: Final = 500
_ENDED: Final = "has ended"


def owned(runtime: Runtime, owner: str | None) -> list[TaskSnapshot]:
    """Return the tasks of ``owner``: the ended ones in the order of their ends,
    then the others in the order of launch."""
    return [task for task in runtime.tasks(owner) if task.owner == owner]


def find(runtime: Runtime, owner: str | None, task_id: str) -> TaskHandle:
    """Return a task of ``owner``.

    Raises:
        Refused: if there is none of this id, listing those that there are; or
            if it is somebody else's.
    """
    try:
        task = runtime.handle(task_id)
    except UnknownTask:
        raise Refused(
            "unknown_task",
            f"There is no task {shown(task_id)}, or it has been forgotten. "
            f"{_listed(runtime, owner)}",
        ) from None
    if task.snapshot().owner != owner:
        raise Refused(
            "access_denied",
            f"Access denied: task {shown(task_id)} belongs to another owner. "
            f"{_listed(runtime, owner)}",
        )
    return task


def _listed(runtime: Runtime, owner: str | None) -> str:
    running = [t for t in owned(runtime, owner) if not t.status.is_terminal]
    if not running:
        return "No task is running."
    lines = [f"- {described(task)}" for task in running[:_LISTED]]
    if len(running) > _LISTED:
        lines.append(f"and {len(running) - _LISTED} more; see TaskList")
    return "\n".join(["Running tasks:", *lines])


def described(task: TaskSnapshot) -> str:
    """Return a task in one line."""
    return f"{task.id} {task.type} ({state(task)}): {one_line(task.description)}"


def state(task: TaskSnapshot) -> str:
    """Return in a few words where a task is in its life and, when it has ended,
    how it did."""
    if task.status is TaskStatus.PENDING:
        return "pending, waits for a free place"
    if task.status is TaskStatus.RUNNING:
        if task.stopping:
            return "running, was told to stop"
        return "running, between two runs" if task.restarting else "running"
    if task.status is TaskStatus.KILLED:
        return "killed"
    how = ending(task)
    return task.status.value if how == _ENDED else f"{task.status.value}, {how}"


def ending(task: TaskSnapshot) -> str:
    """Return in a few words how an ended task did."""
    if task.status is TaskStatus.KILLED:
        return "was stopped"
    if task.exit_code is not None and _tells_all(task, f"exit code {task.exit_code}"):
        return f"exit code {task.exit_code}"
    if task.signal is not None and _tells_all(task, f"ended by signal {task.signal}"):
        return f"ended by signal {_signal_name(task.signal)}"
    if task.error is not None:
        return one_line(f"{task.error.type}: {task.error.message}", _ERROR_SHOWN)
    return _ENDED


def leftovers(task: TaskSnapshot) -> str | None:
    """Return a sentence on what a command had left behind, if that was anything."""
    count = task.left_behind
    if not count:
        return None
    if count == 1:
        return "1 process that it left in the background was ended with it"
    return f"{count} processes that it left in the background were ended with it"


def _tells_all(task: TaskSnapshot, words: str) -> bool:
    # A task with an exit code may have failed for another reason: its quota.
    return task.error is None or task.error.message.startswith(words)


def _signal_name(number: int) -> str:
    try:
        return f"{number} ({signals.Signals(number).name})"
    except ValueError:
        return str(number)
