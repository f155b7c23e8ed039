"""Running a task in the foreground: its caller waits for it, and its end is the
caller's, until it is moved to the background."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio
from trio.lowlevel import enable_ki_protection

from .._tasks.endings import EndedBy
from .._tasks.record import Order, Task
from .._tasks.snapshot import TaskSnapshot
from .handles import TaskHandle
from .life import Life
from .stops import end


@enable_ki_protection
async def run_in_foreground(
    life: Life, order: Order, on_started: Callable[[TaskHandle], object] | None = None
) -> TaskSnapshot:
    """Do what `supervisor.runtime.Runtime.run` promises. ``on_started`` is told as soon
    as the task has its id."""
    task = life.enter(order, background=False)
    try:
        if on_started is not None:
            # The caller knows of it from here on.
            await life.journal.settle()
            on_started(TaskHandle(life, task))
        await life.wait_for(partial(_in_foreground, task), task)
        # As in `Life.wait_ended`.
        await life.journal.settle()
    except BaseException as error:
        if not task.background:
            why = "whoever ran it was cancelled"
            # Whoever has cancelled may have said why.
            if isinstance(error, trio.Cancelled) and error.source == "explicit":
                why = why if error.reason is None else f"{why}: {error.reason}"
            # It takes no longer than the task's budget.
            with trio.CancelScope(shield=True):
                by: EndedBy = "host" if task.parent is None else "parent"
                await end(life, [task], why, by, life.current_task())
        raise
    return task.snapshot()


async def _in_foreground(task: Task) -> None:
    while not task.background and task.ended_at is None:
        await task.wait_changed()
