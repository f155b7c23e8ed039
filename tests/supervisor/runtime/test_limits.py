"""The caps of a runtime: who has a place and who waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from actors import Context
from actors.shell import Shell
from actors.testing import Program, fake_env
from actors.work import Report
from supervisor.lowlevel import life_of
from supervisor.runtime import (
    Limits,
    Notified,
    TaskEnded,
    TaskHandle,
    TaskStopRequested,
    open_runtime,
)
from supervisor.tree import Backoff
from tests.supervisor.jobs import (
    COMPLETED,
    KILLED,
    PENDING,
    RUNNING,
    Job,
    forever,
    kinds,
    returns,
    told,
)

# Caps, where the studied systems refuse and this one lets wait


async def test_the_one_beyond_the_cap_waits_and_is_not_refused(tmp_path: Path) -> None:
    """CO1 differs: it has an id and is pending, and can be stopped like any."""
    async with open_runtime(tmp_path, limits=Limits(agents=2)) as runtime:
        tasks = [await runtime.launch(Job(forever)) for _ in range(3)]
        assert [task.status for task in tasks] == [RUNNING, RUNNING, PENDING]
        result = await tasks[2].stop()
        assert result.snapshot.status is KILLED
        assert [task.status for task in tasks[:2]] == [RUNNING, RUNNING]


async def test_a_run_again_keeps_its_place_at_the_cap(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """CO2: the same task, run again, needs no second place, and nobody takes
    its own between two runs."""
    runs: list[float] = []

    async def body(ctx: Context[object], report: Report) -> None:
        runs.append(trio.current_time())
        if len(runs) < 3:
            raise ValueError("again")

    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        task = await runtime.launch(
            Job(body), restart="transient", intensity=5, backoff=Backoff(10, 10)
        )
        other = await runtime.launch(returns("x"))
        await trio.sleep(5)
        assert task.snapshot().restarting and other.status is PENDING
        await task.wait()
        assert len(runs) == 3
        await other.wait()


async def test_a_stopping_task_keeps_its_place_until_it_has_ended(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """CO3, CO13 differs: the place is free when the task has really ended."""

    async def body(ctx: Context[object], report: Report) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(3)

    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        task = await runtime.launch(Job(body))
        other = await runtime.launch(Job(forever))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task.stop)
            await trio.sleep(2)
            assert task.snapshot().stopping and other.status is PENDING
        assert other.status is RUNNING


async def test_those_who_wait_are_ended_when_the_runtime_is_left(
    tmp_path: Path,
) -> None:
    """CO7, SD5, SD6: all of them, each told once; none of them ever runs."""
    ran: list[int] = []

    async def body(ctx: Context[object], report: Report) -> None:
        ran.append(1)
        await trio.sleep_forever()

    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        tasks = [await runtime.launch(Job(body)) for _ in range(5)]
        await trio.testing.wait_all_tasks_blocked()
    assert {task.status for task in tasks} == {KILLED} and ran == [1]
    assert sorted(id for id, _ in told(runtime)) == sorted(task.id for task in tasks)


async def test_a_kind_at_its_cap_holds_up_no_other(tmp_path: Path) -> None:
    """CO8: the cap of a kind and that of all hold together. CO15 differs: the
    foreground counts as well."""
    limits = Limits(total=3, agents=1)
    async with open_runtime(tmp_path, limits=limits) as runtime:
        first = await runtime.launch(Job(forever))
        second = await runtime.launch(Job(forever))
        shell = Job(forever, task_type="local_bash")
        shells = [await runtime.launch(shell) for _ in range(3)]
        assert (first.status, second.status) == (RUNNING, PENDING)
        assert [task.status for task in shells] == [RUNNING, RUNNING, PENDING]
        await first.stop()
        assert (second.status, shells[2].status) == (RUNNING, PENDING)


async def test_without_limits_nobody_waits(tmp_path: Path) -> None:
    """CO9 differs: None is no cap, and it is the default; 0 is refused."""
    async with open_runtime(tmp_path) as runtime:
        tasks = [await runtime.launch(Job(forever)) for _ in range(200)]
        assert {task.status for task in tasks} == {RUNNING}
    with pytest.raises(ValueError, match="total must be a whole number, 1 or more"):
        Limits(total=0)


async def test_a_place_is_given_back_once_whatever_ends_the_task(
    tmp_path: Path,
) -> None:
    """CO10, CO11: two stops, a late end, a stop in the queue."""
    async with open_runtime(tmp_path, limits=Limits(total=2)) as runtime:
        tasks = [await runtime.launch(Job(forever)) for _ in range(6)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tasks[0].stop)
            nursery.start_soon(tasks[0].stop)
            nursery.start_soon(tasks[3].stop)
        assert [t.status for t in tasks] == [
            KILLED,
            RUNNING,
            RUNNING,
            KILLED,
            PENDING,
            PENDING,
        ]
        await runtime.stop_all()
        assert life_of(runtime).slots.waiting == 0
        assert life_of(runtime).slots.take_next() is None


async def waits_for_output(child: TaskHandle) -> None:
    await child.wait_output("ready")


async def follows(child: TaskHandle) -> None:
    assert [piece async for piece in child.follow()] == ["ready\n"]


async def writes(child: TaskHandle) -> None:
    await child.write("go\n")


async def closes_its_input(child: TaskHandle) -> None:
    await child.close_input()


@pytest.mark.parametrize("waits", [waits_for_output, follows, writes, closes_its_input])
async def test_whoever_waits_for_what_a_child_does_lends_it_the_place(
    waits: Callable[[TaskHandle], Awaitable[None]],
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The brief, section 4: or the two would wait for each other for ever."""

    async def script(program: Program) -> int:
        await program.print("ready\n")
        await trio.sleep(1)
        return 0

    async with open_runtime(
        tmp_path, limits=Limits(total=1), env=fake_env({"work": script})
    ) as runtime:

        async def parent(ctx: Context[object], report: Report) -> str:
            child = await runtime.launch(Shell("work", stdin="pipe"))
            assert child.status is PENDING
            await waits(child)
            return "waited"

        task = await runtime.launch(Job(parent))
        with trio.fail_after(60):
            assert (await task.wait()).result == "waited"
            await runtime.wait_idle()
        # The place was given back exactly once.
        tasks = [await runtime.launch(Job(forever)) for _ in range(2)]
        assert [task.status for task in tasks] == [RUNNING, PENDING]


