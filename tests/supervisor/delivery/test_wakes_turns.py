"""Turns of the host and its users: wakes wait for them, and they take what is there."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import trio
import trio.testing

from supervisor._delivery.turns import _inside
from supervisor._delivery.wakes import Wakes
from supervisor.tree import SupervisorError, WouldDeadlock
from tests.supervisor.delivery.boxes import Box
from tests.supervisor.delivery.hosts import Host, next_of, started, steps

# The host's own turns


async def test_a_wake_waits_for_the_end_of_every_turn_of_the_host() -> None:
    """N31, N32: it is owed until the parent is free."""
    box = Box()
    host = Host(box)
    async with started(host.run):
        async with box.turn(), box.turn():
            async with box.turn():
                note = box.add()
                box.publish()
                await trio.testing.wait_all_tasks_blocked()
            await trio.testing.wait_all_tasks_blocked()
            assert host.wakes == [] and note.acked is None
        await trio.testing.wait_all_tasks_blocked()
    assert host.wakes == [[note]]


@pytest.mark.sim(seeds=2)
@pytest.mark.parametrize("attempt", range(10))
async def test_an_owner_has_one_turn_at_a_time_in_the_order_of_asking(
    attempt: int,
) -> None:
    """N29: four users of one owner; one gives up while it waits, and what has ended
    wakes nobody before the last of them."""
    box = Box()
    host = Host(box)
    log: list[str] = []
    scopes = [trio.CancelScope() for _ in range(4)]

    async def part() -> None:
        async with box.turn():
            await steps(1)

    async def user(number: int) -> None:
        with scopes[number]:
            async with box.turn() as turn:
                log.append(f"{number} begins")
                await steps(attempt)
                # Parts of it.
                async with box.turn(), trio.open_nursery() as nursery:
                    nursery.start_soon(part)
                    nursery.start_soon(part)
                    await steps(3)
                log.append(f"{number} ends")
                turn.progressed()

    async with started(host.run) as nursery:
        async with box.turn():
            note = box.add()
            box.publish()
            for number in range(4):
                nursery.start_soon(user, number)
                await trio.testing.wait_all_tasks_blocked()
            scopes[1].cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert log == []
        while len(log) < 6:
            assert host.wakes == []
            await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
    assert log == [f"{n} {what}" for n in (0, 2, 3) for what in ("begins", "ends")]
    assert host.wakes == [[note]]


async def test_what_was_begun_in_a_turn_that_has_ended_is_no_part_of_the_next() -> None:
    """N29: a task of it that asks for a turn of its own waits as anybody does."""
    box = Box()
    log: list[str] = []
    go_on = trio.Event()

    async def later() -> None:
        await go_on.wait()
        async with box.turn():
            log.append("later")

    async with trio.open_nursery() as nursery:
        async with box.turn():
            nursery.start_soon(later)
            await trio.testing.wait_all_tasks_blocked()
        async with box.turn():
            go_on.set()
            await trio.testing.wait_all_tasks_blocked()
            assert log == []
    assert log == ["later"]


async def test_a_turn_of_another_owner_holds_nothing_up() -> None:
    box = Box()
    host = Host(box)
    async with started(host.run), box.turn("other"):
        box.add()
        box.publish()
        await trio.testing.wait_all_tasks_blocked()
        assert len(host.wakes) == 1


async def test_the_turn_of_a_user_waits_for_the_wake_and_goes_before_the_next() -> None:
    """N29, N33."""
    box = Box()
    log: list[str] = []
    go_on = trio.Event()

    async def host() -> None:
        async for wake in box.wakes():
            async with wake as turn:
                log.append("wake")
                turn.progressed()
                await go_on.wait()

    async def user(number: int) -> None:
        async with box.turn():
            log.append(f"user {number}")
            await steps(5)

    async with started(host, host) as nursery:
        box.add()
        box.publish()
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(user, 1)
        await trio.testing.wait_all_tasks_blocked()
        box.add()
        box.publish()
        nursery.start_soon(user, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert log == ["wake"]
        go_on.set()
        await trio.testing.wait_all_tasks_blocked()
    assert log[0] == "wake" and log[-1] == "wake" and len(log) == 4


async def test_a_user_that_gives_up_waiting_lets_the_next_wake_begin() -> None:
    box = Box()
    host = Host(box)
    go_on = trio.Event()

    async def first_turn() -> None:
        async with await next_of(box.wakes()) as turn:
            turn.progressed()
            await go_on.wait()

    async def user() -> None:
        async with box.turn():
            raise AssertionError("it never begins")

    async with started(first_turn) as nursery:
        first = box.add()
        box.publish()
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(host.run)
        async with started(user):
            second = box.add()
            box.publish()
            go_on.set()
            # In the step in which the wake's turn ends, or before.
        await trio.testing.wait_all_tasks_blocked()
    assert host.wakes == [[second]]
    assert first.acked == second.acked == "delivered"


async def test_a_turn_inside_the_turn_of_a_wake_is_part_of_it() -> None:
    """Also one in a task that the wake's turn has started."""
    box = Box()
    box.add()
    box.publish()
    begun: list[str] = []

    async def inner(where: str) -> None:
        async with box.turn():
            begun.append(where)

    with trio.fail_after(5):
        async with await next_of(box.wakes()) as turn:
            await inner("here")
            async with started(lambda: inner("in a task")):
                turn.progressed()
    assert begun == ["here", "in a task"]
    assert not box.parents.is_busy(None) and box.outbox.unacknowledged == 0


