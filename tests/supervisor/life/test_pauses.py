"""Pauses: what stops an agent and passes ends a run, and not the agent."""

# A block that may end early leaves its names unbound.
# pyright: reportPossiblyUnboundVariable=false
from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from actors.agent import (
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    Note,
    TextDelta,
    TokensUsed,
    TransientError,
    UserMessage,
)
from actors.testing import FakeEnv, fake_env
from actors.transcript import AgentMeta
from supervisor._life.pauses import Paused, tries_of
from supervisor.agents import AgentPolicy
from supervisor.hooks import Hook, Hooks
from supervisor.permissions import Permissions
from supervisor.runtime import (
    DisplayItem,
    Limits,
    Pause,
    TaskBackgrounded,
    TaskContinued,
    TaskEnded,
    TaskHandle,
    TaskPaused,
    TaskRestarted,
    TaskSnapshot,
    TaskStarted,
    open_runtime,
)
from tests.supervisor.jobs import (
    COMPLETED,
    FAILED,
    KILLED,
    PAUSED,
    PENDING,
    RUNNING,
    agent,
    holds,
    idles,
    kinds,
    starts,
    waits_for,
)

MockClock = trio.testing.MockClock

START = datetime(2000, 1, 1, tzinfo=UTC)


def overloaded(at: datetime | None = None) -> TransientError:
    return TransientError("the API is overloaded", at)


@attrs.define
class Tries:
    """A loop that fails as often as it is told to, and remembers what it was given."""

    failures: int
    error: Callable[[], Exception] = overloaded
    seen: list[Sequence[object]] = attrs.field(factory=list[Sequence[object]])

    async def __call__(self, context: AgentContext) -> AsyncIterator[AgentEvent]:
        self.seen.append(tuple(context.history))
        yield Note("it tries")
        if len(self.seen) <= self.failures:
            raise self.error()
        yield FinalResult("the answer")


async def paused(task: TaskHandle) -> TaskSnapshot:
    await trio.testing.wait_all_tasks_blocked()
    snapshot = task.snapshot()
    assert snapshot.status is PAUSED
    return snapshot


async def test_an_error_that_passes_pauses_an_agent_and_it_goes_on_by_itself(
    autojump_clock: MockClock,
) -> None:
    loop = Tries(2)
    async with open_runtime("tasks", env=fake_env({})) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(agent(loop))
        first = await paused(task)
        assert first.pause is not None
        assert (first.pause.reason, first.pause.attempt) == ("the API is overloaded", 1)
        assert first.ended_at is None and first.error is None
        done = await task.wait()
        assert (done.status, done.result, done.pause) == (COMPLETED, "the answer", None)
        seen = events.drain()
    told = [it for it in seen if isinstance(it, TaskPaused | TaskContinued | TaskEnded)]
    assert [type(it) for it in told] == [
        *(TaskPaused, TaskContinued) * 2,
        TaskEnded,
    ]
    runs = [it.run_id for it in told if not isinstance(it, TaskEnded)]
    # Each run has its own id: a pause has that of the run before it.
    assert runs[1] == runs[2] and len({*runs}) == 3 and done.run_id == runs[3]
    assert [it.by for it in told if isinstance(it, TaskContinued)] == ["time"] * 2
    attempts = [it.attempt for it in told if isinstance(it, TaskPaused)]
    assert attempts == [1, 2]
    # 1 and 2 minutes, more or less.
    times = [it.time for it in told]
    assert 54 <= times[1] - times[0] <= 66 and 108 <= times[3] - times[2] <= 132


