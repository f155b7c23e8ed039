"""Who or what has ended a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from actors import TaskStatus
from actors.agent import AgentFailed
from actors.output import QuotaExceeded

from ..tree._errors import DeadlinePassed, RestartIntensityExceeded

if TYPE_CHECKING:
    from actors.agent import Terminate

    from .record import Task

EndedBy: TypeAlias = Literal[
    "user",
    "model",
    "host",
    "parent",
    "limit",
    "quota",
    "deadline",
    "shutdown",
    "crash",
    "signal",
]
"""Who or what has ended a task that has not ended by itself.

- ``user``, ``model``, ``host``: who has stopped it. The host is the program; its loop
  has ended an agent of which that says itself that it was cancelled.
- ``parent``: the agent whose own task it was has ended, or was stopped.
- ``limit``: an agent was too long silent, or has used up its rounds or its budget; or
  nobody has heard what the monitor of a command tells.
- ``quota``: it has written more than it may.
- ``deadline``: its time was up.
- ``shutdown``: its runtime was closed, or cancelled.
- ``crash``: its program has died.
- ``signal``: a signal from outside has ended its process.
"""
ENDED_BY: Final[tuple[EndedBy, ...]] = get_args(EndedBy)

StoppedBy: TypeAlias = Literal["user", "model", "host"]
"""Who may stop a task."""
STOPPED_BY: Final[tuple[StoppedBy, ...]] = get_args(StoppedBy)

_OF_FAILURES: Final[tuple[EndedBy, ...]] = ("deadline", "crash")
_BY_MODE: Final[dict[Terminate, EndedBy]] = {
    "timeout": "deadline",
    "budget": "limit",
    "max_turns": "limit",
    "stalled": "limit",
}


def as_ended_by(word: str | None) -> EndedBy | None:
    """Return what a file says of who has ended a task, None if it is none of these."""
    return next((it for it in ENDED_BY if it == word), None)


def who_ended(task: Task, error: Exception | None) -> EndedBy | None:
    """Return who or what has ended ``task``, which has its terminal status, with
    ``error``; None if it has ended by itself."""
    status, cut_by = task.status, task.cut_by
    if status is TaskStatus.COMPLETED:
        return None
    # A stop that comes after the failure of the work has not ended it.
    if status is TaskStatus.KILLED:
        # If nobody has asked for it, the loop of an agent has said so.
        return cut_by or "host"
    if cut_by in _OF_FAILURES:
        return cut_by
    if isinstance(error, RestartIntensityExceeded):
        # Its last run.
        cause = error.__cause__
        error = cause if isinstance(cause, Exception) else None
    if isinstance(error, DeadlinePassed):
        return "deadline"
    if isinstance(error, QuotaExceeded):
        return "quota"
    if isinstance(error, AgentFailed):
        return _BY_MODE.get(error.mode)
    return None if task.signal is None else "signal"
