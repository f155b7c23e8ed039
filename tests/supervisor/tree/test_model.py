"""The supervisor against OTP's rules, of which `otp_model` is the pure function.

More of both: ``python -m bench.tree --runs 20000 --pairs 20000 --every 1``.
"""

from __future__ import annotations

import functools
import itertools
import logging
import random
from collections import Counter

import pytest

from bench.tree import main
from tests.supervisor.tree.otp_model import Child, World, step
from tests.supervisor.tree.pairs import (
    ALL_EVENTS,
    AT_WORK,
    CANONICAL_GAPS,
    EVENTS,
    EXCEPTIONS,
    GAPS,
    WAITS,
    Gap,
    Pair,
    canonical_pairs,
    random_pair,
    run_pair,
)
from tests.supervisor.tree.runs import STRATEGIES, run_history


@pytest.fixture(autouse=True)
def silent():
    """Crashes by the thousand, of which nobody reads the log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("start", range(0, 800, 200))
def test_a_random_history_is_that_of_the_model(start):
    """B8 to B46: answers, states, starts and ends in order, restarts, the end:
    after each operation."""
    for seed in range(start, start + 200):
        run_history(seed)


@functools.cache
def _settled(strategy: str, gap: Gap) -> Counter[str]:
    return Counter(run_pair(pair) for pair in canonical_pairs(strategy, gap))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("gap", CANONICAL_GAPS, ids=["at once", "a tick", "seconds"])
def test_two_events_settle_as_one_order_or_the_other(strategy, gap):
    """B23, B28, B40: every ordered pair of the kinds of events, in one tick, a tick
    apart, and seconds apart while starting and stopping take time; but for the
    exceptions in `pairs`."""
    settled = _settled(strategy, gap)
    assert settled.keys() <= {"as they came", "the other way", *EXCEPTIONS}
    orders = settled["as they came"] + settled["the other way"]
    assert orders > 0.75 * settled.total()


def test_every_exception_is_needed():
    """B23: one that no pair needs would only hide what is wrong."""
    unneeded = set(EXCEPTIONS)
    assert len(unneeded) <= 5
    for gap, strategy in itertools.product(CANONICAL_GAPS, STRATEGIES):
        if unneeded:
            unneeded -= _settled(strategy, gap).keys()
    assert unneeded == set()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_pairs_by_chance_settle_as_one_order_or_the_other(strategy):
    """B23, B28, B40: of more events, in more places, at more distances."""
    dice = random.Random(STRATEGIES.index(strategy))
    for _ in range(100):
        run_pair(random_pair(dice))


@pytest.mark.parametrize("strategy", ["one_for_all", "rest_for_one"])
@pytest.mark.parametrize("scene", [AT_WORK, WAITS])
def test_a_crash_and_a_termination_settle_in_every_tick(strategy, scene):
    """B25, B28: the pair that once brought back whom somebody had ended."""
    crash, end = ("crash", "a"), ("terminate", "b")
    for gap in GAPS:
        run_pair(Pair(strategy, scene, crash, end, gap, seed=1))
        run_pair(Pair(strategy, scene, end, crash, gap, seed=1))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("first", [("crash", "b"), ("stop", "b")])
def test_two_failures_of_one_tick_that_meet_a_waiting_group_are_two(first, seed):
    """B28: the group of the one begins at once and waits no more, so the other one
    is put off; it once widened a group that had begun."""
    settled = run_pair(
        Pair("rest_for_one", WAITS, first, ("crash", "a"), GAPS[0], seed)
    )
    assert settled in ("as they came", "the other way", "ends by itself")


def test_the_model_knows_the_rules_that_it_is_for():
    """B24, B25, B26: a model that agrees with everything would hold nothing."""
    world = World(strategy="one_for_all", intensity=3)
    for id in "abc":
        world = step(world, "start", Child(id=id))
    before = world
    world = step(step(world, "terminate", "b"), "crash", "c")
    assert before.journal == ["+a", "+b", "+c"]  # it is pure
    assert world.journal[3:] == ["-b", "-c", "-a", "+a", "+b", "+c"]
    assert set(world.states().values()) == {"running"}
    assert world.counted == 1
    world = step(step(world, "plan", "b", ["fails"]), "crash", "a")
    assert world.journal[9:] == ["-a", "-c", "-b", "+a", "+b", "-b", "-a", "+a", "+b", "+c"]  # fmt: skip
    assert world.counted == 3
    assert step(world, "crash", "a").ended == "gave up"
    assert step(world, "advance", 6.0).ended is None


def test_the_bench_tells_how_many_agree(capsys):
    """With counts, and an exit code."""
    arguments = ["--runs", "3", "--pairs", "3", "--every", "1/5000", "--seed", "7"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "3 histories" in out
    assert "0 disagree\n3 pairs by chance, 0 agree with neither order\n" in out
    assert "pairs enumerated, 0 agree with neither order\n" in out


def test_every_kind_of_event_is_among_the_pairs():
    """The list of what may meet."""
    kinds = {event[0] for event in ALL_EVENTS}
    assert kinds == {event[0] for event in EVENTS.values()}
    assert kinds == {
        "crash", "stop", "terminate", "delete", "restart", "start", "cancel",
        "finish", "interrupt", "leave", "come_up", "flash", "elapse",
    }  # fmt: skip
