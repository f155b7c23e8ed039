"""Who sends to an agent, or resumes it, and has to wait for that, goes on with a place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
import trio.testing

from actors import Context
from actors.agent import Agent, AgentContext, AgentEvent, FinalResult, Note
from actors.testing import fake_env
from actors.work import Report
from supervisor.agents import AgentPolicy
from supervisor.hooks import Hook, Hooks
from supervisor.runtime import Limits, open_runtime
from tests.supervisor.jobs import COMPLETED, Job, answers

HERE = Path("/tasks")
LONG = 60.0


async def works_on(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """It needs its place for ten seconds more when it has begun."""
    yield Note("begun")
    await trio.sleep(10)
    yield FinalResult("done")


async def begins_slowly(facts: Mapping[str, Any]) -> None:
    await trio.sleep(1)


@pytest.mark.parametrize("waits", ["for the run", "for another caller"])
async def test_who_lets_an_agent_go_on_has_its_place_again_behind_that(
    autojump_clock: trio.testing.MockClock,
    waits: Literal["for the run", "for another caller"],
) -> None:
    """Another task has begun in the place meanwhile, which is the last one."""
    went_on, again = list[float](), Agent(works_on, "x")

    async def resumes(ctx: Context[object], report: Report) -> None:
        await runtime.resume(first.id, agent=again)
        went_on.append(trio.current_time())

    async def works(ctx: Context[object], report: Report) -> None:
        await trio.sleep(5)

    policy = AgentPolicy(hooks=Hooks(start=(Hook(begins_slowly),)))
    limits, env = Limits(total=2), fake_env()
    with trio.fail_after(LONG):
        async with (
            open_runtime(HERE, env=env, limits=limits, agents=policy) as runtime,
            trio.open_nursery() as nursery,
        ):
            first = await runtime.launch(Agent(answers, "x"))
            await first.wait()
            began = trio.current_time()
            if waits == "for another caller":
                # The host has no place to lend.
                nursery.start_soon(partial(runtime.resume, first.id, agent=again))
                await trio.testing.wait_all_tasks_blocked()
            caller = await runtime.launch(Job(resumes))
            await trio.sleep(0.5)
            # The agent, this one, and nobody else.
            other = await runtime.launch(Job(works))
            await other.wait()
            assert (await caller.wait()).status is COMPLETED
    assert [it - began for it in went_on] == [5.5]
