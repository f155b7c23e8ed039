"""Works that run in this process, and looks at a runtime, for the tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import attrs
import trio

from actors import Context, TaskStatus
from actors.agent import Agent, AgentContext, AgentEvent, FinalResult, Note, Run
from actors.work import Report, Work
from supervisor.runtime import (
    Runtime,
    TaskHandle,
)
from supervisor.tree import Event

Body = Callable[[Context[object], Report], Awaitable[object]]

PENDING, RUNNING, PAUSED = TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.PAUSED
COMPLETED, FAILED, KILLED = TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.KILLED


@attrs.define(eq=False)
class Job:
    """A work that runs in this process."""

    body: Body
    task_type: str = "local_agent"
    shutdown: float = 5.0
    writes_output: bool = False

    def describe(self) -> str:
        return "a job"

    async def run(self, ctx: Context[object], report: Report) -> object:
        return await self.body(ctx, report)


async def forever(ctx: Context[object], report: Report) -> None:
    await trio.sleep_forever()


def returns(value: object) -> Job:
    async def body(ctx: Context[object], report: Report) -> object:
        return value

    return Job(body)


def fails(error: BaseException) -> Job:
    async def body(ctx: Context[object], report: Report) -> None:
        raise error

    return Job(body)


def lasts(seconds: float, value: object = "done") -> Job:
    async def body(ctx: Context[object], report: Report) -> object:
        await trio.sleep(seconds)
        return value

    return Job(body)


def waits_for(event: trio.Event, value: object = "done") -> Job:
    async def body(ctx: Context[object], report: Report) -> object:
        await event.wait()
        return value

    return Job(body)


def statuses(runtime: Runtime) -> list[str]:
    return [snapshot.status.value for snapshot in runtime.tasks()]


def told(runtime: Runtime) -> list[tuple[str, str]]:
    return [(note.task_id, note.status.value) for note in runtime.notifications.drain()]


# What every runtime has in its directory: its journal, and the file of its locks.
EVERY = {"agents.lock", "journal.jsonl"}


def files(directory: Path) -> list[str]:
    return sorted({path.name for path in directory.iterdir()} - EVERY)


def kinds(events: list[Event], task_id: str) -> list[type[Event]]:
    return [
        type(event) for event in events if getattr(event, "task_id", None) == task_id
    ]


# Agents


async def answers(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield FinalResult("the answer")


def agent(loop: Run = answers, prompt: str = "do it", **options: Any) -> Agent:
    return Agent(loop, prompt, **options)


def holds(event: trio.Event, answer: str = "the answer") -> Run:
    """A loop that has its answer when ``event`` is set."""

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await event.wait()
        yield FinalResult(answer)

    return loop


async def idles(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """A loop without an end."""
    yield Note("idle")
    await trio.sleep_forever()


def starts(
    *works: Work, then: Run = answers, started: list[TaskHandle] | None = None
) -> Run:
    """A loop that begins with tasks of its own."""

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for work in works:
            task = await context.launch(work)
            assert isinstance(task, TaskHandle)
            if started is not None:
                started.append(task)
        events = then(context)
        assert isinstance(events, AsyncGenerator)
        async with aclosing(events):
            async for event in events:
                yield event

    return loop
