"""Two runtimes on one directory: no agent runs in both."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.agent import Agent, AgentContext, AgentEvent, AssistantMessage
from actors.env import Env, real_env
from actors.hosting import Share
from actors.shell import Shell
from actors.testing import FakeFiles, fake_env
from supervisor.agents import AgentPolicy
from supervisor.runtime import (
    AgentRunsElsewhere,
    KeyElsewhere,
    MessageRefused,
    ResumeRefused,
    Runtime,
    Warned,
    open_runtime,
)
from tests.supervisor.jobs import returns
from tests.supervisor.talkers import answers, completed, read

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="nothing tells there who else is in a directory"
)

POLICY = AgentPolicy(run=answers)
LONG = 30.0


async def works(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield AssistantMessage("at work")
    await trio.sleep_forever()


@pytest.fixture(params=["real", "fake"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Env:
    return real_env() if request.param == "real" else fake_env()


def another(env: Env) -> Env:
    """The same world, with processes of its own."""
    return Env(
        clock=env.clock, ids=env.ids, processes=fake_env().processes, files=env.files
    )


async def test_the_second_runtime_says_so_and_touches_no_agent_of_the_first(
    world: Env, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """TR6, TR8: and the other way round; both go on with what is their own."""
    with trio.fail_after(LONG):
        async with open_runtime(tmp_path, env=world, agents=POLICY) as first:
            assert caplog.messages == []
            mine = await first.launch(Agent(works, "go"))
            async with open_runtime(
                tmp_path, env=another(world), agents=POLICY
            ) as second:
                (said,) = caplog.messages
                assert said.startswith("another runtime of this ")
                theirs = await second.launch(Agent(works, "go"))
                for runtime in (first, second):
                    await runtime.transcripts.flush()
                for runtime, other in ((first, theirs), (second, mine)):
                    assert runtime.unfinished_agents() == []
                    assert not runtime.abandon_agent(other.id)
                    with pytest.raises(ResumeRefused, match="another runtime has the"):
                        await runtime.resume(other.id)
                    assert other.snapshot().status.value == "running"
                done = await completed(second)
                assert (await (await second.resume(done)).wait()).error is None
                assert (await second.run(returns(1))).result == "1"
            # It has ended, and what it has left is there to be gone on with.
            assert [meta.agent_id for meta in first.unfinished_agents()] == [theirs.id]
            again = await first.resume(theirs.id)
            assert (await again.wait()).status.value == "completed"


_HOLDS = """
import sys, time
from pathlib import Path
from actors.env import real_env
share = real_env().files.share(Path(sys.argv[1]))
print(share.is_alone(), flush=True)
time.sleep(600)
"""


async def test_a_killed_process_has_a_directory_in_use_no_longer(
    tmp_path: Path,
) -> None:
    """P1: the kernel takes the lock back, and nothing is left in the directory."""
    with trio.fail_after(LONG):
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", _HOLDS, str(tmp_path)], stdout=subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            assert (await process.stdout.receive_some()).strip() == b"True"
            share = real_env().files.share(tmp_path)
            assert not share.is_alone()
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
        await process.stdout.aclose()
        assert share.is_alone()
        assert real_env().files.names(tmp_path) == []
        share.close()
        share.close()


async def test_a_runtime_that_has_ended_leaves_the_directory(tmp_path: Path) -> None:
    """P1: also when its block fails."""
    with pytest.raises(ZeroDivisionError):
        async with open_runtime(tmp_path):
            raise ZeroDivisionError
    share = real_env().files.share(tmp_path)
    assert share.is_alone()
    share.close()


# One agent, several runtimes


@pytest.mark.parametrize("how", ["resume", "send", "both"])
async def test_two_runtimes_that_revive_one_agent_at_once_begin_one_run(
    world: Env, tmp_path: Path, how: str
) -> None:
    """AG26: who is refused is told who has it, and nothing that was said is lost. It
    can be revived by either again when that run has ended."""

    async def revive(runtime: Runtime, text: str) -> None:
        try:
            if how == "send" or (how == "both" and text == "to second"):
                await runtime.send(id, text)
            else:
                await runtime.resume(id, text)
        except (AgentRunsElsewhere, MessageRefused) as error:
            cause = error.__cause__ if isinstance(error, MessageRefused) else error
            assert isinstance(cause, AgentRunsElsewhere)
            refused.append((text, cause.holder))
        else:
            accepted.append(text)

    refused: list[tuple[str, str]] = []
    accepted: list[str] = []
    with trio.fail_after(LONG):
        async with open_runtime(tmp_path, env=world, agents=POLICY) as first:
            id = await completed(first)
            await first.transcripts.flush()
            async with open_runtime(
                tmp_path, env=another(world), agents=POLICY
            ) as second:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(revive, first, "to first")
                    nursery.start_soon(revive, second, "to second")
                assert len(accepted) == len(refused) == 1
                ((_, holder),) = refused
                assert "another runtime of this" in holder
                for runtime in (first, second):
                    await runtime.wait_idle()
                    await runtime.transcripts.flush()
                # Now the other one, and each of them in turn.
                for number in range(3):
                    for runtime in (second, first):
                        word = f"{number} to {runtime is second}"
                        done = await (await runtime.resume(id, word)).wait()
                        assert done.error is None
                        accepted.append(word)
                        await runtime.transcripts.flush()
                assert await read(first, id) == accepted
                meta = second.agent_meta(id)
                assert meta is not None and meta.resumes == 7
                assert meta.run_id == first.get(id).run_id


async def test_an_agent_that_one_runtime_refuses_to_resume_is_free_for_another(
    world: Env, tmp_path: Path
) -> None:
    """AG26: who does not go on with it does not have it."""
    with trio.fail_after(LONG):
        async with open_runtime(tmp_path, env=world, agents=POLICY) as first:
            id = await completed(first)
            await first.transcripts.flush()
            async with open_runtime(
                tmp_path, env=another(world), agents=AgentPolicy()
            ) as second:
                with pytest.raises(ResumeRefused, match="with which loop"):
                    await second.resume(id)
                assert (await (await first.resume(id)).wait()).error is None


async def test_an_agent_is_kept_until_the_directory_knows_of_its_end(
    tmp_path: Path,
) -> None:
    """AG26: also by who refuses to resume it, or another one would go on with it."""
    world = fake_env()
    async with open_runtime(tmp_path, env=world, agents=POLICY) as runtime:
        task = await runtime.launch(Agent(works, "go", one_shot=True))
        await runtime.transcripts.flush()
        world.files.write_error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        await task.stop()
        with pytest.raises(ResumeRefused, match="one-shot"):
            await runtime.resume(task.id)
        other = world.files.share(tmp_path)
        assert other.holder(task.id) is not None
        world.files.write_error = None
        await runtime.transcripts.flush()
        assert other.holder(task.id) is None
        other.close()


async def test_an_agent_that_is_about_to_run_again_is_not_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AG26: though the directory knows of its last end only now."""
    world = fake_env()
    async with open_runtime(tmp_path, env=world, agents=POLICY) as runtime:
        task = await runtime.launch(Agent(answers, "go"))
        await runtime.transcripts.flush()
        replace, is_full = world.files.replace, True

        def replace_late(path: Path, contents: bytes, *, durable: bool = False) -> None:
            if is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            replace(path, contents, durable=durable)

        monkeypatch.setattr(world.files, "replace", replace_late)
        await task.wait()
        other, load = world.files.share(tmp_path), runtime.transcripts.load

        async def load_late(agent_id: str, **options: Any) -> Any:
            nonlocal is_full
            assert not runtime.transcripts.keeps_meta(agent_id)
            is_full = False
            await runtime.transcripts.flush()
            assert runtime.transcripts.keeps_meta(agent_id)
            assert other.holder(agent_id) is not None
            return await load(agent_id, **options)

        monkeypatch.setattr(runtime.transcripts, "load", load_late)
        assert (await (await runtime.resume(task.id)).wait()).error is None
        await runtime.transcripts.flush()
        assert other.holder(task.id) is None
        other.close()


