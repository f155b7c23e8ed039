"""What the demo does with its commands and agents, and how it measures what comes
of it. What these do themselves is in ``script.json``."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from actors.agent import Agent, AssistantMessage
from actors.models.scripted import Script, read_script
from actors.shell import Shell

from ...agents import AgentPolicy
from ...definitions import AgentDefinition
from ...permissions import Permissions
from ...runtime import (
    AgentSaid,
    Notifications,
    Runtime,
    TaskEnded,
    TaskHandle,
    TaskProgress,
    TaskStarted,
    open_runtime,
)
from ...tree import Subscription
from .._listening import Listening
from .._stopping import Stopping
from ._claims import ATTEMPTS, BACKOFF, FORGED, GRACE, LIMIT, READ, SAID, Facts
from ._looking import Observer, open_observer

# A process that has left its session, its parent, and its environment; it holds
# the output pipe and does not listen to SIGTERM.
_ORPHAN = """\
import os, signal, sys
if len(sys.argv) == 3:
    if os.fork(): os._exit(0)
    os.setsid()
    if os.fork(): os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.execve(sys.executable, [sys.executable, "-I", "-S", *sys.argv, "now"], {})
with open(sys.argv[1] + "/new", "w") as file: file.write(str(os.getpid()))
os.rename(sys.argv[1] + "/new", sys.argv[2])
signal.sigtimedwait([], 600) if hasattr(signal, "sigtimedwait") else signal.pause()
"""


def _read_parts(directory: Path) -> dict[str, Any]:
    """Return what is to be done, leaving its traces in ``directory``: by that path
    each process is known from outside."""
    text = READ.read_text(encoding="utf-8")
    paths = {"HERE": str(directory), "PYTHON": sys.executable, "READ": str(READ)}
    for name, path in paths.items():
        text = text.replace(f"@{name}@", json.dumps(shlex.quote(path))[1:-1])
    parts: dict[str, Any] = json.loads(text)
    return parts


def _as_script(agents: Mapping[str, Any]) -> Script:
    """Return what the models of the agents say and call."""
    asked = {
        name: {"prompt": "Do as your script says.", "turns": agent["turns"]}
        for name, agent in agents.items()
    }
    return read_script(json.dumps({"agents": asked, "host": []}), READ.name)


class Scenario:
    """What the demo does, and how it measures what comes of it."""

    def __init__(self, directory: Path, say: Callable[[str], Awaitable[None]]) -> None:
        self.facts = Facts(directory=directory)
        self.observer: Observer
        """There is one as soon as it plays."""
        self._directory = directory
        self._say = say
        parts = _read_parts(directory)
        self._commands: dict[str, dict[str, Any]] = parts["commands"]
        self._agents: dict[str, dict[str, Any]] = parts["agents"]
        self._script = _as_script(self._agents)
        self._listening = Listening()
        self._began = trio.current_time()
        # What the event stream has told of each part.
        self._talks: set[str] = set()
        self._ended: set[str] = set()
        self._news = trio.lowlevel.ParkingLot()

    async def play(self, stopping: Stopping) -> None:
        """Do everything, until it is asked to stop; in any case end it."""
        facts = self.facts
        (self._directory / "forged").write_bytes(FORGED.encode())
        (self._directory / "orphan.py").write_text(_ORPHAN)
        async with open_observer(self._directory) as self.observer:
            await self._say(
                f"Seven commands at once, with {self._directory} for their files:\n"
                f"{_listed(self._commands)}"
                "\nAnd two agents, whose models are a script and whose tools are real:\n"
                f"{_listed(self._agents)}"
            )
            facts.before = await self.observer.look()
            async with trio.open_nursery() as readers:
                # They read on until the runtime has ended.
                async with open_runtime(
                    self._directory / "output", agents=self._policy()
                ) as runtime:
                    stopping.runtime = self._listening.runtime = runtime
                    events, notes = runtime.events, runtime.notifications
                    readers.start_soon(self._follow, events.subscribe(agents=True))
                    readers.start_soon(self._be_the_parent, notes)
                    with stopping.work:
                        await self._play(runtime)
                        await self._say(
                            "\nLeaving the block ends what is left: the server.\n"
                        )
            facts.after = await self.observer.look()
        self.collect()

    def collect(self) -> None:
        """Read what is on the disk, and the clock."""
        facts, agents = self.facts, self.facts.agents
        for name, task_id in facts.ids.items():
            facts.files[name] = self._output_of(task_id)
        ids = agents.ids | {"helper": agents.own.get("helper", "")}
        for name in SAID.keys() & ids.keys():
            with contextlib.suppress(FileNotFoundError):
                file = self._directory / "output" / f"agent-{ids[name]}.jsonl"
                agents.written[name] = _texts(file.read_text())
        with contextlib.suppress(FileNotFoundError):
            lines = (self._directory / "attempts").read_text().splitlines()
            facts.attempts = [float(line) for line in lines]
        facts.took = trio.current_time() - self._began

    async def _play(self, runtime: Runtime) -> None:
        facts = self.facts
        tasks: dict[str, TaskHandle] = {}
        for name in self._commands:
            if name == "moved":
                continue
            flaky = name == "flaky"
            tasks[name] = await runtime.launch(
                **self._order(name),
                restart="transient" if flaky else "temporary",
                intensity=ATTEMPTS,
                period=LIMIT,
                backoff=BACKOFF if flaky else None,
            )
        async with trio.open_nursery() as turn:
            turn.start_soon(self._run_command, runtime)
            await self._wait_until(
                lambda: {"stubborn", "moved", "server"} <= self._talks | self._ended
            )
            facts.stubborn_pids = self._numbers("stubborn")
            facts.moved_pid = next(iter(self._numbers("moved")), None)
            facts.during = await self.observer.look()
            moved = facts.ids["moved"]
            facts.moves = runtime.background(moved), runtime.background(moved)
        facts.moved = await self.observer.look()
        (self._directory / "go").touch()

        before = trio.current_time()
        result = await runtime.stop(tasks["stubborn"].id, "the demo wants it to end")
        facts.stop_took = trio.current_time() - before
        facts.stopped = await self.observer.look()
        facts.survivors = result.survivors
        await self._play_agents(runtime)
        await self._wait_until(
            lambda: self._ended >= self._commands.keys() - {"server"}
        )

    # The commands

    async def _run_command(self, runtime: Runtime) -> None:
        async with runtime.turn("main"):
            self.facts.at_move = await runtime.run(**self._order("moved"))

    def _order(self, name: str) -> dict[str, Any]:
        mark = {"TRIO_SUPERVISOR_DEMO": str(self._directory)}
        return {
            "work": Shell(self._commands[name]["command"], env=mark, grace=GRACE),
            "description": name,
            "owner": "main",
            "tool_use_id": f"toolu_{name}",
        }

    def _output_of(self, task_id: str) -> bytes:
        return (self._directory / "output" / f"{task_id}.output").read_bytes()

    def _numbers(self, name: str) -> tuple[int, ...]:
        """Return the numbers that a command has printed: its processes."""
        words = self._output_of(self.facts.ids[name]).split()
        return tuple(int(word) for word in words if word.isdigit())

    # The agents

    def _policy(self) -> AgentPolicy:
        helper = AgentDefinition(
            name="helper",
            description="Computes.",
            prompt="You compute.",
            model=self._script.agents["helper"].model,
        )
        return AgentPolicy(
            run=self._script.run,
            definitions={"helper": helper},
            permissions=Permissions(mode="bypass"),
        )

    def _agent(self, name: str) -> Agent:
        script = self._script.agents[name]
        return Agent(
            self._script.run,
            script.prompt or "",
            description=name,
            model=script.model,
        )

    async def _play_agents(self, runtime: Runtime) -> None:
        """Do everything with them, and return when they have ended."""
        facts, said = self.facts.agents, SAID["lead"]
        async with trio.open_nursery() as turn:
            lead = await turn.start(self._run_agent, runtime)
            await self._listening.wait_said(lead, said[0])
            facts.moves = runtime.background(lead), runtime.background(lead)
        await runtime.send(lead, self._agents["lead"]["asked"])
        # Each end comes when all before it was heard, on a slow machine, too.
        for words, file in ((said[1], "asked"), (said[2], "heard")):
            await self._listening.wait_said(lead, words)
            (self._directory / file).touch()
        await self._stop_and_resume(runtime)
        facts.lead = await lead.wait()

    async def _run_agent(  # noqa: ASYNC114,ASYNC128
        self, runtime: Runtime, task_status: trio.TaskStatus[TaskHandle]
    ) -> None:
        async with runtime.turn("main"):
            self.facts.agents.at_move = await runtime.run(
                self._agent("lead"),
                description="lead",
                owner="main",
                task_status=task_status,
            )

    async def _stop_and_resume(self, runtime: Runtime) -> None:
        """Start an agent, stop it at its work, and resume it."""
        facts = self.facts.agents
        watcher = await runtime.launch(
            self._agent("watcher"), description="watcher", owner="main"
        )
        await self._listening.wait_said(watcher, SAID["watcher"][0])
        # Where no command can be started, the claims say so.
        with suppress(FileNotFoundError):
            facts.command = int((self._directory / "log").read_text())
        facts.watched = await self.observer.look()
        result = await runtime.stop(watcher.id, "the demo wants it to end")
        facts.stopped, facts.survivors = result.stopped, result.survivors
        facts.after_stop = await self.observer.look()
        facts.killed = watcher.snapshot()
        asked = self._agents["watcher"]["asked"]
        facts.resumed = await (await runtime.resume(watcher.id, asked)).wait()

    # The parent, and the history

    async def _be_the_parent(self, notifications: Notifications) -> None:
        async for note in notifications:
            self.facts.received.append(note.xml)
            after = trio.current_time() - self._began
            await self._say(
                f"\n{after:.1f} s: the parent receives {note.id}\n{note.xml}\n"
            )
            note.ack()

    async def _follow(self, events: Subscription) -> None:
        names: dict[str, str] = {}
        facts, agents = self.facts, self.facts.agents
        async for event in events:
            self._listening.hear(event)
            match event:
                case AgentSaid(task_id=id, event=AssistantMessage(text=text)) if text:
                    agents.said.setdefault(names[id], []).append(text)
                case TaskStarted(task_id=id, description=name, owner="main"):
                    names[id] = name
                    ids = facts.ids if name in self._commands else agents.ids
                    ids[name] = id
                case TaskStarted(task_id=id, description=name):
                    names[id] = name
                    agents.own[name] = id
                case TaskProgress(task_id=id):
                    self._talks.add(names[id])
                case TaskEnded(task_id=id):
                    agents.ended.append(id)
                    self._ended.add(names[id])
                    if id not in agents.own.values():
                        facts.ended.append(id)
                case _:
                    continue
            self._news.unpark_all()

    async def _wait_until(self, happened: Callable[[], bool]) -> None:
        while not happened():
            await self._news.park()


def _listed(parts: Mapping[str, Mapping[str, str]]) -> str:
    return "".join(
        f"  {name:<9} {part['what']}\n"
        for name, part in parts.items()
        if "what" in part
    )


def _texts(transcript: str) -> list[str]:
    """Return what was said, of a transcript."""
    return [
        block["text"]
        for record in map(json.loads, transcript.splitlines())
        if record["type"] == "assistant"
        for block in record["message"]["content"]
        if block["type"] == "text"
    ]
