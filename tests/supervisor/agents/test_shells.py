"""Agents with real shells, through the real guardian."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from actors.agent import (
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    ToolUse,
    UserMessage,
)
from actors.shell import Shell
from supervisor.agents import AgentPolicy
from supervisor.permissions import Permissions
from supervisor.runtime import Runtime, TaskEnded, TaskHandle, open_runtime
from tests.supervisor.jobs import (
    COMPLETED,
    FAILED,
    KILLED,
    RUNNING,
    agent,
    idles,
    starts,
    told,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="there are no shells here")

TOO_LONG = 60.0

# It says that it runs, and ends only when it is made to.
SERVES = "trap '' TERM; echo up; while :; do sleep 60; done"


def shell(command: str = SERVES) -> Shell:
    return Shell(command, grace=0.2)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def up(tasks: list[TaskHandle], count: int) -> list[int]:
    """Wait until so many shells are up; return the ids of their processes."""
    pids: list[int] = []
    while len(pids) < count:
        await trio.sleep(0.01)
        shells = [t for t in tasks if t.snapshot().type == "local_bash"]
        if len(shells) < count:
            continue
        for task in shells:
            await task.wait_output("up")
        pids = [t.snapshot().pid or 0 for t in shells]
    assert all(lives(pid) for pid in pids)
    return pids


def check_order(events: list[object], runtime: Runtime) -> None:
    order = [e.task_id for e in events if isinstance(e, TaskEnded)]
    for task in runtime.tasks():
        if task.parent is not None:
            assert order.index(task.id) < order.index(task.parent)


async def test_the_shells_of_an_agent_end_with_it(tmp_path: Path) -> None:
    """SH37: they are gone before its end is recorded."""
    tasks: list[TaskHandle] = []
    async with open_runtime(tmp_path) as runtime:
        mine = runtime.events.subscribe()
        task = await runtime.launch(
            agent(starts(shell(), shell(), then=idles, started=tasks))
        )
        with trio.fail_after(TOO_LONG):
            pids = await up(tasks, 2)
            result = await task.stop()
        assert sorted(result.stopped) == sorted(t.id for t in tasks)
        assert result.survivors == ()
        assert not any(lives(pid) for pid in pids)
        assert [t.status for t in tasks] == [KILLED, KILLED]
        check_order(list(mine.drain()), runtime)
        assert told(runtime) == [(task.id, "killed")]


async def test_a_stop_of_three_levels_with_shells_leaves_nothing(
    tmp_path: Path,
) -> None:
    """SH37, P1: an agent with a shell and two levels of agents below it."""
    tasks: list[TaskHandle] = []
    lowest = agent(starts(shell(), then=idles, started=tasks))
    middle = agent(starts(shell(), lowest, then=idles, started=tasks))
    top = agent(starts(shell(), middle, then=idles, started=tasks))
    async with open_runtime(tmp_path) as runtime:
        mine = runtime.events.subscribe()
        task = await runtime.launch(top)
        with trio.fail_after(TOO_LONG):
            pids = await up(tasks, 3)
            result = await task.stop()
        assert len(result.stopped) == len(tasks) == 5
        assert result.survivors == ()
        assert {t.status for t in tasks} == {KILLED}
        assert not any(lives(pid) for pid in pids)
        check_order(list(mine.drain()), runtime)
        assert [t for t in runtime.tasks() if t.status is RUNNING] == []


async def test_completed_waits_for_a_real_shell_of_the_agents_own(
    tmp_path: Path,
) -> None:
    """P2: the shell ends by itself, the agent hears of it, and then it is done."""
    seen: list[UserMessage] = []
    tasks: list[TaskHandle] = []

    piped = Shell("echo up; read line; echo got $line", stdin="pipe")

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        tasks.append(await runtime.launch(piped))
        yield FinalResult("so far")
        seen.extend(context.inbox.take())
        yield FinalResult("all")

    async with open_runtime(tmp_path) as runtime:
        mine = runtime.events.subscribe()
        task = await runtime.launch(agent(loop))
        with trio.fail_after(TOO_LONG):
            await up(tasks, 1)
            while task.snapshot().waiting != "tasks":
                await trio.sleep(0.01)
            assert task.status is RUNNING
            await tasks[0].write("it\n")
            done = await task.wait()
        assert (done.status, done.result) == (COMPLETED, "all")
        assert tasks[0].snapshot().status is COMPLETED
        (message,) = seen
        assert "got it" in message.text
        check_order(list(mine.drain()), runtime)
        assert told(runtime) == [(task.id, "completed")]


async def test_a_failing_agent_leaves_no_shell(tmp_path: Path) -> None:
    """SH37: its shells are ended, and then it has failed."""
    tasks: list[TaskHandle] = []

    async def breaks(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await tasks[0].wait_output("up")
        raise ValueError("broken")
        yield FinalResult("never")

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(agent(starts(shell(), then=breaks, started=tasks)))
        with trio.fail_after(TOO_LONG):
            done = await task.wait()
        assert done.status is FAILED
        own = tasks[0].snapshot()
        assert own.status is KILLED
        assert own.pid is not None
        assert not lives(own.pid)


async def test_leaving_the_runtime_leaves_no_shell_of_any_agent(
    tmp_path: Path,
) -> None:
    """P1."""
    tasks: list[TaskHandle] = []
    inner = agent(starts(shell(), then=idles, started=tasks))
    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:
            await runtime.launch(
                agent(starts(shell(), inner, then=idles, started=tasks))
            )
            pids = await up(tasks, 2)
    assert not any(lives(pid) for pid in pids)
    assert {t.status for t in tasks} == {KILLED}


async def test_an_agents_tools_run_real_commands_of_its_own(tmp_path: Path) -> None:
    """What the Bash tool starts for an agent is that agent's own."""
    answered: list[UserMessage] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        uses = (
            ToolUse("1", "Bash", {"command": "echo hello"}),
            ToolUse("2", "Bash", {"command": "sleep 60", "run_in_background": True}),
            ToolUse("3", "Nonsense", {}),
        )
        reply = AssistantMessage("trying", uses)
        yield reply
        answers = await context.use_tools(uses)
        answered.append(answers)
        yield answers
        await runtime.stop_all(owner=context.agent_id)
        yield FinalResult("done")

    policy = AgentPolicy(permissions=Permissions(mode="bypass"))
    async with open_runtime(tmp_path, agents=policy) as runtime:
        task = await runtime.launch(agent(loop))
        with trio.fail_after(TOO_LONG):
            done = await task.wait()
        assert (done.status, done.result) == (COMPLETED, "done")
        hello, background, nonsense = answered[0].tool_answers
        assert "hello" in hello.text and not hello.is_error
        assert not background.is_error
        assert nonsense.is_error and "no tool 'Nonsense'" in nonsense.text
        own = [t for t in runtime.tasks() if t.parent == task.id]
        assert len(own) == 2
        assert {t.status for t in own} == {COMPLETED, KILLED}
        assert told(runtime) == [(task.id, "completed")]
