"""How the run of an agent is closed: on every path, in one task, in its own time.

D12 of the design notes: an async generator that nobody closes is cleaned up by the
garbage collector, at some time, in a cancelled scope, or not at all.
"""

from __future__ import annotations

import signal
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from actors.agent import (
    AgentFailed,
    AssistantMessage,
    Budget,
    FinalResult,
    Note,
    TokensUsed,
)
from tests.actors.agent.agents import Stage, told


class Journal:
    """A run that notes how it is left, and how its cleaning up goes."""

    def __init__(self, *events, waits: float = 0.0) -> None:
        self.events = events
        self.waits = waits
        self.lines: list[str] = []

    async def __call__(self, context):
        task = trio.lowlevel.current_task()
        try:
            for event in self.events:
                if isinstance(event, Exception):
                    raise event
                if event == "sleep":
                    await trio.sleep_forever()
                else:
                    yield event
        except BaseException as error:
            self.lines.append(type(error).__name__)
            raise
        finally:
            assert trio.lowlevel.current_task() is task
            try:
                await trio.sleep(self.waits)
                self.lines.append("clean")
            except trio.Cancelled:
                self.lines.append("hurried")
                raise


answer = FinalResult("42")


async def test_a_run_that_returns_is_left_alone():
    run = Journal(answer)
    stage = Stage(run)
    assert await stage.run() == "42"
    assert run.lines == ["GeneratorExit", "clean"]
    assert stage.report.warnings == []


async def test_a_run_that_raises_has_cleaned_up_before_the_agent_fails():
    run = Journal(Note("x"), ValueError("no"))
    with pytest.raises(ValueError, match=r"^no$"):
        await Stage(run).run()
    assert run.lines == ["ValueError", "clean"]


async def test_a_run_is_closed_after_its_answer_in_the_time_it_has(autojump_clock):
    run = Journal(answer, waits=2.4)
    stage = Stage(run, shutdown=5)
    assert await stage.run() == "42"
    assert run.lines == ["GeneratorExit", "clean"]
    assert stage.report.warnings == []


async def test_a_run_that_takes_too_long_to_close_is_hurried(autojump_clock):
    run = Journal(answer, waits=1000)
    stage = Stage(run, shutdown=5)
    assert await stage.run() == "42"
    assert run.lines == ["GeneratorExit", "hurried"]
    assert trio.current_time() == 2.5
    assert stage.report.warnings == ["the run had no time to finish its cleaning up"]


async def test_a_deadline_that_passes_while_it_is_closed_comes_too_late(
    autojump_clock,
):
    run = Journal(answer, waits=2)
    assert await Stage(run, deadline=1).run() == "42"
    assert run.lines == ["GeneratorExit", "clean"]


async def test_a_run_that_is_stopped_in_an_await_sees_the_cancellation():
    run = Journal(Note("x"), "sleep")
    stage = Stage(run)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.run_until_stopped)
        await trio.testing.wait_all_tasks_blocked()
        stage.scope.cancel()
    assert run.lines == ["Cancelled", "hurried"]


async def test_a_run_that_is_stopped_at_its_answer_is_closed_undisturbed(
    autojump_clock,
):
    run = Journal(AssistantMessage("half"), answer, waits=2)
    stage = Stage(run, shutdown=5)
    stage.host.unfinished = 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.run_until_stopped)
        await trio.sleep(1)
        assert stage.report.waiting == "tasks"
        stage.scope.cancel()
    assert run.lines == ["GeneratorExit", "clean"]
    assert trio.current_time() == 3
    assert stage.report.result == "42"
    assert stage.host.waits == ["tasks", None]


async def test_a_hurried_stop_leaves_no_time_for_closing(autojump_clock):
    run = Journal(answer, waits=1000)
    stage = Stage(run, shutdown=500)
    stage.host.unfinished = 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.run_until_stopped)
        await trio.sleep(1)
        stage.scope.cancel()
        await trio.sleep(10)
        stage.report.hurry_up()
    assert run.lines == ["GeneratorExit", "hurried"]
    assert trio.current_time() == 11


