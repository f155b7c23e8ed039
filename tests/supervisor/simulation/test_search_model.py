"""What sweeps and explorations tell, beside a plain loop that does the same; and what
they do where a process, a program or a tape is an odd one."""

from __future__ import annotations

import os
import select
import signal
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
import trio

from actors.probe import buggify
from supervisor.simulation import (
    Campaign,
    Deviation,
    Failure,
    Fault,
    Hang,
    Run,
    Sim,
    SimulationFailed,
    Tape,
    cancel_everywhere,
    explore,
    raise_everywhere,
    save,
    simulate,
    try_corpus,
)
from supervisor.simulation import crash as crashing
from supervisor.simulation._search import jobs
from supervisor.simulation._search.again import NEAREST, parting
from supervisor.simulation._search.explore import FEW, Tally, Tried, smaller
from supervisor.simulation._search.losses import CRASHES
from supervisor.simulation._search.report import wrong_in
from supervisor.simulation._search.shrink import shrink
from supervisor.simulation._steering.policies import policy_of
from supervisor.simulation._steering.run import LIMIT
from supervisor.simulation._steering.session import session
from supervisor.simulation._steering.simulate import once
from supervisor.simulation._steering.tape import ARRIVALS
from supervisor.simulation._steering.targets import is_named
from supervisor.simulation.crash import Disk, crash, crash_everywhere

Program = Callable[[Sim], Awaitable[Any]]

forks = pytest.mark.skipif(not jobs.can_fork(), reason="needs fork")


# ---- What a sweep tells ------------------------------------------------------------------


async def many_ways(sim: Sim) -> None:
    """Three members; each ends in several ways where it is cancelled at one line, and in
    one way at two lines."""
    lock = trio.Lock()

    async def member(first: int) -> None:
        turn = first
        try:
            while turn < 4:
                await trio.lowlevel.checkpoint()
                turn += 1
            await trio.sleep(1)
        except trio.Cancelled:
            if turn == 1:
                raise ValueError("one") from None
            if turn == 2:
                lock.acquire_nowait()
            raise

    async with trio.open_nursery() as nursery:
        for first in range(3):
            nursery.start_soon(member, first)


async def wrong_twice(sim: Sim) -> None:
    """The same is wrong after a cancel at either of two lines."""

    async def member() -> None:
        try:
            await trio.sleep(1)
            await trio.sleep(1)
        except trio.Cancelled:
            raise ValueError("cancelled") from None

    async with trio.open_nursery() as nursery:
        nursery.start_soon(member)
        nursery.start_soon(member)


Told = tuple[str, str, str, str, int]


def told_by_a_loop(program: Program, schedules: int) -> list[Told]:
    """Strike at each point, and count by site, arrival, and what is wrong."""
    first: dict[tuple[str, str, str], tuple[str, str]] = {}
    times: dict[tuple[str, str, str], int] = {}

    def run(seed: int, **options: Any) -> tuple[Run, list[Fault]]:
        return once(program, policy_of(None).start(seed), seed=seed, **options)

    with session():
        for seed in range(schedules):
            for point in run(seed, count=[("cancel", ARRIVALS)])[1]:
                struck, _ = run(seed, faults=[point])
                if wrong := wrong_in(struck):
                    (fault,) = struck.faults
                    key = fault.site, fault.arrival, wrong[0].kind
                    text = "\n".join(it.text for it in wrong)
                    first.setdefault(key, (fault.after, text))
                    times[key] = times.get(key, 0) + 1
    return [(*key[:2], *first[key], times[key]) for key in first]


@pytest.mark.parametrize("program", [many_ways, wrong_twice])
def test_the_table_is_what_a_loop_over_all_points_finds(program: Program) -> None:
    """Alike are strikes of one site, arrival and kind; the first of them is told."""
    report = cancel_everywhere(program, schedules=2, check=False)
    rows = [(it.site, it.arrival, it.after, it.error, it.count) for it in report.rows]
    assert rows == told_by_a_loop(program, 2)


