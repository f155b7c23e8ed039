"""A task at one moment, as callers see it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Literal

import attrs

from actors import Progress, TaskStatus

from .._delivery.outbox import Notify
from ..tree._errors import SupervisorError


@attrs.frozen
class TaskError:
    """What went wrong, as text."""

    type: str
    """The name of the exception's class."""
    message: str
    """What the exception says; at most 65,536 characters."""
    traceback: str = attrs.field(repr=False)
    """Where it was raised, as Python prints it, cut likewise; for developers. Empty
    if it was not raised by what went wrong, as with a budget that is used up."""


@attrs.frozen
class Usage:
    """What a task has used so far."""

    duration_ms: int | None
    """From its start to its end or to now; None before its start."""
    total_tokens: int | None = None
    """Of an agent."""
    tool_uses: int | None = None
    """Of an agent."""
    cpu_seconds: float | None = None
    """CPU time, user and system, of all its processes; None where that is not
    known."""
    memory_bytes: int | None = None
    """Resident memory of its processes, which share pages that count for each;
    None while none runs."""
    processes: int | None = None
    """How many processes belong to it; None while none runs."""


@attrs.frozen(kw_only=True)
class TaskSnapshot:
    """A task at one moment. Its times are aware, in UTC.

    Of an agent, besides what every task has, ``depth`` says how many agents are above
    it, ``waiting`` what it waits for (``tasks`` or ``approval``), ``terminate`` why it
    has ended by itself (see `actors.agent.Terminate`); ``output_file`` leads to its
    transcript. Of the task of an agent, ``parent`` is the id of that.
    """

    id: str
    """The task id, which no other task of the runtime has."""
    run_id: str
    """Of the latest run; a restarted task keeps its id and gets a new run id."""
    type: str
    """``local_bash``, ``local_agent``, ``remote_agent`` or ``local_work``."""
    status: TaskStatus
    """``pending`` until it has a place, then ``running``, then one of the three
    terminal ones for good."""
    description: str
    """A few words for people: what `Runtime.launch` was given, or else the
    work's own."""
    owner: str | None
    """Whose task it is; None is nobody's."""
    parent: str | None
    """The id of the agent whose own task it is, which ends after it; None for one
    that is nobody's own."""
    depth: int | None
    """Of an agent: how many agents are above it."""
    tool_use_id: str | None
    """The model's tool call, as `Runtime.launch` was given it."""
    background: bool
    """Whether its end is told by a notification."""
    notify: Notify
    """How that notification reaches its reader: see `Runtime.launch`."""
    stopping: bool
    """Whether it was asked to stop and has not ended."""
    restarting: bool
    """Whether it is between two runs."""
    waiting: Literal["tasks", "approval"] | None
    """Of an agent: what it has to wait for before it can go on, its own tasks or
    the approval of a tool call."""
    terminate: str | None
    """Of an agent that has ended by itself: why; see `actors.agent.Terminate`."""
    progress: Progress | None
    """The latest that the work has said; None if it has said nothing."""
    result: str | None
    """What the work returned, as text, or None. Of a shell, and of whatever else
    has written output: the tail of that, cleaned."""
    error: TaskError | None
    """What went wrong; None unless it is ``failed``."""
    exit_code: int | None
    """Of a shell; None if it has not ended, or a signal has ended it."""
    signal: int | None
    """The number of the signal that ended a shell, or None."""
    pid: int | None
    """Of a shell: the process id of its leader, which may be another's once it
    has ended."""
    prompt: str | None
    """The unfinished last line of a shell that probably waits for an answer."""
    left_behind: int
    """Of a shell that has ended: how many processes it had left in the background,
    which were ended with it."""
    output_file: Path | None
    """Where the output is; None for a task that writes none. Removed when the task
    is forgotten. Of an agent it is a link to its transcript, which stays then, with
    what else it takes to resume the agent."""
    started_at: datetime | None
    """When it got its place; aware, in UTC."""
    ended_at: datetime | None
    """When its end was recorded; aware, in UTC; None while it has not ended."""
    usage: Usage
    """What it has used so far, or in all."""


@attrs.define(slots=False, repr=False)
class OutputEnded(SupervisorError):
    """Raised by `TaskHandle.wait_output` when the task ended, as ``snapshot``
    tells, and its output did not hold what was waited for."""

    snapshot: TaskSnapshot

    def __str__(self) -> str:
        return (
            f"task {self.snapshot.id} is {self.snapshot.status.value}, and its output "
            "does not hold what was waited for"
        )
