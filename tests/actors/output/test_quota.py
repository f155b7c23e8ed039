"""How much output is kept: of a task, over its runs, and of a directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import TaskStatus
from actors.env import real_env
from actors.hosting import DiskQuota, older_file
from actors.output import DirectoryQuotaExceeded, OutputLog, QuotaExceeded, cut_at_lines
from actors.shell import Shell
from supervisor.runtime import Warned, open_runtime

FILES = real_env().files


def log_in(
    path: Path,
    *,
    quota: int = 2**30,
    used: int = 0,
    older: int = 0,
    raw: bool = False,
    rotate: int | None = None,
    disk: DiskQuota | None = None,
    warnings: list[str] | None = None,
    rotations: list[tuple[int, int]] | None = None,
) -> OutputLog:
    if not path.exists():
        FILES.reserve(path)

    def on_rotate(size: int, dropped: int) -> None:
        if rotations is not None:
            rotations.append((size, dropped))

    return OutputLog(
        FILES.open_output(path),
        quota=quota,
        used=used,
        older=older,
        raw=raw,
        rotate=rotate,
        on_rotate=on_rotate,
        disk=disk,
        on_warning=None if warnings is None else warnings.append,
    )


# ---- Of a task ---------------------------------------------------------------


async def test_what_earlier_runs_have_written_counts(tmp_path: Path) -> None:
    """P7: for the quota, for its warning, and in what the error says."""
    path = tmp_path / "s.output"
    warnings: list[str] = []
    first = log_in(path, quota=100, warnings=warnings)
    await first.write(b"x" * 70)
    await first.aclose()
    second = log_in(path, quota=100, used=first.bytes_written, warnings=warnings)
    await second.write(b"y" * 9 + b"\n")
    assert len(warnings) == 1
    assert "80 of the 100" in warnings[0]
    await second.write(b"y" * 20)
    with pytest.raises(QuotaExceeded) as caught:
        await second.write(b"y")
    await second.aclose()
    assert path.stat().st_size == 100
    assert caught.value.quota == 100


@pytest.mark.skipif(os.name == "nt", reason="shells need POSIX")
async def test_a_shell_that_prints_too_much_is_killed_after_a_warning(
    tmp_path: Path,
) -> None:
    """P7, SH34: and fails for that reason; its children are ended with it."""
    warnings: list[str] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, open_runtime(tmp_path) as runtime:

            async def listen() -> None:
                # Its end comes with that of the runtime.
                warnings.extend(
                    [
                        event.text
                        async for event in runtime.events
                        if isinstance(event, Warned)
                    ]
                )

            nursery.start_soon(listen)
            await trio.testing.wait_all_tasks_blocked()
            task = await runtime.launch(
                Shell("sleep 1000 & while echo yes; do :; done", quota=10_000)
            )
            done = await task.wait()
    assert done.status is TaskStatus.FAILED
    assert done.error is not None
    assert done.error.type == "QuotaExceeded"
    assert "10,000" in done.error.message
    assert done.output_file is not None
    assert done.output_file.stat().st_size == 10_000
    assert sum("of its quota" in text for text in warnings) == 1


# ---- Of a directory ----------------------------------------------------------


def test_bytes_are_granted_up_to_the_limit_and_again_when_given_back() -> None:
    """P7"""
    disk = DiskQuota(100)
    assert [disk.take(60), disk.take(60), disk.take(1)] == [60, 40, 0]
    disk.give_back(30)
    assert disk.used == 70
    assert disk.take(50) == 30
    assert "100 of 100" in repr(disk)


def test_the_directory_warns_at_four_fifths_and_again_after_less_than_half() -> None:
    """P7"""
    warnings: list[str] = []
    disk = DiskQuota(100, warnings.append)
    disk.take(79)
    assert warnings == []
    disk.take(1)
    disk.take(20)
    assert len(warnings) == 1
    assert "80 of the 100 bytes" in warnings[0]
    disk.give_back(50)
    disk.take(50)
    assert len(warnings) == 1
    disk.give_back(51)
    disk.take(51)
    assert len(warnings) == 2


@pytest.mark.parametrize("limit", [0, -1, 1.0, True, "1", None])
def test_a_limit_that_cannot_be_is_named(limit: object) -> None:
    with pytest.raises((TypeError, ValueError), match="limit must be"):
        DiskQuota(limit)  # type: ignore[arg-type]


@pytest.mark.parametrize("raw", [False, True])
async def test_the_task_that_exceeds_the_directory_is_told_so(
    tmp_path: Path, raw: bool
) -> None:
    """P7: the directory ends exactly at its quota; the others keep what they have."""
    disk = DiskQuota(100)
    first = log_in(tmp_path / "a.output", disk=disk, raw=raw)
    second = log_in(tmp_path / "b.output", disk=disk, raw=raw)
    await first.write(b"x" * 60)
    with pytest.raises(DirectoryQuotaExceeded) as caught:
        await second.write(b"y" * 60)
    assert caught.value.quota == 100
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(DirectoryQuotaExceeded):
        await second.write(b"y")
    await second.aclose()
    with pytest.raises(DirectoryQuotaExceeded):
        await first.write(b"x")
    await first.aclose()
    sizes = [
        path.stat().st_size for path in (tmp_path / "a.output", tmp_path / "b.output")
    ]
    assert sizes == [60, 40]
    assert disk.used == 100


async def test_its_own_quota_is_named_when_both_are_reached(tmp_path: Path) -> None:
    log = log_in(tmp_path / "a.output", quota=10, disk=DiskQuota(50))
    with pytest.raises(QuotaExceeded) as caught:
        await log.write(b"x" * 11)
    assert type(caught.value) is QuotaExceeded
    await log.aclose()


async def test_a_line_that_shrinks_gives_back_what_it_had_taken(tmp_path: Path) -> None:
    """P7: an unfinished line is reserved, so that closing drops none of it."""
    disk = DiskQuota(100)
    log = log_in(tmp_path / "a.output", disk=disk)
    await log.write(b"x" * 90)
    assert disk.used == 90
    await log.write(b"\rxxx")
    assert disk.used == 3
    other = log_in(tmp_path / "b.output", disk=disk)
    await other.write(b"y" * 97)
    await other.aclose()
    await log.aclose()
    assert (tmp_path / "a.output").read_bytes() == b"xxx"
    assert disk.used == 100


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from([b"a\n", b"bcd", b"\r", "é".encode(), b"x" * 30, b"\xf0"]),
        ),
        max_size=40,
    ),
    st.integers(1, 120),
    st.sampled_from([None, 7, 20]),
)
def test_the_quota_of_the_directory_is_what_is_in_it(
    tmp_path_factory: pytest.TempPathFactory,
    writes: list[tuple[int, bytes]],
    limit: int,
    rotate: int | None,
) -> None:
    """P7, OF5: however tasks write, rotate and end."""
    directory = tmp_path_factory.mktemp("disk")

    async def check() -> None:
        disk = DiskQuota(limit)
        logs = [
            log_in(directory / f"{n}.output", disk=disk, rotate=rotate)
            for n in range(3)
        ]
        full: set[int] = set()
        for n, data in writes:
            try:
                await logs[n].write(data)
            except DirectoryQuotaExceeded:
                # A rotation on the way may have given some back.
                assert disk.used == limit or rotate is not None or n in full
                full.add(n)
            assert disk.used <= limit
        for log in logs:
            await log.aclose()
        on_disk = sum(entry.stat().st_size for entry in os.scandir(directory))
        assert disk.used == on_disk <= limit

    trio.run(check)


# ---- Rotation ----------------------------------------------------------------


async def test_a_file_that_would_grow_too_large_becomes_the_older_one(
    tmp_path: Path,
) -> None:
    """OF5: a second rotation replaces the first one's file, and says so."""
    path = tmp_path / "s.output"
    rotations: list[tuple[int, int]] = []
    log = log_in(path, rotate=10, rotations=rotations)
    for line in (b"11111111\n", b"22222222\n", b"33333333\n", b"4\n"):
        await log.write(line)
    assert path.read_bytes() == b"4\n"
    await log.write(b"5555\n")
    await log.aclose()
    assert path.read_bytes() == b"4\n5555\n"
    assert older_file(path).read_bytes() == b"33333333\n"
    assert rotations == [(9, 0), (9, 9), (9, 9)]
    assert log.bytes_written == 9 + 9 + 9 + 2 + 5
    assert sorted(os.listdir(tmp_path)) == ["s.output", "s.output.1"]


