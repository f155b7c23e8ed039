"""What an event may hold is checked where it is made."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from actors.agent import (
    Agent,
    ApprovalRequested,
    AssistantMessage,
    CompactBoundary,
    FinalResult,
    Note,
    TextDelta,
    TodoItem,
    TodoList,
    TokensUsed,
    ToolAnswer,
    ToolCompleted,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from actors.testing import run_agent

USE = ToolUse("1", "Bash", {"command": "ls"})
ANSWER = ToolAnswer("1", "x")

OF_A_WRONG_TYPE: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (ToolUse, (1, "Bash"), {}, "ToolUse.id must be a str, not 1"),
    (ToolUse, ("1", None), {}, "ToolUse.name must be a str, not None"),
    (
        ToolUse,
        ("1", "Bash", "ls"),
        {},
        "ToolUse.input must be a mapping, not 'ls'",
    ),
    (ToolAnswer, (1, "x"), {}, "ToolAnswer.tool_use_id must be a str, not 1"),
    (ToolAnswer, ("1", b"x"), {}, "ToolAnswer.text must be a str, not b'x'"),
    (
        ToolAnswer,
        ("1", "x", "no"),
        {},
        "ToolAnswer.is_error must be True or False, not 'no'",
    ),
    (AssistantMessage, (3,), {}, "AssistantMessage.text must be a str, not 3"),
    (
        AssistantMessage,
        ("x", USE),
        {},
        "AssistantMessage.tool_uses must be a tuple or list of ToolUse, not ToolUse(",
    ),
    (
        AssistantMessage,
        ("x", ("Bash",)),
        {},
        "AssistantMessage.tool_uses must hold only ToolUse, not 'Bash'",
    ),
    (UserMessage, (None,), {}, "UserMessage.text must be a str, not None"),
    (
        UserMessage,
        ("x", (USE,)),
        {},
        "UserMessage.tool_answers must hold only ToolAnswer, not ToolUse(",
    ),
    (UserMessage, (), {"sender": 3}, "UserMessage.sender must be a str or None, not 3"),
    (CompactBoundary, (3,), {}, "CompactBoundary.summary must be a str, not 3"),
    (TextDelta, (None,), {}, "TextDelta.text must be a str, not None"),
    (Note, (3,), {}, "Note.text must be a str, not 3"),
    (ToolStarted, ("1", 2), {}, "ToolStarted.name must be a str, not 2"),
    (ToolStarted, ("1", "x", []), {}, "ToolStarted.input must be a mapping, not"),
    (ToolCompleted, (1, "x"), {}, "ToolCompleted.id must be a str, not 1"),
    (ToolCompleted, ("1", "x", 0), {}, "ToolCompleted.is_error must be True or False"),
    (
        TokensUsed,
        (),
        {"input_tokens": "3"},
        "TokensUsed.input_tokens must be a whole number, 0 or more, not '3'",
    ),
    (
        TokensUsed,
        (),
        {"output_tokens": True},
        "TokensUsed.output_tokens must be a whole number, 0 or more, not True",
    ),
    (
        TokensUsed,
        (),
        {"cost": "1"},
        "TokensUsed.cost must be a number, 0 or more, not '1'",
    ),
    (
        TodoList,
        (("write",),),
        {},
        "TodoList.items must hold only TodoItem, not 'write'",
    ),
    (TodoList, ("write",), {}, "TodoList.items must be a tuple or list of TodoItem"),
    (TodoItem, (3,), {}, "TodoItem.text must be a str, not 3"),
    (
        ApprovalRequested,
        ("r", "Bash"),
        {},
        "ApprovalRequested.tool_use must be a ToolUse, not 'Bash'",
    ),
    (FinalResult, (3,), {}, "FinalResult.text must be a str, not 3"),
    (FinalResult, ("x",), {"error": 3}, "FinalResult.error must be a str or None"),
]
OF_A_WRONG_VALUE: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (
        FinalResult,
        ("x", "succes"),
        {},
        (
            "FinalResult.terminate must be one of goal, error, max_turns, timeout, "
            "stalled, budget, cancelled, not 'succes'"
        ),
    ),
    (FinalResult, ("x", ["goal"]), {}, "FinalResult.terminate must be one of goal"),
    (
        TodoItem,
        ("w", "doing"),
        {},
        (
            "TodoItem.status must be one of pending, in_progress, completed, cancelled, "
            "not 'doing'"
        ),
    ),
    (UserMessage, (), {"origin": "me"}, "UserMessage.origin must be one of prompt, "),
    (
        TokensUsed,
        (),
        {"input_tokens": -1},
        "TokensUsed.input_tokens must be a whole number, 0 or more, not -1",
    ),
    (
        TokensUsed,
        (),
        {"cost": -0.5},
        "TokensUsed.cost must be a number, 0 or more, not",
    ),
    (TokensUsed, (), {"cost": math.nan}, "TokensUsed.cost must be a number, 0 or more"),
    (TokensUsed, (), {"cost": math.inf}, "TokensUsed.cost must be a number, 0 or more"),
]


@pytest.mark.parametrize(("kind", "values", "named", "says"), OF_A_WRONG_TYPE)
def test_what_is_of_a_wrong_type_is_refused_by_name(kind, values, named, says):
    with pytest.raises(TypeError, match=re.escape(says)):
        kind(*values, **named)


@pytest.mark.parametrize(("kind", "values", "named", "says"), OF_A_WRONG_VALUE)
def test_what_no_event_can_say_is_refused_by_name(kind, values, named, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        kind(*values, **named)


def test_a_list_is_taken_for_a_tuple():
    uses, answers, items = [USE], [ANSWER], [TodoItem("x")]
    assert AssistantMessage("x", uses).tool_uses == (USE,)
    assert UserMessage("x", answers).tool_answers == (ANSWER,)
    assert TodoList(items).items == (TodoItem("x"),)


def test_no_arguments_are_those_of_a_call_without_any():
    assert ToolUse("1", "TaskList", None).input == {}


def test_whole_numbers_are_a_cost():
    assert TokensUsed(input_tokens=1, cost=2).cost == 2


async def test_a_run_that_makes_a_bad_event_fails_with_what_is_wrong_with_it():
    async def run(context):
        yield FinalResult(3)  # type: ignore[arg-type]

    done = await run_agent(Agent(run, "go"))
    assert isinstance(done.error, TypeError)
    assert str(done.error) == "FinalResult.text must be a str, not 3"
