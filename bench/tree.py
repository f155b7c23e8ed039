"""The supervisor against a model of OTP's rules: random histories, pairs of events.

``python -m bench.tree --runs 20000 --pairs 20000 --seed 1`` prints how many there
were, how the pairs settled, and those that disagree; ``--every 1/20`` tries each
pair of the kinds of events everywhere, or one in twenty of them. It wants the
checkout, since the model is a test.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import cast

from tests.supervisor.tree.pairs import Pair, every_pair, random_pair, run_pair
from tests.supervisor.tree.runs import run_history


def _cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def main(arguments: list[str] | None = None) -> int:
    """Run them, and return whether any disagreed, as an exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.tree")
    parser.add_argument("--runs", type=int, default=1000, help="random histories")
    parser.add_argument("--pairs", type=int, default=1000, help="pairs by chance")
    parser.add_argument(
        "--every", type=Fraction, default=Fraction(0), help="of all pairs: 1, 1/20"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the first one")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # crashes by the thousand
    try:
        bad = _run_histories(options.runs, options.seed)
        dice = random.Random(options.seed)
        bad += _run_pairs("by chance", _by_chance(options.pairs, dice))
        if options.every:
            all_pairs = every_pair()
            some = itertools.islice(all_pairs, 0, None, int(1 / options.every))
            bad += _run_pairs("enumerated", some)
        return int(bad > 0)
    finally:
        logging.disable(logging.NOTSET)


def _by_chance(count: int, dice: random.Random) -> Iterator[Pair]:
    return (random_pair(dice) for _ in range(count))


def _run_histories(runs: int, first: int) -> int:
    operations, bad = 0, 0
    for seed in range(first, first + runs):
        try:
            operations += run_history(seed)
        except Exception as error:
            bad += 1
            print(f"history {seed}: {_cause(error)}")
    print(f"{runs} histories, {operations} operations, {bad} disagree")
    return bad


def _run_pairs(which: str, pairs: Iterable[Pair]) -> int:
    settled: Counter[str] = Counter()
    bad = 0
    for pair in pairs:
        try:
            settled[run_pair(pair)] += 1
        except Exception as error:
            bad += 1
            print(_cause(error))
    total = settled.total() + bad
    print(f"{total} pairs {which}, {bad} agree with neither order")
    for name, count in settled.most_common():
        print(f"  {name}: {count}")
    return bad


if __name__ == "__main__":
    sys.exit(main())
