"""Messages to agents: none is lost, none is read twice, whatever they race with.

Each race is run with the two sides any number of scheduler steps apart, and with
trio's order of the tasks of one step several ways. What counts is the transcript:
a message is put there in the step in which it is handed out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing

from actors import TaskStatus
from actors.agent import Agent, AgentContext, AgentEvent, AssistantMessage, FinalResult
from actors.agent.hosting import INBOX_LIMIT
from actors.testing import fake_env
from supervisor.runtime import (
    BacklogFull,
    Limits,
    MessageRefused,
    Notified,
    Runtime,
    RuntimeStopping,
    Sent,
    TaskEnded,
    TaskResumed,
    TaskStarted,
    UnknownTask,
    Warned,
    open_runtime,
)
from tests.supervisor.jobs import Job, kinds
from tests.supervisor.jobs import forever as job_forever
from tests.supervisor.talkers import (
    answers,
    completed,
    fails,
    forever,
    read,
    sent,
    steps,
    waits_for,
)

COMPLETED, FAILED, KILLED = TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.KILLED

# An agent that answers at once lives for about 40 steps.
APART = range(60)


async def test_a_running_agent_finds_messages_in_order_between_two_rounds(
    tmp_path: Path,
) -> None:
    """AG21: they drain first in, first out, and the inbox is empty then."""
    rounds: list[list[str]] = []
    gate = trio.Event()

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("one")
        await gate.wait()
        rounds.append(sent(context.inbox.take()))
        yield AssistantMessage("two")
        rounds.append(sent(context.inbox.take()))
        yield FinalResult("done")

    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        task = await runtime.launch(Agent(run, "go"))
        await trio.testing.wait_all_tasks_blocked()
        for text in "abc":
            there = await runtime.send(task, text, sender="main")
            assert there == Sent(task.id, task.snapshot().run_id, "queued")
        gate.set()
        assert (await task.wait()).status is COMPLETED
        assert rounds == [["a", "b", "c"], []]
        assert await read(runtime, task.id) == ["a", "b", "c"]


async def test_the_agent_is_told_who_has_sent_a_message(tmp_path: Path) -> None:
    """AG21, N42: by default the agent that calls; never the user."""
    senders: list[tuple[str, str | None]] = []
    gate = trio.Event()

    async def reader(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await gate.wait()
        senders.extend((m.origin, m.sender) for m in context.inbox.take())
        yield FinalResult("done")

    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        task = await runtime.launch(Agent(reader, "go"))

        async def writer(context: AgentContext) -> AsyncIterator[AgentEvent]:
            await runtime.send(task, "hello")
            yield FinalResult("done")

        other = await runtime.launch(Agent(writer, "go"))
        assert (await other.wait()).status is COMPLETED
        await runtime.send(task, "hello", sender="the program")
        await runtime.send(task, "hello")
        gate.set()
        await task.wait()
        assert senders == [
            ("message", other.id),
            ("message", "the program"),
            ("message", None),
        ]


async def test_a_pending_agent_finds_what_was_sent_before_it_began(
    tmp_path: Path,
) -> None:
    """AG21."""
    async with open_runtime(tmp_path, env=fake_env(), limits=Limits(total=1)) as rt:
        first = await rt.launch(Job(job_forever))
        task = await rt.launch(Agent(answers, "go"))
        assert (await rt.send(task, "early")).how == "queued"
        await first.stop()
        assert (await task.wait()).result == "go | early"


async def test_a_completed_agent_is_revived_with_the_message(tmp_path: Path) -> None:
    """AG26, SM24, SM38: in place, under its id, as a run of its own with an end of
    its own; nothing of the end before is left on it."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        events = runtime.events.subscribe()
        gate = trio.Event()

        async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
            if sent(context.history):
                await gate.wait()
            yield FinalResult(" | ".join(sent(context.history)) or "nothing")

        task = await runtime.launch(Agent(run, "go"), tool_use_id="t1", owner="me")
        before = await task.wait()
        there = await runtime.send(task.id, "more")
        assert there.how == "revived" and there.run_id != before.run_id
        during = runtime.get(task.id)
        assert during.run_id == there.run_id and during.status.value == "running"
        assert during.result is None and during.ended_at is None
        assert (during.owner, during.tool_use_id) == ("me", "t1")
        gate.set()
        after = await runtime.handle(task.id).wait()
        assert after.result == "more" and after.status is COMPLETED
        assert task.snapshot() == before
        assert len(runtime.tasks()) == 1
        notes = runtime.notifications.drain()
        assert [note.task_id for note in notes] == [task.id, task.id]
        assert kinds(events.drain(), task.id) == [
            TaskStarted,
            TaskEnded,
            Notified,
            TaskStarted,
            TaskResumed,
            TaskEnded,
            Notified,
        ]


