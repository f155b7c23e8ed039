"""What `import supervisor.runtime` loads: what every runtime needs, and no more.

What agents are, what they have said, what judges their calls, asks a person, or lets
messages reach them is loaded with the first rule, hook or agent, and opening a runtime
and running a command loads none of it.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PROGRAM = """
import sys
import attrs, cattrs, orjson, trio
there = set(sys.modules)
import supervisor.runtime
{}
print(*sorted(set(sys.modules) - there))
"""

A_COMMAND = """
from actors.shell import Shell

async def main():
    async with supervisor.runtime.open_runtime(sys.argv[1]) as runtime:
        done = await runtime.run(Shell("true"))
    assert done.exit_code == 0

trio.run(main)
"""

AN_AGENT_THAT_NEVER_RAN = """
from actors.agent import Agent

async def loop(context):
    yield

async def main():
    async with supervisor.runtime.open_runtime(sys.argv[1]) as runtime:
        task = await runtime.launch(Agent(loop, "look"))
    assert task.snapshot().status.value == "killed"

trio.run(main)
"""

IN_PART = {
    # How an agent fails, and what a snapshot says that it has done.
    "actors.agent": {"", "._activity", "._errors"},
    "actors.transcript": {"", ".writer"},
    "supervisor.agents": {"", "._side"},
}
"""The modules that are loaded of rooms of which not all are needed."""

NOT_AT_ALL = {
    "actors": ("_system", "models", "testing"),
    "supervisor": (
        *("attachments", "cli", "definitions", "hooks", "lowlevel", "permissions"),
        *("schedule", "settings", "settings_file", "simulation", "tools"),
    ),
}
"""Rooms that only some calls need, or other programs."""


def loaded(then: str = "", *arguments: str) -> set[str]:
    """Return what a fresh process loads for it, besides what is below all rooms, and
    for what it does ``then``."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(then), *arguments],
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
    assert not any(name.endswith(".agent_task") for name in names)
    assert "supervisor.runtime" in names and "actors.shell" in names


def test_a_command_needs_nothing_of_agents(tmp_path: Path) -> None:
    names = loaded(A_COMMAND, str(tmp_path))
    for room, parts in IN_PART.items():
        assert below(names, room) == {room + part for part in parts}
    assert not any(name.endswith(".agent_task") for name in names)
    assert below(names, "supervisor.hooks") == set()
    assert below(names, "supervisor.permissions") == set()


def test_the_stop_of_an_agent_that_never_ran_loads_nothing(tmp_path: Path) -> None:
    """Loading may fail, where there is no descriptor left, and a stop may not."""
    names = loaded(AN_AGENT_THAT_NEVER_RAN, str(tmp_path))
    assert any(name.endswith(".agent_task") for name in names)
    assert not any(name.endswith("._approvals") for name in names)


@pytest.mark.parametrize(
    "module",
    ["actors.agent", "actors.transcript", "supervisor.agents", "supervisor.runtime"],
)
def test_a_name_that_is_loaded_late_is_there_as_others_are(module: str) -> None:
    """In a fresh process, where nobody has wanted it before."""
    loaded(
        f"import {module}\n"
        f"assert {{*{module}.__all__}} <= {{*dir({module})}}\n"
        f"from {module} import *\n"
        f"assert {{*{module}.__all__}} <= {{*globals()}}"
    )
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'x'"):
        importlib.import_module(module).x  # noqa: B018


def test_nothing_of_python_itself_is_loaded_for_a_function_or_two() -> None:
    """What parses HTML brings a client for the web, and `difflib` is for mistakes."""
    names = loaded()
    ours = below(names, "actors") | below(names, "supervisor")
    assert names - ours == set()
