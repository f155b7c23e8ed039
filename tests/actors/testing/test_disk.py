"""The disk in memory: what a crash may leave of it, and how its operations go wrong."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.testing import DiskImage, DiskStep, FakeFiles, FaultPlan
from actors.testing._files import SEAMS

E = TypeVar("E", bound=BaseException)

HERE = Path("/here")
NAMES = ["a", "b"]


def after_a_crash(image: DiskImage) -> Iterator[FakeFiles]:
    """All that may be found: the program alone has died, or the power went."""
    yield FakeFiles(image.killed())
    files = list(image.unsynced())
    for names, *kept in product([False, True], repeat=1 + len(files)):
        left = {path for path, is_kept in zip(files, kept, strict=True) if is_kept}
        yield FakeFiles(image.unpowered(names=names, kept=left))


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(
            ["lines", "lines!", "replace", "replace!", "reserve", "remove"]
        ),
        st.sampled_from(NAMES),
    ),
    max_size=10,
)


@settings(max_examples=300)
@given(CHANGES)
def test_a_crash_leaves_what_was_durable_and_nothing_that_was_not_written(
    changes: list[tuple[str, str]],
) -> None:
    """At each step, in all variants, against what the protocol promises: each file is
    as it was at some time, but for a tail, and not before the last durable change."""
    files = FakeFiles()
    files.make_directory(HERE)
    # {name: what it may have after a loss of power}; None is no file.
    may: dict[str, list[bytes | None]] = {name: [None] for name in NAMES}
    images: list[tuple[DiskImage, dict[str, list[bytes | None]]]] = []
    files.disk.on_step = lambda _: images.append(
        (files.disk.image(), {name: [*it] for name, it in may.items()})
    )
    for number, (change, name) in enumerate(changes):
        path, line = HERE / name, b"%d\n" % number
        is_durable = change.endswith("!")
        there = files.read_at(path, 0, 999) if files.size(path) is not None else None
        if change.startswith("lines"):
            may[name].append((there or b"") + line)
            files.append_lines(path, line, durable=is_durable)
        elif change.startswith("replace"):
            may[name].append(line)
            files.replace(path, line, durable=is_durable)
        elif change == "remove":
            may[name].append(None)
            files.remove(path)
        elif there is None:
            may[name].append(b"")
            files.reserve(path)
        if is_durable:
            del may[name][:-1]
    assert files.disk.on_step is not None
    images.append((files.disk.image(), may))
    for image, allowed in images:
        for left in after_a_crash(image):
            for name, contents in allowed.items():
                size = left.size(HERE / name)
                found = None if size is None else left.contents(HERE / name)
                if found is None:
                    assert None in contents
                else:
                    assert any(
                        it is not None and it.startswith(found) for it in contents
                    )
                if contents[1:] == []:
                    assert found == contents[0]


def test_a_file_is_torn_where_a_write_was_under_way() -> None:
    files = FakeFiles()
    torn: list[bytes] = []
    files.append_lines(Path("/a"), b"one\n")

    def look(step: DiskStep) -> None:
        image = files.disk.image()
        disks = [image.killed(step, written) for written in (0, 1, 3)]
        torn.extend(FakeFiles(disk).contents("/a") for disk in disks)

    files.disk.on_step = look
    files.append_lines(Path("/a"), b"two\n")
    assert torn == [b"one\n", b"one\nt", b"one\ntwo"]
    assert files.contents("/a") == b"one\ntwo\n"


def test_what_a_kill_leaves_can_still_be_lost_with_the_power() -> None:
    files = FakeFiles()
    files.append_lines(Path("/a"), b"one\n", durable=True)
    files.append_lines(Path("/a"), b"two\n")
    again = files.disk.image().killed()
    assert FakeFiles(again).contents("/a") == b"one\ntwo\n"
    left = again.image().unpowered(names=True, kept=())
    assert FakeFiles(left).contents("/a") == b"one\n"


def test_a_rename_without_a_sync_may_be_seen_without_its_contents() -> None:
    files = FakeFiles()
    files.replace(Path("/a"), b"old", durable=True)
    files.replace(Path("/a"), b"new")
    image = files.disk.image()
    found = {
        FakeFiles(image.unpowered(names=names, kept=kept)).contents("/a")
        for names, kept in product([False, True], [(), {Path("/a")}])
    }
    assert found == {b"old", b"", b"new"}


def test_an_image_does_not_change_when_the_disk_does() -> None:
    files = FakeFiles()
    files.append_lines(Path("/a"), b"one\n")
    image = files.disk.image()
    files.append_lines(Path("/a"), b"two\n")
    files.capacity = 9
    with pytest.raises(OSError, match="No space"):
        files.append_lines(Path("/a"), b"three\n")
    files.remove(Path("/a"))
    files.replace(Path("/a"), b"x")
    assert FakeFiles(image.killed()).contents("/a") == b"one\n"


# ---- Faults -----------------------------------------------------------------------


async def test_a_disk_that_fills_up_takes_a_part_of_an_append_and_no_part_of_lines() -> (
    None
):
    files = FakeFiles()
    file = files.create_output(Path("/out"))
    files.capacity = 5
    with pytest.raises(OSError, match="No space") as caught:
        await file.append(b"1234567")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/out")
    assert files.contents("/out") == b"12345"
    for call in (files.append_lines, files.replace):
        with pytest.raises(OSError, match="No space"):
            call(Path("/out"), b"x\n")
    assert files.contents("/out") == b"12345"
    assert files.names("/") == ["out"]
    files.capacity = 7
    files.append_lines(Path("/out"), b"x")
    assert files.contents("/out") == b"12345\nx"


class Once(FaultPlan):
    """Lets the first call of an operation go wrong."""

    def __init__(self, operation: str, way: str) -> None:
        super().__init__()
        self.set(operation, way)
        self.errors: list[BaseException] = []

    def put_in(self, error: E) -> E:
        self.errors.append(error)
        return error


async def everything(files: FakeFiles) -> list[OSError]:
    """Call every operation, and return what was raised."""
    errors: list[OSError] = []
    path = HERE / "a"
    share = files.share(HERE)
    file = None

    def call(fn: object, *args: object) -> object:
        try:
            return fn(*args)  # type: ignore[operator]
        except OSError as error:
            errors.append(error)
            return None

    call(files.make_directory, HERE)
    call(files.reserve, path)
    call(partial(files.append_lines, durable=True), path, b"one\n")
    call(partial(files.replace, durable=True), path, b"two")
    call(files.link, HERE / "link", "a")
    call(files.names, HERE)
    call(files.size, path)
    call(files.read_tail, path, 9)
    call(files.read_at, path, 0, 9)
    call(files.entries, HERE)
    call(share.claim, "a")
    await files.in_thread(call, files.size, path)
    file = call(files.create_output, HERE / "out")
    if file is not None:
        for append in (b"one\n", b"two\n"):
            try:
                await file.append(append)  # type: ignore[attr-defined]
            except OSError as error:
                errors.append(error)
        call(file.size)  # type: ignore[attr-defined]
        call(file.rotate, HERE / "old")  # type: ignore[attr-defined]
        try:
            await file.aclose()  # type: ignore[attr-defined]
        except OSError as error:
            errors.append(error)
    call(files.remove, path)
    return errors


async def test_each_operation_goes_wrong_in_each_way_and_says_that_it_was_put_in(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for operation, ways in SEAMS.items():
        for way in ways:
            files = FakeFiles()
            files.make_directory(HERE)
            files.faults = faults = Once(operation, way)
            began = trio.current_time()
            errors = await everything(files)
            assert errors == faults.errors, (operation, way)
            if way == "slow":
                assert trio.current_time() > began
            else:
                assert errors, (operation, way)
            assert faults.waiting == []


async def test_a_slow_append_keeps_the_order_and_is_waited_for_by_the_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    files = FakeFiles()
    file = files.create_output(Path("/out"))
    files.faults = Once("files.append", "slow")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.append, b"one ")
        await trio.testing.wait_all_tasks_blocked()
        await file.append(b"two")
        assert trio.current_time() == 0
        with pytest.raises(trio.BusyResourceError):
            file.rotate(Path("/older"))
        await file.aclose()
        assert trio.current_time() == 1
    assert files.contents("/out") == b"one two"


async def test_a_call_that_goes_wrong_leaves_what_was_there() -> None:
    files = FakeFiles()
    files.append_lines(Path("/a"), b"one\n")
    for operation in ("files.append_lines", "files.replace", "files.link"):
        for way in SEAMS[operation]:
            files.faults = Once(operation, way)
            with pytest.raises(OSError, match=r"\[Errno"):
                getattr(files, operation.partition(".")[2])(Path("/a"), b"two\n")
            assert files.contents("/a") == b"one\n"
            assert files.disk.entries.keys() == {Path("/a")}
