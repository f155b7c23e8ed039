"""What the agents of one runtime share, and what each of them needs for its life."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import trio

from actors import Stopped
from actors.shell import Shell
from actors.transcript import TranscriptStore
from actors.work import Work

from .._tasks.kinds import KINDS

if TYPE_CHECKING:
    from actors.agent import Agent, Budget, Message, TodoList
    from actors.transcript import AgentMeta
    from actors.transcript.hosting import Transcript

    from .._delivery.outbox import Notification
    from .._life.life import Life
    from .._tasks.agent_task import AgentTask
    from .._tasks.record import Task
    from ..hooks import Hooks
    from ..hooks._calls import HookFacts
    from ._approvals import Approvals
    from ._host import HostTool, RuntimeHost
    from ._policy import AgentPolicy

_SHOWN: Final = 1_000
"""Characters of a text that hooks are told of a task."""


class Agents:
    """Policy, transcripts and approvals of one runtime. What judges calls and what asks
    a person is loaded with the first agent, or with the first who wants it."""

    def __init__(
        self,
        life: Life,
        policy: AgentPolicy | None,
        tools_of: Callable[[str], Iterable[HostTool]],
        reminder_of: Callable[[str], str | None],
    ) -> None:
        self._policy = policy
        self._approvals: Approvals | None = None
        # Why nobody waits any more for an answer.
        self._is_over: str | None = None
        self.transcripts = TranscriptStore(
            life.directory,
            life.env,
            self._warn,
            on_kept=self.let_go,
            quota=life.limits.transcript,
            disk=life.disk,
            durable=life.journal.durable,
        )
        # Those of which a new run is about to begin.
        self.beginning: set[str] = set()
        # What was said of rules and hooks that guard nothing.
        self.told_idle: set[str] = set()
        self._tools_of = tools_of
        self.reminder_of = reminder_of
        self._life = life

    def _warn(self, agent_id: str, text: str) -> None:
        self._life.delivery.warn(self._life.table.find(agent_id), text)

    def let_go(self, agent_id: str) -> None:
        """Let other runtimes go on with an agent, if it does not run here and all that
        they need to know of it is in the directory."""
        if (
            agent_id not in self._life.table.live
            and agent_id not in self.beginning
            and self.transcripts.keeps_meta(agent_id)
        ):
            self._life.share.release(agent_id)

    @property
    def policy(self) -> AgentPolicy:
        """What holds for all of them."""
        if self._policy is None:
            from ._policy import AgentPolicy

            self._policy = AgentPolicy()
        return self._policy

    @property
    def approvals(self) -> Approvals:
        """The tool calls that wait for an answer."""
        if self._approvals is None:
            from ._approvals import Approvals

            self._approvals = Approvals(self._life.env.ids, self._life.events)
            if self._is_over is not None:
                self._approvals.end(self._is_over)
        return self._approvals

    @property
    def patience(self) -> float:
        """The seconds for which one tries again what does not pass."""
        return self.policy.patience

    @property
    def after_crash(self) -> Literal["pause", "resume"]:
        """See `AgentPolicy`."""
        return self.policy.after_crash

    @property
    def max_depth(self) -> int:
        """How many agents may be above one."""
        return self.policy.max_depth

    def end_approvals(self, why: str) -> None:
        """Nobody waits any more for an answer that belongs to no task."""
        self._is_over = why
        if self._approvals is not None:
            self._approvals.end(why)

    def is_taken(self, task_id: str) -> bool:
        """Whether an agent of an earlier runtime had this id."""
        file = self.transcripts.transcript_file(task_id)
        try:
            return self._life.env.files.size(file) is not None
        except OSError:
            # By chance alone it is. A disk that fails stops no agent.
            return False

    def check(self, work: Work) -> None:
        """Refuse an agent that cannot be, before it is entered.

        Raises:
            ValueError: if there is no such mode.
        """
        mode = getattr(work, "permission_mode", None)
        if mode is not None:
            from ..permissions._modes import resolve_mode

            resolve_mode(mode, "bypass")

    def tools_for(self, agent_id: str) -> dict[str, HostTool]:
        """Return the tools of the host for an agent, by name, whatever that is
        restricted to."""
        return {tool.name: tool for tool in self._tools_of(agent_id)}

    # The life of one, in the order of these

    def entered(self, task: AgentTask) -> None:
        """Called when a task is entered, before it starts."""
        from ..permissions._modes import read_mode, resolve_mode

        agent = task.recipe
        parent = task.parent
        if task.inbox is None:
            from actors.agent.hosting import Inbox

            task.inbox = Inbox(messages=task.takes_messages)
        task.inbox.on_change = partial(self._inbox_changed, task)
        self._claim(task)
        self._give_budget(task)
        if parent is not None:
            task.above = (*parent.above, parent.recipe.type)
        if task.revival is not None:
            task.above = tuple(dict.fromkeys((*task.revival.meta.above, *task.above)))
            read = task.revival.transcript
            task.heard = task.revival.meta.heard if read is None else read.last_heard
        above = self.policy.permissions.mode if parent is None else parent.mode
        task.mode = resolve_mode(agent.permission_mode, above)
        if agent.permission_mode is not None and task.mode != read_mode(
            agent.permission_mode
        ):
            whose = "Permissions.mode" if parent is None else "the mode of its parent"
            task.warn(
                f"its permission mode is {task.mode} and not {agent.permission_mode}: "
                f"{whose} is {above}, and no agent may have more"
            )
        task.home = self.home_of(agent.cwd)
        task.output_file = self.transcripts.link_output(task.task_id)
        task.transcript_file = self.transcripts.transcript_file(task.task_id)
        self.write_meta(task)

    def _give_budget(self, task: AgentTask) -> None:
        agent, parent = task.recipe, task.parent
        task.budget = agent.budget
        if parent is not None and parent.budget is not None:
            task.budget = _part_of(parent.budget, agent.budget)

    def changed(self, task: AgentTask, *, has_budget: bool) -> None:
        """Called when a paused task is to go on with another recipe."""
        if has_budget:
            self._give_budget(task)
        task.home = self.home_of(task.recipe.cwd)
        self.write_meta(task)

    def _claim(self, task: AgentTask) -> None:
        # It is new, or was claimed before it was entered again.
        try:
            holder = self._life.share.claim(task.task_id)
            why = None if holder is None else f"{holder} has it"
        except OSError as error:
            why = str(error)
        if why is not None:
            task.warn(
                "another runtime on the directory may run it as well, since this one "
                f"could not have it alone: {why}"
            )

    def home_of(self, cwd: str | None) -> str | None:
        """Return the directory of who is in ``cwd``, absolute, which for None is the
        host's; None if that is gone."""
        from ..permissions._paths import resolve

        host = self._life.env.files.follow(".")
        return host if host is None or cwd is None else resolve(cwd, host)

    @asynccontextmanager
    async def host(
        self, task: AgentTask, *, is_restart: bool
    ) -> AsyncGenerator[RuntimeHost]:
        """Be the host of one run."""
        # A runtime without agents needs neither.
        from ..hooks._calls import AgentHooks
        from ._host import RuntimeHost

        agent, revival, read = task.recipe, task.revival, None
        if is_restart:
            cut = None if revival is None else revival.interrupted
            read = await self.transcripts.load(task.task_id, interrupted=cut)
            task.history = _history_again(task, read)
        elif revival is not None:
            read, revival.transcript = revival.transcript, None
        if is_restart or revival is not None:
            task.todos = _plan_of(agent, read)
        log = task.transcript = self.transcripts.open_log(
            task.task_id,
            cwd=agent.cwd,
            session=agent.session,
            agent_name=agent.type,
            after=read,
            on_written=partial(self._written, task),
        )
        if revival is not None:
            revival.interrupted = None
        if read is not None and read.answers is not None:
            log.append(read.answers)
        if is_restart:
            # It has another run.
            self.write_meta(task)
        hooks = AgentHooks(
            self._hooks_of(task),
            self._life.env,
            self._facts_of(task),
            on_warning=task.warn,
            last_words=lambda: task.result,
            background_tasks=lambda: _describe_own(task),
            time_left=lambda: _time_for_hooks(task),
        )
        host = RuntimeHost(self._life, self, task, hooks)
        self.approvals.admit(
            task.task_id, owner=task.owner, on_waiting=host.waits_for_approval
        )
        try:
            async with hooks:
                task.agent_host = host
                yield host
                hooks.was_killed = isinstance(task.own_exit, Stopped)
        finally:
            task.agent_host = None
            task.waiting = None
            self.approvals.close(task.task_id, "the run of the agent has ended")
            task.transcript, task.heard = None, log.heard
            log.close()

    def _written(self, task: AgentTask) -> None:
        task.output_changed()
        if task.taken:
            self._life.delivery.confirm(it for it in task.taken if it.is_written)
            task.taken = [it for it in task.taken if not it.is_written]

    def _confirm_all(self, task: AgentTask) -> None:
        self._life.delivery.confirm(task.taken)
        # Last, or what fails in between is confirmed by nobody.
        task.taken = []

    def _hooks_of(self, task: AgentTask) -> Hooks:
        """Return the hooks of all agents, those before tool calls of the kinds of
        agents above it, and those of its own kind.

        What watches an agent watches whom it starts, or it would start others for
        what it must not do.
        """
        from ..hooks import Hooks

        hooks, own = self.policy.hooks, task.recipe.type
        for kind in dict.fromkeys((*task.above, own)):
            definition = self.policy.definitions.get(kind)
            if definition is not None and definition.hooks is not None:
                more = definition.hooks
                if kind != own:
                    more = Hooks(pre_tool=more.pre_tool, timeout=more.timeout)
                hooks = hooks.with_more(more)
        return hooks

    def _facts_of(self, task: AgentTask) -> HookFacts:
        from ..hooks._calls import HookFacts

        agent, outermost = task.recipe, task
        try:
            project = self._life.env.processes.directory()
        except OSError:
            # It is gone; hooks that look for something in it say so.
            project = None
        while outermost.parent is not None:
            outermost = outermost.parent
        return HookFacts(
            agent_id=task.task_id,
            agent_type=agent.type,
            cwd=task.home or project,
            project=project,
            session=agent.session or outermost.recipe.session or outermost.task_id,
            transcript=str(task.transcript_file),
            session_transcript=str(outermost.transcript_file),
            mode=task.mode,
            is_main=task.parent is None,
        )

    def stopping(self, task: AgentTask) -> None:
        """Called when it is asked to stop, before it is cancelled."""
        # If no agent has run yet, nothing was asked, and a stop loads nothing.
        if self._approvals is not None:
            self._approvals.close(task.task_id, "the agent was stopped")

    def parts_of_end(self, task: AgentTask) -> list[Callable[[], object]]:
        """Return what is to be done while its end is being recorded."""
        return [
            partial(self._keep_unread, task),
            # It will not read them any more, and nobody else does. Each ack has
            # less to look through then.
            *((task.routed.clear,) if task.routed else ()),
            *(partial(_give_up, note, task) for note in task.routed.values()),
            # Or it may go on in another program, and is to hear of it there.
            *(() if task.is_interrupted else (partial(self._confirm_all, task),)),
            partial(self.write_meta, task),
            partial(self._life.events.ended, task.task_id),
        ]

    def _keep_unread(self, task: AgentTask) -> None:
        inbox = task.inbox
        if inbox is None or inbox.on_change is None:
            return  # The second time, after a failure.
        from ._kept import unread_messages

        task.left = unread_messages(task, inbox.close())
        _warn_of_unread(task)
        inbox.on_change = None

    def _inbox_changed(self, task: AgentTask, waiting: int) -> None:
        # What a revival holds counts as unread, so to read the last of them is no news.
        if waiting or task.revival is None or task.revival.decided.is_set():
            self.write_meta(task)

    def write_meta(self, task: AgentTask) -> None:
        """Have written what the directory is to say of it now, if that is news."""
        before, task.meta = task.meta, self.meta_of(task)
        if task.meta != before:
            self.transcripts.write_meta(task.meta)

    def write_spent(self, task: AgentTask) -> None:
        """Have written what is left of the budgets that ``task`` counts for. Each
        reply of a model costs so many small files, written in a thread; while one is
        being written, only the newest of each agent waits."""
        above: AgentTask | None = task
        while above is not None:
            if above.budget is not None:
                self.write_meta(above)
            above = above.parent

    def meta_of(self, task: AgentTask) -> AgentMeta:
        """Return what the directory is to say of it."""
        from ._kept import meta_of

        return meta_of(task)


