"""What a runtime raises, beside what its tree does. All are `SupervisorError`s.

- UnknownTask
- BacklogFull
- RuntimeStopping
- InputClosed
- MessageRefused
- ResumeRefused
  - AgentRunsElsewhere
- DepthExceeded
- KeyTaken
- KeyElsewhere
"""

from __future__ import annotations

import attrs

from actors.text import one_line

from ..tree._errors import SupervisorError


@attrs.define(slots=False, repr=False)
class UnknownTask(SupervisorError):
    """Raised for a task id that the runtime does not know, or has forgotten. The error
    lists the running tasks."""

    task_id: str
    running: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        listed = ", ".join(
            f"{id} ({description})" for id, description in self.running[:20]
        )
        more = f" and {len(self.running) - 20} more" if len(self.running) > 20 else ""
        return f"no task {self.task_id!r}; running: {listed + more or 'none'}"


@attrs.define(slots=False, repr=False)
class BacklogFull(SupervisorError):
    """Raised by `launch` when too many notifications wait to be acknowledged. Nobody
    reads them, so nothing more is started."""

    waiting: int

    def __str__(self) -> str:
        return f"{self.waiting} notifications are not acknowledged; read and ack() them first"


class RuntimeStopping(SupervisorError):
    """Raised by `launch` and `run` when the runtime is stopping or has ended."""


@attrs.define(slots=False, repr=False)
class InputClosed(SupervisorError):
    """Raised by `TaskHandle.write` and `TaskHandle.close_input` when the task takes no
    input, or takes no more. ``why`` says which. Only a task that was launched with an
    input, such as ``Shell(..., stdin="pipe")``, takes any."""

    task_id: str
    why: str

    def __str__(self) -> str:
        return f"task {self.task_id} takes no input: {self.why}"


@attrs.define(slots=False, repr=False)
class MessageRefused(SupervisorError):
    """Raised by `Runtime.send` for a message that its agent will never see. ``why``
    gives the reason, and then says what helps, if anything does. ``reason`` is the
    reason alone. ``by_resume`` says whether the agent can be resumed. Nothing was
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
    """Raised by `Runtime.resume` for an agent that cannot go on. ``why`` gives the
    reason. The agent is as it was, and so is the notification of its end."""

    task_id: str
    why: str

    def __str__(self) -> str:
        return f"agent {self.task_id} cannot be resumed: {self.why}"


@attrs.define(slots=False, repr=False)
class AgentRunsElsewhere(ResumeRefused):
    """Raised by `Runtime.resume` for an agent that another runtime with the same
    directory runs, in this process or another. ``holder`` says which, in words such as
    ``process 4711``. The agent can be resumed here when it has ended there, or when
    that process has ended."""

    holder: str
    why: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.why = f"another runtime has the directory open and runs it: {self.holder}"


class LoopMissing(ResumeRefused):
    """Nothing says with which loop an agent would go on. Somebody may still say it."""


class NeverAgain(ResumeRefused):
    """An agent cannot go on, whoever asks."""


@attrs.define(slots=False, repr=False)
class DepthExceeded(SupervisorError):
    """Raised by `launch` and `run` when an agent would be deeper than
    `AgentPolicy.max_depth` allows. It is also raised if the depth is unknown. Nothing
    was started. ``child_depth`` is the depth that the agent would have. ``max_depth``
    is the deepest that is allowed. ``lineage`` holds the ids of the agents above it,
    the outermost first."""

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
class KeyTaken(SupervisorError):
    """Raised by `launch` for a key with which its owner has begun something else.
    Nothing was started."""

    key: str
    owner: str | None
    task_id: str
    """The task that the key has begun."""
    begun: str
    """What that does: the command of a shell, or the prompt of an agent."""
    asked: str
    """What was to be done now."""

    def __str__(self) -> str:
        whose = "" if self.owner is None else f" of {self.owner}"
        begun, asked = one_line(self.begun, _SHOWN), one_line(self.asked, _SHOWN)
        return (
            f"the key {self.key!r}{whose} has begun task {self.task_id} with "
            f"{begun!r}, not with {asked!r}: give that another key"
        )


@attrs.define(slots=False, repr=False)
class KeyElsewhere(SupervisorError):
    """Raised by `launch` for a key, in a runtime that shares its directory with an
    earlier one. That one keeps the journal, and so alone knows what was begun with which
    key. Nothing was started. Launch there, or here once that has ended; ``holder`` says
    which it is, in words such as ``process 4711``."""

    key: str
    owner: str | None
    holder: str

    def __str__(self) -> str:
        whose = "" if self.owner is None else f" of {self.owner}"
        return (
            f"it cannot be told here what the key {self.key!r}{whose} has begun: "
            f"{self.holder} keeps the journal of the directory, and its keys. Launch it "
            "there, or here when that has ended"
        )


_SHOWN = 200
