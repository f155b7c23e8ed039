"""An agent from its first event to its result, and what its run is given."""

from __future__ import annotations

import copy
import types
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing

from actors.agent import (
    Agent,
    AgentContext,
    AgentFailed,
    AssistantMessage,
    Budget,
    CompactBoundary,
    FinalResult,
    Note,
    TextDelta,
    TokensUsed,
    ToolAnswer,
    ToolCompleted,
    ToolStarted,
    UserMessage,
)
from actors.agent._running import CONTINUE
from actors.agent.hosting import Inbox
from actors.testing import run_agent
from actors.work import Report
from tests.actors.agent.agents import Stage, told, use


async def answers(context):
    yield FinalResult("42")


# What it is given


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"run": 3}, TypeError, "run must be an async generator function, not 3"),
        ({"prompt": ""}, ValueError, "prompt must not be empty"),
        ({"prompt": b"x"}, TypeError, "prompt must be a str, not b'x'"),
        ({"system": 1}, TypeError, "system must be a str or None, not 1"),
        ({"system": " "}, ValueError, "system must not be empty: ' '"),
        ({"type": None}, TypeError, "type must be a str"),
        ({"description": 1}, TypeError, "description must be a str or None, not 1"),
        ({"model": " "}, ValueError, "model must not be empty"),
        (
            {"tools": "Bash"},
            TypeError,
            "tools must be a tuple or list of str, not 'Bash'",
        ),
        ({"tools": [1]}, TypeError, "tools must hold only str, not 1"),
        ({"disallowed_tools": None}, TypeError, "disallowed_tools must be a tuple"),
        (
            {"permission_mode": 7},
            TypeError,
            "permission_mode must be a str or None, not 7",
        ),
        ({"cwd": 7}, TypeError, "cwd must be a str or None, not 7"),
        (
            {"deadline": -1},
            ValueError,
            "deadline must be seconds, 0 or more, or None, not -1",
        ),
        (
            {"deadline": "1"},
            TypeError,
            "deadline must be seconds, 0 or more, or None, not '1'",
        ),
        ({"stall_limit": float("nan")}, ValueError, "stall_limit must be seconds"),
        (
            {"stall_warning": True},
            TypeError,
            "stall_warning must be seconds, 0 or more, or None, not True",
        ),
        (
            {"shutdown": None},
            TypeError,
            "shutdown must be seconds, 0 or more, not None",
        ),
        (
            {"max_turns": 1.5},
            TypeError,
            "max_turns must be a whole number, 0 or more, or None, not 1.5",
        ),
        (
            {"max_turns": -1},
            ValueError,
            "max_turns must be a whole number, 0 or more, or None, not -1",
        ),
        (
            {"reminders": True},
            TypeError,
            "reminders must be a whole number, 0 or more, not True",
        ),
        ({"budget": 100}, TypeError, "budget must be a Budget or None, not 100"),
        ({"history": ["hello"]}, TypeError, "history must hold only AssistantMessage"),
        ({"history": "hello"}, TypeError, "history must be a tuple or list of Ass"),
        ({"one_shot": 1}, TypeError, "one_shot must be True or False, not 1"),
        ({"forked": 1}, TypeError, "forked must be True or False, not 1"),
    ],
)
def test_a_bad_argument_is_refused_by_its_name_and_value(options, error, named):
    arguments: Any = {"run": answers, "prompt": "do it", **options}
    with pytest.raises(error) as raised:
        Agent(**arguments)
    assert named in str(raised.value)


def test_an_async_function_without_a_yield_is_refused_by_its_name():
    async def forgot_to_yield(context):
        return FinalResult("42")

    with pytest.raises(TypeError, match="forgot_to_yield is only async: it has no"):
        Agent(cast("Any", forgot_to_yield), "do it")


async def test_a_run_that_returns_no_iterator_fails_by_its_name():
    with pytest.raises(TypeError, match="returned 42: run must be an async generator"):
        await Stage(lambda context: 42).run()


