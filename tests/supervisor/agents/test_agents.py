"""Agents as tasks: whose tasks are whose, who hears of an end, and how deep it goes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors import Context
from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    Budget,
    FinalResult,
    Run,
    TokensUsed,
    UserMessage,
)
from actors.shell import Shell
from actors.testing import fake_env
from actors.work import Report
from supervisor.agents import AgentPolicy
from supervisor.lowlevel import life_of
from supervisor.runtime import (
    Acked,
    DepthExceeded,
    Limits,
    Runtime,
    RuntimeStopping,
    TaskEnded,
    TaskHandle,
    TaskStarted,
    UnknownTask,
    open_runtime,
)
from supervisor.tree import Event, WouldDeadlock
from tests.supervisor.jobs import (
    COMPLETED,
    FAILED,
    KILLED,
    PENDING,
    RUNNING,
    Job,
    agent,
    answers,
    files,
    forever,
    holds,
    idles,
    returns,
    starts,
    told,
    waits_for,
)

TOO_LONG = 30.0


def ends(events: list[Event]) -> list[str]:
    return [event.task_id for event in events if isinstance(event, TaskEnded)]


async def started(runtime: Runtime, count: int) -> list[str]:
    """Wait until so many tasks have started; return their ids in that order."""
    while True:
        live = [t for t in runtime.tasks() if t.started_at is not None]
        if len(live) >= count:
            return [t.id for t in live]
        await trio.testing.wait_all_tasks_blocked()


# Launching


async def test_launch_returns_at_once_and_the_agent_goes_on(tmp_path: Path) -> None:
    """AG1."""
    go_on = trio.Event()
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(agent(holds(go_on, "42")))
        assert task.status is RUNNING
        assert task.snapshot().depth == 0
        go_on.set()
        with trio.fail_after(TOO_LONG):
            done = await task.wait()
        assert (done.status, done.result, done.terminate) == (COMPLETED, "42", "goal")
        assert told(runtime) == [(task.id, "completed")]


async def test_an_agent_whose_loop_fails_has_failed_with_its_error(
    tmp_path: Path,
) -> None:
    """P10: and the runtime goes on."""

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        raise ValueError("no model")
        yield FinalResult("never")

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(agent(loop))
        with trio.fail_after(TOO_LONG):
            done = await task.wait()
        assert done.status is FAILED
        assert done.error is not None
        assert (done.error.type, done.error.message) == ("ValueError", "no model")
        again = await runtime.launch(agent())
        with trio.fail_after(TOO_LONG):
            assert (await again.wait()).status is COMPLETED


async def test_a_plain_task_says_nothing_of_agents(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(returns(1))
        done = await task.wait()
        assert (done.parent, done.depth, done.waiting, done.terminate) == (
            None,
            None,
            None,
            None,
        )
        with pytest.raises(TypeError, match="is not an agent"):
            task.events()


# Whose a task is


async def test_what_is_launched_for_a_live_agent_is_its_own(tmp_path: Path) -> None:
    """The owner's name decides, also before the agent has made its first step."""
    async with open_runtime(tmp_path) as runtime:
        parent = await runtime.launch(agent(idles))
        own = await runtime.launch(Job(forever), owner=parent.id)
        other = await runtime.launch(Job(forever), owner="main")
        assert own.snapshot().parent == parent.id
        assert other.snapshot().parent is None
        await started(runtime, 3)
        assert own.status is RUNNING
        await parent.stop()
        assert own.status is KILLED
        assert other.status is RUNNING


async def test_what_a_loop_launches_is_the_agents_own_whoever_it_asks(
    tmp_path: Path,
) -> None:
    handles: list[TaskHandle] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        handles.append(await runtime.launch(Job(forever)))
        await context.launch(Job(forever))
        # From a task of a task of the agent, too.
        handles.append(await runtime.launch(Job(launches)))
        handles.append(await runtime.launch(Job(forever), owner="somebody"))
        await trio.sleep_forever()
        yield FinalResult("never")

    async def launches(ctx: Context[object], report: Report) -> None:
        handles.append(await runtime.launch(Job(forever)))
        await trio.sleep_forever()

    async with open_runtime(tmp_path) as runtime:
        parent = await runtime.launch(agent(loop))
        await started(runtime, 6)
        own = {t.id for t in runtime.tasks() if t.parent == parent.id}
        owned = {t.id for t in runtime.tasks(owner=parent.id)}
        strange = [t for t in runtime.tasks() if t.owner == "somebody"]
        assert len(own) == 4
        assert own == owned
        assert [t.parent for t in strange] == [None]
        result = await parent.stop()
        assert set(result.stopped) == own
        assert runtime.get(strange[0].id).status is RUNNING


