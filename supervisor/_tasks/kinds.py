"""The kinds of tasks: a row for each."""

from __future__ import annotations

from typing import Final, Literal

import attrs

Pool = Literal["shells", "agents"]


@attrs.frozen
class TaskKind:
    """What tasks of one type have in common."""

    name: str
    """The type, as works, snapshots and envelopes have it."""
    id_prefix: str
    """What their ids begin with."""
    pool: Pool
    """The supervisor below which those run that are not an agent's own."""
    cap: Pool | None
    """The field of `Limits` that they count for besides ``total``."""
    word: str
    """What they are called in sentences."""


KINDS: Final = {
    kind.name: kind
    for kind in (
        TaskKind("local_bash", "s", "shells", "shells", "Command"),
        TaskKind("local_agent", "", "agents", "agents", "Agent"),
        TaskKind("remote_agent", "r", "agents", "agents", "Agent"),
        # Whatever else a host runs in the background.
        TaskKind("local_work", "w", "agents", None, "Task"),
    )
}
"""By name."""
