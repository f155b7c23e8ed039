"""The end of an agent, on every path: its own tasks end with it and before it."""

# A block that may end early leaves its names unbound.
# pyright: reportPossiblyUnboundVariable=false
from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from actors import Context
from actors.agent import AgentContext, AgentEvent, FinalResult, Note
from actors.env import Env
from actors.shell import Shell
from actors.testing import Program, fake_env
from actors.work import Report
from supervisor.agents import AgentPolicy
from supervisor.hooks import Hook, Hooks
from supervisor.lowlevel import life_of
from supervisor.runtime import (
    Acked,
    Limits,
    Notified,
    Runtime,
    TaskEnded,
    TaskHandle,
    TaskRestarted,
    TaskStarted,
    TaskStopRequested,
    open_runtime,
)
from supervisor.tree import Backoff, Event, Straggler
from tests.supervisor.jobs import (
    COMPLETED,
    FAILED,
    KILLED,
    PENDING,
    RUNNING,
    Job,
    agent,
    forever,
    idles,
    kinds,
    returns,
    starts,
    told,
)

TOO_LONG = 30.0


def ends(events: list[Event]) -> list[str]:
    return [event.task_id for event in events if isinstance(event, TaskEnded)]


def parents(runtime: Runtime) -> dict[str, str | None]:
    return {task.id: task.parent for task in runtime.tasks()}


def check_order(runtime: Runtime, events: list[Event]) -> None:
    """Every own task has ended, once, before its agent."""
    order = ends(events)
    assert len(order) == len(set(order)) == len(runtime.tasks())
    for task_id, parent in parents(runtime).items():
        if parent is not None:
            assert order.index(task_id) < order.index(parent)


def check_records(runtime: Runtime, events: list[Event]) -> None:
    """Every background task has one record; those of own tasks are acknowledged."""
    noted = [event.task_id for event in events if isinstance(event, Notified)]
    background = [task.id for task in runtime.tasks() if task.background]
    assert sorted(noted) == sorted(background)
    assert noted == [task_id for task_id in ends(events) if task_id in background]
    acked = [event.task_id for event in events if isinstance(event, Acked)]
    own = [task.id for task in runtime.tasks() if task.parent and task.background]
    assert sorted(acked) == sorted(own)


async def family(runtime: Runtime) -> list[TaskHandle]:
    """Start an agent with a job and an agent, which has the same, and so on: each
    task of three levels, from the top, when all have begun."""
    handles: list[TaskHandle] = []
    lowest = agent(starts(Job(forever), then=idles, started=handles))
    middle = agent(starts(Job(forever), lowest, then=idles, started=handles))
    top = agent(starts(Job(forever), middle, then=idles, started=handles))
    handles.append(await runtime.launch(top))
    while len(handles) < 6:
        await trio.testing.wait_all_tasks_blocked()
    await trio.testing.wait_all_tasks_blocked()
    assert all(task.status is RUNNING for task in handles)
    return handles


async def test_a_stop_ends_everything_below_and_says_what(tmp_path: Path) -> None:
    """SD1: the reason of each names its agent, and the result names each."""
    async with open_runtime(tmp_path) as runtime:
        mine = runtime.events.subscribe()
        top, *below = await family(runtime)
        with trio.fail_after(TOO_LONG):
            result = await top.stop("enough")
        assert result.snapshot.status is KILLED
        assert sorted(result.stopped) == sorted(task.id for task in below)
        assert result.survivors == ()
        assert {task.status for task in below} == {KILLED}
        events = mine.drain()
        asked = {
            e.task_id: e.reason for e in events if isinstance(e, TaskStopRequested)
        }
        assert len(asked) == 6
        assert asked[top.id] == "enough"
        for task_id, parent in parents(runtime).items():
            if parent is not None:
                reason = asked[task_id]
                assert reason is not None
                assert reason.startswith(f"its agent {parent} was stopped: ")
                assert reason.endswith("enough")
        check_order(runtime, events)
        check_records(runtime, events)
        assert told(runtime) == [(top.id, "killed")]


