"""``trio-supervisor sim check``: does a log show that all promises were kept?"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import attrs

from actors.text import one_line

from ..simulation.log import LogError, read
from ..simulation.promises import Judged, Violation, check
from ._sim_codes import CLEAN, USAGE, WRONG

SHOWN = 20
"""How many violations are shown to people."""


def check_log(place: str, *, as_json: bool) -> int:
    """Print what a log shows broken, and how much of it was judged; return the exit
    code."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with Path(place).open("rb") as lines:
                found, judged = check(read(lines))
        except (OSError, LogError) as error:
            print(f"{place}: {error}", file=sys.stderr)
            return USAGE
    for warning in warned:
        print(f"{place}: {warning.message}", file=sys.stderr)
    if not judged[0].judged:
        print(f"{place}: there is nothing in it", file=sys.stderr)
        return USAGE
    if as_json:
        said = {
            "violations": [attrs.asdict(it) for it in found],
            "judged": [attrs.asdict(it) for it in judged],
        }
        print(json.dumps(said, indent=2))
    else:
        _show(found, judged)
    return WRONG if found else CLEAN


def _show(found: Sequence[Violation], judged: Sequence[Judged]) -> None:
    for violation in found[:SHOWN]:
        print(one_line(str(violation), 300))
    if len(found) > SHOWN:
        print(f"... and {len(found) - SHOWN} more")
    print("judged:")
    for it in judged:
        vacuous = "" if it.judged else "  vacuous: nothing in this log could break it"
        print(f"  {it.promise:<4}{it.judged:>8}  {it.title}{vacuous}")