async def test_a_second_run_goes_on_with_what_the_first_has_written(
    tmp_path: Path,
) -> None:
    """OF5"""
    path = tmp_path / "s.output"
    first = log_in(path, rotate=10)
    await first.write(b"1234567\n")
    await first.aclose()
    second = log_in(path, rotate=10, used=first.bytes_written)
    await second.write(b"89\n")
    await second.aclose()
    assert older_file(path).read_bytes() == b"1234567\n"
    assert path.read_bytes() == b"89\n"


async def test_what_a_command_writes_to_the_files_itself_is_not_given_back(
    tmp_path: Path,
) -> None:
    """P7, OF5: the directory's quota counts what was taken from it, so no command
    can make room for itself, or break the count for others."""
    path = tmp_path / "s.output"
    disk = DiskQuota(1000)
    rotations: list[tuple[int, int]] = []
    first = log_in(path, rotate=8, disk=disk, rotations=rotations)
    await first.write(b"1234567\n1234567\n")
    assert rotations == [(8, 0)]
    os.truncate(older_file(path), 100_000)
    os.truncate(path, 100_000)
    await first.write(b"123\n")
    assert rotations == [(8, 0), (8, 8)]
    await first.aclose()
    assert disk.used == 12
    second = log_in(path, rotate=8, disk=disk, rotations=rotations, used=12, older=8)
    os.truncate(older_file(path), 100_000)
    await second.write(b"12345\n")
    assert rotations[2:] == [(4, 8)]
    assert disk.used == 10
    await second.aclose()


