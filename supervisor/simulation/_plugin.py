"""What a test of pytest does with the simulator; `_items` has how it comes to that."""

from __future__ import annotations

import functools
import os
import shlex
import time
import warnings
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import isawaitable
from itertools import chain, count, islice
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import attrs

from ._errors import NothingToStrike, SimulationError, TapeDoesNotFit
from ._search import explore as exploring
from ._search import sweeps
from ._search.again import shortest
from ._search.corpus import failures_of, load, owner, save, try_corpus
from ._search.report import (
    Campaign,
    Failure,
    Row,
    SimulationFailed,
    SweepReport,
    own_errors,
)
from ._search.swarm import read_kinds
from ._steering.checks import require_number
from ._steering.policies import EXHAUSTIVE, exhaustive_of, policy_of
from ._steering.run import LIMIT, SaidByTest
from ._steering.simulate import Errors, Program, played, simulate
from ._steering.sites import shown
from ._steering.tape import Tape

__tracebackhide__ = True  # To pytest: nobody's mistake is on the way through here.

FOLDER = ".sim"
"""Beside the file of a test: its tapes, which belong into the repository."""


class SimulationWarning(UserWarning):
    """What was asked for is not done: a tape says nothing any more, or cannot be kept."""


@attrs.frozen
class Options:
    """What the command line of pytest asks for."""

    seeds: int | None = None
    seed: int | None = None
    policy: str | None = None
    replay: str | None = None
    faults: str | None = None
    time: float | None = None
    jobs: int | None = None


def why_not(options: Options) -> str:
    """Return why these options cannot be meant; "" if they can."""
    if options.seed is not None and options.seeds is not None:
        return "--sim-seed is one seed, and --sim-seeds many: give one of them"
    if options.seed is not None and options.time is not None:
        return "--sim-seed is one seed, and --sim-time asks for ever new ones"
    for name, given, least in (
        ("seeds", options.seeds, 1),
        ("seed", options.seed, 0),
        ("jobs", options.jobs, 1),
    ):
        if given is not None and given < least:
            return f"--sim-{name} must be at least {least}, not {given}"
    if options.time is not None and not options.time > 0:
        return f"--sim-time must be more than 0 seconds, not {options.time:g}"
    try:
        if options.policy != EXHAUSTIVE:
            policy_of(options.policy)
    except ValueError as error:
        return f"--sim-policy {options.policy}: {error}"
    try:
        read_kinds(options.faults)
    except ValueError as error:
        return f"--sim-faults {options.faults}: {error}"
    if options.replay is not None and not options.replay.strip():
        return "--sim-replay names no tape"
    try:
        if options.replay is not None and os.path.isfile(options.replay):
            load(options.replay)
        elif options.replay is not None:
            Tape.parse(options.replay)
    except (OSError, ValueError, TapeDoesNotFit) as error:
        return f"--sim-replay {options.replay}: {error}"
    return ""