async def test_an_agent_that_ends_elsewhere_just_now_is_not_abandoned(
    world: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AG26: its end is not written over, and it is free for everybody."""
    with trio.fail_after(LONG):
        async with open_runtime(tmp_path, env=world, agents=POLICY) as before:
            id = (await before.launch(Agent(works, "go"))).id
            await before.transcripts.flush()
        async with open_runtime(tmp_path, env=world, agents=POLICY) as runtime:
            share, file = runtime._life.share, tmp_path / f"agent-{id}.meta.json"
            claim = share.claim

            def ends_first(name: str) -> str | None:
                said, _ = world.files.read_tail(file, 2**20)
                assert b'"status":"running"' in said
                world.files.replace(file, said.replace(b"running", b"completed"))
                return claim(name)

            monkeypatch.setattr(share, "claim", ends_first)
            assert not runtime.abandon_agent(id)
            await runtime.transcripts.flush()
            meta = runtime.agent_meta(id)
            assert meta is not None and meta.status == "completed"
            other = world.files.share(tmp_path)
            assert other.claim(id) is None
            other.close()


async def test_an_agent_that_has_run_elsewhere_goes_on_from_there(
    world: Env, tmp_path: Path
) -> None:
    """AG26, TR15: with a run id of its own, and with what it was told there."""
    with trio.fail_after(LONG):
        async with open_runtime(tmp_path, env=world, agents=POLICY) as first:
            id = await completed(first)
            runs = {first.get(id).run_id}
            await first.transcripts.flush()
            async with open_runtime(
                tmp_path, env=another(world), agents=AgentPolicy(run=works)
            ) as second:
                theirs = await second.resume(id, "one")
                runs.add(theirs.snapshot().run_id)
                while "at work" not in str(await second.transcripts.load(id)):
                    await trio.lowlevel.checkpoint()
                assert (await second.send(id, "two")).how == "queued"
                with pytest.raises(AgentRunsElsewhere):
                    await first.resume(id)
            done = await (await first.resume(id, "three")).wait()
            assert done.run_id not in runs
            assert await read(first, id) == ["one", "two", "three"]


_RUNS = """
import sys
from pathlib import Path

import trio

from actors.agent import AssistantMessage
from supervisor.agents import AgentPolicy
from supervisor.runtime import ResumeRefused, open_runtime


async def works(context):
    yield AssistantMessage("at work")
    await trio.sleep_forever()


async def main(directory, agent_id):
    async with open_runtime(directory, agents=AgentPolicy(run=works)) as runtime:
        print("open", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        try:
            await runtime.resume(agent_id)
        except ResumeRefused as error:
            print(f"refused {error.why}", flush=True)
        else:
            await runtime.transcripts.flush()
            print("runs", flush=True)
        await trio.sleep_forever()


trio.run(main, Path(sys.argv[1]), sys.argv[2])
"""


class _Host:
    """A host in another process, with the directory open."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._said = b""

    @classmethod
    async def begin(cls, program: str, *arguments: str) -> Self:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )
        return cls(process)

    async def end(self) -> None:
        self.process.kill()
        await self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            await stream.aclose()

    async def hear(self) -> str:
        assert self.process.stdout is not None
        while b"\n" not in self._said:
            self._said += await self.process.stdout.receive_some()
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()

    async def go(self) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(b"\n")


@asynccontextmanager
async def _hosts(
    count: int, directory: Path, agent_id: str
) -> AsyncGenerator[list[_Host]]:
    hosts: list[_Host] = []
    try:
        for _ in range(count):
            # One by one: if the last fails, the others must be ended.
            hosts.append(await _Host.begin(_RUNS, str(directory), agent_id))  # noqa: PERF401
        for host in hosts:
            assert await host.hear() == "open"
        yield hosts
    finally:
        with trio.CancelScope(shield=True):
            for host in hosts:
                await host.end()


@pytest.mark.skipif(sys.platform != "linux", reason="only there is an agent locked")
async def test_of_many_processes_one_runs_an_agent_until_it_is_killed(
    tmp_path: Path,
) -> None:
    """AG26, TR6: all are told to at once, three times over. The others name the
    process, and have it when that was killed, whoever else is still there."""
    with trio.fail_after(2 * LONG):
        async with open_runtime(tmp_path, agents=POLICY) as runtime:
            id = await completed(runtime)
        async with _hosts(4, tmp_path, id) as hosts:
            async with open_runtime(tmp_path, agents=POLICY) as runtime:
                for host in hosts:
                    await host.go()
                said = [await host.hear() for host in hosts]
                (place,) = [n for n, text in enumerate(said) if text == "runs"]
                holder = hosts[place]
                name = f"process {holder.process.pid}"
                for text in said[:place] + said[place + 1 :]:
                    assert text.startswith("refused") and text.endswith(
                        (name, "another process")
                    )
                with pytest.raises(AgentRunsElsewhere) as caught:
                    await runtime.resume(id)
                assert caught.value.holder == name
                assert runtime.unfinished_agents() == []
                assert not runtime.abandon_agent(id)
                with pytest.raises(MessageRefused, match=r"unfinished|elsewhere"):
                    await runtime.send(id, "hello")
                holder.process.kill()
                await holder.process.wait()
                # The others have the directory open as before.
                assert [m.agent_id for m in runtime.unfinished_agents()] == [id]
                done = await (await runtime.resume(id, "go on")).wait()
                assert done.error is None


_FORKS = """
import os, sys, trio
from actors.shell import Shell
from supervisor.runtime import open_runtime

async def main():
    async with open_runtime(sys.argv[1]) as runtime:
        task = await runtime.launch(Shell("sleep 1000"))
        await runtime.synced()
        if os.fork() == 0:
            sys.stdin.readline()
            os._exit(0)
        print(task.id, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@asynccontextmanager
async def _left_fork(directory: Path) -> AsyncGenerator[tuple[_Host, str]]:
    """A fork of a host that was killed, and the id of its task."""
    host = await _Host.begin(_FORKS, str(directory))
    try:
        id = await host.hear()
        host.process.kill()
        await host.process.wait()
        yield host, id
    finally:
        with trio.CancelScope(shield=True):
            await host.end()


@pytest.mark.skipif(sys.platform != "linux", reason="only there is a journal locked")
async def test_a_fork_that_a_killed_host_has_left_for_moments_keeps_no_journal(
    tmp_path: Path,
) -> None:
    """P4: it has the locks of the host until it runs a program of its own."""
    with trio.fail_after(LONG):
        async with _left_fork(tmp_path) as (host, id):
            async with trio.open_nursery() as nursery:
                opened = trio.Event()

                async def let_go() -> None:
                    await trio.testing.wait_all_tasks_blocked()
                    assert not opened.is_set()
                    await host.go()

                nursery.start_soon(let_go)
                async with open_runtime(tmp_path) as runtime:
                    opened.set()
                    await runtime.synced()
                    note = await anext(runtime.notifications)
                    assert note.task_id == id
                    note.ack()


@pytest.mark.skipif(sys.platform != "linux", reason="only there is a journal locked")
async def test_a_fork_that_a_killed_host_has_left_for_good_keeps_nobody_from_opening(
    tmp_path: Path,
) -> None:
    """P4: what the host has left is taken over when the fork has ended."""
    with trio.fail_after(LONG):
        async with _left_fork(tmp_path) as (host, id):
            with trio.move_on_after(0.3) as scope:
                async with open_runtime(tmp_path):
                    pass
            assert scope.cancelled_caught
            async with open_runtime(tmp_path) as runtime:
                with pytest.raises(OSError, match="another process"):
                    await runtime.synced()
                await host.go()
                note = await anext(runtime.notifications)
                assert note.task_id == id
                note.ack()
                await runtime.synced()


@pytest.mark.parametrize("what", ["link", "directory", "fifo", "unwritable", "gone"])
async def test_a_lock_file_that_is_none_keeps_nobody_from_working(
    tmp_path: Path, what: str
) -> None:
    """TR6: launches and resumes go on; and what runs in another runtime is still not
    run in this one."""
    lock = tmp_path / "agents.lock"
    async with open_runtime(tmp_path, agents=POLICY) as first:
        # The journal has claimed its name already.
        lock.unlink()
        if what == "link":
            lock.symlink_to(tmp_path / "elsewhere")
        elif what == "directory":
            lock.mkdir()
        elif what == "fifo":
            os.mkfifo(lock)
        elif what == "unwritable":
            lock.touch(0o000)
        with trio.fail_after(LONG):
            mine = await first.launch(Agent(works, "go"))
            done = await completed(first)
            await first.transcripts.flush()
            if what == "gone":
                lock.unlink()
            async with open_runtime(
                tmp_path, env=another(real_env()), agents=POLICY
            ) as second:
                assert (await (await second.resume(done)).wait()).error is None
                theirs = await completed(second)
                assert (await (await second.resume(theirs)).wait()).error is None
                if what != "unwritable" or os.getuid():
                    assert second.unfinished_agents() == []
                    with pytest.raises(ResumeRefused, match="another runtime has the"):
                        await second.resume(mine.id)
    assert not (tmp_path / "elsewhere").exists()


async def test_claims_take_one_descriptor_and_leave_none(tmp_path: Path) -> None:
    """P1: however many agents there are; a name is free again when it is released,
    when its holder is closed, and for nobody before."""
    files = real_env().files
    first, second = files.share(tmp_path), files.share(tmp_path)
    count = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    names = [f"a{number}" for number in range(500)]
    assert [first.claim(name) for name in names] == [None] * 500
    assert [first.claim(name) for name in names] == [None] * 500
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) <= count + 1
        assert all(second.claim(name) for name in names)
        assert all(second.holder(name) for name in names)
        assert second.claim("another") is None
        first.release("a7")
        first.release("a7")
        assert second.holder("a7") is None and second.claim("a7") is None
        assert first.claim("a7") is not None
        first.close()
        assert [second.claim(name) for name in names] == [None] * 500
    first.close()
    second.close()


def disturb(directory: Path, how: str) -> None:
    """Do to the file of the claims, or its directory, what somebody may do."""
    lock = directory / "agents.lock"
    if how == "another directory":
        before = directory.with_name("before")
        directory.rename(before)
        shutil.copytree(before, directory, symlinks=True)
        return
    if lock.is_dir() and not lock.is_symlink():
        lock.rmdir()
    lock.unlink(missing_ok=True)
    if how == "replaced":
        lock.touch(0o600)
    elif how == "directory":
        lock.mkdir()
    elif how == "link":
        lock.symlink_to("elsewhere")
    elif how == "fifo":
        os.mkfifo(lock)


_FILES = ("removed", "replaced", "directory", "link", "fifo")
linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only there is an agent locked"
)


@linux
@pytest.mark.parametrize("how", [*_FILES, "another directory"])
async def test_no_agent_runs_in_two_whatever_becomes_of_the_lock_file(
    tmp_path: Path, how: str
) -> None:
    """AG26: one that has ended here and was resumed there is not resumed here."""
    directory = tmp_path / "tasks"
    policy = AgentPolicy(run=works)
    with trio.fail_after(LONG):
        async with open_runtime(directory, agents=POLICY) as first:
            id = await completed(first)
            # It holds a claim, so the file is there and open.
            await first.launch(Agent(works, "go"))
            await first.transcripts.flush()
            disturb(directory, how)
            async with open_runtime(
                directory, env=another(real_env()), agents=policy
            ) as second:
                theirs = await second.resume(id, "one")
                for _ in range(2):
                    with pytest.raises(AgentRunsElsewhere):
                        await first.resume(id, "two")
                assert theirs.snapshot().status.value == "running"


@linux
@pytest.mark.parametrize("how", ["replaced", "directory", "fifo"])
def test_claims_are_had_and_told_in_a_directory_that_takes_the_place_of_theirs(
    tmp_path: Path, how: str
) -> None:
    """AG26: whatever its lock file is."""
    directory = tmp_path / "tasks"
    directory.mkdir()
    files = real_env().files
    first = files.share(directory)
    assert first.claim("a") is None
    disturb(directory, "another directory")
    disturb(directory, how)
    second = files.share(directory)
    assert first.holder("b") is None  # it looks where the directory is
    who = f"another runtime of this process ({os.getpid()})"
    assert second.claim("a") == second.holder("a") == who
    first.close()
    assert second.holder("a") is None and second.claim("a") is None
    second.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@linux
@pytest.mark.parametrize("how", ["replaced", "fifo"])
def test_a_lock_file_that_is_changed_again_and_again_takes_no_descriptors(
    tmp_path: Path, how: str
) -> None:
    """P1."""
    share = real_env().files.share(tmp_path)
    assert share.claim("a") is None
    count = descriptors()
    for number in range(5):
        disturb(tmp_path, how)
        assert share.claim(f"a{number}") is None
    assert descriptors() <= count
    share.close()


@linux
def test_a_directory_at_which_nobody_can_look_takes_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: nor does one that is asked about after the end."""
    count = descriptors()

    def fails(fd: int) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", fails)
        share = real_env().files.share(tmp_path)
    assert descriptors() == count
    share.close()
    share.is_alone()
    assert descriptors() == count


_CLAIMS = """
import sys
from pathlib import Path
from actors.env import real_env
share = real_env().files.share(Path(sys.argv[1]))
print(share.claim("a"), flush=True)
sys.stdin.readline()
print(share.holder("b"), flush=True)
sys.stdin.readline()
"""


@linux
def test_another_process_is_told_by_its_id_also_in_a_new_lock_file(
    tmp_path: Path,
) -> None:
    """AG26: it tells its name where it looks."""
    with subprocess.Popen(
        [sys.executable, "-c", _CLAIMS, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        share = real_env().files.share(tmp_path)
        for how in ("found", "replaced"):
            if how == "replaced":
                disturb(tmp_path, how)
                process.stdin.write("look\n")
            assert process.stdout.readline() == "None\n"
            assert share.claim("a") == f"process {process.pid}"
        share.close()
        process.stdin.write("end\n")


@linux
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(("claim", "claim", "claim", "release", *_FILES)),
            st.integers(0, 2),
            st.sampled_from("ab"),
        ),
        max_size=14,
    )
)
def test_a_name_is_had_by_one_whatever_becomes_of_the_lock_file(
    steps: list[tuple[str, int, str]],
) -> None:
    """AG26: three who claim and release, held against a dictionary."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        shares = [real_env().files.share(directory) for _ in range(3)]
        has: dict[str, int] = {}
        for how, who, what in steps:
            if how == "claim":
                told = shares[who].claim(what)
                assert (told is None) == (has.get(what, who) == who)
                has.setdefault(what, who)
            elif how == "release":
                shares[who].release(what)
                if has.get(what) == who:
                    del has[what]
            else:
                disturb(directory, how)
            for place, share in enumerate(shares):
                for each in "ab":
                    others = has.get(each, place) != place
                    assert (share.holder(each) is not None) == others
        for share in shares:
            share.close()


@linux
def test_without_a_free_descriptor_a_claim_holds_or_is_refused(tmp_path: Path) -> None:
    """TR6: it is had alone all the same, or it is said that it is not."""
    import resource

    files = real_env().files
    first, second = files.share(tmp_path), files.share(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        late = files.share(tmp_path)
        assert first.claim("a") is None
        assert second.claim("a") is not None and second.holder("a") is not None
        with pytest.raises(OSError, match="Too many open files"):
            late.claim("a")
        assert not late.is_alone()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert late.claim("a") is not None and late.claim("b") is None
    assert first.holder("b") is not None
    for share in (first, second, late):
        share.close()


@linux
def test_where_the_directory_has_no_locks_a_claim_takes_a_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TR6: without a free one it is not taken for the last word."""
    import resource

    files = real_env().files
    first, second = files.share(tmp_path), files.share(tmp_path)
    locks = Locks(monkeypatch)
    locks.number = errno.EOPNOTSUPP
    locks.spares = tmp_path / "agents.lock"
    locks.fails = lambda call: True
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            first.claim("a")
        assert second.holder("a") == "somebody else who has the directory open"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert first.claim("a") is None
    assert second.claim("a") is not None
    for share in (first, second):
        share.close()


