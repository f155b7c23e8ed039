"""Stopping tasks, each with everything below it, and waiting until they have ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import trio

from actors import ActorRef, TaskStatus
from actors.house import fewer_collections

from .._delivery.outbox import Notify
from .._tasks.endings import EndedBy, StoppedBy
from .._tasks.record import Task
from .._tasks.snapshot import TaskSnapshot
from ..tree._supervisor import DynamicSupervisor
from .life import Life

if TYPE_CHECKING:
    from .._tasks.agent_task import AgentTask

# A supervisor that is stopped needs a few steps for its own end.
_UNWINDING = 1.0


class StopResult:
    """The result of a stop.

    Attributes:
        snapshot: the task after the stop. It has ended unless there are survivors.
        stopped: the ids of the tasks below an agent that the stop has ended.
        survivors: what has outlived the stop, in words: processes, or a task that is
            shielded. Those below an agent are among them.
    """

    __slots__ = ("_snapshot", "_task", "stopped", "survivors")

    def __init__(self, task: Task, below: Sequence[Task] = ()) -> None:
        # Most are never looked at, and a task that has ended does not change.
        self._task = task
        self._snapshot = None if task.status.is_terminal else task.snapshot()
        self.stopped: tuple[str, ...] = ()
        self.survivors: tuple[str, ...] = ()
        if below:
            self.stopped = tuple(
                own.task_id for own in below if own.status is TaskStatus.KILLED
            )
        if below or self._snapshot is not None:
            self.survivors = _survivors(task, below)

    def __repr__(self) -> str:
        return (
            f"StopResult(snapshot={self.snapshot!r}, stopped={self.stopped!r}, "
            f"survivors={self.survivors!r})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StopResult):
            return NotImplemented
        return (self.snapshot, self.stopped, self.survivors) == (
            other.snapshot,
            other.stopped,
            other.survivors,
        )

    def __hash__(self) -> int:
        return hash((self.snapshot.id, self.survivors))

    @property
    def snapshot(self) -> TaskSnapshot:
        """The task after the stop. It has ended unless there are survivors."""
        if self._snapshot is None:
            self._snapshot = self._task.snapshot()
        return self._snapshot


async def stop(
    life: Life,
    tasks: Iterable[Task],
    reason: str | None,
    by: StoppedBy | None = None,
    *,
    now: bool = False,
    notify: Notify | None = None,
) -> list[StopResult]:
    """Stop tasks that a caller has named, as `end`. None as ``by`` means the model, if
    an agent calls, and else the host.

    Raises:
        WouldDeadlock: if one of them, or one below it, asks.
    """
    tasks = _topmost(tasks)
    current = life.current_task()
    life.refuse_own_end(current, tasks)
    await trio.lowlevel.checkpoint()
    if by is None:
        by = "host" if life.calling_agent() is None else "model"
    results = await end(life, tasks, reason, by, current, now=now, notify=notify)
    # As in `Life.wait_ended`.
    await life.journal.settle()
    if current is not None:
        await life.places.regain(current)
    return results


async def end(
    life: Life,
    tasks: list[Task],
    reason: str | None,
    by: EndedBy,
    current: Task | None,
    *,
    now: bool = False,
    notify: Notify | None = None,
) -> list[StopResult]:
    """Stop ``tasks`` together, of which none is below another, and wait for their
    ends, as long as their budgets are. ``current`` is the task that calls: it lends
    its place and does not wait until it has it again."""
    below = [
        () if task.as_agent is None else list(_tasks_below(task.as_agent))
        for task in tasks
    ]
    policies: list[Notify] = [task.notify for task in tasks]
    # As in `Children.terminate_together`.
    with fewer_collections():
        life.mark_stopping(tasks, reason, by, now=now, notify=notify)
    try:
        await _terminate(life, tasks, reason, current)
        # An agent's own tasks are stopped after its run, and this does not end.
        stuck = [
            own
            for task in tasks
            if task.as_agent is not None
            for own in _held_up(task.as_agent)
        ]
        if stuck:
            await _terminate(life, stuck, reason, current)
    finally:
        if notify is not None:
            # Whoever wanted to tell of the end itself has not seen it.
            for task, policy in zip(tasks, policies, strict=True):
                if not task.status.is_terminal:
                    task.notify = policy
    with fewer_collections():
        return [StopResult(*found) for found in zip(tasks, below, strict=True)]


async def _terminate(
    life: Life, tasks: list[Task], reason: str | None, current: Task | None
) -> None:
    by_pool: dict[DynamicSupervisor, list[ActorRef[Any]]] = {}
    has_agents = False
    for task in tasks:
        # What has only waited for a place has ended when it was marked.
        if task.ref is not None:
            by_pool.setdefault(life.pool_of(task), []).append(task.ref)
            has_agents = has_agents or task.as_agent is not None
    # The supervisor knows the budget of each task, but none for an agent.
    unfinished = [task for task in tasks if not task.status.is_terminal]
    with (
        life.places.lent(
            current if unfinished else None,
            *unfinished,
            ends=len(unfinished),
        ),
        trio.move_on_after(max(map(_budget, tasks)) if has_agents else inf),
    ):
        if len(by_pool) == 1:
            # Not through a nursery, which would wrap an interrupt.
            ((pool, refs),) = by_pool.items()
            await pool.terminate_children(refs, reason)
        else:
            async with trio.open_nursery() as nursery:
                for pool, refs in by_pool.items():
                    nursery.start_soon(pool.terminate_children, refs, reason)


def _budget(task: Task) -> float:
    """Return the seconds that ``task`` and everything below it have for their end."""
    agent = task.as_agent
    if agent is None:
        return task.shutdown
    below = max((_budget(own) for own in agent.own.values()), default=0.0)
    return task.shutdown + below + _UNWINDING


def _held_up(task: AgentTask) -> list[Task]:
    """Return the own tasks of an agent whose run has outlived its budget."""
    if task.runs is None or task.runs.state == "stopped":
        return []
    return list(task.own.values())


def _tasks_below(task: Task) -> Iterator[Task]:
    """Yield every task below ``task`` that has not ended, those of an agent right
    after it."""
    agent = task.as_agent
    if agent is not None:
        for own in agent.own.values():
            yield own
            yield from _tasks_below(own)


def _topmost(tasks: Iterable[Task]) -> list[Task]:
    """Return those of ``tasks`` that are not below another of them."""
    named = dict.fromkeys(tasks)
    return [
        task
        for task in named
        if task.parent is None
        or not any(above in named for above in _agents_above(task))
    ]


def _agents_above(task: Task) -> Iterator[Task]:
    """Yield the agents above ``task``, the nearest first."""
    parent = task.parent
    while parent is not None:
        yield parent
        parent = parent.parent


def _survivors(task: Task, below: Sequence[Task]) -> tuple[str, ...]:
    words: list[str] = []
    for own in below:
        words += _survivors(own, ())
    if task.status.is_terminal:
        return tuple(words)
    if task.survivors:
        return (*(f"process {pid}" for pid in task.survivors), *words)
    if words and task.runs is not None and task.runs.state == "stopped":
        # An agent that only waits for these.
        return tuple(words)
    return (f"the task {task.task_id} itself: it is shielded or blocked", *words)
