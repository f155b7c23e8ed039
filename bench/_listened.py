"""Supervisors and runtimes whose event stream a task is reading, as in real use."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

from supervisor.runtime import Runtime, open_runtime
from supervisor.tree import (
    DynamicSupervisor,
    Supervisor,
    open_dynamic_supervisor,
    open_supervisor,
)


@asynccontextmanager
async def listened_supervisor() -> AsyncGenerator[Supervisor, None]:
    """Open a supervisor with default options."""
    async with trio.open_nursery() as nursery:
        async with open_supervisor() as supervisor:
            _start_reading(nursery, supervisor)
            await trio.lowlevel.checkpoint()
            yield supervisor


@asynccontextmanager
async def listened_pool() -> AsyncGenerator[DynamicSupervisor, None]:
    """Open a dynamic supervisor with default options."""
    async with trio.open_nursery() as nursery:
        async with open_dynamic_supervisor() as supervisor:
            _start_reading(nursery, supervisor)
            await trio.lowlevel.checkpoint()
            yield supervisor


@asynccontextmanager
async def listened_runtime(
    *, journal: bool = True, inside: str | None = None
) -> AsyncGenerator[Runtime, None]:
    """Open a runtime in a directory of its own ``inside`` another, or where temporary
    files are."""
    with tempfile.TemporaryDirectory(dir=inside) as directory:
        async with trio.open_nursery() as nursery:
            async with open_runtime(directory, journal=journal) as runtime:
                _start_reading(nursery, runtime)
                await trio.lowlevel.checkpoint()
                yield runtime


def _start_reading(
    nursery: trio.Nursery, told: Supervisor | DynamicSupervisor | Runtime
) -> None:
    nursery.start_soon(_read, told)


async def _read(told: Supervisor | DynamicSupervisor | Runtime) -> None:
    # The stream ends with what it tells of; the reader, outside, ends with that.
    async for _ in told.events:
        pass
