"""The real files of an `Env`, for every system Python runs on.

Where Windows lacks a constant or a call, the guarantee behind it (no links followed,
no blocking open, private modes) is best effort.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import trio

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from ..env import Files, OutputFile, Share
from ..text import whole_characters

# On Windows they do not exist, or only O_BINARY does.
_COMMON: Final = (
    getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_BINARY", 0)
)
_CREATE: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | _COMMON
_APPEND: Final = os.O_WRONLY | os.O_APPEND | getattr(os, "O_NONBLOCK", 0) | _COMMON
_READ: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _COMMON
_LINES: Final = (
    os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | _COMMON
)

# Of a path at which there is no regular file, or none can be: no error of reading.
_NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)

_LOCKED: Final = (errno.EAGAIN, errno.EACCES)
# What a file system says that has no locks of bytes, or none of a directory.
_NO_LOCKS: Final = (errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
# What is said where the directory itself can never be locked, by anybody.
_NEVER_LOCKED: Final = (*_NO_LOCKS, errno.ENOLCK, errno.EACCES, errno.EPERM)
# Kinds of locks of a byte, and how those of a process are set and looked at.
_WRITE: Final = getattr(fcntl, "F_WRLCK", 1)
_READ_LOCK: Final = getattr(fcntl, "F_RDLCK", 0)
_FREE: Final = getattr(fcntl, "F_UNLCK", 2)
_SET_OWN: Final = getattr(fcntl, "F_SETLK", 0)
_GET_OWN: Final = getattr(fcntl, "F_GETLK", 0)

T = TypeVar("T")

SLOW: Final = 0.05
"""Seconds; a write that takes longer moves the next ones to a thread."""

CALM: Final = 8
"""How many writes in a row must be faster before they are made inline again."""


# Writes made inline, of which each takes at most SLOW. Whoever copies a stream
# makes a checkpoint of its own for each.
_CHECKPOINT_EVERY: Final = 8

# More of them only wait for each other, and for the loop's own turn.
_THREADS: Final = 4


class PosixFiles(Files):
    """The operating system's files, as `Files`."""

    def __init__(self) -> None:
        self._threads = trio.CapacityLimiter(_THREADS)

    def make_directory(self, path: Path) -> Path:
        path = path.absolute()
        try:
            path.mkdir(0o700, parents=True, exist_ok=True)
        except FileExistsError:
            raise _error(errno.ENOTDIR, path) from None
        if not os.access(path, os.W_OK | os.X_OK):
            raise _error(errno.EACCES, path)
        return path

    def create_output(self, path: Path) -> OutputFile:
        return AppendedFile(path, os.open(path, _CREATE, 0o600))

    def reserve(self, path: Path) -> None:
        os.close(os.open(path, _CREATE, 0o600))

    def open_output(self, path: Path) -> OutputFile:
        fd = os.open(path, _APPEND)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise _error(errno.EINVAL, path)
        except BaseException:
            os.close(fd)
            raise
        return AppendedFile(path, fd)

    def read_tail(self, path: Path, limit: int) -> tuple[bytes, bool]:
        limit = max(0, limit)
        fd = _open_regular(path)
        if fd is None:
            return b"", False
        with _told_of(path, fd):
            start = max(0, os.fstat(fd).st_size - limit)
            data = _read(fd, start, limit)
        return (whole_characters(data), True) if start else (data, False)

    def read_at(self, path: Path, offset: int, limit: int) -> bytes:
        fd = _open_regular(path)
        if fd is None:
            return b""
        with _told_of(path, fd):
            return _read(fd, max(0, offset), max(0, limit))

    def size(self, path: Path) -> int | None:
        fd = _open_regular(path)
        if fd is None:
            return None
        with _told_of(path, fd):
            return os.fstat(fd).st_size

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def names(self, directory: Path) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def append_lines(self, path: Path, lines: bytes, *, durable: bool = False) -> None:
        try:
            fd = os.open(path, _LINES, 0o600)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise _error(errno.EINVAL, path)
                _append_lines(fd, path, status.st_size, lines, durable)
            finally:
                os.close(fd)
        except OSError as error:
            error.filename = str(path)
            raise

    def replace(self, path: Path, contents: bytes) -> None:

        def make(new: Path) -> None:
            fd = os.open(new, _CREATE, 0o600)
            try:
                _write(fd, contents, path)
            finally:
                os.close(fd)

        _put_in_place(path, make)

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
            # In a circle it has given up, at a link or behind one.
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


