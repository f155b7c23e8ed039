"""A long agent: it plans, lets a fork of itself look aside, and goes on from a summary
when its conversation is too long for its model.

What the model says is written down here, so no key is needed; all else is real.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import trio

from actors.agent import (
    Agent,
    AgentTool,
    AssistantMessage,
    CompactBoundary,
    Message,
    TodoList,
    TokensUsed,
    ToolUse,
    UserMessage,
)
from actors.models import loop
from supervisor.agents import AgentPolicy
from supervisor.permissions import Permissions
from supervisor.runtime import TaskHandle, open_runtime


def plan(first: str, second: str) -> tuple[str, dict[str, Any]]:
    steps = [("measure", first), ("report", second)]
    todos = [{"content": text, "status": status} for text, status in steps]
    return "TodoWrite", {"todos": todos}


FORK = {"description": "looks aside", "prompt": "What was measured?", "fork": True}

TURNS: list[Any] = [
    [plan("in_progress", "pending")],
    [("Bash", {"command": "echo 42 degrees"})],
    [("Agent", FORK)],
    # An answer while a step is open: it is reminded of the plan.
    "I have measured.",
    [plan("completed", "completed")],
    "It had 42 degrees.",
]


class Model:
    """Takes the turns one after the other, and says that each costs 150 tokens."""

    context_tokens = 1_000

    def __init__(self) -> None:
        self.turns = list(TURNS)

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[AgentTool] = (),
        system: str | None = None,
    ) -> AsyncGenerator[TokensUsed | AssistantMessage]:
        await trio.lowlevel.checkpoint()
        last = messages[-1]
        if isinstance(last, UserMessage) and "summary" in last.text:
            yield AssistantMessage("The thermometer had 42 degrees.")
        elif last == UserMessage("What was measured?"):
            # The fork, which has seen all of it.
            yield AssistantMessage(f"42 degrees, as {len(messages)} messages say.")
        else:
            turn = self.turns.pop(0)
            used = 150 * (len(TURNS) - len(self.turns))
            yield TokensUsed(input_tokens=used + 100)
            if isinstance(turn, str):
                yield AssistantMessage(turn)
            else:
                uses = tuple(ToolUse(f"{used}", name, input) for name, input in turn)
                yield AssistantMessage("", uses)


async def listen(task: TaskHandle) -> None:
    async for event in task.events():
        if isinstance(event, TodoList):
            print("plan:", {item.text: item.status for item in event.items})
        elif isinstance(event, CompactBoundary):
            print(
                f"goes on from a summary, with {len(event.kept)} messages as they were"
            )
        elif isinstance(event, UserMessage) and event.origin == "tools":
            print("tool:", event.tool_answers[0].text.splitlines()[-1])
        elif isinstance(event, UserMessage) and event.origin == "reminder":
            print("is reminded of its plan")
        elif isinstance(event, AssistantMessage) and event.text:
            print("says:", event.text)


async def main(directory: str) -> None:
    run = loop(Model())
    policy = AgentPolicy(run=run, permissions=Permissions(mode="bypass"))
    async with open_runtime(directory, agents=policy) as runtime:
        task = await runtime.launch(Agent(run, "How warm is it?"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen, task)
            done = await task.wait()
        print("answer:", done.result)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        trio.run(main, directory)
