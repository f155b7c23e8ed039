"""How tasks end, and what they may be stopped by."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors import Context
from actors.testing import fake_env
from actors.work import Report
from supervisor.lowlevel import life_of
from supervisor.runtime import (
    Limits,
    RuntimeStopping,
    TaskSnapshot,
    TaskStopRequested,
    UnknownTask,
    open_runtime,
)
from tests.supervisor.jobs import (
    COMPLETED,
    FAILED,
    KILLED,
    PENDING,
    RUNNING,
    Job,
    fails,
    forever,
    kinds,
    returns,
    told,
    waits_for,
)


async def test_an_exception_is_a_failed_task_with_its_error(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(fails(LookupError("not there")))
        error = (await task.wait()).error
        assert error is not None
        assert (error.type, error.message) == ("LookupError", "not there")
        assert (
            "in body" in error.traceback and "LookupError: not there" in error.traceback
        )
        (note,) = runtime.notifications.drain()
        assert ET.fromstring(note.xml).findtext("error") == "LookupError: not there"
        assert note.display == 'Agent "a job" failed: not there'


@pytest.mark.parametrize("restart", ["temporary", "transient"])
async def test_what_a_work_returns_is_kept_if_it_has_written_no_output(
    tmp_path: Path, restart: Any
) -> None:
    """It opened no log, so there is no tail to be the result instead."""

    async def body(ctx: Context[object], report: Report) -> int:
        return 42

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body, writes_output=True), restart=restart)
        assert (await task.wait()).result == "42"
        (note,) = runtime.notifications.drain()
        assert ET.fromstring(note.xml).findtext("result") == "42"


@pytest.mark.parametrize("restart", ["temporary", "transient"])
async def test_what_a_work_has_written_is_its_result_and_told_once(
    tmp_path: Path, restart: Any
) -> None:
    async def body(ctx: Context[object], report: Report) -> int:
        report.output_tail = "printed"
        return 42

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body, writes_output=True), restart=restart)
        assert (await task.wait()).result == "printed"
        (note,) = runtime.notifications.drain()
        xml = ET.fromstring(note.xml)
        assert xml.findtext("output-tail") == "printed"
        assert xml.find("result") is None


@pytest.mark.parametrize("restart", ["temporary", "permanent"])
async def test_a_work_whose_run_is_not_async_fails_by_its_name(
    tmp_path: Path, restart: Any
) -> None:
    class Sync(Job):
        def run(self, ctx: Context[object], report: Report) -> Any:
            return "done"

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Sync(forever), restart=restart)
        done = await task.wait()
        assert done.status is FAILED and done.error is not None
        assert (
            "Sync.run is not an async function: it returned str" in done.error.message
        )


async def test_an_agent_that_returns_after_its_stop_has_completed(
    tmp_path: Path,
) -> None:
    """SM7: the real result, one notification."""

    async def body(ctx: Context[object], report: Report) -> str:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            pass
        return "the real result"

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body))
        await trio.testing.wait_all_tasks_blocked()
        result = await runtime.stop(task.id)
        assert result.snapshot.status is COMPLETED
        assert result.snapshot.result == "the real result"
        assert told(runtime) == [(task.id, "completed")]


async def test_an_agent_that_fails_after_its_stop_has_failed(tmp_path: Path) -> None:
    """SM8: the real error, one notification."""

    async def body(ctx: Context[object], report: Report) -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            raise ValueError("the real error") from None

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body))
        await trio.testing.wait_all_tasks_blocked()
        snapshot = (await runtime.stop(task.id)).snapshot
        assert snapshot.status is FAILED
        assert snapshot.error is not None and snapshot.error.message == "the real error"
        assert told(runtime) == [(task.id, "failed")]


async def test_a_stopped_agent_keeps_its_partial_answer(tmp_path: Path) -> None:
    """SM9, N6: killed with what it had."""

    async def body(ctx: Context[object], report: Report) -> str:
        report.result = "partial"
        await trio.sleep_forever()
        return "never"

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body))
        await trio.testing.wait_all_tasks_blocked()
        await runtime.stop(task.id)
        assert (task.status, task.snapshot().result) == (KILLED, "partial")
        (note,) = runtime.notifications.drain()
        assert ET.fromstring(note.xml).findtext("result") == "partial"


async def test_a_stop_is_a_request_until_the_task_has_ended(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P2, SM4, SM11: running and stopping, without an end, until it has ended."""

    async def body(ctx: Context[object], report: Report) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body))
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.stop, task.id)
            await trio.sleep(1)
            snapshot = task.snapshot()
            assert snapshot.status is RUNNING and snapshot.stopping
            assert snapshot.ended_at is None
            assert told(runtime) == []
        assert trio.current_time() == pytest.approx(2)
        assert task.status is KILLED and not task.snapshot().stopping