async def test_an_own_task_of_a_pending_agent_waits_with_it(tmp_path: Path) -> None:
    """It begins after the agent has begun, and ends with it if that never does."""
    limits = Limits(agents=1)
    go_on = trio.Event()
    async with open_runtime(tmp_path, limits=limits) as runtime:
        first = await runtime.launch(agent(holds(go_on)))
        second = await runtime.launch(agent(idles))
        third = await runtime.launch(agent(idles))
        own = await runtime.launch(Shell("true"), owner=second.id)
        lost = await runtime.launch(Shell("true"), owner=third.id)
        assert [t.status for t in (second, own, lost)] == [PENDING] * 3
        result = await third.stop("not wanted")
        assert lost.status is KILLED
        assert result.stopped == (lost.id,)
        assert own.status is PENDING
        go_on.set()
        with trio.fail_after(TOO_LONG):
            await first.wait()
            done = await own.wait()
        assert done.status is COMPLETED
        assert second.status is RUNNING


async def test_nothing_is_launched_for_an_agent_that_is_stopping(
    tmp_path: Path,
) -> None:
    refused: list[str] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                try:
                    await context.launch(Job(forever))
                except RuntimeStopping as error:
                    refused.append(str(error))
        yield FinalResult("never")

    async with open_runtime(tmp_path) as runtime:
        parent = await runtime.launch(agent(loop))
        await trio.testing.wait_all_tasks_blocked()
        await parent.stop()
        assert refused == [f"the agent {parent.id} is stopping and starts no task"]
        assert len(runtime.tasks()) == 1


async def test_the_parents_name_is_kept_when_the_parent_is_forgotten(
    tmp_path: Path,
) -> None:
    """AG29: and an owner that is nobody raises nothing."""
    handles: list[TaskHandle] = []
    async with open_runtime(tmp_path) as runtime:
        parent = await runtime.launch(
            agent(starts(returns("x"), started=handles)), notify="silent"
        )
        with trio.fail_after(TOO_LONG):
            await parent.wait()
        for _ in range(40):
            other = await runtime.launch(agent(), notify="silent")
            await other.wait()
        with pytest.raises(UnknownTask):
            runtime.get(parent.id)
        assert handles[0].snapshot().parent == parent.id
        orphan = await runtime.launch(returns(1), owner=parent.id)
        assert (await orphan.wait()).parent is None


# Who hears of an end


async def test_the_end_of_an_own_task_is_for_the_agent_alone(tmp_path: Path) -> None:
    """An agent's notification never reaches the host's reader."""
    seen: list[UserMessage] = []
    handles: list[TaskHandle] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        handles.append(await runtime.launch(returns("found it")))
        yield FinalResult("so far")
        seen.extend(context.inbox.take())
        yield FinalResult("all")

    async with open_runtime(tmp_path) as runtime:
        mine = runtime.events.subscribe()
        parent = await runtime.launch(agent(loop))
        with trio.fail_after(TOO_LONG):
            done = await parent.wait()
        assert done.result == "all"
        (message,) = seen
        assert message.origin == "notification"
        assert "found it" in message.text
        own = handles[0].id
        assert told(runtime) == [(parent.id, "completed")]
        events = mine.drain()
        acked = [(e.task_id, e.how) for e in events if isinstance(e, Acked)]
        assert acked == [(own, "delivered")]
        assert ends(events) == [own, parent.id]
        assert life_of(runtime).delivery.outbox.unacknowledged == 1


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("stops", [False, True])
async def test_an_agent_that_waits_for_its_own_task_hears_of_its_end(
    tmp_path: Path, stops: bool, durable: bool
) -> None:
    """Also while the journal writes aside: it is not done before it is told."""
    go_on = trio.Event()
    handles: list[TaskHandle] = []
    seen: list[UserMessage] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        handles.append(await runtime.launch(waits_for(go_on)))
        yield FinalResult("so far")
        seen.extend(context.inbox.take())
        yield FinalResult("all")

    async with open_runtime(tmp_path, durable=durable) as runtime:
        parent = await runtime.launch(agent(loop))
        with trio.fail_after(TOO_LONG):
            while parent.snapshot().waiting != "tasks":
                await trio.sleep(0.01)
            if stops:
                await handles[0].stop()
            go_on.set()
            assert (await parent.wait()).result == "all"
        assert [message.origin for message in seen] == ["notification"]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("durable", [False, True])
