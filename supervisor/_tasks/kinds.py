"""The kinds of tasks: a row for each."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

Pool = Literal["shells", "agents"]
POOLS: tuple[Pool, ...] = get_args(Pool)
"""Each is a child of the runtime's root, and a cap of `Limits`."""


class TaskKind(NamedTuple):
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
    progress_by: Literal["bytes", "tools", "text"]
    """What their progress is told by: what they have printed, the tools and tokens
    that they have used, or their own words."""
    hook_type: str
    """What the commands of hooks know them by."""


KINDS: Final = {
    kind.name: kind
    for kind in (
        TaskKind("local_bash", "s", "shells", "shells", "Command", "bytes", "shell"),
        TaskKind("local_agent", "", "agents", "agents", "Agent", "tools", "subagent"),
        TaskKind(
            "remote_agent", "r", "agents", "agents", "Agent", "text", "remote_agent"
        ),
        # Whatever else a host runs in the background.
        TaskKind("local_work", "w", "agents", None, "Task", "tools", "local_work"),
    )
}
"""By name."""
