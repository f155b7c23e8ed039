"""Reading the output of a task: the end, a part, as it comes, until it says so.

Most tests are the writer themselves, with a real log and a real file, so that
they decide what is there at each moment. Files are real: never virtual time.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import Context, TaskStatus
from actors.env import OutputFile, real_env
from actors.hosting import older_file
from actors.output import OutputLog
from actors.shell import Shell
from actors.work import Report
from supervisor._tasks import reading
from supervisor._tasks.reading import (
    CHUNK,
    WINDOW,
    Follower,
    OutputPart,
    read_from,
    read_tail,
)
from supervisor._tasks.record import Order, Task
from supervisor._tasks.snapshot import OutputEnded
from supervisor.runtime import Runtime, TaskHandle, open_runtime
from tests.supervisor.jobs import files

HANGS = 60.0
ENV = real_env()


@attrs.frozen
class Idle:
    """A work that is never run: the test writes the output."""

    task_type: str = "local_bash"
    shutdown: float = 1.0
    writes_output: bool = True

    def describe(self) -> str:
        return "idle"

    async def run(self, ctx: Context[object], report: Report) -> object:
        raise AssertionError("not to be run")


class Deaf:
    """A host that does not listen."""

    def progressed(self, task: Task) -> None: ...

    def prompted(self, task: Task) -> None: ...

    def agent_said(self, task: Task, event: object) -> None: ...

    def answered(self, task: Task) -> None: ...

    def warn(
        self, task: Task | None, text: str, error: BaseException | None = None
    ) -> None: ...


async def wait_for(wait: Callable[[], Awaitable[object]], source: Hashable) -> None:
    await wait()


def follow(task: Task, offset: int = 0) -> Follower:
    return Follower(task, offset, wait_for)


async def wait_output(task: Task, pattern: str | re.Pattern[str]) -> re.Match[str]:
    return await reading.wait_output(task, pattern, wait_for)


def end(task: Task, status: TaskStatus) -> None:
    task.transition(status)
    task.tell_end()


NUMBERS = itertools.count()


def pending(directory: Path) -> Task:
    """Return the record of a task with an empty output file."""
    task_id = f"s{next(NUMBERS):08}"
    task = Task(
        task_id,
        f"{task_id}-000001",
        ENV,
        Order(Idle(), "local_bash", 1.0, True, False, "idle", None, None, None, "wake"),
        Deaf(),
        background=True,
    )
    task.output_file = directory / f"{task_id}.output"
    ENV.files.reserve(task.output_file)
    return task


class Writer:
    """Does for a task what its run does with the output."""

    def __init__(
        self, task: Task, *, raw: bool = False, rotate: int | None = None
    ) -> None:
        assert task.output_file is not None
        self.task = task
        if task.status is TaskStatus.PENDING:
            task.transition(TaskStatus.RUNNING)
        task.log = self.log = OutputLog(
            ENV.files.open_output(task.output_file),
            quota=2**40,
            raw=raw,
            rotate=rotate,
            on_rotate=task.output_rotated,
            on_output=task.output_changed,
        )

    async def write(self, *pieces: str | bytes) -> None:
        for piece in pieces:
            await self.log.write(piece.encode() if isinstance(piece, str) else piece)

    async def finish(self, *, failed: bool = False) -> None:
        await self.log.aclose()
        self.task.log = None
        end(self.task, TaskStatus.FAILED if failed else TaskStatus.COMPLETED)


async def written(directory: Path, data: bytes, *, ended: bool = True) -> Task:
    """Return a task that has printed ``data``, kept as it came."""
    task = pending(directory)
    writer = Writer(task, raw=True)
    await writer.write(data)
    if ended:
        await writer.finish()
    else:
        await writer.log.aclose()
    return task


def run(fn: Callable[[], Awaitable[None]]) -> None:
    """Run an async function with a deadline, for hypothesis."""

    async def main() -> None:
        with trio.fail_after(HANGS):
            await fn()

    trio.run(main)


# ---- The end -----------------------------------------------------------------


async def test_output_within_the_limit_is_returned_whole(tmp_path: Path) -> None:
    """OF1"""
    task = await written(tmp_path, "grün\n".encode())
    assert read_tail(task, 5) == "grün\n"
    assert read_tail(task) == "grün\n"


@pytest.mark.parametrize("character", ["x", "é", "語", "😀"])
@pytest.mark.parametrize("limit", [200, 999, 1000])
async def test_longer_output_keeps_its_end_below_a_line_that_names_the_file(
    tmp_path: Path, character: str, limit: int
) -> None:
    """OF1, OF6: the total length is the limit exactly, and no character is cut."""
    text = character * 500 + "middle" + character * 500
    task = await written(tmp_path, text.encode())
    tail = read_tail(task, limit)
    header = f"[Truncated. Full output: {task.output_file}]\n"
    assert tail.startswith(header)
    assert len(tail) == limit
    assert text.endswith(tail.removeprefix(header))


async def test_a_limit_without_room_for_that_line_gives_the_end_alone(
    tmp_path: Path,
) -> None:
    """OF1"""
    task = await written(tmp_path, b"0123456789")
    assert [read_tail(task, n) for n in (0, 1, 9, 10)] == [
        "",
        "9",
        "123456789",
        "0123456789",
    ]


async def test_the_end_can_begin_with_a_whole_line(tmp_path: Path) -> None:
    """OF13"""
    lines = "".join(f"line {n}\n" for n in range(1000))
    task = await written(tmp_path, lines.encode())
    for limit in range(300, 330):
        tail = read_tail(task, limit, whole_lines=True)
        header, _, rest = tail.partition("\n")
        assert header.startswith("[Truncated.")
        assert lines.endswith("\n" + rest)
        assert limit - len("line 999\n") < len(tail) <= limit
    assert read_tail(task, len(lines), whole_lines=True) == lines
    assert read_tail(await written(tmp_path, b"x" * 999), 5, whole_lines=True) == ""


async def test_the_unfinished_line_belongs_to_the_end(tmp_path: Path) -> None:
    """SH33: a prompt has no newline."""
    writer = Writer(pending(tmp_path))
    await writer.write("Installing\nGo on? [y/N] ")
    assert read_tail(writer.task) == "Installing\nGo on? [y/N] "
    await writer.finish()
    assert read_tail(writer.task) == "Installing\nGo on? [y/N] "


@attrs.define(eq=False)
class PausedFile:
    """A file that takes what it is given only when it may."""

    file: OutputFile
    at_once: int = 0  # so many bytes need not wait
    begun: trio.Event = attrs.field(factory=trio.Event)
    go_on: trio.Event = attrs.field(factory=trio.Event)
    done: trio.Event = attrs.field(factory=trio.Event)

    @property
    def path(self) -> Path:
        return self.file.path

    def size(self) -> int:
        return self.file.size()

    def rotate(self, older: Path) -> int:
        return self.file.rotate(older)

    async def append(self, data: bytes) -> None:
        # Each may be made in a thread, which nothing but these events waits for.
        await self.file.append(data[: self.at_once])
        self.begun.set()
        await self.go_on.wait()
        await self.file.append(data[self.at_once :])
        self.done.set()

    async def aclose(self) -> None:
        await self.file.aclose()


async def test_the_unfinished_line_is_not_seen_before_what_precedes_it(
    tmp_path: Path,
) -> None:
    """SH14: while the disk is slow nothing is shown in the wrong order."""
    task = pending(tmp_path)
    assert task.output_file is not None
    file = PausedFile(ENV.files.open_output(task.output_file))
    task.log = OutputLog(file, quota=1000, on_output=task.output_changed)
    async with collecting(follow(task)) as (seen,), trio.open_nursery() as nursery:
        nursery.start_soon(task.log.write, b"one\n$ ")
        await file.begun.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert read_tail(task) == ""
        assert read_from(task) == OutputPart("", 0, 0, False)
        file.go_on.set()
        await file.done.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert read_tail(task) == seen.text == "one\n$ "
        await task.log.aclose()
        end(task, TaskStatus.KILLED)
    assert seen.pieces == ["one\n", "$ "]


@pytest.mark.skipif(os.name == "nt", reason="POSIX links and FIFOs")
@pytest.mark.parametrize(
    "planted", ["nothing", "directory", "fifo", "link", "dangling link"]
)
async def test_what_is_no_file_of_ours_reads_as_empty_in_every_way(
    tmp_path: Path, planted: str
) -> None:
    """OF2, OF7, OF8, OF9: and it ends, so that a task is settled."""
    task = await written(tmp_path, b"mine")
    path = task.output_file
    assert path is not None
    path.unlink()
    (tmp_path / "secret").write_bytes(b"secret")
    if planted == "directory":
        path.mkdir()
    elif planted == "fifo":
        os.mkfifo(path)
    elif planted == "link":
        path.symlink_to(tmp_path / "secret")
    elif planted == "dangling link":
        path.symlink_to(tmp_path / "nowhere")
    with trio.fail_after(HANGS):
        assert read_tail(task) == ""
        assert read_from(task) == OutputPart("", 0, 0, True)
        assert [piece async for piece in follow(task)] == []
        with pytest.raises(OutputEnded):
            await wait_output(task, "secret")


async def test_a_task_without_a_file_reads_as_empty(tmp_path: Path) -> None:
    """OF2: also one whose file was removed with it, rotated or not."""
    task = pending(tmp_path)
    writer = Writer(task, rotate=10)
    await writer.write("12345\n", "12345\n")
    await writer.finish()
    assert task.output_start == 6
    task.remove_output()
    assert os.listdir(tmp_path) == []
    assert read_tail(task) == ""
    assert read_from(task, 3).text == ""
    assert [piece async for piece in follow(task)] == []


# ---- A part ------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(
    st.text(alphabet="ab\néé語😀", max_size=30).map(str.encode)
    | st.binary(max_size=20),
    st.integers(1, 12),
)
def test_parts_put_together_are_the_whole_output(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, limit: int
) -> None:
    """OF6: and each but a single long character keeps to the limit."""

    async def check() -> None:
        task = await written(tmp_path_factory.getbasetemp(), data)
        offset, parts = 0, list[str]()
        while not (part := read_from(task, offset, limit)).done:
            assert part.offset == offset
            assert part.next_offset > offset
            assert part.next_offset - offset <= max(limit, 4)
            offset = part.next_offset
            parts.append(part.text)
        assert "".join(parts) + part.text == data.decode("utf-8", "replace")
        assert part.next_offset == len(data)
        assert read_from(task, offset + 1000, limit).text == ""

    run(check)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="a\né語😀", max_size=12), st.integers(0, 40))
def test_a_part_from_inside_of_a_character_begins_after_it(
    tmp_path_factory: pytest.TempPathFactory, text: str, offset: int
) -> None:
    """OF6"""

    async def check() -> None:
        task = await written(tmp_path_factory.getbasetemp(), text.encode())
        part = read_from(task, offset)
        assert "\ufffd" not in part.text
        assert text.endswith(part.text)
        if offset <= len(text.encode()):
            assert 0 <= part.offset - offset <= 3
            assert part.next_offset == part.offset + len(part.text.encode())

    run(check)


async def test_a_part_can_begin_with_a_whole_line(tmp_path: Path) -> None:
    """OF13, OF15: the start of the output is a whole line by itself."""
    task = await written(tmp_path, b"one\ntwo\nthree")
    texts = [read_from(task, n, whole_lines=True).text for n in (0, 1, 4, 5, 8, 9)]
    assert texts == ["one\ntwo\nthree", *["two\nthree"] * 2, "three", "three", ""]
    assert read_from(task, 5, whole_lines=True).offset == 8


async def test_a_character_that_is_not_all_there_is_left_for_the_next_part(
    tmp_path: Path,
) -> None:
    """SH12"""
    task = pending(tmp_path)
    writer = Writer(task, raw=True)
    await writer.write("a語".encode()[:-1])
    assert read_from(task) == OutputPart("a", 0, 1, False)
    assert read_from(task, 1) == OutputPart("", 1, 1, False)
    await writer.write("語".encode()[-1:])
    assert read_from(task, 1) == OutputPart("語", 1, 4, False)
    await writer.write("語".encode()[:-1])
    await writer.finish()
    assert read_from(task, 4) == OutputPart("\ufffd", 4, 6, True)


async def test_a_part_says_what_is_unfinished_only_where_it_follows(
    tmp_path: Path,
) -> None:
    """SH33"""
    task = pending(tmp_path)
    writer = Writer(task)
    await writer.write("one\ntwo\n$ ")
    assert read_from(task, 0) == OutputPart("one\ntwo\n", 0, 8, False, "$ ")
    assert read_from(task, 0, 4) == OutputPart("one\n", 0, 4, False, "")
    assert read_from(task, 8) == OutputPart("", 8, 8, False, "$ ")
    await writer.finish()
    assert read_from(task, 8) == OutputPart("$ ", 8, 10, True, "")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda task: read_tail(task, -1),
            "limit must be a whole number, 0 or more, not -1",
        ),
        (
            lambda task: read_tail(task, True),
            "limit must be a whole number, 0 or more, not True",
        ),
        (
            lambda task: read_from(task, -1),
            "offset must be a whole number, 0 or more, not -1",
        ),
        (
            lambda task: read_from(task, 0, 0),
            "limit must be a whole number, 1 or more, not 0",
        ),
        (
            lambda task: read_from(task, cast(int, "0")),
            "offset must be a whole number, 0 or more, not '0'",
        ),
        (
            lambda task: follow(task, cast(int, 1.5)),
            "offset must be a whole number, 0 or more, not 1.5",
        ),
    ],
)
def test_bad_numbers_are_named(
    tmp_path: Path, call: Callable[[Task], object], message: str
) -> None:
    task = pending(tmp_path)
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call(task)


# ---- As it comes -------------------------------------------------------------


class Collected:
    """What a follower got, gathered by a task of the test."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.pieces: list[str] = []
        self.ended = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    async def run(self) -> None:
        async for piece in self.follower:
            assert piece
            self.pieces.append(piece)
        self.ended = True


