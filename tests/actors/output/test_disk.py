"""Disks that fail: full, read-only, taken away, slow. A task ends with the truth.

Real processes and real files, and where the system lets us, real file systems.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from actors import TaskStatus, output
from actors.env import Env, Files, OutputFile, real_env
from actors.shell import Shell
from actors.work import Report
from supervisor.runtime import Limits, Runtime, Warned, open_runtime
from tests.actors.process_trees import alive, until

pytestmark = pytest.mark.skipif(os.name == "nt", reason="shells need POSIX")
HANGS = 60.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", disk],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system may be mounted here: {error}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@attrs.define(eq=False)
class Opened:
    """A runtime, and what it warned of."""

    runtime: Runtime
    warnings: list[str] = attrs.field(factory=list)

    async def listen(self) -> None:
        async for event in self.runtime.events:
            if isinstance(event, Warned):
                self.warnings.append(event.text)


@asynccontextmanager
async def opened(
    directory: Path, env: Env | None = None, limits: Limits | None = None
) -> AsyncGenerator[Opened, None]:
    with trio.fail_after(HANGS):
        async with trio.open_nursery() as nursery:
            # Without a journal: one that is open keeps a disk from being made read-only.
            async with open_runtime(
                directory, env=env, limits=limits, journal=False
            ) as runtime:
                it = Opened(runtime)
                nursery.start_soon(it.listen)
                await trio.testing.wait_all_tasks_blocked()
                yield it


# ---- Full, read-only, taken away ---------------------------------------------


@pytest.mark.parametrize("raw", [False, True])
async def test_on_a_full_disk_the_task_fails_and_says_so(
    small_disk: Path, raw: bool
) -> None:
    """SH9, P2: its command is ended; its last words are in the result; another
    task has room again when the file is gone."""
    async with opened(small_disk) as it:
        task = await it.runtime.launch(
            Shell("while echo more; do :; done; sleep 1000", raw=raw)
        )
        done = await task.wait()
        assert done.status is TaskStatus.FAILED
        assert done.error is not None
        assert done.error.type == "OSError"
        assert "No space left on device" in done.error.message
        assert str(done.output_file) in done.error.message
        # A piece may have ended within a line.
        whole, _, begun = (done.result or "").rpartition("\n")
        assert whole.endswith("\nmore") and "more".startswith(begun)
        assert done.output_file is not None
        assert 0 < done.output_file.stat().st_size <= 65_536
        done.output_file.unlink()
        again = await (await it.runtime.launch(Shell("echo fine"))).wait()
        assert (again.status, again.result) == (TaskStatus.COMPLETED, "fine\n")


async def test_a_disk_that_is_full_at_the_last_line_fails_the_task(
    small_disk: Path,
) -> None:
    """SH9, P2: a command that exits with 0 is not completed without its output."""
    ballast = small_disk / "ballast"
    async with opened(small_disk) as it:
        task = await it.runtime.launch(
            Shell("printf unfinished; read line", stdin="pipe")
        )
        await task.wait_output("unfinished")
        try:
            ballast.write_bytes(b"x" * 10**6)
        except OSError:
            pass
        await task.close_input()
        done = await task.wait()
    assert done.status is TaskStatus.FAILED
    assert "No space left" in (done.error.message if done.error else "")
    assert done.result == "unfinished"
    assert any("could not be kept" in text for text in it.warnings)


async def test_where_nothing_can_be_created_the_task_fails_at_once(
    small_disk: Path,
) -> None:
    """SH9, P2"""
    async with opened(small_disk) as it:
        await trio.run_process(["mount", "-o", "remount,ro", str(small_disk)])
        task = await it.runtime.launch(Shell("echo lost"))
        done = await task.wait()
    assert done.status is TaskStatus.FAILED
    assert "Read-only file system" in (done.error.message if done.error else "")
    assert done.output_file is None


async def test_a_directory_that_is_removed_costs_no_running_task_its_end(
    tmp_path: Path,
) -> None:
    """SH9, OF2: the file reads as empty, the result has the end, and says so."""
    directory = tmp_path / "tasks"
    async with opened(directory) as it:
        task = await it.runtime.launch(
            Shell("echo before; read line; echo after", stdin="pipe")
        )
        await task.wait_output("before")
        shutil.rmtree(directory)
        await task.close_input()
        done = await task.wait()
        assert done.result == f"{output.LOST_NOTE.decode()}before\nafter\n"
        await trio.testing.wait_all_tasks_blocked()
        assert any("removed or replaced" in text for text in it.warnings)
        assert done.exit_code == 0
        assert task.read_tail() == ""
        lost = await (await it.runtime.launch(Shell("echo lost"))).wait()
        assert lost.status is TaskStatus.FAILED
        assert "No such file or directory" in (lost.error.message if lost.error else "")


# ---- Slow --------------------------------------------------------------------


@attrs.define(eq=False)
class SlowFile:
    """A file whose disk does nothing until it is told to."""

    file: OutputFile
    disk: SlowDisk

    @property
    def path(self) -> Path:
        return self.file.path

    def size(self) -> int:
        return self.file.size()

    def rotate(self, older: Path) -> int:
        return self.file.rotate(older)

    async def append(self, data: bytes) -> None:
        self.disk.largest = max(self.disk.largest, len(data))
        await self.disk.wait()
        await self.file.append(data)

    async def aclose(self) -> None:
        try:
            await self.disk.wait()
        finally:
            with trio.CancelScope(shield=True):
                await self.file.aclose()  # noqa: ASYNC102 - a real file, at once


class SlowDisk:
    """The real files, whose outputs are `SlowFile`."""

    def __init__(self, files: Files, *, shielded: bool) -> None:
        self.files = files
        self.shielded = shielded
        self.go_on = trio.Event()
        self.in_write = trio.Event()
        self.largest = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.files, name)

    def open_output(self, path: Path) -> OutputFile:
        return SlowFile(self.files.open_output(path), self)

    async def wait(self) -> None:
        self.in_write.set()
        with trio.CancelScope(shield=self.shielded):
            await self.go_on.wait()


def slow_env(*, shielded: bool = True) -> tuple[Env, SlowDisk]:
    env = real_env()
    disk = SlowDisk(env.files, shielded=shielded)
    return attrs.evolve(env, files=disk), disk


# Prints until the pipe takes no more, says to a FIFO how much that was, goes on.
FILLER = """
import os, sys
os.set_blocking(1, False)
written = 0
while True:
    try:
        written += os.write(1, b"x" * 4096)
    except BlockingIOError:
        if written > 65536: break
