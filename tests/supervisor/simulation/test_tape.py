"""Tapes: what they say, that they come back, and that they are made smaller."""

from __future__ import annotations

import json
import linecache
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from supervisor.simulation import (
    Deviation,
    Fault,
    Hang,
    Sim,
    Tape,
    TapeDoesNotFit,
    cancel_everywhere,
    explore,
    load,
    owner,
    raise_everywhere,
    replay,
    save,
    simulate,
    try_corpus,
)
from supervisor.simulation._search.again import replay_line
from supervisor.simulation._search.shrink import shrink, size
from supervisor.simulation._steering.run import Driver
from supervisor.simulation._steering.session import session
from supervisor.simulation._steering.simulate import replayed
from supervisor.simulation._steering.tape import ARRIVALS

names = st.sampled_from(["get", "get#2", "<lambda>", "run_it"])
deviations = st.builds(Deviation, st.integers(0, 999), st.integers(1, 9), names)
faults = st.one_of(
    st.builds(
        Fault, st.just("cancel"), names, st.sampled_from(ARRIVALS), st.integers(1, 99)
    ),
    st.builds(
        Fault,
        st.just("raise"),
        names,
        st.sampled_from(ARRIVALS),
        st.integers(1, 99),
        st.just("builtins:OSError"),
    ),
)
tapes = st.builds(
    Tape,
    st.lists(deviations, max_size=4, unique_by=lambda it: it.step).map(tuple),
    st.lists(faults, max_size=2, unique=True).map(tuple),
    st.integers(0, 9),
)


@given(tapes)
def test_a_tape_is_the_same_after_its_text(tape: Tape) -> None:
    assert Tape.parse(str(tape)) == tape


@given(tapes)
def test_a_tape_is_the_same_after_json(tape: Tape) -> None:
    again = Tape.from_json(json.loads(json.dumps(tape.to_json())))
    assert again == tape
    assert [it.task for it in again.deviations] == [it.task for it in tape.deviations]


