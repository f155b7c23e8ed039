"""Tasks that are run again."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import trio
import trio.testing

from actors import Context
from actors.shell import Shell
from actors.testing import fake_env
from actors.work import Report
from supervisor.runtime import (
    Notified,
    TaskEnded,
    TaskRestarted,
    TaskRestartScheduled,
    TaskStarted,
    open_runtime,
)
from supervisor.tree import Backoff, RestartScheduled, child, open_supervisor
from tests.supervisor.jobs import (
    COMPLETED,
    FAILED,
    KILLED,
    RUNNING,
    Job,
    fails,
    forever,
    kinds,
    returns,
    told,
)


def flaky(failures: int, runs: list[tuple[int, float]] | None = None) -> Job:
    async def body(ctx: Context[object], report: Report) -> str:
        if runs is not None:
            runs.append((ctx.number, trio.current_time()))
        await trio.sleep(1)
        if ctx.number <= failures:
            raise ValueError(f"failure {ctx.number}")
        return f"run {ctx.number}"

    return Job(body)


async def test_a_transient_task_is_run_again_until_it_succeeds(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The brief: same id, new run id, one status over all runs."""
    runs: list[tuple[int, float]] = []
    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(
            flaky(2, runs),
            restart="transient",
            intensity=2,
            period=100,
            backoff=Backoff(10, 60),
        )
        first = task.snapshot()
        await trio.sleep(5)
        between = task.snapshot()
        assert between.status is RUNNING and between.restarting
        assert not first.restarting and not between.stopping
        await trio.sleep(6.5)
        again = task.snapshot()
        assert again.status is RUNNING and not again.restarting
        snapshot = await task.wait()
        assert (snapshot.status, snapshot.result) == (COMPLETED, "run 3")
        assert snapshot.id == first.id and snapshot.error is None
        assert len({first.run_id, again.run_id, snapshot.run_id}) == 3
        assert runs == [(1, 0.0), (2, 11.0), (3, 32.0)]
        assert snapshot.started_at == first.started_at
        seen = events.drain()
        assert kinds(seen, task.id) == [
            TaskStarted,
            TaskRestartScheduled,
            TaskRestarted,
            TaskRestartScheduled,
            TaskRestarted,
            TaskEnded,
            Notified,
        ]
        scheduled = [e for e in seen if isinstance(e, TaskRestartScheduled)]
        assert [(e.time, e.run_id, e.delay, e.error) for e in scheduled] == [
            (1.0, first.run_id, 10.0, "failure 1"),
            (12.0, again.run_id, 20.0, "failure 2"),
        ]
        (note,) = runtime.notifications.drain()
        assert ET.fromstring(note.xml).findtext("run-id") == snapshot.run_id


