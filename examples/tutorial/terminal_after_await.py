"""An end that is never written down: something that may fail comes before it.

trio-supervisor sim raise examples/tutorial/terminal_after_await.py:program
trio-supervisor sim raise examples/tutorial/terminal_after_await.py:mended
"""

from __future__ import annotations

import trio

from supervisor.simulation import Sim


async def run(log: list[str]) -> None:
    log.append("began")
    try:
        await trio.sleep(1)
    finally:
        with trio.move_on_after(5, shield=True):
            await trio.sleep(0.1)  # tell others
        log.append("ended")


async def run_well(log: list[str]) -> None:
    log.append("began")
    try:
        await trio.sleep(1)
    finally:
        log.append("ended")  # At once: there is no way in between.
        with trio.move_on_after(5, shield=True):
            await trio.sleep(0.1)


async def program(sim: Sim) -> None:
    log: list[str] = []
    try:
        await sim.target(run)(log)
    finally:
        assert log == ["began", "ended"], f"what began has no end: {log}"


async def mended(sim: Sim) -> None:
    log: list[str] = []
    try:
        await sim.target(run_well)(log)
    finally:
        assert log == ["began", "ended"], f"what began has no end: {log}"
