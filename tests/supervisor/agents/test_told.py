"""What a host is told that has made a mistake with an agent."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import trio

from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    Budget,
    FinalResult,
    TokensUsed,
    ToolUse,
)
from actors.shell import Shell
from actors.testing import fake_env
from supervisor.agents import AgentPolicy
from supervisor.definitions import AgentDefinition
from supervisor.permissions import Permissions, Rule
from supervisor.runtime import MessageRefused, Runtime, Warned, open_runtime
from tests.supervisor.talkers import answers, forever


def on(**policy: Any) -> open_runtime:
    return open_runtime("/tasks", env=fake_env(), agents=AgentPolicy(**policy))


async def warned(runtime: Runtime, agent: Agent) -> list[str]:
    """Run an agent and return what was warned of."""
    events = runtime.events.subscribe()
    done = await runtime.run(agent)
    assert done.status.value == "completed", done.error
    return [event.text for event in events.drain() if isinstance(event, Warned)]


async def calls(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """Call Bash twice, and answer with what it was told of that."""
    said = ""
    for number in ("1", "2"):
        message = AssistantMessage("", (ToolUse(number, "Bash", {"command": number}),))
        yield message
        told = await context.use_tools(message.tool_uses)
        yield told
        said += told.tool_answers[0].text
    yield FinalResult(said)


def test_definitions_without_a_loop_are_refused() -> None:
    definition = AgentDefinition(name="reader", description="reads", prompt="Read.")
    with pytest.raises(ValueError, match="definitions need `run`, the loop that their"):
        AgentPolicy(definitions={"reader": definition})


@pytest.mark.parametrize("argument", ["tools", "disallowed_tools"])
async def test_tools_that_there_are_not_are_warned_of(argument: str) -> None:
    async with on() as runtime:
        named: dict[str, Any] = {argument: ["Bsh", "Bash"]}
        (warning,) = await warned(runtime, Agent(answers, "go", **named))
        assert warning.startswith(
            f"{argument} names what no tool is called: Bsh; there"
        )
        assert "Bash, TaskOutput" in warning
        there: dict[str, Any] = {argument: ["Bash"]}
        assert await warned(runtime, Agent(answers, "go", **there)) == []


async def test_a_mode_that_is_lowered_is_warned_of() -> None:
    """PM2."""
    async with on() as runtime:
        agent = Agent(answers, "go", permission_mode="bypass")
        (warning,) = await warned(runtime, agent)
        assert warning == (
            "its permission mode is default and not bypass: Permissions.mode is "
            "default, and no agent may have more"
        )
        less = Agent(answers, "go", permission_mode="plan")
        assert await warned(runtime, less) == []


async def test_a_mode_that_there_is_not_is_refused_by_launch() -> None:
    async with on() as runtime:
        with pytest.raises(
            ValueError, match=r"permission_mode must be one of .*'bypas'"
        ):
            await runtime.launch(Agent(answers, "go", permission_mode="bypas"))
        assert runtime.tasks() == []


async def test_what_nothing_allows_is_told_to_the_host_once_for_each_tool() -> None:
    """PM1: and the model is told each time."""
    async with on() as runtime:
        events = runtime.events.subscribe()
        done = await runtime.run(Agent(calls, "go"))
        assert (done.result or "").count("Bash is not allowed: no rule allows it") == 2
        (warning,) = [e for e in events.drain() if isinstance(e, Warned)]
        assert warning.task_id == done.id
        assert "calls of Bash are refused" in warning.text
        assert "AgentPolicy.permissions" in warning.text


@pytest.mark.parametrize(
    "permissions",
    [Permissions(rules=[Rule("deny", "Bash")]), Permissions(mode="deny")],
)
async def test_what_the_host_itself_denies_is_not_told_to_it(
    permissions: Permissions,
) -> None:
    async with on(permissions=permissions) as runtime:
        assert await warned(runtime, Agent(calls, "go")) == []


@pytest.mark.parametrize("loop", [answers, partial(answers), Agent(answers, "go").run])
async def test_a_function_is_no_work_and_the_error_says_what_to_write(
    loop: Any,
) -> None:
    async with on() as runtime:
        with pytest.raises(TypeError, match=re.escape('Agent(run, "prompt")')):
            await runtime.launch(loop)
        with pytest.raises(TypeError, match=r"that is a class$"):
            await runtime.launch(Shell)  # type: ignore[arg-type]
        assert runtime.tasks() == []


async def test_a_shell_takes_no_messages_and_a_stopped_agent_says_what_helps() -> None:
    """AG22."""
    async with open_runtime("/tasks", env=fake_env({"true": 0})) as runtime:
        shell = await runtime.launch(Shell("true"))
        with pytest.raises(MessageRefused) as caught:
            await runtime.send(shell, "hello")
        assert str(caught.value) == f"task {shell.id} takes no messages: it is a shell"
        task = await runtime.launch(Agent(forever, "go"))
        await task.stop()
        with pytest.raises(MessageRefused) as caught:
            await runtime.send(task, "hello")
        assert str(caught.value).endswith(
            "it was stopped; Runtime.resume goes on with it"
        )


@pytest.mark.parametrize("what", ["background", "consume", "tell_progress"])
async def test_what_is_no_task_is_refused_by_every_call(what: str) -> None:
    async with on() as runtime:
        with pytest.raises(
            TypeError, match="expected a TaskHandle or a task id, got 3"
        ):
            getattr(runtime, what)(3)


async def test_a_used_up_budget_has_no_traceback_and_no_error_shows_its_own() -> None:
    """AG24."""

    async def spends(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield TokensUsed(input_tokens=10)
        await trio.sleep_forever()

    async def breaks(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("trying")
        raise ValueError("no model")

    async with on() as runtime:
        over = await runtime.run(Agent(spends, "go", budget=Budget(tokens=5)))
        assert over.error is not None and over.terminate == "budget"
        assert over.error.traceback == ""
        broken = await runtime.run(Agent(breaks, "go"))
        assert broken.error is not None
        assert "in breaks" in broken.error.traceback
        assert "Traceback" not in repr(broken)
