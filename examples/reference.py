"""Everything that the runtime does, at once: the program on which the simulator is tried.

    python examples/reference.py [SEEDS]

Six shells (one floods, one is deaf to SIGTERM, one is run again), three agents (one has
a sub-agent, two have shells of their own), a task that is moved to the background while
it runs, a message to an agent that had ended, a stop, a crash of the notifier, and waits
that differ from seed to seed. All is in memory and in virtual time.

What happens is written into the log of the run: each event with all its fields, what
agents say, each notification as its reader gets it, and each end. Equal digests say
that two runs were the same in all that, and in who took each step.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import trio

from actors import Progress, Progressed
from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    TextDelta,
    TokensUsed,
    UserMessage,
)
from actors.shell import Shell
from actors.testing import Program
from supervisor.agents import AgentPolicy
from supervisor.runtime import (
    MessageRefused,
    OutputEnded,
    Runtime,
    TaskEnded,
    TaskSnapshot,
    open_runtime,
    to_json,
)
from supervisor.simulation import Sim, simulate
from supervisor.tree import Backoff

Script = Callable[[Program], Awaitable[int | None]]

# ---- The commands ----------------------------------------------------------------------


def commands(sim: Sim) -> dict[str, Script | str]:
    """What each command does. The waits are those of the run's seed."""

    async def pause() -> None:
        await trio.sleep(sim.random.choice([0.1, 0.2, 0.3]))

    async def build(program: Program) -> None:
        for number in range(6):
            await program.print(f"{number} of 6\n")
            await pause()

    async def flood(program: Program) -> int:
        for _ in range(4):
            await program.print(b"x" * 70_000 + b"\n")
        return 3

    async def deaf(program: Program) -> None:
        program.ignore_sigterm()
        await program.print("deaf\n")
        await trio.sleep_forever()

    fails = [1, 1]

    async def flaky(program: Program) -> int:
        await pause()
        await program.print("trying\n")
        return fails.pop() if fails else 0

    async def serve(program: Program) -> int:
        await program.print("listening\n")
        await trio.sleep(1.5)
        return -15

    return {
        "build": build,
        "flood": flood,
        "deaf": deaf,
        "flaky": flaky,
        "serve": serve,
        "true": "done\n",
    }


# ---- The agents ------------------------------------------------------------------------


