"""Which `Exit` an actor gets when two ends meet in one tick.

The ends are: it returns, it raises, its own stop, its deadline, a cancellation
from outside its supervisor, an interrupt. Each pair is here, in both orders
where there are two; the section names the pair. The rule (D18): what leaves the
actor's function decides, and of two cancellations the first one does.
"""

from __future__ import annotations

import gc
import math
import signal
import sys
from _thread import get_ident
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import pytest
import trio
import trio.testing
from trio.lowlevel import enable_ki_protection
from trio.testing import wait_all_tasks_blocked

from actors import ActorRef, Completed, Context, Exit, Failed, Stopped
from actors.lowlevel import Cell, Incarnation
from supervisor.tree import child, open_supervisor

Fn = Callable[..., Awaitable[object]]


class Actor:
    """One actor under a real supervisor that is served inside an outer scope."""

    def __init__(self, fn: Fn) -> None:
        self.fn = fn
        self.begin = trio.Event()
        self.go = trio.Event()
        self.outer = trio.CancelScope()
        self.neighbour_exit: Exit[object] | None = None
        self.ref: ActorRef[Any]

    async def main(self, ctx: Context[Any]) -> object:
        self.ref = ctx.ref
        await self.begin.wait()
        return await self.fn(ctx, self)

    @property
    def incarnation(self) -> Incarnation[Any]:
        assert isinstance(self.ref, Cell)
        return self.ref.incarnation

    @property
    def exit(self) -> Exit[object]:
        exit = self.incarnation.exit
        assert exit is not None, "its end was not recorded"
        return exit

    async def serve(self, then: Callable[[Actor], Awaitable[None]]) -> None:
        """Run the actor; once everybody waits, do ``then``; wait for the end."""
        with self.outer:
            async with open_supervisor(
                [
                    child("neighbour", sleeping, restart="temporary"),
                    child("it", self.main, restart="temporary"),
                ]
            ) as sup:
                neighbour = sup.which_children()[0].ref
                self.begin.set()
                await wait_all_tasks_blocked()
                await then(self)
                # Outer cancellations are passed on when this block is left.
                await self.ref.wait_exit()
                await wait_all_tasks_blocked()
                assert neighbour.state == "running", (
                    "it took its neighbour with it (P10)"
                )

    def interrupted(self, then: Callable[[Actor], Awaitable[None]]) -> None:
        """The same in a run that an interrupt leaves, as it must: bare, and
        after the end of every actor."""
        with pytest.raises(KeyboardInterrupt):
            trio.run(self.serve, then)


async def sleeping(ctx: Context[Any]) -> None:
    await trio.sleep_forever()


async def nothing(actor: Actor) -> None: ...


async def run(
    fn: Fn, then: Callable[[Actor], Awaitable[None]] = nothing
) -> Exit[object]:
    actor = Actor(fn)
    with trio.fail_after(60):
        await actor.serve(then)
    return actor.exit


# What the actors below do with the ends that meet


async def returning(ctx: Context[Any], actor: Actor) -> str:
    await actor.go.wait()
    return "value"


async def raising(ctx: Context[Any], actor: Actor) -> None:
    await actor.go.wait()
    raise ValueError("mine")


async def cleaning_up_with_an_error(ctx: Context[Any], actor: Actor) -> None:
    try:
        await trio.sleep_forever()
    finally:
        raise ValueError("mine")


async def returning_in_spite_of_the_cancellation(
    ctx: Context[Any], actor: Actor
) -> str:
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        return "value"


async def waiting(ctx: Context[Any], actor: Actor) -> None:
    await trio.sleep_forever()


async def go(actor: Actor) -> None:
    actor.go.set()


async def stop(actor: Actor) -> None:
    actor.ref.stop("enough")


async def deadline(actor: Actor) -> None:
    actor.incarnation.deadline = -math.inf


async def deadline_passes(actor: Actor) -> None:
    """And trio has noticed, which it does between two ticks."""
    actor.incarnation.deadline = -math.inf
    await trio.lowlevel.checkpoint()


async def cancel_outside(actor: Actor) -> None:
    actor.outer.cancel()


