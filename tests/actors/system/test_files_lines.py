"""Lines appended, files replaced and links made on real disks: whole, or not at all."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from actors._system.files import PosixFiles

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes and links")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_new_file_of_lines_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        PosixFiles().append_lines(tmp_path / "a", b"x\n")
        PosixFiles().replace(tmp_path / "b", b"x\n")
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "a") == mode_of(tmp_path / "b") == 0o600


def test_lines_go_to_no_fifo_and_no_device_and_nothing_blocks(tmp_path: Path) -> None:
    """OF2."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(OSError, match="fifo") as caught:
        PosixFiles().append_lines(fifo, b"x\n")
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(OSError, match="/dev/null"):
        PosixFiles().append_lines(Path("/dev/null"), b"x\n")


@pytest.mark.limit(130)
def test_what_a_full_disk_took_of_the_lines_is_taken_back(tmp_path: Path) -> None:
    """TR2: in a process of its own, since the limit is the process's."""
    program = """
import os, resource, signal, sys
from pathlib import Path
from actors._system.files import PosixFiles
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
files = PosixFiles()
files.append_lines(path, b"first\\n")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
for durable in (False, True):
    try:
        files.append_lines(path, b"x" * 1500 + b"\\n", durable=durable)
    except OSError as error:
        print(error.errno, error.filename == str(path), os.stat(path).st_size)
try:
    files.replace(path, b"x" * 1500)
except OSError as error:
    print(error.errno, error.filename == str(path), os.listdir(path.parent))
files.append_lines(path, b"last\\n")
"""
    path = tmp_path / "a.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        cwd=Path(__file__).parents[3],
        timeout=120,
        check=True,
    )
    assert done.stdout.decode().splitlines() == [
        f"{errno.EFBIG} True 6",
        f"{errno.EFBIG} True 6",
        f"{errno.EFBIG} True ['a.jsonl']",
    ]
    assert path.read_bytes() == b"first\nlast\n"


def test_a_file_is_replaced_whatever_its_mode_and_whatever_a_crash_has_left(
    tmp_path: Path,
) -> None:
    """OF10."""
    path, elsewhere = tmp_path / "m.json", tmp_path / "elsewhere"
    path.write_bytes(b"old")
    path.chmod(0o666)
    elsewhere.write_bytes(b"not ours")
    (tmp_path / "m.json.new").symlink_to(elsewhere)
    PosixFiles().replace(path, b"new")
    assert (path.read_bytes(), mode_of(path)) == (b"new", 0o600)
    path.unlink()
    path.symlink_to(elsewhere)
    PosixFiles().replace(path, b"newer")
    assert not path.is_symlink()
    assert (path.read_bytes(), mode_of(path)) == (b"newer", 0o600)
    assert elsewhere.read_bytes() == b"not ours"
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "m.json"]


async def test_a_function_in_a_thread_holds_up_nobody_and_is_waited_for() -> None:
    """P1, P9."""
    files = PosixFiles()
    go = threading.Event()
    done: list[str] = []

    def slow() -> None:
        assert go.wait(60)
        done.append("slow")

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(files.in_thread, slow)
            for _ in range(100):
                await trio.lowlevel.checkpoint()
            done.append("loop")
            nursery.cancel_scope.cancel()
            go.set()
    assert done == ["loop", "slow"]


def test_a_log_knows_what_somebody_else_has_appended_to_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error cuts nothing of that, and whoever makes the file anew has it all."""
    files, path = PosixFiles(), tmp_path / "log"
    log = files.open_log(path)
    log.append(b"one\n")
    files.append_lines(path, b"other\n")
    log.append(b"two\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        patch.setattr(os, "fdatasync", fails)
        with pytest.raises(OSError, match="Input/output error"):
            log.append(b"three\n", durable=True)
    assert path.read_bytes() == b"one\nother\ntwo\n"
    log.close()


def test_a_move_is_found_by_the_next_write(tmp_path: Path) -> None:
    """Of a file that was written in an earlier tick of the kernel."""
    files, path = PosixFiles(), tmp_path / "log"
    log = files.open_log(path)
    log.append(b"one\n")
    moved, last = tmp_path / "moved", path.stat().st_mtime_ns
    path.rename(moved)
    while moved.stat().st_ctime_ns == last:
        moved.rename(path)
        path.rename(moved)
    with pytest.raises(FileNotFoundError) as caught:
        log.append(b"two\n")
    assert caught.value.filename == str(path)
    assert moved.read_bytes() == b"one\n"
    with pytest.raises(FileNotFoundError):
        log.close()


def test_a_move_that_no_time_tells_of_is_found_within_64_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename in the tick of the kernel in which the file was written last."""
    files, path = PosixFiles(), tmp_path / "log"
    log = files.open_log(path)
    log.append(b"one\n")
    path.rename(tmp_path / "moved")
    fstat = os.fstat

    def in_one_tick(fd: int) -> SimpleNamespace:
        there = fstat(fd)
        same = {
            it: getattr(there, it) for it in ("st_nlink", "st_size", "st_dev", "st_ino")
        }
        return SimpleNamespace(st_ctime_ns=0, st_mtime_ns=0, **same)

    written = 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", in_one_tick)
        with pytest.raises(FileNotFoundError) as caught:
            while written < 100:
                log.append(b"more\n")
                written += 1
    assert caught.value.filename == str(path) and written == 63
    with pytest.raises(FileNotFoundError):
        log.close()


def test_a_torn_part_that_could_not_be_cut_spoils_no_line_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, path = PosixFiles(), tmp_path / "log"
    log = files.open_log(path)
    log.append(b"one\n")
    write = os.write

    def writes_a_part(fd: int, data: bytes) -> int:
        if len(data) < 4:
            fails()
        return write(fd, data[:2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", writes_a_part)
        patch.setattr(os, "ftruncate", fails)
        with pytest.raises(OSError, match="Input/output error"):
            log.append(b"two\n")
    assert path.read_bytes() == b"one\ntw"
    log.append(b"two\n")
    assert path.read_bytes() == b"one\ntw\ntwo\n"
    assert log.size() == len(b"one\ntw\ntwo\n")
    log.close()


def fails(*_: object) -> int:
    raise OSError(errno.EIO, "Input/output error")
