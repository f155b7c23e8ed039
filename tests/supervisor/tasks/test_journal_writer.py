"""The writer of a journal, against a model: what its records add up to.

At every moment the file says what some of the first records add up to, and those are at
least the ones that the writer says are written. With ``durable`` that also holds for what
a loss of power would leave.
"""

from __future__ import annotations

import errno
import math
import random
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from actors.testing import FakeFiles
from supervisor._tasks.journal import writer
from supervisor._tasks.journal.records import (
    Acked,
    Ended,
    Header,
    Moved,
    Record,
    Started,
    to_line,
)
from supervisor._tasks.journal.state import State, read
from supervisor._tasks.journal.writer import NAME, Journal
from tests.supervisor.life.test_struck_inside import Blows

HERE = Path("/tasks")
PATH = HERE / NAME
AT = "2026-11-23T12:00:00.000+00:00"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """In virtual time a disk that is held up would at once be one that fails."""
    monkeypatch.setattr(writer, "_PATIENCE", math.inf)


LONG = 10_000.0
FULL = OSError(errno.ENOSPC, "No space left on device")


class Disk(FakeFiles):
    """A disk that is slow, fails, and keeps whoever waits for it in a thread."""

    def __init__(self, clock: trio.testing.MockClock | None = None) -> None:
        super().__init__()
        self.clock = clock
        self.seconds = 0.0
        """What each write takes."""
        self.gate: trio.Event | None = None
        """Threads wait for it, before or after their work."""
        self.waits_after = False
        self.crashes = 0
        """So many threads fail by an error that no disk has."""
        self.outcomes: list[bool] = []
        """Of each write, whether it was made."""
        self.disk.directories.add(HERE)

    def append_lines(self, path: Path, lines: bytes, *, durable: bool = False) -> None:
        self._takes_long()
        self.outcomes.append(False)
        super().append_lines(path, lines, durable=durable)
        self.outcomes[-1] = True

    def append_to_log(self, log: Any, lines: bytes, *, durable: bool) -> None:
        if self.disk.file(PATH) is log.inode:
            return self.append_lines(log.path, lines, durable=durable)
        return super().append_to_log(log, lines, durable=durable)

    def _takes_long(self) -> None:
        if self.clock is not None and self.seconds:
            self.clock.jump(self.seconds)

    async def in_thread(self, fn: Callable[..., Any], *args: object) -> Any:
        crashes, result = 0, None
        with trio.CancelScope(shield=True):
            if self.gate is not None and not self.waits_after:
                await self.gate.wait()
            crashes, self.crashes = self.crashes, max(0, self.crashes - 1)
            if crashes % 2:
                raise MemoryError
            result = fn(*args)
            if self.gate is not None and self.waits_after:
                await self.gate.wait()
            await trio.lowlevel.checkpoint()
        if crashes:
            raise MemoryError
        return result


@attrs.define
class Tasks:
    """Records such as a runtime adds, one after the other."""

    chance: random.Random
    prefix: str = "n"
    runs: int = 0
    notes: int = 0
    begun: list[str] = attrs.Factory(list)
    untaken: list[str] = attrs.Factory(list)

    def next(self) -> Record:
        chance = self.chance
        which = chance.random()
        if self.untaken and which < 0.3:
            note = self.untaken.pop(chance.randrange(len(self.untaken)))
            return Acked(note=note)
        if self.begun and which < 0.35:
            return Moved(run=chance.choice(self.begun))
        if self.begun and which < 0.7:
            run = self.begun.pop(chance.randrange(len(self.begun)))
            if chance.random() < 0.2:
                return Ended(run=run, status="killed", at=AT)
            self.notes += 1
            self.untaken.append(f"{self.prefix}{self.notes:06}")
            return Ended(run=run, status="failed", at=AT, note=self.untaken[-1])
        self.runs += 1
        task = f"{self.prefix}{self.runs:08x}"
        if chance.random() < 0.2 and self.runs > 1:
            # An agent that goes on.
            task = f"{self.prefix}{chance.randrange(1, self.runs):08x}"
            if any(run.startswith(task) for run in self.begun):
                task = f"{self.prefix}{self.runs:08x}"
        self.begun.append(f"{task}-{self.runs:06}")
        return Started(run=self.begun[-1], type="local_bash", at=AT)


