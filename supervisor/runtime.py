"""The runtime: background tasks for an agent, supervised, told and never lost.

`open_runtime` builds the tree from the library's own supervisors. The root
starts ``notifier``, ``shells`` and ``agents``, and stops them in the reverse
order. A task is a temporary child of its pool; one that may be run again is
itself a supervisor with its own budget.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from actors import ActorRef, Completed, Context, Exit, TaskStatus
from actors.env import Env, real_env
from actors.envelope import Envelope
from actors.notifier import notifier
from actors.work import Work

from ._errors import BacklogFull as BacklogFull
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
from ._events import TaskRestarted as TaskRestarted
from ._events import TaskStarted as TaskStarted
from ._events import TaskStopRequested as TaskStopRequested
from ._events import Warned as Warned
from ._limits import Limits as Limits
from ._limits import Slots
from ._outbox import Notification as Notification
from ._outbox import Notifications as Notifications
from ._outbox import Outbox
from ._spec import Backoff, ChildSpec, Restart, child, is_seconds
from ._table import RestartPolicy, Table, Task, conclude, describe, describe_error
from ._table import TaskError as TaskError
from ._table import TaskSnapshot as TaskSnapshot
from ._table import Usage as Usage
from ._tree import (
    DynamicSupervisor,
    Supervisor,
    open_dynamic_supervisor,
    open_supervisor,
)

# What `Runtime.launch` has when nothing is said about restarts.
_RUN_ONCE = ("temporary", 1, 5.0, None)
_ID_PREFIXES = {"local_bash": "s", "local_agent": "", "remote_agent": "r"}
_ID_ATTEMPTS = 1_000
_CLOSE_BUDGET = 30.0
_BARE_SUMMARY = "A task ended; its report could not be read"
_CHECKPOINT_EVERY = 32
# Specs kept for tasks to come.
_SPECS = 64

# The task in whose actor the code runs, which is that of the innermost one.
_current_task: ContextVar[Task | None] = ContextVar("current task", default=None)


@attrs.frozen
class StopResult:
    """What came of a stop."""

    snapshot: TaskSnapshot
    """The task afterwards; it has ended unless there are survivors."""
    survivors: tuple[str, ...]
    """What has outlived the stop, in words: processes, or a task that is shielded."""


class TaskHandle:
    """One task, as `Runtime.launch` returns it. It stays valid for good."""

    __slots__ = ("_runtime", "_task")

    def __init__(self, runtime: Runtime, task: Task) -> None:
        self._runtime = runtime
        self._task = task

    def __repr__(self) -> str:
        return f"<TaskHandle {self.id} {self._task.status.value}>"

    @property
    def id(self) -> str:
        """The task's id."""
        return self._task.task_id

    @property
    def status(self) -> TaskStatus:
        """Where the task is in its life."""
        return self._task.status

    def snapshot(self) -> TaskSnapshot:
        """Return the task as it is now."""
        return self._task.snapshot()

    async def wait(self) -> TaskSnapshot:
        """Wait for the end of the task and return it as it is then.

        Cancelling the wait does nothing to the task. A task that waits for one
        that it launched lends its place to those who wait for one.

        Raises:
            WouldDeadlock: if the task itself waits.
        """
        await self._runtime.wait_ended(self._task)
        return self._task.snapshot()

    async def stop(self, reason: str | None = None) -> StopResult:
        """See `Runtime.stop`."""
        return await self._runtime.stop(self.id, reason)


