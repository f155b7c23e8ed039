"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[3]

RACE = """
import pytest
import trio

@pytest.fixture
def three():
    return 3

@pytest.mark.sim(seeds=40)
async def test_order(sim, three):
    seen = []
    async def pass_by(name):
        for _ in range(three):
            await trio.lowlevel.checkpoint()
        seen.append(name)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_by, "first")
        await trio.lowlevel.checkpoint()
        nursery.start_soon(pass_by, "second")
    assert seen == ["first", "second"], seen

@pytest.mark.sim
async def test_time():
    await trio.sleep(1000)
    assert trio.current_time() == 1000
"""

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

def test_lock(cancel_everywhere):
    cancel_everywhere(program)

def test_others(raise_everywhere, explore, simulate):
    assert explore(program, seeds=3).runs == 3
    assert simulate(program).seconds == 1
    assert raise_everywhere(program, OSError, check=False).rows
"""


PLUGINS = "-p _trio_supervisor_pytest -p pytest_trio.plugin -p no:cacheprovider".split()


# Forks for each line it reads. What is not ours is loaded before, which takes longer than
# most of these runs; what is ours each fork loads for itself.
PYTESTS = """
import gc, json, os, signal, sys
import attrs, hypothesis, pytest, trio

gc.collect()
gc.freeze()  # No fork looks through it.

for line in sys.stdin:
    folder, environ, arguments = json.loads(line)
    read, write = os.pipe()
    if not os.fork():
        signal.alarm(60)
        os.chdir(folder)
        os.environ.update(environ)
        sys.path[1:1] = environ["PYTHONPATH"].split(os.pathsep)
        for number, end in enumerate((os.open(os.devnull, os.O_RDONLY), write, write)):
            os.dup2(end, number)
        os.closerange(3, write + 9)
        sys.argv = ["pytest", *arguments]
        sys.exit(pytest.main(arguments))
    os.close(write)
    with open(read, encoding="utf-8") as shown:
        print(json.dumps(shown.read()), flush=True)
    os.wait()
"""


@cache
def pytests() -> Any:
    return subprocess.Popen(
        [sys.executable, "-c", PYTESTS],
        env={
            "PYTHONPYCACHEPREFIX": sys.pycache_prefix or "",
            # Installed or not, the plugin is loaded once.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "COLUMNS": "200",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module", autouse=True)
def no_pytests_afterwards() -> Iterator[None]:
    yield
    with pytests() as forks:
        forks.kill()
    pytests.cache_clear()


def run(tmp_path: Path, code: str, *options: str, **environ: str) -> str:
    (tmp_path / "test_it.py").write_text(code)
    environ["PYTHONPATH"] = f"{tmp_path}:{ROOT}"
    forks = pytests()
    line = json.dumps([str(tmp_path), environ, ["-q", *PLUGINS, *options]])
    print(line, file=forks.stdin, flush=True)
    shown: str = json.loads(forks.stdout.readline())
    return shown


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / ".sim").glob("*.json"))


def test_an_async_test_is_run_under_many_schedules(tmp_path: Path) -> None:
    """Beside pytest-trio, which would have run it once, and anyio's plugin."""
    shown = run(tmp_path, RACE)
    assert "1 failed, 1 passed" in shown
    assert "explore: 40 runs" in shown
    assert "shrunk: round robin but step" in shown
    assert "parts: at step" in shown
    for options in (
        ["trio_mode=true"],
        ["anyio_mode=auto", "-p", "anyio.pytest_plugin"],
    ):
        folder = tmp_path / options[0]
        folder.mkdir()
        shown = run(folder, RACE, "-o", *options)
        assert "explore: 40 runs" in shown
        assert " passed" in shown


