"""What the second runtime on a directory does itself before, while and after it takes over
what the first has left."""

from __future__ import annotations

import errno
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors.agent import Agent, AgentContext, AgentEvent, AssistantMessage, UserMessage
from actors.env import Share
from actors.shell import Shell
from actors.testing import FakeEnv, Program, fake_env
from supervisor.agents import AgentPolicy
from supervisor.runtime import open_runtime
from tests.supervisor.jobs import COMPLETED, KILLED, answers, idles

HERE = Path("/tasks")
LONG = 60.0
POLICY = AgentPolicy(run=answers)


async def sleeps(program: Program) -> int:
    await trio.sleep_forever()
    return 0


COMMANDS: dict[str, Any] = {"make": "made\n", "sleep": sleeps}


def killed(env: FakeEnv) -> FakeEnv:
    """Return the world as the next program finds it, if this one is killed now."""
    again = fake_env(COMMANDS)
    again.ids.given = env.ids.given + 10_000
    again.files.disk = env.files.disk.image().killed()
    return again


async def starts_two(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """An agent with an agent and a command of its own."""
    await context.launch(Agent(idles, "below"))
    await context.launch(Shell("sleep"))
    yield AssistantMessage("they run")
    await trio.sleep_forever()


async def left_with(*works: Any) -> tuple[FakeEnv, list[str]]:
    """Return what a program leaves that is killed while these run, and their ids."""
    env = fake_env(COMMANDS)
    async with open_runtime(HERE, env=env, agents=POLICY) as runtime:
        for work in works:
            await runtime.launch(work)
        await trio.sleep(1)
        return killed(env), [it.id for it in runtime.tasks()]


def lock_of(env: FakeEnv) -> Share:
    """Hold the journal as a program does that is not dead yet."""
    held = env.files.share(HERE)
    held.claim("journal.jsonl")
    return held


@asynccontextmanager
async def recovering(env: FakeEnv) -> AsyncGenerator[trio.Event]:
    """Let the recovery take five seconds; the event tells that it has begun."""
    begun = trio.Event()

    async def takes_long(program: str, prefixes: object) -> tuple[int, list[int]]:
        begun.set()
        await trio.sleep(5)
        return 0, []

    env.processes.end_orphans = takes_long  # type: ignore[method-assign]
    yield begun


async def test_an_older_end_never_takes_the_place_of_a_newer_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """An agent goes on, and hears that one below it was stopped; that one has been gone
    on with and has ended since."""
    env = fake_env(COMMANDS)
    async with open_runtime(HERE, env=env, agents=POLICY) as runtime:
        above = await runtime.launch(Agent(starts_two, "above"))
        await trio.sleep(1)
        (below,) = (
            it.id
            for it in runtime.tasks()
            if it.type == "local_agent" and it.id != above.id
        )
    env = killed(env)
    async with open_runtime(HERE, env=env, agents=POLICY) as runtime:
        ended = await (await runtime.resume(below)).wait()
        assert ended.status is COMPLETED
        await runtime.resume(above.id)
        now = runtime.get(below)
        assert (now.run_id, now.status) == (ended.run_id, COMPLETED)
        assert now.result == ended.result


@pytest.mark.parametrize("is_read", [True, False])
async def test_an_agent_that_has_ended_here_before_the_take_over_is_told_once(
    autojump_clock: trio.testing.MockClock, is_read: bool
) -> None:
    env, (agent_id,) = await left_with(Agent(idles, "x"))
    dead = lock_of(env)
    async with open_runtime(HERE, env=env, agents=POLICY) as runtime:
        ended = await (await runtime.resume(agent_id)).wait()
        told = runtime.notifications.drain() if is_read else []
        dead.close()
        await trio.sleep(4)
        told += runtime.notifications.drain()
        assert [(it.task_id, it.status) for it in told] == [(agent_id, COMPLETED)]
        assert runtime.get(agent_id) == ended
        env = killed(env)
    async with open_runtime(HERE, env=env, agents=POLICY) as runtime:
        assert [it.id for it in runtime.notifications.drain()] == [told[0].id]


@pytest.mark.parametrize("what", ["resumed", "abandoned"])
async def test_what_is_done_with_an_agent_while_it_is_recovered_counts(
    autojump_clock: trio.testing.MockClock, what: str
) -> None:
    """Its end is told once, or not at all if it was given up."""
    env, (agent_id, shell_id) = await left_with(Agent(idles, "x"), Shell("sleep"))
    dead = lock_of(env)
    async with (
        recovering(env) as begun,
        open_runtime(HERE, env=env, agents=POLICY) as runtime,
    ):
        dead.close()
        await begun.wait()
        if what == "resumed":
            await (await runtime.resume(agent_id)).wait()
        else:
            assert runtime.abandon_agent(agent_id)
        await trio.sleep(8)
        told = [it.task_id for it in runtime.notifications.drain()]
        env = killed(env)
    expected = [agent_id, shell_id] if what == "resumed" else [shell_id]
    assert told == expected
    async with open_runtime(HERE, env=env, agents=POLICY) as runtime:
        assert [it.task_id for it in runtime.notifications.drain()] == expected
        assert runtime.unfinished_agents() == []


async def test_a_kill_within_a_take_over_keeps_whose_tasks_are_whose(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The agent above was resumed, so it began after those below it."""
    env, (above, below, _) = await left_with(Agent(starts_two, "above"))
    dead = lock_of(env)
    async with (
        recovering(env) as begun,
        open_runtime(HERE, env=env, agents=AgentPolicy(run=idles)) as runtime,
    ):
        await runtime.resume(above)
        dead.close()
        await begun.wait()
        env = killed(env)
    async with open_runtime(HERE, env=env, agents=POLICY) as runtime:
        assert all(it.kind == "pause" for it in runtime.notifications.drain())
        await (await runtime.resume(above)).wait()
        said = await runtime.transcripts.load(above)
        assert said is not None
        texts = [it.text for it in said.messages if isinstance(it, UserMessage)]
        assert any(below in text for text in texts)


@pytest.mark.parametrize("fails", ["open_log", "replace"])
async def test_a_take_over_that_fails_behind_the_rename_declares_nobody_dead(
    autojump_clock: trio.testing.MockClock, fails: str
) -> None:
    """The file has the tasks of the second by then. An attempt more must not take them
    for those of the first."""
    env, _ = await left_with(Shell("make"))
    dead, real, failed = lock_of(env), getattr(env.files, fails), list[Path]()

    def fails_once(path: Path, *args: Any, **options: Any) -> Any:
        if failed or path.name != "journal.jsonl":
            return real(path, *args, **options)
        failed.append(path)
        if fails == "replace":
            real(path, *args, **options)
        raise OSError(errno.EIO, "Input/output error", str(path))

    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env, durable=True) as runtime:
            mine = await runtime.launch(Shell("sleep"))
            setattr(env.files, fails, fails_once)
            dead.close()
            await trio.sleep(5)
            assert failed
            (of_first,) = runtime.notifications.drain()
            assert of_first.task_id != mine.id
            stopped = await runtime.stop(mine.id)
            assert stopped.snapshot.status is KILLED
            (note,) = runtime.notifications.drain()
            assert (note.task_id, note.status) == (mine.id, KILLED)
            await runtime.synced()
            env = killed(env)
        async with open_runtime(HERE, env=env) as runtime:
            told = [it.id for it in runtime.notifications.drain()]
            assert told == [of_first.id, note.id]
