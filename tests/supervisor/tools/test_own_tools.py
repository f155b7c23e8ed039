"""Tools that a host makes itself: what help() says of them, and what is refused."""

from __future__ import annotations

import logging
import re
import textwrap
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio

from actors import TaskStatus
from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    ToolAnswer,
    ToolUse,
)
from actors.testing import fake_env
from supervisor.agents import AgentPolicy
from supervisor.permissions import Permissions
from supervisor.runtime import Warned, open_runtime
from supervisor.tools import Field, Tool, ToolResult

TOO_LONG = 20


async def act(call: Any) -> ToolResult:
    await trio.lowlevel.checkpoint()
    return ToolResult(str(call.arguments))


def weather(act: Any) -> Tool:
    return Tool("Weather", "Tells it.", [], act)


# What help() says


async def test_the_example_in_the_help_of_a_tool_is_one_that_works() -> None:
    lines = (Tool.__doc__ or "").partition("::\n\n")[2].partition("\n    Agents may")[0]
    names: dict[str, Any] = {
        "AgentPolicy": AgentPolicy,
        "Field": Field,
        "Tool": Tool,
        "ToolResult": ToolResult,
    }
    exec(textwrap.dedent(lines), names)
    (made,) = names["policy"].tools(None, "a")
    assert await made.call({"city": "Oslo"}) == ToolResult("At 12 it rains.")
    assert (await made.call({"city": "Rome"})).is_error
    refused = await made.call({"city": "Oslo", "hour": 24})
    assert refused.data == {"error": "invalid_arguments"}


@pytest.mark.parametrize(
    ("documented", "words"),
    [
        (Tool, "fields act fill ToolResult async arguments tool_use_id Example"),
        (Field, "required default minimum maximum string integer boolean"),
        (ToolResult, "act"),
        (AgentPolicy, "list supervisor.tools.Tool"),
    ],
)
def test_the_help_names_all_that_a_host_gives(documented: type, words: str) -> None:
    shown = f"{documented.__doc__} Example"
    assert [word for word in words.split() if word not in shown] == []


# What is refused when it is made

