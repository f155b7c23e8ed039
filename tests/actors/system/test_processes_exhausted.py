"""When descriptors, processes or permissions run out, and that nothing leaks."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from actors._system.posix import PosixProcess
from tests.actors.process_trees import (
    ROOT,
    children,
    descriptors,
    guardian_of,
    living,
    open_processes,
    outer_guardian_of,
    read_line,
    sees_guardians,
    shell,
    stop_guardian,
    until,
    unused_seconds,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MANY = int(os.environ.get("MANY_SPAWNS", "1000"))


def resident(pid: int) -> int:
    """Return kilobytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1])


@contextmanager
def only_free(number: int) -> Generator[None]:
    """Leave this process so many free descriptors."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + number + 1, before[1]))
    fillers: list[int] = []
    try:
        try:
            while True:
                fillers.append(os.dup(0))
        except OSError:
            pass
        for _ in range(number):
            os.close(fillers.pop())
        yield
    finally:
        for filler in fillers:
            os.close(filler)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# Errors of the system


async def test_a_file_that_is_no_program_is_told(tmp_path: Path) -> None:
    """SH11."""
    program = tmp_path / "tool"
    program.write_bytes(b"\x7fELF nonsense")
    program.chmod(0o700)
    async with open_processes() as processes:
        with pytest.raises(OSError, match="Exec format error") as caught:
            await processes.spawn([str(program)], cwd=None, env={}, marker="x")
        assert caught.value.errno == errno.ENOEXEC
        assert caught.value.filename == str(program)


HOST = """
import os, sys, trio
from actors._system.posix import PosixProcesses

async def main():
    processes = PosixProcesses()
    for cwd, program in [(sys.argv[1], "true"), (None, sys.argv[2])]:
        try:
            await processes.spawn([program], cwd=cwd, env=os.environ, marker="x")
        except OSError as error:
            print(error.errno, error.filename)
    tree = await processes.spawn(["true"], cwd=None, env=os.environ, marker="x")
    print((await tree.wait_exit()).code)
    await processes.aclose()

trio.run(main)
"""


def test_what_is_not_permitted_is_told(tmp_path: Path) -> None:
    """SH11: a directory and a program that are forbidden."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o600)
    command = [sys.executable, "-c", HOST, str(closed), str(program)]
    if os.geteuid() == 0:
        # root may enter any directory unless it gives up that capability.
        if shutil.which("setpriv") is None:
            pytest.skip("root may do everything, and there is no setpriv")
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == [
        f"{errno.EACCES} {closed}",
        f"{errno.EACCES} {program}",
        "0",
    ], done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="no limit on processes holds for root")
async def test_no_process_more_is_told() -> None:
    """SH11."""
    async with open_processes() as processes:
        await (await shell(processes, "true")).aclose()
        guardian = guardian_of(processes)
        before = resource.prlimit(guardian, resource.RLIMIT_NPROC)
        resource.prlimit(guardian, resource.RLIMIT_NPROC, (1, before[1]))
        with pytest.raises(BlockingIOError) as caught:
            await shell(processes, "true")
        assert caught.value.errno == errno.EAGAIN
        assert caught.value.filename == "bash"
        resource.prlimit(guardian, resource.RLIMIT_NPROC, before)
        assert (await (await shell(processes, "exit 7")).wait_exit()).code == 7


# Descriptors


@pytest.mark.parametrize("started", [False, True])
async def test_a_host_without_free_descriptors_is_told_so(started: bool) -> None:
    """SH11: each number of them runs out somewhere else."""
    outcomes: set[bool] = set()
    async with open_processes() as processes:
        for number in range(12):
            if started:
                await (await shell(processes, "true")).aclose()
            else:
                await processes.aclose()
            before = descriptors(), children()
            tree = failure = None
            with only_free(number):
                try:
                    tree = await processes.spawn(
                        ["bash", "-c", "exit 7"],
                        cwd=None,
                        env=os.environ,
                        marker="x",
                        stdin="pipe",
                    )
                    assert (await tree.wait_exit()).code == 7
                except OSError as error:
                    failure = error
            if failure is not None:
                assert (failure.errno, failure.filename) == (errno.EMFILE, "bash")
            outcomes.add(tree is None)
            again = await shell(processes, "exit 8")
            assert (await again.wait_exit()).code == 8
            await again.aclose()
            if tree is not None:
                await tree.aclose()
            if started:
                assert descriptors() <= before[0]
                assert children() <= before[1]
    assert outcomes == {True, False}


async def test_a_guardian_without_free_descriptors_says_so() -> None:
    """SH11."""
    n = unused_seconds()
    async with open_processes() as processes:
        await (await shell(processes, "true")).aclose()
        resource.prlimit(guardian_of(processes), resource.RLIMIT_NOFILE, (40, 40))
        trees: list[PosixProcess] = []

        async def start_many() -> None:
            for i in range(100):
                tree = await shell(processes, f"sleep {n}", marker=f"m{i}")
                trees.append(tree)

        with pytest.raises(OSError, match="Too many open files") as caught:
            await start_many()
        assert (caught.value.errno, caught.value.filename) == (errno.EMFILE, "bash")
        assert len(trees) >= 10
        await trees.pop().aclose()
        again = await shell(processes, "exit 8", marker="again")
        assert (await again.wait_exit()).code == 8
        for tree in trees:
            tree.kill()
            await tree.wait_gone()
        assert living(n) == []


