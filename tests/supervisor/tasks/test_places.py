"""Who has a place while tasks wait for each other: no cap is ever exceeded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from actors import Context
from actors.agent import (
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    ToolUse,
    UserMessage,
)
from actors.shell import Shell
from actors.testing import Program, fake_env
from actors.work import Report
from supervisor._tasks.record import Task
from supervisor._tasks.task_events import ApprovalRequested, TaskStarted
from supervisor.agents import AgentPolicy
from supervisor.lowlevel import life_of
from supervisor.permissions import Permissions
from supervisor.runtime import Limits, Runtime, TaskHandle, open_runtime
from supervisor.simulation import Sim
from supervisor.tree import Backoff, Event, Subscription
from tests.supervisor.jobs import (
    COMPLETED,
    KILLED,
    PENDING,
    RUNNING,
    Job,
    agent,
    forever,
    lasts,
    returns,
    waits_for,
)

TOO_LONG = 60.0


def at_work(runtime: Runtime) -> list[Task]:
    """Return those that have a place."""
    returning = life_of(runtime).places._returning  # pyright: ignore[reportPrivateUsage]
    return [
        task
        for task in life_of(runtime).table.live.values()
        if task.ref is not None and not task.waits and task not in returning
    ]


def shared(runtime: Runtime) -> int:
    slots = life_of(runtime).slots
    return len(slots._shares)  # pyright: ignore[reportPrivateUsage]


class Watch(trio.abc.Instrument):
    """Counts those at work after each step of the loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.most = 0
        self.most_agents = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        tasks = at_work(self._runtime)
        shares = shared(self._runtime)
        agents = [t for t in tasks if t.task_type == "local_agent"]
        self.most = max(self.most, len(tasks) - shares)
        self.most_agents = max(self.most_agents, len(agents) - shares)


async def check_books(runtime: Runtime, places: int) -> None:
    """All places are free, and each can be given out once."""
    await runtime.wait_idle()
    assert life_of(runtime).slots.waiting == 0 and not shared(runtime)
    assert not life_of(runtime).places.waits
    tasks = [await runtime.launch(Job(forever)) for _ in range(places + 1)]
    assert [t.status for t in tasks] == [RUNNING] * places + [PENDING]
    await runtime.stop_all()


async def told(events: Subscription, kind: type[Event]) -> None:
    """Wait until something of this kind is told."""
    while not isinstance(await anext(events), kind):
        pass


