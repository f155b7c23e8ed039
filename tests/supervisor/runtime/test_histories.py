"""Random histories, with everything at once."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest
import trio

from actors import Context
from actors.testing import fake_env
from actors.work import Report
from supervisor.runtime import (
    Limits,
    Notification,
    Notified,
    Runtime,
    TaskEnded,
    TaskStarted,
    open_runtime,
)
from supervisor.simulation import Sim
from supervisor.tree import Backoff
from tests.supervisor.jobs import (
    Job,
)


@pytest.mark.sim(seeds=40)
async def test_in_any_history_every_task_has_one_start_one_end_and_one_record(
    sim: Sim,
) -> None:
    """P3, P4, SM6, N1, CO3, over the event log of a random history."""
    chance = sim.random
    crashes = list(range(9))  # as many as the root allows, nearly
    caps = Limits(total=chance.choice([None, 3, 5]), agents=chance.choice([None, 4]))
    read: list[Notification] = []

    def work(runtime: Runtime, depth: int = 0) -> Job:
        kind = chance.randrange(7 if depth < 2 else 5)

        async def body(ctx: Context[object], report: Report) -> object:
            await trio.sleep(chance.random() * 3)
            if kind == 0:
                raise ValueError("failed")
            if kind == 1:
                with trio.CancelScope(shield=True):
                    await trio.sleep(chance.random())
            if kind == 2:
                ctx.deadline = trio.current_time() + chance.random()
                await trio.sleep(1)
            if kind == 3:
                ctx.ref.stop()
            if kind == 5:
                await (await runtime.launch(work(runtime, depth + 1))).wait()
            if kind == 6:
                await runtime.run(work(runtime, depth + 1))
            return kind

        return Job(body, shutdown=0.5)

    async def act(runtime: Runtime) -> None:
        await trio.sleep(chance.random() * 5)
        restart: Any = chance.choice(["temporary", "transient", "permanent"])
        backoff = chance.choice([None, Backoff(0.1, 1)])
        what = chance.randrange(8)
        ids = [snapshot.id for snapshot in runtime.tasks()]
        if what < 4 or not ids:
            await runtime.launch(work(runtime), restart=restart, backoff=backoff)
        elif what == 4:
            with trio.move_on_after(chance.random() * 3):
                await runtime.run(work(runtime))
        elif what == 5:
            runtime.background(chance.choice(ids))
        elif what == 6:
            with trio.move_on_after(chance.choice([0, 0.2, 9])):
                await runtime.stop(chance.choice(ids))
        elif crashes:
            crashes.pop()
            runtime.root.which_children()[0].ref.stop()

    async def reader(runtime: Runtime) -> None:
        async for note in runtime.notifications:
            read.append(note)
            await trio.sleep(chance.random() * 0.1)

    async with open_runtime("tasks", limits=caps, env=fake_env()) as runtime:
        events = runtime.events.subscribe(10**6)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader, runtime)
            async with trio.open_nursery() as actions:
                for _ in range(40):
                    actions.start_soon(act, runtime)
            nursery.cancel_scope.cancel()
        background = {s.id for s in runtime.tasks() if s.background}
    seen = events.drain()
    read += runtime.notifications.drain()
    ended = [e for e in seen if isinstance(e, TaskEnded)]
    ids = [event.task_id for event in ended]
    assert len(set(ids)) == len(ids)
    assert {s.status.is_terminal for s in runtime.tasks()} <= {True}
    background |= {s.id for s in runtime.tasks() if s.background}
    notified = [e.task_id for e in seen if isinstance(e, Notified)]
    assert notified == [id for id in ids if id in background]
    assert [note.task_id for note in read] == notified
    by_id = {event.task_id: event for event in ended}
    for note in read:
        assert note.status.value == by_id[note.task_id].status
        assert ET.fromstring(note.xml).findtext("notification-id") == note.id
    started = [e.task_id for e in seen if isinstance(e, TaskStarted)]
    assert len(set(started)) == len(started) and set(started) <= set(ids)
    for event in seen:
        end = by_id.get(getattr(event, "task_id", ""))
        assert end is None or event.seq <= end.seq or isinstance(event, Notified)
