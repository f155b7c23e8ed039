"""What an agent hands down to those that it starts.

They have its model, directory and session where nothing else is said, and may
use no tool that it may not use itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from .._errors import UnknownTask
from .._tool_names import in_both

if TYPE_CHECKING:
    from actors.agent import Agent

    from .._agent_task import AgentTask
    from .._handles import TaskHandle
    from ..runtime import Runtime


def record_of(runtime: Runtime, owner: str | None) -> AgentTask | None:
    """Return the record of an owner that is an agent, None if it is none."""
    from .._agent_task import AgentTask

    if owner is None:
        return None
    try:
        record = runtime.handle(owner).belongs_to(runtime)
    except UnknownTask:
        return None
    return record if isinstance(record, AgentTask) else None


def recipe_of(runtime: Runtime, task: TaskHandle) -> Agent | None:
    """Return the agent that a task is, or None if it is something else."""
    from .._agent_task import AgentTask

    record = task.belongs_to(runtime)
    return record.recipe if isinstance(record, AgentTask) else None


@attrs.frozen(kw_only=True)
class Inherited:
    """What comes from above, for a call of the tool."""

    tools: tuple[str, ...] | None = None
    """Their names; None is all."""
    disallowed_tools: tuple[str, ...] = ()
    model: str | None = None
    cwd: str | None = None
    session: str | None = None

    def narrowed(
        self, tools: tuple[str, ...] | None, disallowed: tuple[str, ...]
    ) -> dict[str, Any]:
        """Return the arguments of an `Agent` that is restricted to ``tools`` and
        may not use ``disallowed``, besides."""
        if tools is None:
            tools = self.tools
        elif self.tools is not None:
            tools = in_both(tools, self.tools)
        both = dict.fromkeys((*self.disallowed_tools, *disallowed))
        return {
            "tools": tools,
            "disallowed_tools": tuple(both),
            "model": self.model,
            "cwd": self.cwd,
            "session": self.session,
        }


def inherited(runtime: Runtime, owner: str | None) -> Inherited:
    """Return what ``owner`` hands down; nothing if it is no agent."""
    if owner is None:
        return Inherited()
    try:
        above = recipe_of(runtime, runtime.handle(owner))
    except UnknownTask:
        return Inherited()
    if above is None:
        return Inherited()
    return Inherited(
        tools=None if above.tools is None else tuple(above.tools),
        disallowed_tools=tuple(above.disallowed_tools),
        model=above.model,
        cwd=above.cwd,
        session=above.session,
    )