class World:
    """A journal and everything that happens to it."""

    def __init__(
        self, clock: trio.testing.MockClock | None, *, durable: bool, shared: bool
    ) -> None:
        self.files = Disk(clock)
        self.durable = durable
        self.warned: list[str] = []
        self.wrote: list[int] = []
        self.before: list[Record] = []
        self.added: list[Record] = []
        self.first = self.files.share(HERE)
        if shared:
            self.first.claim(NAME)
            tasks = Tasks(random.Random(5), "f")
            self.before = [Header(at=AT), *(tasks.next() for _ in range(12))]
            lines = b"".join(map(to_line, self.before))
            self.files.replace(PATH, lines, durable=True)
        self.share = self.files.share(HERE)
        self.journal = Journal(
            self.files,
            self.share,
            HERE,
            is_kept=True,
            durable=durable,
            kept_since=str,
            warn=self.warned.append,
            wrote=self.wrote.append,
        )
        self.take_over()
        self.is_shared = shared
        self.scope = trio.CancelScope()
        self.waiting = 0
        self.told = 0

    def take_over(self) -> None:
        try:
            self.journal.begin(AT)
        except OSError:
            assert self.journal.other

    async def ask(self) -> None:
        self.take_over()

    def add(self, record: Record) -> int:
        self.added.append(record)
        number = self.journal.add(record)
        assert number == len(self.added)
        return number

    async def serve(self) -> None:
        """Keep the actor, as its supervisor does."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.succeed)
            while True:
                self.scope = trio.CancelScope()
                with self.scope:
                    try:
                        await self.journal.serve()
                    except MemoryError:
                        pass
                await trio.sleep(0.01)

    async def succeed(self) -> None:
        while self.journal.other is not None:
            try:
                await self.journal.ask_for_it(self.ask)
            except MemoryError:
                pass

    async def settle(self, number: int | None) -> None:
        asked = len(self.added) if number is None else number
        self.waiting += 1
        await self.journal.settle(number)
        assert self.journal.is_told(asked)
        self.waiting -= 1

    def sums(self, state: State) -> object:
        return (state.tasks, state.notes, state.unfinished)

    def check(self) -> None:
        journal = self.journal
        written = journal.written
        assert 0 <= written <= len(self.added)
        disks = [self.files.disk]
        if self.durable:
            disks.append(self.files.disk.image().unpowered(names=False))
        for disk in disks:
            file = disk.file(PATH)
            assert file is not None
            there = read(bytes(file.data))
            assert (there.torn, there.bad) == (0, ())
            first = 0 if journal.other else written
            state = State()
            sums = []
            for record in self.before:
                state.add(record)
            for number, record in enumerate([None, *self.added]):
                if record is not None:
                    state.add(record)
                if number == first:
                    sums = [self.sums(state) == self.sums(there.state)]
                elif number > first:
                    sums.append(self.sums(state) == self.sums(there.state))
                if any(sums):
                    break
            assert any(sums), (written, len(self.added))
        made = [True, *self.files.outcomes]
        began = sum(a and not b for a, b in pairwise(made))
        assert len(self.warned) <= began
        if journal.failure is not None:
            assert self.warned and str(journal.failure) in self.warned[-1]
        assert self.wrote == sorted(self.wrote)


def play_one(seed: int, *, durable: bool, shared: bool) -> Disk:
    clock = trio.testing.MockClock()
    chance = random.Random(seed)

    async def main() -> Disk:
        world = World(clock, durable=durable, shared=shared)
        tasks, files = Tasks(chance), world.files
        async with trio.open_nursery() as nursery:
            if chance.random() < 0.9:
                nursery.start_soon(world.serve)
                await trio.testing.wait_all_tasks_blocked()
            for _ in range(60):
                match chance.randrange(16):
                    case 0 | 1 | 2 | 3:
                        for _ in range(chance.randint(1, 3)):
                            world.add(tasks.next())
                        if chance.random() < 0.7:
                            world.journal.flush()
                    case 4 | 5:
                        number = chance.choice([None, len(world.added)])
                        nursery.start_soon(world.settle, number)
                    case 6:
                        files.write_error = None if files.write_error else FULL
                    case 7:
                        files.seconds = chance.choice([0.0, 0.1, 0.1])
                    case 8 if files.gate is None:
                        files.gate = trio.Event()
                        files.waits_after = chance.random() < 0.5
                    case 8 | 9 if files.gate is not None:
                        files.gate.set()
                        files.gate = None
                    case 10:
                        world.scope.cancel()
                    case 11 if chance.random() < 0.3:
                        files.crashes = chance.randint(1, 3)
                    case 12 if chance.random() < 0.3 and not world.journal.other:
                        files.disk.remove(PATH)
                        # Until the next write it is open, and nowhere else.
                        files.write_error, files.seconds = None, 0.0
                        if files.gate is not None:
                            files.gate.set()
                            files.gate = None
                        files.crashes = 0
                        for _ in range(3):
                            await trio.testing.wait_all_tasks_blocked()
                            clock.jump(2.0)
                        await trio.testing.wait_all_tasks_blocked()
                        world.add(tasks.next())
                        await world.settle(None)
                    case 13 if chance.random() < 0.2:
                        world.first.close()
                    case 14:
                        clock.jump(chance.choice([0.02, 1.1]))
                    case _:
                        pass
                if chance.random() < 0.7:
                    await trio.testing.wait_all_tasks_blocked()
                world.check()
            # All is well in the end, and nobody waits any more.
            files.write_error, files.seconds, files.crashes = None, 0.0, 0
            if files.gate is not None:
                files.gate.set()
                files.gate = None
            world.first.close()
            for _ in range(4):
                await trio.testing.wait_all_tasks_blocked()
                clock.jump(1.1)
            await trio.testing.wait_all_tasks_blocked()
            assert world.waiting == 0
            nursery.cancel_scope.cancel()
        is_taken_over = world.journal.other is None
        world.journal.end()
        assert world.journal.written == len(world.added)
        world.add(tasks.next())
        world.journal.flush()
        assert world.journal.written == len(world.added)
        if is_taken_over:
            world.check()
        return files

    return trio.run(main, clock=clock)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_the_file_always_says_what_the_first_records_add_up_to(
    seed: int, durable: bool, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fails, is slow or ends in between; also while it is made anew."""
    monkeypatch.setattr(writer, "_SMALL", random.Random(seed).choice([300, 2**20]))
    play_one(seed, durable=durable, shared=shared)


