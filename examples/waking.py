"""Wake a model: a user types, tasks end, and a model answers both, one at a time.

The host has three parts. What the user types is a turn that the host begins. What
has ended in the background comes as a wake, between the turns. And a long turn looks
now and then at what has ended meanwhile. The schedule needs the extra ``agents``:
pip install '.[agents]' in the source.
"""

from __future__ import annotations

import tempfile

import trio

from actors.shell import Shell
from supervisor.runtime import Runtime, Wakes, as_reminder, open_runtime

OWNER = "main"


class Model:
    """Stand in for a model: it answers the last message of a conversation."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.conversation: list[str] = []

    async def answer(self, message: str) -> str:
        self.conversation.append(message)
        await trio.sleep(0.1)
        if message.startswith("<system-reminder>"):
            ends = message.count("<task-notification>")
            prompts = message.count("<scheduled-prompt>")
            reply = f"I hear of {ends} end(s) and {prompts} scheduled prompt(s)."
        elif message.startswith("start "):
            await self.runtime.launch(
                Shell(message.removeprefix("start ")), owner=OWNER
            )
            reply = "It runs in the background."
        else:
            reply = "Hello."
        self.conversation.append(reply)
        return reply


async def user(runtime: Runtime, model: Model) -> None:
    """Type this and that, and wait for each answer."""
    for line in ("hello", "start sleep 0.3; echo one", "start sleep 0.3; echo two"):
        async with runtime.turn(OWNER) as turn:
            print(f"user:  {line}")
            print(f"model: {await model.answer(line)}")
            # In the middle of a turn: what has ended since it began.
            if notes := turn.take():
                print(f"model: {await model.answer(as_reminder(notes))}")
            turn.progressed()
        await trio.sleep(0.05)


async def wake_up(wakes: Wakes, model: Model) -> None:
    """Be told, whenever nobody else is talking to the model."""
    async for wake in wakes:
        async with wake as turn:
            for line in wake.display:
                print(f"woken: {line}")
            reply = await model.answer(wake.text)
            print(f"model: {reply}")
            # An empty answer is none: then the same is told again, once.
            if reply:
                turn.progressed()


async def main(directory: str) -> None:
    async with trio.open_nursery() as nursery:
        async with open_runtime(directory) as runtime:
            model = Model(runtime)
            wakes = runtime.wakes(OWNER)
            # It ends when the runtime begins to close: nobody needs to be woken for
            # that. With after_end=True it would go on until all has been told.
            nursery.start_soon(wake_up, wakes, model)
            watch = await runtime.schedule("* * * * * *", "Is all well?", owner=OWNER)
            await user(runtime, model)
            await runtime.wait_idle()
            await trio.sleep(1.2)
            await watch.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        trio.run(main, directory)
