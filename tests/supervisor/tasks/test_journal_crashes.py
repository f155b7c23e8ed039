"""The journal, at each change of the disk: what was launched, told and acknowledged
before a crash is accounted for by the next runtime, and by the one after a crash of it.
"""

from __future__ import annotations

import logging
from collections import Counter
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
)
from actors.shell import Shell
from actors.testing import Program
from supervisor._tasks.journal import writer
from supervisor.agents import AgentPolicy
from supervisor.runtime import Notification, Runtime, open_runtime
from supervisor.simulation import Sim
from supervisor.simulation.crash import Disk, DiskProgram, crash_everywhere

DIRECTORY = Path("/tasks")

ODD, ALL = slice(1, None, 2), slice(None)


@pytest.fixture(autouse=True)
def _silent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "supervisor")


@pytest.fixture(params=[False, True], ids=["whole", "compacted"])
def compacted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the journal is written anew again and again."""
    if request.param:
        monkeypatch.setattr(writer, "_SMALL", 400)
        monkeypatch.setattr(writer, "_GROWN", 1)
    return bool(request.param)


async def build(program: Program) -> int:
    await program.print("line 1\n")
    await trio.sleep(2)
    return 3


COMMANDS: Any = {"build": build, "true": "done\n", "fails": 7}


async def works(context: AgentContext) -> AsyncIterator[AgentEvent]:
    await context.launch(Shell("true"))
    yield AssistantMessage("at work")
    await trio.sleep(1)
    context.inbox.take()
    yield FinalResult("done")


class Account:
    """What others have been told of the tasks of a directory, and what they rely on."""

    def __init__(self, told: list[Any]) -> None:
        self.launched = {it[1]: it[2] for it in told if it[0] == "launched"}
        # {notification: (its task, its status)}
        self.handed = {it[1]: (it[2], it[3]) for it in told if it[0] == "handed"}
        # Of other things than ends, which are told while they are so.
        self.passed = {it[1] for it in told if it[0] == "passed"}
        self.acking = {it[1] for it in told if it[0] == "acking"}
        self.acked = {it[1] for it in told if it[0] == "acked"}
        self.ended = {it[1]: it[2] for it in told if it[0] == "ended"}

    def check(self, runtime: Runtime, notes: list[Notification]) -> None:
        """Hold what a runtime tells on a directory against what was told before."""
        ids = [note.id for note in notes]
        assert len({*ids}) == len(ids), "a notification comes twice"
        assert not self.passed.intersection(ids), "two notifications have one id"
        assert not {it.id for it in notes if it.kind != "task"} & self.handed.keys()
        ends = [note for note in notes if note.kind == "task"]
        again = {note.id: (note.task_id, note.status.value) for note in ends}
        for note, said in again.items():
            assert note not in self.acked, f"{note} was acknowledged"
            assert self.handed.get(note, said) == said, f"{note} says {said}"
        for note, (task, _) in self.handed.items():
            if note not in self.acking:
                assert note in again, f"{note} of {task} is missing"
        of = Counter(task for task, _ in {**self.handed, **again}.values())
        live = {it.id for it in runtime.tasks() if not it.status.is_terminal}
        resumable = {it.agent_id for it in runtime.unfinished_agents()}
        for task, kind in self.launched.items():
            wanted = {0 if kind == "silent" or task in live else 1}
            if task in resumable:
                # It may have been paused, or killed by the end of a runtime.
                assert kind == "agent"
                wanted = {0, 1}
            assert of[task] in wanted, f"{task}, {kind}, has {of[task]} notifications"
        assert {*of.values()} <= {1}
        for task, status in again.values():
            assert self.ended.get(task, status) == status, f"{task} ends twice"


async def take(
    runtime: Runtime, disk: Disk, durable: bool, note: Notification, ack: bool
) -> None:
    """Tell what was handed over, and what was acknowledged for certain."""
    how = "handed" if note.kind == "task" else "passed"
    disk.tell((how, note.id, note.task_id, note.status.value))
    if ack:
        disk.tell(("acking", note.id))
        note.ack()
        if durable:
            await runtime.synced()
        disk.tell(("acked", note.id))


async def read(
    runtime: Runtime, disk: Disk, durable: bool, acks: slice
) -> list[Notification]:
    """Take what there is to take, and acknowledge these of them."""
    notes = runtime.notifications.drain()
    acked = notes[acks]
    for note in notes:
        await take(runtime, disk, durable, note, note in acked)
    return notes


def program(durable: bool) -> DiskProgram:
    async def tasks(sim: Sim, disk: Disk) -> None:
        env = disk.env(COMMANDS)
        async with open_runtime(DIRECTORY, env=env, durable=durable) as runtime:

            async def one(work: Any, kind: Any = "wake") -> None:
                notify = "silent" if kind == "silent" else "wake"
                task = await runtime.launch(work, notify=notify)
                disk.tell(("launched", task.id, kind))
                ended = await task.wait()
                disk.tell(("ended", task.id, ended.status.value))

            async def reads() -> None:
                number = 0
                async for note in runtime.notifications:
                    await take(runtime, disk, durable, note, number % 3 != 1)
                    number += 1

            async with trio.open_nursery() as reading:
                reading.start_soon(reads)
                async with trio.open_nursery() as nursery:
                    for command in ("true", "fails", "build", "true", "build", "true"):
                        nursery.start_soon(one, Shell(command))
                    nursery.start_soon(one, Shell("true"), "silent")
                    nursery.start_soon(one, Agent(works, "go"), "agent")
                    await runtime.run(Shell("true"))
                    await trio.sleep(1)
                    await one(Shell("fails"))
                await trio.sleep(1)
                reading.cancel_scope.cancel()

    return tasks


def recovery(durable: bool) -> DiskProgram:
    async def recover(sim: Sim, disk: Disk) -> None:
        account = Account(disk.told)
        env, policy = disk.env(COMMANDS), AgentPolicy(run=works)
        async with open_runtime(
            DIRECTORY, env=env, durable=durable, agents=policy
        ) as runtime:
            await runtime.synced()
            notes = await read(runtime, disk, durable, ODD)
            account.check(runtime, notes)
            task = await runtime.launch(Shell("fails"))
            disk.tell(("launched", task.id, "wake"))
            await task.wait()
            await runtime.synced()
            new = await read(runtime, disk, durable, ALL)
            assert [it.task_id for it in new] == [task.id]
            assert new[0].id not in account.handed

    return recover


def test_no_kill_loses_or_repeats_a_notification(compacted: bool) -> None:
    report = crash_everywhere(
        program(False), recovery(False), crashes=["kill", "torn"], max_points=150
    )
    assert report.points > 180


def test_nor_does_a_loss_of_power_if_it_is_durable(compacted: bool) -> None:
    report = crash_everywhere(program(True), recovery(True), max_points=150)
    assert report.points == 200
    assert report.skipped > (900 if compacted else 300)


async def family(sim: Sim, disk: Disk) -> None:
    """An agent is given the handle of a task of its own."""

    async def launches(context: AgentContext) -> AsyncIterator[AgentEvent]:
        task = await context.launch(Shell("build"))
        disk.tell(("own", task.id))
        await trio.sleep(1)
        disk.tell(("closing", ""))
        yield FinalResult("done")

    env = disk.env(COMMANDS)
    async with open_runtime(DIRECTORY, env=env, durable=True) as runtime:
        await runtime.launch(Agent(launches, "go"))
        await runtime.wait_idle()


async def reunited(sim: Sim, disk: Disk) -> None:
    async with open_runtime(DIRECTORY, env=disk.env(COMMANDS)) as runtime:
        kinds = [kind for kind, _ in disk.told]
        for kind, task in disk.told:
            if kind == "own" and "closing" not in kinds:
                assert runtime.get(task).ended_by == "crash"


def test_nor_is_a_task_of_an_agent_lost_that_it_was_given() -> None:
    report = crash_everywhere(family, reunited, again=0)
    assert report.points > 60
