"""What is offered again, what is superseded, and what was read in another way."""

from __future__ import annotations

import gc

import pytest
import trio
import trio.testing

from supervisor.tree import SupervisorError
from tests.supervisor.delivery.boxes import Box
from tests.supervisor.delivery.hosts import Host, next_of, started, take_wake

# What led to nothing


WAYS = ["says nothing", "raises", "cancelled", "is not entered"]


@pytest.mark.parametrize("how", WAYS)
async def test_a_wake_that_led_to_nothing_is_offered_again_once(how: str) -> None:
    """N35, N36: then it is acknowledged, with a warning that names it."""
    box = Box()
    notes = [box.add(), box.add(notify="defer")]
    box.publish()
    wakes = box.wakes()
    with trio.fail_after(5):
        assert await take_wake(wakes, how) == notes
        later = box.add()
        box.publish()
        # At their old places, before what has ended since.
        assert await take_wake(wakes, how) == [*notes, later]
        assert await take_wake(wakes, how) == [later]
        box.outbox.close()
        with pytest.raises(StopAsyncIteration):
            await next_of(wakes)
    assert [note.acked for note in [*notes, later]] == ["delivered"] * 3
    assert len(box.warnings) == 3
    for note, warning in zip([*notes, later], box.warnings, strict=True):
        assert note.id in warning and note.task_id in warning
    assert box.outbox.unacknowledged == 0 and not box.parents.is_busy(None)


@pytest.mark.parametrize("how", WAYS)
async def test_the_second_time_it_may_lead_to_something(how: str) -> None:
    """N35."""
    box = Box()
    note = box.add()
    box.publish()
    wakes = box.wakes()
    with trio.fail_after(5):
        assert await take_wake(wakes, how) == [note]
        assert await take_wake(wakes, "progresses") == [note]
    assert note.acked == "delivered" and box.warnings == []


async def test_the_view_of_all_has_what_was_offered_again_at_its_place_too() -> None:
    box = Box()
    notes = [box.add(owner) for owner in ("a", "b", "a", "b")]
    everyone, one = box.all(), box.of("a")
    box.publish()
    wakes = box.wakes("a")
    assert await take_wake(wakes, "says nothing") == [notes[0], notes[2]]
    assert everyone.unacknowledged() == []
    assert box.outbox.first(one._ready) is notes[0]
    assert everyone.drain() == notes
    assert one.drain() == []


async def test_turns_that_give_back_in_another_order_keep_that_of_the_ends() -> None:
    box = Box()
    first_turn, second_turn = box.turn(), box.turn()
    async with second_turn:
        async with first_turn:
            first = box.add()
            assert first_turn.take() == [first]
            second = box.add()
            assert second_turn.take() == [second]
    assert box.of(None).drain() == [first, second]


async def test_what_the_host_has_acknowledged_itself_is_not_offered_again() -> None:
    box = Box()
    first, second = box.add(), box.add()
    box.publish()
    wakes = box.wakes()
    async with await next_of(wakes) as turn:
        assert first.ack()
    assert (await next_of(wakes)).notes == (second,)
    assert not turn.is_under_way


async def test_the_block_of_a_wake_is_entered_once_and_in_time() -> None:
    box = Box()
    box.add()
    box.publish()
    wakes = box.wakes()
    late = await next_of(wakes)
    wake = await next_of(wakes)
    with pytest.raises(SupervisorError, match="entered once, and before the next"):
        await late.__aenter__()
    async with wake as turn:
        turn.progressed()
        with pytest.raises(SupervisorError, match="entered once"):
            await wake.__aenter__()
    with pytest.raises(SupervisorError, match="entered once"):
        await wake.__aenter__()


# What the parent has read in another way


async def test_what_was_read_before_the_wake_begins_is_not_in_it() -> None:
    """N32: also what was queued for it, and what was offered once."""
    box = Box()
    async with box.turn():
        notes = [box.add() for _ in range(3)]
        box.publish()
        assert box.outbox.consume(notes[1])
    wakes = box.wakes()
    assert await take_wake(wakes, "says nothing") == [notes[0], notes[2]]
    assert box.outbox.consume(notes[0])
    assert await take_wake(wakes, "progresses") == [notes[2]]
    assert [note.acked for note in notes] == ["consumed", "consumed", "delivered"]


async def test_a_wake_of_which_all_was_read_never_begins() -> None:
    """N32."""
    box = Box()
    host = Host(box)
    async with started(host.run):
        async with box.turn():
            notes = [box.add(), box.add()]
            box.publish()
            await trio.testing.wait_all_tasks_blocked()
            assert all(box.outbox.consume(note) for note in notes)
        await trio.testing.wait_all_tasks_blocked()
    assert host.wakes == [] and box.outbox.unacknowledged == 0


