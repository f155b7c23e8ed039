"""The runtime: background tasks for an agent, supervised, told and never lost.

`open_runtime` opens one for the length of a block.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, tzinfo
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import trio
from trio.lowlevel import enable_ki_protection

from actors.agent import Agent, UserMessage
from actors.env import Env, real_env
from actors.hosting import Share
from actors.house import check_one_of, check_type, require_trio
from actors.house import publish as _publish
from actors.transcript import TranscriptStore
from actors.work import Work

from ._delivery.display import DisplayItem, DisplayQueue
from ._delivery.outbox import NOTIFY, Notification, Notify
from ._delivery.readers import Notifications
from ._delivery.turns import Parents, Turn
from ._delivery.wakes import Wake, Wakes, as_reminder
from ._life.foreground import run_in_foreground
from ._life.handles import TaskHandle, known, member, unknown
from ._life.life import Life
from ._life.opening import RuntimeTree
from ._life.progress_notes import ProgressNotes
from ._life.stops import StopResult, stop
from ._life.waiting import TaskSet, wait_all, wait_any
from ._tasks.errors import (
    AgentRunsElsewhere,
    BacklogFull,
    DepthExceeded,
    InputClosed,
    MessageRefused,
    ResumeRefused,
    RuntimeStopping,
    UnknownTask,
)
from ._tasks.json import from_json, to_json
from ._tasks.orders import as_text, check_order, check_policy
from ._tasks.places import Limits
from ._tasks.record import Task
from ._tasks.snapshot import OutputEnded, TaskError, TaskSnapshot, Usage
from ._tasks.task_events import (
    Acked,
    AgentSaid,
    ApprovalAnswered,
    ApprovalRequested,
    Notified,
    TaskBackgrounded,
    TaskEnded,
    TaskProgress,
    TaskPrompted,
    TaskRestarted,
    TaskRestartScheduled,
    TaskResumed,
    TaskStarted,
    TaskStopRequested,
    Warned,
)
from .agents import AgentPolicy
from .agents._approvals import Approval, Approvals
from .agents._messages import Messages, Sent, check_message
from .agents._resume import Resumes
from .agents._side import Agents
from .schedule import Schedule, start_schedule
from .tree._errors import SupervisorError, WouldDeadlock
from .tree._events import EventStream
from .tree._fair import fair
from .tree._spec import Backoff, Restart
from .tree._supervisor import Supervisor

if TYPE_CHECKING:
    from actors.transcript import AgentMeta

    from .permissions import Permissions
    from .settings import Settings
    from .tools import Tool

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "Acked",
    "AgentRunsElsewhere",
    "AgentSaid",
    "Approval",
    "ApprovalAnswered",
    "ApprovalRequested",
    "Approvals",
    "BacklogFull",
    "DepthExceeded",
    "DisplayItem",
    "DisplayQueue",
    "InputClosed",
    "Limits",
    "MessageRefused",
    "Notification",
    "Notifications",
    "Notified",
    "OutputEnded",
    "ResumeRefused",
    "Runtime",
    "RuntimeStopping",
    "Sent",
    "StopResult",
    "TaskBackgrounded",
    "TaskEnded",
    "TaskError",
    "TaskHandle",
    "TaskProgress",
    "TaskPrompted",
    "TaskRestartScheduled",
    "TaskRestarted",
    "TaskResumed",
    "TaskSet",
    "TaskSnapshot",
    "TaskStarted",
    "TaskStopRequested",
    "Turn",
    "UnknownTask",
    "Usage",
    "Wake",
    "Wakes",
    "Warned",
    "as_reminder",
    "from_json",
    "open_runtime",
    "to_json",
]

_CHECKPOINT_EVERY = 32

_SHARED = (
    "another runtime has the directory {} open: agents that run in it are neither "
    "listed here as unfinished nor resumed"
)


class Runtime:
    """The tasks of one agent and its owners. Made by `open_runtime`.

    Attributes:
        directory: where the output files are, and the transcripts of agents.
        events: what happens, in order: ``runtime.events.subscribe()`` returns an
            iterator of it, and with ``agents=True`` also of what agents say.
        notifications: the ends of all background tasks, for any owner; readable after
            the block. ``async for note in runtime.notifications`` waits for them.
            That of an agent's own task is not among them: the agent gets it.
        root: the supervisor at the top of the tree, for a look at it.
    """

    def __init__(
        self,
        directory: Path,
        env: Env,
        limits: Limits,
        events: EventStream,
        policy: AgentPolicy,
    ) -> None:
        self.directory = directory
        self.events = events
        self._env = env
        self._life = Life(directory, env, limits, events)
        agents = Agents(self._life, policy, self._tools_of)
        self._life.agents = self._agents = agents
        self.notifications = Notifications(
            self._life.delivery.outbox, None, everyone=True
        )
        self._resumes = Resumes(self._life, agents)
        self._messages = Messages(self._life, agents, self._resumes)
        self._launches = 0
        self._parents = Parents(self._life.delivery.outbox)
        self._progress_notes = ProgressNotes(self._life.table, self._life.delivery)
        self.root: Supervisor
        # Of the tools, once they were read from the environment.
        self._settings: Settings | None = None

    def __repr__(self) -> str:
        return (
            f"<Runtime {self.directory}, {len(self._life.table.live)} unfinished tasks>"
        )

    @property
    def agents(self) -> AgentPolicy:
        """What holds for all agents, as `open_runtime` was given it."""
        return self._agents.policy

    @property
    def approvals(self) -> Approvals:
        """Tool calls that wait for an answer of yours, of agents and of your own
        model."""
        return self._agents.approvals

    @property
    def transcripts(self) -> TranscriptStore:
        """What agents and their models have said, in the directory."""
        return self._agents.transcripts

    def _tools_of(self, agent_id: str) -> Iterable[Tool]:
        """Return the tools of the host for an agent, the more special ones last."""
        more = self.agents.tools
        tools = self.tools_for(agent_id)
        return tools if more is None else [*tools, *more(self, agent_id)]

    # Starting tasks

    async def launch(
        self,
        work: Work,
        *,
        description: str | None = None,
        owner: str | None = None,
        tool_use_id: str | None = None,
        notify: Notify = "wake",
        restart: Restart = "temporary",
        intensity: int = 1,
        period: float = 5.0,
        backoff: Backoff | None = None,
    ) -> TaskHandle:
        """Start ``work`` as a background task and return at once.

        The task runs when the limits have a place for it, and is ``pending``
        until then. Its end is told by exactly one notification. With
        ``restart`` other than ``temporary`` it is run again, under a new run
        id, within ``intensity`` restarts in ``period`` seconds.

        Cancelled, it has started nothing.

        ``notify`` says how that notification reaches its reader: ``wake`` wakes
        it; ``defer`` waits for the next one that does, for `Notifications.drain`
        or for the end of the runtime; ``silent`` is on record, acknowledged as
        such at once, and no reader sees it.

        Args:
            work: what to do, such as `actors.shell.Shell`.
            description: a few words for people. The notification of a shell tells
                its command besides, if that is another text, and that of a shell
                or an agent its directory, if it was given one; without one it is
                that of the host.
            owner: whose task it is, for notifications and `stop_all`. The id of an
                agent that has not ended makes it one of that agent's own tasks,
                and so does None in the run of an agent: it ends before its agent,
                which gets its notification.
            tool_use_id: the model's tool call, repeated in the notification.
            notify: ``wake``, ``defer`` or ``silent``.
            restart, intensity, period, backoff: as for `supervisor.tree`.

        Raises:
            RuntimeStopping: if the runtime is stopping or has ended, or the agent
                whose own task it would be is stopping.
            DepthExceeded: if it is an agent too deep below others.
            BacklogFull: if too many notifications are not acknowledged; an agent's
                own backlog counts only against tasks that this agent launches.
            TypeError, ValueError, InvalidChildSpec, InvalidSupervisorFlags: for
                bad arguments. Whatever fails later is a ``failed`` task.
        """
        try:
            policy = check_policy(restart, intensity, period, backoff)
            order = check_order(work, description, owner, tool_use_id, policy, notify)
            # As a mailbox does: others run at least once in so many launches.
            self._launches += 1
            if self._launches % _CHECKPOINT_EVERY == 0:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.checkpoint_if_cancelled()
            self._life.check_open()
            return TaskHandle(self._life, self._life.enter(order, background=True))
        except Exception:
            # As in `fair`, which would cost each launch a frame.
            await trio.lowlevel.checkpoint()  # noqa: ASYNC120
            raise

    @enable_ki_protection
    async def run(  # noqa: ASYNC114,ASYNC128
        self,
        work: Work,
        *,
        description: str | None = None,
        owner: str | None = None,
        tool_use_id: str | None = None,
        task_status: trio.TaskStatus[TaskHandle] = trio.TASK_STATUS_IGNORED,
    ) -> TaskSnapshot:
        """Run ``work`` in the foreground and return it when it has ended.

        It returns early, with the task running, when that is moved to the
        background; then, and only then, a notification tells its end. The
        snapshot says so by ``background``, and names the output file. Cancelled,
        it stops the task, unless that was moved before, and waits, within the
        task's budget, for its end. A task that calls it lends its place meanwhile:
        see `Limits`.

        ``handle = await nursery.start(runtime.run, work)`` gives the handle as
        soon as the task has its id, also while it waits for its place.

        Raises:
            RuntimeStopping, DepthExceeded, TypeError, ValueError: as `launch`.
        """
        await trio.lowlevel.checkpoint()
        order = check_order(work, description, owner, tool_use_id, None, "wake")
        self._life.check_open()
        return await run_in_foreground(self._life, order, task_status.started)

    def background(self, task: TaskHandle | str) -> bool:
        """Move a foreground task, by its handle or id, to the background,
        without restarting it; whoever waits in `run` returns. A task that only
        waits for its place, or is being stopped, can be moved as well.

        Returns True once, and False afterwards, for tasks that have ended and
        for ids that are unknown.

        Raises:
            TypeError: if it is neither a handle nor an id.
        """
        found = self._asked(task)
        return found is not None and self._life.move(found)

    def _asked(self, task: object) -> Task | None:
        if not isinstance(task, str | TaskHandle):
            raise TypeError(f"expected a TaskHandle or a task id, got {task!r}")
        return known(self._life, task)

    def background_all(self, owner: str | None = None) -> list[str]:
        """Move every foreground task to the background, those of ``owner`` or,
        with None, all but the agents' own, and return their ids in the order of
        launch."""
        foreground = self._life.table.foreground(as_text("owner", owner))
        return [task.task_id for task in foreground if self._life.move(task)]

    def consume(self, task: TaskHandle | str) -> bool:
        """Say that the result of an ended task, given by its handle or id, was
        read in another way, for instance by the model's own tool call: its
        notification is acknowledged as ``consumed`` and no reader gets it. If it
        was told in a turn that is under way, it is not told in another.

        Returns False, and changes nothing, if a reader has it already, or if
        there is none: the task has not ended, ran in the foreground, or is
        unknown.

        Raises:
            TypeError: if it is neither a handle nor an id.
        """
        found = self._asked(task)
        return found is not None and self._life.delivery.consume(found)

    # Talking to agents, and going on with them

    @fair
    async def send(
        self,
        agent: TaskHandle | str,
        text: str,
        *,
        sender: str | None = None,
        run_id: str | None = None,
    ) -> Sent:
        """Send a message to an agent, by its handle or id, and return where it
        went: into the inbox of an agent that has not ended, or into a new run of
        one that has completed. One that is just ending is waited for.

        Messages are read in the order of the calls, each once. What a failed or
        stopped agent had not read is the first that it reads if it is resumed.
        Cancelled, it has sent nothing, unless a new run has begun with it.

        Args:
            sender: whose words it is, as the agent is told; by default the id of
                the agent that calls.
            run_id: of the run that it is meant for, to be refused by every other.

        Raises:
            MessageRefused: if no run will read it, saying why: the agent failed
                or was stopped, takes no messages, or has no room for more, also in
                its file, beside a very long prompt.
            BacklogFull, RuntimeStopping: if it had to be revived.
            UnknownTask: listing the running ones.
            WouldDeadlock: if an agent that is ending itself calls.
            TypeError, ValueError: for bad arguments.
        """
        agent_id = self._id_of(agent)
        text = check_message(text)
        run_id = as_text("run_id", run_id)
        sender = as_text("sender", sender) or self._life.calling_agent()
        return await self._messages.send(agent_id, text, sender=sender, run_id=run_id)

    @fair
    async def resume(
        self,
        task: TaskHandle | str,
        message: str | None = None,
        *,
        agent: Agent | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> TaskHandle:
        """Let an ended agent go on, by its handle or id, in a new run under the
        same id, with its conversation so far, then the messages that it had not
        read, and then ``message``, or else the request to continue. It keeps its
        prompt, restrictions, model, session and depth, and what is left of its
        budget; its deadline and rounds hold for the new run; what it may do without
        a question is judged anew.

        An agent of which only the directory is left is resumed from that, with
        the loop of ``agent`` or that of `AgentPolicy.run`. One that runs, because
        somebody else has resumed it, gets the message into its inbox. Calls at
        the same time make one run.

        Anybody may have written to the directory, so an agent that is resumed from it
        gains nothing by that: its tools, mode, depth and rounds are no more than
        those of its type, of the agent above it and of the host, and its directory is
        that of ``agent``, or else of the agent above it or of the host, unless it was
        below that. A warning tells of what was changed.

        Args:
            message: what it is told first.
            agent: whose loop goes on. Its budget, deadline and rounds count where
                it has some.
            cwd: its directory from now on, in place of the one that it had.

        Refused, the agent is as it was, and so is what is told of its end.

        Raises:
            ResumeRefused: saying why.
            AgentRunsElsewhere: if another runtime runs it; it is a `ResumeRefused`.
            BacklogFull, RuntimeStopping: as `launch`.
            UnknownTask: listing the running ones.
            WouldDeadlock: if the agent itself calls.
            TypeError, ValueError: for bad arguments.
        """
        agent_id = self._id_of(task)
        check_type("agent", agent, Agent | None)
        said = None
        if message is not None:
            text, sender = check_message(message), self._life.calling_agent()
            said = UserMessage(text, origin="message", sender=sender)
        if cwd is not None and not isinstance(cwd, str | os.PathLike):
            raise TypeError(f"cwd must be a path or None, not {cwd!r}")
        place = None if cwd is None else as_text("cwd", os.fspath(cwd))
        resumed = await self._messages.resume(agent_id, said, agent, place)
        return TaskHandle(self._life, resumed)

    def _id_of(self, task: TaskHandle | str) -> str:
        # Not its record: another may have taken its place.
        return task if isinstance(task, str) else member(self._life, task).task_id

    def unfinished_agents(self) -> list[AgentMeta]:
        """Return what the directory tells of agents that an earlier runtime left
        unfinished and that do not run in this one: those that can be given to
        `resume`. What cannot be read is left out, with a `Warned` event.

        Sub-agents are among them. One whose ``owner`` is listed too need not be
        resumed: its parent goes on from the call that was cut, and calls anew;
        `abandon_agent` takes it from the list.
        """
        return self._resumes.unfinished()

    def abandon_agent(self, agent_id: str) -> bool:
        """Say that an agent of `unfinished_agents` is not to go on: from now on it
        is ``killed``, and nothing else is told of that. It can still be resumed.

        Returns False, and changes nothing, if it is not one of these.

        Raises:
            OSError: if what the directory says of it cannot be read.
        """
        return self._resumes.abandon(agent_id)

    def agent_meta(self, agent_id: str) -> AgentMeta | None:
        """Return what the directory says of an agent, of this runtime or an earlier
        one; None if that is nothing.

        Raises:
            OSError: if it cannot be read.
        """
        return self._resumes.meta(agent_id)

    # Asking

    def get(self, task: TaskHandle | str) -> TaskSnapshot:
        """Return a task that has not ended, or one of the last that did.

        Raises:
            UnknownTask: listing the running ones.
            ValueError: for a handle of another runtime.
        """
        return self._find(task).snapshot()

    def handle(self, task_id: str) -> TaskHandle:
        """Return the handle of a task, as `launch` did.

        Raises:
            UnknownTask: listing the running ones.
        """
        return TaskHandle(self._life, self._find(task_id))

    def tasks(self, owner: str | None = None) -> list[TaskSnapshot]:
        """Return every task that is known, of ``owner`` or, with None, of all:
        first the ended ones in order of their end, then the others in order of
        launch."""
        owner = as_text("owner", owner)
        return [
            t.snapshot()
            for t in self._life.table.all()
            if owner is None or t.owner == owner
        ]

    def _find(self, task: TaskHandle | str) -> Task:
        found = known(self._life, task)
        if found is not None:
            return found
        # Whatever is no handle is an id that nobody has.
        if isinstance(task, TaskHandle):
            return member(self._life, task)
        raise unknown(self._life, task)

    def notifications_for(self, owner: str | None) -> Notifications:
        """Return the view of one owner's notifications, of which None is one too."""
        owner = as_text("owner", owner)
        return Notifications(self._life.delivery.outbox, owner, everyone=False)

    def tools_for(
        self,
        owner: str | None,
        settings: Settings | None = None,
        permissions: Permissions | None = None,
    ) -> list[Tool]:
        """Return the tools with which the model of ``owner`` runs, reads and
        stops tasks: see `supervisor.tools`.

        Without ``settings`` they are as the variables ``TRIO_SUPERVISOR_*`` of
        the environment say, which are read at the first call.

        ``AgentPolicy.permissions`` and ``AgentPolicy.hooks`` are for the calls of
        agents. Those of the host's own model are made as they come, unless
        ``permissions`` are given here: then each is judged by their rules, mode and
        functions, and made with what these have changed it into, and in the mode
        ``bubble`` it waits for an answer of `approvals`, with the owner as its agent.
        A call that is refused answers with an error. Hooks are not called for them
        in either case: what a hook is to say there, a function of
        `Permissions.ask` says, or a rule. Agents that it starts are judged by the
        policy all the same, and have its hooks.

        Raises:
            TypeError: for a bad argument.
            ValueError: for a bad variable, naming it.
        """
        from .settings import read_settings
        from .tools._set import tools_for

        owner = as_text("owner", owner)
        if settings is None:
            if self._settings is None:
                environ = self._env.processes.environment()
                self._settings = read_settings(environ)
            settings = self._settings
        return tools_for(self, owner, settings, permissions)

    # Waiting

    @fair
    async def wait_any(self, tasks: Iterable[TaskHandle | str]) -> TaskSnapshot:
        """Wait until one of ``tasks``, handles or ids, has ended, and return it;
        of several that have, the first to end.

        Cancelling the wait does nothing to the tasks. A task that calls it lends
        its place meanwhile: see `Limits`.

        Raises:
            ValueError: if there are none.
            UnknownTask: for an id that is not known, before anything is waited
                for.
            WouldDeadlock: if one of them waits.
        """
        members = self._members(tasks)
        if not members:
            raise ValueError("tasks must not be empty: none of them would ever end")
        return await wait_any(self._life, members)

    @fair
    async def wait_all(self, tasks: Iterable[TaskHandle | str]) -> list[TaskSnapshot]:
        """Wait until all of ``tasks``, handles or ids, have ended, and return
        them in the order given; at once if there are none.

        Raises:
            UnknownTask, WouldDeadlock: as for `wait_any`.
        """
        return await wait_all(self._life, self._members(tasks))

    def task_set(self, *tasks: TaskHandle | str) -> TaskSet:
        """Return a set of tasks, handles or ids, that gives each of them as it
        ends, and may grow meanwhile: see `TaskSet`.

        Raises:
            UnknownTask: for an id that is not known.
        """
        return TaskSet(self._life, self._members(tasks))

    def _members(self, tasks: Iterable[TaskHandle | str]) -> list[Task]:
        if isinstance(tasks, str | TaskHandle):
            raise TypeError(f"tasks must be several handles or ids, not {tasks!r}")
        return [member(self._life, task) for task in tasks]

    async def wait_idle(self) -> None:
        """Wait until no task is unfinished.

        Raises:
            WouldDeadlock: if a task waits, which is not finished itself.
        """
        await trio.lowlevel.checkpoint()
        task = self._life.current_task()
        if task is not None:
            raise WouldDeadlock(f"task {task.task_id} would wait for its own end")
        await self._life.table.wait_empty()

    def turn(self, owner: str | None = None) -> Turn:
        """Say, for the length of an ``async with`` block, that the parent is
        busy. The foreground tasks of the turn are those that `run` is called
        for in the block; they end with it. Background tasks go on.

        An owner has one turn at a time. Entering waits for the end of the turn that is
        under way, which may be that of a wake (see `wakes`), and for those that asked
        before. A turn entered inside the block of another one of the same owner, also
        in a task of a nursery in that block, is a part of it. No wake of the owner
        begins meanwhile."""
        owner = as_text("owner", owner)
        return Turn(self._parents.of(owner))

    def is_busy(self, owner: str | None = None) -> bool:
        """Whether a turn of ``owner`` is under way."""
        return self._parents.is_busy(owner)

    def wakes(
        self,
        owner: str | None = None,
        *,
        window: float = 0.0,
        after_end: bool = False,
    ) -> Wakes:
        """Iterate over what the parent ``owner`` must be woken for::

            async for wake in runtime.wakes("main"):
                async with wake as turn:
                    if await ask_model(wake.text):
                        turn.progressed()

        A wake comes when there is something to tell, no turn of the owner is
        under way and none waits to begin. It contains everything that waits, capped
        at what a model can read at once. It is itself a turn, so wakes never overlap,
        whoever iterates. A `turn` of the host's own that is begun meanwhile waits for
        the end of the wake and goes before the next one. A wake that leads to nothing
        is offered again, once: see `Turn`. What is consumed before the wake begins is
        not in it.

        The iteration ends as soon as the runtime begins to close: to ask a model may
        cost money, and tasks that a close has stopped are not worth that. What was not
        handed out stays readable, also by `notifications`. With ``after_end`` the
        iteration goes on until everything was handed out.

        With a ``window`` there is no wake before more than that many seconds have
        passed since the host last began a turn of its own: a user who has just
        said something may say more.

        Use it, or the views of `notifications`, for one owner: each notification
        goes to one reader.

        Raises:
            TypeError, ValueError: for bad arguments.
        """
        check_type("after_end", after_end, bool)
        parent = self._parents.of(as_text("owner", owner))
        return Wakes(parent, window, after_end=after_end)

    def tell_progress(
        self, task: TaskHandle | str, *, notify: Notify = "defer"
    ) -> bool:
        """Put a note of the progress of a background task, by its handle or id,
        before its owner, in the queue of notifications. It tells only what is new
        since the last note, by the time when it is taken; the end of the task
        supersedes it. With ``wake`` it wakes the parent; by default it comes with
        what does.

        Returns False if there is nothing to tell: the last note was not taken yet,
        nothing is new, or no such task is running in the background.

        Raises:
            ValueError: if ``notify`` is neither ``wake`` nor ``defer``.
            TypeError: if ``task`` is neither a handle nor an id.
        """
        check_one_of("notify", notify, ("wake", "defer"))
        found = self._asked(task)
        return found is not None and self._progress_notes.tell(found, notify)

    @fair
    async def schedule(
        self,
        expression: str,
        prompt: str,
        *,
        owner: str | None = None,
        zone: tzinfo = UTC,
    ) -> Schedule:
        """Put ``prompt`` before the parent ``owner`` whenever it is time, until the
        schedule is stopped or the runtime ends.

        It comes as a notification of the kind ``prompt``, in the order in which
        that and the ends of tasks happen. Times that pass while nobody reads it, or
        while the host is suspended, are told by one. Cancelled, it has started
        nothing.

        Args:
            expression: five fields as cron has them, or six with the seconds first.
            prompt: what to ask; at most 32,768 characters.
            zone: where the times of the expression hold.

        Raises:
            ValueError: if the expression is none or has no time to come, or the
                prompt is empty or too long.
            RuntimeStopping: if the runtime is stopping or has ended.
            SupervisorError: if cronsim, of the extra ``agents``, is not installed.
            TypeError: for bad arguments.
        """
        owner = as_text("owner", owner)
        return await start_schedule(
            self.root,
            self._life.delivery,
            self._env,
            expression,
            prompt,
            owner,
            zone,
        )

    # Stopping

    @fair
    async def stop(
        self,
        task: TaskHandle | str,
        reason: str | None = None,
        *,
        now: bool = False,
        notify: Notify | None = None,
    ) -> StopResult:
        """Stop a task, by its handle or id, and wait until it has really ended; of
        an agent its run first, and then everything below it together.

        A task that has ended already is left as it is. If something outlives
        the task's budget the result names it; it is waited for and reported,
        and the task's end is told when it comes, as `launch` said. With ``now`` a
        shell gets no time for cleaning up, also one that is being stopped already.
        ``notify`` replaces what `launch` said: ``silent`` is for a caller that
        tells of the end itself.

        Raises:
            UnknownTask: listing the running ones.
            WouldDeadlock: if the task itself asks, or one below it.
            TypeError, ValueError: for bad arguments.
        """
        reason = as_text("reason", reason)
        check_type("now", now, bool)
        if notify is not None:
            check_one_of("notify", notify, NOTIFY)
        found = self._find(task)
        (result,) = await stop(self._life, [found], reason, now=now, notify=notify)
        return result

    @fair
    async def stop_all(
        self,
        owner: str | None = None,
        reason: str | None = None,
        *,
        now: bool = False,
    ) -> list[StopResult]:
        """Stop every unfinished task together, those of ``owner`` or, with None,
        all. There is a result for each that is not below another of them.

        Raises:
            WouldDeadlock: if one of them asks.
            TypeError: for bad arguments.
        """
        owner = as_text("owner", owner)
        reason = as_text("reason", reason)
        check_type("now", now, bool)
        tasks = self._life.table.unfinished(owner)
        return await stop(self._life, tasks, reason, now=now)

    @fair
    async def stop_foreground(self, owner: str | None = None) -> list[StopResult]:
        """Stop the foreground tasks, those of ``owner`` or, with None, all but the
        agents' own, and keep those in the background: what a host does when its
        user begins afresh.

        Raises:
            WouldDeadlock: if one of them asks.
        """
        tasks = self._life.table.foreground(as_text("owner", owner))
        return await stop(self._life, tasks, "the foreground was cleared")


