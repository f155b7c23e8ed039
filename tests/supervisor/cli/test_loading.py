"""What the command loads: a text of help needs no runtime, nor trio."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.cli import _command
from supervisor.permissions import MODES

ROOT = Path(__file__).parents[3]

PROGRAM = """
import sys
from supervisor.cli import main
try:
    main()
finally:
    print(*sorted(sys.modules), file=sys.stderr)
"""


def loaded(arguments: str) -> set[str]:
    """Return the modules that a call has loaded, which succeeds."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments.split()],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        *("--help", "-h", "--version", "run --help", "agent --help", "demo --help"),
        *("sim --help", "sim cancel --help", "sim campaign --help"),
    ],
)
def test_a_help_text_loads_the_command_line_alone(arguments: str) -> None:
    """And click: what a command needs is loaded by the one that does something."""
    names = loaded(arguments)
    ours = {name for name in names if name.split(".")[0] in ("actors", "supervisor")}
    assert ours <= {
        "supervisor",
        "supervisor.cli",
        "supervisor.cli._command",
        "supervisor.cli._patient",
        "supervisor.cli._sim_codes",
        "supervisor.cli._sim_command",
        "supervisor.cli._values",
    }
    heavy = ("trio", "attr", "attrs", "cattrs", "orjson", "outcome")
    assert names.isdisjoint(heavy)
    assert ("importlib.metadata" in names) is (arguments == "--version")


def test_a_call_that_does_something_loads_what_it_needs() -> None:
    """So the test above can see a module that is loaded."""
    assert {"trio", "supervisor.runtime"} <= loaded("run -c true")


def test_the_modes_in_the_help_are_those_that_there_are() -> None:
    assert _command.MODES == MODES
