"""What the life of a task asks of whoever knows of agents."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from actors.transcript import TranscriptStore
    from actors.work import Work

    from .._tasks.agent_task import AgentTask


class AgentSide(Protocol):
    """The agents of one runtime. The life of a task calls what stands here in this
    order."""

    @property
    def transcripts(self) -> TranscriptStore:
        """What they and their models have said."""
        ...

    @property
    def told_idle(self) -> set[str]:
        """What was said of rules and hooks that guard nothing."""
        ...

    @property
    def patience(self) -> float:
        """The seconds for which one tries again what does not pass."""
        ...

    @property
    def after_crash(self) -> Literal["pause", "resume"]:
        """What becomes of one whose program has died."""
        ...

    def write_meta(self, task: AgentTask) -> None:
        """Have written what the directory is to say of it now, if that is news."""
        ...

    @property
    def max_depth(self) -> int:
        """How many agents may be above one."""
        ...

    def check(self, work: Work) -> None:
        """Refuse an agent that cannot be, before it is entered.

        Raises:
            ValueError: if its mode is none.
        """
        ...

    def is_taken(self, task_id: str) -> bool:
        """Whether an agent of an earlier runtime had this id."""
        ...

    def entered(self, task: AgentTask) -> None:
        """Called when a task is entered, before it starts."""
        ...

    def host(
        self, task: AgentTask, *, is_restart: bool
    ) -> AbstractAsyncContextManager[object]:
        """Be the host of one run."""
        ...

    def stopping(self, task: AgentTask) -> None:
        """Called when it is asked to stop, before it is cancelled."""
        ...

    def parts_of_end(self, task: AgentTask) -> list[Callable[[], object]]:
        """Return what is to be done while its end is being recorded."""
        ...

    def end_approvals(self, why: str) -> None:
        """Nobody waits any more for an answer that belongs to no task."""
        ...
