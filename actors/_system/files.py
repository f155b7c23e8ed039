"""The real files of an `Env`, for every system Python runs on.

Where Windows lacks a constant or a call, the guarantee behind it (no links followed,
no blocking open, private modes) is best effort.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import trio

from ..env import FileEntry, Files, LogFile, OutputFile
from ..text import whole_characters
from .opening import COMMON, create
from .share import SharedDirectory

_APPEND: Final = os.O_WRONLY | os.O_APPEND | COMMON
_READ: Final = os.O_RDONLY | COMMON
_LINES: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | COMMON

# A path with one of these errors has no regular file: it reads as empty.
_NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)

T = TypeVar("T")

SLOW: Final = 0.05
"""Seconds; a write that takes longer moves the next ones to a thread."""

CALM: Final = 8
"""How many writes in a row must be faster before they are made inline again."""


# After so many inline writes there is a checkpoint. Each takes at most SLOW, and
# whoever copies a stream makes a checkpoint of its own for each.
_CHECKPOINT_EVERY: Final = 8

# After so many appends to a log it is looked where its path leads, whatever its times
# say: the kernel counts them in steps of some milliseconds.
_LOOK_EVERY: Final = 64

# Of so many files it is known that their names are on the disk; each of the others
# costs one more sync.
_NAMED: Final = 1_000

# More threads would only wait for each other and for the event loop.
_THREADS: Final = 4


class PosixFiles(Files):
    """The operating system's files, as `Files`."""

    def __init__(self) -> None:
        # Or each file of a slow disk would hold up the event loop once.
        self._pace = Pace()
        self._threads = trio.CapacityLimiter(_THREADS)
        # {path: device and inode of the file that has this name on the disk}
        self._named: dict[Path, tuple[int, int]] = {}

    def make_directory(self, path: Path) -> Path:
        path = path.absolute()
        missing = [it for it in (path, *path.parents) if not it.is_dir()]
        for directory in reversed(missing):
            try:
                directory.mkdir(0o700 if directory == path else 0o777, exist_ok=True)
            except FileExistsError:
                raise _error(errno.ENOTDIR, directory) from None
            # A umask may have taken from us what the next one needs.
            mode = directory.stat().st_mode
            if mode & 0o700 != 0o700:
                with suppress(OSError):  # as in `create`
                    directory.chmod(stat.S_IMODE(mode) | 0o700)
        if not os.access(path, os.W_OK | os.X_OK):
            raise _error(errno.EACCES, path)
        return path

    def create_output(self, path: Path) -> OutputFile:
        return AppendedFile(path, create(path), self._pace)

    def reserve(self, path: Path) -> None:
        os.close(create(path))

    def open_output(self, path: Path) -> OutputFile:
        fd = os.open(path, _APPEND)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise _error(errno.EINVAL, path)
        except BaseException:
            os.close(fd)
            raise
        return AppendedFile(path, fd, self._pace)

    def read_tail(self, path: Path, limit: int) -> tuple[bytes, bool]:
        limit = max(0, limit)
        with _regular(path) as fd:
            if fd is None:
                return b"", False
            start = max(0, os.fstat(fd).st_size - limit)
            data = _read(fd, start, limit)
        return (whole_characters(data), True) if start else (data, False)

    def read_at(self, path: Path, offset: int, limit: int) -> bytes:
        with _regular(path) as fd:
            return b"" if fd is None else _read(fd, max(0, offset), max(0, limit))

    def size(self, path: Path) -> int | None:
        with _regular(path) as fd:
            return None if fd is None else os.fstat(fd).st_size

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def names(self, directory: Path) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def entries(self, directory: Path) -> list[FileEntry]:
        found: list[FileEntry] = []
        try:
            with os.scandir(directory) as there:
                for entry in there:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:  # It has just gone.
                        continue
                    kind = stat.S_IFMT(status.st_mode)
                    if kind in (stat.S_IFREG, stat.S_IFLNK):
                        size = status.st_size if kind == stat.S_IFREG else 0
                        found.append(FileEntry(entry.name, size, status.st_mtime))
        except FileNotFoundError:
            return []
        return sorted(found, key=_name)

    def append_lines(self, path: Path, lines: bytes, *, durable: bool = False) -> None:
        try:
            fd = create(path, _LINES)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise _error(errno.EINVAL, path)
                file, size = (status.st_dev, status.st_ino), status.st_size
                # Whoever has made it may have died before its name was there for sure.
                is_named = size > 0 and self._named.get(path) == file
                _append_lines(fd, path, size, lines, durable, is_named)
                if durable and not is_named:
                    if len(self._named) >= _NAMED:
                        self._named.clear()
                    self._named[path] = file
            finally:
                os.close(fd)
        except OSError as error:
            error.filename = str(path)
            raise

    def open_log(self, path: Path) -> PosixLog:
        try:
            fd = create(path, _LINES)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise _error(errno.EINVAL, path)
                return PosixLog(path, fd, status)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            error.filename = str(path)
            raise

    def replace(self, path: Path, contents: bytes, *, durable: bool = False) -> None:

        def make(new: Path) -> None:
            fd = create(new)
            try:
                _write(fd, contents, path)
                if durable:
                    # Or the new name could come to the disk before the contents.
                    _sync(fd)
            finally:
                os.close(fd)

        _put_in_place(path, make, durable=durable)

    def link(self, path: Path, target: str) -> None:
        _put_in_place(path, lambda new: os.symlink(target, new))

    def is_within(self, path: str, directory: str | None) -> bool:
        try:
            outer = os.path.realpath(directory or os.curdir)
            return os.path.commonpath([os.path.realpath(path), outer]) == outer
        except (OSError, ValueError):
            return False

    def follow(self, path: str) -> str | None:
        try:
            where = os.path.realpath(path)
        except (OSError, ValueError):
            return None
        try:
            # In a circle of links realpath() stops at a link, or behind one, where
            # lstat() fails.
            return None if stat.S_ISLNK(os.lstat(where).st_mode) else where
        except (FileNotFoundError, NotADirectoryError):
            return where
        except OSError:
            return None

    def share(self, directory: Path) -> SharedDirectory:
        return SharedDirectory(directory)

    async def in_thread(self, fn: Callable[..., T], *args: object) -> T:
        results: list[T] = []
        with trio.CancelScope(shield=True):
            results.append(await _in_thread(partial(fn, *args), self._threads))
        return results[0]


