"""From a tape that fails to a smaller one that fails in the same way: pure.

First the faults go, then deviations in halves, then their places are lowered, then the
number of a fault's point. And again, until no more goes: what was needed may be needless
where something else is smaller now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import attrs

from .._steering.tape import Deviation, Tape

BUDGET = 200
"""How many tapes are tried at most."""

NEAR = 20
"""In so many steps one deviation is looked for that does alone."""

Attempt = Callable[[Tape], "Tape | None"]
"""Runs a tape; returns what the run recorded if it fails in the same way, else None."""


class _Spent(Exception):
    """As many tapes were tried as may be."""


def shrink(tape: Tape, attempt: Attempt, budget: int = BUDGET) -> tuple[Tape, int]:
    """Return the smallest tape found that fails in the same way, and how many were
    tried. It is ``tape`` itself if none is smaller."""
    tried, seen = 0, {tape}

    def better(candidate: Tape) -> bool:
        nonlocal tape, tried
        if tried >= budget:
            raise _Spent  # To make one more of a long tape takes long, too.
        if candidate in seen:
            return False
        seen.add(candidate)
        tried += 1
        recorded = attempt(candidate)
        # What was asked for and did not happen is no part of the tape.
        if recorded is None or size(recorded) >= size(tape):
            return False
        tape = recorded
        return True

    def try_each() -> None:
        better(attrs.evolve(tape, seed=0))
        for fault in tape.faults:
            kept = tuple(it for it in tape.faults if it != fault)
            better(attrs.evolve(tape, faults=kept))
        if tape.deviations:
            better(attrs.evolve(tape, deviations=()))
        chunk = len(tape.deviations) // 2 or 1
        while chunk and tape.deviations:
            at, before = 0, tape
            while at < len(tape.deviations):
                left = without(tape.deviations, at, at + chunk)
                if not better(attrs.evolve(tape, deviations=left)):
                    at += chunk
            # What is left may be needless now that others are gone.
            if chunk > 1 or tape == before:
                chunk //= 2
        if len(tape.deviations) > 1:
            # Most races have many tapes of one deviation, near to where the last one was.
            last = tape.deviations[-1].step
            for step in range(last, max(last - NEAR, -1), -1):
                if better(attrs.evolve(tape, deviations=(Deviation(step, 1),))):
                    break
        for at in range(len(tape.deviations)):
            for place in range(1, _place(tape, at)):
                if better(_lowered(tape, at, place)):
                    break
        for at, fault in enumerate(tape.faults):
            for point in range(1, min(fault.point, 10)):
                faults = [*tape.faults]
                faults[at] = attrs.evolve(fault, point=point)
                if faults[at] in tape.faults:
                    continue  # A tape strikes a point once.
                if better(attrs.evolve(tape, faults=tuple(faults))):
                    break

    before: Tape | None = None
    with suppress(_Spent):
        while before != tape:
            before = tape
            try_each()
    return tape, tried


def size(tape: Tape) -> tuple[int, ...]:
    """Return how large a tape is, to be compared."""
    return (
        len(tape.faults),
        len(tape.deviations),
        sum(it.place for it in tape.deviations),
        sum(it.point for it in tape.faults),
        int(tape.seed != 0),
    )


def without(
    deviations: Sequence[Deviation], start: int, end: int
) -> tuple[Deviation, ...]:
    """Return deviations without some of them."""
    return (*deviations[:start], *deviations[end:])


def _place(tape: Tape, at: int) -> int:
    return tape.deviations[at].place if at < len(tape.deviations) else 0


def _lowered(tape: Tape, at: int, place: int) -> Tape:
    deviations = [*tape.deviations]
    deviations[at] = Deviation(deviations[at].step, place)
    return attrs.evolve(tape, deviations=tuple(deviations))
