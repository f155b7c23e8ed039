"""Going on with agents that have ended, and with those that an earlier runtime
has left in the directory.

A resumed agent is a new record under its old id, with the conversation of its
transcript. What can be refused is refused before the old record is touched, and
the exchange of the two is one step. Only a run that fails before it has waited for or
said anything is found out later. Then the resume is undone, and the old record is put
back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attrs
from trio.lowlevel import enable_ki_protection

from actors import TaskStatus
from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AgentFailed,
    Budget,
    Message,
    UserMessage,
)
from actors.agent.hosting import Inbox, InboxFull, settled
from actors.transcript.hosting import META_LIMIT, keeps

from .._delivery.outbox import NOTIFY
from .._life.recovery import abandon
from .._tasks.agent_task import AgentTask
from .._tasks.errors import (
    AgentRunsElsewhere,
    LoopMissing,
    NeverAgain,
    ResumeRefused,
)
from .._tasks.orders import check_order
from .._tasks.record import Order
from .._tasks.revival import Revival
from .._tasks.snapshot import Pause
from .._tasks.task_events import TaskResumed
from ..permissions._modes import recheck, resolve_mode
from ..permissions._tool_names import names_tool
from ._inherited import Inherited, inherited

if TYPE_CHECKING:
    from actors.agent import Run
    from actors.transcript import AgentMeta
    from actors.transcript.hosting import Transcript

    from .._life.life import Life
    from .._tasks.journal.records import Started
    from .._tasks.pausing import Before
    from ..permissions import Mode
    from ._side import Agents

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
# And of one of which only the directory knows.
_ALL_BOUNDS = ("deadline", "stall_warning", "stall_limit", "reminders", "shutdown")

UNFINISHED: Final = tuple(it.value for it in TaskStatus if not it.is_terminal)
"""What the directory says of agents that have not ended."""


INTERRUPTED: Final = (
    "interrupted: the host died while this ran; what it did is not known"
)


_NO_BEGINNING: Final = (
    "it is a fork, and its transcript does not hold what it was forked from"
)


async def _no_loop(_: AgentContext) -> AsyncIterator[AgentEvent]:  # noqa: ASYNC124
    """Stand for the loop of an agent that cannot go on without one."""
    raise AgentFailed("error", "nobody has said with which loop it goes on")
    yield  # An agent is a generator.


class Continuation(NamedTuple):
    """What somebody wants an agent to go on with."""

    agent_id: str
    message: UserMessage | None = None
    agent: Agent | None = None
    """Whose loop goes on, in place of its own."""
    cwd: str | None = None
    """Its directory from now on, in place of its own."""
    is_resume: bool = True
    """Whether any end may be gone on from, and not only that with an answer."""
    run_id: str | None = None
    """The run for which the message is meant, if it is for one alone."""


class Resumes:
    """Goes on with the agents of one runtime."""

    def __init__(self, life: Life, agents: Agents) -> None:
        self._life = life
        self._agents = agents

    def meta(self, agent_id: str) -> AgentMeta | None:
        """Return what the directory says of an agent, if anything.

        Raises:
            OSError: if it cannot be read what it says.
        """
        try:
            return self._agents.transcripts.read_meta(agent_id)
        except ValueError:
            return None  # No agent can have this id.

    def stored(self, agent_id: str, *, claim: bool = False) -> AgentMeta | None:
        """Return the same for who is about to go on with it, and ``claim`` it.

        Raises:
            ResumeRefused: if it cannot be read, or claimed.
        """
        try:
            return self._claim(agent_id) if claim else self.meta(agent_id)
        except OSError as error:
            why = f"what the directory says of it cannot be read: {error}"
            raise ResumeRefused(agent_id, why) from error

    async def begin(self, wanted: Continuation, before: AgentTask | None) -> AgentTask:
        """Begin a new run; ``before`` is the record of the end, None if only the
        directory knows the agent.

        Raises:
            ResumeRefused, BacklogFull, RuntimeStopping: nothing has changed.
        """
        self._life.check_open()
        agents = self._agents
        agents.beginning.add(wanted.agent_id)
        try:
            return await self._begin(wanted, before)
        finally:
            agents.beginning.discard(wanted.agent_id)
            agents.let_go(wanted.agent_id)

    def enter_paused(
        self,
        meta: AgentMeta,
        pause: Pause,
        said: Transcript | None = None,
        started: Started | None = None,
        paused: Before | None = None,
    ) -> AgentTask:
        """Enter an agent of which only the directory knows, as a task that is paused:
        its first run waits. Its conversation is read when it goes on; ``said`` is what
        there is of that, ``started`` is what the journal has of its launch, and
        ``paused`` of its pauses. One for which nothing here says with which loop it
        goes on waits until somebody gives it one.

        Raises:
            NeverAgain: if it cannot go on, whatever is given to it.
            ResumeRefused, BacklogFull, RuntimeStopping: nothing has changed.
        """
        self._life.check_open()
        agent_id = meta.agent_id
        self._agents.beginning.add(agent_id)
        try:
            stored = self.stored(agent_id, claim=True)
            if stored is None:
                why = "nothing in the directory says what it was"
                raise ResumeRefused(agent_id, why)
            if stored.forked and (
                said is None or not _has_beginning(stored, said.messages)
            ):
                raise NeverAgain(agent_id, _NO_BEGINNING)
            wanted, lacks = Continuation(agent_id), None
            try:
                recipe = self._recipe(wanted, stored, None)
            except LoopMissing as error:
                lacks = error.why
                recipe = self._recipe(wanted, stored, None, without_loop=True)
                reason = f"{pause.reason}; {lacks}"
                pause = attrs.evolve(pause, reason=reason, resume_at=None)
            stored = _without_heard(stored, () if said is None else said.heard)
            revival = Revival(stored, None)
            revival.interrupted, revival.paused = _interrupted(stored), paused
            order = _order(stored, None, recipe, started)
            task = self._exchange(revival, None, order, (), None, pause)
            task.lacks = lacks
            return task
        finally:
            self._agents.beginning.discard(agent_id)
            self._agents.let_go(agent_id)

    def change(self, wanted: Continuation, task: AgentTask) -> None:
        """Let ``task``, which is paused, go on with the loop and in the directory that
        are asked for.

        Raises:
            ResumeRefused: if it cannot. Nothing has changed.
        """
        if wanted.agent is None and wanted.cwd is None and task.lacks is None:
            return
        assert task.meta is not None
        task.recipe = task.work = self._recipe(wanted, task.meta, task)
        task.lacks = None
        has_budget = wanted.agent is not None and wanted.agent.budget is not None
        self._agents.changed(task, has_budget=has_budget)

    async def _begin(self, wanted: Continuation, before: AgentTask | None) -> AgentTask:
        """Do it. No other runtime begins one meanwhile."""
        agent_id = wanted.agent_id
        stored = self.stored(agent_id, claim=True)
        meta = stored if before is None else before.meta
        if meta is None:
            raise ResumeRefused(agent_id, "nothing in the directory says what it was")
        if stored is not None and stored.run_id != meta.run_id:
            # It has run elsewhere since it has ended here.
            meta = attrs.evolve(
                meta,
                run_id=stored.run_id,
                resumes=stored.resumes,
                messages=stored.messages,
                heard=stored.heard,
            )
        recipe = self._recipe(wanted, meta, before)
        transcript = await self._load(agent_id, _interrupted(meta))
        if transcript is not None:
            meta = _without_heard(meta, transcript.heard)
        revival = Revival(meta, transcript)
        history = _history(meta, transcript)
        order = _order(meta, before, recipe)
        task = self._exchange(revival, before, order, history, wanted.message)
        if wanted.cwd is None and recipe.cwd != meta.cwd:
            task.warn(
                f"its directory is {recipe.cwd or 'that of the host'}: what a file says "
                f"of it, {meta.cwd!r}, is not below that; Runtime.resume(cwd=) takes "
                "another"
            )
        if task.ref is None:
            # It waits for a place. Its end reports how it has begun.
            revival.begun()
        if not revival.decided.is_set():
            current = self._life.current_task()
            with self._life.places.lent(current):
                await revival.decided.wait()
            if current is not None:
                await self._life.places.regain(current)
        if revival.is_undone:
            why = "its new run failed at once"
            if task.error is not None:
                why = f"{why}: {task.error.message}"
            raise ResumeRefused(agent_id, why)
        return task

    def _claim(self, task_id: str) -> AgentMeta | None:
        """Have an agent for this runtime alone; return what the directory says of it,
        which nobody else changes any more.

        Raises:
            AgentRunsElsewhere: if another one on the directory has it.
            ResumeRefused: if that cannot be told, and there may be another one.
            OSError: if what the directory says of it cannot be read.
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
        if holder is not None:
            raise AgentRunsElsewhere(task_id, holder)
        stored = self.meta(task_id)
        if self._is_unfinished(stored):
            # Where nobody can have it alone.
            holder = share.holder(task_id)
        if holder is not None:
            raise ResumeRefused(task_id, f"another runtime may run it: {holder}")
        return stored

    def _is_unfinished(self, meta: AgentMeta | None) -> bool:
        return meta is not None and meta.status in UNFINISHED

    def _recipe(
        self,
        wanted: Continuation,
        meta: AgentMeta,
        before: AgentTask | None,
        *,
        without_loop: bool = False,
    ) -> Agent:
        """Return the agent that goes on: with the loop that is asked for, or else
        that of the record ``before`` or of the policy, and with what the old one is
        known by, restricted to and bounded by."""
        agent = wanted.agent
        if meta.one_shot:
            raise NeverAgain(meta.agent_id, "it is a one-shot agent")
        kept: dict[str, Any] = {name: getattr(meta, name) for name in _KEPT}
        given = (None, None) if agent is None else (agent.budget, agent.cwd)
        try:
            kept["budget"] = given[0] or _budget(meta, before)
            kept["cwd"] = wanted.cwd or meta.cwd
            if wanted.cwd is None and before is None:
                kept["cwd"] = self._directory(meta, given[1])
            kept["permission_mode"] = self._mode(meta, before)
            if agent is None and before is not None:
                if before.lacks is not None:
                    raise LoopMissing(meta.agent_id, before.lacks)
                agent = before.recipe
            if agent is None:
                loop: Run = _no_loop
                max_turns = meta.max_turns
                if not without_loop:
                    loop, max_turns = self._from_policy(meta)
                kept |= {name: getattr(meta, name) for name in _ALL_BOUNDS}
                kept |= {**self._restricted(meta), "max_turns": max_turns}
                return Agent(loop, **kept)
            for name in _BOUNDS:
                own = getattr(agent, name)
                kept[name] = getattr(meta, name) if own is None else own
            return attrs.evolve(agent, **kept)
        except (TypeError, ValueError) as error:
            # Anybody may have written to the directory.
            why = f"what the directory says of it cannot be: {error}"
            raise ResumeRefused(meta.agent_id, why) from error

    def _from_policy(self, meta: AgentMeta) -> tuple[Run, int | None]:
        """Return the loop for an agent that only the directory knows, and how many
        rounds it has.

        Raises:
            LoopMissing: if there is none.
        """
        policy = self._agents.policy
        definition = policy.definitions.get(meta.type)
        if definition is None and meta.type != GENERAL:
            known = ", ".join([GENERAL, *policy.definitions])
            why = (
                f"there is no definition of the agent type {meta.type!r}, only of "
                f"{known}: add it to AgentPolicy.definitions, or give `resume` the agent"
            )
            raise LoopMissing(meta.agent_id, why)
        if policy.run is None:
            why = (
                "neither `agent` nor AgentPolicy.run says with which loop: give "
                "`resume` the agent"
            )
            raise LoopMissing(meta.agent_id, why)
        if meta.forked and meta.tools is not None:
            self._check_tools(meta.agent_id, meta.tools)
        rounds = [meta.max_turns, None if definition is None else definition.max_turns]
        return policy.run, min(
            (most for most in rounds if most is not None), default=None
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
            raise LoopMissing(agent_id, why)

    def _mode(self, meta: AgentMeta, before: AgentTask | None) -> Mode:
        """Return what its tool calls are judged by from now on: no more than it
        could do before, and no more than is allowed today, also to its type."""
        owner = None if meta.owner is None else self._life.table.live.get(meta.owner)
        above = None if owner is None else owner.as_agent
        policy = self._agents.policy
        allowed = policy.permissions.mode if above is None else above.mode
        # A record in memory has the mode that the type had when it began.
        definition = policy.definitions.get(meta.type)
        if before is None and definition is not None:
            allowed = resolve_mode(definition.permission_mode, allowed)
        return recheck(meta.permission_mode, allowed)

    async def _load(self, agent_id: str, interrupted: str | None) -> Transcript | None:
        try:
            return await self._agents.transcripts.load(
                agent_id, interrupted=interrupted
            )
        except (OSError, ValueError) as error:
            why = f"its transcript cannot be read: {error}"
            raise ResumeRefused(agent_id, why) from error

    # An interrupt must not leave it half done.
    @enable_ki_protection
    def _exchange(
        self,
        revival: Revival,
        before: AgentTask | None,
        order: Order,
        history: Sequence[Message],
        message: UserMessage | None,
        pause: Pause | None = None,
    ) -> AgentTask:
        """Enter the new record in place of the old one, with what it is to read. With
        ``pause`` it begins with that."""
        life, meta = self._life, revival.meta
        waiting = _left(meta)
        if before is not None and meta.run_id == before.run_id:
            waiting = before.left
        inbox = Inbox()
        for earlier in waiting:
            inbox.add_own(earlier)
        if message is not None:
            inbox.put(message)
            kept = [*waiting, message]
            check_kept(meta, tuple((it.text, it.sender) for it in kept))
        # Of an earlier program, perhaps; or it was forgotten meanwhile.
        ended = life.table.ended.get(meta.agent_id)
        if ended is not None:
            revival.before = ended
            revival.may_go = life.table.may_go(ended)
        task = life.enter_again(order, revival, history, inbox, pause)
        if inbox.closed:
            return task
        if meta.permission_mode not in (None, task.mode):
            was = meta.permission_mode
            task.warn(f"its permission mode is {task.mode} now, and was {was}")
        life.events.emit(TaskResumed, task.task_id, task.run_id, task.resumes)
        return task

    # After a crash of the program

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

    @enable_ki_protection
    def abandon(self, agent_id: str) -> bool:
        """See `Runtime.abandon_agent`."""
        if agent_id in self._life.table.live:
            return False
        if not self._is_unfinished(self.meta(agent_id)):
            return False
        try:
            meta = self._claim(agent_id)
            if meta is None or not self._is_unfinished(meta):
                return False  # It has ended in another runtime, just now.
            abandon(self._life, meta)
            return True
        except ResumeRefused:
            return False  # Another runtime has it, or may have it.
        finally:
            # What is to be written is let go when it is.
            self._agents.let_go(agent_id)


def _interrupted(meta: AgentMeta) -> str | None:
    """Return the answer to the calls of an agent that were cut, if its host has died.
    What they did counts, so it must hear of them."""
    return INTERRUPTED if meta.status in UNFINISHED else None


def _left(meta: AgentMeta) -> list[UserMessage]:
    """Return the messages that nobody had read when the directory was written to."""
    return [
        UserMessage(text, origin="message", sender=sender)
        for text, sender in meta.messages
    ]


def _without_heard(
    meta: AgentMeta, heard: Sequence[tuple[str, UserMessage]]
) -> AgentMeta:
    """Return ``meta`` without the messages that the agent has read since that was
    written: its program died when the transcript had them, and the meta still did."""
    ids = ["", *(record for record, _ in heard)]
    if meta.heard not in ids:
        return meta  # One read twice is better than one lost.
    waiting = [*meta.messages]
    for _, message in heard[ids.index(meta.heard) :]:
        if waiting[:1] == [(message.text, message.sender)]:
            del waiting[0]
    return attrs.evolve(meta, messages=tuple(waiting))


def check_kept(meta: AgentMeta, messages: tuple[tuple[str, str | None], ...]) -> None:
    """Raise InboxFull if what the directory says of an agent has no room for all that
    waits for it, beside what it was told at first."""
    if not keeps(attrs.evolve(meta, messages=messages)):
        raise InboxFull(META_LIMIT, "bytes")


def _budget(meta: AgentMeta, before: AgentTask | None) -> Budget | None:
    """Return what an agent may use from now on: what it had left. It is one budget for
    all runs of a conversation, of which the earlier ones have used their part."""
    if before is not None:
        return before.budget
    tokens, cost = meta.tokens_left, meta.cost_left
    if tokens is None and cost is None:
        return None
    used = meta.tokens_used, meta.cost_used
    budget = Budget(
        None if tokens is None else tokens + used[0],
        None if cost is None else cost + used[1],
    )
    budget.charge(*used)
    return budget


def _order(
    meta: AgentMeta,
    before: AgentTask | None,
    recipe: Agent,
    started: Started | None = None,
) -> Order:
    """Return the order for its new run. Nobody waits for that in the foreground, so
    its end is told. What was launched, as ``started`` tells it, goes on as that."""
    if before is None:
        order = check_order(
            recipe, meta.description or None, meta.owner, None, None, "wake"
        )
        if started is not None:
            order.tool_use_id = started.tool_use
            if started.notify in NOTIFY:
                order.notify = started.notify
            order.key, order.what = started.key, started.what
        return order
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
        if meta.status in UNFINISHED or meta.status == TaskStatus.KILLED.value:
            # It was ended before anything was said.
            return ()
        raise ResumeRefused(meta.agent_id, "it has no transcript that can be read")
    if meta.forked and not _has_beginning(meta, transcript.messages):
        raise ResumeRefused(meta.agent_id, _NO_BEGINNING)
    return settled(transcript.messages)


def _has_beginning(meta: AgentMeta, messages: Sequence[Message]) -> bool:
    """Whether something stands before the prompt of a fork."""
    prompt = UserMessage(meta.prompt)
    at = [place for place, message in enumerate(messages) if message == prompt]
    return at[-1:] != [0]
