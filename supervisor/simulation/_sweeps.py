"""A program with one fault at each point of a run, for each target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from random import Random
from typing import Literal

import attrs

from ._errors import NothingToStrike, ProgramFailed
from ._explore import require_equal, smaller
from ._policies import policy_of
from ._report import Row, SimulationFailed, SweepReport, wrong_in
from ._run import LIMIT, Run, session
from ._simulate import Errors, Program, once
from ._tape import ARRIVALS, Arrival, Fault

SHRUNK = 8
"""So many rows of a report are made smaller; the others are told as they were found."""


def cancel_everywhere(
    program: Program,
    *,
    targets: str | Iterable[str] | None = None,
    arrivals: Sequence[Arrival] = ARRIVALS,
    schedules: int = 3,
    max_points: int | None = None,
    limit: float = LIMIT,
    check: bool = True,
) -> SweepReport:
    """Cancel each target at every point of a run, one in each run, and return what came
    of it.

    A program that is correct works after any of its tasks was cancelled anywhere. Its
    invariants are the asserts that it has; some need none, see `Sim.ignore`.

    Args:
      program: an async function that gets a `Sim`.
      targets: the names of the targets to strike, with ``*``; all if there are none.
      arrivals: how a cancel arrives. ``blocked``: the target has just been suspended.
        ``woken``: what it waits for is done, and it is about to go on. ``elsewhere``:
        another task has just taken a step. ``late``: as both, and the target is then
        held back until nobody else can run. None of them finds all.
      schedules: under how many schedules; the first is round robin.
      max_points: how many points to strike at most, drawn from all; the same each time.
      limit: virtual seconds after which a run is ended as a `Hang`.
      check: raise SimulationFailed, which has the report, if something is wrong.

    Raises ProgramFailed if the program fails without any cancel, NothingToStrike if it
    has no target, and NotDeterministic.
    """
    return _sweep(
        program,
        "cancel",
        "",
        None,
        targets,
        arrivals,
        schedules,
        max_points,
        limit,
        check,
    )


def raise_everywhere(
    program: Program,
    error: type[BaseException] | Callable[[], BaseException],
    *,
    targets: str | Iterable[str] | None = None,
    arrivals: Sequence[Arrival] = ("blocked", "elsewhere", "late"),
    schedules: int = 3,
    max_points: int | None = None,
    limit: float = LIMIT,
    check: bool = True,
) -> SweepReport:
    """Raise an error in each target at every point where it waits, one in each run, and
    return what came of it.

    The error comes out of what the target waits for, in place of a result. An
    operation that has completed is never turned into one that has failed, so there is
    no arrival ``woken``. An error of ours that leaves the program, or one that was
    raised from it, is not wrong; a failed assert is.

    ``error`` is a class, or a function that makes an error; KeyboardInterrupt too. The
    other arguments and errors are those of `cancel_everywhere`.
    """
    if "woken" in arrivals:
        raise ValueError("an operation that is done cannot fail: no arrival 'woken'")
    made = error()
    name = f"{type(made).__module__}:{type(made).__qualname__}"
    return _sweep(
        program,
        "raise",
        name,
        error,
        targets,
        arrivals,
        schedules,
        max_points,
        limit,
        check,
    )


def _sweep(
    program: Program,
    kind: Literal["cancel", "raise"],
    name: str,
    error: Errors | None,
    targets: str | Iterable[str] | None,
    arrivals: Sequence[Arrival],
    schedules: int,
    max_points: int | None,
    limit: float,
    check: bool,
) -> SweepReport:
    for arrival in arrivals:
        if arrival not in ARRIVALS:
            raise ValueError(f"arrivals are {', '.join(ARRIVALS)}; not {arrival!r}")
    if schedules < 1:
        raise ValueError(f"schedules must be at least 1, not {schedules}")
    patterns: list[str] | None = None
    if targets is not None:
        patterns = [targets] if isinstance(targets, str) else list(targets)
    policy = policy_of(None)
    found: dict[tuple[str, str, str], Run] = {}
    times: Counter[tuple[str, str, str]] = Counter()
    never: list[Fault] = []
    runs = 0
    with session():
        todo: list[tuple[int, Fault]] = []
        for seed in range(schedules):
            asked = (kind, tuple(arrivals))
            run, count = once(
                program, policy.start(seed), seed=seed, limit=limit, count=asked
            )
            again = partial(once, program, policy.start(seed), seed=seed, limit=limit)
            runs += 2
            _require_clean(run, seed)
            require_equal(run, again()[0], again)
            assert count is not None
            todo += [
                (seed, fault)
                for fault in count.faults()
                if patterns is None
                or any(fnmatchcase(fault.target, it) for it in patterns)
            ]
        if not todo:
            raise NothingToStrike(patterns)
        chosen = _some(todo, max_points)
        for seed, fault in chosen:
            fault = _with_error(fault, name)
            run, _ = once(
                program,
                policy.start(seed),
                seed=seed,
                faults=[fault],
                limit=limit,
                error=error,
            )
            runs += 1
            if not run.faults:
                never.append(fault)
            if wrong := wrong_in(run):
                struck = run.faults[0] if run.faults else fault
                key = struck.site, struck.arrival, wrong[0].kind
                found.setdefault(key, run)  # The others would be much to keep.
                times[key] += 1
        rows = _rows(program, found, times, limit, error)
    report = SweepReport(
        kind=f"{kind} {name.rpartition(':')[2]}".strip(),
        rows=rows,
        points=len(chosen),
        runs=runs,
        skipped=len(todo) - len(chosen),
        never_fired=never,
        schedules=schedules,
        arrivals=list(arrivals),
    )
    if check and (rows or never):
        raise SimulationFailed(report)
    return report


def _require_clean(run: Run, seed: int) -> None:
    if wrong := wrong_in(run):
        under = "round robin" if seed == 0 else f"the schedule of seed {seed}"
        text = f"the program fails without any fault, under {under}: {wrong[0].text}"
        raise ProgramFailed(text) from run.error


def _some(todo: list[tuple[int, Fault]], most: int | None) -> list[tuple[int, Fault]]:
    if most is None or len(todo) <= most:
        return todo
    places = sorted(Random("points").sample(range(len(todo)), most))
    return [todo[place] for place in places]


def _with_error(fault: Fault, name: str) -> Fault:
    return attrs.evolve(fault, error=name)


def _rows(
    program: Program,
    found: dict[tuple[str, str, str], Run],
    times: Counter[tuple[str, str, str]],
    limit: float,
    error: Errors | None,
) -> list[Row]:
    rows: list[Row] = []
    for key, run in found.items():
        site, arrival, kind = key
        tape = run.tape
        if len(rows) < SHRUNK:
            tape = smaller(program, run, kind, limit, error)
        after = run.faults[0].after if run.faults else ""
        text = "\n".join(it.text for it in wrong_in(run))
        rows.append(Row(site, arrival, after, text, times[key], tape))
    return rows
