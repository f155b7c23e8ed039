"""`actors._kernel.mailbox`: order, back-pressure, cancellation, closing, draining."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from actors import Mailbox, MailboxClosed, MailboxFull


def drained(mailbox: Mailbox[Any]) -> list[Any]:
    """Return what is still queued."""
    return [mailbox.receive_nowait() for _ in range(len(mailbox))]


async def receive_one(mailbox: Mailbox[Any]) -> list[Any]:
    return [await mailbox.receive()]


async def iterate_one(mailbox: Mailbox[Any]) -> list[Any]:
    async for message in mailbox:
        return [message]
    return []


async def next_or_none(mailbox: Mailbox[Any]) -> list[Any]:
    """`anext` with a default asks for what it awaits again and again."""
    message = await anext(mailbox, None)
    return [] if message is None else [message]


async def receive_all(mailbox: Mailbox[Any]) -> list[Any]:
    return await mailbox.receive_batch()


each_way_to_receive = pytest.mark.parametrize(
    "take", [receive_one, iterate_one, next_or_none, receive_all]
)
Take = Callable[[Mailbox[Any]], Awaitable[list[Any]]]


# Order and batches


async def test_a_batch_is_everything_queued_in_the_order_of_sending() -> None:
    mailbox: Mailbox[int] = Mailbox()
    for n in range(5):
        mailbox.put_nowait(n)
    assert await mailbox.receive_batch() == [0, 1, 2, 3, 4]
    assert len(mailbox) == 0


async def test_a_batch_after_single_messages_goes_on_where_those_ended() -> None:
    mailbox: Mailbox[int] = Mailbox()
    for n in range(4):
        mailbox.put_nowait(n)
    assert await mailbox.receive() == 0
    mailbox.put_nowait(4)
    assert mailbox.receive_nowait() == 1
    assert await mailbox.receive_batch() == [2, 3, 4]


async def test_a_batch_belongs_to_its_receiver() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put_nowait(1)
    batch = await mailbox.receive_batch()
    mailbox.put_nowait(2)
    assert batch == [1]
    batch.append(3)
    assert drained(mailbox) == [2]


@each_way_to_receive
async def test_a_receiver_waits_for_the_first_message(
    take: Take, nursery: trio.Nursery
) -> None:
    mailbox: Mailbox[str] = Mailbox()
    taken: list[str] = []

    async def receiver() -> None:
        taken.extend(await take(mailbox))

    nursery.start_soon(receiver)
    await wait_all_tasks_blocked()
    assert mailbox.statistics().receivers_waiting
    mailbox.put_nowait("a")
    await wait_all_tasks_blocked()
    assert taken == ["a"]
    assert not mailbox.statistics().receivers_waiting


@pytest.mark.sim(seeds=10)
async def test_receivers_are_woken_in_the_order_in_which_they_began_to_wait() -> None:
    """And one that iterates is handed the message of its place, also when all are
    woken in one tick (D26: trio runs them in a random order)."""
    together: Mailbox[int] = Mailbox()
    got: dict[int, int] = {}

    async def iterates(number: int) -> None:
        (got[number],) = await iterate_one(together)

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(iterates, number)
            await wait_all_tasks_blocked()
        for number in range(4):
            together.put_nowait(number)
    assert got == {number: number for number in range(4)}
    mailbox: Mailbox[int] = Mailbox()
    order: list[int] = []

    async def receiver(number: int) -> None:
        await mailbox.receive()
        order.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(receiver, number)
            await wait_all_tasks_blocked()
        assert mailbox.statistics().receivers_waiting == 4
        for number in range(4):
            mailbox.put_nowait(number)
            await wait_all_tasks_blocked()
    assert order == [0, 1, 2, 3]


async def test_a_receiver_that_comes_too_late_for_its_message_waits_for_the_next(
    nursery: trio.Nursery,
) -> None:
    mailbox: Mailbox[int] = Mailbox()
    taken: list[int] = []

    async def receiver() -> None:
        taken.append(await mailbox.receive())

    nursery.start_soon(receiver)
    await wait_all_tasks_blocked()
    mailbox.put_nowait(1)
    assert mailbox.receive_nowait() == 1
    await wait_all_tasks_blocked()
    assert taken == []
    mailbox.put_nowait(2)
    await wait_all_tasks_blocked()
    assert taken == [2]


async def test_receive_nowait_raises_if_there_is_nothing() -> None:
    mailbox: Mailbox[int] = Mailbox()
    with pytest.raises(trio.WouldBlock):
        mailbox.receive_nowait()


# Back-pressure


async def test_a_full_mailbox_refuses_put_nowait_and_names_its_capacity() -> None:
    mailbox: Mailbox[int] = Mailbox(2)
    mailbox.put_nowait(1)
    assert not mailbox.is_full
    mailbox.put_nowait(2)
    assert mailbox.is_full
    with pytest.raises(MailboxFull, match="holds its 2 messages") as caught:
        mailbox.put_nowait(3)
    assert caught.value.capacity == 2
    assert drained(mailbox) == [1, 2]


@pytest.mark.sim(seeds=10)
@pytest.mark.parametrize("take", [receive_one, receive_all])
async def test_waiting_senders_get_room_in_the_order_in_which_they_began_to_wait(
    take: Take,
) -> None:
    """trio runs the tasks of one tick in a random order (D26)."""
    mailbox: Mailbox[int] = Mailbox(3)
    received: list[int] = []
    async with trio.open_nursery() as nursery:
        for n in range(3):
            mailbox.put_nowait(n)
        for n in range(3, 10):
            nursery.start_soon(mailbox.put, n)
            await wait_all_tasks_blocked()
        assert mailbox.statistics().senders_waiting == 7
        while len(received) < 10:
            received += await take(mailbox)
            assert len(mailbox) <= 3
    assert received == list(range(10))


async def test_room_promised_to_a_waiting_sender_is_not_taken_by_another() -> None:
    mailbox: Mailbox[str] = Mailbox(1)
    mailbox.put_nowait("first")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mailbox.put, "waiting")
        await wait_all_tasks_blocked()
        assert mailbox.receive_nowait() == "first"
        with pytest.raises(MailboxFull):
            mailbox.put_nowait("pushy")
    assert drained(mailbox) == ["waiting"]


async def test_a_message_that_gets_room_wakes_a_second_receiver() -> None:
    mailbox: Mailbox[str] = Mailbox(1)
    taken: list[str] = []

    async def receiver() -> None:
        taken.append(await mailbox.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receiver)
        nursery.start_soon(receiver)
        await wait_all_tasks_blocked()
        mailbox.put_nowait("a")
        nursery.start_soon(mailbox.put, "b")
        with trio.fail_after(30):
            await wait_all_tasks_blocked()
        assert sorted(taken) == ["a", "b"]


async def test_on_put_tells_the_place_in_the_step_of_appending() -> None:
    mailbox: Mailbox[str] = Mailbox(1)
    places: list[int] = []
    await mailbox.put("a", places.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mailbox.put, "b", places.append)
        await wait_all_tasks_blocked()
        assert places == [1]
        mailbox.receive_nowait()
        assert places == [1, 2]
    assert mailbox.put_count == 2
    assert mailbox.taken_count == 1


@pytest.mark.parametrize("capacity", [0, -1, True, 1.5, "2", float("inf")])
def test_a_bad_capacity_is_refused_with_its_value(capacity: Any) -> None:
    with pytest.raises(
        ValueError, match=f"capacity must be .*, or None, not {capacity!r}"
    ):
        Mailbox(capacity)


async def test_statistics_tell_the_state_of_the_moment(nursery: trio.Nursery) -> None:
    mailbox: Mailbox[int] = Mailbox(2)
    mailbox.put_nowait(1)
    mailbox.put_nowait(2)
    nursery.start_soon(mailbox.put, 3)
    await wait_all_tasks_blocked()
    statistics = mailbox.statistics()
    assert (statistics.queued, statistics.received, statistics.capacity) == (2, 0, 2)
    assert (statistics.senders_waiting, statistics.receivers_waiting) == (1, 0)
    assert not statistics.closed
    assert repr(mailbox) == "<Mailbox 2/2 queued>"
    assert await mailbox.receive_batch() == [1, 2]
    mailbox.close()
    assert drained(mailbox) == [3]
    statistics = mailbox.statistics()
    assert (statistics.queued, statistics.received, statistics.closed) == (0, 3, True)
    assert repr(mailbox) == "<Mailbox 0/2 queued, closed>"


# Cancellation


@each_way_to_receive
@pytest.mark.parametrize("waiting_before", [0, 1])
@pytest.mark.parametrize(
    "steps", [["cancel", "put"], ["put", "cancel"], ["put", "tick", "cancel"]]
)
async def test_cancelling_a_receiver_neither_loses_nor_repeats_a_message(
    take: Take, waiting_before: int, steps: list[str]
) -> None:
    """Before, within and after the tick in which it is woken (D5)."""
    mailbox: Mailbox[str] = Mailbox()
    taken: list[str] = []

    async def receiver(scope: trio.CancelScope) -> None:
        with scope:
            taken.extend(await take(mailbox))

    async with trio.open_nursery() as nursery:
        scopes = [trio.CancelScope() for _ in range(waiting_before + 1)]
        for scope in scopes:
            nursery.start_soon(receiver, scope)
            await wait_all_tasks_blocked()
        for step in steps:
            if step == "cancel":
                scopes[0].cancel()
            elif step == "put":
                mailbox.put_nowait("message")
            else:
                await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        assert taken + drained(mailbox) == ["message"]
        if waiting_before and "message" not in taken:
            raise AssertionError("the message passed by a receiver that waited for it")
        nursery.cancel_scope.cancel()
    assert mailbox.statistics().receivers_waiting == 0


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_cancelling_one_of_several_receivers_leaves_the_others_waiting(
    which: int,
) -> None:
    mailbox: Mailbox[int] = Mailbox()
    taken: list[int] = []

    async def receiver(scope: trio.CancelScope) -> None:
        with scope:
            taken.append(await mailbox.receive())

    async with trio.open_nursery() as nursery:
        scopes = [trio.CancelScope() for _ in range(3)]
        for scope in scopes:
            nursery.start_soon(receiver, scope)
            await wait_all_tasks_blocked()
        scopes[which].cancel()
        await wait_all_tasks_blocked()
        assert mailbox.statistics().receivers_waiting == 2
        mailbox.put_nowait(1)
        mailbox.put_nowait(2)
        await wait_all_tasks_blocked()
        assert sorted(taken) == [1, 2]


@pytest.mark.parametrize(
    ("steps", "arrives"),
    [
        (["cancel", "take"], False),
        (["take", "cancel"], True),
        (["take", "tick", "cancel"], True),
    ],
)
async def test_a_cancelled_sender_has_put_its_message_or_not_and_knows_which(
    steps: list[str], arrives: bool
) -> None:
    mailbox: Mailbox[str] = Mailbox(1)
    mailbox.put_nowait("first")
    was_put: list[bool] = []

    async def sender(scope: trio.CancelScope) -> None:
        with scope:
            await mailbox.put("second")
        was_put.append(not scope.cancelled_caught)

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(sender, scope)
        await wait_all_tasks_blocked()
        for step in steps:
            if step == "cancel":
                scope.cancel()
            elif step == "take":
                assert mailbox.receive_nowait() == "first"
            else:
                await wait_all_tasks_blocked()
    assert was_put == [arrives]
    assert drained(mailbox) == (["second"] if arrives else [])


class Program:
    """A random program of several senders and receivers on one mailbox, and
    what the model says of its end."""

    def __init__(self, capacity: int | None) -> None:
        self.mailbox: Mailbox[tuple[int, int]] = Mailbox(capacity)
        self.put: set[tuple[int, int]] = set()
        self.taken: dict[int, list[tuple[int, int]]] = {}
        self.next_of: dict[int, int] = {}
        self.senders: dict[int, trio.CancelScope] = {}
        self.receivers: dict[int, trio.CancelScope] = {}

    async def send(self, sender: int, count: int, scope: trio.CancelScope) -> None:
        with scope:
            for _ in range(count):
                number = self.next_of.get(sender, 0)
                self.next_of[sender] = number + 1
                await self.mailbox.put((sender, number))
                self.put.add((sender, number))
        self.senders.pop(sender)

    async def receive(
        self, receiver: int, way: str, count: int, scope: trio.CancelScope
    ) -> None:
        mine = self.taken.setdefault(receiver, [])
        with scope:
            for _ in range(count):
                if way == "batch":
                    mine += await self.mailbox.receive_batch()
                elif way == "one":
                    mine.append(await self.mailbox.receive())
                else:
                    async for message in self.mailbox:
                        mine.append(message)
                        break
        self.receivers.pop(receiver)

    async def run(self, steps: list[tuple[str, int, int, str]]) -> None:
        async with trio.open_nursery() as nursery:
            for action, who, count, way in steps:
                if action == "send" and who not in self.senders:
                    self.senders[who] = trio.CancelScope()
                    nursery.start_soon(self.send, who, count, self.senders[who])
                elif action == "receive" and who not in self.receivers:
                    self.receivers[who] = trio.CancelScope()
                    nursery.start_soon(
                        self.receive, who, way, count, self.receivers[who]
                    )
                elif action == "cancel sender" and who in self.senders:
                    self.senders[who].cancel()
                elif action == "cancel receiver" and who in self.receivers:
                    self.receivers[who].cancel()
                elif action == "tick":
                    await trio.lowlevel.checkpoint()
                elif action == "settle":
                    await wait_all_tasks_blocked()
                    self.check_nobody_waits_in_vain()
            await wait_all_tasks_blocked()
            self.check_nobody_waits_in_vain()
            nursery.cancel_scope.cancel()
        left = drained(self.mailbox)
        everything = [
            message for mine in self.taken.values() for message in mine
        ] + left
        assert sorted(everything) == sorted(self.put), "each message exactly once"
        for sequence in [*self.taken.values(), left]:
            for sender in {who for who, _ in sequence}:
                numbers = [number for who, number in sequence if who == sender]
                assert numbers == sorted(numbers), (
                    "one sender's messages keep their order"
                )

    def check_nobody_waits_in_vain(self) -> None:
        statistics = self.mailbox.statistics()
        assert not (statistics.queued and statistics.receivers_waiting)
        if statistics.senders_waiting:
            assert statistics.queued == statistics.capacity
        if statistics.capacity is not None:
            assert statistics.queued <= statistics.capacity


@settings(max_examples=300, deadline=None)
@given(
    capacity=st.sampled_from([None, 1, 2, 3]),
    steps=st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "send",
                    "receive",
                    "receive",
                    "cancel sender",
                    "cancel receiver",
                    "tick",
                    "settle",
                ]
            ),
            st.integers(0, 2),
            st.integers(1, 4),
            st.sampled_from(["batch", "one", "iterate"]),
        ),
        max_size=30,
    ),
)
def test_any_program_gets_each_message_once_and_in_its_senders_order(
    capacity: int | None, steps: list[tuple[str, int, int, str]]
) -> None:
    trio.run(Program(capacity).run, steps)


def test_an_interrupt_while_a_message_is_appended_does_not_lose_it() -> None:
    """D23: it is delivered at the next checkpoint instead."""
    mailbox: Mailbox[str] = Mailbox()

    async def main() -> None:
        await mailbox.put("message", lambda place: signal.raise_signal(signal.SIGINT))
        mailbox.put_nowait("after")
        await trio.lowlevel.checkpoint()
        raise AssertionError("the interrupt was lost")

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert drained(mailbox) == ["message", "after"]


# Fairness


async def count_steps(done: trio.Event) -> int:
    steps = 0
    while not done.is_set():
        steps += 1
        await trio.lowlevel.checkpoint()
    return steps


class StepsOf(trio.abc.Instrument):
    """Counts the steps of one task."""

    def __init__(self) -> None:
        self.task: trio.lowlevel.Task | None = None
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task is self.task


async def test_a_receiver_that_waits_for_each_message_makes_no_other_checkpoint() -> (
    None
):
    """A wait is a checkpoint; another one would cost more than the message."""
    mailbox: Mailbox[int] = Mailbox()
    steps = StepsOf()

    async def receiver() -> None:
        steps.task = trio.lowlevel.current_task()
        for _ in range(200):
            await mailbox.receive()

    trio.lowlevel.add_instrument(steps)
    try:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receiver)
                for n in range(200):
                    await wait_all_tasks_blocked()
                    mailbox.put_nowait(n)
    finally:
        trio.lowlevel.remove_instrument(steps)
    assert steps.count <= 200


@pytest.mark.parametrize("way", ["receive", "iterate", "put"])
async def test_another_task_runs_at_least_once_in_64_messages(way: str) -> None:
    """D24."""
    mailbox: Mailbox[int] = Mailbox()
    if way != "put":
        for n in range(6400):
            mailbox.put_nowait(n)
    steps = 0
    done = trio.Event()

    async def neighbour() -> None:
        nonlocal steps
        steps = await count_steps(done)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(neighbour)
        for _ in range(6400):
            if way == "receive":
                await mailbox.receive()
            elif way == "iterate":
                await mailbox.__anext__()
            else:
                await mailbox.put(0)
        done.set()
    assert steps >= 99


@pytest.mark.parametrize("way", ["receive", "put"])
async def test_cancellation_arrives_within_64_messages(way: str) -> None:
    mailbox: Mailbox[int] = Mailbox()
    for n in range(1000):
        mailbox.put_nowait(n)
    handled = 0
    with trio.CancelScope() as scope:
        scope.cancel()
        while True:
            if way == "receive":
                await mailbox.receive()
            else:
                await mailbox.put(0)
            handled += 1
    assert handled < 64
    assert len(mailbox) == 1000 + (-handled if way == "receive" else handled)


# Closing


@each_way_to_receive
async def test_what_is_queued_at_the_close_can_still_be_received(take: Take) -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put_nowait(1)
    mailbox.close()
    assert await take(mailbox) == [1]
    if take in (iterate_one, next_or_none):
        assert await take(mailbox) == []
    else:
        with pytest.raises(MailboxClosed):
            await take(mailbox)
    with pytest.raises(MailboxClosed):
        mailbox.receive_nowait()


async def test_closing_wakes_everybody_who_waits() -> None:
    empty: Mailbox[int] = Mailbox()
    full: Mailbox[int] = Mailbox(1)
    full.put_nowait(1)
    ends: list[str] = []

    async def expect_closed(
        fn: Callable[..., Awaitable[object]], *args: object
    ) -> None:
        with pytest.raises(MailboxClosed):
            await fn(*args)
        ends.append("raised")

    async def iterate() -> None:
        async for _ in empty:
            pass
        ends.append("ended")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect_closed, empty.receive)
        nursery.start_soon(expect_closed, empty.receive_batch)
        nursery.start_soon(iterate)
        nursery.start_soon(expect_closed, full.put, 2)
        nursery.start_soon(expect_closed, full.put, 3)
        await wait_all_tasks_blocked()
        empty.close()
        full.close()
    assert sorted(ends) == ["ended", "raised", "raised", "raised", "raised"]
    assert drained(full) == [1]


async def test_a_closed_mailbox_takes_nothing_and_raises_what_it_was_told_to() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.close(lambda: RuntimeError("gone"))
    assert not mailbox.is_full
    with pytest.raises(RuntimeError, match="gone"):
        mailbox.put_nowait(1)
    with pytest.raises(RuntimeError, match="gone"):
        await mailbox.put(1)
    with pytest.raises(RuntimeError, match="gone"):
        await mailbox.receive()
    assert len(mailbox) == 0


async def test_a_reopened_mailbox_takes_messages_again_and_kept_the_old_ones() -> None:
    mailbox: Mailbox[int] = Mailbox(2)
    mailbox.put_nowait(1)
    mailbox.close()
    mailbox.reopen()
    mailbox.put_nowait(2)
    with pytest.raises(MailboxFull):
        mailbox.put_nowait(3)
    assert await mailbox.receive_batch() == [1, 2]


async def test_a_sender_that_waited_at_the_close_is_refused_even_if_it_reopens_at_once() -> (
    None
):
    mailbox: Mailbox[int] = Mailbox(1)
    mailbox.put_nowait(1)

    async def sender() -> None:
        with pytest.raises(MailboxClosed):
            await mailbox.put(2)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender)
        await wait_all_tasks_blocked()
        mailbox.close()
        mailbox.reopen()
    assert drained(mailbox) == [1]


async def test_a_receiver_that_waited_at_the_close_goes_on_waiting_if_it_reopens_at_once(
    nursery: trio.Nursery,
) -> None:
    mailbox: Mailbox[int] = Mailbox()
    taken: list[int] = []

    async def receiver() -> None:
        taken.append(await mailbox.receive())

    nursery.start_soon(receiver)
    await wait_all_tasks_blocked()
    mailbox.close()
    mailbox.reopen()
    await wait_all_tasks_blocked()
    mailbox.put_nowait(1)
    await wait_all_tasks_blocked()
    assert taken == [1]


# Draining


def unexpected() -> None:
    raise AssertionError("nobody waits for what will not come")


async def test_a_drained_iteration_ends_after_what_was_queued_at_that_moment() -> None:
    mailbox: Mailbox[int] = Mailbox()
    for n in range(3):
        mailbox.put_nowait(n)
    handled: list[int] = []
    async for message in mailbox:
        handled.append(message)
        if message == 0:
            mailbox.begin_drain(unexpected)
            mailbox.put_nowait(3)
            mailbox.begin_drain(unexpected)
    assert handled == [0, 1, 2]
    mailbox.end_drain()
    assert drained(mailbox) == [3]


async def test_a_drain_ends_the_iteration_of_everybody_who_waits() -> None:
    mailbox: Mailbox[int] = Mailbox()
    ended = 0
    handled: list[int] = []

    async def iterate() -> None:
        nonlocal ended
        handled.extend([message async for message in mailbox])
        ended += 1

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(iterate)
            await wait_all_tasks_blocked()
            mailbox.put_nowait(1)
            mailbox.begin_drain(unexpected)
    assert ended == 3
    assert handled == [1]


@pytest.mark.parametrize("take", [receive_one, receive_all])
async def test_a_receiver_is_cancelled_where_it_would_wait_during_a_drain(
    take: Take,
) -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put_nowait(1)
    with trio.CancelScope() as scope:
        mailbox.begin_drain(scope.cancel)
        mailbox.put_nowait(2)
        assert await take(mailbox) == [1]
        assert not scope.cancel_called
        await take(mailbox)
        raise AssertionError("it took what came after the drain began")
    assert scope.cancelled_caught
    with pytest.raises(trio.WouldBlock):
        mailbox.receive_nowait()
    mailbox.end_drain()
    assert await mailbox.receive() == 2


@pytest.mark.parametrize("take", [receive_one, receive_all])
async def test_a_receiver_that_waits_when_the_drain_begins_is_cancelled(
    take: Take,
) -> None:
    mailbox: Mailbox[int] = Mailbox()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, mailbox)
            await wait_all_tasks_blocked()
            mailbox.begin_drain(nursery.cancel_scope.cancel)


async def test_a_drain_takes_no_message_of_a_sender_that_waited_for_room() -> None:
    mailbox: Mailbox[int] = Mailbox(1)
    mailbox.put_nowait(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mailbox.put, 2)
        await wait_all_tasks_blocked()
        mailbox.begin_drain(unexpected)
        assert [message async for message in mailbox] == [1]
    mailbox.end_drain()
    assert drained(mailbox) == [2]


async def test_while_somebody_waits_nothing_is_put_past_the_mailbox() -> None:
    """Also in a drain, when messages are queued for later beside a receiver."""
    mailbox: Mailbox[int] = Mailbox()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            mailbox.begin_drain(lambda: None)
            mailbox.put_nowait(1)
            assert mailbox.open_queue == [1]
            nursery.start_soon(mailbox.receive)
            await wait_all_tasks_blocked()
            assert mailbox.statistics().receivers_waiting == 1
            assert mailbox.open_queue is None
            mailbox.end_drain()


async def test_the_end_of_a_drain_serves_those_who_wait() -> None:
    mailbox: Mailbox[int] = Mailbox()
    taken: list[int] = []

    async def receiver() -> None:
        with trio.CancelScope(shield=True):
            taken.append(await mailbox.receive())

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receiver)
            await wait_all_tasks_blocked()
            mailbox.begin_drain(lambda: None)
            mailbox.put_nowait(1)
            await wait_all_tasks_blocked()
            mailbox.end_drain()
    assert taken == [1]


# What is handed to a task that iterates


async def test_a_message_handed_over_is_neither_lost_nor_repeated_by_a_cancellation() -> (
    None
):
    """It is the waiting task's from the moment it was put."""
    mailbox: Mailbox[int] = Mailbox()
    got: list[int] = []

    async def listen(scope: trio.CancelScope) -> None:
        with scope:
            async for message in mailbox:
                got.append(message)
                await trio.lowlevel.checkpoint()

    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen, scope)
        await wait_all_tasks_blocked()
        mailbox.put_nowait(1)
        assert (len(mailbox), mailbox.taken_count, mailbox.put_count) == (0, 1, 1)
        scope.cancel()
        mailbox.put_nowait(2)
    assert got == [1]
    assert drained(mailbox) == [2]


