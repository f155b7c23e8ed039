"""A disk that fails at any call: what was said is there, or somebody is told.

Each call of the files of a simulated world goes wrong once, in each way. Besides there
are real disks: full, read-only, and one on which this user may not write.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio

from actors import TaskStatus
from actors.agent import Agent, AgentContext, AgentEvent, AssistantMessage, FinalResult
from actors.shell import Shell
from actors.testing import FakeEnv, Program
from supervisor.agents import AgentPolicy
from supervisor.runtime import Limits, TaskSnapshot, Warned, open_runtime
from supervisor.simulation import Sim, fault_everywhere, simulate

HERE = Path("/tasks")
SAID = ["first", "second", "third", "all said"]
LONG = 60.0

# ---- Each call of a simulated disk --------------------------------------------


@pytest.fixture(autouse=True)
def _silent(caplog: pytest.LogCaptureFixture) -> None:
    """What fails on purpose is logged some hundred times."""
    caplog.set_level(logging.CRITICAL, "supervisor")


async def build(program: Program) -> None:
    await program.print("one\n")
    await trio.sleep(0.1)
    await program.print("two\n")


async def talks(context: AgentContext) -> AsyncIterator[AgentEvent]:
    for text in SAID[:-1]:
        yield AssistantMessage(text)
        await trio.sleep(0.1)
    yield FinalResult(SAID[-1])


def said_in(env: FakeEnv, path: Path | None) -> list[str]:
    """Return what the transcript at a path says, whatever goes wrong with reading."""
    try:
        contents = env.files.contents(path or "/nothing")
    except FileNotFoundError:
        return []
    texts: list[str] = []
    for line in contents.splitlines():
        record: Any = orjson.loads(line)
        if record["type"] == "assistant":
            texts += [it["text"] for it in record["message"]["content"]]
    return texts


def judge_shell(env: FakeEnv, done: TaskSnapshot, rotates: bool) -> None:
    """Its end says all that it has printed, or why not."""
    if done.status is TaskStatus.COMPLETED:
        assert done.result == ("two\n" if rotates else "one\ntwo\n") or rotates
        assert done.output_file is not None
        there = env.files.contents(done.output_file)
        if rotates:
            there = env.files.contents(f"{done.output_file}.1") + there
        assert there == b"one\ntwo\n"
    else:
        assert done.status is TaskStatus.FAILED
        assert done.error is not None and done.error.message


async def works(sim: Sim, rotates: bool = False) -> None:
    env = sim.env({"build": build})
    env.files.disk.directories.add(HERE)
    for name in ("s0000000a.output", "agent-0000000b.jsonl"):
        env.files.disk.create(HERE / name).modified = 0.0
    env.files.disk.create(HERE / "large").data += b"x" * 30_000
    is_open = False
    try:
        async with open_runtime(
            HERE,
            env=env,
            limits=Limits(disk=60_000, transcript=20_000),
            agents=AgentPolicy(run=talks),
        ) as runtime:
            is_open = True
            events = runtime.events.subscribe()
            options: Any = {"rotate": 4, "quota": 100} if rotates else {}
            shell = await runtime.launch(Shell("build", **options))
            agent = await runtime.launch(Agent(talks, "go"))
            ended = await shell.wait()
            answered = await agent.wait()
    except OSError as error:
        if is_open or error.filename != str(HERE):
            raise
        # It says that it cannot be opened, and of what.
        return
    told = [it for it in events.drain() if isinstance(it, Warned)]
    judge_shell(env, ended, rotates)
    of_agent = [it.text for it in told if it.task_id == agent.id]
    path = HERE / f"agent-{agent.id}.jsonl"
    if answered.status is TaskStatus.COMPLETED:
        assert answered.result == SAID[-1]
        assert said_in(env, path) == SAID or of_agent
    else:
        assert answered.error is not None and answered.error.message
    meta = env.files.disk.file(HERE / f"agent-{agent.id}.meta.json")
    if meta is None or orjson.loads(meta.data)["status"] != answered.status.value:
        assert any("meta" in text for text in of_agent)


async def rotates(sim: Sim) -> None:
    await works(sim, rotates=True)


@pytest.mark.parametrize("program", [works, rotates])
def test_whichever_call_of_the_disk_fails_what_was_said_is_there_or_told(
    program: Any,
) -> None:
    """P2, P7, P10, SH9: of outputs, transcripts, the quota and the opening."""
    report = fault_everywhere(program, seams="files.*", schedules=1)
    assert report.points > 45
    assert {"EIO", "ENOSPC", "EMFILE", "slow"} <= {*report.arrivals}


def test_without_a_fault_all_is_there() -> None:
    """Or the test above could not fail."""
    run = simulate(works)
    assert run.error is None


# ---- Real disks ----------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k,mode=777", "none", disk],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system may be mounted here: {error}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def fill(disk: Path) -> Path:
    """Leave no room on a disk, by a file that can be removed."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4_096)
        except OSError:
            return ballast


