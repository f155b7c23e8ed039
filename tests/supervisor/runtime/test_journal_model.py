"""Random operations, crashes and closings, against a plain model of what a directory
remembers: after each opening all that can be seen must be what the model says."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from actors import TaskStatus
from actors.agent import (
    AgentContext,
    AgentEvent,
    AssistantMessage,
    TransientError,
)
from actors.shell import Shell
from actors.testing import FakeEnv, Program, fake_env
from supervisor.agents import AgentPolicy
from supervisor.runtime import KeyTaken, Notification, Pause, Runtime, open_runtime
from tests.supervisor.jobs import (
    COMPLETED,
    FAILED,
    KILLED,
    PAUSED,
    agent,
    answers,
    idles,
    returns,
)

HERE = Path("/tasks")
# Later than any of the programs lives.
LIMIT = datetime(2000, 1, 2, tzinfo=UTC)
POLICY = AgentPolicy(run=answers)


async def sleeps(program: Program) -> int:
    await trio.sleep_forever()
    return 0


async def takes_a_second(program: Program) -> int:
    await trio.sleep(1)
    return 3


COMMANDS: dict[str, Any] = {
    "make": "made\n",
    "sleep": sleeps,
    "test": takes_a_second,
}


async def is_limited(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield AssistantMessage("it tries")
    raise TransientError("the limit of the day", LIMIT)


WORKS: dict[str, Any] = {
    **{name: Shell(name) for name in COMMANDS},
    "answers": agent(answers),
    "idles": agent(idles),
    "is_limited": agent(is_limited),
}
# How each ends by itself.
ENDS = {
    "make": COMPLETED,
    "test": FAILED,
    "sleep": None,
    "answers": COMPLETED,
    "idles": None,
    "is_limited": None,
}


@attrs.define(eq=False)
class Run:
    """What is known of one run of a task, of which one notification tells."""

    work: str
    owner: str | None
    notify: str
    end: TaskStatus | None = None
    """As somebody has seen it."""
    by: str | None = None
    note: tuple[str, str] | None = None
    """Its id and text, if it was handed over."""
    acked: bool = False

    @property
    def is_told(self) -> bool:
        return self.notify != "silent" and not self.acked


@attrs.define
class Model:
    """What a directory has to remember."""

    tasks: dict[str, list[Run]] = attrs.Factory(dict[str, list[Run]])
    pauses: dict[str, Pause] = attrs.Factory(dict[str, Pause])
    """Of the agents that were seen to wait."""
    resumed: set[str] = attrs.Factory(set[str])
    """Those of them that somebody has let go on, who may not have begun yet."""
    keys: dict[tuple[str | None, str], tuple[str, str]] = attrs.Factory(
        dict[tuple[str | None, str], tuple[str, str]]
    )
    ids: set[str] = attrs.Factory(set[str])
    """Of all notifications."""
    done: Counter[str] = attrs.Factory(Counter[str])

    def hand(self, note: Notification, *, is_killed: bool = False) -> Run | None:
        """Hold what a reader gets against what is known, and remember it."""
        if note.kind != "task":
            assert note.id not in {it.note and it.note[0] for it in self.all()}
            return None
        runs = self.tasks[note.task_id]
        said = note.id, note.xml
        (run,) = [it for it in runs if it.note and it.note[0] == note.id] or [
            next(it for it in runs if it.note is None and it.is_told)
        ]
        assert run.is_told, "it was acknowledged, or is silent"
        assert run.note in (None, said)
        if run.note is None:
            assert note.id not in self.ids
        self.ids.add(note.id)
        assert (note.owner, note.notify) == (run.owner, run.notify)
        xml = ET.fromstring(note.xml)
        by = xml.findtext("ended-by")
        if run.end is None:
            if note.status is not ENDS[run.work]:
                assert by == "crash" if is_killed else by in ("shutdown", "crash")
            run.end, run.by = note.status, by
        assert (note.status, by) == (run.end, run.by)
        run.note = said
        return run

    def all(self) -> list[Run]:
        return [run for runs in self.tasks.values() for run in runs]

    def check(self, runtime: Runtime, how: str) -> list[Notification]:
        """Hold a runtime that was just opened against what is known; ``how`` is how the
        one before has ended. Return what it tells."""
        self.done[f"opened after {how}"] += 1
        before = {it for it in self.all() if it.note is not None}
        notes = [it for it in runtime.notifications.drain() if it.kind == "task"]
        told: list[tuple[Notification, Run]] = []
        for note in notes:
            run = self.hand(note, is_killed=how == "killed")
            assert run is not None
            told.append((note, run))
        handed = {run for _, run in told}
        assert len(handed) == len(notes)
        live = {it.id: it for it in runtime.tasks() if not it.status.is_terminal}
        left = {it.agent_id for it in runtime.unfinished_agents()}
        for task, runs in self.tasks.items():
            last = runs[-1]
            for run in runs:
                if not run.is_told or run in handed:
                    continue
                is_live = run is last and run.end is None and task in live
                assert is_live, (how, task, run)
            if last.end is None and task in live:
                assert how == "killed" and live[task].status is PAUSED
                was = self.pauses.get(task)
                pause = live[task].pause
                assert pause is not None
                if was is None or (task in self.resumed and pause != was):
                    assert pause.resume_at is None and "died" in pause.reason
                    self.pauses.pop(task, None)
                else:
                    assert pause == was
                assert live[task].owner == last.owner
                del live[task]
            elif last.end is KILLED and last.by == "shutdown" and last.work in AGENTS:
                assert task in left
            elif last.end is not None:
                assert task not in left
        assert not live, "nothing else runs"
        self._check_remaining(runtime, told, before)
        return notes

    def _check_remaining(
        self,
        runtime: Runtime,
        told: list[tuple[Notification, Run]],
        before: set[Run],
    ) -> None:
        new = [it for it in told if it[1] not in before and it[1].by == "crash"]
        wait = Counter(it.owner for it in runtime.tasks() if not it.status.is_terminal)
        silent = Counter[str | None]()
        for run in self.all():
            if run.notify == "silent" and run.end is None and run.work in COMMANDS:
                run.end = FAILED
                silent[run.owner] += 1
        for owner in {run.owner for _, run in new}:
            of = [note for note, run in new if run.owner == owner]
            remaining = [ET.fromstring(it.xml).findtext("remaining") for it in of]
            least = [len(of) - 1 - n + wait[owner] for n in range(len(of))]
            # The silent ones that were lost, too.
            more = [int(it or -1) - n for it, n in zip(remaining, least, strict=True)]
            assert more == sorted(more, reverse=True)
            assert 0 <= more[-1] <= more[0] <= silent[owner]


AGENTS = {"answers", "idles", "is_limited"}
Op = Callable[[], Awaitable[None]]


class Host:
    """A program that uses a runtime at random."""

    def __init__(self, model: Model, chance: Random, runtime: Runtime) -> None:
        self.model, self.chance, self.runtime = model, chance, runtime
        self.notes: list[Notification] = []
        self.own = set[str]()
        self.has_keys = True

    def running(self) -> list[str]:
        return [it.id for it in self.runtime.tasks() if not it.status.is_terminal]

    async def step(self) -> None:
        op: Op = self.chance.choice(
            [
                *[self.launch] * 4,
                *[self.take] * 2,
                *[self.ack] * 2,
                *(self.keyed, self.wait, self.stop, self.resume, self.go_on),
                *(self.consume, self.pass_time, self.run),
            ]
        )
        self.model.done[op.__name__] += 1
        await op()

    async def launch(self) -> None:
        work = self.chance.choice([*WORKS])
        owner = self.chance.choice([None, "main"])
        notify: Any = self.chance.choice(["wake", "wake", "defer", "silent"])
        task = await self.runtime.launch(WORKS[work], owner=owner, notify=notify)
        self.model.tasks[task.id] = [Run(work, owner, notify)]
        self.own.add(task.id)
        if work == "is_limited":
            await self.look_at_pause(task.id)

    async def look_at_pause(self, task: str) -> None:
        await trio.testing.wait_all_tasks_blocked()
        pause = self.runtime.get(task).pause
        assert pause is not None
        self.model.pauses[task] = pause
        self.model.resumed.discard(task)

    async def keyed(self) -> None:
        if not self.has_keys:
            return
        owner = self.chance.choice([None, "main"])
        key, work = self.chance.choice("kl"), self.chance.choice([*COMMANDS, "idles"])
        known = self.model.keys.get((owner, key))
        try:
            task = await self.runtime.launch(WORKS[work], owner=owner, key=key)
        except KeyTaken:
            assert known is not None and known[1] != work
            return
        assert known in (None, (task.id, work))
        if known is None:
            self.model.keys[owner, key] = task.id, work
            self.model.tasks[task.id] = [Run(work, owner, "wake")]

    async def wait(self) -> None:
        for task in self.running():
            runs = self.model.tasks[task]
            if runs[-1].end is None and ENDS[runs[-1].work] is not None:
                if self.runtime.get(task).status is PAUSED:
                    continue
                ended = await self.runtime.handle(task).wait()
                runs[-1].end, runs[-1].by = ended.status, ended.ended_by
                return

    async def stop(self) -> None:
        running = self.running()
        if running:
            task = self.chance.choice(running)
            result = await self.runtime.stop(task, by="user")
            run, snapshot = self.model.tasks[task][-1], result.snapshot
            if snapshot.status is not ENDS[run.work]:
                assert (snapshot.status, snapshot.ended_by) == (KILLED, "user")
            run.end, run.by = snapshot.status, snapshot.ended_by

    async def take(self) -> None:
        for note in self.runtime.notifications.drain():
            if self.model.hand(note) is not None:
                self.notes.append(note)

    async def ack(self) -> None:
        for note in [*self.notes]:
            if self.chance.random() < 0.5:
                self.notes.remove(note)
                assert note.ack()
                for run in self.model.tasks[note.task_id]:
                    if run.note is not None and run.note[0] == note.id:
                        run.acked = True

    async def consume(self) -> None:
        for it in self.runtime.tasks():
            runs = self.model.tasks.get(it.id)
            if runs is None or not it.status.is_terminal:
                continue
            run = runs[-1]
            if run.note is None and run.is_told and self.runtime.consume(it.id):
                run.end, run.by, run.acked = it.status, it.ended_by, True
                return

    async def resume(self) -> None:
        """Let an agent go on that waits."""
        for task in self.running():
            if self.runtime.get(task).status is PAUSED:
                run = self.model.tasks[task][-1]
                is_ours = task in self.own
                await self.runtime.resume(task)
                self.model.resumed.add(task)
                if is_ours:
                    await self.look_at_pause(task)
                else:
                    # With the loop of the policy.
                    run.work = "answers"
                return

    async def go_on(self) -> None:
        """Let one go on that the end of an earlier program has stopped."""
        for meta in self.runtime.unfinished_agents():
            task = meta.agent_id
            runs = self.model.tasks[task]
            await self.runtime.resume(task)
            self.model.pauses.pop(task, None)
            runs.append(Run("answers", runs[-1].owner, "wake"))
            return

    async def pass_time(self) -> None:
        await trio.sleep(self.chance.choice([0, 0.5, 2]))

    async def run(self) -> None:
        assert (await self.runtime.run(returns("x"))).status is COMPLETED


@attrs.define
class Opened:
    runtime: Runtime
    end: Op


async def opened(
    nursery: trio.Nursery, env: FakeEnv, *, durable: bool = False
) -> Opened:
    go, gone = trio.Event(), trio.Event()

    async def opens(task_status: trio.TaskStatus[Runtime]) -> None:
        async with open_runtime(
            HERE, env=env, agents=POLICY, durable=durable
        ) as runtime:
            task_status.started(runtime)
            await go.wait()
        gone.set()

    async def end() -> None:
        go.set()
        await gone.wait()

    return Opened(await nursery.start(opens), end)


def program(env: FakeEnv, *, beside: bool = False, number: int) -> FakeEnv:
    """Return the world as another program finds it: ``beside`` this one, or once this
    one was killed just now."""
    again = fake_env(COMMANDS)
    again.ids.given = number * 10_000
    if beside:
        again = attrs.evolve(again, files=env.files)
    else:
        again.files.disk = env.files.disk.image().killed()
    return again


def rest(model: Model, runtime: Runtime) -> None:
    """What was told at the end of a runtime."""
    for note in runtime.notifications.drain():
        model.hand(note)


async def live(seed: int, lives: int, steps: int) -> Counter[str]:
    """Lead the lives of some programs on one directory."""
    chance, model = Random(seed), Model()
    env, how, number = fake_env(COMMANDS), "nothing", 0
    async with trio.open_nursery() as nursery:
        for _ in range(lives):
            number += 1
            durable = chance.random() < 0.3
            one = await opened(nursery, env, durable=durable)
            host = Host(model, chance, one.runtime)
            if durable:
                # Nobody is told before that.
                await one.runtime.synced()
            host.notes = model.check(one.runtime, how)
            for _ in range(chance.randrange(steps)):
                await host.step()
            how = chance.choice(["killed", "killed", "closed", "handed over"])
            if how == "handed over":
                number += 1
                theirs = program(env, beside=True, number=number)
                two = await opened(nursery, theirs)
                other = Host(model, chance, two.runtime)
                other.has_keys = False
                for _ in range(chance.randrange(steps)):
                    await chance.choice([host, other]).step()
                await one.end()
                rest(model, one.runtime)
                if chance.random() < 0.7:
                    await trio.sleep(2)
                    other.has_keys = True
                    for note in other.runtime.notifications.drain():
                        if model.hand(note) is not None:
                            other.notes.append(note)
                    for _ in range(chance.randrange(steps)):
                        await other.step()
                    how = chance.choice(["killed", "closed"])
                one = two
            if how == "killed":
                if durable:
                    await one.runtime.synced()
                # At once: nothing else has run since the last call has returned.
                env = program(env, number=number + 1)
                await one.end()
            else:
                await one.end()
                rest(model, one.runtime)
                env = program(env, number=number + 1)
    return model.done


@pytest.mark.parametrize("seed", range(20))
async def test_after_each_opening_all_is_as_the_model_says(
    autojump_clock: trio.testing.MockClock, seed: int
) -> None:
    await live(seed, lives=8, steps=12)
