"""A program under many schedules, without faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from ._errors import Hang, NotDeterministic
from ._policies import Policy, policy_of
from ._report import Campaign, Failure, SimulationFailed, wrong_in
from ._run import LIMIT, Run, session
from ._shrink import BUDGET, shrink
from ._simulate import Errors, Program, once, replayed
from ._tape import Tape

VERIFY = 20
"""Each run of such a number is done twice, and both are compared."""

FEW = 10
"""So many tapes are tried to make one smaller that hangs."""

KINDS = 5
"""So many different failures are told."""


def explore(
    program: Program,
    *,
    seeds: int | Iterable[int],
    policy: Policy | str = "portfolio",
    limit: float = LIMIT,
    check: bool = True,
) -> Campaign:
    """Run a program under the schedules of many seeds, and return what came of it.

    Args:
      program: an async function that gets a `Sim`.
      seeds: the seeds, or how many, from 0 on. Seed 0 is round robin.
      policy: what makes schedules of them, by its name or as an object.
      limit: virtual seconds after which a run is ended as a `Hang`.
      check: raise SimulationFailed, which has the report, if a run fails.

    The first failure of each kind is made smaller and told. Every twentieth run is done
    twice. Raises NotDeterministic if both differ.
    """
    chosen = policy_of(policy)
    digests: set[str] = set()
    first: dict[str, Failure] = {}
    runs = failed = 0
    with session():
        for seed in range(seeds) if isinstance(seeds, int) else seeds:
            run, _ = once(program, chosen.start(seed), seed=seed, limit=limit)
            if runs % VERIFY == 0:
                again = partial(
                    once, program, chosen.start(seed), seed=seed, limit=limit
                )
                require_equal(run, again()[0], again)
            runs += 1
            digests.add(run.digest)
            wrong = wrong_in(run)
            failed += bool(wrong)
            if wrong and wrong[0].kind not in first and len(first) < KINDS:
                tape = smaller(program, run, wrong[0].kind, limit)
                text = "\n".join(it.text for it in wrong)
                first[wrong[0].kind] = Failure(seed, text, tape)
    campaign = Campaign(runs, len(digests), list(first.values()), failed)
    if check and failed:
        raise SimulationFailed(campaign)
    return campaign


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
    from ._culprits import watched  # It needs much that nobody else does.

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