# In any history


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.sim(seeds=40)
async def test_in_any_history_no_cap_is_exceeded_and_every_task_ends(
    sim: Sim, moves: bool
) -> None:
    """CO5, CO8, CO10, AG28: at every step. Waits of all kinds, in several calls at
    once, given up, for own tasks and for those of others; stops, restarts. With
    moves to the background two that share a place count as one."""
    chance = sim.random
    caps = Limits(total=chance.choice([2, 3, 4]), agents=chance.choice([1, 2, 3]))
    assert caps.total is not None and caps.agents is not None
    top: list[TaskHandle] = []
    working = most_working = 0
    # A task that fails of one would end as others do.
    unexpected: list[Exception] = []

    async def works() -> None:
        nonlocal working, most_working
        working += 1
        most_working = max(most_working, working)
        try:
            await trio.sleep(chance.choice([0, 0, chance.random()]))
        finally:
            working -= 1

    def job(runtime: Runtime, before: int, depth: int = 0) -> Job:
        kind = chance.choice(["local_agent", "local_bash"])

        async def body(ctx: Context[object], report: Report) -> None:
            try:
                await works()
                for _ in range(chance.randrange(4)):
                    await wait_somehow()
                    await works()
            except Exception as error:
                unexpected.append(error)
            if chance.random() < 0.1:
                raise ValueError("failed")

        async def children(count: int) -> list[TaskHandle]:
            return [
                await runtime.launch(job(runtime, before, depth + 1))
                for _ in range(count if depth < 2 else 0)
            ]

        async def wait_somehow() -> None:
            own = await children(chance.randrange(3))
            # Only those that were there before, or they would wait in a ring.
            others = chance.sample(top[:before], min(before, chance.randrange(3)))
            both = [*own, *others]
            how = chance.randrange(7)
            if how == 0 and both:
                await runtime.wait_any(both)
            elif how == 1:
                await runtime.wait_all(both)
            elif how == 2:
                async for _ in runtime.task_set(*both):
                    await works()
            elif how == 3 and depth < 2:
                await runtime.run(job(runtime, before, depth + 1))
            elif how == 4 and own:
                await own[0].stop()
            elif how == 5 and both:
                # Given up; it goes on by a wait, and works only after that.
                with trio.move_on_after(chance.random() * 0.5):
                    await runtime.wait_all(both)
                await runtime.wait_all(both)
                life = life_of(runtime)
                current = life.current_task()
                assert current is not None
                await life.places.regain(current)
            elif both:
                async with trio.open_nursery() as nursery:
                    for task in both:
                        nursery.start_soon(task.wait)

        return Job(body, task_type=kind, shutdown=0.5)

    async def act(runtime: Runtime) -> None:
        await trio.sleep(chance.random() * 3)
        what = chance.randrange(6)
        if what < 4 or not top:
            restart = chance.choice(["temporary", "transient"])
            top.append(
                await runtime.launch(
                    job(runtime, len(top)),
                    restart="transient" if restart == "transient" else "temporary",
                    backoff=Backoff(0.1, 1),
                )
            )
        elif what == 4:
            await chance.choice(top).stop()
        elif moves:
            runtime.background_all()

    async with open_runtime("tasks", limits=caps, env=fake_env()) as runtime:
        watch = Watch(runtime)
        trio.lowlevel.add_instrument(watch)
        try:
            with trio.fail_after(1e6):
                async with trio.open_nursery() as nursery:
                    for _ in range(20):
                        nursery.start_soon(act, runtime)
                await runtime.wait_idle()
        finally:
            trio.lowlevel.remove_instrument(watch)
        assert unexpected == []
        assert watch.most <= caps.total
        assert watch.most_agents <= caps.agents
        if not moves:
            assert most_working <= caps.total
        runtime.notifications.drain()
        assert life_of(runtime).slots.waiting == 0 and not shared(runtime)
        assert not life_of(runtime).places.waits
        shells = Job(forever, task_type="local_bash")
        tasks = [await runtime.launch(shells) for _ in range(caps.total + 1)]
        assert [t.status for t in tasks] == [RUNNING] * caps.total + [PENDING]


# Who comes first


async def test_whoever_has_waited_gets_the_place_of_the_child_that_has_ended(
    tmp_path: Path,
) -> None:
    """CO5: before those that have not started, though it has not noticed yet."""
    order: list[str] = []

    async def note(name: str) -> None:
        order.append(name)
        await trio.lowlevel.checkpoint()

    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:

        async def parent(ctx: Context[object], report: Report) -> None:
            child = await runtime.launch(returns(None))
            other = await runtime.launch(Job(lambda ctx, report: note("other")))
            await child.wait()
            assert other.status is PENDING
            await note("parent")

        await runtime.launch(Job(parent))
        with trio.fail_after(TOO_LONG):
            await runtime.wait_idle()
    assert order == ["parent", "other"]


async def test_those_who_come_back_go_on_in_turn_and_before_all_who_never_ran(
    tmp_path: Path,
) -> None:
    """CO5, CO6."""
    ends = [trio.Event() for _ in range(3)]
    order: list[object] = []
    async with open_runtime(tmp_path, limits=Limits(agents=1)) as runtime:

        def parent(number: int) -> Job:
            async def body(ctx: Context[object], report: Report) -> None:
                task = Job(waits_for(ends[number]).body, task_type="local_bash")
                await runtime.run(task)
                order.append(number)
                await trio.testing.wait_all_tasks_blocked()

            return Job(body)

        for number in range(3):
            await runtime.launch(parent(number))
            await trio.testing.wait_all_tasks_blocked()
        end = trio.Event()
        holder = await runtime.launch(waits_for(end))
        last = await runtime.launch(Job(_append(order, "last")))
        assert (holder.status, last.status) == (RUNNING, PENDING)
        for number in (2, 0, 1):
            ends[number].set()
            await trio.testing.wait_all_tasks_blocked()
        assert order == []
        end.set()
        with trio.fail_after(TOO_LONG):
            await runtime.wait_idle()
    assert order == [2, 0, 1, "last"]