class AppendedFile(OutputFile):
    """An `OutputFile` on a descriptor, which it owns.

    Writes are made inline, since that costs a tenth of a thread. After a slow
    one they go through a worker thread, until the disk is fast again.

    Neither method can be cancelled: a write is always made, whole and once, in
    the order of the calls, and the caller meets the cancellation at its next
    checkpoint. (A thread in a system call could not be left behind anyway.)
    """

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._turn = trio.Lock()
        self._thread = trio.CapacityLimiter(1)
        self._threaded_left = 0
        self._inline = 0

    @property
    def path(self) -> Path:
        return self._path

    async def append(self, data: bytes) -> None:
        if self._threaded_left == 0 and not self._turn.locked():
            began = trio.current_time()
            try:
                _write(self._open_fd(), data, self._path)
            finally:
                self._judge(began)
            self._inline += 1
            if self._inline % _CHECKPOINT_EVERY == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()
            return
        with trio.CancelScope(shield=True):
            async with self._turn:
                began = trio.current_time()
                try:
                    write = partial(_write, self._open_fd(), data, self._path)
                    await _in_thread(write, self._thread)
                finally:
                    self._judge(began)

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
        fd = os.open(new, _CREATE, 0o600)
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
        with trio.CancelScope(shield=True):
            await self._turn.acquire()
        try:
            fd, self._fd = self._fd, -1
            if fd < 0:
                return
            if self._threaded_left:
                # A cancellation leaves the closing to its thread.
                await _in_thread(partial(os.close, fd), self._thread, abandon=True)
            else:
                os.close(fd)
        except OSError as error:
            error.filename = str(self._path)
            raise
        finally:
            self._turn.release()

    def _open_fd(self) -> int:
        if self._fd < 0:
            raise trio.ClosedResourceError(f"{self._path} was closed")
        return self._fd

    def _judge(self, began: float) -> None:
        if trio.current_time() - began > SLOW:
            self._threaded_left = CALM
        elif self._threaded_left:
            self._threaded_left -= 1


async def _in_thread(
    fn: Callable[[], T], limiter: trio.CapacityLimiter, *, abandon: bool = False
) -> T:
    """Return ``fn()``, called in a worker thread. On a host that has none left it is
    called here: what holds others up is better than what is not done at all."""
    has_begun = False

    def call() -> T:
        nonlocal has_begun
        has_begun = True
        return fn()

    try:
        return await trio.to_thread.run_sync(
            call, limiter=limiter, abandon_on_cancel=abandon
        )
    # A RuntimeError for want of a thread, a MemoryError for want of its stack.
    except Exception:
        if has_begun:
            raise
    return fn()


def _write(fd: int, data: bytes, path: Path) -> None:
    try:
        # A disk that fills up takes a part first and fails at the next write.
        rest = data[os.write(fd, data) :]
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError as error:
        error.filename = str(path)
        raise


def _append_lines(fd: int, path: Path, size: int, lines: bytes, durable: bool) -> None:
    if size and _read(fd, size - 1, 1) != b"\n":
        lines = b"\n" + lines
    try:
        _write(fd, lines, path)
        if durable:
            _sync(fd)
            if size == 0:
                _sync_directory(path.parent)
    except BaseException:
        # What a full disk took of it would be in the way of the next attempt.
        try:
            os.ftruncate(fd, size)
        except OSError:
            pass
        raise


# Where the length is all that is needed of the file's own data.
_sync = getattr(os, "fdatasync", os.fsync)


def _sync_directory(directory: Path) -> None:
    """Have the disk keep the name of a new file. Windows cannot, and need not."""
    if os.name == "posix":
        fd = os.open(directory, os.O_RDONLY | _COMMON)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _put_in_place(path: Path, make: Callable[[Path], None]) -> None:
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
    except OSError as error:
        try:
            os.unlink(new)
        except OSError:
            pass
        raise OSError(error.errno, error.strerror, str(path)) from None


# Linux has locks of single bytes that belong to whoever has opened the file, and not
# to the process: two runtimes of one process exclude each other as well. Elsewhere
# they are missing, or have another form.
_SET_BYTE: Final = getattr(fcntl, "F_OFD_SETLK", None) if sys.maxsize > 2**32 else None
_GET_BYTE: Final = getattr(fcntl, "F_OFD_GETLK", None)
_FLOCK: Final = struct.Struct("hhqqi4x")
# They do not say who has them, so beside each of them the process has one that does.
_NAMES: Final = 2**62
# The bytes that this process has locked, with the file.
_held: set[tuple[int, int, int]] = set()


