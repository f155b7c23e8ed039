"""Agent and SendMessage, and what the other tools say of agents."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import TaskStatus
from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    Note,
    TokensUsed,
    ToolUse,
    UserMessage,
)
from actors.testing import fake_env
from supervisor.agents import AgentPolicy
from supervisor.definitions import AgentDefinition
from supervisor.lowlevel import life_of
from supervisor.permissions import Permissions
from supervisor.runtime import Limits, Runtime, TaskHandle, open_runtime
from supervisor.settings import Settings
from supervisor.tools import ToolResult
from supervisor.tools._set import tools_for
from tests.supervisor.jobs import Job, forever, told

pytestmark = pytest.mark.limit(110)

Loop = Callable[[AgentContext], AsyncIterator[AgentEvent]]

OWNER = "main"


class Tools:
    """The tools of one owner, and their runtime."""

    def __init__(self, runtime: Runtime, owner: str | None, settings: Settings) -> None:
        self.runtime = runtime
        self.owner = owner
        self.tools = {t.name: t for t in tools_for(runtime, owner, settings)}

    async def __call__(self, name: str, /, **arguments: Any) -> ToolResult:
        return await self.tools[name].call(arguments, tool_use_id="call_1")

    async def agent(self, prompt: str = "go", **arguments: Any) -> ToolResult:
        return await self("Agent", description="a task", prompt=prompt, **arguments)

    async def launched(self, prompt: str = "go", **arguments: Any) -> TaskHandle:
        result = await self.agent(prompt, run_in_background=True, **arguments)
        return self.runtime.handle(result.data["agentId"])


@asynccontextmanager
async def tools(
    directory: Path,
    run: Loop,
    *definitions: AgentDefinition,
    limits: Limits | None = None,
    settings: Settings | None = None,
    **policy: Any,
) -> AsyncGenerator[Tools, None]:
    agents = AgentPolicy(
        run=run,
        definitions={definition.name: definition for definition in definitions},
        permissions=Permissions(mode="bypass"),
        **policy,
    )
    with trio.fail_after(100):
        async with open_runtime(
            directory, env=fake_env(), limits=limits, agents=agents
        ) as runtime:
            yield Tools(runtime, OWNER, settings or Settings())
            await runtime.stop_all(now=True)


def definition(name: str = "reviewer", **fields: Any) -> AgentDefinition:
    return AgentDefinition(
        name=name, description=f"Is a {name}", prompt=f"You are a {name}.", **fields
    )


async def says_done(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield AssistantMessage("thinking")
    yield FinalResult("done")


async def sleeps(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield AssistantMessage("thinking")
    await trio.sleep_forever()


def uses(*calls: tuple[str, dict[str, Any]]) -> tuple[ToolUse, ...]:
    return tuple(
        ToolUse(f"use_{n}", name, input) for n, (name, input) in enumerate(calls)
    )


def calls_agent(**more: Any) -> tuple[ToolUse, ...]:
    return uses(("Agent", {"description": "below", "prompt": "below", **more}))


def recipe(runtime: Runtime, task: TaskHandle) -> Agent:
    found = life_of(runtime).table.find(task.id)
    assert found is not None and found.as_agent is not None
    return found.as_agent.recipe


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


# What the model is told of it


async def test_agents_have_tools_only_where_there_is_a_loop(tmp_path: Path) -> None:
    """The issue, section 1: a host that has no agents offers none."""
    async with tools(tmp_path, says_done) as call:
        assert list(call.tools)[-2:] == ["Agent", "SendMessage"]
    async with open_runtime(tmp_path / "none", env=fake_env()) as runtime:
        names = [tool.name for tool in tools_for(runtime, OWNER, Settings())]
    assert "Agent" not in names and "SendMessage" not in names


async def test_the_schemas_are_those_of_the_seeds(tmp_path: Path) -> None:
    """AG1: the fields that models know."""
    async with tools(tmp_path, says_done) as call:
        agent, send = call.tools["Agent"].schema, call.tools["SendMessage"].schema
    assert agent["required"] == ["description", "prompt"]
    assert list(agent["properties"]) == [
        *("description", "prompt", "subagent_type", "model", "run_in_background"),
        "resume",
    ]
    assert agent["properties"]["run_in_background"]["default"] is False
    assert send["required"] == list(send["properties"]) == ["to", "message"]


async def test_the_types_are_listed_each_on_one_line(tmp_path: Path) -> None:
    """P5: a definition's words cannot pass for those of the tool."""
    kinds = [
        definition("one", tools=("Bash", "TaskList")),
        attrs.evolve(definition("two", background=True), description="Two\n- three: x"),
    ]
    async with tools(tmp_path, says_done, *kinds) as call:
        text = call.tools["Agent"].description
    listed = text[text.index("The types of agents:") :].splitlines()[1:]
    assert listed == [
        "- general-purpose: for everything else.",
        "- one: Is a one (tools: Bash, TaskList)",
        "- two: Two - three: x (always in the background)",
    ]


def tells_to_end(text: str) -> bool:
    return bool(
        re.search(r"(end|finish|stop|yield)\w* (your|the|this) (turn|response)", text)
    )


# In the background


