"""Every public operation, struck at every point: a report made anew.

    python -m bench.sweeps [--most N] [--schedules 1] [--jobs 2] [NAME ...]

For each operation of `actors`, `actors.agent`, `actors.shell`, `supervisor.tree` and
`supervisor.runtime`, and of what these hand out: the points at which it can be struck
while it is under way, by a cancel, by an error as the world has them, by a
KeyboardInterrupt, and by a second cancel (``again``), which ends a shield with a
deadline under which a call that was cancelled cleans up. Also by how many arrivals, how
many runs that took, how many of them were wrong, and the seconds of processor time. The
last lines are the faults of the world, at every call that a scene makes of it. Below the
table is out of which operations only a cancel or a Ctrl+C can come, which are not struck
by themselves, and why.

The scenes are those of the tests. ``NAME`` chooses operations, with ``*``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase
from typing import Any

import attrs

from supervisor.simulation import SweepReport
from tests.supervisor.simulation.operations import LEFT_OUT, NEVER_WAIT, operations
from tests.supervisor.simulation.scenes import SCENES
from tests.supervisor.simulation.strikes import reached, sweep

WORLD = "the world of "


@attrs.define
class Line:
    """What is said of one operation, or of the world in one scene."""

    name: str
    points: Counter[str] = attrs.Factory(Counter[str])
    """By the kind of what strikes."""
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


KINDS = {"cancel": "cancel", "OSError": "error", "KeyboardInterrupt": "Ctrl+C"}
"""What strikes an operation, with its name in the report."""

COLUMNS = (*KINDS.values(), "again", "world")


def strike(scene: str, name: str, most: int | None, schedules: int) -> Line:
    """Strike one operation in one scene; the world, if the name is ""."""
    began = time.process_time()
    line = Line(name or f"{WORLD}{scene}")
    for kind, column in KINDS.items() if name else [("fault", "world")]:
        options: dict[str, Any] = {"max_points": most, "schedules": schedules}
        if kind == "cancel":
            options["twice"] = True
        report = sweep(SCENES[scene], kind, name or None, **options)
        if report is not None:
            _add(line, column, report)
    line.seconds = time.process_time() - began
    return line


def _add(line: Line, column: str, report: SweepReport) -> None:
    line.points[column] += report.points
    line.points["again"] += report.again
    line.arrivals.update(f"{report.kind} {it}" for it in report.arrivals)
    line.runs += report.runs
    line.skipped += report.skipped
    line.wrong += [f"{it.site} {it.error}\n  {it.replay}" for it in report.rows]
    line.wrong += [f"never fired: {fault}" for fault in report.never_fired]


def table(lines: Sequence[Line]) -> str:
    width = max(len(line.name) for line in lines)
    head = "  ".join(f"{it:>6}" for it in COLUMNS)
    rows = [f"{'struck by':<{width}}  {head}  arrivals    runs  violations  seconds"]
    for line in lines:
        points = "  ".join(f"{line.points[it] or '-':>6}" for it in COLUMNS)
        rows.append(
            f"{line.name:<{width}}  {points}  {len(line.arrivals):8}  "
            f"{line.runs:6}  {len(line.wrong):10}  {line.seconds:7.1f}"
        )
    return "\n".join(rows)


def reasons(reasons: Mapping[str, str], names: Iterable[str]) -> Iterator[str]:
    width = max(map(len, reasons))
    for name in reasons:
        if any(fnmatchcase(name, it) for it in names):
            yield f"  {name:<{width}}  {reasons[name]}"


def main(args: Sequence[str] | None = None) -> int:
    """Print the report. The exit code is 1 if anything was wrong, or not swept."""
    parser = argparse.ArgumentParser(prog="python -m bench.sweeps")
    parser.add_argument("--most", type=int, help="points of each kind, at most")
    parser.add_argument("--schedules", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("names", nargs="*", default=["*"])
    options = parser.parse_args(args)
    logging.disable(logging.CRITICAL)  # What fails on purpose is logged.
    began = time.monotonic()
    jobs = {
        (scene, name): sum(reach.points.values()) if reach else 0
        for scene, program in SCENES.items()
        for name, reach in (*reached(program).items(), ("", None))
        if any(fnmatchcase(name, pattern) for pattern in options.names)
    }
    found: dict[str, Line] = {}
    with ProcessPoolExecutor(options.jobs, initializer=logging.disable) as pool:
        running = [
            pool.submit(strike, *job, options.most, options.schedules)
            # The longest first, so that no process is left with it.
            for job in sorted(jobs, key=lambda it: -jobs[it])
        ]
        for one in running:
            line = one.result()
            found.setdefault(line.name, Line(line.name)).add(line)
    lines = sorted(found.values(), key=lambda it: (it.name.startswith(WORLD), it.name))
    total = Line("all")
    for line in lines:
        total.add(line)
    print(table([*lines, total]))
    print(
        f"{total.points.total()} points, {total.skipped} left out by --most; "
        f"{time.monotonic() - began:.0f} s with {options.jobs} processes"
    )
    for line in lines:
        if line.skipped:
            print(f"  {line.skipped} points of {line.name} are left out")
    print(
        "\nonly a cancel or a Ctrl+C can come out of these, for they wait for nothing:"
    )
    print(*reasons(NEVER_WAIT, options.names), sep="\n")
    print("\nnot struck by themselves:")
    print(*reasons(LEFT_OUT, ["*"]), sep="\n")
    for line in lines:
        for text in line.wrong:
            print(f"\n{line.name}: {text}")
    missing = operations() - set(found) if options.names == ["*"] else set[str]()
    for name in sorted(missing):
        print(f"not swept: {name}")
    return 1 if total.wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main())
