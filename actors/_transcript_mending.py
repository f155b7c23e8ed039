"""Make a conversation one that a model accepts, whatever was interrupted in it."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from .agent._events import AssistantMessage, ToolAnswer, ToolUse, UserMessage


def mend(
    messages: Sequence[AssistantMessage | UserMessage],
) -> tuple[list[AssistantMessage | UserMessage], int]:
    """Return what a model can be shown of ``messages``, and how many of them, from
    the first, it takes to have all that is shown.

    - A message of the assistant that says nothing is cut, and so is one with a
      tool call that was never answered, and what answers there are to it.
    - The answers to the calls of one message follow it as one message.
    - Nothing else that was said to the agent is cut or merged, even where several
      such messages follow each other: they differ in their `origin`, which must not
      be lost, and a model that wants them merged is shown them merged.

    A conversation that was mended is left as it is.
    """
    if _is_whole(messages):
        return list(messages), len(messages)
    mended: list[AssistantMessage | UserMessage] = []
    needed = 0
    at = 0
    while at < len(messages):
        message = messages[at]
        if isinstance(message, AssistantMessage):
            # What was said to it before it said anything else.
            end = at + 1
            while end < len(messages) and isinstance(messages[end], UserMessage):
                end += 1
            said = [
                each for each in messages[at + 1 : end] if type(each) is UserMessage
            ]
            shown = _mend_round(message, said)
        else:
            assert isinstance(message, UserMessage)
            end = at + 1
            shown = _without_answers([message])
        if shown:
            mended += shown
            needed = _last_kept(messages, at, end, shown)
        at = end
    return mended, needed


def _is_whole(messages: Sequence[AssistantMessage | UserMessage]) -> bool:
    """Whether there is nothing to mend, as there nearly always is not."""
    # The calls that the next message has to answer.
    calls: tuple[ToolUse, ...] = ()
    for message in messages:
        if type(message) is UserMessage:
            answers = message.tool_answers
            if calls:
                if not _answer_all(calls, answers):
                    return False
                calls = ()
            elif answers or not message.text:
                return False
        else:
            assert type(message) is AssistantMessage
            if calls:
                return False
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
    message: AssistantMessage, said: list[UserMessage]
) -> list[AssistantMessage | UserMessage]:
    if not message.tool_uses:
        others = _without_answers(said)
        return [message, *others] if message.text.strip() else others
    answers: dict[str, ToolAnswer] = {}
    for each in said:
        for answer in each.tool_answers:
            answers.setdefault(answer.tool_use_id, answer)
    if any(use.id not in answers for use in message.tool_uses):
        return _without_answers(said)
    wanted = tuple(answers[use.id] for use in message.tool_uses)
    if said[0].tool_answers == wanted:
        # As it nearly always is.
        return [message, said[0], *_without_answers(said[1:])]
    first = UserMessage(tool_answers=wanted, origin="tools")
    return [message, first, *_without_answers(said)]


def _without_answers(
    said: Sequence[UserMessage],
) -> list[AssistantMessage | UserMessage]:
    """Return those that have a text, and of them the text."""
    return [
        attrs.evolve(each, tool_answers=()) if each.tool_answers else each
        for each in said
        if each.text
    ]


def _last_kept(
    messages: Sequence[AssistantMessage | UserMessage],
    at: int,
    end: int,
    shown: Sequence[AssistantMessage | UserMessage],
) -> int:
    """Return how many messages it takes for those ``shown`` of a round."""
    answered = any(isinstance(m, UserMessage) and m.tool_answers for m in shown)
    for index in range(end - 1, at, -1):
        message = messages[index]
        assert isinstance(message, UserMessage)
        if message.text or (answered and message.tool_answers):
            return index + 1
    return at + 1