async def test_a_run_may_return_any_async_iterator():
    class Once:
        def __init__(self, context: AgentContext) -> None:
            self.left = [AssistantMessage("hm"), FinalResult(context.prompt.upper())]

        def __aiter__(self):
            return self

        async def __anext__(self):
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop(0)

    assert await Stage(Once).run() == "DO IT"


def test_it_describes_itself_by_the_beginning_of_its_prompt():
    assert Agent(answers, "do it").describe() == "do it"
    assert Agent(answers, "do it\nnow").describe() == "do it ..."
    assert Agent(answers, "x" * 100).describe() == "x" * 77 + "..."
    assert Agent(answers, "do it", description="a job").describe() == "a job"


def test_it_is_a_work_whose_place_counts_for_its_model():
    agent = Agent(answers, "do it", model="a/b", one_shot=True, shutdown=3)
    assert (agent.task_type, agent.writes_output) == ("local_agent", False)
    assert (agent.has_tasks, agent.takes_messages) == (True, False)
    assert (agent.limit_key, agent.shutdown, agent.background) == ("a/b", 3, False)
    assert attrs.evolve(agent, prompt="again").loop is answers


async def test_the_prompt_reaches_the_run_verbatim():
    """AG20."""
    prompt = "  <b>Do</b> it\n\twith é, \x1b[31mcolour\x1b[0m and ]]>  \n"
    seen = []

    async def run(context):
        seen.append((context.prompt, context.history[-1]))
        yield FinalResult("done")

    stage = Stage(run, prompt)
    stage.host.added = "what a hook has to say"
    await stage.run()
    assert seen == [(prompt, UserMessage(prompt))]
    assert stage.said() == ["what a hook has to say", prompt, "done"]
    assert stage.host.messages[0].origin == "hook"


# What it says


async def test_only_messages_and_boundaries_of_compactions_are_kept():
    """AG2."""
    everything = [
        AssistantMessage("one", (use(),)),
        TextDelta("tw"),
        ToolStarted("1", "tool"),
        Note("working"),
        TokensUsed(input_tokens=3),
        ToolCompleted("1", "tool"),
        UserMessage(tool_answers=(ToolAnswer("1", "done"),), origin="tools"),
        CompactBoundary("all that was"),
        AssistantMessage("three"),
    ]

    async def run(context):
        for event in everything:
            yield event
        yield FinalResult("three")

    stage = Stage(run)
    await stage.run()
    kept = (AssistantMessage, UserMessage, CompactBoundary)
    assert stage.host.messages == [
        UserMessage("do it"),
        *(event for event in everything if isinstance(event, kept)),
    ]
    assert stage.events[1:-1] == everything


async def test_the_history_begins_with_the_last_compaction():
    async def run(context):
        yield AssistantMessage("much")
        yield CompactBoundary("much was said")
        yield AssistantMessage("more")
        yield FinalResult(str([type(message).__name__ for message in context.history]))

    assert await Stage(run).run() == "['CompactBoundary', 'AssistantMessage']"


@pytest.mark.parametrize("nonsense", [None, "text", 42, FinalResult, {"type": "Note"}])
async def test_what_is_no_event_fails_the_agent_by_its_name(nonsense):
    async def babbles(context):
        yield AssistantMessage("so far")
        yield nonsense

    stage = Stage(babbles)
    with pytest.raises(TypeError) as raised:
        await stage.run()
    assert f"yielded {nonsense!r}, which is not an event" in str(raised.value)
    assert stage.report.result == "so far"


async def test_a_coroutine_that_was_not_awaited_is_told_as_such():
    async def forgets(context):
        answers = context.use_tools([])
        try:
            yield answers
        finally:
            answers.close()

    with pytest.raises(TypeError, match="which is not an event: await it first"):
        await Stage(forgets).run()