async def test_an_acknowledgement_of_the_end_before_does_not_touch_the_new_run(
    tmp_path: Path,
) -> None:
    """SM24, SM27: and the new record is kept until its own end is heard of."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        id = await completed(runtime)
        (old,) = await runtime.notifications.receive_batch()
        await runtime.send(id, "more")
        assert old.ack()
        assert runtime.get(id).status.value == "running"
        await runtime.handle(id).wait()
        for _ in range(40):
            task = await runtime.launch(Agent(answers, "go"), notify="silent")
            await task.wait()
        assert runtime.get(id).status is COMPLETED
        (new,) = await runtime.notifications.receive_batch()
        assert new.task_id == id and new.ack()


@pytest.mark.parametrize("how", ["failed", "killed"])
async def test_an_agent_that_failed_or_was_stopped_takes_no_message(
    tmp_path: Path, how: str
) -> None:
    """AG22: nothing is queued, and it stays as it is."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        if how == "failed":
            task = await runtime.launch(Agent(fails(ValueError("no")), "go"))
            before = await task.wait()
        else:
            task = await runtime.launch(Agent(forever, "go"))
            before = (await task.stop()).snapshot
        with pytest.raises(MessageRefused, match="takes no messages: it") as caught:
            await runtime.send(task, "hello")
        assert str(caught.value).endswith("; Runtime.resume goes on with it")
        assert caught.value.task_id == task.id
        assert runtime.get(task.id) == before
        assert await read(runtime, task.id) == []


async def test_what_is_no_agent_or_unknown_takes_no_message(tmp_path: Path) -> None:
    """AG22, AG39: an unknown id lists those that run, of whomever."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        job = await runtime.launch(Job(job_forever))
        with pytest.raises(
            MessageRefused, match=f"task {job.id} takes no messages: it"
        ):
            await runtime.send(job, "hello")
        task = await runtime.launch(
            Agent(forever, "go"), description="a spy", owner="x"
        )
        for unknown in ("12345678", "../../etc/passwd", "", "a\0b"):
            with pytest.raises(UnknownTask) as caught:
                await runtime.send(unknown, "hello")
            assert caught.value.running == ((job.id, "a job"), (task.id, "a spy"))
        other = runtime.handle(task.id)
    async with open_runtime(tmp_path / "b", env=fake_env()) as runtime:
        with pytest.raises(ValueError, match="is a task of another runtime"):
            await runtime.send(other, "hello")


async def test_a_one_shot_agent_takes_no_message(tmp_path: Path) -> None:
    """AG25: neither while it runs nor afterwards."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        gate = trio.Event()
        task = await runtime.launch(Agent(waits_for(gate), "go", one_shot=True))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(MessageRefused, match="it is a one-shot agent"):
            await runtime.send(task, "hello")
        gate.set()
        before = await task.wait()
        with pytest.raises(MessageRefused, match="it is a one-shot agent"):
            await runtime.send(task, "hello")
        assert runtime.get(task.id) == before


async def test_an_agent_with_no_room_takes_no_message(tmp_path: Path) -> None:
    """AG21: the sender is told, and what is queued stays."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        gate = trio.Event()
        task = await runtime.launch(Agent(waits_for(gate), "go"))
        await trio.testing.wait_all_tasks_blocked()
        for number in range(INBOX_LIMIT):
            await runtime.send(task, str(number))
        with pytest.raises(MessageRefused, match="1000 messages wait"):
            await runtime.send(task, "one too many")
        gate.set()
        await task.wait()
        assert await read(runtime, task.id) == [str(n) for n in range(INBOX_LIMIT)]


async def test_a_message_for_another_run_is_refused(tmp_path: Path) -> None:
    """AG40: whoever was there first, nobody reads what was meant for another."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        id = await completed(runtime)
        first = runtime.get(id).run_id
        there = await runtime.send(id, "one", run_id=first)
        assert there.how == "revived"
        for when in ("while it runs", "after its end"):
            with pytest.raises(MessageRefused, match=f"{first}.*{there.run_id}"):
                await runtime.send(id, when, run_id=first)
            await runtime.handle(id).wait()
        assert (await runtime.send(id, "two", run_id=there.run_id)).how == "revived"
        await runtime.handle(id).wait()
        assert await read(runtime, id) == ["one", "two"]


async def test_bad_arguments_are_named_and_change_nothing(tmp_path: Path) -> None:
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        id = await completed(runtime)
        before = runtime.get(id)
        with pytest.raises(TypeError, match="a message must be a str, not 5"):
            await runtime.send(id, 5)  # type: ignore[arg-type]
        for bad in ("", "  ", "\ud800"):
            with pytest.raises(ValueError, match="a message must"):
                await runtime.send(id, bad)
        with pytest.raises(TypeError, match="sender must be a str or None, not 5"):
            await runtime.send(id, "a", sender=5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="run_id must be a str or None, not 5"):
            await runtime.send(id, "a", run_id=5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="expected a TaskHandle or a task id"):
            await runtime.send(5, "a")  # type: ignore[arg-type]
        assert runtime.get(id) == before


