"""A disk in memory that remembers what it has for sure.

It is changed in steps as small as system calls: a name is made, bytes are written, a
file or a directory is synced, a file is renamed. A crash comes between two of them, or
in the middle of a write. A `DiskImage` is the disk at such a moment, and makes the disks
that a program may find afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Literal

import attrs

from .._kernel.values import frozen


@attrs.define(eq=False)
class Inode:
    """The contents of one file, whatever its names are."""

    data: bytearray = attrs.Factory(bytearray)
    """It only grows: an image has it with its length. What is cut is a new one."""
    synced: int = 0
    """So many bytes of it survive a loss of power for sure."""
    modified: float = 0.0
    """When it was last written to, in seconds since 1970, if anybody has said so."""


Entry = Inode | str
"""What a name leads to: a file, or the target of a link."""


@frozen
class DiskStep:
    """What is about to be done to a disk."""

    kind: Literal["create", "link", "write", "cut", "sync", "rename", "remove"]
    path: Path
    """The file; of a ``sync``, perhaps a directory."""
    inode: Inode | None = None
    """Of a ``write``, the file, which may have lost its name."""
    data: bytes = b""
    """Of a ``write``, what is appended."""


class FakeDisk:
    """Directories, names and files. A directory is there for sure once it is made."""

    def __init__(self) -> None:
        self.directories: set[Path] = {Path("/")}
        self.entries: dict[Path, Entry] = {}
        self.synced: dict[Path, Entry] = {}
        """The names that survive a loss of power for sure."""
        self.on_step: Callable[[DiskStep], object] | None = None
        """Called before each step."""

    def file(self, path: Path) -> Inode | None:
        """Return the file at a path; None if there is none."""
        entry = self.entries.get(path)
        return entry if isinstance(entry, Inode) else None

    def target(self, path: Path) -> str | None:
        """Return where the link at a path leads; None if there is none."""
        entry = self.entries.get(path)
        return entry if isinstance(entry, str) else None

    def used(self) -> int:
        """Return how many bytes all files have that have a name."""
        files = {it for it in self.entries.values() if isinstance(it, Inode)}
        return sum(len(it.data) for it in files)

    def create(self, path: Path) -> Inode:
        """Make an empty file."""
        self._step("create", path)
        inode = self.entries[path] = Inode()
        return inode

    def link(self, path: Path, target: str) -> None:
        """Make a symbolic link."""
        self._step("link", path)
        self.entries[path] = target

    def write(self, path: Path, inode: Inode, data: bytes) -> None:
        """Append to a file. A crash may leave any part of it."""
        self._step("write", path, inode, data)
        inode.data += data

    def cut(self, path: Path, inode: Inode, size: int) -> None:
        """Make a file shorter."""
        self._step("cut", path)
        inode.data = inode.data[:size]
        inode.synced = min(inode.synced, size)

    def sync(self, path: Path, inode: Inode) -> None:
        """Have the contents of a file for sure."""
        self._step("sync", path)
        inode.synced = len(inode.data)

    def sync_directory(self, directory: Path) -> None:
        """Have the names in a directory for sure."""
        self._step("sync", directory)
        for path in (*self.synced, *self.entries):
            if path.parent == directory and path in self.entries:
                self.synced[path] = self.entries[path]
            elif path.parent == directory:
                del self.synced[path]

    def move(self, path: Path, to: Path) -> None:
        """Give a file or a link another name, in place of what has that."""
        self._step("rename", to)
        self.entries[to] = self.entries.pop(path)

    def remove(self, path: Path) -> None:
        """Take a name away, if it is there."""
        if path in self.entries:
            self._step("remove", path)
            del self.entries[path]

    def image(self) -> DiskImage:
        """Return the disk as it is now. It shares what is written with the disk."""
        inodes = {*self.entries.values(), *self.synced.values()}
        return DiskImage(
            frozenset(self.directories),
            dict(self.entries),
            dict(self.synced),
            {
                it: (it.data, len(it.data), it.synced)
                for it in inodes
                if type(it) is Inode
            },
        )

    def _step(
        self,
        kind: Literal["create", "link", "write", "cut", "sync", "rename", "remove"],
        path: Path,
        inode: Inode | None = None,
        data: bytes = b"",
    ) -> None:
        if self.on_step is not None:
            self.on_step(DiskStep(kind, path, inode, data))


@frozen
class DiskImage:
    """A disk at one moment."""

    directories: frozenset[Path]
    entries: dict[Path, Entry]
    synced: dict[Path, Entry]
    files: dict[Inode, tuple[bytearray, int, int]]
    """Of each file its contents, and how many bytes of them are written and synced."""

    def unsynced(self) -> Iterator[Path]:
        """Yield the files of which a loss of power may take something."""
        for path, entry in self.entries.items():
            if isinstance(entry, Inode):
                _, written, synced = self.files[entry]
                if written > synced:
                    yield path

    def is_synced(self) -> bool:
        """Tell whether a loss of power takes nothing."""
        return self.entries == self.synced and not any(self.unsynced())

    def killed(self, step: DiskStep | None = None, written: int = 0) -> FakeDisk:
        """Return the disk after the death of the program alone.

        All that was written is there; of a ``write`` under way the first bytes.
        """
        copies = {
            inode: Inode(data[:size], synced, inode.modified)
            for inode, (data, size, synced) in self.files.items()
        }
        disk = FakeDisk()
        disk.directories = {*self.directories}
        for mine, ours in ((disk.entries, self.entries), (disk.synced, self.synced)):
            for path, entry in ours.items():
                mine[path] = copies[entry] if isinstance(entry, Inode) else entry
        if step is not None and step.inode in copies:
            copies[step.inode].data += step.data[:written]
        return disk

    def unpowered(self, *, names: bool, kept: Collection[Path] = ()) -> FakeDisk:
        """Return the disk after a loss of power.

        What is synced is there, and whatever else the system had chosen to write.

        Args:
          names: whether the names are there that were not synced.
          kept: the files of which the bytes are there that were not synced.
        """
        disk = FakeDisk()
        disk.directories = {*self.directories}
        copies: dict[Inode, Inode] = {}
        for path, entry in (self.entries if names else self.synced).items():
            if isinstance(entry, Inode):
                if entry not in copies:
                    data, written, synced = self.files[entry]
                    size = written if path in kept else synced
                    copies[entry] = Inode(data[:size], size, entry.modified)
                entry = copies[entry]
            disk.entries[path] = entry
        disk.synced = {**disk.entries}
        return disk
