"""What an agent hands down to those that it starts."""

from __future__ import annotations

from typing import Any

from supervisor.agents._inherited import Inherited


def test_what_two_agents_may_use_is_what_both_may() -> None:
    """Under whatever name each of them knows a tool."""

    def both(above: list[str] | None, own: list[str] | None) -> Any:
        inherited = Inherited(tools=None if above is None else tuple(above))
        return inherited.narrowed(None if own is None else tuple(own), ())["tools"]

    assert both(["Agent", "Bash"], ["Task", "Read"]) == ("Task",)
    assert both(["mcp__git"], ["mcp__git__log", "Bash"]) == ("mcp__git__log",)
    assert both(["mcp__git__log", "Bash"], ["mcp__git"]) == ("mcp__git__log",)
    assert both(["mcp__*", "Bash"], ["mcp__git__*"]) == ("mcp__git__*",)
    assert both(["mcp__git__get_*"], ["mcp__git"]) == ("mcp__git__get_*",)
    assert both(["mcp__*"], ["Bash"]) == ()
    assert both(["TaskStop"], ["KillShell", "KillBash"]) == ("KillShell", "KillBash")
    assert both(None, ["Bash"]) == ("Bash",)
    assert both(["Bash"], None) == ("Bash",)