async def test_a_deadline_of_a_work_is_a_failure(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async def body(ctx: Context[object], report: Report) -> None:
        ctx.deadline = trio.current_time() + 3
        await trio.sleep_forever()

    async with open_runtime(tmp_path) as runtime:
        snapshot = await (await runtime.launch(Job(body))).wait()
        assert snapshot.status is FAILED
        assert snapshot.error is not None
        assert (snapshot.error.type, trio.current_time()) == ("TimeoutError", 3.0)


async def test_a_stop_in_the_tick_of_the_launch_ends_in_one_killed_task(
    tmp_path: Path,
) -> None:
    """Brief section 10: a stop before the first step."""
    ran: list[str] = []

    async def body(ctx: Context[object], report: Report) -> None:
        ran.append("body")

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body))
        life_of(runtime).close()
        with pytest.raises(RuntimeStopping, match="is stopping"):
            await runtime.launch(Job(body))
        await runtime.stop(task.id)
        # It may have had its first step already; whichever came first counts.
        assert task.status is (COMPLETED if ran else KILLED)
        assert told(runtime) == [(task.id, task.status.value)]


@pytest.mark.parametrize("end_first", [True, False])
async def test_a_stop_that_races_with_the_end_gives_one_end(
    tmp_path: Path, end_first: bool
) -> None:
    """SM6: the first terminal state wins."""
    for number in range(20):
        async with open_runtime(tmp_path / str(number)) as runtime:
            end = trio.Event()
            task = await runtime.launch(waits_for(end))
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as nursery:
                if end_first:
                    end.set()
                    nursery.start_soon(runtime.stop, task.id)
                else:
                    nursery.start_soon(runtime.stop, task.id)
                    await trio.lowlevel.checkpoint()
                    end.set()
            assert task.status in (COMPLETED, KILLED)
            assert told(runtime) == [(task.id, task.status.value)]
        assert told(runtime) == []


async def test_two_stops_at_once_both_see_the_one_end(tmp_path: Path) -> None:
    """SM6."""
    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(Job(forever))
        results: list[TaskSnapshot] = []

        async def stop(reason: str) -> None:
            results.append((await runtime.stop(task.id, reason)).snapshot)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop, "one")
            nursery.start_soon(stop, "two")
            nursery.start_soon(runtime.stop_all)
        assert results == [task.snapshot()] * 2
        assert task.status is KILLED
        assert told(runtime) == [(task.id, "killed")]
        assert kinds(events.drain(), task.id).count(TaskStopRequested) == 1


async def test_a_second_terminal_state_is_ignored(tmp_path: Path) -> None:
    """SM3, SM6, N2: even if something of ours tried to record one."""
    async with open_runtime(tmp_path) as runtime:
        handle = await runtime.launch(returns("first"))
        before = await handle.wait()
        events = runtime.events.subscribe()
        task = life_of(runtime).table.find(handle.id)
        assert task is not None
        life_of(runtime).conclude(task, FAILED, ValueError("second"))
        assert handle.snapshot() == before
        assert events.drain() == []
        assert told(runtime) == [(handle.id, "completed")]


async def test_a_stop_of_an_ended_task_changes_nothing(tmp_path: Path) -> None:
    """SM2, SM12, SM6."""
    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(returns("kept"))
        before = await task.wait()
        events.drain()
        result = await runtime.stop(task.id)
        assert (result.snapshot, result.survivors) == (before, ())
        assert await task.stop() == result
        assert events.drain() == []
        assert len(told(runtime)) == 1


async def test_a_stop_of_an_unknown_task_lists_the_running_ones(tmp_path: Path) -> None:
    """SM5, with UnknownTask."""
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(forever), description="the build")
        with pytest.raises(UnknownTask) as caught:
            await runtime.stop("s1234567")
        assert caught.value.task_id == "s1234567"
        assert caught.value.running == ((task.id, "the build"),)
        assert "the build" in str(caught.value)
        assert task.status is RUNNING and not task.snapshot().stopping


async def test_a_cancelled_stop_has_asked_or_has_changed_nothing(
    tmp_path: Path,
) -> None:
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(forever))
        await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await runtime.stop(task.id)
        assert scope.cancelled_caught
        await trio.testing.wait_all_tasks_blocked()
        assert task.snapshot().stopping is False and task.status is RUNNING