@asynccontextmanager
async def collecting(*followers: Follower) -> AsyncGenerator[list[Collected], None]:
    with trio.fail_after(HANGS):
        async with trio.open_nursery() as nursery:
            collected = [Collected(follower) for follower in followers]
            for each in collected:
                nursery.start_soon(each.run)
            yield collected


async def test_followers_get_each_piece_when_it_comes_and_end_with_the_task(
    tmp_path: Path,
) -> None:
    """P9: from the start, from an offset, and one that comes later."""
    task = pending(tmp_path)
    async with collecting(follow(task), follow(task, 4)) as (first, second):
        await trio.testing.wait_all_tasks_blocked()
        assert first.pieces == []
        writer = Writer(task)
        for text in ("one\n", "two\n", "three\n"):
            await writer.write(text)
            await trio.testing.wait_all_tasks_blocked()
            assert first.text.endswith(text)
        assert second.text == "two\nthree\n"
        async with collecting(follow(task)) as (third,):
            await trio.testing.wait_all_tasks_blocked()
            assert third.text == "one\ntwo\nthree\n"
            await writer.write("last words")
            await writer.finish()
    for each in (first, third):
        assert each.text == "one\ntwo\nthree\nlast words"
        assert each.ended


async def test_a_task_that_has_ended_can_be_followed(tmp_path: Path) -> None:
    """P9: also one that ended without having run."""
    task = await written(tmp_path, b"x" * 3 * CHUNK + b"end")
    with trio.fail_after(HANGS):
        pieces = [piece async for piece in follow(task)]
        assert "".join(pieces) == "x" * 3 * CHUNK + "end"
        killed = pending(tmp_path)
        async with collecting(follow(killed)) as (collected,):
            await trio.testing.wait_all_tasks_blocked()
            assert not collected.ended
            end(killed, TaskStatus.KILLED)
        assert collected.pieces == []