def _append(order: list[object], what: object) -> Callable[..., Awaitable[object]]:
    async def body(ctx: Context[object], report: Report) -> None:
        order.append(what)
        await trio.lowlevel.checkpoint()

    return body


# Races


@pytest.mark.sim(seeds=2)
@pytest.mark.parametrize("steps", range(16))
@pytest.mark.parametrize("how", ["stop", "cancel", "leave", "end"])
async def test_the_books_are_right_whenever_a_wait_is_given_up(
    steps: int, how: str
) -> None:
    """CO10, CO11, SM29: while it waits, is woken, and waits for its place."""
    scope, end, hold = trio.CancelScope(), trio.Event(), trio.Event()
    cancelled = False
    async with open_runtime("tasks", limits=Limits(total=2), env=fake_env()) as runtime:

        async def parent(ctx: Context[object], report: Report) -> None:
            nonlocal cancelled
            child = await runtime.launch(waits_for(end))
            with scope:
                await child.wait()
            cancelled = scope.cancelled_caught
            await child.wait()

        watch = Watch(runtime)
        trio.lowlevel.add_instrument(watch)
        task = await runtime.launch(Job(parent))
        await trio.testing.wait_all_tasks_blocked()
        await runtime.launch(waits_for(hold))
        pending = await runtime.launch(waits_for(hold))
        end.set()
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        if how == "stop":
            assert (await task.stop()).snapshot.status in (KILLED, COMPLETED)
        elif how == "cancel":
            scope.cancel()
        elif how == "leave":
            trio.lowlevel.remove_instrument(watch)
            return
        hold.set()
        with trio.fail_after(TOO_LONG):
            assert (await pending.wait()).status is COMPLETED
            snapshot = await task.wait()
        trio.lowlevel.remove_instrument(watch)
        assert how == "stop" or snapshot.status is COMPLETED
        assert watch.most <= 2
        await check_books(runtime, 2)


async def test_a_task_is_cancelled_while_it_waits_for_its_place(
    tmp_path: Path,
) -> None:
    """CO11: at once; it keeps its turn, and waits for it before its next run."""
    runs: list[int] = []
    hold = trio.Event()
    async with open_runtime(tmp_path, limits=Limits(agents=1)) as runtime:

        async def parent(ctx: Context[object], report: Report) -> None:
            runs.append(len(at_work(runtime)))
            if len(runs) == 2:
                return
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    shell = Job(waits_for(end).body, task_type="local_bash")
                    nursery.start_soon(runtime.run, shell)
                    await trio.testing.wait_all_tasks_blocked()
                    holder.append(await runtime.launch(waits_for(hold)))
                    assert holder[0].status is RUNNING
                    end.set()
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
            assert scope.cancelled_caught
            raise ValueError("run me again")

        end = trio.Event()
        holder: list[TaskHandle] = []
        task = await runtime.launch(Job(parent), restart="transient")
        await trio.testing.wait_all_tasks_blocked()
        assert runs == [1]
        hold.set()
        with trio.fail_after(TOO_LONG):
            assert (await task.wait()).status is COMPLETED
        assert runs == [1, 1]
        await check_books(runtime, 1)


# Several calls of one task


async def test_two_calls_of_one_task_share_one_place_among_their_children(
    tmp_path: Path,
) -> None:
    """Brief section 4: the first that is back holds up no other."""
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:

        async def parent(ctx: Context[object], report: Report) -> str:
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(runtime.run, returns(None))
            return "all"

        with trio.fail_after(TOO_LONG):
            task = await runtime.launch(Job(parent))
            assert (await task.wait()).result == "all"
            await check_books(runtime, 1)


