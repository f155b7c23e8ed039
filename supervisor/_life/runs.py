"""The runs of a task: what its actor does, from the first run to the last."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from actors import ActorRef, Completed, Context, Failed, Stopped
from actors.agent import TransientError

from .._tasks.record import RestartPolicy, Task
from .._tasks.snapshot import Pause
from .._tasks.task_events import TaskRestarted, TaskRestartScheduled
from ..tree._spec import ChildSpec, child
from ..tree._supervisor import (
    DynamicSupervisor,
    open_dynamic_supervisor,
    open_supervisor,
)
from .telling import describe, describe_error, outcome_of

if TYPE_CHECKING:
    from .._tasks.agent_task import AgentTask
    from .life import Life

# Of an agent that is run only once.
_ONCE = RestartPolicy(restart="temporary", intensity=1, period=5.0, backoff=None)


class Runs:
    """Runs the tasks of one runtime."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._events = life.events

    async def run_all(self, task: Task) -> None:
        """Do all runs of a task that may have several, or tasks of its own."""
        if task.as_agent is not None:
            await self._with_own_tasks(task.as_agent)
        else:
            assert task.policy is not None
            await self._supervised(task, task.policy, ())

    async def _with_own_tasks(self, task: AgentTask) -> None:
        """Run an agent beside its own tasks, under a supervisor of its own. It
        stops the run first and then all of these together."""
        own = child("tasks", self._own_pool, task, kind="supervisor")
        await self._supervised(task, task.policy or _ONCE, (own,))

    async def _supervised(
        self,
        task: Task,
        policy: RestartPolicy,
        beside: tuple[ChildSpec[Any], ...],
    ) -> None:
        """Run a task that may have several runs, or children besides its runs,
        under a supervisor of its own."""
        ends_all = policy.restart != "permanent"
        async with open_supervisor(
            [
                *beside,
                child(
                    "run",
                    self._once,
                    task,
                    restart=policy.restart,
                    shutdown=task.shutdown,
                    backoff=policy.backoff,
                    significant=ends_all,
                ),
            ],
            intensity=policy.intensity,
            period=policy.period,
            auto_shutdown="any_significant" if ends_all else "never",
            on_restart=partial(self._on_restart, task),
        ):
            await trio.sleep_forever()
        # The task has had its last run. Its end is known already.
        assert task.runs is not None
        with trio.CancelScope(shield=True):
            exit = await task.runs.wait_stopped()
            if task.own_exit is None:
                task.own_exit = exit

    def _on_restart(self, task: Task, ref: ActorRef[Any], delay: float) -> None:
        # Not its pool of own tasks, which is restarted by the same supervisor.
        if ref is task.runs:
            exit = ref.incarnation.exit
            assert exit is not None
            _, error = outcome_of(exit, None)
            message = None if error is None else describe_error(error).message
            self._events.emit(
                TaskRestartScheduled, task.task_id, task.run_id, delay, message
            )

    @asynccontextmanager
    async def _own_pool(self, task: AgentTask) -> AsyncGenerator[DynamicSupervisor]:
        async with open_dynamic_supervisor() as pool:
            self._life.own_pool_opened(task, pool)
            try:
                yield pool
            finally:
                if not task.stopping:  # or they were marked with it
                    self._life.mark_own_stopping(task)

    async def _once(self, ctx: Context[object], task: Task) -> None:
        task.runs, agent = ctx.ref, task.as_agent
        if ctx.number > 1:
            # The last one may have ended in a wait.
            await self._life.places.regain(task)
            task.begin_again(self._life.new_run_id(task.task_id, task.run_id))
            if agent is not None:
                agent.time_used = 0.0
            self._events.emit(TaskRestarted, task.task_id, task.run_id)
        if agent is not None:
            value = await self._run_with_pauses(ctx, agent)
        else:
            value = await task.begin_run(ctx)
        # As text, so that nothing else of it is kept, or shown by its own methods.
        if value is not None:
            task.result = describe(value)
        if _is_last(task) and task.own_exit is None:
            # There will be no other run: a stop that comes now is late.
            task.own_exit = Completed(None)

    async def _run_with_pauses(self, ctx: Context[object], task: AgentTask) -> object:
        """Run an agent, and again after each pause: for its supervisor it is one run."""
        pauses, is_restart = self._life.pauses, ctx.number > 1
        while True:
            if task.pause is not None:
                await pauses.wait(task)
                is_restart = True
            try:
                return await self._run_agent(ctx, task, is_restart=is_restart)
            except _Paused as paused:
                pause = paused.pause
            if task.stopping:
                # It is nobody's failure, and was asked to end.
                task.own_exit = Stopped("stop", task.stop_reason)
                return None
            pauses.begin(task, pause)

    async def _run_agent(
        self, ctx: Context[object], task: AgentTask, *, is_restart: bool
    ) -> object:
        """Do one run.

        Raises:
            _Paused: if it is to go on later.
        """
        pause: Pause | None = None
        began = trio.current_time()
        try:
            async with self._life.agents.host(task, is_restart=is_restart):
                try:
                    value = await task.begin_run(ctx)
                except TransientError as error:
                    pause = self._life.pauses.decide(task, error)
                    if task.revival is not None:
                        task.revival.begun()
                    raise
                # Most have waited for them already, and heard of their ends.
                with self._life.places.lent(task if task.own else None):
                    await task.wait_own()
                return value
        except Exception as error:
            if pause is not None and isinstance(error, TransientError):
                task.time_used += trio.current_time() - began
                raise _Paused(pause) from error
            if task.policy is None and task.own_exit is None:
                # It counts also if a stop comes while its own tasks end, and no
                # run will read what comes meanwhile.
                task.own_exit = Failed(error)
                assert task.inbox is not None
                task.inbox.close()
            raise


class _Paused(Exception):
    """A run has ended, and its agent is to go on later."""

    def __init__(self, pause: Pause) -> None:
        self.pause = pause


def _is_last(task: Task) -> bool:
    return task.policy is None or task.policy.restart == "transient"
