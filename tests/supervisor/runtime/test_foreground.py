"""Foreground tasks, turns, and waiting for the end."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from actors import Context
from actors.work import Report
from supervisor.lowlevel import life_of
from supervisor.runtime import (
    Limits,
    RuntimeStopping,
    TaskHandle,
    TaskSnapshot,
    TaskStopRequested,
    open_runtime,
)
from supervisor.tree import (
    WouldDeadlock,
)
from tests.supervisor.jobs import (
    COMPLETED,
    KILLED,
    PENDING,
    RUNNING,
    Job,
    forever,
    returns,
    statuses,
    told,
    waits_for,
)

# The foreground


async def test_a_foreground_task_makes_no_notification(tmp_path: Path) -> None:
    """N9."""
    async with open_runtime(tmp_path) as runtime:
        snapshot = await runtime.run(returns("here"))
        assert (snapshot.status, snapshot.result) == (COMPLETED, "here")
        assert not snapshot.background
        assert told(runtime) == []
    assert told(runtime) == []


async def test_a_foreground_task_moves_to_the_background_once(tmp_path: Path) -> None:
    """BG1, BG2: the same run goes on."""
    async with open_runtime(tmp_path) as runtime:
        end = trio.Event()
        returned: list[TaskSnapshot] = []

        async def run() -> None:
            returned.append(await runtime.run(waits_for(end)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await trio.testing.wait_all_tasks_blocked()
            (snapshot,) = runtime.tasks()
            assert runtime.background(snapshot.id)
            assert not runtime.background(snapshot.id)
            assert not runtime.background("s1234567")
        (early,) = returned
        assert early.status is RUNNING and early.background
        assert early.run_id == snapshot.run_id
        end.set()
        await runtime.wait_idle()
        assert not runtime.background(snapshot.id)
        assert told(runtime) == [(snapshot.id, "completed")]
        assert runtime.get(snapshot.id).run_id == early.run_id


async def test_a_nursery_gives_the_handle_of_a_foreground_task_at_once(
    tmp_path: Path,
) -> None:
    """BG1: whoever has it can move the task, also before that has its place."""
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        end = trio.Event()
        async with trio.open_nursery() as nursery:
            first: TaskHandle = await nursery.start(runtime.run, waits_for(end))
            second: TaskHandle = await nursery.start(runtime.run, returns("x"))
            assert [first.status, second.status] == [RUNNING, PENDING]
            assert runtime.background(second.id)
            end.set()
        assert first.status is COMPLETED and not first.snapshot().background
        assert (await second.wait()).status is COMPLETED
        assert told(runtime) == [(second.id, "completed")]


async def test_a_foreground_task_that_cannot_be_started_is_an_error_of_its_start(
    tmp_path: Path,
) -> None:
    """P10: the error comes out of ``nursery.start`` as itself."""
    async with open_runtime(tmp_path) as runtime:
        life_of(runtime).close()
        async with trio.open_nursery() as nursery:
            with pytest.raises(RuntimeStopping):
                await nursery.start(runtime.run, returns(1))


@pytest.mark.parametrize("move_first", [True, False])
async def test_a_move_in_the_tick_of_the_end_is_told_in_one_way(
    tmp_path: Path, move_first: bool
) -> None:
    """P4: by the return of run() or by the notification."""
    async with open_runtime(tmp_path) as runtime:
        end = trio.Event()
        returned: list[TaskSnapshot] = []

        async def run() -> None:
            returned.append(await runtime.run(waits_for(end)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await trio.testing.wait_all_tasks_blocked()
            (task,) = runtime.tasks()
            if move_first:
                assert runtime.background(task.id)
                end.set()
            else:
                end.set()
                while runtime.get(task.id).status is RUNNING:
                    await trio.lowlevel.checkpoint()
                assert not runtime.background(task.id)
        (snapshot,) = returned
        await runtime.wait_idle()
        assert snapshot.background is move_first
        assert len(told(runtime)) == int(move_first)


async def test_a_cancelled_run_has_ended_its_task_first(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P1, P8."""

    async def body(ctx: Context[object], report: Report) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)

    async with open_runtime(tmp_path) as runtime:
        with trio.move_on_after(5):
            await runtime.run(Job(body))
        assert trio.current_time() == pytest.approx(6)
        assert statuses(runtime) == ["killed"]
        assert told(runtime) == []


