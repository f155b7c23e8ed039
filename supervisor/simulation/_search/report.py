"""What a sweep or an exploration has found, as data and as a table of source lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import attrs
import trio

from .._errors import Stuck
from .._steering import sites
from .._steering.run import Run
from .._steering.tape import Fault, Tape

if TYPE_CHECKING:
    from .reached import Reach


NAMED = 5
"""So many of those who were struck are named."""


def counted(count: int, what: str) -> str:
    """Return a number of things in words."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


@attrs.frozen
class Row:
    """One thing that goes wrong: all strikes at one site that end alike."""

    site: str
    """Where the target was when it was struck: ``file.py:12 function``."""
    arrival: str
    """How the fault arrived: ``blocked``, ``woken``, ``elsewhere`` or ``late``."""
    after: str
    """Who had taken the step before, at the first of the strikes."""
    error: str
    """What was wrong then: an error of the program, or an invariant."""
    count: int
    """How many strikes ended so."""
    tape: Tape
    """What replays the first of them, made as small as it was possible."""
    replay: str = ""
    """The line that replays it: a command, or a call where none can name the program."""
    parts: str = ""
    """Where that run parts from the nearest one that passes, and who ran instead."""
    place: str = ""
    """The line of the user's at the site, as ``/path/file.py:12``."""


@attrs.frozen
class SweepReport:
    """What came of a sweep."""

    kind: str
    """What was done to the targets: ``cancel``, or ``raise`` with the error."""
    rows: Sequence[Row]
    """What is wrong; empty if nothing is."""
    points: int
    """At how many points a target was struck."""
    runs: int
    """How many runs there were: under each schedule two in which the points are
    counted, and one for each fault or pair. Those that are done once more to be
    compared, or that make what was found smaller, do not count."""
    skipped: int
    """How many points were left out, because of ``max_points``."""
    never_fired: Sequence[Fault]
    """Faults that found no point in their run. That is a fault of the sweep itself."""
    schedules: int = 1
    """Under how many schedules."""
    arrivals: Sequence[str] = ()
    """How the faults arrived."""
    again: int = 0
    """In how many runs the shield of a target was ended that had been cancelled."""
    pairs: Sequence[tuple[Fault, Fault]] = ()
    """Which two faults were put into one run, the first and the second."""
    unmet: Sequence[str] = ()
    """What was asked for and did not come about."""
    notes: Mapping[str, int] = attrs.field(default={})
    """What is worth a line and not wrong, and in how many runs it was so."""
    struck: Sequence[str] = ()
    """Whom it has struck: the names of targets, or of operations on the world."""

    def annotations(self) -> list[str]:
        """Return a line ``::error`` for each site, for GitHub to show at the user's line."""
        from .github import github_lines

        return github_lines(self)

    def __str__(self) -> str:
        """Return the table."""
        sites = len({row.site for row in self.rows})
        verb = "is" if sites == 1 else "are"
        verdict = (
            f"{counted(sites, 'site')} {verb} wrong" if sites else "nothing is wrong"
        )
        how = f"{', '.join(self.arrivals)}; {counted(self.schedules, 'schedule')}"
        head = f"{self.kind}: {counted(self.points, 'point')} ({how})"
        lines = [f"{head}, {counted(self.runs, 'run')}: {verdict}"]
        if self.struck:
            more = len(self.struck) - NAMED
            others = f" and {counted(more, 'other')}" if more > 0 else ""
            lines.append(f"  struck: {', '.join(self.struck[:NAMED])}{others}")
        if self.skipped:
            lines.append(f"  {self.skipped} points were left out: max_points")
        if self.again:
            lines.append(f"  {counted(self.again, 'second cancel')} of a target")
        if self.pairs:
            one, other = self.pairs[0]
            lines.append(f"  {counted(len(self.pairs), 'pair')}, as {one}, {other}")
        lines += [f"  {it}" for it in self.unmet]
        if self.never_fired:
            unfired = self.never_fired[0]
            lines.append(f"  {len(self.never_fired)} faults never fired, as {unfired}")
        alike: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            alike.setdefault((row.site, row.error), []).append(row)
        for (site, error), rows in alike.items():
            arrivals = ", ".join(f"{it.arrival} {it.count}" for it in rows)
            first = rows[0]
            after = f"; first after {first.after}" if first.after else ""
            lines.append(f"  {site}  ({arrivals}{after})")
            lines += [f"      {line}" for line in error.splitlines()]
            lines += _again(first)
        return "\n".join([*lines, *_noted(self.notes)])


@attrs.frozen
class Failure:
    """One schedule under which a program fails."""

    seed: int
    """The seed of the schedule."""
    error: str
    """What was wrong."""
    tape: Tape
    """What replays it, made as small as it was possible."""
    replay: str = ""
    """The line that replays it: a command, or a call where none can name the program."""
    parts: str = ""
    """Where that run parts from the nearest one that passes, and who ran instead."""
    place: str = ""
    """The line of the user's that the error came through, as ``/path/file.py:12``."""
    by: str = ""
    """The tape by which it was had again; "" if the schedule is that of the seed."""

    @property
    def heading(self) -> str:
        """What the run was: ``seed 7``, or ``the tape .sim/program-1.json``."""
        return self.by or f"seed {self.seed}"