@pytest.mark.skipif(os.name == "nt", reason="POSIX modes")
async def test_the_new_file_is_as_private_as_the_first(tmp_path: Path) -> None:
    """OF5, OF11"""
    path = tmp_path / "s.output"
    before = os.umask(0)
    try:
        log = log_in(path, rotate=4)
        await log.write(b"1\n2\n3\n")
        await log.aclose()
    finally:
        os.umask(before)
    for file in (path, older_file(path)):
        assert file.stat().st_mode & 0o777 == 0o600


async def test_rotation_needs_no_quota_to_bound_the_disk(tmp_path: Path) -> None:
    """P7, OF5: any amount of output, two files, no error and no warning."""
    path = tmp_path / "s.output"
    warnings: list[str] = []
    log = log_in(path, quota=2000, rotate=1000, warnings=warnings)
    for n in range(1000):
        await log.write(b"%d\n" % n * 7 + b"x" * (n % 50))
        assert path.stat().st_size <= 1000
    await log.aclose()
    assert log.bytes_written > 20_000
    assert older_file(path).stat().st_size <= 1000
    assert warnings == []


@pytest.mark.parametrize("rotate", [0, -1, 501])
def test_a_rotation_that_could_exceed_the_quota_is_refused(
    tmp_path: Path, rotate: int
) -> None:
    with pytest.raises(ValueError, match="rotate must be"):
        log_in(tmp_path / "s.output", quota=1000, rotate=rotate)


@settings(max_examples=300, deadline=None)
@given(
    st.text(alphabet="ab\né語😀", max_size=60).map(str.encode) | st.binary(max_size=60),
    st.integers(1, 20),
)
def test_pieces_end_with_lines_or_at_least_with_characters(
    data: bytes, size: int
) -> None:
    """OF5, SH12"""
    pieces = list(cut_at_lines(data, size))
    assert b"".join(pieces) == data
    assert all(pieces[:-1])
    assert max(map(len, pieces)) <= size
    try:
        data.decode()
    except UnicodeDecodeError:
        return
    for piece in pieces[:-1]:
        assert piece.endswith(b"\n") or b"\n" not in piece
        if size >= 4:
            piece.decode()


@pytest.mark.skipif(os.name == "nt", reason="POSIX links")
async def test_a_rotation_that_fails_is_an_error_and_the_file_stays(
    tmp_path: Path,
) -> None:
    """SH9, OF5, OF7: nothing that was planted is followed or replaced by force."""
    path = tmp_path / "s.output"
    log = log_in(path, rotate=10)
    await log.write(b"12345678\n")
    older_file(path).mkdir()
    with pytest.raises(OSError, match=r"s\.output"):
        await log.write(b"9\n")
    older_file(path).rmdir()
    (tmp_path / "secret").write_bytes(b"secret")
    older_file(path).symlink_to(tmp_path / "secret")
    await log.write(b"10\n")
    await log.aclose()
    assert older_file(path).read_bytes() == b"12345678\n"
    assert not older_file(path).is_symlink()
    assert (tmp_path / "secret").read_bytes() == b"secret"
    assert sorted(os.listdir(tmp_path)) == ["s.output", "s.output.1", "secret"]
