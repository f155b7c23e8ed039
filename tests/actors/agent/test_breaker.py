"""When an agent that calls its tools in a circle is held up."""

from __future__ import annotations

from typing import Any

import pytest

from actors.agent import ToolUse
from actors.agent.hosting import Breaker


def calls(breaker: Breaker, *inputs: Any, name: str = "Bash") -> list[str | None]:
    start = breaker.count
    return [
        breaker.check(ToolUse(str(start + number), name, input))
        for number, input in enumerate(inputs)
    ]


def tripped(verdicts: list[str | None]) -> list[int]:
    return [number for number, why in enumerate(verdicts, 1) if why is not None]


def test_the_twentieth_identical_call_in_a_row_trips_it():
    """AG31."""
    breaker = Breaker()
    verdicts = calls(breaker, *[{"command": "ls"}] * 22)
    assert tripped(verdicts) == [20, 21, 22]
    assert verdicts[19] == "Bash was called with the same input 20 times in a row"
    assert tripped(calls(breaker, {"command": "pwd"}, {"command": "ls"})) == []


def test_another_input_or_another_tool_begins_anew():
    """AG31."""
    breaker = Breaker(3)
    assert tripped(calls(breaker, {"n": 1}, {"n": 1}, {"n": 2}, {"n": 1})) == []
    assert tripped(calls(breaker, {"n": 1}, name="Read")) == []
    assert tripped(calls(breaker, {"n": 1}, {"n": 1})) == []
    assert tripped(calls(breaker, {"n": 1})) == [1]


@pytest.mark.parametrize("repeats", [1, 2, 20])
def test_the_call_of_the_number_that_is_given_is_the_first_that_trips_it(repeats):
    """AG31."""
    verdicts = calls(Breaker(repeats), *[{}] * (repeats + 2))
    assert tripped(verdicts) == [repeats, repeats + 1, repeats + 2]


def test_what_the_agent_is_told_begins_the_row_anew_and_not_the_whole():
    """N26: as often as it is told."""
    breaker = Breaker(3, calls=7)
    for _ in range(3):
        assert tripped(calls(breaker, {}, {})) == []
        breaker.begin_anew()
    assert tripped(calls(breaker, {}, {})) == [2]


def test_the_order_of_keys_does_not_matter():
    """AG31: at any depth."""
    breaker = Breaker(2)
    inputs = {"a": 1, "b": {"c": [1], "d": 2}}, {"b": {"d": 2, "c": [1]}, "a": 1}
    assert tripped(calls(breaker, *inputs)) == [2]


def test_no_input_is_the_same_as_an_empty_one():
    """AG32."""
    breaker = Breaker(3)
    nothing: Any = None
    assert breaker.check(ToolUse("1", "TaskList")) is None
    assert breaker.check(ToolUse("2", "TaskList", nothing)) is None
    assert breaker.check(ToolUse("3", "TaskList", {})) is not None


@pytest.mark.parametrize("unknown", [{"x": object()}, {"x": 1, 2: 3}])
def test_an_input_that_cannot_be_compared_never_trips_it(unknown):
    """AG31."""
    assert tripped(calls(Breaker(2), *[unknown] * 50)) == []


def test_the_same_call_told_of_twice_counts_once():
    """AG31."""
    breaker = Breaker(3)
    one, two = ToolUse("1", "Bash", {"n": 1}), ToolUse("2", "Bash", {"n": 1})
    assert [breaker.check(use) for use in (one, one, one, two, one)] == [None] * 5
    assert breaker.count == 2


def test_the_cap_of_all_calls_applies_with_the_rest_turned_off():
    """AG31."""
    breaker = Breaker(None, calls=5)
    verdicts = calls(breaker, *[{"command": "ls"}] * 7)
    assert tripped(verdicts) == [6, 7]
    assert verdicts[-1] == "more than 5 tool calls in one run"
    assert tripped(calls(Breaker(None), *[{"n": n} for n in range(4002)])) == [
        4001,
        4002,
    ]
