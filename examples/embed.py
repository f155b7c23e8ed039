"""Embed the runtime: background tasks, a foreground one, a stop, the envelopes."""

from __future__ import annotations

import tempfile

import trio

from actors.shell import Shell
from supervisor.runtime import open_runtime


async def main(directory: str) -> None:
    async with open_runtime(directory) as runtime:
        build = await runtime.launch(
            Shell("echo compiling; sleep 0.2; echo done"),
            description="the build",
            owner="main",
            tool_use_id="toolu_01",
        )
        server = await runtime.launch(
            Shell("sleep 600"), description="a server", owner="main"
        )

        # A turn of the parent: its foreground command runs beside the others.
        async with runtime.turn("main"):
            listing = await runtime.run(Shell("echo hello; exit 3"), owner="main")
        print("foreground:", listing.status.value, "exit code", listing.exit_code)

        print("build:", (await build.wait()).result)
        stopped = await runtime.stop(server.id)
        print("server:", stopped.snapshot.status.value, "survivors:", stopped.survivors)

    # The ends of both background tasks, in order; readable after the block.
    for note in runtime.notifications_for("main").drain():
        print(note.xml)
        note.ack()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        trio.run(main, directory)
