"""What the directory keeps of an agent beside its conversation, as its record says it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import attrs

from actors import TaskStatus
from actors.agent import Agent, UserMessage
from actors.transcript import AgentMeta

from .._tasks.agent_task import AgentTask

# What a meta says in the words of the agent.
_SHARED: Final = {field.name for field in attrs.fields(AgentMeta)} & {
    field.name for field in attrs.fields(Agent)
}


def meta_of(task: AgentTask) -> AgentMeta:
    """Return what the directory is to say of it."""
    agent = task.recipe
    tokens, cost = (None, None) if task.budget is None else task.budget.left()
    used = (0, 0.0) if task.budget is None else task.budget.used
    has_ended, depth, unread = task.status.is_terminal, task.depth, task.left
    if not has_ended and task.inbox is not None:
        unread = unread_messages(task, task.inbox.waiting())
    facts: dict[str, Any] = {name: getattr(agent, name) for name in _SHARED}
    facts |= {"description": task.description, "permission_mode": task.mode}
    return AgentMeta(
        **facts,
        agent_id=task.task_id,
        run_id=task.run_id,
        status=_lasting_status(task),
        owner=task.owner,
        depth=depth,
        above=task.above,
        resumes=task.resumes,
        error=None if task.error is None else task.error.message,
        ended_by=_lasting_end(task),
        tokens_left=tokens,
        cost_left=cost,
        tokens_used=used[0],
        cost_used=used[1],
        messages=tuple((message.text, message.sender) for message in unread),
        heard=task.heard if task.transcript is None else task.transcript.heard,
    )


def unread_messages(
    task: AgentTask, messages: Iterable[UserMessage]
) -> list[UserMessage]:
    """Return those of ``messages``, which wait for an agent, that it is to read if it
    is resumed: those that somebody has sent."""
    taken = [] if task.revival is None else task.revival.held
    return [
        message
        for message in (*taken, *messages)
        if isinstance(message, UserMessage) and message.origin == "message"
    ]


def _lasting_status(task: AgentTask) -> str:
    """Return the status that the directory keeps: an agent that the end of the runtime
    has stopped, and nobody else, is as good as running, and so is one that has not
    begun."""
    if task.status is TaskStatus.PENDING:
        return TaskStatus.RUNNING.value
    if task.status is TaskStatus.KILLED and task.is_interrupted:
        return TaskStatus.RUNNING.value
    status: str = task.status.value
    return status


def _lasting_end(task: AgentTask) -> str | None:
    """Return who has ended it for good, as the directory keeps that."""
    ends = task.status.is_terminal and _lasting_status(task) == task.status.value
    return task.ended_by if ends else None
