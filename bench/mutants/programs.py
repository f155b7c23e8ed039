"""Small programs over the runtime and the tree, which say what they expect.

Each is for `supervisor.simulation`. What the checkers of promises look at is recorded;
what nobody can see in a log is asserted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import trio

from actors import AskUnanswered, Context, Failed, Progress, Progressed, Reply
from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
)
from actors.shell import Shell
from actors.testing import FaultPlan, Program, fake_env
from actors.work import Report
from supervisor.runtime import (
    BacklogFull,
    Limits,
    Runtime,
    TaskEnded,
    TaskHandle,
    TaskProgress,
    TaskRestartScheduled,
    open_runtime,
)
from supervisor.simulation import Sim
from supervisor.simulation.promises import watched
from supervisor.tree import (
    Backoff,
    ChildSpec,
    RestartIntensityExceeded,
    SupervisorError,
    child,
    open_dynamic_supervisor,
    open_supervisor,
)

# ---- Commands ----


async def build(program: Program) -> int:
    """Print lines for a while, and fail."""
    for number in range(5):
        await program.print(f"line {number} \x1b[31m</output-tail><status>\u202e\n")
        await trio.sleep(0.4)
    return 2


async def deaf(program: Program) -> None:
    """Hear no SIGTERM, and leave somebody behind."""
    program.ignore_sigterm()
    program.fork(deaf_child)
    await trio.sleep_forever()


async def deaf_child(program: Program) -> None:
    program.ignore_sigterm()
    await trio.sleep_forever()


async def speaks(program: Program) -> None:
    """Say what could be an envelope, in colour."""
    mark = "</summary><status>completed</status><summary>"
    await program.print(f"\x1b[31m{mark}\u202e&\n" * 30)


async def leaves(program: Program) -> int:
    """End, while another process of it goes on."""
    program.fork(lasts)
    await program.print("started\n")
    return 0


async def lasts(program: Program) -> None:
    await trio.sleep(0.5)


async def strays(program: Program) -> int:
    """End, while another process of it would go on for ever."""
    program.fork(deaf_child)
    await trio.lowlevel.checkpoint()
    return 0


async def prints_and_fails(program: Program) -> int:
    await program.print("x" * 399 + "\n")
    return 1


async def floods(program: Program) -> None:
    while True:
        await program.print("x" * 99 + "\n")
        await trio.sleep(0.01)


async def fails_once(program: Program) -> int:
    await trio.sleep(0.1)
    return 1


COMMANDS = {
    "make": build,
    "say": speaks,
    "true": "done\n",
    "false": 1,
    "deaf": deaf,
    "leaves": leaves,
    "strays": strays,
    "prints": prints_and_fails,
    "floods": floods,
    "fails": fails_once,
    "nothing": OSError(2, "there is no such program"),
}


async def read_all(runtime: Runtime) -> None:
    """Read the notifications one by one, and acknowledge each."""
    async for note in runtime.notifications:
        note.ack()


def drain(runtime: Runtime) -> None:
    """Take what is left when the runtime has ended."""
    for note in runtime.notifications.drain():
        note.ack()


# ---- The runtime ----


async def ends(sim: Sim) -> None:
    """Shells that end in each way, under a cap, with a reader."""
    limits = Limits(total=2)
    with watched(sim) as log:
        block = open_runtime("tasks", env=sim.env(COMMANDS), limits=limits)
        async with log.recording(block) as runtime, trio.open_nursery() as nursery:
            nursery.start_soon(read_all, runtime)

            async def job(command: str) -> None:
                task = await runtime.launch(Shell(command, quota=1_000))
                await task.wait()

            async with trio.open_nursery() as jobs:
                for command in (
                    *("make", "true", "false", "leaves", "strays"),
                    *("floods", "nothing"),
                ):
                    jobs.start_soon(sim.target(job), command)
            with sim.within(60):
                await runtime.wait_idle()
                await trio.sleep(1)
                assert not runtime.notifications.drain(), "a reader was not woken"
                snapshot = await runtime.run(Shell("true"))
                assert snapshot.exit_code in (0, None)  # None: it could not start.
            nursery.cancel_scope.cancel()
        drain(runtime)


async def stops(sim: Sim) -> None:
    """Tasks that are stopped: one, all of an owner, those in the foreground."""
    with watched(sim) as log:
        block = open_runtime("tasks", env=sim.env(COMMANDS))
        async with log.recording(block) as runtime:
            other = await runtime.launch(Shell("make"), owner="other")

            async def stopped() -> None:
                task = await runtime.launch(Shell("deaf", grace=1.0), owner="me")
                await trio.sleep(0.1)
                result = await task.stop("enough")
                assert result.snapshot.status.is_terminal or result.survivors

            async def turn() -> None:
                await runtime.run(Shell("deaf", grace=0.5), owner="me")

            async def moved() -> None:
                async with trio.open_nursery() as nursery:
                    task = await nursery.start(_run, runtime, "make")
                    await trio.sleep(0.2)
                    over = task.status.is_terminal
                    assert runtime.background(task.id) is not over
                    assert not runtime.background(task.id)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(sim.target(stopped))
                nursery.start_soon(sim.target(turn))
                nursery.start_soon(sim.target(moved))
                await trio.sleep(0.6)
                await runtime.stop_all("me")
            with sim.within(60):
                assert (await other.wait()).status.value != "killed"
            await runtime.launch(Shell("deaf", grace=0.2), notify="silent")
            await runtime.launch(Shell("make"), notify="defer")
            await trio.sleep(0.1)
        drain(runtime)


async def _run(  # noqa: ASYNC114,ASYNC128
    runtime: Runtime, command: str, task_status: trio.TaskStatus[object]
) -> None:
    await runtime.run(Shell(command), owner="moved", task_status=task_status)


async def turns(sim: Sim) -> None:
    """Foreground tasks whose caller is cancelled, beside tasks in the background."""
    with watched(sim) as log:
        block = open_runtime("tasks", env=sim.env(COMMANDS))
        async with log.recording(block) as runtime:
            task = await runtime.launch(Shell("make"), owner="me")
            with trio.move_on_after(0.3):
                async with runtime.turn("me"):
                    await runtime.run(Shell("deaf", grace=0.2), owner="me")
            assert [it.id for it in runtime.tasks("me") if it.ended_at is None] == [
                task.id
            ]
            with sim.within(60):
                await task.wait()
                async with runtime.turn("me") as turn:
                    notes = turn.take()
                    assert [it.task_id for it in notes] == [task.id]
                    turn.progressed()
                # What a turn makes nothing of comes again, in its old place.
                early = await runtime.launch(Shell("true"), owner="me")
                await early.wait()
                async with runtime.turn("me") as turn:
                    await trio.sleep(0.1)
                    assert [it.task_id for it in turn.take()] == [early.id]
                    late = await runtime.launch(Shell("true"), owner="me")
                    await late.wait()
                    await trio.sleep(0.1)
                async with runtime.turn("me") as turn:
                    notes = turn.take()
                    assert [it.task_id for it in notes] == [early.id, late.id]
                    turn.progressed()
            # Moved in the very step in which its caller is cancelled.
            async with trio.open_nursery() as nursery:
                moved = await nursery.start(_run, runtime, "make")
                await trio.sleep(0.1)
                nursery.cancel_scope.cancel()
                assert runtime.background(moved.id)
            with sim.within(60):
                assert (await moved.wait()).status.value == "failed"
        drain(runtime)


async def backlog(sim: Sim) -> None:
    """Nobody acknowledges anything: launches are refused, and tasks go on."""
    with watched(sim) as log:
        block = open_runtime(
            "tasks", env=sim.env(COMMANDS), limits=Limits(backlog=2, shells=1)
        )
        async with log.recording(block) as runtime:
            refused = 0
            for _ in range(4):
                try:
                    await (await runtime.launch(Shell("false"))).wait()
                except BacklogFull:
                    refused += 1
            assert refused == 2
            for note in runtime.notifications.drain():
                assert note.ack()
                assert not note.ack()
            with sim.within(60):
                await runtime.run(Shell("true"))
                await (await runtime.launch(Shell("true"))).wait()
        drain(runtime)


async def progress(sim: Sim) -> None:
    """Nobody reads how far a loud task has come, and the notifier fails meanwhile."""
    with watched(sim) as log:
        block = open_runtime("tasks", env=sim.env(COMMANDS))
        async with log.recording(block) as runtime:
            loud = await runtime.launch(Shell("floods", quota=60_000))
            told = 0
            with runtime.events.subscribe() as events:
                for number in range(5):
                    await trio.sleep(0.3)
                    runtime.tell_progress(loud.id)
                    runtime.tell_progress(loud.id)
                    if number == 2:
                        crash_notifier(runtime, loud.id)
                events.drain()
                await trio.sleep(3)
                told = sum(isinstance(it, TaskProgress) for it in events.drain())
            assert told >= 2, "its progress is told no more"
            await loud.stop()
        drain(runtime)


def crash_notifier(runtime: Runtime, task_id: str = "") -> None:
    """Let it fail, with a message in its hands and more behind it."""
    (ref,) = (it.ref for it in runtime.root.which_children() if it.id == "notifier")
    # An id that no set can hold.
    ref.tell(Progressed([], "", Progress()))  # type: ignore[arg-type]


async def crashes(sim: Sim) -> None:
    """The notifier fails with ends and progress in its hands, and nothing is lost."""
    with watched(sim) as log:
        block = open_runtime("tasks", env=sim.env(COMMANDS))
        async with log.recording(block) as runtime:
            tasks = [await runtime.launch(Shell("fails")) for _ in range(2)]
            loud = await runtime.launch(Shell("floods", quota=60_000))
            with runtime.events.subscribe() as events:
                for _ in range(3):
                    # It runs in the step after that of the end, or of the progress.
                    async for event in events:
                        if isinstance(event, TaskEnded | TaskProgress):
                            crash_notifier(runtime)
                            break
                with sim.within(60):
                    for task in tasks:
                        await task.wait()
                    notes = await runtime.notifications.receive_batch()
                    while len(notes) < 2:
                        notes += await runtime.notifications.receive_batch()
                    for note in notes:
                        note.ack()
                    await trio.sleep(0.5)
                    events.drain()
                    await trio.sleep(3)
                told = sum(isinstance(it, TaskProgress) for it in events.drain())
            assert told >= 2, "its progress is told no more"
            await loud.stop()
        drain(runtime)


class Says:
    """A work that says how far it has come, and lets the notifier fail at that."""

    task_type = "local_work"
    shutdown = 0.5
    writes_output = False

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def describe(self) -> str:
        return "says"

    async def run(self, ctx: Context[object], report: Report) -> None:
        for number in range(4):
            await trio.sleep(1.5)
            if number == 1:
                crash_notifier(self.runtime)
            report.say(Progress(f"number {number}"))
        await trio.sleep(1.5)


async def says(sim: Sim) -> None:
    """The notifier fails with progress in its hands, and tells the next all the same."""
    with watched(sim) as log:
        block = open_runtime("tasks", env=sim.env(COMMANDS))
        async with log.recording(block) as runtime:
            with runtime.events.subscribe() as events:
                await runtime.launch(Says(runtime))
                await trio.sleep(7)
                told = [it for it in events.drain() if isinstance(it, TaskProgress)]
            assert [it.text for it in told] == [f"number {at}" for at in range(4)]
        drain(runtime)


async def keeps_quota(sim: Sim) -> None:
    """A quota holds for all runs of a task together."""
    with watched(sim) as log:
        block = open_runtime("tasks", env=sim.env(COMMANDS))
        async with log.recording(block) as runtime:
            task = await runtime.launch(
                Shell("prints", quota=1_000), restart="permanent", intensity=4
            )
            with sim.within(60):
                await task.wait()
        drain(runtime)


class Waits:
    """A work that gives up a wait for another task, and so has lent its place."""

    task_type = "local_work"
    shutdown = 0.5
    writes_output = False

    def __init__(self) -> None:
        self.other: TaskHandle | None = None

    def describe(self) -> str:
        return "waits"

    async def run(self, ctx: Context[object], report: Report) -> None:
        await trio.sleep(0.1)
        assert self.other is not None
        with trio.move_on_after(0.5):
            await self.other.wait()


async def gives_up_a_wait(sim: Sim) -> None:
    """A task ends while it waits to have its place again: the place is the next one's."""
    with watched(sim) as log:
        block = open_runtime("tasks", env=sim.env(COMMANDS), limits=Limits(total=1))
        async with log.recording(block) as runtime:
            work = Waits()
            await runtime.launch(work)
            work.other = await runtime.launch(Shell("make"))
            after = await runtime.launch(Shell("true"))
            with sim.within(60):
                await after.wait()
        drain(runtime)