def test_the_line_that_replays_can_be_pasted(tmp_path: Path) -> None:
    shown = run(tmp_path, RACE)
    (line,) = {it.strip() for it in shown.splitlines() if "replay: " in it}
    words = shlex.split(line.removeprefix("E").strip())
    assert words[:3] == ["replay:", "pytest", "test_it.py::test_order"]
    shown = run(tmp_path, RACE, *words[2:])
    assert "AssertionError: ['second', 'first']" in shown
    assert "explore" not in shown
    assert "1 failed, 1 warning in" in shown
    shown = run(tmp_path, RACE, "-k", "order", "--sim-replay", str(kept(tmp_path)[0]))
    assert "AssertionError: ['second', 'first']" in shown
    shown = run(tmp_path, LEAK, "-k", "lock", "--sim-replay", "cancel leak blocked 1")
    assert "replay: 1 run" in shown
    assert "held: a Lock is held by leak" in shown


def test_what_a_fixture_raises_shows_the_lines_of_the_user_alone(
    tmp_path: Path,
) -> None:
    """A replay shows where the program fails, and a wrong call where it was made."""
    code = """
import trio

async def program(sim):
    assert trio.current_time() == 1

async def waits(sim):
    await trio.Event().wait()

def test_assert(explore):
    explore(program, seeds=1)

def test_deadlock(explore):
    explore(waits, seeds=1)

def test_value(explore):
    explore(program, seeds=0)

def test_name(explore):
    explore(program, sedes=9)

class Odd:
    def start(self, seed):
        return lambda waiting, step: len(None)

async def two(sim):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 1)
        nursery.start_soon(trio.sleep, 1)

def test_policy(explore):
    explore(two, seeds=1, policy=Odd())
"""
    shown = run(tmp_path, code, "--sim-replay", "round robin", "-k", "assert or dead")
    assert ">       assert trio.current_time() == 1" in shown, shown
    assert "Deadlock: a deadlock" in shown
    assert "_plugin.py" not in shown and "_steering" not in shown, shown
    shown = run(tmp_path, code, "-k", "value or name")
    assert "ValueError: seeds must be at least 1, not 0" in shown
    assert "got an unexpected keyword argument 'sedes'" in shown
    assert ">       explore(program, seeds=0)" in shown, shown
    assert "_plugin.py" not in shown and "checks.py" not in shown, shown
    shown = run(tmp_path, code, "-k", "policy")
    assert "len(None)" in shown, shown
    assert "_plugin.py" not in shown, shown


def test_options_say_which_schedules(tmp_path: Path) -> None:
    assert "2 passed" in run(tmp_path, RACE, "--sim-seed", "0")
    assert "2 passed" in run(tmp_path, RACE, "--sim-policy", "round robin")
    assert "explore: 70 runs" in run(tmp_path, RACE, "--sim-seeds", "70")
    shutil.rmtree(tmp_path / ".sim")
    assert "explore: 70 runs" in run(tmp_path, RACE, "--sim-seeds=70", "--sim-jobs=2")
    shutil.rmtree(tmp_path / ".sim")
    # The time is over before the second seed; or it is not, and the seeds are the bound;
    # or there is none but the time, however much else the machine has to do by then.
    assert "2 passed" in run(tmp_path, RACE, "--sim-time", "1e-9")
    shown = run(tmp_path, RACE, "--sim-time=600", "--sim-seeds=70")
    assert "explore: 70 runs" in shown
    shutil.rmtree(tmp_path / ".sim")
    shown = run(tmp_path, RACE, "--sim-time", "3", "-k", "order")
    runs = re.findall(r"explore: (\d+) runs", shown)
    assert int(runs[0]) > 20
    assert "--sim-replay names no tape" in run(tmp_path, RACE, "--sim-replay", "")
    assert "invalid int value: 'x'" in run(tmp_path, RACE, "--sim-jobs=x")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--sim-policy nope", "ERROR: --sim-policy nope: policy must be one of"),
        ("--sim-faults bogus", "ERROR: --sim-faults bogus: 'bogus' is no kind"),
        ("--sim-seed -4", "ERROR: --sim-seed must be at least 0, not -4"),
        ("--sim-seeds 0", "ERROR: --sim-seeds must be at least 1, not 0"),
        ("--sim-jobs 0", "ERROR: --sim-jobs must be at least 1, not 0"),
        ("--sim-time -1", "ERROR: --sim-time must be more than 0 seconds, not -1"),
        ("--sim-time nan", "ERROR: --sim-time must be more than 0 seconds, not nan"),
        ("--sim-seed 3 --sim-seeds 4", "ERROR: --sim-seed is one seed, and --sim-"),
        ("--sim-seed 3 --sim-time 4", "ERROR: --sim-seed is one seed, and --sim-time"),
        ("--sim-replay cut.json", "ERROR: --sim-replay cut.json: "),
        ("--sim-replay nonsense", "ERROR: --sim-replay nonsense: "),
    ],
)
def test_an_option_that_nobody_can_mean_is_refused_at_the_start(
    options: str, told: str, tmp_path: Path
) -> None:
    """Also where no test has the mark, which would look as if it were obeyed."""
    (tmp_path / "cut.json").write_text("{")
    shown = run(tmp_path, "def test_it(): pass", *options.split())
    assert told in shown and "Traceback" not in shown and "passed" not in shown