async def test_the_new_run_goes_on_from_the_transcript(
    autojump_clock: MockClock,
) -> None:
    """Also from what came before the first word of an answer that was cut."""

    async def cut(context: AgentContext) -> AsyncIterator[AgentEvent]:
        seen.append(list(context.history))
        if len(seen) == 1:
            yield AssistantMessage("the first step is done")
            yield TextDelta("the second st")
            raise overloaded()
        yield FinalResult("both")

    seen: list[list[object]] = []
    async with open_runtime("tasks", env=fake_env({})) as runtime:
        task = await runtime.launch(agent(cut))
        assert (await paused(task)).result == "the second st"
        await runtime.resume(task)
        assert (await task.wait()).result == "both"
    assert seen[1][:2] == [
        UserMessage("do it"),
        AssistantMessage("the first step is done"),
    ]
    last = seen[1][-1]
    assert isinstance(last, UserMessage) and last.origin == "reminder"
    assert len(seen[1]) == 3


async def test_a_known_time_is_waited_for(
    autojump_clock: MockClock,
) -> None:
    at = START + timedelta(hours=5)
    loop = Tries(1, lambda: overloaded(at))
    env = fake_env({})
    async with open_runtime("tasks", env=env) as runtime:
        task = await runtime.launch(agent(loop))
        pause = (await paused(task)).pause
        assert pause is not None and pause.resume_at == at
        await task.wait()
        assert env.clock.now() == at


async def test_a_clock_that_jumps_neither_hurries_nor_holds_up_an_agent_for_ever(
    autojump_clock: MockClock,
) -> None:
    """A machine that has slept goes on with it at the next look; a clock that was set
    back does not make it wait for more seconds than were asked for."""
    for ahead, most in ((3600.0, 61), (-7200.0, 3601)):
        env = fake_env({})
        loop = Tries(
            1, lambda env=env: overloaded(env.clock.now() + timedelta(hours=1))
        )
        async with open_runtime("tasks", env=env) as runtime:
            task = await runtime.launch(agent(loop))
            await paused(task)
            began = trio.current_time()
            env.clock.ahead += ahead
            await task.wait()
            assert trio.current_time() - began <= most


async def test_a_paused_agent_has_no_place_and_waits_for_one(
    autojump_clock: MockClock,
) -> None:
    """CO3, TR12: it is paused until it has its place again, and comes before what never
    had one."""
    ends = trio.Event()
    limits = Limits(agents=1)
    async with open_runtime("tasks", env=fake_env({}), limits=limits) as runtime:
        task = await runtime.launch(agent(Tries(1)))
        other = await runtime.launch(agent(holds(ends)))
        last = await runtime.launch(agent(idles))
        await trio.testing.wait_all_tasks_blocked()
        assert (task.status, other.status) == (PAUSED, RUNNING)
        await trio.sleep(100)
        assert task.status is PAUSED
        ends.set()
        assert (await task.wait()).status is COMPLETED
        await trio.testing.wait_all_tasks_blocked()
        assert last.status is RUNNING


async def test_its_own_tasks_run_on_and_are_told_to_it(
    autojump_clock: MockClock,
) -> None:
    async def fails(context: AgentContext) -> AsyncIterator[AgentEvent]:
        if not started:
            own = await context.launch(waits_for(ends))
            assert isinstance(own, TaskHandle)
            started.append(own)
            yield Note("started")
            raise overloaded()
        heard.extend(it for it in context.history if isinstance(it, UserMessage))
        yield FinalResult("done")

    started: list[TaskHandle] = []
    heard: list[UserMessage] = []
    ends = trio.Event()
    async with open_runtime("tasks", env=fake_env({})) as runtime:
        task = await runtime.launch(agent(fails))
        await paused(task)
        assert started[0].status is RUNNING
        ends.set()
        # The end of a task of its own is no reason to go on: its API has the same limit.
        assert (await started[0].wait()).status is COMPLETED
        await paused(task)
        await task.wait()
    assert [it.origin for it in heard][-1] == "notification"