async def test_an_agent_is_told_of_an_end_that_the_journal_has_not_yet(
    tmp_path: Path, durable: bool, waits: bool
) -> None:
    """It answers before it knows, or waits itself: it is not done before it is told."""
    seen: list[UserMessage] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        go_on = trio.Event()
        own = await runtime.launch(waits_for(go_on))
        go_on.set()
        while not own.status.is_terminal:
            await trio.lowlevel.checkpoint()
        if waits:
            await context.wait_own_tasks()
            assert len(context.inbox) == 1
        yield FinalResult("so far")
        seen.extend(context.inbox.take())
        yield FinalResult("all")

    async with open_runtime(tmp_path, durable=durable) as runtime:
        with trio.fail_after(TOO_LONG):
            done = await (await runtime.launch(agent(loop))).wait()
        assert (done.result, len(seen)) == ("all", 1)


@pytest.mark.parametrize("ends_it", ["stop", "deadline"])
async def test_a_disk_that_hangs_holds_up_no_end_of_an_agent_that_waits(
    ends_it: str, autojump_clock: trio.testing.MockClock
) -> None:
    """The end of its own task is not in the journal, and nobody waits for that."""
    env, go_on, hangs = fake_env(), trio.Event(), False
    in_thread = env.files.in_thread

    async def slow(fn: Any, *args: object) -> Any:
        if hangs:
            with trio.CancelScope(shield=True):
                await trio.sleep(8)
        return await in_thread(fn, *args)

    env.files.in_thread = slow  # type: ignore[method-assign]
    run = starts(waits_for(go_on))
    deadline = 2.0 if ends_it == "deadline" else None
    async with open_runtime("tasks", env=env, durable=True) as runtime:
        parent = await runtime.launch(agent(run, shutdown=0.5, deadline=deadline))
        await trio.sleep(1)
        assert parent.snapshot().waiting == "tasks"
        hangs = True
        go_on.set()
        await trio.sleep(0.5)
        events = runtime.events.subscribe()
        if ends_it == "stop":
            result = await parent.stop()
            assert result.survivors == ()
        else:
            await parent.wait()
        hangs = False
        (end,) = (e for e in events.drain() if isinstance(e, TaskEnded))
        assert end.task_id == parent.id
        assert end.time == pytest.approx(1.5 if deadline is None else 2.0)
        assert parent.status is (KILLED if deadline is None else FAILED)


async def test_what_an_agent_has_not_read_is_consumed_at_its_end(
    tmp_path: Path,
) -> None:
    """P4: every record ends acknowledged."""
    async with open_runtime(tmp_path) as runtime:
        mine = runtime.events.subscribe()
        parent = await runtime.launch(agent(idles))
        own = [await runtime.launch(returns(n), owner=parent.id) for n in range(3)]
        for task in own:
            await task.wait()
        await parent.stop()
        assert told(runtime) == [(parent.id, "killed")]
        events = mine.drain()
        acked = [(e.task_id, e.how) for e in events if isinstance(e, Acked)]
        assert sorted(acked) == sorted((task.id, "consumed") for task in own)
        assert life_of(runtime).delivery.outbox.unacknowledged == 1


async def test_an_agent_without_own_tasks_has_heard_of_their_ends(
    tmp_path: Path,
) -> None:
    """Or it would be done before the notifier has had its turn."""
    checked: list[int] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        task = await runtime.launch(Job(forever))
        life = life_of(runtime)
        agent = life.table.live[context.agent_id].as_agent
        assert agent is not None and agent.agent_host is not None
        host = agent.agent_host
        assert host.own_tasks() == 1
        # In one step, as the last end of an own task and the question may be.
        life.mark_stopping([life.table.live[task.id]], None)
        assert host.own_tasks() == 0
        checked.append(len(context.inbox))
        yield FinalResult("done")

    # Without a journal, which would be asked first whether it has the end.
    async with open_runtime(tmp_path, limits=Limits(total=1), journal=False) as runtime:
        parent = await runtime.launch(agent(loop))
        with trio.fail_after(TOO_LONG):
            await parent.wait()
        assert checked == [1]