class PosixLog(LogFile):
    """A `LogFile` on a descriptor, which it owns."""

    __slots__ = ("_appends", "_fd", "_is_named", "_path", "_size")

    def __init__(self, path: Path, fd: int, status: os.stat_result) -> None:
        self._appends = 0
        self._path = path
        self._fd = fd
        self._size = status.st_size
        # Whether the entry of the file is on the disk for sure.
        self._is_named = False

    def append(self, lines: bytes, *, durable: bool = False) -> None:
        try:
            # Half of what it costs to look where the path leads. That is done where
            # something else than a write has changed the file, as a move of it does,
            # and now and then: not every move can be told from a write just before.
            there = os.fstat(self._fd)
            self._appends += 1
            if (
                there.st_ctime_ns != there.st_mtime_ns
                or there.st_nlink == 0
                or self._appends % _LOOK_EVERY == 0
            ):
                self._look(there)
            if there.st_size != self._size:
                lines = self._after(there.st_size, lines)
            written = os.write(self._fd, lines)
            if written < len(lines):
                _write(self._fd, lines[written:], self._path)
            if durable:
                _sync(self._fd)
                if not self._is_named:
                    _sync_directory(self._path.parent)
                    self._is_named = True
        except OSError as error:
            # A full disk may have taken a part, which the next attempt must not find.
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            error.filename = str(self._path)
            raise
        self._size += len(lines)

    def _look(self, ours: os.stat_result) -> None:
        """Raise FileNotFoundError if its path leads to it no more."""
        try:
            there = os.lstat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            raise _error(errno.ENOENT, self._path) from None
        if not os.path.samestat(ours, there):
            raise _error(errno.ENOENT, self._path)

    def _after(self, size: int, lines: bytes) -> bytes:
        """Return the lines as they must follow what is in the file, of which somebody
        else has written or cut the end; or of which a part is ours that could not be
        cut after an error."""
        self._size = size
        if size and _read(self._fd, size - 1, 1) != b"\n":
            return b"\n" + lines
        return lines

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            try:
                self._look(os.fstat(fd))
            finally:
                _close(fd, self._path)


