"""Text and data that UTF-8 and JSON can hold."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.agent import (
    AssistantMessage,
    CompactBoundary,
    FinalResult,
    Message,
    ToolAnswer,
    ToolStarted,
    ToolUse,
    UserMessage,
    from_json,
    to_json,
)
from actors.agent.hosting import to_data
from actors.envelope import encodable, encodable_data
from actors.models import anthropic, openai

TEXTS = st.text(st.characters(exclude_categories=()))  # lone surrogates too
HALVES = st.text(st.sampled_from("a\ud83d\ude00\udcff\0é"))
ANY_TEXT = TEXTS | HALVES
DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3)
    ),
    max_leaves=8,
)
INPUTS = st.dictionaries(ANY_TEXT, DATA, max_size=3)
USES = st.builds(ToolUse, ANY_TEXT, ANY_TEXT, INPUTS)
ANSWERS = st.builds(ToolAnswer, ANY_TEXT, ANY_TEXT, st.booleans())
MESSAGES: st.SearchStrategy[Message] = (
    st.builds(AssistantMessage, ANY_TEXT, st.lists(USES, max_size=2))
    | st.builds(UserMessage, ANY_TEXT, st.lists(ANSWERS, max_size=2))
    | st.builds(CompactBoundary, ANY_TEXT)
)


def wire(data: Any) -> bytes:
    """What an SDK sends: strict JSON in UTF-8."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False).encode()


def deep(levels: int) -> Any:
    data: Any = "\ud800"
    for _ in range(levels):
        data = [data]
    return data


@given(ANY_TEXT)
def test_a_text_can_be_encoded_and_is_the_same_if_it_could_be(text: str) -> None:
    said = encodable(text)
    said.encode()
    try:
        text.encode()
    except UnicodeEncodeError:
        assert said != text
    else:
        assert said is text


def test_two_halves_are_the_character_that_they_are_and_one_is_none() -> None:
    assert encodable("a\ud83d\ude00b\ud83d") == "a\U0001f600b?"


@given(DATA)
def test_data_can_be_sent(data: Any) -> None:
    sound = encodable_data(data)
    wire(sound)
    if isinstance(data, float) and not math.isfinite(data):
        assert sound is None


@pytest.mark.parametrize("levels", [10, 190, 300, 5_000, 100_000])
def test_data_of_any_depth_can_be_sent(levels: int) -> None:
    wire(encodable_data({"x": deep(levels)}))


@given(st.lists(MESSAGES, max_size=4), ANY_TEXT)
def test_a_conversation_can_be_sent_to_a_model_whatever_was_said(
    messages: list[Message], system: str
) -> None:
    """P10: what a model or a tool has said once must not fail every later request."""
    wire(anthropic.to_anthropic(messages))
    wire(openai.to_openai(messages, system))


@given(USES)
def test_an_event_can_be_told_whatever_is_in_it(use: ToolUse) -> None:
    events = [
        ToolStarted(use.id, use.name, use.input),
        AssistantMessage(use.name, (use,), raw={"x": [dict(use.input)]}),
        FinalResult(use.id, "error", error=use.name),
    ]
    for event in events:
        assert type(from_json(to_json(event))) is type(event)
        wire(to_data(event))


def test_an_event_of_any_depth_can_be_told() -> None:
    for levels in (10, 300, 5_000):
        to_json(ToolStarted("1", "x", {"x": deep(levels)}))
