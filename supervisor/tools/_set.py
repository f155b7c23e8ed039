"""All tools of one owner."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from actors.agent import AgentFailed
from actors.house import check_text, check_type

from ..agents._inherited import agent_record
from ..lowlevel import life_of
from ..permissions import Permissions
from ..settings import Settings, read_settings
from ._agent import agent
from ._arguments import repeated
from ._bash import bash
from ._judged import guard_of
from ._send_message import send_message
from ._task_list import task_list
from ._task_monitor import task_monitor
from ._task_output import task_output
from ._task_stop import kill_shell, task_stop
from ._task_write import task_write
from ._todo_write import todo_write
from ._tool import Tool

if TYPE_CHECKING:
    from actors.agent import Message

    from ..runtime import Runtime

TOOL_NAMES: Final = (
    "Bash",
    "TaskOutput",
    "TaskStop",
    "TaskList",
    "TaskWrite",
    "TaskMonitor",
    "KillShell",
    "TodoWrite",
    "Agent",
    "SendMessage",
)
"""The names of all tools. TodoWrite is for agents, and the last two need a loop for
them."""


def tools_for(
    runtime: Runtime,
    owner: str | None,
    settings: Settings | None = None,
    permissions: Permissions | None = None,
    history: Callable[[], Iterable[Message]] | None = None,
    system: str | None = None,
) -> list[Tool]:
    """Return the tools that work on the tasks of ``owner``, and on no others.

    They are six, Bash, TaskOutput, TaskStop, TaskList, TaskWrite and, where there may be
    background tasks, TaskMonitor. After them comes KillShell: the older name of
    TaskStop, for models that were trained on it. A host may leave that one out. An agent
    has TodoWrite besides. A runtime that has a loop for agents, in its
    `supervisor.agents.AgentPolicy`, has Agent and SendMessage.

    Args:
        runtime: where the tasks are.
        owner: whose; None is one too, that of tasks without one.
        settings: None reads them from the environment, now.
        permissions: what calls are judged by; None if they are not.
        history: returns the conversation of an owner that is no agent, for forks;
            None if there are none.
        system: the system prompt of these.

    Raises:
        TypeError: for a bad argument.
        ValueError: for a bad variable; see `supervisor.settings.read_settings`.
    """
    check_type("owner", owner, str | None)
    check_type("settings", settings, Settings | None)
    check_type("permissions", permissions, Permissions | None)
    check_text("system", system, none=True)
    if history is not None and not callable(history):
        raise TypeError(f"history must be a function or None, not {history!r}")
    if settings is None:
        settings = read_settings(os.environ)
    tools = [
        bash(runtime, owner, settings),
        task_output(runtime, owner, settings),
        task_stop(runtime, owner),
        task_list(runtime, owner),
        task_write(runtime, owner),
        *([task_monitor(runtime, owner)] if settings.background_tasks else ()),
        kill_shell(runtime, owner),
    ]
    if agent_record(life_of(runtime).table, owner) is not None:
        tools.append(todo_write())
    if (loop := runtime.agents.run) is not None:
        tools.append(agent(runtime, owner, settings, loop, history, system))
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