async def outer_passed_on(actor: Actor) -> None:
    """What the supervisor does when it is cancelled itself."""
    actor.incarnation.stop("outer")


def both(
    first: Callable[[Actor], Awaitable[None]],
    second: Callable[[Actor], Awaitable[None]],
) -> Callable[[Actor], Awaitable[None]]:
    async def then(actor: Actor) -> None:
        await first(actor)
        await second(actor)

    return then


def is_mine(exit: Exit[object]) -> bool:
    return isinstance(exit, Failed) and repr(exit.error) == "ValueError('mine')"


# Return and raise


async def test_a_return_in_a_finally_completes_although_something_was_raised() -> None:
    """What leaves the function decides, and nothing else."""

    async def fn(ctx: Context[Any], actor: Actor) -> str:
        try:
            raise ValueError("mine")
        finally:
            return "value"  # noqa: B012

    assert await run(fn) == Completed("value")


async def test_a_raise_in_a_finally_fails_although_something_was_returned() -> None:
    async def fn(ctx: Context[Any], actor: Actor) -> str:
        try:
            return "value"
        finally:
            raise ValueError("mine")

    assert is_mine(await run(fn))


async def test_a_child_task_that_raises_as_the_function_returns_fails_it() -> None:
    async def fn(ctx: Context[Any], actor: Actor) -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(raising, ctx, actor)
            await actor.go.wait()
            return "value"

    exit = await run(fn, go)
    assert isinstance(exit, Failed) and isinstance(exit.error, ExceptionGroup)


# Return and stop


async def test_a_stop_after_the_return_was_under_way_comes_too_late() -> None:
    assert await run(returning, both(go, stop)) == Completed("value")


async def test_a_stop_before_the_return_was_under_way_stops_it() -> None:
    assert await run(returning, both(stop, go)) == Stopped("stop", "enough")


async def test_a_return_without_another_checkpoint_completes_although_it_was_stopped() -> (
    None
):
    async def fn(ctx: Context[Any], actor: Actor) -> str:
        ctx.ref.stop()
        assert ctx.is_stopping
        return "value"

    assert await run(fn) == Completed("value")


async def test_a_return_in_spite_of_the_cancellation_completes() -> None:
    assert await run(returning_in_spite_of_the_cancellation, stop) == Completed("value")


# Return and deadline


async def test_a_deadline_after_the_return_was_under_way_comes_too_late() -> None:
    assert await run(returning, both(go, deadline)) == Completed("value")


async def test_a_deadline_before_the_return_was_under_way_stops_it() -> None:
    assert await run(returning, both(deadline_passes, go)) == Stopped("deadline")


async def test_a_return_without_another_checkpoint_completes_although_its_deadline_passed() -> (
    None
):
    async def fn(ctx: Context[Any], actor: Actor) -> str:
        ctx.deadline = -math.inf
        return "value"

    assert await run(fn) == Completed("value")


async def test_a_return_in_spite_of_the_deadline_completes() -> None:
    assert await run(returning_in_spite_of_the_cancellation, deadline) == Completed(
        "value"
    )


# Return and outer cancellation


@pytest.mark.parametrize("then", [both(go, cancel_outside), both(cancel_outside, go)])
async def test_a_return_in_the_tick_of_an_outer_cancellation_completes(
    then: Callable[[Actor], Awaitable[None]],
) -> None:
    """The supervisor passes the cancellation on in its own order, so later (P8)."""
    assert await run(returning, then) == Completed("value")


async def test_an_outer_cancellation_that_is_passed_on_before_the_return_stops_it() -> (
    None
):
    assert await run(returning, both(outer_passed_on, go)) == Stopped("outer")


async def test_a_return_in_spite_of_an_outer_cancellation_completes() -> None:
    assert await run(
        returning_in_spite_of_the_cancellation, cancel_outside
    ) == Completed("value")


async def test_an_outer_cancellation_stops_and_the_block_passes_it_on() -> None:
    """P8, brief section 6."""
    actor = Actor(waiting)
    await actor.serve(cancel_outside)
    assert actor.exit == Stopped("outer")
    assert actor.outer.cancelled_caught


# Return and interrupt


