"""Every public operation, struck at every point: a report made anew.

    python -m bench.sweeps [--most 400] [--schedules 1] [--jobs 2] [NAME ...]

For each operation of `actors`, `actors.agent`, `supervisor.tree` and
`supervisor.runtime` that is awaited: the points at which it can be struck while it is
under way, by how many arrivals, how many runs that took, how many of them were wrong,
and the seconds of processor time. It is struck by a cancel, by an error as the world
has them, and by a KeyboardInterrupt. The last lines are the faults of the world, at
every call that a scenario makes of it.

The scenarios are those of the tests. ``NAME`` chooses operations, with ``*``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase

import attrs

from supervisor.simulation import SweepReport
from tests.supervisor.simulation.operations import SCENARIOS, operations, sweep, swept


@attrs.define
class Line:
    """What is said of one operation, or of the world in one scenario."""

    name: str
    points: int = 0
    arrivals: set[str] = attrs.Factory(set[str])
    runs: int = 0
    skipped: int = 0
    seconds: float = 0.0
    wrong: list[str] = attrs.Factory(list[str])

    def add(self, other: Line) -> None:
        self.points += other.points
        self.arrivals |= other.arrivals
        self.runs += other.runs
        self.skipped += other.skipped
        self.seconds += other.seconds
        self.wrong += other.wrong


NAMED = {getattr(it, "__name__", ""): it for it in SCENARIOS}

KINDS = ("cancel", "OSError", "KeyboardInterrupt")


def strike(scenario: str, name: str, most: int, schedules: int) -> Line:
    """Strike one operation in one scenario; the world, if the name is ""."""
    logging.disable(logging.CRITICAL)  # What fails on purpose is logged.
    began = time.process_time()
    line = Line(name or f"the world of {scenario}")
    for kind in KINDS if name else ("fault",):
        program = NAMED[scenario]
        report = sweep(program, kind, name, max_points=most, schedules=schedules)
        if report is not None:
            _add(line, report)
    line.seconds = time.process_time() - began
    return line


def _add(line: Line, report: SweepReport) -> None:
    line.points += report.points
    line.arrivals.update(f"{report.kind} {it}" for it in report.arrivals)
    line.runs += report.runs
    line.skipped += report.skipped
    line.wrong += [f"{it.site} {it.error}\n  {it.replay}" for it in report.rows]
    line.wrong += [f"never fired: {fault}" for fault in report.never_fired]


def table(lines: Sequence[Line]) -> str:
    width = max(len(line.name) for line in lines)
    rows = [f"{'operation':<{width}}  points  arrivals   runs  violations  seconds"]
    rows += [
        f"{line.name:<{width}}  {line.points:6}  {len(line.arrivals):8}  "
        f"{line.runs:5}  {len(line.wrong):10}  {line.seconds:7.1f}"
        for line in lines
    ]
    return "\n".join(rows)


def main(args: Sequence[str] | None = None) -> int:
    """Print the report. The exit code is 1 if anything was wrong, or not swept."""
    parser = argparse.ArgumentParser(prog="python -m bench.sweeps")
    parser.add_argument("--most", type=int, default=400, help="points of each, at most")
    parser.add_argument("--schedules", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("names", nargs="*", default=["*"])
    options = parser.parse_args(args)
    began = time.monotonic()
    jobs = [
        (scenario, name)
        for scenario, program in NAMED.items()
        for name in (*sorted(swept(program)), "")
        if any(fnmatchcase(name, pattern) for pattern in options.names)
    ]
    found: dict[str, Line] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        running = [
            pool.submit(strike, *job, options.most, options.schedules) for job in jobs
        ]
        for one in running:
            line = one.result()
            found.setdefault(line.name, Line(line.name)).add(line)
    lines = sorted(found.values(), key=lambda it: (it.name.startswith("the "), it.name))
    total = Line("all")
    for line in lines:
        total.add(line)
    print(table([*lines, total]))
    print(
        f"left out beyond --most: {total.skipped} points; "
        f"{time.monotonic() - began:.0f} s with {options.jobs} processes"
    )
    for line in lines:
        for text in line.wrong:
            print(f"\n{line.name}: {text}")
    missing = operations() - set(found) if options.names == ["*"] else set[str]()
    for name in sorted(missing):
        print(f"not swept: {name}")
    return 1 if total.wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main())
