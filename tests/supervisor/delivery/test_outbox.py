"""The outbox and its readers, without a runtime."""

from __future__ import annotations

import gc
import xml.etree.ElementTree as ET
from collections import deque

import pytest
import trio
import trio.testing

from actors import TaskStatus
from supervisor._delivery.outbox import Ack, Notification, Words
from supervisor._delivery.readers import Notifications
from tests.supervisor.delivery.boxes import Box, NoJournal


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
    assert box.acks == [(note.id, "delivered")]
    assert box.outbox.unacknowledged == 0


@pytest.mark.parametrize("how", ["delivered", "consumed", "silent", "superseded"])
def test_there_are_four_ways_to_acknowledge(how: Ack) -> None:
    """P4."""
    note = Box().add()
    assert note.ack(how) and note.acked == how


@pytest.mark.parametrize("how", ["read", "", None, 1])
def test_another_way_to_acknowledge_is_refused_and_changes_nothing(how: object) -> None:
    box = Box()
    note = box.add()
    with pytest.raises(
        ValueError, match="delivered, consumed, silent, superseded.*" + repr(how)
    ):
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
    box.publish()
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


# Policies


def test_a_deferred_record_comes_in_its_place_with_the_next_that_wakes() -> None:
    box = Box()
    first, waking, last = box.add(notify="defer"), box.add(), box.add(notify="defer")
    box.publish()
    view = box.all()
    assert box.outbox.take(view._ready, deferred=False) is first
    assert box.outbox.take(view._ready, deferred=False) is waking
    assert box.outbox.take(view._ready, deferred=False) is None
    assert view.drain() == [last]


async def test_a_deferred_record_wakes_nobody() -> None:
    box = Box()
    batches: list[list[Notification]] = []

    async def read() -> None:
        batches.append(await box.all().receive_batch())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        deferred = [box.add(notify="defer") for _ in range(3)]
        box.publish()
        await trio.testing.wait_all_tasks_blocked()
        assert batches == []
        waking = box.add()
        box.publish()
    assert batches == [[*deferred, waking]]


async def test_a_deferred_record_of_another_owner_waits_for_its_own() -> None:
    box = Box()
    deferred, _ = box.add("a", notify="defer"), box.add("b")
    box.publish()
    view = box.of("a")
    with trio.move_on_after(0) as scope:
        await view.receive_batch()
    assert scope.cancelled_caught
    waking = box.add("a")
    box.publish()
    assert await view.receive_batch() == [deferred, waking]


async def test_a_deferred_record_comes_at_the_end_of_the_runtime() -> None:
    box = Box()
    note = box.add(notify="defer")
    box.publish()
    box.outbox.close()
    assert [n async for n in box.all()] == [note]


def test_a_silent_record_is_acknowledged_at_once_and_read_by_nobody() -> None:
    """SD2, N8."""
    box = Box()
    note = box.add(notify="silent")
    assert note.acked == "silent" and box.acks == [(note.id, "silent")]
    assert box.outbox.unacknowledged == 0
    assert box.all().drain() == [] and not note.ack()
    # It does not stand in the way of the next one, either.
    after = box.add()
    next_unsent = box.outbox.next_unsent()
    assert next_unsent is not None and next_unsent.notification_id == after.id


def test_who_reads_in_the_handing_over_loses_no_other_record() -> None:
    """Such as a handler of the log, or a finalizer."""
    box = Box()
    written = 1
    handed: list[Notification] = []

    def deliver(note: Notification) -> None:
        handed.append(note)
        if len(handed) == 1:
            box.all().drain()

    first, second = box.add(deliver=deliver), box.add()
    second.record = 2
    box.outbox._is_told = lambda record: record <= written  # type: ignore[method-assign]
    box.publish()
    written = 2
    assert box.all().drain() == [second] and handed == [first, first]


# Batches


async def test_a_batch_is_all_that_is_ready_or_as_many_as_asked_for() -> None:
    """N30: one wake-up for what has ended meanwhile."""
    box = Box()
    notes = [box.add() for _ in range(5)]
    box.publish()
    assert await box.all().receive_batch(2) == notes[:2]
    assert await box.all().receive_batch(limit=1) == notes[2:3]
    assert await box.all().receive_batch() == notes[3:]
    box.outbox.close()
    with pytest.raises(trio.EndOfChannel):
        await box.all().receive_batch()


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "2"])
async def test_a_bad_limit_of_a_batch_takes_nothing(limit: object) -> None:
    box = Box()
    note = box.add()
    with pytest.raises(
        ValueError, match="limit must be a whole number, 1 or more, or None"
    ):
        await box.all().receive_batch(limit)  # type: ignore[arg-type]
    assert box.all().drain() == [note]


