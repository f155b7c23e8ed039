"""What can be gone on with of a conversation that was broken off somewhere.

A model refuses a conversation in which a tool call has no answer, or an answer
no call. Both come about: a fork is taken in the middle of a call, and a crash
may strike between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from ._events import AssistantMessage, Message, UserMessage

# For help(), which shows only what a module defines itself or lists here.
__all__ = ["resolved", "settled"]


def resolved(messages: Iterable[Message]) -> list[Message]:
    """Return the messages without those of the assistant of which a tool call was
    not answered, and without the answers to such a message. The answers to one
    stand before the next message of the assistant."""
    kept: list[Message] = []
    for turn in _turns(messages):
        first, *rest = turn
        asked: set[str] = set()
        if isinstance(first, AssistantMessage):
            asked = {use.id for use in first.tool_uses}
            if asked <= _answered(rest):
                kept.append(first)
            else:
                asked = set()
        else:
            rest = turn
        for message in rest:
            if isinstance(message, UserMessage) and message.tool_answers:
                answers = tuple(
                    answer
                    for answer in message.tool_answers
                    if answer.tool_use_id in asked
                )
                if not answers and not message.text:
                    continue
                if answers != message.tool_answers:
                    message = attrs.evolve(message, tool_answers=answers)
            kept.append(message)
    return kept


def settled(messages: Iterable[Message]) -> list[Message]:
    """Return what a new run can begin with: the messages as `resolved` leaves
    them, without those of the assistant at the end that say nothing, and with
    adjacent messages to the model made one if they come from the same source.
    Those of different sources stay apart, or one could pass for the other."""
    kept: list[Message] = []
    same: list[UserMessage] = []
    for message in _without_empty_end(resolved(messages)):
        if isinstance(message, UserMessage):
            if same and _source(same[-1]) != _source(message):
                kept.append(_joined(same))
                same = []
            same.append(message)
            continue
        if same:
            kept.append(_joined(same))
            same = []
        kept.append(message)
    if same:
        kept.append(_joined(same))
    return kept


def _source(message: UserMessage) -> tuple[str, str | None]:
    return message.origin, message.sender


# All at once: one by one would take a time that goes with the square of their number.
def _joined(messages: Sequence[UserMessage]) -> UserMessage:
    first = messages[0]
    if len(messages) == 1:
        return first
    return attrs.evolve(
        first,
        text="\n\n".join(message.text for message in messages if message.text),
        tool_answers=tuple(
            answer for message in messages for answer in message.tool_answers
        ),
    )


def _turns(messages: Iterable[Message]) -> list[list[Message]]:
    """Cut before each message that is not to the model."""
    turns: list[list[Message]] = []
    for message in messages:
        if turns and isinstance(message, UserMessage):
            turns[-1].append(message)
        else:
            turns.append([message])
    return turns


def _answered(messages: Iterable[Message]) -> set[str]:
    return {
        answer.tool_use_id
        for message in messages
        if isinstance(message, UserMessage)
        for answer in message.tool_answers
    }


def _without_empty_end(messages: Sequence[Message]) -> Sequence[Message]:
    end = len(messages)
    while end:
        last = messages[end - 1]
        if (
            not isinstance(last, AssistantMessage)
            or last.tool_uses
            or last.text.strip()
        ):
            break
        end -= 1
    return messages[:end]
