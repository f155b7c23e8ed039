"""Pauses over a death of the program: no patience is given twice, and nothing is told
twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import trio
import trio.testing

from actors.agent import (
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    Note,
    TextDelta,
    TransientError,
)
from actors.testing import FakeEnv, fake_env
from supervisor.agents import AgentPolicy
from supervisor.runtime import Notification, Runtime, TaskPaused, open_runtime
from tests.supervisor.jobs import FAILED, PAUSED, agent

MockClock = trio.testing.MockClock
HERE = "/tasks"
START = datetime(2000, 1, 1, tzinfo=UTC)


async def fails(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield Note("it tries")
    raise TransientError("the API is overloaded", None)


def after_crash(env: FakeEnv, number: int) -> FakeEnv:
    """Return the world in which the program has died just now, and is begun again."""
    again = fake_env()
    again.ids.given = 1_000 * number
    again.files.disk = env.files.disk.image().killed()
    return again


def pauses_told(runtime: Runtime) -> list[Notification]:
    return [it for it in runtime.notifications.drain() if it.kind == "pause"]


@pytest.mark.parametrize("crashes_at", [[30], [90], [30, 100], [100, 101, 102], [70.0]])
async def test_a_death_of_the_program_gives_an_agent_no_new_patience(
    autojump_clock: MockClock, crashes_at: list[float]
) -> None:
    """Wherever in its pauses it dies, the tries and their times are those of an agent
    whose program has lived."""
    policy = AgentPolicy(run=fails, patience=200.0, after_crash="resume")
    env, task_id = fake_env(), ""
    for number, at in enumerate(crashes_at, 1):
        async with open_runtime(HERE, env=env, agents=policy) as runtime:
            if number == 1:
                task_id = (await runtime.launch(agent(fails))).id
            await trio.sleep_until(at)
            await runtime.transcripts.flush()
            env = after_crash(env, number)
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        await runtime.wait_idle()
        done = runtime.get(task_id)
    assert done.status is FAILED and done.error is not None
    assert done.error.message.startswith("it was tried 4 times in 0.1 h")
    assert done.error.message.count("the API is overloaded") == 4
    assert START.isoformat(timespec="seconds") in done.error.message
    assert trio.current_time() == pytest.approx(200, abs=1)


async def test_what_was_tried_before_an_answer_counts_no_more(
    autojump_clock: MockClock,
) -> None:
    """The program dies while the run that has answered goes on."""

    async def answers(context: AgentContext) -> AsyncIterator[AgentEvent]:
        runs.append(trio.current_time())
        if len(runs) == 3:
            yield AssistantMessage("an answer")
            yield TextDelta("and ano")
            await trio.sleep_forever()
        raise TransientError("the API is overloaded", None)
        yield FinalResult("")

    runs: list[float] = []
    policy = AgentPolicy(run=answers, after_crash="resume")
    env = fake_env()
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        task_id = (await runtime.launch(agent(answers))).id
        while len(runs) < 3:
            await trio.sleep(1)
        await trio.testing.wait_all_tasks_blocked()
        await runtime.transcripts.flush()
        env = after_crash(env, 1)
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        with runtime.events.subscribe() as events:
            while len(runs) < 5:
                await trio.sleep(1)
            told = [it.attempt for it in events.drain() if isinstance(it, TaskPaused)]
    assert task_id and told[-2:] == [1, 2]


@pytest.mark.parametrize("after", ["pause", "resume"])
@pytest.mark.parametrize("is_heard", [False, True])
async def test_who_has_heard_of_a_pause_is_not_told_of_it_again(
    autojump_clock: MockClock, is_heard: bool, after: str
) -> None:
    """Who has not is told again, by each program that finds it."""
    policy = AgentPolicy(run=fails, after_crash=after)  # type: ignore[arg-type]
    env, task_id = fake_env(), ""
    for number in range(1, 4):
        async with open_runtime(HERE, env=env, agents=policy) as runtime:
            if number == 1:
                task_id = (await runtime.launch(agent(fails))).id
            await trio.testing.wait_all_tasks_blocked()
            assert runtime.get(task_id).status is PAUSED
            told = pauses_told(runtime)
            assert len(told) == (1 if number == 1 or not is_heard else 0)
            if is_heard:
                for note in told:
                    assert note.ack()
            await runtime.transcripts.flush()
            env = after_crash(env, number)
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        # The next pause is another one.
        assert len(pauses_told(runtime)) == (0 if is_heard else 1)
        await trio.sleep(timedelta(minutes=2).total_seconds())
        assert len(pauses_told(runtime)) >= 1


async def test_who_has_heard_that_a_program_has_died_is_told_that_once(
    autojump_clock: MockClock,
) -> None:
    """Of an agent that ran, and waits since for somebody to let it go on."""

    async def runs(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await trio.sleep_forever()
        yield FinalResult("")

    policy, env = AgentPolicy(run=runs), fake_env()
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        task_id = (await runtime.launch(agent(runs))).id
        await trio.testing.wait_all_tasks_blocked()
        env = after_crash(env, 1)
    heard: list[int] = []
    for number in range(2, 5):
        async with open_runtime(HERE, env=env, agents=policy) as runtime:
            assert runtime.get(task_id).status is PAUSED
            told = pauses_told(runtime)
            heard.append(len(told))
            for note in told:
                note.ack()
            if number == 3:
                # It goes on, and so the next death is another pause.
                await runtime.resume(task_id)
                await trio.testing.wait_all_tasks_blocked()
            env = after_crash(env, number)
    assert heard == [1, 0, 1]
