"""``python -m bench.crowd``: hundreds of agents at once, all in one runtime.

Each makes many rounds of tool calls, one of them with a real command. Half begin
in the foreground and are moved to the background while they run; a tenth are
stopped. Shown is what must hold: one end and one notification for each, whole
transcripts, no place given out twice, and nothing left behind.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

import attrs
import trio

from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    ToolUse,
)
from actors.env import real_env
from actors.transcript import TranscriptStore
from supervisor.agents import AgentPolicy
from supervisor.permissions import Permissions
from supervisor.runtime import (
    Limits,
    Runtime,
    TaskEnded,
    open_runtime,
)
from supervisor.tree import Event

MODEL_SECONDS = 0.01
"""How long the model of each agent thinks before a message."""


@attrs.frozen(kw_only=True)
class Plan:
    """What is asked of the crowd."""

    agents: int
    rounds: int
    places: int

    def is_moved(self, number: int) -> bool:
        """Whether this agent begins in the foreground and is moved."""
        return number % 2 == 0

    def is_stopped(self, number: int) -> bool:
        """Whether this agent is stopped on its way."""
        return number % 10 == 5

    @property
    def stopped(self) -> int:
        """How many are stopped."""
        return sum(self.is_stopped(n) for n in range(self.agents))


@attrs.define
class Crowd:
    """What came of it."""

    seconds: float = 0.0
    at_once: int = 0
    most_at_once: int = 0
    """Agents whose model was at work in one moment; one that waits for its own
    task has lent its place."""
    ends: Counter[str] = attrs.field(factory=Counter[str])
    """Terminal events, by task."""
    statuses: Counter[str] = attrs.field(factory=Counter[str])
    notes: Counter[str] = attrs.field(factory=Counter[str])
    """Notifications, by task."""
    moved: int = 0
    lengths: dict[str, int] = attrs.field(factory=dict[str, int])
    """Messages in each agent's transcript."""
    skipped: int = 0
    """Lines of transcripts that could not be read."""
    left: list[str] = attrs.field(factory=list[str])
    """What was there afterwards and had not been before."""

    def faults(self, plan: Plan) -> list[str]:
        """Return what should not be, in words."""
        found: list[str] = []
        if len(self.ends) != plan.agents or any(n != 1 for n in self.ends.values()):
            found.append(f"ends: {_odd(self.ends)} of {plan.agents} agents")
        if len(self.notes) != plan.agents or any(n != 1 for n in self.notes.values()):
            found.append(f"notifications: {_odd(self.notes)} of {plan.agents} agents")
        if self.statuses != {
            "completed": plan.agents - plan.stopped,
            "killed": plan.stopped,
        }:
            found.append(f"statuses: {dict(self.statuses)}")
        if self.moved != sum(plan.is_moved(n) for n in range(plan.agents)):
            found.append(f"moved: {self.moved}")
        if self.most_at_once > plan.places:
            found.append(f"{self.most_at_once} at once in {plan.places} places")
        whole = 2 * plan.rounds + 2
        short = [n for n in self.lengths.values() if n != whole]
        if len(self.lengths) != plan.agents or len(short) > plan.stopped:
            found.append(
                f"transcripts: {len(self.lengths)}, of them {len(short)} short"
            )
        if self.skipped:
            found.append(f"{self.skipped} unreadable lines in transcripts")
        return found + self.left


def _odd(counts: Counter[str]) -> str:
    return f"{len(counts)} agents, {sum(n > 1 for n in counts.values())} more than once"


