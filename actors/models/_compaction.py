"""Keeping a conversation within what the model's context holds.

Before it is too long, or when the model says that it is, a model is asked to sum it
up, and goes on from that. What it has not answered yet stays word for word: its last
calls with their answers, and what has come since. So do the task and the plan.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Final, TypeAlias

import attrs

from ..agent import (
    AgentContext,
    AssistantMessage,
    CompactBoundary,
    Message,
    Note,
    Retrying,
    TextDelta,
    TokensUsed,
    ToolAnswer,
    UserMessage,
)
from ..agent.hosting import since_compaction
from ..text import one_line
from ._model import Model, ModelFailed, Told

Said: TypeAlias = AssistantMessage | UserMessage

_FULL: Final = 0.8
"""The part of the context at which a conversation is summed up: what is left is for
the next answers of tools, the reply and the summary."""
_WORTH: Final = 0.2
"""The part of the context that must become free."""
_AGAIN: Final = 0.05
"""By so much of the context it must grow before a summary that failed is tried again."""
_CHARACTERS: Final = 4
"""Of a token, on average, for what no model has counted yet."""
ANSWER_LIMIT: Final = 2_000
"""Characters that are left of a tool's answer where the last answers do not fit."""
_REASON_SHOWN: Final = 300

_ASK: Final = """\
This conversation is about to be replaced by a summary, which you write now: of all that was said so far you will know the summary and nothing else. Call no tool, and write only the summary. It must hold:
- what you were asked to do, and every instruction and answer of a person that still holds;
- what you have done and found, with the exact names of files, commands, ids and values that matter;
- what has failed, and why;
- what is not done yet, and what you would do next.\
"""
_SUMMARY: Final = """\
Your task, word for word:
{task}

What has happened since, as you have summed it up:
{summary}\
"""
_SHORTENED: Final = "Your task and its conversation follow. The longest answers of tools were cut, since they did not fit."


# ---- What is kept, and what is summed up: pure ----


def split(said: Sequence[Said]) -> tuple[list[Said], list[Said]]:
    """Return what may be summed up and what must stay: what the model has not answered
    yet, and its last calls."""
    for place in range(len(said) - 1, -1, -1):
        message = said[place]
        if isinstance(message, AssistantMessage):
            keeps = place if message.tool_uses else place + 1
            return list(said[:keeps]), list(said[keeps:])
    return [], list(said)


def can_be_summed_up(said: Iterable[Said]) -> bool:
    """Whether the model has said anything in it: else a summary would say no more than
    the task."""
    return any(isinstance(message, AssistantMessage) for message in said)


def shortened(said: Iterable[Said]) -> list[Said]:
    """Return the messages with the middle of each long answer of a tool cut away."""
    return [
        attrs.evolve(message, tool_answers=tuple(map(_cut, message.tool_answers)))
        if isinstance(message, UserMessage)
        and any(len(answer.text) > ANSWER_LIMIT for answer in message.tool_answers)
        else message
        for message in said
    ]


def _cut(answer: ToolAnswer) -> ToolAnswer:
    if len(answer.text) <= ANSWER_LIMIT:
        return answer
    half = ANSWER_LIMIT // 2 - 50
    missing = len(answer.text) - 2 * half
    return attrs.evolve(
        answer,
        text=f"{answer.text[:half]}\n[... {missing} characters were cut ...]\n"
        f"{answer.text[-half:]}",
    )


def size_of(messages: Iterable[Message]) -> int:
    """Return about how many tokens the messages take."""
    characters = 0
    for message in since_compaction(messages):
        characters += len(message.text)
        if isinstance(message, AssistantMessage):
            characters += sum(
                len(use.name) + len(str(use.input)) for use in message.tool_uses
            )
        else:
            characters += sum(len(answer.text) for answer in message.tool_answers)
    return characters // _CHARACTERS


# ---- Asking within the limit ----


