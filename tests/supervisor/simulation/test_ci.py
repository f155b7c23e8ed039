"""The workflow of docs/ci.md: each of its commands is run as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PROGRAM = """
import trio

async def work(lock, seconds):
    async with lock:
        await trio.sleep(seconds)

async def program(sim):
    lock = trio.Lock()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, lock, 1)
        nursery.start_soon(work, lock, 2)
    with sim.within(60):
        await work(lock, 1)
"""

TESTS = """
import pytest
from program import program

@pytest.mark.sim
async def test_program(sim):
    await program(sim)
"""


def commands() -> dict[str, str]:
    """What each step of the workflow runs, by its name."""
    (workflow,) = re.findall(
        r"```yaml\n(.*?)\n```\n", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL
    )
    steps = workflow.split("\n      - ")[1:]
    found: dict[str, str] = {}
    for step in steps:
        name = re.match(r"name: (.*)", step)
        if run := re.search(r"run: (\|\n)?(.*)", step, re.DOTALL):
            found[name[1] if name else "install"] = textwrap.dedent(run[2])
    return found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("broken", [False, True], ids=["clean", "broken"])
def test_each_line_of_the_recipe_works(broken: bool, tmp_path: Path) -> None:
    lock = "await lock.acquire()\n    await trio.sleep(seconds)\n    lock.release()"
    code = PROGRAM
    if broken:
        code = code.replace("async with lock:\n        await trio.sleep(seconds)", lock)
        assert code != PROGRAM
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "program.py").write_text(code)
    (tmp_path / "tests" / "test_program.py").write_text(TESTS)
    (tmp_path / "bin").mkdir()
    for name, module in (("pytest", "pytest"), ("trio-supervisor", "supervisor.cli")):
        file = tmp_path / "bin" / name
        plugin = " -p _trio_supervisor_pytest" if name == "pytest" else ""
        file.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -m {module}{plugin} "$@"\n'
        )
        file.chmod(0o755)
    summary = tmp_path / "summary.md"
    asked = commands()
    assert "trio-supervisor[cli]" in asked.pop("install")
    assert len(asked) == 5
    codes: dict[str, int] = {}
    for name, command in asked.items():
        short = command.replace("--time 10m", "--time 1s").replace("time 60", "time 1")
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", short.replace("time 2 ", "time 0.3 ")],
            cwd=tmp_path,
            env={
                "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                # Or each of them would compile all of the source.
                "PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode"),
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "GITHUB_STEP_SUMMARY": str(summary),
                "GITHUB_ACTIONS": "true",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        codes[name] = done.returncode
        if done.returncode:
            assert "::error file=tests/" in done.stdout, done.stdout
    wrong = {name for name, code in codes.items() if code}
    faulty = {"A minute for each test, with faults", "Ten minutes for one program"}
    assert wrong == (faulty if broken else set())
    assert "campaign: " in summary.read_text()
    kept = {it.parent for it in tmp_path.rglob(".sim/*.json")}
    assert kept == (
        {tmp_path / ".sim", tmp_path / "tests" / ".sim"} if broken else set()
    )


def test_a_run_that_never_ends_is_told_by_each_test_of_the_recipe() -> None:
    pytests = [it for it in commands().values() if it.startswith("pytest ")]
    assert len(pytests) == 2
    assert all(re.search(r"--sim-jobs [2-9]", it) for it in pytests)
