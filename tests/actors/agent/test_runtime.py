"""An agent as a task of a real runtime: what its snapshot and its parent are told."""

from __future__ import annotations

import gc
import re
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from actors import TaskStatus
from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    Note,
    Terminate,
    TextDelta,
    TokensUsed,
)
from actors.agent._alone import Alone
from actors.agent._running import run_agent
from actors.testing import fake_env
from supervisor.runtime import Runtime, TaskHandle, open_runtime
from tests.actors.agent.agents import RecordingReport, use


async def envelope(runtime: Runtime) -> str:
    async for note in runtime.notifications:
        note.ack()
        return note.xml
    raise AssertionError("no notification")


async def half(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield TokensUsed(input_tokens=100, output_tokens=11)
    yield AssistantMessage("half of it")
    await trio.sleep_forever()


async def answers(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield AssistantMessage("raw thoughts")
    yield FinalResult("42")


async def test_many_agents_launched_at_one_moment_have_different_ids(
    tmp_path: Path,
) -> None:
    """AG10: with the real ids, which are drawn, and in one step each."""
    tasks: list[TaskHandle] = []
    async with open_runtime(tmp_path) as runtime:

        async def launch() -> None:
            tasks.append(await runtime.launch(Agent(answers, "x")))

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(launch)
        done = [await task.wait() for task in tasks]
    assert all(re.fullmatch("[0-9a-f]{8}", task.id) for task in tasks)
    assert len({task.id for task in tasks}) == 50
    assert len({task.run_id for task in done}) == 50


async def test_the_parent_is_told_the_answer_and_no_raw_transcript(
    autojump_clock: object,
) -> None:
    """AG17."""
    async with open_runtime("tasks", env=fake_env()) as runtime:
        await runtime.launch(Agent(answers, "x"))
        told = await envelope(runtime)
    assert "<result>42</result>" in told
    assert "raw thoughts" not in told


async def test_a_killed_agent_keeps_its_partial_result_for_the_parent(
    autojump_clock: object,
) -> None:
    """AG12, AG15: text and figures."""
    async with open_runtime("tasks", env=fake_env()) as runtime:
        task = await runtime.launch(Agent(half, "x"))
        await trio.sleep(1)
        await task.stop("enough")
        done = task.snapshot()
        told = await envelope(runtime)
    assert (done.status, done.result) == (TaskStatus.KILLED, "half of it")
    assert (done.terminate, done.usage.total_tokens) == ("cancelled", 111)
    assert "<result>half of it</result>" in told


@pytest.mark.parametrize("mode", ["error", "max_turns", "timeout", "stalled", "budget"])
async def test_each_bad_mode_is_a_failure_with_its_partial_result(
    autojump_clock: object, mode: Terminate
) -> None:
    """AG11, AG14, AG16."""

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("half of it")
        yield FinalResult("", mode, error="why it was")

    async with open_runtime("tasks", env=fake_env()) as runtime:
        task = await runtime.launch(Agent(run, "x"))
        done = await task.wait()
        told = await envelope(runtime)
    assert done.error is not None
    assert (done.status, done.terminate) == (TaskStatus.FAILED, mode)
    assert (done.result, done.error.message) == ("half of it", "why it was")
    assert "half of it" in told
    assert "why it was" in told


async def test_an_agent_that_says_it_was_cancelled_is_killed(
    autojump_clock: object,
) -> None:
    """AG12."""

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield FinalResult("half of it", "cancelled")

    async with open_runtime("tasks", env=fake_env()) as runtime:
        done = await (await runtime.launch(Agent(run, "x"))).wait()
    assert (done.status, done.result) == (TaskStatus.KILLED, "half of it")
    assert done.terminate == "cancelled"


async def test_a_tool_that_fails_does_not_fail_the_agent(
    autojump_clock: object,
) -> None:
    """SM37, as the extension has it: only what the run itself says is a failure."""

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        answers = await context.use_tools([use("NoSuchTool")])
        yield answers
        yield FinalResult(f"it failed: {answers.tool_answers[0].is_error}")

    async with open_runtime("tasks", env=fake_env()) as runtime:
        done = await (await runtime.launch(Agent(run, "x"))).wait()
    assert (done.status, done.result) == (TaskStatus.COMPLETED, "it failed: True")


async def test_a_loop_that_will_not_end_keeps_the_agent_running(
    autojump_clock: object,
) -> None:
    """SM30: a stop that has no effect yet is no end."""

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("half of it")
        with trio.CancelScope(shield=True):
            await trio.sleep(100)
        await trio.lowlevel.checkpoint()

    async with open_runtime("tasks", env=fake_env()) as runtime:
        task = await runtime.launch(Agent(run, "x", shutdown=1))
        await trio.sleep(1)
        with trio.move_on_after(50):
            await task.stop()
        assert task.snapshot().status is TaskStatus.RUNNING
        assert (await task.wait()).status is TaskStatus.KILLED
        assert trio.current_time() == 100


async def test_an_answer_is_no_end_while_there_is_more_to_do(
    autojump_clock: object,
) -> None:
    """SM31, SM33, SM35: judged once for each thing that happens, and working, waiting
    and ended follow each other as they may."""
    seen: list[tuple[TaskStatus, str | None]] = []

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await context.launch(Agent(slow, "own"))
        yield FinalResult("early")
        (message,) = context.inbox.take()
        assert message.origin == "notification"
        yield FinalResult("late")

    async def slow(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await trio.sleep(10)
        yield FinalResult("own answer")

    def look(task: TaskHandle) -> None:
        now = task.snapshot()
        seen.append((now.status, now.waiting))

    async with open_runtime("tasks", env=fake_env()) as runtime:
        task = await runtime.launch(Agent(run, "x"))
        await trio.sleep(5)
        look(task)
        done = await task.wait()
        look(task)
        # SM36, SM5: a stop after the end is acknowledged and changes nothing.
        await task.stop()
        look(task)
    assert done.result == "late"
    assert seen == [
        (TaskStatus.RUNNING, "tasks"),
        (TaskStatus.COMPLETED, None),
        (TaskStatus.COMPLETED, None),
    ]


async def test_what_an_agent_says_late_changes_nothing(autojump_clock: object) -> None:
    """AG19: after the end its progress is dropped."""
    kept: list[AgentContext] = []

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        kept.append(context)
        yield Note("in time")
        yield FinalResult("42")

    async with open_runtime("tasks", env=fake_env()) as runtime:
        task = await runtime.launch(Agent(run, "x"))
        before = await task.wait()
        kept[0].say("too late")
        after = task.snapshot()
    assert before.progress is not None
    assert before.progress.activities == ("in time",)
    assert after.progress == before.progress


async def test_it_stalls_and_times_out_as_a_task_too(autojump_clock: object) -> None:
    """AG11, AG18."""
    async with open_runtime("tasks", env=fake_env()) as runtime:
        stalls = await runtime.launch(Agent(half, "x"))
        late = await runtime.launch(Agent(half, "x", deadline=30))
        ends = [(await late.wait(), trio.current_time())]
        ends.append((await stalls.wait(), trio.current_time()))
    assert [(done.status, done.terminate, at) for done, at in ends] == [
        (TaskStatus.FAILED, "timeout", 30),
        (TaskStatus.FAILED, "stalled", 600),
    ]
    assert {done.result for done, _ in ends} == {"half of it"}


async def test_an_agent_that_talks_for_ever_costs_bounded_memory() -> None:
    """Progress is conflated: of 30,000 events nothing is left but the counts."""
    sizes: list[int] = []
    talk = [TextDelta("a word "), Note("a step"), TokensUsed(input_tokens=1)]

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for _ in range(6):
            for number in range(10_000):
                yield talk[number % 3]
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
        yield FinalResult("42")

    class Deaf(RecordingReport):
        def on_agent_event(self, event: AgentEvent) -> None:
            pass

    agent = Agent(run, "x")
    report = Deaf()
    report.agent_host = Alone(agent)
    tracemalloc.start()
    try:
        await run_agent(agent, report)
    finally:
        tracemalloc.stop()
    # What is kept of an unfinished message has its bound, which the first two
    # rounds reach.
    assert sizes[-1] - sizes[2] < 10_000
    assert report.progress is not None
    assert report.progress.total_tokens == 6 * 3333