async def test_tools_and_tokens_are_counted_and_the_last_five_activities_kept():
    """AG19: newest last."""

    async def run(context):
        for step in range(9):
            yield Note(f"step {step}\nwith details")
        context.say("said")
        await context.use_tools([use(), use(id="2")])
        yield TokensUsed(input_tokens=10, output_tokens=5)
        yield TokensUsed(input_tokens=100)
        yield AssistantMessage("x" * 1000)
        yield FinalResult("42")

    stage = Stage(run)
    await stage.run()
    progress = stage.report.progress
    assert (progress.tool_uses, progress.total_tokens) == (2, 115)
    assert progress.activities == ("step 8", "said", "tool", "tool", "x" * 200)
    assert progress.text == "x" * 200
    recent = stage.report.recent
    assert tuple(it.text for it in recent) == progress.activities
    inputs = [(it.tool_use_id, it.input, it.outcome) for it in recent]
    call = use()
    assert inputs[2:4] == [
        (call.id, call.input, "completed"),
        ("2", call.input, "completed"),
    ]
    assert inputs[0] == inputs[4] == (None, None, None)
    assert [it.at for it in recent] == sorted(it.at for it in recent)
    assert stage.report.spent == (110, 5, 0, 0)


# Its result


async def test_the_result_is_the_final_answer_and_nothing_else():
    """AG17."""

    async def run(context):
        yield AssistantMessage("I look.", (use(),))
        yield await context.use_tools([use()])
        yield AssistantMessage("thinking about it")
        yield FinalResult("42")

    done = await run_agent(Agent(run, "do it"), tools={"tool": "raw output"})
    assert (done.result, done.terminate, done.error) == ("42", "goal", None)


async def test_a_run_that_only_returns_has_its_last_text_as_its_answer():
    async def run(context):
        yield AssistantMessage("first")
        yield AssistantMessage("last")
        yield AssistantMessage("", (use(),))

    assert await Stage(run).run() == "last"


async def test_an_empty_answer_is_none_and_what_was_said_before_stands():
    async def run(context):
        yield AssistantMessage("something")
        yield FinalResult(" \n")

    assert await Stage(run).run() == "something"


@pytest.mark.parametrize(
    ("says", "kept"),
    [
        ([FinalResult("42")], ["42"]),
        ([AssistantMessage("42"), FinalResult("42")], ["42"]),
        ([AssistantMessage("42"), FinalResult("42\n")], ["42"]),
        ([AssistantMessage("41"), FinalResult("42")], ["41", "42"]),
        # The one who says the answer may call a tool, too.
        (
            [AssistantMessage("42"), AssistantMessage("x"), FinalResult("42")],
            ["42", "x"],
        ),
        ([AssistantMessage("x"), FinalResult("")], ["x"]),
        ([CompactBoundary("42"), FinalResult("42")], ["42"]),
    ],
)
async def test_an_answer_that_no_message_has_said_is_in_the_conversation(says, kept):
    """TR14: whoever goes on with the agent finds its answer, and only once."""

    async def run(context):
        for event in says:
            yield event

    stage = Stage(run)
    await stage.run()
    assert stage.said() == ["do it", *kept]
    # It was told as what it is: a result.
    assert [e for e in stage.events if e != UserMessage("do it")] == says


async def test_the_same_answer_to_another_question_is_in_the_conversation_again():
    async def run(context):
        yield AssistantMessage("42")
        yield FinalResult("42")
        context.inbox.take()
        yield FinalResult("42")

    stage = Stage(run)
    stage.host.objections = ["Sure?"]
    await stage.run()
    assert stage.said() == ["do it", "42", "Sure?", "42"]


@pytest.mark.parametrize("says", [[], [FinalResult("")], [AssistantMessage(" ")]])
async def test_without_any_answer_it_fails_cleanly(says):
    """AG14, SM32: no empty result, and no completion without valid output."""

    async def run(context):
        for event in says:
            yield event

    stage = Stage(run)
    with pytest.raises(AgentFailed, match=r"^ended without an answer$"):
        await stage.run()
    assert (stage.report.terminate, stage.report.result) == ("error", None)