def _give_up(note: Notification, task: AgentTask) -> None:
    """Let go of a notification that an agent has not read, and that has ended."""
    if task.is_interrupted:
        # It may go on in another program, and is to hear of it there.
        note.record = None
    note.ack("consumed")


def _part_of(whole: Budget, own: Budget | None) -> Budget:
    """Return the budget of an agent of its ``own``, as a part of its parent's."""
    if own is None or own is whole:
        return whole.child()
    # One that goes on has the one that it had.
    return own if own.is_part_of(whole) else whole.child(*own.left())


def _history_again(task: AgentTask, read: Transcript | None) -> list[Message]:
    """Return the conversation with which the next run of ``task`` begins, after one
    that has failed."""
    held = [] if task.revival is None else task.revival.held
    if read is None and not held:
        task.warn("nothing of it is recorded, so it begins with its prompt again")
    from actors.agent.hosting import settled

    return settled([*(task.history if read is None else read.messages), *held])


def _plan_of(agent: Agent, read: Transcript | None) -> TodoList | None:
    """Return the plan that an agent has written last, as its transcript says."""
    if read is None:
        return None
    from actors.agent import UserMessage
    from actors.agent.hosting import PlanReader

    said, prompt = read.messages, UserMessage(agent.prompt)
    reader = PlanReader(read.plan)
    # What stands before its prompt is the conversation of another, whose plan is
    # another's.
    if agent.forked and prompt in said:
        said = said[len(said) - said[::-1].index(prompt) :]
    for message in said:
        reader.read(message)
    return reader.plan