async def test_a_turn_after_that_of_a_wake_is_no_part_of_the_next() -> None:
    """It waits for the end of that, as any does."""
    box = Box()
    wakes = box.wakes()
    log: list[str] = []
    go_on = trio.Event()

    async def later() -> None:
        await go_on.wait()
        async with box.turn():
            log.append("user")

    async with trio.open_nursery() as nursery:
        box.add()
        box.publish()
        async with await next_of(wakes) as turn:
            # It runs in the context of this turn, and outlives it.
            nursery.start_soon(later)
            turn.progressed()
        box.add()
        box.publish()
        async with await next_of(wakes) as turn:
            go_on.set()
            await trio.testing.wait_all_tasks_blocked()
            turn.progressed()
            log.append("wake")
    assert log == ["wake", "user"]


@pytest.mark.parametrize("how", ["turn", "wake"])
async def test_asking_for_a_wake_in_a_turn_of_the_same_owner_is_refused(
    how: str,
) -> None:
    """It would wait for its own end."""
    box = Box()
    box.add()
    box.publish()
    async with box.turn() if how == "turn" else await next_of(box.wakes()):
        with pytest.raises(WouldDeadlock, match=r"owner None .* wait for its own end"):
            await next_of(box.wakes())
        with trio.move_on_after(0):
            await next_of(box.wakes("another"))


# A user who has just spoken


