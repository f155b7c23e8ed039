"""Where messages to an agent wait: in order, each handed out once or left."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import pytest
import trio
import trio.testing

from actors.agent import UserMessage
from actors.agent._inbox import INBOX_LIMIT
from actors.agent.hosting import Inbox, InboxClosed, InboxFull
from tests.actors.agent.agents import ended, told


def texts(messages):
    return [message.text for message in messages]


def test_messages_come_out_in_order_and_the_inbox_is_empty_then():
    """AG21."""
    inbox = Inbox()
    for text in "abc":
        inbox.put(told(text))
    assert len(inbox) == 3
    assert texts(inbox.take()) == ["a", "b", "c"]
    assert (len(inbox), inbox.take()) == (0, [])


def test_no_more_than_its_limit_may_wait():
    """AG21: what is refused changes nothing."""
    inbox = Inbox()
    for number in range(INBOX_LIMIT):
        inbox.put(told(str(number)))
    with pytest.raises(InboxFull, match="1000 messages wait for the agent already"):
        inbox.put(ended("one too many"))
    assert len(inbox) == INBOX_LIMIT == 1000
    inbox.take()
    inbox.put(told("now"))


def test_what_is_no_message_is_refused():
    inbox = Inbox()
    with pytest.raises(TypeError, match="message must be a UserMessage, not 'hello'"):
        inbox.put(cast("Any", "hello"))
    assert len(inbox) == 0


def test_a_closed_inbox_refuses_messages_and_keeps_what_is_left():
    inbox = Inbox()
    inbox.put(told("left"))
    assert texts(inbox.close()) == ["left"]
    with pytest.raises(InboxClosed, match="takes no more messages"):
        inbox.put(told("late"))
    assert texts(inbox.close()) == ["left"]


def test_a_one_shot_inbox_takes_ends_of_tasks_and_no_messages():
    """AG25."""
    inbox = Inbox(messages=False)
    with pytest.raises(InboxClosed, match="takes no messages while it runs"):
        inbox.put(told("hello"))
    inbox.put(ended("done"))
    assert texts(inbox.take()) == ["done"]


def test_it_is_closed_only_if_nothing_waits():
    """AG23."""
    inbox = Inbox()
    inbox.put(ended("done"))
    assert not inbox.close_if_empty()
    inbox.put(told("still open"))
    assert not inbox.close_if_empty(ends_count=False)
    inbox.take()
    inbox.put(ended("done"))
    assert inbox.asks() is False
    assert inbox.close_if_empty(ends_count=False)
    assert texts(inbox.close()) == ["done"]


def test_a_message_that_was_told_in_another_way_is_dropped():
    inbox = Inbox()
    inbox.put(told("a"), on_take=lambda: False)
    inbox.put(told("b"), on_take=lambda: True)
    inbox.put(told("c"))
    assert texts(inbox.take()) == ["b", "c"]


def test_what_waits_under_a_key_can_be_discarded():
    inbox = Inbox()
    inbox.put(ended("a"), key="n1")
    inbox.put(ended("b"), key="n2")
    inbox.put(told("c"))
    assert inbox.discard("n1")
    assert not inbox.discard("n1")
    assert texts(inbox.take()) == ["b", "c"]


def test_messages_without_a_key_cannot_be_discarded_by_none():
    inbox = Inbox()
    inbox.put(told("a"))
    assert not inbox.discard(None)
    assert len(inbox) == 1


def test_each_message_is_recorded_in_the_step_in_which_it_is_handed_out():
    inbox = Inbox()
    kept: list[UserMessage] = []
    inbox.put(told("before"))
    with inbox.read_by(kept.append, nullcontext):
        inbox.put(told("a"))
        inbox.put(told("b"), on_take=lambda: False)
        assert texts(inbox.take()) == texts(kept) == ["before", "a"]
    inbox.put(told("c"))
    assert texts(inbox.take()) == ["c"]
    assert texts(kept) == ["before", "a"]


async def test_a_wait_ends_at_once_if_something_waits_or_it_is_closed(autojump_clock):
    """AG24: after a checkpoint, without a wait for anybody."""

    async def others(inbox):
        """Return in how many of its steps another task saw the wait unfinished."""
        steps = 0
        async with trio.open_nursery() as nursery:

            async def wait():
                with trio.testing.assert_checkpoints():
                    await inbox.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(wait)
            while True:
                await trio.lowlevel.checkpoint()
                steps += 1
        return steps

    inbox = Inbox()
    with trio.fail_after(10) as limit:
        inbox.put(told("a"))
        assert await others(inbox) <= 2
        inbox.take()
        inbox.close()
        assert await others(inbox) <= 2
    assert limit.deadline - trio.current_time() == 10


@pytest.mark.parametrize("by", ["put", "close"])
async def test_a_wait_ends_with_the_next_message_and_with_the_close(by):
    """AG24: and a cancelled one takes nothing along."""
    inbox = Inbox()
    order = []

    async def wait(name):
        await inbox.wait()
        order.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "first")
        nursery.start_soon(wait, "second")
        with trio.CancelScope() as scope:
            nursery.start_soon(wait, "third")
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            with pytest.raises(trio.Cancelled):
                await inbox.wait()
        assert order == []
        inbox.put(told("a")) if by == "put" else inbox.close()
    assert sorted(order) == ["first", "second", "third"]
    assert texts(inbox.take()) == (["a"] if by == "put" else [])


def test_an_arrival_that_has_come_is_not_shown_twice():
    """Or whoever waits in turns would find it there for ever."""
    inbox = Inbox()
    inbox.next_arrival().set()
    assert not inbox.next_arrival().is_set()
    inbox.close()
    assert inbox.next_arrival().is_set()


async def test_a_wait_goes_on_if_the_message_was_discarded():
    inbox = Inbox()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inbox.wait)
        await trio.testing.wait_all_tasks_blocked()
        inbox.put(told("a"), key=1)
        inbox.discard(1)
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        inbox.put(told("b"))
