"""All tools of one owner."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from actors.house import check_type

from ..permissions import Permissions
from ..settings import Settings, read_settings
from ._agent import agent
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
