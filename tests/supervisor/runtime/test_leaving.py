"""Leaving the runtime, in whatever way: everything ends and is told once."""

from __future__ import annotations

import signal
import xml.etree.ElementTree as ET
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from actors import Context
from actors.work import Report
from supervisor.runtime import (
    Limits,
    Runtime,
    open_runtime,
)
from supervisor.tree import (
    RestartIntensityExceeded,
    Straggler,
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
)


async def three(runtime: Runtime, nursery: trio.Nursery) -> list[str]:
    """Start one task that has ended, two that run, one foreground, one pending."""
    ended = await runtime.launch(returns("x"))
    await ended.wait()
    tasks = [ended, *[await runtime.launch(Job(forever)) for _ in range(2)]]
    nursery.start_soon(swallow, runtime.run, Job(forever))
    await trio.testing.wait_all_tasks_blocked()
    tasks.append(await runtime.launch(returns("never")))
    assert tasks[-1].status is PENDING
    return [task.id for task in tasks]


async def swallow(fn: Callable[..., Awaitable[object]], *args: object) -> None:
    await fn(*args)


def check_records(runtime: Runtime, ids: list[str]) -> None:
    """Exactly one terminal record for each, in the order of ending."""
    notes = runtime.notifications.drain()
    assert sorted(note.task_id for note in notes) == sorted(ids)
    assert notes[0].task_id == ids[0] and notes[0].status is COMPLETED
    assert {note.status for note in notes[1:]} == {KILLED}
    ended = [snapshot.id for snapshot in runtime.tasks() if snapshot.background]
    assert [note.task_id for note in notes] == ended
    for note in notes:
        assert ET.fromstring(note.xml).findtext("task-id") == note.task_id
        assert note.ack() and not note.ack()
    assert runtime.notifications.drain() == []


LIMITS = Limits(total=3)


async def test_leaving_the_block_tells_every_end_once(tmp_path: Path) -> None:
    """P3, P4."""
    ids: list[str] = []
    async with trio.open_nursery() as nursery:
        async with open_runtime(tmp_path, limits=LIMITS) as runtime:
            ids += await three(runtime, nursery)
        check_records(runtime, ids)


async def test_an_error_in_the_block_comes_out_and_tells_every_end_once(
    tmp_path: Path,
) -> None:
    """P3, P4."""
    seen: list[tuple[Runtime, list[str]]] = []
    async with trio.open_nursery() as nursery:
        with pytest.raises(KeyError, match=r"the body's own"):
            async with open_runtime(tmp_path, limits=LIMITS) as runtime:
                seen.append((runtime, await three(runtime, nursery)))
                raise KeyError("the body's own")
    check_records(*seen[0])


async def test_a_cancelled_block_tells_every_end_once(tmp_path: Path) -> None:
    """P3, P4."""
    seen: list[tuple[Runtime, list[str]]] = []
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with open_runtime(tmp_path, limits=LIMITS) as runtime:
                seen.append((runtime, await three(runtime, nursery)))
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
    check_records(*seen[0])


@pytest.mark.parametrize("where", ["the body", "a task", "at the end"])
def test_an_interrupt_tells_every_end_once(tmp_path: Path, where: str) -> None:
    """P3, P4: a real SIGINT."""
    seen: list[tuple[Runtime, list[str]]] = []

    async def interrupt(ctx: Context[object], report: Report) -> None:
        signal.raise_signal(signal.SIGINT)

    async def cleanup(ctx: Context[object], report: Report) -> None:
        try:
            await trio.sleep_forever()
        finally:
            signal.raise_signal(signal.SIGINT)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            async with open_runtime(tmp_path, limits=Limits(total=4)) as runtime:
                ended = await runtime.launch(returns("x"))
                await ended.wait()
                tasks = [ended]
                seen.append((runtime, []))
                tasks += [await runtime.launch(Job(forever)) for _ in range(2)]
                nursery.start_soon(swallow, runtime.run, Job(forever))
                await trio.testing.wait_all_tasks_blocked()
                if where == "at the end":
                    tasks.append(await runtime.launch(Job(cleanup)))
                elif where == "a task":
                    tasks.append(await runtime.launch(Job(interrupt)))
                seen[0][1].extend(task.id for task in tasks)
                if where == "the body":
                    signal.raise_signal(signal.SIGINT)
                await trio.testing.wait_all_tasks_blocked()
                if where == "a task":
                    await trio.sleep_forever()

    with pytest.raises(BaseException) as caught:  # noqa: PT011 - looked into below
        trio.run(main)
    assert only_interrupts(caught.value)
    ((runtime, ids),) = seen
    check_records(runtime, ids)


