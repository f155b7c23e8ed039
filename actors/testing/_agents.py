"""An agent under test, without a runtime: `run_agent`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import TypeAlias, cast

import trio

from .._kernel.checks import check_type
from .._kernel.values import frozen
from ..agent import (
    Agent,
    AgentEvent,
    AgentTool,
    Message,
    Terminate,
    ToolAnswer,
    ToolUse,
)
from ..agent._alone import Alone
from ..agent._context import ShownTool
from ..agent._inbox import Inbox
from ..agent._report import AgentReport
from ..agent._running import run_agent as _run_agent
from ._env import fake_env

FakeTool: TypeAlias = Callable[..., Awaitable[str]] | str
"""What a tool answers, or an async function of its input that returns it. If the
function raises an error, that is an answer, too."""


@frozen(kw_only=True)
class AgentRun:
    """What came of a run of an agent."""

    result: str | None
    """Its answer, or what there was of one."""
    terminate: Terminate | None
    """Why it has ended."""
    error: Exception | None
    """What it has failed with."""
    events: Sequence[AgentEvent]
    """All that it has told, in order."""
    messages: Sequence[Message]
    """What its transcript would hold."""
    warnings: Sequence[str]


async def run_agent(
    agent: Agent,
    *,
    tools: Mapping[str, FakeTool] | None = None,
    history: Sequence[Message] = (),
    inbox: Inbox | None = None,
) -> AgentRun:
    """Run ``agent`` to its end and return its result, also if it fails.

    It has these tools and no tasks of its own. If there is a ``history``, it goes on
    with it like a resumed agent. A test may put messages into ``inbox``. The time is
    trio's.

    Args:
        agent: an `Agent`, such as ``Agent(run, "do it")``.
        tools: what each tool answers, by its name: a str, or an async function that
            gets the arguments of the call by keyword and returns a str.

    Raises:
        TypeError: if something is not an agent or a tool. Nothing has run.
    """
    _check(agent, tools)
    report = RecordingReport()
    report.inbox = Inbox() if inbox is None else inbox
    host = FakeHost(agent, tools or {}, history)
    report.agent_host = host
    error: Exception | None = None
    try:
        report.result = await _run_agent(agent, report)
    # The boundary: a failure is what a test may want to see.
    except Exception as failure:
        error = failure
    return AgentRun(
        result=report.result,
        terminate=report.terminate,
        error=error,
        events=report.events,
        messages=host.messages,
        warnings=report.warnings,
    )


def _check(agent: object, tools: object) -> None:
    if not isinstance(agent, Agent):
        hint = ": use Agent(run, prompt)" if callable(agent) else ""
        raise TypeError(f"agent must be an Agent, not {agent!r}{hint}")
    check_type("tools", tools, Mapping | None)
    for name, tool in cast("Mapping[object, object]", tools or {}).items():
        check_type("a name in tools", name, str)
        if not isinstance(tool, str) and not _is_async(tool):
            raise TypeError(
                f"tools[{name!r}] must be a str or an async function of the arguments, "
                f"by keyword, not {tool!r}"
            )


def _is_async(function: object) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 - whether that is async
    if isinstance(function, type):
        return False
    return iscoroutinefunction(function) or iscoroutinefunction(call)


class RecordingReport(AgentReport):
    """A report that keeps what is told."""

    __slots__ = ("events", "warnings")

    def __init__(self) -> None:
        super().__init__("agent", "agent-000001", fake_env())
        self.events: list[AgentEvent] = []
        self.warnings: list[str] = []

    def on_agent_event(self, event: AgentEvent) -> None:
        self.events.append(event)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class FakeHost(Alone):
    """An `AgentHost` with the tools of a test, which keeps the messages."""

    def __init__(
        self,
        agent: Agent,
        tools: Mapping[str, FakeTool],
        history: Sequence[Message] = (),
    ) -> None:
        super().__init__(agent)
        self.history = history
        self.messages: list[Message] = []
        self._tools = tools
        self.tools: Sequence[AgentTool] = [
            ShownTool(name, "A tool of the test.", {"type": "object"}) for name in tools
        ]

    async def use_tool(self, use: ToolUse) -> ToolAnswer:
        tool = self._tools.get(use.name)
        if tool is None:
            return await super().use_tool(use)
        if isinstance(tool, str):
            await trio.lowlevel.checkpoint()
            return ToolAnswer(use.id, tool)
        return ToolAnswer(use.id, await tool(**use.input))

    def record(self, message: Message) -> None:
        self.messages.append(message)
