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
    """The text of the exception, at most 65,536 characters."""
    traceback: str = attrs.field(repr=False)
    """Where it was raised, as Python prints it, for developers. It has at most 65,536
    characters, too. It is empty if what went wrong raised nothing, for instance if a
    budget was used up."""


@attrs.frozen
class Usage:
    """What a task has used so far."""

    duration_ms: int | None
    """The time from its start to its end or to now. It is None before its start."""
    total_tokens: int | None = None
    """The tokens that an agent has used."""
    tool_uses: int | None = None
    """The number of tool calls of an agent."""
    cpu_seconds: float | None = None
    """The CPU time, user and system, of all its processes. It is None where that is not
    known."""
    memory_bytes: int | None = None
    """The resident memory of its processes. A page that several share counts for each.
    It is None while none runs."""
    processes: int | None = None
    """How many processes belong to it. It is None while none runs."""


@attrs.frozen(kw_only=True)
class TaskSnapshot:
    """A task at one moment. Its times are aware, in UTC.

    An agent has more than every task has. ``depth`` says how many agents are above it,
    ``waiting`` what it waits for (``tasks`` or ``approval``), and ``terminate`` why it
    has ended by itself (see `actors.agent.Terminate`). Its ``output_file`` leads to its
    transcript. If a task is an agent's own, ``parent`` is the id of that agent.
    """

    id: str
    """The task id, which no other task of the runtime has."""
    run_id: str
    """The id of the latest run. A restarted task keeps its id and gets a new run id."""
    type: str
    """``local_bash``, ``local_agent``, ``remote_agent`` or ``local_work``."""
    status: TaskStatus
    """``pending`` until it has a place, then ``running``, then one of the three
    terminal ones for good."""
    description: str
    """A few words for people. `Runtime.launch` was given them, or they are the work's
    own."""
    owner: str | None
    """Its owner. None means that it has none."""
    parent: str | None
    """The id of the agent that it belongs to, which ends after it. It is None if it is
    no agent's own task."""
    depth: int | None
    """How many agents are above it, if it is an agent."""
    tool_use_id: str | None
    """The id of the model's tool call that `Runtime.launch` was given."""
    background: bool
    """Whether a notification tells its end."""
    notify: Notify
    """How that notification reaches its reader: see `Runtime.launch`."""
    stopping: bool
    """Whether it was asked to stop and has not ended."""
    restarting: bool
    """Whether it is between two runs."""
    waiting: Literal["tasks", "approval"] | None
    """What an agent has to wait for before it can go on: its own tasks, or the approval
    of a tool call."""
    terminate: str | None
    """Why an agent has ended by itself: see `actors.agent.Terminate`."""
    progress: Progress | None
    """The latest progress that the work has reported. It is None if there was none."""
    result: str | None
    """The text of what the work returned, or None. If the task has written output, as a
    shell does, it is the cleaned tail of that."""
    error: TaskError | None
    """What went wrong. It is None unless the task is ``failed``."""
    exit_code: int | None
    """The exit code of a shell. It is None if the shell has not ended, or if a signal
    has ended it."""
    signal: int | None
    """The number of the signal that ended a shell, or None."""
    pid: int | None
    """The process id of a shell's leader. Once the shell has ended, another process may
    have it."""
    prompt: str | None
    """The unfinished last line of a shell that probably waits for an answer."""
    left_behind: int
    """How many processes a shell had left in the background when it ended. They were
    ended with it."""
    output_file: Path | None
    """The file with the output. It is None for a task that writes none. It is removed
    when the task is forgotten. For an agent it is a link to the transcript. The
    transcript stays when the link is removed, and so does what else it takes to resume
    the agent."""
    started_at: datetime | None
    """The time at which it got its place, aware and in UTC."""
    ended_at: datetime | None
    """The time at which its end was recorded, aware and in UTC. It is None while the
    task has not ended."""
    usage: Usage
    """What it has used so far or, if it has ended, in all."""


@attrs.define(slots=False, repr=False)
class OutputEnded(SupervisorError):
    """Raised by `TaskHandle.wait_output` when the task ended and its output did not
    hold what the caller waited for. ``snapshot`` says how it ended."""

    snapshot: TaskSnapshot

    def __str__(self) -> str:
        return (
            f"task {self.snapshot.id} is {self.snapshot.status.value}, and its output "
            "does not hold what was waited for"
        )
