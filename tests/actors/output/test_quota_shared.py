"""The quota of a directory in which others have written, and others write now."""

from __future__ import annotations

import errno
import itertools
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from actors import TaskStatus
from actors.env import Env, Share, real_env
from actors.hosting import DiskQuota, Ledger
from actors.output import OutputLog
from actors.shell import Shell
from actors.testing import FakeEnv, FakeFiles, FaultPlan, fake_env
from supervisor.runtime import Limits, Warned, open_runtime

LIMIT = 6_400
"""A runtime takes 100 bytes of it at once."""
HERE = Path("/tasks")


def quota_of(
    env: Env, share: Share, warnings: list[str] | None = None, limit: int = LIMIT
) -> DiskQuota:
    told: list[str] = [] if warnings is None else warnings
    return DiskQuota(limit, told.append, Ledger(HERE, env, share))


def there(files: FakeFiles) -> int:
    return sum(entry.size for entry in files.entries(HERE))


# ---- One, and what lies there ----


def test_what_lies_there_counts_whoever_has_written_it() -> None:
    """P7: but not what is in a directory below it, nor what a link leads to."""
    env = fake_env()
    env.files.make_directory(HERE / "below")
    env.files.replace(HERE / "below" / "large", b"x" * 9_999)
    env.files.replace(Path("/elsewhere"), b"x" * 9_999)
    env.files.link(HERE / "link", "/elsewhere")
    env.files.replace(HERE / "s0.output", b"x" * 3_000)
    env.files.replace(HERE / "notes of somebody", b"x" * 3_000)
    warnings: list[str] = []
    quota = quota_of(env, env.files.share(HERE), warnings)
    quota.look()
    assert len(warnings) == 1
    assert "/tasks has used 6,021 of the 6,400 bytes of its quota" in warnings[0]
    assert quota.take(500) == 400 - 21
    assert quota.take(1) == 0
    env.files.remove(HERE / "s0.output")
    assert quota.take(500) == 500
    quota.close()
    assert sorted(it.name for it in env.files.entries(HERE)) == [
        *("link", "notes of somebody"),
    ]


def test_a_directory_that_is_over_its_quota_from_the_start_takes_nothing() -> None:
    env = fake_env()
    env.files.make_directory(HERE)
    env.files.replace(HERE / "large", b"x" * 10_000)
    quota = quota_of(env, env.files.share(HERE))
    assert quota.take(1) == 0
    assert quota.used > quota.limit


def test_it_looks_once_for_each_64th_that_was_taken() -> None:
    """P9: and not at each write."""
    env = fake_env()
    env.files.make_directory(HERE)
    looks = 0
    entries = env.files.entries

    def counted(directory: Any) -> Any:
        nonlocal looks
        looks += 1
        return entries(directory)

    env.files.entries = counted  # type: ignore[method-assign]
    quota = quota_of(env, env.files.share(HERE))
    taken = sum(quota.take(1) for _ in range(7_000))
    assert taken == LIMIT - 21
    # Then one for each that is refused: something may have gone.
    assert looks <= 64 + 1 + (7_000 - taken)


# ---- Several ----


def test_what_one_has_written_or_given_back_is_the_others_to_take() -> None:
    """P7: but for the 64th that it may keep, even if it never asks again."""
    for is_written in (True, False):
        env = fake_env()
        env.files.make_directory(HERE)
        first = quota_of(env, env.files.share(HERE))
        second = quota_of(env, env.files.share(HERE))
        assert first.take(3_000) == 3_000
        second.look()
        if is_written:
            env.files.replace(HERE / "s0.output", b"x" * 3_000)
            first.wrote(3_000)
        else:
            first.give_back(3_000)
        left = LIMIT - there(env.files)
        assert left - LIMIT // 64 <= second.take(LIMIT) <= left


def test_the_others_are_told_of_what_was_written_once_for_each_128th_at_most() -> None:
    """P9: however small the pieces are of what was taken at once. Of what was taken in
    small pieces they are told by the looks alone."""
    env = fake_env()
    env.files.make_directory(HERE)
    quota = quota_of(env, env.files.share(HERE))
    told = 0
    replace = env.files.replace

    def counted(*args: Any, **options: Any) -> None:
        nonlocal told
        told += 1
        replace(*args, **options)

    env.files.replace = counted  # type: ignore[method-assign]
    assert quota.take(6_000) == 6_000
    quota.look()
    assert told == 2
    for _ in range(6_000):
        quota.wrote(1)
    assert 30 < told <= 2 + 128
    told = 0
    for _ in range(6_000):
        assert quota.take(1) == 1
        quota.wrote(1)
    assert 30 < told <= 64


