"""`actors._kernel.ref`: telling, asking, waiting for the end."""

from __future__ import annotations

import contextlib
import itertools
import threading
from _thread import get_ident
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors import (
    ActorEnded,
    ActorRestarting,
    ActorStopping,
    AskUnanswered,
    Completed,
    Context,
    Exit,
    Failed,
    ForeignThread,
    MailboxFull,
    Reply,
    Stopped,
)
from actors.lowlevel import Cell, Incarnation


class Child(Cell[Any]):
    """An actor under the simplest supervisor: after each end it waits for the
    test to say what follows."""

    def __init__(
        self,
        nursery: trio.Nursery,
        fn: Callable[..., Awaitable[object]],
        capacity: int | None = None,
    ) -> None:
        super().__init__(
            "it",
            capacity=capacity,
            drain=0.0,
            shutdown=5.0,
            thread=get_ident(),
            token=trio.lowlevel.current_trio_token(),
        )
        self.nursery = nursery
        self.fn = fn
        self.ends = False
        self.exits: list[Exit[object]] = []

    def start(self, number: int = 1) -> Incarnation[Any]:
        return self.begin(self.nursery, self.fn, (), number=number, acknowledge=True)

    def on_exit(self, incarnation: Incarnation[Any], exit: Exit[object]) -> None:
        self.exits.append(exit)
        if self.ends:
            self.end()
        else:
            self.await_restart()


@pytest.fixture
async def actors_nursery() -> AsyncIterator[trio.Nursery]:
    """What a supervisor has: a nursery whose actors are stopped one by one."""
    async with trio.open_nursery() as nursery:
        yield nursery
        for task in nursery.child_tasks:
            assert task.coro.cr_frame is not None
            task.coro.cr_frame.f_locals["self"].stop("supervisor")


@attrs.frozen
class Question:
    text: str
    reply: Reply[str]


def question(text: str = "?") -> Callable[[Reply[str]], Question]:
    return lambda reply: Question(text, reply)


async def echo(ctx: Context[Any]) -> None:
    async for message in ctx.mailbox:
        message.reply.tell(message.text)


async def deaf(ctx: Context[Any]) -> None:
    await trio.sleep_forever()


# Telling


async def test_messages_of_one_sender_arrive_in_order_however_they_were_sent(
    actors_nursery: trio.Nursery,
) -> None:
    got: list[int] = []

    async def keep(ctx: Context[int]) -> None:
        while True:
            got.append(await ctx.mailbox.receive())

    child = Child(actors_nursery, keep)
    child.tell(1)
    child.start()
    child.tell(2)
    await child.send(3)
    child.tell(4)
    assert child.statistics().queued + len(got) == 4
    await wait_all_tasks_blocked()
    assert got == [1, 2, 3, 4]


async def test_what_was_told_before_the_first_step_is_handled(
    actors_nursery: trio.Nursery,
) -> None:
    """B76."""
    child = Child(actors_nursery, echo)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                assert await child.ask(question("early")) == "early"

            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            assert child.state == "starting"
            child.start()
    assert child.state == "running"


async def test_a_bounded_actor_refuses_tell_and_makes_send_wait(
    actors_nursery: trio.Nursery,
) -> None:
    child = Child(actors_nursery, deaf, capacity=1)
    child.start()
    child.tell(1)
    with pytest.raises(MailboxFull):
        child.tell(2)
    with trio.move_on_after(0) as scope:
        await child.send(2)
    assert scope.cancelled_caught
    assert child.statistics().queued == 1


async def test_an_ended_actor_takes_nothing(actors_nursery: trio.Nursery) -> None:
    child = Child(actors_nursery, deaf)
    child.start()
    child.ends = True
    child.stop()
    await child.wait_exit()
    with pytest.raises(ActorEnded, match="actor 'it' has ended") as caught:
        child.tell(1)
    assert caught.value.actor_id == "it"
    with pytest.raises(ActorEnded):
        await child.send(1)
    with pytest.raises(ActorEnded):
        await child.ask(question())


async def test_a_sender_that_waits_for_room_is_told_of_the_end(
    actors_nursery: trio.Nursery,
) -> None:
    child = Child(actors_nursery, deaf, capacity=1)
    child.start()
    child.tell(1)

    async def send() -> None:
        with pytest.raises(ActorEnded):
            await child.send(2)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        child.ends = True
        child.stop()


