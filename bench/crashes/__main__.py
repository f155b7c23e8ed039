"""Programs with 40 tasks, each killed at a random moment: is anything lost?

    python -m bench.crashes [--moments 300] [--seed 1] [--jobs 2] [--only MOMENT]

Half of the moments are at writes of the journal (before, within and after one), half
are by the clock. In a part of them the program that recovers is killed, too. The last
program of each moment must find what `_judge` says. The exit code is 1 if it did not,
with the command that runs that moment again; ``--keep DIRECTORY`` keeps its files.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import monotonic

from ._moment import Outcome, run_moment, run_whole
from ._plan import plan

_TOLD_EVERY = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Be the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.crashes")
    parser.description = (
        "Kill programs with 40 tasks, and see whether anything is lost."
    )
    parser.add_argument("--moments", type=int, default=300, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), metavar="N"
    )
    parser.add_argument("--only", type=int, metavar="MOMENT", help="only this one")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY")
    options = parser.parse_args(arguments)
    if not sys.platform.startswith("linux"):
        parser.error("it looks for processes in /proc, which only Linux has")
    numbers = range(options.moments) if options.only is None else [options.only]
    began = monotonic()
    whole = run_whole(options.seed)
    print(
        f"left alone, the program is done after {whole.seconds:.1f} s, with "
        f"{whole.appends} writes of its journal, which it makes anew {whole.replaces} "
        f"times",
        flush=True,
    )
    plans = [plan(options.seed, number, whole) for number in numbers]
    outcomes: list[Outcome] = []
    told = monotonic()
    # Forked, so that no program waits for its imports. Nothing else runs here.
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("fork")) as pool:
        run = partial(run_moment, keep=options.keep)
        for one in as_completed([pool.submit(run, it) for it in plans]):
            outcome = one.result()
            outcomes.append(outcome)
            for text in outcome.wrong:
                print(f"moment {outcome.plan.number}: {text}", flush=True)
            if monotonic() - told > _TOLD_EVERY:
                told = monotonic()
                print(f"{len(outcomes)} of {len(plans)} moments", flush=True)
    print(*report(outcomes), sep="\n")
    print(f"{monotonic() - began:.0f} s with {options.jobs} processes")
    return 1 if any(it.wrong for it in outcomes) else 0


def report(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Return what came of all moments, in lines."""
    hits = Counter(hit for it in outcomes for hit in it.hits)
    kinds = Counter(hit.partition(",")[0] for hit in hits.elements())
    phases = Counter(hit.split(", ")[1] for hit in hits.elements())
    at_write = sum(it.plan.is_at_write for it in outcomes)
    yield (
        f"{len(outcomes)} moments, {at_write} at writes of the journal and "
        f"{len(outcomes) - at_write} by the clock; {hits.total()} deaths, "
        f"{sum(it.tasks for it in outcomes)} tasks, "
        f"{sum(it.notes for it in outcomes)} notifications"
    )
    yield (
        f"died at a commit: {kinds['commit']}, in a recovery: {phases['recovery']}, "
        f"in a compaction: {kinds['compaction']}, by the clock: {kinds['clock']}"
    )
    width = max(map(len, hits), default=0)
    for hit in sorted(hits):
        yield f"  {hit:<{width}}  {hits[hit]:4}"
    wrong = sorted((it for it in outcomes if it.wrong), key=lambda it: it.plan.number)
    yield f"moments with something wrong: {len(wrong)}"
    for it in wrong:
        command = f"python -m bench.crashes --seed {it.plan.seed}"
        yield f"  again: {command} --only {it.plan.number}"


if __name__ == "__main__":
    sys.exit(main())
