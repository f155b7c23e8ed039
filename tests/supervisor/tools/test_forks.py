"""Forks by the tool Agent: what they know, what they are, and that they fork none."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
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
    ToolAnswer,
    ToolUse,
    UserMessage,
)
from actors.testing import fake_env
from supervisor.agents import AgentPolicy
from supervisor.definitions import AgentDefinition, parse_definition
from supervisor.permissions import Permissions, Rule
from supervisor.runtime import Runtime, open_runtime

TOO_LONG = 60.0

Seen = list[tuple[str, AgentContext, list[Message], list[str]]]


def call(id: str, **arguments: Any) -> ToolUse:
    return ToolUse(id, "Agent", {"description": "a side task", **arguments})


class Stage:
    """A loop whose first agent makes ``calls``; what each agent was given is in
    ``seen``, and what the calls answered in ``answers``."""

    def __init__(self, *calls: ToolUse) -> None:
        self.calls = calls
        self.seen: Seen = []
        self.answers: list[ToolAnswer] = []
        # What the agent of a prompt calls.
        self.deeper: dict[str, ToolUse] = {}

    async def run(self, context: AgentContext) -> AsyncIterator[AgentEvent]:
        names = [tool.name for tool in context.tools]
        self.seen.append((context.prompt, context, context.history, names))
        if context.prompt == "The task.":
            looked = AssistantMessage("I look", (ToolUse("look", "TaskList", {}),))
            yield looked
            yield await context.use_tools(looked.tool_uses)
            calls = self.calls
        else:
            deeper = self.deeper.get(context.prompt)
            calls = () if deeper is None else (deeper,)
        if calls:
            reply = AssistantMessage("I ask", calls)
            yield reply
            answered = await context.use_tools(calls)
            self.answers += answered.tool_answers
            yield answered
        context.inbox.take()
        yield FinalResult(f"done: {context.prompt}")


@asynccontextmanager
async def opened(
    directory: Path,
    stage: Stage,
    *definitions: AgentDefinition,
    permissions: Permissions | None = None,
) -> AsyncGenerator[Runtime]:
    agents = AgentPolicy(
        run=stage.run,
        definitions={each.name: each for each in definitions},
        permissions=permissions or Permissions(mode="bypass"),
    )
    with trio.fail_after(TOO_LONG):
        async with open_runtime(directory, env=fake_env(), agents=agents) as runtime:
            yield runtime


def first(stage: Stage, **more: Any) -> Agent:
    return Agent(stage.run, "The task.", **more)


KNOWN = [
    UserMessage("The task."),
    AssistantMessage("I look", (ToolUse("look", "TaskList", {}),)),
]


@pytest.mark.parametrize("background", [False, True])
async def test_a_fork_is_as_its_caller_and_knows_what_that_knows(
    tmp_path: Path, background: bool
) -> None:
    """004: its prompt, tools and history, in the background too. 002: what has no
    answer yet, such as the call itself, is left out."""
    stage = Stage(
        call("1", prompt="Look there.", fork=True, run_in_background=background)
    )
    agent = first(
        stage,
        system="You are a reviewer.",
        type="reviewer",
        model="a/b",
        disallowed_tools=("Bash",),
    )
    async with opened(tmp_path, stage) as runtime:
        done = await runtime.run(agent)
    assert done.status is TaskStatus.COMPLETED
    (_, parent, _, tools), (prompt, fork, history, own) = stage.seen
    assert prompt == "Look there." and fork.depth == 1
    assert (fork.system, fork.model) == (parent.system, parent.model)
    assert own == tools and "Agent" in own and "Bash" not in own
    assert history[:2] == KNOWN and history[-1] == UserMessage("Look there.")
    assert [type(it) for it in history[2:-1]] == [UserMessage]
    assert not stage.answers[0].is_error


async def test_a_fork_cannot_fork_and_is_told_what_to_do_instead(
    tmp_path: Path,
) -> None:
    """004: by the context that it runs in."""
    stage = Stage(call("1", prompt="Look there.", fork=True))
    stage.deeper["Look there."] = call("2", prompt="Deeper.", fork=True)
    async with opened(tmp_path, stage) as runtime:
        assert (await runtime.run(first(stage))).status is TaskStatus.COMPLETED
    refused, granted = stage.answers
    assert refused.is_error and "a fork cannot fork again" in refused.text
    assert "Do it yourself" in refused.text and not granted.is_error
    assert [prompt for prompt, *_ in stage.seen] == ["The task.", "Look there."]


async def test_a_fork_may_start_an_agent_that_is_none(tmp_path: Path) -> None:
    stage = Stage(call("1", prompt="Look there.", fork=True))
    stage.deeper["Look there."] = call("2", prompt="Deeper.")
    stage.deeper["Deeper."] = call("3", prompt="Deepest.", fork=True)
    async with opened(tmp_path, stage) as runtime:
        await runtime.run(first(stage))
    deepest, deeper, _ = stage.answers
    assert not deeper.is_error
    # What a fork has started is inside it.
    assert deepest.is_error and "cannot fork again" in deepest.text


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"subagent_type": "reader"}, "so give no subagent_type"),
        ({"model": "x"}, "so give no model"),
        ({"resume": "a0000001"}, ""),
    ],
)
async def test_what_makes_no_sense_of_a_fork_is_refused(
    tmp_path: Path, more: dict[str, Any], why: str
) -> None:
    stage = Stage(call("1", prompt="Look.", fork=True, **more))
    async with opened(tmp_path, stage) as runtime:
        await runtime.run(first(stage))
    assert stage.answers[0].is_error and why in stage.answers[0].text
    assert len(stage.seen) == 1


DEFINITION = """\
---
name: reader
description: Reads.
tools: TaskList
fork-context: true
---
You are a reader.
"""


async def test_an_agent_whose_definition_asks_for_it_begins_with_the_conversation(
    tmp_path: Path,
) -> None:
    """002: forkContext, with a prompt and tools of its own."""
    reader = parse_definition(DEFINITION)
    assert reader.fork_context
    stage = Stage(call("1", prompt="Read it.", subagent_type="reader"))
    stage.deeper["Read it."] = call("2", prompt="Deeper.", subagent_type="reader")
    async with opened(tmp_path, stage, reader) as runtime:
        await runtime.run(first(stage, system="You are a lead."))
        tool = {it.name: it for it in runtime.tools_for("main")}["Agent"]
    (_, fork, history, names) = stage.seen[1]
    assert fork.system == "You are a reader." and names == ["TaskList"]
    assert history[:2] == KNOWN and history[-1] == UserMessage("Read it.")
    assert "- reader: Reads. (tools: TaskList) (begins with this conversation)" in (
        tool.description
    )


async def test_a_fork_by_a_definition_cannot_start_another(tmp_path: Path) -> None:
    reader = parse_definition(DEFINITION.replace("tools: TaskList\n", ""))
    stage = Stage(call("1", prompt="Read it.", subagent_type="reader"))
    stage.deeper["Read it."] = call("2", prompt="Deeper.", subagent_type="reader")
    async with opened(tmp_path, stage, reader) as runtime:
        await runtime.run(first(stage))
    refused = stage.answers[0]
    assert refused.is_error and "cannot fork again" in refused.text


HOST = [
    UserMessage("Build it."),
    AssistantMessage("I do", (ToolUse("a", "Bash", {"command": "make"}),)),
    UserMessage(tool_answers=(ToolAnswer("a", "made"),), origin="tools"),
]


async def test_a_host_hands_its_own_conversation_over(tmp_path: Path) -> None:
    """At the time of the call, and with the system prompt of its model."""
    stage = Stage()
    said: list[Message] = [UserMessage("gone"), CompactBoundary("It was said.")]
    async with opened(tmp_path, stage, parse_definition(DEFINITION)) as runtime:
        made = runtime.tools_for("main", history=lambda: said, system="You are I.")
        tool = {it.name: it for it in made}["Agent"]
        said += HOST
        said.append(AssistantMessage("I fork", (call("1", prompt="Look."),)))
        asked = {"description": "look", "prompt": "Look."}
        forked = await tool.call({**asked, "fork": True})
        read = await tool.call({**asked, "subagent_type": "reader"})
    assert not forked.is_error and not read.is_error
    for (_, context, history, _), system in zip(
        stage.seen, ("You are I.", "You are a reader."), strict=True
    ):
        assert context.system == system
        summary, *rest = history
        assert isinstance(summary, UserMessage) and summary.origin == "summary"
        assert summary.text == "It was said."
        assert rest == [*HOST, UserMessage("Look.")]


async def test_without_its_conversation_a_hosts_model_is_offered_no_forks(
    tmp_path: Path,
) -> None:
    stage = Stage()
    async with opened(tmp_path, stage, parse_definition(DEFINITION)) as runtime:
        tool = {it.name: it for it in runtime.tools_for("main")}["Agent"]
        assert "fork" not in tool.schema["properties"]
        assert "unless it is a fork" not in tool.description
        asked = {"description": "look", "prompt": "Look.", "subagent_type": "reader"}
        refused = await tool.call(asked)
        with pytest.raises(TypeError, match="history must be a function or None"):
            runtime.tools_for("main", history=[])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="history must hold only"):
            made = runtime.tools_for("main", history=lambda: ["hello"])  # type: ignore[list-item]
            await {it.name: it for it in made}["Agent"].call(asked)
    assert refused.is_error and refused.data["error"] == "no_history"
    assert not stage.seen


async def test_a_rule_about_the_callers_type_is_about_its_forks(tmp_path: Path) -> None:
    """A fork is of the type of its caller."""
    stage = Stage(call("1", prompt="Look.", fork=True))
    rules = [Rule("deny", "Agent(reviewer)"), Rule("allow", "*")]
    async with opened(tmp_path, stage, permissions=Permissions(rules=rules)) as runtime:
        await runtime.run(first(stage, type="reviewer"))
    assert stage.answers[0].is_error and len(stage.seen) == 1


async def test_a_fork_goes_on_with_what_it_knew_in_another_program(
    tmp_path: Path,
) -> None:
    stage = Stage(call("1", prompt="Look there.", fork=True))
    env = fake_env()
    policy = AgentPolicy(run=stage.run, permissions=Permissions(mode="bypass"))
    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path, env=env, agents=policy) as runtime:
            await runtime.run(first(stage))
        fork = stage.seen[1][1].agent_id
        stage.deeper["Look there."] = call("2", prompt="Deeper.", fork=True)
        async with open_runtime(tmp_path, env=env, agents=policy) as runtime:
            task = await runtime.resume(fork, "more")
            await task.wait()
    _, _, history, _ = stage.seen[2]
    assert history[:2] == KNOWN and attrs.asdict(history[-1])["text"] == "more"
    assert "cannot fork again" in stage.answers[-1].text