async def test_an_actor_that_closed_its_mailbox_has_ended_once_it_has(
    actors_nursery: trio.Nursery,
) -> None:
    async def close(ctx: Context[int]) -> None:
        ctx.mailbox.close()

    child = Child(actors_nursery, close)
    child.ends = True
    child.start()
    await child.wait_exit()
    with pytest.raises(ActorEnded):
        child.tell(1)


async def test_tell_from_a_foreign_thread_names_the_way_that_works(
    actors_nursery: trio.Nursery,
) -> None:
    child = Child(actors_nursery, deaf)
    child.start()
    with trio.fail_after(10):
        with pytest.raises(ForeignThread, match=r"'it'.*ref\.from_thread\(message\)"):
            await trio.to_thread.run_sync(child.tell, 1)
    assert child.statistics().queued == 0


async def test_from_thread_delivers_what_a_foreign_thread_says(
    actors_nursery: trio.Nursery,
) -> None:
    got: list[int] = []
    enough = trio.Event()

    async def keep(ctx: Context[int]) -> None:
        async for message in ctx.mailbox:
            got.append(message)
            if len(got) == 100:
                enough.set()

    child = Child(actors_nursery, keep)
    child.start()

    def talk() -> None:
        for n in range(100):
            child.from_thread(n)

    thread = threading.Thread(target=talk)
    with trio.fail_after(10):
        thread.start()
        await enough.wait()
        await trio.to_thread.run_sync(thread.join)
    assert got == list(range(100))


@pytest.mark.parametrize("how", ["ended", "full", "closed by itself"])
async def test_from_thread_to_an_actor_that_takes_nothing_disturbs_nobody(
    actors_nursery: trio.Nursery, how: str
) -> None:
    child = Child(actors_nursery, deaf, capacity=1)
    child.start()
    if how == "ended":
        child.ends = True
        child.stop()
        await child.wait_exit()
    elif how == "full":
        child.tell(1)
    else:
        child.mailbox.close()
    child.from_thread(2)
    await wait_all_tasks_blocked()
    assert child.statistics().queued == (1 if how == "full" else 0)


def test_from_thread_after_the_run_raises_actor_ended() -> None:
    """D27."""

    async def main() -> Child:
        async with trio.open_nursery() as nursery:
            child = Child(nursery, deaf)
            child.start()
            child.stop()
        return child

    child = trio.run(main)
    with pytest.raises(ActorEnded):
        child.from_thread(1)


# Asking


async def test_an_answer_comes_back(actors_nursery: trio.Nursery) -> None:
    child = Child(actors_nursery, echo)
    child.start()
    assert await child.ask(question("a")) == "a"
    assert await child.ask(question("b")) == "b"


async def test_an_answer_may_be_none(actors_nursery: trio.Nursery) -> None:
    async def answer(ctx: Context[Reply[None]]) -> None:
        async for reply in ctx.mailbox:
            reply.tell(None)

    child = Child(actors_nursery, answer)
    child.start()
    await child.ask(lambda reply: reply)


async def test_the_actor_can_let_ask_raise(actors_nursery: trio.Nursery) -> None:
    async def refuse(ctx: Context[Question]) -> None:
        async for message in ctx.mailbox:
            assert message.reply.fail(KeyError(message.text))

    child = Child(actors_nursery, refuse)
    child.start()
    with pytest.raises(KeyError, match="a"):
        await child.ask(question("a"))


async def test_only_the_first_answer_counts(actors_nursery: trio.Nursery) -> None:
    seen: list[bool] = []

    async def answer(ctx: Context[Question]) -> None:
        async for message in ctx.mailbox:
            seen.append(message.reply.tell("first"))
            seen.append(message.reply.tell("second"))
            seen.append(message.reply.fail(ValueError("third")))

    child = Child(actors_nursery, answer)
    child.start()
    assert await child.ask(question()) == "first"
    assert seen == [True, False, False]


async def test_an_answer_after_the_asker_has_gone_is_dropped(
    actors_nursery: trio.Nursery,
) -> None:
    """B57."""
    go = trio.Event()
    seen: list[bool] = []

    async def late(ctx: Context[Question]) -> None:
        async for message in ctx.mailbox:
            await go.wait()
            seen.append(message.reply.tell("late"))

    child = Child(actors_nursery, late)
    child.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child.ask, question())
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert child.state == "running"
    go.set()
    await wait_all_tasks_blocked()
    assert seen == [False]
    assert await child.ask(question()) == "late"