def test_all_schedules_of_few_deviations_have_one_process_and_no_faults(
    tmp_path: Path,
) -> None:
    """Whatever the options of the whole run say."""
    code = RACE.replace("seeds=40", "seeds=40, policy='exhaustive'")
    shown = run(tmp_path, code, "--sim-jobs=2", "--sim-faults=swarm", "-k", "order")
    assert "explore: 40 runs, 40 different: " in shown
    assert "faults: " not in shown


def test_a_method_is_run_under_many_schedules(tmp_path: Path) -> None:
    code = (
        "import pytest\nclass TestIt:\n    @pytest.mark.sim\n"
        "    async def test_it(self, sim):\n        assert sim.random.random() < 0.5\n"
    )
    shown = run(tmp_path, code)
    assert "replay: pytest test_it.py::TestIt::test_it --sim-replay 'seed " in shown


def test_faults_are_put_into_an_async_test(tmp_path: Path) -> None:
    code = LEAK + (
        "import pytest\n@pytest.mark.sim(seeds=30)\n"
        "async def test_it(sim):\n    await program(sim)\n"
        "@pytest.mark.sim(seeds=30, faults='raise')\n"
        "async def test_raise(sim):\n    await program(sim)\n"
        "@pytest.mark.sim(seeds=30, faults='cancel', targets='nobody')\n"
        "async def test_nobody(sim):\n    await program(sim)\n"
    )
    shown = run(tmp_path, code, "-k", "it and not lock and not others and not nobody")
    assert "1 failed, 1 passed" in shown
    assert "raise OSError" in shown
    shown = run(tmp_path, code, "-k", "test_it and not raise", "--sim-faults", "cancel")
    assert "faults: cancel blocked" in shown
    shown = run(tmp_path, RACE, "-k", "time", "--sim-faults=swarm")
    assert "--sim-faults has no effect on test_it.py::test_time, or not all: " in shown
    assert "1 passed, 1 deselected, 1 warning" in shown
    assert "no target has one of the names nobody" in run(
        tmp_path, code, "-k", "nobody"
    )


def test_what_was_found_is_kept_and_tried_first(tmp_path: Path) -> None:
    """Each test has its own, also where many share a folder."""
    for code in (RACE, LEAK):
        run(tmp_path, code)
    count = len(kept(tmp_path))
    assert {json.loads(it.read_text())["of"] for it in kept(tmp_path)} == {
        "test_it.py::test_order",
        "test_it.py::test_lock test_it.py:program",
    }
    shown = run(tmp_path, RACE, "--sim-seed", "0")
    assert "tapes kept: 1 run, 1 different: 1 failed" in shown
    # What is found by a tape is no schedule of a seed, and not that of the seed 0.
    assert re.search(r"^E?  the tape \.sim/\S+\.json$", shown, re.MULTILINE)
    assert "seed 0" not in shown
    assert "1 failed, 1 passed" in shown
    # Mended, it stays as what must never be again.
    assert "2 passed" in run(
        tmp_path, RACE.replace("assert seen", "assert True or seen")
    )
    assert len(kept(tmp_path)) == count
    shown = run(tmp_path, LEAK)
    assert f"tapes kept: {count - 1} runs" in shown


