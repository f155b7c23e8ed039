"""Agents whose loops, hosts and neighbours do what nobody would expect."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing

from actors import Context, Progress
from actors.agent import Agent, AgentContext, AgentEvent, FinalResult, Note, ToolUse
from actors.agent.hosting import INBOX_LIMIT
from actors.testing import fake_env
from actors.work import Report
from supervisor.lowlevel import life_of
from supervisor.runtime import (
    Acked,
    BacklogFull,
    Limits,
    MessageRefused,
    Notified,
    ResumeRefused,
    RuntimeStopping,
    open_runtime,
)
from supervisor.tree import WouldDeadlock
from tests.supervisor.jobs import (
    COMPLETED,
    FAILED,
    KILLED,
    RUNNING,
    Job,
    agent,
    idles,
    returns,
    told,
)
from tests.supervisor.talkers import read

TOO_LONG = 60.0


async def test_the_ends_of_more_own_tasks_than_messages_may_wait_reach_their_agent(
    tmp_path: Path,
) -> None:
    """P4: and nobody else, whether it ever looks or not."""
    count = INBOX_LIMIT + 10
    go_on = trio.Event()

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for number in range(count):
            await context.launch(returns(number))
        await go_on.wait()
        yield FinalResult(str(len(context.inbox.take())))

    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path, env=fake_env()) as runtime:
            mine = runtime.events.subscribe(100_000)
            task = await runtime.launch(agent(loop))
            while sum(isinstance(e, Notified) for e in mine.drain()) < 1:
                await trio.testing.wait_all_tasks_blocked()
            await trio.testing.wait_all_tasks_blocked()
            assert told(runtime) == []
            go_on.set()
            assert (await task.wait()).result == str(count)
            await trio.testing.wait_all_tasks_blocked()
            assert told(runtime) == [(task.id, "completed")]
            acks = [e for e in mine.drain() if isinstance(e, Acked)]
            assert len(acks) == count


async def test_a_resume_for_whose_message_there_is_no_room_changes_nothing(
    tmp_path: Path,
) -> None:
    """AG22, SM25: what it had not read before comes first, and is all there is
    room for."""

    async def reads(context: AgentContext) -> AsyncIterator[AgentEvent]:
        if len(context.history) == 1:
            await trio.sleep_forever()
        yield FinalResult("read")

    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(agent(reads))
            await trio.testing.wait_all_tasks_blocked()
            for number in range(INBOX_LIMIT):
                await runtime.send(task, str(number))
            await runtime.stop(task)
            before = runtime.get(task.id)
            with pytest.raises(ResumeRefused, match="1000 messages wait"):
                await runtime.resume(task, "one more")
            assert runtime.get(task.id) == before
            assert before.status is KILLED
            again = await runtime.resume(task)
            assert (await again.wait()).status is COMPLETED
            assert await read(runtime, task.id) == [str(n) for n in range(INBOX_LIMIT)]


async def test_the_records_of_an_agent_that_is_resumed_often_are_not_kept(
    tmp_path: Path,
) -> None:
    """P7: one record replaces the other."""
    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(agent())
            await task.wait()
            for _ in range(10):
                await (await runtime.resume(task.id, "go on")).wait()
                for note in runtime.notifications.drain():
                    note.ack()
            gc.collect()
            last = life_of(runtime).table.find(task.id)
            assert last is not None
            alive = [
                record
                for record in gc.get_objects()
                if isinstance(record, type(last)) and record.task_id == task.id
            ]
            # The one of `task`, and the last.
            assert len(alive) <= 2


async def test_the_context_of_a_run_that_has_ended_starts_nothing(
    tmp_path: Path,
) -> None:
    """AG40, P1: not as a task of the program, outside the agent's depth, either,
    nor in the name of the run after it."""
    kept: list[AgentContext] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        kept.append(context)
        yield FinalResult("done")
        if len(kept) > 1:
            await trio.sleep_forever()

    async def check() -> None:
        context = kept[0]
        for work in (agent(), returns(1)):
            with pytest.raises(
                RuntimeStopping, match=r"this run of the agent .* ended"
            ):
                await context.launch(work)
            with pytest.raises(
                RuntimeStopping, match=r"this run of the agent .* ended"
            ):
                await context.run(work)
        said = await context.use_tools([ToolUse("u1", "TaskList", {})])
        assert said.tool_answers[0].is_error
        assert "has ended" in said.tool_answers[0].text

    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(agent(loop))
            await task.wait()
            await check()
            assert [t.id for t in runtime.tasks()] == [task.id]
            await runtime.resume(task, "go on")
            await trio.testing.wait_all_tasks_blocked()
            await check()
            assert [t.id for t in runtime.tasks()] == [task.id]


async def test_what_an_agent_does_not_read_keeps_nobody_else_from_launching(
    tmp_path: Path,
) -> None:
    """P6, P10: what is for it counts for its own tasks, and for no other."""

    async def deaf(context: AgentContext) -> AsyncIterator[AgentEvent]:
        while True:
            try:
                await context.launch(returns(1))
            except BacklogFull as error:
                yield Note(str(error))
                await trio.sleep_forever()

    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path, limits=Limits(backlog=20)) as runtime:
            task = await runtime.launch(agent(deaf))
            async with aclosing(task.events()) as events:
                async for event in events:
                    if isinstance(event, Note):
                        assert "notifications are not acknowledged" in event.text
                        break
            for _ in range(20):
                assert (await (await runtime.launch(returns(2))).wait()).result == "2"
            with pytest.raises(BacklogFull, match=r"^20 notifications"):
                await runtime.launch(returns(2))
            with pytest.raises(BacklogFull):
                await runtime.launch(returns(2), owner=task.id)
            other = runtime.notifications.drain()
            assert len(other) == 20
            other[0].ack()
            await (await runtime.launch(returns(2))).wait()
            await runtime.stop(task)
            assert life_of(runtime).delivery.outbox.unacknowledged == 21
            assert life_of(runtime).delivery.outbox.routed == 0


async def test_nothing_is_sent_to_an_agent_whose_run_has_failed(
    tmp_path: Path,
) -> None:
    """AG22: although it has not ended before its own tasks have."""
    said: list[str] = []
    failed, go_on = trio.Event(), trio.Event()

    async def lingers(ctx: Context[object], report: Report) -> None:
        try:
            await trio.sleep_forever()
        finally:
            failed.set()
            with trio.CancelScope(shield=True):
                await go_on.wait()

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield Note("begins")
        await context.launch(Job(lingers))
        await trio.testing.wait_all_tasks_blocked()
        raise ValueError("it is over")

    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(agent(loop))
            await failed.wait()

            async def sends() -> None:
                with pytest.raises(MessageRefused, match="it has failed"):
                    await runtime.send(task, "are you there?")
                said.append("refused")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(sends)
                await trio.testing.wait_all_tasks_blocked()
                assert said == []
                go_on.set()
            assert said == ["refused"]


async def test_an_own_task_that_could_not_begin_is_not_kept(tmp_path: Path) -> None:
    """P7: of one that waits for its agent, and is stopped, only the record stays."""
    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
            hold = await runtime.launch(agent(idles))
            parent = await runtime.launch(agent(idles))
            own = await runtime.launch(returns(1), owner=parent.id)
            await runtime.stop(own)
            await runtime.stop(parent)
            found = life_of(runtime).table.find(parent.id)
            assert found is not None and found.as_agent is not None
            record = found.as_agent
            assert (record.early, record.own, record.routed) == ([], {}, {})
            await runtime.stop(hold)


class Strange(BaseException):
    """No Exception, and no interrupt either."""


@pytest.mark.parametrize(
    "error",
    [Strange("why"), BaseExceptionGroup("both", [ValueError("why"), Strange("why")])],
)
async def test_a_run_that_fails_with_what_is_no_exception_was_not_cancelled(
    tmp_path: Path, error: BaseException
) -> None:
    """P10: and nobody beside it is concerned."""

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield Note("begins")
        raise error

    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:
            other = await runtime.launch(agent(idles))
            done = await (await runtime.launch(agent(loop))).wait()
            assert (done.status, done.terminate) == (FAILED, "error")
            assert other.status is RUNNING


async def test_the_mistakes_of_a_resumed_loop_are_told_by_its_name(
    tmp_path: Path,
) -> None:
    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(agent())
            assert (await task.wait()).status is COMPLETED
            again = await runtime.resume(task, agent=Agent(_yields_3, "go on"))
            done = await again.wait()
            assert done.error is not None
            assert done.error.message == "_yields_3 yielded 3, which is not an event"


async def _yields_3(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield cast("AgentEvent", 3)


async def test_an_own_task_does_not_queue_behind_one_who_waits_for_its_agents_end(
    tmp_path: Path,
) -> None:
    """P1: it would wait for its own end."""
    ending, go_on = trio.Event(), trio.Event()
    answers: list[str] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        async def speaks_last(ctx: Context[object], report: Report) -> None:
            try:
                await trio.sleep_forever()
            finally:
                ending.set()
                with trio.CancelScope(shield=True):
                    await go_on.wait()
                    for call in (runtime.send, runtime.resume):
                        with pytest.raises(WouldDeadlock):
                            await call(context.agent_id, "still there?")
                        answers.append("refused")

        yield Note("begins")
        await context.launch(Job(speaks_last))
        await trio.testing.wait_all_tasks_blocked()
        raise ValueError("it is over")

    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(agent(loop))
            await ending.wait()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(runtime.resume, task, "once more")
                await trio.testing.wait_all_tasks_blocked()
                go_on.set()
                await task.wait()
            assert answers == ["refused", "refused"]
            await runtime.stop_all()


async def test_no_interrupt_strikes_while_an_agent_reads_the_ends_of_its_tasks(
    tmp_path: Path,
) -> None:
    """P3, P10: it would be taken for an error of the record, and be lost."""
    protected: list[bool] = []

    class Looks:
        """Somebody's progress, which the envelope asks for its tokens."""

        text, bytes_written, tool_uses = "", 0, 0

        @property
        def total_tokens(self) -> int:
            protected.append(trio.lowlevel.currently_ki_protected())
            return 1

    async def body(ctx: Context[object], report: Report) -> None:
        await trio.testing.wait_all_tasks_blocked()
        report.progress = cast("Progress", Looks())

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await context.launch(Job(body))
        yield FinalResult("waits for it")

    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:
            for _ in range(20):
                task = await runtime.launch(agent(loop))
                assert (await task.wait()).status is COMPLETED
    assert len(protected) == 20
    assert all(protected)