@pytest.mark.parametrize("text", ["cancel get", "3", "3:x", "stop get blocked 1"])
def test_what_is_no_tape_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no step and no fault"):
        Tape.parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "1:2, 3:0",
            "'3:0' of tape .* is the step of who has waited longest, which is no",
        ),
        ("3:1, 4:1, 3:2", "has step 3 twice$"),
        ("3:1, cancel a late 1, cancel a late 1", "has cancel a late 1 twice$"),
    ],
)
def test_what_a_tape_can_do_only_once_is_said_once(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Tape.parse(text)


def test_two_faults_may_strike_one_target() -> None:
    text = "cancel a late 1, cancel a late 2, raise a late 1 builtins:OSError"
    assert len(Tape.parse(text).faults) == 3


def test_another_schema_is_refused() -> None:
    with pytest.raises(TapeDoesNotFit, match="schema 99"):
        Tape.from_json({"schema": 99})
    with pytest.raises(ValueError, match="no tape"):
        Tape.from_json({"schema": 1, "deviations": [{"place": 1}]})


def test_a_tape_says_what_it_does_in_words() -> None:
    fault = Fault("cancel", "get#2", "late", 25, after="main", step=15)
    assert (
        Tape((), (fault,)).words() == "round robin, cancel get#2 after step 15 (late)"
    )
    tape = Tape((Deviation(36, 2, "worker#2"),), ())
    assert tape.words() == "round robin but step 36 by worker#2"
    assert str(Tape()) == "round robin"


# ---- Smaller -----------------------------------------------------------------------


@given(st.sets(st.integers(0, 40), max_size=30), st.integers(0, 40))
def test_what_is_not_needed_goes(steps: set[int], needed: int) -> None:
    tape = Tape(tuple(Deviation(step, 3) for step in sorted(steps | {needed})), (), 7)

    def attempt(candidate: Tape) -> Tape | None:
        places = {it.step: it.place for it in candidate.deviations}
        return candidate if places.get(needed, 0) >= 2 else None

    smaller, tried = shrink(tape, attempt, budget=500)
    assert smaller == Tape((Deviation(needed, 2),))
    assert tried < 150


def test_a_fault_that_is_not_needed_goes_first() -> None:
    tape = Tape(
        (Deviation(1, 1), Deviation(2, 1)),
        (Fault("cancel", "a", "late", 5), Fault("cancel", "b", "late", 5)),
    )
    smaller, _ = shrink(tape, lambda it: it if it.faults else None)
    assert smaller == Tape((), (Fault("cancel", "b", "late", 1),))


def test_nothing_smaller_leaves_the_tape() -> None:
    tape = Tape((Deviation(1, 1),))
    assert shrink(tape, lambda _: None) == (tape, 1)


def test_a_tape_is_tried_no_more_often_than_allowed() -> None:
    tape = Tape(tuple(Deviation(step, 5) for step in range(100)))
    assert shrink(tape, lambda _: None, budget=30)[1] == 30
    assert size(tape) > size(attrs.evolve(tape, deviations=tape.deviations[1:]))


def test_when_no_more_may_be_tried_no_more_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a run that had to be ended a tape is long, and each one made of it takes long."""
    made = 0
    make = attrs.evolve

    def evolve(inst: Any, **changes: Any) -> Any:
        nonlocal made
        made += 1
        return make(inst, **changes)

    tape = Tape(tuple(Deviation(step, 5) for step in range(5_000)))
    monkeypatch.setattr("supervisor.simulation._search.shrink.attrs.evolve", evolve)
    assert shrink(tape, lambda _: None, budget=10) == (tape, 10)
    assert made < 20


async def race(sim: Sim) -> None:
    """Somebody looks, waits, and acts, and another acts in between."""
    taken: list[str] = []

    async def take(name: str, wait: int) -> None:
        for _ in range(wait):
            await trio.lowlevel.checkpoint()
        if not taken:
            await trio.lowlevel.checkpoint()
            taken.append(name)
            assert len(taken) == 1, taken

    async with trio.open_nursery() as nursery:
        for name, wait in (("a", 2), ("b", 3), ("c", 6)):
            nursery.start_soon(take, name, wait)


def test_a_race_shrinks_to_few_deviations() -> None:
    """In few runs, from wherever it begins."""
    failing = [
        run
        for seed in range(1, 400)
        if (run := simulate(race, seed=seed, policy="one step")).error is not None
    ][:20]
    assert len(failing) == 20
    needed: list[int] = []
    for run in failing:
        runs = 0

        def attempt(tape: Tape) -> Tape | None:
            nonlocal runs
            runs += 1
            again, _ = replayed(race, tape)
            return again.tape if again.error is not None else None

        with session():
            smaller, _ = shrink(run.tape, attempt)
        assert len(smaller.deviations) == 1, smaller
        needed.append(runs)
        assert simulate(race, tape=smaller).error is not None
        assert simulate(race, tape=str(smaller)).tape == smaller
    assert sorted(needed)[10] <= 40
    assert max(needed) <= 100


@pytest.mark.parametrize(
    ("tape", "told"),
    [
        (
            "cancel work blokced 1",
            "blokced 1: arrivals are blocked, woken, elsewhere, late",
        ),
        ("cancel wrok blocked 1", "wrok blocked 1: targets are work, work#2"),
        (
            "raise work woken 1 builtins:OSError",
            "arrivals are blocked, elsewhere, late, ch",
        ),
        ("cancel work blocked 99", "work blocked 99$"),
    ],
)
def test_what_a_tape_names_wrongly_is_told_with_what_there_is(
    tape: str, told: str
) -> None:
    async def work() -> None:
        await trio.sleep(1)

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            nursery.start_soon(work)

    with pytest.raises(TapeDoesNotFit, match=told):
        simulate(program, tape=tape)


def test_who_began_before_a_target_was_named_is_none() -> None:
    async def early() -> None:
        await trio.sleep(1)

    async def late() -> None:
        await trio.sleep(1)

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(early)
            await trio.sleep(0.5)
            nursery.start_soon(sim.target(late))

    with pytest.raises(TapeDoesNotFit, match=r": targets are late$"):
        simulate(program, tape="cancel early blocked 9")


def test_a_tape_of_another_program_is_told() -> None:
    async def alone(sim: Sim) -> None:
        await trio.sleep(1)

    async def pair(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            nursery.start_soon(trio.sleep, 2)

    with pytest.raises(TapeDoesNotFit, match="at step 3 there are no 2 tasks"):
        simulate(alone, tape="3:1")
    with pytest.raises(TapeDoesNotFit, match="no point at which to cancel get late 1"):
        simulate(alone, tape="cancel get late 1")
    with pytest.raises(TapeDoesNotFit, match="there is no error 'lost:Error'"):
        simulate(alone, tape="raise get late 1 lost:Error")
    deviated = next(
        run.tape
        for run in (simulate(pair, seed=seed) for seed in range(1, 99))
        if run.schedule
    )
    first = attrs.evolve(deviated.deviations[0], task="somebody")
    with pytest.raises(TapeDoesNotFit, match="was somebody's"):
        simulate(pair, tape=attrs.evolve(deviated, deviations=(first,)))


# ---- Files -----------------------------------------------------------------------------


def test_what_was_found_is_replayed_from_a_file(tmp_path: Path) -> None:
    report = explore(race, seeds=60, policy="one step", check=False)
    paths = save(report, tmp_path)
    assert len(paths) == len(report.failures) > 0
    for path, failure in zip(paths, report.failures, strict=True):
        assert load(path) == failure.tape
        run = replay(race, path)
        assert run.error is not None
        assert run.tape == failure.tape
        assert json.loads(Path(path).read_text())["error"] == failure.error
    assert save(report, tmp_path) == paths
    assert len(list(tmp_path.iterdir())) == len(set(paths))


def test_a_file_that_no_longer_fits_is_told(tmp_path: Path) -> None:
    async def alone(sim: Sim) -> None:
        await trio.sleep(1)

    (path, *_) = save(explore(race, seeds=60, policy="one step", check=False), tmp_path)
    with pytest.raises(TapeDoesNotFit, match=f"{re.escape(path)}: at step"):
        replay(alone, path)
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ValueError, match="no tape"):
        load(tmp_path / "list.json")


# ---- Whether it still fits ---------------------------------------------------------------

LEAK = """
import trio

async def leak(lock):
    await lock.acquire()
    await trio.sleep(1)
    lock.release()

async def program(sim):
    lock = trio.Lock()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leak, lock)
