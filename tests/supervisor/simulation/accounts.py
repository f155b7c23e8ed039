"""What must hold behind a scene, whatever was struck in it.

The runtime and the tree still work, every start has one end, every end is told once, and
no process is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import trio

from actors.shell import Shell
from actors.testing import FakeEnv, Program
from supervisor.runtime import Runtime, TaskEnded, TaskStarted, open_runtime
from supervisor.simulation import Sim
from supervisor.tree import ChildExited, ChildStarted, Event


class Account:
    """Counts what begins and ends in a tree or a runtime."""

    def __init__(self) -> None:
        self.begun: Counter[object] = Counter()
        self.ended: Counter[object] = Counter()

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case ChildStarted(supervisor=above, child=name, incarnation=number):
                    self.begun[above, name, number] += 1
                case ChildExited(supervisor=above, child=name, incarnation=number):
                    self.ended[above, name, number] += 1
                case TaskStarted(task_id=task):
                    self.begun[task] += 1
                case TaskEnded(task_id=task):
                    self.ended[task] += 1
                case _:
                    pass

    def check(self) -> None:
        for one, times in (self.begun | self.ended).items():
            begun, ended = self.begun[one], self.ended[one]
            # What never came to run has an end, too.
            assert ended == max(begun, 1), (
                f"{times}: begun {begun}, ended {ended}: {one}"
            )


async def make(program: Program) -> None:
    for number in range(2):
        await program.print(f"line {number}\n")
        await trio.sleep(0.1)


async def echo(program: Program) -> None:
    while data := await program.read():
        await program.print(f"{len(data)}\n")


async def deaf(program: Program) -> None:
    program.ignore_sigterm()
    await trio.sleep_forever()


COMMANDS = {"make": make, "true": "done\n", "echo": echo, "deaf": deaf}


@asynccontextmanager
async def running(sim: Sim, **options: Any) -> AsyncGenerator[Runtime]:
    """A runtime that still works behind the block, and whose accounts are right."""
    env: FakeEnv = sim.env(COMMANDS)
    account = Account()
    async with open_runtime("tasks", env=env, **options) as runtime:
        events = runtime.events.subscribe()
        yield runtime
        with sim.within(600):
            await runtime.wait_idle()
            await still_works(runtime)
        check_told(runtime)
    account.add(events.drain())
    account.check()
    left = [tree for tree in env.processes.started if tree.has_living]
    assert not left, f"processes are left: {left}"


async def still_works(runtime: Runtime) -> None:
    # Each of a pair of faults of the world may meet one of them.
    codes = [(await runtime.run(Shell("true"))).exit_code for _ in range(3)]
    assert 0 in codes, f"commands end with {codes}"


def check_told(runtime: Runtime) -> None:
    """Each end of a background task of the host's was told once."""
    notes = runtime.notifications.drain()
    told = Counter(note.task_id for note in notes if note.kind == "task")
    for task in runtime.tasks():
        assert task.status.is_terminal, f"not ended: {task}"
        assert told[task.id] <= 1, f"told {told[task.id]} times: {task}"
        if task.background and task.parent is None and task.notify != "silent":
            read = task.id in READ.get(runtime, ())
            assert told[task.id] + read == 1, f"told {told[task.id]} times: {task}"


READ: dict[Runtime, list[str]] = {}
"""Whose ends a scene has read itself."""


async def together(*tasks: Callable[[], Awaitable[object]]) -> None:
    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(task)
