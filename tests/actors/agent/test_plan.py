"""The plan that a model writes by calls of TodoWrite."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.agent import (
    AgentFailed,
    AssistantMessage,
    CompactBoundary,
    FinalResult,
    Message,
    TodoItem,
    TodoList,
    ToolAnswer,
    ToolUse,
    UserMessage,
    from_json,
    to_json,
)
from actors.agent._plan import PlanReader, plan_in, read_todos
from tests.actors.agent.agents import Stage

OPEN = [
    {"content": "look", "status": "completed"},
    {"content": "mend", "status": "in_progress", "activeForm": "Mending"},
]
SHUT = [
    {"content": "look", "status": "completed"},
    {"content": "mend", "status": "cancelled"},
]


def writes(todos: Any, id: str = "1") -> AssistantMessage:
    return AssistantMessage("", (ToolUse(id, "TodoWrite", {"todos": todos}),))


def answered(id: str = "1", *, is_error: bool = False) -> UserMessage:
    return UserMessage(tool_answers=(ToolAnswer(id, "so", is_error),), origin="tools")


def test_the_argument_is_read_as_the_tool_describes_it():
    """003: the statuses are those of its todos."""
    assert read_todos(OPEN) == TodoList(
        (TodoItem("look", "completed"), TodoItem("mend", "in_progress"))
    )
    assert read_todos([]) == TodoList()


@pytest.mark.parametrize(
    ("todos", "wrong"),
    [
        ("look", "must be an array"),
        (None, "must be an array"),
        (["look"], "must hold objects with content and status: see item 1"),
        ([{"content": " ", "status": "pending"}], "some text as the content of item 1"),
        ([*SHUT, {"content": "x", "status": "done"}], "of item 3, not 'done'"),
        ([{"content": "x"}], "as the status of item 1, not None"),
        (
            [{"content": "x", "status": "pending", "id": 1}],
            "no 'id' in item 1; allowed",
        ),
        (
            [{"content": "x", "status": "pending", "activeForm": 3}],
            "a string as the activeForm of item 1",
        ),
    ],
)
def test_what_is_no_plan_is_refused_by_name(todos: Any, wrong: str):
    with pytest.raises(ValueError, match=r"^must") as caught:
        read_todos(todos)
    assert wrong in str(caught.value)


def test_a_call_counts_when_it_was_answered_and_not_refused():
    assert plan_in([writes(OPEN)]) is None
    assert plan_in([writes(OPEN), answered(is_error=True)]) is None
    assert plan_in([writes(OPEN), answered()]) == read_todos(OPEN)
    both = [writes(OPEN), answered(), writes(SHUT, "2"), answered("2", is_error=True)]
    assert plan_in(both) == read_todos(OPEN)
    # Another tool of that name, which takes something else.
    assert plan_in([writes({"a": 1}), answered()]) is None


def test_after_a_compaction_the_plan_is_the_one_at_it_or_a_later_one():
    before = CompactBoundary("much", plan=read_todos(OPEN))
    assert plan_in([writes(SHUT), answered(), before]) == read_todos(OPEN)
    kept = CompactBoundary(
        "much", kept=(writes(SHUT), answered()), plan=read_todos(OPEN)
    )
    assert plan_in([kept]) == read_todos(SHUT)
    assert from_json(to_json(kept)) == kept


statuses = st.sampled_from(["pending", "in_progress", "completed", "cancelled"])
plans = st.lists(
    st.fixed_dictionaries({"content": st.sampled_from("abc"), "status": statuses}),
    max_size=3,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(plans, st.booleans(), st.booleans()), max_size=8))
def test_the_plan_is_the_last_that_was_granted_wherever_the_conversation_was_cut(
    calls: list[tuple[Any, bool, bool]],
):
    """Whatever was written, refused or compacted: the last granted call is the plan,
    and a reader that begins at any boundary knows it too."""
    wanted: TodoList | None = None
    live = PlanReader()
    kept: list[Message] = []
    for number, (todos, is_refused, compacts) in enumerate(calls):
        round_ = writes(todos, str(number)), answered(str(number), is_error=is_refused)
        for message in round_:
            live.read(message)
            kept.append(message)
        if not is_refused:
            wanted = read_todos(todos)
        if compacts:
            boundary = CompactBoundary("so far", kept=round_, plan=live.plan)
            live.read(boundary)
            kept = [boundary]
        assert live.plan == wanted == plan_in(kept)


# With any loop


def model(*turns: Any) -> Any:
    """A loop that answers `turns` one after the other, by hand."""

    async def run(context: Any) -> Any:
        at = 0
        while True:
            turn = turns[min(at, len(turns) - 1)]
            at += 1
            if isinstance(turn, str):
                yield FinalResult(turn)
            else:
                reply = writes(turn, f"u{at}")
                yield reply
                yield await context.use_tools(reply.tool_uses)
            context.inbox.take()

    return run


async def test_an_agent_whose_written_plan_is_open_defers_its_end():
    """003: todo-aware completion, with a loop that says nothing of plans itself."""
    stage = Stage(model(OPEN, "done?", SHUT, "done"))
    assert await stage.run() == "done"
    told = [event for event in stage.events if isinstance(event, TodoList)]
    assert told == [read_todos(OPEN), read_todos(SHUT)]
    reminders = [
        it.text
        for it in stage.host.messages
        if isinstance(it, UserMessage) and it.origin == "reminder"
    ]
    assert len(reminders) == 1 and "- mend" in reminders[0]
    assert stage.report.todos == read_todos(SHUT)


async def test_an_agent_that_never_ends_its_written_plan_fails_and_says_so():
    stage = Stage(model(OPEN, "done"), reminders=2)
    with pytest.raises(AgentFailed, match=r"1 step\(s\) of its plan not done: mend"):
        await stage.run()


async def test_where_plans_do_not_count_an_answer_is_the_end():
    """003: todoAware."""
    stage = Stage(model(OPEN, "done"))
    stage.host.todo_aware = False
    assert await stage.run() == "done"
    assert stage.report.todos == read_todos(OPEN)


async def test_a_boundary_of_any_loop_keeps_the_plan():
    async def run(context: Any) -> Any:
        reply = writes(OPEN)
        yield reply
        yield await context.use_tools(reply.tool_uses)
        assert context.plan == read_todos(OPEN)
        yield CompactBoundary("a plan was made")
        yield FinalResult("done")

    stage = Stage(run)
    stage.host.todo_aware = False
    await stage.run()
    boundary = next(it for it in stage.host.messages if isinstance(it, CompactBoundary))
    assert boundary.plan == read_todos(OPEN)


async def test_progress_says_how_much_of_the_plan_is_done():
    stage = Stage(model(OPEN, SHUT, "done"))
    await stage.run()
    activities = stage.report.progress.activities
    assert "1 of 2 steps of its plan done" in activities
    assert "2 of 2 steps of its plan done" in activities