@attrs.frozen
class Campaign:
    """What came of an exploration."""

    runs: int
    """How many times the program was run."""
    distinct: int
    """How many of the runs were different."""
    failures: Sequence[Failure]
    """The first failure of each kind."""
    failed: int = 0
    """How many runs failed."""
    complete: int | None = None
    """All schedules with so many deviations from round robin, and with fewer, were
    tried; None if that is not known."""
    faults: Mapping[str, int] = {}
    """How many faults of each kind have struck."""
    never_fired: int = 0
    """How many faults were put in that found no point, since another one came first."""
    what: str = "explore"
    probes: Sequence[Reach] = ()
    """What the probes of the program have told; first those that tell that something
    has never happened."""
    notes: Mapping[str, int] = {}
    """What is worth a line and not wrong, and in how many runs it was so."""

    def annotations(self) -> list[str]:
        """Return a line ``::error`` for each failure, for GitHub to show at the user's line."""
        from .github import github_lines

        return github_lines(self)

    def __str__(self) -> str:
        """Return the failures as text."""
        many = f"{self.failed} failed" if self.failed else "nothing is wrong"
        runs = counted(self.runs, "run")
        lines = [f"{self.what}: {runs}, {self.distinct} different: {many}"]
        if self.complete is not None:
            deviations = counted(self.complete, "deviation")
            lines.append(f"  these are all schedules with up to {deviations}")
        if self.faults:
            kinds = ", ".join(f"{kind} {it}" for kind, it in self.faults.items())
            lines.append(f"  faults: {kinds}")
        if self.never_fired:
            lines.append(
                f"  {self.never_fired} more came to no point: others struck first"
            )
        for failure in self.failures:
            lines.append(f"  {failure.heading}")
            lines += [f"      {line}" for line in failure.error.splitlines()]
            lines += _again(failure)
        lines += [f"  {it}" for it in self.probes]
        return "\n".join([*lines, *_noted(self.notes)])


NOTES = 5
"""So many notes are shown."""


def _noted(notes: Mapping[str, int]) -> list[str]:
    shown = [*notes.items()][:NOTES]
    lines = [f"  note: {note} (in {counted(runs, 'run')})" for note, runs in shown]
    more = len(notes) - len(shown)
    return [*lines, *([f"  {counted(more, 'more note')}"] if more else [])]


def _again(found: Row | Failure) -> list[str]:
    lines = [f"      shrunk: {found.tape.words()}"]
    if found.parts:
        lines.append(f"      parts: {found.parts}")
    return [*lines, f"      replay: {found.replay}"]


@attrs.define(slots=False, repr=False)
class SimulationFailed(AssertionError):
    """Raised when a sweep or an exploration has found something wrong.

    The text is the report.
    """

    report: SweepReport | Campaign
    """All that was found."""

    def __str__(self) -> str:
        return str(self.report)


@attrs.frozen
class Wrong:
    """One thing that is wrong in a run."""

    text: str
    """What a report tells."""
    kind: str
    """By what it is the same as that of another run, in which other words are told."""
    place: str = ""
    """The line of the user's that it came through; "" if that is not known."""


def wrong_in(run: Run) -> list[Wrong]:
    """Return what is wrong in a run; errors that were put in are not."""
    found = [Wrong(f"{it.kind}: {it.text}", it.kind) for it in run.findings]
    if run.error is not None:
        found += [_wrong(error) for error in own_errors(run.error, run.thrown)]
    return found


def _wrong(error: BaseException) -> Wrong:
    name = type(error).__name__
    if isinstance(error, trio.TrioInternalError) and error.__cause__ is not None:
        # Its own lines are trio's. What a callback of the program raised is its cause.
        cause = error.__cause__
        while isinstance(cause, BaseExceptionGroup):
            cause = cast("Any", cause).exceptions[0]
        inside = _wrong(cause)
        return attrs.evolve(inside, text=f"{name}: from {inside.text}")
    try:
        text = sites.ADDRESS.sub("", str(error))
    except Exception as other:
        text = f"its text raises {type(other).__name__}"
    kind = name if isinstance(error, Stuck) else f"{name} {sites.raised_at(error)}"
    place = sites.place_raised(error)
    if isinstance(error, AssertionError) and not text:
        text = sites.text(place)
    told = f"{name}: {text}" if text else name
    # Who is stuck has told where each task is.
    where = "" if isinstance(error, Stuck) else sites.failed_at(error)
    return Wrong(f"{told}\nat {where}" if where else told, kind, place)


def own_errors(
    error: BaseException, thrown: Iterable[BaseException]
) -> list[BaseException]:
    """Return what is left of an error without those that were put in, and what was
    raised from one of them."""
    if isinstance(error, BaseExceptionGroup):
        inside: Sequence[BaseException] = cast("Any", error).exceptions
        return [own for it in inside for own in own_errors(it, thrown)]
    # Who ends because of a Ctrl+C or an exit may raise one of its own.
    if not isinstance(error, Exception) and type(error) in {type(it) for it in thrown}:
        return []
    # A failed assertion is one, whatever it was raised from.
    cause: BaseException | None = error
    if isinstance(error, AssertionError):
        return [] if any(error is it for it in thrown) else [error]
    while cause is not None:
        if any(cause is it for it in thrown) or (
            isinstance(cause, BaseExceptionGroup) and _has(cause, thrown)
        ):
            return []
        # `raise ... from None` is how something else is put in its place.
        left = cause.__context__ if cause.__suppress_context__ else None
        cause = cause.__cause__ or left
    return [error]


def _has(group: Any, thrown: Iterable[BaseException]) -> bool:
    """Tell whether an error that was put in is in a group."""
    return any(
        _has(it, thrown)
        if isinstance(it, BaseExceptionGroup)
        else any(it is one for one in thrown)
        for it in group.exceptions
    )
