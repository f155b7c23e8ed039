"""Blows from outside on a search that runs: what it had found is kept, no run is lost,
and no process stays."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import pytest
import trio

from supervisor.simulation import Sim
from supervisor.simulation._search.corpus import try_corpus
from supervisor.simulation._search.jobs import Lost, in_processes
from supervisor.simulation.campaign import campaign


async def _naps() -> None:
    await trio.sleep(1)


async def program(_: Sim) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_naps)
        nursery.start_soon(_naps)


def _rows(log: Path) -> list[tuple[int, tuple[str, ...]]]:
    _, *rows = [json.loads(line) for line in log.read_text().splitlines()]
    return [(it["seed"], tuple(it["faults"])) for it in rows]


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_campaign_that_was_cut_off_has_the_runs_of_one_that_was_not(
    cut: int, tmp_path: Path
) -> None:
    """Wherever it was cut off: also between both runs of a seed."""
    whole, log = tmp_path / "whole", tmp_path / "cut"
    campaign(program, seconds=60, runs=20, log=whole)
    for runs in (cut, 20):
        campaign(program, seconds=60, runs=runs, log=log)
    assert sorted(_rows(log)) == sorted(_rows(whole))
    # A kill leaves the beginning of a line, too.
    lines = whole.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[: 1 + cut], lines[1 + cut][:9]]))
    spent = campaign(program, seconds=60, runs=20, log=log)
    assert (spent.campaign.runs, spent.runs) == (20, 20 - cut)
    assert sorted(_rows(log)) == sorted(_rows(whole))


SPINNING = """
import os, sys
from supervisor.simulation import explore

async def spins(_):
    os.write(2, b"it runs\\n")
    while True:
        pass

explore(spins, seeds=4, jobs=2)
"""


@pytest.mark.parametrize("blow", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_no_process_stays_behind_a_search_that_is_killed(blow: str) -> None:
    """Also not in a run that never awaits."""
    python = [sys.executable, "-c", SPINNING]
    search: Any = subprocess.Popen(python, stderr=subprocess.PIPE)
    with search:
        for _ in range(2):
            assert search.stderr.readline() == b"it runs\n"
        search.send_signal(signal.Signals[blow])
        search.communicate(timeout=30)  # Until nobody has its stderr any more.
    assert search.returncode != 0


def test_a_search_that_was_stopped_takes_nobody_for_lost() -> None:
    """A Ctrl+Z stops the processes of a search, too; they are not silent by themselves."""
    code = """
import os, signal, time, trio
from supervisor.simulation._search.corpus import try_corpus
from supervisor.simulation._search.jobs import in_processes

def work(number, done, beat, slate):
    beat("")
    if not done:
        os.write(2, b"it runs\\n")
        time.sleep(0.5)
    yield number

print(*in_processes(1, work, patience=3.0))
"""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    python = [sys.executable, "-c", code]
    search: Any = subprocess.Popen(python, start_new_session=True, **pipes)
    with search:
        search.stderr.readline()
        os.killpg(search.pid, signal.SIGSTOP)
        time.sleep(3.5)  # It is what the test is about: nothing happens for so long.
        os.killpg(search.pid, signal.SIGCONT)
        assert search.communicate(timeout=30)[0] == b"0\n"


def test_a_process_that_dies_while_it_tells_something_is_lost() -> None:
    """Half of it has come by then: it is more than a pipe has room for."""

    def work(number: int, done: int, beat: Any, slate: Any) -> Iterator[str]:
        if not done:
            yield str(os.getpid())
            # Not before that is told.
            Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
            yield "x" * 1_000_000

    found = in_processes(1, work)
    pid = next(found)
    assert isinstance(pid, str)
    os.waitid(os.P_PID, int(pid), os.WEXITED | os.WNOWAIT)
    (lost,) = found
    assert isinstance(lost, Lost) and lost.why == "its process has died (-9)"


FAILING = """
import os, sys, trio

async def leaks(lock):
    await lock.acquire()
    await trio.sleep(1)
    lock.release()

async def program(sim):
    lock = trio.Lock()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leaks, lock)
        nursery.start_soon(leaks, trio.Lock())
