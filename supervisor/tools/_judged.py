"""Calls of a host's own model that are judged before they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from actors.agent import ToolUse

from ..agents._inherited import agent_record
from ..lowlevel import life_of
from ..permissions import Permissions, ToolRequest
from ..permissions._modes import resolve_mode
from ..permissions._paths import home_directory
from ._arguments import Refused
from ._tool import Guard, Tool

if TYPE_CHECKING:
    from ..runtime import Runtime

_TYPE: Final = "main"
"""The type of an owner that is not an agent, and its name if it has none."""
_ID_DIGITS: Final = 16


def guard_of(
    runtime: Runtime, owner: str | None, permissions: Permissions, tools: Sequence[Tool]
) -> Guard:
    """Return what judges the calls of ``owner``: rules, mode, `Permissions.ask` and,
    in the mode ``bubble``, whoever answers ``runtime.approvals``. Rules that match
    none of ``tools`` are warned of."""
    from ..hooks import Hooks
    from ..hooks._idle_guards import idle_guards

    name = _TYPE if owner is None else owner
    life = life_of(runtime)
    told = life.agents.told_idle
    for text in idle_guards(permissions.rules, Hooks(), lambda: tools):
        if text not in told:
            told.add(text)
            life.delivery.warn(None, text)

    async def guard(
        tool: Tool, arguments: Mapping[str, Any], tool_use_id: str | None
    ) -> Mapping[str, Any] | None:
        task, mode = agent_record(life.table, owner), permissions.mode
        if task is not None:
            mode = resolve_mode(task.mode, mode)
        # An answer is for one call, so each has an id.
        use_id = tool_use_id or f"call_{life.env.ids.hex(_ID_DIGITS)}"
        request = ToolRequest(
            agent_id=name,
            agent_type=_TYPE if task is None else task.recipe.type,
            depth=0 if task is None else task.depth,
            mode=mode,
            tool_use=ToolUse(use_id, tool.name, dict(arguments)),
            cwd=life.env.files.follow(".") if task is None else task.home,
            background=task is not None and task.background,
            fill=tool.fill,
            follow=life.env.files.follow,
            home=home_directory(life.env.processes.environment()),
            runtime_directory=str(life.directory),
        )
        approvals = runtime.approvals
        verdict = await permissions.judge(
            request, approvals.of_host(owner) if task is None else approvals
        )
        if not verdict.allowed:
            raise Refused("not_allowed", verdict.reason)
        return verdict.input

    return guard
