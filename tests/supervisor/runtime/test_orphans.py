"""Processes of a shell whose program and guardian were both killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from supervisor.runtime import Warned, open_runtime

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the look at /proc is that of Linux"
)

CHILD = """
import sys, trio
from actors.shell import Shell
from supervisor.runtime import open_runtime

async def main():
    async with open_runtime(sys.argv[1]) as runtime:
        task = await runtime.launch(Shell(
            "trap '' TERM; setsid sleep 1000 & sleep 1000 & echo $$; wait; sleep 1000"
        ))
        while not task.snapshot().output_file.stat().st_size:
            await trio.sleep(0.01)
        # Its number is reserved by a line of its own.
        await (await runtime.launch(Shell("true"), notify="silent")).wait()
        print("up", flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


def environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def marked(task_id: str) -> list[int]:
    """Return the living processes that bear the marker of a task."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit() and f"={task_id}-".encode() in environment(int(name)):
            state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            if state[0] != "Z":
                found.append(int(name))
    return found


def shells(directory: Path) -> list[str]:
    """Return those that have printed something."""
    files = directory.glob("s*.output")
    return [path.stem for path in files if path.stat().st_size]


def below(pid: int) -> list[int]:
    """Return a process and those that it has started, and so on."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in listed for each in below(int(child)))]


def above(pid: int) -> list[int]:
    """Return the processes above one, as far as this one or the first."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    parent = int(stat[1])
    return [] if parent in (0, 1, os.getpid()) else [parent, *above(parent)]


async def test_what_outlived_guardian_and_program_is_ended_at_the_next_opening(
    tmp_path: Path,
) -> None:
    """P1: by its marker; a stranger with the same words in its environment but no
    marker variable, and one with the marker of another task, live on."""
    for attempt in range(20):
        if await all_killed_at_once(tmp_path / str(attempt)):
            return
    raise AssertionError("the guardian was always faster")


async def all_killed_at_once(tmp_path: Path) -> bool:
    """Kill a program and its guardian, and open the directory again. Return False if
    the guardian has ended the shell before it died."""
    child = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", CHILD, str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    strangers: list[subprocess.Popen[bytes]] = []
    try:
        assert child.stdout is not None
        await trio.to_thread.run_sync(child.stdout.readline)
        (task_id,) = shells(tmp_path)
        for variable in (
            f"MINE={task_id}-000001",
            "TRIO_SUPERVISOR_0123456789ABCDEF=s00000000-000001",
            f"TRIO_SUPERVISOR_SOMETHING={task_id}-000001",
        ):
            name, _, value = variable.partition("=")
            strangers.append(
                subprocess.Popen(  # noqa: ASYNC220
                    ["sleep", "1000"], env={**os.environ, name: value}
                )
            )
        shell = marked(task_id)
        theirs = {*below(child.pid), *(it for pid in shell for it in above(pid))}
        theirs -= {*shell, os.getpid(), 1}
        # Stopped first, so that none of them can end anything.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in theirs:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        child.wait()
        mine = {it.pid for it in strangers}
        left = set(marked(task_id)) - mine
        if not left:
            return False
        with trio.fail_after(30):
            async with open_runtime(tmp_path) as runtime:
                assert set(marked(task_id)) - mine == set()
                told = [
                    it.text
                    for it in runtime.events.subscribe().drain()
                    if isinstance(it, Warned)
                ]
                assert len(told) == 1
                # One may end by itself meanwhile.
                count = re.search(r"(\d) process(es)? that it had left w", told[0])
                assert count is not None and 1 <= int(count[1]) <= len(left)
                (note,) = runtime.notifications.drain()
                assert note.task_id == task_id and note.ack()
        assert [it.poll() for it in strangers] == [None, None, None]
        return True
    finally:
        child.kill()
        for each in strangers:
            each.kill()
            each.wait()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


async def test_a_copy_of_a_directory_in_use_strikes_nobody(tmp_path: Path) -> None:
    """P1: the program that has started them lives, and so do they."""
    here, copy = tmp_path / "here", tmp_path / "copy"
    child = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", CHILD, str(here)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert child.stdout is not None
        await trio.to_thread.run_sync(child.stdout.readline)
        (task_id,) = shells(here)
        shutil.copytree(here, copy)
        before = set(marked(task_id))
        assert before
        with trio.fail_after(30):
            async with open_runtime(copy) as runtime:
                (note,) = runtime.notifications.drain()
                assert note.task_id == task_id and note.ack()
                assert set(marked(task_id)) == before
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
