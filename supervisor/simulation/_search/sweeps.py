"""A program with one fault at each point of a run, for each target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import attrs

from .._errors import NothingToStrike, ProgramFailed
from .._steering.checks import require_callable, require_count, require_most
from .._steering.points import is_interrupt, moment
from .._steering.policies import policy_of
from .._steering.run import LIMIT, Driver, Run
from .._steering.seams import BY_HAND, UNMET
from .._steering.session import scattered, session
from .._steering.simulate import Errors, Program, name_of, once
from .._steering.tape import ARRIVALS, CHECKPOINT, IN_WAIT, Arrival, Fault, Tape
from .._steering.targets import any_named, is_named, read_names
from .again import parting_line, place_of, replay_line
from .explore import (
    VERIFY,
    nobody,
    require_equal,
    require_failing,
    require_told,
    smaller,
)
from .missing import no_call, no_point
from .report import Row, SimulationFailed, SweepReport, wrong_in
from .swarm import some

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
    twice: bool = False,
    pairs: int = 0,
    jobs: int = 1,
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
      twice: in further runs end each shield with a deadline under which a cancelled
        target cleans up, at every point, as a deadline that comes early.
      pairs: how many runs have a second fault after the first, at another of the
        targets; both are drawn from all points, the same each time. The report has which
        were tried.
      jobs: in how many processes. A run that cannot be ended, as one that never awaits,
        then costs one of them, and is told as a hang. It needs a system that can fork.
      check: raise SimulationFailed, which has the report, if something is wrong.

    Raises ProgramFailed if the program fails without any cancel, NothingToStrike if it
    has no target, and NotDeterministic.
    """
    sweep = _Sweep(
        program=program,
        kind="cancel",
        arrivals=_read_arrivals(arrivals),
        targets=targets,
        schedules=schedules,
        max_points=max_points,
        limit=limit,
        pairs=pairs,
        jobs=jobs,
        twice=twice,
    )
    return sweep.done(check=check)


def raise_everywhere(
    program: Program,
    error: type[BaseException] | Callable[[], BaseException],
    *,
    targets: str | Iterable[str] | None = None,
    arrivals: Sequence[Arrival] | None = None,
    schedules: int = 3,
    max_points: int | None = None,
    limit: float = LIMIT,
    pairs: int = 0,
    jobs: int = 1,
    check: bool = True,
) -> SweepReport:
    """Raise an error in each target at every point where it waits, one in each run, and
    return what came of it.

    The error comes out of what the target waits for, in place of a result. An
    operation that has completed is never turned into one that has failed, so there is
    no arrival ``woken``. An error of ours that leaves the program, or one that was
    raised from it, is not wrong; a failed assert is. So ``raise KeyError from error`` is
    not found: whoever means to raise another class asserts which one it is.

    ``error`` is a class, or a function that makes an error; KeyboardInterrupt too. The
    second error of a pair may also strike the target that had the first.

    ``arrivals`` are ``blocked``, ``elsewhere`` and ``late``, and of a KeyboardInterrupt
    also ``checkpoint``: it comes out of a checkpoint, as a Ctrl+C does, of any in the
    main task, and of those in another task that are not protected from it. The other
    arguments and errors are those of `cancel_everywhere`.
    """
    _require_errors(error)
    there = (*IN_WAIT, CHECKPOINT) if is_interrupt(error) else IN_WAIT
    sweep = _Sweep(
        program=program,
        kind="raise",
        arrivals=_read_arrivals(there if arrivals is None else arrivals, there),
        targets=targets,
        schedules=schedules,
        max_points=max_points,
        limit=limit,
        pairs=pairs,
        jobs=jobs,
        error=error,
        name=name_of(error),
    )
    return sweep.done(check=check)


def fault_everywhere(
    program: Program,
    *,
    seams: str | Iterable[str] | None = None,
    schedules: int = 3,
    max_points: int | None = None,
    limit: float = LIMIT,
    pairs: int = 0,
    jobs: int = 1,
    check: bool = True,
) -> SweepReport:
    """Let each call of an operation on the world go wrong, in each way in which it can,
    one in each run, and return what came of it.

    The operations are those of ``sim.network()``, as ``network.send``, which
    `supervisor.simulation.network.Network.seams` lists with what goes wrong, and those
    of ``sim.env()``, as ``processes.spawn``, ``files.append`` or ``clock.now``, which
    `actors.testing.FakeEnv.seams` lists. ``seams`` are the names of those that are to be
    tried, with ``*``; all if there are none.

    What a call that goes wrong raises is no fault of the program, nor what was raised
    from it; a failed assert is. The other arguments and errors are those of
    `cancel_everywhere`.
    """
    sweep = _Sweep(
        program=program,
        kind="fault",
        targets=seams,
        schedules=schedules,
        max_points=max_points,
        limit=limit,
        pairs=pairs,
        jobs=jobs,
    )
    return sweep.done(check=check)


