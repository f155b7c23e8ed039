"""Listening to every agent of a runtime, from its first event on."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

import trio

from actors.agent import AgentContext, AgentEvent, AssistantMessage, Run

from .._events import Gap
from ..runtime import Runtime, TaskHandle

Show = Callable[[AgentContext, AgentEvent | Gap], Awaitable[None]]


class Listening:
    """Wraps the loop of all agents, the host's and those that agents start.

    ``show`` is called with each event of each agent, in the order of that agent.
    """

    def __init__(self, loop: Run, show: Show) -> None:
        self.runtime: Runtime
        self.nursery: trio.Nursery
        """Both to be set before the first agent begins; the nursery outlives the
        runtime."""
        self.said: dict[str, list[str]] = {}
        """What each agent has said, by its id."""
        self.begun: Callable[[AgentContext], None] | None = None
        """If it is set it is called once, with the next of the host's agents to
        begin."""
        self._loop = loop
        self._show = show
        self._heard: set[str] = set()
        self._listeners = Counter[str]()
        self._news = trio.Event()

    async def run(self, context: AgentContext) -> AsyncGenerator[AgentEvent, None]:
        """Be the ``run`` of every agent."""
        if context.run_id not in self._heard:
            self._heard.add(context.run_id)
            self._listeners[context.agent_id] += 1
            # Now, so that nothing is missed.
            events = self.runtime.handle(context.agent_id).events()
            self.nursery.start_soon(self._listen, context, events)
            if self.begun is not None and context.depth == 0:
                begun, self.begun = self.begun, None
                begun(context)
        loop = cast(AsyncGenerator[AgentEvent, None], self._loop(context))
        async with aclosing(loop) as running:
            async for event in running:
                yield event  # noqa: ASYNC119 - who reads closes

    async def _listen(self, context: AgentContext, events: Any) -> None:
        async for event in events:
            await self._show(context, event)
            if isinstance(event, AssistantMessage):
                self.said.setdefault(context.agent_id, []).append(event.text)
                self.tell()
        self._listeners[context.agent_id] -= 1
        self.tell()

    def tell(self) -> None:
        """Something has happened that a wait may be for."""
        self._news.set()
        self._news = trio.Event()

    async def wait_heard(self, task_id: str) -> None:
        """Wait until all that an ended agent has said was shown."""
        while self._listeners[task_id]:
            await self._news.wait()

    async def wait_said(self, task: TaskHandle, words: str) -> bool:
        """Wait until an agent has said ``words``; False if it ends without that."""
        while not any(words in text for text in self.said.get(task.id, ())):
            if task.snapshot().status.is_terminal and not self._listeners[task.id]:
                return False
            await self._news.wait()
        return True
