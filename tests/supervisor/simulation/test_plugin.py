"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def run(tmp_path: Path, code: str, *options: str) -> str:
    (tmp_path / "test_it.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *PLUGINS, *options],
        cwd=tmp_path,
        # Installed or not, the plugin is loaded once.
        env={
            "PYTHONPATH": f"{tmp_path}:{ROOT}",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return done.stdout


def test_an_async_test_is_run_under_many_schedules(tmp_path: Path) -> None:
    """Beside pytest-trio, which would have run it once."""
    for options in ([], ["-o", "trio_mode=true"]):
        shown = run(tmp_path, RACE, *options)
        assert "1 failed, 1 passed" in shown
        assert "explore: 40 runs" in shown
        assert "shrunk: round robin but step" in shown
        assert "replay: " in shown


def test_options_say_which_schedules(tmp_path: Path) -> None:
    assert "2 passed" in run(tmp_path, RACE, "--sim-seed", "0")
    assert "2 passed" in run(tmp_path, RACE, "--sim-policy", "round robin")
    assert "explore: 70 runs" in run(tmp_path, RACE, "--sim-seeds", "70")


def test_a_tape_is_replayed(tmp_path: Path) -> None:
    code = RACE + (
        "from supervisor.simulation import explore, save\n"
        "async def program(sim):\n    await test_order(sim, 3)\n"
        "print(save(explore(program, seeds=40, check=False), '.'))\n"
    )
    (tmp_path / "find.py").write_text(code)
    subprocess.run(
        [sys.executable, "find.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
    )
    (tape, *_) = [it.name for it in tmp_path.glob("*.json")]
    shown = run(tmp_path, RACE, "-k", "order", "--sim-replay", tape)
    assert "AssertionError: ['second', 'first']" in shown
    assert "explore" not in shown


def test_the_functions_are_fixtures(tmp_path: Path) -> None:
    shown = run(tmp_path, LEAK)
    assert "1 failed, 1 passed" in shown
    assert "held: a Lock is held by leak, which has ended" in shown


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("@pytest.mark.sim\ndef test(): ...", "test_it.py::test: `sim` is for async"),
        (
            "@pytest.mark.trio\n@pytest.mark.sim\nasync def test(): ...",
            "test_it.py::test has the marks `sim` and `trio`",
        ),
    ],
    ids=["sync", "trio"],
)
def test_what_cannot_be_meant_is_refused(code: str, told: str, tmp_path: Path) -> None:
    assert told in run(tmp_path, f"import pytest\n{code}\n")


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
