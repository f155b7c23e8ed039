"""Every example runs, and README's is one of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import readme

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(code: Path, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(code)],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/local/bin:/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_and_says_something(example: Path, tmp_path: Path) -> None:
    assert run(example, tmp_path)


def test_the_embedding_example_shows_each_end_once(tmp_path: Path) -> None:
    shown = run(ROOT / "examples" / "embed.py", tmp_path)
    assert "foreground: failed exit code 3" in shown
    assert "server: killed survivors: ()" in shown
    assert shown.count("<task-notification>") == 2


def test_the_recovery_example_finds_again_what_its_killed_program_ran(
    tmp_path: Path,
) -> None:
    shown = run(ROOT / "examples" / "recovery.py", tmp_path)
    assert 'told: Command "test" completed' in shown
    assert 'Command "build"' not in shown
    assert "which was not begun again: failed" in shown
    assert "the agent: I know of my call: interrupted: the host died" in shown


def test_the_strategies_example_restarts_one_the_rest_or_all(tmp_path: Path) -> None:
    assert run(ROOT / "examples" / "strategies.py", tmp_path).splitlines() == [
        "one_for_one   first 5, second 0, third 5",
        "rest_for_one  first 5, second 0, third 0",
        "one_for_all   first 0, second 0, third 0",
    ]


def test_the_notifications_example_hears_of_each_task(tmp_path: Path) -> None:
    shown = run(ROOT / "examples" / "notifications.py", tmp_path)
    assert shown.count("the parent is told") == 3
    assert '"a closer look" completed' in shown


def test_the_long_agent_plans_forks_and_goes_on_from_a_summary(tmp_path: Path) -> None:
    shown = run(ROOT / "examples" / "long_agent.py", tmp_path).splitlines()
    assert "tool: 42 degrees, as 6 messages say." in shown
    assert "is reminded of its plan" in shown
    assert "goes on from a summary, with 2 messages as they were" in shown
    assert shown[-1] == "answer: It had 42 degrees."


def test_the_example_of_a_work_shows_its_result_and_its_output(tmp_path: Path) -> None:
    assert run(ROOT / "examples" / "work.py", tmp_path).splitlines() == [
        "the sum of 3 numbers: 3 of 3, result '6'",
        r"the sum of 3 numbers: 3 of 3, result '1\n3\n6\n'",
        "output: ['1', '3', '6']",
    ]


def test_the_example_of_crashes_finds_its_bug_and_where_it_is(tmp_path: Path) -> None:
    shown = run(ROOT / "examples" / "crash.py", tmp_path)
    assert "1 site is wrong" in shown
    assert "crash.py:31 compact  (kill" in shown


def test_the_scripted_agent_uses_real_tools(tmp_path: Path) -> None:
    shown = run(ROOT / "examples" / "scripted_agent.py", tmp_path)
    assert "completed: I have it all:" in shown
    assert "3 files" in shown
    assert "It is a poem." in shown


def test_without_a_terminal_the_foreground_is_moved_all_the_same(
    tmp_path: Path,
) -> None:
    shown = run(ROOT / "examples" / "foreground.py", tmp_path).splitlines()
    assert shown[1:] == [
        "The host is free for other things.",
        "in the background: counted to 5",
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal of Unix")
@pytest.mark.parametrize("key", [b"xyz\x02", b"", b"\x03"], ids=["B", "none", "C"])
def test_ctrl_b_moves_the_foreground_and_the_terminal_is_as_it_was(
    tmp_path: Path, key: bytes
) -> None:
    """BG1: with a pseudo-terminal; Ctrl+C ends the program, and the terminal is
    given back then, too."""
    import pty
    import termios

    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    code = ROOT / "examples" / "foreground.py"
    process = subprocess.Popen(
        # Whose terminal it is decides whom Ctrl+C reaches.
        [sys.executable, "-c", LEADS.format(code=str(code))],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/local/bin:/usr/bin:/bin"},
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert b"Ctrl+B" in process.stdout.readline()
        assert not termios.tcgetattr(theirs)[3] & (termios.ICANON | termios.ECHO)
        os.write(ours, key)
        shown, errors = process.communicate(timeout=60)
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)
    assert (process.returncode, errors) == (0, b"")
    if key == b"\x03":
        assert shown == b"interrupted\n"
        return
    moved = b"goes on in the background" in shown
    assert moved == (b"\x02" in key)
    place = b"background" if moved else b"foreground"
    assert b"in the %s: counted to 5" % place in shown


LEADS = """
import fcntl, os, runpy, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
runpy.run_path({code!r}, run_name="__main__")
"""


def test_the_example_in_the_readme_runs_and_is_short(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    (code,) = re.findall(r"<!-- example -->\n```python\n(.*?)```", readme, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    example = tmp_path / "example.py"
    example.write_text(code)
    shown = run(example, tmp_path)
    assert "completed 0" in shown
    assert shown.count("<task-notification>") == 1


def test_the_agent_in_the_readme_runs_and_is_short(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    (code,) = re.findall(r"<!-- agent -->\n```python\n(.*?)```", readme, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 22
    example = tmp_path / "example.py"
    example.write_text(code)
    shown = run(example, tmp_path)
    assert "I found:" in shown
    assert "example.py" in shown


@pytest.mark.limit(320)
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_what_the_readme_shows_has_types_that_hold(
    checker: str, tmp_path: Path
) -> None:
    """With every annotation, under the strictest settings; `.ci/run` has both."""
    pytest.importorskip(checker)
    files = readme.write(tmp_path)
    assert all("->" in file.read_text() for file in files)
    how = {
        "mypy": ["--strict", "--cache-dir", str(ROOT / ".mypy_cache")],
        "pyright": ["--pythonpath", sys.executable],
    }
    done = subprocess.run(
        [sys.executable, "-m", checker, *how[checker], *map(str, files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_simulation_example_finds_the_bug_and_nothing_else(tmp_path: Path) -> None:
    mended, broken, *rest = run(ROOT / "examples" / "simulation.py", tmp_path).split(
        "cancel: "
    )[1:]
    assert rest == []
    assert "runs: nothing is wrong\n" in mended
    assert "1 site is wrong" in broken
    assert "simulation.py:35 take  (elsewhere" in broken
    assert "once more: a deadlock at 60 virtual seconds" in broken


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("sweep", "a Lock is held by work, which has ended; taken at test_it.py:6"),
        ("schedules", "--sim-replay "),
    ],
)
def test_what_the_readme_tests_is_short_and_finds_its_bug(
    name: str, told: str, tmp_path: Path
) -> None:
    code = readme.examples()[name]
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
    (tmp_path / "test_it.py").write_text(code)
    plugins = ["-p", "no:cacheprovider", "-p", "_trio_supervisor_pytest"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins],
        cwd=tmp_path,
        # Installed or not, the plugin is loaded once.
        env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "1 failed" in done.stdout
    assert told in done.stdout