def _warn_of_unread(task: AgentTask) -> None:
    if task.left and not (task.revival is not None and task.revival.is_undone):
        task.warn(f"{len(task.left)} message(s) were sent to it that it has not read")


def _time_for_hooks(task: AgentTask) -> float:
    """Return the seconds that the stop hooks of a run that has ended have."""
    if task.ends_by is None:
        return math.inf
    # The rest is for the steps that follow, or it would be late by them.
    return 0.8 * max(0.0, task.ends_by - trio.current_time())


def _describe_own(task: AgentTask) -> list[dict[str, str]]:
    return [_describe(own) for own in task.own.values() if own.background]


def _describe(task: Task) -> dict[str, str]:
    """Return a task as hooks are told of it: in the words of Claude Code, where it
    has any."""
    told = {
        "id": task.task_id,
        "type": KINDS[task.task_type].hook_type,
        "task_type": task.task_type,
        "status": task.status.value,
        "description": _shortened(task.description),
    }
    if task.as_agent is not None:
        told["agent_type"] = task.as_agent.recipe.type
    elif isinstance(task.work, Shell):
        told["command"] = _shortened(task.work.command)
    return told


def _shortened(text: str) -> str:
    more = len(text) - _SHOWN
    return text if more <= 0 else f"{text[:_SHOWN]}… [+{more} chars]"