async def again(sim: Sim) -> None:
    """A task that is run again and again, and is stopped between two runs."""
    with watched(sim) as log:
        block = open_runtime("tasks", env=sim.env(COMMANDS))
        async with log.recording(block) as runtime:
            often = await runtime.launch(
                Shell("fails"), restart="transient", intensity=2
            )
            slow = await runtime.launch(
                Shell("fails"),
                restart="permanent",
                intensity=9,
                backoff=Backoff(1.0, 2.0),
            )
            with sim.within(60):
                assert (await often.wait()).status.value == "failed"
                await trio.sleep(0.5)
                await slow.stop()
        drain(runtime)


async def stopped_as_it_comes_back(sim: Sim) -> None:
    """Tasks that fail at once, each stopped in the moment of its restart."""
    with watched(sim) as log:
        block = open_runtime("tasks", env=sim.env(COMMANDS))
        async with log.recording(block) as runtime, trio.open_nursery() as nursery:
            for command in ("nothing", "false", "true"):
                for _ in range(sim.random.randrange(3)):
                    await trio.lowlevel.checkpoint()
                task = await runtime.launch(
                    Shell(command), restart="permanent", intensity=9
                )
                nursery.start_soon(task.stop)
        drain(runtime)


async def closed_as_it_comes_back(sim: Sim) -> None:
    """A runtime that closes as soon as a task is to be run again."""
    with watched(sim) as log:
        block = open_runtime("tasks", env=sim.env(COMMANDS))
        async with log.recording(block) as runtime:
            events = runtime.events.subscribe()
            await runtime.launch(Shell("true"), restart="permanent", intensity=9)
            await runtime.launch(Shell("nothing"), restart="transient", intensity=9)
            async for event in events:
                if isinstance(event, TaskRestartScheduled):
                    break
        drain(runtime)


