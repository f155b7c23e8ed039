"""What is seen of a task is in the journal before, and is told again word for word."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors import Context, Progress
from actors.agent import AgentContext, AgentEvent, FinalResult
from actors.shell import Shell
from actors.testing import FakeEnv, FakeFiles, fake_env
from actors.work import Report
from supervisor.runtime import (
    JournalWritten,
    Notification,
    Warned,
    open_runtime,
)
from tests.supervisor.jobs import Job, agent, fails, forever, returns, waits_for

HERE = Path("/tasks")
LONG = 60.0


class Slow(FakeFiles):
    """A disk on which a thread may have to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.gate: trio.Event | None = None
        self.seconds = 0.0
        # Called with each write: time may pass meanwhile.
        self.writes: Callable[[], None] | None = None

    async def in_thread(self, fn: Callable[..., Any], *args: object) -> Any:
        with trio.CancelScope(shield=True):
            if self.gate is not None:
                await self.gate.wait()
            await trio.sleep(self.seconds)
        return await super().in_thread(fn, *args)

    def append_to_log(self, log: Any, lines: bytes, *, durable: bool) -> None:
        if self.writes is not None:
            self.writes()
        super().append_to_log(log, lines, durable=durable)

    def close(self) -> trio.Event:
        self.gate = trio.Event()
        return self.gate


def slow_env() -> tuple[FakeEnv, Slow]:
    env, files = fake_env(), Slow()
    files.now = env.clock.seconds
    return FakeEnv(
        clock=env.clock, ids=env.ids, processes=env.processes, files=files
    ), files


async def left_by(files: FakeFiles, *, power: bool = True) -> list[str]:
    """Return of which tasks one would be told who opens the directory after a loss of
    power just now."""
    env, image = fake_env(), files.disk.image()
    env.ids.given = 10_000
    env.files.disk = image.unpowered(names=False) if power else image.killed()
    async with open_runtime(HERE, env=env) as runtime:
        return [note.task_id for note in runtime.notifications.drain()]


@pytest.mark.parametrize("how", ["idle", "wait", "set"])
@pytest.mark.parametrize("background", [True, False])
async def test_whoever_waits_for_the_last_end_goes_on_when_its_record_is_written(
    autojump_clock: trio.testing.MockClock, how: str, background: bool
) -> None:
    """Also by `wait_idle`, and by an end that nobody is told of: if the program is killed
    in that very step, the end is in the file."""
    env, files = slow_env()
    go, done = trio.Event(), list[bytes]()
    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env, durable=True) as runtime:
            async with trio.open_nursery() as nursery:
                if background:
                    await runtime.launch(waits_for(go))
                else:
                    nursery.start_soon(runtime.run, waits_for(go))
                    await trio.testing.wait_all_tasks_blocked()
                await runtime.synced()
                (task,) = runtime.tasks()
                gate = files.close()

                async def waits() -> None:
                    if how == "idle":
                        await runtime.wait_idle()
                    elif how == "wait":
                        await runtime.handle(task.id).wait()
                    else:
                        await runtime.wait_all([task.id])
                    disk = files.disk.image().unpowered(names=False)
                    there = disk.file(HERE / "journal.jsonl")
                    done.append(b"" if there is None else bytes(there.data))

                nursery.start_soon(waits)
                await trio.testing.wait_all_tasks_blocked()
                go.set()
                await trio.testing.wait_all_tasks_blocked()
                early, has_ended = [*done], runtime.get(task.id).ended_at is not None
                gate.set()
            assert has_ended and early == []
            (there,) = done
            assert b'"k":"end"' in there and task.id.encode() in there


