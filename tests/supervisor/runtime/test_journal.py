"""What a runtime tells of what an earlier one has left, and what it shows before it is
written."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio
import trio.testing

from actors import TaskStatus
from actors.shell import Shell
from actors.testing import FakeEnv, fake_env
from supervisor.runtime import Notification, Notified, Warned, open_runtime
from tests.supervisor.jobs import Job, forever, returns, waits_for

HERE = Path("/tasks")
JOURNAL = HERE / "journal.jsonl"
LONG = 60.0


def after_crash(env: FakeEnv) -> FakeEnv:
    """Return the world in which the program has died just now, and is begun again."""
    again = fake_env()
    again.ids.given = env.ids.given
    again.files.disk = env.files.disk.image().killed()
    return again


def shown(note: Notification) -> tuple[object, ...]:
    return (note.id, note.task_id, note.owner, note.status, note.notify, note.xml)


@pytest.mark.parametrize("durable", [False, True])
async def test_a_reader_that_waits_gets_what_is_told_again(
    autojump_clock: trio.testing.MockClock, durable: bool
) -> None:
    """Not only one that drains: nothing else may wake it."""
    env = fake_env()
    async with open_runtime(HERE, env=env) as runtime:
        await (await runtime.launch(returns("x"))).wait()
        first = await anext(runtime.notifications)
        env = after_crash(env)
    async with open_runtime(HERE, env=env, durable=durable) as runtime:
        with trio.fail_after(LONG):
            again = await anext(runtime.notifications)
        assert shown(again) == shown(first)
        assert again.display == first.display and again.toast == first.toast
        assert again.ack()
        if durable:
            await runtime.synced()
        env = after_crash(env)
    async with open_runtime(HERE, env=env) as runtime:
        assert runtime.notifications.drain() == []


@pytest.mark.parametrize("how", ["delivered", "consumed", "silent", "superseded"])
async def test_what_was_acknowledged_comes_never_again_in_whatever_way(
    autojump_clock: trio.testing.MockClock, how: Any
) -> None:
    env = fake_env()
    async with open_runtime(HERE, env=env) as runtime:
        await (await runtime.launch(returns("x"))).wait()
        assert (await anext(runtime.notifications)).ack(how)
        env = after_crash(env)
    async with open_runtime(HERE, env=env) as runtime:
        assert runtime.notifications.drain() == []


async def test_no_id_that_anybody_has_seen_is_given_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Also those of notes, which no journal has, and of what is silent: a host that
    knows an id would drop what it has not heard yet."""
    env, seen = fake_env(), set[str]()
    for life in range(4):
        async with open_runtime(HERE, env=env, durable=life % 2 == 1) as runtime:
            with runtime.events.subscribe() as events:
                for _ in range(3):
                    await (await runtime.launch(returns("y"), owner="main")).wait()
                if life % 2:
                    await runtime.schedule("* * * * *", "look")
                    await trio.sleep(60 * 120)
                for _ in range(life * 30):
                    await (await runtime.launch(returns(1), notify="silent")).wait()
                told = {
                    it.notification_id
                    for it in events.drain()
                    if isinstance(it, Notified)
                }
            for note in runtime.notifications.drain():
                assert note.ack()
            await runtime.synced()
            env = after_crash(env)
        assert not told & seen
        seen |= told


@pytest.mark.parametrize("gets_well", [False, True])
@pytest.mark.parametrize("durable", [False, True])
async def test_no_id_that_was_given_while_the_journal_failed_is_given_again(
    autojump_clock: trio.testing.MockClock, durable: bool, gets_well: bool
) -> None:
    """Also if it never gets well again; and they sort as the tasks have ended."""
    env, seen = fake_env(), set[str]()
    with trio.fail_after(LONG):
        for _ in range(3):
            async with open_runtime(HERE, env=env, durable=durable) as runtime:
                with runtime.events.subscribe() as events:
                    await (await runtime.launch(returns("y"))).wait()
                    await runtime.synced()
                    env.files.write_error = OSError(errno.ENOSPC, "full")
                    # What is entered finds that it cannot be written.
                    await runtime.launch(Job(forever))
                    for _ in range(3):
                        await (await runtime.launch(returns("y"))).wait()
                    if gets_well:
                        env.files.write_error = None
                        await trio.sleep(5)
                    await (await runtime.launch(returns("y"))).wait()
                    told = [
                        it.notification_id
                        for it in events.drain()
                        if isinstance(it, Notified)
                    ]
                notes = runtime.notifications.drain()
                assert [it.id for it in notes if it.id in told] == told
                assert len(told) == 5 and told == sorted(told)
                assert not {*told} & seen
                seen |= {*told, *(it.id for it in notes)}
                env = after_crash(env)
        async with open_runtime(HERE, env=env) as runtime:
            # What was told of it comes again under the same id.
            again = {it.id for it in runtime.notifications.drain()} & seen
            assert again == (seen if gets_well else {*sorted(seen)[:3]})


