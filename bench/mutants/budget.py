"""What each mutant is put through. One line of JSON says what was found.

Run by `trying`, in a folder that has the changed packages.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from supervisor.simulation import (
    ProgramFailed,
    cancel_everywhere,
    fault_everywhere,
    raise_everywhere,
    simulate,
)

from . import programs

PROGRAMS: Sequence[Any] = (
    programs.ends,
    programs.stops,
    programs.turns,
    programs.backlog,
    programs.again,
    programs.stopped_as_it_comes_back,
    programs.closed_as_it_comes_back,
    programs.comes_back_below_an_agent,
    programs.waits,
    programs.places,
    programs.survivors,
    programs.readers,
    programs.notifier_restarts,
    programs.progress,
    programs.crashes,
    programs.says,
    programs.keeps_quota,
    programs.gives_up_a_wait,
    programs.resumes,
    programs.strangers,
    programs.flushes,
    programs.agents,
    programs.one_for_one,
    programs.group("one_for_all"),
    programs.group("rest_for_one"),
    programs.gives_up,
    programs.closes,
    programs.counts_when_it_ends,
    programs.straggles,
    programs.dynamic,
    programs.starts,
    programs.talks,
    programs.exits,
)

STRUCK = (
    programs.ends,
    programs.stops,
    programs.waits,
    programs.places,
    programs.dynamic,
    programs.starts,
    programs.one_for_one,
    programs.talks,
)
"""Those that have targets."""

FAULTED = (programs.ends, programs.stops, programs.again)
"""Those that bear it if the world goes wrong."""

SEEDS = 6
POINTS = 30

Found = dict[str, Any]


def once(program: Any) -> Found:
    """Run a program as it is."""
    run = simulate(program)
    wrong = [it.text for it in run.findings]
    if run.error is not None:
        wrong.append(f"{type(run.error).__name__}: {run.error}")
    if not wrong:
        return {"runs": 1}
    by = run.findings[0].kind if run.findings else type(run.error).__name__
    return {"runs": 1, "by": by, "text": wrong[0], "tape": "round robin"}


def schedules(program: Any, seed: int) -> Found:
    """Run it under some schedules."""
    first = 1 + seed * SEEDS
    runs = 0
    for number in range(first, first + SEEDS):
        run = simulate(program, seed=number)
        runs += 1
        if run.findings or run.error is not None:
            text = run.findings[0].text if run.findings else repr(run.error)
            by = run.findings[0].kind if run.findings else type(run.error).__name__
            return {"runs": runs, "by": by, "text": text, "tape": str(run.tape)}
    return {"runs": runs}


def swept(name: str, sweep: Callable[[], Any]) -> Found:
    """Strike it."""
    try:
        report = sweep()
    except ProgramFailed as error:
        return {"runs": 1, "by": name, "text": str(error), "tape": ""}
    found: Found = {"runs": report.runs}
    if report.rows:
        row = report.rows[0]
        kind = row.error.partition(":")[0].splitlines()[0]
        found |= {"by": f"{name}: {kind}", "text": row.error, "tape": str(row.tape)}
    return found


def all_but_one(arrivals: list[str], seed: int) -> list[str]:
    """Return all for the seed 0, and without another one for each seed after it."""
    return [it for at, it in enumerate(arrivals) if (at - seed) % 4 != 3 or not seed]


def main(seed: int) -> None:
    """Run the budget until something is found."""
    logging.getLogger("supervisor").setLevel(logging.CRITICAL + 1)
    began = time.process_time()
    runs = 0
    points: dict[str, Any] = {"schedules": 1, "max_points": POINTS, "check": False}

    # A sweep draws the same points each time. Where one arrival is left out they are
    # others.
    cancels = all_but_one(["blocked", "woken", "elsewhere", "late"], seed)
    raises = all_but_one(["blocked", "elsewhere", "late", "checkpoint"], seed)

    def cancelled(program: Any) -> Found:
        options: dict[str, Any] = points | {"arrivals": cancels}
        return swept("cancel", lambda: cancel_everywhere(program, **options))

    def interrupted(program: Any) -> Found:
        options: dict[str, Any] = points | {"arrivals": raises}
        error = KeyboardInterrupt
        return swept("raise", lambda: raise_everywhere(program, error, **options))

    def faulted(program: Any) -> Found:
        return swept("fault", lambda: fault_everywhere(program, **points))

    steps: list[tuple[Any, Callable[[Any], Found]]] = [
        *((it, once) for it in PROGRAMS),
        *((it, partial(schedules, seed=seed)) for it in PROGRAMS),
        *((it, step) for it in STRUCK for step in (cancelled, interrupted)),
        *((it, faulted) for it in FAULTED),
    ]
    timings: list[tuple[str, int, float]] = []
    for program, step in steps:
        at = time.process_time()
        found = step(program)
        timings.append((program.__qualname__, found["runs"], time.process_time() - at))
        runs += found["runs"]
        if "by" in found:
            found["by"] += f", in {program.__qualname__.partition('.')[0]}"
            break
    else:
        found = {"by": ""}
    seconds = time.process_time() - began
    for name in ("tape", "text"):  # That of a run without an end is long.
        found[name] = found.get(name, "")[:2_000]
    if "-v" in sys.argv:
        for timing in timings:
            print(*timing)
    print(json.dumps(found | {"runs": runs, "seconds": round(seconds, 2)}))


if __name__ == "__main__":
    # For a step that never ends: no scheduler can look into it.
    resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[2]), int(sys.argv[2]) + 5))
    main(int(sys.argv[1]))