@linux
def test_who_may_not_read_the_directory_is_taken_to_be_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AG26: it can never be locked there, and one who is alone must work."""

    def refused(path: object, *args: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "open", refused)
    share = real_env().files.share(tmp_path)
    assert share.is_alone()
    share.close()


class Locks:
    """The locks of the system, of which some calls fail for whoever is ``faulty``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import fcntl

        self.number = errno.EINVAL
        self.fails: Callable[[int], bool] = lambda call: False
        self.calls = 0
        self.faulty = True
        self.spares: Path | None = None
        """The file of which the locks do not fail."""
        self._fcntl = fcntl.fcntl
        monkeypatch.setattr(fcntl, "fcntl", self._called)

    def _called(self, fd: int, how: int, what: Any = 0) -> Any:
        if self.faulty and isinstance(what, bytes) and not self._is_spared(fd):
            self.calls += 1
            if self.fails(self.calls):
                raise OSError(self.number, os.strerror(self.number))
        return self._fcntl(fd, how, what)

    def _is_spared(self, fd: int) -> bool:
        if self.spares is None or not self.spares.exists():
            return False
        return os.path.samestat(self.spares.stat(), os.fstat(fd))


def going_on(share: Share, name: str) -> Iterator[bool]:
    """Say at last whether who resumes an unfinished agent goes on, in the two steps
    of `Resumes._claim`."""
    try:
        is_free = share.claim(name) is None
    except OSError:
        is_free = share.is_alone()
    yield False
    yield is_free and share.holder(name) is None


