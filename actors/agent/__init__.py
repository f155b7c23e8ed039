"""Agents as background tasks: a model loop, whichever it is, that yields events.

`Agent` is the task. Its ``run``, an async generator function of an `AgentContext`,
yields what happens, and what it yields is all that anybody learns of it::

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

The shortest one yields a `FinalResult` and returns. ``examples/agent.py`` is one
that uses tools; `actors.models` has one for real models.
"""

# General layout:
#
# _events is what an agent says; _json the same as JSON.
# _agent is the task, _context what its run is given, _host what it asks of the
# runtime (_alone: what it has without one).
# _running is one run of the task: it calls the agent's `run` again and again, through
# _loop, which steps and closes it; _next decides what follows (pure), _account adds
# up the events and detects a stall.
# _inbox, _budget, _breaker and _conversation (pure) are used by the host as well;
# _fork makes agents that begin with the conversation of another.

from __future__ import annotations

from .._kernel.public import publish as _publish
from ._agent import Agent as Agent
from ._agent import Run as Run
from ._budget import Budget as Budget
from ._context import AgentContext as AgentContext
from ._errors import AgentFailed as AgentFailed
from ._errors import ForkRefused as ForkRefused
from ._events import AgentEvent as AgentEvent
from ._events import ApprovalRequested as ApprovalRequested
from ._events import AssistantMessage as AssistantMessage
from ._events import CompactBoundary as CompactBoundary
from ._events import FinalResult as FinalResult
from ._events import Message as Message
from ._events import Note as Note
from ._events import Terminate as Terminate
from ._events import TextDelta as TextDelta
from ._events import TodoItem as TodoItem
from ._events import TodoList as TodoList
from ._events import TokensUsed as TokensUsed
from ._events import ToolAnswer as ToolAnswer
from ._events import ToolCompleted as ToolCompleted
from ._events import ToolStarted as ToolStarted
from ._events import ToolUse as ToolUse
from ._events import UserMessage as UserMessage
from ._host import AgentTool as AgentTool
from ._json import from_json as from_json
from ._json import to_json as to_json

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
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
    "UserMessage",
    "from_json",
    "to_json",
]

_publish(globals())
