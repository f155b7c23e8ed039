"""``trio-supervisor sim check``: what it says of a log, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from supervisor.cli._command import command
from supervisor.runtime import TaskEnded
from supervisor.simulation.log import record


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log in which a task ends twice."""
    path = tmp_path / "run.jsonl"

    async def write() -> None:
        with record(path) as log:
            log.add(TaskEnded, "s1", "completed", None, None, None)
            log.add(TaskEnded, "s1", "completed", None, None, None)
        await trio.lowlevel.checkpoint()

    trio.run(write)
    return path


def test_a_broken_promise_is_told_with_its_lines(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["sim", "check", str(log)]) == 1
    shown = capsys.readouterr().out
    assert "P3: task s1: it ended twice (line 2, 3)" in shown
    assert "vacuous" in shown
    assert command(["sim", "check", str(log), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert {it["promise"] for it in told["violations"]} == {"P3", "log"}
    assert told["judged"][0] == {
        "promise": "log",
        "title": "the log is whole",
        "judged": 4,
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("no json", "line 3: it is no JSON"),
        ("[]", "line 3: expected an object with a kind"),
        ('{"kind": "TaskEnded", "version": 7}', "line 3: expected version 1"),
        ('{"kind": "TaskEnded", "version": 1}', "line 3: there is no task_id of"),
        (
            '{"kind": "TaskStarted", "version": 1, "task_id": 3}',
            "line 3: task_id: expected str, got 3 of TaskStarted",
        ),
    ],
)
def test_a_line_that_is_none_is_refused_by_its_number(
    line: str, said: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = log.read_text().splitlines()
    log.write_text("\n".join([*kept[:2], line, *kept[2:]]))
    assert command(["sim", "check", str(log)]) == 2
    assert said in capsys.readouterr().err


def test_a_kind_that_is_not_known_is_warned_of(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with log.open("a") as file:
        file.write('{"kind": "FromLater", "version": 1}\n' * 2)
    assert command(["sim", "check", str(log)]) == 1
    assert capsys.readouterr().err.count("'FromLater', the first in line 5") == 1


def test_what_is_no_log_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").touch()
    assert command(["sim", "check", str(tmp_path / "empty")]) == 2
    assert command(["sim", "check", str(tmp_path / "nowhere")]) == 2
    assert "there is nothing in it" in capsys.readouterr().err
