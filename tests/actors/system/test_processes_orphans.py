"""What is left of a tree is known exactly, whatever happens during a look."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest
import trio

from actors._system import posix as _posix
from actors._system.posix import PosixProcess, PosixProcesses
from tests.actors.process_trees import (
    living,
    open_processes,
    read_line,
    shell,
    until,
    unused_seconds,
)
from tests.actors.system import beset_guardian

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# The leader ends at a line of input. Each of the others starts the next one,
# tells its pid and that one's, and waits; the last is a sleep.
FAMILY = """
import os, signal, sys
def begin(generations):
    if not generations:
        os.execvp("sleep", ["sleep", sys.argv[2]])
    child = os.fork()
    if not child:
        os.setsid()
        begin(generations - 1)
    os.write(1, f"{os.getpid()} {child}\\n".encode())
    os.waitpid(child, 0)
    signal.pause()
if not os.fork():
    os.setsid()
    begin(int(sys.argv[1]))
sys.stdin.read(1)
"""


async def start_family(
    processes: PosixProcesses, generations: int, n: str
) -> tuple[PosixProcess, dict[int, int]]:
    """Return the tree, and the child of each but the leader and the last."""
    tree = await processes.spawn(
        [sys.executable, "-I", "-S", "-c", FAMILY, str(generations), n],
        cwd=None,
        env={"PATH": os.environ["PATH"]},
        marker="family",
        stdin="pipe",
    )
    lines = [(await read_line(tree)).split() for _ in range(generations)]
    return tree, {int(parent): int(child) for parent, child in lines}


LOOKS = [(False, 0), (False, 1), (False, 2), (False, 3), (False, 4), (True, 0)]


@pytest.mark.parametrize(("after_the_child", "looks"), LOOKS)
@pytest.mark.parametrize("wanted", ["Z", "-"])
async def test_a_parent_that_ends_during_a_look_leaves_nobody_unseen(
    wanted: str,
    after_the_child: bool,
    looks: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P1: it is a zombie then, or was already reaped by a member that lives; its
    child was looked at before, or not. Another task is running."""
    orders = tmp_path / "orders"
    monkeypatch.setattr(_posix, "_SCRIPT", beset_guardian.__file__)
    monkeypatch.setenv("BESET", str(orders))
    n = unused_seconds()
    async with open_processes() as processes:
        other = await shell(processes, "exec sleep 1000", marker="other")
        tree, child_of = await start_family(processes, 1 if wanted == "Z" else 2, n)
        (child,) = {*child_of.values()}.difference(child_of)
        (parent,) = (pid for pid in child_of if child_of[pid] == child)
        pidfds = [os.pidfd_open(pid) for pid in child_of]
        since = child if after_the_child else 0
        (tmp_path / "new").write_text(f"{parent} {wanted} {since} {looks}")
        (tmp_path / "new").rename(orders)
        await tree.send(b"\n")
        await tree.wait_exit()
        for pidfd in pidfds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            await trio.lowlevel.wait_readable(pidfd)
            os.close(pidfd)
        assert await tree.members() == (child,)
        await until(lambda: living(n) == [child])
        tree.kill()
        await tree.wait_gone()
        assert living(n) == []
        assert await other.members() == (other.pid,)
