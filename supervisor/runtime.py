"""The runtime: background tasks for an agent, supervised, told and never lost.

`open_runtime` builds the tree from the library's own supervisors. The root
starts ``notifier``, ``shells`` and ``agents``, and stops them in the reverse
order. A task is a temporary child of its pool; one that may be run again is
itself a supervisor with its own budget.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import trio
from trio.lowlevel import enable_ki_protection

from actors import ActorRef, Completed, Exit, TaskStatus
from actors.env import Env, real_env
from actors.lowlevel import current_actor
from actors.notifier import notifier
from actors.output import DiskQuota
from actors.work import Work

from ._child import Child
from ._delivery import Delivery
from ._display import DisplayItem as DisplayItem
from ._display import DisplayQueue as DisplayQueue
from ._display import Folded as Folded
from ._display import cap_lines as cap_lines
from ._ends import conclude, describe, describe_error
from ._errors import BacklogFull as BacklogFull
from ._errors import InputClosed as InputClosed
from ._errors import OutputEnded as OutputEnded
from ._errors import RuntimeStopping as RuntimeStopping
from ._errors import SupervisorError, SupervisorStopping
from ._errors import UnknownTask as UnknownTask
from ._errors import WouldDeadlock as WouldDeadlock
from ._events import Acked as Acked
from ._events import EventStream
from ._events import Notified as Notified
from ._events import TaskBackgrounded as TaskBackgrounded
from ._events import TaskEnded as TaskEnded
from ._events import TaskProgress as TaskProgress
from ._events import TaskPrompted as TaskPrompted
from ._events import TaskRestarted as TaskRestarted
from ._events import TaskRestartScheduled as TaskRestartScheduled
from ._events import TaskStarted as TaskStarted
from ._events import TaskStopRequested as TaskStopRequested
from ._events import Warned as Warned
from ._handles import StopResult as StopResult
from ._handles import TaskHandle as TaskHandle
from ._handles import Turn
from ._limits import Limits as Limits
from ._limits import Slots
from ._orders import (
    ID_PREFIXES,
    Order,
    check_flag,
    check_notify,
    check_order,
    check_policy,
    check_text,
)
from ._outbox import Notification as Notification
from ._outbox import Notifications as Notifications
from ._outbox import Notify, Outbox
from ._runs import Runs
from ._spec import Backoff, ChildSpec, Restart, child
from ._table import Table, Task
from ._table import TaskError as TaskError
from ._table import TaskSnapshot as TaskSnapshot
from ._table import Usage as Usage
from ._tree import (
    DynamicSupervisor,
    Supervisor,
    open_dynamic_supervisor,
    open_supervisor,
)
from ._waiting import TaskSet as TaskSet
from ._waiting import refuse_own_end, wait_all, wait_any

if TYPE_CHECKING:
    from .settings import Settings
    from .tools import Tool

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "Acked",
    "BacklogFull",
    "DisplayItem",
    "DisplayQueue",
    "Folded",
    "InputClosed",
    "Limits",
    "Notification",
    "Notifications",
    "Notified",
    "OutputEnded",
    "Runtime",
    "RuntimeStopping",
    "StopResult",
    "TaskBackgrounded",
    "TaskEnded",
    "TaskError",
    "TaskHandle",
    "TaskProgress",
    "TaskPrompted",
    "TaskRestartScheduled",
    "TaskRestarted",
    "TaskSet",
    "TaskSnapshot",
    "TaskStarted",
    "TaskStopRequested",
    "UnknownTask",
    "Usage",
    "Warned",
    "WouldDeadlock",
    "cap_lines",
    "open_runtime",
]

_IS_STOPPING = "the runtime is stopping and starts no task"
_ID_ATTEMPTS = 1_000
_CLOSE_BUDGET = 30.0
_CHECKPOINT_EVERY = 32
# Specs kept for tasks to come.
_SPECS = 64


class Runtime:
    """The tasks of one agent and its owners. Made by `open_runtime`."""

    def __init__(
        self, directory: Path, env: Env, limits: Limits, events: EventStream
    ) -> None:
        self.directory = directory
        """Where the output files are."""
        self.events = events
        """What happens, in order: see `EventStream.subscribe`."""
        self._env = env
        self._limits = limits
        self._table = Table()
        self._slots: Slots[Task] = Slots(limits)
        self._runs = Runs(events)
        self._delivery = Delivery(self._table, events, self.on_warning)
        self._outbox = self._delivery.outbox
        self._disk = (
            None
            if limits.disk is None
            else DiskQuota(limits.disk, partial(self.on_warning, None))
        )
        self.notifications = Notifications(self._outbox, None, everyone=True)
        """The ends of all background tasks, for any owner; readable after the block."""
        self._launches = 0
        self._busy: dict[str | None, int] = {}
        self._idle: trio.Event | None = None
        self._stopping = False
        self._specs: dict[float, ChildSpec[Any]] = {}
        self.root: Supervisor
        """The supervisor at the top of the tree, for a look at it."""
        # Of the tools, once they were read from the environment.
        self._settings: Settings | None = None
        # Refs, because a pool that crashed comes back as another object.
        self._pools: dict[str, ActorRef[Any]]

    def __repr__(self) -> str:
        return f"<Runtime {self.directory}, {len(self._table.live)} unfinished tasks>"

    @property
    def outbox(self) -> Outbox:
        """For the notifier."""
        return self._outbox

    def attach(self, root: Supervisor) -> None:
        """Called once, when the tree stands."""
        self.root = root
        refs = {info.id: info.ref for info in root.which_children()}
        if {"notifier", "shells", "agents"} - refs.keys():
            self._stopping = True
            return
        self._delivery.notifier = refs["notifier"]
        self._pools = {
            "local_bash": refs["shells"],
            "local_agent": refs["agents"],
            "remote_agent": refs["agents"],
        }

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
            description: a few words for people.
            owner: whose task it is, for notifications and `stop_all`.
            tool_use_id: the model's tool call, repeated in the notification.
            notify: ``wake``, ``defer`` or ``silent``.
            restart, intensity, period, backoff: as for `supervisor.tree`.

        Raises:
            RuntimeStopping: if the runtime is stopping or has ended.
            BacklogFull: if too many notifications are not acknowledged.
            TypeError, ValueError, InvalidChildSpec, InvalidSupervisorFlags: for
                bad arguments. Whatever fails later is a ``failed`` task.
        """
        policy = check_policy(restart, intensity, period, backoff)
        order = check_order(work, description, owner, tool_use_id, policy, notify)
        # As a mailbox does: others run at least once in so many launches.
        self._launches += 1
        if self._launches % _CHECKPOINT_EVERY == 0:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        if self._stopping:
            raise RuntimeStopping(_IS_STOPPING)
        if self._outbox.unacknowledged >= self._limits.backlog:
            raise BacklogFull(self._outbox.unacknowledged)
        return TaskHandle(self, self._register(order, background=True))

    @enable_ki_protection
    async def run(  # noqa: ASYNC114
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
        task's budget, for its end. A task that calls it lends its place to those
        who wait for one.

        ``handle = await nursery.start(runtime.run, work)`` gives the handle as
        soon as the task has its id, also while it waits for its place.

        Raises:
            RuntimeStopping, TypeError, InvalidChildSpec: as `launch`.
        """
        order = check_order(work, description, owner, tool_use_id, None, "wake")
        await trio.lowlevel.checkpoint()
        if self._stopping:
            raise RuntimeStopping(_IS_STOPPING)
        task = self._register(order, background=False)
        try:
            task_status.started(TaskHandle(self, task))
            with self.lent_place((task,)):
                while not task.background and task.ended_at is None:
                    await task.wait_changed()
        except BaseException:
            if not task.background:
                # It takes no longer than the task's budget.
                with trio.CancelScope(shield=True):
                    await self._end([task], "whoever ran it was cancelled")
            raise
        return task.snapshot()

    def background(self, task: TaskHandle | str) -> bool:
        """Move a foreground task, by its handle or id, to the background,
        without restarting it; whoever waits in `run` returns. A task that only
        waits for its place, or is being stopped, can be moved as well.

        Returns True once, and False afterwards, for tasks that have ended and
        for ids that are unknown.
        """
        found = self.known(task)
        return found is not None and self._move(found)

    def background_all(self, owner: str | None = None) -> list[str]:
        """Move every foreground task to the background, those of ``owner`` or,
        with None, all, and return their ids in the order of launch."""
        return [task.task_id for task in self._foreground(owner) if self._move(task)]

    @enable_ki_protection
    def _move(self, task: Task) -> bool:
        if task.background or task.status.is_terminal:
            return False
        task.background = True
        self._table.moved_to_background(task)
        self.events.emit(TaskBackgrounded, task.task_id)
        task.tell_change()
        return True

    def _foreground(self, owner: str | None) -> list[Task]:
        owner = check_text("owner", owner)
        return [
            task
            for task in self._table.live.values()
            if not task.background and (owner is None or task.owner == owner)
        ]

    # An interrupt must leave no file without its task, nor a task half entered.
    @enable_ki_protection
    def _register(self, order: Order, *, background: bool) -> Task:
        task_id, output_file, error = self._make_id(order)
        task = Task(
            task_id,
            self._runs.new_id(task_id),
            order.work,
            self._env,
            task_type=order.task_type,
            shutdown=order.shutdown,
            writes_output=order.writes_output,
            takes_input=order.takes_input,
            description=order.description or task_id,
            owner=order.owner,
            tool_use_id=order.tool_use_id,
            background=background,
            notify=order.notify,
            policy=order.policy,
            launched_by=self._current_task(),
            host=self,
        )
        if output_file is not None:
            task.output_file = output_file
            task.disk = self._disk
        self._table.add(task)
        if error is not None:
            self._conclude(task, TaskStatus.FAILED, error)
        elif self._slots.take(task):
            self._start(task)
        else:
            task.context = copy_context()
        return task

    def _make_id(self, order: Order) -> tuple[str, Path | None, OSError | None]:
        for _ in range(_ID_ATTEMPTS):
            task_id = ID_PREFIXES[order.task_type] + self._env.ids.hex(8)
            if task_id in self._table:
                continue
            if not order.writes_output:
                return task_id, None, None
            path = self.directory / f"{task_id}.output"
            try:
                self._env.files.reserve(path)
            except FileExistsError:
                continue
            except OSError as error:
                return task_id, None, error
            return task_id, path, None
        raise SupervisorError(f"no free task id was found in {_ID_ATTEMPTS} attempts")

    def _pool(self, task: Task) -> DynamicSupervisor:
        pool = self._pools[task.task_type].started_value
        assert isinstance(pool, DynamicSupervisor)
        return pool

    def _current_task(self) -> Task | None:
        """Return the task of this runtime from which the call comes, if any."""
        actor = current_actor()
        while isinstance(actor, Child):
            task = self._table.live.get(actor.id)
            if task is not None and task.ref is actor:
                return task
            actor = actor.home.actor
        return None

    def _start(self, task: Task) -> None:
        """Start a task that has a place."""
        try:
            ref = self._pool(task).start_child_nowait(
                self._specs.get(task.shutdown) or self._make_spec(task.shutdown),
                task,
                id=task.task_id,
                watcher=self._on_end,
            )
        except SupervisorStopping as error:
            # An interrupt in a task ends its pool before the runtime knows, or
            # somebody ended the pool by hand.
            self._slots.give_back(task)
            self.on_warning(task, str(error))
            self._conclude(task, TaskStatus.KILLED, None)
            return
        task.ref = ref
        task.transition(TaskStatus.RUNNING)
        task.started_at = self._env.clock.now()
        self.events.emit(
            TaskStarted,
            task.task_id,
            task.run_id,
            task.task_type,
            task.description,
            task.owner,
        )

    def _make_spec(self, shutdown: float) -> ChildSpec[Any]:
        # One spec for all tasks with the same budget: there may be 100,000.
        # The task itself is appended to its arguments.
        spec: ChildSpec[Any] = ChildSpec(
            "task", self._runs.body, restart="temporary", shutdown=shutdown
        )
        if len(self._specs) < _SPECS:
            self._specs[shutdown] = spec
        return spec

    @contextmanager
    @enable_ki_protection
    def lent_place(self, tasks: Iterable[Task]) -> Generator[None, None, None]:
        """While a task waits for one that it launched, its place is free."""
        waiting = self._current_task()
        if waiting is None or all(waiting is not t.launched_by for t in tasks):
            yield
            return
        waiting.waits += 1
        if waiting.waits == 1:
            self._slots.give_back(waiting)
            self._start_pending()
        try:
            yield
        finally:
            waiting.waits -= 1
            # It goes on at once; until a place is free again nobody else starts.
            if waiting.waits == 0 and self._table.is_live(waiting):
                self._slots.occupy(waiting)

    # Ends

    def _on_end(self, ref: ActorRef[Any], exit: Exit[object]) -> None:
        """Called in the last step of a task's actor."""
        task = self._table.live[ref.id]
        if (
            isinstance(exit, Completed)
            and exit.value is not None
            and task.policy is None
        ):
            # As text, so that nothing else of it is kept, or shown by its own
            # methods.
            task.result = describe(exit.value)
        status, error = conclude(exit, task.own_exit)
        self._conclude(task, status, error)

    @enable_ki_protection
    def _conclude(
        self, task: Task, status: TaskStatus, error: Exception | None
    ) -> None:
        """Record the terminal state: in one step, and only the first time."""
        if self._table.live.get(task.task_id) is not task:
            return
        was_running = task.ref is not None
        if error is not None:
            task.error = describe_error(error)
        # Refused only if the work itself has set a terminal one, which counts.
        task.transition(status)
        status = task.status
        task.ended_at = self._env.clock.now()
        if task.writes_output and task.output_tail is not None:
            task.result = task.output_tail
        task.let_go()
        remaining = self._table.end(task)
        self.events.emit(
            TaskEnded,
            task.task_id,
            status._value_,
            None if task.rare is None else task.exit_code,
            None if task.rare is None else task.signal,
            None if task.error is None else task.error.message,
        )
        if task.background:
            self._delivery.tell(task, remaining)
        task.tell_end()
        if self._idle is not None and not self._table.live:
            self._idle.set()
            self._idle = None
        if was_running:
            # A task that lent its place has none to give back.
            if not task.waits:
                self._slots.give_back(task)
            if self._slots.waiting:
                self._start_pending()
        if not task.background:
            # Nobody waits to hear of it.
            self._delivery.let_go(task)

    def _start_pending(self) -> None:
        """Start those who wait as long as there is a place for one."""
        while (task := self._slots.take_next()) is not None:
            # Not in the context of the task whose end has made the place.
            context, task.context = task.context, None
            assert context is not None
            context.run(self._start, task)

    def consume(self, task: TaskHandle | str) -> bool:
        """Say that the result of an ended task, given by its handle or id, was
        read in another way, for instance by the model's own tool call: its
        notification is acknowledged as ``consumed`` and no reader gets it.

        Returns False, and changes nothing, if a reader has it already, or if
        there is none: the task has not ended, ran in the foreground, or is
        unknown.
        """
        found = self.known(task)
        return found is not None and self._delivery.consume(found)

    def on_progress(self, task: Task) -> None:
        """Called by a task whose progress is worth telling."""
        progress = task.progress
        assert progress is not None
        self.events.emit(
            TaskProgress,
            task.task_id,
            progress.text,
            progress.bytes_written,
            progress.tool_uses,
            progress.total_tokens,
        )

    def on_warning(self, task: Task | None, text: str) -> None:
        """Called when something about a task is not as it should be."""
        self.events.emit(Warned, None if task is None else task.task_id, text)

    def on_prompt(self, task: Task) -> None:
        """Called by a task that probably waits for an answer."""
        assert task.prompt is not None
        self.events.emit(TaskPrompted, task.task_id, task.prompt)

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
        return TaskHandle(self, self._find(task_id))

    def tasks(self, owner: str | None = None) -> list[TaskSnapshot]:
        """Return every task that is known, of ``owner`` or, with None, of all:
        first the ended ones in order of their end, then the others in order of
        launch."""
        owner = check_text("owner", owner)
        return [
            t.snapshot() for t in self._table.all() if owner is None or t.owner == owner
        ]

    def _find(self, task: TaskHandle | str) -> Task:
        if isinstance(task, TaskHandle):
            return self.member(task)
        found = self._table.find(task)
        if found is None:
            raise UnknownTask(
                task, [(t.task_id, t.description) for t in self._table.live.values()]
            )
        return found

    def notifications_for(self, owner: str | None) -> Notifications:
        """Return the view of one owner's notifications, of which None is one too."""
        owner = check_text("owner", owner)
        return Notifications(self._outbox, owner, everyone=False)

    def tools_for(
        self, owner: str | None, settings: Settings | None = None
    ) -> list[Tool]:
        """Return the tools with which the model of ``owner`` runs, reads and
        stops tasks: see `supervisor.tools`.

        Without ``settings`` they are as the variables ``TRIO_SUPERVISOR_*`` of
        the environment say, which are read at the first call.

        Raises:
            TypeError: for a bad argument.
            ValueError: for a bad variable, naming it.
        """
        from .settings import read_settings
        from .tools import tools_for

        owner = check_text("owner", owner)
        if settings is None:
            if self._settings is None:
                environ = self._env.processes.environment()
                self._settings = read_settings(environ)
            settings = self._settings
        return tools_for(self, owner, settings)

    # Waiting

    async def wait_ended(self, task: Task) -> None:
        """See `TaskHandle.wait`."""
        self.refuse_own_end((task,))
        await trio.lowlevel.checkpoint()
        if self._current_task() is None:
            while task.ended_at is None:
                await task.wait_changed()
            return
        with self.lent_place((task,)):
            while task.ended_at is None:
                await task.wait_changed()

    async def wait_any(self, tasks: Iterable[TaskHandle | str]) -> TaskSnapshot:
        """Wait until one of ``tasks``, handles or ids, has ended, and return it;
        of several that have, the first to end.

        Cancelling the wait does nothing to the tasks. A task that waits for one
        that it launched lends its place to those who wait for one.

        Raises:
            ValueError: if there are none.
            UnknownTask: for an id that is not known, before anything is waited
                for.
            WouldDeadlock: if one of them waits.
        """
        members = self._members(tasks)
        if not members:
            raise ValueError("tasks must not be empty: none of them would ever end")
        return await wait_any(self, members)

    async def wait_all(self, tasks: Iterable[TaskHandle | str]) -> list[TaskSnapshot]:
        """Wait until all of ``tasks``, handles or ids, have ended, and return
        them in the order given; at once if there are none.

        Raises:
            UnknownTask, WouldDeadlock: as for `wait_any`.
        """
        return await wait_all(self, self._members(tasks))

    def task_set(self, *tasks: TaskHandle | str) -> TaskSet:
        """Return a set of tasks, handles or ids, that gives each of them as it
        ends, and may grow meanwhile: see `TaskSet`.

        Raises:
            UnknownTask: for an id that is not known.
        """
        return TaskSet(self, self._members(tasks))

    def _members(self, tasks: Iterable[TaskHandle | str]) -> list[Task]:
        if isinstance(tasks, str | TaskHandle):
            raise TypeError(f"tasks must be several handles or ids, not {tasks!r}")
        return [self.member(task) for task in tasks]

    def member(self, task: TaskHandle | str) -> Task:
        """Return the record behind a handle or an id, for a `TaskSet`."""
        found = self.known(task)
        if found is not None:
            return found
        if isinstance(task, str):
            return self._find(task)
        if isinstance(task, TaskHandle):
            raise ValueError(f"{task!r} is a task of another runtime")
        raise TypeError(f"a TaskHandle or a task id is wanted, not {task!r}")

    def known(self, task: object) -> Task | None:
        """Return the record behind a handle or an id of ours, or None."""
        if isinstance(task, TaskHandle):
            return task.belongs_to(self)
        return self._table.find(task)

    def refuse_own_end(self, tasks: Iterable[Task]) -> None:
        """Raise WouldDeadlock if the call comes from one of ``tasks``."""
        refuse_own_end(self._current_task(), tasks)

    async def wait_idle(self) -> None:
        """Wait until no task is unfinished.

        Raises:
            WouldDeadlock: if a task waits, which is not finished itself.
        """
        task = self._current_task()
        if task is not None:
            raise WouldDeadlock(f"task {task.task_id} would wait for its own end")
        await trio.lowlevel.checkpoint()
        while self._table.live:
            if self._idle is None:
                self._idle = trio.Event()
            await self._idle.wait()

    def turn(self, owner: str | None = None) -> Turn:
        """Say, for the length of an ``async with`` block, that the parent is
        busy. The foreground tasks of the turn are those that `run` is called
        for in the block; they end with it. Background tasks go on."""
        owner = check_text("owner", owner)
        return Turn(self, owner)

    def begin_turn(self, owner: str | None) -> None:
        """See `turn`."""
        self._busy[owner] = self._busy.get(owner, 0) + 1

    def end_turn(self, owner: str | None) -> None:
        """See `turn`."""
        self._busy[owner] -= 1
        if not self._busy[owner]:
            del self._busy[owner]

    def is_busy(self, owner: str | None = None) -> bool:
        """Whether a turn of ``owner`` is under way."""
        return owner in self._busy

    # Stopping

    async def stop(
        self,
        task: TaskHandle | str,
        reason: str | None = None,
        *,
        now: bool = False,
        notify: Notify | None = None,
    ) -> StopResult:
        """Stop a task, by its handle or id, and wait until it has really ended.

        A task that has ended already is left as it is. If something outlives
        the task's budget the result names it; it is waited for and reported,
        and the task's end is told when it comes, as `launch` said. With ``now`` a shell gets no
        time for cleaning up, also one that is being stopped already. ``notify``
        replaces what `launch` said: ``silent`` is for a caller that tells of the
        end itself.

        Raises:
            UnknownTask: listing the running ones.
            WouldDeadlock: if the task itself asks.
            TypeError, ValueError: for bad arguments.
        """
        reason = check_text("reason", reason)
        check_flag("now", now)
        if notify is not None:
            check_notify(notify)
        found = self._find(task)
        return await self.stop_task(found, reason, now=now, notify=notify)

    async def stop_task(
        self,
        task: Task,
        reason: str | None,
        *,
        now: bool = False,
        notify: Notify | None = None,
    ) -> StopResult:
        """See `stop`."""
        (result,) = await self._stop([task], reason, now=now, notify=notify)
        return result

    async def stop_all(
        self,
        owner: str | None = None,
        reason: str | None = None,
        *,
        now: bool = False,
    ) -> list[StopResult]:
        """Stop every unfinished task together, those of ``owner`` or, with None,
        all.

        Raises:
            WouldDeadlock: if one of them asks.
            TypeError: for bad arguments.
        """
        owner = check_text("owner", owner)
        reason = check_text("reason", reason)
        check_flag("now", now)
        tasks = [
            t for t in self._table.live.values() if owner is None or t.owner == owner
        ]
        return await self._stop(tasks, reason, now=now)

    async def stop_foreground(self, owner: str | None = None) -> list[StopResult]:
        """Stop the foreground tasks, those of ``owner`` or, with None, all, and
        keep those in the background: what a host does when its user begins afresh.

        Raises:
            WouldDeadlock: if one of them asks.
        """
        return await self._stop(self._foreground(owner), "the foreground was cleared")

    async def _stop(
        self,
        tasks: list[Task],
        reason: str | None,
        *,
        now: bool = False,
        notify: Notify | None = None,
    ) -> list[StopResult]:
        self.refuse_own_end(tasks)
        await trio.lowlevel.checkpoint()
        return await self._end(tasks, reason, now=now, notify=notify)

    async def _end(
        self,
        tasks: list[Task],
        reason: str | None,
        *,
        now: bool = False,
        notify: Notify | None = None,
    ) -> list[StopResult]:
        policies: list[Notify] = [task.notify for task in tasks]
        by_pool = self._ask_to_stop(tasks, reason, now=now, notify=notify)
        try:
            if len(by_pool) == 1:
                # Not through a nursery, which would wrap an interrupt.
                ((pool, refs),) = by_pool.items()
                await pool.terminate_children(refs, reason)
            else:
                async with trio.open_nursery() as nursery:
                    for pool, refs in by_pool.items():
                        nursery.start_soon(pool.terminate_children, refs, reason)
        finally:
            if notify is not None:
                # Whoever wanted to tell of the end itself has not seen it.
                for task, policy in zip(tasks, policies, strict=True):
                    if not task.status.is_terminal:
                        task.notify = policy
        return [StopResult(task) for task in tasks]

    @enable_ki_protection
    def _ask_to_stop(
        self,
        tasks: Iterable[Task],
        reason: str | None,
        *,
        now: bool = False,
        notify: Notify | None = None,
    ) -> dict[DynamicSupervisor, list[ActorRef[Any]]]:
        """Mark them as stopping and end those that only wait for a place;
        return the others' actors, by pool."""
        by_pool: dict[DynamicSupervisor, list[ActorRef[Any]]] = {}
        for task in tasks:
            if task.status.is_terminal:
                continue
            if notify is not None:
                task.notify = notify
            if not task.stopping:
                task.stopping = True
                task.stop_reason = reason
                self.events.emit(TaskStopRequested, task.task_id, reason)
            if now:
                task.hurry_up()
            if task.ref is None:
                self._slots.leave_queue(task)
                self._conclude(task, TaskStatus.KILLED, None)
            else:
                by_pool.setdefault(self._pool(task), []).append(task.ref)
        return by_pool

    def close(self) -> None:
        """Refuse new tasks and end those that only wait. Idempotent."""
        self._stopping = True
        self._ask_to_stop(list(self._table.live.values()), "the runtime is closing")

    async def closed(self) -> None:
        """Called when the tree has ended: give back the rest."""
        self._outbox.close()
        interrupted = False
        try:
            # In a task of its own, because trio raises an interrupt in the main
            # one, in the middle of whatever it does.
            async with trio.open_nursery() as nursery:  # noqa: ASYNC112
                nursery.start_soon(self._close_processes)
        except* KeyboardInterrupt:
            interrupted = True
        finally:
            self.events.close()
        if interrupted:
            raise KeyboardInterrupt

    @enable_ki_protection
    async def _close_processes(self) -> None:
        with trio.move_on_after(_CLOSE_BUDGET, shield=True) as scope:
            await self._env.processes.aclose()
        if scope.cancelled_caught:
            self.on_warning(
                None, f"the processes were not closed in {_CLOSE_BUDGET:g} s"
            )


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
    ) -> None:
        if not isinstance(directory, str | os.PathLike):
            raise TypeError(f"directory must be a path, not {directory!r}")
        name = os.fspath(directory)
        if not isinstance(name, str):
            raise TypeError(f"directory must be a path made of text, not {directory!r}")
        if not name or "\0" in name:
            raise ValueError(f"directory must be a possible path, not {directory!r}")
        if limits is not None and not isinstance(limits, Limits):
            raise TypeError(f"limits must be Limits or None, not {limits!r}")
        if env is not None and not isinstance(env, Env):
            raise TypeError(f"env must be an Env or None, not {env!r}")
        self._directory = Path(directory)
        self._limits = limits or Limits()
        self._env = env
        self._runtime: Runtime | None = None

    @enable_ki_protection
    async def __aenter__(self) -> Runtime:
        if self._runtime is not None:
            raise SupervisorError("a runtime's block can be entered only once")
        env = self._env or real_env()
        directory = env.files.make_directory(self._directory)
        events = EventStream()
        self._runtime = runtime = Runtime(directory, env, self._limits, events)
        self._root = open_supervisor(
            [
                child("notifier", notifier, runtime.outbox, drain=5.0),
                child("shells", open_dynamic_supervisor, kind="supervisor"),
                child("agents", open_dynamic_supervisor, kind="supervisor"),
            ],
            # For the notifier: a crash now and then is none of the tasks' business.
            intensity=10,
            period=10.0,
            name="runtime",
            env=env,
            events=events,
        )
        try:
            root = await self._root.__aenter__()
        except BaseException:
            with trio.move_on_after(2 * _CLOSE_BUDGET, shield=True):
                await runtime.closed()
            raise
        # An interrupt may have ended it while it opened: then the block is
        # entered cancelled already, with less in it.
        runtime.attach(root)
        return runtime

    @enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        runtime = self._runtime
        assert runtime is not None
        try:
            runtime.close()
        finally:
            await self._leave(  # noqa: ASYNC102 - it shields what it must
                runtime, exc_type, exc, traceback
            )

    async def _leave(
        self,
        runtime: Runtime,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            # It never ends early without an error of its own, so it never
            # swallows one.
            await self._root.__aexit__(exc_type, exc, traceback)
        finally:
            with trio.move_on_after(2 * _CLOSE_BUDGET, shield=True):
                await runtime.closed()