def test_a_tape_that_no_longer_fits_says_so(tmp_path: Path) -> None:
    run(tmp_path, RACE)
    other = RACE.replace('nursery.start_soon(pass_by, "second")', "pass")
    shown = run(tmp_path, other.replace("== [", "!= ["))
    assert "2 passed, 1 warning" in shown or "2 passed, 2 warnings" in shown
    assert f"SimulationWarning: {kept(tmp_path)[0]}: " in shown
    assert "delete the file" in shown


def test_each_program_of_a_test_has_its_own_tapes(tmp_path: Path) -> None:
    """They are not written again, and a replay finds whose tape it is."""
    two = """
from functools import partial

async def other(sim, seconds):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, seconds)
        nursery.start_soon(leak, trio.Lock())

def test_two(cancel_everywhere, explore):
    report = explore(other_one, seeds=2)
    assert report.runs in (1, 2)
    cancel_everywhere(program)

other_one = partial(other, seconds=5)

def test_partial(cancel_everywhere):
    assert cancel_everywhere(other_one, check=True).points
"""
    code = LEAK + two
    shown = run(tmp_path, code, "-k", "two or partial")
    assert "2 failed" in shown
    assert "replay: pytest test_it.py::test_partial --sim-replay 'cancel leak" in shown
    tapes = {it: it.read_bytes() for it in kept(tmp_path)}
    assert {json.loads(it)["of"] for it in tapes.values()} == {
        "test_it.py::test_two test_it.py:program",
        "test_it.py::test_partial test_it.py:other () {'seconds': 5}",
    }
    (tmp_path / ".sim" / "merged.json").write_text("<<<<<<< ours")
    shown = run(tmp_path, code, "-k", "two or partial")
    assert "tapes kept: " in shown and "2 failed" in shown
    assert "merged.json is no tape: Expecting value" in shown
    assert "It was not tried" not in shown
    (tmp_path / ".sim" / "merged.json").unlink()
    assert {it: it.read_bytes() for it in kept(tmp_path)} == tapes
    replayed = ["-k", "two", "--sim-replay"]
    assert "1 failed" in run(tmp_path, code, *replayed, "cancel leak blocked 1")
    assert "1 passed" in run(tmp_path, code, *replayed, "round robin")
    shown = run(tmp_path, code, *replayed, "cancel nobody blocked 1")
    assert "TapeDoesNotFit: the program has no point at which to cancel nobody" in shown
    shown = run(tmp_path, code, "-k", "others", "--sim-replay", "cancel leak blocked 1")
    assert "1 failed" in shown and "held: a Lock is held by leak" in shown


def test_a_test_may_skip_itself_in_a_run(tmp_path: Path) -> None:
    code = """
import pytest
import trio

async def program(sim):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(skips)

async def skips():
    pytest.skip("not here")

@pytest.mark.sim
async def test_marked():
    await skips()

@pytest.mark.sim
async def test_nested(sim):
    await program(sim)

@pytest.mark.sim
async def test_xfails():
    pytest.xfail("not yet")

@pytest.mark.sim
async def test_fails():
    pytest.fail("not so")

def test_sweep(cancel_everywhere):
    cancel_everywhere(program)
"""
    shown = run(tmp_path, code, "-rs")
    assert "1 failed, 3 skipped, 1 xfailed" in shown
    assert ": not here" in shown
    shown = run(tmp_path, code, "--sim-jobs", "2")
    assert "1 failed, 3 skipped, 1 xfailed" in shown