@linux
@pytest.mark.parametrize("others", ["well", "the same"])
@pytest.mark.parametrize(
    "number", [errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL, errno.EIO]
)
def test_whichever_locks_fail_no_two_go_on_with_an_unfinished_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, others: str
) -> None:
    """AG26, TR6: all sets of the first calls, in all orders of the steps of both."""
    locks = Locks(monkeypatch)
    locks.number = number
    went = 0
    for failing in range(2**6):
        for order in ((0, 1, 0, 1), (0, 1, 1, 0), (0, 0, 1, 1), (1, 1, 0, 0)):
            # The last bit stands for all calls from there on.
            locks.fails = lambda call, bits=failing: bool(bits >> min(call - 1, 5) & 1)
            calls = [0, 0]
            shares = [real_env().files.share(tmp_path) for _ in range(2)]
            steps = [going_on(share, "a") for share in shares]
            goes = [False, False]
            for who in order:
                locks.faulty = who == 0 or others == "the same"
                locks.calls = calls[who]
                goes[who] = next(steps[who])
                calls[who] = locks.calls
            assert not all(goes), (failing, order)
            went += any(goes)
            locks.faulty = False
            for share in shares:
                share.release("a")
                share.close()
    if others == "well":
        # Who has no fault is not kept from it by who has.
        assert went > 2**6


