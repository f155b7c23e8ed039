"""The outbox and its readers, without a runtime."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import count

import pytest
import trio
import trio.testing

from actors.envelope import Envelope
from actors.notifier import write_envelopes
from supervisor._outbox import Ack, Notification, Notifications, Outbox

_numbers = count(1)


class Box:
    """An outbox and what it says."""

    def __init__(self) -> None:
        self.acks: list[tuple[str, Ack | None]] = []
        self.warnings: list[str] = []
        self.outbox = Outbox(
            lambda n: self.acks.append((n.id, n.acked)), self.warnings.append
        )

    def add(self, owner: str | None = None, summary: str = "x") -> Notification:
        return self.outbox.add(make(summary=summary), owner)

    def all(self) -> Notifications:
        return Notifications(self.outbox, None, everyone=True)

    def of(self, owner: str | None) -> Notifications:
        return Notifications(self.outbox, owner, everyone=False)

    def publish(self) -> None:
        write_envelopes(self.outbox)


def make(summary: str = "x", status: str = "completed") -> Envelope:
    number = next(_numbers)
    return Envelope(
        notification_id=f"n{number}",
        task_id=f"s{number:08x}",
        run_id=f"s{number:08x}-1",
        task_type="local_bash",
        status=status,
        summary=summary,
        remaining=0,
        all_terminal=True,
    )


def test_a_record_is_read_once_and_acknowledged_once() -> None:
    """N1, N2, P4."""
    box = Box()
    note = box.add()
    assert box.outbox.unacknowledged == 1
    assert box.all().drain() == [note]
    assert box.all().drain() == []
    assert note.acked is None and box.acks == []
    assert note.ack()
    assert not note.ack() and not note.ack("silent")
    assert (note.acked, box.acks) == ("delivered", [(note.id, "delivered")])
    assert box.outbox.unacknowledged == 0


@pytest.mark.parametrize("how", ["delivered", "consumed", "silent"])
def test_there_are_three_ways_to_acknowledge(how: Ack) -> None:
    """P4."""
    note = Box().add()
    assert note.ack(how) and note.acked == how


@pytest.mark.parametrize("how", ["read", "", None, 1])
def test_another_way_to_acknowledge_is_refused_and_changes_nothing(how: object) -> None:
    box = Box()
    note = box.add()
    with pytest.raises(ValueError, match="delivered, consumed, silent.*" + repr(how)):
        note.ack(how)  # type: ignore[arg-type]
    assert note.acked is None and box.outbox.unacknowledged == 1


def test_reading_does_not_wait_for_the_notifier_and_keeps_the_order() -> None:
    """P4: in the order of ending."""
    box = Box()
    notes = [box.add() for _ in range(5)]
    box.publish()
    notes += [box.add() for _ in range(5)]
    read = box.all().drain()
    assert read == notes
    for note in read:
        assert ET.fromstring(note.xml).findtext("task-id") == note.task_id


def test_the_views_of_owners_share_what_there_is() -> None:
    """N19: nobody is an owner as well."""
    box = Box()
    a, none, b, a2 = box.add("a"), box.add(None), box.add("b"), box.add("a")
    assert box.of("a").drain() == [a, a2]
    assert box.of("c").drain() == []
    assert box.of(None).drain() == [none]
    assert box.all().drain() == [b]
    assert box.of("b").drain() == []


def test_the_line_for_people_is_one_clean_line() -> None:
    box = Box()
    note = box.add(
        summary='Command "a\n\n\x1b[31mb\x1b[0m\u202ec\0" failed: ' + "x" * 10**6
    )
    assert note.display.startswith('Command "a bc" failed: xxx')
    assert len(note.display) == 200 and note.display.endswith("...")
    assert note.display.isprintable()


async def test_a_reader_waits_for_the_next_record() -> None:
    box = Box()
    read: list[Notification] = []

    async def reader() -> None:
        async for note in box.all():
            read.append(note)  # noqa: PERF401 - one by one

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader)
        await trio.testing.wait_all_tasks_blocked()
        note = box.add()
        await trio.testing.wait_all_tasks_blocked()
        assert read == []
        box.publish()
        await trio.testing.wait_all_tasks_blocked()
        assert read == [note]
        box.outbox.close()
    assert read == [note]


async def test_each_record_goes_to_one_of_several_readers() -> None:
    """P4: delivered once, however many read and are cancelled."""
    box = Box()
    read: list[Notification] = []
    notes: list[Notification] = []

    async def reader(view: Notifications, most: int) -> None:
        async for note in view:
            read.append(note)
            most -= 1
            if not most:
                break

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(reader, box.of("a") if number % 2 else box.all(), 10**9)
        for _ in range(3):
            nursery.start_soon(reader, box.all(), 2)
        with trio.CancelScope() as cancelled:
            async with trio.open_nursery() as doomed:
                for _ in range(3):
                    doomed.start_soon(reader, box.all(), 10**9)
                await trio.testing.wait_all_tasks_blocked()
                notes = [box.add("a" if number % 3 else None) for number in range(100)]
                box.publish()
                cancelled.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(note.id for note in read) == sorted(note.id for note in notes)
        nursery.cancel_scope.cancel()


async def test_a_reader_of_many_records_lets_others_run() -> None:
    box = Box()
    for _ in range(1000):
        box.add()
    box.publish()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        box.outbox.close()
        assert len([note async for note in box.all()]) == 1000
        nursery.cancel_scope.cancel()
    assert turns > 30


async def test_what_is_left_at_the_close_gets_its_envelope_and_stays_readable() -> None:
    """P4."""
    box = Box()
    first, second = box.add("a"), box.add("b")
    box.outbox.close()
    assert [note async for note in box.of("a")] == [first]
    assert [note async for note in box.all()] == [second]
    assert ET.fromstring(second.xml).findtext("note")
    assert second.ack()
    assert box.warnings == []


async def test_a_cancelled_reader_takes_nothing() -> None:
    box = Box()
    note = box.add()
    box.publish()
    with trio.CancelScope() as scope:
        scope.cancel()
        await box.all().__anext__()
    assert scope.cancelled_caught
    assert box.all().drain() == [note]
