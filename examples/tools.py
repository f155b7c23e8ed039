"""Let a model run commands: the tools, the reminder, and the notifications.

The "model" here is a script of what it would ask for in each turn.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from typing import Any, TypeAlias

import trio

from supervisor.attachments import reminder
from supervisor.runtime import Runtime, open_runtime

OWNER = "main"

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
    yield [("TaskOutput", {"task_id": greeter, "timeout": "soon"})]
    yield [("TaskOutput", {"task_id": greeter}), ("TaskList", {})]
    yield []


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
    async with open_runtime(directory) as runtime:
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
