"""What nobody can mean is refused in a call's own words, and not run or passed over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from math import inf, nan
from typing import Any

import pytest
import trio

from supervisor.simulation import (
    PCT,
    NotAProgram,
    Portfolio,
    Sim,
    Sparse,
    cancel_everywhere,
    explore,
    fault_everywhere,
    raise_everywhere,
    simulate,
)
from supervisor.simulation.experiments import experiment

# Types would refuse most of what follows.
NONE: Any = None
THREE: Any = 3
WORD: Any = "x"


async def program(sim: Sim) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sim.target(trio.sleep), 1)


def call(fn: Any, *args: Any, **options: Any) -> Callable[[], object]:
    return partial(fn, *args, **options)


OUTSIDE: dict[str, tuple[Callable[[], object], str]] = {
    "a rate of 5": (call(Sparse, 5), "rate must be from 0 to 1, not 5"),
    "a rate of x": (call(Sparse, "x"), "rate must be a number, not 'x'"),
    "no depth": (call(PCT, depth=0), "depth must be at least 1, not 0"),
    "half a depth": (call(PCT, depth=1.5), "depth must be a whole number, not 1.5"),
    "no length": (call(PCT, length=0), "length must be at least 1, not 0"),
    "no policies": (call(Portfolio, ()), "a portfolio must have a policy"),
    "a name inside": (call(Portfolio, ("pct",)), "have `start`.*, not 'pct'"),
    "policy": (call(simulate, program, policy=3), "policy must be a name.*, not 3"),
    "a class": (call(explore, program, seeds=2, policy=PCT), "policy must be.*PCT"),
    "limit": (call(simulate, program, limit="x"), "limit must be a number, not 'x'"),
    "nan": (call(cancel_everywhere, program, limit=nan), "limit must be .* not nan"),
    "below 0": (call(explore, program, seeds=2, limit=-1), "at least 0, not -1"),
    "level": (
        call(experiment, program, delivery="level"),
        "delivery must be several values, not 'level'",
    ),
    "an axis": (call(experiment, program, depth=3), "depth must be several .*, not 3"),
    "no seeds": (call(experiment, program, seeds=0), "seeds must be at least 1, not 0"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_argument_that_nobody_can_mean_is_refused(name: str) -> None:
    do, text = OUTSIDE[name]
    with pytest.raises((TypeError, ValueError), match=text):
        do()


INSIDE: dict[str, tuple[Callable[[Sim], object], str]] = {
    "target": (lambda sim: sim.target(THREE), "an async function, not 3"),
    "at before": (lambda sim: sim.at(-1, print), "seconds must be at least 0, not -1"),
    "at nan": (lambda sim: sim.at(nan, print), "seconds must be at least 0, not nan"),
    "at never": (lambda sim: sim.at(inf, print), "must come to an end, not inf"),
    "at nothing": (lambda sim: sim.at(1, NONE), "fn must be a function, not None"),
    "suspend": (lambda sim: sim.suspend(-4), "seconds must be at least 0, not -4"),
    "on suspend": (lambda sim: sim.on_suspend(NONE), "fn must be a function, not None"),
    "within": (
        lambda sim: sim.within(-1).__enter__(),
        "seconds must be at least 0, not -1",
    ),
    "a delay": (
        lambda sim: setattr(sim.network(), "delay", "x"),
        "delay must be a number, not 'x'",
    ),
    "slow": (lambda sim: setattr(sim.network(), "slow", -1), "slow must be .* not -1"),
    "dealy": (
        lambda sim: setattr(sim.network(), "dealy", 1),
        "no 'dealy'; what can be set is delay and slow",
    ),
    "call 0": (
        lambda sim: sim.fault("network.send", "reset", call=0),
        "call must be at least 1, not 0",
    ),
    "call x": (
        lambda sim: sim.fault("network.send", "reset", call=WORD),
        "call must be a whole number, not 'x'",
    ),
}


@pytest.mark.parametrize("name", INSIDE)
def test_a_program_is_told_what_its_simulation_cannot_do(name: str) -> None:
    do, text = INSIDE[name]

    async def asks(sim: Sim) -> None:
        with pytest.raises((TypeError, ValueError, AttributeError), match=text):
            do(sim)

    run = simulate(asks)
    assert run.error is None


def plain(sim: Sim) -> None: ...


async def two(sim: Sim, other: int) -> None: ...


async def nothing() -> None: ...


async def yields(sim: Sim) -> Any:
    yield 1


NO_PROGRAM: dict[str, tuple[Any, str]] = {
    "a plain function": (plain, "the program plain is no async function: .* None"),
    "a generator": (yields, "the program yields is no async function"),
    "two arguments": (two, "two must take one argument, .*'other'"),
    "none": (nothing, "nothing must take one argument, .*: too many"),
    "a number": (3, "a program is an async function, not 3"),
    "what was called": (None, "a program is an async function, not None"),
    "a partial": (partial(two), "must take one argument, .*'other'"),
}

RUNNERS: dict[str, Callable[[Any], object]] = {
    "simulate": simulate,
    "cancel": cancel_everywhere,
    "raise": partial(raise_everywhere, error=OSError),
    "fault": fault_everywhere,
    "explore": partial(explore, seeds=3),
    "jobs": partial(explore, seeds=3, jobs=2),
}


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", NO_PROGRAM)
def test_what_is_no_program_is_told_so(name: str, runner: str) -> None:
    given, text = NO_PROGRAM[name]
    with pytest.raises(NotAProgram, match=text):
        RUNNERS[runner](given)


def test_an_error_of_a_program_stays_its_own() -> None:
    def begins(sim: Sim) -> Awaitable[None]:
        raise TypeError("mine")

    run = simulate(begins)
    assert isinstance(run.error, TypeError)
    assert str(run.error) == "mine"


def test_a_function_that_returns_what_is_to_be_awaited_is_a_program() -> None:
    assert simulate(lambda sim: program(sim)).error is None
    assert simulate(partial(two, other=1)).error is None
