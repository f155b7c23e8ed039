"""A new run of an agent that had ended, until it has proved to run.

Whether its loop fails at once, before it has waited for anything, is seen at the
first step of the loop. Until then nothing of the run is in the transcript, and
the record before can be put back as if nothing had happened.
"""

from __future__ import annotations

import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import trio
from trio.lowlevel import enable_ki_protection

from actors import TaskStatus

if TYPE_CHECKING:
    from actors.agent import AgentContext, AgentEvent, Message, Run
    from actors.transcript import AgentMeta, Transcript

    from ._agent_task import AgentTask

T = TypeVar("T")


class Revival:
    """A new run of an agent that had ended, until it has proved to run."""

    loop: Run
    """The loop that is watched."""

    def __init__(self, meta: AgentMeta) -> None:
        self.meta = meta
        """What the directory said of it."""
        self.transcript: Transcript | None = None
        """What it goes on with, as it was read, until its log follows that."""
        self.before: AgentTask | None = None
        """The record that it replaces; None if the table has none, and once it is
        decided that the run stays."""
        self.may_go = False
        """Whether that record could be forgotten."""
        self.decided = trio.Event()
        """Whether it is known if the run stays."""
        self.is_undone = False
        """Whether the record before was put back."""
        self.held: list[Message] = []
        """What the run has read so far, until it is decided."""
        self._keep: Callable[[Sequence[Message]], None] | None = None
        self._has_failed = False

    def holds(
        self, message: Message, keep: Callable[[Sequence[Message]], None]
    ) -> bool:
        """Keep a message from the transcript until it is decided."""
        if self.decided.is_set():
            return False
        self.held.append(message)
        self._keep = keep
        return True

    @enable_ki_protection
    def begun(self) -> None:
        """The run has waited for something, or said something: it stays."""
        if self._has_failed or self.decided.is_set():
            return
        self._decide()
        held, self.held = self.held, []
        if self._keep is not None:
            self._keep(held)

    def undoes(self, status: TaskStatus) -> bool:
        """Say whether an end with ``status`` is to be as if nothing had begun."""
        if not self.decided.is_set():
            self.is_undone = status is TaskStatus.FAILED
            self._decide()
        return self.is_undone

    def _decide(self) -> None:
        if not self.is_undone:
            # Or the records of an agent that is resumed again and again are kept,
            # each by the next.
            self.before = None
        self.decided.set()

    def watch(self, loop: Run) -> Run:
        """Return ``loop``, the first step of which decides."""
        self.loop = loop

        def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
            if self.decided.is_set():
                return loop(context)
            self._has_failed = True
            events = loop(context)
            if not hasattr(events, "__aiter__"):
                return events  # And so fails, in the words of whoever calls it.
            iterator = aiter(events)
            self._has_failed = False
            return _FirstStep(iterator, self)

        # By which its mistakes are told.
        run.__qualname__ = getattr(loop, "__qualname__", None) or repr(loop)
        return run

    def failed(self) -> None:
        """The first step has raised: what is waited for afterwards does not count."""
        self._has_failed = True


class _FirstStep:
    """The iterator of a loop, which tells whether its first step waits, fails or
    says something."""

    def __init__(self, events: AsyncIterator[AgentEvent], revival: Revival) -> None:
        self._events = events
        self._revival = revival

    def __getattr__(self, name: str) -> Any:
        # If it is a generator it can be closed and thrown at.
        return getattr(self._events, name)

    def __aiter__(self) -> _FirstStep:
        return self

    async def __anext__(self) -> AgentEvent:
        revival = self._revival
        if revival.decided.is_set():
            return await anext(self._events)
        try:
            event = await _told_of_its_wait(anext(self._events), revival.begun)
        except StopAsyncIteration:
            revival.begun()
            raise
        except BaseException:
            revival.failed()
            raise
        revival.begun()
        return event


@types.coroutine
def _told_of_its_wait(
    step: Awaitable[T], tell: Callable[[], None]
) -> Generator[Any, Any, T]:
    """Do what awaiting ``step`` does, and call ``tell`` when that gives up control
    for the first time, before anybody else gets it."""
    inner = step.__await__()
    try:
        trap = next(inner)
        tell()
        while True:
            try:
                answer = yield trap
            # The boundary: whatever is thrown here was meant for the step.
            except BaseException as error:  # noqa: ASYNC103
                trap = inner.throw(error)
            else:
                trap = inner.send(answer)
    except StopIteration as end:
        return cast("T", end.value)
