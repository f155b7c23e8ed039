"""The loop round a model, whichever it is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TypeAlias

import attrs

from ..agent import (
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    Message,
    ToolAnswer,
    UserMessage,
)
from ._model import Model, ModelFailed

ModelRun: TypeAlias = Callable[[AgentContext], AsyncGenerator[AgentEvent, None]]
"""A ``run`` of `actors.agent.Agent` that lets a model work."""

_UNREADABLE = 3
"""So many replies in a row with a tool call that cannot be read end the run."""


def loop(model: Model, *, system: str | None = None) -> ModelRun:
    """Return a ``run`` for `actors.agent.Agent` that lets ``model`` work.

    The model gets the conversation, its tools, and the system prompt of its agent. If
    the agent has none, it gets ``system``. All calls of one message run at the same
    time. The model is told the answers in the order of the calls. Messages that have
    come meanwhile follow the answers, just as they are. Nothing in them is a command to
    the program. A message without a call is the answer. The model is asked again if
    there is more to do.

    If the model fails, the run fails, with the text that the model has given. No error
    passes for an answer, and no cut text for a whole one.
    """

    async def run(context: AgentContext) -> AsyncGenerator[AgentEvent, None]:
        conversation: list[Message] = list(context.history)
        told = system if context.system is None else context.system
        said = ""
        unreadable = 0
        while True:
            reply: AssistantMessage | None = None
            refused: list[ToolAnswer] = []
            try:
                async with aclosing(
                    model.reply(tuple(conversation), context.tools, told)
                ) as events:
                    async for event in events:
                        if isinstance(event, AssistantMessage):
                            reply = event
                        elif isinstance(event, ToolAnswer):
                            refused.append(event)
                        else:
                            yield event  # noqa: ASYNC119 - who reads closes
                if reply is None:
                    raise ModelFailed("the model ended its reply without a message")
            except ModelFailed as error:
                if error.partial:
                    yield AssistantMessage(error.partial)
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
