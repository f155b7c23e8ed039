"""A measurement, and how it is run: `Case`, `Row`, `run_case`.

The parts of a case are measured one after the other, round after round. A ratio
is taken within one round and only then summed up, because the speed of a shared
machine changes from minute to minute, but less within seconds.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import attrs

Figures: TypeAlias = Mapping[str, float]
"""What one part of a case measured, by name."""


@attrs.frozen
class Target:
    """What is to hold."""

    sense: Literal[">=", "<="]
    value: float
    of: Literal["ratio", "ours"] = "ratio"
    """Whether it is about the ratio or about our own figure."""

    def __str__(self) -> str:
        what = "" if self.of == "ratio" else "ours "
        return f"{what}{self.sense} {self.value:g}"

    def holds_for(self, value: float) -> bool:
        """Whether ``value`` is within the target."""
        return value >= self.value if self.sense == ">=" else value <= self.value


@attrs.frozen(kw_only=True)
class Row:
    """A line of the table: one figure over another."""

    id: str
    what: str
    ours: str
    """The name of our figure."""
    base: str
    """The name of the figure below the line of the ratio."""
    unit: str
    target: Target | None = None
    """None for a figure that is only shown."""


@attrs.frozen(kw_only=True)
class Case:
    """Figures that are taken together, and the rows that are made of them."""

    name: str
    parts: Sequence[Callable[[], Figures]]
    """Measured in this order in each round."""
    rows: Sequence[Row]
    skipped: Sequence[str] = ()
    """What is missing here, in a line each."""


@attrs.frozen(kw_only=True)
class Spread:
    """Several values of one kind."""

    median: float
    min: float
    max: float


@attrs.frozen(kw_only=True)
class Result:
    """What came of one row."""

    row: Row
    ours: Spread
    base: Spread
    ratio: Spread
    holds: bool | None
    """None where there is nothing to judge."""


def run_case(case: Case, rounds: int, *, judge: bool) -> list[Result]:
    """Measure ``case`` in ``rounds`` rounds and return a result for each row."""
    figures: list[dict[str, float]] = []
    for _ in range(rounds):
        of_round: dict[str, float] = {}
        for part in case.parts:
            gc.collect()
            of_round.update(part())
        figures.append(of_round)
    return [_result(row, figures, judge) for row in case.rows]


def _result(row: Row, figures: Sequence[Figures], judge: bool) -> Result:
    ours = [of_round[row.ours] for of_round in figures]
    base = [of_round[row.base] for of_round in figures]
    ratio = spread([a / b for a, b in zip(ours, base, strict=True)])
    holds: bool | None = None
    if judge and row.target is not None:
        value = ratio.median if row.target.of == "ratio" else statistics.median(ours)
        holds = row.target.holds_for(value)
    return Result(
        row=row, ours=spread(ours), base=spread(base), ratio=ratio, holds=holds
    )


def spread(values: Sequence[float]) -> Spread:
    """Sum up ``values``."""
    return Spread(median=statistics.median(values), min=min(values), max=max(values))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of ``values`` do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
