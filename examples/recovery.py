"""Kill a program and find its tasks again: the journal of the directory has them.

The first program runs three commands and an agent, and is killed with SIGKILL. The
second tells what became of them, lets the agent go on, and begins no deployment twice.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator

import trio
import trio.testing

from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    ToolUse,
    UserMessage,
)
from actors.shell import Shell
from supervisor.agents import AgentPolicy
from supervisor.runtime import open_runtime


async def reviewer(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """Stand in for a model. It has called a tool when its program is killed."""
    for message in context.history:
        if isinstance(message, UserMessage) and message.tool_answers:
            yield FinalResult(f"I know of my call: {message.tool_answers[0].text}")
            return
    yield AssistantMessage("I look.", (ToolUse("call-1", "Bash", {"command": "ls"}),))
    await trio.sleep_forever()


POLICY = AgentPolicy(run=reviewer)
DEPLOY = Shell("echo deployed; sleep 60")


async def first(directory: str) -> None:
    async with open_runtime(directory, agents=POLICY) as runtime:
        told = await runtime.launch(Shell("echo built"), description="build")
        await told.wait()
        (note,) = runtime.notifications.drain()
        note.ack()
        untold = await runtime.launch(Shell("echo tested"), description="test")
        await untold.wait()
        await runtime.launch(DEPLOY, description="deploy", key="deploy-42")
        await runtime.launch(Agent(reviewer, "Review it."), description="review")
        await trio.testing.wait_all_tasks_blocked(0.2)
        await runtime.transcripts.flush()
        os.kill(os.getpid(), signal.SIGKILL)


async def second(directory: str) -> None:
    async with open_runtime(directory, agents=POLICY) as runtime:
        for note in runtime.notifications.drain():
            print(f"told: {note.display}")
            note.ack()
        again = await runtime.launch(DEPLOY, key="deploy-42")
        print(f"the deployment, which was not begun again: {again.status.value}")
        for task in runtime.tasks():
            if task.status.value == "paused":
                done = await (await runtime.resume(task.id)).wait()
                print(f"the agent: {done.result}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        trio.run(first, sys.argv[1])
    logging.basicConfig(stream=sys.stdout, format="log: %(message)s")
    with tempfile.TemporaryDirectory() as here:
        subprocess.run([sys.executable, __file__, here], check=False)
        trio.run(second, here)