async def test_a_cancelled_follower_goes_on_where_it_was(tmp_path: Path) -> None:
    """Nothing is lost, and the iteration has not ended."""
    task = pending(tmp_path)
    writer = Writer(task)
    follower = follow(task)
    await writer.write("one\ntw")
    with trio.fail_after(HANGS):
        assert await anext(follower) == "one\n"
        assert await anext(follower) == "tw"
        with trio.CancelScope() as scope:
            scope.cancel()
            await anext(follower)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(anext, follower)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await writer.write("o\nthree")
        await writer.finish()
        assert [piece async for piece in follower] == ["o\nthree"]
        with pytest.raises(StopAsyncIteration):
            await anext(follower)


async def test_a_follower_that_is_slow_holds_up_nobody(tmp_path: Path) -> None:
    """P6, P7: it reads from the file what it has missed."""
    task = pending(tmp_path)
    writer = Writer(task)
    slow = follow(task)
    await writer.write("first\n")
    assert await anext(slow) == "first\n"
    async with collecting(follow(task)) as (quick,):
        for n in range(1000):
            await writer.write(f"{n}\n" * 100)
        await trio.testing.wait_all_tasks_blocked()
        assert quick.text.endswith("999\n")
        await writer.finish()
    assert "first\n" + "".join([piece async for piece in slow]) == quick.text


