"""``trio-supervisor sim``: what it prints, what it keeps, and its exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from supervisor.cli._command import command

LEAK = """
import trio

async def leak(lock):
    await lock.acquire()
    await trio.sleep(1)
    lock.release()

async def program(sim):
    lock = trio.Lock()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leak, lock)

async def alone(sim):
    await trio.sleep(1)

NOW = []

async def changes(sim):
    NOW.append(1)
    sim.log(len(NOW))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alone, sim)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "leak", raising=False)
    (tmp_path / "leak.py").write_text(LEAK)
    return "leak.py"


def test_what_is_wrong_is_told_kept_and_replayed(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["sim", "cancel", f"{file}:program", "--save", "found"]) == 1
    shown = capsys.readouterr().out
    assert "held: a Lock is held by leak, which has ended; taken at leak.py:5" in shown
    assert (
        "again: trio-supervisor sim replay leak.py:program 'cancel leak blocked 1'"
        in shown
    )
    tapes = sorted((tmp_path / "found").iterdir())
    assert all(f"tape: {Path('found') / tape.name}" in shown for tape in tapes)
    for tape in (str(tapes[0]), "cancel leak blocked 1"):
        assert command(["sim", "replay", f"{file}:program", tape]) == 1
        shown = capsys.readouterr().out
        assert shown.startswith("round robin, cancel leak ")
        assert "held: a Lock" in shown
    assert command(["sim", "replay", f"{file}:program", "round robin"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["raise", "{}:program", "--error", "trio.BrokenResourceError"], 1),
        (["explore", "{}:program", "--seeds", "3"], 0),
        (["cancel", "{}:program", "--target", "nobody"], 2),
        (["cancel", "{}:alone"], 2),
        (["fault", "{}:alone"], 2),
        (["cancel", "{}:changes"], 3),
        (["explore", "{}:changes", "--seeds", "2"], 3),
        (["replay", "{}:alone", "cancel leak blocked 1"], 2),
        (["replay", "{}:alone", "nonsense"], 2),
        (["cancel", "{}:nothing"], 2),
        (["cancel", "elsewhere.py:program"], 2),
        (["raise", "{}:program", "--error", "len"], 2),
        (["raise", "{}:program", "--error", "lost.Error"], 2),
        (["explore", "{}:program", "--policy", "fair"], 2),
    ],
    ids=lambda it: " ".join(it) if isinstance(it, list) else "",
)
def test_the_exit_code_says_what_came_of_it(
    arguments: list[str], code: int, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["sim", *(it.format(file) for it in arguments)]) == code
    shown = capsys.readouterr()
    assert "Traceback" not in shown.out + shown.err
    assert shown.out + shown.err


def test_a_trace_is_written_in_the_format_that_is_asked_for(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"{file}:program"
    assert command(["sim", "trace", place, "-o", "trace.json", "--seed", "3"]) == 0
    told = json.loads((tmp_path / "trace.json").read_text())
    assert told["otherData"]["seed"] == 3
    assert any(it["ph"] == "X" for it in told["traceEvents"])
    capsys.readouterr()
    for format, begin in (
        ("mermaid", "graph TD"),
        ("dot", "digraph"),
        ("json", "["),
        ("csv", "tasks,"),
        ("table", "task "),
    ):
        assert command(["sim", "trace", place, "--format", format]) == 0
        assert capsys.readouterr().out.startswith(begin)


def test_a_trace_that_cannot_be_made_is_refused(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"{file}:program"
    assert command(["sim", "trace", place, "-o", "no/such/trace.json"]) == 2
    assert command(["sim", "trace", place, "--tape", "cancel nobody blocked 1"]) == 2
    shown = capsys.readouterr().err
    assert "no/such" in shown and "no point at which to cancel nobody" in shown
    assert command(["sim", "trace", place, "--format", "svg"]) == 2