class Pace:
    """How fast the writes to a disk are, one after the other."""

    def __init__(self) -> None:
        self._threaded_left = 0

    @property
    def is_slow(self) -> bool:
        """Whether the next one is for a thread."""
        return self._threaded_left > 0

    def judge(self, began: float) -> None:
        """Take note of one that began at that time and has ended."""
        if trio.current_time() - began > SLOW:
            self._threaded_left = CALM
        elif self._threaded_left:
            self._threaded_left -= 1


class AppendedFile(OutputFile):
    """An `OutputFile` on a descriptor, which it owns.

    Writes are made inline, because a thread costs ten times as much. After a slow
    one, which may be that of another file with the same ``pace``, they go through a
    worker thread, until the disk is fast again.

    Neither method can be cancelled: a write is always made, whole and once, in
    the order of the calls, and the caller meets the cancellation at its next
    checkpoint. (A thread in a system call could not be left behind anyway.)
    """

    def __init__(self, path: Path, fd: int, pace: Pace | None = None) -> None:
        self._path = path
        self._fd = fd
        self._pace = pace or Pace()
        self._turn = trio.Lock()
        self._inline = 0

    @property
    def path(self) -> Path:
        return self._path

    @property
    def is_quick(self) -> bool:
        """Whether the next `append`, or the close, is made inline."""
        return not self._pace.is_slow and not self._turn.locked()

    async def append(self, data: bytes) -> None:
        if self.is_quick:
            began = trio.current_time()
            try:
                _write(self._open_fd(), data, self._path)
            finally:
                self._pace.judge(began)
            self._inline += 1
            if self._inline % _CHECKPOINT_EVERY == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()
            return
        with trio.CancelScope(shield=True):
            async with self._turn:
                began = trio.current_time()
                try:
                    write = partial(_write, self._open_fd(), data, self._path)
                    await _in_thread(write)
                finally:
                    self._pace.judge(began)

    def size(self) -> int:
        return os.fstat(self._open_fd()).st_size

    def is_in_place(self) -> bool:
        """Say whether its path still leads to it."""
        try:
            ours = os.fstat(self._open_fd())
            there = os.lstat(self._path)
        except OSError:
            return False
        return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)

    def rotate(self, older: Path) -> int:
        if self._turn.locked():
            raise trio.BusyResourceError(f"{self._path} is being written to")
        before = self._open_fd()
        if not self.is_in_place():
            # What is there now is somebody else's.
            raise OSError(
                errno.ENOENT, "the file was removed or replaced", str(self._path)
            )
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            fd = create(new)
        except FileExistsError:
            os.unlink(new)  # As in `_put_in_place`.
            fd = create(new)
        try:
            replaced = os.lstat(older).st_size if os.path.lexists(older) else 0
            os.replace(self._path, older)
            os.replace(new, self._path)
        except BaseException:
            os.close(fd)
            new.unlink(missing_ok=True)
            raise
        self._fd = fd
        os.close(before)
        return replaced

    async def aclose(self) -> None:
        if self._turn.locked():
            with trio.CancelScope(shield=True):
                async with self._turn:
                    pass
        # Whoever waits for a turn now finds it closed.
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        if self._pace.is_slow:
            # After a cancellation the thread closes it alone.
            await _in_thread(partial(_close, fd, self._path), abandon=True)
            return
        began = trio.current_time()
        try:
            _close(fd, self._path)
        finally:
            self._pace.judge(began)

    def _open_fd(self) -> int:
        if self._fd < 0:
            raise trio.ClosedResourceError(f"{self._path} was closed")
        return self._fd