async def test_a_wake_waits_for_the_window_after_a_user_has_spoken(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """N33: counted from the beginning of the turn; its last moment belongs to it,
    and the one after it does not."""
    box = Box()
    began: list[float] = []

    async def host() -> None:
        async for wake in box.wakes(window=5.0):
            async with wake as turn:
                turn.progressed()
                began.append(trio.current_time())

    async with started(host):
        spoke_at = trio.current_time()
        async with box.turn():
            await trio.sleep(1)
        box.add()
        box.publish()
        await trio.sleep_until(spoke_at + 5.0)
        await trio.testing.wait_all_tasks_blocked()
        assert began == [] and trio.current_time() == spoke_at + 5.0
        await trio.sleep(1)
        assert len(began) == 1 and spoke_at + 5.0 < began[0] < spoke_at + 5.001
        # Nobody has spoken since, so the next is not held up.
        box.add()
        box.publish()
        now = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        assert began[1:] == [now]


async def test_the_window_holds_for_who_looks_for_a_wake_only_afterwards(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """N33: when nobody else has looked for one, and no turn is left, meanwhile."""
    box = Box()
    spoke_at = trio.current_time()
    async with box.turn():
        await trio.sleep(1)
    gc.collect()
    box.add()
    box.publish()
    async with await next_of(box.wakes(window=5.0)):
        assert spoke_at + 5.0 < trio.current_time() < spoke_at + 5.001


async def test_each_message_begins_the_window_anew_and_a_long_turn_outlasts_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """N33."""
    box = Box()
    began: list[float] = []

    async def host() -> None:
        async for wake in box.wakes(window=5.0):
            async with wake as turn:
                turn.progressed()
                began.append(trio.current_time())

    async with started(host):
        start = trio.current_time()
        box.add()
        async with box.turn():
            await trio.sleep(4)
            box.publish()
        async with box.turn():
            await trio.sleep(0.5)
        await trio.sleep(8)
        assert len(began) == 1 and start + 9.0 < began[0] < start + 9.001
        async with box.turn():
            box.add()
            box.publish()
            await trio.sleep(100)
            end = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        assert began[1:] == [end]


async def test_without_a_window_only_the_turn_itself_is_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """N33: 0 disables, also at the very moment."""
    box = Box()
    host = Host(box)
    async with started(host.run):
        now = trio.current_time()
        async with box.turn():
            box.add()
            box.publish()
        await trio.testing.wait_all_tasks_blocked()
        assert len(host.wakes) == 1 and trio.current_time() == now


@pytest.mark.parametrize(
    "window", [-1, -0.001, float("nan"), float("inf"), True, "1", None]
)
def test_a_bad_window_is_refused(window: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="window must be"):
        Box().wakes(window=window)


# In the middle of a turn


async def test_a_turn_takes_what_is_there_and_no_wake_tells_it() -> None:
    """Also what would wait for another, in the order of the ends."""
    box = Box()
    host = Host(box)
    async with started(host.run):
        async with box.turn() as turn:
            assert turn.take() == []
            notes = [box.add(), box.add(notify="defer")]
            box.add("another")
            assert turn.take() == notes and turn.take() == []
            assert not any(note.acked for note in notes)
            turn.progressed()
        await trio.testing.wait_all_tasks_blocked()
    assert host.wakes == []
    assert [note.acked for note in notes] == ["delivered"] * 2


async def test_what_a_turn_took_and_made_nothing_of_wakes_the_parent_once() -> None:
    """N32, N35."""
    box = Box()
    host = Host(box)
    async with started(host.run):
        async with box.turn() as turn:
            note = box.add()
            assert turn.take() == [note]
        await trio.testing.wait_all_tasks_blocked()
    assert host.wakes == [[note]] and note.acked == "delivered"


async def test_the_turn_of_a_wake_takes_more_and_tells_it_all() -> None:
    box = Box()
    first = box.add()
    box.publish()
    async with await next_of(box.wakes()) as turn:
        second = box.add()
        assert turn.take() == [second]
        turn.progressed()
    assert first.acked == second.acked == "delivered"


async def test_a_turn_that_is_not_under_way_takes_nothing() -> None:
    box = Box()
    note = box.add()
    turn = box.turn()
    for _ in range(2):
        with pytest.raises(SupervisorError, match="only a turn that is under way"):
            turn.take()
        async with turn:
            with pytest.raises(SupervisorError, match="under way is entered"):
                await turn.__aenter__()
    assert box.all().drain() == [note]


async def test_a_turn_that_is_used_again_must_progress_again() -> None:
    box = Box()
    turn = box.turn()
    async with turn:
        turn.progressed()
    async with turn:
        note = box.add()
        assert turn.take() == [note]
    assert note.acked is None and box.all().drain() == [note]


async def test_a_host_that_has_taken_many_wakes_keeps_none_of_them() -> None:
    """Flat memory."""
    box = Box()

    async def take_many(wakes: Wakes) -> None:
        for _ in range(100):
            box.add()
            box.publish()
            async with await next_of(wakes) as turn:
                turn.progressed()
        assert len(_inside.get()) == 0
        assert len(box.parents._parents) == 1

    await take_many(box.wakes())
    gc.collect()
    assert len(box.parents._parents) == 0