class Asked:
    """The simulator as one test has it: what it finds is kept, and tried first."""

    def __init__(
        self,
        options: Options,
        file: Path,
        name: str,
        properties: list[Any],
        outcomes: tuple[type[BaseException], ...],
    ) -> None:
        self._options = options
        self._outcomes = outcomes  # By these a test says that it is to be skipped.
        self._folder = file.parent / FOLDER
        self._of = f"{file.name}::{name}"
        self._replayed = False
        self._misfits: list[TapeDoesNotFit] = []
        self._properties = properties
        node = shlex.quote(f"{Path(shortest(str(file))).as_posix()}::{name}")
        self._replayed_by = f"pytest {node} --sim-replay "

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function of the simulator, for a fixture."""
        if name == "simulate":
            return simulate
        fn: Any = getattr(exploring if name == "explore" else sweeps, name)

        @functools.wraps(fn)
        def asked(program: Program, *args: Any, **options: Any) -> Any:
            check = options.get("check", True)
            if not check and self._options.replay is None:
                return fn(program, *args, **options)
            exhaustive = exhaustive_of(options.get("policy", ""))
            if self._options.jobs is not None and not exhaustive:
                options.setdefault("jobs", self._options.jobs)
            error = args[0] if args else options.get("error")
            limit = options.get("limit", LIMIT)
            # Another test may not promise of the same program what this one does.
            of = f"{self._of} {owner(program, self._folder)}"

            def search(program: Program) -> Any:
                try:
                    return fn(program, *args, **options)
                except (TypeError, ValueError) as wrong:
                    # It is in the call, as in `_meant`, or in a policy of the test.
                    lines = _programs(wrong.__traceback__)
                    raise wrong.with_traceback(lines) from None

            return self._done(
                program,
                search,
                of,
                limit,
                error,
                sweep=name != "explore",
                check=check,
            )

        return asked

    def ends(self) -> None:
        """Raise TapeDoesNotFit if the tape of the command line has fitted no program."""
        if self._options.replay is not None and not self._replayed:
            self._replayed = True  # It is told once.
            text = "the test asks for no search that could replay the tape"
            raise self._misfits[0] if self._misfits else TapeDoesNotFit(text)

    def _done(
        self,
        program: Program,
        find: Callable[[Program], Any],
        of: str,
        limit: float,
        error: Errors | None = None,
        *,
        first: bool = True,
        sweep: bool = False,
        check: bool = True,
    ) -> Any:
        """Do a search for what is wrong in a program: after its tapes if it is the
        ``first``, or a replay instead of it all."""
        program = self._named(program)
        try:
            if self._options.replay is not None:
                tape = self._options.replay
                return self._replay(program, tape, limit, error, sweep, check)
            if first:
                self._try_corpus(program, of, limit, error)
            try:
                return find(program)
            except SimulationFailed as failed:
                self._keep(failed.report, of)
                raise
        except SaidByTest as said:
            raise next(it for it in self._outcomes if it.__name__ == said.kind)(
                said.reason
            ) from None

    def _named(self, program: Program) -> Program:
        # What is no program must look like none.
        if not callable(program):
            return program

        @functools.wraps(program)
        def named(sim: Any) -> Any:
            begun = program(sim)
            return self._heard(begun) if isawaitable(begun) else begun

        named.replayed_by = self._replayed_by  # type: ignore[attr-defined]
        return named

    async def _heard(self, begun: Awaitable[Any]) -> Any:
        """Await what a program is, and let the simulator know what the test says."""
        try:
            return await begun
        except self._outcomes as said:
            raise _said(said) from None
        except BaseExceptionGroup as group:
            both: Any = group.split(self._outcomes)
            first, others = both
            while isinstance(first, BaseExceptionGroup):
                first = cast("Any", first).exceptions[0]
            if first is None or others is not None:
                raise
            raise _said(first) from None

    def _replay(
        self,
        program: Program,
        tape: str,
        limit: float,
        error: Errors | None,
        sweep: bool,
        check: bool,
    ) -> SweepReport | Campaign:
        if not tape.strip():
            raise ValueError("--sim-replay names no tape")
        read = load(tape) if os.path.isfile(tape) else Tape.parse(tape)
        found: list[Failure] = []
        try:
            run = played(program, read, limit=limit, error=error)
        except TapeDoesNotFit as misfit:
            self._misfits.append(misfit)  # Another program of the test may fit it.
        else:
            self._replayed = True
            if check and run.error is not None and own_errors(run.error, run.thrown):
                raise run.error.with_traceback(_programs(run.error.__traceback__))
            found = failures_of(program, run)
        report: SweepReport | Campaign = Campaign(
            1, 1, found, failed=len(found), what="replay"
        )
        if check and found:
            raise SimulationFailed(report)
        if sweep:
            rows = [
                Row("", "", "", it.error, 1, it.tape, it.replay, place=it.place)
                for it in found
            ]
            report = SweepReport("replay", rows, 1, 1, skipped=0, never_fired=[])
        return report

    def _try_corpus(
        self, program: Program, of: str, limit: float, error: Errors | None
    ) -> None:
        report, misfits = try_corpus(
            program, self._folder, of, limit=limit, error=error
        )
        for misfit in misfits:
            warnings.warn(SimulationWarning(misfit), stacklevel=2)
        if report.failed:
            self._tell(report.failures)
            raise SimulationFailed(report)

    def _tell(self, found: Sequence[Row | Failure]) -> None:
        self._properties += [("sim_replay", it.replay) for it in found]

    def _keep(self, report: SweepReport | Campaign, of: str) -> None:
        self._tell(report.failures if isinstance(report, Campaign) else report.rows)
        try:
            self._folder.mkdir(exist_ok=True)
            save(report, self._folder, of=of)
        except OSError as error:
            text = f"the tapes of {self._of} cannot be kept: {error}"
            warnings.warn(SimulationWarning(text), stacklevel=2)

    # ---- Tests with the mark ---------------------------------------------------------

    def run(
        self,
        test: Any,
        fixtures: Mapping[str, Any],
        marked: Mapping[str, Any],
        part: tuple[int, int] = (0, 1),
    ) -> None:
        """Run an async test under its schedules, or the part of them with a number."""
        asked = self._options

        @functools.wraps(test)
        async def program(sim: Any) -> None:
            given = {**fixtures, "sim": sim} if "sim" in fixtures else fixtures
            await test(**given)

        limit = marked.get("limit", LIMIT)
        faults = asked.faults or marked.get("faults")
        options: dict[str, Any] = {
            "policy": asked.policy or marked.get("policy", "portfolio"),
            "faults": faults,
            "targets": marked.get("targets"),
            "jobs": asked.jobs or 1,
            "limit": limit,
        }
        number, parts = part
        with _meant():
            require_number("limit", limit)
            seeds = self._seeds(marked.get("seeds", 20))
            if not read_kinds(faults):
                options["targets"] = None  # Of faults that the command line asks for.
        if exhaustive_of(options["policy"]):
            # One process goes through all schedules, and faults are by chance.
            options |= {"jobs": 1, "faults": None, "targets": None}
            if number:
                return
        elif parts > 1:
            seeds = islice(seeds, number, None, parts)
            if number:  # If there are no seeds at all, the first part says so.
                if (first := next(seeds, None)) is None:
                    return
                seeds = chain([first], seeds)

        def find(program: Program) -> None:
            try:
                with _meant():
                    exploring.explore(program, seeds=seeds, **options)
            except NothingToStrike as error:
                if asked.faults is None:
                    raise
                # It was asked of all tests. By now the schedules alone have been run.
                text = f"--sim-faults has no effect on {self._of}, or not all: {error}"
                warnings.warn(SimulationWarning(text), stacklevel=2)

        self._done(program, find, self._of, limit, first=number == 0)
        self.ends()

    def _seeds(self, marked: int | Sequence[int]) -> Any:
        asked = self._options
        if asked.seed is not None:
            return [asked.seed]
        if asked.time is not None:
            most = count() if asked.seeds is None else range(asked.seeds)
            return _until(time.monotonic() + asked.time, most)
        return exploring.read_seeds(marked if asked.seeds is None else asked.seeds)


@contextmanager
def _meant() -> Generator[None]:
    """Refuse what no mark can mean; of the program nothing is raised here."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise SimulationError(f"the mark `sim` cannot be meant so: {error}") from error


def _programs(raised: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the first frame of the program on; None without one."""
    while raised is not None and shown(raised.tb_frame.f_code.co_filename) is None:
        raised = raised.tb_next
    return raised


def _until(deadline: float, seeds: Any) -> Iterator[int]:
    for seed in seeds:
        if seed and time.monotonic() >= deadline:
            return
        yield seed


def _said(error: BaseException) -> SaidByTest:
    return SaidByTest(type(error).__name__, str(error))