async def test_a_cancelled_batch_takes_nothing() -> None:
    box = Box()
    note = box.add()
    box.publish()
    with trio.CancelScope() as scope:
        scope.cancel()
        await box.all().receive_batch()
    assert scope.cancelled_caught
    assert box.all().drain() == [note]


# Acknowledged without a reader, and read without an acknowledgement


@pytest.mark.parametrize("published", [True, False])
def test_a_consumed_record_reaches_no_reader(published: bool) -> None:
    box = Box()
    owners = box.of("a")
    note, next_note = box.add("a"), box.add("a")
    if published:
        box.publish()
    assert box.outbox.consume(note) and note.acked == "consumed"
    assert not box.outbox.consume(note)
    assert owners.drain() == [next_note]
    assert not box.outbox.consume(next_note) and next_note.acked is None
    assert box.outbox.unacknowledged == 1


def test_what_a_reader_took_and_did_not_acknowledge_is_found_again() -> None:
    """P4: a reader died with it in its hands."""
    box = Box()
    notes = [box.add(owner) for owner in ("a", "b", "a", "b", "a")]
    assert box.all().unacknowledged() == []
    box.of("b").drain()
    box.all().drain()
    assert box.all().unacknowledged() == notes
    assert box.of("a").unacknowledged() == notes[::2]
    assert box.of("c").unacknowledged() == []
    notes[2].ack()
    assert box.of("a").unacknowledged() == [notes[0], notes[4]]
    assert box.all().drain() == []
    for note in notes:
        note.ack()
    assert box.all().unacknowledged() == []


def test_what_a_turn_took_and_acknowledged_is_kept_no_longer() -> None:
    """P4, flat memory: it is not found again."""
    box = Box()
    note = box.add("a")
    box.publish()
    queue = box.outbox.ready_for("a", everyone=False)
    assert box.outbox.take(queue, deferred=False, offered=True) is note
    assert box.of("a").unacknowledged() == [note]
    assert note.ack()
    assert box.of("a").unacknowledged() == []


def test_what_the_readers_of_one_view_took_is_not_kept_for_the_others() -> None:
    """Flat memory: neither view may hold what it has no more."""
    box = Box()
    view = box.of("a")
    for _ in range(500):
        box.add("a")
        for note in view.drain():
            note.ack()
    assert len(box.outbox._ready._notes) < 50
    for _ in range(500):
        box.add("a")
        for note in box.all().drain():
            note.ack()
    assert len(view._ready._notes) < 50


def test_a_view_that_nobody_holds_is_forgotten() -> None:
    """Flat memory, with a view for each of a million owners."""
    box = Box()
    for number in range(100):
        note = box.add(f"owner {number}")
        assert box.of(f"owner {number}").drain() == [note]
    gc.collect()
    assert len(box.outbox._ready_of) == 0
    first, second = box.add("a"), box.add("a")
    box.publish()
    assert box.of("a").drain() == [first, second] and box.all().drain() == []


# Handed over to a parent that takes its messages in another way


def test_a_routed_record_goes_to_its_parent_and_to_no_reader() -> None:
    """An agent that runs gets the ends of its own tasks into its inbox."""
    box = Box()
    got: list[tuple[Notification, str]] = []
    view = box.of("a")
    note = box.add("a", deliver=lambda n: got.append((n, n.xml)))
    other = box.add("a")
    box.publish()
    assert [n for n, _ in got] == [note]
    assert ET.fromstring(got[0][1]).findtext("task-id") == note.task_id
    assert view.drain() == [other] and box.all().drain() == []
    assert box.all().unacknowledged() == [other]
    assert note.ack() and not note.ack()
    assert box.outbox.unacknowledged == 1


