"""What is the same for all runs of a process: the place of trio's scheduler is taken, and
the collector comes between runs only.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from types import FunctionType

import trio

from .._errors import SimulationError
from . import loop, patches
from .sites import place_here

SWEPT = 16
"""After so many runs of a session what they left is collected."""

_runs = 0


def collect() -> None:
    """Count a run that is over, and collect what runs have left, now and then."""
    global _runs
    _runs += 1
    if _runs % SWEPT == 0:
        watching = sys.getprofile()
        if isinstance(watching, FunctionType):  # cProfile could not be set again.
            sys.setprofile(None)  # What the collector calls is nobody's culprit.
        gc.collect()
        if isinstance(watching, FunctionType):
            sys.setprofile(watching)


@contextmanager
def session() -> Generator[None]:
    """Make this process ready for runs: the scheduler is taken, and the collector is
    off and looks at nothing that was there before.

    A second session inside of one has no effect. Raises SimulationError inside of a run
    of trio, which can have no other one in it.
    """
    if trio.lowlevel.in_trio_run():
        text = "the simulator has runs of its own: call it outside of trio.run"
        raise SimulationError(f"{text}, in a function that is not async")
    if loop.is_steering():
        yield
        return
    if not __debug__:
        text = (
            "python -O leaves out each assert: what a program asserts is not looked at"
        )
        file, _, line = place_here().rpartition(":")
        where = (file or "trio-supervisor", int(line or 1))
        warnings.warn_explicit(text, RuntimeWarning, *where)
    was_on, freeze = gc.isenabled(), gc.get_freeze_count() == 0
    with loop.steering(), patches.installed(), warnings.catch_warnings():
        # trio tells of generators that were dropped, which is looked at otherwise.
        warnings.filterwarnings("ignore", "Async generator", ResourceWarning)
        gc.disable()
        if freeze:
            gc.freeze()
        try:
            yield
        finally:
            if freeze:
                gc.unfreeze()
            if was_on:
                gc.enable()


_scattered = count()


@contextmanager
def scattered() -> Generator[None]:
    """Let objects that are made in the block have other addresses, in another order.

    What goes by addresses is the same in two runs more often than not, since both are
    given the same ones.
    """
    # Of each size for which Python has places of its own, from 16 bytes to 512. Not
    # always as many: where the next object goes to is the same place by luck.
    many = range(100 + 13 * (next(_scattered) % 8))
    sizes = range(15, 480, 16)
    held: list[object] = [*map(bytes, [*sizes] * len(many))]
    held += [object() for _ in many]
    held += [10**12 + it for it in many]
    for first in (10, 4, 14, 0, 6, 12, 2, 8):  # Of each size; no two are neighbours.
        held[first::17] = [None] * len(range(first, len(held), 17))
    yield