os.set_blocking(1, True)
open(sys.argv[1], "w").write(str(written))
os.write(1, b"end")
"""


async def test_a_slow_disk_holds_up_the_command_and_takes_no_memory(
    tmp_path: Path,
) -> None:
    """P6, P7, SH9: the pipe fills; another task and a reader go on."""
    env, disk = slow_env()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = tmp_path / "filler.py"
    program.write_text(FILLER)
    async with opened(tmp_path / "tasks", env) as it:
        task = await it.runtime.launch(Shell(f"{sys.executable} -S {program} {fifo}"))
        try:
            written = int(await trio.to_thread.run_sync(fifo.read_text))
            # The pipe may be full because we are late, and nothing is being written.
            await disk.in_write.wait()
            # A pipe, what is being written, and what was held back.
            assert written <= 4 * 65_536
            assert disk.largest <= 65_536 * 2
            assert task.status is TaskStatus.RUNNING
            assert task.read_tail() == ""
        finally:
            disk.go_on.set()  # Or the end waits for it, and hides what has failed.
        done = await task.wait()
        assert done.status is TaskStatus.COMPLETED
        assert done.output_file is not None
        assert done.output_file.stat().st_size == written + 3


async def test_a_stop_in_a_slow_write_waits_for_it_and_no_longer(
    tmp_path: Path,
) -> None:
    """P1, P2, SH9: what was written before the stop is there afterwards."""
    env, disk = slow_env()
    async with opened(tmp_path / "tasks", env) as it:
        task = await it.runtime.launch(Shell("echo before; sleep 1000"))
        await disk.in_write.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.runtime.stop, task.id)
            await it_stops(it.runtime, task.id)
            disk.go_on.set()
        done = task.snapshot()
    assert done.status is TaskStatus.KILLED
    assert done.result == "before\n"
    assert done.output_file is not None
    assert done.output_file.read_bytes() == b"before\n"


async def it_stops(runtime: Runtime, task_id: str) -> None:
    """Wait until the command of a task that is being stopped is gone."""
    pid = runtime.get(task_id).pid
    assert pid is not None
    await until(lambda: not alive(pid))


async def test_a_disk_that_never_answers_does_not_hold_up_the_end_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2, SH9: closing has its deadline, and the task says that output is lost."""
    monkeypatch.setattr(output, "_CLOSE_BUDGET", 0.1)
    env, disk = slow_env(shielded=False)
    async with opened(tmp_path / "tasks", env) as it:
        task = await it.runtime.launch(Shell("echo lost", linger=0))
        await disk.in_write.wait()
        done = await task.wait()
    assert done.status is TaskStatus.FAILED
    assert done.error is not None
    assert done.error.type == "TimeoutError"
    assert "could not be kept" in done.error.message
    assert done.result == "lost\n"
    assert any("could not be kept" in text for text in it.warnings)


# ---- The quota of the directory ----------------------------------------------


async def test_the_task_that_fills_the_directory_fails_and_no_other(
    tmp_path: Path,
) -> None:
    """P7, P10: after a warning, with a reason that names the directory."""
    async with opened(tmp_path, limits=Limits(disk=10_000)) as it:
        quiet = await it.runtime.launch(
            Shell("echo quiet; read line; echo again", stdin="pipe")
        )
        await quiet.wait_output("quiet")
        loud = await it.runtime.launch(Shell("while echo loud; do :; done"))
        done = await loud.wait()
        assert done.status is TaskStatus.FAILED
        assert done.error is not None
        assert done.error.type == "DirectoryQuotaExceeded"
        assert str(tmp_path) in done.error.message
        assert quiet.status is TaskStatus.RUNNING
        assert sum(entry.stat().st_size for entry in os.scandir(tmp_path)) == 10_000
    assert sum(f"{tmp_path} has used" in text for text in it.warnings) == 1


async def test_a_removed_output_makes_room_for_another(tmp_path: Path) -> None:
    """P7: its bytes are given back, of the older file, too."""
    disk = output.DiskQuota(100)
    report = Report("s00000000", "s00000000-000001", real_env())
    report.disk = disk
    report.output_file = tmp_path / "s.output"
    report.env.files.reserve(report.output_file)
    log = output.OutputLog(
        report.env.files.open_output(report.output_file),
        quota=100,
        rotate=20,
        on_rotate=report.output_rotated,
        disk=disk,
    )
    for _ in range(9):
        await log.write(b"0123456\n")
    await log.aclose()
    report.output_bytes = log.bytes_written
    assert sorted(os.listdir(tmp_path)) == ["s.output", "s.output.1"]
    assert disk.used == 24
    report.remove_output()
    report.remove_output()
    assert os.listdir(tmp_path) == []
    assert disk.used == 0