async def test_with_durable_nothing_is_seen_before_it_is_on_the_disk(
    autojump_clock: trio.testing.MockClock,
) -> None:
    env, files = slow_env()
    go = trio.Event()
    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env, durable=True) as runtime:
            gate = files.close()
            ids: list[str] = []

            async def launches() -> None:
                ids.append((await runtime.launch(waits_for(go))).id)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(launches)
                await trio.testing.wait_all_tasks_blocked()
                assert ids == [] and await left_by(files) == []
                gate.set()
            assert await left_by(files) == ids

            gate, read = files.close(), list[Notification]()

            async def reads() -> None:
                read.append(await anext(runtime.notifications))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(reads)
                go.set()
                await trio.testing.wait_all_tasks_blocked()
                assert read == runtime.notifications.drain() == []
                gate.set()
            assert [note.task_id for note in read] == ids

            gate, synced = files.close(), list[bool]()
            events = runtime.events.subscribe()

            async def syncs() -> None:
                await runtime.synced()
                synced.append(True)

            async with trio.open_nursery() as nursery:
                assert read[0].ack()
                nursery.start_soon(syncs)
                await trio.testing.wait_all_tasks_blocked()
                assert synced == [] and await left_by(files) == ids
                assert not any(isinstance(it, JournalWritten) for it in events.drain())
                gate.set()
            assert await left_by(files) == []
            assert any(isinstance(it, JournalWritten) for it in events.drain())


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "slow"])
async def test_what_a_key_begins_does_nothing_before_its_key_is_written(
    autojump_clock: trio.testing.MockClock, durable: bool
) -> None:
    """Who asks again after a crash would do it twice, although no launch had returned."""
    env, files = slow_env()
    if not durable:
        # The first write shows that the disk is slow.
        files.writes = partial(autojump_clock.jump, 0.5)
    knew = list[bool]()

    async def deploys(_: Context[object], report: Report) -> None:
        image = files.disk.image()
        left = image.unpowered(names=False) if durable else image.killed()
        there = left.file(HERE / "journal.jsonl")
        knew.append(there is not None and b"deploy-42" in there.data)

    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env, durable=durable) as runtime:
            await runtime.launch(returns(1))
            await runtime.wait_idle()
            gate = files.close()
            async with trio.open_nursery() as nursery:
                launch = partial(runtime.launch, Job(deploys), key="deploy-42")
                nursery.start_soon(launch)
                await trio.testing.wait_all_tasks_blocked()
                early = [*knew]
                gate.set()
            await runtime.wait_idle()
            assert early == [] and knew == [True]

            # One that is stopped while it waits has done nothing.
            gate = files.close()
            async with trio.open_nursery() as nursery:
                launch = partial(runtime.launch, Job(deploys), key="deploy-43")
                nursery.start_soon(launch)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(runtime.stop_all)
                await trio.testing.wait_all_tasks_blocked()
                gate.set()
            assert knew == [True]
            assert [it.status.value for it in runtime.tasks()][-1] == "killed"


@pytest.mark.parametrize("durable", [False, True])
async def test_nothing_hangs_at_the_end_on_a_slow_disk_and_all_is_there(
    autojump_clock: trio.testing.MockClock, durable: bool
) -> None:
    env, files = slow_env()
    files.seconds = 5.0
    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env, durable=durable) as runtime:
            for _ in range(3):
                await runtime.launch(Job(forever))
        notes = runtime.notifications.drain()
        ids = [note.task_id for note in notes]
        assert len({*ids}) == 3
        assert await left_by(files, power=durable) == ids
        assert notes[1].ack()
        del ids[1]
        assert await left_by(files, power=durable) == ids


@pytest.mark.parametrize("durable", [False, True])
async def test_synced_raises_what_the_disk_says_and_nothing_waits_for_it(
    autojump_clock: trio.testing.MockClock, durable: bool
) -> None:
    """One warning for each time that it begins; what could not be written is written
    when it can be."""
    env = fake_env()
    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env, durable=durable) as runtime:
            events, ids = runtime.events.subscribe(), list[str]()
            for _ in range(2):
                env.files.write_error = OSError(errno.ENOSPC, "No space left on device")
                for _ in range(5):
                    task = await runtime.launch(returns("x"))
                    await task.wait()
                    ids.append((await anext(runtime.notifications)).task_id)
                    with pytest.raises(OSError, match="No space left"):
                        await runtime.synced()
                env.files.write_error = None
                await trio.sleep(2)
                await runtime.synced()
                assert await left_by(env.files, power=durable) == ids
            told = [it.text for it in events.drain() if isinstance(it, Warned)]
            assert len([it for it in told if "a crash loses it" in it]) == 2