async def test_it_counts_as_unfinished_for_every_wait_and_for_its_parent(
    autojump_clock: MockClock,
) -> None:
    """N18: at any depth; a model has started it."""
    child_loop = Tries(1)
    started: list[TaskHandle] = []
    middle = agent(starts(agent(child_loop), started=started))
    async with open_runtime("tasks", env=fake_env({})) as runtime:
        top = await runtime.launch(agent(starts(middle)))
        await trio.testing.wait_all_tasks_blocked()
        (child,) = started
        await paused(child)
        assert top.status is RUNNING and runtime.unfinished_agents() == []
        ended: list[str] = []

        async def waits(what: str, wait: Callable[[], Any]) -> None:
            await wait()
            assert child.status is COMPLETED
            ended.append(what)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(waits, "idle", runtime.wait_idle)
            nursery.start_soon(waits, "wait", child.wait)
            nursery.start_soon(waits, "all", lambda: runtime.wait_all([child]))
            nursery.start_soon(waits, "any", lambda: runtime.wait_any([child]))
            nursery.start_soon(waits, "top", top.wait)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert not ended
        assert len(ended) == 5


async def test_run_returns_as_after_a_move(
    autojump_clock: MockClock,
) -> None:
    """What it returns tells of the pause, so no note does; a later one is told."""
    async with open_runtime("tasks", env=fake_env({})) as runtime:
        events = runtime.events.subscribe()
        with trio.fail_after(1):
            snapshot = await runtime.run(agent(Tries(2)))
        assert (snapshot.status, snapshot.background) == (PAUSED, True)
        assert snapshot.pause is not None
        assert runtime.notifications.drain() == []
        done = await runtime.handle(snapshot.id).wait()
        assert done.status is COMPLETED
        assert [it.kind for it in runtime.notifications.drain()] == ["pause", "task"]
        assert TaskBackgrounded in kinds(events.drain(), snapshot.id)


async def test_the_owner_is_told_once_for_each_pause(
    autojump_clock: MockClock,
) -> None:
    """Without being woken: its model would probably meet the same limit."""
    async with open_runtime("tasks", env=fake_env({})) as runtime:
        task = await runtime.launch(agent(Tries(2)), owner="main", description="<a> b")
        await paused(task)
        await runtime.resume(task)
        await paused(task)
        with trio.move_on_after(0) as scope:
            async for _ in runtime.notifications_for("main"):
                pytest.fail("it woke its owner")
        assert scope.cancelled_caught
        notes = runtime.notifications_for("main").drain()
        assert [(it.kind, it.status, it.notify) for it in notes] == [
            ("pause", PAUSED, "defer")
        ] * 2
        root = ET.fromstring(notes[0].xml)
        assert (root.tag, root.findtext("task-id")) == ("task-paused", task.id)
        assert "the API is overloaded" in (root.findtext("summary") or "")
        assert notes[0].display.startswith(
            'Agent "<a> b" is paused until 2000-01-01T00'
        )
        assert DisplayItem.of(notes[0]).kind == "pause"
        silent = await runtime.launch(agent(Tries(1)), notify="silent")
        await paused(silent)
        assert runtime.notifications.drain() == []


