"""The tools through which a model works with background tasks.

`supervisor.runtime.Runtime.tools_for` makes them for one owner.
"""

# General layout:
# _tool          what a tool is, and how it answers
# _arguments     the fields of a tool: their schema, and the check of what came
# _judged        calls of a host's own model that are judged first
# _owned         the tasks of an owner: finding one, describing one
# _bash _agent _send_message _task_output _task_stop _task_list _task_write
# _task_monitor _todo_write
#                one tool a file
# _host          the processes of the host
# _self_kill     commands that would end them
# _set           all of them together

from __future__ import annotations

from actors.house import publish as _publish

from ._arguments import Field
from ._set import TOOL_NAMES
from ._tool import Tool, ToolResult

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "TOOL_NAMES",
    "Field",
    "Tool",
    "ToolResult",
]

_publish(globals())
