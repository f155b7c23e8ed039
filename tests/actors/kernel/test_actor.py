"""`actors._kernel.actor`: the loop, the context, stopping. The pairs of ends that can
meet in one tick are in test_exit_pairs."""

from __future__ import annotations

import math
import sys
from _thread import get_ident
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from actors import Completed, Context, Exit, Failed, Stopped
from actors.lowlevel import Cell, Incarnation, StopRequest, current_actor, is_normal


class Child(Cell[Any]):
    """An actor that keeps what its supervisor would be told."""

    def __init__(self, *, drain: float = 0.0, shutdown: float = 5.0) -> None:
        super().__init__(
            "it",
            capacity=None,
            drain=drain,
            shutdown=shutdown,
            thread=get_ident(),
            token=trio.lowlevel.current_trio_token(),
        )
        self.told: list[object] = []

    def start(
        self,
        nursery: trio.Nursery,
        fn: Callable[..., Awaitable[object]],
        *args: object,
        acknowledge: bool = True,
    ) -> Incarnation[Any]:
        number = 1 + sum(isinstance(told, tuple) for told in self.told)
        return self.begin(nursery, fn, args, number=number, acknowledge=acknowledge)

    def on_started(self, incarnation: Incarnation[Any]) -> None:
        self.told.append("started")

    def on_stopping(self) -> None:
        self.told.append("stopping")

    def on_exit(self, incarnation: Incarnation[Any], exit: Exit[object]) -> None:
        assert incarnation.exit is exit
        self.told.append((incarnation.number, exit))


async def run_to_exit(
    fn: Callable[..., Awaitable[object]], *args: object
) -> Exit[object]:
    child = Child()
    async with trio.open_nursery() as nursery:
        incarnation = child.start(nursery, fn, *args)
    assert incarnation.exit is not None
    assert child.told == ["started", (1, incarnation.exit)]
    return incarnation.exit


# One run, one exit


async def test_what_the_function_returns_completes_it() -> None:
    async def add(ctx: Context[Any], a: int, b: int) -> int:
        return a + b

    assert await run_to_exit(add, 1, 2) == Completed(3)


async def test_what_the_function_raises_fails_it_and_goes_no_further() -> None:
    """D22."""
    error = ValueError("mine")

    async def fail(ctx: Context[Any]) -> None:
        await trio.lowlevel.checkpoint()
        raise error

    exit = await run_to_exit(fail)
    assert isinstance(exit, Failed) and exit.error is error


@pytest.mark.parametrize("args", [(), (1, 2)])
async def test_a_call_with_wrong_arguments_fails_it(args: tuple[int, ...]) -> None:
    async def one(ctx: Context[Any], n: int) -> None: ...

    exit = await run_to_exit(one, *args)
    assert isinstance(exit, Failed) and isinstance(exit.error, TypeError)


async def test_a_function_that_is_not_async_fails_it() -> None:
    def sync(ctx: Context[Any]) -> int:
        return 1

    exit = await run_to_exit(sync)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert isinstance(exit, Failed) and isinstance(exit.error, TypeError)
    assert str(exit.error).endswith(
        "sync returned an object of type int: an actor must be an async function"
    )


async def test_a_builtin_that_is_no_actor_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    exit = await run_to_exit(print)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert isinstance(exit, Failed) and isinstance(exit.error, TypeError)
    assert str(exit.error) == "print returned None: an actor must be an async function"


async def test_a_bad_await_of_the_actor_itself_is_told_as_python_does() -> None:
    async def wrong(ctx: Context[Any]) -> None:
        await None  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]

    exit = await run_to_exit(wrong)
    assert isinstance(exit, Failed) and isinstance(exit.error, TypeError)
    assert "an actor must be" not in str(exit.error)


async def test_a_function_that_leaves_a_scope_of_its_own_open_fails_and_nobody_else() -> (
    None
):
    """P10: trio finds the stack of scopes corrupted after the function's end."""

    async def leave_open(ctx: Context[Any]) -> int:
        trio.CancelScope().__enter__()
        return 1

    exit = await run_to_exit(leave_open)
    assert isinstance(exit, Failed)
    assert "Cancel scope stack corrupted" in str(exit.error)


