"""When an agent that gives no sign of life is warned of, and ended."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from actors.agent import (
    AgentFailed,
    ApprovalRequested,
    AssistantMessage,
    FinalResult,
    Note,
    TextDelta,
    TodoList,
    TokensUsed,
    ToolCompleted,
    ToolStarted,
)
from actors.agent._account import LATE, LOOK_EVERY
from tests.actors.agent.agents import Stage, told, use


async def test_a_silent_agent_is_warned_of_once_and_then_fails(autojump_clock):
    """AG18: after five and ten minutes."""

    async def run(context):
        yield AssistantMessage("half")
        await trio.sleep(100)
        yield TextDelta("and")
        await trio.sleep_forever()

    stage = Stage(run)
    with pytest.raises(AgentFailed, match="no sign of life for 600 s") as raised:
        await stage.run()
    assert raised.value.mode == stage.report.terminate == "stalled"
    assert stage.report.warnings == ["no sign of life for 300 s"]
    assert stage.report.result == "and"
    assert trio.current_time() == 700


async def test_each_silence_is_warned_of(autojump_clock):
    async def run(context):
        for _ in range(3):
            await trio.sleep(400)
            yield Note("still there")
            await trio.sleep(10)
            yield Note("and now")
        yield FinalResult("42")

    stage = Stage(run)
    assert await stage.run() == "42"
    assert stage.report.warnings == ["no sign of life for 300 s"] * 3


@pytest.mark.parametrize(
    "event",
    [
        AssistantMessage("text"),
        TextDelta("text"),
        Note("text"),
        TokensUsed(input_tokens=1),
        TodoList(),
        ToolStarted("1", "tool"),
        ToolCompleted("1", "tool"),
    ],
    ids=lambda event: type(event).__name__,
)
async def test_every_event_is_a_sign_of_life(autojump_clock, event):
    """CO14; and those of another agent are none: `run` has its own clock."""

    async def lives(context):
        for _ in range(10):
            await trio.sleep(500)
            yield event
        yield FinalResult("42")

    async def hangs(context):
        yield event
        await trio.sleep_forever()

    living, hanging = Stage(lives), Stage(hangs)

    async def fail():
        with pytest.raises(AgentFailed):
            await hanging.run()
        assert trio.current_time() == 600

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        assert await living.run() == "42"


async def test_time_in_tools_does_not_count(autojump_clock):
    """AG18."""

    async def run(context):
        calls = AssistantMessage("I wait.", (use("slow", seconds=5000),))
        yield calls
        yield await context.use_tools(calls.tool_uses)
        await trio.sleep(299)
        yield FinalResult("42")

    stage = Stage(run)
    assert await stage.run() == "42"
    assert stage.report.warnings == []


async def test_waiting_for_messages_tasks_approvals_and_hooks_does_not_count(
    autojump_clock,
):
    """AG18."""

    async def run(context):
        yield ApprovalRequested("r1", use())
        await trio.sleep(5000)
        yield Note("approved")
        await context.inbox.wait()
        await trio.sleep(299)
        context.inbox.take()
        yield FinalResult("42")

    stage = Stage(run)
    stage.host.unfinished = 1

    async def finishing(answer, attempt):
        await trio.sleep(5000)

    stage.host.finishing = finishing
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def later():
            await trio.sleep(10_000)
            stage.inbox.put(told("hello"))
            await trio.sleep(5000)
            stage.host.end_task()

        assert await stage.run() == "42"
    assert stage.report.warnings == []
    assert trio.current_time() == 20_000


async def test_it_stalls_after_what_does_not_count(autojump_clock):
    async def run(context):
        yield ApprovalRequested("r1", use())
        await trio.sleep(5000)
        await context.use_tools([use("slow", seconds=1000)])
        yield Note("approved")
        await trio.sleep_forever()

    with pytest.raises(AgentFailed, match="no sign of life"):
        await Stage(run).run()
    assert trio.current_time() == 6600


@pytest.mark.parametrize("asleep", [LATE + 1, 3600, 86_400])
async def test_time_in_which_the_host_was_suspended_does_not_count(mock_clock, asleep):
    """AG18: the watch sees it by waking later than it asked for."""

    async def run(context):
        yield AssistantMessage("half")
        await trio.sleep_forever()

    stage = Stage(run, stall_warning=None, stall_limit=60)
    ended_at = []

    async def fail():
        with pytest.raises(AgentFailed, match="no sign of life for 60 s"):
            await stage.run()
        ended_at.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            # It wakes after this jump, which is a suspension to it.
            mock_clock.jump(LOOK_EVERY + asleep)
            await trio.testing.wait_all_tasks_blocked()
        assert not ended_at
        while not ended_at:
            mock_clock.jump(1)
            await trio.testing.wait_all_tasks_blocked()
    active = ended_at[0] - 3 * (LOOK_EVERY + asleep)
    # The part of a look in which it was suspended is not known.
    assert 60 - 3 * LOOK_EVERY <= active <= 61


async def test_a_watch_that_wakes_on_time_sees_no_suspension(autojump_clock):
    async def run(context):
        yield AssistantMessage("half")
        await trio.sleep_forever()

    with pytest.raises(AgentFailed):
        await Stage(run, stall_warning=None, stall_limit=61.5).run()
    assert trio.current_time() == 61.5


async def test_without_limits_it_may_be_silent_for_ever(autojump_clock):
    async def run(context):
        await trio.sleep(86_000)
        yield FinalResult("42")

    stage = Stage(run, stall_warning=None, stall_limit=None)
    assert await stage.run() == "42"