async def _in_thread(
    fn: Callable[[], T],
    limiter: trio.CapacityLimiter | None = None,
    *,
    abandon: bool = False,
) -> T:
    """Return ``fn()``, called in a worker thread, which without a ``limiter`` waits for
    no other one. On a host that has no thread left it is called here: what holds others
    up is better than what is not done at all."""
    has_begun = False

    def call() -> T:
        nonlocal has_begun
        has_begun = True
        return fn()

    try:
        return await trio.to_thread.run_sync(
            call,
            limiter=limiter or trio.CapacityLimiter(1),
            abandon_on_cancel=abandon,
        )
    # No thread is a RuntimeError, no memory for its stack is a MemoryError.
    except Exception:
        if has_begun:
            raise
    return fn()


def _name(entry: FileEntry) -> str:
    return entry.name


def _close(fd: int, path: Path) -> None:
    try:
        os.close(fd)
    except OSError as error:
        error.filename = str(path)
        raise


def _write(fd: int, data: bytes, path: Path) -> None:
    try:
        # A disk that fills up takes a part first and fails at the next write.
        rest = data[os.write(fd, data) :]
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError as error:
        error.filename = str(path)
        raise


def _append_lines(
    fd: int, path: Path, size: int, lines: bytes, durable: bool, is_named: bool
) -> None:
    if size and _read(fd, size - 1, 1) != b"\n":
        lines = b"\n" + lines
    try:
        _write(fd, lines, path)
        if durable:
            _sync(fd)
            if not is_named:
                _sync_directory(path.parent)
    except BaseException:
        # A full disk may have taken a part, which the next attempt must not find.
        try:
            os.ftruncate(fd, size)
        except OSError:
            pass
        raise


# A reader needs the data and the length, so fdatasync is enough where it exists.
_sync = getattr(os, "fdatasync", os.fsync)


def _sync_directory(directory: Path) -> None:
    """Write the names in it to the disk. Windows cannot, and need not."""
    if os.name == "posix":
        fd = os.open(directory, os.O_RDONLY | COMMON)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _put_in_place(
    path: Path, make: Callable[[Path], None], *, durable: bool = False
) -> None:
    """Make something new and move it to ``path``, or leave nothing of it."""
    new = path.with_name(f"{path.name}.new")
    try:
        try:
            make(new)
        except FileExistsError:
            # Left by a crash, or planted.
            os.unlink(new)
            make(new)
        os.replace(new, path)
        if durable:
            _sync_directory(path.parent)
    except OSError as error:
        try:
            os.unlink(new)
        except OSError:
            pass
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextmanager
def _regular(path: Path) -> Generator[int | None]:
    """Open the regular file at ``path`` for reading, following no link, and close it;
    None if there is none.

    Raises:
        OSError: with ``path`` as its filename, if there may be one.
    """
    fd = named = None
    try:
        try:
            # lstat() catches links where O_NOFOLLOW is missing.
            named = os.lstat(path)
            if stat.S_ISREG(named.st_mode):
                fd = os.open(path, _READ)
        except ValueError:  # No such path can exist.
            pass
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
        if fd is None or named is None:
            yield None
            return
        opened = os.fstat(fd)
        is_it = stat.S_ISREG(opened.st_mode) and os.path.samestat(named, opened)
        yield fd if is_it else None
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        if fd is not None:
            _close(fd, path)


def _read(fd: int, start: int, limit: int) -> bytes:
    os.lseek(fd, start, os.SEEK_SET)
    pieces: list[bytes] = []
    while limit > 0 and (piece := os.read(fd, limit)):
        pieces.append(piece)
        limit -= len(piece)
    return b"".join(pieces)


def _error(number: int, path: Path) -> OSError:
    # OSError picks its subclass, such as PermissionError, by the number.
    return OSError(number, os.strerror(number), str(path))
