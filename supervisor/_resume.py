"""Going on with agents that have ended, and with those that an earlier runtime
has left in the directory.

A resumed agent is a new record under its old id, with the conversation of its
transcript. What can be refused is refused before the old record is touched, and
the exchange of the two is one step. Only a run that fails before it has waited
for anything is found out later: then the old record is put back.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from actors import TaskStatus
from actors.agent import (
    Agent,
    Budget,
    Inbox,
    InboxClosed,
    InboxFull,
    Message,
    UserMessage,
    settled,
)
from actors.transcript import META_LIMIT, keeps

from ._agent_task import AgentTask
from ._errors import AgentRunsElsewhere, ResumeRefused
from ._events import TaskResumed
from ._handles import member
from ._inherited import Inherited, inherited
from ._orders import Order, check_order
from ._revival import Revival
from ._tool_names import names_tool
from .permissions import recheck, resolve_mode

if TYPE_CHECKING:
    from actors.transcript import AgentMeta, Transcript

    from ._agents import Agents
    from ._life import Life
    from ._record import Task
    from .permissions import Mode

GENERAL: Final = "general-purpose"
"""The type of agents that needs no definition."""

# What a resumed agent keeps, whoever gives the loop to go on with.
_KEPT = (
    "prompt",
    "system",
    "type",
    "tools",
    "disallowed_tools",
    "model",
    "session",
    "forked",
)

# What its runs are bounded by, as far as no loop that is given says otherwise.
_BOUNDS = ("deadline", "max_turns")
_OTHER_BOUNDS = ("stall_warning", "stall_limit", "reminders", "shutdown")

Check = Callable[["Task | None", "AgentMeta | None"], None]
"""Raises what stands against going on with an agent, of its record in the table or
else of its meta in the directory."""

# In seconds: a disk that hangs must not hold up whoever sends.
_KEPT_WITHIN: Final = 1.0

_UNFINISHED = (TaskStatus.PENDING.value, TaskStatus.RUNNING.value)


class Resumes:
    """Goes on with the agents of one runtime."""

    def __init__(self, life: Life, agents: Agents) -> None:
        self._life = life
        self._agents = agents
        # Held by whoever sends to an agent or resumes it, so that messages come
        # in the order of the calls, and many calls begin one run.
        self._locks: dict[str, trio.Lock] = {}

    async def reach(
        self,
        task_id: str,
        message: UserMessage | None,
        check: Check,
        agent: Agent | None = None,
        cwd: str | None = None,
    ) -> tuple[AgentTask, Literal["queued", "revived"]]:
        """Put ``message`` where a run will find it, and begin a new one if there
        is none; without a message only see that one is under way.

        The directory has the message then, too, unless the disk is slow or fails,
        which is told by a warning: if the host dies before a run has read it, the next
        runtime's will.

        What ``check`` raises comes out, with nothing changed. It is asked anew
        after each wait.

        Raises:
            UnknownTask: if neither the table nor the directory knows it.
            InboxFull: if the run, or the agent's file in the directory, has no room
                for it.
            ResumeRefused, BacklogFull, RuntimeStopping, WouldDeadlock: nothing
                has changed.
        """
        await trio.lowlevel.checkpoint()
        now = self._life.table.find(task_id)
        if now is not None:
            check(now, None)
        if isinstance(now, AgentTask) and _is_ending(now):
            # Whoever holds the lock may wait for that end.
            self._life.refuse_own_end((now,))
        reached = await self._reach(task_id, message, check, agent, cwd)
        if message is not None:
            await self._keep(reached[0])
        return reached

    async def _keep(self, task: AgentTask) -> None:
        """Wait until a message to ``task`` is in the directory, or tell that it is
        not. A disk that hangs is waited for once, and not by everybody who sends."""
        transcripts = self._agents.transcripts
        # It is on its way already, and who is cancelled now must know that it was sent.
        within = max(0.0, _KEPT_WITHIN - transcripts.writing_for)
        with trio.move_on_after(within, shield=True):
            await transcripts.flush_meta(task.task_id)
        if not transcripts.keeps_meta(task.task_id):
            task.warn(
                "a message to it is not on the disk yet: if the program ended now, it "
                "would be lost"
            )

    async def _reach(
        self,
        task_id: str,
        message: UserMessage | None,
        check: Check,
        agent: Agent | None,
        cwd: str | None,
    ) -> tuple[AgentTask, Literal["queued", "revived"]]:
        async with self._alone(task_id):
            while True:
                task = self._check(task_id, check)
                assert task is None or isinstance(task, AgentTask)
                if task is None or task.status.is_terminal:
                    begun = await self._begin(task_id, task, message, agent, cwd)
                    return begun, "revived"
                if not task.stopping and self._queue(task, message):
                    return task, "queued"
                await self._life.wait_ended(task)

    def _queue(self, task: AgentTask, message: UserMessage | None) -> bool:
        """Put a message into the inbox of an agent that has not ended; False if it
        takes no more because it is ending."""
        inbox = task.inbox
        if inbox is None or inbox.closed:
            return False
        if message is None:
            return True
        meta = self._agents.meta_of(task)
        _check_kept(meta, (*meta.messages, (message.text, message.sender)))
        try:
            inbox.put(message)
        except InboxClosed:
            return False
        return True

    def _check(self, task_id: str, check: Check) -> Task | None:
        """Return the record of the moment, None if only the directory knows it."""
        task = self._life.table.find(task_id)
        meta = self._stored(task_id) if task is None else None
        if task is None and meta is None:
            member(self._life, task_id)  # It raises.
        check(task, meta)
        return task

    def meta(self, agent_id: str) -> AgentMeta | None:
        """Return what the directory says of an agent, if anything.

        Raises:
            OSError: if it cannot be read what it says.
        """
        try:
            return self._agents.transcripts.read_meta(agent_id)
        except ValueError:
            return None  # No agent can have this id.

    def _stored(self, agent_id: str) -> AgentMeta | None:
        """Return the same for who is about to go on with it.

        Raises:
            ResumeRefused: if it cannot be read.
        """
        try:
            return self.meta(agent_id)
        except OSError as error:
            why = f"what the directory says of it cannot be read: {error}"
            raise ResumeRefused(agent_id, why) from error

    @asynccontextmanager
    async def _alone(self, task_id: str) -> AsyncGenerator[None]:
        """Wait for those who came before, in their order."""
        lock = self._locks.setdefault(task_id, trio.Lock())
        try:
            # Whoever has it may be waiting for a place.
            with self._life.places.lent(
                self._life.current_task() if lock.locked() else None
            ):
                await lock.acquire()
            try:
                yield
            finally:
                lock.release()
        finally:
            if not lock.locked():
                self._locks.pop(task_id, None)

    async def _begin(
        self,
        task_id: str,
        before: AgentTask | None,
        message: UserMessage | None,
        agent: Agent | None,
        cwd: str | None,
    ) -> AgentTask:
        """Begin a new run; ``before`` is the record of the end, None if only the
        directory knows the agent.

        Raises:
            ResumeRefused, BacklogFull, RuntimeStopping: nothing has changed.
        """
        self._life.check_open()
        agents = self._agents
        agents.beginning.add(task_id)
        try:
            return await self._begin_alone(task_id, before, message, agent, cwd)
        finally:
            agents.beginning.discard(task_id)
            agents.let_go(task_id)

    async def _begin_alone(
        self,
        task_id: str,
        before: AgentTask | None,
        message: UserMessage | None,
        agent: Agent | None,
        cwd: str | None,
    ) -> AgentTask:
        """See `_begin`. No other runtime begins one meanwhile."""
        stored = self._claim(task_id)
        meta = stored if before is None else self._agents.meta_of(before)
        if meta is None:
            raise ResumeRefused(task_id, "nothing in the directory says what it was")
        if stored is not None and stored.run_id != meta.run_id:
            # It has run elsewhere since it has ended here.
            meta = attrs.evolve(
                meta,
                run_id=stored.run_id,
                resumes=stored.resumes,
                messages=stored.messages,
            )
        recipe = self._recipe(meta, before, agent, cwd)
        history = _history(meta, await self._load(task_id))
        # Much may have happened meanwhile.
        self._life.check_open()
        task = self._exchange(meta, before, recipe, history, message)
        if cwd is None and recipe.cwd != meta.cwd:
            task.warn(
                f"its directory is {recipe.cwd or 'that of the host'}: what a file says "
                f"of it, {meta.cwd!r}, is not below that; Runtime.resume(cwd=) takes "
                "another"
            )
        revival = task.revival
        assert revival is not None
        if task.ref is None:
            # It waits for a place. How it begins is told by its end.
            revival.begun()
        if not revival.decided.is_set():
            with self._life.places.lent(self._life.current_task()):
                await revival.decided.wait()
        if revival.is_undone:
            why = "its new run failed at once"
            if task.error is not None:
                why = f"{why}: {task.error.message}"
            raise ResumeRefused(task_id, why)
        return task

    def _claim(self, task_id: str) -> AgentMeta | None:
        """Have an agent for this runtime alone; return what the directory says of it,
        which nobody else changes any more.

        Raises:
            AgentRunsElsewhere: if another one on the directory has it.
            ResumeRefused: if that cannot be told, and there may be another one; if it
                cannot be read what the directory says.
        """
        share = self._life.share
        try:
            holder = share.claim(task_id)
        except OSError as error:
            if not share.is_alone():
                why = (
                    "another runtime may have the directory open, and it cannot be "
                    f"told whether that runs it: {error}"
                )
                raise ResumeRefused(task_id, why) from error
            holder = None
        stored = self._stored(task_id) if holder is None else None
        if self._is_unfinished(stored):
            # Where nobody can have it alone.
            holder = share.holder(task_id)
        if holder is not None:
            raise AgentRunsElsewhere(task_id, holder)
        return stored

    def _is_unfinished(self, meta: AgentMeta | None) -> bool:
        return meta is not None and meta.status in _UNFINISHED

    def _recipe(
        self,
        meta: AgentMeta,
        before: AgentTask | None,
        agent: Agent | None,
        cwd: str | None,
    ) -> Agent:
        """Return the agent that goes on: with the loop of ``agent``, or else that
        of the record ``before`` or of the policy, and with what the old one is known
        by, restricted to and bounded by."""
        if meta.one_shot:
            raise ResumeRefused(meta.agent_id, "it was to give one answer only")
        kept: dict[str, Any] = {name: getattr(meta, name) for name in _KEPT}
        given = (None, None) if agent is None else (agent.budget, agent.cwd)
        try:
            budget = given[0] or _budget(meta, before)
            if cwd is None:
                cwd = meta.cwd
                if before is None:
                    cwd = self._directory(meta, given[1])
            if agent is None and before is not None:
                agent = before.recipe
            if agent is None:
                agent = self._from_policy(meta)
                kept |= self._restricted(meta)
                kept |= {name: getattr(meta, name) for name in _OTHER_BOUNDS}
            for name in _BOUNDS:
                own = getattr(agent, name)
                kept[name] = getattr(meta, name) if own is None else own
            return attrs.evolve(
                agent,
                **kept,
                budget=budget,
                cwd=cwd,
                permission_mode=self._mode(meta, before),
            )
        except (TypeError, ValueError) as error:
            # Anybody may have written to the directory.
            why = f"what the directory says of it cannot be: {error}"
            raise ResumeRefused(meta.agent_id, why) from error

    def _from_policy(self, meta: AgentMeta) -> Agent:
        policy = self._agents.policy
        definition = policy.definitions.get(meta.type)
        if definition is None and meta.type != GENERAL:
            known = ", ".join([GENERAL, *policy.definitions])
            why = (
                f"there is no definition of the agent type {meta.type!r}, only of "
                f"{known}: add it to AgentPolicy.definitions, or give `resume` the agent"
            )
            raise ResumeRefused(meta.agent_id, why)
        if policy.run is None:
            why = "neither `agent` nor AgentPolicy.run says with which loop"
            raise ResumeRefused(meta.agent_id, why)
        if meta.forked and meta.tools is not None:
            self._check_tools(meta.agent_id, meta.tools)
        rounds = [meta.max_turns, None if definition is None else definition.max_turns]
        return Agent(
            policy.run,
            meta.prompt,
            max_turns=min((most for most in rounds if most is not None), default=None),
        )

    def _directory(self, meta: AgentMeta, given: str | None) -> str | None:
        """Return where an agent goes on of which a file alone says where it was:
        there, if that is or is below the directory that was ``given`` or else that of
        the agent above it or of the host, and otherwise in that."""
        outer = given or inherited(self._life.table, meta.owner).cwd
        if meta.cwd is None:
            return outer
        is_within = self._life.env.files.is_within(meta.cwd, outer)
        return meta.cwd if is_within else outer

    def _restricted(self, meta: AgentMeta) -> dict[str, Any]:
        """Return the tools that it has and those that it must not use: no more than
        before, than its type has today, and than the agent above it."""
        definition = self._agents.policy.definitions.get(meta.type)
        tools, disallowed = meta.tools, meta.disallowed_tools
        above = [inherited(self._life.table, meta.owner)]
        if definition is not None:
            more = definition.disallowed_tools
            above.append(Inherited(tools=definition.tools, disallowed_tools=more))
        for each in above:
            given = each.narrowed(tools, disallowed)
            tools, disallowed = given["tools"], given["disallowed_tools"]
        return {"tools": tools, "disallowed_tools": disallowed}

    def _check_tools(self, agent_id: str, names: Sequence[str]) -> None:
        """Refuse a fork whose conversation speaks of tools that are not there."""
        there = self._agents.tools_for(agent_id)
        missing = ", ".join(
            name for name in names if not any(names_tool(name, it) for it in there)
        )
        if missing:
            why = f"it is a fork, and the tools that it had are not there: {missing}"
            raise ResumeRefused(agent_id, why)

    def _mode(self, meta: AgentMeta, before: AgentTask | None) -> Mode:
        """Return what its tool calls are judged by from now on: no more than it
        could do before, and no more than is allowed today, also to its type."""
        parent = None if meta.owner is None else self._life.table.live.get(meta.owner)
        allowed = (
            parent.mode
            if isinstance(parent, AgentTask)
            else self._agents.policy.permissions.mode
        )
        # A record in memory has the mode that the type had when it began.
        definition = self._agents.policy.definitions.get(meta.type)
        if before is None and definition is not None:
            allowed = resolve_mode(definition.permission_mode, allowed)
        return recheck(meta.permission_mode, allowed)

    async def _load(self, agent_id: str) -> Transcript | None:
        try:
            return await self._agents.transcripts.load(agent_id)
        except (OSError, ValueError) as error:
            why = f"its transcript cannot be read: {error}"
            raise ResumeRefused(agent_id, why) from error

    # An interrupt must not leave it half done.
    @enable_ki_protection
    def _exchange(
        self,
        meta: AgentMeta,
        before: AgentTask | None,
        recipe: Agent,
        history: Sequence[Message],
        message: UserMessage | None,
    ) -> AgentTask:
        """Enter the new record in place of the old one, with what it is to read."""
        life = self._life
        waiting = _left(meta)
        if before is not None and meta.run_id == before.run_id:
            waiting = list(before.left)
        if message is not None:
            _check_room(waiting, message)
            waiting.append(message)
            _check_kept(meta, tuple((it.text, it.sender) for it in waiting))
        replaces, may_go = before, False
        if before is not None:
            if life.table.has_ended(before):
                may_go = life.table.may_go(before)
            else:
                replaces = None  # Forgotten meanwhile.
        revival = Revival(replaces, meta, may_go=may_go)
        task = life.enter_again(
            _order(meta, before, attrs.evolve(recipe, run=revival.watch(recipe.loop))),
            task_id=meta.agent_id,
            background=True,
            depth=meta.depth,
            history=history,
            messages=waiting,
            revival=revival,
        )
        task.recipe = recipe
        if task.inbox is None or task.inbox.closed:
            return task
        if meta.permission_mode not in (None, task.mode):
            was = meta.permission_mode
            task.warn(f"its permission mode is {task.mode} now, and was {was}")
        life.events.emit(TaskResumed, task.task_id, task.run_id, task.resumes)
        return task

    async def resume(
        self,
        task_id: str,
        message: UserMessage | None,
        agent: Agent | None,
        cwd: str | None,
    ) -> AgentTask:
        """See `supervisor.runtime.Runtime.resume`."""

        def check(task: Task | None, meta: AgentMeta | None) -> None:
            if meta is None and not isinstance(task, AgentTask):
                raise ResumeRefused(task_id, "it is no agent")

        try:
            task, _ = await self.reach(task_id, message, check, agent, cwd)
        except InboxFull as error:
            raise ResumeRefused(task_id, str(error)) from error
        return task

    # After a crash of a run, and of the program

    def unfinished(self) -> list[AgentMeta]:
        """See `Runtime.unfinished_agents`."""
        live, share = self._life.table.live, self._life.share
        return [
            meta
            for meta in self._agents.transcripts.metas()
            if self._is_unfinished(meta)
            and meta.agent_id not in live
            and share.holder(meta.agent_id) is None
        ]

    def abandon(self, agent_id: str) -> bool:
        """See `Runtime.abandon_agent`."""
        if agent_id in self._life.table.live:
            return False
        if not self._is_unfinished(self.meta(agent_id)):
            return False
        try:
            meta = self._claim(agent_id)
        except ResumeRefused:
            self._agents.let_go(agent_id)
            return False
        if meta is None or not self._is_unfinished(meta):
            # It has ended in another runtime, just now.
            self._agents.let_go(agent_id)
            return False
        # It is let go when that is written.
        killed = attrs.evolve(meta, status=TaskStatus.KILLED.value)
        self._agents.transcripts.write_meta(killed)
        return True


def _is_ending(task: AgentTask) -> bool:
    """Whether it has not ended and will take no message any more."""
    if task.status.is_terminal:
        return False
    return task.stopping or task.inbox is None or task.inbox.closed


def _left(meta: AgentMeta) -> list[UserMessage]:
    """Return the messages that nobody had read when the directory was written to."""
    return [
        UserMessage(text, origin="message", sender=sender)
        for text, sender in meta.messages
    ]


def _check_room(waiting: Sequence[UserMessage], message: UserMessage) -> None:
    """Raise InboxFull if there is none for ``message``, behind those that wait."""
    inbox = Inbox()
    for earlier in waiting:
        inbox.add_own(earlier)
    inbox.put(message)


def _check_kept(meta: AgentMeta, messages: tuple[tuple[str, str | None], ...]) -> None:
    """Raise InboxFull if what the directory says of an agent has no room for all that
    waits for it, beside what it was told at first."""
    if not keeps(attrs.evolve(meta, messages=messages)):
        raise InboxFull(META_LIMIT, "bytes")


def _budget(meta: AgentMeta, before: AgentTask | None) -> Budget | None:
    """Return what an agent may use from now on: what it had left."""
    if before is not None and before.parent is None:
        return before.recipe.budget
    if meta.tokens_left is None and meta.cost_left is None:
        return None
    return Budget(meta.tokens_left, meta.cost_left)


def _order(meta: AgentMeta, before: AgentTask | None, recipe: Agent) -> Order:
    """Return the order for its new run. Nobody waits for that in the foreground, so
    its end is told."""
    if before is None:
        return check_order(
            recipe, meta.description or None, meta.owner, None, None, "wake"
        )
    return check_order(
        recipe,
        before.description,
        before.owner,
        before.tool_use_id,
        before.policy,
        before.notify,
    )


def _history(meta: AgentMeta, transcript: Transcript | None) -> Sequence[Message]:
    """Return the conversation to go on with.

    Raises:
        ResumeRefused: if something is missing without which it makes no sense.
    """
    if transcript is None:
        if meta.status in _UNFINISHED or meta.status == TaskStatus.KILLED.value:
            # It was ended before anything was said.
            return ()
        raise ResumeRefused(meta.agent_id, "it has no transcript that can be read")
    if meta.forked and not _has_beginning(meta, transcript.messages):
        why = "it is a fork, and its transcript does not hold what it was forked from"
        raise ResumeRefused(meta.agent_id, why)
    return settled(transcript.messages)


def _has_beginning(meta: AgentMeta, messages: Sequence[Message]) -> bool:
    """Whether something stands before the prompt of a fork."""
    prompt = UserMessage(meta.prompt)
    at = [place for place, message in enumerate(messages) if message == prompt]
    return at[-1:] != [0]