def test_a_folder_that_nobody_may_write_is_told(tmp_path: Path) -> None:
    (tmp_path / ".sim").write_text("")
    shown = run(tmp_path, LEAK)
    assert "the tapes of test_it.py::test_lock cannot be kept" in shown
    assert "1 failed, 1 passed" in shown


def test_ci_is_told_in_its_own_words(tmp_path: Path) -> None:
    """A property of JUnit, and an annotation of GitHub on the user's line."""
    shown = run(tmp_path, LEAK, "--junit-xml=out.xml", GITHUB_ACTIONS="true")
    lines = [it for it in shown.splitlines() if it.startswith("::error ")]
    assert len(lines) == len(set(lines)) == shown.count("shrunk: ")
    line = next(it for it in lines if "line=6" in it)
    assert line.startswith(
        "::error file=test_it.py,line=6,title=cancel at test_it.py%3A6 "
    )
    assert "::held: a Lock is held by leak" in line
    assert "%0Areplay: pytest test_it.py::test_lock --sim-replay 'cancel leak" in line
    properties = ElementTree.parse(tmp_path / "out.xml").iter("property")
    replay, *_ = [
        it.attrib["value"] for it in properties if it.get("name") == "sim_replay"
    ]
    assert replay.startswith("pytest test_it.py::test_lock --sim-replay 'cancel leak ")
    assert "::error" not in run(tmp_path, LEAK)
    shown = run(tmp_path, RACE, GITHUB_ACTIONS="true")
    assert "::error file=test_it.py,line=20,title=seed " in shown


# ---- As a worker of xdist ------------------------------------------------------------------


def as_worker(tmp_path: Path, count: int, code: str, *options: str) -> str:
    """Run the tests as one of so many workers sees them: all parts, one after another."""
    (tmp_path / "conftest.py").write_text(
        f"def pytest_configure(config): config.workerinput = {{'workercount': {count}}}"
    )
    return run(tmp_path, code, *options)


DRAWS = """
import pytest

@pytest.mark.sim(seeds=7)
async def test_it(sim, request):
    with open("draws", "a") as file:
        print(request.node.name, sim.random.random(), file=file)
"""


def drawn(tmp_path: Path) -> dict[str, set[int]]:
    """Return the seeds that each part has run."""
    seeds = {str(Random(f"program {seed}").random()): seed for seed in range(99)}
    draws = tmp_path / "draws"
    found: dict[str, set[int]] = {}
    for line in draws.read_text().splitlines():
        name, drew = line.split()
        found.setdefault(name, set()).add(seeds[drew])
    draws.unlink()
    return found


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_seed_is_run_by_one_worker(tmp_path: Path, count: int) -> None:
    assert f"{count} passed" in as_worker(tmp_path, count, DRAWS)
    if count == 1:
        assert drawn(tmp_path) == {"test_it": {*range(7)}}
    else:
        assert drawn(tmp_path) == {
            f"test_it[{part + 1}of{count}]": {*range(part, 7, count)}
            for part in range(count)
        }
    assert "1 passed" in as_worker(tmp_path, count, DRAWS, "--sim-seed=5")
    assert drawn(tmp_path) == {"test_it": {5}}


def test_a_tape_that_is_kept_stays_as_it_is_for_all_workers(tmp_path: Path) -> None:
    """Only the first one tries it, and the others find the same bug again."""
    as_worker(tmp_path, 2, RACE)
    files = {it: it.read_text() for it in kept(tmp_path)}
    for it, text in files.items():
        it.write_text(text.replace('"python": "', '"python": "then '))
    before = {it: it.read_text() for it in files}
    assert before != files
    as_worker(tmp_path, 2, RACE)
    after = {it: it.read_text() for it in kept(tmp_path)}
    assert {it: after[it] for it in before} == before