@pytest.mark.parametrize("mode", ["timeout", "stalled", "budget"])
async def test_an_end_that_comes_while_it_waits_for_its_tasks_closes_it(
    autojump_clock, mode
):
    budget = Budget(tokens=5)
    options: Any = {"deadline": 10} if mode == "timeout" else {"budget": budget}
    run = Journal(TokensUsed(input_tokens=1), answer, waits=1)
    stage = Stage(run, stall_limit=600, **options)
    stage.host.unfinished = 1

    async def later():
        await trio.sleep(10)
        if mode == "budget":
            budget.charge(10)
        if mode == "stalled":
            # It is no stall to wait for a task.
            await trio.sleep(3600)
            stage.host.end_task()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(later)
        if mode == "stalled":
            assert await stage.run() == "42"
        else:
            with pytest.raises(AgentFailed) as raised:
                await stage.run()
            assert raised.value.mode == mode
            assert trio.current_time() == 11
    assert run.lines == ["GeneratorExit", "clean"]


async def test_a_run_that_yields_while_it_is_closed_is_closed_all_the_same():
    lines = []

    async def run(context):
        try:
            yield answer
        finally:
            yield Note("leaving")
            await trio.lowlevel.checkpoint()
            yield Note("gone")
            lines.append("clean")

    stage = Stage(run)
    assert await stage.run() == "42"
    assert lines == ["clean"]
    assert stage.events[-1] == answer
    assert stage.report.warnings == ["the run yielded 2 event(s) while it was closed"]


async def test_a_run_that_swallows_its_close_a_few_times_is_closed():
    async def run(context):
        for _ in range(5):
            try:
                yield answer
            except GeneratorExit:
                pass

    stage = Stage(run)
    assert await stage.run() == "42"
    assert stage.report.warnings == ["the run yielded 4 event(s) while it was closed"]


async def test_a_run_that_cannot_be_closed_fails_by_its_name():
    stubborn = True
    kept = []

    async def never_leaves(context):
        while stubborn:
            try:
                yield answer
            except GeneratorExit:
                pass

    def run(context):
        kept.append(never_leaves(context))
        return kept[0]

    stage = Stage(run)
    with pytest.raises(RuntimeError, match="run goes on yielding although it is"):
        await stage.run()
    stubborn = False
    await kept[0].aclose()


async def test_a_failure_while_it_is_closed_is_one_of_the_agent():
    async def run(context):
        try:
            yield answer
        finally:
            raise OSError("the connection would not close")

    stage = Stage(run)
    with pytest.raises(OSError, match="would not close"):
        await stage.run()
    assert stage.report.result == "42"


async def test_a_failure_while_it_is_closed_hides_no_earlier_one():
    async def run(context):
        try:
            yield "nonsense"
        finally:
            raise OSError("the connection would not close")

    stage = Stage(run)
    with pytest.raises(TypeError, match="not an event"):
        await stage.run()
    (warning,) = stage.report.warnings
    assert "could not clean up: OSError('the connection would not close')" in warning


# With scopes open across a `yield`