class open_runtime:
    """Open a runtime whose output files are in ``directory``, for a block::

        async with open_runtime("tasks") as runtime:
            task = await runtime.launch(Shell("make test"))
            print(await task.wait())

    Leaving the block, in whatever way, stops every task, records its end, and
    leaves nothing running. What was not read of the notifications stays
    readable. The block is cancelled, and raises `RestartIntensityExceeded`, if
    the runtime itself fails for good.

    Args:
        directory: made if it is not there.
        limits: how many tasks may run at once.
        env: the effects; the default is the operating system. Its processes
            are closed with the runtime.
        agents: what holds for agents. The default denies them what no rule allows,
            Bash among it: see `supervisor.agents.AgentPolicy`.

    Another runtime may have the same directory open, also in another process. The
    second one warns of that in the log. No agent runs in both: one that runs there is
    not listed by `unfinished_agents`, and `resume` raises `AgentRunsElsewhere`, until
    it has ended there or that process has, in whatever way. Shells have nothing to
    fear. That takes a lock that only Linux has. Elsewhere no agent that is recorded as
    unfinished is listed or resumed as long as another runtime has the directory open;
    and where directories cannot be locked, as on Windows, nobody can tell.

    Raises:
        OSError: if the directory cannot be made or written to.
        TypeError, ValueError: for bad arguments.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        limits: Limits | None = None,
        env: Env | None = None,
        agents: AgentPolicy | None = None,
    ) -> None:
        if not isinstance(directory, str | os.PathLike):
            raise TypeError(f"directory must be a path, not {directory!r}")
        name = os.fspath(directory)
        if not isinstance(name, str):
            raise TypeError(f"directory must be a path made of text, not {directory!r}")
        if not name or "\0" in name:
            raise ValueError(f"directory must be a possible path, not {directory!r}")
        check_type("limits", limits, Limits | None)
        check_type("env", env, Env | None)
        check_type("agents", agents, AgentPolicy | None)
        self._directory = Path(directory)
        self._limits = limits or Limits()
        self._env = env
        self._policy = agents or AgentPolicy()
        self._tree: RuntimeTree | None = None
        self._share: Share

    @enable_ki_protection
    async def __aenter__(self) -> Runtime:
        require_trio("open_runtime")
        if self._tree is not None:
            raise SupervisorError("a runtime's block can be entered only once")
        env = self._env or real_env()
        directory = env.files.make_directory(self._directory)
        events = EventStream()
        runtime = Runtime(directory, env, self._limits, events, self._policy)
        life = runtime._life  # pyright: ignore[reportPrivateUsage]
        self._tree = RuntimeTree(life)
        self._share = life.share
        try:
            runtime.root = await self._tree.start()
        except BaseException:
            self._share.close()
            raise
        if not self._share.is_alone():
            life.delivery.warn(None, _SHARED.format(directory))
        return runtime

    @enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._tree is not None
        try:
            await self._tree.stop(exc_type, exc, traceback)  # noqa: ASYNC102 - shields
        finally:
            self._share.close()


_publish(globals())
