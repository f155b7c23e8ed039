"""``trio-supervisor sim``: what it prints, what it keeps, and its exit codes."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from signal import SIGINT, SIGPIPE, SIGTERM
from typing import Any

import pytest

from actors.testing import FakeEnv
from supervisor.cli._command import command
from supervisor.cli._sim_codes import CLEAN, NOT_DETERMINISTIC, SPENT, USAGE, WRONG
from supervisor.simulation.network import Network

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

async def bears(sim):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alone, sim)

async def leaves(sim):
    lock = trio.Lock()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lock.acquire)

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
        "replay: trio-supervisor sim replay leak.py:program 'cancel leak blocked 1'"
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
    capsys.readouterr()
    # What was kept is tried first, and not written again.
    before = [it.read_bytes() for it in tapes]
    assert command(["sim", "explore", f"{file}:program", "--save", "found"]) == 1
    assert capsys.readouterr().out.startswith(f"tapes kept: {len(tapes)} runs")
    assert sorted((tmp_path / "found").iterdir()) == tapes
    assert [it.read_bytes() for it in tapes] == before
    again = ["sim", "explore", f"./{file}:program", "--save", f"{tmp_path}/found"]
    assert command(again) == 1
    assert capsys.readouterr().out.startswith(f"tapes kept: {len(tapes)} runs")
    assert command(["sim", "explore", f"{file}:alone", "--save", "found"]) == 0


def test_a_replay_and_a_trace_judge_as_a_sweep_does(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["sim", "raise", f"{file}:bears"]) == 0
    tape = "raise alone blocked 1 builtins:OSError"
    assert command(["sim", "replay", f"{file}:bears", tape]) == 0
    assert command(["sim", "trace", f"{file}:bears", "--tape", tape]) == 0
    capsys.readouterr()
    assert command(["sim", "explore", f"{file}:leaves", "--seeds=1"]) == 1
    assert command(["sim", "trace", f"{file}:leaves"]) == 1
    assert "held: a Lock" in capsys.readouterr().err


def test_a_replay_is_indented_as_in_the_report(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(file).write_text(
        "import trio\nasync def stuck(sim): await trio.Event().wait()"
    )
    assert command(["sim", "replay", f"{file}:stuck", "round robin"]) == 1
    head, *found = capsys.readouterr().out.splitlines()
    assert head.startswith("round robin: ")
    assert found == [
        "  Deadlock: a deadlock at 0 virtual seconds",
        "  main: leak.py:2 stuck",
    ]


@pytest.mark.parametrize(
    "line",
    ["explore leak.py:alone --seeds=2", "trace leak.py:alone", "fault --help"],
)
@pytest.mark.parametrize("code", [2, 141], ids=["full", "gone"])
def test_an_output_that_cannot_be_written_is_no_violation(
    line: str, code: int, file: str
) -> None:
    """Nor 1, with which click ends when the reader has gone."""
    if code == 2:
        broken = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, broken = os.pipe()
        os.close(reader)
    with os.fdopen(broken, "wb"):
        done = subprocess.run(
            [sys.executable, "-m", "supervisor.cli", "sim", *line.split()],
            stdout=broken,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == code
    told = "trio-supervisor: standard output: No space left on device\n"
    assert done.stderr == (told if code == 2 else "")


def test_each_operation_that_can_go_wrong_is_in_the_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(["sim", "fault", "--help"]) == 0
    shown = capsys.readouterr().out
    for name, ways in {**Network.seams, **FakeEnv.seams}.items():
        told = re.search(
            rf"^  {re.escape(name)} +(.*(?:\n {{10,}}.*)*)", shown, re.MULTILINE
        )
        assert told, name
        assert " ".join(told[1].split()) == ", ".join(ways)


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
        (["explore", "{}:program", "--faults", "cancel", "--seeds", "9"], 1),
        (["explore", "{}:alone", "--faults", "cancel"], 2),
        (["explore", "{}:alone", "--faults", "cancle"], 2),
        (["campaign", "{}:program", "--time", "60s", "--runs", "40"], 1),
        (
            [
                "campaign",
                "{}:alone",
                "--time",
                "60s",
                "--runs",
                "9",
                "--faults",
                "none",
            ],
            0,
        ),
        (["campaign", "{}:alone", "--time", "0.1s", "--faults", "none"], 0),
        (
            ["campaign", "{}:alone", "--time=0.1s", "--runs=9999999", "--faults=none"],
            4,
        ),
        (
            "campaign {}:alone --time 60s --runs 3 --faults none --reach full".split(),
            4,
        ),
        (["campaign", "{}:changes", "--time", "60s"], 3),
        (["campaign", "{}:alone", "--time", "60s"], 2),
        (["campaign", "{}:alone", "--time", "soon"], 2),
        (["campaign", "{}:alone", "--log", "/no/where"], 2),
        (["campaign", "{}:alone", "--log", "leak.py"], 2),
        (["doctor", "{}:program"], 0),
        (["doctor", "{}:changes"], 3),
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
    assert command(["sim", "trace", place, "--seed", "-1"]) == 2
    assert "'--seed': -1 is not in the range x>=0" in capsys.readouterr().err
    both = ["--seed", "3", "--tape", "round robin"]
    assert command(["sim", "trace", place, *both]) == 2
    assert "a tape has its own schedule" in capsys.readouterr().err


def test_a_row_of_a_trace_names_the_policy_of_its_schedule(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["sim", "trace", f"{file}:program", "--format", "csv"]
    for more, policy in (([], "portfolio"), (["--tape", "1:1"], "that of the tape")):
        command([*place, *more])
        (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
        assert row["policy"] == policy


def test_each_command_can_be_read_by_a_program(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*arguments: str) -> Any:
        command(["sim", *arguments, "--json"])
        return json.loads(capsys.readouterr().out)

    (row, *_) = told("cancel", f"{file}:program")["rows"]
    assert row.keys() >= {*"site arrival after error count replay tape".split()}
    assert row["site"] == "leak.py:5 leak"
    assert told("raise", f"{file}:program")["kind"] == "raise OSError"
    assert told("explore", f"{file}:program", "--seeds", "3")["runs"] == 3
    found = told("explore", f"{file}:program", "--faults", "cancel", "--save", "found")
    assert found["failures"][0]["tape"].startswith("cancel leak ")
    assert [Path(it).exists() for it in found["tapes"]] == [True]
    again = told("replay", f"{file}:program", row["tape"], "--diff")
    assert again["wrong"][0].startswith("held: a Lock")
    assert again["parts"]["tape"] == "round robin"
    spent = told("campaign", f"{file}:alone", "--time=60s", "--runs=9", "--faults=none")
    assert spent["campaign"]["runs"] == spent["runs"] == 9
    assert spent["complete"]
    assert all(it["ok"] for it in told("doctor")["checks"])
    assert "at line 1 of" in told("cancel", f"{file}:changes")["difference"]


def test_a_run_is_shown_beside_one_that_passes(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(
        ["sim", "replay", f"{file}:program", "cancel leak blocked 1", "--diff"]
    )
    shown = capsys.readouterr().out.splitlines()
    head = next(it for it in shown if it.startswith("step"))
    assert head.split() == ["step", "fails", "passes:", "round", "robin"]
    assert any(" * " in it for it in shown)
    assert command(["sim", "replay", f"{file}:program", "round robin", "--diff"]) == 0
    assert "it passes" in capsys.readouterr().out


def test_github_is_told_of_the_users_line(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert command(["sim", "cancel", f"{file}:program"]) == 1
    (line, *_) = [
        it for it in capsys.readouterr().out.splitlines() if it.startswith("::error")
    ]
    assert line.startswith(
        "::error file=leak.py,line=5,title=cancel at leak.py%3A5 leak::"
    )
    assert command(["sim", "cancel", f"{file}:program", "--json"]) == 1
    told = capsys.readouterr()
    json.loads(told.out)
    assert "::error" in told.err


def test_github_is_told_of_a_tape_that_was_kept(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    search = [
        "sim",
        "explore",
        f"{file}:program",
        "--faults",
        "cancel",
        "--save",
        "kept",
    ]
    for title in ("seed ", "the tape kept/"):
        assert command(search) == 1
        assert f",title={title}" in capsys.readouterr().out


def test_the_doctor_says_what_was_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["sim", "doctor"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"ok        versions: CPython {platform.python_version()}")
    assert "the wall clock at doctor.py:" in shown
    assert "NOT WELL" not in shown


def test_the_doctor_names_what_is_not_well(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["sim", "doctor", f"{file}:changes"]) == 3
    shown = capsys.readouterr().out
    assert (
        "NOT WELL  20 seeds of the program, twice: two runs of one tape differ" in shown
    )
    text = "async def fails(sim): raise KeyError(1)\ndef none(sim): return 3\n"
    Path(file).write_text(text)
    for name, told in (
        ("fails", "equal, but 20 fail, without any fault; seed 0: KeyError: 1"),
        ("none", "NotAProgram: the program none is no async function: it returned 3"),
    ):
        assert command(["sim", "doctor", f"{file}:{name}"]) == 1
        assert f"NOT WELL  20 seeds of the program, twice: {told}" in (
            capsys.readouterr().out
        )


# ---- Campaigns -------------------------------------------------------------------------


def test_a_campaign_goes_on_behind_its_log(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where its last line was cut off; each run has a line, and is counted once."""
    begin = ["sim", "campaign", f"{file}:program", "--time=60s", "--jobs=2"]
    log = tmp_path / "log.jsonl"
    assert command([*begin, "--runs=30", f"--log={log}"]) == 1
    one = capsys.readouterr().out
    assert one.startswith("campaign: 30 runs, ")
    assert "replay: trio-supervisor sim replay leak.py:program '" in one
    with log.open("a") as opened:
        opened.write('{"seed": 9999, "dig')
    assert command([*begin, "--runs=50", f"--log={log}"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("campaign: 50 runs, ")
    assert "30 of the runs were in the log before" in shown
    head, *rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert head["program"] == f"{file}:program"
    assert len(rows) == 50
    seeds = [it["seed"] for it in rows if not it["faults"]]
    assert len(seeds) == len(set(seeds)) >= 25
    failed = [it for it in rows if it.get("wrong")]
    assert f"{len(failed)} failed" in shown
    assert command([*begin, "--faults=cancel", f"--log={log}"]) == 2
    assert "has another campaign: faults 'swarm'" in capsys.readouterr().err


def test_a_line_of_a_campaign_that_is_none_is_refused_with_its_number(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each field in turn: or a failure would be read as a run that has passed."""
    log = tmp_path / "log.jsonl"
    arguments = [f"{file}:program", "--time=60s", "--runs=9", f"--log={log}"]
    begin = ["sim", "campaign", *arguments]
    assert command(begin) == 1
    head, *rows = log.read_text().splitlines()
    at, row = next((n, json.loads(it)) for n, it in enumerate(rows) if "failure" in it)
    others: list[Any] = [None, -1, "x", [], {}, [[]]]
    changed = [
        *(
            {**row, name: other}
            for name in row
            for other in others
            if other != row[name]
        ),
        *(
            {it: row[it] for it in row if it != name}
            for name in row
            if name != "failure"
        ),
        {**row, "more": 1},
        {**row, "failure": {**row["failure"], "replay": 1}},
        json.loads(rows[at - 1]),  # It would count twice.
        [],
    ]
    capsys.readouterr()
    for line in changed:
        lines = [head, *rows[:at], json.dumps(line), *rows[at + 1 :]]
        log.write_text("\n".join([*lines, ""]))
        # Another digest, fault, or word of what was wrong is as good as this one.
        code, told = command(begin), capsys.readouterr().err
        if code == 2:
            assert f"log.jsonl, line {at + 2}: " in told
            continue
        assert code == 1
        assert isinstance(line, dict)
        free = ("digest", "wrong", "kind", "faults")
        assert [it for it in row if it not in free and line.get(it) != row[it]] == []


def test_a_log_that_is_no_file_is_refused(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "utf16").write_bytes("{}\n".encode("utf-16"))
    for log, told in ((tmp_path, "is no file"), (tmp_path / "utf16", "is no log")):
        assert command(["sim", "campaign", f"{file}:alone", f"--log={log}"]) == 2
        assert told in capsys.readouterr().err


def test_a_log_that_somebody_writes_is_refused(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["sim", "campaign", f"{file}:alone", "--faults=none", "--log=log"]
    code = "import fcntl; log = open('log', 'ab'); fcntl.lockf(log, fcntl.LOCK_EX)"
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    python = [sys.executable, "-c", f"{code}; print(flush=True); input()"]
    other: Any = subprocess.Popen(python, **pipes)
    with other:
        other.stdout.readline()
        assert command([*line, "--runs=3"]) == 2
        assert "log: another campaign writes it" in capsys.readouterr().err
        other.stdin.write(b"\n")
    assert Path("log").read_text() == ""
    assert command([*line, "--runs=3"]) == 0


def test_what_is_found_is_told_also_where_the_log_cannot_be_written(file: str) -> None:
    Path(file).write_text(
        "async def program(sim):\n"
        "    sim.log('x' * sim.random.randint(1, 99))\n"
        "    assert sim.random.random() < 0.5\n"
    )
    line = f"sim campaign {file}:program --faults=none --time=60 --log=log"
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f 2; {sys.executable} -m supervisor.cli {line}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "its log is not written: [Errno 27] File too large" in done.stdout
    assert "replay: trio-supervisor sim replay" in done.stdout
    assert done.stderr.endswith("log: [Errno 27] File too large\n")
    # Half a line is at its end, and it can be gone on with.
    assert command([*line.split(), "--runs=1"]) == 1
    *_, last = Path("log").read_text().splitlines()
    assert json.loads(last)["seed"] > 0


def test_what_is_found_is_told_also_where_no_tape_can_be_kept(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["sim", "cancel", f"{file}:program", f"--save={file}/found"]) == 1
    told = capsys.readouterr()
    assert "2 sites are wrong" in told.out
    assert f"no tape is kept in {file}/found: " in told.err


def test_a_tape_may_be_longer_than_the_name_of_a_file(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tape = ", ".join(f"{step}:1" for step in range(300))
    assert command(["sim", "replay", f"{file}:alone", tape]) == 2
    assert "there are no 2 tasks that can run" in capsys.readouterr().err
    assert command(["sim", "replay", f"{file}:alone", "none.json"]) == 2
    assert "and no file has that name" in capsys.readouterr().err


def test_a_tape_of_another_program_is_told_with_its_file_and_whose_it_is(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["sim", "cancel", f"{file}:program", "--save", "found"]) == 1
    tape = str(min(Path("found").iterdir()))
    capsys.readouterr()
    assert command(["sim", "replay", f"{file}:bears", tape]) == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith(f"{tape}: the program has no point at which to cancel leak")
    assert told.endswith("targets are alone; the tape is of leak.py:program")


def test_what_did_not_fail_is_told_with_its_bound(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"{file}:alone", "--time=60s", "--runs=300", "--faults=none"]
    assert command(["sim", "campaign", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "less than 0.01 of all runs fail (95 %)" in shown
    assert re.search(r"\d+\.\d runs a second: \d+ s, 1 process", shown)


def test_a_probe_that_must_be_reached_is_asked_for_by_name(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "probed.py").write_text(
        "from actors.probe import sometimes\n"
        "async def program(sim):\n"
        "    sometimes('met', True)\n    sometimes('not met', False)\n"
    )
    begin = ["sim", "campaign", "probed.py:program", "--time=60s", "--runs=4"]
    assert command([*begin, "--faults=none", "--reach=met"]) == 0
    assert command([*begin, "--faults=none", "--reach=met", "--reach=*"]) == 4
    assert "no probe '*' was ever true" in capsys.readouterr().err
    assert command([*begin, "--faults=none", "--jobs=2", "--reach=met"]) == 0


# ---- Where a program failed, and what a program prints ------------------------------------

DEEP = """
def deep(of):
    return of[7]

async def fails(sim):
    deep([])

async def asserts(sim):
    assert sim is None
"""


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("fails", "IndexError: list index out of range\nat deep.py:3 deep"),
        ("asserts", "AssertionError: assert sim is None\nat deep.py:9 asserts"),
    ],
)
def test_every_text_has_the_line_where_a_program_failed(
    name: str, told: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second one says nothing by itself: then the line tells what it is."""
    Path("deep.py").write_text(DEEP)
    for arguments in (
        ["cancel", f"deep.py:{name}"],
        ["explore", f"deep.py:{name}", "--seeds=1"],
    ):
        assert command(["sim", *arguments]) == (2 if "cancel" in arguments else 1)
        shown = capsys.readouterr()
        shown = shown.out + shown.err
        lines = [it.strip() for it in shown.splitlines()]
        assert told in "\n".join(lines), (arguments, shown)


# ---- Mistakes in the call -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import nope", "ModuleNotFoundError: No module named 'nope', at "),
        ("async def p(sim:", "SyntaxError: "),
        ("raise SystemExit(0)", "SystemExit: 0, at "),
        ("1 / 0", "ZeroDivisionError: division by zero, at "),
    ],
)
@pytest.mark.parametrize("name", ["cancel", "doctor", "trace", "campaign"])
def test_a_file_that_cannot_be_imported_is_a_mistake_in_the_call(
    source: str, told: str, name: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that ends Python with success, which would look as if nothing were
    wrong."""
    Path("bad.py").write_text(source)
    assert command(["sim", name, "bad.py:p"]) == 2
    shown = capsys.readouterr()
    assert "bad.py cannot be imported" in shown.err and told in shown.err
    assert "Traceback" not in shown.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["raise", "{}:program", "--error", "trio.Cancelled"], "cannot be raised"),
        (["raise", "{}:program", "--error", "UnicodeDecodeError"], "cannot be raised"),
        (["explore", "{}:alone", "--save", "cut.json"], "'cut.json' is a file"),
        (["campaign", "{}:alone", "--save", "cut.json"], "'cut.json' is a file"),
        (["cancel", "{}"], "names no function: write FILE:FUNCTION"),
        (["cancel", "x" * 300 + ".py:program"], "File name too long"),
        (["replay", "{}:alone", ""], "there is no tape"),
        (["trace", "{}:alone", "--tape", ""], "there is no tape"),
        (["replay", "{}:alone", "lost.json"], "no file has that name"),
        (["replay", "{}:alone", "cut.json"], "cut.json is no tape"),
        (["explore", "{}:program", "--limit", "nan"], "'--limit'"),
        (["explore", "{}:program", "--policy", "nope"], "or exhaustive for explore"),
        (
            ["campaign", "{}:program", "--policy=exhaustive"],
            "exhaustive is for explore",
        ),
        (["explore", "{}:program", "--policy=exhaustive", "--jobs=2"], "one job"),
    ],
)
def test_a_mistake_is_told_in_a_line(
    arguments: list[str], told: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("cut.json").write_text('{"schema": ')
    assert command(["sim", *(it.format(file) for it in arguments)]) == 2
    shown = capsys.readouterr()
    assert told in shown.err and not shown.out
    assert shown.err.count("cut.json") <= 1  # also where it is not of a tape


def test_all_schedules_of_a_program_can_be_tried(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for faults in ([], ["--faults=none"]):
        arguments = [f"{file}:program", "--policy=exhaustive", "--seeds=9", *faults]
        assert command(["sim", "explore", *arguments]) == 0
        assert "up to" in capsys.readouterr().out


def test_what_a_program_prints_is_not_in_what_a_command_prints(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("loud.py").write_text("print('here')\n" + LEAK + "    print('there')\n")
    for arguments in (
        ["cancel", "loud.py:changes", "--json"],
        ["explore", "loud.py:changes", "--json"],
        ["replay", "loud.py:changes", "round robin", "--json"],
        ["campaign", "loud.py:changes", "--time=1s", "--runs=1", "--json"],
        ["trace", "loud.py:changes"],
        ["doctor", "loud.py:changes", "--json"],
    ):
        sys.modules.pop("loud", None)
        command(["sim", *arguments])
        shown = capsys.readouterr()
        json.loads(shown.out)
        assert "here" in shown.err and "there" in shown.err + "there" * (
            "campaign" in arguments  # Its processes have a stderr of their own.
        )


def test_a_campaign_that_is_interrupted_tells_what_it_has_found(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from supervisor.simulation import campaign

    def tries(*given: Any) -> Any:
        stream: Any = real(*given)
        yield next(stream)
        stream.close()
        raise KeyboardInterrupt

    real = campaign.tries
    monkeypatch.setattr(campaign, "tries", tries)
    arguments = [f"{file}:alone", "--time=60s", "--faults=none"]
    assert command(["sim", "campaign", *arguments]) == 130
    shown = capsys.readouterr().out
    assert shown.startswith("campaign: 1 run, 1 different: nothing is wrong")


def test_each_exit_code_is_on_the_page() -> None:
    (line,) = re.findall(
        r"- \*\*Exit codes.*",
        (Path(__file__).parents[3] / "docs" / "ci.md").read_text(encoding="utf-8"),
    )
    by_signals = {128 + it for it in (SIGINT, SIGPIPE, SIGTERM)}
    codes = {CLEAN, WRONG, USAGE, NOT_DETERMINISTIC, SPENT} | by_signals
    assert {int(it) for it in re.findall(r"\b\d+\b", line)} == codes | {128}


# ---- How a program is named and found -----------------------------------------------------


def test_what_is_found_is_replayed_by_the_name_that_the_command_was_given(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No other name has a program of a `partial`, or one that another module has."""
    Path("named.py").write_text(
        "from functools import partial\nfrom leak import program as there\n"
        "async def fails(sim, *, of): assert of is None\n"
        "here = partial(fails, of=object())\n"
    )
    assert command(["sim", "explore", "named.py:here", "--seeds=1"]) == 1
    shown = capsys.readouterr().out
    assert "replay: trio-supervisor sim replay named.py:here 'round robin'" in shown
    assert command(["sim", "cancel", "named.py:there"]) == 1
    shown = capsys.readouterr().out
    assert "trio-supervisor sim replay named.py:there 'cancel leak" in shown


def test_a_file_of_a_package_is_imported_as_its_module(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path("outside") / "packed_one" / "inner"
    folder.mkdir(parents=True)
    for it in (folder, folder.parent):
        (it / "__init__.py").touch()
    (folder.parent / "shared.py").write_text("NUMBER = 1\n")
    (folder / "test_it.py").write_text(
        "from ..shared import NUMBER\nimport packed_one.shared\n"
        "async def program(sim): assert NUMBER == __name__\n"
    )
    place = f"{folder}/test_it.py:program"
    try:
        assert command(["sim", "explore", place, "--seeds=1"]) == 1
        shown = capsys.readouterr().out
        assert f"trio-supervisor sim replay {place} 'round robin'" in shown
        assert command(["sim", "replay", place, "round robin"]) == 1
    finally:
        for name in [it for it in sys.modules if it.startswith("packed_one")]:
            del sys.modules[name]


def test_a_file_is_not_taken_for_another_module_of_its_name(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("json").mkdir()
    Path("json/__init__.py").touch()
    Path("json/decoder.py").write_text("async def program(sim): ...\n")
    assert command(["sim", "explore", "json/decoder.py:program"]) == 2
    shown = capsys.readouterr().err
    assert "another module is 'json.decoder'" in " ".join(shown.split())


def test_what_pytest_finds_and_a_command_does_not_is_told_how_to_be_found(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("src").mkdir()
    Path("src/only_by_pytest.py").touch()
    Path("test_it.py").write_text(
        "import only_by_pytest\nasync def program(sim): ...\n"
    )
    assert command(["sim", "explore", "test_it.py:program"]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "No module named 'only_by_pytest'" in shown
    assert shown.endswith("a command finds if PYTHONPATH names that folder.")
    monkeypatch.syspath_prepend("src")  # As PYTHONPATH does.
    assert command(["sim", "explore", "test_it.py:program", "--seeds=1"]) == 0


def test_tapes_of_one_site_that_end_alike_are_told_together(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second report has as many parts as the first one had."""
    arguments = ["sim", "cancel", f"{file}:program", "--save", "found"]
    assert command(arguments) == 1
    first = capsys.readouterr().out
    count = len([*Path("found").iterdir()])
    sites = first.count("replay: ")
    assert f"{sites} sites are wrong" in first and count > sites
    assert command(arguments) == 1
    second = capsys.readouterr().out
    assert f"tapes kept: {count} runs" in second and f"{count} failed" in second
    assert second.count("replay: ") == sites
    assert "and likewise " in second
    assert all(second.count(it.name) == 1 for it in Path("found").iterdir())
