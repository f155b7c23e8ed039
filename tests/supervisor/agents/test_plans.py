"""TodoWrite under a runtime: who has it, what it keeps, and over which ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from actors import TaskStatus
from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    CompactBoundary,
    FinalResult,
    Message,
    TodoItem,
    TodoList,
    ToolUse,
    UserMessage,
)
from actors.models import loop
from actors.testing import fake_env
from supervisor.agents import AgentPolicy
from supervisor.runtime import open_runtime

TOO_LONG = 60.0
OPEN = [{"content": "mend", "status": "in_progress"}]
SHUT = [{"content": "mend", "status": "completed"}]
PLAN = TodoList((TodoItem("mend", "in_progress"),))


class Told:
    """A model that does what it is told: writes a plan, or says a text."""

    def __init__(self, *turns: Any) -> None:
        self.turns = list(turns)
        self.tools: list[str] = []
        self.asked: list[Sequence[Message]] = []

    async def reply(
        self, messages: Sequence[Message], tools: Any = (), system: Any = None
    ) -> AsyncGenerator[Any, None]:
        self.asked.append(messages)
        self.tools = [tool.name for tool in tools]
        turn = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        await trio.lowlevel.checkpoint()
        if isinstance(turn, str):
            yield AssistantMessage(turn)
        else:
            use = ToolUse(f"u{len(self.asked)}", "TodoWrite", {"todos": turn})
            yield AssistantMessage("", (use,))


@pytest.mark.parametrize("todo_aware", [True, False])
async def test_an_agent_of_the_shipped_loop_goes_on_until_its_plan_is_done(
    tmp_path: Path, todo_aware: bool
) -> None:
    """003: an agent with an incomplete todo is not complete, unless todoAware is off."""
    model = Told(OPEN, "done?", SHUT, "done")
    policy = AgentPolicy(todo_aware=todo_aware)
    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path, env=fake_env(), agents=policy) as runtime:
            done = await runtime.run(Agent(loop(model), "go"))
    assert done.result == ("done" if todo_aware else "done?")
    assert len(model.asked) == (4 if todo_aware else 2)
    assert "TodoWrite" in model.tools


async def test_only_agents_have_the_tool(tmp_path: Path) -> None:
    """A host's own model has no agent whose plan it could be."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        names = [tool.name for tool in runtime.tools_for("main")]
    assert "TodoWrite" not in names


async def test_a_plan_that_is_none_is_refused_and_changes_nothing(
    tmp_path: Path,
) -> None:
    wrong = [{"content": "mend", "status": "doing"}]
    model = Told(OPEN, wrong, SHUT, "done")
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        done = await runtime.run(Agent(loop(model), "go"))
    assert done.status is TaskStatus.COMPLETED
    last = model.asked[2][-1]
    assert isinstance(last, UserMessage)
    assert last.tool_answers[0].is_error
    assert "todos must have one of pending, in_progress" in last.tool_answers[0].text


async def writes_and_breaks(context: AgentContext) -> AsyncGenerator[AgentEvent, None]:
    reply = AssistantMessage("", (ToolUse("u1", "TodoWrite", {"todos": OPEN}),))
    yield reply
    yield await context.use_tools(reply.tool_uses)
    raise ValueError("broken")


async def compacts_and_breaks(
    context: AgentContext,
) -> AsyncGenerator[AgentEvent, None]:
    reply = AssistantMessage("", (ToolUse("u1", "TodoWrite", {"todos": OPEN}),))
    yield reply
    yield await context.use_tools(reply.tool_uses)
    yield CompactBoundary("a plan was made", kept=(UserMessage("more"),))
    raise ValueError("broken")


@pytest.mark.parametrize("first", [writes_and_breaks, compacts_and_breaks])
@pytest.mark.parametrize("again", [True, False])
async def test_a_resumed_agent_has_the_plan_that_it_wrote_last(
    tmp_path: Path, first: Any, again: bool
) -> None:
    """From the transcript, in this program and in another."""
    plans: list[TodoList | None] = []

    async def second(context: AgentContext) -> AsyncGenerator[AgentEvent, None]:
        plans.append(context.plan)
        context.inbox.take()
        yield FinalResult("done?")
        assert "- mend" in context.inbox.take()[0].text
        reply = AssistantMessage("", (ToolUse("u2", "TodoWrite", {"todos": SHUT}),))
        yield reply
        yield await context.use_tools(reply.tool_uses)
        yield FinalResult("done")

    env = fake_env()
    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path, env=env) as runtime:
            task = await runtime.launch(Agent(first, "go"))
            await task.wait()
            if again:
                task = await runtime.resume(task.id, agent=Agent(second, "go"))
            done = await task.wait()
        if not again:
            async with open_runtime(tmp_path, env=env) as runtime:
                task = await runtime.resume(task.id, agent=Agent(second, "go"))
                done = await task.wait()
    assert plans == [PLAN]
    assert done.result == "done"


async def test_a_restarted_agent_has_the_plan_that_it_wrote_last(
    tmp_path: Path,
) -> None:
    runs: list[TodoList | None] = []

    async def run(context: AgentContext) -> AsyncGenerator[AgentEvent, None]:
        runs.append(context.plan)
        todos = SHUT if runs[1:] else OPEN
        reply = AssistantMessage("", (ToolUse("u1", "TodoWrite", {"todos": todos}),))
        yield reply
        yield await context.use_tools(reply.tool_uses)
        if not runs[1:]:
            raise ValueError("broken")
        yield FinalResult("done")

    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path, env=fake_env()) as runtime:
            task = await runtime.launch(Agent(run, "go"), restart="transient")
            assert (await task.wait()).result == "done"
    assert runs == [None, PLAN]


async def test_a_fork_has_a_plan_of_its_own_also_when_it_is_resumed(
    tmp_path: Path,
) -> None:
    """It knows what its parent has planned, and need not do it."""
    plans: list[TodoList | None] = []

    async def fork(context: AgentContext) -> AsyncGenerator[AgentEvent, None]:
        plans.append(context.plan)
        assert any(
            isinstance(message, AssistantMessage) and message.tool_uses
            for message in context.history
        )
        context.inbox.take()
        yield FinalResult("seen")

    async def parent(context: AgentContext) -> AsyncGenerator[AgentEvent, None]:
        reply = AssistantMessage("", (ToolUse("u1", "TodoWrite", {"todos": OPEN}),))
        yield reply
        yield await context.use_tools(reply.tool_uses)
        made = await context.run(context.fork("look", run=fork))
        forks.append(made.id)
        reply = AssistantMessage("", (ToolUse("u2", "TodoWrite", {"todos": SHUT}),))
        yield reply
        yield await context.use_tools(reply.tool_uses)
        yield FinalResult("done")

    forks: list[str] = []
    env = fake_env()
    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path, env=env) as runtime:
            assert (await runtime.run(Agent(parent, "go"))).result == "done"
        async with open_runtime(tmp_path, env=env) as runtime:
            task = await runtime.resume(forks[0], agent=Agent(fork, "look"))
            assert (await task.wait()).result == "seen"
    assert plans == [None, None]