@pytest.mark.parametrize("durable", [False, True])
async def test_what_the_journal_lacks_at_the_end_is_told_then(
    autojump_clock: trio.testing.MockClock, durable: bool
) -> None:
    """P10: the warning of a failing disk may be old, and it is of a crash."""
    env = fake_env()
    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env, durable=durable) as runtime:
            events = runtime.events.subscribe()
            env.files.write_error = OSError(errno.ENOSPC, "No space left on device")
            await (await runtime.launch(returns("x"))).wait()
            note = await anext(runtime.notifications)
    told = [it.text for it in events.drain() if isinstance(it, Warned)]
    assert [it for it in told if "the journal lacks 2 records at the end" in it]
    env.files.write_error = None
    assert note.ack()
    assert await left_by(env.files, power=durable) == []


class Closing(FakeFiles):
    """A disk that says at the end what it has not done."""

    is_bad = False

    def ask(self, operation: str, path: str | os.PathLike[str]) -> str:
        if self.is_bad and operation == "files.close":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return super().ask(operation, path)


async def test_a_journal_that_cannot_be_closed_is_told_and_fails_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """P10: and the directory is given back."""
    env, files = fake_env(), Closing()
    files.now = env.clock.seconds
    env = FakeEnv(clock=env.clock, ids=env.ids, processes=env.processes, files=files)
    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env) as runtime:
            events = runtime.events.subscribe()
            await (await runtime.launch(returns("x"))).wait()
            files.is_bad = True
        told = [it.text for it in events.drain() if isinstance(it, Warned)]
        assert [it for it in told if "journal may lack what was written last" in it]
        files.is_bad = False
        ids = [note.task_id for note in runtime.notifications.drain()]
        assert await left_by(files, power=False) == ids and len(ids) == 1
    assert files.share(HERE).is_alone()


def shown(note: Notification) -> tuple[object, ...]:
    return (
        *(note.id, note.task_id, note.owner, note.status, note.notify, note.kind),
        *(note.command, note.cwd, note.description, note.duration_ms),
        *(note.display, note.toast, note.xml),
    )


async def test_every_kind_of_end_is_told_again_word_for_word(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """All that a reader can see, after one crash and after a second one. Only half of a
    surrogate pair, which no file can hold, is told by its escape."""
    commands: Any = {
        "ok": "fine\n",
        "none": "",
        "fails": 3,
        "long": "line <&> \x1b[31m\n" * 30_000,
        "missing": OSError(errno.ENOENT, "No such file or directory"),
    }
    env = fake_env(commands)
    tries = 0

    async def again(ctx: Context[object], report: Report) -> object:
        nonlocal tries
        tries += 1
        await trio.sleep(1.5)
        if tries < 2:
            raise ValueError("once")
        return "at last"

    async def reports(ctx: Context[object], report: Report) -> object:
        report.say(Progress("half", tool_uses=3, total_tokens=12))
        return "x" * 100_000

    async def speaks(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await trio.sleep(2)
        yield FinalResult("<answer> & so on")

    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env) as runtime:
            for name in commands:
                await runtime.launch(Shell(name), owner="main", tool_use_id="t<1>")
            await runtime.launch(Shell("ok", cwd="/src"), description="say \x1b[1m it")
            await runtime.launch(agent(speaks), notify="defer")
            await runtime.launch(fails(ValueError("wrong\nin two lines <x>")))
            await runtime.launch(fails(RuntimeError()))
            await runtime.launch(returns(None), description="")
            await runtime.launch(Job(again), restart="transient")
            await runtime.launch(Job(reports))
            stopped = await runtime.launch(Job(forever))
            await runtime.stop(stopped.id)
            silent = await runtime.launch(returns(1), notify="silent")
            await runtime.run(returns("in the foreground"))
            await runtime.wait_idle()
            before = {note.id: shown(note) for note in runtime.notifications.drain()}
            assert len(before) == 13
            files = env.files
            for _ in range(2):
                env = fake_env()
                env.ids.given = 10_000
                env.files.disk = files.disk.image().killed()
                files = env.files
                async with open_runtime(HERE, env=env) as later:
                    notes = later.notifications.drain()
                assert silent.id not in {note.task_id for note in notes}
                for note in notes:
                    assert shown(note) == before[note.id], note.task_id
                assert {note.id for note in notes} == {*before}
                assert [note.id for note in notes] == sorted(before)
