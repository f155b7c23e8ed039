"""A program under many schedules, without faults or with a few by chance."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NoReturn, cast

import attrs

from .._errors import Hang, NotDeterministic, NothingToStrike
from .._steering.checks import require_count, require_number, require_whole
from .._steering.hearing import PROBES
from .._steering.policies import (
    Exhaustive,
    Pick,
    Policy,
    Replay,
    exhaustive_of,
    policy_of,
)
from .._steering.run import LIMIT, Run
from .._steering.seams import UNMET
from .._steering.session import scattered, session
from .._steering.simulate import Errors, Program, once, replayed
from .._steering.tape import Fault, Tape
from .._steering.targets import is_named, read_names
from .again import parting_line, place_of, replay_line
from .report import Campaign, Failure, SimulationFailed, wrong_in
from .shrink import BUDGET, shrink
from .swarm import COUNT, drawn, kind_of, read_kinds, require_faults, unmet

if TYPE_CHECKING:
    from .._steering.probes import Met
    from .jobs import Slate
    from .reached import Reached

VERIFY = 20
"""Each run of such a number is done twice, and both are compared."""

FEW = 10
"""So many tapes are tried to make one smaller that hangs."""

KINDS = 5
"""So many different failures are told."""

WIDE = 100_000
"""So many schedules are kept to be tried later."""


LOOKED = 3
"""In so many more runs is looked for points before it is said that there are none: those
of a campaign may be known from its log alone."""

What = tuple[str, str, str]
"""The kind of a point, its target, and its arrival."""


def explore(
    program: Program,
    *,
    seeds: int | Iterable[int],
    policy: Policy | Exhaustive | str = "portfolio",
    faults: str | Iterable[str] | None = None,
    targets: str | Iterable[str] | None = None,
    jobs: int = 1,
    limit: float = LIMIT,
    check: bool = True,
) -> Campaign:
    """Run a program under many schedules, and return what came of it.

    Args:
      program: an async function that gets a `Sim`.
      seeds: the seeds, or how many, from 0 on. Seed 0 of the portfolio is round robin.
      policy: what makes schedules of them, by its name or as an object. By
        ``"exhaustive"``, or `Exhaustive`, no schedule is tried twice, and there are at
        most as many runs as ``seeds`` says.
      faults: with ``"swarm"`` the program is run once more under each schedule, with up
        to three faults of some kinds: each seed has a few kinds by chance. Or the kinds
        to draw from, with ``*``: ``cancel``, ``"cancel late"``, ``raise``, ``"raise
        OSError"``, ``"network.*"``. An error of ours that leaves it is not wrong.
      targets: the names of the targets to strike, with ``*``; all if there are none.
      jobs: in how many processes. A run that cannot be ended, as one that never awaits,
        then costs one of them, and is told. It needs a system that can fork.
      limit: virtual seconds after which a run is ended as a `Hang`.
      check: raise SimulationFailed, which has the report, if a run fails.

    The first failure of each kind is made smaller and told. Every twentieth run is done
    twice. Raises NotDeterministic if both differ, and NothingToStrike if faults are
    asked for and the program has no point for them.
    """
    numbers = read_seeds(seeds)
    require_count("jobs", jobs)
    if exhaustive_of(policy) and (jobs > 1 or read_kinds(faults)):
        raise ValueError("exhaustive has one job, and no faults")
    search = Search(program, policy, faults, targets, limit)
    tally = Tally(program)
    for tried in tries(search, numbers, jobs):
        tally.add(tried)
    if not tally.runs:
        raise ValueError("seeds has none, and no run proves nothing")
    search.require_points(tally)
    campaign = tally.campaign()
    if check and campaign.failed:
        raise SimulationFailed(campaign)
    return campaign


def read_seeds(seeds: int | Iterable[int]) -> Iterable[int]:
    """Return the seeds; of a number so many. Raises TypeError and ValueError for what is
    none, and for no seeds at all, which would prove nothing."""
    if isinstance(cast("object", seeds), str):
        require_whole("seeds", seeds)
    if not isinstance(seeds, Iterable):
        require_count("seeds", seeds)
        return range(seeds)
    if isinstance(seeds, range) or not isinstance(seeds, Collection):
        return seeds
    for seed in seeds:
        require_count("a seed", seed, 0)
    # What the lowest one finds is told: that is the first, also of processes.
    return sorted(seeds)


@attrs.frozen
class Tried:
    """What came of one run, as it can be sent by a process and written in a line."""

    seed: int
    digest: str
    steps: int
    seconds: float
    struck: tuple[Fault, ...] = ()
    missed: int = 0
    """How many faults came to no point."""
    wrong: str = ""
    """What was wrong, as a report tells it."""
    kind: str = ""
    failure: Failure | None = None
    """If it is the first of its kind."""
    complete: int | None = None
    lost: bool = False
    """It could not be ended."""
    probes: tuple[Met, ...] = ()
    """What the probes of the program have told."""
    notes: tuple[str, ...] = ()
    met: tuple[Fault, ...] = ()
    """The points of which its process has met no other with the same target, kind and
    arrival."""


def _reached() -> Reached | None:
    if PROBES not in sys.modules:
        return None
    from .reached import Reached

    return Reached()


@attrs.define
class Tally:
    """What came of all runs so far. Those of several processes come in any order, and
    give what those of one give."""

    program: Program
    runs: int = 0
    failed: int = 0
    missed: int = 0
    complete: int | None = None
    digests: set[str] = attrs.Factory(set[str])
    first: dict[str, Failure] = attrs.Factory(dict[str, Failure])
    struck: Counter[str] = attrs.Factory(Counter[str])
    reached: Reached | None = None
    notes: Counter[str] = attrs.Factory(Counter[str])
    met: dict[What, Fault] = attrs.Factory(dict[What, Fault])

    def add(self, tried: Tried) -> None:
        """Add a run."""
        self.runs += 1
        self.missed += tried.missed
        self.complete = tried.complete
        if not tried.lost:
            self.digests.add(tried.digest)
        self.struck.update(map(kind_of, tried.struck))
        self.notes.update(tried.notes)
        self.met |= {_what(it): it for it in (*tried.met, *tried.struck)}
        # A program may import what has probes in its first run.
        self.reached = self.reached or _reached()
        if self.reached is not None:
            self.reached.add(tried.probes, tried.seed)
        if tried.kind:
            self.failed += 1
        if tried.failure is not None:
            before = self.first.get(tried.kind)
            if before is None or tried.seed < before.seed:
                self.first[tried.kind] = tried.failure

    def campaign(self, what: str = "explore") -> Campaign:
        """Return the report."""
        return Campaign(
            runs=self.runs,
            distinct=len(self.digests),
            failures=sorted(self.first.values(), key=lambda it: it.seed)[:KINDS],
            failed=self.failed,
            complete=self.complete,
            faults=dict(sorted(self.struck.items())),
            never_fired=self.missed,
            what=what,
            probes=() if self.reached is None else self.reached.table(self.program),
            notes=dict(sorted(self.notes.items(), key=lambda it: (-it[1], it[0]))),
        )


def tries(
    search: Search,
    numbers: Iterable[int],
    jobs: int = 1,
    patience: float | None = None,
) -> Iterator[Tried]:
    """Run a program under the schedules of seeds, in one process or in several."""
    if search.exhaustive is not None:
        with session():
            yield from search.all(iter(numbers))
        return
    if jobs == 1 and patience is None:
        with session():
            for number in numbers:
                yield from search.seed(number)
        return
    from . import jobs as processes  # It needs much that most do not.

    if not processes.can_fork():
        raise ValueError("this system cannot fork: there is only one job")

    def work(
        number: int, done: int, beat: Callable[[str], object], slate: Slate
    ) -> Iterator[list[Tried]]:
        search.beat, search.slate = beat, slate
        with session():
            for seed in islice(numbers, number + jobs * done, None, jobs):
                yield search.seed(seed)

    patience = processes.PATIENCE if patience is None else patience
    for result in processes.in_processes(jobs, work, patience=patience):
        if isinstance(result, processes.Lost):
            written = Tape.parse(result.written)
            yield search.lost(written, result.doing, result.why)
        else:
            yield from result


class Search:
    """How a program is tried under the schedule of a seed."""

    def __init__(
        self,
        program: Program,
        policy: Policy | Exhaustive | str,
        faults: str | Iterable[str] | None = None,
        targets: str | Iterable[str] | None = None,
        limit: float = LIMIT,
    ) -> None:
        # Before a run, of which there may be none.
        require_number("limit", limit)
        self.exhaustive = exhaustive_of(policy)
        self.beat: Callable[[str], object] = nobody
        self.slate: Slate | None = None
        """Where a process writes down the schedule of its run."""
        self._program = program
        self._limit = limit
        self._policy = policy_of(None if self.exhaustive else policy)
        self._kinds = read_kinds(faults)
        self._met: set[What] = set()
        self._targets = read_names(targets)
        require_faults(self._kinds, self._targets)
        self._tried = 0
        self._told: set[str] = set()

    def seed(self, seed: int) -> list[Tried]:
        """Run the program under the schedule of a seed, and then with its faults."""
        require_count("a seed", seed, 0)
        count = COUNT if self._kinds else ()
        self.beat("")
        start = partial(self._start, seed)
        run, points = self._twice(partial(self._once, seed, start, count))
        tried = [self._told_of(seed, run)]
        if tried[0].kind or not self._kinds:
            return tried
        tried[0] = attrs.evolve(tried[0], met=self._news(points))
        points = [it for it in points if self._is_meant(it) and it not in run.faults]
        faults = drawn(points, self._kinds, seed)
        if faults:
            # What a buggify has done by chance belongs to the run that they are added to.
            tape = attrs.evolve(run.tape, faults=(*run.tape.faults, *faults))
            self.beat(str(tape))
            do = partial(replayed, self._program, tape, limit=self._limit)
            struck, _ = self._twice(do)
            missed = len(tape.faults) - len(struck.faults)
            tried.append(attrs.evolve(self._told_of(seed, struck), missed=missed))
        return tried

    def _start(self, seed: int) -> Pick:
        pick = self._policy.start(seed)
        if self.slate is None:
            return pick
        from .jobs import written  # It is there: this is one of several processes.

        return written(self.slate, seed, pick)

    def all(self, numbers: Iterator[int]) -> Iterator[Tried]:
        """Run the program under each schedule of no deviation, of one, of two, ..., as
        long as there are numbers and the policy has no bound."""
        most = None if self.exhaustive is None else self.exhaustive.deviations
        level: list[dict[int, int]] = [{}]
        complete: int | None = None
        # Of the schedules of a level, and of those of the next one, some are left out.
        cut = left_out = False
        while level and (most is None or len(level[0]) <= most):
            below: list[dict[int, int]] = []
            for nth, places in enumerate(level, 1):
                number = next(numbers, None)
                if number is None:
                    return
                start = partial(Replay(places).start, 0)
                run, _ = self._twice(partial(self._once, 0, start))
                last = max(places, default=-1)
                more = (
                    {**places, step: place}
                    for step, count in run.choices
                    if step > last
                    for place in range(1, count)
                )
                below += islice(more, WIDE - len(below))
                if nth == len(level) and not cut:
                    complete = 0 if complete is None else complete + 1
                left_out = left_out or next(more, None) is not None
                told = self._told_of(number, run)
                yield attrs.evolve(told, complete=complete)
            level, cut = below, left_out

    def lost(self, written: Tape, doing: str, why: str) -> Tried:
        """Return what is told of a run that was lost with its process, of the tape that
        it has written and of what it was doing if that was no run of a seed."""
        text, seed = f"Lost: {why}", written.seed
        tape = Tape.parse(doing) if doing else written
        line, place = replay_line(self._program, tape), place_of(self._program)
        failure = Failure(seed, text, tape, replay=line, place=place)
        return Tried(
            seed, "", 0, 0.0, wrong=text, kind="Lost", failure=failure, lost=True
        )

    def require_points(self, tally: Tally) -> None:
        """Raise NothingToStrike if faults were asked for and none was put in."""
        if not self._kinds or not tally.runs or tally.failed:
            return
        text = self._nothing(tally)
        if text is not None:
            with session():
                for seed in range(LOOKED):
                    points = self._once(seed, partial(self._start, seed), COUNT)[1]
                    tally.met |= {_what(it): it for it in points}
            text = self._nothing(tally)
        if text is not None:
            raise NothingToStrike(self._targets or (), text)

    def _nothing(self, tally: Tally) -> str | None:
        """Return why nothing can be struck of what is asked for, "" if nobody knows; None
        if something can."""
        text = unmet(tally.met.values(), self._kinds, self._targets)
        meant = filter(self._is_meant, tally.met.values())
        # A campaign may have ended before it came to a run with faults.
        there = tally.struck or tally.missed or drawn(meant, self._kinds, 0)
        return None if there and not text else text

    def _news(self, points: Iterable[Fault]) -> tuple[Fault, ...]:
        """Return the points that are the first of what they are."""
        first = {_what(it): it for it in points if _what(it) not in self._met}
        self._met.update(first)
        return tuple(first.values())

    def _is_meant(self, point: Fault) -> bool:
        return point.kind == "fault" or is_named(point.target, self._targets)

    def _once(
        self,
        seed: int,
        start: Callable[[], Pick],
        count: Collection[tuple[str, tuple[str, ...]]] = (),
    ) -> tuple[Run, list[Fault]]:
        return once(
            self._program,
            start(),
            seed=seed,
            limit=self._limit,
            count=count,
            chance=True,
        )

    def _twice(
        self, do: Callable[[], tuple[Run, list[Fault]]]
    ) -> tuple[Run, list[Fault]]:
        """Run the program; each time in some twice, and compare both."""
        run, points = do()
        if self._tried % VERIFY == 0:
            with scattered():
                again, _ = do()
            require_equal(run, again, do)
        self._tried += 1
        return run, points

    def _told_of(self, seed: int, run: Run) -> Tried:
        struck = tuple(run.faults)
        told = Tried(
            seed,
            run.digest,
            run.steps,
            run.seconds,
            struck,
            probes=tuple(run.probes),
            notes=_notes(run),
        )
        wrong = wrong_in(run)
        if not wrong:
            return told
        kind, text = wrong[0].kind, "\n".join(it.text for it in wrong)
        told = attrs.evolve(told, wrong=text, kind=kind)
        if kind in self._told or len(self._told) >= KINDS:
            return told
        self._told.add(kind)
        program, limit = self._program, self._limit
        tape = smaller(program, run, kind, limit, beat=self.beat)
        self.beat(str(tape))
        require_told(program, tape, kind, limit)
        failure = Failure(
            seed,
            text,
            tape,
            replay=replay_line(program, tape),
            parts=parting_line(program, run, tape, limit),
            place=wrong[0].place or _place(struck) or place_of(program),
        )
        return attrs.evolve(told, failure=failure)


def _what(point: Fault) -> What:
    return point.kind, point.target, point.arrival


def _notes(run: Run) -> tuple[str, ...]:
    # What a fault has ended early need not make the calls that it would have made.
    kept = (it for it in run.notes if not run.faults or not it.startswith(UNMET))
    return tuple(dict.fromkeys(kept))


def nobody(_: str) -> None:
    """Hear of a run."""


def _place(struck: Sequence[Fault]) -> str:
    return next((it.place for it in struck if it.place), "")


def smaller(
    program: Program,
    run: Run,
    kind: str,
    limit: float,
    error: Errors | None = None,
    beat: Callable[[str], object] = nobody,
    site: str = "",
) -> Tape:
    """Return the smallest tape found that fails as a run does, inside of a session; if
    there is a ``site``, by a fault there."""

    def attempt(tape: Tape) -> Tape | None:
        beat(str(tape))
        again, _ = replayed(program, tape, limit=limit, error=error)
        wrong = wrong_in(again)
        if not wrong or wrong[0].kind != kind:
            return None
        there = not site or any(it.site == site for it in again.faults)
        return again.tape if there else None

    # A run that spins until it is ended takes as long as hundreds of others.
    budget = FEW if isinstance(run.error, Hang) else BUDGET
    return shrink(run.tape, attempt, budget)[0]


def require_equal(one: Run, other: Run, again: Callable[[], object]) -> None:
    """Raise NotDeterministic unless two runs are equal. It has the first difference, and
    what was met when the program was run ``again``."""
    if one.digest != other.digest:
        _refuse(_difference(one, other), again)
    if _outcome(one) != _outcome(other):
        # How a run ends is no line of its log.
        _refuse(_ends(_outcome(one), _outcome(other)), again)


def require_failing(
    run: Run, tape: Tape, kind: str, again: Callable[[], object]
) -> None:
    """Raise NotDeterministic unless a run of a tape fails as it did before."""
    outcome = _outcome(run)
    if kind not in outcome[:1]:
        _refuse(f"{_ends([kind], outcome)}\n  the tape is {tape.brief()}", again)


def require_told(
    program: Program, tape: Tape, kind: str, limit: float, error: Errors | None = None
) -> None:
    """Raise NotDeterministic unless a tape that is to be told fails when it is replayed
    by its text, inside of a session."""
    given = Tape.parse(str(tape))
    do = partial(replayed, program, given, limit=limit, error=error)
    with scattered():
        run, _ = do()
    require_failing(run, tape, kind, do)


def _outcome(run: Run) -> list[str]:
    """Return what is wrong in a run, and else the error that it ends with."""
    wrong = [it.kind for it in wrong_in(run)]
    return wrong or [f"an error of ours, {type(it).__name__}" for it in _error(run)]


def _error(run: Run) -> list[BaseException]:
    return [] if run.error is None else [run.error]


def _ends(one: Sequence[str], other: Sequence[str]) -> str:
    texts = [", ".join(it) or "nothing is wrong" for it in (one, other)]
    return f"two runs of one tape end otherwise:\n  {texts[0]}\n  {texts[1]}"


def _refuse(difference: str, again: Callable[[], object]) -> NoReturn:
    from .._steering.culprits import watched  # It needs much that nobody else does.

    with watched() as culprits:
        again()
    raise NotDeterministic(difference, tuple(culprits))


def _difference(one: Run, other: Run) -> str:
    text = "two runs of one tape differ"
    pairs = zip(one.log, other.log, strict=False)
    for number, (left, right) in enumerate(pairs):
        if left != right:
            return f"{text}, at line {number} of their logs:\n  {left}\n  {right}"
    steps = zip(one.trail, other.trail, strict=False)
    for number, (mine, its) in enumerate(steps):
        if mine != its:
            whose = one.called.get(mine, "trio"), other.called.get(its, "trio")
            return f"{text}, in who takes step {number}:\n  {whose[0]}\n  {whose[1]}"
    longer = max(one, other, key=lambda it: (len(it.log), len(it.trail)))
    which = "first" if longer is one else "second"
    return (
        f"{text}, in how long they are:\n"
        f"  {one.steps} steps and {len(one.log)} lines of log\n"
        f"  {other.steps} steps and {len(other.log)} lines of log\n"
        f"  the {which} ends with {longer.log[-1]}"
    )
