"""Listening to every agent of a runtime, from its first event on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import cast

import trio

from actors.agent import AgentContext, AgentEvent, AssistantMessage, Run

from ..runtime import AgentSaid, Runtime, TaskHandle
from ..tree import Event


class Listening:
    """Wraps the loop of all agents, the host's and those that agents start, and
    keeps what they say.

    Whoever reads the runtime's events, with those of its agents, calls `hear` with
    each when it has been shown.
    """

    def __init__(self, loop: Run) -> None:
        self.runtime: Runtime
        """To be set before the first agent begins."""
        self.said: dict[str, list[str]] = {}
        """What each agent has said, by its id."""
        self.begun: Callable[[AgentContext], None] | None = None
        """If it is set it is called once, with the next of the host's agents to
        begin."""
        self._loop = loop
        self._runs: set[str] = set()
        self._heard = 0
        self._news = trio.lowlevel.ParkingLot()

    async def run(self, context: AgentContext) -> AsyncGenerator[AgentEvent, None]:
        """Be the ``run`` of every agent."""
        if context.run_id not in self._runs:
            self._runs.add(context.run_id)
            if self.begun is not None and context.depth == 0:
                begun, self.begun = self.begun, None
                begun(context)
        loop = cast(AsyncGenerator[AgentEvent, None], self._loop(context))
        async with aclosing(loop) as running:
            async for event in running:
                yield event  # noqa: ASYNC119 - who reads closes

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