async def test_a_prompt_is_seen_at_once_and_not_repeated(tmp_path: Path) -> None:
    """SH33"""
    task = pending(tmp_path)
    writer = Writer(task)
    async with collecting(follow(task)) as (seen,):
        for piece in ("Listening on ", ":8080", "> ", "\nready\n$ "):
            await writer.write(piece)
            await trio.testing.wait_all_tasks_blocked()
        assert seen.pieces == ["Listening on ", ":8080", "> ", "\nready\n", "$ "]
        await writer.finish()
    assert seen.text == read_tail(task) == "Listening on :8080> \nready\n$ "


async def test_a_line_of_which_a_part_is_in_the_file_is_not_repeated(
    tmp_path: Path,
) -> None:
    """SH12, SH14: a slow write may be seen half way."""
    task = pending(tmp_path)
    assert task.output_file is not None
    file = PausedFile(ENV.files.open_output(task.output_file), at_once=4)
    task.log = OutputLog(file, quota=1000, on_output=task.output_changed)
    async with collecting(follow(task)) as (seen,), trio.open_nursery() as nursery:
        await task.log.write(b"abcdef")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(task.log.write, b"gh\nij")
        await file.begun.wait()
        await trio.testing.wait_all_tasks_blocked()
        task.output_changed()
        await trio.testing.wait_all_tasks_blocked()
        assert seen.pieces == ["abcdef"]
        file.go_on.set()
        await file.done.wait()
        await trio.testing.wait_all_tasks_blocked()
        await task.log.aclose()
        end(task, TaskStatus.KILLED)
    assert seen.pieces == ["abcdef", "gh\n", "ij"]