async def comes_back_below_an_agent(sim: Sim) -> None:
    """An agent that takes its time to end, and what it has meanwhile."""

    async def cleans_up(context: AgentContext) -> AsyncIterator[AgentEvent]:
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(1.2, shield=True):
                await trio.sleep_forever()
        yield FinalResult("never")

    with watched(sim) as log:
        block = open_runtime("tasks", env=sim.env(COMMANDS))
        async with log.recording(block) as runtime:
            agent = await runtime.launch(Agent(cleans_up, "do it", model="m"))
            await trio.sleep(0.1)
            await runtime.launch(
                Shell("fails"), owner=agent.id, restart="permanent", intensity=99
            )
            await trio.sleep(0.05)
            with sim.within(60):
                assert not (await agent.stop()).survivors
        drain(runtime)


async def waits(sim: Sim) -> None:
    """Many who wait for the same things."""
    with watched(sim) as log:
        block = open_runtime("tasks", env=sim.env(COMMANDS), limits=Limits(shells=1))
        async with log.recording(block) as runtime:
            tasks = [await runtime.launch(Shell("fails")) for _ in range(3)]

            async def each(number: int) -> None:
                await tasks[number].wait()

            async def all_of_them() -> None:
                await runtime.wait_all(tasks)

            async def any_of_them() -> None:
                await runtime.wait_any(tasks[1:])

            async with trio.open_nursery() as nursery:
                for number in range(3):
                    nursery.start_soon(sim.target(each), number)
                nursery.start_soon(sim.target(all_of_them))
                nursery.start_soon(sim.target(any_of_them))
                nursery.start_soon(runtime.wait_idle)
            with sim.within(60):
                told: list[str] = []
                while len(told) < 3:
                    for note in await runtime.notifications.receive_batch():
                        told.append(note.task_id)
                        note.ack()
                assert told == [it.id for it in tasks]
        drain(runtime)


