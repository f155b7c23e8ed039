"""The supervisor against a model of OTP's rules: random histories, pairs of events.

``python -m bench.tree --runs 20000 --pairs 20000 --seed 1`` prints how many there
were, and those that disagree. It wants the checkout, since the model is a test.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from typing import cast

from tests.supervisor.tree_runs import random_pair, run_history, run_pair


def _cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def main(arguments: list[str] | None = None) -> int:
    """Run them, and return how many disagreed, as an exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.tree")
    parser.add_argument("--runs", type=int, default=1000, help="random histories")
    parser.add_argument("--pairs", type=int, default=1000, help="pairs of events")
    parser.add_argument("--seed", type=int, default=1, help="of the first one")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # crashes by the thousand
    try:
        return _run(options.runs, options.pairs, options.seed)
    finally:
        logging.disable(logging.NOTSET)


def _run(runs: int, pairs: int, first: int) -> int:
    operations, bad = 0, 0
    for seed in range(first, first + runs):
        try:
            operations += run_history(seed)
        except Exception as error:
            bad += 1
            print(f"history {seed}: {_cause(error)}")
    print(f"{runs} histories, {operations} operations, {bad} disagree")
    dice, bad_pairs = random.Random(first), 0
    for number in range(pairs):
        try:
            run_pair(*random_pair(dice))
        except Exception as error:
            bad_pairs += 1
            print(f"pair {number}: {_cause(error)}")
    print(f"{pairs} pairs, {bad_pairs} agree with neither order")
    return int(bad + bad_pairs > 0)


if __name__ == "__main__":
    sys.exit(main())
