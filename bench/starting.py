"""PF25 and PF26: what a program waits for before its first line: the import of the
runtime, over that of trio, and a text of help of the command.

Each figure is the CPU time of fresh processes, with the bytecode that a first one has
left, and the median of several that take turns.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ._case import Case, Figures, Row, Target

PROGRAMS = {
    "nothing": ("-c", "pass"),
    "trio": ("-c", "import trio"),
    "runtime": ("-c", "import supervisor.runtime"),
    "help": ("-m", "supervisor.cli", "--help"),
}
"""What each figure is of."""

_ROOT = Path(__file__).parents[1]
_REPEATS = 15


def cases(small: bool) -> list[Case]:
    """Return the cases of this theme."""
    rows = [
        Row(
            id="PF25",
            what="CPU of import supervisor.runtime / import trio",
            ours="runtime",
            base="trio",
            unit="ms",
            target=Target("<=", 1.7),
        ),
        Row(
            id="PF26",
            what="CPU of trio-supervisor --help / python -c pass",
            ours="help",
            base="nothing",
            unit="ms",
            target=Target("<=", 120, of="ours"),
        ),
    ]
    measure = partial(_measure, 1 if small else _REPEATS)
    return [Case(name="starting", parts=[measure], rows=rows)]


def _measure(repeats: int) -> Figures:
    for arguments in PROGRAMS.values():
        _cpu(arguments)
    taken = {name: list[float]() for name in PROGRAMS}
    for _ in range(repeats):
        for name, arguments in PROGRAMS.items():
            taken[name].append(_cpu(arguments))
    return {name: statistics.median(each) for name, each in taken.items()}


def _cpu(arguments: Sequence[str]) -> float:
    """Return the milliseconds of CPU time that a fresh interpreter takes."""
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        cwd=_ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        timeout=60,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user = after.ru_utime - before.ru_utime
    return (user + after.ru_stime - before.ru_stime) * 1e3