@linux
def test_a_claim_that_is_locked_at_last_is_released_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AG26: who else has the directory open has nothing to do with it any more."""
    files = real_env().files
    first, second = files.share(tmp_path), files.share(tmp_path)
    locks = Locks(monkeypatch)
    locks.fails = lambda call: True
    assert first.claim("a") is None
    assert first.holder("a") is not None
    locks.faulty = False
    assert first.claim("a") is None
    first.release("a")
    assert first.holder("a") is None
    for share in (first, second):
        share.close()


@linux
def test_of_two_who_claim_at_once_without_a_lock_file_one_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AG26: the other one claims between the look and the lock of the first."""
    files = real_env().files
    disturb(tmp_path, "directory")
    first, second = files.share(tmp_path), files.share(tmp_path)
    locks, told = Locks(monkeypatch), list[str | None]()

    def meanwhile(call: int) -> bool:
        if call == 2:
            locks.faulty = False
            told.append(second.claim("a"))
        return False

    locks.fails = meanwhile
    told.append(first.claim("a"))
    assert told[0] is None and told[1] is not None
    second.release("a")
    assert first.claim("a") is None
    for share in (first, second):
        share.close()


@linux
def test_where_only_the_lock_file_has_locks_a_new_one_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AG26: as soon as who has a name looks."""
    files = real_env().files
    first, second = files.share(tmp_path), files.share(tmp_path)
    locks = Locks(monkeypatch)
    locks.number, locks.fails = errno.EOPNOTSUPP, lambda call: True
    locks.spares = tmp_path / "agents.lock"
    assert first.claim("a") is None
    disturb(tmp_path, "replaced")
    first.holder("b")
    assert second.claim("a") is not None
    for share in (first, second):
        share.close()


@linux
def test_a_claim_that_nobody_can_see_is_released_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AG26: also where only the looks at its lock have failed."""
    files = real_env().files
    first, second = files.share(tmp_path), files.share(tmp_path)
    locks = Locks(monkeypatch)
    locks.number, locks.fails = errno.EOPNOTSUPP, lambda call: call in (2, 4)
    assert first.claim("a") is None
    locks.faulty = False
    assert second.claim("a") is not None
    first.release("a")
    assert second.claim("a") is None
    for share in (first, second):
        share.close()


