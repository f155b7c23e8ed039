"""Who or what has ended a task, in its snapshot, its event and its envelope."""

# A block that may end early leaves its names unbound.
# pyright: reportPossiblyUnboundVariable=false
from __future__ import annotations

import signal
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from actors import Context, TaskStatus
from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AgentFailed,
    Budget,
    FinalResult,
    Terminate,
)
from actors.output import QuotaExceeded
from actors.shell import CommandFailed, Shell
from actors.testing import fake_env
from actors.work import Report, Work
from supervisor.runtime import (
    EndedBy,
    Runtime,
    TaskEnded,
    TaskHandle,
    TaskSnapshot,
    TaskStarted,
    open_runtime,
)
from supervisor.tools import Tool
from tests.supervisor.jobs import (
    FAILED,
    KILLED,
    Job,
    agent,
    answers,
    fails,
    forever,
    idles,
    returns,
    starts,
)

End = Callable[[Runtime, TaskHandle], Awaitable[object]]


async def stops(runtime: Runtime, task: TaskHandle) -> None:
    await runtime.stop(task.id)


async def stops_for_the_user(runtime: Runtime, task: TaskHandle) -> None:
    await task.stop(by="user")


async def stops_all_for_the_user(runtime: Runtime, task: TaskHandle) -> None:
    await runtime.stop_all(by="user")


async def stops_by_tool(runtime: Runtime, task: TaskHandle) -> None:
    (tool,) = (it for it in runtime.tools_for(None) if it.name == "TaskStop")
    assert isinstance(tool, Tool)
    await tool.call({"task_id": task.id})


async def only_waits(runtime: Runtime, task: TaskHandle) -> None:
    await task.wait()


def ends_as(mode: Terminate) -> Agent:
    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        raise AgentFailed(mode, "as the test wants it")
        yield

    return agent(loop)


