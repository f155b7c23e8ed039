"""The tool calls of an agent: together, answered in order, none left behind."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from actors.agent import (
    Agent,
    AgentFailed,
    AssistantMessage,
    FinalResult,
    ToolAnswer,
    ToolCompleted,
    ToolStarted,
    UserMessage,
)
from actors.testing import run_agent
from tests.actors.agent.agents import Stage, use


def using(*uses):
    """Make a run that makes these calls and answers with their answers."""

    async def run(context):
        answers = await context.use_tools(uses)
        yield answers
        yield FinalResult(" / ".join(answer.text for answer in answers.tool_answers))

    return run


async def test_calls_of_one_message_run_together_and_are_answered_in_order(
    autojump_clock,
):
    """AG41."""
    uses = [
        use("slow", id="a", seconds=3),
        use("slow", id="b", seconds=1),
        use("slow", id="c", seconds=2),
    ]
    stage = Stage(using(*uses))
    await stage.run()
    assert trio.current_time() == 3
    told = stage.events[1:-2]
    assert [event.id for event in told if isinstance(event, ToolStarted)] == list("abc")
    assert [event.id for event in told if isinstance(event, ToolCompleted)] == list(
        "bca"
    )
    assert told[0] == ToolStarted("a", "slow", {"seconds": 3})
    assert stage.events[-2] == UserMessage(
        tool_answers=tuple(ToolAnswer(id, "slow has run") for id in "abc"),
        origin="tools",
    )
    assert stage.report.progress.tool_uses == 3


async def test_calls_of_one_message_begin_in_their_order(autojump_clock):
    """Whatever order a nursery has: a person is asked about the first one first."""
    begun = []
    ids = [str(number) for number in range(10)]
    stage = Stage(using(*(use("slow", id=id, seconds=1) for id in ids)))
    use_tool = stage.host.use_tool

    async def noting(call):
        begun.append(call.id)
        return await use_tool(call)

    stage.host.use_tool = noting
    await stage.run()
    assert begun == ids
    assert trio.current_time() == 1  # Beside each other all the same.


async def test_a_call_that_raises_has_an_answer_that_says_so(autojump_clock):
    """AG41: and it stops none of the others."""
    uses = [use("broken"), use("slow", id="2", seconds=5), use("silly", id="3")]
    stage = Stage(using(*uses))
    assert await stage.run() == (
        "broken failed: OSError: no such luck / slow has run / "
        "silly failed: TypeError: the tool has answered 'no answer'"
    )
    completed = [event for event in stage.events if isinstance(event, ToolCompleted)]
    assert {event.id: event.is_error for event in completed} == {
        "1": True,
        "2": False,
        "3": True,
    }
    answers = stage.events[-2].tool_answers
    assert [answer.is_error for answer in answers] == [True, False, True]


@pytest.mark.parametrize("count", [1, 3])
async def test_a_stop_stops_all_calls_and_each_is_told_of_to_its_end(count):
    """AG41."""
    uses = [use("slow", id=str(n), seconds=1_000) for n in range(count)]
    stage = Stage(using(*uses))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.run_until_stopped)
        await trio.testing.wait_all_tasks_blocked()
        stage.scope.cancel()
    completed = [event for event in stage.events if isinstance(event, ToolCompleted)]
    assert [event.is_error for event in completed] == [True] * count


@pytest.mark.parametrize("wrong", [use(), "Bash"], ids=["one", "a name"])
async def test_one_tool_use_is_not_several(wrong):
    async def run(context):
        yield await context.use_tools(wrong)

    stage = Stage(run)
    with pytest.raises(TypeError, match="uses must be several ToolUse, not"):
        await stage.run()
    assert stage.events == [UserMessage("do it")]


async def test_what_is_no_tool_use_is_refused_before_anything_is_called():
    stage = Stage(using(use(), "Bash"))
    with pytest.raises(TypeError, match="each of uses must be a ToolUse, not 'Bash'"):
        await stage.run()
    assert stage.events == [UserMessage("do it")]


async def test_no_calls_have_no_answers():
    async def run(context):
        assert await context.use_tools([]) == UserMessage(origin="tools")
        yield FinalResult("42")

    assert await Stage(run).run() == "42"


async def test_the_tools_of_a_test_answer_as_it_says():
    async def add(a, b):
        await trio.lowlevel.checkpoint()
        return str(a + b)

    calls = [use("add", a=1, b=2), use("fixed"), use("add", a=1), use("none")]
    done = await run_agent(
        Agent(using(*calls), "do it"), tools={"add": add, "fixed": "always"}
    )
    assert done.result is not None
    assert done.result.startswith("3 / always / add failed: TypeError: ")
    assert done.result.endswith(" / There is no tool 'none'.")
    assert done.error is None


async def test_a_test_sees_the_tools_that_its_run_is_shown():
    async def run(context):
        yield FinalResult(
            str([(t.name, t.description, t.schema) for t in context.tools])
        )

    done = await run_agent(Agent(run, "do it"), tools={"add": "3"})
    assert done.result == "[('add', 'A tool of the test.', {'type': 'object'})]"


async def test_a_test_sees_a_failure_and_what_there_was_before_it():
    async def run(context):
        context.say("trying")
        yield FinalResult("half", "error", error="no")

    done = await run_agent(Agent(run, "do it"))
    assert (done.result, done.terminate, str(done.error)) == ("half", "error", "no")
    assert done.messages == [UserMessage("do it"), AssistantMessage("half")]
    assert len(done.events) == 3


CALLS = AssistantMessage("I look.", (use("looks"),))


def says(*steps):
    """Make a run that makes the calls, and yields these of the messages."""

    async def run(context):
        if "calls" in steps:
            yield CALLS
        answers = await context.use_tools(CALLS.tool_uses)
        if "calls late" in steps:
            yield CALLS
        if "answers" in steps:
            yield answers
        if "more" in steps:
            yield AssistantMessage("So it is.")
            yield await context.use_tools([use("looks", id="2")])
        if "result" in steps:
            yield FinalResult("done")
        else:
            yield AssistantMessage("done")

    return run


@pytest.mark.parametrize("end", ["result", "message"])
@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        (["calls"], "`yield` the answers that `use_tools` returns"),
        (["answers"], "`yield` the AssistantMessage with the calls, before `use_"),
        ([], "with the calls, before `use_tools` and the answers that `use_tools` re"),
        (["more"], "with the calls, before `use_tools` and the answers that `use_too"),
    ],
)
async def test_calls_that_are_not_yielded_are_warned_of_once(steps, wanted, end):
    done = await run_agent(Agent(says(*steps, end), "look"), tools={"looks": "seen"})
    assert done.result == "done"
    (warning,) = done.warnings
    assert warning.startswith("tool calls (looks) were made and not yielded")
    assert wanted in warning


@pytest.mark.parametrize("end", ["result", "message"])
@pytest.mark.parametrize("calls", ["calls", "calls late"])
async def test_calls_that_are_yielded_are_not_warned_of(calls, end):
    agent = Agent(says(calls, "answers", end), "look")
    done = await run_agent(agent, tools={"looks": "seen"})
    assert done.warnings == []


async def test_a_call_that_has_failed_tells_the_first_line_of_why():
    """AG41."""
    uses = [use("broken"), use("none", id="2"), use("slow", id="3")]
    stage = Stage(using(*uses))
    with trio.fail_after(60):
        await stage.run()
    told = {
        event.id: event for event in stage.events if isinstance(event, ToolCompleted)
    }
    answers = {
        answer.tool_use_id: answer
        for event in stage.events
        if isinstance(event, UserMessage)
        for answer in event.tool_answers
    }
    assert len(told) == 3
    for call in told.values():
        first = answers[call.id].text.partition("\n")[0][:200]
        assert call.error == (first if call.is_error else None)
    assert [call.is_error for _, call in sorted(told.items())] == [True, False, True]


async def test_a_call_that_is_broken_off_says_so(autojump_clock):
    """AG41."""
    stage = Stage(using(use("slow", seconds=100)), deadline=5)
    with pytest.raises(AgentFailed):
        await stage.run()
    (call,) = [event for event in stage.events if isinstance(event, ToolCompleted)]
    assert (call.is_error, call.error) == (True, "broken off")


async def test_it_knows_how_many_of_its_own_tasks_have_not_ended():
    async def run(context):
        await context.wait_own_tasks()
        yield FinalResult(f"{context.own_tasks}")

    done = await run_agent(Agent(run, "do it"))
    assert done.result == "0"
