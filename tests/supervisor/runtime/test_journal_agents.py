"""What was told of an agent's own tasks, when its program dies before it reads that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest
import trio
import trio.testing

from actors.agent import Agent, AgentContext, AgentEvent, FinalResult, UserMessage
from actors.testing import fake_env
from supervisor.agents import AgentPolicy
from supervisor.runtime import open_runtime
from tests.supervisor.jobs import idles, returns, starts

HERE = Path("/tasks")
LONG = 60.0


launches = starts(returns("own"), then=idles)


async def reads(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """Answer with what it finds in its inbox, or was told before."""
    await trio.sleep(1)
    context.inbox.take()
    told = [m.text for m in context.history if isinstance(m, UserMessage)]
    yield FinalResult("\n".join(told))


@pytest.mark.parametrize("after_crash", ["pause", "resume"])
@pytest.mark.parametrize("crashes", [1, 2])
async def test_an_agent_that_goes_on_hears_of_its_own_tasks_once(
    autojump_clock: trio.testing.MockClock,
    after_crash: Literal["pause", "resume"],
    crashes: int,
) -> None:
    env = fake_env()
    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env) as runtime:
            parent = await runtime.launch(Agent(launches, "go"))
            await trio.testing.wait_all_tasks_blocked()
            await runtime.transcripts.flush()
            assert runtime.notifications.drain() == []
            files = env.files
            image = files.disk.image()
        for crash in range(crashes + 1):
            env = fake_env()
            env.ids.given = 1_000 * (crash + 1)
            env.files.disk = image.killed()
            last = crash == crashes
            policy = AgentPolicy(
                run=launches if not last else reads,
                after_crash="pause" if not last else after_crash,
            )
            async with open_runtime(HERE, env=env, agents=policy) as runtime:
                if not last:
                    await trio.sleep(1)
                    image = env.files.disk.image()
                    continue
                if after_crash == "pause":
                    await runtime.resume(parent.id)
                await runtime.wait_idle()
                notes = [
                    it for it in runtime.notifications.drain() if it.kind == "task"
                ]
                assert [it.task_id for it in notes] == [parent.id]
                assert notes[0].xml.count("&lt;notification-id&gt;") == 1