def test_an_interrupt_in_the_actors_code_leaves_it_before_it_returns() -> None:
    """D23. It is recorded as an end from outside, and leaves the block bare."""

    async def fn(ctx: Context[Any], actor: Actor) -> str:
        await actor.go.wait()
        signal.raise_signal(signal.SIGINT)
        return "value"

    actor = Actor(fn)
    actor.interrupted(go)
    assert actor.exit == Stopped("outer", "KeyboardInterrupt")


def test_an_interrupt_in_code_that_is_protected_from_it_comes_after_the_return() -> (
    None
):
    """D23: it is delivered to the main task instead."""

    @enable_ki_protection
    async def fn(ctx: Context[Any], actor: Actor) -> str:
        await actor.go.wait()
        signal.raise_signal(signal.SIGINT)
        return "value"

    actor = Actor(fn)
    actor.interrupted(go)
    assert actor.exit == Completed("value")


def test_an_interrupt_in_a_callback_reaches_the_main_task_and_stops_the_actors() -> (
    None
):
    """D23: in the order of a stop, without an error of theirs."""

    async def interrupt_in_callback(actor: Actor) -> None:
        trio.lowlevel.current_trio_token().run_sync_soon(
            signal.raise_signal, signal.SIGINT
        )

    actor = Actor(waiting)
    actor.interrupted(interrupt_in_callback)
    assert isinstance(actor.exit, Stopped)
    assert actor.exit.by in ("outer", "supervisor")


@pytest.mark.parametrize("interrupt_first", [True, False])
def test_an_interrupt_in_a_callback_in_the_tick_of_the_return_does_not_undo_it(
    interrupt_first: bool,
) -> None:
    async def interrupt_in_callback(actor: Actor) -> None:
        trio.lowlevel.current_trio_token().run_sync_soon(
            signal.raise_signal, signal.SIGINT
        )

    actor = Actor(returning)
    pair = (
        (interrupt_in_callback, go) if interrupt_first else (go, interrupt_in_callback)
    )
    actor.interrupted(both(*pair))
    assert actor.exit == Completed("value")


# Raise and stop


async def test_an_error_that_was_under_way_when_it_was_stopped_fails_it() -> None:
    assert is_mine(await run(raising, both(go, stop)))


async def test_a_stop_before_the_error_was_under_way_stops_it() -> None:
    assert await run(raising, both(stop, go)) == Stopped("stop", "enough")


async def test_an_error_after_a_stop_fails_it() -> None:
    exit = await run(cleaning_up_with_an_error, stop)
    assert is_mine(exit)
    assert isinstance(exit, Failed)
    assert isinstance(exit.error.__context__, trio.Cancelled)


# Raise and deadline


async def test_an_error_that_was_under_way_at_the_deadline_fails_it() -> None:
    assert is_mine(await run(raising, both(go, deadline)))


async def test_a_deadline_before_the_error_was_under_way_stops_it() -> None:
    assert await run(raising, both(deadline_passes, go)) == Stopped("deadline")


async def test_an_error_after_the_deadline_fails_it() -> None:
    assert is_mine(await run(cleaning_up_with_an_error, deadline))


# Raise and outer cancellation


@pytest.mark.parametrize("then", [both(go, cancel_outside), both(cancel_outside, go)])
async def test_an_error_in_the_tick_of_an_outer_cancellation_fails_it(
    then: Callable[[Actor], Awaitable[None]],
) -> None:
    assert is_mine(await run(raising, then))


async def test_an_error_after_an_outer_cancellation_fails_it_and_the_block_is_cancelled() -> (
    None
):
    actor = Actor(cleaning_up_with_an_error)
    await actor.serve(cancel_outside)
    assert is_mine(actor.exit)
    assert actor.outer.cancelled_caught


# Raise and interrupt


def test_an_interrupt_while_an_error_is_on_its_way_takes_its_place() -> None:
    async def fn(ctx: Context[Any], actor: Actor) -> None:
        try:
            raise ValueError("mine")
        finally:
            signal.raise_signal(signal.SIGINT)

    actor = Actor(fn)
    actor.interrupted(nothing)
    assert actor.exit == Stopped("outer", "KeyboardInterrupt")


