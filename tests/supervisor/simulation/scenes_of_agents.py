"""Scenes in which agents are talked to, work, and ask."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import trio

from actors import TaskStatus
from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    Budget,
    FinalResult,
    TokensUsed,
    ToolUse,
)
from actors.shell import Shell
from supervisor.agents import AgentPolicy
from supervisor.permissions import Permissions, ToolRequest
from supervisor.runtime import AgentSaid, TaskEnded, Warned
from supervisor.simulation import Sim
from supervisor.tree import SupervisorEnded

from .accounts import running, together
from .strikes import Scene, call, each


async def works(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield AssistantMessage("thinking")
    await trio.sleep(0.1)
    yield FinalResult("done")


async def talks_to_agents(sim: Sim) -> None:
    """Agents are sent messages while they run and when they have ended, and resumed."""
    async with running(sim, agents=AgentPolicy(run=works)) as runtime:
        task = await runtime.launch(Agent(works, "go"), notify="silent")

        async def sends() -> None:
            for _ in range(3):
                await call(sim, runtime.send, task, "hello")
                await trio.sleep(0.15)

        async def resumes() -> None:
            await task.wait()
            await call(sim, runtime.resume, task, "go on")

        async def listens() -> None:
            events = task.events()
            async for _ in each(sim, events):
                pass
            await call(sim, events.aclose)
            # It has closed, so this waits for nothing: it ends.
            with sim.within(0.01):
                _ = [it async for it in events]

        await together(sends, resumes, listens)


async def agents_work(sim: Sim) -> None:
    """An agent with tasks and tools of its own, struck within."""
    budget = Budget(tokens=30)

    async def runs_things(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("starting")
        await call(sim, context.launch, Shell("make"))
        await call(sim, context.run, Shell("true"))
        await call(sim, context.wait_own_tasks)
        context.inbox.take()
        await context.launch(Shell("make"))
        await call(sim, context.inbox.wait)
        await context.inbox.wait()
        assert context.inbox.waiting() or context.inbox.closed
        yield TokensUsed(input_tokens=10)
        uses = tuple(ToolUse(f"u{n}", "Bash", {"command": "true"}) for n in range(2))
        yield AssistantMessage("using", uses)
        answered = await call(sim, context.use_tools, uses)
        if answered is not None:
            yield answered
        yield FinalResult("done")

    class StruckAgent(Agent):
        async def run(self, ctx: Any, report: Any) -> Any:
            return await call(sim, super().run, ctx, report)

    policy = AgentPolicy(run=works, permissions=Permissions(mode="bypass"))
    async with running(sim, agents=policy) as runtime:

        async def exceeded() -> None:
            with trio.move_on_after(1):
                await call(sim, budget.wait_exceeded)

        async def marked() -> None:
            with trio.move_on_after(1):
                mark = await call(sim, budget.wait_mark, 0.0)
                assert mark in (None, 1.0)

        async def charges() -> None:
            await trio.sleep(0.3)
            budget.charge(30)

        async def one() -> None:
            await runtime.launch(Agent(runs_things, "go"))

        async def other() -> None:
            await runtime.launch(StruckAgent(works, "go"))

        await together(one, other, exceeded, marked, charges)


async def agents_launch_durably(sim: Sim) -> None:
    """What an agent launches is on the disk before it has the handle."""

    async def launches(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await call(sim, context.launch, Shell("true"))
        yield FinalResult("done")

    async with running(sim, durable=True) as runtime:
        await runtime.launch(Agent(launches, "go"))


async def asks_for_approval(sim: Sim) -> None:
    def request(agent: str, number: int) -> ToolRequest:
        use = ToolUse(f"call{number}", "Bash", {"command": "make"})
        return ToolRequest(
            agent_id=agent, agent_type="Explore", depth=0, mode="bubble", tool_use=use
        )

    async with running(sim) as runtime:
        agent = await runtime.launch(Agent(works, "go"))
        await trio.sleep(0.01)

        async def answers_them() -> None:
            for _ in range(3):
                await trio.sleep(0.01)
                for parked in runtime.approvals.pending():
                    runtime.approvals.answer(parked.id, True)

        approvals = runtime.approvals

        async def asks(wait: Any, asked: ToolRequest, *owner: None) -> None:
            await call(sim, wait, *owner, asked)
            # Answered, or withdrawn.
            assert asked.tool_use not in [it.tool_use for it in approvals.pending()]

        await together(
            lambda: asks(approvals.wait, request(agent.id, 1)),
            lambda: asks(approvals.wait_of_host, request("main", 2), None),
            lambda: asks(approvals.of_host("x").wait, request("x", 3)),
            answers_them,
        )
        assert not approvals.pending()


async def reads_transcripts(sim: Sim) -> None:
    """By several at once, while there is something to write."""
    async with running(sim, agents=AgentPolicy(run=works)) as runtime:
        store = runtime.transcripts
        warned = False

        async def reads(fn: Any, *args: object) -> None:
            with suppress(OSError):  # The world may have it so.
                await call(sim, fn, *args)

        with runtime.events.subscribe(agents=True) as events:
            task = await runtime.launch(Agent(works, "go"), notify="silent")
            async with trio.open_nursery() as nursery:
                async for event in events:
                    match event:
                        case SupervisorEnded():  # The run has told its end, to be written.
                            nursery.start_soon(reads, store.flush_meta, task.id)
                        case AgentSaid():
                            nursery.start_soon(reads, store.flush)
                            nursery.start_soon(reads, store.load, task.id)
                            for _ in range(2):
                                nursery.start_soon(reads, store.read_tail, task.id, 3)
                        case TaskEnded():
                            break
                        case Warned():
                            warned = True
                        case _:
                            pass
        transcript = await store.load(task.id)
        said = [] if transcript is None else transcript.messages
        # One that was ended, as by the watch of a host that was suspended, said less.
        is_whole = task.snapshot().status is TaskStatus.COMPLETED
        assert warned or not is_whole or len(said) == 3, f"{said}, and nobody is warned"


SCENES: tuple[Scene, ...] = (
    talks_to_agents,
    agents_work,
    agents_launch_durably,
    asks_for_approval,
    reads_transcripts,
)
