"""Which probes of a program many runs have come by, and which they have not.

A probe that is never met is found in the source: of the program's own file, and of the
modules of which another probe was met.
"""

from __future__ import annotations

import ast
import linecache
import os.path
import sys
from collections.abc import Iterable
from typing import Any

import attrs

from actors import probe

from .._steering import sites
from .._steering.probes import Met
from .._steering.targets import file_of
from .report import counted

KINDS = ("always", "sometimes", "reachable", "buggify")

Key = tuple[str, str]
"""The kind of a probe, and its name."""


@attrs.define
class Reach:
    """What one probe (`actors.probe`) has told in many runs."""

    kind: str
    """``always``, ``sometimes``, ``reachable`` or ``buggify``."""
    name: str
    site: str
    """Where it is: ``file.py:12 function``."""
    runs: int = 0
    """In how many runs the program came by."""
    passed: int = 0
    """How many times it came by in all."""
    true: int = 0
    """How many times it held; of a ``buggify``, how many times it fired."""
    armed: int = 0
    """Of a ``buggify``, in how many runs it could fire."""
    seed: int | None = None
    """The first under which it held or fired."""

    @property
    def missed(self) -> str:
        """What has never happened that should have; "" if nothing."""
        if not self.passed:
            return "never reached"
        if self.true or self.kind in ("always", "reachable"):
            return ""
        if self.kind == "sometimes":
            return f"never true, of {counted(self.passed, 'time')}"
        armed = (
            f"armed in {counted(self.armed, 'run')}" if self.armed else "never armed"
        )
        return f"{armed}, and never fired"

    def __str__(self) -> str:
        """Return a line of a report."""
        told = self.missed
        if not told:
            times = f"{self.true} of {counted(self.passed, 'time')}"
            told = f"{times}, in {counted(self.runs, 'run')}"
            told += f", first under seed {self.seed}" if self.seed is not None else ""
        return f"{self.kind} {self.name!r} at {self.site}: {told}"


@attrs.define
class Reached:
    """Sums up what probes told in many runs, in whichever order they come."""

    _all: dict[Key, Reach] = attrs.Factory(dict[Key, Reach])
    _first: dict[Key, tuple[int, int]] = attrs.Factory(dict[Key, tuple[int, int]])
    # {probe: (the first seed under which it was met, its place among those of that run)}

    def add(self, probes: Iterable[Met], seed: int) -> None:
        """Add what was told in one run."""
        for place, met in enumerate(probes):
            key, when = (met.kind, met.name), (seed, place)
            if when <= self._first.setdefault(key, when):
                self._first[key] = when
                reach = self._all.setdefault(key, Reach(met.kind, met.name, met.site))
                reach.site = met.site
            reach = self._all[key]
            reach.runs += 1
            reach.passed += met.passed
            reach.true += met.true
            reach.armed += met.armed
            if met.true and (reach.seed is None or seed < reach.seed):
                reach.seed = seed

    def table(self, program: Any) -> list[Reach]:
        """Return all probes, first those to which something has never happened."""
        own = file_of(program)
        met = {it.site.partition(":")[0] for it in self._all.values()}
        found = [
            self._all[key] for key in sorted(self._first, key=self._first.__getitem__)
        ]
        written: dict[Key, Reach] = {}
        for reach in _written(own, met):
            written.setdefault((reach.kind, reach.name), reach)
        found += [it for key, it in written.items() if key not in self._all]
        return sorted(found, key=lambda it: not it.missed)


def _written(own: str | None, met: set[str]) -> Iterable[Reach]:
    """Find the probes that are written in modules."""
    kinds = {id(getattr(probe, kind)): kind for kind in KINDS}
    for module in list(sys.modules.values()):
        file, names = getattr(module, "__file__", None), vars(module)
        if not file or not file.endswith(".py") or module is probe:
            continue
        if file != own and sites.shown(file) not in met:
            continue
        calls = {name: kinds[id(it)] for name, it in names.items() if id(it) in kinds}
        whole = {name for name, it in names.items() if it is probe}
        if calls or whole:
            yield from _calls(file, calls, whole)


def _calls(file: str, calls: dict[str, str], whole: set[str]) -> Iterable[Reach]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return  # It was loaded, and is no more what it was.
    shown = sites.shown(file) or os.path.basename(file)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name, fn, kind = node.args[0], node.func, None
        if isinstance(fn, ast.Name):
            kind = calls.get(fn.id)
        elif isinstance(fn, ast.Attribute) and isinstance(fn.value, ast.Name):
            kind = fn.attr if fn.value.id in whole and fn.attr in KINDS else None
        if kind and isinstance(name, ast.Constant) and isinstance(name.value, str):
            yield Reach(kind, name.value, f"{shown}:{node.lineno}")
