"""What agents say, among everything else that happens in a runtime."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    ToolUse,
)
from actors.testing import fake_env
from supervisor.agents import AgentPolicy
from supervisor.permissions import Permissions
from supervisor.runtime import AgentSaid, TaskEnded, Warned, open_runtime
from supervisor.tools import TOOL_NAMES
from supervisor.tree import Event, EventStream, Gap


async def works(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """Call a tool, say something else, and answer."""
    use = ToolUse("call-1", "Bash", {"command": "make"})
    yield AssistantMessage("I make it.", (use,))
    yield await context.use_tools([use])
    yield AssistantMessage("It is made.")
    yield FinalResult("Done.")


async def history_of(directory: Path) -> list[Event]:
    """Let some agents work at the same time, and return all that happened."""
    policy = AgentPolicy(permissions=Permissions(mode="bypass"))
    env = fake_env({"make": 1})
    async with open_runtime(directory, env=env, agents=policy) as runtime:
        seen = runtime.events.subscribe(agents=True)
        for number in range(3):
            await runtime.launch(Agent(works, f"{number}"))
        await runtime.wait_idle()
    return [event async for event in seen]


@pytest.mark.sim(seeds=50)
async def test_an_agents_last_words_come_before_its_end() -> None:
    """HL4: one stream, numbered and timed in the order in which it happened."""
    history = await history_of(Path("tasks"))
    numbers = [event.seq for event in history]
    assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
    times = [event.time for event in history]
    assert times == sorted(times)
    ends = [event for event in history if isinstance(event, TaskEnded)]
    agents = {event.task_id for event in history if isinstance(event, AgentSaid)}
    assert len(agents) == 3
    for agent_id in agents:
        (end,) = [event.seq for event in ends if event.task_id == agent_id]
        said = [
            event
            for event in history
            if isinstance(event, AgentSaid) and event.task_id == agent_id
        ]
        assert said[-1].event == FinalResult("Done.")
        assert all(event.seq < end for event in said)


async def test_who_has_not_asked_for_it_is_not_told_what_agents_say(
    tmp_path: Path, autojump_clock: object
) -> None:
    """HL4: and from then on neither is one that has left."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        plain, left = (
            runtime.events.subscribe(),
            runtime.events.subscribe(agents=True),
        )
        left.close()
        before = runtime.events.seq
        task = await runtime.launch(Agent(works, "Go."))
        await task.wait()
        numbers = [event.seq for event in plain.drain()]
        # As if there was nothing to miss.
        assert numbers == [*range(before + 1, runtime.events.seq + 1)]
        assert not any(isinstance(event, AgentSaid) for event in left.drain())


async def test_a_reader_that_is_too_slow_for_what_agents_say_sees_a_gap() -> None:
    """P6."""
    await trio.lowlevel.checkpoint()
    stream = EventStream()
    slow = stream.subscribe(2, agents=True)
    for number in range(5):
        stream.emit_to("a1", AgentSaid, "a1", "a1-1", number)
    first, second, gap = slow.drain()
    assert [first.seq, second.seq] == [1, 2]
    assert isinstance(gap, Gap)
    assert (gap.missed, gap.seq) == (3, stream.seq)


async def test_what_is_neither_true_nor_false_is_refused() -> None:
    await trio.lowlevel.checkpoint()
    with pytest.raises(TypeError, match="agents must be True or False, not 1"):
        EventStream().subscribe(agents=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("capacity", [0, -1, "10", None, 2.5, True])
async def test_a_capacity_that_is_none_is_refused(capacity: Any) -> None:
    """Taken as it came, it lost each event, or failed the agent that spoke."""
    await trio.lowlevel.checkpoint()
    with pytest.raises(
        ValueError if type(capacity) is int else TypeError,
        match=f"capacity must be a whole number, 1 or more, not {capacity!r}",
    ):
        EventStream().subscribe(capacity)


async def warns(context: AgentContext) -> AsyncIterator[AgentEvent]:
    await trio.lowlevel.checkpoint()
    try:
        yield AssistantMessage("Hm.")
        yield FinalResult("Done.", "error", error="I give up")
    finally:
        yield AssistantMessage("too late")


async def test_a_warning_is_also_logged_and_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P10: also if nobody reads the events."""

    def warnings() -> list[logging.LogRecord]:
        return [each for each in caplog.records if each.levelname == "WARNING"]

    with caplog.at_level(logging.WARNING):
        async with open_runtime(tmp_path, env=fake_env()) as runtime:
            task = await runtime.launch(Agent(warns, "Go."))
            await task.wait()
            (first,) = warnings()
            seen = runtime.events.subscribe()
            task = await runtime.launch(Agent(warns, "Go."))
            await task.wait()
    (warned,) = [event for event in seen.drain() if isinstance(event, Warned)]
    _, second = warnings()
    assert first.getMessage().partition(": ")[2] == warned.text
    assert second.getMessage() == f"task {task.id}: {warned.text}"
    for record in (first, second):
        assert record.name == "supervisor"
        assert record.exc_info is None


async def test_the_names_of_the_tools_are_those_of_the_tools(tmp_path: Path) -> None:
    """An agent has all of them, and the host's own model all but that for its plan."""
    names: list[str] = []

    async def looks(context: AgentContext) -> AsyncIterator[AgentEvent]:
        names.extend(tool.name for tool in context.tools)
        yield FinalResult("seen")

    policy = AgentPolicy(run=works)
    async with open_runtime(tmp_path, env=fake_env(), agents=policy) as runtime:
        tools: list[Any] = runtime.tools_for("main")
        await runtime.run(Agent(looks, "Go."))
    assert tuple(names) == TOOL_NAMES
    own = tuple(name for name in TOOL_NAMES if name != "TodoWrite")
    assert tuple(tool.name for tool in tools) == own