async def test_on_a_full_disk_an_agent_goes_on_and_all_is_recorded_when_there_is_room(
    small_disk: Path,
) -> None:
    """TR2, P10: a real file system. A warning names the reason, and nothing is lost."""
    go_on = trio.Event()

    async def waits(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("x" * 5_000)
        await go_on.wait()
        yield FinalResult("done")

    with trio.fail_after(LONG):
        async with open_runtime(small_disk) as runtime:
            ballast = fill(small_disk)
            events = runtime.events.subscribe()
            task = await runtime.launch(Agent(waits, "go"))
            async for event in events:
                if isinstance(event, Warned):
                    assert "No space left on device" in event.text
                    assert event.task_id == task.id
                    break
            assert task.status is TaskStatus.RUNNING
            ballast.unlink()
            go_on.set()
            assert (await task.wait()).status is TaskStatus.COMPLETED
            await runtime.transcripts.flush()
            messages = await runtime.transcripts.read_tail(task.id, 10)
    assert [it.text for it in messages if isinstance(it, AssistantMessage)] == [
        *("x" * 5_000, "done"),
    ]


async def test_what_a_full_disk_has_not_taken_by_the_end_is_told(
    small_disk: Path,
) -> None:
    """TR2, P10: the last warnings come with the end of the runtime."""
    with trio.fail_after(LONG):
        async with open_runtime(small_disk) as runtime:
            fill(small_disk)
            events = runtime.events.subscribe()
            task = await runtime.launch(Agent(talks, "go"))
            assert (await task.wait()).status is TaskStatus.COMPLETED
    told = [it.text for it in events.drain() if isinstance(it, Warned)]
    assert any("5 messages at the end could not be recorded" in it for it in told)
    assert any("the meta could not be written" in it for it in told)


async def test_a_full_disk_can_be_opened_and_its_quota_is_not_blamed(
    small_disk: Path,
) -> None:
    """P7, P10: the disk is full, and not what this directory may have. With a journal,
    which has no room, it is refused."""
    fill(small_disk)
    limits = Limits(disk=10**6)
    with trio.fail_after(LONG):
        with pytest.raises(OSError, match=r"No space left on device: .*journal\.jsonl"):
            async with open_runtime(small_disk, limits=limits):
                pass
        async with open_runtime(small_disk, limits=limits, journal=False) as runtime:
            done = await (await runtime.launch(Shell("echo lost"))).wait()
    assert done.status is TaskStatus.FAILED
    assert done.error is not None
    assert done.error.type == "OSError"
    assert "No space left on device" in done.error.message


async def test_a_directory_that_is_read_only_is_refused_by_its_name(
    small_disk: Path,
) -> None:
    """P10: whoever one is."""
    await trio.run_process(["mount", "-o", "remount,ro", str(small_disk)])
    with pytest.raises(OSError, match="disk") as caught:
        async with open_runtime(small_disk / "tasks"):
            pass
    assert "Read-only file system" in str(caught.value)
    with pytest.raises(OSError, match="disk"):
        async with open_runtime(small_disk):
            pass


BY_ANOTHER_USER = """
import os, sys, trio
from actors.env import real_env
from actors.shell import Shell
from supervisor.runtime import open_runtime

env = real_env()
if os.getuid() == 0:
    # Not before: another user may not read the program.
    os.setgroups([])
    os.setgid(65_534)
    os.setuid(65_534)

async def main():
    try:
        async with open_runtime(sys.argv[1], env=env) as runtime:
            print((await (await runtime.launch(Shell("echo hi"))).wait()).status)
    except OSError as error:
        print(f"{type(error).__name__}: {error}")

trio.run(main)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX users and modes")
@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_who_may_not_write_there_is_told_so_at_the_opening(mode: int) -> None:
    """P10: as a user who is not root."""
    # Where another user may go, too.
    above = Path(tempfile.mkdtemp())
    above.chmod(0o755)
    here = above / "tasks"
    here.mkdir()
    here.chmod(mode)
    try:
        done = subprocess.run(
            [sys.executable, "-c", BY_ANOTHER_USER, here],
            capture_output=True,
            text=True,
            timeout=LONG,
        )
    finally:
        here.chmod(0o700)
        left = os.listdir(here)
        shutil.rmtree(above)
    assert done.stdout.startswith("PermissionError: "), done.stderr
    assert str(here) in done.stdout
    assert left == []
