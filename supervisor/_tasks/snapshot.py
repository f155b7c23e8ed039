"""A task at one moment, as callers see it.

Whoever asks gets an object of his own, so a snapshot is `plain`: frozen for type
checkers, and not at run time.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Literal

import attrs

from actors import Progress, TaskStatus
from actors.agent import Activity
from actors.house import frozen, plain

from .._delivery.outbox import Notify
from ..tree._errors import SupervisorError
from .endings import EndedBy


@frozen
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


@plain
class Usage:
    """What a task has used so far."""

    duration_ms: int | None
    """The time from its start to its end or to now. It is None before its start."""
    total_tokens: int | None = None
    """The tokens that the run of an agent has used."""
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
    input_tokens: int | None = None
    """Those of ``total_tokens`` that the model has read. It is None if the agent has
    told of none."""
    output_tokens: int | None = None
    """Those of ``total_tokens`` that the model has written, or None."""
    cache_read_tokens: int | None = None
    """Those of ``input_tokens`` that came from the provider's cache, or None."""
    cache_write_tokens: int | None = None
    """Those of ``input_tokens`` that went into the provider's cache, or None."""


@frozen
class Pause:
    """Why a paused agent waits, and until when."""

    reason: str
    """What has stopped its run, in words."""
    resume_at: datetime | None = None
    """When it goes on by itself, aware and in UTC. None means that it does not."""
    attempt: int = 0
    """How many runs in a row have now ended in a pause without an answer in between. It
    is 0 if none has: the agent was found paused, or unfinished."""

    def __str__(self) -> str:
        if self.resume_at is None:
            return f"paused until somebody lets it go on: {self.reason}"
        at = self.resume_at.isoformat(timespec="seconds")
        return f"paused until {at}, when it goes on by itself: {self.reason}"


# First what every task has: given by place, one is made in a third of the time. The
# order is no promise, so no pattern may rely on it.
@plain(match_args=False)
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
    terminal ones for good. An agent may be ``paused`` in between, any number of
    times: see ``pause``."""
    description: str
    """A few words for people. `Runtime.launch` was given them, or they are the work's
    own."""
    owner: str | None
    """Its owner. None means that it has none."""
    parent: str | None
    """The id of the agent that it belongs to, which ends after it. It is None if it is
    no agent's own task."""
    background: bool
    """Whether a notification tells its end."""
    notify: Notify
    """How that notification reaches its reader: see `Runtime.launch`."""
    notified: bool
    """Whether that notification is acknowledged, in whatever way. It is False while the
    task has not ended, and for a task in the foreground, whose caller gets the end."""
    stopping: bool
    """Whether it was asked to stop and has not ended."""
    restarting: bool
    """Whether it is between two runs."""
    progress: Progress | None
    """The latest progress that the work has reported. It is None if there was none."""
    result: str | None
    """The text of what the work returned, or None. If the task has written output, as a
    shell does, it is the cleaned tail of that. Of an agent that runs, it is what it has
    said last, also if that is only the beginning of a message that still comes: of a
    very long one, the last 65,536 characters."""
    error: TaskError | None
    """What went wrong. It is None unless the task is ``failed``."""
    ended_by: EndedBy | None
    """Who or what has ended the task. None means that it has not ended, or has ended by
    itself, also by an error of its own."""
    started_at: datetime | None
    """The time at which it got its place, aware and in UTC."""
    ended_at: datetime | None
    """The time at which its end was recorded, aware and in UTC. It is None while the
    task has not ended."""
    usage: Usage
    """What it has used so far or, if it has ended, in all."""
    depth: int | None = None
    """How many agents are above it, if it is an agent."""
    tool_use_id: str | None = None
    """The id of the model's tool call that `Runtime.launch` was given."""
    waiting: Literal["tasks", "approval"] | None = None
    """What an agent has to wait for before it can go on: its own tasks, or the approval
    of a tool call."""
    terminate: str | None = None
    """Why an agent has ended by itself: see `actors.agent.Terminate`."""
    activities: tuple[Activity, ...] = ()
    """The last five things that an agent did, the newest last."""
    last_activity_at: datetime | None = None
    """The time at which it last said something or had progress, such as output. It is
    None if it never did."""
    exit_code: int | None = None
    """The exit code of a shell. It is None if the shell has not ended, or if a signal
    has ended it."""
    signal: int | None = None
    """The number of the signal that ended a shell, or None."""
    pid: int | None = None
    """The process id of a shell's leader. Once the shell has ended, another process may
    have it."""
    pause: Pause | None = None
    """Why a ``paused`` agent waits, and until when. None for every other task."""
    command: str | None = None
    """The command of a shell, whole and as it was given."""
    prompt: str | None = None
    """Of an agent, the task that it was given, word for word. Of a shell, the unfinished
    last line, if it probably waits for an answer."""
    agent_type: str | None = None
    """The name of an agent's type: see `actors.agent.Agent`."""
    model: str | None = None
    """The model that an agent was given. None means that of its loop."""
    left_behind: int = 0
    """How many processes a shell had left in the background when it ended. They were
    ended with it."""
    output_file: Path | None = None
    """The file with the output. It is None for a task that writes none. It is removed
    when the task is forgotten. For an agent it is a link to the transcript. The
    transcript stays when the link is removed, and so does what else it takes to resume
    the agent."""


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
