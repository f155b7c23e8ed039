"""A slot that nobody gives back: it is taken before the ``try`` that would do so.

trio-supervisor sim cancel examples/tutorial/leaked_slot.py:program
trio-supervisor sim cancel examples/tutorial/leaked_slot.py:mended
"""

from __future__ import annotations

import trio

from supervisor.simulation import Sim


async def use(slots: trio.Semaphore) -> None:
    await slots.acquire()
    await trio.sleep(0.1)  # look at what there is to do
    try:
        await trio.sleep(1)
    finally:
        slots.release()


async def use_well(slots: trio.Semaphore) -> None:
    async with slots:
        await trio.sleep(0.1)
        await trio.sleep(1)


async def program(sim: Sim) -> None:
    slots = trio.Semaphore(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(use, slots)
        nursery.start_soon(sim.target(use), slots)
    with sim.within(10):
        await use(slots)


async def mended(sim: Sim) -> None:
    slots = trio.Semaphore(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(use_well, slots)
        nursery.start_soon(sim.target(use_well), slots)
    with sim.within(10):
        await use_well(slots)