async def test_a_launch_answers_at_once_and_the_agent_goes_on(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """AG1, N47: async_launched, with the id, and no word about ending the turn."""
    async with tools(tmp_path, sleeps) as call:
        result = await call.agent("look\nat it", run_in_background=True)
        (task,) = call.runtime.tasks()
        assert task.status is TaskStatus.RUNNING and task.background
        assert (task.owner, task.tool_use_id) == (OWNER, "call_1")
        assert not result.is_error
        assert result.data == {
            "status": "async_launched",
            "agentId": task.id,
            "description": "a task",
            "prompt": "look\nat it",
            "outputFile": str(task.output_file),
        }
        assert result.text.startswith(f"async_launched: agent {task.id} works in")
        assert f"agentId: {task.id}\ndescription: a task\n" in result.text
        assert str(task.output_file) in result.text
        for text in (result.text, call.tools["Agent"].description):
            assert not tells_to_end(text)
        await settle()
        assert call.runtime.get(task.id).status is TaskStatus.RUNNING


async def test_a_launched_agent_is_told_of_once(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """AG1, P4."""
    async with tools(tmp_path, says_done) as call:
        task = await call.launched()
        await task.wait()
        await settle()
        assert told(call.runtime) == [(task.id, "completed")]


async def test_a_definition_may_say_that_it_always_runs_in_the_background(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """BG1: it is as good as the argument."""
    async with tools(tmp_path, sleeps, definition(background=True)) as call:
        result = await call.agent(subagent_type="reviewer")
        assert result.data["status"] == "async_launched"
        with trio.move_on_after(1) as scope:
            await call.agent(subagent_type="general-purpose")
        assert scope.cancelled_caught, "the other type runs in the foreground"


async def test_an_agent_beyond_the_cap_waits_and_the_answer_says_so(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """CO1, SM28, SM29: no refusal: it is pending, runs when there is a place, and
    stopped before that it leaves the queue."""
    async with tools(tmp_path, sleeps, limits=Limits(agents=1)) as call:
        first = await call.launched()
        result = await call.agent(run_in_background=True)
        third = await call.launched()
        second = call.runtime.handle(result.data["agentId"])
        assert result.data["status"] == "async_launched"
        assert "It has not begun: it waits until other tasks" in result.text
        assert [t.status.value for t in (first, second, third)] == [
            *("running", "pending", "pending")
        ]
        stopped = await call("TaskStop", task_id=second.id)
        assert stopped.data["status"] == "killed"
        assert third.status.value == "pending"
        await first.stop()
        assert third.status.value == "running"


# In the foreground


async def test_a_foreground_agent_answers_with_its_end_and_what_it_used(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The form of the seeds: content, duration, tokens, tool uses."""

    async def works(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield TokensUsed(
            input_tokens=100,
            output_tokens=20,
            cache_read_tokens=60,
            cache_write_tokens=30,
        )
        reply = AssistantMessage("", uses(("TaskList", {})))
        yield reply
        yield await context.use_tools(reply.tool_uses)
        await trio.sleep(1.5)
        yield FinalResult("All is <well>.")

    async with tools(tmp_path, works) as call:
        result = await call.agent()
        (task,) = call.runtime.tasks()
        duration = task.usage.duration_ms
        assert result == ToolResult(
            f"Agent {task.id} has completed (tokens: 120, tool uses: 1, 1.5s)"
            "\n\nAll is <well>.",
            data={
                "status": "completed",
                "agentId": task.id,
                "description": "a task",
                "prompt": "go",
                "content": [{"type": "text", "text": "All is <well>."}],
                "totalDurationMs": duration,
                "totalTokens": 120,
                "totalToolUseCount": 1,
                "usage": {
                    "input_tokens": 10,
                    "output_tokens": 20,
                    "cache_read_input_tokens": 60,
                    "cache_creation_input_tokens": 30,
                },
            },
        )
        assert duration == 1500
        await settle()
        assert told(call.runtime) == []


async def test_a_failed_agent_answers_with_the_reason_and_what_it_had(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """AG11: never as completed."""

    async def fails(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("half of it")
        raise ValueError("no\nidea")

    async with tools(tmp_path, fails) as call:
        result = await call.agent()
        assert result.is_error
        assert (result.data["status"], result.data["error"]) == (
            *("failed", "ValueError: no idea"),
        )
        first, rest = result.text.split("\n\n")
        assert "has failed: ValueError: no idea" in first
        assert first.endswith("What it had so far follows")
        assert rest == "half of it"


async def test_a_foreground_agent_that_is_stopped_is_told_as_such(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """AG37: in words, and it is not started again."""
    results: list[ToolResult] = []
    async with tools(tmp_path, sleeps) as call, trio.open_nursery() as nursery:

        async def ask() -> None:
            results.append(await call.agent())

        nursery.start_soon(ask)
        await settle()
        (task,) = call.runtime.tasks()
        await call.runtime.stop(task.id)
        await settle()
        (result,) = results
        assert result.is_error and result.data["status"] == "killed"
        assert f"Agent {task.id} was stopped" in result.text


async def test_a_cancelled_call_stops_its_agent(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P8, AG4: cancelling the turn ends what runs in the foreground, only that."""
    async with tools(tmp_path, sleeps) as call:
        background = await call.launched()
        with trio.move_on_after(1):
            await call.agent()
        foreground = call.runtime.tasks()[0]
        assert foreground.status is TaskStatus.KILLED and not foreground.background
        assert background.status is TaskStatus.RUNNING


async def test_an_agent_that_is_moved_mid_call_answers_async_launched_at_once(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """BG2, AG38: the same run goes on; its end is told by one notification."""
    finish = trio.Event()
    results: list[ToolResult] = []

    async def waits(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("thinking")
        await finish.wait()
        yield FinalResult("done")

    async with tools(tmp_path, waits) as call, trio.open_nursery() as nursery:

        async def ask() -> None:
            results.append(await call.agent())

        nursery.start_soon(ask)
        await settle()
        (before,) = call.runtime.tasks()
        begin = trio.current_time()
        assert call.runtime.background_all(OWNER) == [before.id]
        await settle()
        assert trio.current_time() == begin
        (result,) = results
        assert result.data == {
            "status": "async_launched",
            "agentId": before.id,
            "description": "a task",
            "prompt": "go",
            "outputFile": str(before.output_file),
            "backgroundedByUser": True,
        }
        assert "the user moved the agent to the background" in result.text
        assert not tells_to_end(result.text)
        finish.set()
        after = await call.runtime.handle(before.id).wait()
        assert (after.run_id, after.result) == (before.run_id, "done")
        await settle()
        assert told(call.runtime) == [(before.id, "completed")]


async def test_an_end_in_the_moment_of_the_move_is_told_once(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """BG2, P4: by the answer or by a notification, never by both or none."""
    results: list[ToolResult] = []

    async def naps(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await trio.sleep(1)
        yield FinalResult("done")

    async with tools(tmp_path, naps) as call:
        for _ in range(10):
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    results.append(await call.agent())

                nursery.start_soon(ask)
                await settle()
                await trio.sleep(1)
                call.runtime.background_all()
            await call.runtime.wait_idle()
            await settle()
            by_answer = results[-1].data["status"] == "completed"
            assert len(told(call.runtime)) == (0 if by_answer else 1)


async def test_several_calls_of_one_message_run_together(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """AG41: each of these agents ends only when all of them run."""
    together = 0
    all_there = trio.Event()

    async def top(context: AgentContext) -> AsyncIterator[AgentEvent]:
        nonlocal together
        if context.depth:
            together += 1
            if together == 3:
                all_there.set()
            await all_there.wait()
            yield FinalResult(context.prompt)
            return
        reply = AssistantMessage(
            "",
            uses(*[("Agent", {"description": "x", "prompt": p}) for p in "abc"]),
        )
        yield reply
        answers = await context.use_tools(reply.tool_uses)
        yield answers
        yield FinalResult(
            " ".join(answer.text.split()[-1] for answer in answers.tool_answers)
        )

    async with tools(tmp_path, top) as call:
        result = await call.agent()
        assert result.data["content"][0]["text"] == "a b c"


async def test_without_background_tasks_every_agent_runs_in_the_foreground(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """CO4: the switch holds for agents, too, whatever a definition says."""
    off = Settings(background_tasks=False)
    kind = definition(background=True)
    async with tools(tmp_path, says_done, kind, settings=off) as call:
        schema = call.tools["Agent"].schema
        assert "run_in_background" not in schema["properties"]
        result = await call.agent(subagent_type="reviewer")
        assert result.data["status"] == "completed"


# What it may do


async def test_a_definition_makes_the_agent(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The issue, section 6: prompt, tools, model, mode and rounds."""
    prompts: list[str] = []

    async def notes(context: AgentContext) -> AsyncIterator[AgentEvent]:
        prompts.append(context.prompt)
        yield FinalResult("done")

    kind = definition(
        tools=("Bash", "TaskList"),
        disallowed_tools=("TaskList",),
        model="a/big",
        permission_mode="plan",
        max_turns=7,
    )
    async with tools(tmp_path, notes, kind) as call:
        task = await call.launched("look", subagent_type="reviewer")
        other = await call.launched(subagent_type="reviewer", model="small")
        plain = await call.launched()
        await call.runtime.wait_idle()
        made = recipe(call.runtime, task)
        assert (made.type, made.model, made.max_turns) == ("reviewer", "a/big", 7)
        assert (made.tools, made.disallowed_tools) == (
            *(("Bash", "TaskList"), ("TaskList",)),
        )
        assert made.permission_mode == "plan"
        assert recipe(call.runtime, other).model == "small"
        assert recipe(call.runtime, plain).type == "general-purpose"
        assert recipe(call.runtime, plain).tools is None
        assert (made.prompt, made.system) == ("look", "You are a reviewer.")
        assert prompts[0] == "look"
        assert prompts[2] == "go"
        assert recipe(call.runtime, plain).system is None


async def test_an_agent_hands_its_restrictions_down(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """PM11: what it may not use itself it cannot have others use."""

    async def top(context: AgentContext) -> AsyncIterator[AgentEvent]:
        if context.depth == 0:
            await context.use_tools(calls_agent())
            await context.use_tools(calls_agent(subagent_type="wide"))
            await context.use_tools(calls_agent(subagent_type="narrow"))
        yield FinalResult(" ".join(tool.name for tool in context.tools))

    restricted = definition(
        "top",
        tools=("Agent", "TaskList", "Bash"),
        disallowed_tools=("Bash",),
        model="m",
    )
    wide = definition("wide", tools=("Bash", "Agent", "TaskStop"))
    narrow = definition("narrow", tools=("TaskList",), model="n")
    async with tools(tmp_path, top, restricted, wide, narrow) as call:
        await call.agent(subagent_type="top")
        agents = [t for t in call.runtime.tasks() if t.depth == 1]
        assert [agent.result for agent in agents] == [
            *("TaskList Agent", "Agent", "TaskList")
        ]
        models = [recipe(call.runtime, call.runtime.handle(t.id)).model for t in agents]
        assert models == ["m", "m", "n"]


async def test_an_agent_has_its_own_directory_and_hands_it_down(
    tmp_path: Path,
) -> None:
    """The issue, section 1: its commands run there, and those of its agents."""
    answers: list[str] = []

    async def looks(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for more in ({}, {"cwd": "below"}, {"cwd": "/"}):
            command: dict[str, Any] = {"command": "pwd", **more}
            answer = await context.use_tools(uses(("Bash", command)))
            answers.append(answer.tool_answers[0].text.splitlines()[-1])
        if context.depth == 0:
            await context.use_tools(calls_agent())
        yield FinalResult("done")

    own = (tmp_path / "own").resolve()
    (own / "below").mkdir(parents=True)
    policy = AgentPolicy(run=looks, permissions=Permissions(mode="bypass"))
    with trio.fail_after(100):
        async with open_runtime(tmp_path / "tasks", agents=policy) as runtime:
            end = await runtime.run(Agent(looks, "look", cwd=str(own)))
    assert end.status is TaskStatus.COMPLETED
    assert answers == [str(own), str(own / "below"), "/"] * 2


async def test_an_agent_that_would_be_too_deep_is_refused_in_words(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """AG7, PM11: with the numbers, and no trace of it."""
    texts: list[str] = []

    async def top(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for background in (False, True):
            answers = await context.use_tools(calls_agent(run_in_background=background))
            (answer,) = answers.tool_answers
            assert answer.is_error
            texts.append(answer.text)
        yield FinalResult("done")

    async with tools(tmp_path, top, max_depth=0) as call:
        result = await call.agent()
        assert result.data["status"] == "completed"
        for text in texts:
            assert text.startswith("No agent was started: ")
            assert "depth 1" in text and "at most 0" in text
        assert len(call.runtime.tasks()) == 1


async def test_an_unknown_type_lists_the_known_ones(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """TR9, AG39: nothing is started."""
    async with tools(tmp_path, says_done, definition("one"), definition("two")) as call:
        result = await call.agent(subagent_type="three")
        assert result.is_error and result.data == {"error": "unknown_type"}
        assert result.text == (
            "Nothing was started: there is no agent type 'three'. "
            "The types are: general-purpose, one, two."
        )
        assert call.runtime.tasks() == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"prompt": " "},
        {"description": ""},
        {"prompt": "\ud800"},
        {"model": ""},
        {"subagent_type": "\ud800"},
        {"resume": "\ud800"},
        {"resume": "../x"},
        {"resume": ""},
        {"resume": "00000000"},
    ],
)
async def test_arguments_that_make_no_agent_are_answered(
    arguments: dict[str, Any], tmp_path: Path
) -> None:
    """AG39: an error that a model can act on, and nothing has changed."""
    async with tools(tmp_path, says_done) as call:
        given = {"description": "x", "prompt": "x"} | arguments
        result = await call("Agent", **given)
        assert result.is_error and "error" in result.data
        result.text.encode()
        assert re.match("Nothing was|There is no", result.text)
        assert call.runtime.tasks() == []


async def test_a_definition_may_say_that_what_fails_is_run_again(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The issue, section 5: with a pause; it is one task, with one notification."""
    runs: list[str] = []

    async def fails_once(context: AgentContext) -> AsyncIterator[AgentEvent]:
        runs.append(context.run_id)
        yield AssistantMessage("thinking")
        if len(runs) == 1:
            raise ConnectionError("the model is overloaded")
        yield FinalResult("done")

    kind = definition(restart="transient")
    async with tools(tmp_path, fails_once, kind) as call:
        begin = trio.current_time()
        task = await call.launched(subagent_type="reviewer")
        assert (await task.wait()).result == "done"
        assert len(set(runs)) == 2 and trio.current_time() - begin >= 1
        await settle()
        assert told(call.runtime) == [(task.id, "completed")]


# Whatever comes


@pytest.mark.parametrize("name", ["Agent", "SendMessage"])
async def test_a_cancelled_or_refused_call_does_nothing(
    name: str, tmp_path: Path
) -> None:
    """CO5: cancelled before the first step it has entered nothing, no queue either."""
    async with tools(tmp_path, sleeps) as call:
        task = await call.launched()
        await settle()
        before = call.runtime.get(task.id)
        arguments: dict[str, Any] = {"to": task.id, "message": "x"}
        if name == "Agent":
            arguments = {"description": "x", "prompt": "x", "run_in_background": True}
        with trio.CancelScope() as scope:
            scope.cancel()
            await call(name, **arguments)
        assert scope.cancelled_caught
        with trio.testing.assert_checkpoints():
            refused = await call(name, **arguments, what=1)
        assert refused.data == {"error": "invalid_arguments"}
        (after,) = call.runtime.tasks()
        assert (after.id, after.run_id, after.stopping) == (
            *(before.id, before.run_id, False),
        )


TEXTS = st.text(st.characters())


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"description": TEXTS, "prompt": TEXTS},
            optional={
                "subagent_type": TEXTS | st.just("reviewer"),
                "model": TEXTS | st.just("a/b"),
                "resume": TEXTS,
                "run_in_background": st.booleans(),
            },
        ),
        min_size=5,
        max_size=10,
    )
)
def test_any_texts_are_answered(tmp_path: Path, calls: list[dict[str, Any]]) -> None:
    """P10: whatever a model writes; each answer is text and JSON."""

    async def main() -> None:
        async with tools(tmp_path, says_done, definition()) as call:
            for arguments in calls:
                for name, given in [
                    ("Agent", arguments),
                    (
                        "SendMessage",
                        {
                            "to": arguments["description"],
                            "message": arguments["prompt"],
                        },
                    ),
                ]:
                    result = await call(name, **given)
                    result.text.encode()
                    orjson.dumps(result.data)
                    known = {"completed", "async_launched", None}
                    assert result.data.get("status") in known
                    assert result.is_error == ("error" in result.data)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# Caps


async def test_the_cap_of_a_model_covers_foreground_agents(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """CO15, CO8, CO9: in whatever way they are started; other models go on."""
    limits = Limits(models={"a/big": 1}, providers={"a": 2})
    async with tools(tmp_path, sleeps, limits=limits) as call, trio.open_nursery() as n:
        for model in ("a/big", "a/big", "a/small", "a/small", "b/big"):
            n.start_soon(partial(call.agent, model=model))
            await settle()
        statuses = [t.status.value for t in call.runtime.tasks()]
        assert statuses == ["running", "pending", "running", "pending", "running"]
        first = call.runtime.tasks()[0]
        await call.runtime.stop(first.id)
        statuses = [t.status.value for t in call.runtime.tasks()[1:]]
        assert statuses == ["running", "running", "pending", "running"]
        n.cancel_scope.cancel()


async def test_an_end_that_meets_a_stop_gives_one_place_back(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """CO10: two more would run if it were given back twice."""

    async def naps(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("thinking")
        await trio.sleep(1)
        yield FinalResult("done")

    async with tools(tmp_path, naps, limits=Limits(models={"m": 1})) as call:
        tasks = [await call.launched(model="m") for _ in range(12)]
        most = 0
        while unfinished := [t for t in tasks if not t.status.is_terminal]:
            running = [t for t in unfinished if t.status is TaskStatus.RUNNING]
            most = max(most, len(running))
            async with trio.open_nursery() as nursery:
                await trio.sleep(1)
                for task in running * 2:
                    nursery.start_soon(task.stop)
        assert most == 1


async def test_an_agent_that_waits_for_its_own_tasks_holds_no_place(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """CO3, AG28: nor does one that has ended; one that is being stopped does."""

    async def top(context: AgentContext) -> AsyncIterator[AgentEvent]:
        if context.prompt == "stubborn":
            try:
                yield AssistantMessage("thinking")
                await trio.sleep_forever()
            finally:
                with trio.move_on_after(2, shield=True):
                    await trio.sleep(1)
        if context.depth == 0:
            await context.use_tools(calls_agent(run_in_background=True))
        else:
            await trio.sleep(5)
        yield FinalResult("done")

    async with tools(tmp_path, top, limits=Limits(agents=1)) as call:
        first = await call.launched()
        await settle()
        snapshots = {t.depth: t for t in call.runtime.tasks()}
        assert first.snapshot().waiting == "tasks"
        assert snapshots[1].status is TaskStatus.RUNNING
        await first.wait()
        stubborn = await call.launched("stubborn")
        await settle()
        last = await call.launched()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stubborn.stop)
            await settle()
            assert stubborn.snapshot().stopping
            assert last.status.value == "pending"
        assert last.status.value == "running"


async def test_of_very_many_ended_agents_the_last_are_known(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """SM26: 32, once they are told of."""
    async with tools(tmp_path, says_done) as call:
        for _ in range(40):
            task = await call.launched()
            await task.wait()
        await settle()
        assert len(call.runtime.tasks()) == 40
        for note in call.runtime.notifications.drain():
            note.ack()
        assert len(call.runtime.tasks()) == 32


# SendMessage


async def test_a_message_reaches_a_running_agent(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """AG21: queued, and read between two of its steps."""

    listen = trio.Event()

    async def listens(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("thinking")
        await listen.wait()
        messages = context.inbox.take()
        assert {(m.origin, m.sender) for m in messages} == {("message", OWNER)}
        yield FinalResult(" ".join(message.text for message in messages))

    async with tools(tmp_path, listens) as call:
        task = await call.launched()
        results = [
            await call("SendMessage", to=task.id, message=text) for text in ("a", "b")
        ]
        assert [r.data for r in results] == [
            {"agentId": task.id, "runId": task.snapshot().run_id, "how": "queued"}
        ] * 2
        assert "reads it between two of its steps" in results[0].text
        listen.set()
        assert (await task.wait()).result == "a b"


async def test_a_message_to_a_completed_agent_revives_it(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """AG23: the answer says that it goes on."""

    async def echoes(context: AgentContext) -> AsyncIterator[AgentEvent]:
        last = context.history[-1]
        assert isinstance(last, UserMessage)
        yield FinalResult(last.text)

    async with tools(tmp_path, echoes) as call:
        task = await call.launched()
        await task.wait()
        result = await call("SendMessage", to=task.id, message="and now?")
        assert result.data["how"] == "revived" and not result.is_error
        assert "goes on with the message in the background" in result.text
        await call.runtime.wait_idle()
        assert call.runtime.get(task.id).result == "and now?"


async def test_a_message_to_a_failed_or_stopped_agent_is_refused(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """AG22: an error, and nothing is queued."""

    async def fails(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield Note("failing")
        if context.prompt == "fail":
            raise ValueError("no idea")
        await trio.sleep_forever()

    async with tools(tmp_path, fails) as call:
        failed = await call.launched("fail")
        stopped = await call.launched()
        await failed.wait()
        await stopped.stop()
        shell = await call.runtime.launch(Job(forever, "local_bash"), owner=OWNER)
        before = call.runtime.tasks()
        for task in (failed, stopped, shell):
            result = await call("SendMessage", to=task.id, message="hello")
            assert result.is_error and result.data == {"error": "refused"}
            assert (
                result.text.startswith("Nothing was sent: ") and task.id in result.text
            )
            # In words of what the model has.
            assert "Runtime" not in result.text
            helps = f"The Agent tool goes on with it, with resume: '{task.id}'."
            assert result.text.endswith(helps) == (task is not shell)
        assert [(t.id, t.run_id, t.status) for t in call.runtime.tasks()] == [
            (t.id, t.run_id, t.status) for t in before
        ]


@pytest.mark.parametrize("message", ["", " \n", "\ud800"])
async def test_an_empty_message_is_refused(message: str, tmp_path: Path) -> None:
    """AG22."""
    async with tools(tmp_path, sleeps) as call:
        task = await call.launched()
        result = await call("SendMessage", to=task.id, message=message)
        assert result.data == {"error": "invalid_arguments"}
        assert result.text.startswith("Nothing was sent: message ")


# Whose


async def launches_below(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """Have an agent that has an agent that sleeps."""
    if context.depth < 2:
        await context.use_tools(calls_agent(run_in_background=True))
        yield Note("has launched")
    await trio.sleep_forever()


async def test_an_unknown_id_lists_also_what_agents_have_started(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """AG39: by id and description, and whose it is; nothing of other owners."""
    async with tools(tmp_path, launches_below) as call:
        top = await call.launched()
        await settle()
        other = await call.runtime.launch(Job(forever), owner="other")
        below = {t.depth: t.id for t in call.runtime.tasks() if t.depth}
        for name, key, more in [
            ("TaskOutput", "task_id", {}),
            ("TaskStop", "task_id", {}),
            ("SendMessage", "to", {"message": "x"}),
            ("Agent", "resume", {"description": "x", "prompt": "x"}),
        ]:
            result = await call(name, **{key: "00000000"}, **more)
            assert result.is_error and result.data == {"error": "unknown_task"}
            assert result.text == (
                "There is no task '00000000', or it has been forgotten. Running tasks:\n"
                f"- {top.id} local_agent (running): a task\n"
                f"- {below[1]} local_agent (running): below (started by agent {top.id})\n"
                f"- {below[2]} local_agent (running): below (started by agent {below[1]})"
            )
            result = await call(name, **{key: other.id}, **more)
            assert result.data == {"error": "access_denied"}
        assert not other.snapshot().stopping


async def test_what_an_agent_has_started_can_be_read_and_stopped_from_above(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """AG39, SH38: and the agent that has started it is told of the end all the same;
    an agent reaches nothing above or beside it."""
    ends: list[str] = []

    async def top(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("thinking")
        if context.depth == 0:
            await context.use_tools(calls_agent(run_in_background=True))
            await context.inbox.wait()
            ends.extend(message.origin for message in context.inbox.take())
        else:
            answers = await context.use_tools(
                uses(("TaskStop", {"task_id": context.owner}))
            )
            assert "Access denied" in answers.tool_answers[0].text
            await trio.sleep_forever()
        yield FinalResult("done")

    async with tools(tmp_path, top) as call:
        agent = await call.launched()
        await settle()
        (below,) = (t for t in call.runtime.tasks() if t.depth == 1)
        read = await call("TaskOutput", task_id=below.id, block=False)
        assert read.data["output"] == "thinking"
        stopped = await call("TaskStop", task_id=below.id)
        assert stopped.data["stopped"]
        read = await call("TaskOutput", task_id=below.id)
        assert read.data["status"] == "killed"
        await agent.wait()
        assert ends == ["notification"]


# TaskOutput, TaskStop, TaskList


async def test_the_output_of_a_running_agent_is_what_it_has_said_so_far(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """BG6: partial, and named so; its transcript is not its output."""
    finish = trio.Event()

    async def talks(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield Note("reading")
        yield AssistantMessage("half of it")
        await finish.wait()
        yield FinalResult("all of it")

    async with tools(tmp_path, talks) as call:
        task = await call.launched()
        await settle()
        now = await call("TaskOutput", task_id=task.id, timeout=10)
        assert (now.data["status"], now.data["output"]) == ("running", "half of it")
        assert now.data["waiting"] is None and now.data["activities"]
        assert "partial: what follows is what the agent has said so far" in now.text
        assert "latest activities: reading; half of it\n" in now.text
        assert now.text.endswith("\n\noutput:\nhalf of it")
        part = await call("TaskOutput", task_id=task.id, block=False, offset=5)
        assert (part.data["output"], part.data["next_offset"]) == ("of it", 10)
        finish.set()
        end = await call("TaskOutput", task_id=task.id)
        assert (end.data["status"], end.data["output"]) == ("completed", "all of it")
        assert end.data["terminate"] == "goal" and "partial" not in end.text
        await settle()
        assert told(call.runtime) == []


async def test_an_agent_that_waits_for_its_own_tasks_says_so(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """BG6, AG28."""

    async def top(context: AgentContext) -> AsyncIterator[AgentEvent]:
        if context.depth == 0:
            await context.use_tools(calls_agent(run_in_background=True))
        else:
            await trio.sleep(5)
        yield FinalResult("done")

    async with tools(tmp_path, top) as call:
        task = await call.launched()
        await settle()
        now = await call("TaskOutput", task_id=task.id, block=False)
        assert now.data["waiting"] == "tasks"
        assert "status: running, waits for its own tasks\n" in now.text
        listed = await call("TaskList")
        assert (
            f"{task.id} local_agent (running, waits for its own tasks)" in listed.text
        )
        assert listed.data["tasks"][0]["waiting"] == "tasks"
        end = await call("TaskOutput", task_id=task.id)
        assert end.data["status"] == "completed"


async def test_what_an_agent_has_started_is_listed_below_it(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """AG39: as long as it runs; what others have started is not."""
    async with tools(tmp_path, launches_below) as call:
        top = await call.launched()
        await settle()
        await call.runtime.launch(Job(forever), owner="other")
        mine = top.snapshot().owner
        last = await call.runtime.launch(Job(forever), description="last", owner=mine)
        below = {t.depth: t.id for t in call.runtime.tasks() if t.depth}
        listed = await call("TaskList")
        assert [line.partition(" | ")[0] for line in listed.text.splitlines()] == [
            f"{top.id} local_agent (running): a task",
            f"  {below[1]} local_agent (running): below",
            f"    {below[2]} local_agent (running): below",
            f"{last.id} local_agent (running): last",
        ]
        parents = [task["parent"] for task in listed.data["tasks"]]
        assert parents == [None, top.id, below[1], None]
        assert listed.data["total"] == 4
        await top.stop()
        await last.stop()
        listed = await call("TaskList")
        assert [task["task_id"] for task in listed.data["tasks"]] == [last.id, top.id]


async def test_the_output_of_a_failed_agent_is_named_partial(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """AG11."""

    async def gives_up(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("half of it")
        yield FinalResult("half", "max_turns")

    async with tools(tmp_path, gives_up) as call:
        task = await call.launched()
        end = await call("TaskOutput", task_id=task.id)
        assert (end.data["status"], end.data["terminate"]) == ("failed", "max_turns")
        assert "\nended by: max_turns\n" in end.text
        assert "partial: what follows is what the agent had said so far" in end.text


async def test_stopping_an_agent_names_all_that_ended_with_it(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """AG37: the whole subtree."""
    async with tools(tmp_path, launches_below) as call:
        task = await call.launched()
        await settle()
        below = {t.id for t in call.runtime.tasks() if t.depth}
        result = await call("TaskStop", task_id=task.id)
        assert result.data["stopped"] and set(result.data["stopped_tasks"]) == below
        assert len(below) == 2
        assert (
            "With it ended 2 tasks that it or its agents had started: " in result.text
        )
        assert all(name in result.text for name in below)
        assert not any(not t.status.is_terminal for t in call.runtime.tasks())


# Going on


async def remembers(context: AgentContext) -> AsyncIterator[AgentEvent]:
    asked = [m.text for m in context.history if isinstance(m, UserMessage)]
    yield FinalResult(" / ".join(asked))


async def test_an_ended_agent_goes_on_with_what_it_remembers(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The issue, section 5: under the same id, in a new run."""
    async with tools(tmp_path, remembers, definition()) as call:
        first = await call.agent("one", subagent_type="reviewer")
        agent_id = first.data["agentId"]
        run_id = call.runtime.get(agent_id).run_id
        second = await call.agent("two", resume=agent_id)
        assert second.data["agentId"] == agent_id
        assert call.runtime.get(agent_id).run_id != run_id
        assert second.data["content"][0]["text"].endswith("one / two")
        third = await call.agent("three", resume=agent_id, run_in_background=True)
        assert third.data["status"] == "async_launched"
        end = await call.runtime.handle(agent_id).wait()
        assert (end.result or "").endswith("one / two / three")


async def test_the_end_of_one_that_goes_on_is_told_once_beside_a_reader(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P4: by the answer or by a notification, whoever comes first."""
    read: list[str] = []

    async def reads(call: Tools) -> None:
        async for note in call.runtime.notifications_for(OWNER):
            note.ack()
            read.append(note.task_id)

    async def ask(call: Tools, agent_id: str, results: list[ToolResult]) -> None:
        results.append(await call.agent("again", resume=agent_id))

    async with tools(tmp_path, says_done) as call, trio.open_nursery() as nursery:
        nursery.start_soon(reads, call)
        agent_id = (await call.agent()).data["agentId"]
        for number in range(1, 21):
            # Two at a time: the second finds it running, or ended again.
            results: list[ToolResult] = []
            ended = 0
            with call.runtime.events.subscribe() as events:
                async with trio.open_nursery() as askers:
                    for _ in range(number % 2 + 1):
                        askers.start_soon(ask, call, agent_id, results)
                await call.runtime.wait_idle()
                await settle()
                ended = sum(type(e).__name__ == "TaskEnded" for e in events.drain())
            by_answer = sum(r.data["status"] == "completed" for r in results)
            assert by_answer + len(read) == ended >= 1
            read.clear()
        nursery.cancel_scope.cancel()


async def test_an_agent_may_have_its_own_agent_go_on_and_wait_for_it(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """CO3: also where there is one place for both."""

    async def top(context: AgentContext) -> AsyncIterator[AgentEvent]:
        if context.depth:
            yield FinalResult("below")
            return
        first = await context.use_tools(calls_agent())
        agent_id = first.tool_answers[0].text.split()[1]
        again = await context.use_tools(
            uses(("Agent", {"description": "x", "prompt": "y", "resume": agent_id}))
        )
        yield FinalResult(again.tool_answers[0].text)

    async with tools(tmp_path, top, limits=Limits(agents=1)) as call:
        result = await call.agent()
        assert result.data["content"][0]["text"].endswith("below")
        assert told(call.runtime) == []


async def test_an_agent_that_goes_on_keeps_its_type_and_model(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """TR9: anything else is refused, and nothing has changed."""
    async with tools(tmp_path, remembers, definition()) as call:
        task = await call.launched()
        await task.wait()
        before = call.runtime.get(task.id)
        for more in ({"subagent_type": "reviewer"}, {"model": "big"}):
            result = await call.agent("two", resume=task.id, **more)
            assert result.data == {"error": "invalid_arguments"}
        job = await call.runtime.launch(Job(forever), owner=OWNER)
        result = await call.agent("two", resume=job.id)
        assert result.data == {"error": "no_agent"}
        assert call.runtime.get(task.id) == before


async def test_an_agent_of_a_type_that_exists_no_more_stays_as_it_was(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """TR9: with the reason."""
    async with tools(tmp_path, remembers) as call:
        agent = Agent(remembers, "one", type="gone")
        task = await call.runtime.launch(agent, owner=OWNER)
        await task.wait()
        before = call.runtime.get(task.id)
        result = await call.agent("two", resume=task.id)
        assert result.is_error and result.data == {"error": "unknown_type"}
        assert "is of the type 'gone', which does not exist any more" in result.text
        assert call.runtime.get(task.id) == before


async def test_an_agent_of_an_earlier_program_goes_on(tmp_path: Path) -> None:
    """TR9: of which only the files are left; for its own owner only, and if
    its type still exists."""
    policy = AgentPolicy(
        run=remembers,
        definitions={"reviewer": definition()},
        permissions=Permissions(mode="bypass"),
    )
    with trio.fail_after(100):
        async with open_runtime(tmp_path, agents=policy) as runtime:
            call = Tools(runtime, OWNER, Settings())
            first = await call.agent("one", subagent_type="reviewer")
            agent_id = first.data["agentId"]
        async with open_runtime(tmp_path, agents=policy) as runtime:
            stranger = Tools(runtime, "stranger", Settings())
            denied = await stranger.agent("two", resume=agent_id)
            assert denied.data == {"error": "access_denied"}
            call = Tools(runtime, OWNER, Settings())
            second = await call.agent("two", resume=agent_id)
            assert second.data["agentId"] == agent_id
            assert second.data["content"][0]["text"].endswith("one / two")
        async with open_runtime(tmp_path, agents=policy) as runtime:
            call = Tools(runtime, OWNER, Settings())
            sent = await call("SendMessage", to=agent_id, message="more")
            assert sent.data["how"] == "revived"
            end = await call("TaskOutput", task_id=agent_id)
            assert end.data["output"].endswith("one / two / more")
        less = attrs.evolve(policy, definitions={})
        async with open_runtime(tmp_path, agents=less) as runtime:
            call = Tools(runtime, OWNER, Settings())
            gone = await call.agent("three", resume=agent_id)
            assert gone.data == {"error": "unknown_type"}
            assert runtime.tasks() == []


@pytest.mark.parametrize("how", ["left", "stopped", "failed", "completed"])
async def test_all_tools_agree_about_an_agent_of_an_earlier_program(
    tmp_path: Path, how: str, autojump_clock: trio.testing.MockClock
) -> None:
    """AG22, AG39: that there is one, whose it is, how it has ended or else how a model
    goes on with it, in words of the model's own tools."""

    async def ends(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield Note("working")
        if how == "failed":
            raise OSError("no such luck")
        if how != "completed":
            await trio.sleep_forever()
        yield FinalResult("done")

    policy = AgentPolicy(run=ends, permissions=Permissions(mode="bypass"))
    env = fake_env()
    async with open_runtime(tmp_path, env=env, agents=policy) as runtime:
        task = await runtime.launch(Agent(ends, "go"), owner=OWNER)
        await settle()
        if how == "stopped":
            await task.stop()
    async with open_runtime(tmp_path, env=env, agents=policy) as runtime:
        for name, key, more in [
            ("TaskOutput", "task_id", {}),
            ("TaskStop", "task_id", {}),
            ("KillShell", "shell_id", {}),
            ("TaskWrite", "task_id", {"text": "x"}),
            ("SendMessage", "to", {"message": "x"}),
        ]:
            stranger = Tools(runtime, "stranger", Settings())
            denied = await stranger(name, **{key: task.id}, **more)
            assert denied.data == {"error": "access_denied"}, denied.text
            if name == "SendMessage" and how == "completed":
                continue
            call = Tools(runtime, OWNER, Settings())
            result = await call(name, **{key: task.id}, **more)
            if how != "left" and name in ("TaskOutput", "TaskStop", "KillShell"):
                # As of any task that has ended.
                assert not result.is_error
                status = {"stopped": "killed"}.get(how, how)
                assert result.data["status"] == status
                if name == "TaskOutput":
                    assert result.data["output"] == {"completed": "done"}.get(how, "")
                    assert result.data["agentType"] == "general-purpose"
                continue
            assert result.is_error
            if how != "left" and name == "TaskWrite":
                assert "it has ended" in result.text
                continue
            assert task.id in result.text and "Runtime" not in result.text
            word = {"left": "left", "stopped": "was stopped"}.get(how, f"has {how}")
            assert word in result.text
            assert result.text.endswith(
                f"The Agent tool goes on with it, with resume: '{task.id}'."
            )
        again = await Tools(runtime, OWNER, Settings()).agent("x", resume=task.id)
        assert again.data.get("error") != "unknown_task"
