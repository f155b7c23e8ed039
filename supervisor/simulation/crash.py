"""A crash at each change of the disk, and what a program makes of what it leaves.

    from supervisor.simulation.crash import crash_everywhere

    async def program(sim, disk):
        store = Store(disk.files)
        for number in range(3):
            store.put(number)
            disk.tell(number)              # from now on somebody relies on it

    async def recover(sim, disk):          # a new program, on what is left of the disk
        store = Store(disk.files)
        assert {*disk.told} <= store.numbers()

    crash_everywhere(program, recover)

A crash runs no ``finally`` and no ``except``. So nothing is unwound: at each change of
the disk the disk is kept as it is, with what others have been told by then, and the
program goes on. Afterwards ``recover`` is run on each of these disks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial, wraps
from hashlib import blake2b
from itertools import islice
from random import Random
from typing import Any, TypeAlias, cast

import attrs
import trio

from actors.testing import DiskImage, DiskStep, FakeDisk, FakeEnv, FakeFiles

from ._errors import NotAProgram, NothingToStrike, ProgramFailed, TapeDoesNotFit
from ._public import publish as _publish
from ._search.again import called, place_of
from ._search.explore import VERIFY, require_equal, require_failing
from ._search.losses import CRASHES, Crash, left, ways
from ._search.report import Row, SimulationFailed, SweepReport, wrong_in
from ._search.shrink import shrink
from ._search.swarm import some
from ._steering import sites
from ._steering.checks import require_count, require_most
from ._steering.policies import Pick, Replay, policy_of
from ._steering.run import LIMIT, Run
from ._steering.session import scattered, session
from ._steering.sim import Sim
from ._steering.simulate import begun, once
from ._steering.tape import Fault, Tape

__all__ = ["Disk", "crash", "crash_everywhere"]

DiskProgram: TypeAlias = "Callable[[Sim, Disk], Awaitable[Any]]"
"""An async function that gets a `Sim` and a `Disk`."""


@attrs.frozen
class _Left:
    """What there is after a crash."""

    disk: FakeDisk
    told: tuple[Any, ...] = ()
    names: int = 0
    """How many names were given by then."""
    seconds: float = 0.0
    """What the clock on the wall said."""


@attrs.frozen
class _Moment:
    """The disk just before it is changed, or at the end of the program."""

    image: DiskImage
    step: DiskStep | None
    """None at the end of the program."""
    site: str
    place: str
    told: tuple[Any, ...]
    names: int
    seconds: float

    def after(self, way: str) -> _Left:
        """Return what there is after a crash that leaves the disk so."""
        disk = left(self.image, self.step, way)
        return _Left(disk, self.told, self.names, self.seconds)


class Disk:
    """A disk in memory, and what others know of the program that writes to it.

    A program and what recovers from it get one. For other sweeps than those of crashes,
    ``Disk(sim)`` is a new one.

    Attributes:
        files: the `Files` on it.
        told: what `tell` was given, in order. After a crash it is what others had been
            told before, and `tell` adds to it.
    """

    def __init__(self, sim: Sim, before: _Left | None = None) -> None:
        before = before or _Left(FakeDisk())
        self.told: list[Any] = [*before.told]
        self._sim = sim
        self._env = sim.env()
        self._env.ids.given = before.names
        self._env.clock.ahead = before.seconds
        self.files: FakeFiles = FakeFiles(before.disk)
        self.files.faults = self._env.files.faults
        self.files.now = self._env.clock.seconds

    def tell(self, what: Any) -> None:
        """Note what somebody outside has learned just now, and will rely on: that a
        call has returned, that a message was handed over or acknowledged."""
        self.told.append(what)

    def env(
        self,
        commands: Mapping[str, Any] | Callable[[str], Any] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> FakeEnv:
        """Return an `Env` of these commands on this disk, as `Sim.env` does.

        The processes of a program that has crashed are gone. Names are not given again,
        and the clock on the wall goes on.
        """
        env = self._sim.env(commands, environment=environment)
        world = self._env
        return attrs.evolve(env, files=self.files, ids=world.ids, clock=world.clock)


def crash_everywhere(
    program: DiskProgram,
    recover: DiskProgram,
    *,
    crashes: Sequence[Crash] = CRASHES,
    schedules: int = 1,
    again: int = 50,
    max_points: int | None = None,
    limit: float = LIMIT,
    check: bool = True,
) -> SweepReport:
    """Let a program crash at each change of its disk, recover from what each crash
    leaves, and return what came of it.

    A program that is correct recovers from any crash: what it has told others is there,
    and what it finds is whole. The invariants are the asserts of ``recover``. Its run is
    looked at as that of any program.

    Args:
      program: an async function that gets a `Sim` and a `Disk`. It may not fail.
      recover: likewise; its disk is what a crash has left.
      crashes: what happens. ``kill``: the program dies between two changes. ``torn``: it
        dies in a write, of which there is a part. ``power``: the machine dies, and what
        was not synced is there or not, each file and the names for themselves. A program
        that does not promise to survive that is swept without it. `crash` has the
        names of all ways.
      schedules: under how many schedules of the program; the first is round robin.
        ``recover`` runs under round robin.
      again: how many crashes of ``recover`` are tried, drawn from all of them. It is run
        once more on what each leaves.
      max_points: how many crashes of the program to try at most, drawn from all; the
        same each time.
      limit: virtual seconds after which a run is ended as a `Hang`.
      check: raise SimulationFailed, which has the report, if something is wrong.

    Of crashes that leave the same files, with as much told, the first is tried. In the
    report a row has the line that was about to change the disk, and what was left.
    Raises NotAProgram, ProgramFailed if the program fails by itself, or ``recover`` does
    on all that is there when the program has ended, and NothingToStrike if nothing is
    changed. Some runs of ``recover`` are done twice, and each tape is replayed before it
    is told: raises NotDeterministic where both differ.
    """
    kinds = tuple(crashes)
    if not kinds or not {*kinds} <= {*CRASHES}:
        raise ValueError(f"crashes are {', '.join(CRASHES)}; not {crashes!r}")
    require_count("schedules", schedules)
    require_count("again", again, 0)
    require_most("max_points", max_points)
    sweep = _Sweep(program, recover, kinds, limit)
    with session():
        report = sweep.done(schedules, again, max_points)
    if check and report.rows:
        raise SimulationFailed(report)
    return report


def crash(
    program: DiskProgram,
    recover: DiskProgram,
    tape: Tape | str,
    *,
    limit: float = LIMIT,
) -> Run:
    """Let a program crash as a tape says, and return the run of ``recover`` on what is
    left then.

    A tape says ``crash write kill 3``: at the third change of the disk, a write. What is
    left then has one of these names:

    ``kill``         all that was written
    ``torn-1``       of the write under way one byte; ``torn-half``, ``torn-last``: half,
                     all but the last byte
    ``power``        what was synced
    ``power-names``  that, and all names: a file that was renamed before it was synced is
                     there without its contents
    ``power-data``   that, and all contents: a name that was not synced is not there
    ``lost:FILE``    all but what was not synced of that file
    ``kept:FILE``    what was synced, and all of that file

    Raises TapeDoesNotFit if the program does not change its disk so, and ValueError for
    a tape without a crash.
    """
    tape = Tape.of(tape)
    if not tape.faults:
        raise ValueError("the tape has no crash: `simulate` plays it")
    with session():
        return _replayed(program, recover, tape, limit)[0]


def _once(
    program: DiskProgram,
    before: _Left | None,
    pick: Pick,
    limit: float,
    seed: int = 0,
    *,
    record: bool = True,
) -> tuple[Run, list[_Moment]]:
    """Run a program on what there is; return its run and the last moment, and if it is
    to ``record`` them each one before a change of the disk."""
    moments: list[_Moment] = []

    @wraps(program.func if isinstance(program, partial) else program)
    async def main(sim: Sim) -> Any:
        disk = Disk(sim, before)
        world = disk.env()

        def keep(step: DiskStep | None) -> None:
            site, place = "the end", ""
            if step is not None:
                site, place = sites.caller(), sites.place_here()
            image, told = disk.files.disk.image(), (*disk.told,)
            now = world.clock.ahead + trio.current_time()
            names = world.ids.given
            moments.append(_Moment(image, step, site, place, told, names, now))

        disk.files.disk.on_step = keep if record else None
        value = await begun(program, Sim=sim, Disk=disk)
        disk.files.disk.on_step = None
        keep(None)
        return value

    run, _ = once(main, pick, seed=seed, limit=limit)
    if isinstance(run.error, NotAProgram):
        raise run.error
    return run, moments


def _recovered(
    recover: DiskProgram, there: _Left, limit: float, *, record: bool
) -> tuple[Run, list[_Moment]]:
    return _once(recover, there, policy_of(None).start(0), limit, record=record)


def _replayed(
    program: DiskProgram, recover: DiskProgram, tape: Tape, limit: float
) -> tuple[Run, Tape]:
    """Return the last run of a tape with crashes, and the tape as it was played."""
    pick = Replay({it.step: it.place for it in tape.deviations}).start(0)
    run, moments = _once(program, None, pick, limit, tape.seed)
    deviations, faults = run.tape.deviations, list[Fault]()
    for fault in tape.faults:
        moment = moments[fault.point - 1] if 0 < fault.point <= len(moments) else None
        if moment is None or fault not in _faults(moment, fault.point, CRASHES):
            raise TapeDoesNotFit(f"the program has no point at which to {fault}")
        faults += [it for it in _faults(moment, fault.point, CRASHES) if it == fault]
        there = moment.after(fault.arrival)
        run, moments = _recovered(recover, there, limit, record=True)
    return run, Tape(deviations, tuple(faults), tape.seed)


def _faults(moment: _Moment, number: int, crashes: Sequence[str]) -> list[Fault]:
    """Return each way to crash at a moment, of that number."""
    kind, path = "end", ""
    if moment.step is not None:
        kind, path = moment.step.kind, str(moment.step.path)
    return [
        Fault(
            "crash",
            kind,
            way,
            number,
            site=moment.site,
            after=path,
            place=moment.place,
        )
        for way in ways(moment.image, moment.step, crashes)
    ]


_Point: TypeAlias = "tuple[_Moment, Fault]"


@attrs.define
class _Sweep:
    program: DiskProgram
    recover: DiskProgram
    crashes: Sequence[str]
    limit: float
    runs: int = 0
    points: int = 0
    seen: set[bytes] = attrs.Factory(set[bytes])
    """What was recovered from already."""
    found: dict[tuple[str, str, str], Row] = attrs.Factory(
        dict[tuple[str, str, str], Row]
    )
    times: Counter[tuple[str, str, str]] = attrs.Factory(Counter[tuple[str, str, str]])

    def done(self, schedules: int, again: int, max_points: int | None) -> SweepReport:
        """Do the sweep, inside of a session."""
        whole = [self._whole(seed) for seed in range(schedules)]
        todo = [
            (tape, point)
            for tape, moments in whole
            for point in filter(self._is_new, self._points(moments))
        ]
        if all(fault.target == "end" for _, (_, fault) in todo):
            what = "the program never changes its disk: let it write to `disk.files`"
            raise NothingToStrike(what=what)
        self._require_recovery(whole[0][1][-1])
        chosen = some(todo, max_points)
        clean: list[tuple[Tape, _Point]] = []
        for before, (moment, fault) in chosen:
            tape = attrs.evolve(before, faults=(fault,))
            if self._strike(tape, moment, fault):
                clean.append((tape, (moment, fault)))
        self._again(clean, again)
        return SweepReport(
            kind="crash",
            rows=[
                attrs.evolve(row, count=self.times[key])
                for key, row in self.found.items()
            ],
            points=self.points,
            runs=self.runs,
            skipped=len(todo) - len(chosen),
            never_fired=[],
            schedules=schedules,
            arrivals=list(self.crashes),
        )

    def _whole(self, seed: int) -> tuple[Tape, list[_Moment]]:
        """Run the program to its end; return its tape and its moments."""

        def do() -> tuple[Run, list[_Moment]]:
            pick = policy_of(None).start(seed)
            return _once(self.program, None, pick, self.limit, seed)

        self.runs += 2
        run, moments = do()
        if wrong := wrong_in(run):
            text = f"the program fails without any crash: {wrong[0].text}"
            raise ProgramFailed(text) from run.error
        with scattered():
            other, _ = do()
        require_equal(run, other, do)
        return run.tape, moments

    def _require_recovery(self, end: _Moment) -> None:
        """Raise ProgramFailed unless what recovers does on all that there is."""
        self.runs += 1
        run, _ = _recovered(self.recover, end.after("kill"), self.limit, record=False)
        if wrong := wrong_in(run):
            text = f"the recovery fails without any crash: {wrong[0].text}"
            raise ProgramFailed(text) from run.error

    def _points(self, moments: Sequence[_Moment]) -> list[_Point]:
        """Return the crashes at these moments."""
        return [
            (moment, fault)
            for number, moment in enumerate(moments, 1)
            for fault in _faults(moment, number, self.crashes)
        ]

    def _is_new(self, point: _Point) -> bool:
        """Tell whether a crash leaves what no crash before it has left."""
        moment, fault = point
        digest = _digest(moment.after(fault.arrival))
        is_new = digest not in self.seen
        self.seen.add(digest)
        return is_new

    def _strike(self, tape: Tape, moment: _Moment, fault: Fault) -> bool:
        """Recover from one crash; return whether nothing is wrong then."""
        self.points += 1

        def do() -> tuple[Run, list[_Moment]]:
            there = moment.after(fault.arrival)  # Each run writes to its disk.
            return _recovered(self.recover, there, self.limit, record=False)

        self.runs += 1
        run, _ = do()
        if self.points % VERIFY == 1:
            self.runs += 1
            with scattered():
                other, _ = do()
            require_equal(run, other, do)
        wrong = wrong_in(run)
        if not wrong:
            return True
        key = fault.site, fault.arrival.partition(":")[0], wrong[0].kind
        self.times[key] += 1
        if key not in self.found:
            text = "\n".join(it.text for it in wrong)
            smaller = self._smaller(tape, wrong[0].kind)
            self._require_told(smaller, wrong[0].kind)
            both = f"{called(self.program)}, {called(self.recover)}"
            self.found[key] = Row(
                *key[:2],
                "",
                text,
                1,
                smaller,
                replay=f'{__name__}.crash({both}, "{smaller}")',
                place=fault.place or place_of(cast("Any", self.program)),
            )
        return False

    def _smaller(self, tape: Tape, kind: str) -> Tape:
        if not tape.deviations:
            return tape  # It is that of the first crash that is wrong.

        def attempt(candidate: Tape) -> Tape | None:
            if len(candidate.faults) < len(tape.faults):
                return None
            try:
                run, played = _replayed(
                    self.program, self.recover, candidate, self.limit
                )
            except TapeDoesNotFit:
                return None
            wrong = wrong_in(run)
            return played if wrong and wrong[0].kind == kind else None

        return shrink(tape, attempt)[0]

    def _require_told(self, tape: Tape, kind: str) -> None:
        """Raise NotDeterministic unless a tape that is to be told fails when it is
        replayed by its text."""
        given = Tape.parse(str(tape))
        do = partial(_replayed, self.program, self.recover, given, self.limit)
        with scattered():
            run, _ = do()
        require_failing(run, given, kind, do)

    def _again(self, clean: Sequence[tuple[Tape, _Point]], most: int) -> None:
        """Let what recovers crash, too, at points that are drawn from all."""
        random = Random("again")

        def crashes(moment: _Moment, fault: Fault) -> Iterator[_Point]:
            self.runs += 1
            there = moment.after(fault.arrival)
            _, moments = _recovered(self.recover, there, self.limit, record=True)
            points = self._points(moments)
            random.shuffle(points)
            yield from filter(self._is_new, points)

        drawn = random.sample(clean, min(most, len(clean)))
        turns = deque((tape, crashes(*point)) for tape, point in drawn)
        # In turn, or a recovery that writes much would have them all.
        while most > 0 and turns:
            tape, points = turns.popleft()
            for moment, fault in islice(points, 1):
                twice = attrs.evolve(tape, faults=(*tape.faults, fault))
                self._strike(twice, moment, fault)
                turns.append((tape, points))
                most -= 1


def _digest(there: _Left) -> bytes:
    """Return what is the same for crashes that leave the same."""
    found = blake2b(repr(there.told).encode(), digest_size=16)
    for path, entry in sorted(there.disk.entries.items()):
        data = entry.encode() if isinstance(entry, str) else bytes(entry.data)
        found.update(repr((str(path), type(entry).__name__, len(data))).encode())
        found.update(data)
    return found.digest()


_publish(globals())
