"""Many runs: with faults by chance, in several processes, beside one that passes."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
import trio

from supervisor.simulation import (
    Campaign,
    Exhaustive,
    Failure,
    NotDeterministic,
    NothingToStrike,
    Replay,
    Row,
    Run,
    Sim,
    SimulationFailed,
    SweepReport,
    cancel_everywhere,
    explore,
    fault_everywhere,
    raise_everywhere,
    simulate,
)
from supervisor.simulation._search import explore as explore_module
from supervisor.simulation._search.again import parting, replay_line
from supervisor.simulation._search.explore import Search, Tally, Tried, tries
from supervisor.simulation._search.reached import Reached
from supervisor.simulation._search.swarm import drawn, is_meant, kind_of, read_kinds
from supervisor.simulation._steering.probes import Met
from supervisor.simulation._steering.run import LIMIT
from supervisor.simulation._steering.session import session
from supervisor.simulation._steering.tape import Fault, Tape
from supervisor.simulation.campaign import campaign


def arguments(fn: Callable[..., Any]) -> dict[str, Any]:
    return {
        name: ... if it.default is inspect.Parameter.empty else it.default
        for name, it in inspect.signature(fn).parameters.items()
    }


def test_what_users_may_call_is_called_so() -> None:
    """The words that were promised; what came later stands behind them."""
    sweep = {
        "program": ...,
        "targets": None,
        "arrivals": ("blocked", "woken", "elsewhere", "late"),
        "schedules": 3,
        "max_points": None,
        "limit": 3600.0,
        "check": True,
    }
    assert arguments(cancel_everywhere).items() >= sweep.items()
    # Those that the error has.
    raised = {**sweep, "error": ..., "arrivals": None}
    assert arguments(raise_everywhere).items() >= raised.items()
    assert [*arguments(raise_everywhere)][:2] == ["program", "error"]
    of_calls = {name: sweep[name] for name in sweep.keys() - {"targets", "arrivals"}}
    assert arguments(fault_everywhere).items() >= {**of_calls, "seams": None}.items()
    once = {"program": ..., "seed": 0, "policy": None, "tape": None}
    assert arguments(simulate).items() >= once.items()
    many = {"program": ..., "seeds": ..., "policy": "portfolio"}
    assert arguments(explore).items() >= many.items()
    for kind, names in {
        Run: "value error log digest schedule faults steps seconds",
        Campaign: "runs distinct failures",
        SweepReport: "rows points runs skipped never_fired",
        Row: "site arrival after error count replay",
    }.items():
        fields = {it.name for it in attrs.fields(kind)}
        assert all(it in fields or hasattr(kind, it) for it in names.split())
    assert issubclass(SimulationFailed, AssertionError)


async def leak(lock: trio.Lock) -> None:
    await lock.acquire()
    await trio.sleep(1)
    lock.release()


async def leaking(sim: Sim) -> None:
    """It keeps its lock where it is cancelled in its sleep."""
    lock = trio.Lock()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leak, lock)
        nursery.start_soon(leak, lock)


async def race(sim: Sim) -> None:
    seen: list[str] = []

    async def put(name: str) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put, "first")
        nursery.start_soon(put, "second")
    assert seen == ["first", "second"], seen


# ---- Faults by chance ------------------------------------------------------------------


def test_a_few_faults_find_what_no_schedule_shows() -> None:
    assert not explore(leaking, seeds=20).failures
    campaign = explore(leaking, seeds=20, faults="swarm", check=False)
    assert 20 < campaign.runs <= 40
    assert sum(campaign.faults.values()) >= campaign.runs - 20
    assert {"cancel late", "raise OSError"} <= campaign.faults.keys()
    (failure,) = campaign.failures
    assert "held: a Lock is held by leak" in failure.error
    assert len(failure.tape.faults) == 1
    assert simulate(leaking, tape=failure.tape).findings
    assert f"faults: {next(iter(campaign.faults))} " in str(campaign)


def test_only_the_kinds_that_are_asked_for_strike() -> None:
    campaign = explore(leaking, seeds=20, faults=["cancel late"], check=False)
    assert [*campaign.faults] == ["cancel late"]
    campaign = explore(leaking, seeds=9, faults="cancel", targets="leak#2", check=False)
    assert {it.target for one in campaign.failures for it in one.tape.faults} == {
        "leak#2"
    }
    for targets, faults in (("nobody", "cancel"), (None, "network.*")):
        with pytest.raises(NothingToStrike):
            explore(leaking, seeds=3, faults=faults, targets=targets)
    with pytest.raises(ValueError, match="'cancle' is no kind of fault; write swarm"):
        explore(leaking, seeds=3, faults="cancle")


def test_a_seed_has_the_same_faults_wherever_it_is_run() -> None:
    points = [
        Fault("cancel", "get", "late", number)
        if number % 3
        else Fault("raise", "get", "blocked", number)
        for number in range(1, 40)
    ]
    subsets: set[frozenset[str]] = set()
    for seed in range(200):
        faults = drawn(points, ("*",), seed)
        assert faults == drawn(points, ("*",), seed)
        assert 1 <= len(faults) <= 3
        subsets.add(frozenset(map(kind_of, faults)))
    assert len(subsets) == 7  # Each subset of three kinds, but for none of them.
    assert drawn(points, read_kinds("none"), 1) == ()


def test_a_seed_has_some_kinds_and_lacks_others() -> None:
    """Of two kinds, three faults by chance are of one kind in a quarter of all seeds.
    Where each seed has a subset, they are in five of eight."""
    points = [
        Fault("cancel", "get", arrival, number)
        for number in range(1, 99)
        for arrival in ("late", "woken")
    ]
    drawn_by = [drawn(points, ("*",), seed) for seed in range(900)]
    three = [set(map(kind_of, it)) for it in drawn_by if len(it) == 3]
    of_one = sum(len(it) == 1 for it in three)
    assert 0.5 < of_one / len(three) < 0.75


def test_a_kind_is_meant_by_its_name_or_its_first_word() -> None:
    assert is_meant("cancel late", ("cancel",))
    assert is_meant("network.send cut", ("network.*",))
    assert is_meant("network.send cut", ("network.send",))
    assert not is_meant("cancel late", ("cancel woken",))


# ---- Several processes -----------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_processes_find_what_one_finds() -> None:
    one = explore(leaking, seeds=30, faults="swarm", check=False)
    two = explore(leaking, seeds=30, faults="swarm", jobs=3, check=False)
    assert (two.runs, two.distinct, two.failed) == (one.runs, one.distinct, one.failed)
    assert two.faults == one.faults
    assert [it.error for it in two.failures] == [it.error for it in one.failures]
    with pytest.raises(ValueError, match="exhaustive has one job"):
        explore(leaking, seeds=3, policy="exhaustive", jobs=2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("jobs", [1, 2])
def test_the_order_of_seeds_does_not_matter(jobs: int) -> None:
    ascending = explore(race, seeds=range(12), check=False)
    assert ascending.failed > 1
    for seeds in (range(12), [*range(11, -1, -1)], {*range(12)}):
        assert explore(race, seeds=seeds, jobs=jobs, check=False) == ascending


def test_what_is_told_does_not_depend_on_who_is_first() -> None:
    """Processes send what they found in any order, also a smaller tape later on."""
    failures = [
        Failure(seed, f"error {seed}", Tape(seed=seed), replay="") for seed in range(20)
    ]
    tried = [
        Tried(
            it.seed,
            "",
            1,
            0.0,
            wrong="w",
            kind=f"kind {it.seed % 7}",
            failure=it,
            notes=(f"note {it.seed % 3}",),
            probes=(
                Met("sometimes", f"probe {it.seed % 5}", "f.py:1 f", 1, it.seed // 9),
            ),
        )
        for it in failures
    ]
    told: set[str] = set()
    for number in range(50):
        tally = Tally(leaking, reached=Reached())
        for it in Random(number).sample(tried, len(tried)):
            tally.add(it)
        assert tally.campaign().failures == failures[:5]
        told.add(str(tally.campaign()))
    assert len(told) == 1
    assert "'probe 3' at f.py:1 f: 3 of 4 times, in 4 runs, first under seed 13" in str(
        told
    )


def test_a_campaign_tells_from_its_log_what_it_has_told_before(tmp_path: Path) -> None:
    options: dict[str, Any] = {"faults": None, "log": tmp_path / "race.jsonl"}
    first, again = (
        campaign(race, seconds=60, runs=12, **options).campaign for _ in range(2)
    )
    assert str(again) == str(first)
    assert [it.task for it in again.failures[0].tape.deviations] != [""]


async def seldom(sim: Sim) -> None:
    """Has a target under seeds 5, 10 and 11 of the first dozen."""

    async def rare() -> None:
        await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        if sim.random.random() < 0.25:
            nursery.start_soon(rare)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_who_is_seldom_there_is_struck_by_any_number_of_processes(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"faults": "cancel", "targets": "rare"}
    reports = [explore(seldom, seeds=12, jobs=it, **options) for it in (1, 2)]
    assert reports[0] == reports[1]
    assert reports[0].runs == 12 + 3
    log = tmp_path / "seldom.jsonl"
    for _ in range(2):  # The second time all is known from the log.
        spent = campaign(seldom, seconds=60, runs=14, log=log, **options)
        assert sum(spent.campaign.faults.values()) >= 2
    with pytest.raises(NothingToStrike, match="there are rare"):
        explore(seldom, seeds=12, jobs=2, faults="cancel", targets="never")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_that_cannot_be_ended_costs_one_process() -> None:
    async def stuck(sim: Sim) -> None:
        await race(sim)

    async def program(sim: Sim) -> None:
        try:
            await race(sim)
        except AssertionError:
            while True:  # It never awaits, so nothing in the process can end it.
                time.monotonic()

    async def dies(sim: Sim) -> None:
        try:
            await race(sim)
        except AssertionError:
            os._exit(3)

    # Those that work are silent, too, on a machine with much else to do: few seeds leave
    # room for much patience. Two of them fail, each in a process of its own.
    for ends, why, seeds, patience in (
        (program, "no end in 3 seconds", range(5), 3.0),
        (dies, "has died (3)", range(12), None),
    ):
        wrong = explore(stuck, seeds=seeds, check=False).failed
        assert wrong >= 2
        search = Search(ends, "portfolio")
        tried = list(tries(search, seeds, 2, patience=patience))
        assert sorted(it.seed for it in tried) == [*seeds]
        lost = [it for it in tried if it.lost]
        assert len(lost) == wrong
        assert why in lost[0].wrong
        for it in lost:
            # The tape is the schedule of its seed, as far as the run came.
            assert it.failure is not None
            tape = it.failure.tape
            assert it.failure.replay == f'simulate({ends.__name__}, tape="{tape}")'
            assert tape.seed == it.seed
            whole = simulate(stuck, seed=it.seed).tape.deviations
            assert tape.deviations == whole[: len(tape.deviations)] != ()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_that_is_lost_is_told_by_its_seed(tmp_path: Path) -> None:
    dying = (10, 11, 15)
    chances = [Random(f"program {seed}").random() for seed in dying]

    async def dies(sim: Sim) -> None:
        if sim.random.random() in chances:
            os._exit(3)
        await trio.sleep(1)

    report = explore(dies, seeds=iter(range(10, 20)), jobs=2, check=False)
    assert (report.runs, report.failed) == (10, 3)
    assert report.failures[0].seed in dying
    file = tmp_path / "log"
    for runs in (5, 20):
        campaign(dies, seconds=60, runs=runs, faults=None, jobs=2, log=file)
    rows = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    # Two processes may be ahead of each other, so it is not just the first twenty.
    assert len({it["seed"] for it in rows}) == len(rows) == 20
    lost = {it["seed"] for it in rows if it.get("lost")}
    assert lost == {it["seed"] for it in rows} & {*dying}


@pytest.mark.parametrize("seeds", [0, [], iter(())], ids=["0", "none", "spent"])
def test_no_seeds_are_refused(seeds: Any) -> None:
    with pytest.raises(ValueError, match=r"seeds (must be at least 1|has none)"):
        explore(race, seeds=seeds)


def test_exhaustive_has_a_bound_of_deviations() -> None:
    """With the bound, as many runs as there are schedules up to it, and no more."""

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(trio.lowlevel.checkpoint)

    counted: list[int] = []
    for most in range(1, 4):
        report = explore(program, seeds=10_000, policy=Exhaustive(most))
        assert report.complete == most
        counted.append(report.runs)
    named = explore(program, seeds=counted[2], policy="exhaustive")
    assert named.complete == 3, "the name goes through the same ones, and on"
    assert counted == sorted({*counted})


@pytest.mark.parametrize("policy", [Exhaustive(), "exhaustive"])
def test_one_run_cannot_be_exhaustive(policy: Any) -> None:
    with pytest.raises(ValueError, match="or exhaustive for explore"):
        simulate(leaking, policy=policy)


def test_a_replay_is_a_policy() -> None:
    """It takes a place where there is one, and is round robin elsewhere."""
    found = explore(race, seeds=300, check=False).failures[0].tape
    assert not found.faults
    places = {it.step: it.place for it in found.deviations}
    assert simulate(race, policy=Replay(places)).tape.deviations == found.deviations
    nowhere = simulate(race, policy=Replay({10**6: 1}))
    assert nowhere.digest == simulate(race).digest


@pytest.mark.parametrize("wide", [3, 40])
def test_a_level_that_is_cut_is_not_complete(
    monkeypatch: pytest.MonkeyPatch, wide: int
) -> None:
    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(trio.lowlevel.checkpoint)

    whole = explore(program, seeds=10_000, policy="exhaustive")
    assert whole.runs < 10_000
    assert whole.complete is not None and whole.complete > 1
    monkeypatch.setattr(explore_module, "WIDE", wide)
    cut = explore(program, seeds=10_000, policy="exhaustive")
    assert cut.runs < whole.runs
    assert cut.complete == (0 if wide == 3 else 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_what_a_process_raises_is_raised() -> None:
    runs: list[None] = []

    async def changes(sim: Sim) -> None:
        runs.append(None)
        sim.log(len(runs))

    with pytest.raises(NotDeterministic, match="at line 1 of their logs"):
        explore(changes, seeds=4, jobs=2)


# ---- What is told of it ------------------------------------------------------------------


def test_a_worker_blocks_no_signal_that_its_starter_does_not() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    async def program(sim: Sim) -> None:
        await trio.lowlevel.checkpoint()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before

    assert explore(program, seeds=4, jobs=2).runs == 4


def test_a_run_that_fails_is_told_beside_one_that_passes() -> None:
    (failure,) = explore(race, seeds=30, check=False).failures
    assert failure.parts.startswith("at step ")
    assert failure.parts.endswith(" did in a run that passes (round robin)")
    (deviation,) = failure.tape.deviations
    assert f"at step {deviation.step} {deviation.task} ran" in failure.parts
    assert f"parts: {failure.parts}" in str(SimulationFailed(Campaign(1, 1, [failure])))
    with session():
        found = parting(race, failure.tape, LIMIT)
    assert found is not None
    table = found.table().splitlines()
    assert table[0].split() == ["step", "fails", "passes:", "round", "robin"]
    marked = [line for line in table if " * " in line]
    assert marked[0].startswith(f"{deviation.step} *")
    assert "at its start" in marked[0]
    assert "test_explore.py:" in found.table(before=0, after=99)
    for wrong in ({"before": -1}, {"after": 0}):
        (name,) = wrong
        with pytest.raises(ValueError, match=f"^{name} must"):
            found.table(**wrong)
    assert simulate(race, tape=found.tape).error is None


def test_a_run_that_gets_stuck_is_told_up_to_there() -> None:
    async def waits(sim: Sim) -> None:
        event = trio.Event()

        async def sets() -> None:
            await trio.sleep(1)
            event.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(sets)
            await event.wait()

    (row, *_) = cancel_everywhere(waits, check=False, arrivals=["woken"]).rows
    assert row.error.startswith("Deadlock: ")
    assert "nobody ran any more; " in row.parts
    assert " did in a run that passes (round robin)" in row.parts


def test_where_nothing_fails_or_passes_nearby_there_is_no_such_line() -> None:
    async def wrong(sim: Sim) -> None:
        raise ValueError("always")

    (failure,) = explore(wrong, seeds=3, check=False).failures
    assert failure.parts == ""


def test_two_runs_that_differ_are_shown_from_both_sides() -> None:
    runs: list[None] = []

    async def changes(sim: Sim) -> None:
        runs.append(None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            if len(runs) % 2:
                await trio.lowlevel.checkpoint()

    with pytest.raises(NotDeterministic) as raised:
        explore(changes, seeds=1)
    first, left, right, *_ = str(raised.value).splitlines()
    assert first.startswith("two runs of one tape differ, in who takes step ")
    assert {left.strip(), right.strip()} == {"main", "sleep"}


@pytest.mark.parametrize("kind", [object, list, dict, float, Path, trio.Event])
def test_an_address_in_the_log_is_another_one_in_the_second_run(
    kind: Callable[[], object],
) -> None:
    async def addressed(sim: Sim) -> None:
        sim.log(id(kind()))

    # By chance it is the same one now and then, and each twentieth run is made twice.
    with pytest.raises(NotDeterministic, match=r"no tape decides an address \(id\)"):
        explore(addressed, seeds=200)


def test_the_line_that_replays_names_the_program_if_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Path(__file__)
    monkeypatch.chdir(here.parent)
    assert (
        replay_line(race, Tape.parse("3:1, cancel get late 2"))
        == "trio-supervisor sim replay test_explore.py:race '3:1, cancel get late 2'"
    )
    monkeypatch.chdir(here.parents[1] / "cli")
    assert f"{here}:race" in shlex.split(replay_line(race, Tape.parse("3:1")))

    async def local(sim: Sim, size: int = 1, name: str = "") -> None: ...

    tape = Tape.parse("3:1")
    assert replay_line(local, tape) == 'simulate(local, tape="3:1")'
    given = partial(partial(local, size=3), name="it")
    call = "simulate(partial(local, size=3, name='it'), tape=\"3:1\")"
    assert replay_line(given, tape) == call
    anything: Any = local
    unwritten = partial(anything, trio, size=object(), name="it")
    call = "simulate(partial(local, ..., size=..., name='it'), tape=\"3:1\")"
    assert replay_line(unwritten, tape) == call


def test_what_is_found_names_the_users_line() -> None:
    (failure,) = explore(race, seeds=30, check=False).failures
    line = inspect.getsourcelines(race)[1] + 10
    assert failure.place == f"{__file__}:{line}"
    rows = cancel_everywhere(leaking, check=False).rows
    assert len({it.site for it in rows}) > 1
    assert all(it.tape.faults[0].site == it.site for it in rows)
    row = rows[0]
    file, _, number = row.place.rpartition(":")
    assert file == __file__
    assert row.site == f"test_explore.py:{number} leak"
