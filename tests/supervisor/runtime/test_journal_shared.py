"""Two runtimes on one directory: one writes the journal, and the other one takes over."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from actors.env import Env, real_env
from actors.shell import Shell
from actors.testing import FakeEnv, FakeFiles, Program, fake_env
from supervisor.lowlevel import life_of
from supervisor.runtime import KeyElsewhere, Runtime, Warned, open_runtime
from tests.supervisor.jobs import Job, forever, returns
from tests.supervisor.runtime.test_shared import Locks

HERE = Path("/tasks")
LONG = 60.0
End = Callable[[], Awaitable[None]]
linux = pytest.mark.skipif(sys.platform != "linux", reason="locks of single bytes")


def beside(env: FakeEnv) -> FakeEnv:
    """Another program in the same world."""
    other = fake_env()
    other.ids.given = env.ids.given + 1_000
    return FakeEnv(
        clock=other.clock, ids=other.ids, processes=other.processes, files=env.files
    )


def crashed(files: FakeFiles) -> FakeEnv:
    again = fake_env()
    again.ids.given = 10_000
    again.files.disk = files.disk.image().killed()
    return again


async def sleeps(_: Program) -> int:
    await trio.sleep_forever()
    raise AssertionError


@asynccontextmanager
async def first_of(directory: Path, env: Env) -> AsyncGenerator[tuple[Runtime, End]]:
    """A runtime that ends when it is told to."""
    go, gone = trio.Event(), trio.Event()

    async def opens(  # noqa: ASYNC114
        task_status: trio.TaskStatus[Runtime],
    ) -> None:
        async with open_runtime(directory, env=env) as runtime:
            task_status.started(runtime)
            await go.wait()
        gone.set()

    async def end() -> None:
        go.set()
        await gone.wait()

    async with trio.open_nursery() as nursery:
        yield await nursery.start(opens), end
        await end()


async def test_the_second_keeps_its_tasks_once_the_first_has_ended_and_tells_of_those(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What the first left goes to a reader of the second that waits; no id is given
    twice; and a crash of the second loses neither."""
    env = fake_env()
    with trio.fail_after(LONG):
        async with (
            first_of(HERE, env) as (one, end),
            open_runtime(HERE, env=beside(env)) as two,
        ):
            of_first = await one.launch(returns("first"))
            await of_first.wait()
            (mine,) = one.notifications.drain()
            of_second = await two.launch(returns("second"))
            await of_second.wait()
            (theirs,) = two.notifications.drain()
            assert mine.id != theirs.id
            await one.synced()
            # It has no file of its own, and does not say that it had.
            with pytest.raises(OSError, match="the journal is kept by") as caught:
                await two.synced()
            assert caught.value.errno == errno.EBUSY
            runs = await two.launch(Job(forever))
            await end()
            again = await anext(two.notifications)
            assert (again.id, again.task_id, again.xml) == (
                mine.id,
                of_first.id,
                mine.xml,
            )
            await two.synced()
            later = await two.launch(returns("later"))
            await later.wait()
            last = await anext(two.notifications)
            assert len({mine.id, theirs.id, last.id}) == 3
            assert again.ack()
            env = crashed(env.files)
        async with open_runtime(HERE, env=env) as three:
            told = {note.task_id: note for note in three.notifications.drain()}
            assert {*told} == {of_second.id, later.id, runs.id}
            assert told[of_second.id].id == theirs.id
            assert told[of_second.id].xml == theirs.xml
            assert told[later.id].id == last.id
            assert told[runs.id].id not in {mine.id, theirs.id, last.id}


