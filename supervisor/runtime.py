"""The runtime: it supervises background tasks, and reports the end of each.

`open_runtime` opens one for the length of a block.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable
from datetime import UTC, tzinfo
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import trio
from trio.lowlevel import checkpoint_if_cancelled, enable_ki_protection

from actors.env import Env, real_env
from actors.house import check_one_of, check_type, require_trio
from actors.house import publish as _publish
from actors.transcript import TranscriptStore
from actors.work import Work

from ._delivery.display import DisplayItem, DisplayQueue, Toast
from ._delivery.outbox import NOTIFY, Notification, Notify
from ._delivery.readers import Notifications
from ._delivery.turns import Parents, Turn
from ._delivery.wakes import Wake, Wakes, as_message, as_reminder
from ._life.foreground import run_in_foreground
from ._life.handles import TaskHandle, known, member
from ._life.keys import check_key, what_of
from ._life.leftovers import remove_outdated
from ._life.life import Life
from ._life.monitors import (
    Monitor,
    Monitors,
    TooManyMonitors,
    check_pattern,
    check_watched,
)
from ._life.opening import RuntimeTree
from ._life.progress_notes import ProgressNotes
from ._life.recovery import begin, recover
from ._life.stops import StopResult, stop
from ._life.waiting import TaskSet, wait_all, wait_any
from ._tasks.endings import STOPPED_BY, EndedBy, StoppedBy
from ._tasks.errors import (
    AgentRunsElsewhere,
    BacklogFull,
    DepthExceeded,
    InputClosed,
    KeyElsewhere,
    KeyTaken,
    MessageRefused,
    ResumeRefused,
    RuntimeStopping,
    UnknownTask,
)
from ._tasks.journal.records import NewerJournal
from ._tasks.json import from_json, to_json
from ._tasks.limits import Limits
from ._tasks.orders import as_text, check_order, check_policy
from ._tasks.reading import output_end
from ._tasks.record import Task
from ._tasks.snapshot import OutputEnded, Pause, TaskError, TaskSnapshot, Usage
from ._tasks.task_events import (
    Acked,
    AgentSaid,
    ApprovalAnswered,
    ApprovalRequested,
    JournalWritten,
    MonitorEnded,
    MonitorStarted,
    Notified,
    TaskAbandoned,
    TaskBackgrounded,
    TaskContinued,
    TaskEnded,
    TaskPaused,
    TaskProgress,
    TaskPrompted,
    TaskRestarted,
    TaskRestartScheduled,
    TaskResumed,
    TaskStarted,
    TaskStopRequested,
    Warned,
)
from .agents._side import Agents
from .tree._errors import SupervisorError, WouldDeadlock
from .tree._events import EventStream
from .tree._fair import fair
from .tree._spec import Backoff, Restart
from .tree._supervisor import Supervisor

if TYPE_CHECKING:
    from actors.agent import Agent, Message
    from actors.transcript import AgentMeta

    from .agents import AgentPolicy
    from .agents._approvals import Approval, Approvals
    from .agents._messages import Messages, Sent
    from .agents._resume import Resumes
    from .permissions import Permissions
    from .schedule import Schedule
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
    "EndedBy",
    "InputClosed",
    "JournalWritten",
    "KeyElsewhere",
    "KeyTaken",
    "Limits",
    "MessageRefused",
    "Monitor",
    "MonitorEnded",
    "MonitorStarted",
    "NewerJournal",
    "Notification",
    "Notifications",
    "Notified",
    "OutputEnded",
    "Pause",
    "ResumeRefused",
    "Runtime",
    "RuntimeStopping",
    "Sent",
    "StopResult",
    "StoppedBy",
    "TaskAbandoned",
    "TaskBackgrounded",
    "TaskContinued",
    "TaskEnded",
    "TaskError",
    "TaskHandle",
    "TaskPaused",
    "TaskProgress",
    "TaskPrompted",
    "TaskRestartScheduled",
    "TaskRestarted",
    "TaskResumed",
    "TaskSet",
    "TaskSnapshot",
    "TaskStarted",
    "TaskStopRequested",
    "Toast",
    "TooManyMonitors",
    "Turn",
    "UnknownTask",
    "Usage",
    "Wake",
    "Wakes",
    "Warned",
    "as_message",
    "as_reminder",
    "from_json",
    "open_runtime",
    "to_json",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load what only agents need, and what judges their calls, with the first who
        wants it."""
        global Approval, Approvals, Sent
        if name not in ("Approval", "Approvals", "Sent"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .agents._approvals import Approval, Approvals
        from .agents._messages import Sent

        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


_CHECKPOINT_EVERY = 32

_SHARED = (
    "{} has the directory {} open: agents that run in it are neither listed here as "
    "unfinished nor resumed"
)
_WRITES = (
    "; it writes the journal, which has the tasks of this one only from its end on"
)


class Runtime:
    """The background tasks of one program. `open_runtime` makes it.

    Attributes:
        directory: the directory of the output files and of the agents' transcripts.
        events: what happens, in order. ``runtime.events.subscribe()`` returns an
            iterator of it. The first one also has the warnings of the opening. With
            ``agents=True`` the iterator also gives what agents say.
        notifications: the ends of all background tasks, for any owner. They can be read
            after the block, too. ``async for note in runtime.notifications`` waits for
            them. The end of an agent's own task is not among them, because the agent
            gets it.
        root: the supervisor at the top of the tree. Only look at it.
    """

    def __init__(
        self,
        directory: Path,
        env: Env,
        limits: Limits,
        events: EventStream,
        policy: AgentPolicy | None,
        *,
        journal: bool,
        durable: bool,
    ) -> None:
        self.directory = directory
        self.events = events
        self._env = env
        self._life = Life(
            directory, env, limits, events, journal=journal, durable=durable
        )
        agents = Agents(self._life, policy, self._tools_of, self._reminder_of)
        self._life.agents = self._agents = agents
        self.notifications = Notifications(
            self._life.delivery.outbox, None, everyone=True
        )
        self._life.enter_paused = lambda meta, pause, said, started, before: (
            self._resumes.enter_paused(meta, pause, said, started, before)
        )
        self._launches = 0
        self._parents = Parents(self._life.delivery.outbox)
        self._progress_notes = ProgressNotes(self._life.table, self._life.delivery)
        self._monitors = Monitors(self._life, self._parents)
        self.root: Supervisor
        # Of the tools, once they were read from the environment.
        self._settings: Settings | None = None

    def __repr__(self) -> str:
        return (
            f"<Runtime {self.directory}, {len(self._life.table.live)} unfinished tasks>"
        )

    @cached_property
    def _resumes(self) -> Resumes:
        from .agents._resume import Resumes

        return Resumes(self._life, self._agents)

    @cached_property
    def _messages(self) -> Messages:
        from .agents._messages import Messages

        return Messages(self._life, self._agents, self._resumes)

    @property
    def agents(self) -> AgentPolicy:
        """The policy for all agents that `open_runtime` was given."""
        return self._agents.policy

    @property
    def approvals(self) -> Approvals:
        """The tool calls that wait for your answer. Agents make them, and your own
        model."""
        return self._agents.approvals

    @property
    def transcripts(self) -> TranscriptStore:
        """The transcripts of agents in the directory."""
        return self._agents.transcripts

    def _tools_of(self, agent_id: str) -> Iterable[Tool]:
        """Return the tools of the host for an agent, the more special ones last."""
        from .tools._set import more_tools

        return [*self.tools_for(agent_id), *more_tools(self, agent_id)]

    def _reminder_of(self, agent_id: str) -> str | None:
        """Return what runs of an agent's own, as its model is to read it."""
        from .attachments import listing

        return listing(self, agent_id)

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
        key: str | None = None,
    ) -> TaskHandle:
        """Start ``work`` as a background task and return at once.

        The task runs when the limits have a place for it, and is ``pending`` until
        then. Exactly one notification tells its end. With ``restart`` other than
        ``temporary`` it is run again, under a new run id, within ``intensity`` restarts
        in ``period`` seconds.

        A cancelled call has started nothing.

        ``notify`` says how that notification reaches its reader:

        - ``wake``: it wakes the reader.
        - ``defer``: it waits for the next one that wakes, for `Notifications.drain`, or
          for the end of the runtime.
        - ``silent``: it is on record, and is acknowledged as such at once. No reader
          sees it.

        Args:
            work: what to do, such as `actors.shell.Shell`.
            description: a few words for people. The notification of a shell also tells
                its command, if that is another text. The notification of a shell or an
                agent also tells its directory, if it was given one.
            owner: the owner of the task, for notifications and `stop_all`. With the id
                of an agent that has not ended, it is one of that agent's own tasks. In
                the run of an agent, None has the same effect. An agent's own task ends
                before the agent, and the agent gets its notification.
            tool_use_id: the id of the model's tool call. The notification repeats it.
            notify: ``wake``, ``defer`` or ``silent``.
            restart, intensity, period, backoff: as in `supervisor.tree`.
            key: what makes the launch happen once. A second launch of the same owner
                with the same key starts nothing: it returns the handle of the task that
                the first has started, also if that has ended. The journal keeps the key
                until 24 hours after that end, so it also holds in the next runtime on
                the directory. One that has it open meanwhile refuses keys. Without a
                journal a key holds in this runtime alone. For so long its task is not
                forgotten, and takes 2 to 4 kB of memory and 0.4 kB of the journal,
                beside its command or prompt and up to 8 KiB of what it printed last.
                Nothing limits their number: a key is for what must not happen twice.

        Raises:
            KeyTaken: if the key has started something else. It names both.
            KeyElsewhere: if another runtime keeps the journal of the directory. Once
                that has ended, this one takes a second, or a little more, to take over.
            RuntimeStopping: if the runtime is stopping or has ended, or if the task
                would belong to an agent that is stopping.
            DepthExceeded: if it is an agent too deep below others.
            BacklogFull: if too many notifications are not acknowledged. An agent's own
                backlog counts only against tasks that this agent launches.
            TypeError, ValueError, InvalidChildSpec, InvalidSupervisorFlags: for
                bad arguments. If anything fails later, the task is ``failed``.
        """
        try:
            policy = check_policy(restart, intensity, period, backoff)
            order = check_order(work, description, owner, tool_use_id, policy, notify)
            # As a mailbox does: others run at least once in so many launches.
            self._launches += 1
            if self._launches % _CHECKPOINT_EVERY == 0:
                await trio.lowlevel.checkpoint()
            else:
                await checkpoint_if_cancelled()
            task = None
            if key is not None:
                order.key, order.what = check_key(key), what_of(work)
                task = self._life.begun_with(order)
            if task is None:
                self._life.check_open()
                task = self._life.enter(order, background=True)
            # The caller knows of it from here on.
            journal = self._life.journal
            if journal.is_kept and journal.is_behind:
                await journal.settle()
            return TaskHandle(self._life, task)
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
        """Run ``work`` in the foreground, and return a snapshot when it has ended.

        It returns early, with the task running, when the task is moved to the
        background. Then, and only then, a notification tells the end. ``background`` in
        the snapshot says so, and the snapshot names the output file. A cancelled call
        stops the task, unless that was moved before, and waits, within the task's
        budget, for its end. A task that calls it lends its place meanwhile: see
        `Limits`.

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
        """Move a foreground task, by its handle or id, to the background, without
        restarting it. Whoever waits in `run` returns. A task that only waits for its
        place, or is being stopped, can be moved, too.

        It returns True once. Afterwards it returns False, and also for tasks that have
        ended and for unknown ids.

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
        """Move every foreground task of ``owner`` to the background. With None, move
        all but the agents' own. Return their ids in the order of launch."""
        foreground = self._life.table.foreground(as_text("owner", owner))
        return [task.task_id for task in foreground if self._life.move(task)]

    def consume(self, task: TaskHandle | str) -> bool:
        """Say that the result of an ended task, given by its handle or id, was read in
        another way, for instance by the model's own tool call. The task's notification
        is acknowledged as ``consumed``, and no reader gets it. If the present turn has
        told it, no other turn tells it.

        It returns False, and changes nothing, if a reader has the notification already.
        It does the same if there is none, because the task has not ended, ran in the
        foreground, or is unknown.

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
        """Send a message to an agent, by its handle or id, and return where it went. An
        agent that has not ended gets it in its inbox, and goes on with it if it is
        paused. An agent that has completed gets a new run with it. If the agent is just
        ending, the call waits for that.

        Messages are read in the order of the calls, each once. If a failed or stopped
        agent is resumed, it first reads what it had not read. A cancelled call has sent
        nothing, unless a new run has begun with the message.

        Args:
            sender: the sender that the agent is told. The default is the id of the
                agent that calls.
            run_id: the id of the run that it is meant for. Every other run refuses it.

        Raises:
            MessageRefused: if no run will read it. It says why: the agent failed or was
                stopped, takes no messages, or has no room for more in its inbox or its
                file.
            BacklogFull, RuntimeStopping: as `launch`, if the agent needs a new run.
            UnknownTask: for an unknown id. It lists the running tasks.
            WouldDeadlock: if the agent is just ending, and the call comes from the
                agent itself.
            TypeError, ValueError: for bad arguments.
        """
        from .agents._messages import check_message

        agent_id = self._id_of(agent)
        text = check_message(text)
        run_id = as_text("run_id", run_id)
        sender = as_text("sender", sender) or self._life.calling_agent()
        sent = await self._messages.send(agent_id, text, sender=sender, run_id=run_id)
        await self._life.journal.settle()
        return sent

    @fair
    async def resume(
        self,
        task: TaskHandle | str,
        message: str | None = None,
        *,
        agent: Agent | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> TaskHandle:
        """Let an ended or paused agent go on, by its handle or id, in a new run under the same
        id. The run gets the conversation so far, then the messages that the agent had
        not read, and then ``message``, or else the request to continue. The agent keeps
        its prompt, restrictions, model, session and depth, and what is left of its
        budget. Its deadline and rounds hold for the new run. What it may do without a
        question is judged anew.

        An agent that only the directory knows is resumed from that, with the loop of
        ``agent`` or of `AgentPolicy.run`. An agent that runs, because somebody else has
        resumed it, gets the message in its inbox. A paused one goes on before its time.
        Calls at the same time make one run.

        Anybody may have written to the directory, so an agent gains nothing by what
        stands there. Its tools, mode, depth and rounds are no more than those of its
        type, of the agent above it and of the host. Its directory is that of ``agent``,
        or else of the agent above it or of the host, unless its own is below that. A
        warning says what was changed.

        Args:
            message: what it is told, after the messages that it had not read.
            agent: an agent with the loop that goes on. If it has a budget, a deadline
                or rounds, these count.
            cwd: its directory from now on.

        If the call is refused, the agent is as it was, and so is the notification of
        its end.

        Raises:
            ResumeRefused: if the agent cannot go on. It says why.
            AgentRunsElsewhere: if another runtime runs it. It is a `ResumeRefused`.
            BacklogFull, RuntimeStopping: as `launch`.
            UnknownTask: for an unknown id. It lists the running tasks.
            WouldDeadlock: if the agent itself calls.
            TypeError, ValueError: for bad arguments.
        """
        from actors.agent import Agent, UserMessage

        from .agents._messages import check_message

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
        await self._life.journal.settle()
        return TaskHandle(self._life, resumed)

    def _id_of(self, task: TaskHandle | str) -> str:
        # Not its record: another may have taken its place.
        return task if isinstance(task, str) else member(self._life, task).task_id

    def unfinished_agents(self) -> list[AgentMeta]:
        """Return what the directory says about agents that an earlier runtime left
        unfinished and that are no tasks of this one. You can give these to `resume`. What
        cannot be read is left out, with a `Warned` event. Those whose program has died
        are not among them where there is a journal: they are tasks, and paused.

        Sub-agents are among them. If the ``owner`` of a sub-agent is listed, too, do
        not resume the sub-agent. Its parent goes on from the call that was cut, and
        calls again. `abandon_agent` takes the sub-agent from the list.
        """
        return self._resumes.unfinished()

    def abandon_agent(self, agent_id: str) -> bool:
        """Say that an agent of `unfinished_agents` will not go on. From now on it is
        ``killed``, by the ``host``, as its meta, the journal and the event
        `TaskAbandoned` say. No notification does, and none tells of the ends of its own
        tasks that it had not heard. It can still be resumed.

        It returns False, and changes nothing, if the agent is not one of these.

        Raises:
            OSError: if what the directory says about it cannot be read.
        """
        return self._resumes.abandon(agent_id)

    def agent_meta(self, agent_id: str) -> AgentMeta | None:
        """Return what the directory says about an agent of this runtime or an earlier
        one. Return None if that is nothing.

        Raises:
            OSError: if it cannot be read.
        """
        return self._resumes.meta(agent_id)

    # Asking

    def get(self, task: TaskHandle | str) -> TaskSnapshot:
        """Return the snapshot of a task that has not ended, or of one of the last that
        did.

        Raises:
            UnknownTask: for an unknown id. It lists the running tasks.
            ValueError: for a handle of another runtime.
            TypeError: if it is neither a handle nor an id.
        """
        return member(self._life, task).snapshot()

    def handle(self, task_id: str) -> TaskHandle:
        """Return the handle of a task, like `launch`.

        Raises:
            UnknownTask: for an unknown id. It lists the running tasks.
            TypeError: if it is no id.
        """
        return TaskHandle(self._life, member(self._life, task_id))

    def tasks(self, owner: str | None = None) -> list[TaskSnapshot]:
        """Return the snapshots of all known tasks of ``owner`` or, with None, of
        everybody. The ended ones come first, in the order of their ends. The others
        follow in the order of launch."""
        owner = as_text("owner", owner)
        return [
            t.snapshot()
            for t in self._life.table.all()
            if owner is None or t.owner == owner
        ]

    def notifications_for(self, owner: str | None) -> Notifications:
        """Return the view of one owner's notifications. None counts as an owner,
        too."""
        owner = as_text("owner", owner)
        return Notifications(self._life.delivery.outbox, owner, everyone=False)

    def tools_for(
        self,
        owner: str | None,
        settings: Settings | None = None,
        permissions: Permissions | None = None,
        *,
        history: Callable[[], Iterable[Message]] | None = None,
        system: str | None = None,
    ) -> list[Tool]:
        """Return the tools with which the model of ``owner`` runs, reads and
        stops tasks: see `supervisor.tools`.

        Without ``settings``, the variables ``TRIO_SUPERVISOR_*`` of the environment set
        the tools' limits. They are read at the first call.

        ``AgentPolicy.permissions`` and ``AgentPolicy.hooks`` are for the calls of
        agents. The calls of the host's own model are made as they come, unless
        ``permissions`` are given here. Then the rules, mode and functions of these
        judge each call, and may change its input. In the mode ``bubble`` the call waits
        for an answer in `approvals`, with the owner as its agent. A call that is
        refused answers with an error. Hooks are never called for these calls. Use a
        rule or a function of `Permissions.ask` instead. The policy judges the agents
        that the model starts, and its hooks are called for them.

        With ``history``, a function that returns the conversation of the host's own
        model as `actors.agent.Message` objects, that model may start forks, which begin
        with it, and agents whose definition says ``fork-context``. It is called when
        one is started. Calls in it that have no answer yet are left out. ``system`` is
        the system prompt of the forks, which should be that of the model. An agent
        needs neither: its conversation is known.

        Raises:
            TypeError: for a bad argument.
            ValueError: for a bad variable. It names the variable.
        """
        from .settings import read_settings
        from .tools._set import tools_for

        owner = as_text("owner", owner)
        if settings is None:
            if self._settings is None:
                environ = self._env.processes.environment()
                self._settings = read_settings(environ)
            settings = self._settings
        return tools_for(self, owner, settings, permissions, history, system)

    # Waiting

    @fair
    async def wait_any(self, tasks: Iterable[TaskHandle | str]) -> TaskSnapshot:
        """Wait until one of ``tasks``, which are handles or ids, has ended, and return
        its snapshot. If several have ended, return that of the first to end.

        A cancellation ends only the wait. A task that calls it lends its place
        meanwhile: see `Limits`.

        Raises:
            ValueError: if there are none.
            UnknownTask: for an id that is not known, before it waits.
            WouldDeadlock: if one of them waits.
        """
        members = self._members(tasks)
        if not members:
            raise ValueError("tasks must not be empty: none of them would ever end")
        return await wait_any(self._life, members)

    @fair
    async def wait_all(self, tasks: Iterable[TaskHandle | str]) -> list[TaskSnapshot]:
        """Wait until all of ``tasks``, which are handles or ids, have ended. Return
        their snapshots in the order given. Without tasks it returns at once.

        Raises:
            UnknownTask, WouldDeadlock: as for `wait_any`.
        """
        return await wait_all(self._life, self._members(tasks))

    def task_set(self, *tasks: TaskHandle | str) -> TaskSet:
        """Return a set of ``tasks``, which are handles or ids. It gives each task as it
        ends, and may grow meanwhile: see `TaskSet`.

        Raises:
            UnknownTask: for an id that is not known.
        """
        return TaskSet(self._life, self._members(tasks))

    def _members(self, tasks: Iterable[TaskHandle | str]) -> list[Task]:
        if isinstance(tasks, str | TaskHandle):
            raise TypeError(f"tasks must be several handles or ids, not {tasks!r}")
        return [member(self._life, task) for task in tasks]

    @fair
    async def synced(self) -> None:
        """Wait until everything that has happened so far is in the journal; with
        ``durable``, on the disk. After it an acknowledgement is certain.

        Raises:
            OSError: if the journal cannot be written at the moment, or another runtime
                writes it. It is tried again.
        """
        journal = self._life.journal
        await journal.settle()
        if journal.failure is not None:
            raise journal.failure
        if journal.other is not None:
            what = f"the journal is kept by {journal.other}"
            raise OSError(errno.EBUSY, what, str(self.directory))

    async def wait_idle(self) -> None:
        """Wait until all tasks have ended.

        Raises:
            WouldDeadlock: if a task calls it, because that has not ended itself.
        """
        await trio.lowlevel.checkpoint()
        task = self._life.current_task()
        if task is not None:
            raise WouldDeadlock(f"task {task.task_id} would wait for its own end")
        await self._life.table.wait_empty()
        # As in `Life.wait_ended`.
        await self._life.journal.settle()

    def turn(self, owner: str | None = None) -> Turn:
        """Say, for the length of an ``async with`` block, that the parent is busy. A
        `run` in the block makes a foreground task of the turn. These tasks end with the
        block. Background tasks go on.

        An owner has one turn at a time. Entering the block waits for the end of the
        present turn, which may be that of a wake (see `wakes`), and for turns that were
        asked for before. A turn inside the block of another one of the same owner, also
        in a task of a nursery in that block, is a part of that one. No wake of the
        owner begins meanwhile."""
        owner = as_text("owner", owner)
        return Turn(self._parents.of(owner))

    def is_busy(self, owner: str | None = None) -> bool:
        """Whether ``owner`` is in a turn."""
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

        A wake comes when there is something to tell, the owner is in no turn, and none
        waits to begin. It contains everything that waits, up to what a model can read
        at once. A wake is itself a turn, so wakes never overlap, whoever iterates. If
        the host begins a `turn` of its own meanwhile, that waits for the end of the
        wake and goes before the next one. A wake that leads to nothing is offered
        again, once: see `Turn`. What is consumed before the wake begins is not in it.

        The iteration ends as soon as the runtime begins to close. To ask a model may
        cost money, and tasks that a close has stopped are not worth that. What was not
        handed out can still be read, also by `notifications`. With ``after_end`` the
        iteration goes on until everything was handed out.

        With a ``window``, no wake comes until more than that many seconds have passed
        since the host last began a turn of its own. A user who has just said something
        may say more.

        For one owner, use either this or the views of `notifications`, because each
        notification goes to one reader.

        Raises:
            TypeError, ValueError: for bad arguments.
        """
        check_type("after_end", after_end, bool)
        parent = self._parents.of(as_text("owner", owner))
        return Wakes(parent, window, after_end=after_end)

    def tell_progress(
        self, task: TaskHandle | str, *, notify: Notify = "defer"
    ) -> bool:
        """Put a note of the progress of a background task, by its handle or id, into
        its owner's queue of notifications. When the note is taken, it tells what is new
        since the last one. The end of the task supersedes it. With ``wake`` it wakes
        the parent. With ``defer`` it comes with the next one that does.

        It returns False if there is nothing to tell, because the last note was not
        taken yet, nothing is new, or no such task is running in the background.

        Raises:
            ValueError: if ``notify`` is neither ``wake`` nor ``defer``.
            TypeError: if ``task`` is neither a handle nor an id.
        """
        check_one_of("notify", notify, ("wake", "defer"))
        found = self._asked(task)
        return found is not None and self._progress_notes.tell(found, notify)

    @fair
    async def monitor(
        self,
        command: Work | TaskHandle | str,
        pattern: str | re.Pattern[str] | None = None,
        *,
        description: str | None = None,
        owner: str | None = None,
        tool_use_id: str | None = None,
    ) -> Monitor:
        r"""Tell the owner of a command what it prints, line by line, while it runs::

            monitor = await runtime.monitor(Shell("tail -f log"), "ERROR", owner="main")

        The command is begun in the background, as by `launch`, or it runs there
        already and is given by its handle or id. Of one that runs, only the lines that
        it completes from now on are told.

        The lines come in notifications of the kind ``monitor``, in one order with the
        ends of tasks. There is at most one a second, of at most 4,000 characters and
        200 lines; the others are counted in it. While one waits for its reader, new
        lines are added to it. The last lines come before the end of the command is
        told, also within the same second.

        A monitor stops by itself after 10 notes in a row that woke nobody: the turns
        that took them had not `Turn.progressed`, or nobody was there to take them. Who
        is busy says so by a `turn`, by a reader that waits, or by a notification that
        is taken and not acknowledged, and is waited for. A monitor that has begun its
        command itself stops that, too. One that watches a command tells nothing more of
        it.

        An owner has at most 16 monitors at a time. A cancelled call has started
        nothing.

        Args:
            command: what to run, or the task to watch.
            pattern: text that a line must hold, as it stands, or a compiled regular
                expression that is searched for in its first 4,096 characters. None is
                for all lines. An expression of yours runs in the event loop: let it be
                quick with every line.
            description, owner, tool_use_id: as in `launch`, for a command that is begun.

        Raises:
            UnknownTask: for an unknown id. It lists the running tasks.
            ValueError: if the task is no command, or runs in the foreground; or for a
                bad argument.
            TooManyMonitors: if the owner has 16 monitors.
            RuntimeStopping, BacklogFull, TypeError: as `launch`.
        """
        expression = check_pattern(pattern)
        self._life.check_open()
        if isinstance(command, str | TaskHandle):
            if (description, owner, tool_use_id) != (None, None, None):
                raise ValueError(
                    "description, owner and tool_use_id are for a command that is begun"
                    f" here, not for {command!r}"
                )
            task = member(self._life, command)
            check_watched(task)
            watch = await self._monitors.start(
                self.root, task.owner, expression, began=False
            )
            # It may have ended meanwhile, and then there are no more lines.
            watch.attach(task, output_end(task))
            return watch.monitor
        order = check_order(command, description, owner, tool_use_id, None, "wake")
        if order.has_tasks or not order.writes_output:
            raise ValueError(f"command must be one that prints lines, not {command!r}")
        to = order.owner or self._life.calling_agent()
        watch = await self._monitors.start(self.root, to, expression, began=True)
        try:
            begun = await self.launch(
                command, description=description, owner=owner, tool_use_id=tool_use_id
            )
        except BaseException:
            watch.end("nothing was begun")
            raise
        watch.attach(member(self._life, begun), 0)
        return watch.monitor

    def monitors(self, owner: str | None = None) -> list[Monitor]:
        """Return the monitors of ``owner`` that have not ended or, with None, those of
        everybody, in the order of their beginnings."""
        owner = as_text("owner", owner)
        return [
            watch.monitor
            for watch in self._monitors.live.values()
            if owner is None or watch.owner == owner
        ]

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

        It comes as a notification of the kind ``prompt``, in one order with the ends of
        tasks. If several times pass while nobody reads it, or while the host is
        suspended, one notification tells them. A cancelled call has started nothing.

        Args:
            expression: the five fields of cron, or six with the seconds first.
            prompt: what to ask, at most 32,768 characters.
            zone: the time zone of the expression.

        Raises:
            ValueError: if the expression is not valid or has no time to come, or if the
                prompt is empty or too long.
            RuntimeStopping: if the runtime is stopping or has ended.
            SupervisorError: if cronsim, of the extra ``agents``, is not installed.
            TypeError: for bad arguments.
        """
        from .schedule import start_schedule

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
        by: StoppedBy | None = None,
        now: bool = False,
        notify: Notify | None = None,
    ) -> StopResult:
        """Stop a task, by its handle or id, and wait until it has really ended. The run
        of an agent is stopped first, and then everything below it together.

        A task that has ended already is left as it is. If something outlives the task's
        budget, the result names it. It is reported, and the task's end is told when it
        comes, with the ``notify`` of `launch`. With ``now`` a shell gets no time for
        cleaning up, even if it is being stopped already. ``notify`` replaces that of
        `launch`. ``silent`` is for a caller that reports the end itself.

        ``by`` is who wants it: ``user``, ``model`` or ``host``. The snapshot, the
        event and the notification of the end tell it, as ``ended_by``. None means the
        model, if an agent calls, and else the host.

        Raises:
            UnknownTask: for an unknown id. It lists the running tasks.
            WouldDeadlock: if the task itself calls, or one below it.
            TypeError, ValueError: for bad arguments.
        """
        reason = as_text("reason", reason)
        _check_by(by)
        check_type("now", now, bool)
        if notify is not None:
            check_one_of("notify", notify, NOTIFY)
        found = member(self._life, task)
        (result,) = await stop(self._life, [found], reason, by, now=now, notify=notify)
        return result

    @fair
    async def stop_all(
        self,
        owner: str | None = None,
        reason: str | None = None,
        *,
        by: StoppedBy | None = None,
        now: bool = False,
    ) -> list[StopResult]:
        """Stop all unfinished tasks of ``owner`` together or, with None, those of
        everybody. There is a result for each task that is not below another of them.
        ``by`` is as for `stop`.

        Raises:
            WouldDeadlock: if one of them calls.
            TypeError: for bad arguments.
        """
        owner = as_text("owner", owner)
        reason = as_text("reason", reason)
        _check_by(by)
        check_type("now", now, bool)
        tasks = self._life.table.unfinished(owner)
        return await stop(self._life, tasks, reason, by, now=now)

    @fair
    async def stop_foreground(self, owner: str | None = None) -> list[StopResult]:
        """Stop the foreground tasks of ``owner`` or, with None, all but the agents'
        own. Those in the background go on. A host does this when its user begins anew.

        Raises:
            WouldDeadlock: if one of them calls.
        """
        tasks = self._life.table.foreground(as_text("owner", owner))
        return await stop(self._life, tasks, "the foreground was cleared")


def _check_by(by: StoppedBy | None) -> None:
    if by is not None:
        check_one_of("by", by, STOPPED_BY)


class open_runtime:
    """Open a runtime with its files in ``directory``, for the length of a block::

        async with open_runtime("tasks") as runtime:
            task = await runtime.launch(Shell("make test"))
            print(await task.wait())

    When the block is left, in whatever way, every task is stopped, its end is recorded,
    and nothing is left running. Notifications that nobody has read can still be read.
    If the runtime itself fails for good, the block is cancelled and raises
    `RestartIntensityExceeded`.

    Args:
        directory: the directory of the output files. It is made if it is not there.
        limits: how many tasks may run at once.
        env: the effects. The default is the operating system. Its processes are closed
            with the runtime.
        agents: what holds for all agents. The default denies what no rule allows, also
            Bash: see `supervisor.agents.AgentPolicy`.
        journal: whether the directory remembers the tasks and their notifications, so
            that none is lost if the program dies, in whatever way: see below.
        durable: whether they survive the death of the machine, too. `launch` and `send`
            then wait for the disk.

    What the journal has is written before anybody sees it: before `launch` or `send`
    returns, before `run`, a stop or a wait returns an end, before a reader gets a notification,
    and before `Notification.ack` returns; but that cannot wait, so while a disk is slow or
    fails, and with ``durable``, `synced` tells when it is. Events and snapshots may be ahead.
    The next runtime on the directory ends each shell that had not ended, as ``failed``
    because its program has died, and keeps its output. The notification of an end that was
    not acknowledged comes again, under its id; one that was never comes again. One `Warned`
    event, and the log, tell what was found. If the disk cannot be written, everything
    goes on, and a `Warned` event tells that a crash would lose it: see `synced`. A
    second runtime on the directory keeps its records in memory until the first has
    ended, and takes over then: if it ends or dies before, they are lost.

    Another runtime may have the same directory open, also in another process. The
    second one warns of that in the log. No agent runs in both. If an agent runs in the
    other one, `unfinished_agents` does not list it, and `resume` raises
    `AgentRunsElsewhere`, until the agent or that process has ended, in whatever way.
    Shells are not concerned. This takes a lock that only Linux has. On other systems,
    no agent that is recorded as unfinished is listed or resumed as long as another
    runtime has the directory open. Where directories cannot be locked, as on Windows,
    nobody can tell whether another runtime has it.

    Raises:
        OSError: if the directory cannot be made or written to.
        NewerJournal: if a later version of this library has written the journal, or it
            names a version that is not known. Nothing there was changed.
        TypeError, ValueError: for bad arguments.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        limits: Limits | None = None,
        env: Env | None = None,
        agents: AgentPolicy | None = None,
        journal: bool = True,
        durable: bool = False,
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
        if agents is not None:
            from .agents import AgentPolicy

            check_type("agents", agents, AgentPolicy | None)
        check_type("journal", journal, bool)
        check_type("durable", durable, bool)
        if durable and not journal:
            raise ValueError("durable=True needs the journal, and journal is False")
        self._journal = journal
        self._durable = durable
        self._directory = Path(directory)
        self._limits = limits or Limits()
        self._env = env
        self._policy = agents
        self._tree: RuntimeTree | None = None
        self._close_directory: Callable[[], None]

    @enable_ki_protection
    async def __aenter__(self) -> Runtime:
        require_trio("open_runtime")
        if self._tree is not None:
            raise SupervisorError("a runtime's block can be entered only once")
        env = self._env or real_env()
        directory = env.files.make_directory(self._directory)
        events = EventStream()
        runtime = Runtime(
            directory,
            env,
            self._limits,
            events,
            self._policy,
            journal=self._journal,
            durable=self._durable,
        )
        life = runtime._life  # pyright: ignore[reportPrivateUsage]
        self._close_directory = life.close_directory
        try:
            there = await begin(life)
            self._tree = RuntimeTree(life)
            await remove_outdated(life, there)
            runtime.root = await self._tree.start()
            try:
                await recover(life, there)
            except BaseException as error:
                end = self._tree.stop(type(error), error, error.__traceback__)
                await end  # noqa: ASYNC102 - shields
                raise
        except BaseException:
            self._close_directory()
            raise
        if not life.share.is_alone():
            other = life.journal.other
            text = _SHARED.format(other or "another runtime", directory)
            life.delivery.warn(None, text + (_WRITES if other else ""))
        if life.disk is not None:
            # Or it would be found full only by the first that writes.
            life.disk.look()
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
            self._close_directory()


_publish(globals())