async def test_stop_all_ends_each_once_and_counts_down(tmp_path: Path) -> None:
    """SD1: one record for each; a result for each that is below no other."""
    async with open_runtime(tmp_path) as runtime:
        mine = runtime.events.subscribe()
        first = await family(runtime)
        done = await runtime.launch(returns(1))
        await done.wait()
        second = await family(runtime)
        results = await runtime.stop_all()
        assert [r.snapshot.id for r in results] == [first[0].id, second[0].id]
        assert done.status is COMPLETED
        assert {len(r.stopped) for r in results} == {5}
        events = mine.drain()
        check_order(runtime, events)
        check_records(runtime, events)
        assert {task.status for task in (*first, *second)} == {KILLED}


async def test_stopping_the_tasks_of_an_agent_stops_no_more(tmp_path: Path) -> None:
    """What is below is stopped once, and what is above goes on."""
    async with open_runtime(tmp_path) as runtime:
        top, *_ = await family(runtime)
        results = await runtime.stop_all(owner=top.id)
        assert len(results) == 2
        assert sum(len(result.stopped) for result in results) == 3
        assert top.status is RUNNING
        assert len([t for t in runtime.tasks() if t.status is RUNNING]) == 1


@pytest.mark.parametrize("how", ["left", "cancelled", "failed", "interrupted"])
async def test_leaving_the_runtime_ends_own_tasks_before_their_agents(
    how: str, tmp_path: Path
) -> None:
    """P1 to P4, P8: in whatever way it is left."""
    with trio.fail_after(TOO_LONG):
        with trio.CancelScope() as scope:
            try:
                async with open_runtime(tmp_path) as runtime:
                    mine = runtime.events.subscribe()
                    await family(runtime)
                    if how == "cancelled":
                        scope.cancel()
                        await trio.lowlevel.checkpoint()
                    elif how == "failed":
                        raise ValueError("of the host")
                    elif how == "interrupted":
                        raise KeyboardInterrupt
            except (ValueError, KeyboardInterrupt):
                assert how in ("failed", "interrupted")
    events = mine.drain()
    check_order(runtime, events)
    check_records(runtime, events)
    assert {task.status for task in runtime.tasks()} == {KILLED}


async def test_an_interrupt_in_an_agents_loop_ends_everything_in_order(
    tmp_path: Path,
) -> None:
    """P4, P10: it is nobody's failure, and leaves the runtime."""

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await trio.testing.wait_all_tasks_blocked()
        raise KeyboardInterrupt
        yield FinalResult("never")

    with pytest.raises(KeyboardInterrupt), trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:
            mine = runtime.events.subscribe()
            await family(runtime)
            await runtime.launch(agent(starts(Job(forever), agent(loop), then=idles)))
            await trio.sleep_forever()
    events = mine.drain()
    check_order(runtime, events)
    check_records(runtime, events)
    assert {task.status for task in runtime.tasks()} == {KILLED}


async def test_a_failed_run_ends_its_own_tasks_and_has_failed_all_the_same(
    tmp_path: Path,
) -> None:
    """Also if it is stopped while they end: the failure came first."""
    ending, go_on = trio.Event(), trio.Event()

    async def slow(ctx: Context[object], report: Report) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ending.set()
            with trio.CancelScope(shield=True):
                await go_on.wait()

    async def breaks(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await trio.testing.wait_all_tasks_blocked()
        raise ValueError("broken")
        yield FinalResult("never")

    async with open_runtime(tmp_path) as runtime:
        mine = runtime.events.subscribe()
        task = await runtime.launch(agent(starts(Job(slow), then=breaks)))
        with trio.fail_after(TOO_LONG):
            await ending.wait()
        assert task.status is RUNNING
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task.stop)
            await trio.testing.wait_all_tasks_blocked()
            go_on.set()
        with trio.fail_after(TOO_LONG):
            done = await task.wait()
        assert done.status is FAILED
        assert done.error is not None and done.error.message == "broken"
        events = mine.drain()
        check_order(runtime, events)
        own = next(t for t in runtime.tasks() if t.parent is not None)
        assert own.status is KILLED
        (asked, *_) = [e for e in events if isinstance(e, TaskStopRequested)]
        assert (asked.task_id, asked.reason) == (
            own.id,
            f"its agent {task.id} has ended",
        )