async def test_a_redraw_that_was_seen_is_followed_by_the_line_that_stays(
    tmp_path: Path,
) -> None:
    """SH7: not by each of the frames."""
    task = pending(tmp_path)
    writer = Writer(task)
    async with collecting(follow(task)) as (seen,):
        for n in range(0, 100, 7):
            await writer.write(f"{n} %\r")
            await trio.testing.wait_all_tasks_blocked()
        await writer.write("done\nmore\n")
        await writer.finish()
    assert seen.text == "0 %\ndone\nmore\n"
    assert read_tail(task) == "done\nmore\n"


@settings(max_examples=200, deadline=None)
@given(
    pieces=st.lists(
        st.tuples(
            st.sampled_from(["a", "bc\n", "é", "😀\n", "\r\n", "\x1b[1m", "語" * 40]),
            st.booleans(),
        ),
        max_size=30,
    ),
    raw=st.booleans(),
)
def test_without_redraws_all_pieces_together_are_the_file(
    tmp_path_factory: pytest.TempPathFactory,
    pieces: list[tuple[str, bool]],
    raw: bool,
) -> None:
    """SH12: however the writer and the follower take turns."""

    async def check() -> None:
        task = pending(tmp_path_factory.getbasetemp())
        writer = Writer(task, raw=raw)
        async with collecting(follow(task)) as (seen,):
            for piece, let_read in pieces:
                data = piece.encode()
                await writer.write(data[:1], data[1:])
                if let_read:
                    await trio.testing.wait_all_tasks_blocked()
            await writer.finish()
        assert task.output_file is not None
        assert seen.text == task.output_file.read_bytes().decode()
        assert seen.follower.offset == task.output_file.stat().st_size

    run(check)