def main(arguments: list[str] | None = None) -> int:
    """Be the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.crowd")
    parser.description = "Run many agents at once, move half of them, stop a tenth."
    parser.add_argument("--agents", type=int, default=500, metavar="N")
    parser.add_argument("--rounds", type=int, default=20, metavar="N")
    parser.add_argument("--places", type=int, default=200, metavar="N")
    options = parser.parse_args(arguments)
    for name in ("agents", "rounds", "places"):
        value = getattr(options, name)
        if value < 1:
            parser.error(f"--{name} must be 1 or more, not {value}")
    plan = Plan(agents=options.agents, rounds=options.rounds, places=options.places)
    before = _descriptors()
    with tempfile.TemporaryDirectory() as directory:
        crowd = trio.run(_run, Path(directory), plan)
    more = _descriptors() - before
    if more > 0:
        crowd.left.append(f"{more} descriptors left open")
    print(
        f"{plan.agents} agents, {plan.rounds} rounds each, {plan.places} places: "
        f"{crowd.seconds:.1f} s, {crowd.most_at_once} at once at most"
    )
    print(
        f"{sum(crowd.ends.values())} ends, {sum(crowd.notes.values())} notifications,"
        f" {crowd.moved} moved, {dict(crowd.statuses)}"
    )
    print(f"{len(crowd.lengths)} transcripts, {sum(crowd.lengths.values())} messages")
    faults = crowd.faults(plan)
    for fault in faults:
        print(f"WRONG: {fault}")
    return 1 if faults else 0


def _descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


async def _run(directory: Path, plan: Plan) -> Crowd:
    crowd = Crowd()
    policy = AgentPolicy(permissions=Permissions(mode="bypass"))
    began = perf_counter()
    async with open_runtime(
        directory, limits=Limits(agents=plan.places), agents=policy
    ) as runtime:
        events = runtime.events.subscribe(10_000_000)
        async with trio.open_nursery() as nursery:
            for number in range(plan.agents):
                nursery.start_soon(_one, runtime, crowd, plan, number)
        await runtime.wait_idle()
        _count(events.drain(), crowd)
        for note in runtime.notifications.drain():
            crowd.notes[note.task_id] += 1
            note.ack()
        crowd.seconds = perf_counter() - began
        ids = list(crowd.ends)
    if runtime.tasks() and any(not t.status.is_terminal for t in runtime.tasks()):
        crowd.left.append("tasks that have not ended")
    store = TranscriptStore(directory, real_env(), lambda agent, text: None)
    for agent_id in ids:
        transcript = await store.load(agent_id)
        if transcript is not None:
            crowd.lengths[agent_id] = len(transcript.messages)
            crowd.skipped += transcript.skipped
    return crowd


def _count(events: Sequence[Event], crowd: Crowd) -> None:
    for event in events:
        # The shells of the agents have ids that begin with an s.
        if isinstance(event, TaskEnded) and not event.task_id.startswith("s"):
            crowd.ends[event.task_id] += 1
            crowd.statuses[event.status] += 1


async def _one(runtime: Runtime, crowd: Crowd, plan: Plan, number: int) -> None:
    half_way = trio.Event()
    work = Agent(_loop(plan.rounds, half_way, crowd), f"count to {plan.rounds}")
    if not plan.is_moved(number):
        task = await runtime.launch(work, owner="main")
        if plan.is_stopped(number):
            await half_way.wait()
            await task.stop("no longer wanted")
        return
    async with trio.open_nursery() as nursery:
        task = await nursery.start(partial(runtime.run, work, owner="main"))
        await half_way.wait()
        crowd.moved += runtime.background(task)


class _loop:
    """A model that asks for a tool in every round, and in the middle one for a
    command."""

    def __init__(self, rounds: int, half_way: trio.Event, crowd: Crowd) -> None:
        self._rounds = rounds
        self._half_way = half_way
        self._crowd = crowd

    async def __call__(self, context: AgentContext) -> AsyncIterator[AgentEvent]:
        for number in range(self._rounds):
            await self._think()
            use = ToolUse(f"t{number}", "TaskList")
            if number == self._rounds // 2:
                self._half_way.set()
                use = ToolUse(f"t{number}", "Bash", {"command": f"echo {number}"})
            yield AssistantMessage(f"round {number}", (use,))
            yield await context.use_tools([use])
        await self._think()
        yield AssistantMessage("counted")
        yield FinalResult("counted")

    async def _think(self) -> None:
        crowd = self._crowd
        crowd.at_once += 1
        crowd.most_at_once = max(crowd.most_at_once, crowd.at_once)
        try:
            await trio.sleep(MODEL_SECONDS)
        finally:
            crowd.at_once -= 1


if __name__ == "__main__":
    sys.exit(main())