"""


def written(tmp_path: Path, code: str) -> Any:
    """Return the program of a file, which is written anew."""
    file = tmp_path / "leak.py"
    file.write_text(code)
    linecache.checkcache()
    found: dict[str, Any] = {"__name__": "leak"}
    exec(compile(code, str(file), "exec"), found)
    return found["program"]


def test_a_fault_that_strikes_elsewhere_says_so_with_both_places(
    tmp_path: Path,
) -> None:
    report = cancel_everywhere(
        written(tmp_path, LEAK), arrivals=["blocked"], check=False
    )
    path = save(report, tmp_path)[0]
    lower = written(tmp_path, f"import trio\n\n{LEAK}")
    assert replay(lower, path).findings, "a line that has another number is the same"
    one_more = LEAK.replace("    await lock", "    await trio.sleep(0)\n    await lock")
    with pytest.raises(
        TapeDoesNotFit,
        match=re.escape(
            f"{path}: cancel leak blocked 1 was at leak.py:5 leak (await lock.acquire()), "
            "and now it is at leak.py:5 leak (await trio.sleep(0))"
        ),
    ):
        replay(written(tmp_path, one_more), path)
    renamed = LEAK.replace("await lock.acquire()", "await inner(lock)").replace(
        "async def leak",
        "async def inner(lock):\n    await lock.acquire()\n\nasync def leak",
    )
    with pytest.raises(TapeDoesNotFit, match=r"and now it is at leak.py:5 inner"):
        replay(written(tmp_path, renamed), path)
    # Its text says nothing of where it was.
    assert simulate(written(tmp_path, renamed), tape=str(load(path))).faults


# ---- Whose it is -------------------------------------------------------------------------


def test_a_tape_is_its_programs_and_no_others(tmp_path: Path) -> None:
    program = written(tmp_path, LEAK)
    folder = tmp_path / "found"
    folder.mkdir()
    own: Any = race
    one, two = partial(program, 1), partial(own, more=1)
    names = [owner(it, folder) for it in (program, one, own, two)]
    assert names[0] == "leak.py:program"
    assert len({*names}) == 4
    assert owner(program, tmp_path) != names[0], "as it is seen from the folder"
    save(cancel_everywhere(program, check=False), folder, of=names[0])
    assert try_corpus(program, folder, names[0])[0].failed
    report, misfits = try_corpus(race, folder, owner(race, folder))
    assert (report.runs, misfits) == (0, [])


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_tried(
    tmp_path: Path,
) -> None:
    program = written(tmp_path, LEAK)
    paths = [
        Path(it)
        for it in save(cancel_everywhere(program, check=False), tmp_path, of="x")
    ]
    runs = try_corpus(program, tmp_path, "x")[0].runs
    assert runs == len(paths) >= 2
    text = paths[0].read_text()
    data = json.loads(text)
    broken = {
        "merged.json": f"<<<<<<< ours\n{text}",
        "deep.json": "[" * 100_000,
        "seed.json": json.dumps({**data, "seed": None}),
        "fields.json": json.dumps({it: data[it] for it in data if it != "faults"}),
        "schema.json": json.dumps({**data, "schema": 99}),
        "fault.json": text.replace('"blocked"', '"some times"'),
    }
    for name, content in broken.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "others.json").write_text("[1]")
    report, misfits = try_corpus(program, tmp_path, "x")
    assert report.runs == runs
    assert sorted(it.split(".json")[0] for it in misfits) == sorted(
        str(tmp_path / it.removesuffix(".json")) for it in broken
    )
    with pytest.raises(ValueError, match=r"merged.json is no tape: Expecting value"):
        replay(program, tmp_path / "merged.json")


# ---- The errors of a tape ----------------------------------------------------------------


class Outer:
    class Inner(Exception):
        pass


class Needs(Exception):
    def __init__(self, what: str) -> None:
        super().__init__(what)


async def bears_nothing(sim: Sim) -> None:
    @sim.target
    async def wait() -> None:
        try:
            await trio.sleep(1)
        except Exception:
            raise AssertionError("not so") from None

    await wait()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            Outer.Inner,
            "sim replay tests/supervisor/simulation/test_tape.py:bears_nothing",
        ),
        (
            lambda: Needs("it"),
            r'simulate\(bears_nothing, tape=".* .*:Needs\(...\)", error=...\)',
        ),
        (lambda: OSError(9, "no"), r"OSError\(...\)"),
        (type("Local", (Exception,), {}), r"Local\(...\)\", error"),
    ],
    ids="nested factory own local".split(),
)
def test_the_line_that_replays_an_error_works_or_says_what_is_needed(
    error: Any, line: str, tmp_path: Path
) -> None:
    report = raise_everywhere(bears_nothing, error, arrivals=["blocked"], check=False)
    (row,) = report.rows
    assert re.search(line, row.replay)
    assert simulate(bears_nothing, tape=str(row.tape), error=error).error is not None
    (path,) = save(report, tmp_path, of="x")
    assert replay(bears_nothing, path, error=error).error is not None
    if line.endswith("nothing"):
        assert simulate(bears_nothing, tape=str(row.tape)).error is not None
        return
    # Who is given another error leaves the tape to the sweep that is given this one.
    assert try_corpus(bears_nothing, tmp_path, "x")[0].runs == 0
    assert try_corpus(bears_nothing, tmp_path, "x", error=error)[0].failed == 1
    with pytest.raises(TapeDoesNotFit, match=r"Say what makes it: simulate\(program, "):
        simulate(bears_nothing, tape=row.tape)


def test_an_error_that_needs_arguments_is_refused_as_a_tape() -> None:
    text = f"raise wait blocked 1 {__name__}:Needs"
    with pytest.raises(
        TapeDoesNotFit, match=r"Needs' cannot be made without arguments"
    ):
        simulate(bears_nothing, tape=text)


# ---- Long ones -------------------------------------------------------------------------


async def waits_for_another(sim: Sim) -> None:
    """It looks again and again, and who is looked for may starve."""
    done = False

    async def works() -> None:
        nonlocal done
        for _ in range(100):
            await trio.lowlevel.checkpoint()
        done = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(works)
        while not done:
            await trio.lowlevel.checkpoint()


class LastAgain:
    """Who has just taken a step takes the next one."""

    def start(self, seed: int) -> Callable[[Sequence[int], int], int]:
        return lambda runnable, _: len(runnable) - 1


@pytest.mark.parametrize("is_named", [True, False])
def test_a_tape_that_is_too_long_for_a_line_is_in_a_file_that_the_line_names(
    is_named: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(
        "supervisor.simulation._steering.simulate.Driver", partial(Driver, steps=2_000)
    )

    async def program(sim: Sim) -> None:
        await waits_for_another(sim)

    program = waits_for_another if is_named else program
    report = explore(program, seeds=range(4), policy=LastAgain(), check=False)
    (failure,) = report.failures
    assert failure.error.startswith("Hang: still running after 2000 steps")
    assert len(failure.tape.deviations) > 1_000
    assert len(str(report)) < 2_000
    (file,) = tmp_path.iterdir()
    assert load(file) == failure.tape
    begin = f"trio-supervisor sim replay {__file__}:waits_for_another {file}"
    begin = begin.replace(f"{Path.cwd()}/", "", 1)
    assert failure.replay == (begin if is_named else f"replay(program, '{file}')")
    assert isinstance(replay(program, file).error, Hang)


def test_a_long_tape_that_no_file_can_hold_is_told_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    tape = Tape(tuple(Deviation(step, 5) for step in range(5_000)))
    line = replay_line(waits_for_another, tape)
    assert line.startswith("no line has room for the tape, and no file has: ")
    assert "No such file" in line


def test_what_is_no_tape_is_told_by_its_beginning() -> None:
    with pytest.raises(ValueError, match=r"'nonsense' of tape '1:1, 1:1") as raised:
        Tape.parse("1:1, " * 10_000 + "nonsense")
    assert len(str(raised.value)) < 500