async def test_only_the_runs_of_a_task_itself_are_told_as_scheduled(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P10: not what a supervisor inside of the work restarts, by whatever name;
    a run that was good is no error, and one that was too long is."""

    async def body(ctx: Context[object], report: Report) -> None:
        if ctx.number == 1:
            return
        if ctx.number == 2:
            ctx.deadline = trio.current_time() + 1
            await trio.sleep_forever()
        async with open_supervisor(
            [child("run", fail_once)], name=report.task_id, intensity=3
        ):
            await trio.sleep_forever()

    async def fail_once(ctx: Context[object]) -> None:
        if ctx.number == 1:
            raise ValueError("inside")
        await trio.sleep_forever()

    async with open_runtime(tmp_path) as runtime:
        with runtime.events.subscribe() as events:
            task = await runtime.launch(Job(body), restart="permanent", intensity=3)
            await trio.sleep(5)
            seen = events.drain()
        await task.stop()
    scheduled = [e for e in seen if isinstance(e, TaskRestartScheduled)]
    assert [(e.task_id, e.delay, e.error) for e in scheduled] == [
        (task.id, 0.0, None),
        (task.id, 0.0, "the deadline of the task passed"),
    ]
    assert len([e for e in seen if isinstance(e, RestartScheduled)]) == 3


async def test_the_processes_of_each_run_are_marked_with_its_own_id(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P1: what one run has left behind is not taken for the next one's."""
    env = fake_env({"work": 1})
    async with open_runtime(tmp_path, env=env) as runtime:
        task = await runtime.launch(Shell("work"), restart="transient", intensity=1)
        first = task.snapshot().run_id
        snapshot = await task.wait()
    assert [tree.marker for tree in env.processes.started] == [first, snapshot.run_id]
    assert first != snapshot.run_id


async def test_a_permanent_task_runs_until_it_is_stopped(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(
            flaky(0), restart="permanent", intensity=9, period=3
        )
        await trio.sleep(10.5)
        assert task.status is RUNNING
        assert task.snapshot().run_id.endswith("-000011")
        assert (await task.stop()).snapshot.status is KILLED
        await trio.sleep(10)
        assert told(runtime) == [(task.id, "killed")]


async def test_too_many_restarts_fail_that_task_and_no_other(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Brief section 3, P10."""
    async with open_runtime(tmp_path) as runtime:
        other = await runtime.launch(Job(forever), restart="permanent")
        task = await runtime.launch(
            flaky(99), restart="transient", intensity=3, period=60
        )
        snapshot = await task.wait()
        assert snapshot.status is FAILED and not snapshot.restarting
        assert snapshot.error is not None
        assert snapshot.error.type == "RestartIntensityExceeded"
        assert "failure 4" in snapshot.error.message
        assert snapshot.run_id.endswith("-000005")
        assert other.status is RUNNING
        assert (await (await runtime.launch(returns(1))).wait()).status is COMPLETED


async def test_a_stop_between_two_runs_is_final(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(
            flaky(9), restart="transient", backoff=Backoff(100, 100)
        )
        await trio.sleep(50)
        assert task.snapshot().restarting
        result = await runtime.stop(task.id)
        assert result.snapshot.status is KILLED and not result.snapshot.restarting
        assert trio.current_time() == 50
        await trio.sleep(200)
        assert task.snapshot() == result.snapshot
        assert told(runtime) == [(task.id, "killed")]


@pytest.mark.sim(seeds=2)
@pytest.mark.parametrize("steps", range(12))
async def test_a_stop_after_the_last_run_is_late(steps: int) -> None:
    """The brief, section 4: returned is completed, also if a stop came late."""
    async with open_runtime("tasks", env=fake_env()) as runtime:
        end = trio.Event()
        returned: list[bool] = []

        async def body(ctx: Context[object], report: Report) -> None:
            await end.wait()
            returned.append(True)

        task = await runtime.launch(Job(body), restart="transient")
        await trio.testing.wait_all_tasks_blocked()
        end.set()
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        snapshot = (await runtime.stop(task.id)).snapshot
        assert snapshot.status is (COMPLETED if returned else KILLED)


async def test_a_task_with_a_policy_that_ends_itself_softly_is_killed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async def body(ctx: Context[object], report: Report) -> None:
        ctx.ref.stop()
        await trio.sleep_forever()

    async with open_runtime(tmp_path) as runtime:
        for restart in ("transient", "temporary"):
            task = await runtime.launch(Job(body), restart=restart)  # type: ignore[arg-type]
            assert (await task.wait()).status is KILLED


async def test_a_missed_deadline_is_restarted_like_a_failure(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async def body(ctx: Context[object], report: Report) -> int:
        if ctx.number == 1:
            ctx.deadline = trio.current_time() + 1
            await trio.sleep_forever()
        return ctx.number

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body), restart="transient")
        assert (await task.wait()).result == "2"


async def test_a_temporary_task_with_a_budget_runs_once(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(
            fails(ValueError("once")),
            restart="temporary",
            intensity=5,
            backoff=Backoff(1, 2),
        )
        snapshot = await task.wait()
        assert snapshot.error is not None and snapshot.error.message == "once"
