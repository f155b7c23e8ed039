"""Let a model run commands and agents: the tools, the reminder, and the
notifications.

The "model" here is a script: it says what a model would ask for in each turn. So is
the model of its agents.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Generator
from typing import Any, TypeAlias

import trio

from actors.agent import (
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    ToolUse,
)
from supervisor.agents import AgentPolicy
from supervisor.attachments import reminder
from supervisor.definitions import parse_definition
from supervisor.permissions import Permissions
from supervisor.runtime import Runtime, open_runtime

OWNER = "main"

COUNTER = parse_definition("""\
---
name: counter
description: Counts the files of a directory
tools: Bash
---
You count files.
""")

Calls: TypeAlias = list[tuple[str, dict[str, Any]]]
Answers: TypeAlias = list[dict[str, Any]]


def model() -> Generator[Calls, Answers, None]:
    """Yield the tool calls of one turn after the other; take their answers."""
    greet = {"command": "read name; echo hello $name", "description": "greet somebody"}
    answers = yield [
        ("Bash", {"command": "echo building; exit 2", "timeout": 5_000}),
        ("Bash", {**greet, "run_in_background": True, "stdin": True}),
        ("Bash", {"command": "sleep 60", "timeout": 100}),
    ]
    greeter, sleeper = (answer["backgroundTaskId"] for answer in answers[1:])
    yield [
        ("TaskWrite", {"task_id": greeter, "text": "world\n"}),
        ("TaskStop", {"task_id": sleeper}),
    ]
    count = {"subagent_type": "counter", "description": "count", "prompt": "in /etc"}
    answers = yield [("Agent", count), ("Agent", {**count, "run_in_background": True})]
    agent = answers[0]["agentId"]
    yield [("SendMessage", {"to": agent, "message": "And in /usr?"})]
    yield [("TaskOutput", {"task_id": agent})]
    yield [("TaskOutput", {"task_id": greeter, "timeout": "soon"})]
    yield [("TaskOutput", {"task_id": greeter}), ("TaskList", {})]
    yield []


async def count_files(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """Do what the model of an agent would ask for."""
    last = context.history[-1]
    directory = "/usr" if "/usr" in getattr(last, "text", "") else "/etc"
    uses = (ToolUse("use_1", "Bash", {"command": f"ls {directory} | wc -l"}),)
    yield AssistantMessage(f"I will look into {directory}.", uses)
    answers = await context.use_tools(uses)
    yield answers
    count = answers.tool_answers[0].text.split()[-1]
    yield FinalResult(f"There are {count} files in {directory}.")


async def turn(runtime: Runtime, calls: Calls) -> Answers:
    """Do what the model asks for, and tell it what came of it."""
    tools = {tool.name: tool for tool in runtime.tools_for(OWNER)}
    answers: Answers = []
    async with runtime.turn(OWNER):
        for number, (name, arguments) in enumerate(calls):
            result = await tools[name].call(arguments, tool_use_id=f"call_{number}")
            print(f"{name}{' (error)' if result.is_error else ''}: {result.text}\n")
            answers.append(result.data)
    return answers


async def main(directory: str) -> None:
    agents = AgentPolicy(
        run=count_files,
        definitions={COUNTER.name: COUNTER},
        permissions=Permissions(mode="bypass"),
    )
    async with open_runtime(directory, agents=agents) as runtime:
        script = model()
        calls = next(script)
        while calls:
            answers = await turn(runtime, calls)
            for note in runtime.notifications_for(OWNER).drain():
                print(f"The model is told: {note.display}\n")
                note.ack()
            if text := reminder(runtime, OWNER):
                print(f"{text}\n")
            calls = script.send(answers)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        trio.run(main, directory)