async def test_the_result_so_far_is_there_at_every_moment():
    """AG12, AG15, AG16: so it is there however the run ends."""
    seen = []

    async def run(context):
        seen.append(stage.report.result)
        yield AssistantMessage("one")
        seen.append(stage.report.result)
        yield TextDelta("tw")
        seen.append(stage.report.result)
        yield AssistantMessage("two")
        seen.append(stage.report.result)
        yield FinalResult("three")

    stage = Stage(run)
    await stage.run()
    assert [*seen, stage.report.result] == [None, "one", "one", "two", "three"]


@pytest.mark.parametrize("mode", ["error", "max_turns", "timeout", "stalled", "budget"])
async def test_a_mode_other_than_the_goal_fails_with_the_partial_result(mode):
    """AG11, AG14, AG16."""

    async def run(context):
        yield AssistantMessage("half of it")
        yield FinalResult("", mode, error="the API said 429")

    stage = Stage(run)
    with pytest.raises(AgentFailed) as raised:
        await stage.run()
    assert (raised.value.mode, str(raised.value)) == (mode, "the API said 429")
    assert (stage.report.terminate, stage.report.result) == (mode, "half of it")


async def test_a_failed_run_keeps_what_it_was_about_to_say():
    """AG14, AG16: also the text of a message that was cut off."""

    async def run(context):
        yield AssistantMessage("Let me see.")
        yield TextDelta("It is ")
        yield TextDelta("4")
        raise ConnectionError("cut")

    stage = Stage(run)
    with pytest.raises(ConnectionError, match="cut"):
        await stage.run()
    assert (stage.report.terminate, stage.report.result) == ("error", "It is 4")


async def test_a_run_that_says_it_was_cancelled_ends_as_stopped():
    """AG12."""

    async def run(context):
        yield FinalResult("half of it", "cancelled", error="the user said so")

    stage = Stage(run)
    assert await stage.run() == "half of it"
    assert stage.report.terminate == "cancelled"
    exit = stage.report.own_exit
    assert (type(exit).__name__, exit.by, exit.reason) == (
        "Stopped",
        "stop",
        "the user said so",
    )


async def test_a_stopped_agent_keeps_its_partial_result():
    """AG12, AG15."""

    async def run(context):
        yield AssistantMessage("half of it")
        stage.scope.cancel()
        await trio.sleep_forever()

    stage = Stage(run)
    await stage.run_until_stopped()
    assert (stage.report.terminate, stage.report.result) == ("cancelled", "half of it")
    assert stage.host.flushed == 1


# Its limits


async def test_no_more_rounds_of_tools_than_allowed():
    """AG11: the last message may still ask for none."""

    async def run(context):
        for turn in range(9):
            yield AssistantMessage(f"turn {turn}", (use(),))
            yield await context.use_tools([use()])
            if turn == enough:
                yield FinalResult("42")

    enough = 2
    assert await Stage(run, max_turns=3).run() == "42"
    enough = 3
    stage = Stage(run, max_turns=3)
    with pytest.raises(AgentFailed, match="more than 3 rounds of tools") as raised:
        await stage.run()
    assert raised.value.mode == stage.report.terminate == "max_turns"
    assert stage.report.result == "turn 3"
    assert sum(isinstance(event, ToolStarted) for event in stage.events) == 3


async def test_a_deadline_ends_it_with_a_timeout(autojump_clock):
    """AG11."""
    left = []

    async def run(context):
        left.append(context.deadline)
        yield AssistantMessage("half of it")
        await trio.sleep(4)
        left.append(context.deadline)
        await trio.sleep(100)

    stage = Stage(run, deadline=10)
    with pytest.raises(AgentFailed, match="not done within its 10 s") as raised:
        await stage.run()
    assert raised.value.mode == stage.report.terminate == "timeout"
    assert stage.report.result == "half of it"
    assert left == [10.0, 6.0]
    assert trio.current_time() == 10