async def test_what_an_agent_has_read_in_another_way_is_not_told_again(
    tmp_path: Path,
) -> None:
    """N: consumed before it was taken, it is in no inbox any more."""
    seen: list[UserMessage] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        task = await runtime.launch(returns("x"))
        await task.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert len(context.inbox) == 1
        assert runtime.consume(task)
        # Or it would go on for nothing.
        assert len(context.inbox) == 0
        seen.extend(context.inbox.take())
        yield FinalResult("done")

    async with open_runtime(tmp_path) as runtime:
        parent = await runtime.launch(agent(loop))
        with trio.fail_after(TOO_LONG):
            assert (await parent.wait()).result == "done"
        assert seen == []


async def test_a_failing_agent_troubles_nobody_elses_parent(tmp_path: Path) -> None:
    """AG35: its parent hears of it, and no other agent and not the host."""
    heard: dict[str, list[UserMessage]] = {"a": [], "b": []}

    def parent(name: str, *own: Agent) -> Run:
        async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
            for work in own:
                await context.launch(work)
            await context.inbox.wait()
            heard[name] += context.inbox.take()
            yield FinalResult(name)

        return loop

    async def breaks(context: AgentContext) -> AsyncIterator[AgentEvent]:
        raise ValueError("broken")
        yield FinalResult("never")

    async with open_runtime(tmp_path) as runtime:
        b = await runtime.launch(agent(parent("b")))
        a = await runtime.launch(agent(parent("a", agent(breaks))))
        with trio.fail_after(TOO_LONG):
            assert (await a.wait()).status is COMPLETED
        await trio.testing.wait_all_tasks_blocked()
        assert b.status is RUNNING
        assert heard["b"] == []
        assert [m.origin for m in heard["a"]] == ["notification"]
        assert "broken" in heard["a"][0].text
        assert told(runtime) == [(a.id, "completed")]


async def test_an_unknown_id_is_answered_with_all_that_run(tmp_path: Path) -> None:
    """AG39: also with what other agents have started."""
    handles: list[TaskHandle] = []
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        parent = await runtime.launch(
            agent(starts(Job(forever), then=idles, started=handles)),
            description="the parent",
        )
        await started(runtime, 2)
        with pytest.raises(UnknownTask) as caught:
            await runtime.stop("ffffffff")
        assert caught.value.running == (
            (parent.id, "the parent"),
            (handles[0].id, "a job"),
        )


# The end of an agent waits for its own tasks


