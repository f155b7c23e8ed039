"""What an agent says of itself, beside what every task does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from .._kernel.rare import Rare
from ..work import Report
from ._events import AgentEvent, Terminate, TodoList
from ._host import AgentHost
from ._inbox import Inbox


class AgentReport(Report):
    """What a running agent says about itself, and what it asks.

    What it may read besides: ``agent_host`` and ``inbox``, what it asks and where
    messages to it wait; None without a runtime. What it may set: ``waiting``, what it
    waits for, ``todos``, its plan, and ``terminate``, why its run has ended.
    """

    __slots__ = ()

    agent_host: Rare[AgentHost | None] = Rare(None)
    inbox: Rare[Inbox | None] = Rare(None)
    waiting: Rare[Literal["tasks", "approval"] | None] = Rare(None)
    terminate: Rare[Terminate | None] = Rare(None)
    todos: Rare[TodoList | None] = Rare(None)
    # On trio's clock, while its run cleans up: by when that is to be over, with
    # what its host does then.
    ends_by: Rare[float | None] = Rare(None)

    @property
    def on_begun(self) -> Callable[[], None] | None:
        """Called when its loop waits for something, or says something, for the first
        time in a run; a loop that fails before that has never begun."""
        return None

    def on_agent_event(self, event: AgentEvent) -> None:
        """The agent has yielded ``event``, or was given that message."""