async def reads(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """The sub-agent, and the one that gets a message after its end."""
    for line in range(3):
        for word in f"and this is what stands in line {line}".split():
            yield TextDelta(f"{word} ")
        yield AssistantMessage(f"this is line {line}")
        yield TokensUsed(input_tokens=7, output_tokens=3)
        await trio.sleep(0.1)
    told = [it.text for it in context.history if isinstance(it, UserMessage)]
    yield FinalResult(" | ".join(told))


async def leads(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """It has a sub-agent and a shell, and waits for both."""
    for word in "I let somebody read , and build meanwhile".split():
        yield TextDelta(f"{word} ")
    yield AssistantMessage("I let somebody read, and build meanwhile")
    await context.launch(Agent(reads, "read it"), description="reads")
    await context.launch(Shell("build"), description="builds")
    await context.wait_own_tasks()
    yield AssistantMessage("both are done")
    yield FinalResult(f"{len(context.inbox.take())} ended")


async def checks(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """It runs a shell in its foreground."""
    for number in range(2):
        for word in "now I look whether all of it is as it should be".split():
            yield TextDelta(f"{word} ")
        yield AssistantMessage(f"check {number}")
        done = await context.run(Shell("true"))
        yield TokensUsed(input_tokens=10, output_tokens=5)
        assert done.exit_code == 0, done
    yield FinalResult("all is well")


# ---- The program -----------------------------------------------------------------------


async def program(sim: Sim) -> Counter[str]:
    """One run. It returns how many events of each kind there were.

    It holds also where tasks are cancelled and the world fails: see `check`.
    """
    env = sim.env(commands(sim))
    told: Counter[str] = Counter()
    async with open_runtime("tasks", env=env, agents=AgentPolicy(run=reads)) as runtime:
        events = runtime.events.subscribe(agents=True)
        await work(sim, runtime)
        with sim.within(600):  # It still works; a few faults may come even now.
            tries = 1
            while (await runtime.run(Shell("true"))).exit_code != 0:
                tries += 1
        assert tries <= 9, tries
        for note in runtime.notifications.drain():
            sim.log("told", note.id, note.xml)
            told[note.task_id] += 1
            note.ack()
        tasks = runtime.tasks()
    ended: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for event in events.drain():
        sim.log(to_json(event))
        seen[type(event).__name__] += 1
        if isinstance(event, TaskEnded):
            ended[event.task_id] += 1
    for task in tasks:
        sim.log("task", task)
        check(task, told[task.id], ended[task.id])
    assert not any(tree.has_living for tree in env.processes.started)
    return seen


def check(task: TaskSnapshot, told: int, ended: int) -> None:
    """Each task has ended, and each end of the host's background tasks was told once.
    One that was resumed has several."""
    assert task.status.is_terminal, task
    assert ended >= 1, f"no end: {task}"
    if task.owner is None:
        expected = ended if task.background else 0
        assert told == expected, f"told {told} times, not {expected}: {task}"


async def work(sim: Sim, runtime: Runtime) -> None:
    """Everything at once; it returns when all tasks have ended."""

    async def pause() -> None:
        await trio.sleep(sim.random.choice([0, 0.05, 0.1, 0.2, 0.4]))

    async def ends(command: str) -> None:
        await pause()
        task = await runtime.launch(Shell(command))
        await task.wait()

    async def is_run_again() -> None:
        await pause()
        await runtime.launch(
            Shell("flaky"),
            restart="transient",
            intensity=4,
            backoff=Backoff(0.1, 0.2),
        )

    async def is_stopped() -> None:
        task = await runtime.launch(Shell("deaf", grace=1))
        with suppress(OutputEnded):  # The world may have ended it.
            await task.wait_output("deaf")
        await pause()
        await runtime.stop(task, "enough")

    async def is_moved() -> None:
        done = await runtime.run(Shell("build"))
        sim.log("moved", done.background)

    async def moves() -> None:
        await trio.sleep(0.1)
        await pause()
        runtime.background_all()

    async def is_told_late() -> None:
        task = await runtime.launch(Agent(reads, "go"))
        await task.wait()
        await pause()
        with suppress(MessageRefused):  # It may have failed.
            sim.log("sent", str(await runtime.send(task, "one thing more")))

    async def is_an_agent(agent: Agent) -> None:
        await pause()
        await runtime.launch(agent)

    async def crashes_the_notifier() -> None:
        await trio.sleep(0.3)
        await pause()
        for child in runtime.root.which_children():
            if child.id == "notifier":
                # An id that no set can hold: it fails with it in its hands.
                child.ref.tell(Progressed([], "", Progress()))  # type: ignore[arg-type]

    async with trio.open_nursery() as nursery:
        for command in ("flood", "serve", "true"):
            nursery.start_soon(ends, command)
        for one in (is_run_again, is_stopped, is_moved, moves, is_told_late):
            nursery.start_soon(one)
        nursery.start_soon(is_an_agent, Agent(leads, "lead"))
        nursery.start_soon(is_an_agent, Agent(checks, "check"))
        nursery.start_soon(crashes_the_notifier)
    with trio.move_on_after(60):
        await runtime.wait_idle()
    await runtime.stop_all(reason="whoever was to stop it has gone")
    await runtime.wait_idle()  # What dies slowly outlives a stop.


def main(seeds: int = 5) -> None:
    logging.disable(logging.CRITICAL)  # What fails on purpose is logged.
    began = time.process_time()
    digests: set[str] = set()
    for seed in range(seeds):
        run = simulate(program, seed=seed)
        if run.error is not None:
            raise run.error
        assert simulate(program, seed=seed).digest == run.digest
        digests.add(run.digest)
        if seed < 5:
            seen: Counter[str] = run.value
            print(
                f"seed {seed}: digest {run.digest}, {seen.total()} events, {run.steps} steps, "
                f"{len(run.log)} lines of log, {run.seconds:.1f} virtual seconds"
            )
    assert len(digests) >= 0.95 * seeds, "too few schedules differ"
    rate = 2 * seeds / (time.process_time() - began)
    print(
        f"{seeds} seeds, each twice: equal digests, {len(digests)} of them different; "
        f"{rate:.0f} runs a second"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
