"""A program under many schedules, without faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import attrs

from .._errors import Hang, NotDeterministic
from .._steering.policies import Pick, Policy, Replay, policy_of
from .._steering.run import LIMIT, Run, session
from .._steering.simulate import Errors, Program, once, replayed
from .._steering.tape import Tape
from .report import Campaign, Failure, SimulationFailed, wrong_in
from .shrink import BUDGET, shrink

VERIFY = 20
"""Each run of such a number is done twice, and both are compared."""

FEW = 10
"""So many tapes are tried to make one smaller that hangs."""

KINDS = 5
"""So many different failures are told."""


EXHAUSTIVE = "exhaustive"
"""The policy by which no schedule is tried twice, and none is left out."""


def explore(
    program: Program,
    *,
    seeds: int | Iterable[int],
    policy: Policy | str = "portfolio",
    limit: float = LIMIT,
    check: bool = True,
) -> Campaign:
    """Run a program under many schedules, and return what came of it.

    Args:
      program: an async function that gets a `Sim`.
      seeds: the seeds, or how many, from 0 on. Seed 0 is round robin.
      policy: what makes schedules of them, by its name or as an object. By
        ``"exhaustive"`` no schedule is tried twice: first round robin, then all with
        one deviation from it, then all with two, and so on, as many as ``seeds`` says.
      limit: virtual seconds after which a run is ended as a `Hang`.
      check: raise SimulationFailed, which has the report, if a run fails.

    The first failure of each kind is made smaller and told. Every twentieth run is done
    twice. Raises NotDeterministic if both differ.
    """
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    with session():
        search = _Search(program, limit)
        if policy == EXHAUSTIVE:
            search.try_all(sum(1 for _ in numbers))
        else:
            chosen = policy_of(policy)
            for seed in numbers:
                search.run(seed, seed, partial(chosen.start, seed))
    campaign = Campaign(
        search.runs,
        len(search.digests),
        list(search.first.values()),
        search.failed,
        search.complete,
    )
    if check and search.failed:
        raise SimulationFailed(campaign)
    return campaign


@attrs.define
class _Search:
    program: Program
    limit: float
    runs: int = 0
    failed: int = 0
    complete: int | None = None
    digests: set[str] = attrs.Factory(set[str])
    first: dict[str, Failure] = attrs.Factory(dict[str, Failure])

    def run(self, number: int, seed: int, start: Callable[[], Pick]) -> Run:
        """Run the program under one schedule; its choices are begun by ``start``."""

        def do() -> tuple[Run, object]:
            return once(self.program, start(), seed=seed, limit=self.limit)

        run, _ = do()
        if self.runs % VERIFY == 0:
            require_equal(run, do()[0], do)
        self.runs += 1
        self.digests.add(run.digest)
        if wrong := wrong_in(run):
            self.failed += 1
            kind = wrong[0].kind
            if kind not in self.first and len(self.first) < KINDS:
                tape = smaller(self.program, run, kind, self.limit)
                text = "\n".join(it.text for it in wrong)
                self.first[kind] = Failure(number, text, tape)
        return run

    def try_all(self, most: int) -> None:
        """Run the program under each schedule of no deviation, of one, of two, ..."""
        level: list[dict[int, int]] = [{}]
        while level:
            below: list[dict[int, int]] = []
            for places in level:
                if self.runs >= most:
                    return
                run = self.run(self.runs, 0, partial(Replay(places).start, 0))
                last = max(places, default=-1)
                below += [
                    {**places, step: place}
                    for step, count in run.choices
                    if step > last and len(below) <= most
                    for place in range(1, count)
                ]
            self.complete = 0 if self.complete is None else self.complete + 1
            level = below


def smaller(
    program: Program, run: Run, kind: str, limit: float, error: Errors | None = None
) -> Tape:
    """Return the smallest tape found that fails as a run does, inside of a session."""

    def attempt(tape: Tape) -> Tape | None:
        again, _ = replayed(program, tape, limit=limit, error=error)
        wrong = wrong_in(again)
        return again.tape if wrong and wrong[0].kind == kind else None

    # A run that spins until it is ended takes as long as hundreds of others.
    budget = FEW if isinstance(run.error, Hang) else BUDGET
    return shrink(run.tape, attempt, budget)[0]


def require_equal(one: Run, other: Run, again: Callable[[], object]) -> None:
    """Raise NotDeterministic unless two runs are equal. It has the first difference, and
    what was met when the program was run ``again``."""
    if one.digest == other.digest:
        return
    from .._steering.culprits import watched  # It needs much that nobody else does.

    with watched() as culprits:
        again()
    raise NotDeterministic(_difference(one, other), tuple(culprits))


def _difference(one: Run, other: Run) -> str:
    text = "two runs of one tape differ"
    pairs = zip(one.log, other.log, strict=False)
    for number, (left, right) in enumerate(pairs):
        if left != right:
            text += f", at line {number} of their logs:\n  {left}\n  {right}"
            break
    else:
        if len(one.log) != len(other.log):
            text += f": their logs have {len(one.log)} and {len(other.log)} lines"
        else:
            text += " in who takes which step"
    return text
