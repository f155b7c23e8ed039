"""The tasks of one owner: finding one, and saying how it is.

To an owner belong the tasks that it has started and, of those that are agents,
their own tasks, and so on. Their ends are told to the agent that has started them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from actors import TaskStatus
from actors.hosting import exit_words
from actors.text import one_line

from .._life.handles import TaskHandle
from .._tasks.agent_task import EndedAgent
from .._tasks.errors import UnknownTask
from .._tasks.snapshot import TaskSnapshot
from ..lowlevel import life_of
from ._arguments import Refused, shown

if TYPE_CHECKING:
    from actors.transcript import AgentMeta

    from ..runtime import Runtime

_LISTED: Final = 20
_ERROR_SHOWN: Final = 500
_ENDED: Final = "has ended"
_HOW: Final = {
    TaskStatus.COMPLETED.value: "has completed",
    TaskStatus.FAILED.value: "has failed",
    TaskStatus.KILLED.value: "was stopped",
}
_WAITS_FOR: Final = {"tasks": "its own tasks", "approval": "an approval"}


def owned(runtime: Runtime, owner: str | None) -> list[TaskSnapshot]:
    """Return the tasks of ``owner``: the ended ones in the order of their ends,
    then the others in the order of launch."""
    return [task for task in runtime.tasks(owner) if task.owner == owner]


def find(runtime: Runtime, owner: str | None, task_id: str) -> TaskHandle:
    """Return a task that belongs to ``owner``.

    Raises:
        Refused: if no task has this id, with a list of those that run; if it is
            somebody else's; or if it is an agent of an earlier program, which only
            the directory knows.
    """
    found = _find(runtime, owner, task_id)
    if isinstance(found, TaskHandle):
        return found
    raise _earlier(runtime, found)


def find_agent(
    runtime: Runtime, owner: str | None, agent_id: str
) -> TaskHandle | AgentMeta:
    """Return a task that belongs to ``owner``, or what the directory says of an
    agent of theirs from an earlier program, which goes on from that.

    Raises:
        Refused: as `find`.
    """
    found = _find(runtime, owner, agent_id)
    if isinstance(found, TaskHandle):
        record = found.belongs_to(life_of(runtime))
        if isinstance(record, EndedAgent):
            return record.meta
    return found


def _find(runtime: Runtime, owner: str | None, agent_id: str) -> TaskHandle | AgentMeta:
    try:
        task = runtime.handle(agent_id)
    except UnknownTask:
        meta = _stored(runtime, agent_id)
        if meta is None:
            raise unknown(runtime, owner, agent_id) from None
        if meta.owner != owner:
            raise denied(runtime, owner, agent_id) from None
        return meta
    if not _belongs(runtime, owner, task.snapshot()):
        raise denied(runtime, owner, agent_id)
    return task


def _stored(runtime: Runtime, agent_id: str) -> AgentMeta | None:
    try:
        return runtime.agent_meta(agent_id)
    except OSError as error:
        raise Refused(
            "unreadable",
            f"Nothing was done: what is kept of agent {shown(agent_id)} cannot be "
            f"read: {one_line(str(error), _ERROR_SHOWN)}.",
        ) from None


def unknown(runtime: Runtime, owner: str | None, task_id: str) -> Refused:
    """Return the answer for an id that no task has."""
    return Refused(
        "unknown_task",
        f"There is no task {shown(task_id)}, or it has been forgotten. "
        f"{_listed(runtime, owner)}",
    )


def denied(runtime: Runtime, owner: str | None, task_id: str) -> Refused:
    """Return the answer for the id of a task that is somebody else's."""
    return Refused(
        "access_denied",
        f"Access denied: task {shown(task_id)} belongs to another owner. "
        f"{_listed(runtime, owner)}",
    )


def by_resume(agent_id: str) -> str:
    """Return a sentence on how a model goes on with an agent that has ended."""
    return f"The Agent tool goes on with it, with resume: {shown(agent_id)}."


def _earlier(runtime: Runtime, meta: AgentMeta) -> Refused:
    """Return the answer for an agent of an earlier program."""
    how = _HOW.get(meta.status, "was left unfinished")
    text = f"Agent {meta.agent_id} {how} in an earlier program and does not run."
    if runtime.agents.run is not None and not meta.one_shot:
        text += f" {by_resume(meta.agent_id)}"
    return Refused("not_running", text)


def is_told(task: TaskSnapshot, owner: str | None) -> bool:
    """Whether the end of ``task`` is told to ``owner``, so that an answer may take
    the place of that: it is not for the own tasks of its agents."""
    return task.owner == owner


def takes_over(runtime: Runtime, owner: str | None, task: TaskSnapshot) -> bool:
    """Let an answer tell ``owner`` of the end of ``task`` instead of its notification;
    False if that has been read already."""
    is_told_of = task.background and is_told(task, owner)
    return not is_told_of or runtime.consume(task.id)


def _belongs(runtime: Runtime, owner: str | None, task: TaskSnapshot) -> bool:
    while task.owner != owner:
        if task.parent is None:
            return False
        try:
            task = runtime.get(task.parent)
        except UnknownTask:
            return False
    return True


def _listed(runtime: Runtime, owner: str | None) -> str:
    running = [
        task
        for task in runtime.tasks()
        if not task.status.is_terminal and _belongs(runtime, owner, task)
    ]
    if not running:
        return "No task is running."
    # Its own first: those of its agents may be many.
    running.sort(key=lambda task: task.owner != owner)
    lines = [
        f"- {described(task)}"
        + (f" (started by agent {task.owner})" if task.owner != owner else "")
        for task in running[:_LISTED]
    ]
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
    if task.stopping:
        return f"{task.status.value}, was told to stop"
    if task.status is TaskStatus.RUNNING:
        if task.restarting:
            return "running, between two runs"
        if task.waiting is not None:
            return f"running, waits for {_WAITS_FOR[task.waiting]}"
        return "running"
    if task.pause is not None:
        return one_line(str(task.pause), _ERROR_SHOWN)
    if task.status is TaskStatus.KILLED:
        return "killed"
    how = ending(task)
    return task.status.value if how == _ENDED else f"{task.status.value}, {how}"


def ending(task: TaskSnapshot) -> str:
    """Return in a few words how an ended task did."""
    if task.status is TaskStatus.KILLED:
        return "was stopped"
    if task.exit_code is not None or task.signal is not None:
        words = exit_words(task.exit_code, task.signal)
        # It may have failed for another reason: its quota.
        if task.error is None or task.error.message.startswith(words):
            return words
    if task.error is not None:
        return one_line(f"{task.error.type}: {task.error.message}", _ERROR_SHOWN)
    return _ENDED