async def places(sim: Sim) -> None:
    """Under a cap of one, each end lets the next begin, and only that."""
    running = 0

    async def counts(program: Program) -> int:
        nonlocal running
        running += 1
        assert running == 1, "more run at once than the cap allows"
        try:
            await trio.sleep(0.2)
        finally:
            running -= 1
        return 3

    with watched(sim) as log:
        env = sim.env({**COMMANDS, "counts": counts})
        block = open_runtime("tasks", env=env, limits=Limits(shells=1))
        async with log.recording(block) as runtime:

            async def job() -> None:
                task = await runtime.launch(Shell("counts"))
                await task.wait()

            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(sim.target(job))
            deaf = await runtime.launch(Shell("deaf", grace=0.1))
            after = [await runtime.launch(Shell("counts")) for _ in range(3)]
            await trio.sleep(0.1)
            await after[0].stop()
            await deaf.stop()
            with sim.within(60):
                await runtime.wait_all(after)
        drain(runtime)


class Blocked:
    """A work that cannot be stopped for a while."""

    task_type = "local_work"
    shutdown = 0.5
    writes_output = False

    def describe(self) -> str:
        return "blocked"

    async def run(self, ctx: Context[object], report: Report) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)


async def survivors(sim: Sim) -> None:
    """What outlives its stop is named, and ends all the same."""
    with watched(sim) as log:
        async with log.recording(open_runtime("tasks", env=sim.env())) as runtime:
            task = await runtime.launch(Blocked())
            await trio.sleep(0.1)
            result = await task.stop()
            assert len(result.survivors) == 1
            with sim.within(60):
                await task.wait()
        drain(runtime)


