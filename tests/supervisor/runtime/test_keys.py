"""A launch with a key happens once, whoever asks again and whenever."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors import TaskStatus
from actors.agent import Agent, AgentContext, AgentEvent, FinalResult
from actors.shell import Shell
from actors.testing import FakeEnv, fake_env
from supervisor.runtime import KeyTaken, open_runtime

COMMANDS: dict[str, Any] = {"make": "made\n", "test": "tested\n", "fails": 3}
HERE = "/tasks"


async def test_a_key_finds_the_task_that_it_has_begun(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_runtime(HERE, env=fake_env(COMMANDS)) as runtime:
        first = await runtime.launch(Shell("make"), key="k", owner="main")
        again = await runtime.launch(Shell("make"), key="k", owner="main")
        assert again.id == first.id
        done = await first.wait()
        after = await runtime.launch(Shell("make"), key="k", owner="main")
        assert after.snapshot() == done
        other = await runtime.launch(Shell("make"), key="k", owner="other")
        assert other.id != first.id, "a key is one of its owner"
        assert (await runtime.launch(Shell("make"), key="l", owner="main")).id not in (
            first.id,
            other.id,
        )


async def test_many_who_ask_at_once_get_one_task(
    autojump_clock: trio.testing.MockClock,
) -> None:
    found: set[str] = set()
    async with open_runtime(HERE, env=fake_env(COMMANDS)) as runtime:

        async def ask() -> None:
            found.add((await runtime.launch(Shell("make"), key="k")).id)

        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(ask)
        assert len(found) == 1 and len(runtime.tasks()) == 1


async def test_another_command_needs_another_key(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_runtime(HERE, env=fake_env(COMMANDS)) as runtime:
        first = await runtime.launch(Shell("make"), key="k", owner="main")
        with pytest.raises(KeyTaken) as caught:
            await runtime.launch(Shell("test"), key="k", owner="main")
        assert str(caught.value) == (
            f"the key 'k' of main has begun task {first.id} with 'make', not with "
            "'test': give that another key"
        )
        with pytest.raises(KeyTaken, match="make, in /src"):
            await runtime.launch(Shell("make", cwd="/src"), key="k", owner="main")
        assert len(runtime.tasks()) == 1


@pytest.mark.parametrize("key", ["", "x" * 201, 5, b"k"])
async def test_a_key_that_can_be_none_is_refused_by_name(key: Any) -> None:
    async with open_runtime(HERE, env=fake_env(COMMANDS)) as runtime:
        with pytest.raises((TypeError, ValueError), match="key"):
            await runtime.launch(Shell("make"), key=key)
        assert runtime.tasks() == []


def next_program(env: FakeEnv) -> FakeEnv:
    """Return the world as another program finds it."""
    import attrs

    return attrs.evolve(env, processes=fake_env(COMMANDS).processes)


async def test_a_key_holds_in_the_next_runtime_for_a_day(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Also when its notification was acknowledged; and its output stays."""
    env = fake_env(COMMANDS)
    async with open_runtime(HERE, env=env) as runtime:
        made = await runtime.launch(Shell("make"), key="k")
        failed = await runtime.launch(Shell("fails"), key="f")
        placed = await runtime.launch(Shell("test", cwd="/src"), key="t")
        await runtime.wait_all([made, failed, placed])
        journal = env.files.read_at(Path(HERE) / "journal.jsonl", 0, 2**20)
        assert b'"h":' not in journal, "a command may be long, and stands there already"
        for note in runtime.notifications.drain():
            note.ack()
    for _ in range(2):
        env.clock.ahead += timedelta(hours=11).total_seconds()
        async with open_runtime(HERE, env=(env := next_program(env))) as runtime:
            again = await runtime.launch(Shell("make"), key="k")
            assert again.id == made.id
            assert again.status is TaskStatus.COMPLETED
            assert again.snapshot().result == "made\n"
            other = (await runtime.launch(Shell("fails"), key="f")).snapshot()
            assert (other.id, other.status) == (failed.id, TaskStatus.FAILED)
            assert other.exit_code == 3 and other.error is not None
            assert runtime.notifications.drain() == []
            with pytest.raises(KeyTaken, match="'make', not with 'test'"):
                await runtime.launch(Shell("test"), key="k")
            with pytest.raises(KeyTaken, match="'make', not with 'make, in /src'"):
                await runtime.launch(Shell("make", cwd="/src"), key="k")
            there = await runtime.launch(Shell("test", cwd="/src"), key="t")
            assert there.id == placed.id
    env.clock.ahead += timedelta(hours=3).total_seconds()
    async with open_runtime(HERE, env=next_program(env)) as runtime:
        assert (await runtime.launch(Shell("make"), key="k")).id != made.id


async def test_a_key_is_forgotten_a_day_after_the_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    env = fake_env(COMMANDS)
    async with open_runtime(HERE, env=env) as runtime:
        first = await runtime.launch(Shell("make"), key="k")
        await first.wait()
        for note in runtime.notifications.drain():
            note.ack()
        for number in range(300):
            task = await runtime.launch(Shell("make"), key=f"{number}")
            await task.wait()
            for note in runtime.notifications.drain():
                note.ack()
        assert (await runtime.launch(Shell("make"), key="k")).id == first.id
        assert len(runtime.tasks()) == 301, "no task is forgotten that a key finds"
        env.clock.ahead += timedelta(hours=24).total_seconds()
        assert (await runtime.launch(Shell("make"), key="k")).id != first.id
        for number in range(1_000):
            task = await runtime.launch(Shell("make"), key=f"later {number}")
        assert runtime.tasks()[0].id != first.id


async def answers(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield FinalResult("done")


async def test_the_key_of_an_agent_counts_its_prompt(
    autojump_clock: trio.testing.MockClock,
) -> None:
    env = fake_env(COMMANDS)
    async with open_runtime(HERE, env=env) as runtime:
        first = await runtime.launch(Agent(answers, "deploy"), key="k")
        await first.wait()
        with pytest.raises(KeyTaken, match="'deploy', not with 'test'"):
            await runtime.launch(Agent(answers, "test"), key="k")
    async with open_runtime(HERE, env=next_program(env)) as runtime:
        again = await runtime.launch(Agent(answers, "deploy"), key="k")
        assert again.id == first.id and again.status is TaskStatus.COMPLETED


@pytest.mark.parametrize("seed", range(6))
async def test_any_sequence_of_launches_and_programs_follows_the_rule(
    autojump_clock: trio.testing.MockClock, seed: int
) -> None:
    """Against a plain table of owner and key."""
    chance = random.Random(seed)
    env, table = fake_env(COMMANDS), dict[tuple[str, str], tuple[str, str]]()
    for _ in range(6):
        async with open_runtime(HERE, env=(env := next_program(env))) as runtime:
            for _ in range(12):
                owner, key = chance.choice("ab"), chance.choice("klm")
                command = chance.choice(["make", "make", "test"])
                known = table.get((owner, key))
                try:
                    task = await runtime.launch(Shell(command), owner=owner, key=key)
                except KeyTaken:
                    assert known is not None and known[1] != command
                    continue
                assert known in (None, (task.id, command))
                table[owner, key] = task.id, command
                if chance.random() < 0.5:
                    await task.wait()
                for note in runtime.notifications.drain():
                    if chance.random() < 0.5:
                        note.ack()
