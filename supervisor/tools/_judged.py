"""Calls of a host's own model that are judged before they are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from actors.agent import ToolUse

from ..permissions import Permissions, ToolRequest, resolve_mode
from ._inherited import record_of
from ._tool import Guard, Tool

if TYPE_CHECKING:
    from ..runtime import Runtime

_TYPE: Final = "main"
"""What the type of an owner is called that is no agent."""


def guard_of(runtime: Runtime, owner: str | None, permissions: Permissions) -> Guard:
    """Return what judges the calls of ``owner``: rules, mode, `Permissions.ask` and,
    in the mode ``bubble``, whoever answers ``runtime.approvals``."""
    name = owner or _TYPE

    async def guard(
        tool: Tool, arguments: Mapping[str, Any], tool_use_id: str | None
    ) -> str | None:
        task = record_of(runtime, owner)
        mode, life = permissions.mode, runtime.life
        if task is not None:
            mode = resolve_mode(task.mode, mode)
        elif mode == "bubble":
            runtime.approvals.admit_host(name)
        request = ToolRequest(
            agent_id=name,
            agent_type=_TYPE if task is None else task.recipe.type,
            depth=0 if task is None else task.depth,
            mode=mode,
            tool_use=ToolUse(tool_use_id or "", tool.name, dict(arguments)),
            cwd=life.agents.home_of(None) if task is None else task.home,
            background=task is not None and task.background,
            fill=tool.fill,
            follow=life.env.files.follow,
            runtime_directory=str(life.directory),
        )
        verdict = await permissions.judge(request, runtime.approvals)
        return None if verdict.allowed else verdict.reason

    return guard
