"""What an agent has that runs without a runtime: nothing but itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import trio

from ..work import Work
from ._budget import Budget
from ._events import Message, ToolAnswer, ToolUse
from ._host import AgentTool, OwnTask

if TYPE_CHECKING:
    from ._agent import Agent


class Alone:
    """An `AgentHost` with no tools, no tasks and no record."""

    depth = 0
    owner: str | None = None
    permission_mode = "default"
    history: Sequence[Message] = ()
    tools: Sequence[AgentTool] = ()
    todo_aware = True

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    @property
    def budget(self) -> Budget | None:
        return self._agent.budget

    async def use_tool(self, use: ToolUse) -> ToolAnswer:
        await trio.lowlevel.checkpoint()
        return ToolAnswer(use.id, f"There is no tool {use.name!r}.", is_error=True)

    async def launch(
        self,
        work: Work,
        *,
        description: str | None = None,
        tool_use_id: str | None = None,
    ) -> OwnTask:
        _refuse()

    async def run(self, work: Work, *, description: str | None = None) -> Any:
        _refuse()

    def reminder(self) -> str | None:
        return None

    def own_tasks(self) -> int:
        return 0

    async def wait_own_tasks(self) -> None:
        await trio.lowlevel.checkpoint()

    def record(self, message: Message) -> None:
        pass

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()

    async def starting(self) -> str | None:
        await trio.lowlevel.checkpoint()
        return None

    async def finishing(self, answer: str, attempt: int) -> str | None:
        await trio.lowlevel.checkpoint()
        return None

    def waiting(self, what: Literal["tasks", "approval"] | None) -> None:
        pass

    async def wait_for(self, wait: Callable[[], Awaitable[object]]) -> None:
        await wait()


def _refuse() -> NoReturn:
    raise RuntimeError("an agent that runs under no runtime has no tasks of its own")