def _read_arrivals(
    arrivals: Iterable[str], there: Sequence[str] = ARRIVALS
) -> tuple[str, ...]:
    """Return arrivals, each once. Raises TypeError and ValueError for what is none."""
    if isinstance(arrivals, str):
        text = f"arrivals are several, as ({arrivals!r},), not {arrivals!r}"
        raise TypeError(text)
    read = tuple(dict.fromkeys(arrivals or ()))
    if not read:
        raise ValueError(f"no arrival is no fault; arrivals are {', '.join(there)}")
    for arrival in read:
        if arrival not in there and arrival == "woken":
            text = "an operation that is done cannot fail: no arrival 'woken'"
            raise ValueError(text)
        if arrival not in there:
            raise ValueError(f"arrivals are {', '.join(there)}; not {arrival!r}")
    return read


if TYPE_CHECKING:
    from .jobs import Slate

Key = tuple[str, str, str]
"""By what strikes are alike: the site, the arrival, and the kind of what is wrong."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@attrs.frozen
class _Strike:
    """What is to be done at one point."""

    seed: int
    fault: Fault
    pairs: int = 0
    """How many faults are to be added, each in a run of its own."""
    compared: bool = False
    """It is done twice, and both runs are compared."""


@attrs.frozen
class _Struck:
    """What came of one run, as a process can send it."""

    seed: int
    asked: tuple[Fault, ...]
    """Its faults: one, or two."""
    struck: Fault
    """The last of them, with where and when it struck."""
    fired: bool
    tape: Tape
    kind: str = ""
    text: str = ""
    """What was wrong; "" if nothing."""
    notes: tuple[str, ...] = ()
    lost: bool = False
    """It could not be ended, and nothing is known of it but that."""

    @property
    def key(self) -> Key:
        return self.struck.site, self.struck.arrival, self.kind


@attrs.define(kw_only=True)
class _Sweep:
    program: Program
    kind: Literal["cancel", "raise", "fault"]
    arrivals: Sequence[str] = ()
    targets: str | Iterable[str] | None
    schedules: int
    max_points: int | None
    limit: float
    pairs: int
    jobs: int
    twice: bool = False
    error: Errors | None = None
    name: str = ""
    """Of the error's class, as a tape has it."""
    unmet: Counter[str] = attrs.Factory(Counter[str])
    """What the program itself lets go wrong, and never does, by runs without faults."""
    runs: int = 0
    names: Sequence[str] | None = None
    """Of the targets that are asked for, with ``*``; None if all are."""
    beat: Callable[[str], object] = nobody
    """Hears of each run before it, with its tape."""
    slate: Slate | None = None
    """Where a process writes down the schedule of its run."""

    def done(self, *, check: bool) -> SweepReport:
        """Do the sweep, and return its report or raise it."""
        require_count("schedules", self.schedules)
        require_count("jobs", self.jobs)
        require_count("pairs", self.pairs, 0)
        require_most("max_points", self.max_points)
        self.names = read_names(self.targets)
        with session():
            todo = self._points(self.names)
            chosen = some(todo, self.max_points)
            strikes = _with_pairs(chosen, self.pairs)
            all_struck = [
                it for each in self._each(strikes, self._strike, _lost) for it in each
            ]
            self.runs += len(all_struck)
            wrong = [it for it in all_struck if it.text]
            first = {it.key: it for it in reversed(wrong)}
            times = Counter(it.key for it in wrong)
            kept = [first[key] for key in dict.fromkeys(it.key for it in wrong)]
            rows = [
                *self._each(kept[:SHRUNK], self._shrunk, self._unshrunk),
                *self._each(kept[SHRUNK:], self._checked, self._unshrunk),
            ]
            counts = [times[it.key] for it in kept]
            rows = [
                attrs.evolve(row, count=count)
                for row, count in zip(rows, counts, strict=True)
            ]
        again = sum(it.asked[-1].kind == "again" for it in all_struck)
        both = [
            (it.asked[0], it.asked[1])
            for it in all_struck
            if len(it.asked) > 1 and it.asked[1].kind != "again"
        ]
        report = SweepReport(
            kind=f"{self.kind} {self.name.rpartition(':')[2]}".strip(),
            rows=rows,
            points=len(chosen),
            runs=self.runs,
            skipped=len(todo) - len(chosen),
            never_fired=[it.asked[-1] for it in all_struck if not it.fired],
            schedules=self.schedules,
            arrivals=list(
                self.arrivals or dict.fromkeys(fault.arrival for _, fault in todo)
            ),
            notes=self.unmet
            + Counter(
                note
                for it in all_struck
                for note in it.notes
                if not note.startswith(UNMET)
            ),
            again=again,
            pairs=both,
            struck=[*dict.fromkeys(fault.target for _, fault in chosen)],
            unmet=self._unmet(len(both), again),
        )
        if check and (rows or report.never_fired):
            raise SimulationFailed(report)
        return report

    def _unmet(self, pairs: int, again: int) -> list[str]:
        """Return what was asked for and did not come about."""
        unmet: list[str] = []
        if self.twice and not again:
            unmet.append("no second cancel: no target has a shield with a deadline")
        if pairs < self.pairs:
            text = (
                f"{pairs} of {self.pairs} pairs: after a first fault there are no more"
            )
            unmet.append(f"{text} points of others, or something was wrong already")
        return unmet

    def _once(self, seed: int, **options: Any) -> tuple[Run, list[Fault]]:
        pick = policy_of(None).start(seed)
        if self.slate is not None:
            from .jobs import written  # It is there: this is one of several processes.

            pick = written(self.slate, seed, pick)
        return once(self.program, pick, seed=seed, limit=self.limit, **options)

    def _points(self, names: Sequence[str] | None) -> list[tuple[int, Fault]]:
        found: list[tuple[int, Fault]] = []
        called: set[str] = set()
        for seed in range(self.schedules):
            run, faults = self._once(seed, count=[(self.kind, tuple(self.arrivals))])
            _require_clean(run, seed)
            self.unmet.update(it for it in run.notes if it.startswith(UNMET))
            with scattered():
                again, _ = self._once(seed)
            self.runs += 2
            require_equal(run, again, partial(self._once, seed))
            called.update(fault.target for fault in faults)
            found += [
                (seed, fault)
                for fault in self._named(faults)
                if is_named(fault.target, names)
            ]
        missing = tuple(it for it in names or () if not any_named(called, it))
        if missing or not found:
            raise NothingToStrike(missing, self._why_nothing(called, missing))
        return found

    def _why_nothing(self, called: Collection[str], missing: Sequence[str]) -> str:
        if self.kind == "fault":
            return no_call(called, missing)
        ways = [("cancel", ARRIVALS), ("raise", (*IN_WAIT, CHECKPOINT))]
        begun: dict[str, bool] = {}
        there: list[Fault] = []
        for seed in range(self.schedules):
            drivers: list[Driver] = []
            there += self._once(seed, count=ways, listen=drivers.append)[1]
            begun |= drivers[0].begun
        is_ki = self.error is not None and is_interrupt(self.error)
        arriving = (*ARRIVALS, CHECKPOINT) if is_ki else ARRIVALS
        able = [it for it in there if it.kind == self.kind and it.arrival in arriving]
        return no_point(begun, there, able, self.arrivals, missing)

    def _named(self, faults: Iterable[Fault]) -> list[Fault]:
        return [
            attrs.evolve(it, error=self.name if it.kind == "raise" else "")
            for it in faults
        ]

    def _strike(self, strike: _Strike) -> list[_Struck]:
        """Put a fault in, and in further runs another one after it."""
        seed, fault = strike.seed, strike.fault
        count: list[tuple[str, tuple[str, ...]]] = []
        if self.twice:
            count.append(("again", ("blocked",)))
        if strike.pairs:
            count.append((self.kind, tuple(self.arrivals)))
        run, points = self._run(seed, (fault,), count)
        if strike.compared:
            with scattered():
                other, _ = self._run(seed, (fault,), ())
            require_equal(run, other, partial(self._run, seed, (fault,), ()))
        all_struck = [_struck(seed, (fault,), run)]
        if not run.faults or all_struck[0].text:
            return all_struck
        again = [it for it in points if it.kind == "again"]
        after = [
            it
            for it in self._named(points)
            if it.kind != "again"
            and is_named(it.target, self.names)
            and moment(it) > moment(run.faults[0])
            # A second cancel of one target is what comes again.
            and (it.kind != "cancel" or it.target != fault.target)
        ]
        chance = Random(f"pairs {seed} {fault}")
        drawn = chance.sample(after, min(strike.pairs, len(after)))
        for second in (*again, *drawn):
            run, _ = self._run(seed, (fault, second), ())
            all_struck.append(_struck(seed, (fault, second), run))
        return all_struck

    def _run(
        self, seed: int, faults: tuple[Fault, ...], count: Any
    ) -> tuple[Run, list[Fault]]:
        self.beat(str(Tape((), faults, seed)))
        return self._once(seed, faults=faults, error=self.error, count=count)

    def _shrunk(self, it: _Struck) -> Row:
        """Return the row of a strike, with the smallest tape that was found."""
        if it.lost:
            return self._row(it)
        run, _ = self._run(it.seed, it.asked, ())
        do = partial(self._run, it.seed, it.asked, ())
        require_failing(run, it.tape, it.kind, do)
        limit, error = self.limit, self.error
        given = self.program, run, it.kind, limit, error, self.beat
        tape = smaller(*given, site=it.struck.site)
        self.beat(str(tape))
        require_told(self.program, tape, it.kind, limit, error)
        parts = parting_line(self.program, run, tape, limit, error)
        return self._row(attrs.evolve(it, tape=tape), parts)

    def _checked(self, it: _Struck) -> Row:
        """Return the row of a strike with its tape as it is."""
        if not it.lost:
            self.beat(str(it.tape))
            require_told(self.program, it.tape, it.kind, self.limit, self.error)
        return self._row(it)

    def _unshrunk(self, it: _Struck, doing: Tape, why: str) -> Row:
        return self._row(it)

    def _row(self, it: _Struck, parts: str = "") -> Row:
        return Row(
            it.struck.site,
            it.struck.arrival,
            it.struck.after,
            it.text,
            1,
            it.tape,
            replay=replay_line(self.program, it.tape),
            parts=parts,
            place=it.struck.place or place_of(self.program),
        )

    def _each(
        self,
        items: Sequence[Item],
        do: Callable[[Item], Result],
        lost: Callable[[Item, Tape, str], Result],
    ) -> list[Result]:
        """Do something with each item, in one process or in several; what a process was
        doing that has died, or did not end, is ``lost``."""
        jobs = min(self.jobs, len(items))
        if self.jobs == 1 or not items:
            return [do(it) for it in items]
        from . import jobs as processes  # It needs much that most do not.

        if not processes.can_fork():
            raise ValueError("this system cannot fork: there is only one job")

        def work(
            number: int, done: int, beat: Callable[[str], object], slate: Slate
        ) -> Iterator[tuple[int, Result]]:
            self.beat, self.slate = beat, slate
            for at in range(number + jobs * done, len(items), jobs):
                yield at, do(items[at])

        results: dict[int, Result] = {}
        patience = processes.PATIENCE
        for got in processes.in_processes(jobs, work, patience=patience):
            if isinstance(got, processes.Lost):
                at = got.number + jobs * got.done
                written = Tape.parse(got.written)
                doing = attrs.evolve(written, faults=Tape.parse(got.doing).faults)
                results[at] = lost(items[at], doing, got.why)
            else:
                results[got[0]] = got[1]
        return [results[at] for at in range(len(items))]