async def test_an_offset_beyond_the_end_waits_until_the_output_is_there(
    tmp_path: Path,
) -> None:
    task = pending(tmp_path)
    writer = Writer(task)
    async with collecting(follow(task, 8)) as (seen,):
        await writer.write("unfinished")
        await trio.testing.wait_all_tasks_blocked()
        assert seen.pieces == []
        await writer.write("\nmore\n$ ")
        await trio.testing.wait_all_tasks_blocked()
        assert seen.text == "ed\nmore\n$ "
        await writer.finish()
    assert seen.text == "ed\nmore\n$ "


# ---- Rotation ----------------------------------------------------------------


async def test_offsets_and_followers_survive_a_rotation(tmp_path: Path) -> None:
    """OF5, OF15: nothing is repeated, skipped or taken from the wrong file."""
    task = pending(tmp_path)
    writer = Writer(task, rotate=100)
    lines = [f"line {n:04}\n" for n in range(100)]
    async with collecting(follow(task)) as (seen,):
        for n, line in enumerate(lines):
            await writer.write(line)
            await trio.testing.wait_all_tasks_blocked()
            assert seen.text == "".join(lines[: n + 1])
            part = read_from(task, 10 * n)
            assert (part.text, part.offset) == (line, 10 * n)
            assert read_tail(task, 10) == line
        await writer.finish()
    assert (task.output_dropped, task.output_start) == (800, 900)
    assert task.output_file is not None
    assert task.output_file.read_text() == "".join(lines[90:])
    assert older_file(task.output_file).read_text() == "".join(lines[80:90])
    assert read_from(task, 850) == OutputPart("".join(lines[85:]), 850, 1000, True)
    header = f"[Truncated. Full output: {task.output_file}]\n"
    assert read_tail(task, len(header) + 150) == header + "".join(lines[85:])


async def test_what_a_rotation_has_dropped_is_told(tmp_path: Path) -> None:
    """OF5"""
    task = pending(tmp_path)
    writer = Writer(task, rotate=10)
    slow = follow(task)
    await writer.write("unfin")
    assert await anext(slow) == "unfin"
    for n in range(10):
        await writer.write(f"{n}\n" * 5)
    await writer.finish()
    assert task.output_dropped == 85
    rest = "".join([piece async for piece in slow])
    assert (
        rest == "\n[85 bytes of output are no longer kept]\n8\n8\n8\n8\n8\n" + "9\n" * 5
    )
    part = read_from(task, 3)
    assert part.offset == 85
    assert part.text == "8\n" * 5 + "9\n" * 5
    header = f"[Truncated. Full output: {task.output_file}]\n"
    assert read_tail(task) == header + "8\n" * 5 + "9\n" * 5


async def test_an_older_file_that_somebody_took_away_is_a_gap(tmp_path: Path) -> None:
    """OF2, OF5"""
    task = pending(tmp_path)
    writer = Writer(task, rotate=10)
    await writer.write("1111111\n", "2222222\n")
    await writer.finish()
    assert task.output_file is not None
    older_file(task.output_file).unlink()
    with trio.fail_after(HANGS):
        assert "".join([piece async for piece in follow(task)]) == (
            "[8 bytes of output are no longer kept]\n2222222\n"
        )
        assert read_from(task) == OutputPart("2222222\n", 8, 16, True)
        assert (await wait_output(task, "2")).group() == "2"
        with pytest.raises(OutputEnded):
            await wait_output(task, "1")


async def test_reading_what_was_rotated_and_forgotten_is_done_at_once(
    tmp_path: Path,
) -> None:
    """OF2: or whoever reads until it is done never is."""
    task = pending(tmp_path)
    writer = Writer(task, rotate=10)
    await writer.write("1111111\n", "2222222\n")
    await writer.finish()
    task.remove_output()
    part = read_from(task)
    assert part.text == "" and part.done


# ---- Until it says so --------------------------------------------------------


class Waiting:
    """A wait for output, made by a task of the test."""

    def __init__(self, task: Task, pattern: str | re.Pattern[str]) -> None:
        self.task, self.pattern = task, pattern
        self.match: re.Match[str] | None = None

    async def run(self) -> None:
        self.match = await wait_output(self.task, self.pattern)


