"""``python -m bench``: run the benchmarks and print one table."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from . import (
    agents,
    capture,
    idle,
    journal,
    messages,
    readers,
    resting,
    shells,
    simulator,
    starting,
    stops,
    tasks,
    transcripts,
    watching,
)
from ._case import Case, Result, run_case
from ._report import describe_machine, format_table, to_json

_THEMES = (
    messages,
    readers,
    tasks,
    idle,
    shells,
    resting,
    stops,
    capture,
    transcripts,
    journal,
    agents,
    watching,
    simulator,
    starting,
)


def all_cases(*, small: bool) -> list[Case]:
    """Return every case; with ``small`` in sizes that only show that it runs."""
    cases = [case for theme in _THEMES for case in theme.cases(small)]
    return sorted(cases, key=lambda case: int(case.rows[0].id.removeprefix("PF")))


def select(cases: list[Case], ids: list[str]) -> list[Case]:
    """Return the cases that have rows with one of ``ids``.

    Raises:
        ValueError: naming the id that no case has.
    """
    known = {row.id for case in cases for row in case.rows}
    for id in ids:
        if id not in known:
            by_number = sorted(known, key=lambda name: int(name.removeprefix("PF")))
            raise ValueError(
                f"there is no benchmark {id!r}, only {', '.join(by_number)}"
            )
    return [case for case in cases if any(row.id in ids for row in case.rows)]


def main(arguments: list[str] | None = None) -> None:
    """Be the command."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=main.__doc__)
    parser.description = "Measure trio-supervisor, in ratios to what else there is."
    parser.add_argument(
        "--only", metavar="ID,ID", help="only these, for instance PF4,PF5"
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds (5)")
    parser.add_argument(
        "--once",
        action="store_true",
        help="run everything once, small, and judge nothing",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything there too"
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds must be 1 or more, not {options.rounds}")
    cases = all_cases(small=options.once)
    if options.only is not None:
        try:
            cases = select(cases, options.only.split(","))
        except ValueError as error:
            parser.error(str(error))

    rounds = 1 if options.once else options.rounds
    machine = describe_machine()
    print(
        *(f"{name}: {value}" for name, value in machine.items()), sep="\n", flush=True
    )
    results: list[Result] = []
    for case in cases:
        print(f"measuring {case.name} ...", flush=True)
        results += run_case(case, rounds, judge=not options.once)
    if options.only is not None:
        results = [
            result for result in results if result.row.id in options.only.split(",")
        ]
    print()
    print(format_table(results))
    skipped = list(dict.fromkeys(line for case in cases for line in case.skipped))
    for line in skipped:
        print(f"skipped: {line}")
    if options.json is not None:
        report = to_json(results, skipped, rounds=rounds, once=options.once)
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
