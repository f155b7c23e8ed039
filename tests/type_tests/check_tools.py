"""What type checkers must say about the tools. Checked, never run."""

from __future__ import annotations

import os
from typing import Any, assert_type

from supervisor.attachments import ProgressReports, after_compaction, reminder
from supervisor.permissions import Mode, Permissions, Rule, read_mode
from supervisor.runtime import Runtime
from supervisor.settings import Settings, read_settings
from supervisor.tools import Tool, ToolResult


async def check_tools(runtime: Runtime) -> None:
    assert_type(read_settings(os.environ), Settings)
    strict = Settings(background_tasks=False)
    assert_type(runtime.tools_for(None, settings=strict), list[Tool])
    Settings(True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    for tool in runtime.tools_for("main"):
        assert_type(tool.name, str)
        assert_type(tool.description, str)
        assert_type(tool.schema, dict[str, Any])
        result = await tool.call({"command": "ls"}, tool_use_id="toolu_01")
        assert_type(result, ToolResult)
        assert_type(result.text, str)
        assert_type(result.is_error, bool)
        assert_type(result.data, dict[str, Any])
        # Whatever a model has sent.
        await tool.call(None)
        await tool.call([1, "x"])
        await tool.call({}, tool_use_id=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def check_attachments(runtime: Runtime) -> None:
    assert_type(reminder(runtime, "main"), str | None)
    assert_type(after_compaction(runtime, None), str | None)
    assert_type(ProgressReports(runtime, "main").new(), list[str])


def check_permissions(mode: Mode, name: str) -> None:
    Permissions(rules=[Rule("allow", "Bash(ls *)")], mode="accept_edits")
    Permissions(mode="acceptEdits")
    assert_type(Permissions(mode=mode).mode, Mode)
    assert_type(read_mode(name), Mode)
    Permissions(mode=read_mode(name))
    Permissions(mode="accept_edit")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Permissions(mode=name)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
