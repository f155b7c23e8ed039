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
    NothingToStrike,
    Portfolio,
    ProgramFailed,
    Sim,
    Sparse,
    cancel_everywhere,
    compare,
    explore,
    fault_everywhere,
    raise_everywhere,
    simulate,
)
from supervisor.simulation.campaign import campaign
from supervisor.simulation.crash import crash
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
    "targets": (call(cancel_everywhere, program, targets=3), "names, not 3"),
    "a target": (call(explore, program, seeds=2, targets=[3]), "names, not 3"),
    "faults": (call(explore, program, seeds=2, faults=3), "faults must be .*, not 3"),
    "no error": (
        call(raise_everywhere, program, lambda: 3),
        "error must be a class of errors, or a function .* makes 3",
    ),
    "a word": (
        call(raise_everywhere, program, "OSError"),
        "error must be a class of errors.* not 'OSError'",
    ),
    "Cancelled": (
        call(raise_everywhere, program, trio.Cancelled),
        "without arguments; .*Cancelled.* raises TypeError",
    ),
    "limit": (call(simulate, program, limit="x"), "limit must be a number, not 'x'"),
    "nan": (call(cancel_everywhere, program, limit=nan), "limit must be .* not nan"),
    "below 0": (call(explore, program, seeds=2, limit=-1), "at least 0, not -1"),
    "a tape": (call(simulate, program, tape=3), "tape must be a Tape, or its text, no"),
    "a crash": (call(crash, program, program, 3), "tape must be a Tape, or its text"),
    "another": (call(compare, program, 3), "tape must be a Tape, or its text, not 3"),
    "a seed": (call(simulate, program, seed="x"), "seed must be a whole number, not"),
    "none": (call(explore, program, seeds=0), "seeds must be at least 1, not 0"),
    "some": (call(explore, program, seeds=1.5), "seeds must be a whole number, not"),
    "nobody's": (call(explore, program, seeds=[]), "seeds has none"),
    "words": (call(explore, program, seeds="x"), "seeds must be a whole .*, not 'x'"),
    "a word among them": (
        call(explore, program, seeds=[1, "x"]),
        "a seed must be a whole number, not 'x'",
    ),
    "jobs": (call(explore, program, seeds=2, jobs="x"), "jobs must be a whole number"),
    "whom": (
        call(explore, program, seeds=2, targets="sleep"),
        "targets are whom faults strike, and there are no faults",
    ),
    "points": (call(cancel_everywhere, program, max_points=0.5), "max_points must be"),
    "arrival": (call(cancel_everywhere, program, arrivals="late"), "are several, as"),
    "time": (call(campaign, program, seconds=nan), "seconds must be at least 0, not"),
    "runs": (call(campaign, program, seconds=1, runs=0), "runs must be at least 1, no"),
    "level": (
        call(experiment, program, delivery="level"),
        "delivery must be several values, not 'level'",
    ),
    "an axis": (call(experiment, program, depth=3), "depth must be several .*, not 3"),
    "no seeds": (call(experiment, program, seeds=0), "seeds must be at least 1, not 0"),
    "no value": (call(experiment, program, depth=[]), "a parameter has no value, and"),
}


# ---- Names -------------------------------------------------------------------------------


async def talks(sim: Sim) -> None:
    network = sim.network()

    async def serve(stream: trio.abc.Stream) -> None:
        await stream.receive_some(1)
        await stream.aclose()

    async def ask() -> None:
        stream = await network.open_tcp_stream("host", 80)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        await nursery.start(network.serve_tcp, serve, 80, "host")
        await sim.target(ask)()
        nursery.cancel_scope.cancel()


async def only_checkpoints(sim: Sim) -> None:
    async def polite() -> None:
        for _ in range(3):
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 1)
        nursery.start_soon(polite)


async def both(sim: Sim) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(only_checkpoints, sim)
        nursery.start_soon(lonely, sim)


async def never_waits(sim: Sim) -> None:
    async def still() -> None:
        pass

    await sim.target(still)()


