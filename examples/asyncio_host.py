"""Use the runtime in a program that stays with asyncio, by trio's guest mode.

asyncio runs the program, and trio runs as its guest in the same thread. Neither may
call what belongs to the other: trio gets orders through its token, and gives each
answer to a future of asyncio. (With anyio there is nothing to do but to choose
trio: ``anyio.run(main, backend="trio")``.)
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeAlias

import trio
from outcome import Error, Outcome

from actors.shell import Shell
from supervisor.runtime import Runtime, TaskSnapshot, open_runtime

Answer: TypeAlias = "asyncio.Future[TaskSnapshot]"


class Tasks:
    """What asyncio sees of the runtime."""

    def __init__(
        self,
        token: trio.lowlevel.TrioToken,
        orders: trio.MemorySendChannel[tuple[Shell, Answer]],
    ) -> None:
        self._token = token
        self._orders = orders

    def close(self, scope: trio.CancelScope) -> None:
        # In a step of trio's: asyncio may call nothing of it but the token.
        self._token.run_sync_soon(scope.cancel)

    async def run(self, shell: Shell) -> TaskSnapshot:
        """Run a command in the background and wait for its end."""
        answer: Answer = asyncio.get_running_loop().create_future()
        self._token.run_sync_soon(self._orders.send_nowait, (shell, answer))
        return await answer


@asynccontextmanager
async def open_tasks(directory: str) -> AsyncGenerator[Tasks]:
    """Run trio as a guest of asyncio, with a runtime in it, until the block ends."""
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[Tasks] = loop.create_future()
    ended: asyncio.Future[None] = loop.create_future()
    scope = trio.CancelScope()

    async def main() -> None:
        with scope:
            async with (
                open_runtime(directory) as runtime,
                trio.open_nursery() as nursery,
            ):
                send, orders = trio.open_memory_channel[tuple[Shell, Answer]](1_000)
                opened.set_result(Tasks(trio.lowlevel.current_trio_token(), send))
                async for shell, answer in orders:
                    nursery.start_soon(take, runtime, shell, answer)

    def done(outcome: Outcome[None]) -> None:
        if isinstance(outcome, Error):
            ended.set_exception(outcome.error)
            opened.cancel()
        else:
            ended.set_result(None)

    trio.lowlevel.start_guest_run(
        main,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        done_callback=done,
        host_uses_signal_set_wakeup_fd=True,
    )
    try:
        tasks = await opened
        try:
            yield tasks
        finally:
            tasks.close(scope)
    finally:
        # It ends when all of its tasks have.
        await asyncio.shield(ended)  # noqa: ASYNC102 - asyncio's


async def take(runtime: Runtime, shell: Shell, answer: Answer) -> None:
    task = await runtime.launch(shell)
    ended = await task.wait()
    if not answer.done():  # Else nobody waits any more.
        answer.set_result(ended)


async def main(directory: str) -> None:
    async with open_tasks(directory) as tasks:
        ends = await asyncio.gather(
            tasks.run(Shell("echo from trio")), tasks.run(Shell("exit 3"))
        )
    for end in ends:
        print(f"{end.description}: {end.status.value} {end.exit_code}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))
