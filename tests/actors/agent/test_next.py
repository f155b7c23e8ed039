"""What follows an answer: messages, the plan, own tasks, the host's objections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import pytest
import trio
import trio.testing

from actors.agent import (
    AgentContext,
    AgentEvent,
    AgentFailed,
    AssistantMessage,
    FinalResult,
    Note,
    TodoItem,
    TodoList,
    UserMessage,
)
from actors.agent._next import Standing, decide
from actors.agent.hosting import InboxClosed
from tests.actors.agent.agents import Stage, ended, told

DONE = Standing(
    returned=False,
    ignores=False,
    one_shot=False,
    messages=False,
    asks=False,
    plan_open=False,
    may_remind=True,
    own_tasks=0,
    has_answer=True,
    judged=True,
)


def standing(**changes: Any) -> Standing:
    return Standing(**{**_fields(DONE), **changes})


def _fields(now: Standing) -> dict[str, Any]:
    return now._asdict()


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({}, "finish"),
        ({"judged": False}, "judge"),
        ({"has_answer": False}, "no answer"),
        ({"own_tasks": 1, "has_answer": False}, "wait"),
        ({"plan_open": True, "own_tasks": 1}, "remind"),
        ({"plan_open": True, "may_remind": False}, "give up"),
        ({"plan_open": True, "returned": True}, "remind"),
        ({"plan_open": True, "returned": True, "one_shot": True}, "give up"),
        ({"messages": True, "plan_open": True}, "resume"),
        ({"messages": True, "returned": True}, "finish"),
        ({"messages": True, "ignores": True}, "finish"),
        ({"messages": True, "asks": True, "returned": True}, "again"),
        ({"messages": True, "asks": True, "ignores": True}, "again"),
        ({"messages": True, "asks": True, "one_shot": True}, "resume"),
        (
            {"messages": True, "asks": True, "returned": True, "one_shot": True},
            "finish",
        ),
    ],
)
def test_messages_come_first_then_the_plan_then_tasks_then_the_host(changes, step):
    """SM32, AG23."""
    assert decide(standing(**changes)) == step


def test_nothing_is_finished_with_anything_left_to_do():
    """SM32: over all standings there are."""
    names = [name for name in _fields(DONE) if name != "own_tasks"]
    for values in product([False, True], repeat=len(names)):
        for own_tasks in (0, 2):
            now = Standing(**dict(zip(names, values, strict=True)), own_tasks=own_tasks)
            if decide(now) == "finish":
                assert now.has_answer and now.judged
                assert not now.plan_open and not own_tasks
                assert now.returned or now.ignores or not now.messages
                assert now.one_shot or not now.asks or not now.messages


def counting(answers: int = 99, takes: bool = True) -> Any:
    """Make a run that answers with what it was told since, or just counts."""

    runs: list[object] = []

    async def run(context):
        runs.append(context.history)
        for number in range(answers):
            yield FinalResult(f"answer {number}")
            if takes:
                for message in context.inbox.take():
                    yield AssistantMessage(f"heard {message.text}")

    class Counting:
        def __call__(self, context):
            return run(context)

    counted: Any = Counting()
    counted.runs = runs
    return counted


def soon(nursery, fn, *args):
    """Call ``fn`` once nobody has anything to do."""

    async def later():
        await trio.testing.wait_all_tasks_blocked(0.01)
        fn(*args)

    nursery.start_soon(later)


# Messages


async def test_messages_are_taken_between_rounds_in_order_and_all_at_once():
    """AG21."""
    stage = Stage(counting())
    for text in ("one", "two", "three"):
        stage.inbox.put(told(text))
    assert await stage.run() == "answer 1"
    assert stage.said() == [
        *("do it", "answer 0"),
        *("one two three".split()),
        *("heard one", "heard two", "heard three", "answer 1"),
    ]
    assert len(stage.inbox) == 0


async def test_a_message_that_comes_with_the_answer_is_answered_too():
    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        stage.inbox.put(told("wait"))
        yield FinalResult("early")
        (message,) = context.inbox.take()
        yield message
        yield FinalResult(f"after {message.text}")

    stage = Stage(run)
    assert await stage.run() == "after wait"
    # Yielding it does not keep it twice.
    assert stage.said() == ["do it", "early", "wait", "after wait"]


async def test_a_run_that_has_returned_is_called_again_with_the_whole_history():
    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        histories.append(context.history)
        if len(histories) == 1:
            stage.inbox.put(told("and then?"))
        yield AssistantMessage(f"answer {len(histories)}")

    histories = []
    stage = Stage(run)
    assert await stage.run() == "answer 2"
    prompt = UserMessage("do it")
    assert histories == [
        [prompt],
        [prompt, AssistantMessage("answer 1"), told("and then?")],
    ]


async def test_a_run_that_takes_no_messages_is_called_again_with_them():
    run = counting(takes=False)
    stage = Stage(run)
    stage.inbox.put(told("listen"))
    with trio.fail_after(10):
        assert await stage.run() == "answer 0"
    assert run.runs == [
        [UserMessage("do it")],
        [
            UserMessage("do it"),
            *(AssistantMessage("answer 0"), AssistantMessage("answer 1")),
            told("listen"),
        ],
    ]


async def test_a_one_shot_agent_is_called_once_and_asked_nothing_more():
    """AG25: what waits is left for whoever closes its record."""
    run = counting(answers=1, takes=False)
    stage = Stage(run, one_shot=True)
    stage.inbox.put(told("listen"))
    stage.host.objections = ["not good enough"]
    assert await stage.run() == "answer 0"
    assert len(run.runs) == 1
    assert stage.inbox.close() == [told("listen")]
    assert stage.inbox.closed


async def test_after_the_answer_the_inbox_is_closed_in_the_step_of_the_return():
    """AG23: a message is in time, or finds the inbox closed; none is lost."""
    outcomes = []

    async def run(context):
        yield FinalResult("42")
        context.inbox.take()
        yield FinalResult("43")

    for turns in range(40):
        stage = Stage(run)

        async def send(stage=stage, turns=turns):
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            try:
                stage.inbox.put(told("late"))
            except InboxClosed:
                outcomes.append("refused")
            else:
                outcomes.append("queued")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            answer = await stage.run()
            assert stage.inbox.closed
        heard = told("late") in stage.host.messages
        assert heard == (outcomes[-1] == "queued")
        if not heard:
            assert answer == "42"
    assert set(outcomes) == {"queued", "refused"}


async def test_a_message_that_comes_while_the_transcript_is_written_is_in_time():
    """AG23."""
    run = counting()
    stage = Stage(run)
    put = [told("just in time")]

    async def flushing():
        await trio.lowlevel.checkpoint()
        if put:
            stage.inbox.put(put.pop())

    stage.host.flushing = flushing
    assert await stage.run() == "answer 0"
    assert len(run.runs) == 2
    assert stage.host.flushed == 2
    assert stage.said() == ["do it", "answer 0", "just in time", "answer 0"]


async def test_the_transcript_is_written_before_an_abort_comes_out():
    """AG3."""
    order = []

    async def run(context):
        yield AssistantMessage("half")
        await trio.sleep_forever()

    stage = Stage(run)

    async def flushing():
        await trio.lowlevel.checkpoint()
        order.append("written")

    stage.host.flushing = flushing
    async with trio.open_nursery() as nursery:
        soon(nursery, stage.scope.cancel)
        await stage.run_until_stopped()
        order.append("raised")
    assert order == ["written", "raised"]


async def test_a_transcript_that_cannot_be_written_holds_up_nobody(autojump_clock):
    stage = Stage(counting(), shutdown=4)
    stage.host.flushing = trio.sleep_forever
    assert await stage.run() == "answer 0"
    assert trio.current_time() == 2


# The plan


OPEN = TodoList((TodoItem("look"), TodoItem("mend", "in_progress")))
SHUT = TodoList((TodoItem("look", "completed"), TodoItem("mend", "cancelled")))


async def test_an_answer_before_the_plan_is_done_is_followed_by_a_reminder():
    """SM32."""

    async def run(context):
        yield OPEN
        yield FinalResult("early")
        (reminder,) = context.inbox.take()
        assert reminder.origin == "reminder"
        assert "- look\n- mend\n" in reminder.text
        yield SHUT
        yield FinalResult("done")

    stage = Stage(run)
    assert await stage.run() == "done"
    assert stage.report.todos == SHUT


async def test_an_agent_that_never_does_its_plan_fails_with_what_it_has():
    """SM32: after five reminders."""
    reminders = []

    async def run(context):
        yield OPEN
        while True:
            yield FinalResult("early")
            reminders.extend(context.inbox.take())

    stage = Stage(run)
    with pytest.raises(AgentFailed, match=r"2 step\(s\) of its plan not done: look"):
        await stage.run()
    assert len(reminders) == 5
    assert (stage.report.terminate, stage.report.result) == ("error", "early")


async def test_reminders_are_counted_anew_when_the_plan_changes():
    changes = 4

    async def run(context):
        for number in range(changes):
            yield TodoList((TodoItem(f"step {number}"),))
            for _ in range(2):
                yield FinalResult("early")
                context.inbox.take()
                # The same plan is no change.
                yield TodoList((TodoItem(f"step {number}"),))
        yield TodoList()
        yield FinalResult("done")

    assert await Stage(run, reminders=2).run() == "done"


# Own tasks


async def test_it_waits_for_its_own_tasks_and_hears_of_each_end():
    stage = Stage(counting())
    stage.host.unfinished = 2
    async with trio.open_nursery() as nursery:
        soon(nursery, stage.host.end_task, "first end")

        @nursery.start_soon
        async def later():
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert stage.report.waiting == "tasks"
            stage.host.end_task("second end")

        assert await stage.run() == "answer 2"
    assert stage.host.waits == ["tasks", None] * 2
    assert stage.report.waiting is None
    assert stage.said() == [
        *("do it", "answer 0", "first end", "heard first end"),
        *("answer 1", "second end", "heard second end", "answer 2"),
    ]


async def test_a_run_that_has_returned_is_not_called_again_for_the_end_of_a_task():
    run = counting(answers=1, takes=False)
    stage = Stage(run)
    stage.host.unfinished = 2
    async with trio.open_nursery() as nursery:
        soon(nursery, stage.host.end_task, "first end")

        @nursery.start_soon
        async def later():
            await trio.testing.wait_all_tasks_blocked(0.05)
            stage.host.end_task("second end")

        assert await stage.run() == "answer 0"
    assert len(run.runs) == 1


async def test_what_is_left_at_the_end_is_there_for_whoever_closes_the_record():
    async def run(context):
        yield FinalResult("42")

    stage = Stage(run)
    stage.host.unfinished = 1
    async with trio.open_nursery() as nursery:
        soon(nursery, stage.host.end_task, "the end")
        assert await stage.run() == "42"
    assert stage.inbox.close() == [ended("the end")]


async def test_an_end_that_tells_of_nothing_ends_the_wait_too():
    stage = Stage(counting())
    stage.host.unfinished = 1
    async with trio.open_nursery() as nursery:
        soon(nursery, stage.host.end_task)
        assert await stage.run() == "answer 0"


async def test_a_message_ends_the_wait_for_tasks():
    """AG21, AG24."""

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield FinalResult("41")
        assert [message.text for message in context.inbox.take()] == ["how far?"]
        stage.host.end_task()
        yield FinalResult("42")

    stage = Stage(run)
    stage.host.unfinished = 1
    async with trio.open_nursery() as nursery:
        soon(nursery, stage.inbox.put, told("how far?"))
        assert await stage.run() == "42"


# The host


async def test_the_host_is_asked_last_and_may_let_it_go_on():
    stage = Stage(counting())
    stage.host.objections = ["no tests", "still none"]
    assert await stage.run() == "answer 2"
    assert stage.host.asked == [("answer 0", 1), ("answer 1", 2), ("answer 2", 3)]
    assert [
        message.origin
        for message in stage.host.messages
        if isinstance(message, UserMessage)
    ] == ["prompt", "hook", "hook"]


async def test_the_host_is_not_asked_before_there_is_an_answer_or_tasks_have_ended():
    async def run(context):
        yield Note("nothing to say")

    stage = Stage(run)
    with pytest.raises(AgentFailed):
        await stage.run()
    assert stage.host.asked == []


async def test_a_message_that_comes_while_the_host_is_asked_is_in_time():
    """AG23."""

    async def finishing(answer, attempt):
        await trio.lowlevel.checkpoint()
        if attempt == 1:
            stage.inbox.put(told("one more"))

    stage = Stage(counting())
    stage.host.finishing = finishing
    assert await stage.run() == "answer 1"
    assert stage.said() == [
        *("do it", "answer 0", "one more", "heard one more", "answer 1")
    ]