async def test_a_used_up_budget_ends_the_run_and_those_beside_it(autojump_clock):
    """HL15: also one that has used nothing, and whoever would begin now."""

    async def spends(context):
        yield AssistantMessage("half of it")
        await trio.sleep(1)
        yield TokensUsed(input_tokens=60, output_tokens=50)
        await trio.sleep_forever()

    async def idles(context):
        yield AssistantMessage("waiting")
        await trio.sleep_forever()

    whole = Budget(tokens=100)
    stages = [
        Stage(spends, budget=whole.child(tokens=1000)),
        Stage(idles, budget=whole.child()),
    ]
    failures = []

    async def run(stage):
        with pytest.raises(AgentFailed) as raised:
            await stage.run()
        failures.append((raised.value.mode, str(raised.value)))

    async with trio.open_nursery() as nursery:
        for stage in stages:
            nursery.start_soon(run, stage)
    assert trio.current_time() == 1
    assert [stage.report.result for stage in stages] == ["half of it", "waiting"]
    await run(late := Stage(answers, budget=whole.child()))
    assert late.host.messages == []
    why = "its budget of 100 tokens is used up: 110"
    assert failures == [("budget", why)] * 3


# The conversation


async def test_a_first_run_begins_with_the_given_history_and_then_the_prompt():
    earlier = (UserMessage("before"), AssistantMessage("so it was"))

    async def run(context):
        assert context.history == [*earlier, UserMessage("do it")]
        yield FinalResult("42")

    stage = Stage(run, history=earlier)
    await stage.run()
    assert stage.host.messages == [
        *earlier,
        UserMessage("do it"),
        AssistantMessage("42"),
    ]
    assert stage.events == [UserMessage("do it"), FinalResult("42")]


async def test_a_resumed_run_goes_on_with_what_waits_or_is_told_to_continue():
    """AG30, as far as the run is concerned."""
    earlier = [UserMessage("do it"), AssistantMessage("I have begun")]
    seen = []

    async def run(context):
        seen.append(context.history[2:])
        yield FinalResult("42")

    await run_agent(Agent(run, "do it"), history=earlier)
    inbox = Inbox()
    inbox.put(told("and now?"))
    await run_agent(Agent(run, "do it"), history=earlier, inbox=inbox)
    assert seen == [[UserMessage(CONTINUE, origin="reminder")], [told("and now?")]]


async def test_a_resumed_run_begins_with_the_last_compaction():
    earlier = [UserMessage("do it"), CompactBoundary("much"), AssistantMessage("so")]

    async def run(context):
        going_on = UserMessage(CONTINUE, origin="reminder")
        yield FinalResult(str(context.history == [*earlier[1:], going_on]))

    assert (await run_agent(Agent(run, "do it"), history=earlier)).result == "True"


async def test_a_callable_that_turns_out_to_be_only_async_fails_by_its_name():
    class Forgot:
        async def __call__(self, context):
            return answers(context)

    with pytest.raises(
        TypeError, match=r"returned <coroutine .*: run must be an async"
    ):
        await Stage(Forgot()).run()


# What its run is given


async def test_a_history_that_the_run_changes_is_nobody_elses():
    """AG5: what it is given is its own, down to the arguments of a tool call."""
    arguments: Any = {"path": ["a"]}
    parents = [UserMessage("x"), AssistantMessage("", (use(**arguments),))]
    before = copy.deepcopy(parents)

    async def run(context):
        context.history.clear()
        context.history[1].tool_uses[0].input["path"].append("b")
        yield FinalResult(str(len(context.history)))

    assert await Stage(run, history=parents).run() == "3"
    assert (parents, arguments) == (before, {"path": ["a"]})


