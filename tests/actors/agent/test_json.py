"""The events of an agent as JSON, there and back."""

from __future__ import annotations

from typing import get_args

import orjson
import pytest

from actors.agent import (
    AgentEvent,
    ApprovalRequested,
    AssistantMessage,
    CompactBoundary,
    FinalResult,
    Note,
    Retrying,
    TextDelta,
    TodoItem,
    TodoList,
    TokensUsed,
    ToolAnswer,
    ToolCompleted,
    ToolStarted,
    UserMessage,
    from_json,
    to_json,
)
from actors.agent.hosting import from_data, to_data
from tests.actors.agent.agents import use

EVENTS = [
    AssistantMessage("x", (use(a=[1, {"b": None}]),), raw=[{"type": "text"}]),
    UserMessage("x", (ToolAnswer("1", "y", True),), origin="message", sender="z"),
    CompactBoundary("all"),
    TextDelta("é\u2028\0"),
    ToolStarted("1", "Bash", {"command": "ls"}),
    ToolCompleted("1", "Bash", is_error=True),
    TokensUsed(input_tokens=1, output_tokens=2, cost=0.5),
    Retrying(attempt=2, reason="HTTP 529", wait=1.5),
    Note("x"),
    TodoList((TodoItem("x", "completed"), TodoItem("y"))),
    ApprovalRequested("r", use()),
    FinalResult("x", "max_turns", error="y"),
]


def test_every_kind_of_event_is_here():
    assert {type(event) for event in EVENTS} == set(get_args(AgentEvent))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_comes_back_as_it_was(event):
    line = to_json(event)
    assert b"\n" not in line
    assert orjson.loads(line)["type"] == type(event).__name__
    assert from_json(line) == from_json(line.decode()) == event
    assert from_data(to_data(event)) == event


def test_what_no_utf8_can_hold_is_replaced():
    assert from_json(to_json(TextDelta("a\udcffb"))) == TextDelta("a?b")


def test_what_a_later_version_says_besides_is_left_out():
    line = {**to_data(Note("x")), "mood": "good"}
    assert from_data(line) == Note("x")


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"[]", "an event must be a JSON object, not []"),
        (b"{}", "unknown type of event: None; known are AssistantMessage, "),
        (b'{"type": "Gossip"}', "unknown type of event: 'Gossip'"),
        (b'{"type": ["Note"]}', "unknown type of event: ['Note']"),
        (b'{"type": "Note"}', "this is not a valid Note: 'text' is missing"),
        (b'{"type": "TodoList", "items": 3}', "this is not a valid TodoList: "),
        (b"{", ""),
    ],
)
def test_what_is_no_event_is_refused_with_what_is_wrong(data, named):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - `named` is compared
        from_json(data)
    assert named in str(raised.value)


@pytest.mark.parametrize("thing", [None, "text", 3, ToolAnswer("1", "x"), Note])
def test_what_is_no_event_is_not_made_json(thing):
    with pytest.raises(TypeError, match="expected an agent's event, got"):
        to_json(thing)


def test_what_json_cannot_hold_is_refused():
    with pytest.raises(TypeError):
        to_json(ToolStarted("1", "Bash", {"x": object()}))
