"""The tutorial: each command prints what the page says."""

from __future__ import annotations

import re

import pytest

from tests import tutorial

pytest.importorskip("click")
pytest.importorskip("rich")

COMMANDS = tutorial.commands()


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_prints_what_the_page_says(command: str) -> None:
    assert tutorial.printed(command) == COMMANDS[command], (
        "if that is meant: python -m tests.tutorial"
    )


def test_each_bug_is_found_and_each_mended_program_is_clean() -> None:
    found = {
        re.sub(r".*/(\w+)\.py:(\w+) .*", r"\1 \2", command): output
        for command, output in COMMANDS.items()
        if " sim cancel examples/tutorial/terminal" not in command
    }
    files = {it.stem for it in (tutorial.ROOT / "examples/tutorial").glob("*.py")}
    assert len(files) == 5
    assert {*found} == {f"{it} {one}" for it in files for one in ("program", "mended")}
    for name, output in found.items():
        assert ("nothing is wrong" in output) == name.endswith(" mended")
