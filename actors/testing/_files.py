"""Files in memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import trio

from ..output import whole_characters


class FakeFiles:
    """`Files` in memory: regular files and directories, no links, no modes.

    Relative paths begin at ``/``. A file that is renamed or removed while it is
    open stays with whoever has it open, as on Unix.
    """

    def __init__(self) -> None:
        self.write_error: OSError | None = None
        """Raised by every append from now on, for instance
        ``OSError(errno.ENOSPC, "the disk is full")``; None for none."""
        self._files: dict[Path, bytearray] = {}
        self._directories: set[Path] = {Path("/")}

    def contents(self, path: str | os.PathLike[str]) -> bytes:
        """Return all that is in a file, for a test to look at.

        Raises:
            FileNotFoundError: if it is not there.
        """
        return bytes(self._there(_absolute(path)))

    def names(self, directory: str | os.PathLike[str]) -> list[str]:
        """Return the names of the files in a directory, sorted."""
        above = _absolute(directory)
        return sorted(path.name for path in self._files if path.parent == above)

    # What the protocol asks for

    def make_directory(self, path: Path) -> Path:
        """Make ``path`` and its parents; return it absolute.

        Raises:
            NotADirectoryError: if a file is in the way.
        """
        path = _absolute(path)
        for part in (path, *path.parents):
            if part in self._files:
                raise _error(errno.ENOTDIR, path)
        self._directories.update((path, *path.parents))
        return path

    def create_output(self, path: Path) -> FakeFile:
        """Create ``path`` exclusively.

        Raises:
            FileExistsError: if anything is there already.
            FileNotFoundError: if its directory is not there.
        """
        self.reserve(path)
        return self.open_output(path)

    def reserve(self, path: Path) -> None:
        """Create ``path`` as `create_output` does and leave it empty, closed."""
        where = _absolute(path)
        if where in self._files or where in self._directories:
            raise _error(errno.EEXIST, path)
        if where.parent not in self._directories:
            raise _error(errno.ENOENT, path)
        self._files[where] = bytearray()

    def open_output(self, path: Path) -> FakeFile:
        """Open the file at ``path`` for appending.

        Raises:
            OSError: if it is not there, or a directory is.
        """
        if _absolute(path) in self._directories:
            raise _error(errno.EISDIR, path)
        return FakeFile(self, path, self._there(_absolute(path)))

    def read_tail(self, path: Path, limit: int) -> tuple[bytes, bool]:
        """Return the last ``limit`` bytes of a file, and whether bytes precede
        them; ``(b"", False)`` of what is no file."""
        data = bytes(self._files.get(_absolute(path), b""))
        start = max(0, len(data) - max(0, limit))
        return (whole_characters(data[start:]), True) if start else (data, False)

    def read_at(self, path: Path, offset: int, limit: int) -> bytes:
        """Return at most ``limit`` bytes of a file from ``offset`` on; ``b""``
        of what is no file."""
        start = max(0, offset)
        data = self._files.get(_absolute(path), b"")
        return bytes(data[start : start + max(0, limit)])

    def size(self, path: Path) -> int | None:
        """Return the size of a file in bytes, None of what is none."""
        data = self._files.get(_absolute(path))
        return None if data is None else len(data)

    def remove(self, path: Path) -> None:
        """Remove a file; one that is gone already is fine.

        Raises:
            IsADirectoryError: if it is a directory.
        """
        if _absolute(path) in self._directories:
            raise _error(errno.EISDIR, path)
        self._files.pop(_absolute(path), None)

    # For a file that is open

    def replace(self, path: Path, older: Path) -> tuple[bytearray, int]:
        """Move a file and begin it again; return the new one, and the size of
        the one that it replaced."""
        where, to = _absolute(path), _absolute(older)
        if to in self._directories:
            raise _error(errno.EISDIR, older)
        replaced = len(self._files.get(to, b""))
        self._files[to] = self._there(where)
        self._files[where] = bytearray()
        return self._files[where], replaced

    def _there(self, path: Path) -> bytearray:
        if path not in self._files:
            raise _error(errno.ENOENT, path)
        return self._files[path]


class FakeFile:
    """An `OutputFile` in memory."""

    def __init__(self, files: FakeFiles, path: Path, data: bytearray) -> None:
        self._files = files
        self._path = path
        self._data: bytearray | None = data

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._path

    async def append(self, data: bytes) -> None:
        """Append all of ``data``, and meet a cancellation only afterwards.

        Raises:
            OSError: the `FakeFiles.write_error`, if there is one.
            trio.ClosedResourceError: if the file was closed.
        """
        kept = self._open_data()
        error = self._files.write_error
        if error is not None:
            raise OSError(error.errno, error.strerror, str(self._path))
        kept += data
        await trio.lowlevel.cancel_shielded_checkpoint()

    def size(self) -> int:
        """Return how many bytes it has."""
        return len(self._open_data())

    def rotate(self, older: Path) -> int:
        """Move the file to ``older`` and begin it again, empty; return the size
        of the file that was replaced."""
        self._open_data()
        self._data, replaced = self._files.replace(self._path, older)
        return replaced

    async def aclose(self) -> None:
        """Close it. A second call does nothing."""
        self._data = None
        await trio.lowlevel.cancel_shielded_checkpoint()

    def _open_data(self) -> bytearray:
        if self._data is None:
            raise trio.ClosedResourceError(f"{self._path} was closed")
        return self._data


def _absolute(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.normpath(Path("/", path)))


def _error(number: int, path: Path) -> OSError:
    # OSError picks its subclass, such as FileExistsError, by the number.
    return OSError(number, os.strerror(number), str(path))
