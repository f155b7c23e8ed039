"""What a person, or a program, sees of agents while they work."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import unescape
from typing import Any

import attrs
import orjson
import trio

from actors.agent import (
    AgentEvent,
    ApprovalRequested,
    AssistantMessage,
    CompactBoundary,
    FinalResult,
    Note,
    Retrying,
    TodoList,
    TokensUsed,
    ToolCompleted,
    ToolStarted,
    UserMessage,
)
from actors.text import one_line

from ..lowlevel import REFUSALS
from ..runtime import AgentSaid, Warned
from ..runtime import ApprovalRequested as Asked
from ..tree import Event
from ._leftovers import StillWaiting
from ._stdout import Stdout
from ._view import JsonView, PlainView

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


_OUR_WORDS = {
    REFUSALS["by default"]: "{} needs --allow or --permission-mode",
    REFUSALS["unasked"]: "a rule or a hook asks about {}, and nobody answers: it needs"
    " --permission-mode bubble, on a terminal or with --json",
}


@attrs.frozen
class HostStep(Event):
    """The host takes a step."""

    text: str


class PlainAgentView(PlainView):
    """One line for each event that a person may care for."""

    def __init__(self, stdout: Stdout) -> None:
        super().__init__(stdout)
        self.quiet = trio.Lock()
        """Who holds it is the only one who writes."""

    async def show(self, events: Sequence[Event]) -> None:
        async with self.quiet:
            await super().show(events)

    def line(self, event: Event) -> str | None:
        match event:
            case HostStep(text=text):
                what, task_id = "host", ""
            case StillWaiting(task_id=task_id, text=text, waited=waited):
                what, text = "waits", f"{waited:.0f} s: {text}"
            case Warned(task_id=str(task_id), text=text):
                what = "warning"
            case AgentSaid(task_id=task_id, event=said):
                told = _told(said)
                if told is None:
                    return None
                what, text = told
            case _:
                return super().line(event)
        return self.lay_out(event.time, what, task_id, one_line(text, _ROOM))


class JsonAgentView(JsonView):
    """One JSON object on a line for each event. A question has all of its call."""

    def __init__(self, stdout: Stdout) -> None:
        super().__init__(stdout)
        # By the agent and the id of the call.
        self._calls: dict[tuple[str, str], ToolStarted] = {}

    def more(self, event: Event) -> dict[str, Any]:
        fields = super().more(event)
        match event:
            case AgentSaid(task_id=agent, event=ToolStarted(id=id) as call):
                self._calls[agent, id] = call
            case AgentSaid(task_id=agent, event=ToolCompleted(id=id)):
                self._calls.pop((agent, id), None)
            case Asked(task_id=agent, tool_use_id=id) if (agent, id) in self._calls:
                call = self._calls[agent, id]
                given = _as_json(call.input).encode("utf-8", "replace")
                fields |= {
                    "tool_name": call.name,
                    "tool_input": orjson.Fragment(given),
                }
            case _:
                pass
        return fields


def in_our_words(event: Event) -> Event:
    """Return ``event``; where it tells a program what to do about it, with what the
    user of this one can do."""
    if isinstance(event, Warned):
        text = event.text
        for theirs, ours in _OUR_WORDS.items():
            before, after = theirs.split("{}")
            if text.startswith(before) and text.endswith(after):
                tool = text.removeprefix(before).removesuffix(after)
                return attrs.evolve(event, text=ours.format(tool))
    return event


def _told(event: AgentEvent) -> tuple[str, str] | None:
    """Return what an event says for people, or None if it is too small for that."""
    match event:
        case AssistantMessage(text=text) if text:
            return "says", text
        case UserMessage(text=text, origin="notification", display=line):
            return "hears", _summary(text) if line is None else line
        case UserMessage(text=text, origin=origin, sender=sender) if origin in _TOLD:
            return _TOLD[origin], f"{sender}: {text}" if sender else text
        case ToolStarted(name=name, input=arguments):
            return "calls", f"{name} {_as_json(arguments)}"
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
        case Retrying(attempt=attempt, reason=reason, wait=wait):
            return "retries", f"in {wait:.3g} s, after try {attempt}: {reason}"
        case TodoList(items=items):
            done = sum(item.status in ("completed", "cancelled") for item in items)
            return "plans", f"{done} of {len(items)} done"
        case ApprovalRequested(tool_use=use):
            return "asks for", use.name
        case Note(text=text) | CompactBoundary(summary=text):
            return "notes", text
        case _:
            return None


def _as_json(arguments: Mapping[str, Any]) -> str:
    # Not orjson, which takes no half of a surrogate; a model may send one.
    return json.dumps({**arguments}, ensure_ascii=False, default=str)


def _summary(envelope: str) -> str:
    """Return what an envelope says in one sentence."""
    found = re.search("<summary>(.*?)</summary>", envelope, re.DOTALL)
    return envelope if found is None else unescape(found[1])
