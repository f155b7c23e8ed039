"""Waiting for several tasks: any, all, and sets that grow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from actors import Context, TaskStatus
from actors.testing import fake_env
from actors.work import Report
from supervisor.lowlevel import life_of
from supervisor.runtime import (
    Limits,
    Runtime,
    TaskHandle,
    TaskSet,
    TaskSnapshot,
    UnknownTask,
    open_runtime,
)
from supervisor.tree import WouldDeadlock
from tests.supervisor.jobs import Job


def lasts(seconds: float) -> Job:
    async def body(ctx: Context[object], report: Report) -> object:
        await trio.sleep(seconds)
        return seconds

    return Job(body)


async def launch(runtime: Runtime, *seconds: float) -> list[TaskHandle]:
    return [await runtime.launch(lasts(s)) for s in seconds]


def ids(snapshots: list[TaskSnapshot]) -> list[str]:
    return [snapshot.id for snapshot in snapshots]


async def test_wait_any_returns_the_first_to_end(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_runtime(tmp_path) as runtime:
        slow, quick, endless = await launch(runtime, 3, 1, 9)
        first = await runtime.wait_any([slow, quick.id, endless])
        assert (first.id, first.status) == (quick.id, TaskStatus.COMPLETED)
        assert trio.current_time() == 1
        # Of several that have ended, the one that did first.
        assert (await runtime.wait_any([endless, slow, quick])).id == quick.id
        assert trio.current_time() == 1
        assert (await runtime.wait_any([endless, slow])).id == slow.id


async def test_wait_all_returns_all_in_the_order_given(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_runtime(tmp_path) as runtime:
        a, b, c = await launch(runtime, 2, 3, 1)
        ended = await runtime.wait_all([c, a.id, b, a])
        assert ids(ended) == [c.id, a.id, b.id, a.id]
        assert {snapshot.status for snapshot in ended} == {TaskStatus.COMPLETED}
        assert trio.current_time() == 3
        assert ids(await runtime.wait_all(iter([b, c]))) == [b.id, c.id]


async def test_waiting_for_nothing_is_done_or_an_error(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:
        assert await runtime.wait_all([]) == []
        with pytest.raises(ValueError, match="tasks must not be empty"):
            await runtime.wait_any([])
        assert [snapshot async for snapshot in runtime.task_set()] == []


async def test_an_unknown_task_is_an_error_before_anything_is_waited_for(
    tmp_path: Path,
) -> None:
    async with open_runtime(tmp_path) as runtime:
        (task,) = await launch(runtime, 9)
        with trio.fail_after(10):
            for call in (runtime.wait_any, runtime.wait_all):
                with pytest.raises(UnknownTask, match=r"'s1234567'.*a job"):
                    await call([task, "s1234567"])
        members = runtime.task_set(task)
        for change in (members.add, members.remove, runtime.task_set):
            with pytest.raises(UnknownTask, match="s1234567"):
                change("s1234567")
        assert len(members) == 1


async def test_what_is_no_task_is_refused(tmp_path: Path) -> None:
    async with open_runtime(tmp_path / "a") as one, open_runtime(tmp_path / "b") as two:
        (task,) = await launch(one, 0)
        with pytest.raises(ValueError, match="of another runtime"):
            await two.wait_any([task])
        with pytest.raises(TypeError, match=r"a TaskHandle or a task id, got 5"):
            await one.wait_all([5])  # type: ignore[list-item]
        for tasks in (task, task.id):
            with pytest.raises(TypeError, match="tasks must be several"):
                await one.wait_all(tasks)  # type: ignore[arg-type]


async def test_a_handle_is_waited_for_after_its_task_is_forgotten(
    tmp_path: Path,
) -> None:
    async with open_runtime(tmp_path) as runtime:
        (first,) = await launch(runtime, 0)
        await first.wait()
        tasks = [first, *await launch(runtime, *[0] * 50)]
        await runtime.wait_all(tasks)
        for note in runtime.notifications.drain():
            note.ack()
        with pytest.raises(UnknownTask):
            runtime.get(first.id)
        assert (await runtime.wait_any([first])).id == first.id
        assert ids(await runtime.wait_all(tasks)) == [task.id for task in tasks]


async def test_a_set_gives_each_member_once_in_the_order_of_their_ends(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_runtime(tmp_path) as runtime:
        tasks = await launch(runtime, 5, 1, 3, 2, 4)
        await tasks[3].wait()
        members = runtime.task_set(*tasks, tasks[0].id)
        assert len(members) == 5 and tasks[0] in members
        seen = [snapshot.result async for snapshot in members]
        assert seen == ["1", "2", "3", "4", "5"]
        assert len(members) == 0 and tasks[0] not in members
        assert [snapshot async for snapshot in members] == []


async def test_a_set_may_grow_and_shrink_while_it_is_iterated(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_runtime(tmp_path) as runtime:
        (first,) = await launch(runtime, 1)
        (doomed,) = await launch(runtime, 50)
        members = runtime.task_set(first)
        seen: list[str | None] = []
        async for snapshot in members:
            seen.append(snapshot.result)
            if len(seen) == 1:
                for task in await launch(runtime, 3, 1, 2):
                    members.add(task)
                    members.add(task.id)
                members.add(doomed)
                assert len(members) == 4
            if len(seen) == 3:
                assert members.remove(doomed)
                assert not members.remove(doomed.id)
                members.add(first)  # which has ended long ago
        # One that has ended before comes before.
        assert seen == ["1", "1", "2", "1", "3"]
        assert trio.current_time() == 4


async def test_taking_the_last_member_out_ends_the_wait_for_it(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:
        (task,) = await launch(runtime, 99)
        members = runtime.task_set(task)
        async with trio.open_nursery() as nursery:
            with trio.fail_after(10):

                async def read() -> None:
                    assert [snapshot async for snapshot in members] == []

                nursery.start_soon(read)
                nursery.start_soon(read)
                await trio.testing.wait_all_tasks_blocked()
                assert members.remove(task)
        assert task.status is TaskStatus.RUNNING


async def test_an_ended_member_that_was_not_read_can_be_taken_out(
    tmp_path: Path,
) -> None:
    async with open_runtime(tmp_path) as runtime:
        a, b, c = tasks = await launch(runtime, 0, 0, 0)
        members = runtime.task_set(*tasks)
        await runtime.wait_all(tasks)
        assert members.remove(b)
        assert {s.id async for s in members} == {a.id, c.id}


async def test_several_readers_share_a_set_and_all_see_its_end(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_runtime(tmp_path) as runtime:
        tasks = await launch(runtime, *[1 + n % 7 for n in range(40)])
        members = runtime.task_set(*tasks)
        seen: list[str] = []

        async def read() -> None:
            async for snapshot in members:
                seen.append(snapshot.id)  # noqa: PERF401 - one by one

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(read)
        assert sorted(seen) == sorted(task.id for task in tasks)


@pytest.mark.sim(seeds=2)
@pytest.mark.parametrize("steps", range(8))
async def test_a_cancelled_wait_loses_nothing_and_does_nothing_to_the_tasks(
    steps: int,
) -> None:
    """It races with the end of a member, a few scheduler steps later each time."""
    async with open_runtime("tasks", env=fake_env()) as runtime:
        end = trio.Event()

        async def body(ctx: Context[object], report: Report) -> None:
            await end.wait()

        task = await runtime.launch(Job(body))
        other = await runtime.launch(lasts(99))
        members = runtime.task_set(task, other)
        seen: list[str] = []

        async def read() -> None:
            async for snapshot in members:
                seen.append(snapshot.id)  # noqa: PERF401 - one by one

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(runtime.wait_any, [task, other])
            nursery.start_soon(runtime.wait_all, [task, other])
            await trio.testing.wait_all_tasks_blocked()
            end.set()
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        await task.wait()
        assert other.status is TaskStatus.RUNNING
        assert seen == [task.id] or (await anext(members)).id == task.id
        assert len(members) == 1 and other in members


async def test_nothing_is_kept_of_a_wait_that_is_over(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:
        task, other = await launch(runtime, 99, 99)
        for call in (runtime.wait_any, runtime.wait_all):
            with trio.move_on_after(0):
                await call([task, other])
        record = life_of(runtime).table.find(task.id)
        assert record is not None and not record.sets


async def test_a_task_cannot_wait_for_itself_among_others(tmp_path: Path) -> None:
    """Nor can what it started: the wait would have no end."""
    async with open_runtime(tmp_path) as runtime:
        (other,) = await launch(runtime, 0)
        refused: list[str] = []

        async def body(ctx: Context[object], report: Report) -> None:
            me = runtime.handle(report.task_id)
            members: TaskSet = runtime.task_set(me, other)

            async def ask(call: Callable[[], Awaitable[object]]) -> None:
                with pytest.raises(WouldDeadlock, match=me.id):
                    await call()
                refused.append(me.id)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, lambda: runtime.wait_any([other, me]))
                nursery.start_soon(ask, lambda: runtime.wait_all([other, me.id]))
                nursery.start_soon(ask, lambda: anext(members))

        snapshot = await (await runtime.launch(Job(body))).wait()
        assert snapshot.error is None and len(refused) == 3


@pytest.mark.parametrize("how", ["any", "all", "set"])
async def test_a_task_that_waits_for_those_it_launched_lends_its_place(
    tmp_path: Path, how: str
) -> None:
    """Brief section 4: or they would wait for each other for ever."""
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:

        async def body(ctx: Context[object], report: Report) -> int:
            tasks = await launch(runtime, 0, 0, 0)
            assert {task.status for task in tasks} == {TaskStatus.PENDING}
            if how == "any":
                await runtime.wait_any(tasks)
                return 1
            if how == "all":
                return len(await runtime.wait_all(tasks))
            return len([snapshot async for snapshot in runtime.task_set(*tasks)])

        with trio.fail_after(20):
            snapshot = await (await runtime.launch(Job(body))).wait()
            await runtime.wait_idle()
        assert snapshot.result == ("1" if how == "any" else "3")
        # The place was given back exactly once.
        after = await launch(runtime, 9, 9)
        assert [task.status.value for task in after] == ["running", "pending"]


async def test_a_task_that_waits_for_those_of_others_lends_its_place(
    tmp_path: Path,
) -> None:
    """Brief section 4: whoever has launched them, it would wait for ever."""
    limits = Limits(total=1)
    async with open_runtime(tmp_path, env=fake_env(), limits=limits) as runtime:

        async def body(ctx: Context[object], report: Report) -> None:
            await runtime.wait_any([other])

        task = await runtime.launch(Job(body))
        other = await runtime.launch(lasts(0))
        assert other.status is TaskStatus.PENDING
        with trio.fail_after(20):
            assert (await task.wait()).status is TaskStatus.COMPLETED


async def test_ends_at_close_reach_whoever_waits(tmp_path: Path) -> None:
    """P1, P4: a stopped task has ended as well."""
    seen: list[str] = []
    async with trio.open_nursery() as nursery:
        async with open_runtime(tmp_path) as runtime:
            tasks = await launch(runtime, 99, 99)
            members = runtime.task_set(*tasks)

            async def read() -> None:
                async for snapshot in members:
                    seen.append(snapshot.status.value)  # noqa: PERF401

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
    assert seen == ["killed", "killed"]