def test_a_routed_record_can_be_consumed_until_its_parent_takes_it() -> None:
    box = Box()
    got: list[Notification] = []
    before = box.add("a", deliver=got.append)
    assert box.outbox.consume(before)
    after = box.add("a", deliver=got.append)
    box.publish()
    assert got == [after]
    assert box.outbox.consume(after) and not after.ack()
    assert box.outbox.unacknowledged == 0


def test_a_routed_record_may_be_acknowledged_while_it_is_handed_over() -> None:
    """The parent has just ended."""

    def ends(note: Notification) -> None:
        assert note.ack("consumed")

    box = Box()
    note = box.add("a", deliver=ends)
    box.publish()
    assert note.acked == "consumed" and box.outbox.unacknowledged == 0
    assert box.acks == [(note.id, "consumed")]
    assert not box.outbox.is_waiting(note)


def test_an_ack_that_fails_while_it_is_handed_over_brings_no_record_back() -> None:
    """P4: it is acknowledged once, and counted once."""

    def ends(note: Notification) -> None:
        note.ack("consumed")

    box = Box()
    on_ack, left = box.outbox._on_ack, 1

    def fails_once(note: Notification, how: Ack) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise MemoryError
        on_ack(note, how)

    box.outbox._on_ack = fails_once
    note = box.add("a", deliver=ends)
    box.publish()
    for found in box.of("a").drain():
        found.ack()
    assert box.acks == [(note.id, "consumed")]
    assert box.outbox.unacknowledged == 0


def test_a_record_that_cannot_be_handed_over_goes_to_the_readers() -> None:
    """P4, P10."""

    def fails(note: Notification) -> None:
        raise KeyError("x")

    box = Box()
    note = box.add("a", deliver=fails)
    box.publish()
    assert box.of("a").drain() == [note]
    (warning,) = box.warnings
    assert note.id in warning and "KeyError('x')" in warning


def test_who_acknowledges_a_record_and_fails_then_gives_it_to_no_reader() -> None:
    """P4."""

    def fails(note: Notification) -> None:
        note.ack()
        raise KeyError("x")

    box = Box()
    note = box.add("a", deliver=fails)
    box.publish()
    ready = box.add("a")
    box.publish()
    box.outbox.route(ready, fails)
    assert (note.acked, ready.acked) == ("delivered", "delivered")
    assert box.of("a").drain() == box.all().drain() == box.all().unacknowledged() == []
    assert (box.outbox.unacknowledged, box.outbox.routed) == (0, 0)


def test_what_an_agent_that_goes_on_cannot_be_given_keeps_its_place() -> None:
    """P4: for the readers of its owner, too."""

    def fails(note: Notification) -> None:
        raise KeyError("x")

    box = Box()
    view = box.of("a")
    notes = [box.add("a") for _ in range(3)]
    box.publish()
    box.outbox.route(notes[0], fails)
    assert box.outbox.routed == 0
    assert view.drain() == notes


def test_an_agent_that_goes_on_is_told_once_and_only_what_nobody_has_had() -> None:
    """P4: whatever the notifier had no time for, and wherever it has crashed."""

    class Crash(Exception):
        pass

    box = Box()
    consumed, first, second = box.add("a"), box.add("a"), box.add("a")
    assert box.outbox.consume(consumed)
    assert box.outbox.untaken("a") == [first, second]
    queue = box.all()._ready

    class Crashing(deque[Notification]):
        def popleft(self) -> Notification:
            raise Crash

    # Behind the last that readers see of it.
    box.outbox._unsent = Crashing([first, second])
    with pytest.raises(Crash):
        box.publish()
    assert box.outbox.untaken("a") == [first, second]
    assert box.outbox.take(queue, deferred=False) is first
    assert box.outbox.untaken("a") == [second]
    box.outbox._unsent = deque([first, second])
    box.publish()
    assert box.all().drain() == [second]


def test_who_lets_a_reader_in_while_a_record_is_told_costs_no_other_one() -> None:
    """P4: a handler of the log that shows what there is, for instance."""
    box = Box()
    read: list[Notification] = []
    told = 0

    class Slow(NoJournal):
        def is_told(self, number: int) -> bool:
            return number <= told

    def shows(warning: str) -> None:
        if not read:
            read.append(first)
            read.extend(box.all().drain())

    def fails(note: Notification) -> None:
        raise KeyError("x")

    box.outbox._on_warning, box.outbox._journal = shows, Slow()
    first, second = box.add("a", deliver=fails), box.add("a")
    second.record = 1
    box.publish()
    told = 1
    box.publish()
    assert second in box.all().drain()


