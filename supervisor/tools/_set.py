"""All tools of one owner."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from actors.agent import AgentFailed
from actors.house import check_type

from ..permissions import Permissions
from ..settings import Settings, read_settings
from ._agent import agent
from ._arguments import repeated
from ._bash import bash
from ._judged import guard_of
from ._send_message import send_message
from ._task_list import task_list
from ._task_output import task_output
from ._task_stop import kill_shell, task_stop
from ._task_write import task_write
from ._tool import Tool

if TYPE_CHECKING:
    from ..runtime import Runtime

TOOL_NAMES: Final = (
    "Bash",
    "TaskOutput",
    "TaskStop",
    "TaskList",
    "TaskWrite",
    "KillShell",
    "Agent",
    "SendMessage",
)
"""The names of all tools. The last two need a loop for agents."""


def tools_for(
    runtime: Runtime,
    owner: str | None,
    settings: Settings | None = None,
    permissions: Permissions | None = None,
) -> list[Tool]:
    """Return the tools that work on the tasks of ``owner``, and on no others.

    They are five, Bash, TaskOutput, TaskStop, TaskList and TaskWrite, and after
    them KillShell: the older name of TaskStop, for models that were trained on
    it. A host may leave that one out. A runtime that has a loop for agents, in
    its `supervisor.agents.AgentPolicy`, has Agent and SendMessage besides.

    Args:
        runtime: where the tasks are.
        owner: whose; None is one too, that of tasks without one.
        settings: None reads them from the environment, now.
        permissions: what calls are judged by; None if they are not.

    Raises:
        TypeError: for a bad argument.
        ValueError: for a bad variable; see `supervisor.settings.read_settings`.
    """
    check_type("owner", owner, str | None)
    check_type("settings", settings, Settings | None)
    check_type("permissions", permissions, Permissions | None)
    if settings is None:
        settings = read_settings(os.environ)
    tools = [
        bash(runtime, owner, settings),
        task_output(runtime, owner, settings),
        task_stop(runtime, owner),
        task_list(runtime, owner),
        task_write(runtime, owner),
        kill_shell(runtime, owner),
    ]
    if (loop := runtime.agents.run) is not None:
        tools.append(agent(runtime, owner, settings, loop))
        tools.append(send_message(runtime, owner))
    if permissions is None:
        return tools
    guard = guard_of(runtime, owner, permissions, tools)
    return [tool.guarded(guard) for tool in tools]


def more_tools(runtime: Runtime, agent_id: str) -> Sequence[Tool]:
    """Return the tools that `supervisor.agents.AgentPolicy.tools` adds for an agent.

    Raises:
        AgentFailed: if it returns something else. The agent's model cannot mend that,
            so it is not the answer of a call.
    """
    make = runtime.agents.tools
    made: object = () if make is None else make(runtime, agent_id)
    if not isinstance(made, list | tuple):
        raise _not_tools(repr(made))
    tools = cast("Sequence[Any]", made)
    for tool in tools:
        if not isinstance(tool, Tool):
            raise _not_tools(repr(tool))
    if twice := repeated(tool.name for tool in tools):
        raise _not_tools(f"two of the name {twice[0]!r}")
    return tools


def _not_tools(what: str) -> AgentFailed:
    return AgentFailed("error", f"AgentPolicy.tools must return Tools, not {what}")
