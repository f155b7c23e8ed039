"""An agent in the foreground, its live move to the background, and its events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import trio
import trio.testing

from actors.agent import AgentContext, AgentEvent, FinalResult, Note, UserMessage
from supervisor.runtime import (
    Limits,
    TaskBackgrounded,
    TaskHandle,
    TaskRestarted,
    TaskSnapshot,
    TaskStarted,
    open_runtime,
)
from supervisor.tree import Gap
from tests.supervisor.jobs import (
    COMPLETED,
    RUNNING,
    Job,
    agent,
    answers,
    forever,
    holds,
    idles,
    kinds,
    told,
)

CAPACITY = 10_000
TOO_LONG = 30.0


async def test_an_agent_moves_without_being_run_again(tmp_path: Path) -> None:
    """AG38, BG1, BG2, BG5: the caller has it at once, with its output file."""
    go_on = trio.Event()
    runs: list[str] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        runs.append(context.run_id)
        yield Note("before")
        await go_on.wait()
        yield FinalResult("done")

    async with open_runtime(tmp_path) as runtime:
        mine = runtime.events.subscribe()
        returned: list[TaskSnapshot] = []

        async def run(*, task_status: trio.TaskStatus[TaskHandle]) -> None:
            returned.append(
                await runtime.run(agent(loop), owner="main", task_status=task_status)
            )

        async with trio.open_nursery() as nursery:
            task = await nursery.start(run)
            await trio.testing.wait_all_tasks_blocked()
            before = task.snapshot()
            assert runtime.background(task) is True
            assert runtime.background(task.id) is False
            assert runtime.background("ffffffff") is False
        (moved,) = returned
        assert (moved.status, moved.background) == (RUNNING, True)
        assert (moved.id, moved.run_id) == (task.id, before.run_id)
        assert moved.output_file == tmp_path / f"{task.id}.output"
        go_on.set()
        with trio.fail_after(TOO_LONG):
            done = await task.wait()
        assert (done.status, done.result) == (COMPLETED, "done")
        assert runs == [before.run_id]
        assert runtime.background(task) is False
        assert told(runtime) == [(task.id, "completed")]
        events = kinds(mine.drain(), task.id)
        assert events.count(TaskStarted) == 1
        assert events.count(TaskBackgrounded) == 1
        assert TaskRestarted not in events


async def test_an_agent_that_is_done_before_the_move_is_not_told(
    tmp_path: Path,
) -> None:
    """BG3: nothing is left of the chance to move it."""
    async with open_runtime(tmp_path) as runtime:
        with trio.fail_after(TOO_LONG):
            done = await runtime.run(agent(answers))
        assert (done.status, done.background) == (COMPLETED, False)
        assert runtime.background(done.id) is False
        assert runtime.background_all() == []
        assert told(runtime) == []


async def test_all_agents_of_a_turn_move_together(tmp_path: Path) -> None:
    """BG4: in the order of launch, and what they run themselves stays theirs."""
    async with open_runtime(tmp_path) as runtime:
        returned: list[TaskSnapshot] = []

        async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
            await context.run(Job(forever))
            yield FinalResult("never")

        async def run(*, task_status: trio.TaskStatus[TaskHandle]) -> None:
            returned.append(
                await runtime.run(agent(loop), owner="main", task_status=task_status)
            )

        async with trio.open_nursery() as nursery:
            tasks = [await nursery.start(run) for _ in range(3)]
            while len(runtime.tasks()) < 6:
                await trio.testing.wait_all_tasks_blocked()
            assert runtime.background_all() == [task.id for task in tasks]
            assert runtime.background_all("main") == []
        assert {snapshot.background for snapshot in returned} == {True}
        own = [t for t in runtime.tasks() if t.parent is not None]
        assert [t.background for t in own] == [False] * 3
        # Of an agent, they can be moved as well, if it is named.
        assert runtime.background_all(tasks[0].id) == [own[0].id]


async def test_clearing_the_foreground_spares_background_agents(
    tmp_path: Path,
) -> None:
    """BG9: with all that these run."""

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await context.run(Job(forever))
        yield FinalResult("never")

    async with open_runtime(tmp_path) as runtime:
        background = await runtime.launch(agent(loop))
        async with trio.open_nursery() as nursery:
            foreground = await nursery.start(runtime.run, agent(loop))
            while len(runtime.tasks()) < 4:
                await trio.testing.wait_all_tasks_blocked()
            (result,) = await runtime.stop_foreground()
        assert result.snapshot.id == foreground.id
        assert len(result.stopped) == 1
        assert background.status is RUNNING
        (own,) = (t for t in runtime.tasks() if t.parent == background.id)
        assert own.status is RUNNING


async def test_a_wait_for_an_agent_that_ends_meanwhile_ends(tmp_path: Path) -> None:
    """BG7: there is no poll that could miss it."""
    go_on = trio.Event()
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(agent(holds(go_on)))
        waited: list[TaskSnapshot] = []

        async def wait() -> None:
            waited.append(await task.wait())

        with trio.fail_after(TOO_LONG):
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                go_on.set()
            waited.append(await task.wait())
        assert {snapshot.status for snapshot in waited} == {COMPLETED}
        assert len(waited) == 11


# Its events


async def test_the_events_of_an_agent_come_in_order_across_a_move(
    tmp_path: Path,
) -> None:
    """AG38, BG2: also if the move comes between two of them."""
    go_on = trio.Event()

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await go_on.wait()
        for number in range(100):
            yield Note(str(number))
            if number == 50:
                runtime.background(context.agent_id)
        yield FinalResult("done")

    async with open_runtime(tmp_path) as runtime:
        async with trio.open_nursery() as nursery:
            task: TaskHandle = await nursery.start(runtime.run, agent(loop))
            events = task.events()
            go_on.set()
        with trio.fail_after(TOO_LONG):
            seen = [event async for event in events]
        notes = [event.text for event in seen if isinstance(event, Note)]
        assert notes == [str(number) for number in range(100)]
        assert isinstance(seen[-1], FinalResult)
        assert [event async for event in task.events()] == []


async def test_the_events_go_on_in_the_next_run(tmp_path: Path) -> None:
    """One stream for the task, whatever becomes of its runs."""
    go_on = trio.Event()
    runs: list[str] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await go_on.wait()
        runs.append(context.run_id)
        yield Note(f"run {len(runs)}")
        if len(runs) == 1:
            raise ValueError("broken")
        yield FinalResult("done")

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(agent(loop), restart="transient")
        events = task.events()
        go_on.set()
        with trio.fail_after(TOO_LONG):
            seen = [event async for event in events]
        assert [e.text for e in seen if isinstance(e, Note)] == ["run 1", "run 2"]


async def test_a_slow_reader_sees_a_gap_and_blocks_nobody(tmp_path: Path) -> None:
    """P6: another reader of the same agent misses nothing."""
    over = 100
    go_on = trio.Event()

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await go_on.wait()
        for number in range(CAPACITY + over):
            yield Note(str(number))
        yield FinalResult("done")

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(agent(loop))
        slow, quick = task.events(), task.events()
        seen: list[AgentEvent | Gap] = []

        async def read() -> None:
            seen.extend([event async for event in quick])

        with trio.fail_after(4 * TOO_LONG):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                go_on.set()
                assert (await task.wait()).status is COMPLETED
            kept = [event async for event in slow]
        assert not any(isinstance(event, Gap) for event in seen)
        assert len([e for e in seen if isinstance(e, Note)]) == CAPACITY + over
        *rest, gap = kept
        assert isinstance(gap, Gap)
        assert len(rest) == CAPACITY
        assert len(rest) + gap.missed == len(seen)


async def test_a_reader_that_leaves_sees_no_more(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(agent(idles))
        events = task.events()
        with trio.fail_after(TOO_LONG):
            first = await anext(events)
            assert isinstance(first, UserMessage)
            await events.aclose()
            rest = [event async for event in events]
        assert all(isinstance(event, Note) for event in rest)
        assert runtime.events._listeners == {}


async def test_an_agent_in_the_foreground_waits_for_its_place_and_can_move(
    tmp_path: Path,
) -> None:
    """BG1: also while it waits."""
    go_on = trio.Event()
    async with open_runtime(tmp_path, limits=Limits(agents=1)) as runtime:
        first = await runtime.launch(agent(holds(go_on)))
        async with trio.open_nursery() as nursery:
            task: TaskHandle = await nursery.start(runtime.run, agent(answers))
            assert runtime.background(task)
        go_on.set()
        with trio.fail_after(TOO_LONG):
            await first.wait()
            assert (await task.wait()).status is COMPLETED
