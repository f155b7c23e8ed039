"""What an agent keeps when its host has ended, in good order or not, and another
runtime goes on with it: the messages that it was sent, and what bounds it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Literal, TypeVar

import pytest
import trio
import trio.testing

from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    Budget,
    FinalResult,
    TokensUsed,
    ToolAnswer,
    ToolUse,
    UserMessage,
)
from actors.agent.hosting import INBOX_SIZE
from actors.env import Env
from actors.testing import FakeFiles, fake_env
from actors.transcript.hosting import META_LIMIT
from supervisor.agents import AgentPolicy
from supervisor.definitions import AgentDefinition
from supervisor.runtime import (
    Limits,
    MessageRefused,
    ResumeRefused,
    Runtime,
    Warned,
    open_runtime,
)
from tests.supervisor.talkers import answers, fails, forever, read

ROOT = Path(__file__).parents[3]
LONG = 60.0

T = TypeVar("T")
DIRECTORY = Path("/tasks")
POLICY = AgentPolicy(run=answers)


# Messages


@pytest.mark.parametrize(
    "state", ["running", "pending", "stopped", "failing", "waiting for its tasks"]
)
async def test_a_message_that_was_queued_is_read_in_the_next_runtime(
    state: str, autojump_clock: trio.testing.MockClock
) -> None:
    """AG22, AG24: whatever the agent was doing, through three programs; each once,
    in order, and by the sender that it had."""
    env = fake_env()

    async def above(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await context.launch(Agent(forever, "below"))
        yield FinalResult("done")

    async def stumbles(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("at work")
        await trio.sleep(50)
        raise OSError("no such luck")

    loops = {"waiting for its tasks": above, "failing": stumbles}
    limits = Limits(total=1 if state == "pending" else None)
    async with open_runtime(DIRECTORY, env=env, limits=limits) as runtime:
        if state == "pending":
            await runtime.launch(Agent(forever, "holds the place"))
        task = await runtime.launch(Agent(loops.get(state, forever), "go"))
        await trio.testing.wait_all_tasks_blocked()
        for text in ("one", "two"):
            sent = await runtime.send(task, text, sender=f"sender of {text}")
            assert sent.how == "queued"
        if state == "stopped":
            await task.stop()
        if state == "failing":
            await task.wait()
    # In the second program nobody goes on with it.
    async with open_runtime(DIRECTORY, env=env) as runtime:
        meta = runtime.agent_meta(task.id)
        assert meta is not None
        if state != "waiting for its tasks":
            assert [text for text, _ in meta.messages] == ["one", "two"]
    async with open_runtime(DIRECTORY, env=env, agents=POLICY) as runtime:
        again = await runtime.resume(task.id, "three")
        assert (await again.wait()).error is None
        assert await read(runtime, task.id) == ["one", "two", "three"]
        transcript = await runtime.transcripts.load(task.id)
        assert transcript is not None
        # What ended with the first program is told, too, where it had tasks of its own.
        senders = [
            m.sender
            for m in transcript.messages
            if isinstance(m, UserMessage) and m.origin == "message"
        ]
        assert senders == ["sender of one", "sender of two", None]
        meta = runtime.agent_meta(task.id)
        assert meta is not None and meta.messages == ()


async def test_messages_wait_through_any_number_of_programs() -> None:
    """AG22: also if each of them goes on with the agent, and none lets it read."""
    env = fake_env()
    policy = AgentPolicy(run=forever)
    async with open_runtime(DIRECTORY, env=env) as runtime:
        task = await runtime.launch(Agent(forever, "go"))
        await runtime.send(task, "0")
    for number in range(1, 4):

        async def stays(context: AgentContext) -> AsyncIterator[AgentEvent]:
            # What it finds at its beginning it has read.
            yield AssistantMessage("at work")
            await trio.sleep_forever()

        policy = AgentPolicy(run=stays)
        async with open_runtime(DIRECTORY, env=env, agents=policy) as runtime:
            await runtime.resume(task.id)
            await trio.testing.wait_all_tasks_blocked()
            assert (await runtime.send(task.id, str(number))).how == "queued"
    async with open_runtime(DIRECTORY, env=env, agents=POLICY) as runtime:
        await (await runtime.resume(task.id)).wait()
        assert await read(runtime, task.id) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("knows", [True, False])
async def test_a_message_that_waits_is_not_taken_for_one_that_was_read_with_its_text(
    knows: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """AG22: nor if the file is of a version that did not say what was read last."""
    env = fake_env()

    async def reads_once(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await trio.sleep(2)
        context.inbox.take()
        yield AssistantMessage("heard it")
        await trio.sleep_forever()

    async with open_runtime(DIRECTORY, env=env) as runtime:
        task = await runtime.launch(Agent(reads_once, "go"))
        for _ in range(2):
            await trio.sleep(1.5)
            await runtime.send(task.id, "ping")
        await trio.sleep(1)
        assert await read(runtime, task.id) == ["ping"]
    if not knows:
        path = DIRECTORY / f"agent-{task.id}.meta.json"
        meta = json.loads(env.files.contents(path))
        del meta["heard"]
        env.files.replace(path, json.dumps(meta).encode())
    async with open_runtime(DIRECTORY, env=env, agents=POLICY) as runtime:
        await (await runtime.resume(task.id)).wait()
        assert await read(runtime, task.id) == ["ping", "ping"]


async def test_a_message_waits_for_the_next_program_if_a_resume_comes_to_nothing() -> (
    None
):
    """AG22, AG26: it fails at once, or the runtime closes while it waits for its
    place."""
    env = fake_env()

    def fails_at_once(context: AgentContext) -> AsyncIterator[AgentEvent]:
        raise OSError("no such luck")

    async with open_runtime(DIRECTORY, env=env) as runtime:
        task = await runtime.launch(Agent(forever, "go"))
        await runtime.send(task, "one")
    async with open_runtime(DIRECTORY, env=env) as runtime:
        with pytest.raises(ResumeRefused, match="no such luck"):
            await runtime.resume(task.id, "lost", agent=Agent(fails_at_once, "x"))
    async with open_runtime(
        DIRECTORY, env=env, agents=POLICY, limits=Limits(total=1)
    ) as runtime:
        await runtime.launch(Agent(forever, "holds the place"))
        assert (await runtime.resume(task.id, "two")).status.value == "pending"
    async with open_runtime(DIRECTORY, env=env, agents=POLICY) as runtime:
        await (await runtime.resume(task.id, "three")).wait()
        assert await read(runtime, task.id) == ["one", "two", "three"]


async def test_what_would_wait_is_bounded_by_its_length_as_well() -> None:
    """AG21: the sender is told; what waits stays, and there is room again when it
    was read."""
    env = fake_env()
    big = "x" * (INBOX_SIZE // 2)
    async with open_runtime(DIRECTORY, env=env) as runtime:
        task = await runtime.launch(Agent(forever, "go"))
        await trio.testing.wait_all_tasks_blocked()
        await runtime.send(task, big)
        await runtime.send(task, big)
        with pytest.raises(MessageRefused, match="1,000,000 characters would wait"):
            await runtime.send(task, "!")
    async with open_runtime(DIRECTORY, env=env, agents=POLICY) as runtime:
        with pytest.raises(ResumeRefused, match="1,000,000 characters would wait"):
            await runtime.resume(task.id, "!")
        await (await runtime.resume(task.id)).wait()
        await (await runtime.resume(task.id, "!")).wait()
        assert [len(text) for text in await read(runtime, task.id)] == [
            len(big),
            len(big),
            1,
        ]


async def test_a_message_that_no_file_could_keep_is_refused() -> None:
    """AG22: beside a long prompt, to one that runs and to one that is resumed; what
    was accepted is read in the next program, all of it."""
    env = fake_env()
    prompt, large = "x" * (META_LIMIT - 400_000), "y" * 300_000
    async with open_runtime(DIRECTORY, env=env) as runtime:
        task = await runtime.launch(Agent(forever, prompt))
        await trio.testing.wait_all_tasks_blocked()
        await runtime.send(task, large)
        for _ in range(2):
            with pytest.raises(MessageRefused, match=r"more than 4,194,304 bytes"):
                await runtime.send(task, large)
        await runtime.send(task, "small")
    async with open_runtime(DIRECTORY, env=env, agents=POLICY) as runtime:
        with pytest.raises(ResumeRefused, match=r"more than 4,194,304 bytes"):
            await runtime.resume(task.id, large)
        await (await runtime.resume(task.id)).wait()
        assert await read(runtime, task.id) == [large, "small"]


async def test_an_inbox_that_is_full_can_be_kept() -> None:
    """AG22: of characters that take four bytes each, too."""
    env = fake_env()
    whole = ["\N{PILE OF POO}" * (INBOX_SIZE // 10)] * 10
    async with open_runtime(DIRECTORY, env=env) as runtime:
        task = await runtime.launch(Agent(forever, "go"))
        await trio.testing.wait_all_tasks_blocked()
        for text in whole:
            await runtime.send(task, text)
    async with open_runtime(DIRECTORY, env=env, agents=POLICY) as runtime:
        await (await runtime.resume(task.id)).wait()
        assert await read(runtime, task.id) == whole


class Disk(FakeFiles):
    """One that hangs while its gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = trio.Event()
        self.gate.set()

    async def in_thread(self, fn: Callable[..., T], *args: object) -> T:
        with trio.CancelScope(shield=True):
            await self.gate.wait()
        return await super().in_thread(fn, *args)


