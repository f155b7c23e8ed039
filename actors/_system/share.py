"""Who else uses a directory, and who has which name in it: locks that end with
their process."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from ..env import Share
from .opening import COMMON, create

_LOCKED: Final = (errno.EAGAIN, errno.EACCES)
# The errors of a file system without locks of bytes, or of directories.
_NO_LOCKS: Final = (errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
# The errors where nobody can ever lock the directory itself.
_NEVER_LOCKED: Final = (*_NO_LOCKS, errno.ENOLCK, errno.EACCES, errno.EPERM)
# The errors where something is used up for now.
_SCARCE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# The kinds of locks of a byte, and the calls that set and read those of a process.
_WRITE: Final = getattr(fcntl, "F_WRLCK", 1)
_READ_LOCK: Final = getattr(fcntl, "F_RDLCK", 0)
_FREE: Final = getattr(fcntl, "F_UNLCK", 2)
_SET_OWN: Final = getattr(fcntl, "F_SETLK", 0)
_GET_OWN: Final = getattr(fcntl, "F_GETLK", 0)

# Linux has locks of single bytes that belong to whoever has opened the file, and not
# to the process: two runtimes of one process exclude each other as well. Elsewhere
# they are missing, or have another form.
_SET_BYTE: Final = getattr(fcntl, "F_OFD_SETLK", None) if sys.maxsize > 2**32 else None
_GET_BYTE: Final = getattr(fcntl, "F_OFD_GETLK", None)
_FLOCK: Final = struct.Struct("hhqqi4x")
# Such a lock does not say who has it. A second one does, which belongs to the process
# and is so many bytes further on.
_NAMES: Final = 2**62
# The bytes that this process has locked, with the file.
_held: set[tuple[int, int, int]] = set()


class SharedDirectory(Share):
    """A directory in use: everybody who uses it holds a shared lock on it, which the
    kernel releases at any death. Nobody waits for a lock.

    A claim is two locks of one byte. The lock on the directory itself counts: it needs
    no file, so nobody can remove it. But such locks do not exclude each other, because
    nobody can open a directory for writing. The lock on ``agents.lock`` does, and so
    decides between those who claim at the same time. All claims share these two
    descriptors.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd: int | None = None
        # The device and the inode that it has open.
        self._place: tuple[int, int] = (0, 0)
        self._file: int | None = None
        self._claims: set[str] = set()
        # Claims without a lock that would keep others out.
        self._unlocked: set[str] = set()
        self._is_closed = False
        try:
            self._open()
        except OSError:
            pass  # Later calls try again. Until then nobody knows who else is there.

    def is_alone(self) -> bool:
        return self._others() is None

    def _others(self) -> str | None:
        """Return in words who else may use it, or None if nobody does."""
        number: int | None = None
        try:
            self._open()
        except OSError as error:
            # For instance, no descriptor is free.
            number = error.errno
        else:
            if self._fd is None or fcntl is None:
                return None
            number = self._lock(fcntl.LOCK_EX)
            # Between the two calls we have no lock: two who ask within these
            # microseconds may both hear that they are alone.
            self._lock(fcntl.LOCK_SH)
            if number in _LOCKED:
                return "somebody else who has the directory open"
        # Where files cannot be locked at all, nobody can know.
        if number is None or number in _NEVER_LOCKED:
            return None
        return f"perhaps another runtime ({os.strerror(number)})"

    def _open(self) -> None:
        """Use the directory that is at the path now, and claim all names there:
        somebody may have put it in the place of ours."""
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
        file: int | None = None
        try:
            file = self._open_file(make=True)
        except OSError as scarcity:
            unlocked: OSError | None = scarcity
        else:
            unlocked = self._try(file, _SET_BYTE, _WRITE, byte)
        if unlocked is not None and unlocked.errno in _LOCKED:
            return self._who(byte)
        # Look first: a lock that is only tried would be in the way of others.
        told = self._sees(self._fd, byte)
        error = None
        if not told:
            error = self._try(self._fd, _SET_BYTE, _READ_LOCK, byte)
            told = self._sees(self._fd, byte)
        if told:
            self._free(byte)
            return self._who(byte)
        if error is not None and error.errno in _NO_LOCKS:
            # The lock on the file must do.
            error = unlocked
        elif told is None and error is None:
            number = errno.EOPNOTSUPP
            error = OSError(number, os.strerror(number), str(self._directory))
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
            file: int | None = None
            with suppress(OSError):
                self._open()
            with suppress(OSError):
                file = self._open_file()
            byte = _byte_of(name)
            told = [self._sees(fd, byte) for fd in (self._fd, file)]
            if True in told:
                return self._who(byte)
            # Whoever claims without a lock cannot see others who do the same.
            if False in told and name not in self._unlocked:
                return None
        return self._others()

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
        # A lock that cannot be released now ends with its descriptor.
        self._try(self._fd, _SET_BYTE, _FREE, byte)
        self._try(self._file, _SET_OWN, _FREE, _NAMES + byte)
        self._try(self._file, _SET_BYTE, _FREE, byte)

    def _open_file(self, *, make: bool = False) -> int | None:
        """Open the file of the claims that is there now, and lock all claims in it.
        Return None if there is none, or none that can be locked.

        Raises:
            OSError: if nobody can know now.
        """
        path = self._directory / "agents.lock"
        if self._file is not None:
            if _is_at(path, self._file):
                return self._file
            os.close(self._file)
            self._file = None
        how = os.O_RDWR | COMMON
        try:
            fd = create(path, how | os.O_CREAT) if make else os.open(path, how)
        except OSError as error:
            if error.errno in _SCARCE:
                raise
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
            return f"another runtime of this process ({os.getpid()})"
        try:
            found, pid = _lock_byte(self._file, _GET_OWN, _WRITE, _NAMES + byte)
        except OSError:
            found, pid = _FREE, 0
        # It has not named itself yet, is in another namespace, or is a fork, which has
        # the locks of the bytes but not the names.
        return f"process {pid}" if found != _FREE and pid > 0 else self.UNNAMED

    def _key(self, byte: int) -> tuple[int, int, int]:
        device, inode = self._place
        return device, inode, byte

    def _sees(self, fd: int | None, byte: int) -> bool | None:
        """Return whether somebody else has locked a byte, or None if that is unknown."""
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
    """Return whether ``path`` leads to what ``fd`` has open. So it is taken to do if
    nobody can look, and if a directory (``follow``) is gone."""
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