class FittingModel:
    """A model for one conversation, which is compacted when it has to be.

    `reply` tells what the model tells. A `CompactBoundary` among it takes the place of
    the whole conversation, and the reply that follows continues that.

    Args:
        limit: the tokens that the model's context holds. None means that only the
            model's own refusal tells that a conversation is too long.
    """

    def __init__(self, model: Model, limit: int | None) -> None:
        self._model = model
        self._limit = limit
        # The tokens of the first so many messages, as the model has counted them.
        self._counted = 0
        self._messages = 0
        # The size at which a summary has failed.
        self._failed_at: float | None = None

    async def reply(
        self, conversation: Sequence[Message], context: AgentContext, system: str | None
    ) -> AsyncGenerator[Told | CompactBoundary | Note, None]:
        """Continue ``conversation``.

        If the model refuses it for its length, it is compacted and asked for again. If
        there is nothing to sum up, or that does not help, the last answers of tools are
        cut. Where nothing is left to cut, or no summary can be had, that is the
        failure. While there is still room, a summary that fails is only told of.

        Raises:
            ModelFailed: as `Model.reply`.
        """
        messages = list(conversation)
        if self._is_full(messages):
            try:
                async with aclosing(self._compact(messages, context, system)) as told:
                    async for event in told:
                        yield event  # noqa: ASYNC119 - who reads closes
                        if isinstance(event, CompactBoundary):
                            messages = [event]
            except ModelFailed as error:
                self._failed_at = self._tokens(messages)
                why = one_line(error.message, _REASON_SHOWN)
                yield Note(f"goes on without a summary of the conversation: {why}")
        while True:
            try:
                async with aclosing(self._ask(messages, context, system)) as events:
                    async for event in events:
                        yield event  # noqa: ASYNC119 - who reads closes
                return
            except ModelFailed as error:
                if not error.too_long:
                    raise
                refusal = error
            async with aclosing(
                self._make_room(messages, context, system, refusal)
            ) as told:
                async for event in told:
                    yield event  # noqa: ASYNC119 - who reads closes
                    if isinstance(event, CompactBoundary):
                        messages = [event]

    async def _ask(
        self, messages: Sequence[Message], context: AgentContext, system: str | None
    ) -> AsyncGenerator[Told, None]:
        asked = list(messages)
        # What runs is said anew each time, and not kept: it is soon not so any more.
        if (text := context.reminder()) is not None:
            asked.append(UserMessage(text, origin="reminder"))
        used = 0
        async with aclosing(
            self._model.reply(tuple(asked), context.tools, system)
        ) as events:
            async for event in events:
                if isinstance(event, TokensUsed):
                    used = event.input_tokens + event.output_tokens
                yield event  # noqa: ASYNC119 - who reads closes
        # With the reply.
        self._counted, self._messages = used, len(messages) + 1

    def _tokens(self, messages: Sequence[Message]) -> int:
        if self._counted and len(messages) >= self._messages:
            return self._counted + size_of(messages[self._messages :])
        return size_of(messages)

    def _is_full(self, messages: Sequence[Message]) -> bool:
        if self._limit is None:
            return False
        tokens = self._tokens(messages)
        before = self._failed_at
        if before is not None and tokens < before + _AGAIN * self._limit:
            return False
        if tokens < _FULL * self._limit:
            return False
        head, kept = split(since_compaction(messages))
        frees = tokens - size_of(kept)
        return can_be_summed_up(head) and frees >= _WORTH * self._limit

    async def _make_room(
        self,
        messages: Sequence[Message],
        context: AgentContext,
        system: str | None,
        refusal: ModelFailed,
    ) -> AsyncGenerator[Told | CompactBoundary | Note, None]:
        """Make a conversation shorter that the model has refused."""
        said = since_compaction(messages)
        head, _ = split(said)
        if can_be_summed_up(head):
            try:
                async with aclosing(self._compact(messages, context, system)) as told:
                    async for event in told:
                        yield event  # noqa: ASYNC119 - who reads closes
            except ModelFailed as error:
                raise ModelFailed(
                    "the conversation is too long for the model, and could not be "
                    f"summed up: {error.message}",
                    temporary=error.temporary,
                    resume_at=error.resume_at,
                ) from error
            return
        less = shortened(said)
        if less == said:
            raise ModelFailed(
                "what cannot be summed up is too long for the model by itself: "
                f"{refusal.message}"
            ) from refusal
        summary = _SHORTENED
        if isinstance(messages[0], CompactBoundary):
            # Its first message is the summary, which stays the summary.
            summary = messages[0].summary
            del less[0]
        yield self._boundary(summary, less, context)

    async def _compact(
        self, messages: Sequence[Message], context: AgentContext, system: str | None
    ) -> AsyncGenerator[Told | CompactBoundary | Note, None]:
        """Have the model sum up what may be, and tell the boundary.

        Raises:
            ModelFailed: if there is no summary.
        """
        head, kept = split(since_compaction(messages))
        yield Note("sums up its conversation, to make room")
        summary = ""
        for said in (head, shortened(head)):
            try:
                async with aclosing(
                    self._model.reply((*said, UserMessage(_ASK)), context.tools, system)
                ) as events:
                    async for event in events:
                        if isinstance(event, AssistantMessage):
                            summary = event.text.strip()
                        elif isinstance(event, TokensUsed | Retrying):
                            yield event  # noqa: ASYNC119 - who reads closes
                        elif isinstance(event, TextDelta):
                            # A sign of life: it is no part of what the agent says.
                            yield TextDelta("")  # noqa: ASYNC119
                break
            except ModelFailed as error:
                if not error.too_long or said == shortened(head):
                    raise
        if not summary:
            raise ModelFailed("the model has answered with no summary")
        text = _SUMMARY.format(task=context.prompt, summary=summary)
        yield self._boundary(text, kept, context)

    def _boundary(
        self, summary: str, kept: Sequence[Said], context: AgentContext
    ) -> CompactBoundary:
        self._counted = self._messages = 0
        self._failed_at = None
        return CompactBoundary(summary, kept=tuple(kept), plan=context.plan)
