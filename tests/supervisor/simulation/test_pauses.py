"""Pauses against a pure model: what is called, in whatever order, and in one tick."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import attrs
import pytest
import trio

from actors.agent import Agent, AgentContext, AgentEvent, FinalResult, Note
from actors.agent import TransientError as Passes
from supervisor.agents import AgentPolicy
from supervisor.runtime import (
    Limits,
    MessageRefused,
    ResumeRefused,
    Runtime,
    RuntimeStopping,
    TaskContinued,
    TaskEnded,
    open_runtime,
)
from supervisor.simulation import Sim, cancel_everywhere, explore, simulate
from supervisor.simulation.promises import watched

PAUSE: Final = 100.0
DEADLINE: Final = 1000.0
OPERATIONS: Final = (
    "time",
    "resume",
    "message",
    "stop",
    "stop_all",
    "leave",
    "pause",
    "end",
    "deadline",
)
LONG: Final = 1e6
LIVE: Final = ("paused", "running")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


# ---- The model ----


@attrs.frozen
class State:
    """An agent, as it is to be."""

    status: str = "paused"
    continued: int = 0
    ends: tuple[str, ...] = ()

    def to(self, status: str) -> State:
        ends = self.ends if status in LIVE else (*self.ends, status)
        more = self.status == "paused" and status in ("running", "failed")
        return State(status, self.continued + more, ends)


def after(state: State, operation: str) -> State:
    """Return what becomes of an agent by one operation, once all is quiet again."""
    status = state.status
    if operation in ("stop", "stop_all", "leave"):
        return state.to("killed") if status in LIVE else state
    if operation == "deadline":
        return state.to("failed") if status in LIVE else state
    if operation == "pause":
        return state.to("paused") if status == "running" else state
    if operation == "end":
        return state.to("completed") if status == "running" else state
    if operation == "time":
        return state.to("running") if status == "paused" else state
    wakes = {"message": ("paused", "completed")}
    if status in wakes.get(operation, ("paused", "completed", "failed", "killed")):
        return state.to("running")
    return state


def after_all(operations: Sequence[str], state: State | None = None) -> State:
    state = state or State()
    for operation in operations:
        state = after(state, operation)
        if operation == "leave":
            break
    return state


# ---- The same, done ----


class Steered:
    """A loop that does what it is told to: its first run begins with a pause. It answers
    if nobody tells it anything for ``patience`` seconds."""

    def __init__(self, now: Callable[[], datetime], patience: float = math.inf) -> None:
        self._now = now
        self._patience = patience
        self._begun = False
        self._told = trio.Event()
        self._what = ""

    def tell(self, what: str) -> None:
        self._what = what
        self._told.set()

    async def __call__(self, context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield Note("works")
        if not self._begun:
            self._begun = True
            raise self._passes()
        self._told, self._what = trio.Event(), "end"
        with trio.move_on_after(self._patience):
            await self._told.wait()
        if self._what == "pause":
            raise self._passes()
        context.inbox.take()
        yield FinalResult("done")

    def _passes(self) -> Passes:
        return Passes("a limit", self._now() + timedelta(seconds=PAUSE))


class Story:
    """One agent of one runtime, and what is done to it."""

    def __init__(self, sim: Sim, *, start: str = "paused") -> None:
        self._sim = sim
        self._start = start
        self._runtime: Runtime
        self._task_id = ""
        self.before = ""
        """Its status before its runtime was left."""
        self.seen = State()
        """What has become of it then."""

    async def tell(self, operations: Sequence[str], *, together: bool) -> None:
        """Do ``operations``, one after the other or all in one tick."""
        at = PAUSE if "time" in operations and self._start == "paused" else 2.0
        env = self._sim.env({})
        loop = self._loop = Steered(env.clock.now)
        async with trio.open_nursery() as nursery:
            with watched(self._sim) as log:
                policy = AgentPolicy(run=loop)
                limits = Limits(agents=1)
                opened = open_runtime("tasks", env=env, limits=limits, agents=policy)
                async with log.recording(opened) as runtime:
                    events = runtime.events.subscribe(10_000)
                    await self._launch(runtime)
                    if together:
                        for operation in operations:
                            if operation not in ("time", "leave"):
                                nursery.start_soon(self._do_at, at, operation)
                        await trio.sleep_until(at)
                        if "leave" not in operations:
                            await trio.sleep(1)
                    else:
                        await self._one_by_one(operations)
                    if "leave" not in operations:
                        self.before = self._status()
                        await self._check_place()
        mine = [
            it
            for it in events.drain()
            if isinstance(it, TaskEnded | TaskContinued) and it.task_id == self._task_id
        ]
        ends = [it.status for it in mine if isinstance(it, TaskEnded)]
        continued = len(mine) - len(ends)
        self.seen = State(ends[-1], continued, tuple(ends))

    async def _launch(self, runtime: Runtime) -> None:
        self._runtime = runtime
        agent = Agent(self._loop, "go", deadline=DEADLINE, stall_limit=None)
        self._task_id = (await runtime.launch(agent)).id
        await trio.sleep(1)
        if self._start == "running":
            await runtime.resume(self._task_id)
            await trio.sleep(0.5)
        assert self._status() == self._start

    def _status(self) -> str:
        snapshot = self._runtime.get(self._task_id)
        assert (snapshot.status.value == "paused") is (snapshot.pause is not None)
        return snapshot.status.value

    async def _one_by_one(self, operations: Sequence[str]) -> None:
        for operation in operations:
            if operation == "leave":
                return
            await self._do(operation)
            await trio.sleep(1)

    async def _do_at(self, at: float, operation: str) -> None:
        await trio.sleep_until(at)
        await self._do(operation)

    async def _do(self, operation: str) -> None:
        runtime, task_id = self._runtime, self._task_id
        # What is refused leaves all as it was: the model has to say so.
        with suppress(MessageRefused, ResumeRefused, RuntimeStopping):
            if operation == "time":
                await trio.sleep(1.5 * PAUSE)
            elif operation == "deadline":
                await trio.sleep(2 * DEADLINE)
            elif operation == "resume":
                await runtime.resume(task_id)
            elif operation == "message":
                await runtime.send(task_id, "hello")
            elif operation == "stop":
                await runtime.stop(task_id)
            elif operation == "stop_all":
                await runtime.stop_all()
            else:
                self._loop.tell(operation)

    async def _check_place(self) -> None:
        """Only who runs has a place."""
        has_place = self._status() == "running"
        with trio.move_on_after(0.5):
            await self._runtime.run(Agent(_answers, "other"))
            assert not has_place
            return
        assert has_place


async def _answers(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield FinalResult("done")


async def hold(sim: Sim, operations: Sequence[str], start: str = "paused") -> None:
    """Do ``operations`` one after the other: all is as the model says."""
    story = Story(sim, start=start)
    await story.tell(operations, together=False)
    began = State(start, int(start == "running"))
    if "leave" not in operations:
        assert story.before == after_all(operations, began).status
    assert story.seen == after_all([*operations, "leave"], began)


PAIRS: Final = [*itertools.product(OPERATIONS, repeat=2)]


@pytest.mark.parametrize("start", LIVE)
def test_every_ordered_pair_leaves_an_agent_as_the_model_says(start: str) -> None:
    for pair in PAIRS:
        run = simulate(partial(hold, operations=pair, start=start), limit=LONG)
        assert run.error is None and not run.findings, (pair, run.error, run.findings)


def test_any_sequence_leaves_an_agent_as_the_model_says() -> None:
    async def program(sim: Sim) -> None:
        count = sim.random.randint(3, 10)
        operations = [sim.random.choice(OPERATIONS) for _ in range(count)]
        sim.log(str(operations))
        await hold(sim, operations)

    explore(program, seeds=60, limit=LONG)


@pytest.mark.parametrize("start", LIVE)
def test_every_pair_in_one_tick_is_as_if_one_came_first(start: str) -> None:
    """A stop may come between the request to go on and the first step of that, so fewer
    runs may begin than the model says, and never more."""

    async def program(sim: Sim, pair: Sequence[str]) -> None:
        story = Story(sim, start=start)
        await story.tell(pair, together=True)
        began = State(start, int(start == "running"))
        orders = [pair, pair[::-1]]
        found = story.seen
        most = max(after_all([*it, "leave"], began).continued for it in orders)
        assert found.continued <= most
        allowed = [after_all([*it, "leave"], began).ends for it in orders]
        statuses = [after_all(it, began).status for it in orders]
        if "leave" in pair:
            # Nothing is begun while it is being left.
            allowed.append(("killed",))
        if {*pair} == {"message", "end"}:
            # It has its answer, and goes on with the message.
            allowed.append(("killed",))
            statuses.append("running")
        assert found.ends in allowed, (found, allowed)
        if story.before:
            assert story.before in statuses

    quick = [it for it in OPERATIONS if it != "deadline"]
    for pair in itertools.combinations_with_replacement(quick, 2):
        explore(partial(program, pair=pair), seeds=5)


# ---- A cancel at each step ----


async def pauses_and_goes_on(sim: Sim) -> None:
    """One that goes on by itself, one by hand and by a message, one that is stopped, and
    one below another: whoever is cancelled, no end is lost and no place."""
    env = sim.env({})
    loops = [Steered(env.clock.now, patience=10) for _ in range(4)]
    with watched(sim) as log:
        opened = open_runtime(
            "tasks",
            env=env,
            limits=Limits(agents=2),
            agents=AgentPolicy(run=_answers),
        )
        async with log.recording(opened) as runtime:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_by_itself, runtime, loops[0], name="by itself")
                nursery.start_soon(_by_hand, runtime, loops[1], name="by hand")
                nursery.start_soon(_by_a_stop, runtime, loops[2], name="by a stop")
                nursery.start_soon(_below, runtime, loops[3], name="below")
            await runtime.stop_all()
            # All places are there again, whoever was cancelled.
            with sim.within(10):
                async with trio.open_nursery() as nursery:
                    for _ in range(2):
                        nursery.start_soon(runtime.run, Agent(_answers, "last"))


async def _by_itself(runtime: Runtime, loop: Steered) -> None:
    task = await runtime.launch(Agent(loop, "one", stall_limit=None))
    await trio.sleep(1.5 * PAUSE)
    loop.tell("end")
    await task.wait()


async def _by_hand(runtime: Runtime, loop: Steered) -> None:
    snapshot = await runtime.run(Agent(loop, "two", stall_limit=None))
    await runtime.resume(snapshot.id)
    await trio.sleep(1)
    loop.tell("pause")
    await trio.sleep(1)
    await runtime.send(snapshot.id, "go on")
    await trio.sleep(1)
    loop.tell("end")
    await runtime.wait_all([snapshot.id])


async def _by_a_stop(runtime: Runtime, loop: Steered) -> None:
    task = await runtime.launch(Agent(loop, "three", stall_limit=None))
    await trio.sleep(2)
    await task.stop()


async def _below(runtime: Runtime, loop: Steered) -> None:
    async def launches(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await context.run(Agent(loop, "four", stall_limit=None))
        yield FinalResult("done")

    task = await runtime.launch(Agent(launches, "above", stall_limit=None))
    await trio.sleep(1.5 * PAUSE)
    loop.tell("end")
    await task.wait()


def test_a_cancel_at_any_step_loses_neither_an_end_nor_a_place() -> None:
    report = cancel_everywhere(pauses_and_goes_on, schedules=1, max_points=250)
    assert report.points > 100