# As one without a type checker writes them.
tool: Any = Tool
field: Any = Field
result: Any = ToolResult


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tool(3, "x", [], act), "Tool.name must be a str, not 3"),
        (lambda: tool("", "x", [], act), "Tool.name must not be empty: ''"),
        (lambda: tool("a b", "x", [], act), "of a-z, A-Z, 0-9, _ and -, not 'a b'"),
        (lambda: tool("wé", "x", [], act), "of a-z, A-Z, 0-9, _ and -, not 'wé'"),
        (lambda: tool("a\n", "x", [], act), "of a-z, A-Z, 0-9, _ and -, not 'a"),
        (lambda: tool("W", None, [], act), "description of W must be a str, not None"),
        (lambda: tool("W", " ", [], act), "description of W must not be empty: ' '"),
        (lambda: tool("W", "x", None, act), "fields of W must be a tuple .*, not None"),
        (lambda: tool("W", "x", "city", act), "fields of W must be .*, not 'city'"),
        (lambda: tool("W", "x", ["city"], act), "only Field, not 'city'"),
        (
            lambda: tool("W", "x", [field("a", "x"), field("a", "y")], act),
            "fields of W has two of a name: a",
        ),
        (lambda: weather(None), "act of Weather must be an async function, not None"),
        (lambda: weather(str), "act of Weather must be an async function, not <class"),
        (
            lambda: weather(lambda call: ToolResult("x")),
            "act of Weather must be an async function, not <function",
        ),
        (lambda: field(3, "x"), "Field.name must be a str, not 3"),
        (lambda: field(" ", "x"), "Field.name must not be empty: ' '"),
        (
            lambda: field("a", None),
            "description of the field a must be a str, not None",
        ),
        (
            lambda: field("a", "x", "number"),
            "type of the field a must be one of string, integer, boolean, not 'number'",
        ),
        (
            lambda: field("a", "x", str),
            "type of the field a must be one of .*, not <class",
        ),
        (
            lambda: field("a", "x", required=1),
            "required of the field a must be True or",
        ),
        (lambda: field("a", "x", default=3), "default of the field a must be a string"),
        (lambda: field("a", "x", "boolean", default=1), "must be true or false, not 1"),
        (lambda: field("a", "x", "integer", default=True), "a whole number, not true"),
        (lambda: field("a", "x", "integer", default=1.0), "default of .* not 1.0"),
        (
            lambda: field("a", "x", "integer", default=9, maximum=8),
            "default of the field a must be at most 8, not 9",
        ),
        (
            lambda: field("a", "x", "integer", default=0, minimum=1),
            "default of the field a must be at least 1, not 0",
        ),
        (
            lambda: field("a", "x", "integer", minimum=2, maximum=1),
            "minimum of the field a must be a whole number .* to 1, or None, not 2",
        ),
        (lambda: field("a", "x", minimum=1), "bounds of the field a must be None"),
        (
            lambda: field("a", "x", "boolean", maximum=1),
            "bounds of the field a must be None: it is not an integer",
        ),
        (lambda: field("a", "x", "integer", minimum=True), "minimum of .*not True"),
        (lambda: field("a", "x", "integer", maximum="1"), "maximum of .*not '1'"),
        (
            lambda: field("a", "x", default="b", required=True),
            "required of the field a must be False: it has a default",
        ),
        (lambda: result(3), "ToolResult.text must be a str, not 3"),
        (lambda: result("x", 1), "ToolResult.is_error must be True or False"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_made(
    make: Callable[[], object], words: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        make()


async def test_a_tool_is_made_of_whatever_fits() -> None:
    class Acts:
        async def __call__(self, call: Any) -> ToolResult:
            return await act(call)

    fields = (Field(name, "x", "integer", default=0, minimum=0) for name in "ab")
    made = tool("mcp__a-b_1", "x", fields, Acts())
    assert list(made.schema["properties"]) == ["a", "b"]
    assert (await made.call({"a": 1})).text == "{'a': 1, 'b': 0}"


# What becomes of a call


async def call_weather(
    more: Any, *, also_before: bool = False
) -> tuple[list[ToolAnswer], Any, list[str]]:
    """Return what an agent is answered that calls Weather, what has become of it, and
    what its host is warned of."""
    answers: list[ToolAnswer] = []

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        uses = (ToolUse("use_1", "Weather", {}),)
        if also_before:
            assert context.tools
        yield AssistantMessage("asking", uses)
        told = await context.use_tools(uses)
        answers.extend(told.tool_answers)
        yield told
        yield FinalResult("done")

    policy = AgentPolicy(permissions=Permissions(mode="bypass"), tools=more)
    with trio.fail_after(TOO_LONG):
        async with open_runtime("/tasks", env=fake_env(), agents=policy) as runtime:
            with runtime.events.subscribe() as events:
                done = await runtime.run(Agent(run, "go"))
                told = [it.text for it in events.drain() if isinstance(it, Warned)]
    return answers, done, told


async def test_what_is_no_result_is_an_error_that_says_what_it_must_be() -> None:
    async def rain(call: object) -> Any:
        await trio.lowlevel.checkpoint()
        return "rain"

    words = "act of Weather must return a ToolResult, not 'rain'"
    with pytest.raises(TypeError, match=words):
        await weather(rain).call({})
    (answer,), done, warned = await call_weather(lambda *_: [weather(rain)])
    assert answer.is_error and words in answer.text
    assert done.status is TaskStatus.COMPLETED
    assert [words in text for text in warned] == [True]


async def test_the_host_is_told_of_an_error_in_its_tool_with_the_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(call: object) -> ToolResult:
        await trio.lowlevel.checkpoint()
        raise LookupError("no such city")

    caplog.set_level(logging.WARNING, "supervisor")
    (answer,), done, warned = await call_weather(lambda *_: [weather(broken)])
    text = "Weather failed: LookupError: no such city"
    assert (answer.text, answer.is_error) == (text, True)
    assert done.status is TaskStatus.COMPLETED
    assert warned == [text]
    (record,) = [it for it in caplog.records if text in it.getMessage()]
    assert record.exc_text is not None and "in broken" in record.exc_text


@pytest.mark.parametrize("also_before", [False, True])
@pytest.mark.parametrize(
    ("more", "words"),
    [
        (lambda *_: None, "AgentPolicy.tools must return Tools, not None"),
        (lambda *_: weather(act), "must return Tools, not <Tool Weather>"),
        (lambda *_: ["Weather"], "AgentPolicy.tools must return Tools, not 'Weather'"),
        (lambda *_: {"Weather": weather(act)}, "must return Tools, not {'Weather': "),
        (
            lambda *_: [weather(act), weather(act)],
            "AgentPolicy.tools must return Tools, not two of the name 'Weather'",
        ),
    ],
)
async def test_an_agent_fails_with_what_is_wrong_with_its_tools(
    more: Any, words: str, also_before: bool
) -> None:
    """And its model is not told: it could not mend that."""
    answers, done, _ = await call_weather(more, also_before=also_before)
    assert answers == []
    assert done.status is TaskStatus.FAILED
    assert re.search(words, done.error.message)
