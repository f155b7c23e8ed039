"""Write an agent of your own: any model loop that yields what happens.

This one asks a model that knows only a little script, uses a tool of the runtime,
and answers. Replace `model` by a call of your own model; `actors.models` has
loops for real ones.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence

import trio

from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    Message,
    ToolUse,
    UserMessage,
)
from actors.shell import Shell
from supervisor.runtime import open_runtime


async def model(conversation: Sequence[Message]) -> AssistantMessage:
    await trio.sleep(0.01)  # in place of what takes long
    last = conversation[-1]
    if isinstance(last, UserMessage) and last.tool_answers:
        return AssistantMessage(f"I found: {last.tool_answers[0].text}")
    return AssistantMessage("Let me look.", (ToolUse("call-1", "TaskList"),))


async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
    conversation = list(context.history)  # the prompt is its last message
    while True:
        reply = await model(conversation)
        yield reply
        conversation.append(reply)
        if reply.tool_uses:
            answers = await context.use_tools(reply.tool_uses)  # all at once
            yield answers
            conversation.append(answers)
        else:
            yield FinalResult(reply.text)  # back only if there is more to do
        conversation += context.inbox.take()  # what came meanwhile, in order


async def run_with_a_shell(context: AgentContext) -> AsyncIterator[AgentEvent]:
    shell = await context.run(Shell("echo made by the agent"))
    yield FinalResult(shell.result)


async def main(directory: str) -> None:
    async with open_runtime(directory) as runtime:
        for loop in (run, run_with_a_shell):
            task = await runtime.launch(Agent(loop, "What is there to do?"))
            done = await task.wait()
            print(f"{done.status.value}: {done.result}".strip())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        trio.run(main, directory)
