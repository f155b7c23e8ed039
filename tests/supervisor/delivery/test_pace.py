"""When a monitor tells and when it gives up: the pure decision."""

from __future__ import annotations

import random
from itertools import pairwise, product
from math import inf

import pytest

from supervisor._delivery.pace import (
    EVERY,
    GATHER,
    IN_VAIN,
    UNDECIDED,
    Next,
    Pace,
    decide,
)

STATES = [
    (Pace(fresh=fresh, told=told, waits=waits, is_heard=heard, undecided=undecided, most_undecided=most,
          in_vain=vain), now)
    for fresh, told, waits, heard, undecided, most, vain, now in product(
        (None, 0.0, 4.9, 5.0), (-inf, 0.0, 4.5, 5.0), (False, True), (False, True),
        (0, 1, UNDECIDED), (1, UNDECIDED), (0, IN_VAIN - 1, IN_VAIN), (5.0, 5.5, 9.0),
    )
]  # fmt: skip


@pytest.mark.parametrize("group", range(8))
def test_the_decision_keeps_its_rules_in_every_state(group: int) -> None:
    for pace, now in STATES[group::8]:
        following = decide(pace, now)
        tells = following.do in ("tell", "again")
        if tells:
            assert pace.fresh is not None and now >= pace.told + EVERY
            assert now >= pace.fresh + GATHER and pace.in_vain < IN_VAIN
            # A second note takes the place of one that waits, or there is none.
            assert pace.waits == (following.do == "again")
        if following.do == "again":
            assert not pace.is_heard
        if following.do == "tell":
            assert pace.undecided < pace.most_undecided
        if following.do == "stop":
            woke_nobody = pace.waits and not pace.is_heard and pace.fresh is not None
            assert pace.in_vain + woke_nobody >= IN_VAIN
        if following.do == "rest":
            assert following.at > now
            if following.at < inf:
                # Nothing but time is missing: then it is time.
                then = decide(pace, following.at)
                assert then.do != "rest" or then.at == inf
            elif pace.fresh is not None and pace.told + EVERY <= now:
                assert (
                    pace.is_heard
                    if pace.waits
                    else pace.undecided >= pace.most_undecided
                )


def test_a_pause_is_never_shorter_than_it_may_be_and_never_longer() -> None:
    """A stream of lines by chance with a reader who is always there, against the two
    numbers."""
    for seed in range(200):
        chance = random.Random(seed)
        rate = chance.choice([0.1, 1.0, 10.0, 1000.0])
        lines = [0.0]
        while lines[-1] < 20:
            lines.append(lines[-1] + chance.expovariate(rate))
        told: list[float] = []
        fresh: float | None = None
        now, waiting = 0.0, list(lines)
        while waiting or fresh is not None:
            while waiting and waiting[0] <= now:
                fresh = waiting[0] if fresh is None else fresh
                waiting.pop(0)
            last = told[-1] if told else -inf
            following = decide(
                Pace(fresh=fresh, told=last, waits=False, is_heard=False, undecided=0,
                     most_undecided=1, in_vain=0),
                now,
            )  # fmt: skip
            if following.do == "tell":
                assert fresh is not None
                assert now == max(last + EVERY, fresh + GATHER)
                told.append(now)
                fresh = None
            else:
                assert following.do == "rest"
                now = min([following.at, *waiting[:1]])
        assert all(after >= before + EVERY for before, after in pairwise(told))


def test_a_row_is_ten() -> None:
    pace = Pace(
        fresh=0.0,
        told=0.0,
        waits=True,
        is_heard=False,
        undecided=0,
        most_undecided=1,
        in_vain=8,
    )
    assert decide(pace, 1.0) == Next("again")
    nearly = Pace(
        fresh=0.0,
        told=0.0,
        waits=True,
        is_heard=False,
        undecided=0,
        most_undecided=1,
        in_vain=9,
    )
    assert decide(nearly, 1.0) == Next("stop")
