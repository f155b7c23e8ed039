"""One run, and many: what they tell, and that they are the same each time."""

from __future__ import annotations

import cProfile
import gc
import inspect
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from datetime import UTC, datetime
from itertools import count
from typing import Any

import attrs
import pytest
import trio

from supervisor.simulation import (
    Campaign,
    Hang,
    NotDeterministic,
    Sim,
    SimulationError,
    SimulationFailed,
    cancel_everywhere,
    explore,
    fault_everywhere,
    simulate,
)
from supervisor.simulation._steering.culprits import watched


async def chatter(sim: Sim) -> int:
    """Five tasks that talk over a channel and wait by chance."""
    send, receive = trio.open_memory_channel[str](2)

    async def talk(name: str) -> None:
        for number in range(3):
            await trio.sleep(sim.random.choice([0, 0.5, 1]))
            await send.send(f"{name}{number}")

    got: list[str] = []
    async with trio.open_nursery() as nursery:
        for name in "abcde":
            nursery.start_soon(talk, name)
        async for message in receive:
            sim.log(message)
            got.append(message)
            if len(got) == 15:
                break
    return len(got)


def test_a_run_tells_what_came_of_it() -> None:
    run = simulate(chatter)
    assert (run.value, run.error, run.faults, run.findings) == (15, None, [], [])
    assert run.schedule == ()
    assert run.steps > 30
    assert 0 < run.seconds <= 3
    kinds = [entry[1] for entry in run.log]
    assert kinds.count("spawn") == kinds.count("exit") == 6
    assert run.log[0] == (0.0, "spawn", "main")
    assert (0.0, "spawn", "talk#5") in run.log
    assert kinds.count("log") == 15


def test_what_the_program_raises_is_kept() -> None:
    async def fails(sim: Sim) -> None:
        raise LookupError("here")

    run = simulate(fails)
    assert isinstance(run.error, LookupError)
    assert run.value is None


def test_a_seed_is_a_run() -> None:
    """Each twice; also of others, and by the tape."""
    digests: set[str] = set()
    for seed in range(60):
        run = simulate(chatter, seed=seed)
        assert simulate(chatter, seed=seed).digest == run.digest
        assert simulate(chatter, tape=run.tape).digest == run.digest
        digests.add(run.digest)
    assert len(digests) >= 57


def test_a_seed_is_the_same_run_in_another_process() -> None:
    code = (
        "from tests.supervisor.simulation.test_simulate import *; "
        "print(*[simulate(chatter, seed=seed).digest for seed in range(8)])"
    )
    for hash_seed in ("1", "77"):
        printed = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": "."},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.split()
        assert printed == [simulate(chatter, seed=seed).digest for seed in range(8)]


def test_the_limit_is_virtual() -> None:
    async def slow(sim: Sim) -> None:
        await trio.sleep(50)

    assert isinstance(simulate(slow, limit=49).error, Hang)
    assert simulate(slow, limit=51).error is None


def test_within_tells_who_is_where() -> None:
    async def program(sim: Sim) -> None:
        with sim.within(5):
            await trio.sleep(4)
        with sim.within(5):
            await trio.sleep(6)

    error = simulate(program).error
    assert isinstance(error, AssertionError)
    text = str(error)
    assert text.startswith(
        "it took more than 5 virtual seconds\nmain: test_simulate.py:"
    )
    assert text.endswith(" program")


def test_a_function_is_called_at_its_time() -> None:
    async def program(sim: Sim) -> list[float]:
        called: list[float] = []
        sim.at(3, lambda: called.append(trio.current_time()))
        sim.at(1, lambda: called.append(trio.current_time()))
        sim.at(9, lambda: called.append(trio.current_time()))
        await trio.sleep(5)
        return called

    assert simulate(program).value == [1, 3]


def test_a_function_that_is_called_at_its_time_can_use_the_world() -> None:
    """No task calls it."""

    async def program(sim: Sim) -> None:
        env = sim.env()
        sim.at(1, lambda: sim.log("tick"))
        sim.at(2, lambda: sim.log(env.clock.now().year > 1))
        await trio.sleep(5)

    run = simulate(program)
    assert run.error is None
    ticks = [(1.0, "log", "", "'tick'"), (2.0, "log", "", "True")]
    assert [it for it in run.log if it[1] == "log"] == ticks
    report = fault_everywhere(program)
    assert report.points > 0


