"""What happens to the tasks of a runtime, as events in the stream of its tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from actors.house import plain

from ..tree._events import Event, Gap, Subscription

if TYPE_CHECKING:
    from actors.agent import AgentEvent


@plain
class TaskStarted(Event):
    """A task got its place and begins."""

    task_id: str
    run_id: str
    task_type: str
    description: str
    owner: str | None


@plain
class TaskProgress(Event):
    """How far a task has come. There is at most one a second for each task."""

    task_id: str
    text: str
    bytes_written: int
    tool_uses: int
    total_tokens: int


@plain
class TaskRestartScheduled(Event):
    """A run of a task has ended, and the task will run again, under the same id."""

    task_id: str
    run_id: str
    """The id of the run that has ended."""
    delay: float
    """The seconds until the next run."""
    error: str | None
    """The error of that run. It is None if the run has not failed."""


@plain
class TaskRestarted(Event):
    """A task runs again, under the same id."""

    task_id: str
    run_id: str


@plain
class TaskPaused(Event):
    """An agent waits until what has stopped its run has passed. Its own tasks run on.
    It goes on by itself at ``resume_at``, and before that when a message comes or
    somebody resumes it."""

    task_id: str
    run_id: str
    """The id of the run that has ended."""
    reason: str
    resume_at: str | None
    """When it goes on by itself, in ISO 8601 and UTC. None means that it does not."""
    attempt: int
    """How many runs in a row have now ended in a pause without an answer in between. It
    is 0 if none has: the agent was found paused, or unfinished."""


@plain
class TaskContinued(Event):
    """A paused agent has its place again, and a new run of it begins."""

    task_id: str
    run_id: str
    """The id of the new run."""
    by: str
    """What has ended the pause: ``time``, ``message`` or ``host``, by a call of
    `Runtime.resume`."""


@plain
class TaskResumed(Event):
    """An agent that had ended goes on, under the same id. If its new run fails before
    it has waited for or said anything, the resume is undone. It sends no notification,
    and the old record is back."""

    task_id: str
    run_id: str
    resumes: int
    """How often it was resumed. This time counts, too."""


@plain
class TaskBackgrounded(Event):
    """A foreground task was moved to the background."""

    task_id: str
    output_file: str | None = None
    """The path of its output: see `TaskSnapshot.output_file`."""


@plain
class TaskPrompted(Event):
    """A task has been silent after an unfinished line, as if it waited for an answer.
    It is told once for each run."""

    task_id: str
    line: str


@plain
class TaskStopRequested(Event):
    """A task was asked to stop."""

    task_id: str
    reason: str | None


@plain
class TaskEnded(Event):
    """A task ended, for good. A task that never began has no `TaskStarted` before it.
    It was stopped while it waited for its place, or its output file could not be
    made."""

    task_id: str
    status: str
    exit_code: int | None
    signal: int | None
    error: str | None
    ended_by: str | None = None
    """Who or what has ended it: see `TaskSnapshot.ended_by`."""
    result: str | None = None
    """The text of its result: see `TaskSnapshot.result`. Of a long one these are the
    last 4,096 characters, with an ellipsis in front."""


@plain
class TaskAbandoned(Event):
    """An agent that an earlier runtime has left unfinished will not go on: see
    `Runtime.abandon_agent`. It was no task of this runtime."""

    task_id: str
    ended_by: str
    """Who has wanted that: ``host``."""


@plain
class Warned(Event):
    """Something about a task is not as it should be. It is always logged, too, as a
    warning of the logger ``supervisor``."""

    task_id: str | None
    text: str


@plain
class Notified(Event):
    """A notification is on record for an owner. It tells the end of a background task,
    its progress, what it has printed, or a scheduled prompt."""

    notification_id: str
    task_id: str
    """The id of the task, or of the schedule."""
    what: str = "task"
    """What the notification tells: ``task``, ``progress``, ``monitor`` or
    ``prompt``."""


@plain
class Acked(Event):
    """A notification was acknowledged."""

    notification_id: str
    task_id: str
    how: str


@plain
class MonitorStarted(Event):
    """From now on the lines of a command are told to its owner: see
    `supervisor.runtime.Monitor`."""

    monitor_id: str
    task_id: str
    owner: str | None


@plain
class MonitorEnded(Event):
    """The lines of a command are not told any more. What was on record before is told
    all the same."""

    monitor_id: str
    task_id: str
    reason: str
    """Why: the command has ended, somebody has stopped the monitor, or 10 notes in a
    row woke nobody."""


@plain
class ApprovalRequested(Event):
    """A tool call waits for an answer of the host: see
    `supervisor.runtime.Approvals`."""

    approval_id: str
    task_id: str
    """The id of the agent. If the host's own model calls, it is `Approval.agent_id`."""
    tool_use_id: str
    description: str


@plain
class JournalWritten(Event):
    """What had waited for the disk is written, up to this record. It comes only where
    the journal is not written at once: on a slow disk, or with ``durable``."""

    records: int
    """How many records of this runtime are written."""


@plain
class ApprovalAnswered(Event):
    """A tool call waits no more."""

    approval_id: str
    task_id: str
    allowed: bool
    by: str
    """Who has answered. ``host``: the host, by `Approvals.answer`. ``end``: the call
    was denied, because its agent ends, or the runtime. ``withdrawn``: nobody, because
    the call was given up."""
    reason: str | None


@plain
class AgentSaid(Event):
    """An agent has said something, or was given a message. Those who have subscribed
    with ``agents`` are told it. `supervisor.runtime.TaskHandle.events` has the same for
    one agent alone."""

    task_id: str
    run_id: str
    event: Any
    """An `actors.agent.AgentEvent`."""


class AgentEvents:
    """An async iterator of the events of one agent task from now on, in order. It goes
    on across a move to the background and a restart, and ends with the task.

    It keeps 10,000 events for a slow reader. Further events are dropped, and one
    `supervisor.tree.Gap` in their place says how many. It is for one task. `aclose`
    ends it earlier.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __aiter__(self) -> AgentEvents:
        return self

    async def __anext__(self) -> AgentEvent | Gap:
        """Wait for the next event."""
        event = await anext(self._subscription)
        if isinstance(event, AgentSaid):
            said: AgentEvent = event.event
            return said
        assert isinstance(event, Gap)
        return event

    async def aclose(self) -> None:
        """See no further events. Those that are there already can be read. A second
        call does nothing."""
        self._subscription.close()
        await trio.lowlevel.checkpoint()
