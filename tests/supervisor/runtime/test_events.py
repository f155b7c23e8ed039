"""What a runtime tells: progress and events."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
import trio
import trio.testing

from actors import Context, Progress
from actors.agent import Note
from actors.work import Report
from supervisor.runtime import (
    Acked,
    AgentSaid,
    Notified,
    TaskBackgrounded,
    TaskEnded,
    TaskProgress,
    TaskRestarted,
    TaskRestartScheduled,
    TaskStarted,
    TaskStopRequested,
    Warned,
    from_json,
    open_runtime,
    to_json,
)
from supervisor.tree import Event, Gap
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
        assert type(from_json(to_json(event))) is type(event)


def events_of_all_kinds() -> list[Event]:
    """Return one event of each class that a tree or a runtime emits, and where a field
    may be None one more with that."""
    values: dict[str, Any] = {"int": 3, "float": 0.5, "str": "a\nb", "bool": True}
    # Others tell of an agent's view, or of what a recorder has seen.
    other = (".cli.", ".simulation.")
    kinds = [
        kind
        for kind in Event.__subclasses__()
        if not any(it in f"{kind.__module__}." for it in other)
        # What attrs made a class with slots of is there until it is collected.
        and getattr(sys.modules[kind.__module__], kind.__name__) is kind
    ]
    assert {Gap, AgentSaid, TaskEnded} < {*kinds} and len(kinds) >= 20
    found: list[Event] = []
    for kind in kinds:
        types = {name: str(it.type) for name, it in attrs.fields_dict(kind).items()}
        given: dict[str, Any] = {
            name: Note("x") if what == "typing.Any" else values[find_first(what)]
            for name, what in types.items()
        }
        empty: dict[str, Any] = {
            name: None for name, what in types.items() if "None" in what
        }
        found += [kind(**given), *([kind(**given | empty)] if empty else [])]
    return found


def find_first(what: str) -> str:
    return what.removeprefix("<class '").removesuffix("'>").split(" ")[0]


def test_every_kind_of_event_comes_back_from_json_as_it_was() -> None:
    """Brief, section 6: events can be written down, and read again."""
    for event in events_of_all_kinds():
        assert from_json(to_json(event)) == event
        said = isinstance(event, AgentSaid)
        name = "AgentEvent" if said else type(event).__name__
        written = orjson.loads(to_json(event))
        assert written["kind"] == name
        more = written | {"at": "2026-11-22", "new": [1]}
        assert from_json(orjson.dumps(more).decode()) == event


TOLD = {"kind": "Gap", "version": 1, "seq": 1, "time": 0.5, "missed": 2}
WRONG: dict[str, tuple[object, str]] = {
    "another kind": (TOLD | {"kind": "TaskCloned"}, "unknown kind of event: 'TaskCl"),
    "no kind": ({"version": 1}, "unknown kind of event: None"),
    "a kind that is a list": (TOLD | {"kind": []}, r"unknown kind of event: \[\]"),
    "a later version": (TOLD | {"version": 2}, "expected version 1 .* got 2"),
    "no version": ({"kind": "Gap"}, "expected version 1 .* got None"),
    "a field is missing": (
        {name: it for name, it in TOLD.items() if name != "missed"},
        "Gap lacks missed",
    ),
    "a field is of another type": (
        TOLD | {"missed": "2"},
        "missed of Gap: expected int, got '2'",
    ),
    "a number is text": (TOLD | {"time": "0"}, "time of Gap: expected float, got '0'"),
    "a list": ([TOLD], "expected an event, a JSON object, got"),
    "what no agent says": (
        TOLD | {"kind": "AgentEvent", "task_id": "a", "run_id": "b", "event": {}},
        "unknown type of event: None",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_json_that_is_not_an_event_is_refused_with_the_reason(case: str) -> None:
    """Brief, section 6: also that of a later program."""
    data, why = WRONG[case]
    with pytest.raises(ValueError, match=why):
        from_json(orjson.dumps(data))


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(ValueError, match="unexpected"):
        from_json(b'{"kind": ')


def test_a_field_that_came_later_has_its_default() -> None:
    data = orjson.loads(to_json(Notified(1, 0.5, "n1", "s1", "task")))
    del data["what"]
    assert from_json(orjson.dumps(data)) == Notified(1, 0.5, "n1", "s1")


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
