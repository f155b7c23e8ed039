"""Messages to agents: how one reaches a run, whatever that is doing.

An agent that has not ended finds the message in its inbox. One that is ending
takes no more: the message waits for the end and then begins a new run. In each
case the message is in exactly one place after the call, or was refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from actors import TaskStatus
from actors.agent import InboxFull, UserMessage
from actors.lowlevel import check_text
from actors.text import is_encodable

from ._agent_task import AgentTask
from ._errors import MessageRefused, ResumeRefused

if TYPE_CHECKING:
    from actors.transcript import AgentMeta

    from ._record import Task
    from ._resume import Resumes


@attrs.frozen
class Sent:
    """Where a message went."""

    task_id: str
    run_id: str
    """Of the run that finds it."""
    how: Literal["queued", "revived"]
    """``queued``: an agent that had not ended has it in its inbox. ``revived``:
    the agent had completed, and a new run begins with it."""


async def send(
    resumes: Resumes,
    task_id: str,
    text: str,
    *,
    sender: str | None,
    run_id: str | None,
) -> Sent:
    """See `supervisor.runtime.Runtime.send`."""

    def check(task: Task | None, meta: AgentMeta | None) -> None:
        why = refusal(task, run_id) if meta is None else stored_refusal(meta, run_id)
        if why is not None:
            raise MessageRefused(task_id, *why)

    message = UserMessage(text, origin="message", sender=sender)
    try:
        task, how = await resumes.reach(task_id, message, check)
    except (InboxFull, ResumeRefused) as error:
        why = error.why if isinstance(error, ResumeRefused) else str(error)
        raise MessageRefused(task_id, why) from error
    return Sent(task_id, task.run_id, how)


Why: TypeAlias = tuple[str] | tuple[str, str]
"""The reason, and then what helps, if anything does: to resume it."""


def refusal(task: Task | None, run_id: str | None) -> Why | None:
    """Return why no run of ``task`` will read a message, which was meant for the
    run ``run_id`` if that is given; None if one will."""
    if not isinstance(task, AgentTask):
        if task is not None and task.task_type == "local_bash":
            return ("it is a shell",)
        return ("it is no agent",)
    if run_id is not None and run_id != task.run_id:
        return _for_another(run_id, task.run_id)
    if not task.takes_messages:
        return _ONE_SHOT
    if task.stopping and not task.status.is_terminal:
        return ("it is being stopped",)
    return _of_its_end(task.status.value)


def stored_refusal(meta: AgentMeta, run_id: str | None) -> Why | None:
    """Return the same for an agent of which only the directory knows."""
    if run_id is not None and run_id != meta.run_id:
        return _for_another(run_id, meta.run_id)
    if meta.one_shot:
        return _ONE_SHOT
    if meta.status in (TaskStatus.PENDING.value, TaskStatus.RUNNING.value):
        reason = "an earlier runtime has left it unfinished"
        return reason, "it must be resumed first"
    return _of_its_end(meta.status)


_ONE_SHOT = ("it was to give one answer only",)


def _for_another(run_id: str, now: str) -> Why:
    return (f"the message is for its run {run_id}, and the last one is {now}",)


def _of_its_end(status: str) -> Why | None:
    if status == TaskStatus.FAILED.value:
        return "it has failed", "Runtime.resume goes on with it"
    if status == TaskStatus.KILLED.value:
        return "it was stopped", "Runtime.resume goes on with it"
    return None


def check_message(text: str) -> str:
    """Return ``text`` if it can be a message.

    Raises:
        TypeError, ValueError: if it cannot.
    """
    check_text("a message", text)
    if not is_encodable(text):
        raise ValueError(
            f"a message must be text, without half a surrogate pair: {text!r}"
        )
    return str.__str__(text)
