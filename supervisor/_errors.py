"""What the supervisor tree and the runtime raise.

SupervisorError
+- InvalidChildSpec
+- InvalidSupervisorFlags
+- AlreadyStarted
+- AlreadyPresent
+- ChildNotFound
+- ChildRunning
+- ChildRestarting
+- ChildIgnored
+- MaxChildrenReached
+- StartFailed
+- SupervisorStopping
+- StillRunning
+- WouldDeadlock
+- RestartIntensityExceeded
+- UnknownTask
+- BacklogFull
+- RuntimeStopping
+- InputClosed
+- OutputEnded
+- DepthExceeded
+- MessageRefused
+- ResumeRefused
+- AskFailed
"""

from __future__ import annotations

import attrs


class SupervisorError(Exception):
    """The root of what `supervisor` raises by itself."""


class InvalidChildSpec(SupervisorError):
    """Raised when a child spec cannot be right; it names the field and its value.
    Nothing was started."""


class InvalidSupervisorFlags(SupervisorError):
    """Raised when the flags of a supervisor cannot be right; it names the flag
    and its value. Nothing was started."""


class AlreadyStarted(SupervisorError):
    """Raised by `start_child` when a child of this id is running or starting."""


class AlreadyPresent(SupervisorError):
    """Raised by `start_child` when a child of this id is known but not running.
    Use `restart_child`, or `delete_child` first."""


class ChildNotFound(SupervisorError):
    """Raised when the supervisor has no such child."""


class ChildRunning(SupervisorError):
    """Raised by `restart_child` and `delete_child` for a child that has not
    stopped. Use `terminate_child` first."""


class ChildRestarting(SupervisorError):
    """Raised by `restart_child` and `delete_child` for a child that the
    supervisor is about to restart by itself."""


class ChildIgnored(SupervisorError):
    """Raised when the child declined to start by raising `actors.Ignore`."""


class MaxChildrenReached(SupervisorError):
    """Raised when a dynamic supervisor has its ``max_children`` already."""


# Without a repr of attrs', for the reason given in `actors._errors`.
@attrs.define(slots=False, repr=False)
class StartFailed(SupervisorError):
    """Raised when a child ended before it acknowledged its start. What it
    raised, if it did, is the cause."""

    child_id: str
    why: str

    def __str__(self) -> str:
        return f"child {self.child_id!r} failed to start: {self.why}"


class SupervisorStopping(SupervisorError):
    """Raised when a supervisor that is stopping, or has ended, is asked to start
    a child."""


@attrs.define(slots=False, repr=False)
class StillRunning(SupervisorError):
    """Raised by `terminate_child` when the child has outlived its shutdown
    budget. It was told to stop and will be recorded when it ends; it is shielded
    or stuck in a thread where ``stack`` says."""

    child_id: str
    budget: float
    stack: str

    def __str__(self) -> str:
        return (
            f"child {self.child_id!r} is still running {self.budget:g} s after it was "
            f"told to stop, at\n{self.stack}"
        )


class WouldDeadlock(SupervisorError):
    """Raised when a child asks its supervisor, or an ancestor, to end that very
    child and would wait for its own end. ``ctx.ref.stop()`` does not wait."""


@attrs.define(slots=False, repr=False)
class RestartIntensityExceeded(SupervisorError):
    """Raised by a supervisor's block when its children had to be restarted more
    often than its intensity allows. ``failures`` holds the last ends, oldest
    first, each as (child id, description)."""

    supervisor: str
    intensity: int
    period: float
    failures: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        last = "; ".join(f"{child}: {what}" for child, what in self.failures)
        return (
            f"supervisor {self.supervisor!r} needed more than {self.intensity} restart(s) "
            f"within {self.period:g} s; last ends: {last}"
        )


