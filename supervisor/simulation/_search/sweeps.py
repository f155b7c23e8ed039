"""A program with one fault at each point of a run, for each target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from random import Random
from typing import Any, Literal

import attrs

from .._errors import NothingToStrike, ProgramFailed
from .._steering.policies import policy_of
from .._steering.run import LIMIT, Run, scattered, session
from .._steering.simulate import Errors, Program, once
from .._steering.tape import ARRIVALS, Arrival, Fault
from .again import parting_line, place_of, replay_line
from .explore import require_equal, smaller
from .report import Row, SimulationFailed, SweepReport, wrong_in

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
    _require_arrivals(arrivals)
    sweep = _Sweep(program, "cancel", arrivals, targets, schedules, max_points, limit)
    return sweep.done(check=check)


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
    _require_arrivals(arrivals)
    made = error()
    name = f"{type(made).__module__}:{type(made).__qualname__}"
    sweep = _Sweep(
        program, "raise", arrivals, targets, schedules, max_points, limit, error, name
    )
    return sweep.done(check=check)


def fault_everywhere(
    program: Program,
    *,
    seams: str | Iterable[str] | None = None,
    schedules: int = 3,
    max_points: int | None = None,
    limit: float = LIMIT,
    check: bool = True,
) -> SweepReport:
    """Let each call of an operation on the world go wrong, in each way in which it can,
    one in each run, and return what came of it.

    The operations are those of ``sim.network()``: ``network.connect`` (refused,
    unreachable), ``network.send`` (reset, or cut in the middle) and ``network.receive``
    (reset, the end in the middle, or one byte alone), and those of ``sim.env()``, which
    `actors.testing.FakeEnv.seams` lists: ``processes.spawn``, ``process.kill``,
    ``clock.now`` and so on. ``seams`` are the names of those that are to be tried, with
    ``*``; all if there are none.

    What a call that goes wrong raises is no fault of the program, nor what was raised
    from it; a failed assert is. The other arguments and errors are those of
    `cancel_everywhere`.
    """
    sweep = _Sweep(program, "fault", (), seams, schedules, max_points, limit)
    return sweep.done(check=check)


def _require_arrivals(arrivals: Sequence[str]) -> None:
    for arrival in arrivals:
        if arrival not in ARRIVALS:
            raise ValueError(f"arrivals are {', '.join(ARRIVALS)}; not {arrival!r}")


Key = tuple[str, str, str]
"""By what strikes are alike: the site, the arrival, and the kind of what is wrong."""


@attrs.define
class _Sweep:
    program: Program
    kind: Literal["cancel", "raise", "fault"]
    arrivals: Sequence[str]
    targets: str | Iterable[str] | None
    schedules: int
    max_points: int | None
    limit: float
    error: Errors | None = None
    name: str = ""
    """Of the error's class, as a tape has it."""
    runs: int = 0
    found: dict[Key, Run] = attrs.Factory(dict[Key, Run])
    """The first run of each kind: all would be much to keep."""
    times: Counter[Key] = attrs.Factory(Counter[Key])
    never: list[Fault] = attrs.Factory(list[Fault])

    def done(self, *, check: bool) -> SweepReport:
        """Do the sweep, and return its report or raise it."""
        if self.schedules < 1:
            raise ValueError(f"schedules must be at least 1, not {self.schedules}")
        with session():
            todo = self._points()
            chosen = _some(todo, self.max_points)
            for seed, fault in chosen:
                self._strike(seed, fault)
            rows = self._rows()
        report = SweepReport(
            kind=f"{self.kind} {self.name.rpartition(':')[2]}".strip(),
            rows=rows,
            points=len(chosen),
            runs=self.runs,
            skipped=len(todo) - len(chosen),
            never_fired=self.never,
            schedules=self.schedules,
            arrivals=list(
                self.arrivals or dict.fromkeys(fault.arrival for _, fault in todo)
            ),
        )
        if check and (rows or self.never):
            raise SimulationFailed(report)
        return report

    def _once(self, seed: int, **options: Any) -> tuple[Run, list[Fault]]:
        self.runs += 1
        pick = policy_of(None).start(seed)
        return once(self.program, pick, seed=seed, limit=self.limit, **options)

    def _points(self) -> list[tuple[int, Fault]]:
        names: list[str] | None = None
        if self.targets is not None:
            names = [self.targets] if isinstance(self.targets, str) else [*self.targets]
        found: list[tuple[int, Fault]] = []
        for seed in range(self.schedules):
            run, faults = self._once(seed, count=[(self.kind, tuple(self.arrivals))])
            _require_clean(run, seed)
            with scattered():
                again, _ = self._once(seed)
            require_equal(run, again, partial(self._once, seed))
            found += [
                (seed, attrs.evolve(fault, error=self.name))
                for fault in faults
                if names is None or any(fnmatchcase(fault.target, it) for it in names)
            ]
        if not found:
            raise NothingToStrike(tuple(names or ()))
        return found

    def _strike(self, seed: int, fault: Fault) -> None:
        run, _ = self._once(seed, faults=[fault], error=self.error)
        if not run.faults:
            self.never.append(fault)
        if wrong := wrong_in(run):
            struck = run.faults[0] if run.faults else fault
            key = struck.site, struck.arrival, wrong[0].kind
            self.found.setdefault(key, run)
            self.times[key] += 1

    def _rows(self) -> list[Row]:
        rows: list[Row] = []
        for key, run in self.found.items():
            site, arrival, kind = key
            tape, parts = run.tape, ""
            if len(rows) < SHRUNK:
                tape = smaller(self.program, run, kind, self.limit, self.error)
                parts = parting_line(self.program, run, tape, self.limit, self.error)
            after = run.faults[0].after if run.faults else ""
            text = "\n".join(it.text for it in wrong_in(run))
            place = run.faults[0].place if run.faults else ""
            rows.append(
                Row(
                    site,
                    arrival,
                    after,
                    text,
                    self.times[key],
                    tape,
                    replay=replay_line(self.program, tape),
                    parts=parts,
                    place=place or place_of(self.program),
                )
            )
        return rows


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