def test_another_project_s_mark_is_not_split(tmp_path: Path) -> None:
    code = "import pytest\n@pytest.mark.sim\ndef test_theirs(): ...\n"
    assert "1 passed" in as_worker(tmp_path, 2, code)


def test_there_may_be_more_workers_than_seeds(tmp_path: Path) -> None:
    assert "3 passed" in as_worker(tmp_path, 3, DRAWS.replace("=7", "=2"))
    assert drawn(tmp_path) == {"test_it[1of3]": {0}, "test_it[2of3]": {1}}
    shown = as_worker(tmp_path, 3, DRAWS.replace("=7", "=[]"))
    assert "1 failed, 2 passed" in shown and "seeds has none" in shown


def test_one_worker_goes_through_all_schedules(tmp_path: Path) -> None:
    code = DRAWS.replace("seeds=7", "seeds=7, policy='exhaustive'")
    assert "2 passed" in as_worker(tmp_path, 2, code)
    assert drawn(tmp_path) == {"test_it[1of2]": {0}}


NAMED = """
import pytest

def pytest_generate_tests(metafunc):
    if "by_module" in metafunc.fixturenames:
        metafunc.parametrize("by_module", [7])

async def fails(sim):
    assert sim.random.random() < 0.0

@pytest.mark.sim
async def test_plain(sim):
    await fails(sim)

@pytest.mark.sim
@pytest.mark.parametrize("by_mark", [7])
async def test_by_mark(sim, by_mark):
    await fails(sim)

@pytest.mark.sim
async def test_by_module(sim, by_module):
    await fails(sim)
"""


def test_a_tape_is_of_the_test_and_not_of_a_part(tmp_path: Path) -> None:
    """It is kept under the name that the test has elsewhere, and replayed and tried
    again by one worker."""
    named = ["test_plain", "test_by_mark[7]", "test_by_module[7]"]
    shown = as_worker(tmp_path, 2, NAMED)
    assert "6 failed" in shown
    assert shown.count("tapes kept: ") == 0
    assert {json.loads(it.read_text())["of"] for it in kept(tmp_path)} == {
        f"test_it.py::{it}" for it in named
    }
    lines = [it for it in shown.splitlines() if "replay: pytest " in it]
    assert len(lines) == 6
    assert {shlex.split(it.partition("replay: ")[2])[1] for it in lines} == {
        f"test_it.py::{it}" for it in named
    }
    shown = as_worker(tmp_path, 2, NAMED, "-rN")
    assert (shown.count("tapes kept: "), shown.count("explore: ")) == (3, 3)
    shown = as_worker(tmp_path, 2, NAMED, "--sim-replay", "round robin")
    assert "3 failed" in shown


def test_the_functions_are_fixtures(tmp_path: Path) -> None:
    shown = run(tmp_path, LEAK)
    assert "1 failed, 1 passed" in shown
    assert "held: a Lock is held by leak, which has ended" in shown