@pytest.mark.parametrize("pattern", ["ready.", re.compile(r"re[a-z]+\.")])
async def test_what_was_printed_before_is_found_at_once(
    tmp_path: Path, pattern: str | re.Pattern[str]
) -> None:
    """P9: also far back, at its beginning, and after the end of the task."""
    task = pending(tmp_path)
    writer = Writer(task)
    await writer.write("server\nready.\n", "x" * 70_000, "y\n" * 100_000)
    with trio.fail_after(HANGS):
        assert (await wait_output(task, pattern)).group() == "ready."
        await writer.finish()
        assert (await wait_output(task, pattern)).group() == "ready."


@pytest.mark.parametrize(
    "pattern", ["Listening on :8080>", re.compile(r":(\d+)> ?\Z"), ":8080"]
)
async def test_a_match_is_found_across_pieces_and_without_a_newline(
    tmp_path: Path, pattern: str | re.Pattern[str]
) -> None:
    """SH33"""
    task = pending(tmp_path)
    waiting = Waiting(task, pattern)
    with trio.fail_after(HANGS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting.run)
            writer = Writer(task)
            for piece in ("x\n" * CHUNK, "Liste", "ning on \x1b[1m:80", "80"):
                assert waiting.match is None
                await writer.write(piece)
                await trio.testing.wait_all_tasks_blocked()
            await writer.write("> ")
    assert waiting.match is not None


async def test_a_redrawn_unfinished_line_is_looked_at(tmp_path: Path) -> None:
    """SH7"""
    task = pending(tmp_path)
    waiting = Waiting(task, "ready")
    with trio.fail_after(HANGS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting.run)
            writer = Writer(task)
            for piece in ("starting\r", "starting 2\r", "ready"):
                await trio.testing.wait_all_tasks_blocked()
                assert waiting.match is None
                await writer.write(piece)


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(alphabet="ab\né", max_size=60),
    cuts=st.lists(st.integers(0, 200), max_size=6),
    pattern=st.text(alphabet="ab\né", min_size=1, max_size=4),
    raw=st.booleans(),
)
def test_a_literal_is_found_exactly_if_the_output_holds_it(
    tmp_path_factory: pytest.TempPathFactory,
    text: str,
    cuts: list[int],
    pattern: str,
    raw: bool,
) -> None:
    """However the output is cut into pieces."""

    async def check() -> None:
        task = pending(tmp_path_factory.getbasetemp())
        waiting = Waiting(task, pattern)
        ended = False

        async def wait() -> None:
            nonlocal ended
            try:
                await waiting.run()
            except OutputEnded:
                ended = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            writer = Writer(task, raw=raw)
            data = text.encode()
            edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
            for a, b in itertools.pairwise(edges):
                await writer.write(data[a:b])
                await trio.testing.wait_all_tasks_blocked()
            await writer.finish()
        assert (waiting.match is not None) is (pattern in text)
        assert ended is (pattern not in text)

    run(check)


async def test_a_regular_expression_sees_a_bounded_part_of_what_came_before(
    tmp_path: Path,
) -> None:
    """P7: a match that begins further back is not found, and a line begins only
    where one does."""
    task = pending(tmp_path)
    writer = Writer(task, raw=True)
    found = Waiting(task, re.compile("(?s)begin.*end"))
    missed = Waiting(task, re.compile("(?s)first.*end"))
    anchored = Waiting(task, re.compile("^x"))
    with trio.fail_after(HANGS):
        async with trio.open_nursery() as nursery:
            for each in (found, missed, anchored):
                nursery.start_soon(each.run)
            await trio.testing.wait_all_tasks_blocked()
            for piece in ("first", "x" * CHUNK, "begin", "x" * (WINDOW - 9), "end"):
                await writer.write(piece)
                await trio.testing.wait_all_tasks_blocked()
            assert found.match is not None
            assert missed.match is None
            assert anchored.match is None
            nursery.cancel_scope.cancel()