"""


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    file = tmp_path / "failing.py"
    file.write_text(FAILING)
    return file


def _command(*arguments: object, **options: Any) -> Any:
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    python = [sys.executable, "-m", "supervisor.cli", "sim", *map(str, arguments)]
    return subprocess.Popen(python, **{**pipes, **options})


@pytest.mark.parametrize("blow", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_what_a_campaign_has_found_is_told_when_it_is_ended(
    blow: str, failing: Path, tmp_path: Path
) -> None:
    log, number = tmp_path / "log", signal.Signals[blow]
    line = f"--time=60s --jobs=2 --log={log} --save={tmp_path / 'tapes'}".split()
    ended = _command("campaign", f"{failing}:program", *line, process_group=0)
    with ended:
        while not (log.exists() and '"failure"' in log.read_text()):
            time.sleep(0.05)  # Who writes it is another process.
        os.killpg(ended.pid, number)  # As a terminal does.
        out, err = ended.communicate(timeout=30)
    assert (ended.returncode, err) == (128 + number, f"ended by {blow}\n")
    assert "held: a Lock is held by leaks" in out
    assert "Lost" not in out + log.read_text()
    assert list((tmp_path / "tapes").glob("*.json"))


def test_what_is_found_is_told_where_the_working_directory_is_gone(
    failing: Path, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    line = ["cancel", f"{failing}:program", "--max-points=9", "--save=tapes"]
    env = {**os.environ, "GITHUB_ACTIONS": "true"}
    with _command(*line, cwd=gone, preexec_fn=gone.rmdir, env=env) as sweep:
        out, err = sweep.communicate(timeout=30)
    assert sweep.returncode == 1
    assert f"::error file={failing}," in out
    assert f"replay: trio-supervisor sim replay {failing}:program '" in out
    assert err.startswith("no tape is kept in tapes: ")


def test_processes_that_cannot_be_had_are_no_violation(failing: Path) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (10, 10))

    line = ["explore", f"{failing}:program", "--jobs=9"]
    with _command(*line, preexec_fn=few) as search:
        _, err = search.communicate(timeout=30)
    assert search.returncode == 2
    assert err.endswith("Error: [Errno 24] Too many open files.\n")


def test_a_folder_of_tapes_may_have_anything_in_it(tmp_path: Path) -> None:
    """Nothing of it ends the search, and none is waited for."""
    folder = tmp_path / "tapes"
    folder.mkdir()
    os.mkfifo(folder / "pipe.json")
    (folder / "folder.json").mkdir()
    (folder / "gone.json").symlink_to(tmp_path / "nothing")
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "half.json").write_text('{"of": "')
    (folder / "bytes.json").write_bytes(b"\xff\0")
    (folder / "0123.json.4711").write_text("what a kill has left")
    report, misfits = try_corpus(program, folder, "any")
    assert report.runs == 0
    assert [Path(it.split(".json")[0]).name for it in misfits] == [
        "bytes",
        "deep",
        "folder",
        "gone",
        "half",
        "pipe",
    ]


def test_a_tape_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, failing: Path
) -> None:
    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    folder = tmp_path / "tapes"
    line = ["cancel", f"{failing}:program", "--max-points=9", f"--save={folder}"]
    with _command(*line, preexec_fn=full) as sweep:
        out, err = sweep.communicate(timeout=30)
    assert sweep.returncode == 1
    assert "held: a Lock is held by leaks" in out
    assert err == f"no tape is kept in {folder}: [Errno 27] File too large\n"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("has_threads", [False, True])
def test_a_signal_that_comes_while_processes_are_begun_is_not_lost(
    has_threads: bool,
) -> None:
    """Else Python keeps to itself what is raised in the hooks of a fork. Another thread
    may take it, as one of trio's that an earlier program has left."""

    def work(number: int, done: int, beat: Any, slate: Any) -> Iterator[int]:
        yield number

    def forking() -> None:
        if beginning:
            os.kill(os.getpid(), signal.SIGINT)

    os.register_at_fork(after_in_parent=forking)
    beginning = [True]
    leave = Event()
    other = Thread(target=leave.wait)
    if has_threads:
        other.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            list(in_processes(2, work))
    finally:
        beginning.clear()
        leave.set()
    assert {*in_processes(2, work)} == {0, 1}


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
@pytest.mark.parametrize("letter", ["é", "\udcff"], ids=["letter", "surrogate"])
def test_what_an_output_cannot_show_is_told_all_the_same(
    encoding: str, letter: str, tmp_path: Path
) -> None:
    """Its letters, or what the name of a folder was made of that is no text."""
    folder = tmp_path / f"folder {letter}"
    folder.mkdir()
    said = ascii(f"it said {letter}")
    fails = f"async def fails(sim):\n    raise ValueError({said})\n"
    (folder / "failing.py").write_text(fails)
    environment = {**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"}
    line = ["explore", f"{folder / 'failing.py'}:fails", f"--save={folder}"]
    with _command(*line, env=environment, errors="surrogateescape") as search:
        out, err = search.communicate(timeout=30)
    assert (search.returncode, err) == (1, "")
    assert "ValueError: it said " in out
    assert len(list(folder.glob("*.json"))) == 1


def test_asserts_that_python_leaves_out_are_told(failing: Path) -> None:
    """Or a program would be clean that nothing has looked at."""
    for optimize in ("", "1"):
        environment = {**os.environ, "PYTHONOPTIMIZE": optimize}
        line = ["explore", f"{failing}:program", "--seeds=2"]
        with _command(*line, env=environment) as search:
            _, err = search.communicate(timeout=30)
        assert search.returncode == 0
        assert ("python -O leaves out each assert" in err) == bool(optimize)
        assert "contextlib" not in err  # Nobody can mend what is told of that place.
