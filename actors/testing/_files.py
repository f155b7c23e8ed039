"""Files in memory."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from ..env import FileEntry, Files, LogFile, OutputFile, Share
from ..text import whole_characters
from ._disk import Entry, FakeDisk, Inode
from ._faults import Faults, Ways, errors, goes_wrong

T = TypeVar("T")

_STEPS = 1_000

SEAMS: Mapping[str, Ways] = {
    "files.make": errors("EIO", "ENOSPC"),
    "files.open": errors("EIO", "EMFILE"),
    "files.read": errors("EIO"),
    "files.entries": errors("EIO"),
    "files.remove": errors("EIO"),
    "files.append": {
        "EIO": "nothing is written",
        "ENOSPC": "a half is written",
        "slow": "it takes a second",
    },
    "files.append_lines": errors("EIO", "ENOSPC"),
    "files.replace": errors("EIO", "ENOSPC"),
    "files.sync": {"EIO": "it is not known what of a durable write is on the disk"},
    "files.link": errors("EIO", "ENOSPC"),
    "files.rotate": errors("EIO", "ENOSPC"),
    "files.close": errors("EIO", "ENOSPC"),
    "files.claim": errors("EMFILE"),
    "files.in_thread": {"slow": "it takes a second"},
}
"""What can go wrong by itself with each operation."""

_SLOW = 1.0


class FakeFiles(Files):
    """`Files` in memory. It has regular files, directories and links, but no modes.

    Relative paths begin at ``/``. A file that is renamed or removed while it is
    open can still be read and written by whoever has it open, as on Unix. No link is
    ever followed.

    Each change is made in the steps in which the real files make it.
    """

    def __init__(self, disk: FakeDisk | None = None) -> None:
        self.faults: Faults | None = None
        """Who decides which calls go wrong; None for nobody."""
        self.write_error: OSError | None = None
        """Raised by every append, `replace` and `link` from now on, for instance
        ``OSError(errno.ENOSPC, "the disk is full")``; None for none."""
        self.capacity: int | None = None
        """The bytes that all files together may have before the disk is full; None for
        any number."""
        self.disk = disk or FakeDisk()
        """What is written, and what of that survives a loss of power."""
        self.now: Callable[[], float] = _never
        """What the time is, in seconds since 1970, for the times of files. `fake_env`
        sets it to that of its clock. Without a clock no file is ever old."""
        self._named: dict[Path, Inode] = {}  # {path: whose name is there for sure}
        self._shares: list[Path] = []
        self._claims: dict[tuple[Path, str], FakeShare] = {}

    def contents(self, path: str | os.PathLike[str]) -> bytes:
        """Return all that is in a file, for a test.

        Raises:
            FileNotFoundError: if it is not there.
        """
        return bytes(self._there(_absolute(path)).data)

    def link_target(self, path: str | os.PathLike[str]) -> str:
        """Return where a link leads, for a test.

        Raises:
            FileNotFoundError: if there is no link.
        """
        target = self.disk.target(_absolute(path))
        if target is None:
            raise _error(errno.ENOENT, Path(path))
        return target

    # What the protocol asks for

    def names(self, directory: str | os.PathLike[str]) -> list[str]:
        above = _absolute(directory)
        if above in self.disk.directories:
            self.ask("files.read", directory)
        if self.disk.file(above) is not None:
            raise _error(errno.ENOTDIR, Path(directory))
        there = (*self.disk.entries, *self.disk.directories - {Path("/")})
        return sorted(path.name for path in there if path.parent == above)

    def entries(self, directory: str | os.PathLike[str]) -> list[FileEntry]:
        above = _absolute(directory)
        if above in self.disk.directories:
            self.ask("files.entries", directory)
        if self.disk.file(above) is not None:
            raise _error(errno.ENOTDIR, Path(directory))
        return [
            FileEntry(path.name, len(entry.data), entry.modified)
            if isinstance(entry, Inode)
            else FileEntry(path.name, 0, 0.0)
            for path, entry in sorted(self.disk.entries.items(), key=_path)
            if path.parent == above
        ]

    def make_directory(self, path: Path) -> Path:
        self.ask("files.make", path)
        path = _absolute(path)
        for part in (path, *path.parents):
            if part in self.disk.entries:
                raise _error(errno.ENOTDIR, path)
        self.disk.directories.update((path, *path.parents))
        return path

    def create_output(self, path: Path) -> FakeFile:
        self.ask("files.open", path)
        self._create(path)
        return FakeFile(self, path, _absolute(path), self._there(_absolute(path)))

    def reserve(self, path: Path) -> None:
        self.ask("files.make", path)
        self._create(path)

    def open_output(self, path: Path) -> FakeFile:
        self.ask("files.open", path)
        self._refuse_others(path)
        where = _absolute(path)
        return FakeFile(self, path, where, self._there(where))

    def read_tail(self, path: Path, limit: int) -> tuple[bytes, bool]:
        data = self._read(path)
        start = max(0, len(data) - max(0, limit))
        return (whole_characters(data[start:]), True) if start else (data, False)

    def read_at(self, path: Path, offset: int, limit: int) -> bytes:
        start = max(0, offset)
        return self._read(path)[start : start + max(0, limit)]

    def size(self, path: Path) -> int | None:
        inode = self._to_read(path)
        return None if inode is None else len(inode.data)

    def remove(self, path: Path) -> None:
        if _absolute(path) in self.disk.directories:
            raise _error(errno.EISDIR, path)
        if _absolute(path) in self.disk.entries:
            self.ask("files.remove", path)
        self.disk.remove(_absolute(path))

    def append_lines(self, path: Path, lines: bytes, *, durable: bool = False) -> None:
        self._refuse_others(path)
        where = _absolute(path)
        inode = self.disk.file(where) or self._create(path)
        before = len(inode.data)
        if before and not inode.data.endswith(b"\n"):
            lines = b"\n" + lines
        try:
            self.write("files.append_lines", path, where, inode, lines)
            if durable:
                self._sync(path, where, inode)
                if before == 0 or self._named.get(where) is not inode:
                    self._sync_names(path, where.parent)
                    self._named[where] = inode
        except OSError:
            if len(inode.data) > before:
                self.disk.cut(where, inode, before)
            raise

    def open_log(self, path: Path) -> FakeLog:
        self.ask("files.open", path)
        self._refuse_others(path)
        inode = self.disk.file(_absolute(path)) or self._create(path)
        return FakeLog(self, path, inode)

    def append_to_log(self, log: FakeLog, lines: bytes, *, durable: bool) -> None:
        """Append to a log that is open."""
        self.look_for_log(log)
        self.append_lines(log.path, lines, durable=durable)

    def look_for_log(self, log: FakeLog) -> None:
        """Raise FileNotFoundError if the path of a log leads to it no more."""
        if self.disk.file(_absolute(log.path)) is not log.inode:
            raise _error(errno.ENOENT, log.path)

    def replace(self, path: Path, contents: bytes, *, durable: bool = False) -> None:
        new = self._new(path)
        inode = self._made(new)
        try:
            self.write("files.replace", path, new, inode, contents)
            if durable:
                self._sync(path, new, inode)
            self._put_in_place(path, new)
        except OSError:
            self.disk.remove(new)
            raise
        if durable:
            self._sync_names(path, new.parent)

    def link(self, path: Path, target: str) -> None:
        new = self._new(path)
        self.ask("files.link", path)
        self._refuse_writes(path)
        self.disk.link(new, target)
        try:
            self._put_in_place(path, new)
        except OSError:
            self.disk.remove(new)
            raise

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
            elif (target := self.disk.target(where / part)) is None:
                where /= part
            else:
                first, *more = Path(where, target).parts
                where = Path(first)
                left += reversed(more)
        return None  # Links that lead round in a circle.

    def share(self, directory: Path) -> FakeShare:
        return FakeShare(self, self._shares, self._claims, _absolute(directory))

    async def in_thread(self, fn: Callable[..., T], *args: object) -> T:
        """Call ``fn`` here and now, and return the result, because memory is never
        slow."""
        if goes_wrong(self.faults, "files.in_thread"):
            with trio.CancelScope(shield=True):
                await trio.sleep(_SLOW)
        result = fn(*args)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return result

    def _create(self, path: Path) -> Inode:
        where = _absolute(path)
        if where in self.disk.entries or where in self.disk.directories:
            raise _error(errno.EEXIST, path)
        if where.parent not in self.disk.directories:
            raise _error(errno.ENOENT, path)
        return self._made(where)

    def _made(self, where: Path) -> Inode:
        inode = self.disk.create(where)
        inode.modified = self.now()
        return inode

    def _read(self, path: Path) -> bytes:
        inode = self._to_read(path)
        return b"" if inode is None else bytes(inode.data)

    def _to_read(self, path: Path) -> Inode | None:
        inode = self.disk.file(_absolute(path))
        if inode is not None:
            self.ask("files.read", path)
        return inode

    def _refuse_others(self, path: Path) -> None:
        if _absolute(path) in self.disk.directories:
            raise _error(errno.EISDIR, path)
        if self.disk.target(_absolute(path)) is not None:
            raise _error(errno.ELOOP, path)

    def _refuse_writes(self, path: Path) -> None:
        if self.write_error is not None:
            raise OSError(self.write_error.errno, self.write_error.strerror, str(path))

    def _sync(self, path: Path, where: Path, inode: Inode) -> None:
        self.ask("files.sync", path)
        self.disk.sync(where, inode)

    def _sync_names(self, path: Path, directory: Path) -> None:
        self.ask("files.sync", path)
        self.disk.sync_directory(directory)

    def _new(self, path: Path) -> Path:
        """Return where something new is made that is then moved to a path."""
        where = _absolute(path)
        if where.parent not in self.disk.directories:
            raise _error(errno.ENOENT, path)
        new = where.with_name(f"{where.name}.new")
        self.disk.remove(new)  # Left by a crash.
        return new

    def _put_in_place(self, path: Path, new: Path) -> None:
        where = _absolute(path)
        if where in self.disk.directories:
            raise _error(errno.EISDIR, path)
        self.disk.move(new, where)

    # For a file that is open, and a share

    def ask(self, operation: str, path: str | os.PathLike[str]) -> str:
        """Raise the error with which this call of an operation goes wrong, or return
        how it does without one."""
        return goes_wrong(self.faults, operation, os.fspath(path))

    def write(
        self, operation: str, path: Path, where: Path, inode: Inode, data: bytes
    ) -> str:
        """Append to the file that is ``where``. Of a disk that fills up a part is
        written first. An error names ``path``. Return "slow" if it takes long."""
        self._refuse_writes(path)
        fits, error, way = data, None, ""
        try:
            way = self.ask(operation, path)
        except OSError as put_in:
            error = put_in
            fits = data[: len(data) // 2] if put_in.errno == errno.ENOSPC else b""
        if error is None and self.capacity is not None:
            fits = data[: max(0, self.capacity - self.disk.used())]
        if fits:
            self.disk.write(where, inode, fits)
            inode.modified = self.now()
        if len(fits) < len(data) or error is not None:
            raise error or _error(errno.ENOSPC, path)
        return way

    def rotate(self, path: Path, older: Path) -> tuple[Inode, int]:
        """Move a file and begin a new one at its path. Return the new file, and the
        size of the file that the move replaced."""
        self.ask("files.rotate", path)
        where, to = _absolute(path), _absolute(older)
        if to in self.disk.directories:
            raise _error(errno.EISDIR, older)
        new = self._new(path)
        self._create(new)
        replaced = self.disk.file(to)
        self.disk.move(where, to)
        self.disk.move(new, where)
        return self._there(where), 0 if replaced is None else len(replaced.data)

    def _there(self, path: Path) -> Inode:
        inode = self.disk.file(path)
        if inode is None:
            raise _error(errno.ENOENT, path)
        return inode


@attrs.define(eq=False, repr=False, slots=False)
class FakeShare(Share):
    """A directory in use."""

    _files: FakeFiles
    _shares: list[Path]
    _claims: dict[tuple[Path, str], FakeShare]
    _directory: Path
    _is_open: bool = attrs.field(default=True, init=False)

    def __attrs_post_init__(self) -> None:
        self._shares.append(self._directory)

    def is_alone(self) -> bool:
        return not self._is_open or self._shares.count(self._directory) == 1

    def claim(self, name: str) -> str | None:
        self._files.ask("files.claim", self._directory)
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
class FakeLog(LogFile):
    """A `LogFile` in memory."""

    _files: FakeFiles
    path: Path
    inode: Inode
    _is_open: bool = attrs.field(default=True, init=False)

    def append(self, lines: bytes, *, durable: bool = False) -> None:
        self._files.append_to_log(self, lines, durable=durable)

    def size(self) -> int:
        return len(self.inode.data)

    def close(self) -> None:
        was_open, self._is_open = self._is_open, False
        if was_open:
            self._files.ask("files.close", self.path)
            self._files.look_for_log(self)


@attrs.define(eq=False, repr=False, slots=False)
class FakeFile(OutputFile):
    """An `OutputFile` in memory."""

    _files: FakeFiles
    _path: Path
    _where: Path
    _inode: Inode | None
    _slow: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    """Held while an append is under way that takes long."""

    @property
    def path(self) -> Path:
        return self._path

    async def append(self, data: bytes) -> None:
        file = self._open_file()
        where = self._where
        if self._files.write("files.append", self._path, where, file, data):
            with trio.CancelScope(shield=True):
                async with self._slow:
                    await trio.sleep(_SLOW)
        await trio.lowlevel.cancel_shielded_checkpoint()

    def size(self) -> int:
        self._open_file()
        self._files.ask("files.read", self._path)
        return len(self._open_file().data)

    def is_in_place(self) -> bool:
        """Say whether its path still leads to it."""
        return self._files.disk.file(self._where) is self._open_file()

    def rotate(self, older: Path) -> int:
        if self._slow.locked():
            raise trio.BusyResourceError(f"{self._path} is being written to")
        if not self.is_in_place():
            raise OSError(
                errno.ENOENT, "the file was removed or replaced", str(self._path)
            )
        self._inode, replaced = self._files.rotate(self._path, older)
        return replaced

    async def aclose(self) -> None:
        if self._slow.locked():
            with trio.CancelScope(shield=True):
                async with self._slow:
                    pass
        was_open, self._inode = self._inode is not None, None
        if was_open:
            self._files.ask("files.close", self._path)
        await trio.lowlevel.cancel_shielded_checkpoint()

    def _open_file(self) -> Inode:
        if self._inode is None:
            raise trio.ClosedResourceError(f"{self._path} was closed")
        return self._inode


def _absolute(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.normpath(Path("/", path)))


def _path(item: tuple[Path, Entry]) -> Path:
    return item[0]


def _never() -> float:
    return math.inf


def _error(number: int, path: Path) -> OSError:
    # OSError picks its subclass, such as FileExistsError, by the number.
    return OSError(number, os.strerror(number), str(path))