# Races


async def try_to_send(runtime: Runtime, id: str, text: str) -> Sent | str:
    """Return what came of it, or why it was refused."""
    try:
        return await runtime.send(id, text)
    except MessageRefused as error:
        return error.why


async def drain_all(runtime: Runtime, id: str) -> list[str]:
    """Let whoever was stopped read what waits for it, and return all it was told."""
    snapshot = await runtime.handle(id).wait()
    if snapshot.status is not COMPLETED:
        task = await runtime.resume(id, agent=Agent(answers, "whatever"))
        assert (await task.wait()).status is COMPLETED
    return await read(runtime, id)


@pytest.mark.sim(seeds=2)
@pytest.mark.parametrize("apart", APART)
async def test_a_message_that_races_with_the_end_is_read_once(apart: int) -> None:
    """AG23: before the inbox closes it is queued; afterwards its sender waits for
    the end, and the agent is revived."""
    with trio.fail_after(30):
        async with open_runtime("tasks", env=fake_env()) as runtime:
            task = await runtime.launch(Agent(answers, "go"))
            await steps(apart)
            there = await runtime.send(task, "hello")
            assert (await runtime.handle(task.id).wait()).status is COMPLETED
            assert await read(runtime, task.id) == ["hello"]
            ends = len(runtime.notifications.drain())
            assert ends == (2 if there.how == "revived" else 1)


async def test_the_races_with_the_end_meet_all_of_it(tmp_path: Path) -> None:
    """AG23: a check of the race above: early, while it ends, and after it."""
    met: set[tuple[str, bool]] = set()
    with trio.fail_after(60):
        for apart in range(60):
            async with open_runtime(tmp_path / str(apart), env=fake_env()) as runtime:
                task = await runtime.launch(Agent(answers, "go"))
                await steps(apart)
                running = not task.status.is_terminal
                met.add(((await runtime.send(task, "hello")).how, running))
    assert met == {("queued", True), ("revived", True), ("revived", False)}


