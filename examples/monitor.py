"""Watch a command: a parent is told the lines that matter, while the command runs.

The first command is begun with its monitor. The second runs already, and goes on when
its monitor is stopped.
"""

from __future__ import annotations

import tempfile

import trio

from actors.shell import Shell
from supervisor.runtime import Wakes, open_runtime

BUILD = (
    "for n in 1 2 3; do echo compile $n; sleep 0.4; done; echo ERROR: no memory; exit 1"
)
SERVER = "n=0; while n=$((n + 1)); do echo request $n; sleep 0.1; done"


async def listen(wakes: Wakes) -> None:
    """Stand in for a model: read what it is told, each time that it is woken."""
    async for wake in wakes:
        async with wake as turn:
            for line in wake.display:
                print(f"woken: {line}")
            # It has made something of it. Ten notes without this end a monitor.
            turn.progressed()


async def main(directory: str) -> None:
    async with trio.open_nursery() as nursery:
        async with open_runtime(directory) as runtime:
            wakes = runtime.wakes("main")
            nursery.start_soon(listen, wakes)
            # All that it prints. With "ERROR" as the pattern, only the lines with that.
            await runtime.monitor(Shell(BUILD), owner="main", description="the build")
            await runtime.wait_idle()

            server = await runtime.launch(
                Shell(SERVER), owner="main", description="the server"
            )
            monitor = await runtime.monitor(server, "request 3")
            await server.wait_output("request 5")
            await monitor.stop()
            print(f"the monitor: {monitor.ended}; the server: {server.status.value}")
            await server.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        trio.run(main, directory)