async def test_a_set_that_grows_while_it_is_waited_for_lends_the_place(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The brief, section 4: for the members of each moment."""
    async with open_runtime(tmp_path, limits=Limits(total=2)) as runtime:
        other = await runtime.launch(Job(forever))

        async def parent(ctx: Context[object], report: Report) -> str:
            members = runtime.task_set(other)

            async def add_a_child() -> None:
                await trio.testing.wait_all_tasks_blocked()
                members.add(await runtime.launch(returns("the child's")))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(add_a_child)
                ended = await anext(members)
            return str(ended.result)

        task = await runtime.launch(Job(parent))
        with trio.fail_after(60):
            assert (await task.wait()).result == "the child's"
        await runtime.stop_all()


async def test_a_task_stopped_while_it_waits_ends_without_a_start(
    tmp_path: Path,
) -> None:
    """SM29: it never began, so no start is told, and one end is."""
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        await runtime.launch(Job(forever))
        task = await runtime.launch(Job(forever))
        events = runtime.events.subscribe()
        await task.stop()
        assert kinds(events.drain(), task.id) == [
            TaskStopRequested,
            TaskEnded,
            Notified,
        ]
        assert task.snapshot().started_at is None


async def test_leaving_waits_for_all_together_and_for_no_longer_than_the_slowest(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """SD6, SD7, SD13: each end is awaited, but they are asked to stop together."""

    async def body(ctx: Context[object], report: Report) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)

    async with open_runtime(tmp_path) as runtime:
        done = await runtime.launch(returns("x"))
        await done.wait()
        tasks = [await runtime.launch(Job(body)) for _ in range(50)]
        await trio.testing.wait_all_tasks_blocked()
        before = trio.current_time()
    assert trio.current_time() - before == pytest.approx(2)
    assert {task.status for task in tasks} == {KILLED}
    assert done.status is COMPLETED
    assert len(told(runtime)) == 51
