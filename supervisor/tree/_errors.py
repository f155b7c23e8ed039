"""What the supervisor tree raises. What a runtime adds is below `SupervisorError` too.

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
"""

from __future__ import annotations

import attrs


class SupervisorError(Exception):
    """The root of what `supervisor` raises by itself."""


class InvalidChildSpec(SupervisorError):
    """Raised when a child spec cannot be right. The error names the field and its
    value. Nothing was started."""


class InvalidSupervisorFlags(SupervisorError):
    """Raised when the flags of a supervisor cannot be right. The error names the flag
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
    """Raised when a child ended before it acknowledged its start. If it raised an
    error, that is the cause."""

    child_id: str
    why: str

    def __str__(self) -> str:
        return f"child {self.child_id!r} failed to start: {self.why}"


class SupervisorStopping(SupervisorError):
    """Raised when a supervisor that is stopping, or has ended, is asked to start
    a child."""


@attrs.define(slots=False, repr=False)
class StillRunning(SupervisorError):
    """Raised by `terminate_child` when the child has outlived its shutdown budget. The
    child was told to stop, and its end will be recorded. It is shielded, or stuck in a
    thread. ``stack`` says where."""

    child_id: str
    budget: float
    stack: str

    def __str__(self) -> str:
        return (
            f"child {self.child_id!r} is still running {self.budget:g} s after it was "
            f"told to stop, at\n{self.stack}"
        )


class WouldDeadlock(SupervisorError):
    """Raised when a child asks its supervisor, or an ancestor, to end the child itself.
    It would wait for its own end. ``ctx.ref.stop()`` does not wait."""


@attrs.define(slots=False, repr=False)
class RestartIntensityExceeded(SupervisorError):
    """Raised by a supervisor's block when its children had to be restarted more
    often than its intensity allows. ``failures`` holds the last ends, the oldest first,
    each as (child id, description)."""

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


class DeadlinePassed(TimeoutError):
    """The cause of a `RestartIntensityExceeded`, if a deadline ended the last run."""


@attrs.define(slots=False, repr=False)
class AskFailed(SupervisorError):
    """Raised when a function of `Permissions.ask` has raised, because nobody then knows
    whether the call may be made. What the function has raised is the cause. The agent
    fails."""

    agent_id: str
    tool: str
    tool_use_id: str
    error: Exception

    def __str__(self) -> str:
        return (
            f"no answer on the call {self.tool_use_id} of {self.tool} by agent"
            f" {self.agent_id}: {type(self.error).__name__}: {self.error}"
        )