def _with_pairs(chosen: Sequence[tuple[int, Fault]], pairs: int) -> list[_Strike]:
    """Say at which points another fault is to be added: each of some by chance gets as
    many as the others, the same each time."""
    more: Counter[int] = Counter()
    if chosen:
        places = Random("pairs").sample(range(len(chosen)), len(chosen))
        more.update(places[number % len(places)] for number in range(pairs))
    return [_Strike(*it, more[at], at % VERIFY == 0) for at, it in enumerate(chosen)]


def _struck(seed: int, asked: tuple[Fault, ...], run: Run) -> _Struck:
    struck = run.faults[-1] if run.faults else asked[-1]
    fired = len(run.faults) == len(asked)
    wrong, notes = wrong_in(run), tuple(dict.fromkeys(run.notes))
    if not wrong:
        return _Struck(seed, asked, struck, fired, run.tape, notes=notes)
    text = "\n".join(it.text for it in wrong)
    return _Struck(seed, asked, struck, fired, run.tape, wrong[0].kind, text, notes)


def _lost(strike: _Strike, doing: Tape, why: str) -> list[_Struck]:
    asked = doing.faults or (strike.fault,)
    tape = attrs.evolve(doing, faults=asked, seed=strike.seed)
    text = f"Hang: it cannot be ended: {why}"
    struck = _Struck(strike.seed, asked, strike.fault, True, tape, "Hang", text)
    return [attrs.evolve(struck, lost=True)]


def _require_errors(error: Any) -> None:
    what = "a class of errors, or a function that makes one"
    require_callable("error", error, what)
    try:
        made = error()
    except Exception as raised:
        text = f"error must be {what} without arguments; {error!r} raises"
        raise ValueError(f"{text} {type(raised).__name__}: {raised}") from raised
    if not isinstance(made, BaseException):
        raise TypeError(f"error must be {what}; {error!r} makes {made!r}")


def _require_clean(run: Run, seed: int) -> None:
    if wrong := wrong_in(run):
        under = "round robin" if seed == 0 else f"the schedule of seed {seed}"
        by_hand = [str(it[2]) for it in run.log if it[1] == BY_HAND]
        why = "without any fault"
        if by_hand:
            why = f"by what its own sim.fault lets go wrong ({', '.join(by_hand)})"
        text = f"the program fails {why}, under {under}: {wrong[0].text}"
        raise ProgramFailed(text) from run.error
