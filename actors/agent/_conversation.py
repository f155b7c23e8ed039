"""Make a conversation one that a model accepts, wherever it was broken off.

A model refuses a message that says nothing, a tool call that has no answer, and an
answer to no call. These come about: a fork is taken in the middle of a call, and a
crash may strike between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import attrs

from ._events import (
    AssistantMessage,
    CompactBoundary,
    Message,
    ToolAnswer,
    ToolUse,
    UserMessage,
)
from ._plan import in_lines


def mend(messages: Sequence[Message]) -> tuple[list[Message], int]:
    """Return the messages that a model accepts, and the length of the prefix of
    ``messages`` that contains all of them.

    - A message of the assistant that says nothing is cut, and so is one with a
      tool call that was never answered, and what answers there are to it.
    - The answers to the calls of one message follow it as one message.
    - Nothing else that was said to the agent is cut or merged, even where several
      such messages follow each other.

    A conversation that was mended is left as it is.
    """
    if _is_whole(messages):
        return list(messages), len(messages)
    mended: list[Message] = []
    needed = at = 0
    while at < len(messages):
        first, end = messages[at], at + 1
        # What was said to the agent before it said anything else.
        while end < len(messages) and isinstance(messages[end], UserMessage):
            end += 1
        said = [it for it in messages[at:end] if isinstance(it, UserMessage)]
        if isinstance(first, AssistantMessage):
            shown = _mend_round(first, said)
        elif isinstance(first, UserMessage):
            shown = _without_answers(said)
        else:
            shown = [first, *_without_answers(said)]
        if shown:
            mended += shown
            needed = _last_kept(messages, at, end, shown)
        at = end
    return mended, needed


def unanswered(messages: Sequence[Message], text: str) -> UserMessage | None:
    """Return answers with this text, as errors, to the calls at the end of a
    conversation that have none; None if all have one."""
    answered: set[str] = set()
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            answered.update(each.tool_use_id for each in message.tool_answers)
            continue
        if not isinstance(message, AssistantMessage):
            return None
        open_calls = [use.id for use in message.tool_uses if use.id not in answered]
        answers = [ToolAnswer(each, text, is_error=True) for each in open_calls]
        return UserMessage(tool_answers=answers, origin="tools") if answers else None
    return None


def opened(boundary: CompactBoundary) -> Iterator[AssistantMessage | UserMessage]:
    """Yield what a conversation begins with after this compaction."""
    text = boundary.summary
    if boundary.plan is not None and boundary.plan.items:
        text += f"\n\nThe plan as it was written last:\n{in_lines(boundary.plan)}"
    yield UserMessage(text, origin="summary")
    yield from boundary.kept


def since_compaction(
    messages: Iterable[Message],
) -> list[AssistantMessage | UserMessage]:
    """Return the conversation from the last compaction on, as a model is to see it."""
    said: list[AssistantMessage | UserMessage] = []
    for message in messages:
        if isinstance(message, CompactBoundary):
            said = [*opened(message)]
        else:
            said.append(message)
    return said


def settled(messages: Iterable[Message]) -> list[Message]:
    """Return what a new run can begin with: the messages that a model accepts, with
    adjacent messages to the model made one if they come from the same source.
    Those of different sources stay apart, or one could pass for the other."""
    mended, _ = mend(list(messages))
    # All of a source at once: one by one would take the square of the time.
    return [
        message
        for source, same in groupby(mended, _source)
        for message in (same if source is None else [_joined([*same])])
    ]


def _source(message: Message) -> tuple[str, str | None] | None:
    """Return who speaks to the model; None if the model does."""
    if isinstance(message, UserMessage):
        return message.origin, message.sender
    return None


def _joined(messages: Sequence[Message]) -> Message:
    if len(messages) == 1:
        return messages[0]
    said = [message for message in messages if isinstance(message, UserMessage)]
    shown = [message.display for message in said if message.display is not None]
    return attrs.evolve(
        said[0],
        display="\n".join(shown) if shown else None,
        text="\n\n".join(message.text for message in said if message.text),
        tool_answers=tuple(each for message in said for each in message.tool_answers),
    )


def _is_whole(messages: Sequence[Message]) -> bool:
    """Whether there is nothing to mend, as there nearly always is not."""
    # The calls that the next message has to answer.
    calls: tuple[ToolUse, ...] = ()
    for message in messages:
        if isinstance(message, UserMessage):
            answers = message.tool_answers
            if calls:
                if not _answer_all(calls, answers):
                    return False
                calls = ()
            elif answers or not message.text:
                return False
        elif calls:
            return False
        elif isinstance(message, AssistantMessage):
            calls = message.tool_uses
            if not calls and not message.text.strip():
                return False
    return not calls


def _answer_all(calls: tuple[ToolUse, ...], answers: tuple[ToolAnswer, ...]) -> bool:
    """Whether these are the answers, in order, each to another of the calls."""
    if len(calls) == 1 == len(answers):
        return calls[0].id == answers[0].tool_use_id
    ids = [call.id for call in calls]
    return len({*ids}) == len(ids) and ids == [each.tool_use_id for each in answers]


def _mend_round(
    message: AssistantMessage, said: Sequence[UserMessage]
) -> list[Message]:
    others = _without_answers(said)
    if not message.tool_uses:
        return [message, *others] if message.text.strip() else others
    answers: dict[str, ToolAnswer] = {}
    for each in said:
        for answer in each.tool_answers:
            answers.setdefault(answer.tool_use_id, answer)
    if any(use.id not in answers for use in message.tool_uses):
        return others
    wanted = tuple(answers[use.id] for use in message.tool_uses)
    if said[0].tool_answers == wanted:
        # As it nearly always is.
        return [message, said[0], *_without_answers(said[1:])]
    return [message, UserMessage(tool_answers=wanted, origin="tools"), *others]


def _without_answers(said: Sequence[UserMessage]) -> list[Message]:
    """Return those that have a text, and of them the text."""
    return [
        attrs.evolve(each, tool_answers=()) if each.tool_answers else each
        for each in said
        if each.text
    ]


def _last_kept(
    messages: Sequence[Message], at: int, end: int, shown: Sequence[Message]
) -> int:
    """Return how many messages it takes for those ``shown`` of a round."""
    answered = any(isinstance(m, UserMessage) and m.tool_answers for m in shown)
    for index in range(end - 1, at, -1):
        message = messages[index]
        assert isinstance(message, UserMessage)
        if message.text or (answered and message.tool_answers):
            return index + 1
    return at + 1