@pytest.mark.parametrize("first", ["answer", "cancel"])
async def test_an_answer_and_a_cancellation_in_one_tick_agree_on_what_happened(
    actors_nursery: trio.Nursery, first: str
) -> None:
    """B57."""
    replies: list[Reply[str]] = []

    async def collect(ctx: Context[Question]) -> None:
        while True:
            replies.append((await ctx.mailbox.receive()).reply)

    child = Child(actors_nursery, collect)
    child.start()
    got: list[str] = []

    async def ask(scope: trio.CancelScope) -> None:
        with scope:
            got.append(await child.ask(question()))

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(ask, scope)
        await wait_all_tasks_blocked()
        if first == "cancel":
            scope.cancel()
            # It has been woken with the cancellation and has not run yet.
            assert not replies[0].tell("a")
        else:
            assert replies[0].tell("a")
            scope.cancel()
    assert got == (["a"] if first == "answer" else [])


@pytest.mark.parametrize("end", ["fail", "return", "stop"])
@pytest.mark.parametrize("by_batch", [False, True])
async def test_a_question_that_was_taken_fails_when_its_incarnation_ends(
    actors_nursery: trio.Nursery, end: str, by_batch: bool
) -> None:
    """A batch belongs to the incarnation, handled or not."""
    go = trio.Event()

    async def take(ctx: Context[Question]) -> None:
        if by_batch:
            assert len(await ctx.mailbox.receive_batch()) == 2
        else:
            await ctx.mailbox.receive()
            await ctx.mailbox.receive()
        await go.wait()
        if end == "fail":
            raise ValueError("crash")
        if end == "stop":
            ctx.ref.stop()
            await ctx.mailbox.receive()

    child = Child(actors_nursery, take)
    errors: list[AskUnanswered] = []

    async def ask() -> None:
        with pytest.raises(AskUnanswered, match="'it' took the question") as caught:
            await child.ask(question())
        errors.append(caught.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        child.start()
        await wait_all_tasks_blocked()
        go.set()
    assert [type(error.exit) for error in errors] == [
        {"fail": Failed, "return": Completed, "stop": Stopped}[end]
    ] * 2
    assert errors[0] is not errors[1], "two tasks must not raise one exception"


async def test_a_queued_question_survives_a_restart(
    actors_nursery: trio.Nursery,
) -> None:
    """B77: only the question that was taken is lost."""

    async def crash_on_the_first(ctx: Context[Question]) -> None:
        async for message in ctx.mailbox:
            if ctx.number == 1:
                raise ValueError("crash")
            message.reply.tell(f"{message.text} by {ctx.number}")

    child = Child(actors_nursery, crash_on_the_first)
    answers: list[str] = []

    async def ask_unanswered() -> None:
        with pytest.raises(AskUnanswered):
            await child.ask(question("first"))

    async def ask(text: str) -> None:
        answers.append(await child.ask(question(text)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_unanswered)
        await wait_all_tasks_blocked()
        nursery.start_soon(ask, "second")
        await wait_all_tasks_blocked()
        child.start()
        await wait_all_tasks_blocked()
        assert child.state == "restarting"
        assert answers == []
        child.start(2)
    assert answers == ["second by 2"]


async def test_a_queued_question_fails_when_the_actor_ends(
    actors_nursery: trio.Nursery,
) -> None:
    child = Child(actors_nursery, deaf)
    child.start()

    async def ask() -> None:
        with pytest.raises(ActorEnded):
            await child.ask(question())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        child.ends = True
        child.stop()


async def test_nobody_is_asked_who_would_not_answer(
    actors_nursery: trio.Nursery,
) -> None:
    """B77: a stopping, a restarting and an ended actor say so at once."""

    async def linger(ctx: Context[Question]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(60, shield=True):
                await go.wait()

    go = trio.Event()
    made: list[Reply[str]] = []

    def make(reply: Reply[str]) -> Question:
        made.append(reply)
        return Question("?", reply)

    child = Child(actors_nursery, linger)
    child.start()
    await wait_all_tasks_blocked()
    child.stop()
    with pytest.raises(ActorStopping):
        await child.ask(make)
    go.set()
    await child.wait_exit()
    with pytest.raises(ActorRestarting):
        await child.ask(make)
    child.end()
    with pytest.raises(ActorEnded):
        await child.ask(make)
    assert child.statistics().queued == 0


async def test_a_failing_message_maker_sends_nothing(
    actors_nursery: trio.Nursery,
) -> None:
    child = Child(actors_nursery, echo)
    child.start()

    def make(reply: Reply[str]) -> Question:
        raise ValueError("no message")

    with pytest.raises(ValueError, match="no message"):
        await child.ask(make)
    assert child.statistics().received == 0


async def test_questions_to_a_full_mailbox_wait_for_room_and_are_all_answered(
    actors_nursery: trio.Nursery,
) -> None:
    child = Child(actors_nursery, echo, capacity=1)
    answers: dict[int, str] = {}

    async def ask(n: int) -> None:
        answers[n] = await child.ask(question(str(n)))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for n in range(20):
                nursery.start_soon(ask, n)
            await wait_all_tasks_blocked()
            assert child.statistics().senders_waiting == 19
            child.start()
    assert answers == {n: str(n) for n in range(20)}


async def test_a_question_that_got_room_and_was_taken_before_its_asker_ran_fails_too(
    actors_nursery: trio.Nursery,
) -> None:
    """All in one tick: room is made, the question is taken, the actor ends."""

    async def take_two_and_crash(ctx: Context[Any]) -> None:
        assert await ctx.mailbox.receive() == "first"
        assert isinstance(ctx.mailbox.receive_nowait(), Question)
        raise ValueError("crash")

    child = Child(actors_nursery, take_two_and_crash, capacity=1)
    child.tell("first")

    async def ask() -> None:
        with pytest.raises(AskUnanswered):
            await child.ask(question())

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            child.start()


async def test_a_question_cancelled_while_it_waits_for_room_is_not_sent(
    actors_nursery: trio.Nursery,
) -> None:
    child = Child(actors_nursery, deaf, capacity=1)
    child.start()
    child.tell("first")
    with trio.move_on_after(0):
        await child.ask(question())
    assert child.mailbox.receive_nowait() == "first"
    assert child.statistics().queued == 0


# Waiting for the end


async def test_every_waiter_gets_the_exit(actors_nursery: trio.Nursery) -> None:
    """B59."""

    async def answer(ctx: Context[Any]) -> int:
        await go.wait()
        return 42

    go = trio.Event()
    child = Child(actors_nursery, answer)
    child.ends = True
    child.start()
    exits: list[Exit[object]] = []

    async def wait(fn: Callable[[], Awaitable[Exit[object]]]) -> None:
        exits.append(await fn())

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(wait, child.wait_exit)
            nursery.start_soon(wait, child.wait_stopped)
        await wait_all_tasks_blocked()
        go.set()
    assert exits == [Completed(42)] * 10
    assert all(exit is exits[0] for exit in exits)


async def test_waiting_for_an_actor_that_is_dead_already_returns_at_once(
    actors_nursery: trio.Nursery,
) -> None:
    """B59."""
    child = Child(actors_nursery, deaf)
    child.ends = True
    child.start()
    child.stop("enough")
    await wait_all_tasks_blocked()
    with trio.testing.assert_checkpoints():
        assert await child.wait_exit() == Stopped("stop", "enough")
    with trio.testing.assert_checkpoints():
        assert await child.wait_stopped() == Stopped("stop", "enough")


async def test_wait_exit_is_for_one_incarnation_and_wait_stopped_for_the_last(
    actors_nursery: trio.Nursery,
) -> None:
    async def crash(ctx: Context[int]) -> None:
        raise ValueError(await ctx.mailbox.receive())

    child = Child(actors_nursery, crash)
    child.start()
    finals: list[Exit[object]] = []

    async def wait_stopped() -> None:
        finals.append(await child.wait_stopped())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_stopped)
        child.tell(1)
        first = await child.wait_exit()
        assert isinstance(first, Failed) and first.error.args == (1,)
        assert await child.wait_exit() is first
        child.start(2)
        child.tell(2)
        second = await child.wait_exit()
        assert isinstance(second, Failed) and second.error.args == (2,)
        await wait_all_tasks_blocked()
        assert finals == []
        child.end()
    assert finals == [second]


async def test_wait_stopped_tells_of_the_end_also_if_the_actor_was_started_again_at_once(
    actors_nursery: trio.Nursery,
) -> None:
    child = Child(actors_nursery, deaf)
    child.start()
    finals: list[Exit[object]] = []

    async def wait_stopped() -> None:
        finals.append(await child.wait_stopped())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_stopped)
        await wait_all_tasks_blocked()
        child.stop("first")
        await child.wait_exit()
        child.end()
        child.begin_again()
        child.start(2)
    assert finals == [Stopped("stop", "first")]
    assert child.state == "running"


async def test_a_waiter_that_gave_up_disturbs_nobody(
    actors_nursery: trio.Nursery,
) -> None:
    """B59."""
    child = Child(actors_nursery, deaf)
    child.start()
    with trio.move_on_after(0) as scope:
        await child.wait_exit()
    assert scope.cancelled_caught
    child.stop()
    assert await child.wait_exit() == Stopped("stop")


async def test_a_reference_says_who_it_is(actors_nursery: trio.Nursery) -> None:
    child = Child(actors_nursery, deaf)
    child.start()
    assert repr(child) == "<ActorRef it starting>"
    await wait_all_tasks_blocked()
    assert repr(child) == "<ActorRef it running>"
    assert child.spawned_by is None


async def test_everything_told_comes_once_and_in_order_however_it_is_read() -> None:
    """In every order of the ways to read, with messages before each of them."""
    ways = ("iterate", "receive", "nowait", "batch")
    for order in itertools.permutations(ways):
        got: list[int] = []

        async def read(ctx: Context[int]) -> None:
            for way in itertools.cycle(order):  # noqa: B023 - done in this turn
                if way == "iterate":
                    got.append(await anext(ctx.mailbox))  # noqa: B023
                elif way == "receive":
                    got.append(await ctx.mailbox.receive())  # noqa: B023
                elif way == "batch":
                    got.extend(await ctx.mailbox.receive_batch())  # noqa: B023
                else:
                    with contextlib.suppress(trio.WouldBlock):
                        got.append(ctx.mailbox.receive_nowait())  # noqa: B023
                await trio.lowlevel.checkpoint()

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                child = Child(nursery, read)
                incarnation = child.start()
                numbers = itertools.count()
                for count in (1, 3, 2, 1, 5, 1, 1, 4):
                    for _ in range(count):
                        child.tell(next(numbers))
                    await trio.lowlevel.checkpoint()
                await wait_all_tasks_blocked()
                assert got == list(range(18))
                incarnation.stop("supervisor")


async def test_an_actor_that_has_ended_with_messages_left_refuses_the_next_one() -> (
    None
):
    async def end(ctx: Context[int]) -> None:
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        child = Child(nursery, end)
        child.ends = True
        child.start()
        child.tell(1)
        child.tell(2)
        await child.wait_stopped()
        for _ in range(2):
            with pytest.raises(ActorEnded):
                child.tell(3)
        assert child.statistics().queued == 2


async def test_what_is_told_during_a_drain_is_kept_for_the_next_incarnation() -> None:
    """Also when the mailbox was read before, and is waited on by another task."""
    got: list[int] = []
    busy = trio.Event()

    async def read(ctx: Context[int]) -> None:
        async for number in ctx.mailbox:
            got.append(number)
            await busy.wait()

    async with trio.open_nursery() as nursery:
        child = Child(nursery, read)
        incarnation = child.start()
        for number in range(3):
            child.tell(number)
        await wait_all_tasks_blocked()
        assert got == [0]
        incarnation.stop("stop", drain=5.0)
        child.tell(3)
        child.tell(4)
        busy.set()
        await incarnation.wait_ended()
        assert got == [0, 1, 2]
        following = child.start(2)
        await wait_all_tasks_blocked()
        assert got == [0, 1, 2, 3, 4]
        following.stop("supervisor")


async def test_asking_for_its_statistics_makes_no_mailbox(
    actors_nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or another thread that asks could take the place of one that has a message."""

    async def wait(ctx: Context[Any]) -> None:
        await trio.sleep_forever()

    def none(capacity: int | None) -> object:
        raise AssertionError("a mailbox was made")

    actor = Child(actors_nursery, wait, 2)
    with monkeypatch.context() as patch:
        patch.setattr("actors._kernel.ref.Mailbox", none)
        actor.start()
        before = actor.statistics()
        actor.ends = True
        actor.stop()
        await actor.wait_exit()
        after = actor.statistics()
    assert not before.closed and after.closed
    # What an empty mailbox itself says.
    assert after == actor.mailbox.statistics()
    assert before == attrs.evolve(after, closed=False)


async def test_a_stop_for_which_there_is_no_memory_can_be_asked_for_again(
    actors_nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait(ctx: Context[Any]) -> None:
        await trio.sleep_forever()

    def none(capacity: int | None) -> object:
        raise MemoryError

    actor = Child(actors_nursery, wait)
    incarnation = actor.start()
    await wait_all_tasks_blocked()
    with monkeypatch.context() as patch:
        patch.setattr("actors._kernel.ref.Mailbox", none)
        with pytest.raises(MemoryError):
            incarnation.stop("supervisor", drain=1.0)
        assert actor.state == "running"
    actor.stop()
    assert await actor.wait_exit() == Stopped("stop")