async def test_what_was_read_during_its_wake_is_not_offered_again() -> None:
    """N32, N35: the turn itself has read the output, and then failed."""
    box = Box()
    note = box.add()
    box.publish()
    wakes = box.wakes()
    async with await next_of(wakes):
        assert box.outbox.consume(note)
    box.outbox.close()
    with pytest.raises(StopAsyncIteration):
        await next_of(wakes)
    assert note.acked == "consumed" and box.warnings == []


@pytest.mark.parametrize("asks", ["a reader", "a user"])
@pytest.mark.parametrize("keeps", [True, False])
async def test_a_reader_that_dies_with_a_wake_in_its_hand_holds_nobody_up(
    asks: str, keeps: bool
) -> None:
    """N35, P4: before it has entered the block; also where its error, and with that
    the wake, is kept."""
    box, kept = Box(), list[BaseException]()
    note = box.add()
    box.publish()

    async def dies() -> None:
        try:
            await next_of(box.wakes())
            raise ValueError
        except ValueError as error:
            if keeps:
                kept.append(error)

    async with started(dies):
        pass
    gc.collect()
    with trio.fail_after(10):
        if asks == "a user":
            async with box.turn() as turn:
                assert turn.take() == [note]
                turn.progressed()
        else:
            assert await take_wake(box.wakes(), "progresses") == [note]
    assert note.acked == "delivered" and box.outbox.unacknowledged == 0


async def test_a_reader_that_gave_its_wake_up_gets_what_was_in_it_again() -> None:
    """N35: with another iterator, or in a turn of its own."""
    box = Box()
    note = box.add()
    box.publish()
    given_up = await next_of(box.wakes())
    with trio.fail_after(10):
        async with box.turn():
            pass
        assert await take_wake(box.wakes(), "progresses") == [note]
    with pytest.raises(SupervisorError, match="entered once"):
        await given_up.__aenter__()


# Finals and progress


async def test_a_final_supersedes_the_progress_that_nobody_has_had() -> None:
    """N38."""
    box = Box()
    other = box.add_progress("s2", lambda: "half")
    box.add_progress("s1", lambda: "a quarter")
    progress = box.add_progress("s1", lambda: "half")
    box.publish()
    final = box.add(task_id="s1")
    box.publish()
    assert progress.acked == "superseded"
    assert (await next_of(box.wakes())).notes == (other, final)
    assert box.outbox.has_untold_progress("s2") is False


async def test_a_final_supersedes_the_progress_of_a_wake_that_led_to_nothing() -> None:
    """N38, N35."""
    box = Box()
    progress = box.add_progress("s1", lambda: "half")
    box.publish()
    wakes = box.wakes()
    async with await next_of(wakes):
        final = box.add(task_id="s1")
        box.publish()
    assert (await next_of(wakes)).notes == (final,)
    assert progress.acked == "superseded"


async def test_distinct_finals_of_one_task_are_both_kept_and_none_comes_twice() -> None:
    """N38: an agent that was resumed ends twice."""
    box = Box()
    first, second = box.add(task_id="a1"), box.add(task_id="a1")
    box.publish()
    box.publish()
    wakes = box.wakes()
    assert await take_wake(wakes, "says nothing") == [first, second]
    assert await take_wake(wakes, "progresses") == [first, second]
    box.outbox.close()
    with pytest.raises(StopAsyncIteration):
        await next_of(wakes)


async def test_progress_is_told_as_it_is_when_it_is_taken() -> None:
    """N48: and no wake is made of progress that is none any more."""
    box = Box()
    says: list[str | None] = ["a quarter"]
    host = Host(box)
    async with started(host.run):
        async with box.turn():
            progress = box.add_progress("s1", lambda: says[-1])
            box.publish()
            says.append("half")
        await trio.testing.wait_all_tasks_blocked()
        assert host.wakes == [[progress]] and progress.xml == "half"
        async with box.turn():
            none = box.add_progress("s1", lambda: says[-1])
            box.publish()
            says.append(None)
        await trio.testing.wait_all_tasks_blocked()
        assert host.wakes == [[progress]] and none.acked == "superseded"
    assert box.outbox.unacknowledged == 0 and not box.outbox._progress


async def test_progress_that_was_offered_for_nothing_is_told_unchanged() -> None:
    box = Box()
    says = iter(["the first half", "the second half"])
    box.add_progress("s1", lambda: next(says))
    box.publish()
    wakes = box.wakes()
    async with await next_of(wakes):
        pass
    box.add_progress("s1", lambda: next(says))
    box.publish()
    wake = await next_of(wakes)
    assert [note.xml for note in wake.notes] == ["the first half", "the second half"]


async def test_prompts_progress_and_ends_share_one_queue() -> None:
    box = Box()
    notes = [
        box.add(),
        box.add_prompt("look around"),
        box.add_progress("s9", lambda: "half"),
        box.add(),
        box.add_prompt("and again"),
    ]
    box.publish()
    assert (await next_of(box.wakes())).notes == tuple(notes)
    assert [n.kind for n in notes] == ["task", "prompt", "progress", "task", "prompt"]
