"""Forks: an agent that begins with the conversation of another, and forks none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
import trio

from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    ForkRefused,
    Run,
    ToolAnswer,
    ToolUse,
    UserMessage,
)
from actors.agent._fork import enter_fork, fork, in_fork
from actors.testing import fake_env
from supervisor.runtime import Runtime, open_runtime


async def answers(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield FinalResult("done")


def test_a_fork_is_like_the_agent_but_for_its_task_and_its_beginning() -> None:
    """AG8, TR15: model, restrictions and directory are handed down, and what was
    not resolved is not."""
    agent = Agent(
        answers,
        "go",
        system="You are a reviewer.",
        type="reviewer",
        description="looks",
        model="a/b",
        tools=("Read",),
        disallowed_tools=("Bash",),
        permission_mode="plan",
        cwd="/there",
        session="s",
        max_turns=7,
    )
    history = [
        UserMessage("go"),
        AssistantMessage("", (ToolUse("1", "Read"),)),
        UserMessage(tool_answers=(ToolAnswer("1", "text"),), origin="tools"),
        AssistantMessage("I fork now", (ToolUse("2", "Fork"),)),
    ]
    made = fork(agent, history, "look closer")
    assert made.history == tuple(history[:3])
    assert made.prompt == "look closer" and made.forked and not agent.forked
    assert made.describe() == "look closer"
    for name in ("loop", "system", "type", "model", "tools", "disallowed_tools", "cwd"):
        assert getattr(made, name) == getattr(agent, name)
    assert (made.permission_mode, made.session, made.max_turns) == ("plan", "s", 7)
    assert fork(agent, history, "look", model="c", description="x").model == "c"


def test_bad_arguments_of_a_fork_are_named() -> None:
    agent = Agent(answers, "go")
    with pytest.raises(ValueError, match="prompt must not be empty"):
        fork(agent, [], " ")
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        fork(agent, [], "go", colour="red")


async def test_the_mark_of_a_fork_stays_within_its_task() -> None:
    """AG9: those that it starts have it, whoever has started it has not."""
    marks: dict[str, bool] = {}

    async def inside() -> None:
        enter_fork()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look, "below")
        marks["thread"] = await trio.to_thread.run_sync(in_fork)

    async def look(name: str) -> None:
        await trio.lowlevel.checkpoint()
        marks[name] = in_fork()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(inside)
        nursery.start_soon(look, "beside")
    assert not in_fork()
    assert marks == {"below": True, "thread": True, "beside": False}


async def forks(
    runtime: Runtime, inside: Run, *, background: bool
) -> tuple[str, list[str]]:
    """Run an agent that forks, and return the answer of its fork and the texts
    that the fork began with."""
    texts: list[str] = []

    async def in_the_fork(context: AgentContext) -> AsyncIterator[AgentEvent]:
        texts.extend(getattr(m, "text", "") for m in context.history)
        async with aclosing(inside(context)) as events:  # type: ignore[type-var]
            async for event in events:
                yield event

    async def outer(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("I know")
        made = context.fork("use it", run=in_the_fork)
        if background:
            snapshot = await (await context.launch(made)).wait()
        else:
            snapshot = await context.run(made)
        # It is no fork itself.
        context.fork("another")
        yield FinalResult(snapshot.result or str(snapshot.error))

    done = await (await runtime.launch(Agent(outer, "find out"))).wait()
    assert done.result is not None
    return done.result, texts


@pytest.mark.parametrize("background", [True, False])
async def test_a_fork_cannot_fork(tmp_path: Path, background: bool) -> None:
    """AG9, AG8."""

    async def inside(context: AgentContext) -> AsyncIterator[AgentEvent]:
        assert context.depth == 1
        with pytest.raises(ForkRefused, match="a fork cannot fork again"):
            context.fork("deeper")
        yield FinalResult("refused")

    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        answer, texts = await forks(runtime, inside, background=background)
    assert answer == "refused"
    assert texts == ["find out", "I know", "use it"]


@pytest.mark.parametrize("background", [True, False])
async def test_what_a_fork_has_started_cannot_fork_either(
    tmp_path: Path, background: bool
) -> None:
    """AG9: by the context in which it runs, at any depth, also if it had to wait
    for its place."""

    async def deepest(context: AgentContext) -> AsyncIterator[AgentEvent]:
        with pytest.raises(ForkRefused):
            context.fork("deeper")
        yield FinalResult(f"refused at {context.depth}")

    async def inside(context: AgentContext) -> AsyncIterator[AgentEvent]:
        below = Agent(deepest, "below")
        if background:
            snapshot = await (await context.launch(below)).wait()
        else:
            snapshot = await context.run(below)
        yield FinalResult(snapshot.result or str(snapshot.error))

    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        answer, _ = await forks(runtime, inside, background=background)
    assert answer == "refused at 2"


async def test_a_fork_that_fails_and_runs_again_is_still_a_fork(tmp_path: Path) -> None:
    """AG9: the mark is of the agent, not of the call that made it."""
    runs = 0

    async def in_the_fork(context: AgentContext) -> AsyncIterator[AgentEvent]:
        nonlocal runs
        runs += 1
        yield AssistantMessage("trying")
        with pytest.raises(ForkRefused):
            context.fork("deeper")
        if runs == 1:
            raise ValueError("again")
        yield FinalResult("refused twice")

    made: list[Agent] = []

    async def outer(context: AgentContext) -> AsyncIterator[AgentEvent]:
        made.append(context.fork("use it", run=in_the_fork))
        yield FinalResult("done")

    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        await (await runtime.launch(Agent(outer, "go"))).wait()
        task = await runtime.launch(made[0], restart="transient")
        assert (await task.wait()).result == "refused twice"
        again = await runtime.resume(task)
        assert (await again.wait()).result == "refused twice"
