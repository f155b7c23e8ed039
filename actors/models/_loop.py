"""The loop round a model, whichever it is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TypeAlias

import attrs

from .._kernel.checks import check_whole
from ..agent import (
    AgentContext,
    AgentEvent,
    AssistantMessage,
    CompactBoundary,
    FinalResult,
    Message,
    ToolAnswer,
    TransientError,
    UserMessage,
)
from ._compaction import FittingModel
from ._model import Model, ModelFailed

ModelRun: TypeAlias = Callable[[AgentContext], AsyncGenerator[AgentEvent, None]]
"""A ``run`` of `actors.agent.Agent` that lets a model work."""

_UNREADABLE = 3
"""So many replies in a row with a tool call that cannot be read end the run."""
_BROKE_OFF = (
    "Your last message broke off, because the connection to you failed. Say all of it"
    " again, from its beginning: what follows does not count as a part of it."
)
"""A model goes on in the middle of its sentence otherwise, and the second half of an
answer would pass for the answer."""


def loop(
    model: Model, *, system: str | None = None, context_tokens: int | None = None
) -> ModelRun:
    """Return a ``run`` for `actors.agent.Agent` that lets ``model`` work.

    The model gets the conversation, its tools, and the system prompt of its agent. If
    the agent has none, it gets ``system``. All calls of one message run at the same
    time. The model is told the answers in the order of the calls. Messages that have
    come meanwhile follow the answers, just as they are. Nothing in them is a command to
    the program. A message without a call is the answer. The model is asked again if
    there is more to do. While tasks of the agent's own run, each request ends with a
    list of them, which is not kept.

    A conversation that nears the end of the model's context, or that the model refuses
    for its length, is compacted. The model sums it up, and the agent goes on from a
    `CompactBoundary` with the summary, the task word for word, the plan, and all that
    the model has not answered yet, with its last calls. If that is too long by itself,
    the answers of its tools are cut. While there is room, a summary that fails is tried
    again later. When the model has refused the conversation, it fails the run.

    ``context_tokens`` is what the model's context holds. None means what its attribute
    ``context_tokens`` says, if it has one, as the models of `actors.models.anthropic`
    have. Without either, only a refusal leads to a compaction.

    If the model fails, the run fails, with the text that the model has given. No error
    passes for an answer, and no cut text for a whole one. An error that passes is
    raised as an `actors.agent.TransientError`, also in the middle of an answer: what
    was said of it is kept, and the next run asks anew behind it, for all of it.
    """

    check_whole("context_tokens", context_tokens, 1, none=True)
    limit = context_tokens or getattr(model, "context_tokens", None)

    async def run(context: AgentContext) -> AsyncGenerator[AgentEvent, None]:
        conversation: list[Message] = list(context.history)
        fitting = FittingModel(model, limit)
        told = system if context.system is None else context.system
        said = ""
        unreadable = 0
        while True:
            reply: AssistantMessage | None = None
            refused: list[ToolAnswer] = []
            try:
                async with aclosing(
                    fitting.reply(conversation, context, told)
                ) as events:
                    async for event in events:
                        if isinstance(event, AssistantMessage):
                            reply = event
                        elif isinstance(event, ToolAnswer):
                            refused.append(event)
                        else:
                            if isinstance(event, CompactBoundary):
                                conversation = [event]
                            yield event  # noqa: ASYNC119 - who reads closes
                if reply is None:
                    raise ModelFailed("the model ended its reply without a message")
            except ModelFailed as error:
                if error.partial:
                    yield AssistantMessage(error.partial)
                if error.temporary:
                    if error.partial:
                        yield UserMessage(_BROKE_OFF, origin="reminder")
                    # It says it all: there is no mistake in any code to look for.
                    why = error.message.strip() or "the model failed for a time"
                    raise TransientError(why, error.resume_at) from None
                yield FinalResult(error.partial or said, "error", error=error.message)
                return
            yield reply
            conversation.append(reply)
            said = reply.text or said
            unreadable = unreadable + 1 if refused else 0
            if unreadable == _UNREADABLE:
                why = refused[-1].text
                yield FinalResult(said, "error", error=f"{unreadable} times: {why}")
                return
            if reply.tool_uses:
                answers = await _answer(context, reply, refused)
                yield answers
                conversation.append(answers)
            elif said:
                yield FinalResult(said)
            else:
                yield FinalResult("", "error", error="ended without an answer")
                return
            if news := context.inbox.take():
                unreadable = 0
                conversation += news

    return run


async def _answer(
    context: AgentContext, reply: AssistantMessage, refused: Sequence[ToolAnswer]
) -> UserMessage:
    """Make the calls that can be made, all at once, and return all the answers."""
    if not refused:
        return await context.use_tools(reply.tool_uses)
    answers = {answer.tool_use_id: answer for answer in refused}
    sound = tuple(use for use in reply.tool_uses if use.id not in answers)
    message = UserMessage(origin="tools")
    if sound:
        message = await context.use_tools(sound)
        answers |= {answer.tool_use_id: answer for answer in message.tool_answers}
    return attrs.evolve(
        message, tool_answers=tuple(answers[use.id] for use in reply.tool_uses)
    )
