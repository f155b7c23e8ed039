"""Which faults a run gets: each run has a subset of all kinds, by chance.

A run with few kinds goes deeper than one with all: one kind often hides what another
one would show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from random import Random

import attrs

from .._steering.tape import ARRIVALS, Fault

SWARM = "swarm"
"""All kinds."""

ERRORS = ("builtins:OSError", "builtins:KeyboardInterrupt")
"""What is raised."""

MOST = 3
"""So many faults has a run at most."""

COUNT = (
    ("cancel", ARRIVALS),
    ("raise", ("blocked", "elsewhere", "late")),
    ("fault", ()),
)
"""The points that are counted."""


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
    kinds = tuple(faults.split(",") if isinstance(faults, str) else faults)
    for kind in (it.strip() for it in kinds):
        if kind.split(" ")[0] not in ("cancel", "raise") and not {*".*"} & {*kind}:
            raise ValueError(
                f"{kind!r} is no kind of fault; write swarm, none, or kinds as cancel, "
                "'cancel late', raise, 'raise OSError', 'network.*'"
            )
    return tuple(it.strip() for it in kinds)


def is_meant(kind: str, patterns: Iterable[str]) -> bool:
    """Tell whether a kind, or the first word of it, has one of some patterns."""
    return any(
        fnmatchcase(kind, it) or fnmatchcase(kind.partition(" ")[0], it)
        for it in patterns
    )


def drawn(
    points: Iterable[Fault], patterns: Sequence[str], seed: int
) -> tuple[Fault, ...]:
    """Return the faults of the run of a seed: a few points of the kinds that it has."""
    chance = Random(f"swarm {seed}")
    kinds: dict[str, list[Fault]] = {}
    for point in points:
        errors = ERRORS if point.kind == "raise" else ("",)
        for fault in (attrs.evolve(point, error=error) for error in errors):
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