def test_what_the_others_could_not_be_told_they_are_told_by_the_next_write() -> None:
    """P7, P10"""
    plan = FaultPlan()
    env = fake_env(faults=plan)
    env.files.make_directory(HERE)
    warnings: list[str] = []
    first = quota_of(env, env.files.share(HERE), warnings)
    second = quota_of(env, env.files.share(HERE))
    assert first.take(3_000) == 3_000
    plan.set("files.replace", "EIO", call=2)
    first.wrote(2_999)
    assert len(warnings) == 1 and "tell others" in warnings[0]
    first.wrote(1)
    # Nothing is in a file: all of it is there to be taken.
    assert second.take(LIMIT) >= LIMIT - LIMIT // 64 - 2 * 21


def test_after_its_end_a_promise_is_not_made_again_by_what_was_still_written() -> None:
    env = fake_env()
    env.files.make_directory(HERE)
    quota = quota_of(env, env.files.share(HERE))
    assert quota.take(6_000) == 6_000
    quota.close()
    quota.wrote(3_000)
    quota.give_back(3_000)
    assert env.files.entries(HERE) == []


async def test_a_log_closes_its_file_though_the_others_cannot_be_told(
    tmp_path: Path,
) -> None:
    """P1: real files. No memory is left, say, for what it gives back."""
    env = fake_env()
    env.files.make_directory(HERE)
    quota = quota_of(env, env.files.share(HERE))
    files = real_env().files
    files.reserve(tmp_path / "s0.output")
    file = files.open_output(tmp_path / "s0.output")
    log = OutputLog(file, quota=LIMIT, disk=quota)
    await log.write(b"x" * 3_000)

    def fails(*args: object, **options: object) -> None:
        raise MemoryError

    env.files.replace = fails  # type: ignore[method-assign]
    (tmp_path / "s0.output").unlink()
    with pytest.raises(MemoryError):
        await log.aclose()
    with pytest.raises(trio.ClosedResourceError):
        file.size()
    assert log.lost


@attrs.define(eq=False)
class Meddled:
    """Files before each call of which somebody else may do something."""

    files: FakeFiles
    meanwhile: Callable[[], object]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.files, name)
        if name not in ("replace", "names", "read_at", "entries", "remove"):
            return found

        def call(*args: Any, **options: Any) -> Any:
            self.meanwhile()
            return found(*args, **options)

        return call


@attrs.define(eq=False)
class Writer:
    """One runtime: what it has taken is written later, in pieces."""

    name: str
    env: Env
    taken: int = 0
    share: Share = attrs.field(init=False)
    quota: DiskQuota = attrs.field(init=False)
    is_looking: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.share = self.env.files.share(HERE)
        self.quota = quota_of(self.env, self.share)

    @property
    def path(self) -> Path:
        return HERE / f"{self.name}.output"

    def act(self, chance: random.Random) -> None:
        if self.is_looking:
            return  # One step of one program at a time.
        self.is_looking = True
        match chance.randrange(24):
            case 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7:
                self.taken += self.quota.take(chance.choice([1, 30, 99, 700]))
            case 8 | 9 | 10 | 11 | 12 | 13 | 14 | 15:
                number = chance.randint(0, self.taken)
                self.files.append_lines(self.path, b"x" * number)
                self.quota.wrote(number)
                self.taken -= number
            case 16 | 17 | 18:
                number = chance.randint(0, self.taken)
                self.quota.give_back(number)
                self.taken -= number
            case 19:
                size = self.files.size(self.path) or 0
                self.files.remove(self.path)
                self.quota.freed(size)
            case 20:
                self.share.close()  # As by a kill: its promise lies there.
                self.taken = 0
                self.begin()
            case 21:
                self.quota.close()
                self.taken = 0
                self.share.close()
                self.begin()
            case _:
                self.quota.look()
        self.is_looking = False

    @property
    def files(self) -> FakeFiles:
        files: Any = self.env.files
        return files.files  # type: ignore[no-any-return]


