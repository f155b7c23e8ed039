"""What an agent says of itself, beside what every task does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from .._kernel.rare import Rare
from ..work import Report
from ._activity import Activity, Draft
from ._errors import Terminate
from ._events import AgentEvent, Message, TodoList
from ._host import AgentHost
from ._inbox import Inbox

if TYPE_CHECKING:
    from ._account import Pulse


class AgentReport(Report):
    """What a running agent says about itself, and what it asks.

    What it may read besides: ``agent_host`` and ``inbox``, what it asks and where
    messages to it wait; None without a runtime. What it may set: ``waiting``, what it
    waits for, ``todos``, its plan, ``conversation``, what was said so far while it
    runs, and ``terminate``, why its run has ended.
    """

    __slots__ = ()

    agent_host: Rare[AgentHost | None] = Rare(None)
    inbox: Rare[Inbox | None] = Rare(None)
    waiting: Rare[Literal["tasks", "approval"] | None] = Rare(None)
    terminate: Rare[Terminate | None] = Rare(None)
    todos: Rare[TodoList | None] = Rare(None)
    conversation: Rare[Sequence[Message] | None] = Rare(None)
    # Its last few activities, the newest last. They outlive the run.
    recent: Rare[tuple[Activity, ...]] = Rare(())
    # The tokens that its run has read and written so far, and of those read the ones
    # that came from a cache and the ones that went into it. None: nothing tells.
    spent: Rare[tuple[int, int, int, int] | None] = Rare(None)
    # Of its run: what there is of a message that is not whole yet, and its last sign
    # of life.
    draft: Rare[Draft | None] = Rare(None)
    pulse: Rare[Pulse | None] = Rare(None)
    # On trio's clock, while its run cleans up: by when that is to be over, with
    # what its host does then.
    ends_by: Rare[float | None] = Rare(None)
    # The seconds of its deadline that the runs have used before the one under way, each
    # of which has ended in a pause.
    time_used: Rare[float] = Rare(0.0)

    @property
    def on_begun(self) -> Callable[[], None] | None:
        """Called when its loop waits for something, or says something, for the first
        time in a run; a loop that fails before that has never begun."""
        return None

    def on_agent_event(self, event: AgentEvent) -> None:
        """The agent has yielded ``event``, or was given that message."""