def test_a_thread_may_write_into_the_log() -> None:
    """It is no task, and no error either."""

    async def program(sim: Sim) -> None:
        await trio.to_thread.run_sync(sim.log, "from a thread")

    run = simulate(program)
    assert run.error is None
    assert [it[1:] for it in run.log if it[1] == "log"] == [
        ("log", "", "'from a thread'")
    ]


# ---- Many --------------------------------------------------------------------------


async def ordered(sim: Sim) -> None:
    """It is wrong as soon as the second overtakes the first."""
    seen: list[str] = []

    async def pass_by(name: str) -> None:
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        seen.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_by, "first")
        await trio.lowlevel.checkpoint()
        nursery.start_soon(pass_by, "second")
    assert seen == ["first", "second"], seen


def test_explore_raises_with_its_report() -> None:
    with pytest.raises(SimulationFailed) as raised:
        explore(ordered, seeds=40)
    report = raised.value.report
    assert isinstance(report, Campaign)
    assert report.runs == 40
    assert 1 < report.distinct <= 40
    (failure,) = report.failures
    assert failure.seed > 0
    text = str(raised.value)
    assert (
        f"explore: 40 runs, {report.distinct} different: {report.failed} failed" in text
    )
    assert failure.replay in text
    assert "shrunk: round robin but step" in text
    assert simulate(ordered, tape=failure.tape).error is not None


def test_all_schedules_with_few_deviations_can_be_tried() -> None:
    """No one twice, so there are as many runs as schedules."""
    report = explore(ordered, seeds=400, policy="exhaustive", check=False)
    assert report.complete is not None and report.complete >= 1
    assert report.runs == 400
    assert report.failures[0].seed > 0
    one = explore(ordered, seeds=1, policy="exhaustive")
    assert (one.runs, one.complete) == (1, 0)
    few = explore(ordered, seeds=3, policy="exhaustive", check=False)
    assert (few.runs, few.complete) == (3, 0)
    assert "these are all schedules with up to 0 deviations" in str(few)


def test_a_small_program_is_tried_whole() -> None:
    """Three tasks of one step each have six orders; trio's own steps make more."""
    orders: set[str] = set()

    async def program(sim: Sim) -> None:
        seen: list[str] = []

        async def step(name: str) -> None:
            seen.append(name)

        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(step, name)
        orders.add("".join(seen))

    report = explore(program, seeds=3000, policy="exhaustive")
    assert report.runs < 3000  # There are no more.
    assert report.distinct == report.runs
    assert len(orders) == 6


def test_explore_returns_where_nothing_is_wrong() -> None:
    report = explore(chatter, seeds=[3, 4, 5])
    assert (report.runs, report.distinct, report.failed) == (3, 3, 0)
    assert str(report) == "explore: 3 runs, 3 different: nothing is wrong"
    assert explore(ordered, seeds=40, check=False).failed


async def a_thread(sim: Sim) -> None:
    await trio.to_thread.run_sync(time.time)
    sim.log(next(ANEW))


async def a_process(sim: Sim) -> None:
    await trio.run_process([sys.executable, "-S", "-c", ""])
    sim.log(next(ANEW))


async def a_socket(sim: Sim) -> None:
    trio.socket.socket().close()
    sim.log(next(ANEW))


async def a_collection(sim: Sim) -> None:
    gc.collect()
    sim.log(next(ANEW))


async def a_fork(sim: Sim) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # pytest may have threads.
        child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)  # noqa: ASYNC222 (it ends at once)
    sim.log(next(ANEW))


ANEW = count()
"""Stands for what differs from run to run, where the culprit does so only at times."""


def a_name() -> str:
    file, path = tempfile.mkstemp()
    os.close(file)
    os.unlink(path)
    return path


CULPRITS: dict[str, Any] = {
    "the wall clock": time.perf_counter_ns,
    "the wall clock ": lambda: datetime.now(UTC),
    "chance (random)": random.random,
    "chance (random) ": lambda: random.randint(0, 1 << 60),
    "chance (uuid)": uuid.uuid4,
    "chance (os.urandom)": lambda: secrets.token_hex(8),
    "chance (random)  ": lambda: random.Random().random(),
    "chance (os.getrandom)": lambda: os.getrandom(8),
    "chance (tempfile)": lambda: a_name(),
    "chance (tempfile) ": tempfile.mktemp,  # pyright: ignore[reportDeprecated]
    "a clock of the system": time.process_time_ns,
    "a clock of the system ": time.thread_time_ns,
    "a clock of the system  ": lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC),
    "the time of a file": lambda: os.stat(__file__).st_mtime_ns + next(ANEW),
    "the time of a file ": lambda: os.path.getmtime(__file__) + next(ANEW),
    "an address (id)": lambda: id(object()),
    "a thread": a_thread,
    "a process": a_process,
    "a process ": a_fork,
    "a socket": a_socket,
    "the collector": a_collection,
}


