"""The agents of the demo: their script, and what their host does with them."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import trio

from actors.agent import Agent, AgentContext
from actors.models.scripted import Script, read_script

from ..agents import AgentPolicy
from ..definitions import AgentDefinition
from ..permissions import Permissions
from ..runtime import TaskHandle
from ._agent_claims import SAID, AgentFacts
from ._claims import Look
from ._listening import Listening


def make_script(directory: Path) -> Script:
    """Return what the models of the agents say and call."""
    here = shlex.quote(str(directory))
    lead, helper, watcher = SAID["lead"], SAID["helper"], SAID["watcher"]

    def bash(command: str, description: str, *, background: bool) -> dict[str, Any]:
        # The path is how the process is known from outside.
        arguments: dict[str, Any] = {
            "command": f": {here}; {command}",
            "description": description,
        }
        return {"Bash": arguments | ({"run_in_background": True} if background else {})}

    def until(name: str) -> str:
        return f"while [ ! -e {here}/{name} ]; do sleep 0.05; done"

    start_helper = {
        "description": "helper",
        "prompt": "Compute it.",
        "subagent_type": "helper",
        "run_in_background": True,
    }
    log = f"echo $$ >{here}/new-log; mv {here}/new-log {here}/log; while :; do sleep 1; done"
    asked = "How far are you?", "Anything new?"
    agents: dict[str, list[dict[str, Any]]] = {
        "lead": [
            {
                "text": lead[0],
                "tools": [
                    bash(
                        f"{until('asked')}; echo 5 passed", "the tests", background=True
                    ),
                    {"Agent": start_helper},
                ],
            },
            {"wait": "message", "text": lead[1]},
            {"wait": "end", "text": lead[2].replace(asked[0], "{message}")},
            {"wait": "end", "text": lead[3]},
        ],
        "helper": [
            {
                "text": helper[0],
                "tools": [
                    bash(
                        f"{until('heard')}; echo $((6 * 7))",
                        "the sum",
                        background=False,
                    )
                ],
            },
            {"text": helper[1]},
        ],
        "watcher": [
            {"tools": [bash(log, "the log", background=True)]},
            {"tools": [bash(until("log"), "a look", background=False)]},
            {"text": watcher[0], "tools": [{"TaskList": {}}]},
            {"wait": "message", "text": watcher[1].replace(asked[1], "{message}")},
        ],
    }
    parts = {
        name: {"prompt": "Do as your script says.", "turns": turns}
        for name, turns in agents.items()
    }
    return read_script(json.dumps({"agents": parts, "host": []}), "the demo.json")


class AgentScenario:
    """What the demo does with agents, and how it measures what comes of it."""

    def __init__(self, directory: Path, facts: AgentFacts) -> None:
        self.facts = facts
        self._directory = directory
        self._script = make_script(directory)
        self.listening = Listening(self._script.run)
        """To be given the runtime, and its events."""

    @property
    def policy(self) -> AgentPolicy:
        """What holds for the agents."""
        helper = AgentDefinition(
            name="helper",
            description="Computes.",
            prompt="You compute.",
            model=self._script.agents["helper"].model,
        )
        return AgentPolicy(
            run=self.listening.run,
            definitions={"helper": helper},
            permissions=Permissions(mode="bypass"),
        )

    async def play(self, look: Callable[[], Awaitable[Look | None]]) -> None:
        """Do everything, and return when the agents have ended."""
        facts, runtime = self.facts, self.listening.runtime
        async with trio.open_nursery() as turn:
            turn.start_soon(self._take_turn)
            lead = await self._wait_begun()
            await self.listening.wait_said(lead, SAID["lead"][0])
            facts.moves = runtime.background(lead), runtime.background(lead)
        await runtime.send(lead, "How far are you?")
        # Each end comes when all before it was heard, on a slow machine, too.
        for number, file in ((1, "asked"), (2, "heard")):
            await self.listening.wait_said(lead, SAID["lead"][number])
            (self._directory / file).touch()
        await self._watch(look)
        facts.lead = await lead.wait()

    async def _take_turn(self) -> None:
        runtime = self.listening.runtime
        async with runtime.turn("main"):
            self.facts.at_move = await runtime.run(
                self._agent("lead"), description="lead", owner="main"
            )

    async def _wait_begun(self) -> TaskHandle:
        ids: list[str] = []
        begun = trio.Event()

        def note(context: AgentContext) -> None:
            ids.append(context.agent_id)
            begun.set()

        self.listening.begun = note
        await begun.wait()
        return self.listening.runtime.handle(ids[0])

    async def _watch(self, look: Callable[[], Awaitable[Look | None]]) -> None:
        """Start an agent, stop it at its work, and resume it."""
        facts, runtime = self.facts, self.listening.runtime
        watcher = await runtime.launch(
            self._agent("watcher"), description="watcher", owner="main"
        )
        await self.listening.wait_said(watcher, SAID["watcher"][0])
        facts.command = int((self._directory / "log").read_text())
        facts.watched = _seen(await look())
        result = await runtime.stop(watcher.id, "the demo wants it to end")
        facts.stopped, facts.survivors = result.stopped, result.survivors
        facts.after_stop = _seen(await look())
        facts.killed = watcher.snapshot()
        resumed = await runtime.resume(watcher.id, "Anything new?")
        facts.resumed = await resumed.wait()

    def collect(self, output: Path) -> None:
        """Read the transcripts."""
        facts = self.facts
        ids = facts.ids | {"helper": facts.own.get("helper", "")}
        for name in SAID.keys() & ids.keys():
            with contextlib.suppress(FileNotFoundError):
                lines = (output / f"agent-{ids[name]}.jsonl").read_text().splitlines()
                facts.written[name] = [*_texts(map(json.loads, lines))]

    def _agent(self, name: str) -> Agent:
        script = self._script.agents[name]
        return Agent(
            self.listening.run,
            script.prompt or "",
            description=name,
            model=script.model,
        )


def _seen(look: Look | None) -> frozenset[int] | None:
    return None if look is None else frozenset(look.marked)


def _texts(records: Iterable[Any]) -> Iterator[str]:
    """Yield what was said, of the records of a transcript."""
    for record in records:
        if record["type"] == "assistant":
            for block in record["message"]["content"]:
                if block["type"] == "text":
                    yield block["text"]
