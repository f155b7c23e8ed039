"""``trio-supervisor sim check``: what it says of a log, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from itertools import product
from pathlib import Path

import pytest
import trio

from actors.shell import Shell
from supervisor.cli._command import command
from supervisor.runtime import TaskEnded, open_runtime
from supervisor.simulation import Sim, simulate
from supervisor.simulation.log import Entry, Kept, LogError, read, record, to_line
from supervisor.simulation.promises import check


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
        ('{"kind": ["TaskEnded"], "version": 1}', "line 3: expected an object with a"),
        ('{"kind": "TaskEnded", "version": true}', "got True"),
        (
            '{"kind": "Began", "version": 1, "call": 1, "task_id": "t", "restart": "no"}',
            "line 3: restart: expected permanent or transient or temporary, got 'no'",
        ),
        (
            '{"kind": "Gap", "version": 1, "missed": -1}',
            "line 3: missed: expected at least 0, got -1 of Gap",
        ),
        ('{"kind": "Gap", "version": 1, "missed": true}', "expected int, got True"),
        (
            '{"kind": "Called", "version": 1, "call": 1, "what": "stop", "tasks": [[]]}',
            "line 3: tasks: expected texts, got [[]] of Called",
        ),
        (
            '{"kind": "Drained", "version": 1, "step": "7"}',
            "line 3: step: expected int, got '7' of Drained",
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


def test_what_agents_say_is_left_out_in_silence(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with log.open("a") as file:
        file.write('{"kind": "AgentEvent", "version": 1}\n')
    assert command(["sim", "check", str(log)]) == 1
    assert capsys.readouterr().err == ""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines of ``trio-supervisor run --json``."""
    line = ["run", "--json", "-c", "true", "-c", "exit 3", "--restart", "transient"]
    done = subprocess.run(
        [sys.executable, "-m", "supervisor.cli", *line],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path_factory.mktemp("printed"),
    )
    return done.stdout.splitlines(keepends=True)


def test_the_log_of_a_run_is_whole(
    printed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.jsonl").write_text("".join(printed))
    assert command(["sim", "check", str(tmp_path / "run.jsonl")]) == 0
    shown = capsys.readouterr().out
    assert f"{len(printed)}  the log is whole" in shown


def test_the_log_of_a_run_that_was_cut_anywhere_is_told(printed: list[str]) -> None:
    """Behind the end of a line too, where each line that is left is right."""
    assert len(printed) > 20
    for place in range(1, len(printed)):
        for part, what in ((printed[:place], "end"), (printed[place:], "beginning")):
            found, _ = check(read(part))
            assert any(f"its {what} is missing" in it.text for it in found), place
        inside, _ = check(read([*printed[: place - 1], *printed[place:]]))
        assert inside, place


def test_what_is_no_log_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").touch()
    assert command(["sim", "check", str(tmp_path / "empty")]) == 2
    assert command(["sim", "check", str(tmp_path / "nowhere")]) == 2
    assert "there is nothing in it" in capsys.readouterr().err


def test_whatever_a_field_has_is_understood_or_refused() -> None:
    """No checker falls over what can be read, so none is silent about the rest."""
    entries: list[Entry] = []

    async def program(sim: Sim) -> None:
        opened = open_runtime("tasks", env=sim.env({"flood": "x" * 100, "fail": 3}))
        with Kept(sim) as log:
            async with log.recording(opened) as runtime:
                await runtime.launch(Shell("fail"), restart="transient", intensity=1)
                await runtime.run(Shell("flood"))
                await runtime.stop_all()
        entries.extend(log.entries)

    run = simulate(program)
    assert run.error is None, run.error
    lines = [json.loads(to_line(it)) for it in entries]
    others = [None, True, -1, 10**400, 0.5, "", "x", [], [[]], {}]
    kinds: set[str] = set()
    clean, told = 0, list[str]()
    for place, line in enumerate(lines):
        if line["kind"] in kinds:
            continue
        kinds.add(line["kind"])
        for name, other in product(line, others):
            changed = [*lines[:place], {**line, name: other}, *lines[place + 1 :]]
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # a kind that is not known
                    clean += not check(read(map(json.dumps, changed)))[0]
            except LogError as error:
                told.append(str(error))
    assert len(kinds) > 15
    assert all(re.match(r"line \d+: ", it) for it in told)
    assert len(told) > 5 * clean