def only_interrupts(error: BaseException) -> bool:
    # The test's own nursery makes a group of it.
    if isinstance(error, BaseExceptionGroup):
        return all(map(only_interrupts, error.exceptions))
    return isinstance(error, KeyboardInterrupt)


async def test_a_runtime_that_fails_for_good_tells_every_end_once(
    tmp_path: Path,
) -> None:
    """P3, P4: the notifier needs more restarts than the root allows."""
    seen: list[tuple[Runtime, list[str]]] = []
    async with trio.open_nursery() as nursery:
        with pytest.raises(RestartIntensityExceeded):
            async with open_runtime(tmp_path, limits=LIMITS) as runtime:
                seen.append((runtime, await three(runtime, nursery)))
                (notifier,) = (
                    info.ref
                    for info in runtime.root.which_children()
                    if info.id == "notifier"
                )
                while True:
                    notifier.stop()
                    await trio.testing.wait_all_tasks_blocked()
    check_records(*seen[0])


async def test_notifications_are_iterated_to_their_end_after_the_block(
    tmp_path: Path,
) -> None:
    """P4: readable after the block."""
    async with open_runtime(tmp_path) as runtime:
        for owner in ("a", "b", "a"):
            await runtime.launch(Job(forever), owner=owner)
    assert [note.owner async for note in runtime.notifications_for("b")] == ["b"]
    assert [note.owner async for note in runtime.notifications] == ["a", "a"]


def test_notes_can_be_read_and_acknowledged_after_the_trio_run(tmp_path: Path) -> None:
    async def main() -> tuple[Runtime, object]:
        async with open_runtime(tmp_path) as runtime:
            reader = runtime.events.subscribe()
            await runtime.launch(Job(forever))
        return runtime, reader

    runtime, _reader = trio.run(main)
    (note,) = runtime.notifications.drain()
    assert note.ack("silent") and note.acked == "silent"
    assert statuses(runtime) == ["killed"]
    assert runtime.tasks()[0].usage.duration_ms is not None


async def test_a_task_under_a_shield_is_waited_for_and_reported(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P1, P2: stop returns with the survivor; leaving the block waits."""

    async def body(ctx: Context[object], report: Report) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(100)

    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(Job(body, shutdown=5.0))
        await trio.sleep(10)
        result = await runtime.stop(task.id)
        assert trio.current_time() == pytest.approx(15)
        assert result.snapshot.status is RUNNING and result.snapshot.stopping
        assert result.snapshot.ended_at is None
        (survivor,) = result.survivors
        assert task.id in survivor
        assert told(runtime) == []
    assert trio.current_time() == pytest.approx(100)
    stragglers = [event for event in events.drain() if isinstance(event, Straggler)]
    assert len(stragglers) >= 3
    assert {straggler.child for straggler in stragglers} == {task.id}
    assert ".body" in stragglers[0].stack
    # It was asked to stop and did not: its end is nobody's but its own.
    assert told(runtime) == [(task.id, task.status.value)]


async def test_a_work_that_swallows_its_cancellation_and_goes_on_is_waited_for(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P1, P2."""

    async def body(ctx: Context[object], report: Report) -> str:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            pass
        with trio.CancelScope(shield=True):
            await trio.sleep(50)
        return "late"

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body, shutdown=0.5))
        await trio.testing.wait_all_tasks_blocked()
    assert trio.current_time() == pytest.approx(50)
    assert task.snapshot().result == "late"
    assert told(runtime) == [(task.id, "completed")]