@asynccontextmanager
async def stream():
    """What many libraries do: tasks that read in the background."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        yield nursery
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("end", ["answer", "error", "stop", "nonsense", "timeout"])
async def test_a_nursery_that_is_open_across_a_yield_is_left_properly(
    autojump_clock, end
):
    left = []

    async def run(context):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            with trio.CancelScope():
                try:
                    yield AssistantMessage("half")
                    if end == "error":
                        raise ValueError("no")
                    yield "what?" if end == "nonsense" else answer
                finally:
                    # A stop has cancelled the nursery's task, and that this scope.
                    with trio.CancelScope(shield=True):
                        await trio.sleep(0.1)
                    left.append(end)
                    nursery.cancel_scope.cancel()

    stage = Stage(run, deadline=2 if end == "timeout" else None)
    if end in ("stop", "timeout"):
        stage.host.unfinished = 1
    if end == "answer":
        assert await stage.run() == "42"
    elif end == "stop":
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.run_until_stopped)
            await trio.sleep(1)
            stage.scope.cancel()
    else:
        expected = {"error": ExceptionGroup, "nonsense": TypeError}
        with pytest.raises(expected.get(end, AgentFailed)):
            await stage.run()
    assert left == [end]


async def test_messages_are_waited_for_inside_the_scopes_of_the_run():
    async def run(context):
        async with stream():
            yield FinalResult("41")
            assert [message.text for message in context.inbox.take()] == ["more?"]
            yield FinalResult("42")

    stage = Stage(run)
    stage.host.unfinished = 1
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def later():
            await trio.testing.wait_all_tasks_blocked()
            stage.inbox.put(told("more?"))
            await trio.testing.wait_all_tasks_blocked()
            stage.host.end_task()

        assert await stage.run() == "42"


async def test_a_scope_of_the_run_that_expires_at_its_answer_is_its_own_affair(
    autojump_clock,
):
    """Neither is the agent stopped by it, nor is the cancellation lost."""

    async def run(context):
        with trio.move_on_after(5) as scope:
            yield FinalResult("41")
            await trio.sleep_forever()
        yield AssistantMessage(f"expired: {scope.cancelled_caught}")
        await trio.sleep(1)
        yield FinalResult("42")

    stage = Stage(run)
    stage.host.unfinished = 1
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def later():
            await trio.sleep(10)
            stage.host.end_task()

        assert await stage.run() == "42"
    assert stage.said() == ["do it", "41", "expired: True", "42"]


async def test_a_scope_of_the_run_that_expires_between_events_is_its_own_affair(
    autojump_clock,
):
    async def run(context):
        count = 0
        with trio.CancelScope() as scope:
            while True:
                count += 1
                if count == 100:
                    scope.cancel()
                yield Note("busy")
        yield FinalResult(str(scope.cancelled_caught))

    assert await Stage(run).run() == "True"


async def test_a_run_that_never_waits_can_be_stopped_and_holds_nobody_up():
    turns = 0

    async def run(context):
        while True:
            yield Note("busy")

    stage = Stage(run)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.run_until_stopped)
        with trio.fail_after(10):
            for _ in range(10):
                await trio.lowlevel.checkpoint()
                turns += 1
        stage.scope.cancel()
    assert turns == 10
    assert len(stage.events) < 64 * 20


async def test_a_run_that_swallows_its_stop_is_stopped_all_the_same():
    async def run(context):
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            yield AssistantMessage("just a moment")
        yield answer

    asked = []

    async def finishing(answer, attempt):
        asked.append(answer)

    stage = Stage(run)
    stage.host.finishing = finishing
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.run_until_stopped)
        await trio.testing.wait_all_tasks_blocked()
        stage.scope.cancel()
    assert stage.report.terminate == "cancelled"
    assert stage.report.result == "42"
    assert asked == []


async def test_an_error_in_place_of_a_cancellation_does_not_hide_the_timeout(
    autojump_clock,
):
    async def run(context):
        yield AssistantMessage("half")
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            raise ConnectionError("closed") from None

    with pytest.raises(AgentFailed, match="not done within") as raised:
        await Stage(run, deadline=1).run()
    assert isinstance(raised.value.__cause__, ConnectionError)


async def test_an_iterator_that_is_no_generator_is_closed_by_its_aclose():
    closed = []

    class Events:
        def __init__(self, context):
            pass

        def __aiter__(self):
            return self

        async def __anext__(self):
            return answer

        async def aclose(self):
            await trio.lowlevel.checkpoint()
            closed.append(True)

    assert await Stage(Events).run() == "42"
    assert closed == [True]


async def test_an_interrupt_in_the_run_ends_it_cleanly_and_is_not_swallowed():
    """P10. An interrupt strikes in the run's own code, and nowhere in ours."""
    lines = []

    async def run(context):
        try:
            yield AssistantMessage("half")
            signal.raise_signal(signal.SIGINT)
            lines.append("not reached")
        finally:
            lines.append("clean")

    stage = Stage(run)
    with pytest.raises(BaseExceptionGroup) as raised:
        await stage.run()
    assert raised.group_contains(KeyboardInterrupt)
    assert lines == ["clean"]
    assert stage.report.terminate == "cancelled"


def test_an_interrupt_while_our_own_code_runs_is_for_the_host():
    """P10: it comes out at the main task, and the agent has not noticed."""

    async def run(context):
        yield AssistantMessage("half")
        yield answer

    said = []
    results = []

    async def work():
        stage = Stage(run)
        record = stage.host.record

        def interrupted(message):
            if message == AssistantMessage("half"):
                signal.raise_signal(signal.SIGINT)
            record(message)

        stage.host.record = interrupted
        with trio.CancelScope(shield=True):
            results.append(await stage.run())
        said.extend(stage.said())

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as raised:
        trio.run(main)
    assert raised.group_contains(KeyboardInterrupt)
    assert (said, results) == (["do it", "half", "42"], ["42"])
