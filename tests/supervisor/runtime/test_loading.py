"""What `import supervisor.runtime` loads: what every runtime needs, and no more.

Agents are of the life of a task; their permissions and hooks are there as values, and
what judges and calls is loaded with the first rule, hook or agent.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

PROGRAM = """
import sys
import attrs, cattrs, orjson, trio
there = set(sys.modules)
import supervisor.runtime
print(*sorted(set(sys.modules) - there))
"""

IN_PART = {
    "supervisor.agents": {
        *("", "._approvals", "._inherited", "._messages", "._resume", "._side")
    },
    "supervisor.hooks": {"", "._advice", "._hook"},
    "supervisor.permissions": {
        *("", "._glob", "._judging", "._modes", "._near_names", "._paths"),
        *("._rules", "._tool_names"),
    },
}
"""The modules that are loaded of rooms of which not all are needed."""

NOT_AT_ALL = {
    "actors": ("_system", "models", "testing"),
    "supervisor": (
        *("attachments", "cli", "definitions", "lowlevel", "schedule", "settings"),
        *("settings_file", "simulation", "tools"),
    ),
}
"""Rooms that only some calls need, or other programs."""


def loaded() -> set[str]:
    """Return what a fresh process loads for it, besides what is below all rooms."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.split())


def below(names: set[str], room: str) -> set[str]:
    return {it for it in names if it == room or it.startswith(f"{room}.")}


def test_a_runtime_loads_no_room_that_only_some_calls_need() -> None:
    names = loaded()
    for package, rooms in NOT_AT_ALL.items():
        assert [it for it in rooms if below(names, f"{package}.{it}")] == []
    for room, parts in IN_PART.items():
        assert below(names, room) == {room + part for part in parts}
    assert "supervisor.runtime" in names and "actors.shell" in names


def test_nothing_of_python_itself_is_loaded_for_a_function_or_two() -> None:
    """What parses HTML brings a client for the web, and `difflib` is for mistakes."""
    names = loaded()
    ours = below(names, "actors") | below(names, "supervisor")
    assert names - ours == set()
