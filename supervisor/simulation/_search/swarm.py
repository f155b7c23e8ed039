"""Which faults a run gets: each run has a subset of all kinds, by chance.

A run with few kinds goes deeper than one with all: one kind often hides what another
one would show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from random import Random
from typing import TypeVar

import attrs

from .._steering.checks import require_texts
from .._steering.tape import ARRIVALS, CHECKPOINT, IN_WAIT, Fault
from .._steering.targets import any_named

SWARM = "swarm"
"""All kinds."""

INTERRUPT = "builtins:KeyboardInterrupt"

ERRORS = ("builtins:OSError", INTERRUPT)
"""What is raised."""

MOST = 3
"""So many faults has a run at most."""

COUNT = (
    ("cancel", ARRIVALS),
    ("raise", (*IN_WAIT, CHECKPOINT)),
    ("fault", ()),
)
"""The points that are counted."""


Item = TypeVar("Item")


def some(points: list[Item], most: int | None) -> list[Item]:
    """Return so many points, drawn from all, in their order; the same each time."""
    if most is None or len(points) <= most:
        return points
    places = sorted(Random("points").sample(range(len(points)), most))
    return [points[place] for place in places]


def kind_of(fault: Fault) -> str:
    """Return the kind of a fault: ``cancel late``, ``raise OSError``, ``network.send
    reset``."""
    if fault.kind == "cancel":
        return f"cancel {fault.arrival}"
    if fault.kind == "raise":
        return f"raise {fault.error.rpartition(':')[2]}"
    return f"{fault.target} {fault.arrival}"


def read_kinds(faults: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return patterns of kinds: of ``swarm`` all, of None or ``none`` nothing.

    Raises ValueError for what can be no kind.
    """
    if faults is None or faults == "none":
        return ()
    if faults == SWARM:
        return ("*",)
    kinds = require_texts(
        "faults", faults.split(",") if isinstance(faults, str) else faults
    )
    for kind in (it.strip() for it in kinds):
        if kind.split(" ")[0] not in ("cancel", "raise") and not {*".*"} & {*kind}:
            raise ValueError(
                f"{kind!r} is no kind of fault; write swarm, none, or kinds as cancel, "
                "'cancel late', raise, 'raise OSError', 'network.*'"
            )
    return tuple(it.strip() for it in kinds)


def require_faults(kinds: Sequence[str], targets: Sequence[str] | None) -> None:
    """Raise ValueError for targets that nothing is to strike."""
    if targets is not None and not kinds:
        text = "targets are whom faults strike, and there are no faults"
        raise ValueError(f"{text}: name some, or no targets")


def is_meant(kind: str, patterns: Iterable[str]) -> bool:
    """Tell whether a kind, or the first word of it, has one of some patterns."""
    return any(
        fnmatchcase(kind, it) or fnmatchcase(kind.partition(" ")[0], it)
        for it in patterns
    )


def unmet(
    points: Iterable[Fault], kinds: Iterable[str], targets: Iterable[str] | None
) -> str:
    """Return which target or kind that was asked for has no point, beside those that
    have; "" if each has one, or nothing has."""
    points = list(points)
    called = {it.target for it in points if it.kind != "fault"}
    for name in targets or ():
        if called and not any_named(called, name):
            text = f"no target has one of the names {name}; there are"
            return f"{text} {', '.join(sorted(called))}"
    there = {kind_of(it) for it in with_errors(points)}
    for kind in kinds:
        if there and not any(is_meant(it, (kind,)) for it in there):
            return f"no fault is of the kind {kind!r}; there are {', '.join(sorted(there))}"
        if not there and "." in kind:
            return "nothing is called that can go wrong: use `sim.network()` or `sim.env()`"
    return ""


def with_errors(points: Iterable[Fault]) -> Iterable[Fault]:
    """Yield each point, one that raises once with each error that comes so."""
    for point in points:
        errors = ERRORS if point.kind == "raise" else ("",)
        for error in (INTERRUPT,) if point.arrival == CHECKPOINT else errors:
            yield attrs.evolve(point, error=error)


def drawn(
    points: Iterable[Fault], patterns: Sequence[str], seed: int
) -> tuple[Fault, ...]:
    """Return the faults of the run of a seed: a few points of the kinds that it has."""
    chance = Random(f"swarm {seed}")
    kinds: dict[str, list[Fault]] = {}
    for fault in with_errors(points):
        kinds.setdefault(kind_of(fault), []).append(fault)
    meant = [it for it in sorted(kinds) if is_meant(it, patterns)]
    enabled = [kind for kind in meant if chance.random() < 0.5] or meant
    if not enabled:
        return ()
    chosen: dict[tuple[str, str, int], Fault] = {}
    for _ in range(chance.randint(1, MOST)):
        fault = chance.choice(kinds[chance.choice(enabled)])
        chosen.setdefault((fault.target, fault.arrival, fault.point), fault)
    return tuple(chosen.values())