async def test_a_message_that_is_not_on_the_disk_is_told_by_the_agents_name(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """AG22: whether the disk hangs or is full; one that hangs is waited for once,
    for a second."""
    fake, disk = fake_env(), Disk()
    env = Env(clock=fake.clock, ids=fake.ids, processes=fake.processes, files=disk)
    async with open_runtime(DIRECTORY, env=env) as runtime:
        task = await runtime.launch(Agent(forever, "go"))
        await trio.testing.wait_all_tasks_blocked()
        with runtime.events.subscribe() as events:

            async def told(text: str) -> tuple[float, int]:
                began = trio.current_time()
                assert (await runtime.send(task, text)).how == "queued"
                warned = [e for e in events.drain() if isinstance(e, Warned)]
                assert {event.task_id for event in warned} <= {task.id}
                late = [e for e in warned if "not on the disk yet" in e.text]
                return trio.current_time() - began, len(late)

            assert await told("one") == (0, 0)
            disk.gate = trio.Event()
            assert await told("two") == (1, 1)
            assert await told("three") == (0, 1)
            assert await told("four") == (0, 1)
            disk.gate.set()
            await trio.testing.wait_all_tasks_blocked()
            assert await told("five") == (0, 0)
            disk.write_error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            assert await told("six") == (0, 1)
            assert await told("seven") == (0, 1)
            disk.write_error = None
            assert await told("eight") == (0, 0)


HOST = """
import sys
from pathlib import Path

import trio

from actors.agent import Agent, AssistantMessage, TokensUsed, UserMessage
from actors.agent import ToolAnswer, ToolUse
from supervisor.runtime import open_runtime


async def run(context):
    yield AssistantMessage("thinking")
    await trio.sleep_forever()


async def main(directory):
    async with open_runtime(directory) as runtime:
        task = await runtime.launch(Agent(run, "go"))
        while True:
            transcript = await runtime.transcripts.load(task.id)
            if transcript is not None:
                break
            await trio.sleep(0.01)
        print(task.id, flush=True)
        for number in range(100):
            sent = await runtime.send(task.id, str(number))
            assert sent.how == "queued"
            print(number, flush=True)
        await trio.sleep_forever()


trio.run(main, Path(sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("after", [1, 7, 30])
async def test_a_message_that_was_accepted_outlives_the_death_of_the_host(
    tmp_path: Path, after: int
) -> None:
    """AG22, TR6: killed right after it has said so, while others are on their way."""
    with trio.fail_after(LONG):
        process = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", HOST, str(tmp_path)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
        )
        assert process.stdout is not None
        last = ""
        try:
            agent_id = (await trio.to_thread.run_sync(process.stdout.readline)).strip()
            for _ in range(after):
                last = await trio.to_thread.run_sync(process.stdout.readline)
        finally:
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split()
            process.wait()
            process.stdout.close()
        accepted = int(rest[-1] if rest else last) + 1
        async with open_runtime(tmp_path, agents=POLICY) as runtime:
            await (await runtime.resume(agent_id)).wait()
            texts = await read(runtime, agent_id)
    assert texts[:accepted] == [str(number) for number in range(accepted)]
    assert len(texts) <= accepted + 1


# What bounds it


async def spends(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """Use ten tokens and a call of a tool in each round, for ever."""
    number = len(context.history)
    while True:
        number += 1
        use = ToolUse(f"t{number}", "Look")
        yield TokensUsed(input_tokens=6, output_tokens=4, cost=0.5)
        yield AssistantMessage("", (use,))
        await trio.sleep(1)
        yield UserMessage(tool_answers=(ToolAnswer(use.id, "seen"),), origin="tools")


End = Literal["closed", "stopped", "killed"]


async def spent(runtime: Runtime, agent: Agent, rounds: int, how: End) -> str:
    """Let it work for some rounds, and end it so; return its id."""
    task = await runtime.launch(agent)
    await trio.sleep(rounds + 0.5)
    if how == "stopped":
        await task.stop()
    return task.id


@pytest.mark.parametrize("how", ["closed", "stopped"])
@pytest.mark.parametrize("unit", ["tokens", "cost"])
async def test_what_was_used_of_a_budget_stays_used_in_the_next_runtimes(
    autojump_clock: trio.testing.MockClock,
    how: End,
    unit: Literal["tokens", "cost"],
) -> None:
    """AG33: three programs share what one agent may use."""
    env = fake_env()
    budget = Budget(tokens=100) if unit == "tokens" else Budget(cost=5.0)
    policy = AgentPolicy(run=spends)
    async with open_runtime(DIRECTORY, env=env) as runtime:
        agent_id = await spent(runtime, Agent(spends, "go", budget=budget), 3, how)
    async with open_runtime(DIRECTORY, env=env, agents=policy) as runtime:
        await runtime.resume(agent_id)
        await trio.sleep(2.5)
    async with open_runtime(DIRECTORY, env=env, agents=policy) as runtime:
        began = trio.current_time()
        done = await (await runtime.resume(agent_id)).wait()
        assert done.terminate == "budget" and done.error is not None
        # The first round is over at once.
        assert trio.current_time() - began == pytest.approx(10 - 4 - 3 - 1)
    async with open_runtime(DIRECTORY, env=env, agents=policy) as runtime:
        with pytest.raises(ResumeRefused, match="budget"):
            await runtime.resume(agent_id)
        more = Agent(spends, "x", budget=Budget(tokens=20))
        done = await (await runtime.resume(agent_id, agent=more)).wait()
        assert done.terminate == "budget"


async def test_a_part_of_a_budget_stays_a_part_of_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """AG33: an own task that is resumed by itself has what was left of its own and of
    its parent's, whichever is less."""
    env = fake_env()
    ids: list[str] = []

    async def above(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for limit in (None, 1_000):
            budget = None if limit is None else Budget(limit)
            task = await context.launch(Agent(spends, "below", budget=budget))
            ids.append(task.id)
        await trio.sleep_forever()
        yield FinalResult("never")

    async with open_runtime(DIRECTORY, env=env) as runtime:
        await runtime.launch(Agent(above, "go", budget=Budget(100)))
        await trio.sleep(1.5)
    async with open_runtime(
        DIRECTORY, env=env, agents=AgentPolicy(run=spends)
    ) as runtime:
        for id in ids:
            meta = runtime.agent_meta(id)
            assert meta is not None and meta.tokens_left == 100 - 40
            done = await (await runtime.resume(id)).wait()
            assert done.terminate == "budget"


async def test_a_deadline_and_the_rounds_hold_for_the_run_of_the_next_runtime(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """AG33, TR15: and so does whatever else bounds an agent."""
    env = fake_env()
    policy = AgentPolicy(run=spends)
    async with open_runtime(DIRECTORY, env=env) as runtime:
        timed = await spent(runtime, Agent(spends, "go", deadline=5), 1, "closed")
        turns = await spent(runtime, Agent(spends, "go", max_turns=4), 1, "stopped")
        quiet = await spent(
            runtime,
            Agent(forever, "go", stall_warning=None, stall_limit=20),
            1,
            "closed",
        )
    async with open_runtime(DIRECTORY, env=env, agents=policy) as runtime:
        for agent_id, seconds, mode in ((timed, 5, "timeout"), (turns, 4, "max_turns")):
            began = trio.current_time()
            done = await (await runtime.resume(agent_id)).wait()
            assert done.terminate == mode
            assert trio.current_time() - began == pytest.approx(seconds)
    policy = AgentPolicy(run=forever)
    async with open_runtime(DIRECTORY, env=env, agents=policy) as runtime:
        began = trio.current_time()
        done = await (await runtime.resume(quiet)).wait()
        assert done.terminate == "stalled"
        assert trio.current_time() - began == pytest.approx(20)


async def test_the_rounds_are_those_of_the_type_if_these_are_fewer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """PM2: whichever has changed since."""
    env = fake_env()
    for own, of_type, rounds in ((3, 5, 3), (5, 3, 3), (None, 3, 3), (3, None, 3)):
        async with open_runtime(DIRECTORY, env=env) as runtime:
            agent = Agent(fails(OSError()), "go", type="worker", max_turns=own)
            task = await runtime.launch(agent)
            await task.wait()
        worker = AgentDefinition(
            name="worker", description="Works.", prompt="Work.", max_turns=of_type
        )
        policy = AgentPolicy(run=spends, definitions={"worker": worker})
        async with open_runtime(DIRECTORY, env=env, agents=policy) as runtime:
            began = trio.current_time()
            done = await (await runtime.resume(task.id)).wait()
            assert done.terminate == "max_turns"
            assert trio.current_time() - began == pytest.approx(rounds)