async def test_the_end_of_the_task_is_told_with_its_snapshot(tmp_path: Path) -> None:
    """A pattern that needs what an unfinished line has not, too."""
    task = pending(tmp_path)
    waiting = Waiting(task, "ready")
    with trio.fail_after(HANGS):
        with pytest.raises(OutputEnded, match="failed") as caught:
            async with _unwrapped(waiting.run):
                writer = Writer(task)
                await writer.write("not read\ny")
                await trio.testing.wait_all_tasks_blocked()
                await writer.finish(failed=True)
    assert caught.value.snapshot.status is TaskStatus.FAILED
    assert caught.value.snapshot.id == task.task_id


@asynccontextmanager
async def _unwrapped(fn: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
    """Run ``fn`` beside the block, and raise what it raises as it is."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fn)
            yield
    except ExceptionGroup as group:
        (error,) = group.exceptions
        raise error from None


@pytest.mark.parametrize("pattern", ["", b"x", re.compile(b"x"), None, 3])
async def test_what_is_no_pattern_is_named(tmp_path: Path, pattern: object) -> None:
    task = pending(tmp_path)
    with pytest.raises((TypeError, ValueError), match="pattern must"):
        await wait_output(task, cast(str, pattern))


async def test_a_cancelled_wait_leaves_nothing_behind(tmp_path: Path) -> None:
    """P1"""
    task = pending(tmp_path)
    writer = Writer(task)
    with trio.fail_after(HANGS):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(Waiting(task, "never").run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await writer.write("more")
        await writer.finish()


# ---- With a real shell -------------------------------------------------------


@asynccontextmanager
async def shell(
    directory: Path, command: str, **options: Any
) -> AsyncGenerator[tuple[Runtime, TaskHandle], None]:
    with trio.fail_after(HANGS):
        async with open_runtime(directory) as runtime:
            yield runtime, await runtime.launch(Shell(command, **options))


@pytest.mark.skipif(os.name == "nt", reason="shells need POSIX")
async def test_a_shell_is_followed_from_its_first_to_its_last_byte(
    tmp_path: Path,
) -> None:
    """SH14, P9: both streams, in the order of arrival."""
    command = "for i in 1 2 3; do echo out $i; echo err $i >&2; done; printf end"
    async with shell(tmp_path, command) as (_, task):
        text = "".join([piece async for piece in task.follow()])
        assert text == "".join(f"out {i}\nerr {i}\n" for i in (1, 2, 3)) + "end"
        assert (await task.wait()).result == text


@pytest.mark.skipif(os.name == "nt", reason="shells need POSIX")
async def test_a_shell_is_ready_when_its_prompt_is_there(tmp_path: Path) -> None:
    """SH33: a prompt without a newline, and a command that goes on for ever."""
    command = "printf 'Listening on :8080> '; sleep 1000"
    async with shell(tmp_path, command) as (runtime, task):
        match = await task.wait_output(re.compile(r":(\d+)>"))
        assert match.group(1) == "8080"
        assert task.read_tail() == "Listening on :8080> "
        await runtime.stop(task.id)
        assert task.read_tail() == "Listening on :8080> "


@pytest.mark.skipif(os.name == "nt", reason="shells need POSIX")
async def test_a_shell_that_ends_before_it_is_ready_says_how(tmp_path: Path) -> None:
    """P10"""
    async with shell(tmp_path, "echo no; exit 3") as (_, task):
        with pytest.raises(OutputEnded) as caught:
            await task.wait_output("ready")
        assert caught.value.snapshot.exit_code == 3


@pytest.mark.skipif(os.name == "nt", reason="shells need POSIX")
async def test_a_shell_may_rotate_its_output(tmp_path: Path) -> None:
    """OF5, P7: two files at most, whatever it prints; the numbers go on."""
    command = "for i in $(seq 20000); do echo line $i; done"
    async with shell(tmp_path, command, rotate=10_000, quota=20_000) as (_, task):
        done = await task.wait()
        assert done.status is TaskStatus.COMPLETED
        sizes = {name: (tmp_path / name).stat().st_size for name in files(tmp_path)}
        assert set(sizes) == {f"{task.id}.output", f"{task.id}.output.1"}
        assert max(sizes.values()) <= 10_000
        whole = "".join(f"line {n}\n" for n in range(1, 20_001))
        part = task.read(len(whole) - 9_000)
        assert part.done
        assert part.text == whole[-9_000:]
        assert task.read().offset == len(whole) - sum(sizes.values())
