"""React to notifications: an agent that works in turns and hears of its tasks
between them."""

from __future__ import annotations

import tempfile

import trio

from actors import TaskStatus
from actors.shell import Shell
from supervisor.runtime import Notification, open_runtime


def think(note: Notification) -> str | None:
    """Stand in for the model: answer an envelope with the next command, if any."""
    print(f"-- the parent is told: {note.display}")
    if note.status is TaskStatus.FAILED:
        return "echo looking into it; exit 0"
    return None


async def main(directory: str) -> None:
    async with open_runtime(directory) as runtime:
        await runtime.launch(
            Shell("sleep 0.2; exit 1"), description="unit tests", owner="main"
        )
        await runtime.launch(
            Shell("sleep 0.1; echo ok"), description="lint", owner="main"
        )
        left = 3  # the two above, and the one that the failure leads to
        async for note in runtime.notifications_for("main"):
            async with runtime.turn("main"):
                command = think(note)
                note.ack()
                if command is not None:
                    await runtime.launch(
                        Shell(command), description="a closer look", owner="main"
                    )
            left -= 1
            if not left:
                break


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        trio.run(main, directory)