async def test_a_low_soft_limit_of_the_host_does_not_limit_the_guardian() -> None:
    """SH11: more commands run than the programs' own limit allows files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = max(map(int, descriptors())) + 20
    many = low + 20
    if before[1] < low + 2 * many:
        pytest.skip("the hard limit is as low")
    async with open_processes() as processes:
        # The guardian begins with the limit of the host.
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, before[1]))
        try:
            await (await shell(processes, "true")).aclose()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (low + 3 * many, before[1]))
        try:
            trees = [
                await shell(processes, "ulimit -S -n; ulimit -H -n; exec sleep 1000")
                for _ in range(many)
            ]
            # A program has the limits of the host, not those of the guardian.
            for tree in trees:
                assert await read_line(tree) == str(low)
                assert await read_line(tree) in (str(before[1]), "unlimited")
            assert len({tree.pid for tree in trees}) == many
            for tree in trees:
                tree.kill()
            for tree in trees:
                assert (await tree.wait_exit()).signal == signal.SIGKILL
                await tree.aclose()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


# Many


@sees_guardians
async def test_many_spawns_leak_nothing_here_nor_in_the_guardian() -> None:
    """The environment variable MANY_SPAWNS makes it more."""
    with trio.fail_after(60 + MANY / 10):
        async with open_processes(60 + MANY / 10) as processes:

            async def run_many(total: int) -> None:
                turns = iter(range(total))

                async def work() -> None:
                    for i in turns:
                        tree = await shell(processes, f"exit {i % 7}", marker=f"m{i}")
                        assert (await tree.wait_exit()).code == i % 7
                        await tree.wait_gone()
                        await tree.aclose()

                async with trio.open_nursery() as nursery:
                    for _ in range(8):
                        nursery.start_soon(work)

            await run_many(200)
            pids = os.getpid(), guardian_of(processes), outer_guardian_of(processes)
            files = [set(os.listdir(f"/proc/{pid}/fd")) for pid in pids]
            memory = [resident(pid) for pid in pids]
            await run_many(MANY)
            await until(
                lambda: all(
                    set(os.listdir(f"/proc/{pid}/fd")) <= before
                    for pid, before in zip(pids, files, strict=True)
                )
            )
            for pid, before in zip(pids, memory, strict=True):
                assert resident(pid) < before + 4096
            kept = Path(f"/proc/{pids[1]}/task/{pids[1]}/children")
            await until(lambda: kept.read_text() == "")
            assert not processes._trees


# Stopping without a descriptor

STOPPING = """
import os, resource, sys, tempfile, trio
from actors.shell import Shell
from supervisor.runtime import open_runtime

async def main():
    async with open_runtime(tempfile.mkdtemp(dir=sys.argv[1])) as runtime:
        task = await runtime.launch(Shell("echo up; exec sleep 600"))
        await task.wait_output("up")
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        stopped = (await runtime.stop(task.id)).snapshot
        print(stopped.status.value, stopped.signal, stopped.error)

trio.run(main)
"""


def test_the_first_stop_needs_no_descriptor(tmp_path: Path) -> None:
    """P1: a host that has run out of them stops its tasks as any other."""
    done = subprocess.run(
        [sys.executable, "-c", STOPPING, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "killed 15 None\n", done.stderr


async def test_closing_without_a_descriptor_leaves_nothing() -> None:
    """P1: what has to be looked for, since no guardian is left, is found."""
    n = unused_seconds()
    try:
        async with open_processes() as processes:
            before = descriptors()
            trees = [await shell(processes, f"exec sleep {n}") for _ in range(2)]
            guardians = guardian_of(processes), outer_guardian_of(processes)
            stop_guardian(processes)
            for pid in guardians:
                os.kill(pid, signal.SIGKILL)
            with only_free(0):
                await processes.aclose()
            assert living(n) == []
            assert not processes._trees
            assert descriptors() <= before
            for tree in trees:
                with pytest.raises(trio.ClosedResourceError):
                    await tree.receive()
    finally:
        for pid in living(n):
            os.kill(pid, signal.SIGKILL)


@sees_guardians
async def test_a_wish_to_a_guardian_that_listens_no_more_waits_for_nothing() -> None:
    """P6: as when somebody kills a tree that is being closed."""
    async with open_processes() as processes:
        tree = await shell(processes, "exec sleep 600")
        inner, outer = guardian_of(processes), outer_guardian_of(processes)
        stop_guardian(processes)
        stat = Path(f"/proc/{inner}/stat")

        def is_stopped() -> bool:
            return stat.read_text().rpartition(") ")[2].startswith("T")

        def go_on() -> None:
            os.kill(outer, signal.SIGCONT)
            os.kill(inner, signal.SIGCONT)

        await until(is_stopped)
        timer = threading.Timer(10, go_on)
        timer.start()
        try:
            tree._channel.shutdown(socket.SHUT_WR)
            tree.ask(b"k")
            assert is_stopped()
        finally:
            timer.cancel()
            timer.join()
            go_on()
        await tree.wait_gone()
