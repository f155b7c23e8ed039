"""What a person, or a program, sees of agents while they work."""

from __future__ import annotations

import re
from html import unescape
from typing import Any, Protocol

import orjson
import trio

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
    to_json,
)

from .._events import SCHEMA_VERSION, Event, Gap
from ._stdout import Stdout
from ._view import JsonView, PlainView, one_line

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


class AgentView(Protocol):
    """One way of showing what happens in a runtime and its agents."""

    async def show(self, event: Event) -> None:
        """Show what has happened to a task."""
        ...

    async def show_agent(self, task_id: str, event: AgentEvent | Gap) -> None:
        """Show what an agent says."""
        ...

    async def say(self, text: str) -> None:
        """Show what the host does."""
        ...


class JsonAgentView:
    """One JSON object on a line for each event; one of an agent is in ``event``."""

    def __init__(self, stdout: Stdout) -> None:
        self._stdout = stdout
        self._tasks = JsonView(stdout)

    async def show(self, event: Event) -> None:
        await self._tasks.show([event])

    async def show_agent(self, task_id: str, event: AgentEvent | Gap) -> None:
        fields: dict[str, Any] = {
            "kind": "AgentEvent",
            "version": SCHEMA_VERSION,
            "time": trio.current_time(),
            "task_id": task_id,
        }
        if isinstance(event, Gap):
            fields |= {"kind": "AgentGap", "missed": event.missed}
        else:
            fields["event"] = orjson.Fragment(to_json(event))
        await self._stdout.write_bytes(orjson.dumps(fields) + b"\n")

    async def say(self, text: str) -> None:
        await trio.lowlevel.checkpoint()


class PlainAgentView:
    """One line for each event that a person may care for."""

    def __init__(self, stdout: Stdout) -> None:
        self._stdout = stdout
        self._tasks = PlainView(stdout)
        self._began = trio.current_time()

    async def show(self, event: Event) -> None:
        await self._tasks.show([event])

    async def show_agent(self, task_id: str, event: AgentEvent | Gap) -> None:
        if isinstance(event, Gap):
            await self._line(task_id, "...", f"{event.missed} events are not shown")
        elif (line := _told(event)) is not None:
            await self._line(task_id, *line)

    async def say(self, text: str) -> None:
        await self._line("", "host", text)

    async def _line(self, task_id: str, what: str, text: str) -> None:
        elapsed = trio.current_time() - self._began
        shown = one_line(text, _ROOM)
        await self._stdout.write(
            f"{elapsed:7.1f} s  {what:<12}  {task_id:<9}  {shown}".rstrip() + "\n"
        )


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
        case ToolCompleted(name=name, is_error=is_error):
            return "failed" if is_error else "done", name
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
