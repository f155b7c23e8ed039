"""The supervisor against OTP's rules, of which `otp_model` is the pure function.

More of both: ``python -m bench.tree --runs 20000 --pairs 20000 --seed 1``.
"""

from __future__ import annotations

import random

import pytest

from bench.tree import main
from tests.supervisor.otp_model import Child, World, step
from tests.supervisor.tree_runs import (
    EVENTS,
    INSTANT_GAPS,
    SCENES,
    SLOW_GAPS,
    STRATEGIES,
    random_pair,
    run_history,
    run_pair,
)


@pytest.mark.parametrize("start", range(0, 100, 50))
def test_a_random_history_is_that_of_the_model(start):
    """B8 to B46: answers, states, starts and ends in order, restarts, the end:
    after each operation."""
    for seed in range(start, start + 50):
        run_history(seed)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_events_settle_as_one_order_or_the_other(strategy):
    """B23, B28, B40: in one tick, some ticks apart, and seconds apart while
    starting and stopping take time; but for the exceptions in `tree_runs`."""
    dice = random.Random(STRATEGIES.index(strategy))
    for _ in range(40):
        _, scene, first, second, gap, seed = random_pair(dice)
        run_pair(strategy, scene, first, second, gap, seed)


@pytest.mark.parametrize("strategy", ["one_for_all", "rest_for_one"])
@pytest.mark.parametrize("scene", SCENES)
def test_a_crash_and_a_termination_settle_in_every_tick(strategy, scene):
    """B25, B28: the pair that once brought back whom somebody had ended."""
    crash, end = ("crash", "a"), ("terminate", "b")
    for gap in (*INSTANT_GAPS, *SLOW_GAPS):
        run_pair(strategy, scene, crash, end, gap)
        run_pair(strategy, scene, end, crash, gap)


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
    assert main(["--runs", "3", "--pairs", "3", "--seed", "7"]) == 0
    out = capsys.readouterr().out
    assert "3 histories" in out
    assert "0 disagree\n3 pairs, 0 agree with neither order\n" in out


def test_every_kind_of_event_is_among_the_pairs():
    """The list of what may meet."""
    kinds = {event[0] for event in EVENTS}
    assert kinds == {
        "crash", "stop", "terminate", "delete", "restart", "start", "cancel",
        "finish", "interrupt", "leave", "advance",
    }  # fmt: skip