async def test_what_many_add_in_one_step_and_wait_for_is_one_write(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A group commit: with ``durable`` each would be a sync of its own."""
    world, tasks = World(None, durable=True, shared=False), Tasks(random.Random(1))

    async def launches() -> None:
        await world.settle(world.add(tasks.next()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.serve)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as group:
            for _ in range(20):
                group.start_soon(launches)
        assert world.files.outcomes == [True]
        assert world.wrote == [20]
        nursery.cancel_scope.cancel()
    world.check()


async def test_who_waits_for_a_record_cannot_be_cancelled_and_none_is_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world, tasks = World(None, durable=True, shared=False), Tasks(random.Random(1))
    world.files.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.serve)
        await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            world.add(tasks.next())
            nursery.start_soon(open_later, world.files.gate)
            await world.settle(None)
            assert world.journal.written == 1
        nursery.cancel_scope.cancel()
    world.check()


async def test_what_comes_while_a_thread_writes_is_written_next(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Nobody asks for it again."""
    world, tasks = World(None, durable=True, shared=False), Tasks(random.Random(1))
    gate = world.files.gate = trio.Event()
    with trio.fail_after(LONG):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.serve)
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as group:
                for _ in range(3):
                    group.start_soon(world.settle, world.add(tasks.next()))
                    await trio.testing.wait_all_tasks_blocked()
                assert world.waiting == 3 and world.journal.written == 0
                world.files.gate = None
                gate.set()
            assert world.files.outcomes == [True, True]
            nursery.cancel_scope.cancel()
    world.check()


