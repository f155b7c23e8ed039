"""Agents that shield themselves from a stop: truth has no deadline."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from actors import Context
from actors.agent import Agent, AgentContext, AgentEvent, FinalResult, Note
from actors.testing import fake_env
from actors.work import Report
from supervisor.runtime import TaskEnded, TaskHandle, open_runtime
from supervisor.tree import Straggler
from tests.supervisor.jobs import KILLED, Job, agent


async def shielded() -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(100)


async def body(ctx: Context[object], report: Report) -> None:
    await shielded()
    await trio.lowlevel.checkpoint()


async def stubborn(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield Note("begun")
    await shielded()
    await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("kind", ["fork", "agent", "work"])
async def test_who_shields_itself_is_reported_again_and_again_and_ends_when_it_ends(
    kind: str, autojump_clock: trio.testing.MockClock
) -> None:
    """P1, P2: for 100 s; at 60 s it is not terminal, and the end is told at 100 s and
    not before."""
    started: list[TaskHandle] = []

    async def parent(context: AgentContext) -> AsyncIterator[AgentEvent]:
        if started:
            # The fork: it is the same loop.
            await shielded()
            await trio.lowlevel.checkpoint()
        task = await context.launch(context.fork("Go on."))
        assert isinstance(task, TaskHandle)
        started.append(task)
        await trio.lowlevel.checkpoint()
        yield FinalResult("done")

    async with open_runtime("/tasks", env=fake_env()) as runtime:
        events = runtime.events.subscribe()
        work: Agent | Job = Job(body)
        if kind != "work":
            work = agent(parent if kind == "fork" else stubborn)
        top = await runtime.launch(work)
        await trio.testing.wait_all_tasks_blocked()
        task = started[0] if started else top
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.stop, top)
            await trio.sleep(60)
            assert not task.status.is_terminal and not top.status.is_terminal
            assert task.snapshot().stopping
            seen = events.drain()
            assert not [event for event in seen if isinstance(event, TaskEnded)]
            reports = [event for event in seen if isinstance(event, Straggler)]
            assert max(Counter(event.child for event in reports).values()) >= 2
            if kind == "work":
                assert any("shielded" in event.stack for event in reports)
            assert runtime.notifications.drain() == []
            await trio.sleep(39.9)
            assert not task.status.is_terminal
            later = [e for e in events.drain() if isinstance(e, Straggler)]
            assert later
        await top.wait()
        assert trio.current_time() == 100
        assert (task.status, top.status) == (KILLED, KILLED)