async def test_the_schemas_of_its_tools_are_its_own_copies():
    """AG5."""

    async def run(context):
        context.tools[0].schema["type"] = "nonsense"
        yield FinalResult(context.tools[0].schema["type"])

    done = await run_agent(Agent(run, "do it"), tools={"tool": "x"})
    assert done.result == "object"


async def test_two_agents_of_one_recipe_share_nothing():
    """AG4: each run has its own inbox, history and scope; AG10: and its own id."""
    contexts = []

    async def run(context):
        contexts.append(context)
        yield AssistantMessage(str(len(contexts)))
        if len(contexts) == 1:
            await trio.sleep_forever()
        yield FinalResult(str(len(contexts)))

    first, second = Stage(run), Stage(run)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run_until_stopped)
        await trio.testing.wait_all_tasks_blocked()
        assert await second.run() == "2"
        first.scope.cancel()
    assert contexts[0].inbox is not contexts[1].inbox
    assert contexts[0].history == [UserMessage("do it"), AssistantMessage("1")]
    assert contexts[1].history == [UserMessage("do it"), AssistantMessage("2")]


async def test_nothing_public_in_the_context_reaches_the_record_or_the_host():
    """AG4, AG5, AG6: by a walk over all public attributes, and theirs in turn."""
    found: list[tuple[str, object]] = []

    def walk(thing: object, path: str, depth: int = 4) -> None:
        found.append((path, thing))
        if depth == 0 or isinstance(thing, str | int | float | type | None):
            return
        if isinstance(thing, dict | list | tuple):
            for key, item in enumerate(
                thing.values() if isinstance(thing, dict) else thing
            ):
                walk(item, f"{path}[{key}]", depth - 1)
            return
        if isinstance(thing, types.MethodType):
            # What it is bound to is what it was reached by.
            assert any(thing.__self__ is known for _, known in found)
            return
        for name in dir(thing):
            if not name.startswith("_"):
                walk(getattr(thing, name), f"{path}.{name}", depth - 1)

    async def run(context):
        walk(context, "context")
        yield FinalResult("42")

    parent = Budget(tokens=10)
    stage = Stage(run, model="a/b", cwd="/x", budget=parent.child(5))
    stage.inbox.put(told("hello"))
    await stage.run()
    reached = [thing for _, thing in found]
    forbidden = (Report, Agent, type(stage.host), trio.CancelScope, trio.Nursery)
    assert not [pair for pair in found if isinstance(pair[1], forbidden)]
    assert not any(thing is parent for thing in reached)
    names = {name for name in dir(found[0][1]) if not name.startswith("_")}
    assert names == {
        *(
            "agent_id run_id depth prompt system history inbox tools permission_mode".split()
        ),
        *("deadline cwd session owner model budget".split()),
        *(
            "say use_tools launch run fork own_tasks wait_own_tasks plan reminder".split()
        ),
    }


async def test_the_context_says_what_the_host_and_the_agent_say():
    """AG6: the depth is the host's to know."""

    async def run(context):
        yield FinalResult(
            f"{context.agent_id} {context.run_id} {context.depth} {context.owner} "
            f"{context.permission_mode} {context.cwd} {context.session} {context.model}"
            f" {context.system}"
        )

    stage = Stage(run, cwd="/x", session="s1", model="a/b", system="kind")
    stage.host.depth = 2
    stage.host.owner = "above"
    stage.host.permission_mode = "plan"
    assert await stage.run() == "agent agent-000001 2 above plan /x s1 a/b kind"


async def test_under_no_host_there_are_no_tools_and_no_tasks():
    async def run(context):
        answers = await context.use_tools([use("Bash")])
        yield AssistantMessage(answers.tool_answers[0].text)
        with pytest.raises(RuntimeError, match="no tasks of its own"):
            await context.launch(Agent(run, "x"))
        with pytest.raises(RuntimeError, match="no tasks of its own"):
            await context.run(Agent(run, "x"))

    stage = Stage(run)
    stage.report.agent_host = stage.report.inbox = None
    assert await stage.run() == "There is no tool 'Bash'."
