"""Files in memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from ..env import Files, OutputFile, Share
from ..text import whole_characters
from ._faults import Faults, Ways

T = TypeVar("T")

_STEPS = 1_000

SEAMS: Mapping[str, Ways] = {}
"""What can go wrong by itself with each operation."""


class FakeFiles(Files):
    """`Files` in memory. It has regular files, directories and links, but no modes.

    Relative paths begin at ``/``. A file that is renamed or removed while it is
    open can still be read and written by whoever has it open, as on Unix. No link is
    ever followed.
    """

    def __init__(self) -> None:
        self.faults: Faults | None = None
        """Who decides which calls go wrong; None for nobody."""
        self.write_error: OSError | None = None
        """Raised by every append, `replace` and `link` from now on, for instance
        ``OSError(errno.ENOSPC, "the disk is full")``; None for none."""
        self._files: dict[Path, bytearray] = {}
        self._links: dict[Path, str] = {}
        self._shares: list[Path] = []
        self._claims: dict[tuple[Path, str], FakeShare] = {}
        self._directories: set[Path] = {Path("/")}

    def contents(self, path: str | os.PathLike[str]) -> bytes:
        """Return all that is in a file, for a test.

        Raises:
            FileNotFoundError: if it is not there.
        """
        return bytes(self._there(_absolute(path)))

    def link_target(self, path: str | os.PathLike[str]) -> str:
        """Return where a link leads, for a test.

        Raises:
            FileNotFoundError: if there is no link.
        """
        if _absolute(path) not in self._links:
            raise _error(errno.ENOENT, Path(path))
        return self._links[_absolute(path)]

    # What the protocol asks for

    def names(self, directory: str | os.PathLike[str]) -> list[str]:
        above = _absolute(directory)
        if above in self._files:
            raise _error(errno.ENOTDIR, Path(directory))
        there = (*self._files, *self._links, *self._directories - {Path("/")})
        return sorted(path.name for path in there if path.parent == above)

    def make_directory(self, path: Path) -> Path:
        path = _absolute(path)
        for part in (path, *path.parents):
            if part in self._files or part in self._links:
                raise _error(errno.ENOTDIR, path)
        self._directories.update((path, *path.parents))
        return path

    def create_output(self, path: Path) -> FakeFile:
        self.reserve(path)
        return self.open_output(path)

    def reserve(self, path: Path) -> None:
        where = _absolute(path)
        if where in self._files or where in self._directories or where in self._links:
            raise _error(errno.EEXIST, path)
        if where.parent not in self._directories:
            raise _error(errno.ENOENT, path)
        self._files[where] = bytearray()

    def open_output(self, path: Path) -> FakeFile:
        self._refuse_others(path)
        where = _absolute(path)
        return FakeFile(self, path, where, self._there(where))

    def read_tail(self, path: Path, limit: int) -> tuple[bytes, bool]:
        data = bytes(self._files.get(_absolute(path), b""))
        start = max(0, len(data) - max(0, limit))
        return (whole_characters(data[start:]), True) if start else (data, False)

    def read_at(self, path: Path, offset: int, limit: int) -> bytes:
        start = max(0, offset)
        data = self._files.get(_absolute(path), b"")
        return bytes(data[start : start + max(0, limit)])

    def size(self, path: Path) -> int | None:
        data = self._files.get(_absolute(path))
        return None if data is None else len(data)

    def remove(self, path: Path) -> None:
        if _absolute(path) in self._directories:
            raise _error(errno.EISDIR, path)
        self._files.pop(_absolute(path), None)
        self._links.pop(_absolute(path), None)

    def append_lines(self, path: Path, lines: bytes, *, durable: bool = False) -> None:
        self._refuse_others(path)
        if _absolute(path) not in self._files:
            self.reserve(path)
        self._refuse_writes(path)
        data = self._files[_absolute(path)]
        if data and not data.endswith(b"\n"):
            data += b"\n"
        data += lines

    def replace(self, path: Path, contents: bytes) -> None:
        self._put_in_place(path)
        self._files[_absolute(path)] = bytearray(contents)

    def link(self, path: Path, target: str) -> None:
        self._put_in_place(path)
        self._links[_absolute(path)] = target

    def is_within(self, path: str, directory: str | None) -> bool:
        where, outer = self._followed(path), self._followed(directory or "/")
        if where is None or outer is None:
            return False
        return where.is_relative_to(outer)

    def follow(self, path: str) -> str | None:
        where = self._followed(path)
        return None if where is None else str(where)

    def _followed(self, path: str) -> Path | None:
        where = Path("/")
        left = list(reversed(Path("/", path).parts[1:]))
        for _ in range(_STEPS):
            if not left:
                return where
            part = left.pop()
            if part == "..":
                where = where.parent
            elif (target := self._links.get(where / part)) is None:
                where /= part
            else:
                first, *more = Path(where, target).parts
                where = Path(first)
                left += reversed(more)
        return None  # Links that lead round in a circle.

    def share(self, directory: Path) -> FakeShare:
        return FakeShare(self._shares, self._claims, _absolute(directory))

    async def in_thread(self, fn: Callable[..., T], *args: object) -> T:
        """Call ``fn`` here and now, and return the result, because memory is never
        slow."""
        result = fn(*args)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return result

    def _refuse_others(self, path: Path) -> None:
        if _absolute(path) in self._directories:
            raise _error(errno.EISDIR, path)
        if _absolute(path) in self._links:
            raise _error(errno.ELOOP, path)

    def _refuse_writes(self, path: Path) -> None:
        if self.write_error is not None:
            raise OSError(self.write_error.errno, self.write_error.strerror, str(path))

    def _put_in_place(self, path: Path) -> None:
        where = _absolute(path)
        if where.parent not in self._directories:
            raise _error(errno.ENOENT, path)
        self._refuse_writes(path)
        if where in self._directories:
            raise _error(errno.EISDIR, path)
        self._files.pop(where, None)
        self._links.pop(where, None)

    # For a file that is open

    def holds(self, path: Path, data: bytearray) -> bool:
        """Return whether ``data`` is the file at this absolute path."""
        return self._files.get(path) is data

    def rotate(self, path: Path, older: Path) -> tuple[bytearray, int]:
        """Move a file and begin a new one at its path. Return the new file, and the
        size of the file that the move replaced."""
        where, to = _absolute(path), _absolute(older)
        if to in self._directories:
            raise _error(errno.EISDIR, older)
        replaced = len(self._files.get(to, b""))
        self._links.pop(to, None)
        self._files[to] = self._there(where)
        self._files[where] = bytearray()
        return self._files[where], replaced

    def _there(self, path: Path) -> bytearray:
        if path not in self._files:
            raise _error(errno.ENOENT, path)
        return self._files[path]


@attrs.define(eq=False, repr=False, slots=False)
class FakeShare(Share):
    """A directory in use."""

    _shares: list[Path]
    _claims: dict[tuple[Path, str], FakeShare]
    _directory: Path
    _is_open: bool = attrs.field(default=True, init=False)

    def __attrs_post_init__(self) -> None:
        self._shares.append(self._directory)

    def is_alone(self) -> bool:
        return not self._is_open or self._shares.count(self._directory) == 1

    def claim(self, name: str) -> str | None:
        has_it = self._claims.setdefault((self._directory, name), self)
        return None if has_it is self else "another runtime of this world"

    def holder(self, name: str) -> str | None:
        has_it = self._claims.get((self._directory, name), self)
        return None if has_it is self else "another runtime of this world"

    def release(self, name: str) -> None:
        if self._claims.get((self._directory, name)) is self:
            del self._claims[self._directory, name]

    def close(self) -> None:
        for (_, name), has_it in list(self._claims.items()):
            if has_it is self:
                self.release(name)
        if self._is_open:
            self._is_open = False
            self._shares.remove(self._directory)


@attrs.define(eq=False, repr=False, slots=False)
class FakeFile(OutputFile):
    """An `OutputFile` in memory."""

    _files: FakeFiles
    _path: Path
    _where: Path
    _data: bytearray | None

    @property
    def path(self) -> Path:
        return self._path

    async def append(self, data: bytes) -> None:
        kept = self._open_data()
        error = self._files.write_error
        if error is not None:
            raise OSError(error.errno, error.strerror, str(self._path))
        kept += data
        await trio.lowlevel.cancel_shielded_checkpoint()

    def size(self) -> int:
        return len(self._open_data())

    def is_in_place(self) -> bool:
        """Say whether its path still leads to it."""
        return self._files.holds(self._where, self._open_data())

    def rotate(self, older: Path) -> int:
        if not self.is_in_place():
            raise OSError(
                errno.ENOENT, "the file was removed or replaced", str(self._path)
            )
        self._data, replaced = self._files.rotate(self._path, older)
        return replaced

    async def aclose(self) -> None:
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
