"""What an agent asks of whoever runs it: tools, its own tasks, hooks, a record.

The runtime implements it. An agent that runs under no host has none of these.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol

from ..work import Work
from ._budget import Budget
from ._events import Message, ToolAnswer, ToolUse


class AgentTool(Protocol):
    """A tool that the agent may show to its model."""

    @property
    def name(self) -> str:
        """Its name for the model."""
        ...

    @property
    def description(self) -> str:
        """Its description for the model."""
        ...

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        ...


class OwnTask(Protocol):
    """A task that the agent has started."""

    @property
    def id(self) -> str:
        """The task's id."""
        ...

    async def wait(self) -> Any:
        """Wait for its end; return it as it is then."""
        ...

    async def stop(self, reason: str | None = None) -> Any:
        """Stop it and wait for its end."""
        ...


class AgentHost(Protocol):
    """The host of one agent, for one run."""

    @property
    def depth(self) -> int:
        """How many agents are above it: 0 for one that the program has started."""
        ...

    @property
    def owner(self) -> str | None:
        """Whose task it is."""
        ...

    @property
    def permission_mode(self) -> str:
        """The mode that its tool calls are judged by."""
        ...

    @property
    def history(self) -> Sequence[Message]:
        """The messages of the runs before this one; none for the first."""
        ...

    @property
    def tools(self) -> Sequence[AgentTool]:
        """The tools that it may use: those of the host, by the agent's own
        restrictions."""
        ...

    @property
    def budget(self) -> Budget | None:
        """What it may use; charged by the agent with what it has used."""
        ...

    @property
    def todo_aware(self) -> bool:
        """Whether it goes on while its plan is not done."""
        ...

    async def use_tool(self, use: ToolUse) -> ToolAnswer:
        """Judge one tool call and, if it is allowed, make it. A refusal, an
        unknown tool and a failure are answers; cancellation stops the call."""
        ...

    async def launch(
        self,
        work: Work,
        *,
        description: str | None = None,
        tool_use_id: str | None = None,
    ) -> OwnTask:
        """Start a task of the agent's own in the background."""
        ...

    async def run(self, work: Work, *, description: str | None = None) -> Any:
        """Run a task of the agent's own and return it when it has ended."""
        ...

    def reminder(self) -> str | None:
        """Return a list of its background tasks that have not ended; None if there
        are none."""
        ...

    def own_tasks(self) -> int:
        """Return how many tasks of the agent's own have not ended, or have an end that
        is on its way to the inbox."""
        ...

    async def wait_own_tasks(self) -> None:
        """Wait until `own_tasks` is 0."""
        ...

    def record(self, message: Message) -> Exception | None:
        """Put a message into the transcript. It never waits and never fails. Return
        None, or the error with which the agent is to fail because nothing more can be
        put there."""
        ...

    async def flush(self) -> None:
        """Wait until what was recorded is in the transcript, or cannot be. Cancelled,
        it gives up the wait only."""
        ...

    async def starting(self) -> str | None:
        """Called before the first event of a run; what it returns is added to the
        prompt."""
        ...

    async def finishing(self, answer: str, attempt: int) -> str | None:
        """Called when the run has an answer and nothing else to do, for the
        ``attempt``-th time, from 1; the agent goes on with what it returns, and
        is done if that is None."""
        ...

    def waiting(self, what: Literal["tasks", "approval"] | None) -> None:
        """Called when the agent begins and ends (None) to wait."""
        ...

    async def wait_for(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Wait by calling ``wait``, and until the agent may go on: it does not
        count among those at work meanwhile. What that raises comes out at once."""
        ...