async def test_with_durable_nobody_waits_for_the_recovery_of_what_the_first_has_left(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the journal over, and writes its own records while it recovers."""
    env = fake_env({"sleep": sleeps})
    ending = trio.Event()

    async def takes_long(program: str, prefixes: object) -> tuple[int, list[int]]:
        ending.set()
        await trio.sleep(9)
        return 0, []

    with trio.fail_after(LONG):
        async with first_of(HERE, env) as (one, _):
            await one.launch(Shell("sleep"))
            # As a kill leaves it: the lock is free, and the task has not ended.
            killed = crashed(env.files)
            monkeypatch.setattr(killed.processes, "end_orphans", takes_long)
            dead = killed.files.share(HERE)
            dead.claim("journal.jsonl")
            async with open_runtime(HERE, env=killed, durable=True) as two:
                events = two.events.subscribe()
                dead.close()
                await ending.wait()
                began = trio.current_time()
                await two.launch(returns("second"))
                await two.synced()
                assert trio.current_time() - began < 0.1
                # Only then the one of the first has ended.
                note = await anext(two.notifications)
                assert note.task_id != one.tasks()[0].id
                assert note.ack()
                note = await anext(two.notifications)
                assert note.task_id == one.tasks()[0].id
                assert trio.current_time() - began > 8
                warned = [it.text for it in events.drain() if isinstance(it, Warned)]
                assert not any("disk" in text for text in warned), warned


async def test_what_cannot_be_recovered_is_told_and_waits_for_the_next_opening(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys, too: nobody else knows whether they were used."""

    def fails(*_: object) -> int:
        raise MemoryError("no memory left")

    env = fake_env()
    with trio.fail_after(LONG):
        async with (
            first_of(HERE, env) as (one, end),
            open_runtime(HERE, env=beside(env)) as two,
        ):
            task = await one.launch(returns("x"), key="k")
            await task.wait()
            events = two.events.subscribe()
            with monkeypatch.context() as patch:
                patch.setattr(life_of(two).delivery, "go_on_behind", fails)
                await end()
                await trio.sleep(5)
            warned = [it.text for it in events.drain() if isinstance(it, Warned)]
            assert "no memory left" in warned[-1]
            assert two.notifications.drain() == []
            with pytest.raises(KeyElsewhere):
                await two.launch(returns("x"), key="k")
            # What it has itself is written.
            await two.synced()
            env = crashed(env.files)
        async with open_runtime(HERE, env=env) as three:
            (note,) = three.notifications.drain()
            assert note.task_id == task.id
            assert (await three.launch(returns("x"), key="k")).id == task.id


@pytest.mark.parametrize("acked", [False, True])
async def test_one_that_ends_just_after_the_first_takes_over_with_its_end(
    autojump_clock: trio.testing.MockClock, acked: bool
) -> None:
    """It asks once a second, and has no second left."""
    env = fake_env()
    with trio.fail_after(LONG):
        async with (
            first_of(HERE, env) as (one, end),
            open_runtime(HERE, env=beside(env)) as two,
        ):
            of_first = await one.launch(returns("first"))
            done, runs = await two.launch(returns("x")), await two.launch(Job(forever))
            await done.wait()
            (note,) = two.notifications.drain()
            assert not acked or note.ack()
            began = trio.current_time()
            await end()
        assert trio.current_time() == began
        (last,) = two.notifications.drain()
        env = crashed(env.files)
        async with open_runtime(HERE, env=env) as three:
            told = {it.task_id: (it.id, it.xml) for it in three.notifications.drain()}
            del told[of_first.id]
            assert told.pop(runs.id) == (last.id, last.xml)
            assert told == ({} if acked else {done.id: (note.id, note.xml)})


@pytest.mark.parametrize("acked", [False, True])
async def test_one_that_ends_before_the_first_says_that_its_tasks_are_lost_to_the_next(
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    acked: bool,
) -> None:
    """Where there is something to lose."""
    env = fake_env()
    with trio.fail_after(LONG):
        async with first_of(HERE, env):
            async with open_runtime(HERE, env=beside(env)) as two:
                await two.launch(returns("x"))
                note = await anext(two.notifications)
                if acked:
                    note.ack()
            lost = "a later runtime does not know the tasks of this one"
            assert (lost in caplog.text) is not acked


async def test_the_second_cannot_say_that_anything_is_certain(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Until it writes the journal itself."""
    env = fake_env()
    with trio.fail_after(LONG):
        async with (
            first_of(HERE, env) as (one, end),
            open_runtime(HERE, env=beside(env)) as two,
        ):
            await (await two.launch(returns("x"))).wait()
            for _ in range(2):
                await one.synced()
                with pytest.raises(OSError, match="the journal is kept by"):
                    await two.synced()
            await end()
            await trio.sleep(2)
            await two.synced()


async def test_a_journal_that_cannot_be_taken_over_is_told_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It is asked for each second. When it can be, it is."""
    env = fake_env()
    with trio.fail_after(LONG):
        async with (
            first_of(HERE, env) as (_, end),
            open_runtime(HERE, env=beside(env)) as two,
        ):
            events = two.events.subscribe()
            await end()
            env.files.write_error = OSError(28, "No space left on device")
            await trio.sleep(20)
            told = [it.text for it in events.drain() if isinstance(it, Warned)]
            assert len([it for it in told if "cannot be taken over" in it]) == 1
            env.files.write_error = None
            await trio.sleep(3)
            task = await two.launch(returns("x"))
            await task.wait()
            env = crashed(env.files)
        async with open_runtime(HERE, env=env) as three:
            assert [it.task_id for it in three.notifications.drain()] == [task.id]


async def test_what_the_first_acknowledges_after_its_end_harms_no_journal(
    tmp_path: Path,
) -> None:
    """It appends to a file that another runtime writes by then, which is made anew
    soon: nothing of either is lost."""
    with trio.fail_after(LONG):
        async with open_runtime(tmp_path) as one:
            await (await one.launch(returns("x"))).wait()
            await (await one.launch(returns("y"))).wait()
        late, kept = one.notifications.drain()
        async with open_runtime(tmp_path) as two:
            task = await two.launch(returns("z"))
            await task.wait()
            await two.synced()
            assert late.ack()
            other = await two.launch(returns("z"))
            await other.wait()
            await two.synced()
    with trio.fail_after(LONG):
        async with open_runtime(tmp_path) as three:
            told = [note.task_id for note in three.notifications.drain()]
            assert told == [kept.task_id, task.id, other.id]


HOLDS = """
import sys, trio
from supervisor.runtime import open_runtime
from actors.shell import Shell

async def main():
    async with open_runtime(sys.argv[1]) as runtime:
        done = await runtime.launch(Shell("echo done"))
        await done.wait()
        await runtime.launch(Shell("sleep 600"))
        print(done.id, flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)

trio.run(main)
"""


@linux
@pytest.mark.parametrize("is_killed", [False, True])
async def test_what_another_process_leaves_is_taken_over_however_it_ends(
    tmp_path: Path, is_killed: bool
) -> None:
    """A stale lock never blocks: the kernel takes it back."""
    with trio.fail_after(LONG):
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", HOLDS, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None and process.stdin is not None
            done = (await process.stdout.receive_some()).strip().decode()
            async with open_runtime(tmp_path) as runtime:
                assert runtime.notifications.drain() == []
                if is_killed:
                    process.kill()
                await process.stdin.aclose()
                first = await anext(runtime.notifications)
                second = await anext(runtime.notifications)
                assert first.task_id == done
                assert second.status.value == ("failed" if is_killed else "killed")
                assert "<ended-by>crash<" in second.xml or not is_killed
                assert first.ack() and second.ack()
                await process.wait()
        finally:
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()
        async with open_runtime(tmp_path) as runtime:
            assert runtime.notifications.drain() == []


@linux
async def test_without_locks_the_second_takes_over_once_it_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on systems that lock no single bytes."""
    Locks(monkeypatch).fails = lambda call: True
    with trio.fail_after(LONG):
        async with (
            first_of(tmp_path, real_env()) as (one, end),
            open_runtime(tmp_path) as two,
        ):
            task = await one.launch(returns("x"))
            await task.wait()
            await end()
            assert (await anext(two.notifications)).task_id == task.id
