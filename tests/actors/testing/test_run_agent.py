"""`run_agent`: what it refuses, before anything runs."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

from actors.agent import Agent, AssistantMessage, FinalResult, ToolUse
from actors.testing import run_agent

CALLS = AssistantMessage("I look.", (ToolUse("1", "looks", {"at": "x"}),))


async def looks(context):
    yield CALLS
    answers = await context.use_tools(CALLS.tool_uses)
    yield answers
    yield FinalResult(answers.tool_answers[0].text)


async def sees(at, what="seen"):
    return f"{at}: {what}"


class Seeing:
    async def __call__(self, *, at):
        return at


@pytest.mark.parametrize(
    ("tool", "answer"),
    [
        ("seen", "seen"),
        (sees, "x: seen"),
        (partial(sees, what="y"), "x: y"),
        (Seeing(), "x"),
    ],
)
async def test_a_tool_is_a_text_or_an_async_function_of_keywords(tool, answer):
    done = await run_agent(Agent(looks, "look"), tools={"looks": tool})
    assert done.result == answer


@pytest.mark.parametrize("tool", [lambda at: "seen", 3, None, Seeing])
async def test_what_is_no_tool_is_refused_by_name(tool):
    with pytest.raises(
        TypeError, match=re.escape("tools['looks'] must be a str or an")
    ):
        await run_agent(Agent(looks, "look"), tools={"looks": tool})


@pytest.mark.parametrize("tools", [[sees], sees, {3: "seen"}])
async def test_tools_without_names_are_refused(tools: Any):
    with pytest.raises(TypeError, match=r"tools (must|has)"):
        await run_agent(Agent(looks, "look"), tools=tools)


async def test_a_function_is_no_agent():
    with pytest.raises(TypeError, match=re.escape("use Agent(run, prompt)")):
        await run_agent(looks)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="agent must be an Agent, not 'look'"):
        await run_agent("look")  # type: ignore[arg-type]
