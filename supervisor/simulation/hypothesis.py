"""A strategy of Hypothesis for tapes: schedules and faults of one program.

    from hypothesis import given, settings
    from supervisor.simulation import simulate
    from supervisor.simulation.hypothesis import tapes

    @given(tapes(program))
    @settings(deadline=None)
    def test_program(tape):
        run = simulate(program, tape=tape)
        assert run.error is None

A tape is drawn before its run and nothing is drawn inside: what Hypothesis raises there
would get lost in trio's scheduler. A run takes as long as it takes, so give the test no
deadline.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ._errors import NothingToStrike
from ._public import publish as _publish
from ._search.swarm import (
    COUNT,
    is_meant,
    kind_of,
    read_kinds,
    require_faults,
    unmet,
    with_errors,
)
from ._steering.checks import require_number
from ._steering.policies import RoundRobin
from ._steering.run import LIMIT, Run
from ._steering.session import session
from ._steering.simulate import Program, once, replayed
from ._steering.tape import Deviation, Fault, Tape
from ._steering.targets import is_named, read_names

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["tapes"]

MOST = 5
"""So many deviations has a tape at most."""


def tapes(
    program: Program,
    *,
    faults: str | Iterable[str] | None = None,
    targets: str | Iterable[str] | None = None,
    limit: float = LIMIT,
) -> SearchStrategy[Tape]:
    """Return a strategy for tapes of a program: round robin with a few deviations, and
    with up to two of the faults that are asked for, as in `explore`.

    Each tape fits: it is what a run by it has recorded, so each example takes one run
    more. It shrinks to round robin, with as few deviations and faults as will fail.

    Raises ValueError for targets without faults, and NothingToStrike if faults are asked
    for and the program has no point for them.
    """
    from hypothesis import strategies as st

    require_number("limit", limit)
    kinds, whom = read_kinds(faults), read_names(targets)
    require_faults(kinds, whom)
    return st.deferred(lambda: _tapes(program, kinds, whom, limit))


def _tapes(
    program: Program,
    kinds: tuple[str, ...],
    whom: tuple[str, ...] | None,
    limit: float,
) -> SearchStrategy[Tape]:
    from hypothesis import strategies as st

    with session():
        pick = RoundRobin().start(0)
        run, points = once(program, pick, limit=limit, count=COUNT if kinds else ())
    struck = [it for it in with_errors(points) if is_meant(kind_of(it), kinds)]
    if whom is not None:
        struck = [it for it in struck if is_named(it.target, whom)]
    text = unmet(points, kinds, whom) if kinds else ""
    if text or (kinds and not struck):
        raise NothingToStrike(whom or (), text)

    def recorded(tape: Tape) -> Tape:
        with session():
            return replayed(program, tape, limit=limit)[0].tape

    asked = st.builds(Tape, _deviations(run), _some(struck, 2))
    return asked.map(recorded)


def _deviations(run: Run) -> SearchStrategy[tuple[Deviation, ...]]:
    from hypothesis import strategies as st

    # Where round robin had a choice, others mostly have one too.
    each = [
        Deviation(step, place)
        for step, count in run.choices
        for place in range(1, count)
    ]
    if not each:
        return st.just(())
    lists = st.lists(st.sampled_from(each), max_size=MOST, unique_by=lambda it: it.step)
    return lists.map(lambda them: tuple(sorted(them, key=lambda it: it.step)))


def _some(faults: list[Fault], most: int) -> SearchStrategy[tuple[Fault, ...]]:
    from hypothesis import strategies as st

    if not faults:
        return st.just(())
    return st.lists(
        st.sampled_from(faults), min_size=1, max_size=most, unique_by=_point
    ).map(tuple)


def _point(fault: Fault) -> tuple[str, str, int]:
    return fault.target, fault.arrival, fault.point


_publish(globals())