async def test_an_agent_completes_after_its_own_tasks(tmp_path: Path) -> None:
    """P2: it has its answer, and says what it waits for."""
    go_on = trio.Event()
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        mine = runtime.events.subscribe()
        parent = await runtime.launch(agent(starts(waits_for(go_on))))
        await started(runtime, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert parent.status is RUNNING
        assert parent.snapshot().waiting == "tasks"
        go_on.set()
        with trio.fail_after(TOO_LONG):
            done = await parent.wait()
        assert (done.status, done.waiting) == (COMPLETED, None)
        assert ends(mine.drain())[-1] == parent.id


async def test_a_task_that_does_not_wait_for_its_own_is_held_until_they_end(
    tmp_path: Path,
) -> None:
    """By construction, and not by the good will of what runs."""
    go_on = trio.Event()

    class Careless(Agent):
        async def run(self, ctx: Context[object], report: Report) -> str:
            await runtime.launch(waits_for(go_on))
            return "careless"

    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        parent = await runtime.launch(Careless(answers, "go"))
        await started(runtime, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert parent.status is RUNNING
        go_on.set()
        with trio.fail_after(TOO_LONG):
            done = await parent.wait()
        assert (done.status, done.result) == (COMPLETED, "careless")


async def test_an_agent_that_waits_holds_no_place(tmp_path: Path) -> None:
    """AG28: with a cap of one its own agents run all the same, one by one."""
    most = 0

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        nonlocal most
        running = [t for t in runtime.tasks() if t.status is RUNNING]
        most = max(most, sum(t.waiting is None for t in running))
        yield FinalResult("own")

    async with open_runtime(tmp_path, limits=Limits(agents=1)) as runtime:
        own = [agent(loop) for _ in range(3)]
        parent = await runtime.launch(agent(starts(*own)))
        with trio.fail_after(TOO_LONG):
            assert (await parent.wait()).status is COMPLETED
            await runtime.wait_idle()
        assert most == 1
        again = await runtime.launch(agent(idles))
        beyond = await runtime.launch(agent(idles))
        assert (again.status, beyond.status) == (RUNNING, PENDING)


async def test_a_place_is_free_before_anybody_hears_of_the_end(tmp_path: Path) -> None:
    """N39: whoever takes the notification finds the place free."""
    go_on = trio.Event()
    found: list[str] = []
    async with open_runtime(tmp_path, limits=Limits(agents=1)) as runtime:
        task = await runtime.launch(agent(holds(go_on)))
        life = life_of(runtime)
        tell = life.delivery.tell

        def look(*args: object) -> None:
            lane = life.slots.take_next()
            found.append("free" if lane is not None else "taken")
            tell(*args)  # type: ignore[arg-type]

        waiting = await runtime.launch(agent(answers))
        assert waiting.status is PENDING
        life.delivery.tell = look  # type: ignore[method-assign, assignment]
        go_on.set()
        with trio.fail_after(TOO_LONG):
            await task.wait()
        life.delivery.tell = tell  # type: ignore[method-assign]
        assert found == ["free"]
        # The look has taken the place for the one that waits.
        life.slots.give_back(life.table.live[waiting.id])
        life.conclude(life.table.live[waiting.id], KILLED, None)


@pytest.mark.parametrize("how", ["completes", "fails", "is stopped", "is stopped late"])
async def test_a_place_is_given_back_once_on_every_path(
    how: str, tmp_path: Path
) -> None:
    """CO10: no end, however it comes, frees two places or none."""
    go_on = trio.Event()

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await go_on.wait()
        if how == "fails":
            raise ValueError("broken")
        yield FinalResult("done")

    async with open_runtime(
        tmp_path, env=fake_env(), limits=Limits(agents=2)
    ) as runtime:
        for _ in range(4):
            go_on = trio.Event()
            own = Job(forever) if how == "is stopped late" else returns(1)
            task = await runtime.launch(agent(starts(own, then=loop)))
            await trio.testing.wait_all_tasks_blocked()
            if how != "is stopped":
                go_on.set()
            if how == "is stopped late":
                await trio.testing.wait_all_tasks_blocked()
                assert task.snapshot().waiting == "tasks"
            if how.startswith("is stopped"):
                await task.stop()
            with trio.fail_after(TOO_LONG):
                await task.wait()
        left = [await runtime.launch(agent(idles)) for _ in range(4)]
        assert [t.status for t in left] == [RUNNING, RUNNING, PENDING, PENDING]


async def test_the_time_in_the_queue_is_none_of_the_agents_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """CO12, CO13: neither the deadline nor the stall begins before the start."""
    go_on = trio.Event()
    env = fake_env()
    async with open_runtime("tasks", env=env, limits=Limits(agents=1)) as runtime:
        first = await runtime.launch(agent(holds(go_on), stall_limit=None))
        second = await runtime.launch(
            agent(deadline=60.0, stall_warning=10.0, stall_limit=20.0)
        )
        await trio.sleep(3_600)
        assert second.status is PENDING
        go_on.set()
        await first.wait()
        assert (await second.wait()).status is COMPLETED


# Depth


async def test_an_agent_too_deep_is_refused_with_the_numbers(tmp_path: Path) -> None:
    """AG7: and leaves no trace."""
    caught: list[DepthExceeded] = []
    ids: list[str] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        ids.append(context.agent_id)
        try:
            await context.run(agent(loop))
        except DepthExceeded as error:
            caught.append(error)
        yield FinalResult(f"depth {context.depth}")

    async with open_runtime(tmp_path, agents=AgentPolicy(max_depth=2)) as runtime:
        mine = runtime.events.subscribe()
        task = await runtime.launch(agent(loop))
        with trio.fail_after(TOO_LONG):
            await task.wait()
        (error,) = caught
        assert (error.child_depth, error.max_depth) == (3, 2)
        assert error.lineage == tuple(ids)
        assert str(error) == (
            f"an agent below {' > '.join(ids)} would have the depth 3; at most 2 is "
            "allowed"
        )
        assert len(runtime.tasks()) == len(ids) == 3
        by_start = sorted(runtime.tasks(), key=lambda t: t.run_id[-6:])
        assert [t.depth for t in by_start] == [0, 1, 2]
        assert len([e for e in mine.drain() if isinstance(e, TaskStarted)]) == 3
        assert len([name for name in files(tmp_path) if "output" in name]) == 3


async def test_a_shell_may_be_started_at_any_depth(tmp_path: Path) -> None:
    """AG7: the limit is for agents."""
    async with open_runtime(tmp_path, agents=AgentPolicy(max_depth=0)) as runtime:
        parent = await runtime.launch(agent(idles))
        own = await runtime.launch(returns("x"), owner=parent.id)
        assert (await own.wait()).status is COMPLETED
        with pytest.raises(DepthExceeded):
            await runtime.launch(agent(), owner=parent.id)


@pytest.mark.parametrize("what", ["no depth", "cycle"])
async def test_a_lineage_that_cannot_be_told_starts_nothing(
    what: str, tmp_path: Path
) -> None:
    """AG7: it fails closed."""
    async with open_runtime(tmp_path) as runtime:
        parent = await runtime.launch(agent(idles))
        record = life_of(runtime).table.live[parent.id].as_agent
        assert record is not None
        if what == "cycle":
            record.parent = record
        else:
            record.depth = -1
        with pytest.raises(DepthExceeded, match="cannot be told how deep"):
            await runtime.launch(agent(), owner=parent.id)
        assert len(runtime.tasks()) == 1
        record.parent = None


# Budgets


async def test_what_an_own_agent_uses_counts_for_its_parent(tmp_path: Path) -> None:
    """Children's sum never exceeds the parent's: both are over together."""
    budget = Budget(tokens=100)

    async def spends(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for _ in range(10):
            yield TokensUsed(input_tokens=30)
        yield FinalResult("too much")

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        done = await context.run(agent(spends, budget=Budget(tokens=1_000)))
        yield FinalResult(done.status.value)

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(agent(loop, budget=budget))
        with trio.fail_after(TOO_LONG):
            done = await task.wait()
        assert (done.status, done.terminate) == (FAILED, "budget")
        own = next(t for t in runtime.tasks() if t.parent == task.id)
        # Whichever of the two has noticed first.
        assert own.terminate in ("budget", "cancelled")
        assert budget.used_tokens == 120


# Deadlocks


async def test_an_agent_cannot_wait_for_or_stop_what_waits_for_it(
    tmp_path: Path,
) -> None:
    """Neither itself nor an agent above it; what is below it, it can."""
    refused: list[str] = []

    async def below(context: AgentContext) -> AsyncIterator[AgentEvent]:
        above = runtime.get(context.agent_id).parent
        assert above is not None
        for task_id in (context.agent_id, above):
            with pytest.raises(WouldDeadlock):
                await runtime.stop(task_id)
            with pytest.raises(WouldDeadlock):
                await runtime.handle(task_id).wait()
            refused.append(task_id)
        yield FinalResult("below")

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        done = await context.run(agent(below))
        task = await runtime.launch(Job(forever))
        result = await task.stop()
        yield FinalResult(f"{done.result}, {result.snapshot.status.value}")

    async with open_runtime(tmp_path) as runtime:
        parent = await runtime.launch(agent(loop))
        with trio.fail_after(TOO_LONG):
            assert (await parent.wait()).result == "below, killed"
        assert len(refused) == 2


# The policy


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_depth": -1}, "max_depth must be a whole number, 0 or more, not -1"),
        ({"max_depth": True}, "max_depth must be a whole number, 0 or more, not True"),
        ({"breaker": 0}, "breaker must be a whole number, 1 or more, not 0"),
        ({"run": "loop"}, "run must be callable or None, not 'loop'"),
        ({"tools": 1}, "tools must be callable or None, not 1"),
        ({"permissions": None}, "permissions must be Permissions, not None"),
        ({"hooks": ()}, "hooks must be Hooks, not ()"),
        ({"definitions": []}, "definitions must be a mapping, not []"),
        (
            {"definitions": {"a": "b"}},
            "definitions must be AgentDefinitions by name, not 'b'",
        ),
    ],
)
def test_a_policy_that_cannot_be_names_the_argument(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        AgentPolicy(**options)
    assert str(caught.value) == said


def test_a_runtime_takes_no_other_policy(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="agents must be an AgentPolicy or None"):
        open_runtime(tmp_path, agents={})  # type: ignore[arg-type]