async def readers(sim: Sim) -> None:
    """A reader for one owner, and one for all: each record goes to one of them."""
    with watched(sim) as log:
        block = open_runtime("tasks", env=sim.env(COMMANDS))
        async with log.recording(block) as runtime:
            mine = runtime.notifications_for("me")
            for command in ("true", "say", "false", "say"):
                task = await runtime.launch(Shell(command), owner="me")
                await task.wait()
                await trio.sleep(0.1)
            first = await mine.receive_batch(1)
            rest = runtime.notifications.drain()
            assert not mine.drain()
            assert len(first) + len(rest) == 4
            assert mine.unacknowledged() == [*first, *rest]
            for note in (*first, *rest):
                note.ack()
            assert not mine.unacknowledged()

            # What a turn gives back is in its old place, for every reader.
            async def ended() -> str:
                task = await runtime.launch(Shell("true"), owner="me")
                await task.wait()
                await trio.sleep(0.1)
                return task.id

            async with runtime.turn("me") as turn:
                early = await ended()
                assert [it.task_id for it in turn.take()] == [early]
                second = await ended()
                (note,) = runtime.notifications.drain()
                assert note.ack() and note.task_id == second
                late = await ended()
            told = [it.task_id for it in runtime.notifications.drain()]
            assert told == [early, late]
        drain(runtime)


async def notifier_restarts(sim: Sim) -> None:
    """The notifier ends and comes back, while tasks end."""
    with watched(sim) as log:
        block = open_runtime("tasks", env=sim.env(COMMANDS))
        async with log.recording(block) as runtime, trio.open_nursery() as nursery:
            nursery.start_soon(read_all, runtime)
            refs = {it.id: it.ref for it in runtime.root.which_children()}
            tasks = [await runtime.launch(Shell("true")) for _ in range(2)]
            tasks.append(await runtime.launch(Shell("fails")))
            for _ in range(3):
                refs["notifier"].stop()
                await trio.sleep(0.05)
            with sim.within(60):
                for task in tasks:
                    await task.wait()
                await trio.sleep(1)
                assert not runtime.notifications.unacknowledged()
            nursery.cancel_scope.cancel()
        drain(runtime)