async def only_starts(sim: Sim) -> None:
    async def starting(task_status: trio.TaskStatus[None]) -> None:
        await trio.sleep(1)
        task_status.started()

    async with trio.open_nursery() as nursery:
        await nursery.start(starting)


async def lonely(sim: Sim) -> None:
    await trio.sleep(1)


NAMES: dict[str, tuple[Callable[[], object], str]] = {
    "sweep": (
        call(cancel_everywhere, program, targets=["sle*", "nobody"], check=False),
        "^no target has one of the names nobody; there are sleep$",
    ),
    "an error": (
        call(raise_everywhere, program, OSError, targets=["nobody"]),
        "^no target has one of the names nobody; there are sleep$",
    ),
    "a checkpoint": (
        call(raise_everywhere, only_checkpoints, OSError),
        r"nothing, so only a cancel \(cancel_everywhere\) or a KeyboardInterrupt can strike",
    ),
    "a checkpoint by its name": (
        call(raise_everywhere, both, OSError, targets=["lonely", "pol*"]),
        "^no error can come out of polite: ",
    ),
    "a target that never waits": (
        call(cancel_everywhere, never_waits),
        "^nothing can strike still: it never waits, and makes no checkpoint$",
    ),
    "a target that is being started": (
        call(cancel_everywhere, only_starts),
        "^only who starts starting can strike it: `nursery.start` waits for it to the end$",
    ),
    "an arrival": (
        call(raise_everywhere, program, OSError, arrivals=["elsewhere"]),
        "^no fault arrives elsewhere at sleep$",
    ),
    "seams": (
        call(fault_everywhere, talks, seams=["network.*", "non.x"], check=False),
        "the names non.x; there are network.connect",
    ),
    "explore": (
        call(explore, program, seeds=5, faults="cancel", targets=["sleep", "nobody"]),
        "^no target has one of the names nobody; there are sleep$",
    ),
    "jobs": (
        call(explore, program, seeds=5, jobs=2, faults="cancel", targets="nobody"),
        "^no target has one of the names nobody; there are sleep$",
    ),
    "kind": (
        call(explore, program, seeds=5, faults="cancel,network.*"),
        r"^no fault is of the kind 'network\.\*'; there are cancel blocked, .*OSError$",
    ),
    "error": (
        call(explore, program, seeds=5, faults="raise Nope"),
        "^no fault is of the kind 'raise Nope'; there are cancel blocked, ",
    ),
    "network": (
        call(explore, lonely, seeds=5, faults="network.*"),
        "^nothing is called that can go wrong: use `sim.network",
    ),
    "swarm": (
        call(explore, lonely, seeds=5, faults="swarm"),
        "^no nursery starts a function of .*, and none that `sim.target` was given is",
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_nothing_has_is_told_beside_those_there_are(name: str) -> None:
    do, text = NAMES[name]
    with pytest.raises(NothingToStrike, match=text):
        do()


def test_who_fails_by_a_fault_of_its_own_is_not_told_that_there_is_none() -> None:
    async def breaks(sim: Sim) -> None:
        sim.fault("network.connect", "refused")
        try:
            await talks(sim)
        except* OSError:
            raise AssertionError("mine") from None

    text = (
        r"fails by what its own sim.fault lets .*\(network.connect refused 1\), under"
    )
    with pytest.raises(ProgramFailed, match=text):
        cancel_everywhere(breaks)


def test_a_fault_that_never_comes_is_told() -> None:
    async def waits(sim: Sim) -> None:
        sim.fault("network.connect", "refused", call=99)
        await talks(sim)

    note = (
        "sim.fault('network.connect', 'refused', call=99) has no effect: 1 such calls"
    )
    assert any(note in it for it in simulate(waits).notes)
    report = cancel_everywhere(waits, check=False)
    assert f"note: {note} were made (in 3 runs)" in str(report)
    explored = explore(waits, seeds=5, faults="cancel")
    assert f"note: {note} were made (in 5 runs)" in str(explored)
    assert f"note: {note} " in str(explore(waits, seeds=5, jobs=2))


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
