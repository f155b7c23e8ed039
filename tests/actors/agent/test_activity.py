"""What is kept of what an agent does at the moment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import MappingProxyType
from typing import Any

import orjson
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.agent import (
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    Note,
    TextDelta,
    TokensUsed,
    ToolCompleted,
    ToolStarted,
)
from actors.agent._activity import Draft, shortened
from tests.actors.agent.agents import Stage

LIMIT = 65_536


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text("ab", max_size=20),
            st.integers(0, 3 * LIMIT).map(lambda n: "abcdefg" * (n // 7)),
            st.just("clear"),
            st.just("text"),
        ),
        max_size=30,
    )
)
def test_a_draft_is_the_end_of_all_that_came_since_the_last_message(
    steps: list[str],
) -> None:
    draft, whole = Draft(), ""
    for step in [*steps, "text"]:
        if step == "clear":
            draft.clear()
            whole = ""
        elif step == "text":
            cut = f"…{whole[-LIMIT:]}"
            assert draft.text() == (whole if len(whole) <= LIMIT else cut)
        else:
            draft.add(step)
            whole += step


def test_a_draft_of_single_letters_keeps_few_objects() -> None:
    draft = Draft()
    for _ in range(100_000):
        draft.add("x")
        assert len(draft._pieces) <= 1025
    assert draft.text() == "…" + "x" * LIMIT


@pytest.mark.parametrize(
    ("value", "short"),
    [
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 199 + "…"),
        ("a\udcff", "a?"),
        (True, True),
        (7, 7),
        (1.5, 1.5),
        (float("nan"), "null"),
        (10**30, "a int"),
        (None, None),
        ([1, {"a": "b"}], '[1,{"a":"b"}]'),
        (["y" * 500], '["' + "y" * 197 + "…"),
        (MappingProxyType({}), "{}"),
        (object(), "a object"),
    ],
)
def test_each_argument_of_a_call_is_kept_short_and_fit_for_json(
    value: Any, short: Any
) -> None:
    assert shortened({"it": value}) == {"it": short}
    orjson.dumps(shortened({"it": value}))


def test_of_many_arguments_the_first_are_kept_and_the_others_counted() -> None:
    short = shortened({f"{n}": n for n in range(23)})
    assert list(short)[:20] == [f"{n}" for n in range(20)]
    assert short["…"] == "and 3 more" and len(short) == 21


CALLS = st.sampled_from("ab")
EVENTS = st.lists(
    st.one_of(
        st.builds(AssistantMessage, st.sampled_from(["", "x", "y\nz"])),
        st.builds(TextDelta, st.sampled_from(["", " ", "p", "q\n"])),
        st.builds(Note, st.sampled_from(["n", "m\nmore"])),
        st.builds(ToolStarted, CALLS, st.just("Bash"), st.just({"command": "ls"})),
        st.builds(ToolCompleted, CALLS, st.just("Bash"), st.booleans()),
        st.builds(
            TokensUsed,
            input_tokens=st.integers(0, 9),
            output_tokens=st.integers(0, 9),
            cache_read_tokens=st.integers(0, 9),
            cache_write_tokens=st.integers(0, 9),
        ),
    ),
    min_size=10,
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_after_each_event_the_record_shows_what_a_plain_reading_of_all_gives(
    events: list[AgentEvent],
) -> None:
    """The last five activities, where their calls are, the tokens, and the text under
    way, after every prefix of any sequence."""
    checked = 0

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        nonlocal checked
        for count, event in enumerate(events, 1):
            yield event
            # `yield` comes back when the event was taken in.
            assert shown(stage) == plain(events[:count])
            checked += 1
        yield FinalResult("done")

    stage = Stage(run)
    trio.run(stage.run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert checked == len(events)


def shown(stage: Stage) -> object:
    report = stage.report
    assert report.draft is not None
    recent = [(it.text, it.tool_use_id, it.outcome) for it in report.recent]
    return report.draft.text(), recent, report.spent or (0, 0, 0, 0)


def plain(events: list[AgentEvent]) -> object:
    draft, did = "", list[list[Any]]()
    tokens = [0, 0, 0, 0]
    for event in events:
        match event:
            case AssistantMessage(text=text):
                draft = ""
                if text:
                    did.append([text.splitlines()[0], None, None])
            case TextDelta(text=text):
                draft += text
            case Note(text=text):
                did.append([text.splitlines()[0], None, None])
            case ToolStarted(id=id, name=name):
                did.append([name, id, "running"])
            case ToolCompleted(id=id, is_error=is_error):
                for it in did[-5:]:
                    if it[1:] == [id, "running"]:
                        it[2] = "failed" if is_error else "completed"
            case TokensUsed() as used:
                tokens[0] += used.input_tokens
                tokens[1] += used.output_tokens
                tokens[2] += used.cache_read_tokens
                tokens[3] += used.cache_write_tokens
            case _:
                raise AssertionError(event)
    return draft, [tuple(it) for it in did[-5:]], tuple(tokens)