def sharing(seed: int) -> int:
    """Let some runtimes write by chance; return the most bytes that were there."""
    chance = random.Random(seed)
    world = fake_env()
    # Whole lines, without a newline put in front of them.
    world.files.append_lines = appended(world)  # type: ignore[method-assign]
    world.files.make_directory(HERE)
    writers: list[Writer] = []
    most = 0

    def meanwhile() -> None:
        nonlocal most
        while chance.random() < 0.3:
            chance.choice(writers).act(chance)
        lying = there(world.files)
        most = max(most, lying)
        # The promises themselves are small, and replaced by a second file.
        assert lying <= LIMIT + 21 * 2 * len(writers), seed

    files: Any = Meddled(world.files, lambda: writers and meanwhile())
    env = attrs.evolve(world, files=files)
    for number in range(chance.randint(2, 5)):
        writers += [Writer(f"s{number}", env)]
    for _ in range(150):
        chance.choice(writers).act(chance)
        meanwhile()
    return most


def appended(world: FakeEnv) -> Callable[..., None]:
    def append(path: Path, data: bytes) -> None:
        before = b"" if world.files.size(path) is None else world.files.contents(path)
        world.files.replace(path, before + data)

    return append


def test_however_the_steps_of_several_lie_together_they_keep_to_the_quota() -> None:
    """P7: each look of one may be met in the middle by all others, who write, remove,
    give back, end and are killed."""
    most = [sharing(seed) for seed in range(60)]
    # They do fill it.
    assert max(most) > LIMIT - 200


@attrs.define(eq=False)
class Turns:
    """Two threads of which one runs, until one of the numbered steps."""

    switches: tuple[int, ...]
    running: int = 0
    steps: int = 0
    changes: int = 0
    has_ended: list[bool] = attrs.field(factory=lambda: [False, False])
    changed: threading.Condition = attrs.field(factory=threading.Condition)

    def step(self, mine: int) -> None:
        with self.changed:
            self._wait(mine)
            self.steps += 1
            if self.steps in self.switches and not self.has_ended[1 - mine]:
                self.running = 1 - mine
                self.changes += 1
                self.changed.notify_all()
                self._wait(mine)

    def end(self, mine: int) -> None:
        with self.changed:
            self.has_ended[mine] = True
            self.running = 1 - mine
            self.changes += 1
            self.changed.notify_all()

    def _wait(self, mine: int) -> None:
        assert self.changed.wait_for(lambda: self.running == mine, timeout=60)


