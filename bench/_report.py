"""What is shown of the results: a table for people, JSON for programs."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

import attrs
import trio

from ._case import Result, Spread

_TITLES = ("id", "what", "ours", "base", "unit", "ratio (min..max)", "target", "holds")


def format_table(results: Sequence[Result]) -> str:
    """Return the results as a table, a line each."""
    lines = [_TITLES, *(_cells(result) for result in results)]
    widths = [
        max(len(line[column]) for line in lines) for column in range(len(_TITLES))
    ]
    shown = [
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True))
        for line in lines
    ]
    shown.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in shown)


def _cells(result: Result) -> tuple[str, ...]:
    row = result.row
    return (
        row.id,
        row.what,
        format_number(result.ours.median),
        format_number(result.base.median),
        row.unit,
        _format_spread(result.ratio),
        "" if row.target is None else str(row.target),
        "" if result.holds is None else "yes" if result.holds else "NO",
    )


def _format_spread(spread: Spread) -> str:
    return (
        f"{format_number(spread.median)} "
        f"({format_number(spread.min)}..{format_number(spread.max)})"
    )


def format_number(value: float) -> str:
    """Return ``value`` with three digits that matter."""
    if abs(value) >= 999_500:
        return f"{value / 1e6:.3g}M"
    if abs(value) >= 9_995:
        return f"{value / 1e3:.3g}k"
    return f"{value:.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def to_json(
    results: Sequence[Result], skipped: Sequence[str], *, rounds: int, once: bool
) -> dict[str, object]:
    """Return everything that is known about a run, ready for JSON."""
    return {
        "machine": describe_machine(),
        "rounds": rounds,
        "once": once,
        "rows": [
            {
                "id": result.row.id,
                "what": result.row.what,
                "unit": result.row.unit,
                "ours": attrs.asdict(result.ours),
                "base": attrs.asdict(result.base),
                "ratio": attrs.asdict(result.ratio),
                "target": None
                if result.row.target is None
                else attrs.asdict(result.row.target),
                "holds": result.holds,
            }
            for result in results
        ],
        "skipped": list(skipped),
    }


def describe_machine() -> dict[str, object]:
    """Return what the figures depend on."""
    return {
        "python": platform.python_version(),
        "trio": trio.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "load": list(os.getloadavg()),
    }
