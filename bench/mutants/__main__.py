"""``python -m bench.mutants``: break each promise of our own and see who finds it.

Each mutant is made in a copy of the packages, which a process of its own puts through
one budget of simulated programs, sweeps and checkers. No ordinary test is run. The
unchanged code goes through the same budget first, under three other seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from . import blind, ours
from ._mutant import Mutant
from .trying import CPU, Verdict, misfit, try_one

UNCHANGED_SEEDS = (1, 2, 3)


def main(arguments: list[str] | None = None) -> int:
    """Be the command; return 0 if every mutant is killed and nothing else, 1 if not, 2
    for a mistake in a mutant or in the call."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.mutants",
        description="Break each promise of the runtime, and see who finds it.",
    )
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="this mutant; can be repeated"
    )
    parser.add_argument(
        "--check", action="store_true", help="only say whether each one fits the code"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one object")
    parser.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), metavar="N"
    )
    options = parser.parse_args(arguments)
    mutants = [*ours.OURS, *blind.BLIND]
    names = [it.name for it in mutants]
    wrong = [f"mutant {name} is there twice" for name in _twice(names)]
    wrong += [text for it in mutants if (text := misfit(it))]
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
        return 2
    if options.check:
        print(f"{len(mutants)} mutants fit the code")
        return 0
    if options.only:
        unknown = [name for name in options.only if name not in names]
        if unknown:
            parser.error(f"there is no mutant {unknown[0]!r}: {', '.join(names)}")
        mutants = [it for it in mutants if it.name in options.only]
    tries: list[tuple[Mutant | None, int]] = [(it, 0) for it in mutants]
    if not options.only:
        tries = [*((None, seed) for seed in UNCHANGED_SEEDS), *tries]
    with ThreadPoolExecutor(options.jobs) as threads:
        verdicts = list(threads.map(try_one, *zip(*tries, strict=True)))
    if options.json:
        print(json.dumps([it.as_json() for it in verdicts], indent=2))
    else:
        print(_table(verdicts))
    return 0 if all(it.is_good for it in verdicts) else 1


def _twice(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def _table(verdicts: Sequence[Verdict]) -> str:
    head = ("mutant", "promise", "killed by", "runs", "CPU s", "tape")
    rows: list[tuple[str, ...]] = [head]
    rows += [it.row() for it in verdicts]
    widths = [max(len(row[at]) for row in rows) for at in range(5)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        + f"  {row[5]}"
        for row in rows
    ]
    mutants = [it for it in verdicts if it.mutant is not None]
    killed = sum(it.is_good for it in mutants)
    lines += ["", f"{killed} of {len(mutants)} mutants killed; each has {CPU} s of CPU"]
    once = [it.mutant for it in mutants if it.mutant and it.mutant.alive_at_first]
    if once:
        lines += ["", "alive at first, killed since by:"]
        lines += [f"  {it.name}: {it.alive_at_first}" for it in once]
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    sys.exit(main())
