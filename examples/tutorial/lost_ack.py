"""A message that was taken and never done: its worker was cancelled in between.

trio-supervisor sim cancel examples/tutorial/lost_ack.py:program
trio-supervisor sim cancel examples/tutorial/lost_ack.py:mended
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from supervisor.simulation import Sim


class Queue:
    """Messages that wait for a worker, and those that are done."""

    def __init__(self, count: int) -> None:
        self.send, self.receive = trio.open_memory_channel[int](count)
        self.done: list[int] = []
        for message in range(count):
            self.send.send_nowait(message)


async def work(queue: Queue) -> None:
    async for message in queue.receive:
        await trio.sleep(1)
        queue.done.append(message)


async def work_well(queue: Queue) -> None:
    async for message in queue.receive:
        try:
            await trio.sleep(1)
            queue.done.append(message)
        except BaseException:
            queue.send.send_nowait(message)  # Somebody else does it.
            raise


async def all_done(sim: Sim, work: Callable[[Queue], Awaitable[None]]) -> None:
    """One worker may be cancelled; another one comes later."""
    queue = Queue(3)
    for worker in (sim.target(work), work):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker, queue)
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
    assert sorted(queue.done) == [0, 1, 2], "a message is lost"


async def program(sim: Sim) -> None:
    await all_done(sim, work)


async def mended(sim: Sim) -> None:
    await all_done(sim, work_well)