async def test_a_cancelled_iteration_that_waits_leaves_the_next_message_to_others() -> (
    None
):
    mailbox: Mailbox[int] = Mailbox()
    with trio.move_on_after(0):
        await iterate_one(mailbox)
    assert mailbox.statistics().receivers_waiting == 0
    mailbox.put_nowait(1)
    assert drained(mailbox) == [1]


async def test_tasks_that_iterate_and_tasks_that_do_not_share_the_messages() -> None:
    """Each message once."""
    mailbox: Mailbox[int] = Mailbox()
    got: list[tuple[str, list[int]]] = []

    async def take(name: str, way: Take) -> None:
        got.append((name, await way(mailbox)))

    async with trio.open_nursery() as nursery:
        for name, way in (
            ("a", iterate_one),
            ("b", receive_one),
            ("c", iterate_one),
            ("d", receive_one),
        ):
            nursery.start_soon(take, name, way)
            await wait_all_tasks_blocked()
        for n in range(4):
            mailbox.put_nowait(n)
    assert sorted(name for name, _ in got) == ["a", "b", "c", "d"]
    assert sorted(messages[0] for _, messages in got) == [0, 1, 2, 3]
    assert len(mailbox) == 0
    assert mailbox.taken_count == 4


@pytest.mark.parametrize("by", ["drain", "close"])
async def test_an_iteration_that_waits_sees_the_end_of_a_drain_or_a_close(
    by: str,
) -> None:
    mailbox: Mailbox[int] = Mailbox()
    got: list[list[int]] = []

    async def take() -> None:
        got.append(await iterate_one(mailbox))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        if by == "drain":
            mailbox.begin_drain(lambda: None)
        else:
            mailbox.close()
    assert got == [[], []]


async def test_an_iteration_made_before_a_message_came_and_awaited_after_has_it() -> (
    None
):
    mailbox: Mailbox[int] = Mailbox()
    following = anext(mailbox)
    mailbox.put_nowait(1)
    assert await following == 1
    mailbox.put_nowait(2)
    following = anext(mailbox)
    assert drained(mailbox) == [2]
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _() -> None:
            assert await following == 3

        await wait_all_tasks_blocked()
        mailbox.put_nowait(3)


async def test_what_is_kept_during_a_drain_goes_to_those_who_wait_afterwards() -> None:
    """A task outside the actor may wait all the time."""
    mailbox: Mailbox[int] = Mailbox()
    cancelled = trio.CancelScope()

    async def look() -> None:
        with cancelled:
            await mailbox.receive()

    async with trio.open_nursery() as nursery:
        mailbox.begin_drain(cancelled.cancel)
        nursery.start_soon(look)
        await wait_all_tasks_blocked()
        mailbox.put_nowait(1)
        await wait_all_tasks_blocked()
        assert cancelled.cancelled_caught
        assert len(mailbox) == 1
        mailbox.end_drain()
        assert await iterate_one(mailbox) == [1]
