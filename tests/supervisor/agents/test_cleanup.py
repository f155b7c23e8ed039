"""What an agent raises when it cleans up is told, whatever has ended it."""

# A block that may end early leaves its names unbound.
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio
import trio.testing

from actors import Context, TaskStatus
from actors.agent import AgentContext, AgentEvent, FinalResult, Note, Run
from actors.testing import fake_env
from actors.work import Report
from supervisor.runtime import Runtime, TaskHandle, TaskSnapshot, open_runtime
from tests.supervisor.jobs import FAILED, Job, agent

WRONG = "the lock file is gone"


async def in_an_await(context: AgentContext) -> AsyncIterator[AgentEvent]:
    try:
        yield Note("begun")
        await trio.sleep_forever()
    finally:
        raise OSError(WRONG)


async def after_an_await(context: AgentContext) -> AsyncIterator[AgentEvent]:
    try:
        yield Note("begun")
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        raise OSError(WRONG)


async def in_a_nursery(context: AgentContext) -> AsyncIterator[AgentEvent]:
    async def child() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError(WRONG)

    yield Note("begun")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child)
        nursery.start_soon(trio.sleep_forever)


async def at_its_answer(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """Suspended while it waits for a task of its own."""
    await context.launch(Job(never))
    try:
        yield FinalResult("done")
    finally:
        raise OSError(WRONG)


async def never(ctx: Context[object], report: Report) -> None:
    await trio.sleep_forever()


LOOPS: list[Run] = [
    in_an_await,
    after_an_await,
    in_a_nursery,
    at_its_answer,
]


async def by_a_stop(runtime: Runtime, task: TaskHandle) -> None:
    await runtime.stop(task)


async def by_a_stop_now(runtime: Runtime, task: TaskHandle) -> None:
    await runtime.stop(task, now=True)


async def by_a_stop_of_all(runtime: Runtime, task: TaskHandle) -> None:
    await runtime.stop_all()


async def by_the_end_of_the_block(runtime: Runtime, task: TaskHandle) -> None:
    """Nothing more is needed."""


ENDS: list[Callable[[Runtime, TaskHandle], Awaitable[None]]] = [
    by_a_stop,
    by_a_stop_now,
    by_a_stop_of_all,
    by_the_end_of_the_block,
]


def check(done: TaskSnapshot, caplog: pytest.LogCaptureFixture) -> None:
    assert done.status is FAILED
    assert done.error is not None
    assert WRONG in done.error.message + done.error.traceback
    told = [
        record
        for record in caplog.records
        if record.levelno == logging.ERROR and record.exc_info is not None
    ]
    assert any(WRONG in caplog.handler.format(record) for record in told)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_what_a_stopped_agent_raises_in_its_cleanup_is_its_failure(
    loop: Run,
    end: Callable[[Runtime, TaskHandle], Awaitable[None]],
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P10: as with an actor, and with any other work."""
    async with open_runtime("/tasks", env=fake_env()) as runtime:
        task = await runtime.launch(agent(loop), owner="main")
        await trio.sleep(0.1)
        await end(runtime, task)
    check(runtime.get(task.id), caplog)
    assert [note.status for note in runtime.notifications.drain()] == [FAILED]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
async def test_a_cancellation_from_outside_hides_no_failure_of_the_cleanup(
    loop: Run,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P10."""
    with trio.CancelScope() as outer:
        async with open_runtime("/tasks", env=fake_env()) as runtime:
            task = await runtime.launch(agent(loop))
            await trio.sleep(0.1)
            outer.cancel()
            await trio.sleep_forever()
    assert outer.cancelled_caught
    check(runtime.get(task.id), caplog)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
async def test_a_deadline_hides_no_failure_of_the_cleanup(
    loop: Run,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P10: the deadline is why it has ended, and that is its cause."""
    async with open_runtime("/tasks", env=fake_env()) as runtime:
        task = await runtime.launch(agent(loop, deadline=10))
        done = await task.wait()
        assert done.terminate == "timeout"
        check(done, caplog)


async def test_a_work_tells_the_same_of_its_cleanup(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """What the tests above compare an agent with."""

    async def body(ctx: Context[object], report: Report) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError(WRONG)

    async with open_runtime("/tasks", env=fake_env()) as runtime:
        task = await runtime.launch(Job(body))
        await trio.sleep(0.1)
        await runtime.stop(task)
        check(runtime.get(task.id), caplog)


async def test_an_agent_that_only_cleans_up_is_killed_all_the_same(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        try:
            yield Note("begun")
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)

    async with open_runtime("/tasks", env=fake_env()) as runtime:
        task = await runtime.launch(agent(loop))
        await trio.sleep(0.1)
        await runtime.stop(task)
        assert task.status is TaskStatus.KILLED
