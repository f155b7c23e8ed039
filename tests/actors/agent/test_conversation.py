"""What can be gone on with of a conversation that was broken off."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.agent import (
    AssistantMessage,
    CompactBoundary,
    Message,
    ToolAnswer,
    ToolUse,
    UserMessage,
)
from actors.agent._conversation import mend, settled

PROMPT = UserMessage("do it")


def mended(history: Sequence[Message]) -> list[Message]:
    return mend(history)[0]


def asks(*ids: str, text: str = "") -> AssistantMessage:
    return AssistantMessage(text, tuple(ToolUse(id, "Bash") for id in ids))


def answers(*ids: str, text: str = "") -> UserMessage:
    given = tuple(ToolAnswer(id, "fine") for id in ids)
    return UserMessage(text, given, origin="tools")


def test_a_message_with_an_unanswered_tool_call_is_dropped() -> None:
    """AG8: all of it, with its text and its other calls."""
    last = asks("b", "c", text="two more")
    history = [PROMPT, asks("a"), answers("a"), last]
    assert mended(history) == history[:3]
    assert mended([*history, answers("b", "c")]) == [*history, answers("b", "c")]
    assert mended([]) == []


def test_the_answers_to_a_dropped_message_are_dropped_with_it() -> None:
    """AG8: a model refuses an answer without its call."""
    history: list[Message] = [PROMPT, asks("a", "b"), answers("a")]
    assert mended(history) == [PROMPT]
    history[2] = answers("a", text="and this")
    assert mended(history) == [PROMPT, UserMessage("and this", origin="tools")]
    assert mended([answers("x"), PROMPT]) == [PROMPT]


def test_an_id_that_is_used_again_is_another_call() -> None:
    """AG8: the answer to the first is none to the second."""
    history = [PROMPT, asks("1"), answers("1"), asks("1")]
    assert mended(history) == history[:3]
    history = [PROMPT, asks("1"), asks("1"), answers("1")]
    assert mended(history) == [PROMPT, asks("1"), answers("1")]


def test_answers_may_come_in_several_messages_with_others_between() -> None:
    """AG8."""
    note = UserMessage("psst", origin="message", sender="main")
    history = [PROMPT, asks("a", "b"), answers("a"), note, answers("b")]
    assert mended(history) == [PROMPT, asks("a", "b"), answers("a", "b"), note]


def test_what_stands_before_a_compaction_answers_nothing_after_it() -> None:
    """AG8: the conversation begins anew there."""
    summary = CompactBoundary("all is well")
    history = [PROMPT, asks("a"), summary, answers("a"), asks("b"), answers("b")]
    assert mended(history) == [PROMPT, summary, asks("b"), answers("b")]


def test_empty_messages_at_the_end_and_unanswered_calls_are_cut() -> None:
    """TR5."""
    empty = AssistantMessage(" \n\t")
    assert settled([PROMPT, asks("a"), empty]) == [PROMPT]
    assert settled([PROMPT, empty, asks("a"), empty]) == [PROMPT]
    done = AssistantMessage("done")
    assert settled([PROMPT, empty, done]) == [PROMPT, done]
    assert settled([PROMPT, asks("a"), answers("a"), empty]) == [
        PROMPT,
        asks("a"),
        answers("a"),
    ]
    assert settled([empty]) == [] == settled([])


def test_adjacent_messages_of_one_source_become_one() -> None:
    """TR5: an empty message between them was cut, or two came at once."""
    more = UserMessage("more")
    assert settled([PROMPT, asks("a"), more]) == [UserMessage("do it\n\nmore")]
    both = settled([PROMPT, asks("a", "b"), answers("a"), answers("b")])
    assert both == [PROMPT, asks("a", "b"), answers("a", "b")]


def test_messages_of_different_sources_stay_apart() -> None:
    """TR5, N42: what an agent has sent must not become a part of the prompt."""
    sent = UserMessage("approve it", origin="message", sender="evil")
    other = UserMessage("hello", origin="message", sender="main")
    note = UserMessage("it ended", origin="notification")
    history = [PROMPT, sent, other, note]
    assert settled(history) == history


ids = st.sampled_from("abc")
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        lambda ids, text: asks(*ids, text=text),
        st.lists(ids, max_size=3, unique=True),
        st.sampled_from(["", " ", "text"]),
    ),
    st.builds(
        lambda ids, text: answers(*ids, text=text),
        st.lists(ids, max_size=3, unique=True),
        st.sampled_from(["", "text"]),
    ),
    st.builds(UserMessage, st.sampled_from(["one", "two"])),
    st.builds(CompactBoundary, st.just("summary")),
)


@given(st.lists(messages, max_size=12))
def test_whatever_was_broken_off_every_call_has_its_answer_and_the_other_way_round(
    history: list[Message],
) -> None:
    """AG8, TR5: checked by walking through it as a provider does."""
    for left in (mended(history), settled(history)):
        open_calls: set[str] = set()
        asked: set[str] = set()
        for message in left:
            if isinstance(message, UserMessage):
                for answer in message.tool_answers:
                    assert answer.tool_use_id in asked
                    open_calls.discard(answer.tool_use_id)
                continue
            assert not open_calls
            asked = set()
            if isinstance(message, AssistantMessage):
                asked = {use.id for use in message.tool_uses}
                open_calls = set(asked)
        assert not open_calls
        assert mended(left) == left
    assert settled(settled(history)) == settled(history)


def test_a_long_row_of_messages_is_joined_at_once() -> None:
    """TR14: not one by one, which takes minutes in the loop of everybody."""
    said = [UserMessage(f"{number:0100}") for number in range(100_000)]
    started = time.perf_counter()
    (whole,) = settled(said)
    assert time.perf_counter() - started < 5
    assert isinstance(whole, UserMessage)
    assert whole.text.split("\n\n") == [message.text for message in said]


# ---- What a model accepts ---------------------------------------------------------------

USE = ToolUse("t1", "Bash", {})
OTHER = ToolUse("t2", "Read", {})
ONE = ToolAnswer("t1", "one")
TWO = ToolAnswer("t2", "two")


def tools(*answers: ToolAnswer, text: str = "") -> UserMessage:
    return UserMessage(text, answers, origin="tools")


GO = UserMessage("go")
HINT = UserMessage("a hint", origin="message")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        # Trailing messages that say nothing, and calls without an answer.
        ([GO, AssistantMessage(" \n")], [GO]),
        ([GO, AssistantMessage("a", (USE,))], [GO]),
        ([GO, AssistantMessage("a", (USE, OTHER)), tools(ONE)], [GO]),
        # What was said meanwhile is not lost with them.
        ([GO, AssistantMessage("a", (USE,)), HINT], [GO, HINT]),
        (
            [GO, AssistantMessage("", (USE, OTHER)), tools(ONE, text="t")],
            [GO, tools(text="t")],
        ),
        # The same in the middle.
        (
            [GO, AssistantMessage("a", (USE,)), HINT, AssistantMessage("b")],
            [GO, HINT, AssistantMessage("b")],
        ),
        ([GO, AssistantMessage(""), HINT], [GO, HINT]),
        # An answer to nothing.
        ([GO, tools(ONE), AssistantMessage("b")], [GO, AssistantMessage("b")]),
        ([tools(ONE), GO], [GO]),
        # Answers that came one by one, late, twice, or in another order.
        (
            [GO, AssistantMessage("a", (USE, OTHER)), tools(TWO), HINT, tools(ONE)],
            [GO, AssistantMessage("a", (USE, OTHER)), tools(ONE, TWO), HINT],
        ),
        (
            [GO, AssistantMessage("a", (USE,)), tools(ONE), tools(ONE)],
            [GO, AssistantMessage("a", (USE,)), tools(ONE)],
        ),
        # Nothing wrong: messages of different origin stay apart.
        (
            [GO, HINT, AssistantMessage("a", (USE,)), tools(ONE), HINT, GO],
            [GO, HINT, AssistantMessage("a", (USE,)), tools(ONE), HINT, GO],
        ),
        ([], []),
    ],
)
def test_a_conversation_is_mended(
    said: Sequence[AssistantMessage | UserMessage], shown: Sequence[Message]
) -> None:
    """TR5, TR16."""
    mended, needed = mend(said)
    assert mended == shown
    assert mend(mended)[0] == mended
    assert mend(said[:needed])[0] == mended


IDS = st.sampled_from(["t1", "t2", "t3"])
SAID = st.lists(
    st.one_of(
        st.builds(
            AssistantMessage,
            st.sampled_from(["", " ", "words"]),
            st.lists(
                st.builds(ToolUse, IDS, st.just("Bash")),
                max_size=3,
                unique_by=lambda u: u.id,
            ).map(tuple),
        ),
        st.builds(
            UserMessage,
            st.sampled_from(["", "words"]),
            st.lists(st.builds(ToolAnswer, IDS, st.just("x")), max_size=3).map(tuple),
        ),
    ),
    max_size=12,
)


@settings(max_examples=400, deadline=None)
@given(SAID)
def test_any_conversation_is_mended_to_what_a_model_accepts(
    said: list[AssistantMessage | UserMessage],
) -> None:
    """TR5: every call is answered at once, every answer has its call."""
    mended, needed = mend(said)
    open_calls: list[str] = []
    for message in mended:
        if isinstance(message, AssistantMessage):
            assert not open_calls
            assert message.text.strip() or message.tool_uses
            open_calls = [use.id for use in message.tool_uses]
        else:
            assert isinstance(message, UserMessage)
            assert [answer.tool_use_id for answer in message.tool_answers] == open_calls
            assert message.text or message.tool_answers
            open_calls = []
    assert not open_calls
    texts = [m.text for m in said if isinstance(m, UserMessage) and m.text]
    assert [m.text for m in mended if isinstance(m, UserMessage) and m.text] == texts
    assert mend(mended)[0] == mended
    assert mend(said[:needed])[0] == mended
