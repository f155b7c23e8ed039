"""What pytest's tests do with the simulator: loaded when the first one asks for it.

The plugin that pytest loads is a module of its own beside the packages; see there.
"""

from __future__ import annotations

import functools
import inspect
import os
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import attrs

from ._errors import NothingToStrike, TapeDoesNotFit
from ._search import explore as exploring
from ._search import sweeps
from ._search.again import place_of, replay_line, shortest
from ._search.corpus import load, save, try_corpus
from ._search.report import Campaign, Failure, SimulationFailed, SweepReport, wrong_in
from ._search.swarm import read_kinds
from ._steering.policies import policy_of
from ._steering.run import LIMIT, session
from ._steering.simulate import Errors, Program, does_not_fit, replayed
from ._steering.simulate import simulate as simulate
from ._steering.tape import Tape

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
    if options.seed is not None and options.seed < 0:
        return f"--sim-seed {options.seed}: seeds are 0 and more"
    try:
        if options.policy != exploring.EXHAUSTIVE:
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
        self, options: Options, file: Path, name: str, properties: list[Any]
    ) -> None:
        self._options = options
        self._folder = file.parent / FOLDER
        self._of = f"{file.name}::{name}"
        self._properties = properties
        node = shlex.quote(f"{Path(shortest(str(file))).as_posix()}::{name}")
        self._replayed_by = f"pytest {node} --sim-replay "

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function of the simulator, for a fixture."""
        fn: Any = getattr(exploring if name == "explore" else sweeps, name)

        @functools.wraps(fn)
        def asked(program: Program, *args: Any, **options: Any) -> Any:
            if not options.get("check", True):
                return fn(program, *args, **options)
            exhaustive = options.get("policy") == exploring.EXHAUSTIVE
            if self._options.jobs is not None and not exhaustive:
                options.setdefault("jobs", self._options.jobs)
            error = args[0] if args else options.get("error")
            limit = options.get("limit", LIMIT)
            return self.check(
                program, lambda it: fn(it, *args, **options), limit=limit, error=error
            )

        return asked

    def check(
        self,
        program: Program,
        find: Callable[[Program], Any],
        *,
        limit: float = LIMIT,
        error: Errors | None = None,
        first: bool = True,
    ) -> Any:
        """Do a search for what is wrong in a program: after its tapes if it is the
        ``first``, or a replay instead of it all."""
        program = self._named(program)
        if self._options.replay is not None:
            return self._replay(program, self._options.replay, limit, error)
        try:
            if first:
                self._try_corpus(program, limit, error)
            return find(program)
        except SimulationFailed as failed:
            self._keep(failed.report)
            raise

    def _named(self, program: Program) -> Program:
        if not inspect.isfunction(program):
            return program

        @functools.wraps(program)
        async def named(sim: Any) -> Any:
            return await program(sim)

        named.replayed_by = self._replayed_by  # type: ignore[attr-defined]
        return named

    def _replay(
        self, program: Program, tape: str, limit: float, error: Errors | None
    ) -> None:
        if not tape.strip():
            raise ValueError("--sim-replay names no tape")
        read = load(tape) if os.path.isfile(tape) else Tape.parse(tape)
        with session():
            run, _ = replayed(program, read, limit=limit, error=error)
        if misfit := does_not_fit(read, run):
            raise TapeDoesNotFit(misfit)
        wrong = wrong_in(run)
        if wrong and run.error is not None:
            raise run.error
        if wrong:
            text = "\n".join(it.text for it in wrong)
            line = replay_line(program, run.tape)
            found = Failure(read.seed, text, run.tape, line, place=place_of(program))
            raise SimulationFailed(Campaign(1, 1, [found], failed=1, what="replay"))

    def _try_corpus(self, program: Program, limit: float, error: Errors | None) -> None:
        report, misfits = try_corpus(
            program, self._folder, self._of, limit=limit, error=error
        )
        for misfit in misfits:
            warnings.warn(SimulationWarning(misfit), stacklevel=2)
        if report.failed:
            raise SimulationFailed(report)

    def _keep(self, report: SweepReport | Campaign) -> None:
        found: Sequence[Any] = (
            report.failures if isinstance(report, Campaign) else report.rows
        )
        self._properties += [("sim_replay", it.replay) for it in found]
        try:
            self._folder.mkdir(exist_ok=True)
            save(report, self._folder, of=self._of)
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
        options: dict[str, Any] = {
            "policy": asked.policy or marked.get("policy", "portfolio"),
            "faults": asked.faults or marked.get("faults"),
            "targets": marked.get("targets"),
            "jobs": asked.jobs or 1,
            "limit": limit,
        }
        seeds = self._seeds(marked.get("seeds", 20))
        number, parts = part
        if options["policy"] == exploring.EXHAUSTIVE:
            # One process goes through all schedules, and faults are by chance.
            options |= {"jobs": 1, "faults": None}
            if number:
                return
        elif parts > 1:
            seeds = islice(seeds, number, None, parts)

        def find(program: Program) -> None:
            try:
                exploring.explore(program, seeds=seeds, **options)
            except NothingToStrike as error:
                if asked.faults is None:
                    raise
                # It was asked of all tests. By now the schedules alone have been run.
                text = f"--sim-faults has no effect on {self._of}, or not all: {error}"
                warnings.warn(SimulationWarning(text), stacklevel=2)

        self.check(program, find, limit=limit, first=number == 0)

    def _seeds(self, marked: int | Sequence[int]) -> Any:
        asked = self._options
        if asked.seed is not None:
            return [asked.seed]
        if asked.time is not None:
            most = count() if asked.seeds is None else range(asked.seeds)
            return _until(time.monotonic() + asked.time, most)
        seeds = marked if asked.seeds is None else asked.seeds
        return range(seeds) if isinstance(seeds, int) else seeds


def _until(deadline: float, seeds: Any) -> Iterator[int]:
    for seed in seeds:
        if seed and time.monotonic() >= deadline:
            return
        yield seed
