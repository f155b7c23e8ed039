"""What an agent hands down to those that it starts.

They have its model, directory and session where nothing else is said, and may
use no tool that it may not use itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .._tasks.agent_task import AgentTask
from .._tasks.record import Table
from ..permissions._tool_names import in_both


def agent_record(table: Table, task_id: str | None) -> AgentTask | None:
    """Return the record of an agent, None if the id is that of something else."""
    record = table.find(task_id)
    return None if record is None else record.as_agent


class Inherited(NamedTuple):
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


def inherited(table: Table, owner: str | None) -> Inherited:
    """Return what ``owner`` hands down; nothing if it is not an agent."""
    record = agent_record(table, owner)
    if record is None:
        return Inherited()
    above = record.recipe
    return Inherited(
        tools=None if above.tools is None else tuple(above.tools),
        disallowed_tools=tuple(above.disallowed_tools),
        model=above.model,
        cwd=above.cwd,
        session=above.session,
    )
