"""A model ends all of its own tasks at once: `background_cancel(all=true)` of document
003."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors import Context
from actors.agent import (
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    ToolUse,
)
from actors.shell import Shell
from actors.testing import fake_env
from actors.work import Report
from supervisor.agents import AgentPolicy
from supervisor.permissions import Permissions
from supervisor.runtime import Runtime, open_runtime
from supervisor.tools import ToolResult
from tests.supervisor.jobs import Job, agent, idles, starts

pytestmark = pytest.mark.limit(110)


async def stop(runtime: Runtime, owner: str | None, **arguments: Any) -> ToolResult:
    tools = {tool.name: tool for tool in runtime.tools_for(owner)}
    return await tools["TaskStop"].call(arguments)


@pytest.mark.parametrize("owner", ["main", None])
async def test_all_background_tasks_of_the_owner_end_and_no_others(
    owner: str | None, tmp_path: Path
) -> None:
    """Real commands and an agent with one of its own; each end is told by the answer,
    once, and what runs in the foreground goes on."""
    with trio.fail_after(100):
        async with open_runtime(tmp_path) as runtime:
            shell = Shell("exec sleep 1000")
            mine = [await runtime.launch(shell, owner=owner) for _ in range(3)]
            top = await runtime.launch(agent(starts(shell, then=idles)), owner=owner)
            mine.append(top)
            other = await runtime.launch(shell, owner="other")
            while len(below := runtime.tasks(top.id)) < 1:
                await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: runtime.run(shell, owner=owner))
                await trio.testing.wait_all_tasks_blocked()
                result = await stop(runtime, owner, all=True)
                assert not result.is_error
                assert result.data == {
                    "tasks": [{"task_id": it.id, "status": "killed"} for it in mine],
                    "stopped_tasks": [below[0].id],
                    "survivors": [],
                }
                assert result.text.startswith("4 tasks have ended: ")
                assert "With it ended 1 task that it or its agents" in result.text
                assert {it.snapshot().ended_by for it in mine} == {"model"}
                left = [t for t in runtime.tasks() if not t.status.is_terminal]
                assert [t.id for t in left if t.background] == [other.id]
                assert len(left) == 2
                assert runtime.notifications.drain() == []
                again = await stop(runtime, owner, all=True)
                assert again.text == "You have no background task that has not ended."
                await runtime.stop_all(now=True)


@pytest.mark.parametrize(
    "arguments", [{}, {"all": False}, {"all": True, "task_id": "x"}]
)
async def test_a_call_that_names_none_or_both_is_refused_and_stops_nothing(
    arguments: dict[str, Any], tmp_path: Path
) -> None:
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        task = await runtime.launch(agent(idles), owner="main")
        result = await stop(runtime, "main", **arguments)
        assert result.is_error and result.data == {"error": "invalid_arguments"}
        assert "either the task_id of one task, or all: true" in result.text
        assert not task.snapshot().stopping


async def test_what_outlives_the_stop_is_named_and_nobody_waits_for_it(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P2: an error, because a task still runs."""
    end = trio.Event()

    async def body(ctx: Context[object], report: Report) -> None:
        with trio.CancelScope(shield=True):
            await end.wait()

    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        stuck = await runtime.launch(Job(body), owner="main")
        ends = await runtime.launch(agent(idles), owner="main")
        await trio.testing.wait_all_tasks_blocked()
        result = await stop(runtime, "main", all=True)
        assert result.is_error and result.data["error"] == "survivors"
        assert result.data["tasks"] == [
            {"task_id": stuck.id, "status": "running"},
            {"task_id": ends.id, "status": "killed"},
        ]
        (survivor,) = result.data["survivors"]
        assert survivor in result.text
        assert f"1 task has ended: {ends.id} (killed)" in result.text
        end.set()
        await stuck.wait()
        (note,) = runtime.notifications.drain()
        assert note.task_id == stuck.id


async def test_an_agent_ends_all_of_its_own_and_goes_on(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """It is not among them, nor is its parent, and its brother belongs to another."""
    answers: list[str] = []

    async def clears(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for _ in range(2):
            await context.launch(agent(idles))
        use = ToolUse("use_1", "TaskStop", {"all": True})
        yield AssistantMessage("", (use,))
        message = await context.use_tools((use,))
        answers.extend(answer.text for answer in message.tool_answers)
        yield message
        yield FinalResult("cleared")

    policy = AgentPolicy(permissions=Permissions(mode="default"))
    async with open_runtime(tmp_path, env=fake_env(), agents=policy) as runtime:
        brother = await runtime.launch(agent(idles), owner="main")
        task = await runtime.launch(agent(clears), owner="main")
        assert (await task.wait()).result == "cleared"
        assert answers[0].startswith("2 tasks have ended: ")
        assert brother.snapshot().status.value == "running"
        await brother.stop()


async def test_a_task_that_calls_for_its_owner_is_spared_with_all_above_it(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """It could not wait for its own end: the others end, and it goes on."""
    results: list[ToolResult] = []

    async with open_runtime(tmp_path, env=fake_env()) as runtime:

        async def clears(ctx: Context[object], report: Report) -> str:
            results.append(await stop(runtime, "main", all=True))
            return "cleared"

        above = agent(starts(Job(clears)))
        other = await runtime.launch(agent(idles), owner="main")
        for work in (Job(clears), above):
            task = await runtime.launch(work, owner="main")
            assert (await task.wait()).status.value == "completed"
        first, second = results
        assert [it["task_id"] for it in first.data["tasks"]] == [other.id]
        assert second.data["tasks"] == []
