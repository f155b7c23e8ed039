"""Each number that a public function takes is refused by its name, or means something."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from math import inf, nan
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
import trio
import trio.testing

import supervisor.simulation
from supervisor.simulation import (
    PCT,
    Exhaustive,
    OneStep,
    Sim,
    Sparse,
    cancel_everywhere,
    compare,
    explore,
    fault_everywhere,
    load,
    raise_everywhere,
    replay,
    save,
    simulate,
    try_corpus,
)
from supervisor.simulation.campaign import campaign
from supervisor.simulation.crash import Disk, crash, crash_everywhere
from supervisor.simulation.experiments import experiment
from supervisor.simulation.hypothesis import tapes
from supervisor.simulation.studies import cancels, restarts
from supervisor.simulation.trace import traced

VALUES = (0, -1, True, 1.5, "3", nan, inf, None)

LIMIT = (0, 1.5, inf)  # Virtual seconds: a run may take none, and have no end.
SWEEP: Mapping[str, tuple[Any, ...]] = {
    "schedules": (),
    "max_points": (None,),
    "limit": LIMIT,
    "pairs": (0,),
    "jobs": (),
}
MEANT: dict[Callable[..., Any], Mapping[str, tuple[Any, ...]]] = {
    simulate: {"seed": (0, -1), "limit": LIMIT},
    traced: {"seed": (0, -1)},
    cancel_everywhere: SWEEP,
    raise_everywhere: SWEEP,
    fault_everywhere: SWEEP,
    explore: {"seeds": (), "jobs": (), "limit": LIMIT},
    campaign: {
        "seconds": (1.5,),
        "runs": (None,),
        "jobs": (),
        "limit": LIMIT,
        "patience": (1.5,),
    },
    crash: {"limit": LIMIT},
    crash_everywhere: {
        "schedules": (),
        "again": (0,),
        "max_points": (None,),
        "limit": LIMIT,
    },
    experiment: {"seeds": (), "limit": LIMIT},
    restarts: {"seeds": (), "largest": ()},
    cancels: {"seeds": (), "deepest": ()},
    tapes: {"limit": LIMIT},
    compare: {"limit": LIMIT},
    replay: {"limit": LIMIT},
    try_corpus: {"limit": LIMIT},
    PCT: {"depth": (), "length": ()},
    Sparse: {"rate": (0,)},
    Exhaustive: {"deviations": (None,)},
}
"""What of the values means something, by function and argument; the others are refused."""


# ---- A call of each -------------------------------------------------------------------


async def program(sim: Sim) -> None:
    """Have a point for each sweep, and take no virtual time."""
    network, asked = sim.network(), trio.Event()

    async def serve(stream: trio.abc.Stream) -> None:
        await stream.aclose()

    async def ask() -> None:
        await asked.wait()
        stream = await network.open_tcp_stream("host", 80)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        await nursery.start(network.serve_tcp, serve, 80, "host")
        async with trio.open_nursery() as asking:
            asking.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            asked.set()
        nursery.cancel_scope.cancel()


async def races(sim: Sim) -> None:
    order: list[str] = []

    async def add(name: str) -> None:
        await trio.lowlevel.checkpoint()
        order.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(add, "a")
        nursery.start_soon(add, "b")
    assert order == ["a", "b"]


async def writes(sim: Sim, disk: Disk) -> None:
    disk.files.replace(Path("/a"), b"1")
    disk.tell("done")


async def recovers(sim: Sim, disk: Disk) -> None: ...


async def wants_all(sim: Sim, disk: Disk) -> None:
    assert disk.told == ["done"]


async def measured(sim: Sim) -> dict[str, int]:
    return {}


class Calls:
    """How each of them is called so that it ends well, and soon."""

    def __init__(self, folder: Path) -> None:
        found = explore(races, seeds=20, policy=OneStep(), check=False)
        (self.kept,) = save(found, folder, of="races")
        self.crashed = crash_everywhere(writes, wants_all, check=False).rows[0].tape
        self.folder = folder

    def __getitem__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        few: dict[str, Any] = {"schedules": 1, "max_points": 1}
        found: dict[Callable[..., Any], Callable[..., Any]] = {
            simulate: partial(fn, program),
            traced: partial(fn, program),
            cancel_everywhere: partial(fn, program, **few),
            raise_everywhere: partial(fn, program, error=OSError, **few),
            fault_everywhere: partial(fn, program, **few),
            explore: partial(fn, program, seeds=2),
            campaign: partial(fn, program, seconds=0.1, runs=1),
            crash: partial(fn, writes, recovers, self.crashed),
            crash_everywhere: partial(fn, writes, recovers),
            experiment: partial(fn, measured),
            tapes: partial(fn, program),
            compare: partial(fn, races, load(self.kept)),
            replay: partial(fn, races, self.kept),
            try_corpus: partial(fn, races, self.folder, "races"),
        }
        return found.get(fn, fn)


# ---- The rule -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Calls:
    return Calls(tmp_path_factory.mktemp("kept"))


@pytest.mark.parametrize(
    ("fn", "name"),
    [(fn, name) for fn, names in MEANT.items() for name in names],
    ids=lambda it: getattr(it, "__name__", it),
)
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_number_is_refused_by_its_name_or_means_something(
    fn: Callable[..., Any], name: str, value: Any, calls: Calls
) -> None:
    if any(
        value is it or (value == it and value is not True) for it in MEANT[fn][name]
    ):
        calls[fn](**{name: value})
        return
    with pytest.raises((TypeError, ValueError), match=f"^{name} must (be|come) "):
        calls[fn](**{name: value})


NUMBER = re.compile(r"\b(int|float)\b")


def test_each_number_of_each_public_function_is_tried() -> None:
    package = supervisor.simulation
    modules = [package] + [
        import_module(f"{package.__name__}.{it.name}")
        for it in iter_modules(package.__path__)
        if not it.name.startswith("_")
    ]
    functions = {
        fn
        for module in modules
        for name in getattr(module, "__all__", ())
        if inspect.isfunction(fn := getattr(module, name))
        and not inspect.iscoroutinefunction(fn)  # It is a program.
    }
    there = {
        (fn, name)
        for fn in functions | {PCT, Sparse, Exhaustive}
        for name, it in inspect.signature(fn).parameters.items()
        if NUMBER.search(str(it.annotation))
    }
    assert there == {(fn, name) for fn, names in MEANT.items() for name in names}
