"""A campaign: one program for minutes, in several processes, with a line for each run.

    from supervisor.simulation.campaign import campaign

    spent = campaign(program, seconds=600, jobs=4, log="nightly.jsonl")

`trio-supervisor sim campaign` does likewise.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count, filterfalse
from typing import TYPE_CHECKING, Any, cast

import attrs

from ._errors import TapeDoesNotFit
from ._public import publish as _publish
from ._search.explore import Search, Tally, Tried, tries
from ._search.jobs import PATIENCE, can_fork
from ._search.report import Campaign, Failure
from ._steering.checks import require_count, require_most, require_time
from ._steering.policies import Policy, exhaustive_of
from ._steering.run import LIMIT
from ._steering.simulate import Program
from ._steering.tape import Tape

if TYPE_CHECKING:
    from io import FileIO

__all__ = ["Interrupted", "Spent", "campaign"]

SCHEMA = 2
"""Of the log; its first line has it."""

FIRST = 50
"""After so many runs there must have been a point for some fault."""

EVERY = 10.0
"""Seconds between two words about how it goes."""


@attrs.frozen
class Spent:
    """What came of a campaign."""

    campaign: Campaign
    """All runs, with those that the log had before."""
    seconds: float
    """How long this part of it took, in real time."""
    runs: int
    """How many runs this part of it had."""
    jobs: int
    """In how many processes."""
    complete: bool
    """It had as many runs as were asked for."""
    unwritten: str = ""
    """Why it has ended early, if its log could not be written any more."""

    @property
    def rate(self) -> float:
        """How many runs there were in a second."""
        return self.runs / self.seconds if self.seconds else 0.0

    @property
    def bound(self) -> float | None:
        """With 95 % confidence less than this part of all runs fails, by the rule of
        three; None if some have failed."""
        if self.campaign.failed or not self.campaign.runs:
            return None
        return min(3 / self.campaign.runs, 1.0)

    def __str__(self) -> str:
        """Return the report of the campaign, and what it has cost."""
        lines = [str(self.campaign)]
        processes = "1 process" if self.jobs == 1 else f"{self.jobs} processes"
        lines.append(
            f"  {self.rate:.1f} runs a second: {self.seconds:.0f} s, {processes}"
        )
        if before := self.campaign.runs - self.runs:
            lines.append(f"  {before} of the runs were in the log before")
        if self.bound is not None:
            lines.append(f"  less than {self.bound:.2g} of all runs fail (95 %)")
        if not self.complete:
            lines.append("  it has ended before all runs were done")
        if self.unwritten:
            lines.append(
                f"  it has ended early: its log is not written: {self.unwritten}"
            )
        return "\n".join(lines)


@attrs.define(slots=False, repr=False)
class Interrupted(KeyboardInterrupt):
    """A Ctrl+C in a campaign; nothing that it has found is lost."""

    spent: Spent
    """What came of it so far."""


def campaign(
    program: Program,
    *,
    seconds: float,
    runs: int | None = None,
    policy: Policy | str = "portfolio",
    faults: str | Iterable[str] | None = "swarm",
    targets: str | Iterable[str] | None = None,
    jobs: int = 1,
    limit: float = LIMIT,
    patience: float = PATIENCE,
    log: str | os.PathLike[str] | None = None,
    name: str = "",
    tell: Callable[[str], object] | None = None,
) -> Spent:
    """Run a program under ever new schedules and faults until the time is over, and
    return what came of it. Nothing that is found is raised.

    Args:
      seconds: of real time.
      runs: how many runs are enough. It is told whether there was time for them.
      jobs: in how many processes. One that is silent for ``patience`` seconds of real
        time is killed, its run is told as lost, and another one goes on.
      log: a file to which each run is written as a line of JSON. If it is there, the
        campaign goes on behind it.
      name: what the log calls the program; by default its own name.
      tell: gets a line now and then about how it goes.

    The other arguments are those of `explore`. Raises NotDeterministic, NothingToStrike
    if the program has no point for any fault, and ValueError for a log of another
    campaign, or that another one writes. If the log cannot be written any more, the
    campaign ends, and says so. A Ctrl+C is raised as `Interrupted`, which has what came
    of it so far.
    """
    if exhaustive_of(policy):
        raise ValueError("a campaign ends by its time: exhaustive is for explore")
    require_time("seconds", seconds)
    require_time("patience", patience)
    require_count("jobs", jobs)
    require_most("runs", runs)
    search = Search(program, policy, faults, targets, limit)
    tally = Tally(program)
    began = time.monotonic()
    called = name or getattr(program, "__qualname__", "program")
    kinds = faults if faults is None or isinstance(faults, str) else [*faults]
    whole = targets if targets is None or isinstance(targets, str) else [*targets]
    head = {
        "schema": SCHEMA,
        "program": called,
        "policy": str(policy),
        "faults": kinds,
        "targets": whole,
    }
    with _opened(log, head, tally) as (write, rows):
        before, told, unwritten = tally.runs, began, ""
        half = _half_done(rows)
        seen = {it.seed for it in rows} - {it.seed for it in half}
        wanted = None if runs is None else max(runs - before, 0)
        numbers = _until(began + seconds, filterfalse(seen.__contains__, count()))
        silence = patience if can_fork() else None
        stream: Any = tries(search, numbers, jobs, silence) if wanted != 0 else ()

        def spent() -> Spent:
            seconds, done = time.monotonic() - began, tally.runs - before
            complete = runs is None or tally.runs >= runs
            report = tally.campaign("campaign")
            return Spent(report, seconds, done, jobs, complete, unwritten)

        try:
            for tried in stream:
                if any(_is_same(it, tried) for it in half):
                    continue
                tally.add(tried)
                try:
                    write(_line(tried))
                except OSError as error:  # What was found is told in any case.
                    unwritten = str(error)
                    stream.close()
                    break
                now = time.monotonic()
                if tell is not None and now - told >= EVERY:
                    told = now
                    runs_so_far = f"{tally.runs} runs, {tally.failed} failed"
                    tell(f"{now - began:.0f} s: {runs_so_far}")
                if tally.runs - before == FIRST:
                    search.require_points(tally)
                if wanted is not None and tally.runs - before >= wanted:
                    stream.close()
                    break
        except KeyboardInterrupt as error:
            raise Interrupted(spent()) from error
    search.require_points(tally)
    return spent()


def _until(deadline: float, numbers: Iterable[int]) -> Iterator[int]:
    for number in numbers:
        if time.monotonic() >= deadline:
            return
        yield number


def _half_done(rows: Sequence[Tried]) -> Sequence[Tried]:
    """Return the last run of a log if the one with faults may be missing behind it: what
    ended the campaign may have come between both."""
    last = rows[-1:]
    whole = any(it.kind or sum(it.seed == row.seed for row in rows) > 1 for it in last)
    return () if whole else last


def _is_same(one: Tried, other: Tried) -> bool:
    return (one.seed, one.struck) == (other.seed, other.struck)


# ---- The log -------------------------------------------------------------------------------


@contextmanager
def _opened(
    log: str | os.PathLike[str] | None, head: dict[str, Any], tally: Tally
) -> Generator[tuple[Callable[[dict[str, Any]], object], Sequence[Tried]]]:
    """Open the log and add what it has to the tally; give what writes a line, and the
    runs that it has."""
    if log is None:
        yield (lambda _: None), ()
        return
    if os.path.exists(log) and not os.path.isfile(log):
        raise ValueError(f"{os.fspath(log)} is no file: name another log")
    # Without a buffer: what cannot be written must not fail once more at the end.
    with open(log, "ab+", buffering=0) as file:
        _lock(file)
        yield partial(_write, file), _read(file, head, tally)


def _lock(file: FileIO) -> None:
    """Keep other processes from a log until this one closes it, or has ended."""
    try:
        import fcntl
    except ImportError:  # This system has other locks, and cannot fork.
        return
    try:
        # No `flock`, which the processes that are forked would have, too: after a kill
        # of this one they may live on for a moment.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        text = "another campaign writes it: wait for its end, or name a new file"
        raise ValueError(f"{_name(file)}: {text}") from error
    except OSError:  # This file system has no locks.
        pass


def _write(file: FileIO, data: dict[str, Any]) -> None:
    line = json.dumps(data).encode() + b"\n"
    while line:
        line = line[file.write(line) :]


def _name(file: FileIO) -> str:
    return os.fsdecode(file.name)


def _read(file: FileIO, head: dict[str, Any], tally: Tally) -> Sequence[Tried]:
    file.seek(0)
    written = file.readall()
    whole = written[: written.rfind(b"\n") + 1]
    try:
        lines = whole.decode().splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{_name(file)} is no log of a campaign: {error}") from error
    if whole != written:  # The end of a line that was cut off by a crash.
        file.truncate(len(whole))
    if not lines:
        _write(file, head)
        return ()
    rows: dict[str, Tried] = {}
    for number, line in enumerate(lines, 1):
        try:
            data: Any = json.loads(line)
            if not isinstance(data, dict):
                raise TypeError(f"expected an object, got {data!r}")
            found = cast("dict[str, Any]", data)
            if number > 1 and line in rows:
                raise ValueError("it is there twice")
            if number > 1:
                rows[line] = _tried(found)
        except _UNREAD as error:
            raise ValueError(
                f"{_name(file)}, line {number}: it is no line of a campaign: {error}; mend "
                "it, or name a new file"
            ) from error
        differ = [it for it in head if found.get(it) != head[it]] if number == 1 else ()
        if differ:
            was = ", ".join(f"{it} {found.get(it)!r}" for it in differ)
            raise ValueError(
                f"{_name(file)} has another campaign: {was}; name a new file"
            )
    for row in rows.values():
        tally.add(row)
    return [*rows.values()]


def _line(tried: Tried) -> dict[str, Any]:
    data: dict[str, Any] = {
        "seed": tried.seed,
        "digest": tried.digest,
        "steps": tried.steps,
        "seconds": tried.seconds,
        "faults": [str(it) for it in tried.struck],
        "missed": tried.missed,
    }
    if tried.probes:
        data["probes"] = [attrs.astuple(it) for it in tried.probes]
    if tried.notes:
        data["notes"] = [*tried.notes]
    if tried.kind:
        data |= {"wrong": tried.wrong, "kind": tried.kind, "lost": tried.lost}
    if found := tried.failure:
        tape = found.tape.to_json()
        more = {"replay": found.replay, "parts": found.parts, "place": found.place}
        data["failure"] = {"tape": tape, **more}
    return data


_UNREAD = ValueError, TypeError, KeyError, RecursionError, TapeDoesNotFit
"""What a line raises that is none of a campaign."""

_KINDS: dict[str, tuple[type, ...]] = {
    "seed": (int,),
    "digest": (str,),
    "steps": (int,),
    "seconds": (int, float),
    "faults": (list,),
    "missed": (int,),
    "probes": (list,),
    "notes": (list,),
    "wrong": (str,),
    "kind": (str,),
    "lost": (bool,),
    "failure": (dict,),
}
"""What the fields of a line are."""


def _tried(data: dict[str, Any]) -> Tried:
    """Return the run of a line that `_line` has made; refuse any other."""
    for name, value in data.items():
        if type(value) not in _KINDS.get(name, ()):
            raise TypeError(f"{name} {value!r}")
        if isinstance(value, int | float) and not value >= 0:
            raise ValueError(f"{name} {value!r} is less than 0")
    failure: Failure | None = None
    if it := data.get("failure"):
        told = {name: it[name] for name in it if name != "tape"}
        if wrong := [name for name in told if not isinstance(told[name], str)]:
            raise TypeError(f"{wrong[0]} {it[wrong[0]]!r}")
        if not isinstance(it["tape"], dict):
            raise TypeError(f"tape {it['tape']!r}")
        tape = Tape.from_json(it["tape"])
        failure = Failure(data["seed"], data["wrong"], tape, **told)
    probes: tuple[Any, ...] = ()
    if data.get("probes"):
        from ._steering.probes import Met  # They were asked for.

        probes = tuple(Met(*it) for it in data["probes"])
    tried = Tried(
        seed=data["seed"],
        digest=data["digest"],
        steps=data["steps"],
        seconds=data["seconds"],
        struck=Tape.parse(", ".join(data["faults"])).faults,
        missed=data["missed"],
        wrong=data.get("wrong", ""),
        kind=data.get("kind", ""),
        failure=failure,
        lost=data.get("lost", False),
        probes=probes,
        notes=tuple(data.get("notes", ())),
    )
    if json.loads(json.dumps(_line(tried))) != data:
        raise ValueError("its fields do not fit one another")
    return tried


_publish(globals())
