"""The live move: a foreground task goes on in the background (BG1 to BG9).

Each race is run with the two sides any number of scheduler steps apart, and
with trio's order of the tasks of one step both ways.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from actors import Context, TaskStatus
from actors.shell import Shell
from actors.testing import fake_env
from actors.work import Report
from supervisor.runtime import (
    Limits,
    Notified,
    Runtime,
    TaskBackgrounded,
    TaskEnded,
    TaskRestarted,
    TaskRestartScheduled,
    TaskSnapshot,
    TaskStarted,
    TaskStopRequested,
    open_runtime,
)
from tests.supervisor.jobs import Job, forever, kinds

RUNNING, KILLED = TaskStatus.RUNNING, TaskStatus.KILLED
COMPLETED = TaskStatus.COMPLETED

APART = range(10)


def waits_for(event: trio.Event) -> Job:
    async def body(ctx: Context[object], report: Report) -> str:
        await event.wait()
        return "done"

    return Job(body)


class Runner:
    """Somebody who runs a task in the foreground."""

    def __init__(self, runtime: Runtime, work: Job | Shell, owner: str | None = None):
        self.runtime = runtime
        self.work = work
        self.owner = owner
        self.returned: TaskSnapshot | None = None
        self.done = trio.Event()
        self.scope = trio.CancelScope()

    async def run(self) -> None:
        with self.scope:
            self.returned = await self.runtime.run(self.work, owner=self.owner)
        self.done.set()


async def in_foreground(
    nursery: trio.Nursery, runtime: Runtime, work: Job | Shell, owner: str | None = None
) -> tuple[Runner, str]:
    """Run a task and return when it is there."""
    before = {snapshot.id for snapshot in runtime.tasks()}
    runner = Runner(runtime, work, owner)
    nursery.start_soon(runner.run)
    await trio.testing.wait_all_tasks_blocked()
    (id,) = {snapshot.id for snapshot in runtime.tasks()} - before
    return runner, id


async def test_the_move_returns_the_caller_at_once_and_tells_no_second_start(
    tmp_path: Path,
) -> None:
    """BG1, BG2, BG5."""
    async with open_runtime(tmp_path) as runtime, trio.open_nursery() as nursery:
        events = runtime.events.subscribe()
        end = trio.Event()
        runner, id = await in_foreground(nursery, runtime, waits_for(end))
        run_id = runtime.get(id).run_id
        assert runtime.background(id)
        assert not runtime.background(id)
        assert not runtime.background("s1234567")
        await runner.done.wait()
        early = runner.returned
        assert early is not None and early.background and early.status is RUNNING
        assert early.run_id == run_id
        end.set()
        after = await runtime.handle(id).wait()
        assert (after.status, after.result, after.run_id) == (COMPLETED, "done", run_id)
        assert not runtime.background(id)
        (note,) = runtime.notifications.drain()
        assert note.task_id == id
        assert kinds(events.drain(), id) == [
            TaskStarted,
            TaskBackgrounded,
            TaskEnded,
            Notified,
        ]


async def test_a_moved_shell_goes_on_with_its_output_file(tmp_path: Path) -> None:
    """BG2, BG5: the same process writes on into the file that the caller got."""
    with trio.fail_after(60):
        async with open_runtime(tmp_path) as runtime, trio.open_nursery() as nursery:
            go = tmp_path / "go"
            shell = Shell(f"echo one; until [ -e {go} ]; do sleep 0.05; done; echo two")
            runner = Runner(runtime, shell)
            nursery.start_soon(runner.run)
            while not any(s.pid is not None for s in runtime.tasks()):
                await trio.sleep(0.01)
            (before,) = runtime.tasks()
            assert runtime.background(before.id)
            await runner.done.wait()
            early = runner.returned
            assert early is not None and early.status is RUNNING and early.background
            assert early.output_file is not None
            assert early.output_file == before.output_file
            assert early.pid == before.pid
            go.touch()
            after = await runtime.handle(before.id).wait()
            assert after.pid == before.pid and after.status is COMPLETED
            assert early.output_file.read_text() == "one\ntwo\n"


async def test_all_foreground_tasks_of_one_owner_or_of_everybody_move(
    tmp_path: Path,
) -> None:
    """BG4: Ctrl+B moves all of a turn."""
    async with open_runtime(tmp_path) as runtime, trio.open_nursery() as nursery:
        ids: list[str] = []
        runners: list[Runner] = []
        for owner in ("main", "main", "other", None):
            runner, id = await in_foreground(nursery, runtime, Job(forever), owner)
            runners.append(runner)
            ids.append(id)
        kept = await runtime.launch(Job(forever), owner="main")
        assert runtime.background_all("main") == ids[:2]
        assert runtime.background_all("main") == []
        await runners[0].done.wait()
        await runners[1].done.wait()
        assert not runners[2].done.is_set() and not runners[3].done.is_set()
        assert runtime.background_all() == ids[2:]
        await runners[2].done.wait()
        await runners[3].done.wait()
        assert {snapshot.status for snapshot in runtime.tasks()} == {RUNNING}
        assert all(snapshot.background for snapshot in runtime.tasks())
        assert kept.status is RUNNING
        with pytest.raises(TypeError, match="owner must be a str or None, not 5"):
            runtime.background_all(5)  # type: ignore[arg-type]


async def test_an_end_without_a_move_leaves_nothing_to_move(tmp_path: Path) -> None:
    """BG3."""
    async with open_runtime(tmp_path) as runtime:
        async with trio.open_nursery() as nursery:
            end = trio.Event()
            runner, id = await in_foreground(nursery, runtime, waits_for(end))
            end.set()
        assert runner.returned is not None and not runner.returned.background
        assert not runtime.background(id) and runtime.background_all() == []
        assert runtime.notifications.drain() == []


async def test_a_pending_task_can_be_moved(tmp_path: Path) -> None:
    """BG2: the caller goes on; the task still waits for its place."""
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        first = await runtime.launch(Job(forever))
        async with trio.open_nursery() as nursery:
            runner, id = await in_foreground(nursery, runtime, Job(forever))
            assert runtime.background(id)
        assert runner.returned is not None
        assert runner.returned.status is TaskStatus.PENDING
        await first.stop()
        assert runtime.get(id).status is RUNNING


async def test_the_foreground_is_cleared_and_the_background_kept(
    tmp_path: Path,
) -> None:
    """BG9, its first form."""
    async with open_runtime(tmp_path) as runtime, trio.open_nursery() as nursery:
        kept = await runtime.launch(Job(forever), owner="main")
        moved, moved_id = await in_foreground(nursery, runtime, Job(forever), "main")
        assert runtime.background(moved_id)
        await moved.done.wait()
        mine, my_id = await in_foreground(nursery, runtime, Job(forever), "main")
        others, others_id = await in_foreground(nursery, runtime, Job(forever), "x")
        (result,) = await runtime.stop_foreground("main")
        assert (result.snapshot.id, result.snapshot.status) == (my_id, KILLED)
        assert result.survivors == ()
        await mine.done.wait()
        assert mine.returned is not None and mine.returned.status is KILLED
        (result,) = await runtime.stop_foreground()
        assert result.snapshot.id == others_id
        await others.done.wait()
        assert kept.status is RUNNING and runtime.get(moved_id).status is RUNNING
        assert await runtime.stop_foreground() == []
        assert runtime.notifications.drain() == []


@pytest.mark.sim(seeds=3)
@pytest.mark.parametrize("steps", APART)
async def test_a_move_that_races_with_the_end_is_told_in_one_way(steps: int) -> None:
    """BG1, BG7, P4: by the return of run() or by the notification, never both,
    and nobody waits for ever."""
    with trio.fail_after(30):
        async with open_runtime("tasks", env=fake_env()) as runtime:
            events = runtime.events.subscribe()
            async with trio.open_nursery() as nursery:
                end = trio.Event()
                runner, id = await in_foreground(nursery, runtime, waits_for(end))
                nursery.start_soon(runtime.handle(id).wait)
                nursery.start_soon(runtime.wait_any, [id])
                end.set()
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                was_running = runtime.get(id).status is RUNNING
                moved = runtime.background(id)
                assert moved is was_running
            assert runner.returned is not None
            assert runner.returned.background is moved
            assert runtime.get(id).status is COMPLETED
            notes = runtime.notifications.drain()
            assert [note.task_id for note in notes] == ([id] if moved else [])
            told = kinds(events.drain(), id)
            assert told.count(TaskStarted) == told.count(TaskEnded) == 1
            assert told.count(TaskBackgrounded) == told.count(Notified) == int(moved)
            assert told.index(TaskStarted) == 0


@pytest.mark.sim(seeds=3)
@pytest.mark.parametrize("steps", APART)
@pytest.mark.parametrize("cancel_first", [True, False])
async def test_a_move_that_races_with_the_cancelled_turn_is_decided_once(
    steps: int,
    cancel_first: bool,
) -> None:
    """BG1, P4, P8: a task moved before its turn has begun to stop it goes on;
    one that is being stopped ends, and its end is told by its notification if
    it was moved meanwhile."""
    with trio.fail_after(30):
        async with open_runtime("tasks", env=fake_env()) as runtime:
            async with trio.open_nursery() as nursery:
                runner, id = await in_foreground(nursery, runtime, Job(forever))
                if cancel_first:
                    runner.scope.cancel()
                    for _ in range(steps):
                        await trio.lowlevel.checkpoint()
                    stopping = runtime.get(id).stopping
                    ended = runtime.get(id).status.is_terminal
                    moved = runtime.background(id)
                else:
                    stopping = ended = False
                    moved = runtime.background(id)
                    for _ in range(steps):
                        await trio.lowlevel.checkpoint()
                    runner.scope.cancel()
                await runner.done.wait()
                assert moved is not ended
            # Also if the cancellation came first, but nothing had come of it yet.
            goes_on = moved and not stopping
            assert runtime.get(id).status is (RUNNING if goes_on else KILLED)
            await runtime.stop(id)
            notes = runtime.notifications.drain()
            assert [note.task_id for note in notes] == ([id] if moved else [])


@pytest.mark.sim(seeds=3)
@pytest.mark.parametrize("steps", APART)
async def test_a_move_that_races_with_a_stop_is_told_in_one_way(steps: int) -> None:
    """BG1, P2, P4."""
    with trio.fail_after(30):
        async with open_runtime("tasks", env=fake_env()) as runtime:
            events = runtime.events.subscribe()
            async with trio.open_nursery() as nursery:
                runner, id = await in_foreground(nursery, runtime, Job(forever))
                nursery.start_soon(runtime.stop, id)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                ended = runtime.get(id).status.is_terminal
                moved = runtime.background(id)
                assert moved is not ended
            assert runner.returned is not None
            assert runner.returned.background is moved
            assert runtime.get(id).status is KILLED
            notes = runtime.notifications.drain()
            assert [note.task_id for note in notes] == ([id] if moved else [])
            told = kinds(events.drain(), id)
            assert told.count(TaskStopRequested) == told.count(TaskEnded) == 1
            assert told.index(TaskStopRequested) < told.index(TaskEnded)


@pytest.mark.sim(seeds=3)
@pytest.mark.parametrize("steps", APART)
async def test_a_move_that_races_with_leaving_the_runtime_is_told_in_one_way(
    steps: int,
) -> None:
    """BG1, P1, P4."""
    moved = False
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            async with open_runtime("tasks", env=fake_env()) as runtime:
                runner, id = await in_foreground(nursery, runtime, Job(forever))

                async def move() -> None:
                    nonlocal moved
                    for _ in range(steps):
                        await trio.lowlevel.checkpoint()
                    moved = runtime.background(id)

                nursery.start_soon(move)
    assert runner.returned is not None and runner.returned.background is moved
    notes = runtime.notifications.drain()
    assert [note.task_id for note in notes] == ([id] if moved else [])
    assert runtime.get(id).status is KILLED


@pytest.mark.sim(seeds=3)
@pytest.mark.parametrize("steps", APART)
async def test_a_task_that_ends_between_two_looks_hangs_no_wait(steps: int) -> None:
    """BG7, BG6: looking, then waiting, whatever happens in between."""
    with trio.fail_after(30):
        async with open_runtime("tasks", env=fake_env()) as runtime:
            end = trio.Event()
            task = await runtime.launch(waits_for(end))
            await trio.testing.wait_all_tasks_blocked()
            end.set()
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            looked = task.status
            assert looked in (RUNNING, COMPLETED)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(task.wait)
                nursery.start_soon(runtime.wait_any, [task])
                nursery.start_soon(runtime.wait_all, [task])
                nursery.start_soon(runtime.wait_idle)
                nursery.start_soon(anext, runtime.task_set(task))
                nursery.start_soon(runtime.notifications.receive_batch)
            assert task.status is COMPLETED


@pytest.mark.sim(seeds=2)
@pytest.mark.parametrize("steps", range(6))
async def test_a_restart_while_the_caller_of_another_task_moves_changes_nothing(
    steps: int,
) -> None:
    """BG5: one start, however often it runs again; a background task has nothing
    to move."""
    async with open_runtime("tasks", env=fake_env()) as runtime:
        events = runtime.events.subscribe()
        runs = 0

        async def body(ctx: Context[object], report: Report) -> str:
            nonlocal runs
            runs += 1
            if runs < 3:
                raise ValueError("again")
            return "done"

        task = await runtime.launch(Job(body), restart="transient", intensity=5)
        async with trio.open_nursery() as nursery:
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            assert not runtime.background(task.id)
            runner, id = await in_foreground(nursery, runtime, Job(forever))
            assert runtime.background_all() == [id]
            await runner.done.wait()
        assert (await task.wait()).status is COMPLETED
        told = kinds(events.drain(), task.id)
        assert told == [
            TaskStarted,
            TaskRestartScheduled,
            TaskRestarted,
            TaskRestartScheduled,
            TaskRestarted,
            TaskEnded,
            Notified,
        ]
