"""The program that is killed: it runs 40 tasks, and tells what it has seen.

Each thing that it does or sees is a line of JSON on a pipe, written at once. So the one
who reads it knows what was visible when the program died.
"""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, Final, Literal, cast

import attrs
import trio

from actors import Context
from actors.agent import Agent, AgentContext, AgentEvent, FinalResult, Note
from actors.env import Files, real_env
from actors.models.scripted import read_script
from actors.shell import Shell
from actors.work import Report, Work
from supervisor.agents import AgentPolicy
from supervisor.permissions import Permissions
from supervisor.runtime import (
    Limits,
    Notification,
    ResumeRefused,
    Runtime,
    TaskEnded,
    TaskHandle,
    TaskSnapshot,
    TaskStarted,
    open_runtime,
)

from ._blow import StruckFiles
from ._plan import Blow, Mode

TASKS: Final = 40
VARIABLE: Final = "BENCH_CRASHES"
"""The variable in the environment by which what a program has started is found."""

# The journal is compacted many times in a life.
_SMALL = 6_000
_GROWN = 1.3
_NEW_TASKS = 3
_SETTLED = 20.0

ENDING: Final = ("shell well", "shell bad", "job well", "job bad")
"""The kinds of tasks that end by themselves."""

SCRIPT = """
{"agents": {
  "lead": {"prompt": "Look after the build.", "turns": [
    {"text": "I start it.", "tools": [{"Bash": {
      "command": "echo line 1 of own; sleep 0.3; echo line 2 of own",
      "description": "own", "run_in_background": true}}]},
    {"think": 0.2, "text": "It runs."},
    {"wait": "end", "text": "I wait for it."},
    {"text": "It has ended."}]}}}
"""


