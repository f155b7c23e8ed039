"""How many runs it takes to make a tape smaller that fails by chance."""

from __future__ import annotations

import attrs

from supervisor.simulation import Tape, simulate
from supervisor.simulation._search.report import wrong_in
from supervisor.simulation._search.shrink import shrink
from supervisor.simulation._steering.run import LIMIT
from supervisor.simulation._steering.session import session
from supervisor.simulation._steering.simulate import Program, replayed


@attrs.frozen
class Shrunk:
    """What became of one tape."""

    before: int
    """How many deviations it had."""
    after: int
    runs: int


def shrunk(program: Program, seeds: int) -> list[Shrunk]:
    """Make the tapes of the first so many seeds smaller that fail."""

    def attempt(tape: Tape) -> Tape | None:
        run, _ = replayed(program, tape, limit=LIMIT)
        return run.tape if wrong_in(run) else None

    found: list[Shrunk] = []
    seed = 0
    with session():
        while len(found) < seeds:
            seed += 1
            run = simulate(program, seed=seed)
            if run.error is not None:
                tape, runs = shrink(run.tape, attempt)
                before = len(run.tape.deviations)
                found.append(Shrunk(before, len(tape.deviations), runs))
    return found
