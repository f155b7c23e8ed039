"""A cache that loads twice, under one schedule of many.

    trio-supervisor sim explore examples/race.py:program
    trio-supervisor sim explore examples/race.py:mended

Between the look and the load there is an await. Who asks later comes too late to see
that nothing is there, almost always: a test would pass for years.
"""

from __future__ import annotations

from functools import partial

import trio

from supervisor.simulation import Sim, explore


class Cache:
    """A value that is loaded when it is asked for first."""

    def __init__(self, *, mended: bool) -> None:
        self.loads = 0
        self.value: str | None = None
        self.lock = trio.Lock() if mended else None

    async def get(self) -> str:
        if self.lock is None:
            return await self.look()
        async with self.lock:
            return await self.look()

    async def look(self) -> str:
        if self.value is None:
            self.loads += 1
            await trio.lowlevel.checkpoint()  # Here it is read from somewhere.
            self.value = "loaded"
        return self.value


async def asks(cache: Cache, later: int) -> None:
    for _ in range(later):
        await trio.lowlevel.checkpoint()
    await cache.get()


async def race(sim: Sim, *, mended: bool) -> None:
    cache = Cache(mended=mended)
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(asks, cache, number)
    assert cache.loads == 1, f"it was loaded {cache.loads} times"


program = partial(race, mended=False)
mended = partial(race, mended=True)


def main() -> None:
    print(explore(program, seeds=100, check=False))
    print(explore(mended, seeds=100))


if __name__ == "__main__":
    main()