@pytest.mark.parametrize("durable", [False, True])
async def test_no_id_of_an_end_by_whose_write_the_journal_began_to_fail_is_given_again(
    autojump_clock: trio.testing.MockClock, durable: bool
) -> None:
    """It was given before anybody knew that it could not be written."""
    env, seen = fake_env(), set[str]()
    with trio.fail_after(LONG):
        for _ in range(3):
            async with open_runtime(HERE, env=env, durable=durable) as runtime:
                await runtime.synced()
                again = {it.id for it in runtime.notifications.drain()}
                assert not again & seen
                lost, go = await runtime.launch(Job(forever)), trio.Event()
                ending = [await runtime.launch(waits_for(go)) for _ in range(3)]
                await runtime.synced()
                env.files.write_error = OSError(errno.ENOSPC, "full")
                go.set()
                await runtime.wait_all(ending)
                await trio.testing.wait_all_tasks_blocked()
                notes = runtime.notifications.drain()
                assert {it.task_id for it in notes} == {it.id for it in ending}
                told = {it.id for it in notes}
                assert not told & (seen | again) and lost.id not in told
                seen |= told
                env = after_crash(env)
        async with open_runtime(HERE, env=env) as runtime:
            assert not {it.id for it in runtime.notifications.drain()} & seen


@pytest.mark.parametrize(
    ("field", "value"),
    [("y", "of_later"), ("s", "odd"), ("at", "noon"), ("at", ""), ("n", "loud")],
)
async def test_one_record_that_cannot_be_used_costs_no_other(
    autojump_clock: trio.testing.MockClock,
    field: str,
    value: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of what was read of a file that somebody else has changed."""
    env = fake_env()
    async with open_runtime(HERE, env=env) as runtime:
        tasks = [await runtime.launch(returns(n)) for n in range(3)]
        await runtime.wait_all(tasks)
        await runtime.synced()
        env = after_crash(env)
    lines = env.files.contents(JOURNAL).splitlines()
    changed = [
        line
        if b'"k":"journal"' in line or tasks[1].id.encode() not in line
        else orjson.dumps(orjson.loads(line) | {field: value})
        for line in lines
    ]
    if field == "n":
        changed[2:] = [
            it if b'"k":"start"' in it else old
            for it, old in zip(changed[2:], lines[2:], strict=True)
        ]
    env.files.replace(JOURNAL, b"".join(it + b"\n" for it in changed))
    async with open_runtime(HERE, env=env) as runtime:
        told = {note.task_id for note in runtime.notifications.drain()}
        assert {tasks[0].id, tasks[2].id} <= told
        assert tasks[1].id in told or tasks[1].id in caplog.text


async def test_an_output_that_cannot_be_read_costs_no_end(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = fake_env({"make": "built\n"})
    async with open_runtime(HERE, env=env) as runtime:
        await (await runtime.launch(Shell("make"))).wait()
        await runtime.synced()
        env = after_crash(env)

    def fail(path: Path, limit: int) -> tuple[bytes, bool]:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(env.files, "read_tail", fail)
    async with open_runtime(HERE, env=env) as runtime:
        events = runtime.events.subscribe()
        (note,) = runtime.notifications.drain()
        assert note.status is TaskStatus.COMPLETED
        assert any(
            "Input/output error" in it.text
            for it in events.drain()
            if isinstance(it, Warned)
        )
