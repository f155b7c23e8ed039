"""PF27: what those who read the events of a runtime cost its tasks."""

from __future__ import annotations

import tempfile
from time import process_time

import trio
import trio.testing

from supervisor.runtime import Runtime, open_runtime

from ._case import Case, Row, Target
from .tasks import InProcess, launch_and_ack

_WAVE = 1000


def cases(small: bool) -> list[Case]:
    """Return the cases of this theme."""
    n = 100 if small else 5_000
    return [
        Case(
            name="readers of events",
            parts=[
                lambda: {"none": trio.run(_launch, n, 0, 0)},
                lambda: {"ten": trio.run(_launch, n, 10, 0)},
                lambda: {"asleep": trio.run(_launch, n, 0, 1)},
            ],
            rows=[
                Row(
                    id="PF27",
                    what="launch to ack, ten readers of events / none",
                    ours="ten",
                    base="none",
                    unit="us CPU",
                    target=Target("<=", 1.8),
                ),
                Row(
                    id="PF27",
                    what="the same, one that never reads / none",
                    ours="asleep",
                    base="none",
                    unit="us CPU",
                    target=Target("<=", 1.15),
                ),
            ],
        )
    ]


async def _launch(n: int, readers: int, asleep: int) -> float:
    work = InProcess()
    with tempfile.TemporaryDirectory() as directory:
        async with trio.open_nursery() as nursery:
            async with open_runtime(directory, journal=False) as runtime:
                for _ in range(readers):
                    _start_reading(nursery, runtime)
                # Kept, so that they go on to miss what is told.
                deaf = [runtime.events.subscribe() for _ in range(asleep)]
                await trio.testing.wait_all_tasks_blocked()
                began = process_time()
                for done in range(0, n, _WAVE):
                    await launch_and_ack(runtime, work, min(_WAVE, n - done))
                took = process_time() - began
                assert len(deaf) == asleep
    return took / n * 1e6


def _start_reading(nursery: trio.Nursery, runtime: Runtime) -> None:
    # The stream ends with the runtime; the reader, outside, ends with that.
    nursery.start_soon(_read, runtime)


async def _read(runtime: Runtime) -> None:
    async for _ in runtime.events:
        pass
