"""A host of agents that does as a test tells it, and short ways to say things."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import trio

from actors.agent import (
    Agent,
    AgentEvent,
    AssistantMessage,
    Budget,
    Message,
    ToolAnswer,
    ToolUse,
    UserMessage,
)
from actors.agent._alone import Alone
from actors.agent._running import run_agent
from actors.agent.hosting import AgentReport, Inbox
from actors.testing import fake_env


def use(name: str = "tool", id: str = "1", **input: Any) -> ToolUse:
    return ToolUse(id, name, input)


def told(text: str, sender: str | None = None) -> UserMessage:
    return UserMessage(text, origin="message", sender=sender)


def ended(text: str) -> UserMessage:
    return UserMessage(text, origin="notification")


class RecordingReport(AgentReport):
    """A report that keeps what is told."""

    def __init__(self) -> None:
        super().__init__("agent", "agent-000001", fake_env())
        self.events: list[AgentEvent] = []
        self.warnings: list[str] = []

    def on_agent_event(self, event: AgentEvent) -> None:
        self.events.append(event)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class Host(Alone):
    """Own tasks are counted by the test, which calls `end_task`."""

    def __init__(self, agent: Agent, inbox: Inbox) -> None:
        super().__init__(agent)
        self.messages: list[Message] = []
        self.inbox = inbox
        self.unfinished = 0
        self.waits: list[str | None] = []
        self.objections: list[str | None] = []
        self.asked: list[tuple[str, int]] = []
        self.added: str | None = None
        self.flushed = 0
        self.flushing: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint
        self.given: Budget | None = agent.budget
        self._change = trio.Event()

    @property
    def budget(self) -> Budget | None:
        return self.given

    async def use_tool(self, use: ToolUse) -> ToolAnswer:
        if use.name == "slow":
            await trio.sleep(use.input["seconds"])
        if use.name == "broken":
            raise OSError("no such luck")
        if use.name == "silly":
            return "no answer"  # type: ignore[return-value]
        await trio.lowlevel.checkpoint()
        return ToolAnswer(use.id, f"{use.name} has run")

    def record(self, message: Message) -> None:
        self.messages.append(message)

    def own_tasks(self) -> int:
        return self.unfinished

    def end_task(self, message: str | None = None) -> None:
        self.unfinished -= 1
        if message is not None:
            self.inbox.put(ended(message))
        if not self.unfinished:
            self._change.set()

    async def wait_own_tasks(self) -> None:
        if self.unfinished:
            await self._change.wait()
        else:
            await trio.lowlevel.checkpoint()

    async def flush(self) -> None:
        await self.flushing()
        self.flushed += 1

    async def starting(self) -> str | None:
        await trio.lowlevel.checkpoint()
        return self.added

    async def finishing(self, answer: str, attempt: int) -> str | None:
        self.asked.append((answer, attempt))
        await trio.lowlevel.checkpoint()
        return self.objections.pop(0) if self.objections else None

    def waiting(self, what: Literal["tasks", "approval"] | None) -> None:
        self.waits.append(what)

    async def wait_for(self, wait: Callable[[], Awaitable[object]]) -> None:
        await wait()


class Stage:
    """An agent with its host, its record and its inbox."""

    # Tests look at them and put other things in their place.
    host: Any
    report: Any

    def __init__(self, run: Any, prompt: str = "do it", **options: Any) -> None:
        self.agent = Agent(run, prompt, **options)
        self.inbox = Inbox()
        self.host = Host(self.agent, self.inbox)
        self.report = RecordingReport()
        self.report.inbox = self.inbox
        self.report.agent_host = self.host
        self.scope = trio.CancelScope()

    async def run(self) -> str:
        return await run_agent(self.agent, self.report)

    async def run_until_stopped(self) -> None:
        """Run it until ``scope`` is cancelled."""
        with self.scope:
            await self.run()
        assert self.scope.cancelled_caught

    @property
    def events(self) -> list[Any]:
        return self.report.events

    def said(self) -> list[str]:
        """The texts of all messages, in order."""
        return [
            message.text
            for message in self.host.messages
            if isinstance(message, AssistantMessage | UserMessage)
        ]