def test_an_error_while_an_interrupt_is_on_its_way_takes_its_place() -> None:
    """The interrupt was swallowed by the actor's own code, which raised."""

    async def fn(ctx: Context[Any], actor: Actor) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            raise ValueError("mine")

    actor = Actor(fn)
    trio.run(actor.serve, nothing)
    assert is_mine(actor.exit)


def test_an_error_and_an_interrupt_in_two_tasks_of_the_actor_are_kept_and_leave() -> (
    None
):
    """D21: the group is split, and each half goes its way."""

    async def interrupted(actor: Actor) -> None:
        await actor.go.wait()
        signal.raise_signal(signal.SIGINT)

    async def fn(ctx: Context[Any], actor: Actor) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(raising, ctx, actor)
            nursery.start_soon(interrupted, actor)

    actor = Actor(fn)
    actor.interrupted(go)
    assert isinstance(actor.exit, Failed)
    assert isinstance(actor.exit.error, ExceptionGroup)
    assert repr(actor.exit.error.exceptions) == "(ValueError('mine'),)"


# Stop and deadline


async def test_a_stop_before_the_deadline_is_the_one_that_counts() -> None:
    assert await run(waiting, both(stop, deadline)) == Stopped("stop", "enough")


@pytest.mark.parametrize("first", [deadline, deadline_passes])
async def test_a_deadline_before_the_stop_is_the_one_that_counts(
    first: Callable[[Actor], Awaitable[None]],
) -> None:
    assert await run(waiting, both(first, stop)) == Stopped("deadline")


