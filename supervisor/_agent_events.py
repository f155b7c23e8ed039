"""What one agent says, for whoever listens."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import trio

from actors.agent import AgentEvent

from ._events import Gap

if TYPE_CHECKING:
    from ._agent_task import AgentTask

# Events kept for a slow reader of one agent.
CAPACITY = 10_000


class AgentEvents:
    """The events of one agent task from now on, in order, also across a move to
    the background and a restart: an async iterator, which ends with the task.

    It keeps 10,000 for a reader that is slow; what comes after that is missed, and
    a `supervisor.tree.Gap` in its place says how many were. For one task; `aclose`
    ends it earlier.
    """

    def __init__(self, task: AgentTask) -> None:
        self._task = task
        self._pending: deque[AgentEvent | Gap] = deque()
        self._missed = 0
        self._seq = 0
        self._news: trio.Event | None = None
        self._ended = task.status.is_terminal
        if not self._ended:
            task.readers = (*task.readers, self)

    def __repr__(self) -> str:
        return f"<AgentEvents of {self._task.task_id}, {len(self._pending)} unread>"

    def __aiter__(self) -> AgentEvents:
        return self

    async def __anext__(self) -> AgentEvent | Gap:
        """Wait for the next event."""
        await trio.lowlevel.checkpoint()
        while not self._pending:
            if self._missed:
                self._tell_gap()
            elif self._ended:
                raise StopAsyncIteration
            else:
                self._news = trio.Event()
                await self._task.host.wait_for(self._news.wait, self._task)
        return self._pending.popleft()

    def offer(self, event: AgentEvent) -> None:
        """Called by the task with each event."""
        self._seq += 1
        if len(self._pending) >= CAPACITY:
            self._missed += 1
            return
        if self._missed:
            self._tell_gap()
        self._pending.append(event)
        self._wake()

    def _tell_gap(self) -> None:
        self._pending.append(Gap(self._seq, trio.current_time(), self._missed))
        self._missed = 0

    def end(self) -> None:
        """Called when the task has ended."""
        self._ended = True
        self._wake()

    async def aclose(self) -> None:
        """See no further events. More than once is fine."""
        task = self._task
        task.readers = tuple(reader for reader in task.readers if reader is not self)
        self.end()
        await trio.lowlevel.checkpoint()

    def _wake(self) -> None:
        news, self._news = self._news, None
        if news is not None:
            news.set()
