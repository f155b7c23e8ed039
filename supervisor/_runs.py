"""The runs of a task: what its actor does, from the first run to the last."""

from __future__ import annotations

from collections.abc import Awaitable
from inspect import isawaitable
from types import CoroutineType

import trio

from actors import Completed, Context

from ._child import Child
from ._ends import conclude, describe, describe_error
from ._events import (
    E,
    EventStream,
    RestartScheduled,
    TaskRestarted,
    TaskRestartScheduled,
)
from ._spec import child
from ._table import RestartPolicy, Task
from ._tree import open_supervisor


class Runs:
    """Runs the tasks of one runtime."""

    def __init__(self, events: EventStream) -> None:
        self._events = events
        self._number = 0

    def new_id(self, task_id: str) -> str:
        """Return the id of a new run. Those of one runtime sort in the order in
        which the runs began."""
        self._number += 1
        return f"{task_id}-{self._number:06}"

    def body(self, ctx: Context[object], task: Task) -> Awaitable[object]:
        """The body of a task's actor. Not itself async: one frame less for each
        of 100,000 tasks."""
        if task.policy is None:
            return _begin(ctx, task)
        return self._supervised(task, task.policy)

    async def _supervised(self, task: Task, policy: RestartPolicy) -> None:
        """Run a task that may have several runs, under a supervisor of its own."""
        is_transient = policy.restart == "transient"
        async with open_supervisor(
            [
                child(
                    "run",
                    self._once,
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
            events=_RunEvents(self._events, task),
        ):
            await trio.sleep_forever()
        # A transient task has had its last run. Its end is known already.
        assert task.runs is not None
        with trio.CancelScope(shield=True):
            task.own_exit = await task.runs.wait_stopped()

    async def _once(self, ctx: Context[object], task: Task) -> None:
        task.runs = ctx.ref
        if ctx.number > 1:
            task.begin_again(self.new_id(task.task_id))
            self._events.emit(TaskRestarted, task.task_id, task.run_id)
        value = await _begin(ctx, task)
        # As text, so that nothing else of it is kept, or shown by its own methods.
        if value is not None:
            task.result = describe(value)
        if task.policy is not None and task.policy.restart == "transient":
            # There will be no other run: a stop that comes now is late.
            task.own_exit = Completed(None)


def _begin(ctx: Context[object], task: Task) -> Awaitable[object]:
    run: object = task.work.run(ctx, task)
    if type(run) is CoroutineType or isawaitable(run):
        return run
    work, what = type(task.work).__name__, type(run).__name__
    raise TypeError(f"{work}.run is no async function: it returned a {what}")


class _RunEvents(EventStream):
    """The stream of a runtime, as the supervisor of one task's runs tells it:
    what that says of a restart to come is told of the task as well."""

    __slots__ = ("_task",)

    def __init__(self, stream: EventStream, task: Task) -> None:
        # It is the same stream, with the same readers and numbers.
        self.__dict__ = stream.__dict__
        self._task = task

    def emit(self, kind: type[E], *fields: object) -> None:
        super().emit(kind, *fields)
        run = self._task.runs
        if kind is not RestartScheduled or not isinstance(run, Child):
            return
        path, id, delay = fields
        # Supervisors that the work itself opens tell the same stream.
        if (path, id) == (run.home.path, run.id):
            exit = run.incarnation.exit
            assert exit is not None
            _, error = conclude(exit, None)
            message = None if error is None else describe_error(error).message
            task = self._task
            self.emit(TaskRestartScheduled, task.task_id, task.run_id, delay, message)
