"""The guardian when a system call of its own work fails."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from actors._system import posix as _posix
from tests.actors.process_trees import (
    LIFE,
    Held,
    end,
    guardian_of,
    open_processes,
    read_line,
    shell,
    start_beside,
    until,
)
from tests.actors.system import faulty_guardian
from tests.actors.system.faulty_guardian import order

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SCRIPT = str(Path(faulty_guardian.__file__).absolute())


@pytest.fixture(autouse=True)
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    directory = tmp_path / "faults"
    directory.mkdir()
    monkeypatch.setenv("FAULTS", str(directory))
    monkeypatch.setattr(_posix, "_SCRIPT", SCRIPT)
    yield
    for left in directory.iterdir():
        left.unlink()  # A guardian that still ends something may go on.


HOST = """
import os, sys, trio
from actors._system import posix as _posix

async def main():
    _posix._SCRIPT = sys.argv[1]
    processes = _posix.PosixProcesses()
    for script in sys.argv[2:]:
        tree = await processes.spawn(
            ["bash", "-c", script], cwd=None, env=os.environ, marker="x"
        )
        await tree.receive()
    print("begun", flush=True)
    await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.parametrize(
    "faults",
    [
        {"open": "0"},
        {"open": "always"},
        {"listdir": "0"},
        {"listdir": "always", "open": "always"},
        {"pread": "0"},
        {"wait": "0"},
        {"waitid": "0"},
        {"wait4": "0"},
        {"recv": "always"},
    ],
    ids=str,
)
async def test_nothing_outlives_a_killed_host_whatever_fails_in_its_guardian(
    tmp_path: Path, faults: dict[str, str]
) -> None:
    """P1."""
    held = Held(tmp_path)
    scripts = [
        f"exec 3>{held.path}; echo up; sleep {LIFE}",
        f"exec 3>{held.path}; setsid sleep {LIFE} & echo up",
    ]
    host = start_beside([sys.executable, "-c", HOST, SCRIPT, *scripts])
    try:
        assert host.stdout is not None
        assert host.stdout.readline() == b"begun\n"
        assert held.is_held()
        for name, times in faults.items():
            order(name, errno.ENOMEM, times)
    finally:
        end(host)
    await until(lambda: not held.is_held())
    held.close()


PLACES = [
    *[("listdir", errno.EMFILE, skipped) for skipped in range(4)],
    *[("pread", errno.EIO, skipped) for skipped in range(4)],
    *[("wait", errno.ENOMEM, skipped) for skipped in range(3)],
    *[("recv", errno.ENOMEM, skipped) for skipped in range(4)],
    *[("send", errno.ENOBUFS, skipped) for skipped in range(3)],
    ("recvmsg", errno.ENOMEM, 0),
    ("sendmsg", errno.ENOMEM, 0),
    ("sendmsg", errno.ETOOMANYREFS, 0),
    ("open", errno.ENFILE, 0),
    ("waitid", errno.ENOMEM, 1),
    ("wait4", errno.ECHILD, 0),
]


async def test_what_fails_once_in_the_guardian_is_tried_again() -> None:
    """P1, P2: a command is asked for, looked at and stopped, each time with another
    fault; no other one hears of any."""
    async with open_processes() as processes:
        other = await processes.spawn(
            ["bash", "-c", "read; exit 3"],
            cwd=None,
            env=os.environ,
            marker="other",
            stdin="pipe",
        )
        guardian = guardian_of(processes)
        for place in PLACES:
            struck = order(*place)
            tree = await shell(processes, f"echo up; sleep {LIFE} & sleep {LIFE}")
            assert await read_line(tree) == "up"
            assert tree.pid in await tree.members(), place
            tree.terminate()
            ended = await tree.wait_exit()
            assert (ended.signal, ended.after_stop) == (15, True), place
            tree.kill()
            await tree.wait_gone()
            assert not struck.is_symlink(), place
            await tree.aclose()
        await other.send(b"\n")
        ended = await other.wait_exit()
        assert (ended.code, ended.after_stop) == (3, False)
        assert guardian_of(processes) == guardian


async def test_an_end_is_told_whatever_fails_as_it_is_read() -> None:
    """P2: the exit of a command that nobody stops, and that nothing is left of it."""
    async with open_processes() as processes:
        first = await shell(processes, "true")  # Its guardian is there from now on.
        await first.wait_gone()
        for place in [*PLACES, ("send", errno.EAGAIN, 0)]:
            struck = order(*place)
            tree = await shell(processes, "sleep 0 & exit 7")
            ended = await tree.wait_exit()
            assert (ended.code, ended.after_stop) == (7, False), place
            await tree.wait_gone()
            struck.unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["prctl", "set_mark", "_use_few_descriptors"])
async def test_a_start_that_fails_in_the_fork_is_no_exit_code(name: str) -> None:
    """SH11: and it is said of which program."""
    argv = ["bash", "-c", "exit 7"]
    async with open_processes() as processes:
        order(name, errno.EINVAL)
        with pytest.raises(OSError, match="Invalid argument") as caught:
            await processes.spawn(argv, cwd=None, env=os.environ, marker="x", nice=19)
        assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, "bash")
        tree = await processes.spawn(
            argv, cwd=None, env=os.environ, marker="y", nice=19
        )
        assert (await tree.wait_exit()).code == 7


async def test_a_start_counts_if_the_guardian_cannot_leave_its_directory() -> None:
    """P1: what was started and not told would be nobody's."""
    async with open_processes() as processes:
        order("chdir", errno.EACCES, 1)
        tree = await shell(processes, "exit 7")
        assert (await tree.wait_exit()).code == 7


async def test_a_look_that_fails_for_long_keeps_nobody_from_being_killed() -> None:
    """P1, P3: nor does the question that it was to answer."""
    async with open_processes() as processes:
        tree = await shell(processes, f"echo up; sleep {LIFE} & sleep {LIFE}")
        other = await shell(processes, "echo up; exec cat <(sleep 0)")
        assert await read_line(tree) == "up"
        fault = order("listdir", errno.EMFILE, "always")
        with trio.move_on_after(0.2):
            await tree.members()
        tree.kill()
        assert (await tree.wait_exit()).signal == 9
        fault.unlink()
        await tree.wait_gone()
        assert (await other.wait_exit()).code == 0


async def test_a_runtime_that_does_not_listen_is_told_later() -> None:
    """P2: every answer, and the end."""
    async with open_processes() as processes:
        tree = await shell(processes, f"sleep {LIFE}")
        other = await shell(processes, f"sleep {LIFE}")
        tree.ask(b"m" * 100)
        # It goes on to serve others.
        for _ in range(3):
            assert other.pid in await other.members()
        tree.kill()
        assert (await tree.wait_exit()).signal == 9
        await tree.wait_gone()
        assert tree._answers == 100


async def test_a_runtime_that_cannot_be_told_hears_that() -> None:
    """P1, P2: nobody waits for ever for a line that is lost, and nothing is left."""
    async with open_processes() as processes:
        tree = await shell(processes, f"sleep {LIFE}")
        other = await shell(processes, f"sleep {LIFE}", marker="s00000002")
        order("send", errno.EPERM)
        await tree.members()
        assert tree._lost
        assert (await tree.wait_exit()).lost
        await tree.wait_gone()
        assert await other.members() == (other.pid,)