class Turn:
    """The parent is busy. Made by `Runtime.turn`."""

    def __init__(self, runtime: Runtime, owner: str | None) -> None:
        self._runtime = runtime
        self._owner = owner

    async def __aenter__(self) -> Self:
        self._runtime.begin_turn(self._owner)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._runtime.end_turn(self._owner)


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
        self._outbox = Outbox(self._on_ack, partial(self.on_warning, None))
        self.notifications = Notifications(self._outbox, None, everyone=True)
        """The ends of all background tasks, for any owner; readable after the block."""
        self._next_notification = 0
        self._next_run = 0
        self._launches = 0
        self._busy: dict[str | None, int] = {}
        self._idle: trio.Event | None = None
        self._stopping = False
        self._closed = False
        self._specs: dict[float, ChildSpec[Any]] = {}
        self.root: Supervisor
        """The supervisor at the top of the tree, for a look at it."""
        self._notifier: ActorRef[None]
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
        self._notifier = refs["notifier"]
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

        Args:
            work: what to do, such as `actors.shell.Shell`.
            description: a few words for people.
            owner: whose task it is, for notifications and `stop_all`.
            tool_use_id: the model's tool call, repeated in the notification.
            restart, intensity, period, backoff: as for `supervisor.tree`.

        Raises:
            RuntimeStopping: if the runtime is stopping or has ended.
            BacklogFull: if too many notifications are not acknowledged.
            TypeError, InvalidChildSpec, InvalidSupervisorFlags: for bad
                arguments. Whatever fails later is a ``failed`` task.
        """
        policy = _policy(restart, intensity, period, backoff)
        order = _check_order(work, description, owner, tool_use_id, policy)
        # As a mailbox does: others run at least once in so many launches.
        self._launches += 1
        if self._launches % _CHECKPOINT_EVERY == 0:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        if self._outbox.unacknowledged >= self._limits.backlog:
            raise BacklogFull(self._outbox.unacknowledged)
        return TaskHandle(self, self._register(order, background=True))

    @enable_ki_protection
    async def run(
        self,
        work: Work,
        *,
        description: str | None = None,
        owner: str | None = None,
        tool_use_id: str | None = None,
    ) -> TaskSnapshot:
        """Run ``work`` in the foreground and return it when it has ended.

        It returns early, with the task running, when that is moved to the
        background; then, and only then, a notification tells its end. Cancelled,
        it stops the task and waits, within the task's budget, for its end. A
        task that calls it lends its place to those who wait for one.

        Raises:
            RuntimeStopping, TypeError, InvalidChildSpec: as `launch`.
        """
        order = _check_order(work, description, owner, tool_use_id, None)
        await trio.lowlevel.checkpoint()
        self._check_open()
        task = self._register(order, background=False)
        try:
            with self._lent_place(task):
                while not (task.background or task.status.is_terminal):
                    await task.wait_changed()
        except BaseException:
            if not task.background:
                # It takes no longer than the task's budget.
                with trio.CancelScope(shield=True):
                    await self._stop([task], "whoever ran it was cancelled")
            raise
        return task.snapshot()

    @enable_ki_protection
    def background(self, task_id: str) -> bool:
        """Move a foreground task to the background, without restarting it;
        whoever waits in `run` returns.

        Returns True once, and False afterwards and for ids that are unknown.
        """
        task = self._table.find(task_id)
        if task is None or task.background or task.status.is_terminal:
            return False
        task.background = True
        self._table.moved_to_background(task)
        self.events.emit(TaskBackgrounded, task.task_id)
        task.tell_change()
        return True

    def _check_open(self) -> None:
        if self._stopping:
            raise RuntimeStopping("the runtime is stopping and starts no task")

    # An interrupt must leave no file without its task, nor a task half entered.
    @enable_ki_protection
    def _register(self, order: _Order, *, background: bool) -> Task:
        task_id, output_file, error = self._make_id(order)
        task = Task(
            task_id,
            self._run_id(task_id),
            order.work,
            self._env,
            task_type=order.task_type,
            shutdown=order.shutdown,
            writes_output=order.writes_output,
            description=order.description or task_id,
            owner=order.owner,
            tool_use_id=order.tool_use_id,
            background=background,
            policy=order.policy,
            launched_by=self._current_task(),
            host=self,
        )
        task.output_file = output_file
        self._table.add(task)
        if error is not None:
            self._conclude(task, TaskStatus.FAILED, error)
        elif self._slots.take(task):
            self._start(task)
        else:
            task.context = copy_context()
        return task

    def _make_id(self, order: _Order) -> tuple[str, Path | None, OSError | None]:
        for _ in range(_ID_ATTEMPTS):
            task_id = _ID_PREFIXES[order.task_type] + self._env.ids.hex(8)
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

    def _run_id(self, task_id: str) -> str:
        # The run ids of one runtime sort in the order in which the runs began.
        self._next_run += 1
        return f"{task_id}-{self._next_run:06}"

    def _pool(self, task: Task) -> DynamicSupervisor:
        pool = self._pools[task.task_type].started_value
        assert isinstance(pool, DynamicSupervisor)
        return pool

    def _current_task(self) -> Task | None:
        """Return the task of this runtime from which the call comes, if any."""
        task = _current_task.get()
        return task if task is not None and self._table.is_live(task) else None

    def _start(self, task: Task) -> None:
        """Start a task that has a place."""
        try:
            ref = self._pool(task).start_child_nowait(
                self._spec(task.shutdown), task, id=task.task_id, watcher=self._on_end
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

    def _spec(self, shutdown: float) -> ChildSpec[Any]:
        # One spec for all tasks with the same budget: there may be 100,000.
        known = self._specs.get(shutdown)
        if known is not None:
            return known
        # The task itself is appended to its arguments.
        spec: ChildSpec[Any] = ChildSpec(
            "task", self._run_task, restart="temporary", shutdown=shutdown
        )
        if len(self._specs) < _SPECS:
            self._specs[shutdown] = spec
        return spec

    @contextmanager
    @enable_ki_protection
    def _lent_place(self, task: Task) -> Generator[None, None, None]:
        """While a task waits for one that it launched, its place is free."""
        waiting = self._current_task()
        if waiting is None or waiting is not task.launched_by:
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

    def _run_task(
        self, ctx: Context[object], task: Task
    ) -> Coroutine[object, object, None]:
        """The body of a task's actor. Not itself async: one frame less for each
        of 100,000 tasks."""
        _current_task.set(task)
        if task.policy is None:
            return self._run_once(ctx, task)
        return self._run_supervised(task, task.policy)

    async def _run_supervised(self, task: Task, policy: RestartPolicy) -> None:
        """Run a task that may have several runs, under a supervisor of its own."""
        is_transient = policy.restart == "transient"
        async with open_supervisor(
            [
                child(
                    "run",
                    self._run_once,
                    task,
                    restart=policy.restart,
                    shutdown=task.shutdown,
                    backoff=policy.backoff,
                    significant=is_transient,
                )
            ],
            intensity=policy.intensity,
            period=policy.period,
            auto_shutdown="any_significant" if is_transient else "never",
        ) as supervisor:
            (info,) = supervisor.which_children()
            task.runs = info.ref
            await trio.sleep_forever()
        # A transient task has had its last run. Its end is known already.
        assert task.runs is not None
        with trio.CancelScope(shield=True):
            task.own_exit = await task.runs.wait_stopped()

    async def _run_once(self, ctx: Context[object], task: Task) -> None:
        if ctx.number > 1:
            task.begin_again(self._run_id(task.task_id))
            self.events.emit(TaskRestarted, task.task_id, task.run_id)
        value = await task.work.run(ctx, task)
        # As text, so that nothing else of it is kept, or shown by its own methods.
        if value is not None and not task.writes_output:
            task.result = describe(value)
        if task.policy is not None and task.policy.restart == "transient":
            # There will be no other run: a stop that comes now is late.
            task.own_exit = Completed(None)

    # Ends

    def _on_end(self, ref: ActorRef[Any], exit: Exit[object]) -> None:
        """Called in the last step of a task's actor."""
        task = self._table.live[ref.id]
        status, error = conclude(exit, task.own_exit)
        self._conclude(task, status, error)

    @enable_ki_protection
    def _conclude(
        self, task: Task, status: TaskStatus, error: Exception | None
    ) -> None:
        """Record the terminal state: in one step, and only the first time."""
        if not self._table.is_live(task):
            return
        was_running = task.ref is not None
        if error is not None:
            task.error = _describe_error(error)
        # Refused only if the work itself has set a terminal one, which counts.
        task.transition(status)
        status = task.status
        task.ended_at = self._env.clock.now()
        if task.writes_output:
            task.result = task.output_tail
        task.let_go()
        self._table.end(task)
        self.events.emit(
            TaskEnded,
            task.task_id,
            status.value,
            task.exit_code,
            task.signal,
            None if task.error is None else task.error.message,
        )
        if task.background:
            self._notify(task)
        task.tell_change()
        if self._idle is not None and not self._table.live:
            self._idle.set()
            self._idle = None
        if was_running:
            # A task that lent its place has none to give back.
            if not task.waits:
                self._slots.give_back(task)
            self._start_pending()

    def _start_pending(self) -> None:
        """Start those who wait as long as there is a place for one."""
        while (task := self._slots.take_next()) is not None:
            # Not in the context of the task whose end has made the place.
            context, task.context = task.context, None
            assert context is not None
            context.run(self._start, task)

    def _notify(self, task: Task) -> None:
        self._next_notification += 1
        try:
            envelope = self._envelope(task)
        # The boundary: whatever the work has written into its report, its end
        # is told.
        except Exception as error:
            self.on_warning(task, f"told without its details: {type(error)!r}")
            envelope = self._bare_envelope(task, _BARE_SUMMARY)
        note = self._outbox.add(envelope, task.owner)
        self.events.emit(Notified, note.id, task.task_id)
        # One message is enough for all records that have come since.
        if self._outbox.has_first_unsent and self._notifier.state != "stopped":
            self._notifier.tell(None)

    def _envelope(self, task: Task) -> Envelope:
        usage = task.usage()
        return attrs.evolve(
            self._bare_envelope(task, _summary(task)),
            tool_use_id=task.tool_use_id,
            exit_code=task.exit_code,
            signal=task.signal,
            result=None if task.writes_output else task.result,
            error=None
            if task.error is None
            else f"{task.error.type}: {task.error.message}",
            output_tail=task.output_tail,
            output_truncated=task.output_truncated,
            output_file=None if task.output_file is None else str(task.output_file),
            total_tokens=usage.total_tokens,
            tool_uses=usage.tool_uses,
            duration_ms=usage.duration_ms,
        )

    def _bare_envelope(self, task: Task, summary: str) -> Envelope:
        remaining = self._table.unfinished(task.owner)
        return Envelope(
            notification_id=f"n{self._next_notification:06}",
            task_id=task.task_id,
            run_id=task.run_id,
            task_type=task.task_type,
            status=task.status.value,
            summary=summary,
            remaining=remaining,
            all_terminal=remaining == 0,
        )

    def _on_ack(self, note: Notification) -> None:
        if not self._closed:
            self.events.emit(Acked, note.id, note.task_id, note.acked)
        self._table.release(note.task_id)

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

    # Asking

    def get(self, task_id: str) -> TaskSnapshot:
        """Return a task that has not ended, or one of the last that did.

        Raises:
            UnknownTask: listing the running ones.
        """
        return self._find(task_id).snapshot()

    def tasks(self, owner: str | None = None) -> list[TaskSnapshot]:
        """Return every task that is known, of ``owner`` or of all: first the
        ended ones in order of their end, then the others in order of launch."""
        owner = _check_text("owner", owner)
        return [
            t.snapshot() for t in self._table.all() if owner is None or t.owner == owner
        ]

    def _find(self, task_id: str) -> Task:
        task = self._table.find(task_id)
        if task is None:
            raise UnknownTask(
                task_id, [(t.task_id, t.description) for t in self._table.live.values()]
            )
        return task

    def notifications_for(self, owner: str | None) -> Notifications:
        """Return the view of one owner's notifications, of which None is one too."""
        owner = _check_text("owner", owner)
        return Notifications(self._outbox, owner, everyone=False)

    async def wait_ended(self, task: Task) -> None:
        """See `TaskHandle.wait`."""
        if self._current_task() is task:
            raise WouldDeadlock(f"task {task.task_id} would wait for its own end")
        await trio.lowlevel.checkpoint()
        if task.status.is_terminal:
            return
        with self._lent_place(task):
            while not task.status.is_terminal:
                await task.wait_changed()

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
        owner = _check_text("owner", owner)
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

    async def stop(self, task_id: str, reason: str | None = None) -> StopResult:
        """Stop a task and wait until it has really ended.

        A task that has ended already is left as it is. If something outlives
        the task's budget the result names it; it is waited for and reported,
        and the task's end is told when it comes.

        Raises:
            UnknownTask: listing the running ones.
            WouldDeadlock: if the task itself asks.
        """
        reason = _check_text("reason", reason)
        (result,) = await self._stop([self._find(task_id)], reason)
        return result

    async def stop_all(
        self, owner: str | None = None, reason: str | None = None
    ) -> list[StopResult]:
        """Stop every unfinished task together, those of ``owner`` or all.

        Raises:
            WouldDeadlock: if one of them asks.
        """
        owner = _check_text("owner", owner)
        reason = _check_text("reason", reason)
        tasks = [
            t for t in self._table.live.values() if owner is None or t.owner == owner
        ]
        return await self._stop(tasks, reason)

    async def _stop(self, tasks: list[Task], reason: str | None) -> list[StopResult]:
        current = self._current_task()
        if current is not None and current in tasks:
            raise WouldDeadlock(f"task {current.task_id} would wait for its own end")
        await trio.lowlevel.checkpoint()
        by_pool = self._ask_to_stop(tasks, reason)
        if len(by_pool) == 1:
            # Not through a nursery, which would wrap an interrupt.
            ((pool, refs),) = by_pool.items()
            await pool.terminate_children(refs, reason)
        else:
            async with trio.open_nursery() as nursery:
                for pool, refs in by_pool.items():
                    nursery.start_soon(pool.terminate_children, refs, reason)
        return [StopResult(task.snapshot(), _survivors(task)) for task in tasks]

    @enable_ki_protection
    def _ask_to_stop(
        self, tasks: Iterable[Task], reason: str | None
    ) -> dict[DynamicSupervisor, list[ActorRef[Any]]]:
        """Mark them as stopping and end those that only wait for a place;
        return the others' actors, by pool."""
        by_pool: dict[DynamicSupervisor, list[ActorRef[Any]]] = {}
        for task in tasks:
            if task.status.is_terminal:
                continue
            if not task.stopping:
                task.stopping = True
                task.stop_reason = reason
                self.events.emit(TaskStopRequested, task.task_id, reason)
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
            self._closed = True
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


