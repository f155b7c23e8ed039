"""Find what a cancel breaks: a pool that loses a place, and the same pool mended.

    python examples/simulation.py

The program is an ordinary trio program, and what must hold is an ordinary block of it:
afterwards the pool still works. The simulator runs it once for each moment at which a
request can be cancelled, in virtual time. Seven minutes of waiting take a second.
"""

from __future__ import annotations

from collections import deque
from functools import partial

import trio

from supervisor.simulation import Sim, cancel_everywhere, simulate


class Pool:
    """Places that are handed from one user to the next, first in first out."""

    def __init__(self, size: int, *, mended: bool) -> None:
        self.free = size
        self.waiting: deque[trio.Event] = deque()
        self.mended = mended

    async def take(self) -> None:
        if self.free:
            self.free -= 1
            return
        turn = trio.Event()
        self.waiting.append(turn)
        try:
            await turn.wait()
        except trio.Cancelled:
            if turn in self.waiting:
                self.waiting.remove(turn)
            elif self.mended:  # It had the place already when the cancel came.
                self.give_back()
            raise

    def give_back(self) -> None:
        if self.waiting:
            self.waiting.popleft().set()
        else:
            self.free += 1


async def use(pool: Pool) -> None:
    await pool.take()
    try:
        await trio.sleep(60)
    finally:
        pool.give_back()


async def program(sim: Sim, *, mended: bool) -> None:
    pool = Pool(1, mended=mended)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(use, pool)
        nursery.start_soon(sim.target(use), pool)  # whom to cancel
        nursery.start_soon(use, pool)
    with sim.within(120):  # virtual seconds: it still works afterwards
        await use(pool)


def main() -> None:
    print(cancel_everywhere(partial(program, mended=True)))
    # Without `check=False` it raises, as a test wants it.
    report = cancel_everywhere(partial(program, mended=False), check=False)
    print(report)
    run = simulate(partial(program, mended=False), tape=report.rows[0].tape)
    print("once more:", str(run.error).partition("\n")[0])


if __name__ == "__main__":
    main()