@pytest.mark.parametrize("program", [many_ways, wrong_twice])
def test_the_tape_of_a_row_strikes_there_and_ends_so(program: Program) -> None:
    for row in cancel_everywhere(program, check=False).rows:
        run = simulate(program, tape=str(row.tape))
        assert wrong_in(run)[0].text.split(":")[0] == row.error.split(":")[0]
        assert [(it.site, it.arrival) for it in run.faults] == [(row.site, row.arrival)]


def test_nothing_is_added_after_what_is_wrong_already() -> None:
    report = cancel_everywhere(wrong_twice, pairs=30, schedules=1, check=False)
    assert sum(row.count for row in report.rows) == report.points
    assert report.pairs == []
    assert report.runs == report.points + 2


def test_the_second_of_a_pair_is_asked_for_too() -> None:
    async def work() -> None:
        await trio.sleep(1)
        await trio.sleep(1)

    async def other() -> None:
        await work()

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            for fn in (work, work, other, other):
                nursery.start_soon(fn)

    for targets in (None, ["work*"], ["work*", "other#2"]):
        pairs = cancel_everywhere(program, targets=targets, pairs=60).pairs
        assert pairs
        struck = {it.target for pair in pairs for it in pair}
        there = {"work", "work#2", "other", "other#2"}
        assert struck == {it for it in there if is_named(it, targets)}


