"""Agents whose program has died: what they are, what they know, and what is told of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import orjson
import pytest
import trio
import trio.testing

from actors.agent import Agent, AgentContext, AgentEvent, FinalResult, UserMessage
from actors.testing import FakeEnv, fake_env
from supervisor.agents import AgentPolicy
from supervisor.runtime import open_runtime
from tests.supervisor.jobs import COMPLETED, PAUSED, idles, returns, starts
from tests.supervisor.talkers import answers

HERE = Path("/tasks")
LONG = 60.0


def after_crash(env: FakeEnv) -> FakeEnv:
    """Return the world in which the program has died just now, and is begun again."""
    again = fake_env()
    again.ids.given = env.ids.given
    again.files.disk = env.files.disk.image().killed()
    return again


# ---- Killed before its own file was written ----------------------------------------------


@pytest.mark.parametrize("after", ["pause", "resume"])
async def test_an_agent_that_was_launched_just_before_a_kill_goes_on(
    autojump_clock: trio.testing.MockClock, after: Literal["pause", "resume"]
) -> None:
    """Its launch has returned, and its own file was not written yet."""
    policy = AgentPolicy(run=answers, after_crash=after)
    env = fake_env()
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        agent = Agent(answers, "look at x", tools=["Read"], system="be brief")
        task = await runtime.launch(agent, owner="main", description="a look")
        assert env.files.size(HERE / f"agent-{task.id}.meta.json") is None
        env = after_crash(env)
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        with trio.fail_after(LONG):
            if after == "pause":
                assert runtime.get(task.id).status is PAUSED
                await runtime.resume(task.id)
            ended = await runtime.handle(task.id).wait()
        assert (ended.status, ended.result) == (COMPLETED, "look at x")
        assert (ended.owner, ended.description) == ("main", "a look")
        meta = runtime.agent_meta(task.id)
        assert meta is not None
        assert (meta.tools, meta.system) == (("Read",), "be brief")
        notes = [it for it in runtime.notifications.drain() if it.kind == "task"]
        assert [it.task_id for it in notes] == [task.id]


async def test_it_is_known_also_after_several_kills_and_by_a_file_made_anew(
    autojump_clock: trio.testing.MockClock,
) -> None:
    env = fake_env()
    async with open_runtime(HERE, env=env) as runtime:
        task = await runtime.launch(Agent(answers, "look at x"))
        env = after_crash(env)
    policy = AgentPolicy(run=answers)
    for _ in range(3):
        async with open_runtime(HERE, env=env, agents=policy) as runtime:
            # The journal is made anew at each opening.
            env = after_crash(env)
            env.files.remove(HERE / f"agent-{task.id}.meta.json")
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        with trio.fail_after(LONG):
            ended = await (await runtime.resume(task.id)).wait()
        assert ended.result == "look at x"
        (*_, end) = env.files.contents(HERE / "journal.jsonl").splitlines()
        assert orjson.loads(end)["k"] == "end"
    env = after_crash(env)
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        assert [it.task_id for it in runtime.notifications.drain()] == [task.id]
        # It has ended: its own file says what it was.
        _, start, _ = env.files.contents(HERE / "journal.jsonl").splitlines()
        assert "j" not in orjson.loads(start)


# ---- Its own tasks -----------------------------------------------------------------------

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
