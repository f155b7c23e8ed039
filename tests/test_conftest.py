"""The suite itself: however it is started, and whatever a test does to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(
        sys.platform == "win32", reason="there is neither SIGHUP nor a timer"
    ),
    pytest.mark.limit(200),  # Each starts a run of its own: slow where it is busy.
]

ROOT = Path(__file__).parents[1]
HANGING = """
import signal, time
import pytest, trio
from hypothesis import given, strategies

pytestmark = pytest.mark.limit(1.5)  # A busy machine is late in a setup as well.

def test_in_a_loop():
    while True:
        pass

def test_in_a_call_of_the_system():
    time.sleep(600)

async def test_in_trio():
    await trio.sleep_forever()

async def test_behind_a_shield_and_again_in_its_cleanup():
    try:
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()

def test_that_swallows_what_strikes_it():
    try:
        time.sleep(600)
    except BaseException:
        pass

def test_that_heeds_no_interrupt():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        time.sleep(600)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)

async def test_in_trio_where_no_interrupt_is_heeded():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        await trio.sleep_forever()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)

@pytest.mark.limit(60)
async def test_in_trio_that_runs_after_all_of_them():
    await trio.lowlevel.checkpoint()

@given(strategies.integers())
def test_in_every_example(n):
    time.sleep(600)

@pytest.fixture
def hanging_setup():
    time.sleep(600)

def test_in_its_setup(hanging_setup):
    pass

@pytest.fixture
def hanging_teardown():
    yield
    time.sleep(600)

def test_in_its_teardown(hanging_teardown):
    pass

@pytest.mark.limit(60)
def test_that_comes_after_all_of_them():
    pass
"""
HEEDING = """
import signal

def test_nothing_is_ignored_or_blocked():
    ignored = {n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN}
    assert ignored <= {signal.SIGPIPE, signal.SIGXFSZ}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
"""


def run(directory: Path, tests: str, *before: str) -> subprocess.CompletedProcess[str]:
    """Run a file of tests with our conftest and settings."""
    (directory / "test_it.py").write_text(tests)
    (directory / "conftest.py").symlink_to(ROOT / "tests" / "conftest.py")
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml")]
    command += ["--rootdir", str(directory), "-p", "no:cacheprovider", str(directory)]
    return subprocess.run(
        [*before, *command],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=150,
    )


def test_a_test_that_hangs_is_a_failure_and_the_others_run(tmp_path: Path) -> None:
    done = run(tmp_path, HANGING)
    assert "8 failed, 3 passed, 2 errors" in done.stdout, done.stdout
    assert done.stdout.count("took more than 1.5 s") >= 10, done.stdout
    assert "abandoned" not in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize("names", ["INT", "INT HUP QUIT TERM ALRM CHLD USR1"])
def test_the_run_ignores_no_signal_that_it_was_started_with_ignored(
    tmp_path: Path, names: str
) -> None:
    done = run(tmp_path, HEEDING, "sh", "-c", f"trap '' {names}; exec \"$@\"", "sh")
    assert done.returncode == 0, done.stdout


def test_the_run_blocks_no_signal_that_it_was_started_with_blocked(
    tmp_path: Path,
) -> None:
    block = (
        "import os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGCHLD])\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    done = run(tmp_path, HEEDING, sys.executable, "-c", block)
    assert done.returncode == 0, done.stdout