async def test_an_own_task_that_will_not_end_is_named_and_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """P1, P2: its agent has not ended before it has."""
    go_on = trio.Event()

    async def stubborn(ctx: Context[object], report: Report) -> None:
        with trio.CancelScope(shield=True):
            await go_on.wait()

    async with open_runtime("tasks", env=fake_env()) as runtime:
        mine = runtime.events.subscribe()
        handles: list[TaskHandle] = []
        task = await runtime.launch(
            agent(starts(Job(stubborn), Job(forever), then=idles, started=handles))
        )
        await trio.testing.wait_all_tasks_blocked()
        result = await task.stop("now")
        (survivor,) = result.survivors
        assert survivor.startswith(f"the task {handles[0].id} itself")
        assert result.stopped == (handles[1].id,)
        assert result.snapshot.status is RUNNING
        assert result.snapshot.stopping
        assert told(runtime) == []
        go_on.set()
        # It had returned before the stop could touch it.
        assert (await task.wait()).status is KILLED
        check_order(runtime, mine.drain())
        assert told(runtime) == [(task.id, "killed")]


async def test_a_loop_that_will_not_end_does_not_keep_its_own_tasks(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """They are stopped after it, but not later than its budget is over."""
    go_on = trio.Event()

    async def stubborn(context: AgentContext) -> AsyncIterator[AgentEvent]:
        with trio.CancelScope(shield=True):
            await go_on.wait()
        yield FinalResult("late")

    async with open_runtime("tasks", env=fake_env()) as runtime:
        mine = runtime.events.subscribe()
        handles: list[TaskHandle] = []
        loop = starts(Job(forever), then=stubborn, started=handles)
        task = await runtime.launch(agent(loop, shutdown=2.0))
        await trio.testing.wait_all_tasks_blocked()
        asked_at = trio.current_time()
        result = await task.stop("now")
        assert handles[0].status is KILLED
        assert result.survivors == (
            f"the task {task.id} itself: it is shielded or blocked",
        )
        assert trio.current_time() - asked_at <= 20.0
        go_on.set()
        await task.wait()
        check_order(runtime, mine.drain())


async def test_a_stop_gives_the_shells_of_an_agent_their_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """SH37: the result waits for the longest grace below, and not for less."""

    async def serve(program: Program) -> int:
        program.ignore_sigterm()
        await program.print("up\n")
        await trio.sleep_forever()
        return 0

    env = fake_env({"serve": serve})
    async with open_runtime("tasks", env=env) as runtime:
        mine = runtime.events.subscribe()
        inner = agent(starts(Shell("serve", grace=30.0), then=idles))
        task = await runtime.launch(
            agent(starts(Shell("serve", grace=10.0), inner, then=idles))
        )
        await trio.sleep(1.0)
        assert len(runtime.tasks()) == 4
        asked_at = trio.current_time()
        result = await task.stop()
        assert result.survivors == ()
        assert len(result.stopped) == 3
        assert 30.0 <= trio.current_time() - asked_at <= 40.0
        check_order(runtime, mine.drain())
        # With no time left, there is none for what is below either.
        task = await runtime.launch(
            agent(starts(Shell("serve", grace=30.0), then=idles))
        )
        await trio.sleep(1.0)
        asked_at = trio.current_time()
        result = await task.stop(now=True)
        assert result.survivors == ()
        assert trio.current_time() - asked_at < 5.0


async def test_own_tasks_that_wait_for_a_place_end_with_their_agent(
    tmp_path: Path,
) -> None:
    """Before it, and nobody who waits behind them is lost."""
    async with open_runtime(
        tmp_path, env=fake_env(), limits=Limits(agents=2)
    ) as runtime:
        mine = runtime.events.subscribe()
        own = [agent(idles) for _ in range(3)]
        task = await runtime.launch(agent(starts(*own, then=idles)))
        await trio.testing.wait_all_tasks_blocked()
        behind = await runtime.launch(agent(idles))
        assert behind.status is PENDING
        result = await task.stop()
        assert len(result.stopped) == 3
        assert behind.status is RUNNING
        events = [e for e in mine.drain() if getattr(e, "task_id", None) != behind.id]
        order = ends(events)
        assert order[-1] == task.id
        assert len(order) == 4
        assert len([e for e in events if isinstance(e, TaskStarted)]) == 2


async def test_what_is_launched_for_an_agent_that_is_ending_ends_before_it(
    tmp_path: Path,
) -> None:
    """P2: also what still waits for a place then, behind somebody else."""
    ending, go_on = trio.Event(), trio.Event()

    async def slow(ctx: Context[object], report: Report) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ending.set()
            with trio.CancelScope(shield=True):
                await go_on.wait()

    async def breaks(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await trio.testing.wait_all_tasks_blocked()
        raise ValueError("broken")
        yield FinalResult("never")

    async with open_runtime(tmp_path, limits=Limits(total=2)) as runtime:
        mine = runtime.events.subscribe()
        task = await runtime.launch(agent(starts(Job(slow), then=breaks)))
        with trio.fail_after(TOO_LONG):
            await ending.wait()
        before = await runtime.launch(Job(forever))
        late = await runtime.launch(Job(forever), owner=task.id)
        assert (before.status, late.status) == (PENDING, PENDING)
        go_on.set()
        with trio.fail_after(TOO_LONG):
            assert (await task.wait()).status is FAILED
        assert (before.status, late.status) == (RUNNING, KILLED)
        order = ends(mine.drain())
        assert order.index(late.id) < order.index(task.id)


async def test_a_turn_that_is_cancelled_ends_its_agents_with_all_below(
    tmp_path: Path,
) -> None:
    """P8: and what runs in the background goes on."""
    async with open_runtime(tmp_path) as runtime:
        others = await family(runtime)
        mine = runtime.events.subscribe()
        work = agent(starts(Job(forever), agent(idles), then=idles))
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                handle = await nursery.start(runtime.run, work)
                while len(runtime.tasks(owner=handle.id)) < 2:
                    await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        events = mine.drain()
        assert handle.status is KILLED
        assert len(ends(events)) == 3
        assert ends(events)[-1] == handle.id
        assert {task.status for task in others} == {RUNNING}


# Restarts


async def test_a_stopped_agent_does_not_come_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """AG37: whatever its restart says, and wherever it was."""

    async def fails_once(context: AgentContext) -> AsyncIterator[AgentEvent]:
        raise ValueError("broken")
        yield FinalResult("never")

    async with open_runtime("tasks", env=fake_env()) as runtime:
        mine = runtime.events.subscribe()
        running = [
            await runtime.launch(agent(idles), restart=restart)
            for restart in ("transient", "permanent")
        ]
        between = await runtime.launch(
            agent(fails_once), restart="transient", backoff=Backoff(60.0, 60.0)
        )
        await trio.sleep(10.0)
        assert between.snapshot().restarting
        for task in (*running, between):
            await task.stop("enough")
        await trio.sleep(3_600.0)
        assert [t.status for t in (*running, between)] == [KILLED] * 3
        events = mine.drain()
        for task in (*running, between):
            assert TaskRestarted not in kinds(events, task.id)


async def test_the_own_tasks_of_an_agent_outlive_a_run_of_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Only the loop is run again; the same inbox and the same own tasks wait."""
    runs: list[int] = []
    handles: list[TaskHandle] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        runs.append(len(runs))
        if len(runs) == 1:
            handles.append(await runtime.launch(Job(slow)))
            raise ValueError("broken")
        yield FinalResult("again")
        context.inbox.take()
        yield FinalResult("done")

    async def slow(ctx: Context[object], report: Report) -> str:
        await trio.sleep(600.0)
        return "slow"

    async with open_runtime("tasks", env=fake_env()) as runtime:
        mine = runtime.events.subscribe()
        task = await runtime.launch(agent(loop), restart="transient")
        done = await task.wait()
        assert (done.status, done.result, len(runs)) == (COMPLETED, "done", 2)
        assert handles[0].snapshot().result == "slow"
        check_order(runtime, mine.drain())


async def test_too_many_restarts_fail_the_agent_and_end_its_own_tasks(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """P10: and no other task."""
    handles: list[TaskHandle] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        handles.append(await runtime.launch(Job(forever)))
        await trio.sleep(0.1)
        raise ValueError("broken")
        yield FinalResult("never")

    async with open_runtime("tasks", env=fake_env()) as runtime:
        mine = runtime.events.subscribe()
        other = await runtime.launch(agent(idles))
        task = await runtime.launch(agent(loop), restart="transient", intensity=2)
        done = await task.wait()
        assert done.status is FAILED
        assert done.error is not None
        assert "more than 2 time(s)" in done.error.message
        assert [t.status for t in handles] == [KILLED] * 3
        assert other.status is RUNNING
        order = ends(mine.drain())
        assert order[-1] == task.id
        assert len(order) == 4


async def test_an_agent_whose_inner_supervisor_crashes_goes_on_or_fails_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """P10: its own tasks end, its pool comes back, and too many crashes fail it."""
    async with open_runtime("tasks", env=fake_env()) as runtime:
        mine = runtime.events.subscribe()
        other = await runtime.launch(agent(idles))
        task = await runtime.launch(agent(idles))
        for expected in (RUNNING, FAILED):
            own = await runtime.launch(Job(forever), owner=task.id)
            await trio.testing.wait_all_tasks_blocked()
            assert own.status is RUNNING
            record = life_of(runtime).table.live[task.id]
            pool = record.pool  # type: ignore[attr-defined]
            pool._children._end_by_itself()
            with trio.fail_after(60.0):
                await own.wait()
            await trio.sleep(1.0)
            assert own.status is KILLED
            assert task.status is expected
        assert other.status is RUNNING
        order = ends(mine.drain())
        assert order[-1] == task.id
        assert len(order) == 3


class SlowDisk:
    """Files on which nothing is written until `gate` is open."""

    def __init__(self, files: Any) -> None:
        self._files = files
        self.gate = trio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    async def in_thread(self, fn: Callable[..., Any], *args: object) -> Any:
        with trio.CancelScope(shield=True):
            await self.gate.wait()
        return await self._files.in_thread(fn, *args)


@pytest.mark.parametrize("shutdown", [5.0, 0.5])
async def test_all_that_cleans_up_shares_the_time_for_it(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, shutdown: float
) -> None:
    """P1, HK4: a loop, a disk and a stop hook that each take too long are no
    stragglers together."""
    called: list[str] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        try:
            yield Note("at work")
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.45 * shutdown)

    async def slow(facts: Mapping[str, Any]) -> None:
        called.append(facts["status"])
        await trio.sleep(60)

    env = fake_env()
    disk = SlowDisk(env.files)
    policy = AgentPolicy(hooks=Hooks(stop=(Hook(slow),)))
    slow_env = Env(
        clock=env.clock,
        ids=env.ids,
        processes=env.processes,
        files=cast("Any", disk),
    )
    async with open_runtime(tmp_path, env=slow_env, agents=policy) as runtime:
        task = await runtime.launch(agent(loop, shutdown=shutdown))
        mine = runtime.events.subscribe()
        await anext(task.events())
        began = trio.current_time()
        done = await task.stop()
        took = trio.current_time() - began
        disk.gate.set()
        assert (done.snapshot.status, done.survivors) == (KILLED, ())
        assert 0.8 * shutdown < took < shutdown
        assert called == ["killed"]
        assert not [event for event in mine.drain() if isinstance(event, Straggler)]


async def test_a_run_that_has_returned_leaves_its_stop_hooks_their_own_time(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """HK4: long after it, when its last own task ends."""
    seconds: list[float] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield FinalResult("the answer")
        (message,) = context.inbox.take()
        raise ValueError(message.text)

    async def stop(facts: Mapping[str, Any]) -> None:
        seconds.append(trio.current_effective_deadline() - trio.current_time())

    policy = AgentPolicy(hooks=Hooks(stop=(Hook(stop),)))
    async with open_runtime(tmp_path, env=fake_env(), agents=policy) as runtime:
        task = await runtime.launch(agent(loop))
        await runtime.send(task, "more")
        assert (await task.wait()).status is FAILED
    # Nothing was slow, so most of the time for cleaning up is left.
    assert seconds[-1] == pytest.approx(3)