async def test_an_agent_is_told_of_the_pause_of_its_own(
    autojump_clock: MockClock,
) -> None:
    async def listens(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await context.launch(agent(Tries(1)))
        yield Note("waits")
        await context.inbox.wait()
        heard.append(context.inbox.take()[0].text)
        yield FinalResult("done")

    heard: list[str] = []
    async with open_runtime("tasks", env=fake_env({})) as runtime:
        task = await runtime.launch(agent(listens))
        assert (await task.wait()).status is COMPLETED
        assert heard[0].startswith("<task-paused>")


async def test_its_deadline_stands_still_and_its_budget_does_not(
    autojump_clock: MockClock,
) -> None:
    """Its stall limit, too: 10 minutes are longer than that."""

    async def slow(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield Note("works")
        await trio.sleep(40)
        if not passed:
            passed.append(trio.current_time())
            raise overloaded(START + timedelta(hours=1))
        yield Note("works on")
        await trio.sleep_forever()

    passed: list[float] = []
    work = agent(slow, deadline=100.0, stall_warning=None, stall_limit=90.0)
    async with open_runtime("tasks", env=fake_env({})) as runtime:
        task = await runtime.launch(work)
        await trio.sleep(50)
        await paused(task)
        done = await task.wait()
        assert (done.status, done.ended_by) == (FAILED, "deadline")
    # 40 s before it, and 60 s after it.
    assert trio.current_time() == pytest.approx(3600 + 60, abs=1)


async def test_after_its_patience_it_fails_with_all_tries(
    autojump_clock: MockClock,
) -> None:
    policy = AgentPolicy(patience=200.0)
    async with open_runtime("tasks", env=fake_env({}), agents=policy) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(agent(Tries(99)))
        done = await task.wait()
        assert (done.status, done.terminate) == (FAILED, "error")
        assert done.error is not None
        assert done.error.message.count("the API is overloaded") == 4
        assert done.error.message.startswith("it was tried 4 times in 0.1 h")
        assert kinds(events.drain(), task.id).count(TaskPaused) == 3
        # Its last words are told, and it takes no message.
        assert [it.kind for it in runtime.notifications.drain()] == [
            *["pause"] * 3,
            "task",
        ]
    assert trio.current_time() == pytest.approx(200, abs=1)


async def test_without_patience_nothing_pauses_but_for_a_known_time(
    autojump_clock: MockClock,
) -> None:
    policy = AgentPolicy(patience=0)
    async with open_runtime("tasks", env=fake_env({}), agents=policy) as runtime:
        task = await runtime.launch(agent(Tries(1)))
        assert (await task.wait()).status is FAILED
        other = await runtime.launch(
            agent(Tries(1, lambda: overloaded(START + timedelta(hours=1))))
        )
        await paused(other)


async def test_an_answer_of_its_model_begins_the_count_anew(
    autojump_clock: MockClock,
) -> None:
    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        runs.append(trio.current_time())
        if len(runs) == 3:
            yield AssistantMessage("an answer")
        yield TextDelta("half an ans")
        if len(runs) < 5:
            raise overloaded()
        yield FinalResult("done")

    runs: list[float] = []
    async with open_runtime("tasks", env=fake_env({})) as runtime:
        events = runtime.events.subscribe()
        await (await runtime.launch(agent(loop))).wait()
        told = [it.attempt for it in events.drain() if isinstance(it, TaskPaused)]
    assert told == [1, 2, 1, 2]


async def test_what_is_said_of_half_an_answer_makes_it_none(
    autojump_clock: MockClock,
) -> None:
    """Or an agent would try for ever whose loop says what each half has cost."""

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        runs.append(trio.current_time())
        if len(runs) == 9:
            yield FinalResult("it never gave up")
            return
        yield TextDelta("half an ans")
        yield AssistantMessage("half an ans")
        yield TokensUsed(input_tokens=10, output_tokens=2)
        yield Note("it broke off")
        yield UserMessage("say it again", origin="reminder")
        raise overloaded()

    runs: list[float] = []
    policy = AgentPolicy(patience=1000.0)
    async with open_runtime("tasks", env=fake_env({}), agents=policy) as runtime:
        events = runtime.events.subscribe()
        done = await (await runtime.launch(agent(loop))).wait()
        told = [it.attempt for it in events.drain() if isinstance(it, TaskPaused)]
    assert done.status is FAILED and told == [1, 2, 3, 4]


@pytest.mark.parametrize("error", [ValueError("bad request"), KeyError("no")])
async def test_no_other_error_pauses(
    autojump_clock: MockClock, error: Exception
) -> None:
    async with open_runtime("tasks", env=fake_env({})) as runtime:
        task = await runtime.launch(agent(Tries(1, lambda: error)))
        assert (await task.wait()).status is FAILED


async def test_a_pause_is_no_restart(
    autojump_clock: MockClock,
) -> None:
    """It does not count for the intensity, and the restart is for what fails."""
    loop = Tries(5)
    async with open_runtime("tasks", env=fake_env({})) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(agent(loop), restart="transient", intensity=0)
        for _ in range(5):
            await paused(task)
            await runtime.resume(task)
        assert (await task.wait()).status is COMPLETED
        assert TaskRestarted not in kinds(events.drain(), task.id)


async def test_a_message_ends_a_pause_and_is_read(
    autojump_clock: MockClock,
) -> None:
    loop = Tries(1)
    async with open_runtime("tasks", env=fake_env({})) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(agent(loop))
        await paused(task)
        sent = await runtime.send(task, "try now")
        assert sent.how == "queued"
        assert (await task.wait()).status is COMPLETED
        (told,) = (it for it in events.drain() if isinstance(it, TaskContinued))
        assert told.by == "message"
    last = loop.seen[1][-1]
    assert isinstance(last, UserMessage) and last.text == "try now"


async def test_many_calls_end_a_pause_once(
    autojump_clock: MockClock,
) -> None:
    loop = Tries(1)
    async with open_runtime("tasks", env=fake_env({})) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(agent(loop))
        await paused(task)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(runtime.resume, task)
                nursery.start_soon(runtime.send, task, "now")
        await task.wait()
        told = [it for it in events.drain() if isinstance(it, TaskContinued)]
        # A message may come after the end, and then a new run reads it.
        assert len(told) == 1


async def test_a_stopped_pause_is_killed_and_can_be_resumed(
    autojump_clock: MockClock,
) -> None:
    loop = Tries(1)
    async with open_runtime("tasks", env=fake_env({})) as runtime:
        task = await runtime.launch(agent(loop))
        await paused(task)
        result = await runtime.stop(task.id, "enough", by="user")
        assert not result.survivors
        end = result.snapshot
        assert (end.status, end.ended_by, end.pause) == (KILLED, "user", None)
        again = await runtime.resume(task.id)
        assert (await again.wait()).status is COMPLETED


async def test_leaving_the_block_kills_it_by_shutdown_and_it_is_resumable(
    autojump_clock: MockClock,
) -> None:
    env = fake_env({})
    loop = Tries(1)
    policy = AgentPolicy(run=loop)
    async with open_runtime("tasks", env=env, agents=policy) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(agent(loop))
        await paused(task)
        (meta,) = (runtime.agent_meta(task.id),)
        assert meta is not None and meta.status == "paused"
    (ended,) = (it for it in events.drain() if isinstance(it, TaskEnded))
    assert (ended.status, ended.ended_by) == ("killed", "shutdown")
    async with open_runtime("tasks", env=env, agents=policy) as runtime:
        assert [it.agent_id for it in runtime.unfinished_agents()] == [task.id]
        resumed = await runtime.resume(task.id)
        assert (await resumed.wait()).status is COMPLETED


async def test_a_resume_that_meets_the_limit_again_is_paused_and_not_undone(
    autojump_clock: MockClock,
) -> None:
    """It has said nothing before, and all the same it is no resume that fails."""

    async def fails(context: AgentContext) -> AsyncIterator[AgentEvent]:
        runs.append(1)
        if len(runs) == 1:
            yield FinalResult("first")
            return
        if len(runs) == 2:
            raise overloaded()
        yield FinalResult("second")

    runs: list[int] = []
    async with open_runtime("tasks", env=fake_env({})) as runtime:
        task = await runtime.launch(agent(fails))
        await task.wait()
        again = await runtime.resume(task, "more")
        await paused(again)
        await runtime.resume(again)
        assert (await again.wait()).result == "second"


async def test_stop_hooks_are_told_that_it_is_paused(
    autojump_clock: MockClock,
) -> None:
    told: list[Any] = []

    async def hook(message: Any) -> None:
        told.append(message["status"])

    hooks = Hooks(stop=[Hook(hook)])
    policy = AgentPolicy(hooks=hooks)
    async with open_runtime("tasks", env=fake_env({}), agents=policy) as runtime:
        task = await runtime.launch(agent(Tries(1)))
        await paused(task)
        await runtime.resume(task)
        await task.wait()
    assert told == ["paused", "running"]


async def test_what_fails_while_it_is_stopped_is_killed(
    autojump_clock: MockClock,
) -> None:
    """A loop may answer a stop with the error that its API has given it."""

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield Note("works")
        try:
            await trio.sleep_forever()
        finally:
            raise overloaded()

    async with open_runtime("tasks", env=fake_env({})) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(agent(loop))
        await trio.testing.wait_all_tasks_blocked()
        result = await runtime.stop(task.id)
        assert result.snapshot.status is KILLED
        assert TaskPaused not in kinds(events.drain(), task.id)


async def test_a_paused_task_is_shown_as_such(
    autojump_clock: MockClock,
) -> None:
    """To a model, by every tool that names states."""
    from supervisor.attachments import after_compaction, reminder

    async with open_runtime("tasks", env=fake_env({})) as runtime:
        task = await runtime.launch(agent(Tries(1)))
        await paused(task)
        tools = {it.name: it for it in runtime.tools_for(None)}
        for name, arguments in (
            ("TaskList", {}),
            ("TaskOutput", {"task_id": task.id, "block": False}),
        ):
            answer = await tools[name].call(arguments)
            assert "paused until 2000-01-01T00:0" in answer.text, name
        for text in (reminder(runtime, None), after_compaction(runtime, None)):
            assert text is not None and "paused until 2000-01-01T00:0" in text


async def test_a_paused_agent_goes_on_with_another_loop_if_that_is_given(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """And in another directory, with the conversation that it has had."""
    seen: list[tuple[str | None, int]] = []

    async def other(context: AgentContext) -> AsyncIterator[AgentEvent]:
        seen.append((context.cwd, len(context.history)))
        yield FinalResult("by the other")

    async with open_runtime("tasks", env=fake_env({})) as runtime:
        task = await runtime.launch(agent(Tries(9)))
        await paused(task)
        again = await runtime.resume(task, agent=agent(other), cwd=tmp_path)
        assert again.id == task.id
        assert (await task.wait()).result == "by the other"
    assert seen == [(str(tmp_path), 2)]


async def test_a_foreground_agent_below_an_agent_is_told_by_what_run_returns(
    autojump_clock: MockClock,
) -> None:
    """As the tool Agent starts it: its model reads that it is paused."""
    policy = AgentPolicy(run=Tries(1), permissions=Permissions(mode="bypass"))
    env = fake_env({})
    async with open_runtime("tasks", env=env, agents=policy) as runtime:
        (tool,) = (it for it in runtime.tools_for(None) if it.name == "Agent")
        arguments = {
            "description": "look",
            "prompt": "look",
            "subagent_type": "general-purpose",
        }
        answer = await tool.call(arguments)
        assert not answer.is_error and answer.data["status"] == "async_launched"
        assert "is paused until 2000-01-01T00:0" in answer.text
        assert "the API is overloaded" in answer.text
        await runtime.wait_idle()


# ---- A task that begins paused ----


async def left(env: FakeEnv) -> AgentMeta:
    """Leave an agent unfinished that has said something."""

    async def works(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("the first step is done")
        await trio.sleep_forever()

    async with open_runtime("tasks", env=env) as runtime:
        task = await runtime.launch(agent(works))
        await trio.testing.wait_all_tasks_blocked()
        meta = runtime.agent_meta(task.id)
    for note in runtime.notifications.drain():
        note.ack()
    assert meta is not None
    return meta


@pytest.mark.parametrize("how", ["time", "host", "message"])
async def test_a_task_may_begin_paused(autojump_clock: MockClock, how: str) -> None:
    """SM13: without a place, and it goes on from what it had said."""
    env = fake_env({})
    meta = await left(env)
    loop = Tries(0)
    policy, limits = AgentPolicy(run=loop), Limits(agents=1)
    async with open_runtime("tasks", env=env, agents=policy, limits=limits) as runtime:
        events = runtime.events.subscribe()
        other = await runtime.launch(
            agent(holds(ends := trio.Event()), stall_warning=None, stall_limit=None)
        )
        at = env.clock.now() + timedelta(hours=1) if how == "time" else None
        pause = Pause("the host died", at)
        task = runtime._resumes.enter_paused(meta, pause)
        assert (task.status, task.pause) == (PAUSED, pause)
        await trio.testing.wait_all_tasks_blocked()
        assert (task.status, other.status) == (PAUSED, RUNNING)
        (note,) = runtime.notifications.drain()
        assert note.kind == "pause" and "the host died" in note.display
        # Nobody has a place to give it: it stays paused.
        if how == "host":
            await runtime.resume(task.task_id)
        elif how == "message":
            await runtime.send(task.task_id, "go on")
        await trio.sleep(7200)
        assert task.status is PAUSED
        ends.set()
        done = await runtime.handle(task.task_id).wait()
        assert done.status is COMPLETED
        told = [
            it
            for it in events.drain()
            if isinstance(it, TaskStarted | TaskPaused | TaskContinued)
        ]
        assert told.pop(0).task_id == other.id
        kinds_of = [type(it) for it in told]
        assert kinds_of == [TaskStarted, TaskPaused, TaskContinued]
        assert isinstance(told[2], TaskContinued) and told[2].by == how
        assert isinstance(told[1], TaskPaused) and told[1].attempt == 0
    assert AssistantMessage("the first step is done") in loop.seen[0]


@pytest.mark.parametrize("end", ["stop", "leave"])
async def test_one_that_began_paused_ends_as_any_other(
    autojump_clock: MockClock, end: str
) -> None:
    """And the place that it never had is not given back."""
    env = fake_env({})
    meta = await left(env)
    policy, limits = AgentPolicy(run=Tries(0)), Limits(agents=1)
    async with open_runtime("tasks", env=env, agents=policy, limits=limits) as runtime:
        events = runtime.events.subscribe()
        runtime._resumes.enter_paused(meta, Pause("the host died"))
        if end == "stop":
            result = await runtime.stop(meta.agent_id, by="user")
            assert result.snapshot.status is KILLED
            one, two = [await runtime.launch(agent(idles)) for _ in range(2)]
            await trio.testing.wait_all_tasks_blocked()
            assert (one.status, two.status) == (RUNNING, PENDING)
    (ended,) = (
        it
        for it in events.drain()
        if isinstance(it, TaskEnded) and it.task_id == meta.agent_id
    )
    by = "user" if end == "stop" else "shutdown"
    assert (ended.status, ended.ended_by) == ("killed", by)
    async with open_runtime("tasks", env=env, agents=policy) as runtime:
        unfinished = [it.agent_id for it in runtime.unfinished_agents()]
        assert (meta.agent_id in unfinished) is (end == "leave")


@pytest.mark.parametrize("at", ["rubbish", "2030-01-01T00:00:00", "2030-01-01"])
def test_a_try_of_a_damaged_journal_whose_time_is_none_is_left_out(at: str) -> None:
    """A time without a zone could be compared with no other."""
    good = Paused(
        run="a-1", attempt=2, at="2030-01-01T00:00:00+00:00", waited_ms=60_000
    )
    bad = Paused(run="a-1", attempt=1, at=at, waited_ms=1_000)
    (tried,) = tries_of([bad, good])
    assert tried.waited == 60.0
