"""What is told to stop is not restarted: programs that stop a task, or close, in the
moment in which it is to come back."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Literal, get_args

import pytest
import trio

from actors import Context
from actors.agent import Agent, AgentContext, AgentEvent, FinalResult
from actors.shell import Shell
from actors.testing import Program
from supervisor.runtime import (
    Limits,
    Runtime,
    TaskEnded,
    TaskHandle,
    TaskRestarted,
    TaskRestartScheduled,
    TaskStopRequested,
    open_runtime,
)
from supervisor.simulation import Sim, explore, simulate
from supervisor.simulation.promises import watched
from supervisor.tree import (
    Backoff,
    ChildStarted,
    Event,
    RestartScheduled,
    StopRequested,
    child,
    open_supervisor,
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def forever(program: Program) -> None:
    await trio.sleep_forever()


async def deaf(program: Program) -> None:
    program.ignore_sigterm()
    await trio.sleep(3)


async def fails(program: Program) -> None:
    await trio.sleep(0.5)
    raise SystemExit(3)


COMMANDS = {
    "forever": forever,
    "deaf": deaf,
    "fails": fails,
    "fails at once": 3,
    "ok": 0,
    "gone": OSError(2, "no such file"),
}

Body = Callable[[Sim, Runtime], Awaitable[object]]


def recorded(body: Body) -> Callable[[Sim], Awaitable[None]]:
    """Return a program that does this with a runtime. Nothing of it may be wrong."""

    async def program(sim: Sim) -> None:
        with watched(sim) as log:
            env = sim.env(COMMANDS)
            limits = Limits(total=sim.random.choice([None, 2]))
            async with log.recording(
                open_runtime("t", env=env, limits=limits)
            ) as runtime:
                events = runtime.events.subscribe(10_000)
                await body(sim, runtime)
        check_events(events.drain())

    program.__qualname__ = program.__name__ = getattr(body, "__name__", "program")
    return program


def check_events(events: list[Event]) -> None:
    """What everybody sees, also without a log."""
    stopping: set[str] = set()
    for event in events:
        match event:
            case TaskStopRequested(task_id=task):
                stopping.add(task)
            case TaskEnded(task_id=task):
                stopping.discard(task)
            case TaskRestartScheduled(task_id=task) | TaskRestarted(task_id=task):
                assert task not in stopping, f"{event} of a task that is to stop"
            case _:
                pass


async def stopped(sim: Sim, runtime: Runtime) -> None:
    task = await runtime.launch(Shell("gone"), restart="transient", intensity=5)
    await task.stop()


async def closed(sim: Sim, runtime: Runtime) -> None:
    await runtime.launch(Shell("gone"), restart="transient", intensity=5)


async def ends_well(sim: Sim, runtime: Runtime) -> None:
    # It may be killed behind an end of its own: with 0 it would have come back.
    await runtime.launch(Shell("ok"), restart="permanent", intensity=2)
    await trio.lowlevel.checkpoint()


async def below_an_agent(sim: Sim, runtime: Runtime) -> None:
    """What an agent has is told to stop with it, and is stopped when its run ended."""

    async def cleans_up(context: AgentContext) -> AsyncIterator[AgentEvent]:
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(1.2, shield=True):
                await trio.sleep_forever()
        yield FinalResult("never")

    agent = await runtime.launch(Agent(cleans_up, "do it", model="m"))
    await trio.sleep(0.1)
    for command in ("fails", "fails at once"):
        task = Shell(command)
        await runtime.launch(task, owner=agent.id, restart="permanent", intensity=9)
    await trio.sleep(0.25)
    assert not (await agent.stop()).survivors


async def fails_soon(ctx: Context[object]) -> None:
    await trio.sleep(1)
    raise ValueError


async def idle(ctx: Context[object]) -> None:
    await trio.sleep_forever()


async def inner(ctx: Context[object]) -> None:
    async with open_supervisor([child("bad", fails_soon)], intensity=1000):
        ctx.started()
        await trio.sleep_forever()


async def leaves(ctx: Context[object]) -> None:
    children = [child("a", idle), *(child(it, fails_soon) for it in "bcd")]
    async with open_supervisor(children, intensity=100):
        ctx.started()
        await trio.sleep(1)


async def drains(ctx: Context[object]) -> None:
    async with open_supervisor([child("bad", fails_soon)], intensity=100):
        ctx.started()
        async for _ in ctx.mailbox:
            pass
        await trio.sleep(3)


def tree(
    actor: Any, seconds: float, drain: float = 0.0
) -> Callable[[Sim], Awaitable[None]]:
    """Return a program with a supervisor in an actor, which is asked to stop."""

    async def program(sim: Sim) -> None:
        options: dict[str, Any] = {"wait_started": True, "drain": drain}
        one = child("one", actor, restart="transient", **options)
        with watched(sim) as log:
            async with log.recording(open_supervisor([one])) as above:
                await trio.sleep(seconds)
                if drain:
                    above.which_children()[0].ref.stop()
                    await trio.sleep(2)

    program.__qualname__ = program.__name__ = actor.__name__
    return program


# With the schedules that were wrong once.
SMALL = {
    "stopped": (recorded(stopped), "9:1, 16:2, 19:1"),
    "closed": (recorded(closed), "22:1, 23:1"),
    "ends_well": (
        recorded(ends_well),
        "17:1, 18:1, 20:1, 23:2, 24:1, 25:1, 26:1, 27:1, 28:1, 29:1, 30:1",
    ),
    "below_an_agent": (recorded(below_an_agent), ""),
    "inner": (tree(inner, 1), "9:1"),
    "leaves": (tree(leaves, 2), ""),
    "drains": (tree(drains, 0.5, drain=4.0), ""),
}


@pytest.mark.parametrize("name", SMALL)
def test_what_is_told_to_stop_is_not_restarted(name: str) -> None:
    program, tape = SMALL[name]
    run = simulate(program, tape=tape)
    assert run.error is None, run.error
    assert not run.findings
    explore(program, seeds=100)


# ---- At each moment of a restart ----


Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]


def slow(seconds: float) -> Any:
    async def ends_slowly(ctx: Context[object]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(seconds, shield=True):
                await trio.sleep_forever()

    return ends_slowly


async def ends_by_itself(ctx: Context[object]) -> None:
    await trio.sleep(1.1)


def once_more(first: Any, again: Any) -> Any:
    """Return an actor whose first run does other things than all later ones."""
    todo = [first]

    async def runs(ctx: Context[object]) -> None:
        await (todo.pop() if todo else again)(ctx)

    return runs


async def starts_late(ctx: Context[object]) -> None:
    await trio.sleep(0.3)
    ctx.started()
    await trio.sleep_forever()


async def starts_wrong(ctx: Context[object]) -> None:
    await trio.sleep(0.3)
    raise ValueError


async def starts(ctx: Context[object]) -> None:
    ctx.started()
    await trio.sleep_forever()


async def stop_in_a_restart(
    sim: Sim, strategy: Strategy, wait: float, moment: float
) -> tuple[list[Event], list[dict[str, str]]]:
    """Stop an actor whose child has failed at 1.0, and whose restarts take until 2.5.
    Return what it told from then on, and the states of its children then and later."""
    states: list[dict[str, str]] = []
    backoff = Backoff(wait, wait) if wait else None
    children = [
        child("first", slow(0.4)),
        child("done", ends_by_itself, restart="transient"),
        child("slow", slow(0.2)),
        child("bad", once_more(fails_soon, idle), backoff=backoff),
        child("late", once_more(starts, starts_late), wait_started=True),
        child("wrong", once_more(starts, starts_wrong), wait_started=True),
        child("last", idle),
    ]

    async def actor(ctx: Context[object]) -> None:
        opened = open_supervisor(children, strategy=strategy, intensity=100)
        async with opened as inner:
            ctx.started()
            async for _ in ctx.mailbox:
                pass
            for _ in range(2):
                states.append({it.id: it.state for it in inner.which_children()})
                await trio.sleep(1.5)

    one = child("one", actor, wait_started=True, drain=4.0)
    with watched(sim) as log:
        async with log.recording(open_supervisor([one])) as above:
            await trio.sleep(moment)
            events = above.events.subscribe(1_000)
            above.which_children()[0].ref.stop()
            await trio.sleep(2)
            return events.drain(), states


ALIVE = {"stopped": 0, "restarting": 1, "starting": 2, "running": 2, "stopping": 2}


@pytest.mark.parametrize("strategy", get_args(Strategy))
@pytest.mark.parametrize("wait", [0, 0.3])
def test_a_restart_goes_no_further_when_its_actor_is_to_stop(
    strategy: Strategy, wait: float
) -> None:
    for moment in range(95, 255, 10):
        run = simulate(
            partial(
                stop_in_a_restart, strategy=strategy, wait=wait, moment=moment / 100
            )
        )
        assert run.error is None, (moment, run.error)
        assert not run.findings, (moment, run.findings)
        events, (before, after) = run.value
        for event in events:
            match event:
                case RestartScheduled() | StopRequested(by="supervisor"):
                    pytest.fail(f"{event} at {moment}")
                case ChildStarted(child=name):
                    assert name == "late", (moment, event)  # it had begun
                case _:
                    pass
        came_back = {it for it in after if ALIVE[after[it]] > ALIVE[before[it]]}
        assert came_back <= {"late"}, (moment, before, after)


# ---- At random ----


Restart = Literal["temporary", "transient", "permanent"]
RESTARTS: tuple[Restart, ...] = get_args(Restart)


async def host(sim: Sim, runtime: Runtime) -> None:
    """Do what a host does, in any order, by several tasks at once."""
    chance = sim.random
    tasks: list[TaskHandle] = []

    async def one_more() -> None:
        command = Shell(chance.choice(list(COMMANDS)), grace=1)
        owner = chance.choice([None, "a", "b"])
        restart: Restart = chance.choice(RESTARTS)
        intensity = chance.choice([1, 5])
        if chance.random() < 0.2:
            await runtime.run(command, owner=owner)
            return
        tasks.append(
            await runtime.launch(
                command, owner=owner, restart=restart, intensity=intensity
            )
        )

    async def act() -> None:
        what = chance.choice(["launch"] * 4 + ["stop", "all", "fore", "wait", "pause"])
        match what:
            case "launch":
                await one_more()
            case "stop" if tasks:
                await chance.choice(tasks).stop(now=chance.random() < 0.5)
            case "all":
                await runtime.stop_all(chance.choice(["a", "b", None]))
            case "fore":
                await runtime.stop_foreground()
            case "wait" if tasks:
                await runtime.wait_any(chance.choices(tasks, k=2))
            case _:
                for _ in range(chance.randrange(5)):
                    await trio.lowlevel.checkpoint()

    async def actor() -> None:
        for _ in range(chance.randrange(1, 6)):
            with trio.move_on_after(chance.choice([0.1, 0.5, 2])):
                await act()
            await trio.sleep(chance.choice([0, 0, 0, 0.5]))

    with trio.move_on_after(chance.choice([0, 0.5, 1, 10])):
        async with trio.open_nursery() as nursery:
            for _ in range(chance.randrange(1, 4)):
                nursery.start_soon(actor)


def test_no_host_at_random_is_wrong() -> None:
    program = recorded(host)
    for seed in range(300):
        run = simulate(program, seed=seed)
        assert run.error is None, (seed, run.error)
        assert not run.findings, (seed, run.findings)
