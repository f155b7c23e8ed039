"""The runs of a task: what its actor does, from the first run to the last."""

from __future__ import annotations

from collections.abc import Coroutine
from contextvars import ContextVar

import trio

from actors import Completed, Context

from ._ends import describe
from ._events import EventStream, TaskRestarted
from ._spec import child
from ._table import RestartPolicy, Task
from ._tree import open_supervisor

# The task in whose actor the code runs, which is that of the innermost one.
_current: ContextVar[Task | None] = ContextVar("current task", default=None)

current_task = _current.get
"""Return the task, of any runtime, from which the call comes, or None."""


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

    def body(self, ctx: Context[object], task: Task) -> Coroutine[object, object, None]:
        """The body of a task's actor. Not itself async: one frame less for each
        of 100,000 tasks."""
        _current.set(task)
        if task.policy is None:
            return self._once(ctx, task)
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
        ) as supervisor:
            (info,) = supervisor.which_children()
            task.runs = info.ref
            await trio.sleep_forever()
        # A transient task has had its last run. Its end is known already.
        assert task.runs is not None
        with trio.CancelScope(shield=True):
            task.own_exit = await task.runs.wait_stopped()

    async def _once(self, ctx: Context[object], task: Task) -> None:
        if ctx.number > 1:
            task.begin_again(self.new_id(task.task_id))
            self._events.emit(TaskRestarted, task.task_id, task.run_id)
        value = await task.work.run(ctx, task)
        # As text, so that nothing else of it is kept, or shown by its own methods.
        if value is not None and not task.writes_output:
            task.result = describe(value)
        if task.policy is not None and task.policy.restart == "transient":
            # There will be no other run: a stop that comes now is late.
            task.own_exit = Completed(None)
