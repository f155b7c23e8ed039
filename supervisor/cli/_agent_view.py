"""What a person, or a program, sees of agents while they work."""

from __future__ import annotations

import re
from html import unescape

import attrs
import orjson

from actors.agent import (
    AgentEvent,
    ApprovalRequested,
    AssistantMessage,
    CompactBoundary,
    FinalResult,
    Note,
    TodoList,
    TokensUsed,
    ToolCompleted,
    ToolStarted,
    UserMessage,
)

from .._events import AgentSaid, Event
from ._view import PlainView, one_line

_ROOM = 160
"""Characters of what is said, on a line."""
_TOLD = {
    "prompt": "is asked",
    "message": "is told",
    "reminder": "is reminded",
    "hook": "is sent back",
    "summary": "remembers",
}
"""What a message is to an agent, by its origin. Answers to calls are left out:
they are shown with the calls, or are long."""


@attrs.frozen
class HostStep(Event):
    """The host takes a step."""

    text: str


class PlainAgentView(PlainView):
    """One line for each event that a person may care for."""

    def line(self, event: Event) -> str | None:
        match event:
            case HostStep(text=text):
                return self.lay_out(event.time, "host", "", one_line(text, _ROOM))
            case AgentSaid(task_id=task_id, event=said):
                told = _told(said)
                if told is None:
                    return None
                what, text = told
                return self.lay_out(event.time, what, task_id, one_line(text, _ROOM))
            case _:
                return super().line(event)


def _told(event: AgentEvent) -> tuple[str, str] | None:
    """Return what an event says for people, or None if it is too small for that."""
    match event:
        case AssistantMessage(text=text) if text:
            return "says", text
        case UserMessage(text=text, origin="notification"):
            return "hears", _summary(text)
        case UserMessage(text=text, origin=origin, sender=sender) if origin in _TOLD:
            return _TOLD[origin], f"{sender}: {text}" if sender else text
        case ToolStarted(name=name, input=arguments):
            return (
                "calls",
                f"{name} {orjson.dumps({**arguments}, default=str).decode()}",
            )
        case ToolCompleted(name=name, is_error=is_error, error=error):
            if not is_error:
                return "done", name
            return "failed", f"{name}: {error}" if error else name
        case FinalResult(terminate="goal", text=text):
            return "answers", text
        case FinalResult(terminate=terminate, error=error):
            return "gives up", f"{terminate}: {error}" if error else terminate
        case TokensUsed(input_tokens=read, output_tokens=written):
            return "has used", f"{read} tokens to read, {written} to write"
        case TodoList(items=items):
            done = sum(item.status in ("completed", "cancelled") for item in items)
            return "plans", f"{done} of {len(items)} done"
        case ApprovalRequested(tool_use=use):
            return "asks for", use.name
        case Note(text=text) | CompactBoundary(summary=text):
            return "notes", text
        case _:
            return None


def _summary(envelope: str) -> str:
    """Return what an envelope says in one sentence."""
    found = re.search("<summary>(.*?)</summary>", envelope, re.DOTALL)
    return envelope if found is None else unescape(found[1])
