"""A file that is told as saved and is not: the disk is full when it is closed.

trio-supervisor sim fault examples/tutorial/full_disk.py:program
trio-supervisor sim fault examples/tutorial/full_disk.py:mended

What was written may still be on its way to the disk, so a close is a write, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from actors.env import Files
from supervisor.simulation import Sim

Save = Callable[[Files, Path, list[Path]], Awaitable[None]]


async def save(files: Files, path: Path, saved: list[Path]) -> None:
    file = files.create_output(path)
    await file.append(b"what matters")
    saved.append(path)
    await file.aclose()


async def save_well(files: Files, path: Path, saved: list[Path]) -> None:
    file = files.create_output(path)
    try:
        await file.append(b"what matters")
    finally:
        await file.aclose()
    saved.append(path)


async def keeps(sim: Sim, save: Save) -> None:
    saved: list[Path] = []
    kept = True
    try:
        await save(sim.env().files, Path("/result"), saved)
    except OSError:
        kept = False
    assert kept or not saved, "it is told as saved, and the disk did not take it"


async def program(sim: Sim) -> None:
    await keeps(sim, save)


async def mended(sim: Sim) -> None:
    await keeps(sim, save_well)