def test_an_ack_that_has_failed_is_made_again_by_whoever_has_wanted_it() -> None:
    """P4: who has consumed it, and the end of a task with progress."""
    box = Box()
    on_ack, fails = box.outbox._on_ack, True

    def fails_once(note: Notification, how: Ack) -> None:
        nonlocal fails
        if fails:
            fails = False
            raise MemoryError
        on_ack(note, how)

    box.outbox._on_ack = fails_once
    note, progress = box.add(), box.add_progress("s1", lambda: "a")
    with pytest.raises(MemoryError):
        box.outbox.consume(note)
    assert box.outbox.consume(note) and not box.outbox.consume(note)
    fails = True
    with pytest.raises(MemoryError):
        box.add(task_id="s1")
    end = box.add(task_id="s1")
    assert box.acks == [(note.id, "consumed"), (progress.id, "superseded")]
    assert box.all().drain() == [end] and not box.outbox._progress


def test_readers_meet_no_record_that_was_half_told() -> None:
    """P4: memory ran out there, and the notifier comes again."""

    class Full(deque[Notification]):
        def append(self, note: Notification) -> None:
            raise MemoryError

    box = Box()
    view = box.all()
    note = box.add()
    view._ready._notes = Full()
    with pytest.raises(MemoryError):
        box.publish()
    assert box.outbox.take(view._ready, deferred=True) is None
    view._ready._notes = deque()
    assert view.drain() == [note]


def test_a_silent_record_is_handed_to_nobody() -> None:
    """SD2."""
    box = Box()
    got: list[Notification] = []
    assert box.add("a", notify="silent", deliver=got.append).acked == "silent"
    box.publish()
    assert got == []


# Progress and prompts in the same queue


def test_progress_is_what_it_is_when_it_is_taken() -> None:
    """N48, P6."""
    box = Box()
    says = ["a"]
    note = box.add_progress("s1", lambda: says[-1])
    box.publish()
    assert note.xml == "" and box.outbox.has_untold_progress("s1")
    says.append("b")
    assert box.all().drain() == [note]
    assert (note.xml, note.display) == ("b", "b")
    assert not box.outbox.has_untold_progress("s1")
    assert note.ack() and not box.outbox._progress


def test_the_end_of_a_task_supersedes_all_its_progress() -> None:
    """N38: wherever that is, and whoever it is for."""
    box = Box()
    taken = box.add_progress("s1", lambda: "a")
    assert box.all().drain() == [taken]
    ready, unsent = (box.add_progress("s1", lambda: "b") for _ in range(2))
    other = box.add_progress("s2", lambda: "c")
    end = box.add(task_id="s1")
    assert [n.acked for n in (taken, ready, unsent)] == ["superseded"] * 3
    assert box.all().drain() == [other, end]
    assert box.all().unacknowledged() == [other, end]


def test_routed_progress_has_its_text_at_once() -> None:
    """Whoever gets it takes it later, and has only the text."""
    box = Box()
    got: list[str] = []
    box.outbox.add(
        "n1",
        "s1",
        "a",
        TaskStatus.RUNNING,
        "wake",
        lambda: Words(text="half", summary="half"),
        deliver=lambda note: got.append(note.xml),
        kind="progress",
    )
    nothing = box.outbox.add(
        "n2",
        "s1",
        "a",
        TaskStatus.RUNNING,
        "wake",
        lambda: None,
        deliver=lambda note: got.append(note.xml),
        kind="progress",
    )
    box.publish()
    assert got == ["half"] and nothing.acked == "superseded"


def test_a_prompt_keeps_its_place_among_the_ends() -> None:
    box = Box()
    notes = [box.add(), box.add_prompt("x"), box.add()]
    assert box.all().drain() == notes
    assert (notes[1].xml, notes[1].display) == ("x", "x")


async def test_the_readers_of_another_owner_are_not_woken() -> None:
    box = Box()
    view = box.of("b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(view.__anext__)
        await trio.testing.wait_all_tasks_blocked()
        box.add("a")
        box.publish()
        assert view._ready.readers.statistics().tasks_waiting == 1
        nursery.cancel_scope.cancel()
