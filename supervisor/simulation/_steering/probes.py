"""What the probes of a program (`actors.probe`) tell in one run.

It is loaded where the program has loaded that module, and so has probes.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any

import attrs

from actors.probe import heard_by

from . import run, sites
from .seams import Seams

BUGGIFY = "buggify."
"""With its name behind it, a buggify is an operation that can go wrong."""

ACTIVE = 0.25
"""In this part of the runs a buggify may fire at all, and then at this part of calls.

Were each to fire now and then in each run, no run would come far without any.
"""


@attrs.define
class Met:
    """What one probe has told in a run."""

    kind: str
    """``always``, ``sometimes``, ``reachable`` or ``buggify``."""
    name: str
    site: str
    """Where it was met first."""
    passed: int = 0
    """How many times the program came by."""
    true: int = 0
    """How many times it held, or fired."""
    armed: bool = False
    """Of a buggify, whether it could fire in this run."""


class Probes:
    """Listens to the probes in one run, and decides when a buggify fires."""

    def __init__(self, driver: run.Driver, seams: Seams, seed: int) -> None:
        self.met: dict[tuple[str, str], Met] = {}
        self._driver = driver
        self._seams = seams
        self._seed = seed
        """By 0 nothing fires but what the tape says."""
        self._chance: Random | None = None  # Most runs need none, and it takes long.
        self._thread = threading.get_ident()

    def always(self, name: str, holds: object, /) -> object:
        """Hear that something must hold."""
        if (met := self._pass("always", name)) is None:
            return holds
        if holds:
            met.true += 1
            return holds
        driver = self._driver
        if met.passed - met.true == 1:  # Once is enough for a finding.
            text = f"{name!r} does not hold at {sites.caller()}"
            driver.findings.append(run.Finding("always", text))
        driver.note("always", name, driver.name(run.current_task()))
        return holds

    def sometimes(self, name: str, holds: object, /) -> object:
        """Hear whether something holds that need hold now and then only."""
        met = self._pass("sometimes", name)
        if met is not None and holds:
            met.true += 1
        return holds

    def reachable(self, name: str, /) -> object:
        """Hear that the program has come by."""
        if met := self._pass("reachable", name):
            met.true += 1
        return None

    def buggify(self, name: str, /) -> bool:
        """Decide whether a rare thing happens now."""
        if not name or any(it.isspace() or it == "," for it in name):
            raise ValueError(f"{name!r} is no name for a buggify: make it one word")
        new, operation = ("buggify", name) not in self.met, BUGGIFY + name
        met = self._pass("buggify", name)
        if met is None or run.current_task() is None:
            return False
        if new:
            self._seams.ways[operation] = {"fires": "what is rare is done"}
        if self._seed:
            chance = self._chance = self._chance or Random(f"buggify {self._seed}")
            if new:
                met.armed = chance.random() < ACTIVE
            if met.armed and chance.random() < ACTIVE:
                self._seams.arm(operation, "fires")
        fires = bool(self._seams.next(operation))
        met.true += fires
        met.armed = met.armed or fires
        return fires

    def _pass(self, kind: str, name: str) -> Met | None:
        if threading.get_ident() != self._thread:
            return None  # Another run's, or a thread's, whose time nobody decides.
        met = self.met.get((kind, name))
        if met is None:
            met = self.met[kind, name] = Met(kind, name, sites.caller())
        met.passed += 1
        return met


@contextmanager
def listening(
    driver: run.Driver, seams: Seams, seed: int
) -> Generator[Mapping[Any, Met]]:
    """Listen to the probes of this process, until the block ends. Under seed 0 nothing
    fires by chance."""
    probes = Probes(driver, seams, seed)
    with heard_by(probes):
        yield probes.met
