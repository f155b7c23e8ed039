"""What a runtime tells: progress and events."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import orjson
import trio
import trio.testing

from actors import Context, Progress
from actors.work import Report
from supervisor._events import (
    Acked,
    Notified,
    TaskBackgrounded,
    TaskEnded,
    TaskProgress,
    TaskRestarted,
    TaskRestartScheduled,
    TaskStarted,
    TaskStopRequested,
    Warned,
)
from supervisor._json import to_json
from supervisor.runtime import (
    open_runtime,
)
from tests.supervisor.jobs import (
    Job,
    forever,
    kinds,
    returns,
)


async def test_progress_is_told_once_a_second_and_kept_in_between(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P6, SM2."""
    reports: list[Report] = []

    async def body(ctx: Context[object], report: Report) -> None:
        reports.append(report)
        for number in range(50):
            report.say(
                Progress(text=str(number), tool_uses=number, total_tokens=10 * number)
            )
            await trio.sleep(0.1)

    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(Job(body))
        await trio.sleep(2.55)
        progress = task.snapshot().progress
        assert progress is not None and progress.text == "25"
        snapshot = await task.wait()
        assert (snapshot.usage.tool_uses, snapshot.usage.total_tokens) == (49, 490)
        told_texts = [e.text for e in events.drain() if isinstance(e, TaskProgress)]
        assert len(told_texts) == 5
        reports[0].say(Progress(text="after the end"))
        assert task.snapshot().progress == snapshot.progress
        assert events.drain() == []
        (note,) = runtime.notifications.drain()
        assert ET.fromstring(note.xml).findtext("usage/total-tokens") == "490"


async def test_a_reader_of_nothing_blocks_nobody(tmp_path: Path) -> None:
    """P6, N4, N5: the records wait for a later reader."""
    async with open_runtime(tmp_path) as runtime:
        slow = runtime.events.subscribe(capacity=2)
        tasks = [await runtime.launch(returns(number)) for number in range(200)]
        await runtime.wait_idle()
        assert [note.task_id for note in runtime.notifications.drain()] == [
            snapshot.id for snapshot in runtime.tasks()
        ]
        assert len(tasks) == 200
        assert len(slow.drain()) == 3


async def test_the_events_of_a_task_come_in_order_and_can_be_written_down(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The brief: one event stream."""

    async def body(ctx: Context[object], report: Report) -> None:
        if ctx.number == 1:
            report.say(Progress(text="half"))
            report.warn("odd")
            raise ValueError("again")
        await trio.sleep_forever()

    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(
            Job(body), restart="transient", description="d\ud800"
        )
        await trio.sleep(1)
        await runtime.stop(task.id, "enough")
        (note,) = runtime.notifications.drain()
        note.ack("consumed")
        seen = events.drain()
    assert kinds(seen, task.id) == [
        TaskStarted,
        TaskProgress,
        Warned,
        TaskRestartScheduled,
        TaskRestarted,
        TaskStopRequested,
        TaskEnded,
        Notified,
        Acked,
    ]
    assert [event.seq for event in seen] == sorted({event.seq for event in seen})
    for event in seen:
        data = orjson.loads(to_json(event))
        assert data["kind"] == type(event).__name__ and data["version"] == 1


async def test_moving_to_the_background_is_an_event(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run, Job(forever))
            await trio.testing.wait_all_tasks_blocked()
            (task,) = runtime.tasks()
            runtime.background(task.id)
        await runtime.stop(task.id)
        assert kinds(events.drain(), task.id) == [
            TaskStarted,
            TaskBackgrounded,
            TaskStopRequested,
            TaskEnded,
            Notified,
        ]