class Say:
    """Writes lines to whoever started this program, each at once."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __call__(self, what: str, **said: object) -> None:
        rest = json.dumps({"say": what, **said}).encode() + b"\n"
        while rest:
            rest = rest[os.write(self._fd, rest) :]


@attrs.frozen
class Job:
    """A work in this process."""

    kind: str
    seconds: float
    task_type: str = "local_work"
    shutdown: float = 1.0
    writes_output: bool = False

    def describe(self) -> str:
        """Return a few words."""
        return self.kind

    async def run(self, ctx: Context[object], report: Report) -> object:
        """Return, fail, or go on, as it is called."""
        await trio.sleep(self.seconds)
        if self.kind == "job bad":
            raise ValueError("it went badly")
        return "it went well"


@attrs.frozen(kw_only=True)
class Item:
    """A task that the program starts."""

    kind: str
    work: Work
    lines: int | None = 0
    """How many lines it prints; None is for one that goes on."""
    notify: Literal["wake", "defer", "silent"] = "wake"
    way: Literal["launch", "run", "move"] = "launch"


def numbered(name: str, count: int, pause: float, code: int) -> str:
    """Return a command that prints so many numbered lines, and ends with that code."""
    half = max(1, count // 2)
    return (
        f"i=0; while [ $i -lt {count} ]; do i=$((i+1)); echo line $i of {name}; "
        f"[ $((i % {half})) -eq 0 ] && sleep {pause:.3f}; done; exit {code}"
    )


def items(random: Random, token: str, say: Say) -> list[Item]:
    """Return what the first program starts: 40 tasks, with those of the agents."""
    found: list[Item] = []

    def shell(kind: str, name: str, code: int = 0, **options: Any) -> None:
        count = random.randint(1, 12)
        command = numbered(name, count, random.uniform(0, 0.5), code)
        found.append(Item(kind=kind, work=Shell(command), lines=count, **options))

    for number in range(11):
        shell("shell well", f"well{number}")
    for number in range(4):
        shell("shell bad", f"bad{number}", 3)
    shell("shell well", "run0", way="run")
    shell("shell bad", "run1", 4, way="run")
    shell("shell well", "moved", way="move")
    shell("shell well", "deferred", notify="defer")
    shell("shell well", "silent", notify="silent")
    # Each leaves its traces in another way.
    for wrap in ("{}", "{}", "{}", "trap '' TERM INT HUP; {}"):
        forever = "i=0; while :; do i=$((i+1)); echo line $i of never; sleep 0.2; done"
        command = wrap.format(forever)
        found.append(Item(kind="shell never", work=Shell(command), lines=None))
    hidden = f"env -i sh -c 'sleep 600; : {token}' & setsid sleep 600 & wait"
    found.append(Item(kind="shell never", work=Shell(hidden)))
    for kind, seconds, notify in (
        ("job well", 0.0, "wake"),
        ("job well", random.uniform(0, 1), "wake"),
        ("job well", 0.1, "defer"),
        ("job bad", random.uniform(0, 1), "wake"),
        ("job never", math.inf, "wake"),
    ):
        job = Job(kind, seconds)
        found.append(Item(kind=kind, work=job, notify=cast("Any", notify)))
    script = read_script(SCRIPT, "script.json")
    lead = script.agents["lead"]
    for _ in range(2):
        agent = Agent(script.run, lead.prompt or "", model=lead.model)
        found.append(Item(kind="agent", work=agent))
    for number in range(3):
        seconds = random.choice((0.1, 0.6, math.inf))
        found.append(
            Item(kind="agent", work=Agent(_own_task(say, number, seconds), "Work."))
        )
    # Each agent has a task of its own.
    assert len(found) == TASKS - 5, len(found)
    random.shuffle(found)
    return found


def _own_task(
    say: Say, number: int, seconds: float
) -> Callable[[AgentContext], AsyncIterator[AgentEvent]]:
    """Return the loop of an agent that starts a shell as its own task."""

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield Note("I begin.")
        runtime = _RUNTIMES[-1]
        command = numbered(f"own{number}", 4, 0.2, 0)
        item = Item(kind="shell well", work=Shell(command), lines=4)
        task = await runtime.launch(item.work)
        _say_launched(say, item, task, context.agent_id)
        await trio.sleep(seconds)
        yield FinalResult("I am done.")

    return run


_RUNTIMES: Final[list[Runtime]] = []
"""The one runtime of this process, for the loops of its agents."""


def _say_launched(
    say: Say, item: Item, task: TaskHandle, parent: str | None = None
) -> None:
    say(
        "launched",
        task=task.id,
        kind=item.kind,
        lines=item.lines,
        notify=item.notify,
        way=item.way,
        parent=parent,
    )


class Host:
    """One life of the program."""

    def __init__(
        self, runtime: Runtime, say: Say, random: Random, *, waits: bool
    ) -> None:
        self._runtime = runtime
        self._say = say
        self._random = random
        # Whether what was acknowledged is certain only after `Runtime.synced`.
        self._waits = waits

    async def run_tasks(self, found: list[Item]) -> None:
        """Start them all, and wait for those that end by themselves."""
        async with trio.open_nursery() as nursery:
            for item in found:
                if item.way == "launch":
                    task = await self._runtime.launch(
                        item.work, owner="main", notify=item.notify
                    )
                    _say_launched(self._say, item, task)
                    if item.kind in ENDING:
                        nursery.start_soon(self._wait, task)
                else:
                    task = await nursery.start(self._run, item)
                    _say_launched(self._say, item, task)
                    if item.way == "move":
                        nursery.start_soon(self._move, task)
                await trio.sleep(self._random.choice((0, 0, 0, 0.03)))

    async def _wait(self, task: TaskHandle) -> None:
        snapshot = await task.wait()
        self._say("waited", task=task.id, status=snapshot.status.value)

    async def _run(  # noqa: ASYNC114,ASYNC128 - the runtime tells it
        self, item: Item, *, task_status: trio.TaskStatus[TaskHandle]
    ) -> None:
        snapshot = await self._runtime.run(
            item.work, owner="main", task_status=task_status
        )
        if not snapshot.background:
            status = snapshot.status.value
            self._say("returned", task=snapshot.id, status=status)

    async def _move(self, task: TaskHandle) -> None:
        await trio.sleep(self._random.uniform(0, 0.3))
        if self._runtime.background(task):
            if self._waits:
                await self._runtime.synced()
            self._say("moved", task=task.id)

    async def tell_events(self) -> None:
        """Tell the starts and ends of tasks as events tell them."""
        async for event in self._runtime.events:
            if isinstance(event, TaskStarted):
                self._say("started", task=event.task_id, type=event.task_type)
            elif isinstance(event, TaskEnded):
                self._say("ended", task=event.task_id, status=event.status)

    async def read(self) -> None:
        """Take notifications, and acknowledge some of them."""
        async for note in self._runtime.notifications:
            self.see(note)
            await trio.sleep(self._random.choice((0, 0, 0.02)))
            if self._random.random() < 0.6:
                await self.ack(note)

    def see(self, note: Notification) -> None:
        """Tell what was taken."""
        self._say(
            "seen",
            note=note.id,
            task=note.task_id,
            owner=note.owner,
            kind=note.kind,
            status=note.status.value,
            xml=note.xml,
        )

    async def ack(self, note: Notification) -> None:
        """Acknowledge it, and tell before and after."""
        self._say("acking", note=note.id)
        note.ack()
        if self._waits:
            await self._runtime.synced()
        self._say("acked", note=note.id)

    async def read_all(self) -> None:
        """Take and acknowledge all that is there."""
        for note in self._runtime.notifications.drain():
            self.see(note)
            await self.ack(note)


def _known(snapshot: TaskSnapshot) -> dict[str, object]:
    return {
        "task": snapshot.id,
        "type": snapshot.type,
        "status": snapshot.status.value,
        "ended_by": snapshot.ended_by,
    }


def _say_there(say: Say, what: str, runtime: Runtime) -> None:
    say(
        what,
        tasks=[_known(it) for it in runtime.tasks()],
        unfinished=[it.agent_id for it in runtime.unfinished_agents()],
    )


async def live(
    directory: Path,
    say: Say,
    *,
    part: Literal["first", "second", "last", "look"],
    seed: str,
    mode: Mode,
    blow: Blow | None,
    token: str,
    resumes: bool,
) -> None:
    """Be a program. ``first`` starts the 40 tasks; ``second`` recovers and reads;
    ``last`` also goes on with agents, acknowledges all and ends; ``look`` only says
    what there is."""
    os.environ[VARIABLE] = token
    # There is no option for what nobody needs but a test.
    writer = importlib.import_module("supervisor._tasks.journal.writer")
    slow = -1.0 if mode == "threaded" else math.inf
    for name, value in {"_SMALL": _SMALL, "_GROWN": _GROWN, "_SLOW": slow}.items():
        setattr(writer, name, value)
    random = Random(f"{seed}/{part}")
    env = real_env()
    files = StruckFiles(env.files, blow, say)
    script = read_script(SCRIPT, "script.json")
    policy = AgentPolicy(run=script.run, permissions=Permissions(mode="bypass"))
    say("opening")
    async with open_runtime(
        directory,
        env=attrs.evolve(env, files=cast("Files", files)),
        limits=Limits(shells=26, agents=8),
        agents=policy,
        durable=mode == "durable",
    ) as runtime:
        _RUNTIMES.append(runtime)
        _say_there(say, "opened", runtime)
        host = Host(runtime, say, random, waits=mode != "inline")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.tell_events)
            if part in ("first", "second"):
                nursery.start_soon(host.read)
            if part == "first":
                await host.run_tasks(items(random, token, say))
                say("idle", appends=files.appends, replaces=files.replaces)
                await trio.sleep_forever()
            elif part != "look":
                await host.run_tasks(_new_items(random))
                if part == "second":
                    say("idle")
                    await trio.sleep_forever()
                if resumes:
                    await _resume_all(runtime, say)
            await host.read_all()
            _say_there(say, "there", runtime)
            nursery.cancel_scope.cancel()
    await host.read_all()
    say("left")


def _new_items(random: Random) -> list[Item]:
    found: list[Item] = []
    for number in range(_NEW_TASKS):
        count = random.randint(1, 3)
        work = Shell(numbered(f"new{number}", count, 0.01, 0))
        # In the foreground, so that the program goes on when it has ended.
        way: Literal["run", "launch"] = "launch" if number == 0 else "run"
        found.append(Item(kind="shell well", work=work, lines=count, way=way))
    return found


async def _resume_all(runtime: Runtime, say: Say) -> None:
    """Go on with the agents that were left, and wait for their ends."""
    left = {it.agent_id: it.owner for it in runtime.unfinished_agents()}
    left.update(
        (it.id, it.owner) for it in runtime.tasks() if it.status.value == "paused"
    )
    waits: list[Callable[[], Awaitable[object]]] = []
    for agent_id, owner in left.items():
        if owner in left:
            continue
        try:
            task = await runtime.resume(agent_id)
        except ResumeRefused as error:
            say("refused", task=agent_id, why=str(error))
            continue
        say("resumed", task=agent_id)
        waits.append(task.wait)
    with trio.move_on_after(_SETTLED):
        async with trio.open_nursery() as nursery:
            for wait in waits:
                nursery.start_soon(wait)