async def test_a_cancelled_run_of_a_pending_task_takes_it_out_of_the_queue(
    tmp_path: Path,
) -> None:
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        first = await runtime.launch(Job(forever))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run, returns(1))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        last = await runtime.launch(returns(2))
        await runtime.stop(first.id)
        assert (await last.wait()).status is COMPLETED
        assert [status for _, status in told(runtime)] == ["killed", "completed"]


async def test_a_cancelled_turn_ends_its_foreground_tasks_only(tmp_path: Path) -> None:
    """P8."""
    async with open_runtime(tmp_path) as runtime:
        background = await runtime.launch(Job(forever), owner="main")
        foreground: list[str] = []
        during: list[TaskHandle] = []
        with trio.CancelScope() as scope:
            async with runtime.turn("main"):
                assert runtime.is_busy("main") and not runtime.is_busy("other")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(runtime.run, Job(forever))
                    nursery.start_soon(runtime.run, Job(forever))
                    await trio.testing.wait_all_tasks_blocked()
                    during.append(await runtime.launch(Job(forever)))
                    foreground += [s.id for s in runtime.tasks() if not s.background]
                    scope.cancel()
        assert not runtime.is_busy("main")
        assert [runtime.get(id).status for id in foreground] == [KILLED, KILLED]
        assert background.status is RUNNING and during[0].status is RUNNING
        assert told(runtime) == []


async def test_the_moved_task_survives_the_cancelled_turn(tmp_path: Path) -> None:
    """P8, BG2."""
    async with open_runtime(tmp_path) as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run, Job(forever))
            await trio.testing.wait_all_tasks_blocked()
            (task,) = runtime.tasks()
            # In the same tick.
            assert runtime.background(task.id)
            nursery.cancel_scope.cancel()
        assert runtime.get(task.id).status is RUNNING
        await runtime.stop(task.id)
        assert told(runtime) == [(task.id, "killed")]


# Waiting


async def test_a_cancelled_wait_does_nothing_to_the_task(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:
        end = trio.Event()
        task = await runtime.launch(waits_for(end))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task.wait)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert task.status is RUNNING
        end.set()
        assert (await task.wait()).status is COMPLETED


async def test_wait_idle_waits_for_all_that_is_unfinished(tmp_path: Path) -> None:
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        await runtime.wait_idle()
        end = trio.Event()
        await runtime.launch(waits_for(end))
        await runtime.launch(returns(1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.wait_idle)
            nursery.start_soon(runtime.wait_idle)
            await trio.testing.wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 2
            end.set()
        assert statuses(runtime) == ["completed", "completed"]


async def test_a_task_cannot_wait_for_its_own_end(tmp_path: Path) -> None:
    errors: list[str] = []

    async with open_runtime(tmp_path) as runtime:

        async def body(ctx: Context[object], report: Report) -> None:
            calls = (
                lambda: runtime.stop(report.task_id),
                lambda: runtime.stop_all(),
                lambda: runtime.wait_idle(),
                lambda: runtime.handle(report.task_id).wait(),
            )
            for call in calls:
                try:
                    await call()
                except WouldDeadlock as error:
                    errors.append(str(error))
            await trio.lowlevel.checkpoint()

        events = runtime.events.subscribe()
        handle = await runtime.launch(Job(body), restart="transient")
        other = await runtime.launch(Job(forever))
        assert (await handle.wait()).status is COMPLETED
        assert len(errors) == 4 and all(handle.id in error for error in errors)
        assert other.status is RUNNING
        assert TaskStopRequested not in map(type, events.drain())


async def test_a_task_may_launch_stop_and_await_others(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:

        async def body(ctx: Context[object], report: Report) -> str:
            inner = await runtime.launch(Job(forever))
            await runtime.stop(inner.id)
            return (await inner.wait()).status.value

        task = await runtime.launch(Job(body))
        assert (await task.wait()).result == "killed"


async def test_a_handle_is_as_good_as_an_id(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime, trio.open_nursery() as nursery:
        task: TaskHandle = await nursery.start(runtime.run, Job(forever))
        assert runtime.background(task)
        assert not runtime.background(task)
        assert runtime.get(task).id == runtime.get(task.id).id == task.id
        assert (await runtime.stop(task)).snapshot.status is KILLED
        assert runtime.consume(task)
        async with open_runtime(tmp_path) as other:
            with pytest.raises(ValueError, match="a task of another runtime"):
                other.get(task)
