"""PF16 to PF20: what it costs to be simulated, swept and made smaller."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from time import process_time
from typing import Any

import trio
from trio.testing import MockClock

from actors import Context
from actors.shell import Shell
from actors.testing import Program, fake_env
from examples.race import program as race
from examples.reference import program as reference
from supervisor.runtime import open_runtime
from supervisor.simulation import Sim, cancel_everywhere, explore
from supervisor.simulation.promises import watched
from supervisor.tree import child, open_supervisor
from tests.supervisor.simulation.races import shrunk

from ._case import Case, Figures, Row, Target


def cases(small: bool) -> list[Case]:
    """Return the cases of this theme."""
    few, some, points = (5, 2, 10) if small else (200, 60, 300)
    runs = Case(
        name="simulator",
        parts=[
            lambda: {"bare": _bare(few)},
            lambda: {"simulated": _simulated(actors_and_checkers, few)},
            lambda: {"swept": _swept(swept_actors, points)},
            lambda: {"shell": _swept(one_shell, points)},
            lambda: {"reference": _simulated(reference, some)},
        ],
        rows=[
            Row(
                id="PF16",
                what="three actors, log, digest and checkers / trio.run",
                ours="simulated",
                base="bare",
                unit="runs/s",
                target=Target(">=", 0.5),
            ),
            *(
                Row(
                    id=f"PF{number}",
                    what=what,
                    ours=ours,
                    base="bare",
                    unit="runs/s",
                    target=Target(">=", rate / 1000),
                )
                for number, what, ours, rate in (
                    (17, "their sweep / trio.run", "swept", 350),
                    (18, "a sweep of a runtime and a shell / trio.run", "shell", 180),
                    (19, "the reference program / trio.run", "reference", 30),
                )
            ),
        ],
    )
    smaller = Case(
        name="shrink",
        parts=[lambda: _shrunk(3 if small else 20)],
        rows=[
            Row(
                id="PF20",
                what=f"runs to make a race one deviation: {which} of 20 seeds",
                ours=which,
                base="deviations",
                unit="runs",
                target=Target("<=", most, of="ours"),
            )
            for which, most in (("median", 40), ("worst", 100))
        ],
    )
    return [runs, smaller]


# ---- PF16 and PF17 ---------------------------------------------------------------------


async def dies_often(ctx: Context[int]) -> None:
    """It dies of every message but the last."""
    async for number in ctx.mailbox:
        if number < 4:
            raise LookupError("it is told to")


async def actors(recorded: Callable[[Any], Any] = lambda it: it) -> None:
    """Three actors that are started again; some 60 steps and 50 events."""
    children = [child(f"a{at}", dies_often) for at in range(3)]
    async with recorded(open_supervisor(children, intensity=100)) as supervisor:
        for number in range(5):
            for it in supervisor.which_children():
                it.ref.tell(number)
            await trio.sleep(0.1)
        for it in supervisor.which_children():
            assert it.state == "running"


async def actors_and_checkers(sim: Sim) -> None:
    with watched(sim) as log:
        await actors(log.recording)


async def swept_actors(sim: Sim) -> None:
    with watched(sim) as log:
        await sim.target(actors)(log.recording)


@contextmanager
def silent() -> Generator[None]:
    """What dies on purpose is logged."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _bare(times: int) -> float:
    with silent():
        began = process_time()
        for _ in range(times):
            trio.run(actors, clock=MockClock(autojump_threshold=0))
        return times / (process_time() - began)


def _simulated(program: Callable[[Sim], Awaitable[object]], times: int) -> float:
    with silent():
        began = process_time()
        explore(program, seeds=range(times))
        # Each twentieth is done twice.
        return (times + (times + 19) // 20) / (process_time() - began)


def _swept(program: Callable[[Sim], Awaitable[object]], points: int) -> float:
    with silent():
        began = process_time()
        report = cancel_everywhere(program, schedules=2, max_points=points)
        return report.runs / (process_time() - began)


# ---- PF18 ------------------------------------------------------------------------------


async def prints(program: Program) -> None:
    for number in range(5):
        await program.print(f"line {number}\n")
        await trio.sleep(0.1)


async def one_shell(sim: Sim) -> None:
    async with open_runtime("tasks", env=fake_env({"make": prints})) as runtime:
        events = runtime.events.subscribe()

        async def job() -> None:
            task = await runtime.launch(Shell("make"))
            await task.wait()

        await sim.target(job)()
        sim.log([event.seq for event in events.drain()])


# ---- PF20 ------------------------------------------------------------------------------


def _shrunk(seeds: int) -> Figures:
    """Return how many runs it takes to make tapes smaller that fail by chance."""
    found = shrunk(race, seeds)
    return {
        "median": statistics.median(it.runs for it in found),
        "worst": max(it.runs for it in found),
        "deviations": max(it.after for it in found),
    }
