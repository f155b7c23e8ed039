"""Whose a task is, and how deep below others an agent is."""

from __future__ import annotations

from .agent_task import AgentTask
from .errors import DepthExceeded, RuntimeStopping
from .record import Task
from .table import Table


def parent_of(
    table: Table, owner: str | None, current: Task | None
) -> AgentTask | None:
    """Return the agent whose own task a new one is to be: the one that its owner's
    name says or, if nobody is named, that from which the call comes, ``current`` or
    the one above it.

    Raises:
        RuntimeStopping: if that agent is stopping.
    """
    named = current if owner is None else table.live.get(owner)
    if named is None:
        return None
    parent = named.as_agent
    if parent is None and owner is None:
        parent = named.parent
    if parent is not None and parent.stopping:
        raise RuntimeStopping(
            f"the agent {parent.task_id} is stopping and starts no task"
        )
    return parent


def depth_below(parent: AgentTask | None, max_depth: int) -> int:
    """Return the depth of an agent whose parent this is.

    Raises:
        DepthExceeded: if that is too deep, or cannot be told.
    """
    if parent is None:
        return 0
    lineage: list[str] = []
    above: AgentTask | None = parent
    while above is not None and above.task_id not in lineage:
        lineage.append(above.task_id)
        above = above.parent
    lineage.reverse()
    # A parent that is its own, or a depth from a file that somebody has changed.
    if above is not None or parent.depth < 0:
        raise DepthExceeded(None, max_depth, tuple(lineage))
    if parent.depth >= max_depth:
        raise DepthExceeded(parent.depth + 1, max_depth, tuple(lineage))
    return parent.depth + 1