MARKED = "@pytest.mark.sim\nasync def test({}): ...\n"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("@pytest.mark.sim\ndef test(sim): ...", "`sim` is for async functions"),
        (
            "def test(sim): ...",
            "the fixture `sim` is for a test with a mark: write @py",
        ),
        ("async def test(sim): ...", "write @pytest.mark.sim above an async test"),
        (
            f"@pytest.mark.trio\n{MARKED.format('sim')}",
            "it has the marks `sim` and `trio`",
        ),
        (f"@pytest.mark.anyio\n{MARKED.format('sim')}", "the marks `sim` and `anyio`"),
        (f"@pytest.mark.asyncio\n{MARKED.format('sim')}", "marks `sim` and `asyncio`"),
        (
            "@pytest.mark.sim(seed=3)\nasync def test(): ...",
            "`sim` has no seed; it has seeds, policy, faults, targets, limit",
        ),
        ("@pytest.mark.sim(3)\nasync def test(): ...", "`sim` has no 3; it has seeds"),
        (
            f"@pytest.fixture\nasync def opened():\n    yield 1\n{MARKED.format('opened')}",
            "the fixture 'opened' is async",
        ),
        (MARKED.format("nursery"), "the fixture 'nursery' is async"),
        (
            f"@pytest.fixture\ndef sim(): return 7\n{MARKED.format('sim')}",
            "its `sim` is no simulation, but a fixture of yours: rename that",
        ),
        (
            f"@pytest.mark.sim(sede=3)\n{MARKED.format('sim')}",
            "`sim` has no sede; it has seeds",
        ),
    ],
    ids=(
        "sync mark async trio anyio asyncio argument positional fixture nursery own outer"
    ).split(),
)
def test_what_cannot_be_meant_is_an_error_of_that_test(
    code: str, told: str, tmp_path: Path
) -> None:
    shown = run(tmp_path, f"import pytest\n{code}\ndef test_other(): ...\n")
    assert "test_it.py::test: " in shown
    assert told in shown
    assert re.search("1 passed.*1 error", shown)


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_a_mark_that_a_mode_of_another_plugin_puts_on_is_told_as_its(
    mode: str, tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n"
        f"    parser.addini('asyncio_mode', '', default={mode!r})\n"
        "def pytest_itemcollected(item):\n"
        "    item.add_marker('asyncio')\n"
    )
    shown = run(tmp_path, f"import pytest\n{MARKED.format('sim')}")
    assert "it has the marks `sim` and `asyncio`, and only one can run it" in shown
    told = ": `asyncio_mode` of pytest is on, and puts `asyncio` on each async test"
    assert (told in shown) == (mode == "auto")


def test_marks_of_a_test_and_its_class_are_one_of_which_the_closest_counts(
    tmp_path: Path,
) -> None:
    code = """
import pytest
pytestmark = pytest.mark.sim(limit=5.0)
def drawn(name, sim):
    with open(name, "a") as file:
        file.write(f"{sim.random.random()}\\n")
@pytest.mark.sim(seeds=3, policy="round robin")
class TestIt:
    @pytest.mark.sim(seeds=7)
    async def test_it(self, sim):
        drawn("it", sim)
    async def test_class(self, sim):
        drawn("class", sim)
    @pytest.mark.sim(policy="nope")
    async def test_wrong(self, sim): ...
    @pytest.mark.sim(seeds=1)
    async def test_limit(self, sim):
        import trio
        await trio.sleep(6)
"""
    shown = run(tmp_path, code)
    for name, seeds in (("it", 7), ("class", 3)):
        assert len({*(tmp_path / name).read_text().split()}) == seeds
    assert "policy must be one of" in shown
    assert "Hang" in shown
    assert "2 failed, 2 passed" in shown


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "seeds='100'",
            "the mark `sim` cannot be meant so: seeds must be a whole number, not '100'",
        ),
        (
            "seeds='x'",
            "SimulationError: the mark `sim` cannot be meant so: seeds must be a whole",
        ),
        (
            "seeds=0",
            "the mark `sim` cannot be meant so: seeds must be at least 1, not 0",
        ),
        ("policy='nope'", "the mark `sim` cannot be meant so: policy must be one of"),
        ("faults='bogus'", "the mark `sim` cannot be meant so: 'bogus' is no kind of"),
        ("limit='x'", "the mark `sim` cannot be meant so: limit must be a number, not"),
        ("faults='cancel', targets=3", "meant so: targets must be names, not 3"),
    ],
    ids="text seeds none policy faults limit targets".split(),
)
def test_a_mark_that_nobody_can_mean_is_told_in_a_line(
    code: str, told: str, tmp_path: Path
) -> None:
    code = f"import pytest\n@pytest.mark.sim({code})\nasync def test(sim): ...\n"
    shown = run(tmp_path, code)
    assert told in shown
    assert "_plugin.py" not in shown and "1 failed" in shown


