"""Agents to talk to, and what became of what they were told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import trio

from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    Message,
    Run,
    UserMessage,
)
from supervisor.runtime import Runtime


async def steps(count: int) -> None:
    for _ in range(count):
        await trio.lowlevel.checkpoint()


def sent(messages: Iterable[Message]) -> list[str]:
    """The texts of those that somebody has sent."""
    return [
        message.text
        for message in messages
        if isinstance(message, UserMessage) and message.origin == "message"
    ]


async def read(runtime: Runtime, agent_id: str) -> list[str]:
    """What the agent was told, by its transcript: each message is put there in the
    step in which it is handed out."""
    transcript = await runtime.transcripts.load(agent_id)
    return [] if transcript is None else sent(transcript.messages)


async def answers(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """Answer with everything that it was told, and how many answers there were."""
    yield AssistantMessage("thinking")
    await trio.lowlevel.checkpoint()
    told = [m.text for m in context.history if isinstance(m, UserMessage)]
    yield FinalResult(" | ".join(told))


def waits_for(gate: trio.Event) -> Run:
    """Answer once ``gate`` is open, with what it was told till then."""

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await gate.wait()
        context.inbox.take()
        told = [m.text for m in context.history if isinstance(m, UserMessage)]
        yield FinalResult(" | ".join(told))

    return run


async def forever(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield AssistantMessage("at work")
    await trio.sleep_forever()


def fails(error: Exception) -> Run:
    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("trying")
        await trio.lowlevel.checkpoint()
        raise error

    return run


async def completed(runtime: Runtime, loop: Run = answers, prompt: str = "go") -> str:
    """Let an agent complete, and return its id."""
    task = await runtime.launch(Agent(loop, prompt))
    done = await task.wait()
    assert done.status.value == "completed", done.error
    return task.id