async def test_stopping_one_task_touches_no_other(tmp_path: Path) -> None:
    """P8, P10: nor does a failing one."""
    async with open_runtime(tmp_path) as runtime:
        others = [await runtime.launch(Job(forever)) for _ in range(3)]
        victim = await runtime.launch(Job(forever))
        failing = await runtime.launch(fails(ValueError("boom")))
        assert (await runtime.stop(victim.id)).snapshot.status is KILLED
        assert (await failing.wait()).status is FAILED
        assert [task.status for task in others] == [RUNNING] * 3


async def test_stop_all_stops_one_owner_or_everybody(tmp_path: Path) -> None:
    """SD1, SD3: the numbers of those that remain go down."""
    async with open_runtime(tmp_path) as runtime:
        mine = [await runtime.launch(Job(forever), owner="me") for _ in range(3)]
        other = await runtime.launch(Job(forever), owner="you")
        results = await runtime.stop_all(owner="me")
        assert [result.snapshot.id for result in results] == [task.id for task in mine]
        assert {result.snapshot.status for result in results} == {KILLED}
        assert other.status is RUNNING
        notes = runtime.notifications_for("me").drain()
        assert [ET.fromstring(note.xml).findtext("remaining") for note in notes] == [
            "2",
            "1",
            "0",
        ]
        assert len(await runtime.stop_all()) == 1
        assert await runtime.stop_all() == []


async def test_remaining_counts_the_background_tasks_of_one_owner(
    tmp_path: Path,
) -> None:
    """N18, N19: pending ones too; no foreground tasks; no owner is an owner as
    well. (As P2 wants it, a task that was asked to stop remains until it ends.)"""
    async with open_runtime(tmp_path, limits=Limits(total=4)) as runtime:
        end = trio.Event()
        first = await runtime.launch(waits_for(end))
        others = [await runtime.launch(Job(forever)) for _ in range(2)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run, Job(forever))
            await trio.testing.wait_all_tasks_blocked()
            await runtime.launch(Job(forever), owner="else")
            others.append(await runtime.launch(Job(forever)))
            assert others[-1].status is PENDING
            end.set()
            await first.wait()
            (note,) = runtime.notifications.drain()
            xml = ET.fromstring(note.xml)
            assert (xml.findtext("remaining"), xml.findtext("all-terminal")) == (
                "3",
                "false",
            )
            for task in others:
                await runtime.stop(task.id)
            last = ET.fromstring(runtime.notifications.drain()[-1].xml)
            assert (last.findtext("remaining"), last.findtext("all-terminal")) == (
                "0",
                "true",
            )
            nursery.cancel_scope.cancel()


async def test_an_end_that_a_silent_stop_has_not_seen_is_told_as_launch_said(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """SD2, N1: who stopped it could not tell of it."""
    end = trio.Event()

    async def stubborn(ctx: Context[object], report: Report) -> None:
        with trio.CancelScope(shield=True):
            await end.wait()

    async with open_runtime("/tasks", env=fake_env()) as runtime:
        task = await runtime.launch(Job(stubborn, shutdown=0.1))
        await trio.testing.wait_all_tasks_blocked()
        assert (await runtime.stop(task, notify="silent")).survivors
        assert task.snapshot().notify == "wake"
        end.set()
        await task.wait()
        (note,) = runtime.notifications.drain()
        assert note.task_id == task.id


# ---- Who goes on first ------------------------------------------------------------


class Woken(trio.abc.Instrument):
    """The names of the tasks that were woken."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self.names.append(task.name)


async def test_who_waits_for_an_end_is_woken_between_the_readers_and_the_notifier(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """trio lets them go on in this order or in the reverse one, so never both of the
    others go before."""
    async with (
        trio.open_nursery() as nursery,
        open_runtime("/tasks", env=fake_env()) as runtime,
    ):

        async def read() -> None:
            async for _ in runtime.events:
                pass

        nursery.start_soon(read, name="reader")
        go = trio.Event()
        task = await runtime.launch(waits_for(go))
        nursery.start_soon(task.wait, name="waiter")
        await trio.testing.wait_all_tasks_blocked()
        woken = Woken()
        trio.lowlevel.add_instrument(woken)
        go.set()
        await task.wait()
        trio.lowlevel.remove_instrument(woken)
        names = [it for it in woken.names if it in ("reader", "waiter", "notifier")]
        assert names[:3] == ["reader", "waiter", "notifier"]