def test_what_is_no_program_is_refused_as_such_by_fixtures_too(tmp_path: Path) -> None:
    code = (
        "def plain(sim): return 3\nasync def two(sim, other): ...\n"
        "def test_plain(cancel_everywhere): cancel_everywhere(plain)\n"
        "def test_two(explore): explore(two, seeds=3)\n"
        "def test_three(explore): explore(3, seeds=3)\n"
    )
    shown = run(tmp_path, code)
    assert "test_it.py:3: NotAProgram: the program plain is no async function" in shown
    assert "test_it.py:4: NotAProgram: the program two must take one arg" in shown
    assert "test_it.py:5: NotAProgram: a program is an async function, not 3" in shown
    assert "_plugin.py" not in shown and "3 failed" in shown


def test_a_mark_of_another_project_stays_theirs(tmp_path: Path) -> None:
    """Its tests do not take the fixture, and somebody else runs them."""
    plain = "import pytest\n@pytest.mark.sim(3)\ndef test_theirs(): ...\n"
    own = "@pytest.fixture\ndef sim(): return 7\n"
    used = "@pytest.mark.sim\ndef test_used(sim): assert sim == 7\n"
    unmarked = "def test_unmarked(sim): assert sim == 7\n"
    assert "3 passed" in run(tmp_path, f"{plain}{own}{used}{unmarked}")


def test_fixtures_that_are_shared_by_all_seeds_are_named(tmp_path: Path) -> None:
    code = (
        "import pytest\n@pytest.fixture\ndef plain(): return []\n"
        "@pytest.fixture(scope='module')\ndef wide(): return []\n"
        "@pytest.mark.sim\n@pytest.mark.parametrize('number', [1])\n"
        "async def test(sim, plain, wide, tmp_path, number, request): ...\n"
    )
    shown = run(tmp_path, code)
    assert "1 passed, 2 warnings" in shown
    for name in ("plain", "tmp_path"):
        assert f"the fixture {name!r} has the scope of a function" in shown


def test_somebody_elses_supervisor_is_named(tmp_path: Path) -> None:
    """pytest runs on, and only the tests that ask for the simulator fail."""
    theirs = tmp_path / "supervisor"
    theirs.mkdir()
    (theirs / "__init__.py").write_text("")
    shown = run(tmp_path, LEAK + "\ndef test_other(): ...\n")
    assert "1 passed, 2 errors" in shown
    assert "the simulator cannot be imported: No module named" in shown
    assert "The import name `supervisor` belongs to" in shown


def test_a_run_that_does_not_use_it_pays_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time, pytest\nbefore = set(sys.modules)\n"
        "began = time.process_time()\nimport _trio_supervisor_pytest\n"
        "print(time.process_time() - began, *(set(sys.modules) - before))"
    )
    took: list[float] = []
    for _ in range(3):
        printed = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.split()
        took.append(float(printed[0]))
        assert not {"trio", "supervisor", "attrs"} & set(printed[1:])
    assert min(took) < 0.005


CALLS = """
import contextlib, io, sys, pytest
calls = []
def watch(frame, event, _):
    if event == "call" and frame.f_code.co_filename.endswith("_trio_supervisor_pytest.py"):
        calls.append(frame.f_code.co_name)
options = "-q -p no:cacheprovider -p _trio_supervisor_pytest test_it.py".split()
sys.setprofile(watch)
with contextlib.redirect_stdout(io.StringIO()):
    pytest.main(options)
sys.setprofile(None)
print(len(calls))
assert "trio" not in sys.modules
"""


def test_no_test_that_does_not_use_it_costs_a_call(tmp_path: Path) -> None:
    made: list[int] = []
    for count in (1, 50):
        tests = [f"def test_{number}(): ...\n" for number in range(count)]
        (tmp_path / "test_it.py").write_text("".join(tests))
        done = subprocess.run(
            [sys.executable, "-c", CALLS],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        made.append(int(done.stdout))
    assert made[0] == made[1] < 40