@pytest.mark.sim(seeds=2)
@pytest.mark.parametrize("apart", APART)
async def test_a_message_that_races_with_a_stop_is_kept_or_refused(apart: int) -> None:
    """AG22, AG37, SM24: what was queued before the stop is the first that the
    agent reads if somebody resumes it."""
    with trio.fail_after(30):
        async with open_runtime("tasks", env=fake_env()) as runtime:
            task = await runtime.launch(Agent(forever, "go"))
            await steps(apart // 2)
            took: list[str] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(runtime.stop, task.id)
                await steps(apart % 12)
                for text in ("a", "b"):
                    there = await try_to_send(runtime, task.id, text)
                    if isinstance(there, str):
                        assert "stopped" in there
                    else:
                        assert there.how == "queued"
                        took.append(text)
            assert task.status is KILLED
            assert await drain_all(runtime, task.id) == took


@pytest.mark.sim(seeds=2)
@pytest.mark.parametrize("apart", APART)
async def test_a_message_that_races_with_a_restart_is_read_once(apart: int) -> None:
    """AG21: also one that comes between two runs."""
    runs = 0

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        nonlocal runs
        runs += 1
        yield AssistantMessage(f"run {runs}")
        await trio.lowlevel.checkpoint()
        context.inbox.take()
        await trio.lowlevel.checkpoint()
        if runs <= 2:
            raise ValueError("again")
        yield FinalResult("done")

    with trio.fail_after(30):
        async with open_runtime("tasks", env=fake_env()) as runtime:
            task = await runtime.launch(
                Agent(run, "go"), restart="transient", intensity=5
            )
            await steps(3 * apart // 2)
            there = await runtime.send(task, "hello")
            assert (await runtime.handle(task.id).wait()).status is COMPLETED
            assert await read(runtime, task.id) == ["hello"]
            assert there.task_id == task.id


@pytest.mark.sim(seeds=2)
@pytest.mark.parametrize("apart", APART)
async def test_messages_that_race_with_each_other_share_one_run_in_their_order(
    apart: int,
) -> None:
    """TR8: whoever comes second is queued."""
    gate = trio.Event()
    with trio.fail_after(30):
        async with open_runtime("tasks", env=fake_env()) as runtime:

            async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
                if sent(context.history):
                    await gate.wait()
                context.inbox.take()
                yield FinalResult("done")

            id = await completed(runtime, run)
            hows: list[str] = []

            async def say(text: str) -> None:
                hows.append((await runtime.send(id, text)).how)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(say, "a")
                await steps(1)
                nursery.start_soon(runtime.resume, id, "b")
                await steps(apart % 15 + 1)
                nursery.start_soon(say, "c")
            gate.set()
            assert (await runtime.handle(id).wait()).status is COMPLETED
            assert await read(runtime, id) == ["a", "b", "c"]
            assert sorted(hows) == ["queued", "revived"]
            assert runtime.get(id).run_id.endswith("-000002")


@pytest.mark.sim(seeds=2)
@pytest.mark.parametrize("apart", APART)
async def test_a_sender_that_is_cancelled_takes_nobody_with_it(apart: int) -> None:
    """TR8: another that waits for the same revival goes on with it."""
    with trio.fail_after(30):
        async with open_runtime("tasks", env=fake_env()) as runtime:
            id = await completed(runtime)
            first = trio.CancelScope()
            done = False

            async def cancelled() -> None:
                nonlocal done
                with first:
                    await runtime.send(id, "a")
                    done = True

            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancelled)
                await steps(1)
                nursery.start_soon(runtime.send, id, "b")
                await steps(apart % 20)
                first.cancel()
            while runtime.get(id).status is not COMPLETED:
                await runtime.handle(id).wait()
            told = await read(runtime, id)
            assert told == ["a", "b"] if done else told in (["b"], ["a", "b"])


async def test_messages_at_once_are_read_in_the_order_of_the_calls(
    tmp_path: Path,
) -> None:
    """AG21, TR8: whatever becomes of the agent between them."""
    for apart in range(40):
        with trio.fail_after(30):
            directory = tmp_path / str(apart)
            async with open_runtime(directory, env=fake_env()) as runtime:
                task = await runtime.launch(Agent(answers, "go"))
                await steps(apart)
                async with trio.open_nursery() as nursery:
                    for number in range(6):
                        nursery.start_soon(runtime.send, task.id, str(number))
                        await trio.lowlevel.checkpoint()
                await runtime.wait_idle()
                assert await read(runtime, task.id) == list("012345")


@pytest.mark.parametrize("apart", range(30))
async def test_a_message_that_races_with_the_eviction_is_read_once(
    tmp_path: Path, apart: int
) -> None:
    """AG26: what the table has forgotten is revived from the directory."""
    with trio.fail_after(30):
        async with open_runtime(tmp_path, env=fake_env()) as runtime:
            id = await completed(runtime)
            for _ in range(31):
                await completed(runtime)
            for note in runtime.notifications.drain():
                note.ack()

            async def evict() -> None:
                await steps(apart)
                await runtime.run(Agent(answers, "one more"))
                last = await completed(runtime)
                for note in runtime.notifications.drain():
                    if note.task_id == last:
                        note.ack()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(evict)
                await steps(15)
                there = await try_to_send(runtime, id, "hello")
                if isinstance(there, str):
                    # Forgotten: nothing says with which loop it goes on.
                    assert "AgentPolicy.run" in there
                else:
                    assert there.how == "revived"
                    await runtime.handle(id).wait()
                    assert await read(runtime, id) == ["hello"]


async def test_a_message_does_not_revive_an_agent_of_a_closing_runtime(
    tmp_path: Path,
) -> None:
    """TR13: the record stays as it was."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        id = await completed(runtime)
        before = runtime.get(id)
    with pytest.raises(RuntimeStopping):
        await runtime.send(id, "hello")
    assert runtime.get(id) == before


async def test_a_message_does_not_revive_an_agent_if_nobody_acknowledges_ends(
    tmp_path: Path,
) -> None:
    """SM25, TR12: refused for capacity, the record is as it was to the last field,
    and so is its notification."""
    async with open_runtime(tmp_path, env=fake_env(), limits=Limits(backlog=1)) as rt:
        id = await completed(rt)
        before, everything = rt.get(id), rt.tasks()
        with pytest.raises(BacklogFull):
            await rt.send(id, "hello")
        assert (rt.get(id), rt.tasks()) == (before, everything)
        (note,) = rt.notifications.drain()
        assert note.acked is None and note.ack()
        assert (await rt.send(id, "hello")).how == "revived"


async def test_what_an_agent_has_not_read_at_its_end_is_told(tmp_path: Path) -> None:
    """AG22: a warning says how many messages a stopped agent has left unread."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(Agent(forever, "go"))
        await trio.testing.wait_all_tasks_blocked()
        await runtime.send(task, "a")
        await runtime.send(task, "b")
        await task.stop()
        warnings = [e for e in events.drain() if isinstance(e, Warned)]
        assert [(e.task_id, e.text) for e in warnings] == [
            (task.id, "2 message(s) were sent to it that it has not read")
        ]
