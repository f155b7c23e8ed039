"""Agents as background tasks. An agent is a model loop that yields events.

`Agent` is the task. Its ``run`` is an async generator function of an `AgentContext`. It
yields what happens, and others learn only what it yields::

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        conversation = list(context.history)   # the prompt is its last message
        while True:
            reply = await model(conversation, context.tools)
            yield reply                        # an AssistantMessage
            conversation.append(reply)
            if reply.tool_uses:
                answers = await context.use_tools(reply.tool_uses)
                yield answers
                conversation.append(answers)
            else:
                yield FinalResult(reply.text)  # back only if there is more to do
            conversation += context.inbox.take()

    await runtime.launch(Agent(run, "Find the bug in parser.py"))

The shortest loop yields a `FinalResult` and returns. The one in ``examples/agent.py``
uses tools. `actors.models` has one for real models.
"""

# General layout:
#
# _events is what an agent says; _json the same as JSON.
# _agent is the task, _context what its run is given, _host what it asks of the
# runtime (_alone: what it has without one).
# _running is one run of the task: it calls the agent's `run` again and again, through
# _loop, which steps and closes it; _next decides what follows (pure), _account adds
# up the events and detects a stall, _activity keeps what it does at the moment.
# _inbox, _budget, _breaker and _conversation (pure) are used by the host as well;
# _fork makes agents that begin with the conversation of another.

from __future__ import annotations

from typing import TYPE_CHECKING

from .._kernel.public import publish as _publish
from ._activity import Activity
from ._errors import AgentFailed, ForkRefused, Terminate, TransientError

if TYPE_CHECKING:
    from ._agent import Agent, Run
    from ._budget import Budget
    from ._context import AgentContext
    from ._events import (
        AgentEvent,
        ApprovalRequested,
        AssistantMessage,
        CompactBoundary,
        FinalResult,
        Message,
        Note,
        Retrying,
        TextDelta,
        TodoItem,
        TodoList,
        TokensUsed,
        ToolAnswer,
        ToolCompleted,
        ToolStarted,
        ToolUse,
        UserMessage,
    )
    from ._host import AgentTool
    from ._json import from_json, to_json

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "Activity",
    "Agent",
    "AgentContext",
    "AgentEvent",
    "AgentFailed",
    "AgentTool",
    "ApprovalRequested",
    "AssistantMessage",
    "Budget",
    "CompactBoundary",
    "FinalResult",
    "ForkRefused",
    "Message",
    "Note",
    "Retrying",
    "Run",
    "Terminate",
    "TextDelta",
    "TodoItem",
    "TodoList",
    "TokensUsed",
    "ToolAnswer",
    "ToolCompleted",
    "ToolStarted",
    "ToolUse",
    "TransientError",
    "UserMessage",
    "from_json",
    "to_json",
]

_publish(globals())

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load all of it with the first who has an agent: a program that has none knows
        no more of them than how they fail."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import _agent, _budget, _context, _events, _host, _json

        for module in (_agent, _budget, _context, _events, _host, _json):
            its = vars(module)
            globals().update({name: its[name] for name in __all__ if name in its})
        _publish(globals())
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