async def test_on_a_fast_disk_who_flushes_has_written_also_while_the_file_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An acknowledgement cannot wait for a thread."""
    monkeypatch.setattr(writer, "_SMALL", 2_000)
    monkeypatch.setattr(writer, "_SLOW", math.inf)
    disk = Disk()
    journal = Journal(
        disk,
        disk.share(HERE),
        HERE,
        is_kept=True,
        durable=False,
        kept_since=str,
        warn=lambda text: None,
        wrote=lambda number: None,
    )
    journal.begin(AT)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.serve)
        await trio.testing.wait_all_tasks_blocked()
        disk.gate = trio.Event()
        for number in range(1, 40):
            run = f"s{number:08}-{number:06}"
            journal.add(Started(run=run, type="local_bash", at=AT))
            journal.flush()
        # It is large now, and this one waits when the actor comes to it.
        journal.add(Moved(run="s00000001-000001"))
        await trio.testing.wait_all_tasks_blocked()
        last = Started(run="s00000040-000040", type="local_bash", at=AT)
        journal.add(last)
        journal.flush()
        there = disk.contents(PATH)
        # First, or a failure would wait for the thread for ever.
        disk.gate.set()
        assert to_line(last) in there
        await trio.testing.wait_all_tasks_blocked()
        # It was made anew: of the first there is one line.
        assert disk.contents(PATH).count(b"s00000001") == 1
        assert to_line(last) in disk.contents(PATH)
        nursery.cancel_scope.cancel()


async def test_what_a_crash_of_the_writer_has_left_is_written_by_the_next(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its last attempt, while it crashed, has failed, too."""
    world, tasks = World(None, durable=True, shared=False), Tasks(random.Random(1))
    world.files.crashes = 1
    with trio.fail_after(LONG):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.serve)
            await trio.testing.wait_all_tasks_blocked()
            with monkeypatch.context() as patch:
                patch.setattr(writer, "to_line", fails_once(patch))
                world.add(tasks.next())
                await world.settle(None)
            nursery.cancel_scope.cancel()
    assert world.journal.written == 1
    world.check()


def fails_once(patch: pytest.MonkeyPatch) -> Callable[[Record], bytes]:
    def fail(record: Record) -> bytes:
        patch.undo()
        raise MemoryError

    return fail


async def test_a_disk_that_fails_is_asked_again_each_second_and_not_by_each_record(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """All that waits is in each attempt. Who waits to hear of it hears when it is
    written."""
    world, tasks = World(None, durable=False, shared=False), Tasks(random.Random(1))
    world.files.write_error = FULL
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.serve)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(100):
            world.add(tasks.next())
            world.journal.flush()
        assert world.files.outcomes == [False] and len(world.warned) == 1
        # The actor tries at once, and then each second.
        await trio.sleep(2.5)
        assert world.files.outcomes == [False] * 4 and world.wrote == []
        world.files.write_error = None
        await trio.sleep(1)
        assert world.files.outcomes == [False, False, False, False, True]
        assert world.wrote == [100] and world.journal.failure is None
        nursery.cancel_scope.cancel()
    world.check()


async def test_what_is_kept_for_a_day_goes_also_while_the_journal_is_open(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_SMALL", 1_000)
    since, disk = AT, Disk()
    journal = Journal(
        disk,
        disk.share(HERE),
        HERE,
        is_kept=True,
        durable=False,
        kept_since=lambda: since,
        warn=lambda text: None,
        wrote=lambda number: None,
    )
    journal.begin(AT)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.serve)
        for number in range(1, 400):
            run, at = f"s{number:08}-{number:06}", f"{number:04}"
            # Those of the last fifty are kept.
            since = f"{number - 50:04}"
            journal.add(Started(run=run, type="local_bash", at=at, key=f"{number}"))
            journal.add(Ended(run=run, status="completed", at=at))
            journal.flush()
            await trio.testing.wait_all_tasks_blocked()
        kept = disk.contents(PATH).count(b'"start"')
        # It is made anew once it has four times what it had.
        assert 50 <= kept <= 4 * 51
        nursery.cancel_scope.cancel()