async def says_cancelled(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield FinalResult("half of it", "cancelled")


async def gives_in(context: AgentContext) -> AsyncIterator[AgentEvent]:
    with suppress(trio.Cancelled):
        await trio.sleep_forever()
    yield FinalResult("half of it", "cancelled")


async def its_deadline(ctx: Context[object], report: Report) -> None:
    ctx.deadline = trio.current_time() - 1
    await trio.sleep_forever()


def signalled() -> Job:
    async def body(ctx: Context[object], report: Report) -> None:
        report.signal = signal.SIGSEGV
        raise CommandFailed("it crashed")

    return Job(body)


CASES: dict[str, tuple[Work, End, TaskStatus, EndedBy | None]] = {
    "an end": (returns(1), only_waits, TaskStatus.COMPLETED, None),
    "a failure": (fails(ValueError()), only_waits, FAILED, None),
    "a stop": (Job(forever), stops, KILLED, "host"),
    "a stop by the user": (Job(forever), stops_for_the_user, KILLED, "user"),
    "a stop of all": (Job(forever), stops_all_for_the_user, KILLED, "user"),
    "a stop by the model": (Job(forever), stops_by_tool, KILLED, "model"),
    "a deadline": (Job(its_deadline), only_waits, FAILED, "deadline"),
    "a quota": (fails(QuotaExceeded(Path("s1"), 5)), only_waits, FAILED, "quota"),
    "a signal": (signalled(), only_waits, FAILED, "signal"),
    "a timeout": (ends_as("timeout"), only_waits, FAILED, "deadline"),
    "a budget": (
        agent(idles, budget=Budget(tokens=0)),
        only_waits,
        FAILED,
        "limit",
    ),
    "rounds": (ends_as("max_turns"), only_waits, FAILED, "limit"),
    "a stall": (ends_as("stalled"), only_waits, FAILED, "limit"),
    "an agent's error": (ends_as("error"), only_waits, FAILED, None),
    "an agent that ends itself": (ends_as("cancelled"), only_waits, FAILED, None),
    "a loop that was cancelled": (agent(says_cancelled), only_waits, KILLED, "host"),
    "a loop that is stopped": (agent(gives_in), stops_for_the_user, KILLED, "user"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_every_end_says_who_has_brought_it_about(
    case: tuple[Work, End, TaskStatus, EndedBy | None], tmp_path: Path
) -> None:
    work, end, status, by = case
    async with open_runtime(tmp_path, env=fake_env({})) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(work)
        await trio.testing.wait_all_tasks_blocked()
        await end(runtime, task)
        found = task.snapshot()
        assert (found.status, found.ended_by) == (status, by)
        (told,) = (it for it in events.drain() if isinstance(it, TaskEnded))
        assert told.ended_by == by
    for note in runtime.notifications.drain():
        assert ET.fromstring(note.xml).findtext("ended-by") == by


async def test_the_deadline_of_the_last_run_has_ended_a_task_that_is_run_again(
    tmp_path: Path,
) -> None:
    """And not the signal by which we have ended that."""
    work = Shell("sleep 60", deadline=0.05)
    with trio.fail_after(30):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(work, restart="transient", intensity=1)
            ended = await task.wait()
    assert (ended.status, ended.ended_by) == (FAILED, "deadline")
    assert ended.error is not None
    assert ended.error.message.endswith("last: its deadline passed")


async def test_leaving_the_block_ends_all_by_shutdown(tmp_path: Path) -> None:
    """Also what is an agent's own."""
    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        await runtime.launch(agent(starts(Job(forever), then=idles)))
        await runtime.launch(Job(forever))
        await trio.testing.wait_all_tasks_blocked()
    ended = [it for it in events.drain() if isinstance(it, TaskEnded)]
    assert [it.ended_by for it in ended] == ["shutdown"] * 3


async def test_a_cancelled_runtime_ends_its_tasks_by_shutdown(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with open_runtime(tmp_path) as runtime:
            events = runtime.events.subscribe()
            await runtime.launch(Job(forever))
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await trio.sleep_forever()
    (ended,) = (it for it in events.drain() if isinstance(it, TaskEnded))
    assert ended.ended_by == "shutdown"


@pytest.mark.parametrize("end", [stops, only_waits])
async def test_what_an_agent_leaves_is_ended_by_its_parent(
    end: End, tmp_path: Path
) -> None:
    """Whoever has stopped the agent itself, and also if it has failed."""

    async def fails_then(context: AgentContext) -> AsyncIterator[AgentEvent]:
        raise AgentFailed("error", "no luck")
        yield

    loop = starts(Job(forever), then=fails_then if end is only_waits else idles)
    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(agent(loop))
        await trio.testing.wait_all_tasks_blocked()
        await end(runtime, task)
        ended = [it for it in events.drain() if isinstance(it, TaskEnded)]
        assert [it.ended_by for it in ended if it.task_id != task.id] == ["parent"]


async def test_an_agent_that_stops_its_own_task_is_the_model(tmp_path: Path) -> None:
    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        own = await context.launch(Job(forever))
        assert isinstance(own, TaskHandle)
        await own.stop()
        async for event in answers(context):
            yield event

    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(agent(loop))
        await task.wait()
        seen = events.drain()
        (own,) = (
            it.task_id
            for it in seen
            if isinstance(it, TaskStarted) and it.task_id != task.id
        )
        (ended,) = (
            it for it in seen if isinstance(it, TaskEnded) and it.task_id == own
        )
        assert ended.ended_by == "model"


async def test_a_shell_that_a_signal_from_outside_ends_says_so(tmp_path: Path) -> None:
    with trio.fail_after(30):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(Shell("kill -9 $$"))
            done: TaskSnapshot = await task.wait()
            assert (done.status, done.signal, done.ended_by) == (FAILED, 9, "signal")
            stopped = await runtime.launch(Shell("sleep 60"))
            result = await runtime.stop(stopped.id)
            assert result.snapshot.ended_by == "host"


async def test_nobody_else_may_be_named_as_who_stops(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(forever))
        for call in (runtime.stop, runtime.stop_all):
            with pytest.raises(ValueError, match="by must be"):
                await call(task.id, by="shutdown")  # type: ignore[operator]
        assert not task.snapshot().stopping
