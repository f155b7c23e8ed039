"""P6: of what a command has printed nothing is lost without a word, however slow the
disk is and whatever strikes at whichever step.

Each case is a whole run in virtual time, held against the rule itself: of a run that
completed, or was stopped, all is kept that went into the pipe; a disk that takes too
long for a piece is told of, and nothing else may lose anything.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st

from actors import ActorRef, Completed, Exit, Failed, Stopped
from actors.env import Files, OutputFile
from actors.shell import Shell
from actors.testing import Program, fake_env
from supervisor.tree import child, open_supervisor
from tests.actors.shell.test_run import Told

OUTPUT = Path("/output")
LOST = "the end of the output could not be kept"


@attrs.frozen
class Case:
    """What a command prints, and what the disk takes for each piece that is kept."""

    prints: tuple[tuple[float, int], ...]
    disk: tuple[float, ...] = ()
    gives_up: bool = False
    linger: float = 1.0
    ignores_sigterm: bool = False
    leaves: int = 0
    struck_at: int | None = None
    """The step of trio at which it is stopped."""
    fails_at: int | None = None
    """The piece at which the disk is out of memory."""
    late: tuple[int, float] = (0, 0.0)
    """The step of trio in which all of the program is held, and for how long; and it is
    held in each of the next two as well."""


class Disk:
    """Files on a disk that takes so many seconds for each piece, in turn."""

    def __init__(self, files: Files, case: Case) -> None:
        self._files = files
        self.case = case
        self.pieces = 0

    def open_output(self, path: Path) -> Any:
        return Slow(self._files.open_output(path), self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class Slow:
    def __init__(self, file: OutputFile, disk: Disk) -> None:
        self._file = file
        self._disk = disk

    async def append(self, data: bytes) -> None:
        disk, case = self._disk, self._disk.case
        number = disk.pieces
        disk.pieces += 1
        if number == case.fails_at:
            raise MemoryError
        if number < len(case.disk):
            # A disk that gives up has not taken it; another one takes it late.
            with trio.CancelScope(shield=not case.gives_up):
                await trio.sleep(case.disk[number])
        await self._file.append(data)

    @property
    def is_quick(self) -> bool:
        return not self._disk.case.disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Strikes(trio.abc.Instrument):
    """Stops an actor, or holds all of the program, before one step of any task."""

    def __init__(self, case: Case, clock: trio.testing.MockClock) -> None:
        self._case = case
        self._clock = clock
        self.steps = 0
        self.ref: ActorRef[object] | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.ref is None:
            return
        self.steps += 1
        if self.steps == self._case.struck_at:
            self.ref.stop()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        late_at, seconds = self._case.late
        if self.ref is not None and 0 <= self.steps - late_at <= 2:
            self._clock.jump(seconds)


@attrs.define
class Outcome:
    exit: Exit[object]
    report: Told
    printed: int
    """The bytes that certainly went into the pipe."""
    sizes: int
    """The bytes that the command wanted to print."""
    kept: bytes
    pieces: int
    """The pieces in which it was kept."""
    steps: int


def pattern(size: int, at: int) -> bytes:
    """Bytes of which none can be missing, doubled or out of order unseen."""
    first = at // 8
    lines = b"".join(b"%07d\n" % n for n in range(first, (at + size) // 8 + 1))
    return lines[at - 8 * first :][:size]


def run(case: Case) -> Outcome:
    """Run a case in virtual time, and hold it against the rule."""
    printed, total = 0, sum(size for _, size in case.prints)
    ends: list[Exit[object]] = []

    async def script(program: Program) -> None:
        nonlocal printed
        if case.ignores_sigterm:
            program.ignore_sigterm()
        at = 0
        for pause, size in case.prints:
            if pause:
                await trio.sleep(pause)
            await program.print(pattern(size, at))
            at += size
            printed = at
        for _ in range(case.leaves):
            program.fork(stays)

    async def stays(_: Program) -> None:
        await trio.sleep(100)

    async def main() -> Outcome:
        async with fake_env({"talk": script}) as fake:
            disk = Disk(fake.files, case)
            env = attrs.evolve(fake, files=cast("Any", disk))
            shell = Shell("talk", linger=case.linger, grace=3)
            report = Told(env, OUTPUT)
            spec = child(
                "run", shell.run, report, restart="temporary", shutdown=shell.shutdown
            )
            async with open_supervisor([]) as tree:
                ref = await tree.start_child(spec)
                strikes.ref = ref
                ends.append(await ref.wait_exit())
                strikes.ref = None
            kept = fake.files.contents(OUTPUT)
            return Outcome(
                ends[0], report, printed, total, kept, disk.pieces, strikes.steps
            )

    clock = trio.testing.MockClock(autojump_threshold=0)
    strikes = Strikes(case, clock)
    outcome = trio.run(main, clock=clock, instruments=[strikes])
    hold(case, outcome)
    return outcome


def hold(case: Case, it: Outcome) -> None:
    """The rule."""
    is_told = any(text.startswith(LOST) for text in it.report.warnings)
    # Behind a piece whose loss is told there may be an unfinished line.
    is_whole = it.kept == pattern(len(it.kept), 0)
    assert is_whole or is_told or case.fails_at is not None
    assert len(it.kept) <= it.sizes
    assert it.report.output_bytes == len(it.kept)
    is_too_slow = case.gives_up and max((*case.disk, case.late[1])) >= 5
    if is_told:
        assert is_too_slow
        assert not isinstance(it.exit, Completed)
    elif case.fails_at is None:
        assert len(it.kept) >= it.printed
        assert it.report.warnings == [] or case.leaves
    if isinstance(it.exit, Completed):
        assert len(it.kept) == it.printed == it.sizes
    elif isinstance(it.exit, Failed):
        assert is_told or case.fails_at is not None
    else:
        assert isinstance(it.exit, Stopped) and case.struck_at is not None


seconds = st.sampled_from([0.0, 0.3, 1.0, 1.2, 4.9, 5.1, 8.0])
sizes = st.sampled_from([1, 100, 4095, 4096, 5000, 65_536, 70_000, 200_000])
cases = st.builds(
    Case,
    prints=st.lists(st.tuples(seconds, sizes), min_size=1, max_size=5).map(tuple),
    disk=st.lists(seconds, max_size=6).map(tuple),
    gives_up=st.booleans(),
    linger=st.sampled_from([0.0, 1.0, 3.0]),
    ignores_sigterm=st.booleans(),
    leaves=st.integers(0, 1),
    struck_at=st.none() | st.integers(1, 80),
    fails_at=st.none() | st.none() | st.integers(0, 5),
    late=st.tuples(st.integers(1, 80), st.sampled_from([0.0, 0.0, 1.2, 6.0])),
)


@settings(max_examples=300, deadline=None)
@given(cases)
@example(Case(((0, 140_000),), disk=(1.2, 1.2, 1.2), linger=0))
@example(Case(((0, 70_000),), disk=(0, 5.1), linger=0))
@example(Case(((0, 5),), disk=(8,), gives_up=True, linger=0))
def test_nothing_that_was_printed_is_lost_without_a_word(case: Case) -> None:
    run(case)


SWEPT: dict[str, Callable[[], Case]] = {
    "little": lambda: Case(((0, 10), (1, 10))),
    "much": lambda: Case(((0, 200_000), (1, 5000))),
    "much on a slow disk": lambda: Case(
        ((0, 140_000), (1, 10)), disk=(1.2,) * 6, linger=0
    ),
    "a disk that gives up": lambda: Case(
        ((0, 70_000), (0, 10)), disk=(0.3, 8.0, 8.0), gives_up=True, linger=0
    ),
    "much on a very slow disk": lambda: Case(
        ((0, 140_000), (1, 10)), disk=(6.0,) * 40, linger=0
    ),
    "with one left behind": lambda: Case(
        ((0, 70_000),), disk=(1.2,) * 4, leaves=1, ignores_sigterm=True
    ),
}


@pytest.mark.parametrize("name", SWEPT)
def test_a_stop_at_any_step_loses_nothing_that_was_printed(name: str) -> None:
    case = SWEPT[name]()
    steps = run(case).steps
    ends = {
        type(run(attrs.evolve(case, struck_at=step)).exit)
        for step in range(1, steps + 1)
    }
    assert Stopped in ends


@pytest.mark.parametrize("seconds", [1.2, 4.0])
@pytest.mark.parametrize("name", SWEPT)
def test_a_program_that_is_late_at_any_step_loses_nothing(
    name: str, seconds: float
) -> None:
    """All of it, as on a busy machine; what is in the pipe has come in time."""
    case = SWEPT[name]()
    if case.gives_up:
        case = attrs.evolve(case, disk=(0.3,) * 4)
    for step in range(1, run(case).steps + 1):
        it = run(attrs.evolve(case, late=(step, seconds)))
        assert isinstance(it.exit, Completed)


@pytest.mark.parametrize("name", SWEPT)
def test_a_disk_out_of_memory_at_any_piece_is_told(name: str) -> None:
    case = SWEPT[name]()
    for piece in range(run(case).pieces):
        assert isinstance(run(attrs.evolve(case, fails_at=piece)).exit, Failed)
