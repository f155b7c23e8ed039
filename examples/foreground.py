"""An agent in the foreground, which Ctrl+B moves to the background.

A host waits for what it runs in the foreground. Moved, it is the same run, and its
end is told by a notification. Without a terminal nobody can press a key; then the
host moves the agent by itself.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager

import trio

from actors import TaskStatus
from actors.agent import Agent, AgentContext, AgentEvent, FinalResult, Note
from supervisor.runtime import Runtime, open_runtime

CTRL_B = b"\x02"


@contextmanager
def keys_at_once(fd: int) -> Generator[None]:
    """Let a terminal give each key when it is pressed, and not echo it. Ctrl+C
    stays what it is, and the terminal is afterwards as it was."""
    import termios
    import tty

    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)


async def move_on_ctrl_b(runtime: Runtime, fd: int) -> None:
    """Move all that is in the foreground whenever Ctrl+B is pressed, until
    cancelled or the terminal is gone."""
    with keys_at_once(fd):
        print("Ctrl+B moves it to the background.", flush=True)
        while True:
            await trio.lowlevel.wait_readable(fd)
            keys = os.read(fd, 1024)
            if not keys:
                return
            if CTRL_B in keys:
                move(runtime)


def move(runtime: Runtime) -> None:
    for task_id in runtime.background_all():
        print(f"{task_id} goes on in the background", flush=True)


async def count(context: AgentContext) -> AsyncIterator[AgentEvent]:
    for number in range(1, 6):
        await trio.sleep(0.4)
        yield Note(f"at {number}")
    yield FinalResult("counted to 5")


async def main(directory: str) -> None:
    async with open_runtime(directory) as runtime, trio.open_nursery() as nursery:
        if sys.platform != "win32" and sys.stdin.isatty():
            nursery.start_soon(move_on_ctrl_b, runtime, sys.stdin.fileno())
        else:
            nursery.start_soon(move_soon, runtime)
        async with runtime.turn():
            task = await runtime.run(Agent(count, "Count to 5."))
        if task.status is TaskStatus.COMPLETED:
            print(f"in the foreground: {task.result}")
        elif not task.status.is_terminal:
            print("The host is free for other things.", flush=True)
            async for note in runtime.notifications:
                print(f"in the background: {runtime.get(note.task_id).result}")
                note.ack()
                break
        nursery.cancel_scope.cancel()


async def move_soon(runtime: Runtime) -> None:
    await trio.sleep(0.25)
    move(runtime)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        try:
            trio.run(main, directory)
        except* KeyboardInterrupt:
            print("interrupted")