async def open_later(gate: trio.Event) -> None:
    await trio.sleep(5)
    gate.set()


@pytest.mark.parametrize("below", ["flush", "_write_aside", "begin"])
def test_wherever_memory_runs_out_nothing_is_lost(
    below: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each operation of the writer fails once; what called it goes on later."""
    monkeypatch.setattr(writer, "_SMALL", 300)

    def run(blows: Blows) -> int:
        clock = trio.testing.MockClock(autojump_threshold=0)

        async def main() -> None:
            durable = below == "_write_aside"
            world = World(None, durable=durable, shared=below == "begin")
            tasks = Tasks(random.Random(3))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.serve)
                await trio.testing.wait_all_tasks_blocked()
                with blows:
                    world.first.close()
                    for _ in range(30):
                        world.add(tasks.next())
                        try:
                            world.journal.flush()
                        except MemoryError:
                            assert below == "flush"
                        await trio.sleep(0.1)
                        world.check()
                    with trio.fail_after(LONG):
                        await world.settle(None)
                nursery.cancel_scope.cancel()
            world.journal.end()
            assert world.journal.other is None
            assert world.journal.written == len(world.added)
            world.check()

        try:
            trio.run(main, clock=clock)
        except BaseException as error:
            error.add_note(f"struck {blows.where}, operation {blows.at}")
            raise
        return blows.seen

    name = getattr(Journal, below).__qualname__
    points = run(Blows(sys.maxsize, below=name))
    assert points > 3
    for at in random.Random(below).sample(range(1, points + 1), min(points, 25)):
        run(Blows(at, below=name))


async def test_a_disk_that_does_not_answer_holds_nobody_up_for_ever(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is warned of once, and what it is asked for is written when it answers."""
    monkeypatch.setattr(writer, "_PATIENCE", 10.0)
    world, tasks = World(None, durable=True, shared=False), Tasks(random.Random(1))
    gate = world.files.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.serve)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        world.add(tasks.next())
        for _ in range(2):
            await world.journal.settle()
        assert trio.current_time() - began == 10.0
        assert world.journal.failure is not None and world.journal.written == 0
        assert len(world.warned) == 1 and "not answered for 10 s" in world.warned[0]
        world.files.gate = None
        gate.set()
        while world.journal.failure is not None:
            await trio.sleep(1)
        assert world.journal.written == 1
        nursery.cancel_scope.cancel()


async def test_what_came_during_the_last_write_of_a_slow_disk_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An acknowledgement of then was not written when it returned."""
    monkeypatch.setattr(writer, "_THREADED", 1)
    monkeypatch.setattr(writer, "_SLOW", -1.0)
    world, tasks = World(None, durable=False, shared=False), Tasks(random.Random(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.serve)
        await trio.testing.wait_all_tasks_blocked()
        world.add(tasks.next())
        # It takes long.
        world.journal.flush()
        assert world.wrote == []
        monkeypatch.setattr(writer, "_SLOW", math.inf)
        gate = world.files.gate = trio.Event()
        world.add(tasks.next())
        world.journal.flush()
        await trio.testing.wait_all_tasks_blocked()
        world.add(tasks.next())
        world.journal.flush()
        assert world.journal.written == 1
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert world.journal.written == 3
        assert world.wrote == [2, 3]
        nursery.cancel_scope.cancel()
    world.check()


async def test_a_disk_that_stays_slow_holds_up_the_event_loop_once(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P6"""
    monkeypatch.setattr(writer, "_THREADED", 3)
    world, tasks = (
        World(mock_clock, durable=False, shared=False),
        Tasks(random.Random(1)),
    )
    held_up = 0.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.serve)
        await trio.testing.wait_all_tasks_blocked()
        world.files.seconds = 1.0
        for _ in range(12):
            world.add(tasks.next())
            began = trio.current_time()
            world.journal.flush()
            held_up += trio.current_time() - began
            await world.journal.settle()
        nursery.cancel_scope.cancel()
    assert held_up == 1.0
    assert world.journal.written == 12