@linux
@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL])
async def test_where_no_lock_can_be_had_only_who_is_alone_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """AG26, TR6."""
    with trio.fail_after(LONG):
        async with open_runtime(tmp_path, agents=AgentPolicy(run=works)) as before:
            id = (await before.launch(Agent(works, "go"))).id
            await before.transcripts.flush()
        locks = Locks(monkeypatch)
        locks.number, locks.fails = number, lambda call: True
        async with open_runtime(tmp_path, agents=POLICY) as first:
            async with open_runtime(
                tmp_path, env=another(real_env()), agents=POLICY
            ) as second:
                for runtime in (first, second):
                    assert runtime.unfinished_agents() == []
                    assert not runtime.abandon_agent(id)
                    with pytest.raises(ResumeRefused, match="another runtime may"):
                        await runtime.resume(id)
            assert [meta.agent_id for meta in first.unfinished_agents()] == [id]
            assert (await (await first.resume(id)).wait()).error is None


class Unlockable(FakeFiles):
    """Files of which no claim is possible, as without a free descriptor."""

    is_unsure = False

    def share(self, directory: Path) -> Any:
        share: Any = super().share(directory)

        def claim(name: str) -> str | None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        share.claim = claim
        if self.is_unsure:
            share.is_alone = lambda: False
        return share