def waning(least: int) -> Program:
    """Only so many of its runs have a second call of what is struck."""
    runs: list[None] = []

    async def work() -> None:
        await trio.sleep(1)

    async def program(sim: Sim) -> None:
        runs.append(None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            if len(runs) <= least:
                nursery.start_soon(work)

    return program


def test_a_fault_that_never_fires_fails_a_sweep() -> None:
    with pytest.raises(
        SimulationFailed, match="1 faults never fired, as cancel work#2"
    ):
        cancel_everywhere(waning(4), schedules=1, arrivals=["blocked"])


def test_a_pair_has_fired_when_both_have() -> None:
    # Two runs count, two are the first strike and its like; the fifth is the pair.
    options: dict[str, Any] = {"schedules": 1, "arrivals": ["blocked"], "check": False}
    report = cancel_everywhere(waning(4), pairs=2, max_points=1, **options)
    assert len(report.pairs) == 1
    assert [it.target for it in report.never_fired] == ["work#2"]


# ---- What a sweep of crashes tells ---------------------------------------------------------


NAMES = [Path("/a"), Path("/b"), Path("/c")]


async def keeps(sim: Sim, disk: Disk) -> None:
    """It writes three files, and syncs none."""

    async def put(path: Path) -> None:
        await trio.lowlevel.checkpoint()
        disk.files.append_lines(path, b"100\n")
        disk.tell(str(path))

    async with trio.open_nursery() as nursery:
        for path in NAMES:
            nursery.start_soon(put, path)


async def misses(sim: Sim, disk: Disk) -> None:
    """It fails in one way if one file is lost, in another one if several are, and in a
    third one after some schedules."""
    if disk.told[1:] == ["/c", "/b"]:
        raise LookupError(disk.told)
    lost = [path for path in disk.told if not disk.files.size(Path(path))]
    if len(lost) == 1:
        raise KeyError(lost)
    if lost:
        raise ValueError(lost)


def crashed_by_a_loop(schedules: int) -> list[Told]:
    """Recover from each crash that leaves something new, and count as a sweep does."""
    first: dict[tuple[str, str, str], str] = {}
    times: dict[tuple[str, str, str], int] = {}
    seen: set[str] = set()
    with session():
        for seed in range(schedules):
            pick = policy_of(None).start(seed)
            _, moments = crashing._once(keeps, None, pick, LIMIT, seed)
            for number, moment in enumerate(moments, 1):
                for fault in crashing._faults(moment, number, CRASHES):
                    there = moment.after(fault.arrival)
                    left = repr((there.told, sorted(there.disk.entries.items())))
                    if left in seen:
                        continue
                    seen.add(left)
                    run, _ = crashing._recovered(misses, there, LIMIT, record=False)
                    if wrong := wrong_in(run):
                        how = fault.arrival.partition(":")[0]
                        key = fault.site, how, wrong[0].kind
                        first.setdefault(key, wrong[0].text)
                        times[key] = times.get(key, 0) + 1
    return [(*key[:2], "", first[key], times[key]) for key in first]


@pytest.mark.parametrize("schedules", [1, 8])
def test_the_table_of_crashes_is_what_a_loop_over_all_finds(schedules: int) -> None:
    """Alike are crashes before one line that leave the disk in one way."""
    options: dict[str, Any] = {"schedules": schedules, "again": 0, "check": False}
    report = crash_everywhere(keeps, misses, **options)
    rows = [(it.site, it.arrival, it.after, it.error, it.count) for it in report.rows]
    assert rows == crashed_by_a_loop(schedules)
    assert any(row[4] > 1 for row in rows)
    for row in report.rows:
        wrong = wrong_in(crash(keeps, misses, row.tape))
        assert wrong[0].text.split(":")[0] == row.error.split(":")[0]


def test_the_crashes_of_what_recovers_are_drawn_from_all() -> None:
    async def begins(sim: Sim, disk: Disk) -> None:
        disk.files.append_lines(NAMES[0], b"100\n", durable=True)

    async def recover(sim: Sim, disk: Disk) -> None:
        assert (disk.files.size(NAMES[1]) or 0) < 12, "more than two of three are there"
        for _ in range(4):
            disk.files.append_lines(NAMES[1], b"100\n", durable=True)

    options: dict[str, Any] = {"crashes": ["kill"], "check": False}
    assert not crash_everywhere(begins, recover, again=0, **options).rows
    assert crash_everywhere(begins, recover, again=6, **options).rows


def test_the_clock_goes_on_through_all_crashes() -> None:
    async def program(sim: Sim, disk: Disk) -> float:
        now = disk.env().clock.now().timestamp()
        await trio.sleep(10)
        disk.files.append_lines(NAMES[0], b"100\n", durable=True)
        return now

    began = [
        crash(
            program, program, Tape((), (Fault("crash", "create", "kill", 1),) * times)
        )
        for times in (1, 2)
    ]
    assert began[1].value - began[0].value == pytest.approx(10)


# ---- What an exploration tells -------------------------------------------------------------


async def order(sim: Sim) -> str:
    """Return in which order three tasks came."""
    came: list[str] = []

    async def come(name: str) -> None:
        await trio.lowlevel.checkpoint()
        came.append(name)

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(come, name)
    return "".join(came)


async def fails_by_order(sim: Sim) -> None:
    """What takes more deviations is another failure than what takes few."""
    found = await order(sim)
    if found == "cba":
        raise ValueError(found)
    if found != "abc":
        raise KeyError(found)


def test_a_failure_is_made_smaller_as_what_it_is() -> None:
    found = explore(fails_by_order, seeds=60, check=False).failures
    assert {it.error.split(":")[0] for it in found} == {"ValueError", "KeyError"}
    for failure in found:
        error = simulate(fails_by_order, tape=failure.tape).error
        assert failure.error.startswith(type(error).__name__)


def test_a_tally_is_what_a_loop_over_its_runs_finds() -> None:
    """The runs come in any order, as from several processes. Of each kind the failure of
    the lowest seed is told."""

    def tried(seed: int, kind: str = "", *, lost: bool = False) -> Tried:
        failure = Failure(seed, kind, Tape(seed=seed)) if kind else None
        digest = "" if lost else str(seed // 2)
        return Tried(seed, digest, 1, 1.0, kind=kind, failure=failure, lost=lost)

    held = [tried(seed, "held") for seed in (2, 3, 4)]
    runs = [tried(0), tried(1), *held, tried(5, "Lost", lost=True)]
    for number in range(50):
        tally = Tally(order)
        for run in Random(number).sample(runs, len(runs)):
            tally.add(run)
        told = tally.campaign()
        assert (told.runs, told.distinct, told.failed) == (6, 3, 4)
        assert [(it.error, it.seed) for it in told.failures] == [
            ("held", 2),
            ("Lost", 5),
        ]


def test_what_hangs_is_made_smaller_by_a_few_tapes_only() -> None:
    def late(error: type[Exception] | None) -> Program:
        async def program(sim: Sim) -> None:
            if [await order(sim) for _ in range(10)].count("abc") < 6:
                if error is not None:
                    raise error
                while True:
                    await trio.sleep(LIMIT / 10)

        return program

    many: list[int] = []
    for error in (None, ValueError):
        program = late(error)
        tried: list[str] = []
        with session():
            run, _ = once(program, policy_of("one step").start(1), seed=1)
            assert isinstance(run.error, error or Hang)
            kind = wrong_in(run)[0].kind
            smaller(program, run, kind, LIMIT, beat=tried.append)
        many.append(len(tried))
    assert many[0] == FEW < many[1]


def test_no_fault_is_put_in_where_a_schedule_fails_alone() -> None:
    async def program(sim: Sim) -> None:
        raise ValueError(await order(sim))

    report = explore(program, seeds=10, faults="swarm", check=False)
    assert (report.runs, report.failed, report.faults) == (10, 10, {})


def test_what_has_gone_wrong_by_chance_is_not_put_in_again() -> None:
    async def program(sim: Sim) -> None:
        for _ in range(4):
            buggify("slow")
            await trio.lowlevel.checkpoint()

    report = explore(program, seeds=200, faults="buggify.*")
    assert report.runs > 250
    assert report.faults
    assert report.never_fired == 0


# ---- What is made smaller ------------------------------------------------------------------


def test_no_deviation_is_left_that_is_not_needed() -> None:
    """Whatever fails, also where one is needless only once another one is gone."""
    steps = range(100, 600, 100)  # So far apart that none stands for another one.
    for number in range(60):
        chance = Random(number)
        fails: set[frozenset[int]] = {frozenset(steps)}
        for _ in range(12):
            fails.add(frozenset(chance.sample(steps, chance.randint(1, 4))))

        def attempt(tape: Tape, fails: set[frozenset[int]] = fails) -> Tape | None:
            return (
                tape if frozenset(it.step for it in tape.deviations) in fails else None
            )

        found, tried = shrink(Tape(tuple(Deviation(it, 1) for it in steps)), attempt)
        left = frozenset(it.step for it in found.deviations)
        assert left in fails
        assert not [it for it in left if left - {it} in fails]
        assert tried < 40


def test_no_decision_is_left_that_is_not_needed() -> None:
    """Whatever fails, also where one is needless only once another one is smaller."""
    for number in range(200):
        chance = Random(number)
        deviations = tuple(Deviation(step, chance.randint(1, 2)) for step in (100, 200))
        faults = tuple(
            Fault("cancel", it, "late", chance.randint(1, 3)) for it in ("a", "b")
        )
        tape = Tape(deviations, faults, seed=chance.randint(0, 1))
        fails = {str(tape)}

        def attempt(tape: Tape, fails: set[str] = fails, salt: int = number) -> Any:
            fails_now = Random(f"{salt} {tape}").random() < 0.3
            return tape if str(tape) in fails or fails_now else None

        found, _ = shrink(tape, attempt)
        fewer = [attrs.evolve(found, seed=0)] if found.seed else []
        fewer.append(attrs.evolve(found, deviations=()))
        for name in ("deviations", "faults"):
            kept: tuple[Any, ...] = getattr(found, name)
            for at in range(len(kept)):
                left = (*kept[:at], *kept[at + 1 :])
                fewer.append(attrs.evolve(found, **{name: left}))
        assert not [it for it in fewer if it != found and attempt(it)]


@pytest.mark.parametrize("step", [0, 1, 9])
def test_a_deviation_nearby_that_does_alone_is_found(step: int) -> None:
    first = Tape((Deviation(3, 1), Deviation(10, 1)))
    alone = Tape((Deviation(step, 1),))
    assert shrink(first, lambda it: it if it == alone else None)[0] == alone


def test_what_needs_no_schedule_is_seen_at_once() -> None:
    tape = Tape(tuple(Deviation(step, 1) for step in range(64)), seed=3)
    assert shrink(tape, lambda it: it) == (Tape(), 2)


# ---- Beside a run that passes, and as a file -------------------------------------------------


def test_so_many_tapes_are_tried_to_find_one_that_passes() -> None:
    runs: list[None] = []

    async def program(sim: Sim) -> None:
        runs.append(None)
        for _ in range(10):
            await order(sim)
        raise ValueError

    with session():
        assert parting(program, Tape(), LIMIT) is None
    # Besides, the run itself, and the one that says where it may deviate.
    assert len(runs) == NEAREST + 2


def test_a_tape_has_another_file_for_each_whose_it_is(tmp_path: Path) -> None:
    report = Campaign(1, 1, [Failure(1, "held", Tape((Deviation(1, 1),)))])
    paths = [save(report, tmp_path, of=of) for of in ("", "one", "other", "one")]
    assert len({it for [it] in paths}) == 3
    assert paths[1] == paths[3]


def test_a_run_that_does_other_things_in_the_same_steps_says_so() -> None:
    async def program(sim: Sim) -> None:
        await order(sim)
        if buggify("odd"):
            raise ValueError

    with session():
        found = parting(program, Tape.parse("fault buggify.odd fires 1"), LIMIT)
    assert found is not None
    assert found.line().startswith("in no step, ")


def test_the_later_decision_is_left_out_first() -> None:
    """The run beside which a failure is told parts from it as late as it can."""

    async def program(sim: Sim) -> None:
        if [await order(sim), await order(sim)].count("abc") == 0:
            raise ValueError

    run = next(
        run
        for run in (simulate(program, seed=seed) for seed in range(200))
        if run.error is not None and len(run.tape.deviations) == 2
    )
    with session():
        found = parting(program, run.tape, LIMIT)
    assert found is not None
    assert found.tape.deviations == run.tape.deviations[:1]


def test_a_tape_whose_error_a_sweep_has_made_waits_for_that_sweep(
    tmp_path: Path,
) -> None:
    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wrong_here)

    async def wrong_here() -> None:
        try:
            await trio.sleep(1)
        except OSError:
            raise AssertionError from None

    def error() -> OSError:
        return OSError("full")

    report = raise_everywhere(program, error, check=False)
    assert save(report, tmp_path, of="it")
    tried, misfits = try_corpus(program, tmp_path, "it")
    assert (tried.runs, misfits) == (0, [])
    tried, misfits = try_corpus(program, tmp_path, "it", error=error)
    assert (tried.failed > 0, misfits) == (True, [])


# ---- Several processes ---------------------------------------------------------------------


class Loads(Exception):
    """One that can be written and not be read."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


class Writes(Exception):
    """One that cannot be written."""

    def __init__(self) -> None:
        super().__init__("no text")
        self.fn = lambda: None


@forks
@pytest.mark.parametrize(
    "error", [Loads("no", "text"), Writes()], ids=["read", "write"]
)
def test_an_error_that_cannot_be_sent_is_told_by_its_text(error: Exception) -> None:
    def work(
        number: int, done: int, beat: jobs.Beat, slate: jobs.Slate
    ) -> Iterator[None]:
        raise error
        yield

    with pytest.raises(RuntimeError, match=f"{type(error).__name__}: no text"):
        list(jobs.in_processes(1, work))


@forks
def test_a_process_whose_parent_has_died_ends() -> None:
    """A pipe that only the two have tells by its end that both are gone."""
    ours, theirs = os.pipe()

    def work(
        number: int, done: int, beat: jobs.Beat, slate: jobs.Slate
    ) -> Iterator[None]:
        os.write(theirs, str(os.getpid()).encode())
        while True:
            beat("")

    with warnings.catch_warnings():
        # Of threads that trio keeps; the child uses nothing of theirs.
        warnings.simplefilter("ignore", DeprecationWarning)
        parent = os.fork()
    if parent == 0:
        try:
            for _ in jobs.in_processes(1, work):
                pass
        finally:
            os._exit(0)
    os.close(theirs)
    child = int(os.read(ours, 99))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    ended, _, _ = select.select([ours], [], [], 20)
    if not ended:
        os.kill(child, signal.SIGKILL)
    assert ended, "it runs on"
    assert os.read(ours, 99) == b""
    os.close(ours)
