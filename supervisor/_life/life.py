"""The life of a task: from an order to the record of its end.

Nothing else changes the status of a task. Each step, the entry, the start and
the end, is synchronous and protected from interrupts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVarTuple

import trio
from trio.lowlevel import enable_ki_protection

from actors import ActorRef, Completed, Context, Exit, Stopped, TaskStatus
from actors.env import Env
from actors.hosting import DiskQuota, Ledger
from actors.house import fewer_collections
from actors.lowlevel import current_actor

from .._delivery.outbox import Notify
from .._tasks.endings import EndedBy, who_ended
from .._tasks.errors import BacklogFull, RuntimeStopping
from .._tasks.journal.records import Moved
from .._tasks.journal.writer import Journal
from .._tasks.kinds import KINDS
from .._tasks.limits import Limits
from .._tasks.orders import depth_below, parent_of
from .._tasks.places import Places
from .._tasks.record import Order, Table, Task
from .._tasks.snapshot import Pause
from .._tasks.task_events import (
    JournalWritten,
    TaskBackgrounded,
    TaskEnded,
    TaskStarted,
    TaskStopRequested,
    Warned,
)
from ..tree._children import Child
from ..tree._errors import SupervisorError, SupervisorStopping, WouldDeadlock
from ..tree._events import EventStream
from ..tree._log import log
from ..tree._spec import ChildSpec
from ..tree._supervisor import DynamicSupervisor
from .keys import KEPT, Keys
from .pauses import Pauses
from .recording import begun, over, time_of
from .runs import Runs
from .telling import Delivery, describe, describe_error, outcome_of

if TYPE_CHECKING:
    from actors.agent import Message
    from actors.agent.hosting import Inbox
    from actors.transcript import AgentMeta
    from actors.transcript.hosting import Transcript

    from .._tasks.agent_task import AgentTask
    from .._tasks.journal.records import Started
    from .._tasks.pausing import Before
    from .._tasks.revival import Revival
    from .agent_side import AgentSide

Ts = TypeVarTuple("Ts")

_ID_ATTEMPTS = 1_000
# The number of a run. No file says more, or it is not believed; `actors.transcript`
# reads them.
_HIGHEST_RUN = 10**12
# Specs kept for tasks to come.
_SPECS = 64
# How often each part in an end is tried.
_TRIES = 3
# For each try after the first, and when there is no other: whether that is so.
_AGAIN = (*[False] * (_TRIES - 1), True)
# Characters of a result in the event of an end.
_RESULT_TOLD = 4_096
# When something was, if no clock can tell.
_UNKNOWN = datetime.fromtimestamp(0, UTC)


class Life:
    """Every task of one runtime, and what becomes of them."""

    # What its agents share; set when the runtime is made.
    agents: AgentSide
    # Enters an agent of the directory as a paused task; set likewise.
    enter_paused: Callable[
        [AgentMeta, Pause, Transcript | None, Started | None, Before | None],
        AgentTask,
    ]

    def __init__(
        self,
        directory: Path,
        env: Env,
        limits: Limits,
        events: EventStream,
        *,
        journal: bool,
        durable: bool,
    ) -> None:
        self.directory = directory
        # Closed with the runtime.
        self.share = env.files.share(directory)
        self.env = env
        self.limits = limits
        self.events = events
        self.table = Table()
        self.places = Places(limits, self.table, self._start_waiting)
        self.slots = self.places.slots
        self.runs = Runs(self)
        self.pauses = Pauses(self)
        self.journal = Journal(
            env.files,
            self.share,
            directory,
            is_kept=journal,
            durable=durable,
            kept_since=self._kept_since,
            warn=self._warn,
            wrote=partial(events.emit, JournalWritten),
        )
        self.delivery = Delivery(self.table, events, self.journal, env.ids)
        self.delivery.outbox.wait_by = self.wait_for
        self.keys = Keys(self)
        self.is_stopping = False
        self._runs_begun = 0
        self.parked: dict[str, list[Callable[[], object]]] = {}
        """By agent, what is to be told again of its own tasks once it goes on."""
        self.begun_before: dict[str, int] = {}
        """The number of the last run of an agent whose program has died."""
        self.abandoned: set[str] = set()
        """The agents of which the host has said that they will not go on."""
        # The quota of the directory; closed with the runtime.
        self.disk: DiskQuota | None = None
        if limits.disk is not None:
            ledger = Ledger(directory, env, self.share)
            warn = partial(self.delivery.warn, None)
            self.disk = DiskQuota(limits.disk, warn, ledger)
        # Bound once: there may be 100,000 tasks.
        self._watcher = self._on_end
        self._undone: list[tuple[Task, Callable[[], object]]] = []
        self._specs: dict[float | None, ChildSpec[Any]] = {}
        # Refs, because a pool that crashed comes back as another object.
        self._pools: dict[str, ActorRef[Any]]

    def close_directory(self) -> None:
        """Nothing more is written there from here."""
        if self.disk is not None:
            self.disk.close()
        try:
            self.journal.end()
        finally:
            self.share.close()

    def _kept_since(self) -> str:
        try:
            return time_of(self.env.clock.now() - KEPT)
        # The boundary: somebody's clock. Then nothing goes.
        except Exception as failure:
            self.delivery.warn(None, f"nobody knows the time: {failure!r}", failure)
            return ""

    def _warn(self, text: str) -> None:
        self.delivery.warn(None, text)

    def attach(self, pools: dict[str, ActorRef[Any]]) -> None:
        """Called once, when the tree stands."""
        self._pools = pools

    def current_task(self) -> Task | None:
        """Return the task of this runtime from which the call comes, if any."""
        actor = current_actor()
        while isinstance(actor, Child):
            task = self.table.live.get(actor.id)
            if task is not None and task.ref is actor:
                return task
            actor = actor.home.actor
        return None

    def calling_agent(self) -> str | None:
        """Return the id of the agent from whose run the call comes, if any."""
        task = self.current_task()
        agent = None if task is None else task.as_agent or task.parent
        return None if agent is None else agent.task_id

    # The entry

    def check_open(self) -> None:
        """Raise RuntimeStopping if nothing can be started any more."""
        if self.is_stopping:
            state = "has ended" if self.delivery.outbox.closed else "is stopping"
            raise RuntimeStopping(f"the runtime {state} and starts no task")

    # An interrupt must leave no file without its task, nor a task half entered.
    @enable_ki_protection
    def enter(self, order: Order, *, background: bool) -> Task:
        """Enter a new task and, if there is a place for it, start it.

        Raises:
            RuntimeStopping: if the agent whose own task it would be is stopping.
            BacklogFull: if too many notifications for its reader are not
                acknowledged.
            DepthExceeded: if it is an agent too deep below others.
            ValueError: if it is an agent in a mode that there is not.
        """
        current = self.current_task()
        owner, live = order.owner, self.table.live
        named = current if owner is None else live.get(owner)
        parent = None if named is None else parent_of(named, owner)
        depth = 0
        if parent is not None:
            order.owner = parent.task_id
        if background and self.delivery.outbox.unacknowledged >= self.limits.backlog:
            self._check_backlog(parent)
        if order.has_tasks:
            self.agents.check(order.work)
            depth = depth_below(parent, self.agents.max_depth)
        task_id, output_file, error = self._make_id(order)
        task = self._make_task(order, task_id, background, current, parent, depth)
        if output_file is not None:
            task.output_file = output_file
            task.disk = self.disk
        self.table.add(task)
        if order.key is not None:
            self.keys.add(order.owner, order.key, order.what, task)
        if order.has_tasks:
            error = self._prepare(task) or error
        if self.journal.is_kept:
            self._enter_in_journal(task, order)
        self._begin(task, error)
        return task

    def begun_with(self, order: Order) -> Task | None:
        """Return the task that was launched with the key of ``order`` before, if any.

        Raises:
            KeyTaken: if that does something else.
            KeyElsewhere: if another runtime has the keys of the directory.
        """
        assert order.key is not None
        owner, current = order.owner, self.current_task()
        named = current if owner is None else self.table.live.get(owner)
        if named is not None:
            parent = named.as_agent
            if parent is None and owner is None:
                parent = named.parent
            owner = owner if parent is None else parent.task_id
        return self.keys.find(owner, order.key, order.what)

    @enable_ki_protection
    def enter_again(
        self,
        order: Order,
        revival: Revival,
        history: Sequence[Message],
        inbox: Inbox,
        pause: Pause | None = None,
    ) -> AgentTask:
        """Enter an agent that has ended before, under its old id, in the place of
        the record of that end, if there is one. Its prompt is the first message of
        ``history``, which is whole: nothing is put before it. What it is to read is
        in ``inbox``. With ``pause`` its first run waits for the end of that, and reads
        its conversation from the transcript then.

        Raises:
            RuntimeStopping, BacklogFull: as `enter`; nothing was changed.
        """
        self.check_open()
        from actors.transcript.hosting import MOST_RESUMES

        meta, current = revival.meta, self.current_task()
        # Not the calling task, as in `enter`: who sends to an agent, or resumes it, does
        # not become its parent. It stays with the owner that it had.
        named = None if order.owner is None else self.table.live.get(order.owner)
        parent = None if named is None else parent_of(named, order.owner)
        if self.delivery.outbox.unacknowledged >= self.limits.backlog:
            self._check_backlog(parent)
        depth = meta.depth if parent is None else max(meta.depth, parent.depth + 1)
        made = self._make_task(
            order, meta.agent_id, True, current, parent, depth, meta.run_id
        )
        task = made.as_agent
        assert task is not None
        task.history = history
        task.inbox = inbox
        task.revival = revival
        task.pause = pause
        if revival.paused is not None:
            task.tries = revival.paused.tries
        task.resumes = min(meta.resumes + 1, MOST_RESUMES)
        before = revival.before
        if before is not None:
            self.table.replace(before, task)
        else:
            self.table.add(task)
        error = self._prepare(task)
        if self.journal.is_kept:
            self._enter_in_journal(task, order)
        self._begin(task, error)
        # What has ended while it had no run.
        untold = self.parked.pop(task.task_id, [])
        self.each_part(task, [*untold, partial(self.delivery.hand_over, task)])
        if untold:
            self.delivery.wake_notifier()
        return task

    def _enter_in_journal(self, task: Task, order: Order) -> None:
        # The boundary: as in `each_part`, which would cost each task three frames.
        try:
            self._add_begun(task, order)
        except Exception as failure:
            self._tell_failure(task, "journal", failure)
            self.each_part(task, [partial(self._add_begun, task, order)])

    def _add_begun(self, task: Task, order: Order) -> None:
        try:
            at = self.env.clock.now()
        # The boundary: somebody's clock.
        except Exception as failure:
            self._tell_failure(task, "clock", failure)
            at = None
        self.journal.add(begun(task, order, at))
        # Before anything of it can be seen.
        self.journal.flush()

    def _check_backlog(self, reader: AgentTask | None) -> None:
        """Refuse what would be told to one who acknowledges nothing: the agent
        ``reader``, or the program. Neither can acknowledge what is the other's."""
        outbox, limit = self.delivery.outbox, self.limits.backlog
        waiting = outbox.unacknowledged - outbox.routed
        if reader is not None:
            waiting = len(reader.routed)
        if waiting >= limit:
            raise BacklogFull(waiting)

    def _make_id(self, order: Order) -> tuple[str, Path | None, Exception | None]:
        for _ in range(_ID_ATTEMPTS):
            task_id = KINDS[order.task_type].id_prefix + self.env.ids.hex(8)
            if task_id in self.table.live or task_id in self.table.ended:
                continue
            if order.has_tasks and self.agents.is_taken(task_id):
                continue
            if not order.writes_output:
                return task_id, None, None
            path = self.directory / f"{task_id}.output"
            try:
                self.env.files.reserve(path)
            except FileExistsError:
                continue
            except OSError as error:
                return task_id, None, error
            return task_id, path, None
        raise SupervisorError(f"no free task id was found in {_ID_ATTEMPTS} attempts")

    def _make_task(
        self,
        order: Order,
        task_id: str,
        background: bool,
        current: Task | None,
        parent: AgentTask | None,
        depth: int,
        after: str | None = None,
    ) -> Task:
        make: Callable[..., Task] = Task
        if order.has_tasks:
            from .._tasks.agent_task import AgentTask

            make = partial(AgentTask, depth=depth)
        task = make(
            task_id,
            self.new_run_id(task_id, after),
            self.env,
            order,
            self.delivery,
            background,
            current,
            parent,
        )
        if parent is not None:
            parent.own[task_id] = task
        return task

    def _prepare(self, task: Task) -> Exception | None:
        """Have an agent ready, before the journal says what it is. Return what has
        failed: it has its id, so that is told by its end."""
        agent = task.as_agent
        if agent is not None:
            try:
                self.agents.entered(agent)
            except Exception as failure:
                return failure
        return None

    def _begin(self, task: Task, error: Exception | None) -> None:
        if error is not None:
            self.conclude(task, TaskStatus.FAILED, error)
        elif task.parent is not None and task.parent.pool is None:
            task.context = copy_context()
            task.parent.early.append(task)
        elif task.pause is not None or self.slots.take(task):
            self._start(task)
        else:
            task.context = copy_context()

    # The start

    def _start(self, task: Task) -> None:
        """Start a task that has a place, or begins paused."""
        has_place = task.pause is None
        # Of an agent it is as long as its run and its own tasks need, which have theirs.
        budget = task.shutdown if task.as_agent is None else None
        try:
            ref = self.pool_of(task).start_child_nowait(
                self._specs.get(budget) or self._make_spec(budget),
                id=task.task_id,
                watcher=self._watcher,
            )
        except SupervisorStopping as error:
            # An interrupt in a task ends its pool before the runtime knows, or
            # somebody ended the pool by hand.
            if has_place:
                self.slots.give_back(task)
            self.each_part(task, [partial(self.delivery.warn, task, str(error))])
            task.cut_by = "shutdown" if task.parent is None else "parent"
            self.conclude(task, TaskStatus.KILLED, None)
            return
        # The boundary: it has its id, and whoever has made its place goes on.
        except Exception as error:
            if has_place:
                self.slots.give_back(task)
            self.conclude(task, TaskStatus.FAILED, error)
            return
        task.ref = ref
        # The boundary: it runs, whatever fails from here on.
        try:
            task.transition(TaskStatus.RUNNING)
            task.started_at = self.env.clock.now()
        except Exception as failure:
            self._tell_failure(task, "start", failure)
            task.transition(TaskStatus.RUNNING)
        try:
            self.events.emit(
                TaskStarted,
                task.task_id,
                task.run_id,
                task.task_type,
                task.description,
                task.owner,
            )
        except Exception as failure:
            self._tell_failure(task, "start", failure)
        if not has_place and task.pause is not None and task.as_agent is not None:
            begin = partial(self.pauses.begin_first, task.as_agent, task.pause)
            self.each_part(task, [begin])

    def pool_of(self, task: Task) -> DynamicSupervisor:
        """Return the supervisor below which this task runs, or is to run."""
        if task.parent is not None:
            if task.parent.pool is None:
                raise SupervisorStopping(
                    f"the agent {task.parent.task_id} starts no task at the moment"
                )
            return task.parent.pool
        pool = self._pools[KINDS[task.task_type].pool].started_value
        assert isinstance(pool, DynamicSupervisor)
        return pool

    def _make_spec(self, budget: float | None) -> ChildSpec[Any]:
        # One spec for all tasks with the same seconds for their end: there may be
        # 100,000. Each is found by its id, which is its actor's, as at its end.
        spec: ChildSpec[Any] = ChildSpec(
            "task",
            self._body,
            restart="temporary",
            shutdown="infinity" if budget is None else budget,
            kind="worker" if budget is not None else "supervisor",
        )
        if len(self._specs) < _SPECS:
            self._specs[budget] = spec
        return spec

    def _body(
        self, ctx: Context[object], *, key_is_written: bool = False
    ) -> Awaitable[object]:
        # Not itself async: one frame less for each of 100,000 tasks.
        task = self.table.live[ctx.cell.id]
        kept = self.delivery.kept
        if kept and task.task_id in kept and not key_is_written:
            return self._once_key_is_written(ctx)
        if task.policy is None and task.as_agent is None:
            return task.begin_run(ctx)
        return self.runs.run_all(task)

    async def _once_key_is_written(self, ctx: Context[object]) -> object:
        # What it does may not be done twice, and without the record it would be, by
        # whoever asks with its key after a crash.
        await self.journal.settle()
        await trio.lowlevel.checkpoint_if_cancelled()
        return await self._body(ctx, key_is_written=True)

    def new_run_id(self, task_id: str, after: str | None = None) -> str:
        """Return the id of a new run of a task. ``after`` is the id of its last run,
        perhaps in an earlier runtime.

        The number in the id is higher than that of the last run, and than those of all
        runs that this runtime has begun. A number from a file counts for its own task
        alone. After the highest possible number the task gets those of the runtime."""
        self._runs_begun = number = self._runs_begun + 1
        if after is not None:
            last = int(after.rpartition("-")[2])
            # The journal may know of one that the file of the agent does not.
            last = max(last, self.begun_before.get(task_id, 0))
            number = max(number, (last + 1) % (_HIGHEST_RUN + 1))
        return f"{task_id}-{number:06}"

    def _start_waiting(self, task: Task) -> None:
        # Not in the context of whoever's step has made the place.
        context = task.context
        assert context is not None
        context.run(self._start, task)
        task.context = None

    @enable_ki_protection
    def own_pool_opened(self, agent: AgentTask, pool: DynamicSupervisor) -> None:
        """The own tasks of ``agent`` may start, below ``pool``."""
        agent.pool = pool
        early, agent.early = agent.early, []
        for task in early:
            # What begins paused needs no place.
            if not task.status.is_terminal and (
                task.pause is not None or self.slots.take(task)
            ):
                self._start_waiting(task)

    @enable_ki_protection
    def mark_own_stopping(self, agent: AgentTask) -> None:
        """Mark the own tasks of ``agent``, which has ended, as `mark_stopping`."""
        # Those that run and are marked have been told with all that is below them.
        own = [it for it in agent.own.values() if it.ref is None or not it.stopping]
        self.mark_stopping(own, f"its agent {agent.task_id} has ended", "parent")

    # Waiting

    async def wait_for(
        self,
        wait: Callable[[], Awaitable[object]],
        *sources: Hashable,
        ends: int = 1,
    ) -> None:
        """Wait by calling ``wait``. A task that calls this lends its place, and goes
        on when it has one again: see `Places.wait`."""
        task = self.current_task()
        if task is None:
            await wait()
        else:
            await self.places.wait(task, wait, *sources, ends=ends)

    async def wait_ended(self, task: Task) -> None:
        """Wait for the end of ``task``.

        Raises:
            WouldDeadlock: if the task itself waits, or one below it.
        """
        await trio.lowlevel.checkpoint()
        current = self.current_task()
        self.refuse_own_end(current, (task,))
        if current is None:
            await task.wait_ended()
        elif task.ended_at is None:
            await self.places.wait(current, task.wait_ended, task)
        # Or a crash could make another end of the one that was seen.
        journal = self.journal
        if journal.is_kept and journal.is_behind:
            await journal.settle()

    def refuse_own_end(self, current: Task | None, tasks: Iterable[Task]) -> None:
        """Refuse to let the task that calls, if any, wait for the ends of ``tasks``.

        Raises:
            WouldDeadlock: if it is one of them or below one, whose end waits for that
                of what is below it.
        """
        if current is None:
            return
        above: Task | None = current
        tasks = list(tasks)
        while above is not None:
            if any(above is task for task in tasks):
                raise WouldDeadlock(
                    f"task {current.task_id} would wait for its own end"
                )
            above = above.parent

    # The move to the background

    @enable_ki_protection
    def move(self, task: Task) -> bool:
        """Move a foreground task to the background; say whether it was one."""
        if task.background or task.status.is_terminal:
            return False
        task.background = True
        self.table.moved_to_background(task)
        self.journal.add(Moved(run=task.entered_as))
        self.journal.flush()
        self._tell_progress(task)
        file = task.output_file
        self.events.emit(
            TaskBackgrounded, task.task_id, None if file is None else str(file)
        )
        task.tell_change()
        return True

    # Stopping

    @enable_ki_protection
    def mark_stopping(
        self,
        tasks: Iterable[Task],
        reason: str | None,
        by: EndedBy = "host",
        *,
        now: bool = False,
        notify: Notify | None = None,
    ) -> None:
        """Mark them, and everything below them, as stopping, because ``by`` wants it,
        and end those that only wait for a place."""
        for task in tasks:
            if task.status.is_terminal:
                if task.ref is None:
                    # Its end could not be recorded where there was no stack left.
                    self.conclude(task, task.status, None)
                continue
            if notify is not None:
                task.notify = notify
            self._mark(task, reason, by)
            if now:
                task.hurry_up()
            agent = task.as_agent
            if agent is not None:
                self.agents.stopping(agent)
                why = f"its agent {task.task_id} was stopped"
                if reason is not None:
                    why = f"{why}: {reason}"
                below: EndedBy = by if by == "shutdown" else "parent"
                self.mark_stopping(list(agent.own.values()), why, below, now=now)
            if task.ref is None:
                self.slots.leave_queue(task)
                self.conclude(task, TaskStatus.KILLED, None)

    def _mark(self, task: Task, reason: str | None, by: EndedBy) -> None:
        if not task.stopping:
            task.stopping = True
            task.stop_reason = reason
            task.cut_by = by
            if isinstance(task.ref, Child):
                # Its turn may come later, but from now on no run of it begins.
                task.ref.intent = "terminate"
            agent = task.as_agent
            if agent is not None:
                agent.is_interrupted = self.is_stopping
            if self.delivery.latest:
                self._tell_progress(task)
            self.events.emit(TaskStopRequested, task.task_id, reason)

    def close(self) -> None:
        """Refuse new tasks and end those that only wait. Idempotent."""
        self.is_stopping = True
        self._do_undone()
        self.delivery.outbox.begin_end()
        live = list(self.table.live.values())
        # As in `Children.terminate_together`.
        with fewer_collections():
            self.mark_stopping(live, "the runtime is closing", "shutdown")
        # Those of the host's own model belong to no task.
        self.agents.end_approvals("the runtime is closing")

    # The end

    def _on_end(self, ref: ActorRef[Any], exit: Exit[object]) -> None:
        """Called in the last step of a task's actor."""
        task = self.table.live[ref.id]
        agent = task.as_agent
        if agent is not None and not task.stopping:
            # Nobody has asked for it: the runtime is being cancelled.
            agent.is_interrupted = isinstance(exit, Stopped)
        status, error = TaskStatus.COMPLETED, None
        try:
            if type(exit) is not Completed or task.own_exit is not None:
                status, error = outcome_of(exit, task.own_exit)
            if isinstance(exit, Completed):
                value = exit.value
                if value is not None and task.policy is None:
                    # As text, so that nothing else of it is kept, or shown by its own
                    # methods.
                    task.result = value if type(value) is str else describe(value)
            elif isinstance(exit, Stopped):
                if exit.by == "deadline":
                    if task.own_exit is None:
                        task.cut_by = "deadline"
                elif not task.stopping:
                    # Nobody has asked for it: the runtime is being cancelled.
                    task.cut_by = "shutdown"
        # The boundary: there may be no memory for its result.
        except Exception as failure:
            self._tell_failure(task, "outcome", failure)
            status, error = outcome_of(exit, task.own_exit)
        self.conclude(task, status, error)

    @enable_ki_protection
    def conclude(self, task: Task, status: TaskStatus, error: Exception | None) -> None:
        """Record the terminal state: in one step, and only the first time.

        Whatever fails on the way, if memory runs out or by a stranger's mistake, is
        told, tried again, and costs nobody else his part in it.
        """
        if self.table.live.get(task.task_id) is not task:
            return
        was_running, parent = task.ref is not None, task.parent
        try:
            remaining, undone = self._record(task, status, error)
        except Exception as failure:
            remaining, undone = self._record_again(task, status, error, failure)
        # What nearly every end has, each with its own `try`: as functions in a list,
        # called in a loop, they cost an end a tenth more.
        try:
            self._tell_end(task)
        except Exception as failure:
            self._again(task, failure, self._tell_end, task)
        # Before anybody hears of the end.
        if was_running:
            try:
                self.places.give_up(task)
            except Exception as failure:
                self._again(task, failure, self.places.give_up, task)
        # The boundary: even the way to a part may want a few bytes.
        try:
            # Before the notifier is woken: trio runs those who were woken in one step in
            # their order or in the reverse one, so who waits has one of the notifier and
            # the readers of events before him, and never both.
            try:
                task.tell_end()
            except Exception as failure:
                self._again(task, failure, task.tell_end)
            if undone is not None:
                self._do(task, task.let_go)
                self._do(task, self._put_back, undone)
            elif task.background:
                try:
                    self.delivery.tell(task, remaining, parent)
                except Exception as failure:
                    tell = self.delivery.tell
                    self._again(task, failure, tell, task, remaining, parent)
            if undone is not None or not task.background:
                self._do(task, self._add_over, task)
            if self.places.waits:
                try:
                    self.places.ended(task)
                except Exception as failure:
                    self._again(task, failure, self.places.ended, task)
            if parent is not None:
                self._do(task, parent.own_ended, task)
            if was_running and self.slots.waiting:
                self._do(task, self.places.start_pending)
            if not task.background:
                # Nobody waits to hear of it.
                self._do(task, self.delivery.let_go, task)
        except Exception as failure:
            self._again(task, failure, self._wake_all, task, parent)

    def _wake_all(self, task: Task, parent: AgentTask | None) -> None:
        """Wake whoever waits for an end or for a place, perhaps once more."""
        task.tell_end()
        self.places.ended(task)
        if parent is not None:
            parent.own_ended(task)
        self.places.start_pending()
        if not task.background:
            self._add_over(task)
            self.delivery.let_go(task)

    def _add_over(self, task: Task) -> None:
        """Record the end of a task of which no notification tells."""
        if self.journal.is_kept:
            self.journal.add(over(task))
            # Somebody waits for it in `run`.
            self.journal.flush()

    def _record(
        self, task: Task, status: TaskStatus, error: Exception | None
    ) -> tuple[int, Revival | None]:
        """Complete the record of a task that ends, and move it to its place. Return
        how many background tasks of its owner have not ended, and the resuming that
        its end undoes. Called again after a failure it goes on."""
        agent = task.as_agent
        if agent is not None:
            # Those that never began: the others have ended with the agent's pool.
            self.each_part(task, [partial(self.mark_own_stopping, agent)])
        if error is not None:
            task.error = describe_error(error)
        # Refused only if the work itself has set a terminal one, which counts.
        task.transition(status)
        if task.status is not TaskStatus.COMPLETED:
            by = who_ended(task, error)
            if by is not None:
                task.ended_by = by
        try:
            task.ended_at = self.env.clock.now()
        # The boundary: somebody's clock.
        except Exception as failure:
            task.ended_at = task.started_at or _UNKNOWN
            self._tell_failure(task, "clock", failure)
        if task.writes_output and task.output_tail is not None:
            task.result = task.output_tail
        if agent is not None:
            undone = agent.revival
            if undone is not None and not undone.undoes(task.status):
                undone = None
            self.each_part(task, self.agents.parts_of_end(agent))
            if undone is not None:
                return self.table.take_out(task), undone
        return self.table.end(task), None

    def _record_again(
        self,
        task: Task,
        status: TaskStatus,
        error: Exception | None,
        failure: Exception,
    ) -> tuple[int, Revival | None]:
        """Go on with `_record` after ``failure``; without what cannot be had, if it
        fails again and again."""
        for _ in range(_TRIES - 1):
            # The boundary: somebody waits for each part.
            try:
                self._tell_failure(task, "record", failure)
                return self._record(task, status, error)
            except Exception as again:
                failure = again
        task.ended_at = task.ended_at or task.started_at or _UNKNOWN
        least: list[Callable[[], object]] = [
            partial(task.transition, status),
            partial(self.table.end, task),
        ]
        self.each_part(task, least)
        return self.table.take_out(task), None

    def each_part(self, task: Task, parts: Iterable[Callable[[], object]]) -> None:
        """Do what each has to do with the end of ``task``. What fails is told and
        tried again, so each goes on where it has failed."""
        for part in parts:
            # As in `_again`.
            for _ in _AGAIN:
                # The boundary: the end is being recorded in this very step.
                try:
                    part()
                    break
                except Exception as failure:
                    try:
                        self._tell_failure(task, _name(part), failure)
                    except Exception:
                        pass

    def _do(self, task: Task, part: Callable[[*Ts], object], *args: *Ts) -> None:
        """Do one of the parts in an end, as `each_part` does."""
        try:
            part(*args)
        # The boundary: the end is being recorded in this very step.
        except Exception as failure:
            self._again(task, failure, part, *args)

    def _again(
        self,
        task: Task,
        failure: Exception,
        part: Callable[[*Ts], object],
        *args: *Ts,
    ) -> None:
        """Do it again as `each_part` does, after the first try has failed."""
        # No `suppress`, nor a `range`: there may be no memory for these, either, and what
        # is raised here would cost all that follows in that end.
        for is_last in _AGAIN:
            try:
                self._tell_failure(task, _name(part), failure)
            # The boundary: as there.
            except Exception:
                pass
            if is_last:
                break
            try:
                part(*args)
                return
            except Exception as again:
                failure = again
        if isinstance(failure, RecursionError):
            # Who has asked for the end has no stack left. That of another task is empty.
            self._undone.append((task, partial(part, *args)))
            try:
                token = trio.lowlevel.current_trio_token()
                token.run_sync_soon(self._do_undone)
            # There may be too little left even for that: then when the runtime is left.
            except Exception:
                pass

    def _do_undone(self) -> None:
        """Do the parts of ends for which there was no stack left."""
        undone, self._undone = self._undone, []
        for task, part in undone:
            self.each_part(task, [part])

    def _tell_failure(self, task: Task, part: str, failure: Exception) -> None:
        # There may be no memory for that either.
        with suppress(Exception):
            why = describe_error(failure).message
            text = f"a failure in its record ({part}): {why}"
            log(logging.CRITICAL, "task %s: %s", task.task_id, text, error=failure)
            self.events.emit(Warned, task.task_id, text)

    def _tell_progress(self, task: Task) -> None:
        # What a task says is told in the order in which it says it.
        self.delivery.tell_latest(task.task_id)

    def _tell_end(self, task: Task) -> None:
        if self.delivery.latest:
            self._tell_progress(task)
        result = task.result
        if result is not None and len(result) > _RESULT_TOLD:
            # A reader may hold thousands of them.
            result = f"…{result[-_RESULT_TOLD:]}"
        code = number = None
        if task.rare is not None:
            # As they lie there: most tasks have neither.
            code, number = task.rare.get("exit_code"), task.rare.get("signal")
        self.events.emit(
            TaskEnded,
            task.task_id,
            task.status._value_,
            code,
            number,
            None if task.error is None else task.error.message,
            task.ended_by,
            result,
        )

    def _put_back(self, revival: Revival) -> None:
        """A resumed agent has failed at once: let it be as it was before."""
        self.agents.transcripts.write_meta(revival.meta)
        ended = revival.before
        if ended is None:
            return
        self.table.put_back(ended)
        if ended.note is not None and ended.note.acked is not None:
            # Meanwhile it had no record that could hear of that.
            ended.note = None
            revival.may_go = True
        if revival.may_go:
            self.delivery.let_go(ended)


def _name(part: Callable[..., object]) -> str:
    """Return what a part in an end is called."""
    called = part.func if isinstance(part, partial) else part
    return str(getattr(called, "__qualname__", called))