@attrs.define(slots=False, repr=False)
class UnknownTask(SupervisorError):
    """Raised for a task id that the runtime does not know, or knows no more;
    it lists the tasks that run."""

    task_id: object
    running: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        listed = ", ".join(
            f"{id} ({description})" for id, description in self.running[:20]
        )
        more = f" and {len(self.running) - 20} more" if len(self.running) > 20 else ""
        return f"no task {self.task_id!r}; running: {listed + more or 'none'}"


@attrs.define(slots=False, repr=False)
class BacklogFull(SupervisorError):
    """Raised by `launch` when too many notifications wait to be acknowledged:
    nobody reads them, so nothing more is started."""

    waiting: int

    def __str__(self) -> str:
        return f"{self.waiting} notifications are not acknowledged; read and ack() them first"


class RuntimeStopping(SupervisorError):
    """Raised by `launch` and `run` when the runtime is stopping or has ended."""


@attrs.define(slots=False, repr=False)
class InputClosed(SupervisorError):
    """Raised by `TaskHandle.write` and `TaskHandle.close_input` when the task
    takes no input, or takes no more; ``why`` says which. Only what was launched
    with an input, such as ``Shell(..., stdin="pipe")``, takes any."""

    task_id: str
    why: str

    def __str__(self) -> str:
        return f"task {self.task_id} takes no input: {self.why}"


@attrs.define(slots=False, repr=False)
class MessageRefused(SupervisorError):
    """Raised by `Runtime.send` for a message that its agent will never see;
    ``why`` says the reason, and then what helps, if anything does. ``by_resume`` says
    whether the agent can be resumed, and ``reason`` is the reason alone. Nothing was
    queued and nothing has changed."""

    task_id: str
    reason: str
    remedy: str | None = None

    @property
    def by_resume(self) -> bool:
        return self.remedy is not None

    @property
    def why(self) -> str:
        return "; ".join(filter(None, (self.reason, self.remedy)))

    def __str__(self) -> str:
        return f"task {self.task_id} takes no messages: {self.why}"


@attrs.define(slots=False, repr=False)
class ResumeRefused(SupervisorError):
    """Raised by `Runtime.resume` for an agent that cannot go on; ``why`` says the
    reason. The agent is as it was, and so is what is told of its end."""

    task_id: str
    why: str

    def __str__(self) -> str:
        return f"agent {self.task_id} cannot be resumed: {self.why}"


@attrs.define(slots=False, repr=False)
class AgentRunsElsewhere(ResumeRefused):
    """Raised by `Runtime.resume` for an agent that another runtime with the same
    directory runs, in this process or another; ``holder`` says which, in words such
    as ``process 4711``. It is free as soon as it has ended there, or that process."""

    holder: str
    why: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.why = f"another runtime has the directory open and runs it: {self.holder}"


@attrs.define(slots=False, repr=False)
class DepthExceeded(SupervisorError):
    """Raised by `launch` and `run` when an agent would be deeper below the
    program's own agents than `AgentPolicy.max_depth` allows, or when how deep it
    would be cannot be told. Nothing was started. ``child_depth`` is the depth it
    would have, ``max_depth`` the deepest allowed, ``lineage`` the ids of the agents
    above it, the outermost first."""

    child_depth: int | None
    max_depth: int
    lineage: tuple[str, ...]

    def __str__(self) -> str:
        above = " > ".join(self.lineage)
        if self.child_depth is None:
            return (
                f"it cannot be told how deep an agent below {above} would be; at most "
                f"{self.max_depth} is allowed, so none is started"
            )
        return (
            f"an agent below {above} would have the depth {self.child_depth}; at most "
            f"{self.max_depth} is allowed"
        )


@attrs.define(slots=False, repr=False)
class AskFailed(SupervisorError):
    """Raised when a function of `Permissions.ask` has raised, as its cause: nobody
    knows whether the call may be made. It fails the agent."""

    agent_id: str
    tool: str
    tool_use_id: str
    error: Exception

    def __str__(self) -> str:
        return (
            f"no answer on the call {self.tool_use_id} of {self.tool} by agent"
            f" {self.agent_id}: {type(self.error).__name__}: {self.error}"
        )
