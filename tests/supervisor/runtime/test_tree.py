"""What the tree below a runtime may do to it, and what it keeps."""

from __future__ import annotations

import gc
import logging
import weakref
from pathlib import Path

import pytest
import trio
import trio.testing

from actors import Context
from actors.lowlevel import Incarnation
from actors.work import Report
from supervisor.runtime import (
    Limits,
    Notification,
    Runtime,
    UnknownTask,
    Warned,
    open_runtime,
)
from tests.supervisor.jobs import (
    COMPLETED,
    KILLED,
    RUNNING,
    Job,
    forever,
    returns,
    told,
)

# The tree below


async def test_a_crash_of_the_notifier_touches_no_task_and_loses_no_record(
    tmp_path: Path,
) -> None:
    """Brief section 3, P4: it is ended again and again, between all steps."""
    async with open_runtime(tmp_path) as runtime:
        bystander = await runtime.launch(Job(forever))
        (notifier,) = (
            info.ref for info in runtime.root.which_children() if info.id == "notifier"
        )
        ids: list[str] = []
        for number in range(4):
            tasks = [await runtime.launch(returns(number)) for _ in range(3)]
            if number % 2:
                notifier.stop()
            await tasks[0].wait()
            if not number % 2:
                notifier.stop()
            for task in tasks:
                await task.wait()
            ids += [task.id for task in tasks]
        assert bystander.status is RUNNING
        notes: list[Notification] = []
        async for note in runtime.notifications:
            notes.append(note)
            if len(notes) == len(ids):
                break
        assert sorted(note.task_id for note in notes) == sorted(ids)
        assert len({note.id for note in notes}) == len(ids)
    assert told(runtime) == [(bystander.id, "killed")]


async def test_tasks_that_end_without_a_notifier_are_told_when_it_is_back(
    tmp_path: Path,
) -> None:
    """P4."""
    async with open_runtime(tmp_path) as runtime:
        await runtime.root.terminate_child("notifier")
        task = await runtime.launch(returns("x"))
        await task.wait()
        await runtime.root.restart_child("notifier")
        async for note in runtime.notifications:
            assert note.task_id == task.id
            break


async def test_a_pool_that_is_gone_kills_its_tasks_and_comes_back(
    tmp_path: Path,
) -> None:
    """P10: nothing hangs, whatever is done to the tree."""
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        first = await runtime.launch(Job(forever))
        queued = [await runtime.launch(returns(number)) for number in range(100)]
        await runtime.root.terminate_child("agents")
        assert first.status is KILLED
        assert {task.status for task in queued} == {KILLED}
        events = runtime.events.subscribe()
        late = await runtime.launch(returns(1))
        assert late.status is KILLED
        (warning,) = [e for e in events.drain() if isinstance(e, Warned)]
        assert warning.task_id == late.id and "has ended" in warning.text
        ended = [snapshot.id for snapshot in runtime.tasks()]
        notes = runtime.notifications.drain()
        assert [note.task_id for note in notes] == ended
        await runtime.root.restart_child("agents")
        assert (await (await runtime.launch(returns(1))).wait()).status is COMPLETED


# Retention


async def test_the_last_32_of_each_type_are_kept(tmp_path: Path) -> None:
    """SM26."""
    async with open_runtime(tmp_path) as runtime:
        agents = [await runtime.run(returns(number)) for number in range(40)]
        remote = await runtime.run(Job(returns(1).body, task_type="remote_agent"))
        assert [s.id for s in runtime.tasks()] == [s.id for s in [*agents[8:], remote]]
        with pytest.raises(UnknownTask):
            runtime.get(agents[7].id)


async def test_those_waited_for_take_no_place_of_those_in_the_background(
    tmp_path: Path,
) -> None:
    """SM26."""
    async with open_runtime(tmp_path) as runtime:
        background: list[str] = []
        for number in range(40):
            task = await runtime.launch(returns(number))
            await task.wait()
            background.append(task.id)
        for note in runtime.notifications.drain():
            note.ack()
        foreground = [(await runtime.run(returns(number))).id for number in range(40)]
        kept = [*background[8:], *foreground[8:]]
        assert [snapshot.id for snapshot in runtime.tasks()] == kept


async def test_what_is_unfinished_or_unacknowledged_is_never_evicted(
    tmp_path: Path,
) -> None:
    """SM27; SM26: the first to end goes first, whatever was acknowledged first."""
    async with open_runtime(tmp_path) as runtime:
        running = await runtime.launch(Job(forever))
        ended: list[str] = []
        for number in range(40):
            task = await runtime.launch(returns(number))
            await task.wait()
            ended.append(task.id)
        notes = runtime.notifications.drain()
        assert len(runtime.tasks()) == 41
        for note in reversed(notes[1:]):
            note.ack()
        kept = [snapshot.id for snapshot in runtime.tasks()]
        assert kept == [ended[0], *ended[8:], running.id]
        notes[0].ack()
        assert [snapshot.id for snapshot in runtime.tasks()] == [*ended[8:], running.id]


async def test_an_ended_task_is_not_kept_by_what_it_ran_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7: neither by its error's traceback, nor its actor, nor whoever it launched."""
    # pytest keeps every log record, and those hold tracebacks.
    monkeypatch.setattr(logging.getLogger("supervisor"), "propagate", False)
    gone: list[weakref.ref[object]] = []

    class Big:
        pass

    def work(failing: bool, runtime: Runtime, deeper: int) -> Job:
        big = Big()

        async def body(ctx: Context[object], report: Report) -> object:
            assert big is not None
            if deeper:
                await runtime.launch(work(failing, runtime, deeper - 1))
            if failing:
                raise ValueError("with a traceback")
            return big

        gone.append(weakref.ref(big))
        return Job(body)

    async with open_runtime(tmp_path) as runtime:
        handles = [
            await runtime.launch(work(failing, runtime, 3), restart=restart)
            for failing in (True, False)
            for restart in ("temporary", "transient")
        ]
        await runtime.wait_idle()
        for _ in range(3):
            await trio.testing.wait_all_tasks_blocked()
            gc.collect()
        assert len(runtime.tasks()) >= 16
        assert [ref() for ref in gone] == [None] * len(gone)
        assert len(handles) == 4


async def test_a_chain_of_tasks_keeps_no_link_but_the_last(tmp_path: Path) -> None:
    """P7: each launches the next and ends; the one that runs keeps none of them."""
    # With ids of its own, and nothing to wait for in a launch.
    async with open_runtime(tmp_path, journal=False) as runtime:
        end = trio.Event()
        links: list[str] = []

        async def body(ctx: Context[object], report: Report) -> None:
            links.append(ctx.id)
            if len(links) < 50:
                await runtime.launch(Job(body))
            else:
                await end.wait()

        await runtime.launch(Job(body))
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        assert len(links) == 50
        kept = [thing for thing in gc.get_objects() if isinstance(thing, Incarnation)]
        assert {incarnation.id for incarnation in kept} & set(links[:48]) == set()
        del kept
        end.set()
        await runtime.wait_idle()
