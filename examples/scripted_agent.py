"""Agents without a key: what their models say is written down; everything else is real.

The script is JSON here, so nothing needs to be installed. In a file of its own it can
be played with ``trio-supervisor agent SCRIPT``; see ``examples/agent.yaml``.
"""

from __future__ import annotations

import tempfile

import trio

from actors.agent import Agent, AssistantMessage, ToolCompleted
from actors.models.scripted import read_script
from supervisor.agents import AgentPolicy
from supervisor.definitions import AgentDefinition
from supervisor.permissions import Permissions
from supervisor.runtime import TaskHandle, open_runtime

SCRIPT = """
{"agents": {
  "lead": {"prompt": "Look.", "turns": [
    {"text": "I count the files, and let a reader read one.",
     "tools": [
       {"Bash": {"command": "printf '3 files'"}},
       {"Agent": {"description": "reads", "prompt": "Read it.",
                  "subagent_type": "reader"}}]},
    {"text": "I have it all:\\n{answer}"}]},
  "reader": {"turns": [
    {"think": 0.1, "text": "It is a poem."}]}}}
"""


async def listen(task: TaskHandle) -> None:
    async for event in task.events():
        if isinstance(event, AssistantMessage):
            print(f"it says: {event.text.splitlines()[0]}")
        elif isinstance(event, ToolCompleted):
            print(f"{event.name}: {'failed' if event.is_error else 'done'}")


async def main(directory: str) -> None:
    script = read_script(SCRIPT, "script.json")
    reader = AgentDefinition(
        name="reader",
        description="Reads one file.",
        prompt="You read.",
        model=script.agents["reader"].model,
    )
    policy = AgentPolicy(
        run=script.run,
        definitions={"reader": reader},
        permissions=Permissions(mode="bypass"),
    )
    async with open_runtime(directory, agents=policy) as runtime:
        lead = script.agents["lead"]
        agent = Agent(script.run, lead.prompt or "", model=lead.model)
        task = await runtime.launch(agent)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen, task)
            done = await task.wait()
        print(f"{done.status.value}: {done.result}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        trio.run(main, directory)
