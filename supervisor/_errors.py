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

from collections.abc import Sequence


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


class StartFailed(SupervisorError):
    """Raised when a child ended before it acknowledged its start. What it
    raised, if it did, is the cause."""

    def __init__(self, child_id: str, why: str) -> None:
        super().__init__(child_id, why)
        self.child_id = child_id
        self.why = why

    def __str__(self) -> str:
        return f"child {self.child_id!r} failed to start: {self.why}"


class SupervisorStopping(SupervisorError):
    """Raised when a supervisor that is stopping, or has ended, is asked to start
    a child."""


class StillRunning(SupervisorError):
    """Raised by `terminate_child` when the child has outlived its shutdown
    budget. It was told to stop and will be recorded when it ends; it is shielded
    or stuck in a thread where ``stack`` says."""

    def __init__(self, child_id: str, budget: float, stack: str) -> None:
        super().__init__(child_id, budget, stack)
        self.child_id = child_id
        self.budget = budget
        self.stack = stack

    def __str__(self) -> str:
        return (
            f"child {self.child_id!r} is still running {self.budget:g} s after it was "
            f"told to stop, at\n{self.stack}"
        )


class WouldDeadlock(SupervisorError):
    """Raised when a child asks its supervisor, or an ancestor, to end that very
    child and would wait for its own end. ``ctx.ref.stop()`` does not wait."""


class RestartIntensityExceeded(SupervisorError):
    """Raised by a supervisor's block when its children had to be restarted more
    often than its intensity allows. ``failures`` holds the last ends, oldest
    first, each as (child id, description)."""

    def __init__(
        self,
        supervisor: str,
        intensity: int,
        period: float,
        failures: Sequence[tuple[str, str]],
    ) -> None:
        super().__init__(supervisor, intensity, period, tuple(failures))
        self.supervisor = supervisor
        self.intensity = intensity
        self.period = period
        self.failures = tuple(failures)

    def __str__(self) -> str:
        last = "; ".join(f"{child}: {what}" for child, what in self.failures)
        return (
            f"supervisor {self.supervisor!r} needed more than {self.intensity} restart(s) "
            f"within {self.period:g} s; last ends: {last}"
        )


class UnknownTask(SupervisorError):
    """Raised for a task id that the runtime does not know, or knows no more;
    it lists the tasks that run."""

    def __init__(self, task_id: object, running: Sequence[tuple[str, str]]) -> None:
        super().__init__(task_id, tuple(running))
        self.task_id = task_id
        self.running = tuple(running)

    def __str__(self) -> str:
        listed = ", ".join(
            f"{id} ({description})" for id, description in self.running[:20]
        )
        more = f" and {len(self.running) - 20} more" if len(self.running) > 20 else ""
        return f"no task {self.task_id!r}; running: {listed + more or 'none'}"


class BacklogFull(SupervisorError):
    """Raised by `launch` when too many notifications wait to be acknowledged:
    nobody reads them, so nothing more is started."""

    def __init__(self, waiting: int) -> None:
        super().__init__(waiting)
        self.waiting = waiting

    def __str__(self) -> str:
        return f"{self.waiting} notifications are not acknowledged; read and ack() them first"


class RuntimeStopping(SupervisorError):
    """Raised by `launch` and `run` when the runtime is stopping or has ended."""


class InputClosed(SupervisorError):
    """Raised by `TaskHandle.write` and `TaskHandle.close_input` when the task
    takes no input, or takes no more; ``why`` says which. Only what was launched
    with an input, such as ``Shell(..., stdin="pipe")``, takes any."""

    def __init__(self, task_id: str, why: str) -> None:
        super().__init__(task_id, why)
        self.task_id = task_id
        self.why = why

    def __str__(self) -> str:
        return f"task {self.task_id} takes no input: {self.why}"


class MessageRefused(SupervisorError):
    """Raised by `Runtime.send` for a message that its agent will never see;
    ``why`` says the reason, and then what helps, if anything does. ``by_resume`` says
    whether the agent can be resumed, and ``reason`` is the reason alone. Nothing was
    queued and nothing has changed."""

    def __init__(self, task_id: str, reason: str, remedy: str | None = None) -> None:
        super().__init__(task_id, reason, remedy)
        self.task_id = task_id
        self.reason = reason
        self.by_resume = remedy is not None
        self.why = reason if remedy is None else f"{reason}; {remedy}"

    def __str__(self) -> str:
        return f"task {self.task_id} takes no messages: {self.why}"


class ResumeRefused(SupervisorError):
    """Raised by `Runtime.resume` for an agent that cannot go on; ``why`` says the
    reason. The agent is as it was, and so is what is told of its end."""

    def __init__(self, task_id: str, why: str) -> None:
        super().__init__(task_id, why)
        self.task_id = task_id
        self.why = why

    def __str__(self) -> str:
        return f"agent {self.task_id} cannot be resumed: {self.why}"


class AgentRunsElsewhere(ResumeRefused):
    """Raised by `Runtime.resume` for an agent that another runtime with the same
    directory runs, in this process or another; ``holder`` says which, in words such
    as ``process 4711``. It is free as soon as it has ended there, or that process."""

    def __init__(self, task_id: str, holder: str) -> None:
        why = f"another runtime has the directory open and runs it: {holder}"
        super().__init__(task_id, why)
        self.args = (task_id, holder)
        self.holder = holder


class DepthExceeded(SupervisorError):
    """Raised by `launch` and `run` when an agent would be deeper below the
    program's own agents than `AgentPolicy.max_depth` allows, or when how deep it
    would be cannot be told. Nothing was started. ``child_depth`` is the depth it
    would have, ``max_depth`` the deepest allowed, ``lineage`` the ids of the agents
    above it, the outermost first."""

    def __init__(
        self, child_depth: int | None, max_depth: int, lineage: Sequence[str]
    ) -> None:
        super().__init__(child_depth, max_depth, tuple(lineage))
        self.child_depth = child_depth
        self.max_depth = max_depth
        self.lineage = tuple(lineage)

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


class AskFailed(SupervisorError):
    """Raised when a function of `Permissions.ask` has raised, as its cause: nobody
    knows whether the call may be made. It fails the agent."""

    def __init__(
        self, agent_id: str, tool: str, tool_use_id: str, error: Exception
    ) -> None:
        super().__init__(agent_id, tool, tool_use_id, error)
        self.agent_id = agent_id
        self.tool = tool
        self.tool_use_id = tool_use_id
        self.error = error

    def __str__(self) -> str:
        return (
            f"no answer on the call {self.tool_use_id} of {self.tool} by agent"
            f" {self.agent_id}: {type(self.error).__name__}: {self.error}"
        )
