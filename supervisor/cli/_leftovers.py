"""What an agent still waits for after it has answered: it is reported again and again,
and stopped when its time is over."""

from __future__ import annotations

import attrs
import trio

from actors.agent import FinalResult
from actors.text import clean_text

from ..runtime import AgentSaid, Runtime, TaskEnded, TaskSnapshot, UnknownTask
from ..tree import Event

_FIRST = 5.0
"""Seconds after which it is told for the first time what is waited for."""
_AGAIN = 30.0
"""And from then on each time."""


@attrs.frozen
class StillWaiting(Event):
    """An agent has answered, and does not end before its own tasks."""

    task_id: str
    """Of the agent."""
    waited: float
    """The seconds since its answer."""
    tasks: tuple[str, ...]
    """The ids of what it waits for."""
    text: str
    """The same for people."""


class Leftovers:
    """Watches the agents that have answered.

    Args:
        limit: the seconds for which one may wait for its own tasks, which are
            stopped then; None for as long as they take.
    """

    def __init__(self, runtime: Runtime, limit: float | None) -> None:
        self._runtime = runtime
        self._limit = limit
        self._waits: dict[str, trio.CancelScope] = {}

    async def watch(self) -> None:
        """Watch until the runtime has ended."""
        events = self._runtime.events.subscribe(agents=True)
        async with trio.open_nursery() as nursery:
            async for event in events:
                match event:
                    case AgentSaid(task_id=agent, event=FinalResult()):
                        self._end(agent)
                        self._waits[agent] = scope = trio.CancelScope()
                        nursery.start_soon(self._wait, agent, event.time, scope)
                    case AgentSaid(task_id=agent) | TaskEnded(task_id=agent):
                        self._end(agent)
                    case _:
                        pass
            nursery.cancel_scope.cancel()

    def _end(self, agent: str) -> None:
        scope = self._waits.pop(agent, None)
        if scope is not None:
            scope.cancel()

    async def _wait(self, agent: str, began: float, scope: trio.CancelScope) -> None:
        with scope:
            due = began + _FIRST
            while self._limit is None or due < began + self._limit:
                await trio.sleep_until(due)
                self._tell(agent, began)
                due += _AGAIN
            await trio.sleep_until(began + self._limit)
            async with trio.open_nursery() as nursery:
                for task in self._own(agent):
                    why = f"--wait: {self._limit:g} s are over"
                    nursery.start_soon(self._runtime.stop, task.id, why)

    def _tell(self, agent: str, began: float) -> None:
        tasks = self._own(agent)
        if not tasks:  # Something else holds it up: a hook.
            return
        first, *more = tasks
        text = f"{clean_text(first.description)} ({first.id})"
        if more:
            text += f" and {len(more)} more"
        self._runtime.events.emit(
            StillWaiting,
            agent,
            trio.current_time() - began,
            tuple(task.id for task in tasks),
            text,
        )

    def _own(self, agent: str) -> list[TaskSnapshot]:
        """Return what runs of an agent's own tasks."""
        try:
            if self._runtime.get(agent).waiting != "tasks":
                return []
        except UnknownTask:
            return []
        return [t for t in self._runtime.tasks(agent) if not t.status.is_terminal]
