"""Listening to every agent of a runtime, from its first event on."""

from __future__ import annotations

import trio

from actors.agent import AssistantMessage

from ..runtime import AgentSaid, Runtime, TaskHandle
from ..tree import Event


class Listening:
    """Keeps what all agents say, the host's and those that agents start.

    Whoever reads the runtime's events, with those of its agents, calls `hear` with
    each when it has been shown.
    """

    def __init__(self) -> None:
        self.runtime: Runtime
        """To be set before the first agent begins."""
        self.said: dict[str, list[str]] = {}
        """What each agent has said, by its id."""
        self._heard = 0
        self._news = trio.lowlevel.ParkingLot()

    def hear(self, event: Event) -> None:
        """Take in one event of the runtime."""
        match event:
            case AgentSaid(task_id=task_id, event=AssistantMessage(text=text)):
                self.said.setdefault(task_id, []).append(text)
            case _:
                pass
        self._heard = event.seq
        self._news.unpark_all()

    async def wait_heard(self) -> None:
        """Wait until everything that has happened before was shown."""
        last = self.runtime.events.seq
        while self._heard < last:
            await self._news.park()

    async def wait_said(self, task: TaskHandle, words: str) -> bool:
        """Wait until an agent has said ``words``; False if it ends without that."""
        while not self._has_said(task, words):
            if task.snapshot().status.is_terminal:
                await self.wait_heard()
                return self._has_said(task, words)
            await self._news.park()
        return True

    def _has_said(self, task: TaskHandle, words: str) -> bool:
        return any(words in text for text in self.said.get(task.id, ()))
