"""A new run of an agent that had ended, until it has proved to run.

The first step of its loop shows whether the loop fails at once, before it has waited
for or said anything. Until then nothing of the run is in the transcript. So the resume
can be undone: the old record can be put back as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio
from trio.lowlevel import enable_ki_protection

from actors import TaskStatus

if TYPE_CHECKING:
    from actors.agent import Message
    from actors.transcript import AgentMeta
    from actors.transcript.hosting import Transcript

    from .pausing import Before
    from .record import Task


class Revival:
    """A new run of an agent that had ended, until it has proved to run."""

    def __init__(self, meta: AgentMeta, transcript: Transcript | None) -> None:
        self.meta = meta
        """What the directory said of it."""
        self.transcript = transcript
        """What it goes on with, as it was read, until its log follows that."""
        self.interrupted: str | None = None
        """The answer to the calls that were cut, until it was given."""
        self.paused: Before | None = None
        """What was known of its pause, if it begins with one."""
        self.before: Task | None = None
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

    def hold(self, message: Message, keep: Callable[[Sequence[Message]], None]) -> None:
        """Keep a message from the transcript until it is decided, and then ``keep``
        those that were held, if the run stays."""
        self.held.append(message)
        self._keep = keep

    @enable_ki_protection
    def begun(self) -> None:
        """The run has waited for or said something, so it stays."""
        if self.decided.is_set():
            return
        self._decide()
        held, self.held = self.held, []
        if self._keep is not None:
            self._keep(held)

    def undoes(self, status: TaskStatus) -> bool:
        """Return whether an end with ``status`` undoes the resume, so that the old
        record is put back."""
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
