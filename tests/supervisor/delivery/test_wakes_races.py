"""Wakes and whatever may happen at the same time, at every step."""

from __future__ import annotations

import pytest
import trio
import trio.lowlevel
import trio.testing

from supervisor._delivery.outbox import Notification
from supervisor._delivery.turns import Turn
from supervisor.simulation import Sim
from tests.supervisor.delivery.boxes import Box
from tests.supervisor.delivery.hosts import Host, started, steps

# Races, at every step at which they can happen

OFFSETS = range(14)


def check_all_told_once(host: Host, notes: list[Notification]) -> None:
    assert host.told == notes
    assert all(note.acked == "delivered" for note in notes)
    assert not host.box.warnings and not host.box.outbox.unacknowledged
    assert not host.box.parents.is_busy(None)


@pytest.mark.sim(seeds=4)
@pytest.mark.parametrize("readers", [1, 2, 3])
async def test_a_user_may_speak_at_any_step_around_an_end(readers: int) -> None:
    """N29, N31, N32, N33: turns and wakes come one after another, nothing is lost or
    told twice, however many iterate."""
    for offset in OFFSETS:
        box = Box()
        host = Host(box)
        notes: list[Notification] = []

        async def user(offset: int = offset, box: Box = box, host: Host = host) -> None:
            for _ in range(3):
                await steps(offset)
                async with box.turn():
                    assert host.under_way == 0, "a turn beside a wake"
                    await steps(2)
                    assert host.under_way == 0, "a wake beside a turn"

        async with started(*[host.run] * readers) as nursery:
            nursery.start_soon(user)
            for _ in range(8):
                notes += [box.add() for _ in range(len(notes) % 3 + 1)]
                box.publish()
                await steps(2)
            await trio.testing.wait_all_tasks_blocked()
        check_all_told_once(host, notes)


@pytest.mark.sim(seeds=4)
async def test_an_end_may_be_read_at_any_step_around_its_wake() -> None:
    """N32: then it is in no wake that begins later, and no wake is empty."""
    outcomes: set[bool] = set()
    for offset in OFFSETS:
        box = Box()
        host = Host(box)
        begun = False
        async with started(host.run):
            first, second = box.add(), box.add()
            for step in range(len(OFFSETS)):
                if step == 2:
                    box.publish()
                if step == offset:
                    begun = second in host.told
                    assert box.outbox.consume(second) is (second.acked == "consumed")
                    outcomes.add(begun)
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
        assert host.told == ([first, second] if begun else [first])
        assert second.acked in ("consumed", "delivered")
        assert box.outbox.unacknowledged == 0 and box.warnings == []
    assert outcomes == {True, False}


@pytest.mark.sim(seeds=4)
async def test_a_host_may_be_cancelled_at_any_step_and_the_next_goes_on() -> None:
    """N35, P4: what it had is offered to the next, at its place."""
    again = 0
    for offset in OFFSETS:
        box = Box()
        doomed, host = Host(box, turn_lasts=3), Host(box)
        notes: list[Notification] = []
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as inner:
                    inner.start_soon(doomed.run)
                    for step in range(len(OFFSETS)):
                        if step in (2, 3, 6):
                            notes.append(box.add())
                            box.publish()
                        if step == offset:
                            scope.cancel()
                        await trio.lowlevel.checkpoint()
            nursery.start_soon(host.run)
            last = box.add()
            box.publish()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        done = [n for n in doomed.told if n not in host.told]
        again += len(doomed.told) - len(done)
        assert done + host.told == [*notes, last]
        assert box.warnings == [] and box.outbox.unacknowledged == 0
    assert again


@pytest.mark.sim(seeds=4)
async def test_the_runtime_may_end_at_any_step_and_all_is_told() -> None:
    """P4: both iterations end after the last one."""
    for offset in OFFSETS:
        box = Box()
        host = Host(box)
        notes: list[Notification] = []
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(host.run)
                nursery.start_soon(host.run)
                for step in range(len(OFFSETS)):
                    if step in (2, 3, 6) and step <= offset:
                        notes.append(box.add())
                    if step in (2, 6) and step <= offset:
                        box.publish()
                    if step == offset:
                        box.outbox.close()
                    await trio.lowlevel.checkpoint()
                box.outbox.close()
        check_all_told_once(host, notes)


@pytest.mark.sim(seeds=21)
async def test_whatever_happens_at_once_every_end_is_told_once_or_again_once(
    sim: Sim,
) -> None:
    """N29, N31, N32, N35: users, readers of the output, failing turns, turns that
    take in the middle, two iterations and a window, by chance, for every seed."""
    chance = sim.random
    box = Box()
    notes: list[Notification] = []
    offered: dict[Notification, int] = {}
    under_way = 0

    async def think(turn: Turn) -> None:
        await trio.sleep(chance.choice([0, 0, 0.1, 1]))
        if chance.random() < 0.3:
            for note in turn.take():
                offered[note] = offered.get(note, 0) + 1
        kind = chance.random()
        if kind < 0.2:
            raise KeyError
        if kind < 0.8:
            turn.progressed()

    async def host(window: float) -> None:
        nonlocal under_way
        async for wake in box.wakes(window=window):
            assert wake.notes
            for note in wake.notes:
                assert note.acked is None
                offered[note] = offered.get(note, 0) + 1
            try:
                async with wake as turn:
                    assert under_way == 0
                    under_way += 1
                    try:
                        await think(turn)
                    finally:
                        under_way -= 1
            except KeyError:
                pass

    async def user() -> None:
        for _ in range(10):
            await trio.sleep(chance.random() * 3)
            try:
                async with box.turn() as turn:
                    assert under_way == 0
                    await think(turn)
                    assert under_way == 0
            except KeyError:
                pass

    async def reader() -> None:
        for _ in range(30):
            await trio.sleep(chance.random())
            if notes:
                box.outbox.consume(chance.choice(notes))

    with trio.fail_after(1_000):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host, 0.0)
            nursery.start_soon(host, chance.choice([0.0, 0.5]))
            async with trio.open_nursery() as others:
                others.start_soon(user)
                others.start_soon(reader)
                for _ in range(40):
                    await trio.sleep(chance.choice([0, 0, 0.3, 1]))
                    notes.append(
                        box.add(notify=chance.choice(["wake", "wake", "defer"]))
                    )
                    if chance.random() < 0.7:
                        box.publish()
            box.outbox.close()
    assert box.outbox.unacknowledged == 0
    for note in notes:
        if note.acked == "consumed":
            assert offered.get(note, 0) <= 2
        else:
            assert note.acked == "delivered" and offered[note] in (1, 2)
    warned = [n for n in notes if any(n.id + " " in w for w in box.warnings)]
    assert len(warned) == len(box.warnings)
    assert all(offered[note] == 2 for note in warned)
