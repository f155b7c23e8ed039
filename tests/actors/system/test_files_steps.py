"""The real files make each change in the steps in which those in memory make it, so a
crash between two steps leaves the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from actors._system import files as _files
from actors.env import Files, real_env
from actors.testing import FakeFiles

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it cannot sync names")


class Steps:
    """The system calls that change a file or a directory, as the disk in memory calls
    them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, str, bytes]] = []
        self._names: dict[int, str] = {}
        real_open, real_write, real_sync = os.open, os.write, os.fsync
        real_replace, real_unlink, real_symlink = os.replace, os.unlink, os.symlink

        def opened(path: Any, flags: int, *args: Any) -> int:
            is_new = flags & os.O_CREAT and not os.path.lexists(path)
            fd = real_open(path, flags, *args)
            self._names[fd] = os.path.basename(path)
            if is_new:
                self._note("create", path)
            return fd

        def wrote(fd: int, data: bytes) -> int:
            written = real_write(fd, data)
            self.seen.append(("write", self._names[fd], bytes(data[:written])))
            return written

        def synced(fd: int) -> None:
            self.seen.append(("sync", self._names[fd], b""))
            real_sync(fd)

        def replaced(path: Any, to: Any) -> None:
            real_replace(path, to)
            self._note("rename", to)
            old, new = os.path.basename(path), os.path.basename(to)
            for fd in [fd for fd, name in self._names.items() if name == old]:
                self._names[fd] = new

        def unlinked(path: Any, **rest: Any) -> None:
            if os.path.lexists(path):
                self._note("remove", path)
            real_unlink(path, **rest)

        def linked(target: Any, path: Any) -> None:
            real_symlink(target, path)
            self._note("link", path)

        monkeypatch.setattr(os, "open", opened)
        monkeypatch.setattr(os, "write", wrote)
        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(_files, "_sync", synced)
        monkeypatch.setattr(os, "replace", replaced)
        monkeypatch.setattr(os, "unlink", unlinked)
        monkeypatch.setattr(os, "symlink", linked)

    def _note(self, kind: str, path: Any) -> None:
        self.seen.append((kind, os.path.basename(path), b""))


def once(files: Files, here: Path) -> None:
    """Do everything that changes something."""
    files.append_lines(here / "new", b"one\n")
    files.append_lines(here / "new", b"tw")
    files.append_lines(here / "new", b"three\n", durable=True)
    files.append_lines(here / "new", b"four\n", durable=True)
    files.append_lines(here / "durable", b"one\n", durable=True)
    files.append_lines(here / "durable", b"two\n", durable=True)
    files.replace(here / "meta", b"one")
    files.replace(here / "meta", b"two", durable=True)
    files.reserve(here / "other.new")
    files.replace(here / "other", b"in the way of what a crash has left")
    files.link(here / "link", "new")
    files.link(here / "link", "meta")
    files.reserve(here / "reserved")
    files.remove(here / "reserved")
    files.remove(here / "reserved")


async def output(files: Files, here: Path) -> None:
    file = files.create_output(here / "s.output")
    await file.append(b"one\n")
    file.rotate(here / "s.output.1")
    await file.append(b"two\n")
    files.reserve(here / "s.output.new")
    file.rotate(here / "s.output.1")
    await file.aclose()
    again = files.open_output(here / "s.output")
    await again.append(b"three\n")
    await again.aclose()


def done(files: Files, here: Path) -> None:
    once(files, here)
    trio.run(output, files, here)


def fails(files: Files, here: Path) -> None:
    """A directory is in the way."""
    with pytest.raises(IsADirectoryError):
        files.replace(here / "taken", b"x")
    with pytest.raises(IsADirectoryError):
        files.link(here / "taken", "x")


@pytest.mark.parametrize("does", [done, fails])
def test_each_change_is_made_in_the_same_steps(
    does: Callable[[Files, Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory: list[tuple[str, str, bytes]] = []
    fake = FakeFiles()
    for files in (fake, real_env().files):
        files.make_directory(tmp_path / "taken")
    fake.disk.on_step = lambda it: in_memory.append((it.kind, it.path.name, it.data))
    does(fake, tmp_path)
    steps = Steps(monkeypatch)
    does(real_env().files, tmp_path)
    made = steps.seen
    monkeypatch.undo()
    assert made == in_memory
    assert {kind for kind, _, _ in made} >= {"create", "write", "link", "remove"}
    assert fake.names(tmp_path) == real_env().files.names(tmp_path)