async def test_a_deadline_that_passed_in_the_same_moment_counts_before_a_stop(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """D19: trio has not cancelled the scope yet, but its time is over."""

    async def fn(ctx: Context[Any], actor: Actor) -> None:
        ctx.deadline = 10
        await trio.sleep_forever()

    async def stop_at_the_deadline(actor: Actor) -> None:
        # Both are due in the same tick; which runs first is trio's business.
        await trio.sleep_until(10)
        actor.ref.stop("late")

    assert await run(fn, stop_at_the_deadline) == Stopped("deadline")


# Stop and outer cancellation


@pytest.mark.parametrize(
    "then", [both(stop, cancel_outside), both(cancel_outside, stop)]
)
async def test_a_stop_in_the_tick_of_an_outer_cancellation_comes_first(
    then: Callable[[Actor], Awaitable[None]],
) -> None:
    """The outer one reaches the actor through its supervisor, which is a tick
    later. The block is cancelled all the same (P8)."""
    actor = Actor(waiting)
    await actor.serve(then)
    assert actor.exit == Stopped("stop", "enough")
    assert actor.outer.cancelled_caught


async def test_a_stop_after_an_outer_cancellation_was_passed_on_changes_nothing() -> (
    None
):
    assert await run(waiting, both(outer_passed_on, stop)) == Stopped("outer")


# Stop and interrupt


def test_an_interrupt_in_the_tick_of_a_stop_leaves_the_actor() -> None:
    async def fn(ctx: Context[Any], actor: Actor) -> None:
        ctx.ref.stop()
        signal.raise_signal(signal.SIGINT)

    actor = Actor(fn)
    actor.interrupted(nothing)
    assert actor.exit == Stopped("outer", "KeyboardInterrupt")


def test_an_interrupt_in_a_shielded_finaliser_after_a_stop_leaves_one_exit() -> None:
    """P3."""
    finalised: list[str] = []

    async def fn(ctx: Context[Any], actor: Actor) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(10, shield=True):
                await trio.lowlevel.checkpoint()
                finalised.append("begun")
                signal.raise_signal(signal.SIGINT)
                finalised.append("not reached")

    actor = Actor(fn)
    actor.interrupted(stop)
    assert finalised == ["begun"]
    assert actor.exit == Stopped("outer", "KeyboardInterrupt")


def test_a_stop_after_an_interrupt_elsewhere_is_the_one_that_counts() -> None:
    async def interrupt_in_callback(actor: Actor) -> None:
        trio.lowlevel.current_trio_token().run_sync_soon(
            signal.raise_signal, signal.SIGINT
        )

    actor = Actor(waiting)
    actor.interrupted(both(interrupt_in_callback, stop))
    assert actor.exit == Stopped("stop", "enough")


# Deadline and outer cancellation


@pytest.mark.parametrize(
    "then", [both(deadline, cancel_outside), both(cancel_outside, deadline)]
)
async def test_a_deadline_in_the_tick_of_an_outer_cancellation_comes_first(
    then: Callable[[Actor], Awaitable[None]],
) -> None:
    """As with a stop: the outer one has a longer way."""
    actor = Actor(waiting)
    await actor.serve(then)
    assert actor.exit == Stopped("deadline")
    assert actor.outer.cancelled_caught


async def test_a_deadline_after_an_outer_cancellation_was_passed_on_changes_nothing() -> (
    None
):
    assert await run(waiting, both(outer_passed_on, deadline)) == Stopped("outer")


async def test_an_outer_cancellation_that_is_passed_on_after_the_deadline_changes_nothing() -> (
    None
):
    assert await run(waiting, both(deadline, outer_passed_on)) == Stopped("deadline")


# Deadline and interrupt


def test_an_interrupt_after_the_deadline_passed_leaves_the_actor() -> None:
    async def fn(ctx: Context[Any], actor: Actor) -> None:
        ctx.deadline = -math.inf
        signal.raise_signal(signal.SIGINT)

    actor = Actor(fn)
    actor.interrupted(nothing)
    assert actor.exit == Stopped("outer", "KeyboardInterrupt")


def test_an_interrupt_in_a_shielded_finaliser_after_the_deadline_leaves_one_exit() -> (
    None
):
    """P3."""

    async def fn(ctx: Context[Any], actor: Actor) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(10, shield=True):
                await trio.lowlevel.checkpoint()
                signal.raise_signal(signal.SIGINT)

    actor = Actor(fn)
    actor.interrupted(deadline)
    assert actor.exit == Stopped("outer", "KeyboardInterrupt")


# Outer cancellation and interrupt


def test_an_interrupt_in_the_finaliser_of_an_outer_cancellation_leaves_the_block() -> (
    None
):
    async def fn(ctx: Context[Any], actor: Actor) -> None:
        try:
            await trio.sleep_forever()
        finally:
            signal.raise_signal(signal.SIGINT)

    actor = Actor(fn)
    actor.interrupted(cancel_outside)
    assert actor.exit == Stopped("outer", "KeyboardInterrupt")


@pytest.mark.parametrize("outer_first", [True, False])
def test_an_interrupt_and_an_outer_cancellation_of_the_main_task_end_the_actor_once(
    outer_first: bool,
) -> None:
    async def interrupt_body(actor: Actor) -> None:
        if outer_first:
            actor.outer.cancel()
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            actor.outer.cancel()

    actor = Actor(waiting)
    actor.interrupted(interrupt_body)
    assert isinstance(actor.exit, Stopped)
    assert actor.exit.by in ("outer", "supervisor")


# Interrupts wherever they strike


def test_an_interrupt_before_the_first_line_of_an_actor_cannot_leave_it_without_an_exit() -> (
    None
):
    """P3: the one place of the loop that no handler covers."""
    exits: list[Exit[object]] = []

    class Child(Cell[Any]):
        def on_exit(self, incarnation: Incarnation[Any], exit: Exit[object]) -> None:
            exits.append(exit)

    async def never(ctx: Context[Any]) -> None:
        raise AssertionError("it ran")

    def strike(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_qualname == "Incarnation._run":
            sys.settrace(traced_before)
            raise KeyboardInterrupt

    async def main() -> None:
        cell = Child(
            "it",
            capacity=None,
            drain=0.0,
            shutdown=5.0,
            thread=get_ident(),
            token=trio.lowlevel.current_trio_token(),
        )
        with pytest.RaisesGroup(KeyboardInterrupt):
            async with trio.open_nursery() as nursery:
                cell.begin(nursery, never, (), number=1, acknowledge=True)
                sys.settrace(strike)
        incarnation = cell.incarnation
        assert incarnation.exit is None, "or this test would prove nothing"
        incarnation.stop("supervisor")
        incarnation.stop("supervisor")
        await cell.wait_exit()

    traced_before = sys.gettrace()
    try:
        trio.run(main)
    finally:
        sys.settrace(traced_before)
    assert exits == [Stopped("outer", "KeyboardInterrupt")]


# One that strikes between the call of the actor's function and its first step
# leaves a coroutine that nobody awaits; and Python tells of what it loses.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_moment_leaves_every_actor_one_exit() -> None:
    """P3, D23: a timer's signal strikes, at moments that nobody chose, as that of
    the keyboard would."""
    counts: dict[int, int] = {}
    begun: list[Incarnation[Any]] = []

    class Child(Cell[Any]):
        def on_exit(self, incarnation: Incarnation[Any], exit: Exit[object]) -> None:
            counts[id(incarnation)] = counts.get(id(incarnation), 0) + 1

    async def busy(ctx: Context[Any]) -> None:
        for _ in range(3):
            ctx.ref.tell(1)
            await ctx.mailbox.receive()
            try:
                await trio.lowlevel.checkpoint()
            finally:
                with trio.move_on_after(1, shield=True):
                    await trio.lowlevel.checkpoint()

    @enable_ki_protection
    def begin(nursery: trio.Nursery) -> None:
        cell = Child(
            "it",
            capacity=None,
            drain=0.0,
            shutdown=5.0,
            thread=get_ident(),
            token=trio.lowlevel.current_trio_token(),
        )
        begun.append(cell.begin(nursery, busy, (), number=1, acknowledge=True))

    struck = False

    async def main(after: float) -> None:
        by_trio = signal.getsignal(signal.SIGINT)
        assert callable(by_trio)

        def strike(_: int, frame: FrameType | None) -> None:
            nonlocal struck
            struck = True
            by_trio(signal.SIGINT, frame)

        signal.signal(signal.SIGALRM, strike)
        signal.setitimer(signal.ITIMER_REAL, after)
        # It is delivered within a turn or two, or Python has lost it.
        turns_left = 50
        async with trio.open_nursery() as nursery:
            while turns_left:
                turns_left -= struck
                for _ in range(5):
                    begin(nursery)
                await trio.lowlevel.checkpoint()

    arrived = 0
    alarm_before = signal.getsignal(signal.SIGALRM)
    # A hook of the collector, as hypothesis has one, swallows what strikes in it.
    gc.disable()
    try:
        for round in range(60):
            struck = False
            try:
                trio.run(main, 0.0005 + round * 0.00007)
            except BaseExceptionGroup as group:
                _, rest = group.split(KeyboardInterrupt)
                assert rest is None
                arrived += 1
            except KeyboardInterrupt:  # perhaps only after the run
                arrived += 1
            assert struck
            for incarnation in begun:
                incarnation.stop("supervisor")
                assert incarnation.exit is not None
                assert counts[id(incarnation)] == 1
            begun.clear()
            counts.clear()
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, alarm_before)
    # Python itself loses one that strikes in a finaliser.
    assert arrived > 50


# Groups


@pytest.mark.parametrize(
    ("then", "by"), [(stop, "stop"), (deadline, "deadline"), (cancel_outside, "outer")]
)
async def test_a_cancelled_actor_with_tasks_of_its_own_is_stopped_and_not_failed(
    then: Callable[[Actor], Awaitable[None]], by: str
) -> None:
    """D21: whatever group of Cancelled its nursery makes."""

    async def fn(ctx: Context[Any], actor: Actor) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()

    exit = await run(fn, then)
    assert isinstance(exit, Stopped)
    assert exit.by == by


@pytest.mark.parametrize("then", [stop, deadline, cancel_outside])
async def test_an_error_beside_cancellations_fails_the_actor_without_them(
    then: Callable[[Actor], Awaitable[None]],
) -> None:
    """D21: a group that is kept never holds a Cancelled."""

    async def fail_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("mine")

    async def fn(ctx: Context[Any], actor: Actor) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(fail_when_cancelled)
            await trio.sleep_forever()

    exit = await run(fn, then)
    assert isinstance(exit, Failed) and isinstance(exit.error, ExceptionGroup)
    assert repr(exit.error.exceptions) == "(ValueError('mine'),)"


async def test_a_group_with_nested_cancellations_is_kept_without_them() -> None:
    async def fn(ctx: Context[Any], actor: Actor) -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            inner = BaseExceptionGroup("inner", [cancelled, KeyError("k")])
            raise BaseExceptionGroup(
                "outer", [cancelled, inner, ValueError("v")]
            ) from None

    exit = await run(fn, stop)
    assert isinstance(exit, Failed) and isinstance(exit.error, ExceptionGroup)
    assert "Cancelled" not in repr(exit.error)
    assert "KeyError" in repr(exit.error) and "ValueError" in repr(exit.error)


async def test_a_group_of_errors_fails_the_actor_as_it_is() -> None:
    group = ExceptionGroup("mine", [ValueError(1), KeyError(2)])

    async def fn(ctx: Context[Any], actor: Actor) -> None:
        raise group

    exit = await run(fn)
    assert isinstance(exit, Failed) and exit.error is group


def test_an_interrupt_in_a_task_of_the_actor_leaves_as_one() -> None:
    async def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)

    async def fn(ctx: Context[Any], actor: Actor) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(interrupted)

    actor = Actor(fn)
    actor.interrupted(nothing)
    assert isinstance(actor.exit, Stopped) and actor.exit.by == "outer"