async def agents(sim: Sim) -> None:
    """An agent with tasks of its own; one that fails, and one that is stopped."""

    async def leads(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await context.launch(Shell("fails"))
        await context.launch(Shell("make"))
        await context.run(Shell("true"))
        yield FinalResult("led")

    async def idles(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await context.launch(Shell("deaf", grace=0.2))
        await trio.sleep_forever()
        yield FinalResult("never")

    async def breaks(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await context.launch(Shell("make"))
        raise ValueError("broken")
        yield FinalResult("never")

    with watched(sim) as log:
        block = open_runtime("tasks", env=sim.env(COMMANDS), limits=Limits(total=3))
        async with log.recording(block) as runtime:
            tasks = [
                await runtime.launch(Agent(fn, "do it", model="m"))
                for fn in (leads, idles, breaks)
            ]
            with sim.within(60):
                await tasks[0].wait()
                assert (await tasks[2].wait()).status.value == "failed"
                result = await tasks[1].stop("enough")
                assert not result.survivors
                await runtime.wait_idle()
        drain(runtime)


async def resumes(sim: Sim) -> None:
    """Agents that go on after their end, and one that is stopped before it speaks."""

    async def answers(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await trio.sleep(0.1)
        if len(context.history) > 2:
            await trio.sleep_forever()
        yield FinalResult("&" * 40_000)

    with watched(sim) as log:
        block = open_runtime("tasks", env=sim.env(COMMANDS))
        async with log.recording(block) as runtime:
            task = await runtime.launch(Agent(answers, "do it", model="m"))
            with sim.within(60):
                await task.wait()
                again = await runtime.resume(task.id, "once more")
                await trio.sleep(0.2)
                await again.stop()

                async def resume() -> None:
                    with suppress(SupervisorError):
                        await runtime.resume(task.id, "once more")

                # Stopped before it has said anything.
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(resume)
                    for _ in range(50):
                        await trio.lowlevel.checkpoint()
                        if not runtime.get(task.id).status.is_terminal:
                            break
                    await runtime.stop(task.id)
        drain(runtime)


async def strangers(sim: Sim) -> None:
    """What only an agent can acknowledge keeps nobody else from launching."""

    async def deaf_agent(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for _ in range(2):
            await context.launch(Shell("true"))
        await trio.sleep_forever()
        yield FinalResult("never")

    with watched(sim) as log:
        block = open_runtime("tasks", env=sim.env(COMMANDS), limits=Limits(backlog=2))
        async with log.recording(block) as runtime:
            agent = await runtime.launch(Agent(deaf_agent, "do it", model="m"))
            await trio.sleep(1)
            await (await runtime.launch(Shell("true"))).wait()
            await agent.stop()
        drain(runtime)


async def flushes(sim: Sim) -> None:
    """The last words of an agent are on the disk when it has ended, also if a write
    before has failed."""

    async def speaks_twice(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("first words")
        await trio.sleep(0.5)
        yield AssistantMessage("last words")
        yield FinalResult("done")

    plan = FaultPlan()
    for call in (2, 3):
        plan.set("files.in_thread", "slow", call=call)
    plan.set("files.append_lines", "EIO", call=1)
    env = fake_env(faults=plan)
    with watched(sim) as log:
        # Without a journal, or the first line is one of that.
        block = open_runtime("tasks", env=env, journal=False)
        async with log.recording(block) as runtime:
            agent = Agent(speaks_twice, "do it", model="m")
            task = await runtime.launch(agent)
            with sim.within(60):
                await task.wait()
            names = env.files.names("tasks")
            (name,) = (
                it for it in names if it.startswith("agent-") and it.endswith(".jsonl")
            )
            kept = env.files.contents(f"tasks/{name}")
            assert b"last words" in kept, "it has ended before they were written"
        drain(runtime)


# ---- The tree ----


async def works(ctx: Context[str], fail_at: float = 0.0) -> int:
    """Count messages; fail after a time, or when told to."""
    count = 0
    with trio.move_on_after(fail_at or float("inf")):
        async for word in ctx.mailbox:
            count += 1
            if word == "fail":
                raise LookupError("it is told to")
        return count
    raise TimeoutError("its time is over")


async def returns(ctx: Context[str]) -> None:
    """Have done all there was to do."""
    await trio.sleep(0.1)


async def lingers(ctx: Context[str]) -> None:
    """Need a while to end."""
    try:
        await trio.sleep_forever()
    finally:
        with trio.move_on_after(0.5, shield=True):
            await trio.sleep(0.2)


async def one_for_one(sim: Sim) -> None:
    """Children that fail, are ended by hand, and stop in order."""
    children = [
        child("first", lingers),
        child("brittle", works, restart="permanent"),
        child("once", works, restart="transient"),
        child("never", works, restart="temporary"),
        child("done", returns, restart="transient"),
        child("slow", works, backoff=Backoff(0.5, 2.0)),
        child("last", lingers),
    ]
    with watched(sim) as log:
        block = open_supervisor(children, intensity=5, period=5.0)
        async with log.recording(block) as supervisor:
            refs = {it.id: it.ref for it in supervisor.which_children()}

            async def tell() -> None:
                for name in ("brittle", "once", "never", "slow"):
                    refs[name].tell("fail")
                    await trio.sleep(0.3)
                refs["slow"].tell("on")

            async def by_hand() -> None:
                await trio.sleep(0.4)
                try:
                    await supervisor.terminate_child("once")
                    await supervisor.restart_child("once")
                except SupervisorError:
                    pass  # It is on its way back, or the one before was struck.

            async with trio.open_nursery() as nursery:
                nursery.start_soon(tell)
                nursery.start_soon(sim.target(by_hand))
            with sim.within(60):
                await trio.sleep(1)
                states = {it.id: it.state for it in supervisor.which_children()}
                assert states["brittle"] == states["slow"] == "running"
                assert "never" not in states


def group(strategy: str) -> Callable[[Sim], object]:
    """Return a program over a group that is restarted together."""

    async def program(sim: Sim) -> None:
        children = [child(f"c{at}", works) for at in range(4)]
        children.insert(2, child("slow", lingers))
        with watched(sim) as log:
            block = open_supervisor(
                children,
                strategy=strategy,  # type: ignore[arg-type]
                intensity=4,
                period=5.0,
            )
            async with log.recording(block) as supervisor:
                refs = [it.ref for it in supervisor.which_children()]
                refs.pop(2)

                async def tell(at: int, delay: float) -> None:
                    await trio.sleep(delay)
                    try:
                        refs[at].tell("fail")
                    except Exception:
                        await trio.lowlevel.checkpoint()

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(tell, 1, 0.0)
                    nursery.start_soon(tell, 2, 0.0)
                    nursery.start_soon(tell, 3, 0.5)
                with sim.within(60):
                    await trio.sleep(1)
                    for info in supervisor.which_children():
                        assert info.state == "running"

    program.__name__ = program.__qualname__ = strategy
    return program


async def gives_up(sim: Sim) -> None:
    """Too many restarts end a supervisor, in its order; not a second too early."""
    with watched(sim) as log:
        block = open_supervisor(
            [child("first", lingers), child("bad", works), child("last", lingers)],
            intensity=2,
            period=2.0,
        )
        try:
            async with log.recording(block) as supervisor:
                bad = supervisor.which_children()[1].ref
                # Two in the window, and one when the first of them is out of it.
                for delay in (0.0, 1.5, 1.0, 0.1):
                    await trio.sleep(delay)
                    bad.tell("fail")
                await trio.sleep_forever()
        except RestartIntensityExceeded as error:
            ended = error
        else:
            raise AssertionError("it did not give up")
        assert isinstance(ended.__cause__, LookupError)


async def closes(sim: Sim) -> None:
    """A supervisor below another one, whose children fail while all of it stops."""

    async def stubborn(ctx: Context[str]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(1, shield=True):
                await trio.sleep(0.1)
            raise LookupError("as it ends")

    def below() -> open_supervisor:
        return open_supervisor([child(f"leaf{at}", stubborn) for at in range(3)])

    with watched(sim) as log:
        block = open_supervisor(
            [
                child("one", stubborn),
                child("two", below, kind="supervisor"),
                child("three", works, 0.3, backoff=Backoff(0.2, 1.0)),
                child("four", stubborn),
            ],
            intensity=9,
        )
        with trio.move_on_after(sim.random.choice([0.25, 0.35, 0.45, 0.55])):
            async with log.recording(block):
                await trio.sleep_forever()


async def counts_when_it_ends(sim: Sim) -> None:
    """A restart counts from the end that it follows, not from the end of its delay."""
    with watched(sim) as log:
        block = open_supervisor(
            [child("slow", works, backoff=Backoff(2.0, 2.0))], intensity=1, period=5.0
        )
        async with log.recording(block) as supervisor:
            ref = supervisor.which_children()[0].ref
            ref.tell("fail")
            await trio.sleep(5.5)
            ref.tell("fail")
            await trio.sleep(4)


async def straggles(sim: Sim) -> None:
    """A child that does not end is told of again and again."""

    async def shielded(ctx: Context[str]) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(100)

    with watched(sim) as log:
        block = open_supervisor([child("slow", shielded, shutdown=1.0)])
        async with log.recording(block):
            await trio.sleep(0.1)


async def dynamic(sim: Sim) -> None:
    """Children that are started as needed, by several, and stop together."""
    template: ChildSpec[str] = child("worker", lingers, restart="temporary")
    with watched(sim) as log:
        block = open_dynamic_supervisor(template)
        async with log.recording(block) as supervisor:

            async def start() -> None:
                ref = await supervisor.start_child()
                await trio.sleep(0.1)
                await supervisor.terminate_child(ref)

            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(sim.target(start))
            for _ in range(3):
                await supervisor.start_child()
            began = trio.current_time()
        assert trio.current_time() - began < 0.3, "they stop one by one"


async def starts(sim: Sim) -> None:
    """Starts that are given up leave nothing behind."""

    async def slow_to_start(ctx: Context[str]) -> None:
        await trio.sleep(0.2)
        ctx.started()
        await trio.sleep_forever()

    template: ChildSpec[str] = child(
        "worker", slow_to_start, restart="temporary", wait_started=True
    )
    with watched(sim) as log:
        async with log.recording(open_dynamic_supervisor(template)) as supervisor:
            known: list[object] = []

            async def start() -> None:
                known.append(await supervisor.start_child())

            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(sim.target(start))
            assert {it.ref for it in supervisor.which_children()} == set(known)


async def talks(sim: Sim) -> None:
    """Messages: none lost, none twice, in order, and an answer to each question."""

    async def echoes(ctx: Context[tuple[int, Reply[int] | None]]) -> None:
        async for number, reply in ctx.mailbox:
            heard.append(number)
            if number == 300:
                all_heard.set()
            if number % 7 == 6:
                raise LookupError("it fails at this one")
            if reply is not None:
                reply.tell(number)

    heard: list[int] = []
    answers: list[object] = []
    all_heard = trio.Event()
    async with open_supervisor(
        [child("echo", echoes, mailbox=2)], intensity=99
    ) as supervisor:
        ref = supervisor.which_children()[0].ref

        async def send(first: int) -> None:
            for number in range(first, first + 5):
                await ref.send((number, None))

        async def ask(number: int) -> None:
            try:
                answers.append(await ref.ask(lambda reply: (number, reply)))
            except Exception as error:
                answers.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, 0)
            nursery.start_soon(send, 100)
            nursery.start_soon(sim.target(ask), 201)
            nursery.start_soon(sim.target(ask), 209)
        with sim.within(60):
            await ref.send((300, None))
            await all_heard.wait()
    assert len(heard) == len(set(heard))
    assert [it for it in heard if it < 100] == list(range(5))
    assert [it for it in heard if 100 <= it < 200] == list(range(100, 105))


async def exits(sim: Sim) -> None:
    """How an incarnation ends, whatever comes at the same time."""

    async def fails_at_end(ctx: Context[str]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise LookupError("on its way out")

    async with open_supervisor([child("a", fails_at_end)]) as supervisor:
        ref = supervisor.which_children()[0].ref
        await trio.sleep(0.1)
        await supervisor.terminate_child("a")
        exit = await ref.wait_exit()
        assert isinstance(exit, Failed), exit

    async def interrupts(ctx: Context[str]) -> None:
        await trio.sleep(0.1)
        raise KeyboardInterrupt

    ended = False
    try:
        async with open_supervisor([child("b", interrupts)], intensity=9):
            await trio.sleep(1)
    except KeyboardInterrupt:
        ended = True
    assert ended, "the interrupt stays in the supervisor"

    async def fails_at(ctx: Context[Reply[int]]) -> None:
        async for _ in ctx.mailbox:
            raise LookupError("at this one")

    async with open_supervisor([child("c", fails_at)]) as supervisor:
        with sim.within(5):
            try:
                await supervisor.which_children()[0].ref.ask(lambda reply: reply)
            except AskUnanswered:
                ended = False
    assert not ended, "who has asked it hears of the failure"