def two_fill_it(switches: tuple[int, ...]) -> tuple[int, int]:
    """Let two runtimes fill a directory, each in two parts, and the one that runs
    change at some steps. Return the bytes there, and the number of steps."""
    world = fake_env()
    world.files.make_directory(HERE)
    turns = Turns(switches)

    def fill(mine: int) -> None:
        files: Any = Meddled(world.files, lambda: turns.step(mine))
        env = attrs.evolve(world, files=files)
        quota = quota_of(env, world.files.share(HERE))
        written = 0
        turns.step(mine)
        for wanted in (3_000, 5_000):
            taken = quota.take(wanted)
            written += taken
            files.replace(HERE / f"{mine}.output", b"x" * written)
            quota.wrote(taken)
        quota.take(0)
        turns.end(mine)

    threads = [threading.Thread(target=fill, args=(mine,)) for mine in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return there(world.files), turns.steps


def test_in_whatever_order_two_look_and_write_they_keep_to_the_quota() -> None:
    """P7: all orders of their steps with two switches or fewer, and some with three. Of
    two who want more than there is at once both may get less, and none gets more."""
    size, steps = two_fill_it(())
    sizes = [size]
    assert 15 < steps < 40
    for many in (1, 2, 3):
        orders = itertools.combinations(range(1, steps + 6), many)
        for switches in itertools.islice(orders, 0, None, 1 if many < 3 else 5):
            size, _ = two_fill_it(switches)
            assert size <= LIMIT + 2 * 21, switches
            sizes.append(size)
    assert min(sizes) > 3_000
    assert sizes.count(max(sizes)) > 10 and max(sizes) >= LIMIT


@attrs.define(eq=False)
class Holder:
    """What the model knows of one of two who share a quota."""

    taken: int = 0
    """By calls that have returned, and not yet written or given back."""
    written: int = 0
    """Of these, what is in the file, which the quota has not been told."""
    asks: bool = False
    """Whether it is in the middle of a call."""


def filling(seed: int) -> tuple[int, int]:
    """Let two threads share a quota, of which one runs, and which it is may change at
    each call for a file. Check against a model what each may take. Return how much was
    left at the end, and the number of times that one was refused."""
    chance = random.Random(seed)
    world = fake_env()
    world.files.append_lines = appended(world)  # type: ignore[method-assign]
    world.files.make_directory(HERE)
    # Also none at all, so that calls are met by nobody.
    often = chance.choice([0.02, 0.1, 0.5])
    turns = Turns(tuple(step for step in range(5_000) if chance.random() < often))
    holders = (Holder(), Holder())
    kept = LIMIT // 64
    refused = 0
    wrong: list[str] = []

    def free() -> int:
        # What was written and not told counts twice.
        return LIMIT - there(world.files) - sum(it.taken for it in holders)

    def hold(mine: int) -> None:
        nonlocal refused
        files: Any = Meddled(world.files, lambda: turns.step(mine))
        env = attrs.evolve(world, files=files)
        quota = quota_of(env, world.files.share(HERE))
        it, other = holders[mine], holders[1 - mine]
        turns.step(mine)
        quota.look()

        def take(wanted: int) -> int:
            nonlocal refused
            it.asks, is_met, began = True, other.asks, turns.changes
            taken = quota.take(wanted)
            is_met = is_met or turns.changes > began
            if not 0 <= taken <= wanted:
                wrong.append(f"{taken} taken of {wanted}")
            if taken < wanted:
                refused += 1
                if not is_met and taken < free() - kept:
                    wrong.append(f"{taken} taken of {wanted}, with {free()} free")
            it.asks = False
            it.taken += taken
            if free() + sum(it.written for it in holders) < -4 * 21:
                wrong.append(f"{-free()} more than there is")
            return taken

        def write(number: int) -> None:
            it.written = number
            world.files.append_lines(HERE / f"s{mine}.output", b"x" * number)
            turns.step(mine)
            it.asks = True
            it.taken, it.written = it.taken - number, 0
            quota.wrote(number)
            it.asks = False

        for _ in range(40):
            match chance.randrange(5):
                case 0 | 1:
                    take(chance.choice([1, 30, 99, 700]))
                case 2 | 3:
                    write(chance.randint(0, it.taken))
                case _:
                    number = chance.randint(0, it.taken)
                    it.asks = True
                    it.taken -= number
                    quota.give_back(number)
                    it.asks = False
        write(it.taken)
        if chance.random() < 0.5:
            while taken := take(700):
                write(taken)
        # What remains is for whoever asks last, and alone.
        if turns.has_ended[1 - mine]:
            while taken := take(700):
                write(taken)
        turns.end(mine)

    def run(mine: int) -> None:
        try:
            hold(mine)
        except BaseException as error:
            wrong.append(repr(error))
            turns.end(mine)

    threads = [threading.Thread(target=run, args=(mine,)) for mine in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [], seed
    assert sum(it.taken for it in holders) == 0
    return free(), refused


def test_two_take_what_a_model_of_the_quota_lets_them_have() -> None:
    """P7: never more than there is. One who is refused could have no more than the 64th
    that the other keeps, and what is being written, unless the other asks meanwhile."""
    runs = [filling(seed) for seed in range(150)]
    left = [free for free, _ in runs]
    assert min(left) >= -4 * 21
    assert max(left) <= LIMIT // 64
    assert sum(refused for _, refused in runs) > 300
    assert max(left) > 0, "the other does keep something"


def test_what_a_dead_program_was_about_to_write_is_free_again() -> None:
    """P7: its promise is removed by the next who looks."""
    env = fake_env()
    env.files.make_directory(HERE)
    first_share = env.files.share(HERE)
    first = quota_of(env, first_share)
    assert first.take(6_000) == 6_000
    second = quota_of(env, env.files.share(HERE))
    assert second.take(1_000) < 500
    first_share.close()
    assert second.take(1_000) == 1_000
    assert len(env.files.entries(HERE)) == 1


@pytest.mark.parametrize("call", ["entries", "names", "replace"])
def test_where_nobody_can_look_what_is_known_counts_and_a_warning_says_so(
    call: str,
) -> None:
    """P7, P10: a disk that fails is told under its own name by who writes to it, and
    not as a quota that is used up."""
    env = fake_env()
    env.files.make_directory(HERE)
    env.files.replace(HERE / "large", b"x" * 1_000)
    warnings: list[str] = []
    quota = quota_of(env, env.files.share(HERE), warnings)
    quota.look()
    assert (quota.used, warnings) == (1_021, [])

    def fails(*args: object) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(HERE))

    setattr(env.files, call, fails)
    taken = sum(quota.take(100) for _ in range(80))
    assert taken == LIMIT - 1_021
    assert len(warnings) == 2
    assert "nobody can look" in warnings[0] and "Input/output" in warnings[0]
    assert "of its quota" in warnings[1]


def test_a_promise_that_cannot_be_claimed_is_told() -> None:
    """P7: the others would take it for a dead one."""
    plan = FaultPlan()
    plan.set("files.claim", "EMFILE")
    env = fake_env(faults=plan)
    env.files.make_directory(HERE)
    warnings: list[str] = []
    quota = quota_of(env, env.files.share(HERE), warnings)
    assert quota.take(100) == 100
    assert len(warnings) == 1 and "Too many open files" in warnings[0]
    assert quota.take(150) == 150
    assert len(warnings) == 1
    assert len(env.files.entries(HERE)) == 1, "and tried again"


def test_what_somebody_has_put_there_as_a_promise_is_none() -> None:
    env = fake_env()
    env.files.make_directory(HERE)
    env.files.replace(HERE / "disk-0123456789abcdef.lease", b"9" * 30)
    env.files.make_directory(HERE / "disk-0123456789abcdee.lease")
    env.files.link(HERE / "disk-0123456789abcded.lease", "/elsewhere")
    quota = quota_of(env, env.files.share(HERE))
    assert quota.take(6_000) == 6_000


# ---- Of a runtime ----


@pytest.mark.skipif(os.name == "nt", reason="shells need POSIX")
async def test_what_earlier_programs_have_left_counts_from_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P7: real files; the warning comes at the opening, before anything fails."""
    (tmp_path / "s0123abcd.output").write_bytes(b"x" * 90_000)
    with trio.fail_after(60):
        # Its own records would count, too.
        async with open_runtime(
            tmp_path, limits=Limits(disk=100_000), journal=False
        ) as runtime:
            assert any("has used 90,021 of the 100,000" in it for it in caplog.messages)
            with runtime.events.subscribe() as events:
                (told,) = events.drain()
            assert isinstance(told, Warned) and "has used 90,021" in told.text
            task = await runtime.launch(Shell("while echo more; do :; done"))
            done = await task.wait()
            assert done.status is TaskStatus.FAILED
            assert done.error is not None
            assert done.error.type == "DirectoryQuotaExceeded"
            assert sum(it.stat().st_size for it in os.scandir(tmp_path)) == 100_000
            # What somebody removes by hand makes room.
            (tmp_path / "s0123abcd.output").unlink()
            again = await (await runtime.launch(Shell("echo fine"))).wait()
            assert again.status is TaskStatus.COMPLETED
    assert not [it for it in os.listdir(tmp_path) if it.startswith("disk-")]


@pytest.mark.skipif(os.name == "nt", reason="shells need POSIX")
async def test_two_runtimes_on_one_directory_keep_to_its_quota_together(
    tmp_path: Path,
) -> None:
    """P7, P10: real files and locks; each task that fails says why."""
    limits = Limits(disk=400_000)
    with trio.fail_after(60):
        async with (
            open_runtime(
                tmp_path, env=real_env(), limits=limits, journal=False
            ) as first,
            open_runtime(
                tmp_path, env=real_env(), limits=limits, journal=False
            ) as second,
        ):
            loud = Shell("while echo loud; do :; done")
            tasks = [await it.launch(loud) for it in (first, second, first)]
            for task in tasks:
                done = await task.wait()
                assert done.error is not None
                assert done.error.type == "DirectoryQuotaExceeded"
            size = sum(it.stat().st_size for it in os.scandir(tmp_path))
            assert size <= 400_000
            # What was just being written counted twice for who was refused meanwhile.
            # It does not for one that is alone: only the other's 64th is not its own.
            done = await (await first.launch(loud)).wait()
            assert done.error is not None
            assert done.error.type == "DirectoryQuotaExceeded"
            size = sum(it.stat().st_size for it in os.scandir(tmp_path))
            assert 400_000 - 400_000 // 64 <= size <= 400_000
