"""Our own runtime on a world in which each call can go wrong.

Whatever one call does, each task ends once and is told once, an exit code is that of
its program, no process is left, and what is started afterwards runs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import trio

from actors import TaskStatus
from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    ToolUse,
    UserMessage,
)
from actors.shell import Shell
from actors.testing import FakeEnv, Program
from supervisor.agents import AgentPolicy
from supervisor.hooks import Hook, Hooks
from supervisor.permissions import Permissions
from supervisor.runtime import InputClosed, Runtime, TaskEnded, open_runtime
from supervisor.simulation import Sim, explore, fault_everywhere, simulate

# ---- The world ------------------------------------------------------------------------


async def build(program: Program) -> int:
    await program.print("one\n")
    await trio.sleep(0.1)
    await program.print("two\n")
    return 2


async def deaf(program: Program) -> None:
    program.ignore_sigterm()
    await trio.sleep_forever()


async def asks(program: Program) -> None:
    await program.print(f"got {await program.read_line()}")


async def leaves(program: Program) -> None:
    program.fork(deaf)
    await program.print(b"no newline, and no UTF-8: \xff")


async def guard(program: Program) -> None:
    while await program.read():
        pass
    await program.print("{}")
    await program.print_error("looked at it\n")


COMMANDS = {
    "make": build,
    "true": "done\n",
    "deaf": deaf,
    "asks": asks,
    "leaves": leaves,
    "guard": guard,
}
CODES = {"make": 2, "true": 0, "asks": 0, "leaves": 0}


async def play(
    sim: Sim, work: Callable[[Runtime], Awaitable[object]], **options: Any
) -> None:
    """Do some work, which may fail, and look at what must hold all the same."""
    env = sim.env(COMMANDS)
    async with open_runtime("tasks", env=env, **options) as runtime:
        with runtime.events.subscribe() as events:
            with sim.within(300):
                try:
                    await work(runtime)
                except* (OSError, InputClosed) as failed:
                    sim.log("work failed", [type(it) for it in failed.exceptions])
            await settles(sim, runtime, env, events)


async def settles(sim: Sim, runtime: Runtime, env: FakeEnv, events: Any) -> None:
    with sim.within(300):
        await runtime.wait_idle()
        after = [(await runtime.run(Shell("true"))).exit_code for _ in range(4)]
        assert 0 in after, "at most three calls have gone wrong"
        await trio.sleep(10)  # So long may a kill take, at the most.
    for tree in env.processes.started:
        assert tree.is_closed and not tree.has_living, tree
    ends = Counter(it.task_id for it in events.drain() if isinstance(it, TaskEnded))
    told: Counter[str] = Counter()
    for note in runtime.notifications.drain():
        told[note.task_id] += 1
        note.ack()
    trees = {it.marker: it for it in env.processes.started}
    for task in runtime.tasks():
        assert task.status.is_terminal, task
        assert ends[task.id] >= 1, task
        ours = task.background and task.owner is None
        assert told[task.id] == (ends[task.id] if ours else 0), task
        if task.type == "local_bash" and task.status is TaskStatus.COMPLETED:
            assert task.exit_code == 0, task
        if task.exit_code is not None:
            tree = trees[task.run_id]
            code = CODES[tree.command]
            if tree.ends_by == "code":
                code = 1 if code == 0 else 0
            assert task.exit_code == code, task


# ---- What it does ---------------------------------------------------------------------


async def one_shell(sim: Sim) -> None:
    async def work(runtime: Runtime) -> None:
        await (await runtime.launch(Shell("make"))).wait()

    await play(sim, work)


async def two_tasks(sim: Sim) -> None:
    """One ends, one is deaf and stopped, and their ids differ."""

    async def work(runtime: Runtime) -> None:
        one = await runtime.launch(Shell("true"))
        other = await runtime.launch(Shell("deaf", grace=1.0))
        assert one.id != other.id
        await trio.sleep(0.5)
        await runtime.stop(other)
        await one.wait()

    await play(sim, work)


async def all_kinds(sim: Sim) -> None:
    """One leaves a grandchild, one is started again, one is written to, one moves."""

    async def work(runtime: Runtime) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run, Shell("make"))
            await trio.sleep(0.05)
            runtime.background_all()
        await runtime.launch(Shell("leaves", linger=1.0))
        await runtime.launch(Shell("make"), restart="transient", intensity=2)
        task = await runtime.launch(Shell("asks", stdin="pipe"))
        await task.write("hello\n")
        await trio.sleep(5)
        await runtime.stop_all()

    await play(sim, work)


async def reads(context: AgentContext) -> AsyncIterator[AgentEvent]:
    for line in range(2):
        yield AssistantMessage(f"this is line {line}")
        await trio.sleep(0.1)
    told = [it.text for it in context.history if isinstance(it, UserMessage)]
    yield FinalResult(" | ".join(told))


async def leads(context: AgentContext) -> AsyncIterator[AgentEvent]:
    await context.launch(Agent(reads, "read it"))
    yield await context.use_tools(
        [
            ToolUse("1", "Bash", {"command": "make"}),
            ToolUse("2", "Bash", {"command": "true", "run_in_background": True}),
        ]
    )
    await context.wait_own_tasks()
    yield FinalResult("all have ended")


async def agents(sim: Sim) -> None:
    """One has a sub-agent, a tool and a hook; one is told something after its end."""

    async def work(runtime: Runtime) -> None:
        await runtime.launch(Agent(leads, "lead"))
        task = await runtime.launch(Agent(reads, "read"))
        await task.wait()
        await runtime.send(task, "one thing more")

    policy = AgentPolicy(
        run=reads,
        hooks=Hooks(pre_tool=[Hook("guard")]),
        permissions=Permissions(mode="bypass"),
    )
    await play(sim, work, agents=policy)


async def schedules(sim: Sim) -> None:
    """Two prompts come, also where the wall clock is set back by an hour."""
    async with open_runtime("tasks", env=sim.env()) as runtime:
        made = [await runtime.schedule("*/20 * * * *", name) for name in "ab"]
        heard: Counter[str] = Counter()
        for _ in range(2):
            await trio.sleep(5000)
            for note in runtime.notifications.drain():
                heard[note.task_id] += 1
                note.ack()
        assert [heard[it.id] for it in made] == [2, 2]


# ---- What goes wrong --------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _silent(caplog: pytest.LogCaptureFixture) -> None:
    """What fails on purpose is logged some hundred times."""
    caplog.set_level(logging.CRITICAL, "supervisor")


PROGRAMS = [one_shell, two_tasks, all_kinds, agents]


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_call_that_goes_wrong_breaks_what_the_runtime_promises(program: Any) -> None:
    report = fault_everywhere(program, schedules=1, max_points=150)
    assert report.points > 80


@pytest.mark.parametrize("program", [all_kinds, agents])
def test_nor_does_one_that_goes_wrong_under_another_schedule(program: Any) -> None:
    assert explore(program, seeds=20, faults="*.*").failures == []


def test_no_jump_of_the_clock_loses_a_scheduled_prompt() -> None:
    report = fault_everywhere(
        schedules, seams=["clock.*", "ids.*"], schedules=1, max_points=60, limit=20_000
    )
    assert report.points == 60


def test_two_schedules_never_have_one_id() -> None:
    """A sweep has found it: the second one was refused."""
    run = simulate(schedules, tape="fault ids.hex again 1", limit=20_000)
    assert run.error is None
    assert len(run.faults) == 1