async def test_a_new_wait_lets_a_call_go_on_that_waits_for_the_place(
    tmp_path: Path,
) -> None:
    """What the new one waits for may wait for that call."""
    async with open_runtime(tmp_path, limits=Limits(total=2, agents=1)) as runtime:
        hold, end, heard = trio.Event(), trio.Event(), trio.Event()

        async def parent(ctx: Context[object], report: Report) -> None:
            async def first() -> None:
                await runtime.run(Job(waits_for(end).body, task_type="local_bash"))
                heard.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(first)
                await trio.testing.wait_all_tasks_blocked()
                holder = await runtime.launch(waits_for(hold))
                end.set()
                await trio.testing.wait_all_tasks_blocked()
                assert not heard.is_set()
                nursery.start_soon(holder.wait)
                await heard.wait()
                hold.set()

        with trio.fail_after(TOO_LONG):
            await (await runtime.launch(Job(parent))).wait()
            await check_books(runtime, 1)


# Two that talk


async def test_a_task_talks_to_its_child_in_the_one_place_there_is(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Brief section 4: the child ends only by what it is told. CO10: when one of
    them has ended the place is the other's."""

    async def script(program: Program) -> int:
        await program.print("ready\n")
        while line := await program.read_line():
            await program.print(f"heard {line}\n")
        return 0

    env = fake_env({"work": script})
    async with open_runtime(tmp_path, limits=Limits(total=1), env=env) as runtime:

        async def parent(ctx: Context[object], report: Report) -> None:
            child = await runtime.launch(Shell("work", stdin="pipe"))
            other = await runtime.launch(returns("other"))
            await child.wait_output("ready")
            for word in ("one", "two"):
                await child.write(f"{word}\n")
                await child.wait_output(f"heard {word}")
            assert [shared(runtime), other.status] == [1, PENDING]
            await child.close_input()
            await child.wait()
            assert [shared(runtime), other.status] == [0, PENDING]

        with trio.fail_after(TOO_LONG):
            snapshot = await (await runtime.launch(Job(parent))).wait()
            assert snapshot.error is None
            await check_books(runtime, 1)


@pytest.mark.parametrize("first", ["parent", "child"])
async def test_who_was_moved_to_the_background_shares_its_place_until_one_ends(
    tmp_path: Path, first: str
) -> None:
    """BG1: whoever ran it goes on at once, and can stop it."""
    end, child_end = trio.Event(), trio.Event()
    async with open_runtime(
        tmp_path, env=fake_env(), limits=Limits(total=1)
    ) as runtime:

        async def parent(ctx: Context[object], report: Report) -> None:
            snapshot = await runtime.run(waits_for(child_end))
            assert snapshot.status is RUNNING
            await end.wait()

        task = await runtime.launch(Job(parent))
        other = await runtime.launch(returns(None))
        await trio.testing.wait_all_tasks_blocked()
        # The other was first and has ended; the child has the place.
        assert other.status is COMPLETED
        other = await runtime.launch(Job(forever))
        runtime.background_all()
        await trio.testing.wait_all_tasks_blocked()
        assert len(at_work(runtime)) == 2 and shared(runtime) == 1
        (end if first == "parent" else child_end).set()
        await trio.testing.wait_all_tasks_blocked()
        assert len(at_work(runtime)) == 1 and shared(runtime) == 0
        assert other.status is PENDING
        end.set()
        child_end.set()
        await task.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert other.status is RUNNING
        await runtime.stop_all()
        await check_books(runtime, 1)


@pytest.mark.parametrize("comes_back", [False, True])
async def test_nobody_shares_the_place_of_a_child_that_has_none(
    tmp_path: Path, comes_back: bool
) -> None:
    """Brief section 4: it has lent it, or waits to have it again."""
    gate, end = trio.Event(), trio.Event()
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        life = life_of(runtime)

        async def child(ctx: Context[object], report: Report) -> None:
            await life.wait_for(gate.wait)

        async def parent(ctx: Context[object], report: Report) -> None:
            assert (await runtime.run(Job(child))).status is RUNNING
            await end.wait()

        task = await runtime.launch(Job(parent))
        await trio.testing.wait_all_tasks_blocked()
        other = await runtime.launch(waits_for(end))
        assert other.status is RUNNING
        if comes_back:
            gate.set()
            await trio.testing.wait_all_tasks_blocked()
        (waited,) = (it for it in life.table.live.values() if not it.background)
        assert life.move(waited)
        await trio.testing.wait_all_tasks_blocked()
        assert [it.task_id for it in at_work(runtime)] == [other.id]
        assert shared(runtime) == 0
        end.set()
        gate.set()
        await task.wait()
        await check_books(runtime, 1)


async def test_a_task_that_has_ended_keeps_nothing_of_whoever_launched_it(
    tmp_path: Path,
) -> None:
    """P7: neither its record nor its context, also if it never had a place."""
    stopped: list[TaskHandle] = []

    async with open_runtime(tmp_path, limits=Limits(agents=1)) as runtime:
        table = life_of(runtime).table

        async def body(ctx: Context[object], report: Report) -> None:
            waiting = await runtime.launch(Job(forever))
            assert waiting.status is PENDING
            record = table.live[waiting.id]
            assert record.context is not None
            assert record.launched_by is table.live[ctx.id]
            await waiting.stop()
            stopped.append(waiting)

        await (await runtime.launch(Job(body))).wait()
        (waiting,) = stopped
        assert waiting.status is KILLED
        record = table.ended[waiting.id]
        assert record.context is None
        assert record.launched_by is None


async def test_who_stops_a_task_without_a_place_waits_for_its_own(
    tmp_path: Path,
) -> None:
    """CO10: the end of that gives none back."""
    begun, go, end, passed = (trio.Event() for _ in range(4))
    async with open_runtime(
        tmp_path, env=fake_env(), limits=Limits(total=1)
    ) as runtime:
        life = life_of(runtime)

        async def child(ctx: Context[object], report: Report) -> None:
            begun.set()
            await life.wait_for(trio.sleep_forever)

        async def parent(ctx: Context[object], report: Report) -> None:
            stopped = await runtime.launch(Job(child))
            await life.wait_for(begun.wait)
            await go.wait()
            await stopped.stop()
            passed.set()

        task = await runtime.launch(Job(parent))
        await trio.testing.wait_all_tasks_blocked()
        other = await runtime.launch(waits_for(end))
        assert other.status is PENDING
        go.set()
        await trio.testing.wait_all_tasks_blocked()
        assert [it.task_id for it in at_work(runtime)] == [other.id]
        assert not passed.is_set()
        end.set()
        await task.wait()
        assert passed.is_set()
        await check_books(runtime, 1)


# Other waits of a task


async def test_a_task_that_reads_notifications_lends_its_place(tmp_path: Path) -> None:
    """Brief section 4: its child's end may be what it waits for."""
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:

        async def parent(ctx: Context[object], report: Report) -> str:
            child = await runtime.launch(returns("x"))
            async for note in runtime.notifications:
                note.ack()
                return str(note.task_id == child.id)
            return "none"

        with trio.fail_after(TOO_LONG):
            task = await runtime.launch(Job(parent))
            assert (await task.wait()).result == "True"
            await check_books(runtime, 1)


async def test_a_stop_by_a_task_waits_for_one_that_wants_its_place(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """SM11: the cleaning up of the one may need the place of the other."""
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        begin = trio.Event()

        async def stubborn(ctx: Context[object], report: Report) -> str:
            try:
                await begin.wait()
                await runtime.run(lasts(9))
            finally:
                with trio.CancelScope(shield=True):
                    await runtime.run(lasts(1))
            return "never"

        async def stopper(ctx: Context[object], report: Report) -> str:
            return str((await victim.stop()).snapshot.status.value)

        victim = await runtime.launch(Job(stubborn))
        task = await runtime.launch(Job(stopper))
        begin.set()
        with trio.fail_after(TOO_LONG):
            assert (await task.wait()).result == "killed"
            await check_books(runtime, 1)


# Agents


def bash(command: str) -> ToolUse:
    return ToolUse(command, "Bash", {"command": command})


async def test_a_run_that_fails_beside_its_own_wait_has_lost_its_place(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """CO10: three times over, the next run waits until there is a place, and no two
    work in the one that there is."""
    working: list[tuple[str, float]] = []

    def other(number: int) -> Job:
        async def body(ctx: Context[object], report: Report) -> None:
            working.append((f"other {number}", trio.current_time() - began))
            assert len(at_work(runtime)) == 1
            await trio.sleep(10)

        return Job(body)

    async def stumbles(ctx: Context[object], report: Report) -> None:
        working.append((f"run {ctx.number}", trio.current_time() - began))
        assert len(at_work(runtime)) == 1
        if ctx.number == 4:
            return
        async with trio.open_nursery() as nursery:
            # Not its own, with which it would share the place.
            nursery.start_soon(others[ctx.number - 1].wait)
            await trio.sleep(1)
            raise OSError("no such luck")

    async with open_runtime(
        tmp_path, limits=Limits(total=1), env=fake_env()
    ) as runtime:
        began = trio.current_time()
        task = await runtime.launch(
            Job(stumbles), restart="transient", intensity=10, period=1_000.0
        )
        others = [await runtime.launch(other(number)) for number in (1, 2, 3)]
        assert (await task.wait()).status is COMPLETED
        await check_books(runtime, 1)
    assert working == [
        ("run 1", 0.0),
        ("other 1", 0.0),
        ("run 2", 10.0),
        ("other 2", 10.0),
        ("run 3", 20.0),
        ("other 3", 20.0),
        ("run 4", 30.0),
    ]


async def test_an_agent_that_waits_for_a_person_has_no_place(tmp_path: Path) -> None:
    """AG28, PM3: it has one again before it goes on, once there is one."""
    made: list[str] = []

    async def script(program: Program) -> int:
        made.append(program.command)
        await trio.lowlevel.checkpoint()
        return 0

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await begin.wait()
        use = bash("make")
        yield AssistantMessage("", (use,))
        yield await context.use_tools([use])
        yield FinalResult("made")

    policy = AgentPolicy(permissions=Permissions(mode="bubble"))
    env = fake_env({"make": script})
    async with open_runtime(
        tmp_path, limits=Limits(agents=1), agents=policy, env=env
    ) as runtime:
        begin, hold = trio.Event(), trio.Event()
        events = runtime.events.subscribe()
        task = await runtime.launch(agent(loop))
        other = await runtime.launch(waits_for(hold))
        assert other.status is PENDING
        begin.set()
        with trio.fail_after(TOO_LONG):
            await told(events, ApprovalRequested)
            assert other.status is RUNNING
            (asked,) = runtime.approvals.pending()
            runtime.approvals.answer(asked.id, True)
            await trio.testing.wait_all_tasks_blocked()
            assert made == [] and at_work(runtime)[0].task_id == other.id
            hold.set()
            assert (await task.wait()).result == "made"
        assert made == ["make"]
        await check_books(runtime, 1)


async def test_an_agent_that_waits_for_a_message_has_no_place(tmp_path: Path) -> None:
    """AG28: nor would its own task start, whose end is that message."""
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:

        async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
            await context.launch(returns("x"))
            await context.inbox.wait()
            (message,) = context.inbox.take()
            assert isinstance(message, UserMessage)
            yield FinalResult(message.origin)

        with trio.fail_after(TOO_LONG):
            task = await runtime.launch(agent(loop))
            assert (await task.wait()).result == "notification"
            await check_books(runtime, 1)


async def test_an_agent_that_waits_for_its_tasks_goes_on_when_there_is_a_place(
    tmp_path: Path,
) -> None:
    """AG28: and not before."""
    hold, end = trio.Event(), trio.Event()
    async with open_runtime(tmp_path, limits=Limits(agents=1)) as runtime:
        went_on: list[int] = []
        events = runtime.events.subscribe()

        async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
            await context.launch(Job(waits_for(end).body, task_type="local_bash"))
            yield FinalResult("first")
            went_on.append(len(at_work(runtime)))
            yield FinalResult("second")

        task = await runtime.launch(agent(loop))
        await runtime.launch(waits_for(hold))
        with trio.fail_after(TOO_LONG):
            # The agent's, its shell's and the other's.
            for _ in range(3):
                await told(events, TaskStarted)
            end.set()
            await trio.testing.wait_all_tasks_blocked()
            assert went_on == []
            hold.set()
            assert (await task.wait()).result == "second"
        assert went_on == [1]
        await check_books(runtime, 1)