def _policy(
    restart: Restart, intensity: int, period: float, backoff: Backoff | None
) -> RestartPolicy | None:
    if intensity is not True and (restart, intensity, period, backoff) == _RUN_ONCE:
        return None
    ChildSpec("run", trio.sleep_forever, restart=restart, backoff=backoff)
    open_supervisor(intensity=intensity, period=period)
    if restart == "temporary":
        return None
    return RestartPolicy(
        restart=restart, intensity=intensity, period=period, backoff=backoff
    )


@attrs.frozen
class _Order:
    """What is to be started, checked, with each property of the work read once."""

    work: Work
    task_type: str
    shutdown: float
    writes_output: bool
    description: str | None
    owner: str | None
    tool_use_id: str | None
    policy: RestartPolicy | None


def _check_order(
    work: Work,
    description: str | None,
    owner: str | None,
    tool_use_id: str | None,
    policy: RestartPolicy | None,
) -> _Order:
    task_type: object = getattr(work, "task_type", None)
    if not isinstance(task_type, str) or task_type not in _ID_PREFIXES:
        raise TypeError(f"a work such as Shell(...) is wanted, not {work!r}")
    description = _check_text("description", description)
    owner = _check_text("owner", owner)
    tool_use_id = _check_text("tool_use_id", tool_use_id)
    shutdown = work.shutdown
    if not is_seconds(shutdown):
        raise TypeError(f"the shutdown of a work must be seconds, not {shutdown!r}")
    if not description:
        own: object = work.describe()
        if not isinstance(own, str):
            raise TypeError(f"the description of a work must be a str, not {own!r}")
        description = _check_text("description", own)
    return _Order(
        work,
        str.__str__(task_type),
        float(shutdown),
        bool(work.writes_output),
        description,
        owner,
        tool_use_id,
        policy,
    )


def _check_text(name: str, value: object) -> str | None:
    """Return ``value`` as a real str, so that none of its own methods runs later."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str or None, not {value!r}")
    return str.__str__(value)


def _describe_error(error: Exception) -> TaskError:
    # The boundary: even the class of an error may raise when it is looked at.
    try:
        return describe_error(error)
    except Exception:
        return TaskError("Exception", "an error that cannot be shown", "")


def _summary(task: Task) -> str:
    what = "Command" if task.task_type == "local_bash" else "Agent"
    if task.status is TaskStatus.KILLED:
        why = task.stop_reason
        end = "was stopped" if why is None else f"was stopped: {why}"
    elif task.status is TaskStatus.FAILED:
        end = f"failed: {'unknown error' if task.error is None else task.error.message}"
    elif task.exit_code is not None:
        end = f"completed (exit code {task.exit_code})"
    else:
        end = "completed"
    return f'{what} "{task.description}" {end}'


def _survivors(task: Task) -> tuple[str, ...]:
    if task.status.is_terminal:
        return ()
    if task.survivors:
        return tuple(f"process {pid}" for pid in task.survivors)
    return (f"the task {task.task_id} itself: it is shielded or blocked",)
