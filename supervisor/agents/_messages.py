"""Messages to agents: how one reaches a run, whatever that is doing.

An agent that has not ended finds the message in its inbox. One that is ending
takes no more: the message waits for the end and then begins a new run. In each
case the message is in exactly one place after the call, or was refused.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import trio

from actors import TaskStatus
from actors.agent import Agent, UserMessage
from actors.agent.hosting import InboxFull
from actors.house import check_text, frozen
from actors.house import publish as _publish
from actors.text import is_encodable
from actors.transcript import AgentMeta

from .._life.handles import member
from .._tasks.agent_task import AgentTask, EndedAgent
from .._tasks.errors import MessageRefused, ResumeRefused
from .._tasks.pausing import ContinuedBy
from ._resume import UNFINISHED, Continuation, Resumes, check_kept

if TYPE_CHECKING:
    from .._life.life import Life
    from .._tasks.record import Task
    from ._side import Agents

__all__ = ["Sent"]

# Why a message is refused, and then what helps, if anything does.
Refusal: TypeAlias = tuple[str] | tuple[str, str]

# In seconds: a disk that hangs must not hold up whoever sends.
_KEPT_WITHIN: Final = 1.0
# An agent that reads it at once has others written meanwhile.
_NEWER_METAS: Final = 4


How: TypeAlias = Literal["queued", "revived"]


@frozen
class Sent:
    """Where a message went."""

    task_id: str
    run_id: str
    """The id of the run that finds it."""
    how: How
    """How it went. ``queued``: the agent had not ended, and has it in its inbox.
    ``revived``: the agent had completed, and a new run begins with it."""


class Messages:
    """Lets messages reach the agents of one runtime."""

    def __init__(self, life: Life, agents: Agents, resumes: Resumes) -> None:
        self._life = life
        self._agents = agents
        self._resumes = resumes
        # Held by whoever sends to an agent or resumes it, so that messages come
        # in the order of the calls, and many calls begin one run.
        self._locks: dict[str, trio.Lock] = {}

    async def send(
        self, task_id: str, text: str, *, sender: str | None, run_id: str | None
    ) -> Sent:
        """See `supervisor.runtime.Runtime.send`."""
        message = UserMessage(text, origin="message", sender=sender)
        wanted = Continuation(task_id, message, is_resume=False, run_id=run_id)
        try:
            task, how = await self._reach(wanted)
        except (InboxFull, ResumeRefused) as error:
            why = error.why if isinstance(error, ResumeRefused) else str(error)
            raise MessageRefused(task_id, why) from error
        return Sent(task_id, task.run_id, how)

    async def resume(
        self,
        task_id: str,
        message: UserMessage | None,
        agent: Agent | None,
        cwd: str | None,
    ) -> AgentTask:
        """See `supervisor.runtime.Runtime.resume`."""
        try:
            task, _ = await self._reach(Continuation(task_id, message, agent, cwd))
        except InboxFull as error:
            raise ResumeRefused(task_id, str(error)) from error
        return task

    async def _reach(self, wanted: Continuation) -> tuple[AgentTask, How]:
        """Put a message where a run will find it, and begin a new one if there is
        none; without a message only see that one is under way.

        The directory has the message then, too, or a warning says that the disk is slow
        or fails. So if the host dies before a run has read it, a run of the next
        runtime will.

        Raises:
            UnknownTask: if neither the table nor the directory knows it.
            InboxFull: if the run, or the agent's file in the directory, has no room
                for it.
            MessageRefused, ResumeRefused, BacklogFull, RuntimeStopping,
            WouldDeadlock: nothing has changed.
        """
        await trio.lowlevel.checkpoint()
        if wanted.agent_id in self._locks:
            # Whoever holds it may wait for the end of the agent.
            now = self._find(wanted)
            if now is not None and _must_end(wanted, now):
                self._life.refuse_own_end(self._life.current_task(), (now,))
        how: How = "queued"
        async with self._alone(wanted.agent_id):
            task = self._find(wanted)
            while task is not None and _must_end(wanted, task):
                await self._life.wait_ended(task)
                # Much may have happened meanwhile.
                task = self._find(wanted)
            if task is None or task.status.is_terminal:
                task, how = await self._resumes.begin(wanted, task), "revived"
            else:
                if task.rest is not None or task.lacks is not None:
                    self._resumes.change(wanted, task)
                if wanted.message is not None:
                    self._queue(task, wanted.message)
                # Or it would read that only after its pause.
                by: ContinuedBy = "host" if wanted.is_resume else "message"
                self._life.pauses.end(task, by)
        if wanted.message is not None:
            await self._keep(task)
        return task, how

    async def _keep(self, task: AgentTask) -> None:
        """Wait until a message to ``task`` is in the directory, or tell that it is
        not. A disk that hangs is waited for once, and not by everybody who sends."""
        transcripts = self._agents.transcripts
        # It is on its way already, and who is cancelled now must know that it was sent.
        within = max(0.0, _KEPT_WITHIN - transcripts.writing_for)
        with trio.move_on_after(within, shield=True):
            for _ in range(_NEWER_METAS):
                await transcripts.flush_meta(task.task_id)
                if transcripts.keeps_meta(task.task_id):
                    break
        if not transcripts.keeps_meta(task.task_id):
            task.warn(
                "a message to it is not on the disk yet: if the program ended now, it "
                "would be lost"
            )

    def _queue(self, task: AgentTask, message: UserMessage) -> None:
        """Put a message into the inbox of an agent that takes it."""
        assert task.meta is not None and task.inbox is not None
        check_kept(task.meta, (*task.meta.messages, (message.text, message.sender)))
        task.inbox.put(message)

    def _find(self, wanted: Continuation) -> AgentTask | None:
        """Return the record of the moment, None if only the directory knows it."""
        task = self._life.table.find(wanted.agent_id)
        if task is not None and not isinstance(task, EndedAgent):
            return _checked(wanted, task)
        meta = self._resumes.stored(wanted.agent_id)
        if meta is None:
            member(self._life, wanted.agent_id)  # It raises.
        elif not wanted.is_resume:
            _refuse(wanted, _refusal(meta, wanted.run_id))
        return None

    @asynccontextmanager
    async def _alone(self, task_id: str) -> AsyncGenerator[None]:
        """Wait for those who came before, in their order."""
        lock = self._locks.setdefault(task_id, trio.Lock())
        try:
            # Whoever has it may be waiting for a place.
            lent = self._life.current_task() if lock.locked() else None
            with self._life.places.lent(lent):
                await lock.acquire()
            try:
                if lent is not None:
                    # Nothing has been done yet, so a cancellation is welcome here.
                    await self._life.places.regain(lent)
                yield
            finally:
                lock.release()
        finally:
            if not lock.locked():
                self._locks.pop(task_id, None)


def _checked(wanted: Continuation, task: Task) -> AgentTask:
    """Return ``task``, if a run of it can come to what is asked for.

    Raises:
        MessageRefused, ResumeRefused: if none can.
    """
    if not isinstance(task, AgentTask):
        if wanted.is_resume:
            raise ResumeRefused(wanted.agent_id, "it is not an agent")
        is_shell = task.task_type == "local_bash"
        why = "it is a shell" if is_shell else "it is not an agent"
        raise MessageRefused(wanted.agent_id, why)
    if not wanted.is_resume:
        _refuse(wanted, _refusal(task, wanted.run_id))
    return task


def _refuse(wanted: Continuation, refusal: Refusal | None) -> None:
    if refusal is not None:
        raise MessageRefused(wanted.agent_id, *refusal)


def _refusal(found: AgentTask | AgentMeta, run_id: str | None) -> Refusal | None:
    """Return why no run of an agent will read a message, which was meant for the
    run ``run_id`` if that is given; None if one will."""
    if isinstance(found, AgentMeta):
        is_one_shot, status, is_stopping = found.one_shot, found.status, False
    else:
        is_one_shot, status = not found.takes_messages, found.status.value
        is_stopping = found.stopping and not found.status.is_terminal
    if run_id is not None and run_id != found.run_id:
        now = found.run_id
        return (f"the message is for its run {run_id}, and the last one is {now}",)
    if is_one_shot:
        return ("it is a one-shot agent",)
    if is_stopping:
        return ("it is being stopped",)
    if isinstance(found, AgentMeta) and status in UNFINISHED:
        return "an earlier runtime has left it unfinished", "it must be resumed first"
    if status == TaskStatus.FAILED.value:
        return "it has failed", "Runtime.resume goes on with it"
    if status == TaskStatus.KILLED.value:
        return "it was stopped", "Runtime.resume goes on with it"
    return None


def _must_end(wanted: Continuation, task: AgentTask) -> bool:
    """Whether it has not ended, and will not take any more what it is to have."""
    if task.status.is_terminal:
        return False
    if task.stopping or task.inbox is None or task.inbox.closed:
        return True
    return wanted.message is not None and not task.takes_messages


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


_publish(globals(), "supervisor.runtime")