class SharedDirectory(Share):
    """A directory in use: everybody who has it so holds a shared lock of it, which
    the kernel takes back at any death. Nobody waits for one.

    A claim is two locks of a byte. That of the directory itself counts: no file needs
    to be there for it, so nobody can remove it, but no such lock excludes another.
    That of ``agents.lock`` does, and so decides between those who claim at once. Any
    number of claims take these two descriptors.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd: int | None = None
        # What that has open.
        self._place: tuple[int, int] = (0, 0)
        self._file: int | None = None
        self._claims: set[str] = set()
        # Claims with which no lock goes that would keep others from them.
        self._unlocked: set[str] = set()
        self._is_closed = False
        try:
            self._open()
        except OSError:
            pass  # It is tried again. Till then it cannot be told who else is there.

    def is_alone(self) -> bool:
        try:
            self._open()
        except OSError as error:
            # As without a free descriptor: there may be somebody.
            return error.errno in _NEVER_LOCKED
        if self._fd is None or fcntl is None:
            return True
        number = self._lock(fcntl.LOCK_EX)
        # The lock is lost meanwhile. Two who ask within these microseconds may both
        # be told that they are alone.
        self._lock(fcntl.LOCK_SH)
        # Where files cannot be locked at all nobody can tell.
        return number is None or (number not in _LOCKED and number in _NEVER_LOCKED)

    def _open(self) -> None:
        """Have in use what is at the path now, with all claims; somebody may have put
        another directory there."""
        if fcntl is None or self._is_closed:
            return
        if self._fd is not None and _is_at(self._directory, self._fd, follow=True):
            return
        fd = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
        except BaseException:
            os.close(fd)
            raise
        if self._fd is not None:
            _held.difference_update(map(self._key, map(_byte_of, self._claims)))
            os.close(self._fd)
        self._fd = fd
        self._place = (status.st_dev, status.st_ino)
        self._lock(fcntl.LOCK_SH)
        for byte in map(_byte_of, self._claims):
            _held.add(self._key(byte))
            self._try(fd, _SET_BYTE, _READ_LOCK, byte)

    def _lock(self, how: int) -> int | None:
        assert self._fd is not None and fcntl is not None
        try:
            fcntl.flock(self._fd, how | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno
        return None

    def claim(self, name: str) -> str | None:
        if _SET_BYTE is None or self._is_closed:
            return None
        self._open()
        if name in self._claims:
            return None
        byte = _byte_of(name)
        file = self._open_file(make=True)
        unlocked = self._try(file, _SET_BYTE, _WRITE, byte)
        if unlocked is not None and unlocked.errno in _LOCKED:
            return self._who(byte)
        # It is looked at first, so that who only tries is in nobody's way.
        told = self._sees(self._fd, byte)
        error = None
        if not told:
            error = self._try(self._fd, _SET_BYTE, _READ_LOCK, byte)
            told = self._sees(self._fd, byte)
        if told:
            self._free(byte)
            return self._who(byte)
        if error is not None and error.errno in _NO_LOCKS:
            # That of the file has to do.
            error = unlocked
        elif told is None and error is None:
            error = _error(errno.EOPNOTSUPP, self._directory)
        if error is not None and error.errno not in _NO_LOCKS:
            self._free(byte)
            raise error
        if error is not None:
            self._unlocked.add(name)
            return None
        self._unlocked.discard(name)
        self._claims.add(name)
        _held.add(self._key(byte))
        self._try(file, _SET_OWN, _WRITE, _NAMES + byte)
        return None

    def holder(self, name: str) -> str | None:
        if name in self._claims:
            return None
        if _SET_BYTE is not None and not self._is_closed:
            try:
                self._open()
            except OSError:
                pass
            byte = _byte_of(name)
            told = [self._sees(fd, byte) for fd in (self._fd, self._open_file())]
            if True in told:
                return self._who(byte)
            # Who has no lock of it sees none of others who have none.
            if False in told and name not in self._unlocked:
                return None
        return None if self.is_alone() else "another runtime on the directory"

    def release(self, name: str) -> None:
        byte = _byte_of(name)
        if name in self._claims:
            self._claims.discard(name)
            _held.discard(self._key(byte))
            self._free(byte)
        elif name in self._unlocked:
            self._unlocked.discard(name)
            self._free(byte)

    def _free(self, byte: int) -> None:
        # What fails is released when the file is closed.
        self._try(self._fd, _SET_BYTE, _FREE, byte)
        self._try(self._file, _SET_OWN, _FREE, _NAMES + byte)
        self._try(self._file, _SET_BYTE, _FREE, byte)

    def _open_file(self, *, make: bool = False) -> int | None:
        """Have the file of the claims open that is there now, with all claims; return
        None if there is none that can have some."""
        path = self._directory / "agents.lock"
        if self._file is not None:
            if _is_at(path, self._file):
                return self._file
            os.close(self._file)
            self._file = None
        how = os.O_RDWR | getattr(os, "O_NONBLOCK", 0) | _COMMON
        try:
            fd = os.open(path, how | os.O_CREAT if make else how, 0o600)
        except OSError:
            return None
        try:
            is_regular = stat.S_ISREG(os.fstat(fd).st_mode)
        except OSError:
            is_regular = False
        if not is_regular:
            os.close(fd)
            return None
        self._file = fd
        for byte in map(_byte_of, self._claims):
            self._try(fd, _SET_BYTE, _WRITE, byte)
            self._try(fd, _SET_OWN, _WRITE, _NAMES + byte)
        return fd

    def _who(self, byte: int) -> str:
        if self._fd is not None and self._key(byte) in _held:
            return f"another runtime of this process, {os.getpid()}"
        try:
            found, pid = _lock_byte(self._file, _GET_OWN, _WRITE, _NAMES + byte)
        except OSError:
            found, pid = _FREE, 0
        # It has it only since now, or is in another namespace.
        return f"process {pid}" if found != _FREE and pid > 0 else "another process"

    def _key(self, byte: int) -> tuple[int, int, int]:
        device, inode = self._place
        return device, inode, byte

    def _sees(self, fd: int | None, byte: int) -> bool | None:
        """Whether somebody else has a lock of a byte; None if that cannot be told."""
        try:
            return _lock_byte(fd, _GET_BYTE, _WRITE, byte)[0] != _FREE
        except OSError:
            return None

    def _try(
        self, fd: int | None, how: int | None, kind: int, byte: int
    ) -> OSError | None:
        try:
            _lock_byte(fd, how, kind, byte)
        except OSError as error:
            error.filename = str(self._directory)
            return error
        return None

    def close(self) -> None:
        for name in [*self._claims, *self._unlocked]:
            self.release(name)
        self._is_closed = True
        for fd in (self._file, self._fd):
            if fd is not None:
                os.close(fd)
        self._file = self._fd = None


def _is_at(path: Path, fd: int, *, follow: bool = False) -> bool:
    """Whether ``path`` leads to what ``fd`` has open. What cannot be looked at, such
    as a directory that is gone, is nothing else."""
    try:
        there = os.stat(path, follow_symlinks=follow)
        return os.path.samestat(there, os.fstat(fd))
    except FileNotFoundError:
        return follow
    except OSError:
        return True


def _lock_byte(
    fd: int | None, how: int | None, kind: int, byte: int
) -> tuple[int, int]:
    """Lock, unlock or look at one byte; return how it is locked and by whom."""
    if fd is None or how is None or fcntl is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    asked = _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0)
    told = _FLOCK.unpack(fcntl.fcntl(fd, how, asked))
    return told[0], told[4]


def _byte_of(name: str) -> int:
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % _NAMES


def _open_regular(path: Path) -> int | None:
    """Open the regular file at ``path`` for reading, following no link; return
    None if there is none.

    Raises:
        OSError: if there may be one, and it cannot be opened.
    """
    try:
        # lstat() catches links where O_NOFOLLOW is missing.
        named = os.lstat(path)
        if not stat.S_ISREG(named.st_mode):
            return None
        fd = os.open(path, _READ)
    except ValueError:  # no such path can exist
        return None
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise
    try:
        opened = os.fstat(fd)
    except OSError as error:
        os.close(fd)
        error.filename = str(path)
        raise
    if stat.S_ISREG(opened.st_mode) and os.path.samestat(named, opened):
        return fd
    os.close(fd)
    return None


@contextmanager
def _told_of(path: Path, fd: int) -> Generator[None]:
    """Close ``fd`` behind what is done with it; errors of that name the path."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(fd)


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