if sys.platform == "win32":
    for unknown in ("a process ", "chance (os.getrandom)", "a clock of the system  "):
        del CULPRITS[unknown]


@attrs.define(repr=False, eq=False)
class Thing:
    """Its text is its address."""


@pytest.mark.parametrize(
    "said",
    [
        lambda it: " ".join(map(str, ["it is", it])),
        lambda it: [it],
        lambda it: {"key": (1, it)},
    ],
    ids=["a text", "a list", "a map"],
)
def test_an_address_is_seen_in_any_field_of_the_log(said: Any) -> None:
    async def program(sim: Sim) -> None:
        told = said(Thing())
        sim.log(told)

    with pytest.raises(NotDeterministic) as caught:
        explore(program, seeds=1)
    (culprit,) = caught.value.culprits
    assert culprit.startswith("an address in a text at test_simulate.py:")


@pytest.mark.parametrize("name", CULPRITS)
def test_what_no_tape_decides_is_named_with_its_place(name: str) -> None:
    culprit = CULPRITS[name]

    async def program(sim: Sim) -> None:
        sim.log("same")
        if inspect.iscoroutinefunction(culprit):
            await culprit(sim)
        else:
            sim.log(culprit())

    with pytest.raises(NotDeterministic, match=r"at line \d of their logs") as raised:
        explore(program, seeds=3)
    text = str(raised.value)
    # A thread may also come back so late that one of the runs has another line there.
    assert text.count("'log', 'main'") in ((1, 2) if name == "a thread" else (2,))
    (found,) = raised.value.culprits
    assert found.startswith(f"{name.strip()} at test_simulate.py:")
    assert f"no tape decides {found}" in text


def test_where_nothing_is_seen_the_text_says_what_it_may_be() -> None:
    async def program(sim: Sim) -> None:
        sim.log(next(ANEW))

    text = "the run before may have left something behind: in a file, a module, a class"
    with pytest.raises(NotDeterministic, match=text):
        explore(program, seeds=3)


def test_nobody_is_blamed_for_time_and_chance_of_the_simulation() -> None:
    with watched() as culprits:
        run = simulate(chatter, seed=3)
    assert run.error is None
    assert culprits == []


def test_nobody_is_blamed_for_what_the_collector_calls() -> None:
    """Between two runs it is on, and calls what a library has asked it to call."""
    calls: list[str] = []
    kept: list[list[int]] = []

    def called(phase: str, _: dict[str, int]) -> None:
        calls.append(phase)
        time.time()

    thresholds = gc.get_threshold()
    gc.callbacks.append(called)
    gc.set_threshold(1)
    try:
        with watched() as culprits:
            while len(kept) < 100:  # A comprehension would be looked at itself.
                kept.append([])
    finally:
        gc.callbacks.remove(called)
        gc.set_threshold(*thresholds)
    assert calls
    assert len(kept) == 100
    assert culprits == []


def test_a_profiler_does_not_disturb_a_session() -> None:
    """After some runs what they left is collected, unseen by a culprit's watcher."""
    profile = cProfile.Profile()
    profile.enable()
    try:
        report = explore(chatter, seeds=range(1, 20))
    finally:
        profile.disable()
    assert report.runs == 19


def test_a_program_is_given_what_it_may_call_and_no_more() -> None:
    public = {it for it in dir(Sim) if not it.startswith("_")}
    told = "random target within at suspend log find ignore network env fault"
    assert public == {*told.split()}


def test_a_search_inside_of_a_run_of_trio_is_refused() -> None:
    async def program(sim: Sim) -> None:
        await trio.sleep(1)

    async def nested(sim: Sim) -> None:
        simulate(program)

    async def searches() -> None:
        for search in (
            cancel_everywhere,
            simulate,
            lambda it: explore(it, seeds=2),
        ):
            with pytest.raises(SimulationError, match=r"call it outside of trio.run"):
                search(program)

    trio.run(searches)
    assert isinstance(simulate(nested).error, SimulationError)
