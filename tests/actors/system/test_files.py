"""The real files: private, exclusive, in order, and never a trap.

Real disks and real threads, so never virtual time.
"""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from actors._system import files as _files
from actors._system.files import AppendedFile, PosixFiles
from actors.env import Files
from actors.hosting import DiskQuota
from actors.output import OutputLog

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes and links")
needs_dev_full = pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="/dev/full is Linux's"
)


@pytest.fixture
def files() -> Files:
    return PosixFiles()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


# ---- Directories -------------------------------------------------------------


@posix
@pytest.mark.usefixtures("open_umask")
def test_a_new_directory_is_private_and_its_path_absolute(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OF11"""
    monkeypatch.chdir(tmp_path)
    made = files.make_directory(Path("a/b/c"))
    assert made == tmp_path / "a" / "b" / "c"
    assert mode_of(made) == 0o700


@posix
def test_a_directory_that_is_there_is_taken_as_it_is(
    files: Files, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    assert files.make_directory(tmp_path) == tmp_path
    assert files.make_directory(tmp_path) == tmp_path
    assert mode_of(tmp_path) == 0o755


def test_a_file_in_the_way_of_a_directory_is_named(
    files: Files, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    taken.write_bytes(b"")
    for path in (taken, taken / "below"):
        with pytest.raises(NotADirectoryError) as caught:
            files.make_directory(path)
        assert str(taken) in str(caught.value)


@posix
def test_a_directory_that_cannot_be_written_to_is_named(
    files: Files, tmp_path: Path
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(0o500)
    if os.access(locked, os.W_OK):
        # Root may write everywhere but here.
        locked = Path("/proc/self")
        if not locked.is_dir() or os.access(locked, os.W_OK):
            pytest.skip("this user may write everywhere")
    with pytest.raises(OSError, match=str(locked)):
        files.make_directory(locked)
    with pytest.raises(OSError, match=str(locked)):
        files.make_directory(locked / "below")


@posix
@pytest.mark.parametrize("umask", [0o377, 0o777])
def test_what_is_made_can_be_used_by_its_owner_whatever_the_umask(
    tmp_path: Path, umask: int
) -> None:
    """OF11. In a process of its own, because the umask is that of all threads."""
    script = f"""
import os
from pathlib import Path
from actors._system.files import PosixFiles
os.umask({umask})
files = PosixFiles()
files.share(files.make_directory(Path("a/b"))).claim("name")
files.create_output(Path("a/b/created"))
files.reserve(Path("a/b/reserved"))
files.append_lines(Path("a/b/lines"), b"line\\n")
files.replace(Path("a/b/replaced"), b"new")
files.create_output(Path("a/b/rotated")).rotate(Path("a/b/older"))
"""
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    made = tmp_path / "a" / "b"
    assert mode_of(made.parent) & 0o700 == mode_of(made) == 0o700
    names = {"created", "reserved", "lines", "replaced", "rotated", "older"}
    assert {path.name for path in made.iterdir()} >= names
    assert {mode_of(path) for path in made.iterdir()} == {0o600}


@posix
@pytest.mark.parametrize(
    "plant", [Path.touch, lambda path: os.mkfifo(path)], ids=["file", "fifo"]
)
def test_what_was_there_keeps_its_mode(
    files: Files, tmp_path: Path, plant: Callable[[Path], object]
) -> None:
    """OF11: also what may not be written to, and what is refused."""
    names = ("lines", "agents.lock", "output")
    for name in names:
        plant(tmp_path / name)
        (tmp_path / name).chmod(0o440)
    with suppress(OSError):
        files.append_lines(tmp_path / "lines", b"line\n")
    share = files.share(tmp_path)
    share.claim("name")
    share.close()
    with pytest.raises(FileExistsError):
        files.reserve(tmp_path / "output")
    assert [mode_of(tmp_path / name) for name in names] == [0o440] * 3


@posix
def test_a_file_system_with_modes_of_its_own_is_put_up_with(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OF11: what is made stays as the umask leaves it."""

    def refuse(*args: object, **named: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    path = tmp_path / "a" / "b"
    before = os.umask(0o400)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "chmod", refuse)
            patch.setattr(os, "fchmod", refuse)
            assert files.make_directory(path) == path
            files.reserve(path / "file")
    finally:
        os.umask(before)
    modes = mode_of(path), mode_of(path / "file")
    path.parent.chmod(0o700)
    path.chmod(0o700)  # for whoever removes it
    assert modes == (0o300, 0o200)


@posix
@pytest.mark.parametrize("call", ["fstat", "fchmod"])
def test_a_file_is_made_where_its_mode_can_neither_be_read_nor_set(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """OF11, P1: as on a file system that knows no modes; nothing stays open."""
    before, real, paths = descriptors(), os.fstat, [tmp_path / n for n in "ab"]

    def fails(*args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def narrow(fd: int) -> os.stat_result:
        return os.stat_result((stat.S_IFREG, *real(fd)[1:]))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", narrow)
        patch.setattr(os, call, fails)
        for path in paths:
            files.reserve(path)
    assert descriptors() <= before
    assert all(path.read_bytes() == b"" for path in paths)


# ---- Creating ----------------------------------------------------------------


@posix
@pytest.mark.usefixtures("open_umask")
async def test_a_new_output_file_is_private_and_not_inherited(
    files: Files, tmp_path: Path
) -> None:
    """OF11"""
    before = descriptors()
    file = files.create_output(tmp_path / "s.output")
    assert file.path == tmp_path / "s.output"
    assert mode_of(file.path) == 0o600
    for fd in descriptors() - before:
        assert not os.get_inheritable(fd)
    await file.aclose()
    assert descriptors() <= before


def descriptors() -> set[int]:
    """Return the descriptors that are open, told without opening one."""
    found: set[int] = set()
    for fd in range(256):
        try:
            os.fstat(fd)
        except OSError:
            continue
        found.add(fd)
    return found


def planted(path: Path, kind: str) -> None:
    if kind == "file":
        path.write_bytes(b"mine")
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        target = path.with_name("target")
        target.write_bytes(b"secret")
        path.symlink_to(target)
    elif kind == "dangling link":
        path.symlink_to(path.with_name("nothing"))


@posix
@pytest.mark.parametrize("kind", ["file", "directory", "fifo", "link", "dangling link"])
def test_nothing_that_is_there_is_written_to(
    files: Files, tmp_path: Path, kind: str
) -> None:
    """OF7, OF8, OF11"""
    path = tmp_path / "s.output"
    planted(path, kind)
    before = path.lstat()
    with pytest.raises(FileExistsError) as caught:
        files.create_output(path)
    assert str(path) in str(caught.value)
    assert os.path.samestat(path.lstat(), before)
    assert not (tmp_path / "nothing").exists()


def test_a_file_in_no_directory_is_named(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "s.output"
    with pytest.raises(FileNotFoundError) as caught:
        files.create_output(path)
    assert str(path) in str(caught.value)


# ---- Appending ---------------------------------------------------------------


async def test_what_many_tasks_append_stands_in_the_order_of_their_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OF3: and one that fails, in the thread or not, stops no later one."""
    write = _files._write

    def fails_for_some(fd: int, data: bytes, path: Path) -> None:
        if data.startswith(b"bad"):
            raise OSError(errno.ENOSPC, "no room", str(path))
        if data.startswith(b"slow"):
            threading.Event().wait(0.02)  # So that those after it go to the thread.
        write(fd, data, path)

    monkeypatch.setattr(_files, "_write", fails_for_some)
    file = PosixFiles().create_output(tmp_path / "s.output")
    called: list[bytes] = []
    failed: list[bytes] = []

    async def append(number: int) -> None:
        kind = {3: b"bad", 5: b"slow", 17: b"bad"}.get(number % 20, b"good")
        data = b"%s %d\n" % (kind, number)
        called.append(data)
        try:
            await file.append(data)
        except OSError:
            failed.append(data)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(append, number)
        await file.aclose()
    assert len(failed) == 20
    assert file.path.read_bytes() == b"".join(
        data for data in called if data not in failed
    )


async def test_what_is_appended_is_there_at_once_and_in_order(
    files: Files, tmp_path: Path
) -> None:
    """OF3: of one task."""
    file = files.create_output(tmp_path / "s.output")
    for number in range(100):
        await file.append(b"%d\n" % number)
        assert file.path.read_bytes().endswith(b"%d\n" % number)
    await file.append(b"")
    await file.aclose()
    await file.aclose()
    assert file.path.read_bytes() == b"".join(b"%d\n" % n for n in range(100))
    with pytest.raises(trio.ClosedResourceError):
        await file.append(b"late")


@needs_dev_full
@pytest.mark.parametrize("threaded", [False, True])
async def test_a_full_disk_is_an_error_that_names_the_file(
    monkeypatch: pytest.MonkeyPatch, threaded: bool
) -> None:
    """SH9"""
    file = AppendedFile(Path("/dev/full"), os.open("/dev/full", os.O_WRONLY))
    if threaded:
        await in_a_thread_from_its_next_write_on(file, monkeypatch)
    for _ in range(3):
        with pytest.raises(OSError, match="/dev/full") as caught:
            await file.append(b"x")
        assert caught.value.errno == errno.ENOSPC
    await file.aclose()


@posix
async def test_a_limit_reached_in_the_middle_of_a_write_is_an_error_after_a_part(
    tmp_path: Path,
) -> None:
    """P7: the system takes what fits first and says no only then.

    In a process of its own, since the limit is the process's.
    """
    program = """
import resource, signal, sys, trio
from pathlib import Path
from actors._system.files import PosixFiles
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
async def main():
    file = PosixFiles().create_output(Path(sys.argv[1]))
    try:
        await file.append(b"x" * 1500)
    except OSError as error:
        print(error.errno, error.filename)
    await file.aclose()
trio.run(main)
"""
    path = tmp_path / "s.output"
    root = Path(__file__).parents[3]
    with trio.fail_after(60):
        done = await trio.run_process(
            [sys.executable, "-c", program, str(path)], capture_stdout=True, cwd=root
        )
    assert done.stdout.decode().strip() == f"{errno.EFBIG} {path}"
    assert path.stat().st_size == 1000


@posix
async def test_a_descriptor_that_takes_little_at_a_time_gets_all_of_it() -> None:
    """A short write is gone on with."""
    reading, writing = os.pipe()
    os.set_blocking(writing, True)
    received: list[bytes] = []

    def read() -> None:
        while data := os.read(reading, 1000):
            received.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    data = os.urandom(300_000)
    file = AppendedFile(Path("pipe"), writing)
    with trio.fail_after(30):
        await file.append(data)
        await file.aclose()
    reader.join(30)
    os.close(reading)
    assert b"".join(received) == data


async def test_a_cancelled_write_is_made_whole_and_once(
    files: Files, tmp_path: Path
) -> None:
    """P1: the caller is cancelled at its next checkpoint, and knows where it is."""
    file = files.create_output(tmp_path / "s.output")
    with trio.CancelScope() as scope:
        scope.cancel()
        await file.append(b"one\n")
        await file.append(b"two\n")
        await file.aclose()
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert file.path.read_bytes() == b"one\ntwo\n"


async def test_writes_let_others_run(files: Files, tmp_path: Path) -> None:
    """P6"""
    file = files.create_output(tmp_path / "s.output")
    ran = trio.Event()

    async def other() -> None:
        ran.set()
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        # Not each time: writes made inline are short.
        for _ in range(16):
            await file.append(b"x")
        assert ran.is_set()
    await file.aclose()


# ---- A slow disk -------------------------------------------------------------


async def in_a_thread_from_its_next_write_on(
    file: AppendedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have ``file`` take a full disk for slow, from its next write on."""
    monkeypatch.setattr(_files, "SLOW", -1.0)
    with pytest.raises(OSError, match="full"):
        await file.append(b"x")


class Tap:
    """A pipe as the slow disk: a write ends when what it wrote has been read."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()

    def fill(self) -> None:
        """Make the next write wait."""
        os.set_blocking(self.writing, False)
        try:
            while True:
                os.write(self.writing, b"." * 4096)
        except BlockingIOError:
            pass
        try:
            while True:
                os.write(self.writing, b".")
        except BlockingIOError:
            pass
        os.set_blocking(self.writing, True)

    def drain(self) -> bytes:
        """Return all that can be read without waiting."""
        os.set_blocking(self.reading, False)
        found = b""
        try:
            while data := os.read(self.reading, 65536):
                found += data
        except BlockingIOError:
            pass
        return found


@pytest.fixture
def tap() -> Iterator[Tap]:
    tap = Tap()
    try:
        yield tap
    finally:
        os.close(tap.reading)


@posix
async def test_after_a_slow_write_the_next_ones_do_not_hold_up_the_others(
    tap: Tap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P6: and calls that wait for each other keep their order."""
    file = AppendedFile(Path("tap"), tap.writing)
    monkeypatch.setattr(_files, "SLOW", -1.0)
    with trio.fail_after(30):
        await file.append(b"slow")
        tap.drain()
        tap.fill()
        async with trio.open_nursery() as nursery:
            try:
                for letter in (b"a", b"b", b"c", b"d"):
                    nursery.start_soon(file.append, letter)
                    # This goes on while the first one hangs in the system.
                    await trio.testing.wait_all_tasks_blocked()
            finally:
                waiting = tap.drain()  # or the thread would never end
        assert (waiting + tap.drain()).lstrip(b".") == b"abcd"
        await file.aclose()


@posix
async def test_a_slow_disk_holds_up_the_others_once_and_not_once_for_each_file(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P6"""
    first, second = (files.create_output(tmp_path / name) for name in "ab")
    monkeypatch.setattr(_files, "SLOW", -1.0)
    await first.append(b"slow")
    threads, write = set[int](), os.write

    def written(fd: int, data: bytes) -> int:
        if data == b"x":
            threads.add(threading.get_ident())
        return write(fd, data)

    monkeypatch.setattr(os, "write", written)
    await second.append(b"x")
    third = files.create_output(tmp_path / "c")
    await third.append(b"x")
    assert threads and threading.get_ident() not in threads
    for file in (first, second, third):
        await file.aclose()


@posix
async def test_what_the_system_says_when_it_closes_a_file_names_that(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, close = tmp_path / "journal", os.close
    log = files.open_log(path)
    log.append(b"x\n")

    def closed(fd: int) -> None:
        is_it = os.path.samestat(os.fstat(fd), os.stat(path))
        close(fd)
        if is_it:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "close", closed)
    for fails in (log.close, partial(files.read_at, path, 0, 9)):
        with pytest.raises(OSError, match="Input/output") as caught:
            fails()
        assert caught.value.filename == str(path)
    log.close()


@posix
async def test_a_write_in_a_thread_is_finished_before_a_cancellation_is_met(
    tap: Tap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: nothing is lost and nothing repeated; closing waits for it."""
    file = AppendedFile(Path("tap"), tap.writing)
    monkeypatch.setattr(_files, "SLOW", -1.0)
    finished: list[str] = []
    scope = trio.CancelScope()

    async def write() -> None:
        with scope:
            await file.append(b"whole")
            finished.append("write")
            await trio.lowlevel.checkpoint()
            finished.append("not reached")

    async def close() -> None:
        await file.aclose()
        finished.append("close")

    with trio.fail_after(30):
        await file.append(b"slow")
        tap.drain()
        tap.fill()
        async with trio.open_nursery() as nursery:
            try:
                nursery.start_soon(write)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
                nursery.start_soon(close)
                await trio.testing.wait_all_tasks_blocked()
                assert finished == []
            finally:
                waiting = tap.drain()  # or the thread would never end
        assert finished == ["write", "close"]
        assert scope.cancelled_caught
        assert (waiting + tap.drain()).lstrip(b".") == b"whole"


@posix
async def test_writes_come_back_inline_when_the_disk_is_fast_again(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    write = os.write

    def watched(fd: int, data: bytes) -> int:
        if data == b"x":
            used.append(threading.get_ident())
        return write(fd, data)

    monkeypatch.setattr(os, "write", watched)
    here = threading.get_ident()

    async def append(times: int) -> list[bool]:
        """Return for each write whether it was inline."""
        used.clear()
        for _ in range(times):
            await file.append(b"x")
        return [thread == here for thread in used]

    file = files.create_output(tmp_path / "s.output")
    monkeypatch.setattr(_files, "SLOW", 60.0)
    with trio.fail_after(30):
        assert await append(3) == [True] * 3
        monkeypatch.setattr(_files, "SLOW", -1.0)
        assert await append(3) == [True, False, False]
        monkeypatch.setattr(_files, "SLOW", 60.0)
        assert await append(_files.CALM + 2) == [False] * _files.CALM + [True] * 2
        await file.aclose()
    assert file.path.stat().st_size == 3 + 3 + _files.CALM + 2


async def test_closing_on_a_disk_that_hangs_can_be_given_up(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SH9: its thread closes the file when the disk lets it."""
    file = files.create_output(tmp_path / "s.output")
    monkeypatch.setattr(_files, "SLOW", -1.0)
    before = descriptors()
    await file.append(b"slow")
    go_on, closed = threading.Event(), threading.Event()
    close = os.close

    def hanging(fd: int) -> None:
        in_thread = threading.current_thread() is not threading.main_thread()
        if in_thread:
            go_on.wait(30)
        close(fd)
        if in_thread:
            closed.set()

    monkeypatch.setattr(os, "close", hanging)
    with trio.fail_after(30):
        with trio.move_on_after(0.1) as scope:
            await file.aclose()
        assert scope.cancelled_caught
        await file.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await file.append(b"late")
        go_on.set()
        await trio.to_thread.run_sync(closed.wait)
    assert descriptors() < before


@posix
async def test_a_rotation_begins_the_file_again_and_keeps_what_was_there(
    files: Files, tmp_path: Path
) -> None:
    """OF5, OF11: it returns the size of what it has replaced."""
    path, older = tmp_path / "s.output", tmp_path / "s.output.1"
    file = files.create_output(path)
    before = descriptors()
    assert file.size() == 0
    replaced: list[int] = []
    for data in (b"one", b"second", b"3"):
        await file.append(data)
        assert file.size() == len(data)
        replaced.append(file.rotate(older))
        assert path.read_bytes() == b""
        assert older.read_bytes() == data
        assert mode_of(path) == mode_of(older) == 0o600
    assert replaced == [0, 3, 6]
    assert len(descriptors()) <= len(before)
    await file.aclose()
    with pytest.raises(trio.ClosedResourceError):
        file.rotate(older)
    assert sorted(os.listdir(tmp_path)) == ["s.output", "s.output.1"]


@posix
async def test_a_rotation_in_the_middle_of_a_write_is_refused(
    tap: Tap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OF3"""
    file = AppendedFile(tmp_path / "s.output", tap.writing)
    monkeypatch.setattr(_files, "SLOW", -1.0)
    with trio.fail_after(30):
        await file.append(b"slow")
        tap.drain()
        tap.fill()
        async with trio.open_nursery() as nursery:
            try:
                nursery.start_soon(file.append, b"waits")
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(trio.BusyResourceError):
                    file.rotate(tmp_path / "s.output.1")
            finally:
                tap.drain()  # or the thread would never end
        await file.aclose()
    assert os.listdir(tmp_path) == []


# ---- Reading the tail --------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 50))
def test_the_tail_is_the_end_and_says_whether_bytes_precede_it(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, limit: int
) -> None:
    """OF6"""
    path = tmp_path_factory.getbasetemp() / "tail.output"
    path.write_bytes(data)
    tail, truncated = PosixFiles().read_tail(path, limit)
    assert truncated is (len(data) > limit)
    assert data.endswith(tail)
    if not truncated:
        assert tail == data
    else:
        skipped = data[len(data) - limit : len(data) - len(tail)]
        assert len(skipped) <= 3
        assert all(0x80 <= byte < 0xC0 for byte in skipped)


def test_the_tail_begins_with_a_whole_character(files: Files, tmp_path: Path) -> None:
    """OF6"""
    path = tmp_path / "s.output"
    path.write_text("a😀b", encoding="utf-8")
    assert [files.read_tail(path, n)[0] for n in (1, 2, 3, 4, 5, 6)] == [
        b"b",
        b"b",
        b"b",
        b"b",
        "😀b".encode(),
        "a😀b".encode(),
    ]


@posix
@pytest.mark.parametrize(
    "kind", ["nothing", "directory", "fifo", "link", "dangling link"]
)
def test_what_is_no_regular_file_reads_as_empty_and_blocks_nobody(
    files: Files, tmp_path: Path, kind: str
) -> None:
    """OF2, OF7, OF8, OF9: a FIFO that nobody writes to would hang here."""
    path = tmp_path / "s.output"
    planted(path, kind)
    before = descriptors()
    assert files.read_tail(path, 100) == (b"", False)
    assert files.read_at(path, 0, 100) == b""
    assert files.size(path) is None
    assert descriptors() <= before


@posix
def test_a_link_is_not_followed_where_the_system_does_not_help(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OF7: O_NOFOLLOW is missing on some."""
    path = tmp_path / "s.output"
    planted(path, "link")
    monkeypatch.setattr(_files, "_READ", os.O_RDONLY)
    assert files.read_tail(path, 100) == (b"", False)
    assert files.read_at(path, 0, 100) == b""
    assert files.size(path) is None


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "x" * 10_000, ""])
def test_a_path_that_cannot_be_reads_as_empty(files: Files, path: str) -> None:
    """OF2"""
    assert files.read_tail(Path(path), 100) == (b"", False)


@posix
def test_a_file_that_may_not_be_read_is_no_empty_one(
    files: Files, tmp_path: Path
) -> None:
    """TR6: whoever goes on from it must know."""
    path = tmp_path / "s.output"
    path.write_bytes(b"secret")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(PermissionError):
        files.read_tail(path, 100)


@posix
@pytest.mark.parametrize("call", ["lstat", "open", "fstat", "lseek", "read"])
@pytest.mark.parametrize(
    "way",
    [
        lambda files, path: files.read_tail(path, 100),
        lambda files, path: files.read_at(path, 0, 100),
        lambda files, path: files.size(path),
        lambda files, path: files.open_output(path),
    ],
    ids=["read_tail", "read_at", "size", "open_output"],
)
def test_whichever_call_fails_an_error_names_the_file_and_nothing_stays_open(
    files: Files,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    way: Callable[[Files, Path], object],
) -> None:
    """TR6: as on a network's disk, and without a free descriptor."""
    path = tmp_path / "s.output"
    path.write_bytes(b"there")
    before, real, left = descriptors(), getattr(os, call), 0

    def fails(*args: object, **named: object) -> object:
        nonlocal left
        left -= 1
        if left == -1:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(*args, **named)

    result: object = None
    for at in range(10):
        left = at
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fails)
            try:
                result = way(files, path)
            except OSError as error:
                result = error
        if left >= 0:
            break
        assert isinstance(result, OSError) and result.errno == errno.ESTALE
        assert descriptors() <= before
    assert left >= 0 and not isinstance(result, OSError)


def test_a_part_is_read_from_where_it_is_asked_for(
    files: Files, tmp_path: Path
) -> None:
    """OF15"""
    path = tmp_path / "s.output"
    path.write_bytes(b"0123456789")
    assert files.size(path) == 10
    assert files.read_at(path, 0, 4) == b"0123"
    assert files.read_at(path, 4, 100) == b"456789"
    assert files.read_at(path, 10, 5) == files.read_at(path, 99, 5) == b""
    assert files.read_at(path, 0, 0) == b""
    path.write_bytes(b"")
    assert files.size(path) == 0


def test_removing_is_fine_twice(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "s.output"
    path.write_bytes(b"x")
    files.remove(path)
    files.remove(path)
    assert not path.exists()


@needs_dev_full
async def test_a_full_disk_passes_on_and_the_tail_still_has_the_output() -> None:
    """SH9"""
    file = AppendedFile(Path("/dev/full"), os.open("/dev/full", os.O_WRONLY))
    log = OutputLog(file, quota=1000)
    for expected in (b"one\n", b"one\ntwo\n"):
        with pytest.raises(OSError, match="No space left"):
            await log.write(expected[-4:])
        assert log.tail() == (expected, False)
    assert log.bytes_written == 0
    await log.write(b"rest")
    with pytest.raises(OSError, match="No space left"):
        await log.aclose()
    await log.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await file.append(b"x")


@needs_dev_full
async def test_what_the_disk_refused_is_given_back(tmp_path: Path) -> None:
    """SH9"""
    disk = DiskQuota(100)
    file = AppendedFile(Path("/dev/full"), os.open("/dev/full", os.O_WRONLY))
    log = OutputLog(file, quota=1000, disk=disk)
    with pytest.raises(OSError, match="No space"):
        await log.write(b"line\nrest")
    with pytest.raises(OSError, match="No space"):
        await log.aclose()
    assert disk.used == 0