async def test_nobody_is_said_to_have_the_directory_who_is_not_known_to(
    tmp_path: Path,
) -> None:
    """P10: without a free descriptor nobody can tell."""
    fake, files = fake_env(), Unlockable()
    files.is_unsure = True
    world = Env(clock=fake.clock, ids=fake.ids, processes=fake.processes, files=files)
    perhaps = "perhaps another runtime (Too many open files)"
    with trio.fail_after(LONG):
        async with open_runtime(tmp_path, env=world) as runtime:
            with runtime.events.subscribe() as events:
                told = [e.text for e in events.drain() if isinstance(e, Warned)]
            assert told[0].startswith(f"{perhaps} has the directory {tmp_path} open: ")
            with pytest.raises(KeyElsewhere, match=re.escape(f"{perhaps} keeps the ")):
                await runtime.launch(Shell("true"), key="a")


async def test_an_agent_that_cannot_be_locked_is_told_by_its_name(
    tmp_path: Path,
) -> None:
    """AG26: it runs; one that may run elsewhere is not resumed."""
    fake = fake_env()
    world = Env(
        clock=fake.clock, ids=fake.ids, processes=fake.processes, files=Unlockable()
    )
    with trio.fail_after(LONG):
        async with open_runtime(tmp_path, env=world, agents=POLICY) as first:
            with first.events.subscribe() as events:
                id = await completed(first)
                told = [e for e in events.drain() if isinstance(e, Warned)]
                assert {event.task_id for event in told} == {id}
                assert "Too many open files" in told[0].text
            await first.transcripts.flush()
            assert (await (await first.resume(id)).wait()).error is None
            async with open_runtime(
                tmp_path, env=another(world), agents=POLICY
            ) as second:
                with pytest.raises(ResumeRefused, match="Too many open files"):
                    await second.resume(id)
