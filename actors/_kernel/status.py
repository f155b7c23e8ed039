"""The status of a background task, what a task says of it, and the guard that lets it
end once."""

from __future__ import annotations

import enum

from trio.lowlevel import enable_ki_protection

from .values import frozen, plain


class TaskStatus(enum.Enum):
    """Where a background task is in its life. Three of the states are final.

    ``paused`` is not one of these: an agent waits until what stopped it has passed, or
    until somebody lets it go on.
    """

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    KILLED = "killed"

    # Members are single objects; hashing their names costs ten times as much.
    __hash__ = object.__hash__

    def __init__(self, value: str) -> None:
        self.is_terminal = value in ("completed", "failed", "killed")
        """Whether nothing can follow."""


LEGAL_TRANSITIONS: dict[TaskStatus, frozenset[TaskStatus]] = {
    TaskStatus.PENDING: frozenset(
        {TaskStatus.RUNNING, TaskStatus.FAILED, TaskStatus.KILLED}
    ),
    TaskStatus.RUNNING: frozenset(
        {
            TaskStatus.PAUSED,
            TaskStatus.COMPLETED,
            TaskStatus.FAILED,
            TaskStatus.KILLED,
        }
    ),
    # Nothing of it runs, so it cannot complete.
    TaskStatus.PAUSED: frozenset(
        {TaskStatus.RUNNING, TaskStatus.FAILED, TaskStatus.KILLED}
    ),
    TaskStatus.COMPLETED: frozenset(),
    TaskStatus.FAILED: frozenset(),
    TaskStatus.KILLED: frozenset(),
}
"""What may follow what."""


@frozen
class Progress:
    """How far a background task has come. A later one replaces an earlier one
    that nobody has seen yet."""

    text: str = ""
    """The latest activity, for people."""
    bytes_written: int = 0
    """The bytes of output that are kept so far."""
    tool_uses: int = 0
    """The number of tools that an agent has used so far."""
    total_tokens: int = 0
    """The number of tokens that an agent has spent so far."""
    activities: tuple[str, ...] = ()
    """The last few activities of an agent, the newest last. Each is one line."""


@plain
class Progressed:
    """A task has come further. If several wait unread, only the latest counts."""

    task_id: str
    run_id: str
    progress: Progress


@plain
class Ended:
    """A background task has ended. The record of its end exists already."""

    task_id: str
    run_id: str
    status: TaskStatus
    """The status in which it ended, one of the three terminal ones."""
    notification_id: str
    """The id of that record."""


class Guard:
    """One task's status, changed only by a legal transition.

    The first terminal state is the only one: every later attempt returns False
    and changes nothing. There is no await in it, and an interrupt cannot split
    it, so deciding and recording are one step.
    """

    __slots__ = ("has_told_end", "status")

    def __init__(self) -> None:
        self.status = TaskStatus.PENDING
        # Whether an `Ended` was sent.
        self.has_told_end = False

    @enable_ki_protection
    def transition(self, status: TaskStatus) -> bool:
        """Move to ``status`` if that is legal now; say whether it was."""
        if status not in LEGAL_TRANSITIONS[self.status]:
            return False
        self.status = status
        return True

    def admits(self, message: Progressed | Ended) -> bool:
        """Say whether ``message`` may be sent: progress before the terminal state,
        the end after it, once."""
        is_over = self.status.is_terminal
        if isinstance(message, Ended):
            return is_over and not self.has_told_end
        return not is_over