class StepCounter(trio.abc.Instrument):
    """Counts the steps of one task."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task.name == "it":
            self.steps.append("begin")

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task.name == "it":
            self.steps.append("end")

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        if task.name == "it":
            self.steps.append("exited")


@pytest.mark.parametrize("end", ["return", "raise", "stop", "deadline"])
async def test_the_exit_is_recorded_in_the_step_in_which_the_function_ends(
    end: str,
) -> None:
    """P3, D14: no checkpoint lies between the decision and the record."""
    counter = StepCounter()
    child = Child()

    async def fn(ctx: Context[Any]) -> None:
        try:
            await go.wait()
            if end == "raise":
                raise ValueError
        finally:
            counter.steps.append("last line")

    class Recording(Child):
        def on_exit(self, incarnation: Incarnation[Any], exit: Exit[object]) -> None:
            super().on_exit(incarnation, exit)
            counter.steps.append("recorded")

    child = Recording()
    go = trio.Event()
    trio.lowlevel.add_instrument(counter)
    try:
        async with trio.open_nursery() as nursery:
            incarnation = child.start(nursery, fn)
            await wait_all_tasks_blocked()
            counter.steps.clear()
            if end == "stop":
                incarnation.stop("stop")
            elif end == "deadline":
                incarnation.deadline = -math.inf
            else:
                go.set()
    finally:
        trio.lowlevel.remove_instrument(counter)
    assert counter.steps == ["begin", "last line", "recorded", "exited", "end"] or (
        counter.steps == ["begin", "last line", "recorded", "end", "exited"]
    )


async def test_a_record_that_fails_still_lets_nobody_wait_for_ever() -> None:
    class Broken(Child):
        def on_exit(self, incarnation: Incarnation[Any], exit: Exit[object]) -> None:
            raise RuntimeError("a bug of the supervisor")

    async def fn(ctx: Context[Any]) -> int:
        await go.wait()
        return 1

    go = trio.Event()
    child = Broken()
    exits: list[Exit[object]] = []

    async def wait() -> None:
        with trio.CancelScope(shield=True):
            exits.append(await child.wait_exit())

    with trio.fail_after(30):
        with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="a bug")):
            async with trio.open_nursery() as nursery:
                child.start(nursery, fn)
                nursery.start_soon(wait)
                await wait_all_tasks_blocked()
                go.set()
    assert exits == [Completed(1)]


# Before the first step


@pytest.mark.parametrize("drain", [0.0, 10.0])
async def test_a_stop_before_the_first_step_ends_in_one_exit_and_the_function_never_runs(
    drain: float,
) -> None:
    async def never(ctx: Context[Any]) -> None:
        raise AssertionError("it ran")

    child = Child()
    child.tell("kept")
    async with trio.open_nursery() as nursery:
        incarnation = child.start(nursery, never)
        incarnation.stop("supervisor", "changed my mind", drain=drain)
        incarnation.stop("stop", "second")
        assert incarnation.exit is None, "the end is recorded when it has ended"
    assert child.told == ["stopping", (1, Stopped("supervisor", "changed my mind"))]
    assert not incarnation.was_started
    assert child.statistics().queued == 1


async def test_a_soft_stop_before_the_first_step_is_one_too() -> None:
    async def never(ctx: Context[Any]) -> None:
        raise AssertionError("it ran")

    child = Child(drain=10)
    async with trio.open_nursery() as nursery:
        child.start(nursery, never)
        child.stop("early")
    assert child.told == ["stopping", (1, Stopped("stop", "early"))]


async def test_a_deadline_before_the_first_step_ends_in_one_exit_and_the_function_never_runs() -> (
    None
):
    async def never(ctx: Context[Any]) -> None:
        raise AssertionError("it ran")

    child = Child()
    async with trio.open_nursery() as nursery:
        incarnation = child.start(nursery, never)
        incarnation.deadline = trio.current_time() - 1
    assert child.told == [(1, Stopped("deadline"))]


async def test_a_start_into_a_cancelled_nursery_runs_and_is_not_cancelled_by_it() -> (
    None
):
    """D10, D25: the supervisor decides when; its children are shielded."""

    async def answer(ctx: Context[Any]) -> int:
        await trio.lowlevel.checkpoint()
        return 1

    child = Child()
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.cancel()
        child.start(nursery, answer)
    assert child.told == ["started", (1, Completed(1))]


async def test_a_start_into_a_closed_nursery_changes_nothing() -> None:
    """D25."""

    async def answer(ctx: Context[Any]) -> int:
        return 1

    child = Child()
    async with trio.open_nursery() as nursery:
        first = child.start(nursery, answer)
    with pytest.raises(RuntimeError, match="closed"):
        child.start(nursery, answer)
    assert child.incarnation is first


# What an actor sees


async def test_the_context_tells_the_actor_who_it_is() -> None:
    seen: list[object] = []

    async def look(ctx: Context[Any]) -> None:
        seen.extend(
            [ctx.id, ctx.number, ctx.ref, ctx.mailbox, ctx.is_stopping, ctx.deadline]
        )
        seen.append(repr(ctx))
        assert current_actor() is ctx.ref
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look_below, ctx)

    async def look_below(ctx: Context[Any]) -> None:
        assert current_actor() is ctx.ref

    child = Child()
    async with trio.open_nursery() as nursery:
        child.start(nursery, look)
    assert isinstance(child.incarnation.exit, Completed)
    assert seen == [
        "it", 1, child, child.mailbox, False, math.inf, "<Context of it, incarnation 1>"
    ]  # fmt: skip
    assert current_actor() is None


async def test_an_actor_knows_who_spawned_it() -> None:
    """B53: the one that asked for it, which need not be above it."""
    spawned: list[Child] = []

    async def spawn(ctx: Context[Any]) -> None:
        spawned.append(Child())

    child = Child()
    async with trio.open_nursery() as nursery:
        child.start(nursery, spawn)
    assert spawned[0].spawned_by is child


async def test_a_start_can_be_acknowledged_once_with_a_value() -> None:
    async def twice(ctx: Context[Any]) -> None:
        assert not ctx.was_started
        assert child.state == "starting"
        ctx.started("value")
        assert ctx.was_started
        assert child.state == "running"
        with pytest.raises(RuntimeError, match="'it' called started\\(\\) twice"):
            ctx.started("other")

    child = Child()
    async with trio.open_nursery() as nursery:
        child.start(nursery, twice, acknowledge=False)
    assert child.told == ["started", (1, Completed(None))]
    assert child.started_value == "value"


async def test_without_acknowledgement_the_start_counts_from_the_first_step() -> None:
    async def valued(ctx: Context[Any]) -> object:
        assert ctx.was_started
        ctx.started("value")
        with pytest.raises(RuntimeError, match="twice"):
            ctx.started()
        return ctx.ref.started_value

    assert await run_to_exit(valued) == Completed("value")


async def test_an_acknowledgement_while_stopping_does_not_make_it_run_again() -> None:
    async def late(ctx: Context[Any]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ctx.started()

    child = Child()
    async with trio.open_nursery() as nursery:
        incarnation = child.start(nursery, late, acknowledge=False)
        await wait_all_tasks_blocked()
        incarnation.stop("supervisor")
        await wait_all_tasks_blocked()
        assert child.state == "stopping"
    assert incarnation.was_started


async def test_a_deadline_can_be_set_moved_and_taken_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def work(ctx: Context[Any], deadlines: list[float], needs: float) -> str:
        for deadline in deadlines:
            ctx.deadline = trio.current_time() + deadline
            assert ctx.deadline == trio.current_time() + deadline
        await trio.sleep(needs)
        return "done"

    assert await run_to_exit(work, [5], 10) == Stopped("deadline")
    assert await run_to_exit(work, [5, 20], 10) == Completed("done")
    assert await run_to_exit(work, [5, math.inf], 10) == Completed("done")
    assert await run_to_exit(work, [20, 5], 10) == Stopped("deadline")
    assert not is_normal(Stopped("deadline"))


async def test_a_deadline_that_is_not_a_number_changes_nothing() -> None:
    async def wrong(ctx: Context[Any]) -> None:
        ctx.deadline = 1e9
        with pytest.raises(ValueError, match="NaN"):
            ctx.deadline = math.nan
        assert ctx.deadline == 1e9
        await trio.lowlevel.checkpoint()

    assert await run_to_exit(wrong) == Completed(None)


async def test_a_deadline_is_that_of_one_incarnation() -> None:
    async def late(ctx: Context[Any]) -> None:
        ctx.deadline = -math.inf
        await trio.lowlevel.checkpoint()

    async def in_time(ctx: Context[Any]) -> None:
        assert ctx.deadline == math.inf
        await trio.lowlevel.checkpoint()

    child = Child()
    async with trio.open_nursery() as nursery:
        child.start(nursery, late)
    async with trio.open_nursery() as nursery:
        child.start(nursery, in_time)
    assert child.told[1::2] == [(1, Stopped("deadline")), (2, Completed(None))]


async def test_a_deadline_set_while_stopping_can_only_make_it_sooner(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def drain(ctx: Context[Any], seconds: float) -> None:
        await ctx.stopping.wait()
        ctx.deadline = trio.current_time() + seconds
        await trio.sleep_forever()

    for seconds, expected in ((2.0, 2.0), (20.0, 10.0)):
        child = Child()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            incarnation = child.start(nursery, drain, seconds)
            await wait_all_tasks_blocked()
            incarnation.stop("supervisor", drain=10)
        assert incarnation.exit == Stopped("supervisor")
        assert trio.current_time() - began == pytest.approx(expected)


# Stopping


async def test_stopping_is_set_drain_seconds_before_the_cancellation(
    autojump_clock: trio.testing.MockClock,
) -> None:
    times: list[float] = []

    async def watch(ctx: Context[Any]) -> None:
        assert not ctx.is_stopping
        await ctx.stopping.wait()
        assert ctx.is_stopping
        times.append(trio.current_time())
        try:
            await trio.sleep_forever()
        finally:
            times.append(trio.current_time())

    child = Child()
    async with trio.open_nursery() as nursery:
        incarnation = child.start(nursery, watch)
        await trio.sleep(1)
        asked = trio.current_time()
        incarnation.stop("supervisor", "why", drain=3)
        assert incarnation.stop_request == StopRequest("supervisor", "why")
        assert child.state == "stopping"
    assert [time - asked for time in times] == pytest.approx([0, 3])
    assert incarnation.exit == Stopped("supervisor", "why")


async def test_stopping_is_set_already_if_it_is_looked_at_late() -> None:
    async def look_late(ctx: Context[Any]) -> bool:
        await go.wait()
        return ctx.stopping.is_set()

    go = trio.Event()
    child = Child()
    async with trio.open_nursery() as nursery:
        incarnation = child.start(nursery, look_late)
        await wait_all_tasks_blocked()
        incarnation.stop("supervisor", drain=10)
        go.set()
    assert incarnation.exit == Completed(True)


async def test_the_first_request_names_the_stopper_and_a_later_one_only_hurries_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def wait(ctx: Context[Any]) -> None:
        await trio.sleep_forever()

    child = Child()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        incarnation = child.start(nursery, wait)
        await wait_all_tasks_blocked()
        incarnation.stop("stop", "first", drain=10)
        incarnation.stop("supervisor", "second", drain=100)
        incarnation.stop("supervisor", "third", drain=2)
    assert trio.current_time() - began == pytest.approx(2)
    assert child.told == ["started", "stopping", (1, Stopped("stop", "first"))]


async def test_a_stop_after_the_end_changes_nothing() -> None:
    """SM12: the next incarnation is not meant."""

    async def answer(ctx: Context[Any]) -> int:
        await trio.lowlevel.checkpoint()
        return 1

    child = Child()
    async with trio.open_nursery() as nursery:
        first = child.start(nursery, answer)
    first.stop("supervisor")
    child.stop()
    async with trio.open_nursery() as nursery:
        child.start(nursery, answer)
        first.stop("supervisor")
    assert child.told == ["started", (1, Completed(1)), "started", (2, Completed(1))]


async def test_a_soft_stop_lets_an_actor_that_reads_its_mailbox_handle_what_is_queued(
    autojump_clock: trio.testing.MockClock,
) -> None:
    handled: list[int] = []

    async def work(ctx: Context[int]) -> str:
        async for n in ctx.mailbox:
            await trio.sleep(1)
            handled.append(n)
        return "drained"

    child = Child()
    async with trio.open_nursery() as nursery:
        child.start(nursery, work)
        for n in range(3):
            child.tell(n)
        await trio.sleep(0.5)
        child.stop("enough")
        child.tell(3)
        assert child.state == "stopping"
    assert child.incarnation.exit == Completed("drained")
    assert handled == [0, 1, 2]
    assert child.statistics().queued == 1, "what came later is for the next incarnation"


async def test_a_soft_stop_right_after_tells_lets_a_reader_that_waits_handle_them() -> (
    None
):
    """The tells have woken the reader, which has not run since."""
    handled: list[int] = []

    async def reader(ctx: Context[int]) -> None:
        async for message in ctx.mailbox:
            await trio.lowlevel.checkpoint()
            handled.append(message)

    child = Child()
    async with trio.open_nursery() as nursery:
        child.start(nursery, reader)
        await wait_all_tasks_blocked()
        for message in range(3):
            child.tell(message)
        child.stop()
        assert await child.wait_exit() == Completed(None)
    assert handled == [0, 1, 2]


async def test_a_soft_stop_ends_an_actor_that_waits_for_its_mailbox_at_once() -> None:
    async def iterate(ctx: Context[int]) -> str:
        async for _ in ctx.mailbox:
            pass
        return "drained"

    child = Child()
    async with trio.open_nursery() as nursery:
        child.start(nursery, iterate)
        await wait_all_tasks_blocked()
        child.stop()
    assert child.incarnation.exit == Completed("drained")


@pytest.mark.parametrize("way", ["receive", "receive_batch"])
async def test_a_soft_stop_cancels_receive_once_the_queue_is_drained(way: str) -> None:
    handled: list[object] = []

    async def work(ctx: Context[int]) -> None:
        while True:
            handled.append(await getattr(ctx.mailbox, way)())

    child = Child()
    async with trio.open_nursery() as nursery:
        child.start(nursery, work)
        child.tell(1)
        await wait_all_tasks_blocked()
        child.tell(2)
        child.stop("enough")
    assert child.incarnation.exit == Stopped("stop", "enough")
    assert handled == ([1, 2] if way == "receive" else [[1], [2]])


async def test_a_soft_stop_gives_a_slow_reader_its_shutdown_budget_and_no_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def slow(ctx: Context[int]) -> None:
        async for _ in ctx.mailbox:
            await trio.sleep(100)

    child = Child(shutdown=7)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        child.start(nursery, slow)
        child.tell(1)
        await wait_all_tasks_blocked()
        child.stop("enough")
    assert child.incarnation.exit == Stopped("stop", "enough")
    assert trio.current_time() - began == pytest.approx(7)


@pytest.mark.parametrize("drain", [0.0, 3.0])
async def test_a_soft_stop_cancels_an_actor_that_reads_no_mailbox_after_its_drain(
    autojump_clock: trio.testing.MockClock, drain: float
) -> None:
    async def busy(ctx: Context[int]) -> None:
        await trio.sleep_forever()

    child = Child(drain=drain, shutdown=100)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        child.start(nursery, busy)
        await wait_all_tasks_blocked()
        child.stop("enough")
        child.stop("again")
    assert child.incarnation.exit == Stopped("stop", "enough")
    assert trio.current_time() - began == pytest.approx(drain)


async def test_what_an_earlier_incarnation_read_does_not_make_this_one_a_reader() -> (
    None
):
    async def read_once_then_sleep(ctx: Context[int]) -> None:
        if ctx.number == 1:
            await ctx.mailbox.receive()
        else:
            await trio.sleep_forever()

    child = Child(shutdown=1000)
    child.tell(1)
    async with trio.open_nursery() as nursery:
        child.start(nursery, read_once_then_sleep)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            child.start(nursery, read_once_then_sleep)
            await wait_all_tasks_blocked()
            child.stop()
    assert child.incarnation.exit == Stopped("stop")


async def test_a_drain_ends_with_its_incarnation() -> None:
    async def iterate(ctx: Context[int]) -> list[int]:
        return [n async for n in ctx.mailbox]

    child = Child()
    async with trio.open_nursery() as nursery:
        child.start(nursery, iterate)
        await wait_all_tasks_blocked()
        child.stop()
        child.tell(1)
    async with trio.open_nursery() as nursery:
        child.start(nursery, iterate)
        child.tell(2)
        await wait_all_tasks_blocked()
        child.stop()
    assert child.incarnation.exit == Completed([1, 2])


async def test_an_actor_may_stop_itself() -> None:
    async def stop_self(ctx: Context[int]) -> None:
        ctx.ref.stop("done with it")
        await trio.sleep_forever()

    assert child_exit(await run_told(stop_self)) == Stopped("stop", "done with it")


async def run_told(fn: Callable[..., Awaitable[object]]) -> Child:
    child = Child()
    async with trio.open_nursery() as nursery:
        child.start(nursery, fn)
    return child


def child_exit(child: Child) -> Exit[object] | None:
    return child.incarnation.exit


# Reports


async def test_the_stack_shows_the_actor_and_the_tasks_below_it() -> None:
    async def linger() -> None:
        await trio.sleep_forever()

    async def parent(ctx: Context[Any]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(linger)

    child = Child()
    async with trio.open_nursery() as nursery:
        incarnation = child.start(nursery, parent)
        assert incarnation.format_stack() == ""
        await wait_all_tasks_blocked()
        stack = incarnation.format_stack()
        incarnation.stop("supervisor")
    assert "task it:" in stack and "parent" in stack
    assert "    task " in stack and "linger" in stack
    assert incarnation.format_stack() == ""


async def test_a_stack_of_more_tasks_than_python_may_recurse_is_shown_whole() -> None:
    depth = sys.getrecursionlimit() + 100

    async def deeper(ctx: Context[Any] | None, left: int) -> None:
        if left == 0:
            await go.wait()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deeper, None, left - 1)

    # To be let go and not cancelled, which is beyond trio's own recursion.
    go = trio.Event()
    child = Child()
    async with trio.open_nursery() as nursery:
        incarnation = child.start(nursery, deeper, depth)
        await wait_all_tasks_blocked()
        stack = incarnation.format_stack()
        go.set()
    assert stack.count("task ") == depth + 1
