"""Crashes at each change of the disk, on small stores with one bug each."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from actors.env import Files
from supervisor.simulation import (
    NotAProgram,
    NotDeterministic,
    NothingToStrike,
    ProgramFailed,
    Sim,
    SimulationFailed,
    SweepReport,
    Tape,
    TapeDoesNotFit,
    cancel_everywhere,
    load,
    save,
    simulate,
)
from supervisor.simulation._search import losses
from supervisor.simulation.crash import Disk, crash, crash_everywhere

Program = Callable[[Sim, Disk], Awaitable[Any]]

LOG, TOTAL = Path("/log"), Path("/total")


def swept(program: Program, recover: Program, **options: Any) -> SweepReport:
    """The report of a sweep of which each row can be had again."""
    report = crash_everywhere(program, recover, check=False, **options)
    for row in report.rows:
        run = crash(program, recover, row.tape)
        assert run.error is not None or run.findings, row
        again = crash(program, recover, row.replay.split('"')[1])
        assert again.digest == run.digest
    return report


def arrivals(report: SweepReport) -> set[str]:
    return {row.arrival for row in report.rows}


# ---- A log of numbers --------------------------------------------------------------


@attrs.define
class Log:
    """Numbers, each in a line."""

    files: Files
    durable: bool = True

    def put(self, number: int) -> None:
        self.files.append_lines(LOG, b"%d\n" % number, durable=self.durable)

    def numbers(self) -> list[int]:
        lines = self.files.read_at(LOG, 0, 9999).split(b"\n")
        return [int(line) for line in lines[:-1] if len(line) == 3]


class Trusting(Log):
    def numbers(self) -> list[int]:
        """Take a torn tail for a record."""
        return [int(line) for line in self.files.read_at(LOG, 0, 999).split()]


def logs(
    kind: type[Log] = Log, *, durable: bool = True, early: bool = False
) -> Program:
    async def program(sim: Sim, disk: Disk) -> None:
        log = kind(disk.files, durable)
        for number in (100, 200, 300):
            if early:
                disk.tell(number)
            log.put(number)
            if not early:
                disk.tell(number)
            await trio.sleep(1)

    return program


def logged(kind: type[Log] = Log) -> Program:
    async def recover(sim: Sim, disk: Disk) -> None:
        log = kind(disk.files)
        found = log.numbers()
        assert [*dict.fromkeys(found)] == [100, 200, 300, 400][: len({*found})]
        assert {*disk.told} <= {*found}
        if found[2:] and 400 not in found:
            log.put(400)
            disk.tell(400)

    return recover


def test_a_log_that_syncs_before_it_tells_is_clean() -> None:
    report = crash_everywhere(logs(), logged())
    assert report.rows == []
    assert report.points > 25
    assert (report.skipped, report.kind) == (0, "crash")
    assert str(report).startswith(f"crash: {report.points} points (kill, torn, power; ")


def test_a_log_that_does_not_sync_survives_the_program_and_not_the_machine() -> None:
    program = logs(durable=False)
    assert swept(program, logged(), crashes=["kill", "torn"]).rows == []
    report = swept(program, logged())
    assert arrivals(report) == {"power", "power-names"}


def test_a_log_that_tells_before_it_writes_is_found() -> None:
    report = swept(logs(early=True), logged())
    assert {"kill", "torn-1", "torn-half", "torn-last"} <= arrivals(report)
    assert all(row.site.startswith("test_crash.py:") for row in report.rows)
    assert all(row.site.endswith(" put") for row in report.rows)
    assert all(row.place.startswith(f"{__file__}:") for row in report.rows)


def test_a_torn_tail_that_is_taken_for_a_record_is_found() -> None:
    report = swept(logs(), logged(Trusting))
    assert arrivals(report) == {"torn-1", "torn-half"}
    (row, *_) = report.rows
    assert "crash at change 2 of the disk, write /log (torn-half)" in str(report)
    begin = "supervisor.simulation.crash.crash(program, recover, "
    assert row.replay == f'{begin}"crash write torn-half 2")'


# ---- A total, in a file that is replaced -------------------------------------------


@attrs.define
class Total:
    """A number in a file; with ``durable`` it is the old one or the new one."""

    files: Files
    durable: bool = True

    def set(self, number: int) -> None:
        contents = json.dumps({"total": number}).encode()
        self.files.replace(TOTAL, contents, durable=self.durable)

    def get(self) -> int:
        contents, _ = self.files.read_tail(TOTAL, 999)
        there = self.files.size(TOTAL) is not None
        return int(json.loads(contents)["total"]) if there else 0


def totals(*, durable: bool) -> Program:
    async def program(sim: Sim, disk: Disk) -> None:
        total = Total(disk.files, durable)
        for number in range(1, 4):
            total.set(number)
            disk.tell(number)

    return program


def totalled(*, durable: bool) -> Program:
    async def recover(sim: Sim, disk: Disk) -> None:
        total = Total(disk.files, durable)
        found = total.get()
        assert max(disk.told, default=0) <= found <= max(disk.told, default=0) + 1
        total.set(found)

    return recover


def test_a_file_that_is_synced_before_it_is_renamed_is_never_seen_without_it() -> None:
    report = crash_everywhere(totals(durable=True), totalled(durable=True))
    assert report.points > 10


def test_a_rename_without_a_sync_is_found() -> None:
    report = swept(totals(durable=False), totalled(durable=False))
    assert {"power", "power-names"} <= arrivals(report)
    assert any("JSONDecodeError" in row.error for row in report.rows)
    only = totals(durable=False), totalled(durable=False)
    assert swept(*only, crashes=["kill", "torn"]).rows == []


# ---- Recovery ----------------------------------------------------------------------

JOBS, DONE = Path("/jobs"), Path("/done")


async def jobs(sim: Sim, disk: Disk) -> None:
    """Take jobs, and do them; whoever sees a job done counts it."""
    for number in (1, 2):
        disk.files.append_lines(JOBS, b"%d.\n" % number)
        disk.tell(("taken", number))
        await trio.sleep(1)
        disk.files.append_lines(DONE, b"%d.\n" % number)
        disk.tell(("done", number))


def listed(disk: Disk, path: Path) -> list[int]:
    lines = disk.files.read_at(path, 0, 999).split(b"\n")
    return [int(line[:-1]) for line in lines if line.endswith(b".")]


async def finishes(disk: Disk, *, loses: bool = False, doubles: bool = False) -> None:
    """Do what was not done."""
    taken, done = listed(disk, JOBS), listed(disk, DONE)
    left = [number for number in taken if number not in done]
    left = taken if doubles and left else left
    for number in left[:-1] if loses else left:
        disk.files.append_lines(DONE, b"%d.\n" % number)
        disk.tell(("done", number))
    told = [number for what, number in disk.told if what == "done"]
    assert sorted({*told}) == sorted(told)
    taken = [number for what, number in disk.told if what == "taken"]
    assert {*taken} <= {*listed(disk, DONE)}


def recovery(**options: bool) -> Program:
    async def recover(sim: Sim, disk: Disk) -> None:
        await finishes(disk, **options)

    return recover


KILLS: Any = {"crashes": ["kill", "torn"]}


def test_a_recovery_that_finishes_what_was_begun_is_clean() -> None:
    assert swept(jobs, recovery(), **KILLS).rows == []


@pytest.mark.parametrize("bug", ["loses", "doubles"])
def test_a_recovery_that_loses_or_doubles_is_found(bug: str) -> None:
    report = swept(jobs, recovery(**{bug: True}), **KILLS)
    assert report.rows
    assert all(len(row.tape.faults) == 1 for row in report.rows[:1])


async def moved(sim: Sim, disk: Disk) -> None:
    disk.files.append_lines(LOG, b"100\n200\n300\n", durable=True)
    disk.tell("written")


async def moves(sim: Sim, disk: Disk) -> None:
    """Write the log anew elsewhere, and then remove the old one: right in itself, but
    not if it crashes between."""
    new = Path("/new")
    lines = disk.files.read_at(LOG, 0, 999) + disk.files.read_at(new, 0, 999)
    if "written" in disk.told:
        assert sorted(lines.split()) == [b"100", b"200", b"300"]
    disk.files.append_lines(new, disk.files.read_at(LOG, 0, 999), durable=True)
    disk.files.remove(LOG)


def test_a_bug_of_the_recovery_alone_is_found_by_a_crash_of_it() -> None:
    report = swept(moved, moves, **KILLS)
    (row, *_) = report.rows
    assert len(row.tape.faults) == 2
    assert swept(moved, moves, again=0, **KILLS).rows == []


# ---- Tapes, and what is refused ------------------------------------------------------


def racing(sim: Sim, disk: Disk) -> Awaitable[None]:
    """Two write to a log; what is told first is not always written first."""

    async def main() -> None:
        ready = trio.Event()

        async def writes() -> None:
            await trio.lowlevel.checkpoint()
            disk.files.append_lines(LOG, b"100\n")
            ready.set()

        async def tells() -> None:
            await trio.lowlevel.checkpoint()
            disk.tell(100)
            await ready.wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(writes)
            nursery.start_soon(tells)

    return main()


async def holds(sim: Sim, disk: Disk) -> None:
    assert {*disk.told} <= {*Log(disk.files).numbers()}


def test_a_crash_under_another_schedule_is_found_and_made_smaller() -> None:
    assert swept(racing, holds, **KILLS).rows == []
    report = swept(racing, holds, schedules=30, **KILLS)
    assert report.rows
    assert min(len(row.tape.deviations) for row in report.rows) == 1


def test_a_tape_is_kept_and_read_and_played_by_what_can(tmp_path: Path) -> None:
    program, recover = logs(), logged(Trusting)
    report = crash_everywhere(program, recover, check=False)
    tape = load(save(report, tmp_path)[0])
    assert tape in [row.tape for row in report.rows]
    assert Tape.parse(str(tape)) == tape
    assert crash(program, recover, tape).error is not None
    with pytest.raises(TapeDoesNotFit, match="no point at which to crash write"):
        crash(program, recover, "crash write torn-half 200")
    with pytest.raises(TapeDoesNotFit, match="no point"):
        crash(program, recover, "crash rename kill 2")
    with pytest.raises(TapeDoesNotFit, match=r"crash\.crash plays it"):
        simulate(lambda sim: program(sim, Disk(sim)), tape=tape)


def test_a_report_is_raised_or_returned() -> None:
    with pytest.raises(SimulationFailed, match=r"torn-half \d") as caught:
        crash_everywhere(logs(), logged(Trusting))
    assert isinstance(caught.value.report, SweepReport)


def test_a_sweep_is_the_same_each_time_and_can_be_bounded() -> None:
    program, recover = logs(), logged(Trusting)
    options: Any = {"check": False, "max_points": 10}
    report = crash_everywhere(program, recover, **options)
    assert report == crash_everywhere(program, recover, **options)
    assert report.skipped > 0


async def nothing(sim: Sim, disk: Disk) -> None:
    pass


async def wrong(sim: Sim, disk: Disk) -> None:
    assert not disk.told, "it is wrong by itself"
    disk.tell(1)
    disk.files.reserve(LOG)
    assert not disk.told, "it is wrong by itself"


def test_what_proves_nothing_is_refused() -> None:
    with pytest.raises(ProgramFailed, match="wrong by itself"):
        crash_everywhere(wrong, nothing)
    with pytest.raises(NothingToStrike, match="never changes its disk"):
        crash_everywhere(nothing, nothing)
    kinds: Any = ["killed"]
    with pytest.raises(
        ValueError, match=r"crashes are kill, torn, power; not \['killed'\]"
    ):
        crash_everywhere(logs(), logged(), crashes=kinds)
    with pytest.raises(ValueError, match="crashes are kill, torn, power"):
        crash_everywhere(logs(), logged(), crashes=[])
    once: Any = iter(["kill"])
    assert crash_everywhere(logs(), logged(), crashes=once).arrivals == ["kill"]
    with pytest.raises(ValueError, match="has no crash: `simulate` plays it"):
        crash(logs(), logged(), "15:2")
    with pytest.raises(ValueError, match="at least 1"):
        crash_everywhere(logs(), logged(), schedules=0)


def plain(sim: Sim, disk: Disk) -> None: ...


async def of_one(sim: Sim) -> None: ...


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (plain, "program plain is no async function: it returned None"),
        (of_one, "of_one must take 2 arguments, the `Sim` and the `Disk`, .*too many"),
        (None, "a program is an async function, not None"),
    ],
)
def test_what_is_no_program_is_refused_and_no_finding(what: Any, text: str) -> None:
    with pytest.raises(NotAProgram, match=text):
        crash_everywhere(what, logged())
    with pytest.raises(NotAProgram, match=text):
        crash_everywhere(logs(), what)
    with pytest.raises(NotAProgram, match=text):
        crash(logs(), what, crash_everywhere(logs(), losing, check=False).rows[0].tape)


async def losing(sim: Sim, disk: Disk) -> None:
    assert disk.files.read_at(LOG, 0, 9999).count(b"\n") == 3, "it needs all"


def test_a_program_that_was_called_already_is_refused() -> None:
    async def program(sim: Sim, disk: Disk) -> None: ...

    called: Any = program(*[None] * 2)  # type: ignore[arg-type]
    with pytest.raises(NotAProgram, match="not <coroutine object"):
        crash_everywhere(called, logged())
    called.close()


def test_a_recovery_that_fails_without_a_crash_is_refused_and_no_finding() -> None:
    async def fails(sim: Sim, disk: Disk) -> None:
        raise KeyError("always")

    with pytest.raises(ProgramFailed, match=r"recovery fails without any.*'always'"):
        crash_everywhere(logs(), fails)


def test_nothing_is_unwound_by_a_crash() -> None:
    """A `finally` that writes has not run in what is found."""

    async def program(sim: Sim, disk: Disk) -> None:
        disk.files.reserve(LOG)
        try:
            await trio.sleep(1)
            disk.tell("slept")
            await trio.sleep(1)
        finally:
            disk.files.reserve(TOTAL)

    found: list[tuple[bool, list[Any]]] = []

    async def recover(sim: Sim, disk: Disk) -> None:
        found.append((disk.files.size(TOTAL) is not None, disk.told))

    crash_everywhere(program, recover, crashes=["kill"])
    assert (False, ["slept"]) in found


def test_a_program_with_a_disk_is_swept_in_other_ways_too() -> None:
    async def program(sim: Sim) -> None:
        disk = Disk(sim)
        env = disk.env({"true": "done\n"})

        async def writes(number: int) -> None:
            await env.files.in_thread(partial(env.files.append_lines, LOG, b"100\n"))

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(writes, number)
        assert {*Log(disk.files).numbers()} <= {100}

    assert cancel_everywhere(program).points > 10


async def names(sim: Sim, disk: Disk) -> None:
    """Each name that was given, by any program, is in the log."""
    env = disk.env()
    given = [*env.files.read_at(LOG, 0, 999).split(b"\n")]
    name = env.ids.hex(8).encode()
    assert name not in given
    env.files.append_lines(LOG, name + b"\n")


async def times(sim: Sim, disk: Disk) -> None:
    """No program is told an earlier time than one before it."""
    env = disk.env()
    now = env.clock.now().isoformat()
    assert now >= max(disk.told, default="")
    await trio.sleep(1)
    disk.tell(env.clock.now().isoformat())
    env.files.append_lines(LOG, b"100\n")


def test_the_clock_on_the_wall_goes_on_after_a_crash() -> None:
    assert swept(times, times, crashes=["kill"]).points > 3
    assert simulate(lambda sim: times(sim, Disk(sim))).error is None


def test_a_name_is_not_given_again_after_a_crash() -> None:
    assert swept(names, names, crashes=["kill"]).points == 5


def test_no_two_files_have_one_name_in_a_tape() -> None:
    names = {
        "/a_b": "/a_b",
        "/a b": "/a%20b",
        "/a,b": "/a%2Cb",
        "/a%20b": "/a%2520b",
        "/a\u2003b": "/a%E2%80%83b",
    }

    async def writes(sim: Sim, disk: Disk) -> None:
        for path in names:
            disk.files.append_lines(Path(path), b"1\n")

    async def lost(sim: Sim, disk: Disk) -> list[str]:
        return [path for path in names if not disk.files.size(Path(path))]

    for path, name in names.items():
        tape = f"crash end lost:{name} {2 * len(names) + 1}"
        assert crash(writes, lost, tape).value == [path]
        assert str(Tape.parse(tape)) == tape
    with pytest.raises(TapeDoesNotFit):
        crash(writes, lost, "crash end lost:/a%2db 11")


# ---- What no tape decides ------------------------------------------------------------


async def writes_three(sim: Sim, disk: Disk) -> None:
    for number in range(3):
        disk.files.append_lines(LOG, b"%d\n" % number)
        disk.tell(number)


def test_a_recovery_that_is_another_one_each_time_is_told_and_no_finding() -> None:
    """Though nothing is wrong in it."""
    times: list[int] = []

    async def counts(sim: Sim, disk: Disk) -> None:
        times.append(1)
        sim.log(len(times))

    with pytest.raises(NotDeterministic):
        crash_everywhere(writes_three, counts)


def test_a_recovery_that_fails_only_once_is_no_finding() -> None:
    """A tape that does not fail again is told to nobody."""
    failed: list[int] = []

    async def fails_once(sim: Sim, disk: Disk) -> None:
        if len(disk.told) == 2 and not failed:
            failed.append(1)
            raise ValueError("only now")

    with pytest.raises(NotDeterministic, match="the tape is"):
        crash_everywhere(writes_three, fails_once)


def test_the_help_of_crash_has_each_name_that_a_tape_may_have() -> None:
    names = re.findall(r"``([a-z1-]+(?::FILE)?)``", str(losses.__doc__))
    assert {"power-names", "lost:FILE", "torn-1"} < {*names}
    assert all(f"``{it}``" in str(crash.__doc__) for it in names)
