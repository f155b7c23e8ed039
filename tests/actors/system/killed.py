"""A program of which each run is killed with SIGKILL, at one change of its directory.

It is run by `test_crash_real`, with the names of a function, a directory and places. It
starts once, and forks for each place, so that many kills cost little. A place is the
number of a change, and of how many bytes of a write are made first.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors._system import files as _files


class Killed:
    """Ends this process before one of the system calls that change a directory."""

    def __init__(self, directory: Path, number: int, written: int) -> None:
        self._directory = os.fspath(directory)
        self._left, self._written = number, written
        self._fds: dict[int, bool] = {}

    def install(self) -> None:
        """Take the place of the system calls that the real files make."""
        real_open, real_write = os.open, os.write

        def opened(path: Any, flags: int, *args: Any) -> int:
            if flags & os.O_CREAT and self._is_in(path) and not os.path.lexists(path):
                self._come()
            fd = real_open(path, flags, *args)
            self._fds[fd] = self._is_in(path)
            return fd

        def wrote(fd: int, data: bytes) -> int:
            if self._fds.get(fd):
                self._come(lambda: real_write(fd, data[: self._written]))
            return real_write(fd, data)

        def synced(fd: int) -> None:
            if self._fds.get(fd):
                self._come()

        os.open, os.write = opened, wrote  # type: ignore[assignment]
        os.fsync = _files._sync = synced  # type: ignore[assignment]
        for name, which in (("replace", 1), ("unlink", 0), ("symlink", 1)):
            setattr(os, name, self._counted(getattr(os, name), which))

    def _counted(self, real: Callable[..., Any], which: int) -> Callable[..., Any]:
        def call(*args: Any, **rest: Any) -> Any:
            if self._is_in(args[which]) and (which or os.path.lexists(args[which])):
                self._come()
            return real(*args, **rest)

        return call

    def _is_in(self, path: Any) -> bool:
        return os.fspath(path).startswith(self._directory)

    def _come(self, first: Callable[[], object] | None = None) -> None:
        self._left -= 1
        if self._left == 0:
            if first is not None and self._written:
                first()
            os.kill(os.getpid(), signal.SIGKILL)


def main(module: str, function: str, directory: str, *places: str) -> None:
    """Run a function in a child for each place, in a directory of that name, where it is
    killed; print what it has printed, and whether it was killed."""
    __import__(module)
    program = getattr(sys.modules[module], function)
    for place in places:
        number, _, written = place.partition("-")
        below = Path(directory, place)
        below.mkdir()
        pid = os.fork()
        if pid == 0:
            Killed(below, int(number), int(written or 0)).install()
            program(below)
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print(place, "ended" if status == 0 else f"signal {os.WTERMSIG(status)}")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
