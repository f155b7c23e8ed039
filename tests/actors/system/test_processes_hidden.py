"""Where ``/proc`` hides processes, shows others, or lacks a file."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

from actors._system import posix as _posix
from tests.actors.process_trees import (
    ESCAPES,
    ROOT,
    living,
    open_processes,
    read_all,
    shell,
    until,
    unused_seconds,
)
from tests.actors.system import guardian_without_children

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# Each of the trees: told of its end, with what it left behind; stopped; closed.
HOST = """
import os, sys, trio
from actors._system.posix import PosixProcesses

async def main():
    processes = PosixProcesses()
    async def shell(script, marker):
        return await processes.spawn(
            ["bash", "-c", script], cwd=None, env=os.environ, marker=marker
        )
    n = sys.argv[1]
    with trio.fail_after(30):
        other = await shell(f"sleep {n}", "other")
        for i in range(10):
            tree = await shell("exit 3", f"plain{i}")
            assert (await tree.wait_exit()).code == 3
            await tree.wait_gone()
        tree = await shell(f"sleep {n} & exit 4", "orphan")
        assert (await tree.wait_exit()).code == 4
        with trio.move_on_after(0.2) as early:
            await tree.wait_gone()
        assert early.cancelled_caught
        tree.kill()
        await tree.wait_gone()
        tree = await shell(f"trap 'echo told; exit 5' TERM; echo on; sleep {n} & wait", "soft")
        await tree.receive()
        assert len(await tree.members()) >= 1
        tree.terminate()
        assert (await tree.wait_exit()).code == 5
        await tree.wait_gone()
        for how in sys.argv[2:]:
            tree = await shell(how.format(n=n), how)
            print(tree.usage())
        await processes.aclose()
    print("closed")

trio.run(main)
"""


def run_host(*prefix: str, escapes: list[str]) -> None:
    n = unused_seconds()
    command = [*prefix, sys.executable, "-c", HOST, n, *escapes]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout.endswith("closed\n"), done.stdout + done.stderr
        assert living(f"sleep\0{n}") == []
    finally:
        for pid in living(f"sleep\0{n}"):
            os.kill(pid, signal.SIGKILL)


def in_namespace(*options: str) -> list[str]:
    """Return what runs a command in a namespace of its own; skip where nobody may."""
    command = ["unshare", *options, "--"]
    if (
        shutil.which("unshare") is None
        or subprocess.run(
            [*command, "true"], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("there may be no namespace of one's own")
    return command


def test_the_proc_of_another_pid_namespace_is_not_believed() -> None:
    """P1: there a tree is a process group, as on a system without ``/proc``; its
    host is the init there, to which orphans would go."""
    namespace = in_namespace("--pid", "--fork", "--kill-child")
    run_host(
        *namespace, escapes=[ESCAPES["plain child"], ESCAPES["ignores everything"]]
    )


HIDE = """
mount -t proc -o hidepid=invisible,gid=12345 proc /proc || exit 77
exec setpriv --bounding-set=-all --inh-caps=-all "$@"
"""


def test_ends_are_told_where_other_users_are_hidden() -> None:
    """P1: without the capabilities of root, as for any user."""
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv")
    namespace = in_namespace("--mount", "--propagation", "private")
    hidden = [*namespace, "sh", "-c", HIDE, "sh"]
    look = [*hidden, "test", "-e", f"/proc/{os.getpid()}"]
    if subprocess.run(look, check=False).returncode != 1:
        pytest.skip("we could not be hidden")
    run_host(*hidden, escapes=[*ESCAPES.values()])


@pytest.mark.parametrize("script", ESCAPES.values(), ids=ESCAPES.keys())
async def test_a_kernel_that_tells_no_children_leaves_nothing(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1."""
    monkeypatch.setattr(_posix, "_SCRIPT", guardian_without_children.__file__)
    n = unused_seconds()
    async with open_processes() as processes:
        tree = await shell(processes, f"{script.format(n=n)} # {n}")
        await until(lambda: len(living(f"sleep\0{n}")) >= 1)
        assert set(living(f"sleep\0{n}")) <= set(await tree.members())
        tree.terminate()
        tree.kill()
        await tree.wait_gone()
        assert living(n) == []
        again = await shell(processes, "(sleep 0.05; echo last) & exit 3", marker="b")
        assert (await again.wait_exit()).code == 3
        await again.wait_gone()
        assert await read_all(again) == b"last\n"