def test_a_system_exit_leaves_like_an_interrupt() -> None:
    async def fn(ctx: Context[Any], actor: Actor) -> None:
        await actor.go.wait()
        raise SystemExit(3)

    actor = Actor(fn)
    with pytest.raises(SystemExit) as caught:
        trio.run(actor.serve, go)
    assert caught.value.code == 3
    assert actor.exit == Stopped("outer", "SystemExit")


# Suspects


async def test_an_error_that_a_cancellation_displaced_is_kept_as_a_suspect() -> None:
    """D17: the finaliser's checkpoint masks the error, which is not lost."""

    async def fn(ctx: Context[Any], actor: Actor) -> None:
        try:
            await actor.go.wait()
            raise ValueError("mine")
        finally:
            await trio.sleep_forever()

    async def then(actor: Actor) -> None:
        await go(actor)
        await wait_all_tasks_blocked()
        await stop(actor)

    exit = await run(fn, then)
    assert exit == Stopped("stop", "enough")
    assert isinstance(exit, Stopped) and repr(exit.suspect) == "ValueError('mine')"


async def test_an_error_of_whoever_cancelled_is_no_suspect() -> None:
    """trio makes the Cancelled in the canceller's stack, so that it may carry
    a stranger's error."""

    async def stop_while_handling(actor: Actor) -> None:
        try:
            raise KeyError("a stranger's")
        except KeyError:
            actor.incarnation.stop("stop")
            await actor.ref.wait_exit()

    cancelled: list[trio.Cancelled] = []

    async def fn(ctx: Context[Any], actor: Actor) -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as error:
            cancelled.append(error)
            raise

    exit = await run(fn, stop_while_handling)
    assert isinstance(exit, Stopped)
    assert isinstance(cancelled[0].__context__, KeyError), (
        "or this test would prove nothing"
    )
    assert exit.suspect is None


async def test_a_supervisors_body_error_is_no_suspect() -> None:
    cell: list[ActorRef[Any]] = []

    async def fn(ctx: Context[Any]) -> None:
        await trio.sleep_forever()

    with pytest.raises(ValueError, match="body"):
        async with open_supervisor([child("it", fn)]) as sup:
            cell.append(sup.which_children()[0].ref)
            raise ValueError("body")
    exit = await cell[0].wait_exit()
    assert exit == Stopped("supervisor")
    assert isinstance(exit, Stopped) and exit.suspect is None


async def test_a_clean_stop_has_no_suspect() -> None:
    exit = await run(waiting, stop)
    assert isinstance(exit, Stopped) and exit.suspect is None


async def test_an_exit_keeps_no_frame_of_the_loop_alive_once_it_is_let_go() -> None:
    async def fn(ctx: Context[Any], actor: Actor) -> str:
        await actor.go.wait()
        return "value"

    await run(fn, go)
    gc.collect()
    frames = [
        thing
        for thing in gc.get_objects()
        if isinstance(thing, Incarnation) and thing.exit == Completed("value")
    ]
    assert frames == []
