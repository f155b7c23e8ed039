"""The files of a program that dies at a write of its journal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from actors.env import Files
from actors.hosting import LogFile

from ._plan import Blow

JOURNAL: Final = "journal.jsonl"


class StruckFiles:
    """Files that count the writes of the journal, and kill this process at one.

    Args:
        say: told of the blow, just before it.
    """

    def __init__(
        self, files: Files, blow: Blow | None, say: Callable[..., object]
    ) -> None:
        self._files = files
        self._blow = blow
        self._say = say
        self.appends = 0
        self.replaces = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def open_log(self, path: Path) -> LogFile:
        log = self._files.open_log(path)
        return _StruckLog(self, log, path) if path.name == JOURNAL else log

    def append_lines(self, path: Path, lines: bytes, *, durable: bool = False) -> None:
        if path.name != JOURNAL:
            self._files.append_lines(path, lines, durable=durable)
            return
        self.appending(
            path,
            lines,
            lambda: self._files.append_lines(path, lines, durable=durable),
        )

    def replace(self, path: Path, contents: bytes, *, durable: bool = False) -> None:
        if path.name == JOURNAL:
            self.replaces += 1
        blow = self._blow
        if (
            path.name != JOURNAL
            or blow is None
            or blow.write != "replace"
            or blow.number != self.replaces
        ):
            self._files.replace(path, contents, durable=durable)
            return
        if blow.place == "within":
            # All of it is there in a part of the cases, under the other name.
            part = contents[: int(len(contents) * min(1.0, 1.3 * blow.share))]
            path.with_name(f"{path.name}.new").write_bytes(part)
        elif blow.place == "after":
            self._files.replace(path, contents, durable=durable)
        self.die(blow)

    def appending(self, path: Path, lines: bytes, append: Callable[[], object]) -> None:
        """Append, unless this is where it ends."""
        self.appends += 1
        blow = self._blow
        if blow is None or blow.write != "append" or blow.number != self.appends:
            append()
            return
        if blow.place == "within":
            with path.open("ab", buffering=0) as file:
                file.write(lines[: int(len(lines) * blow.share)])
        elif blow.place == "after":
            append()
        self.die(blow)

    def die(self, blow: Blow) -> NoReturn:
        """Tell of it, and be killed."""
        self._say("struck", write=blow.write, place=blow.place)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it is dead")


class _StruckLog(LogFile):
    def __init__(self, files: StruckFiles, log: LogFile, path: Path) -> None:
        self._files = files
        self._log = log
        self._path = path

    def append(self, lines: bytes, *, durable: bool = False) -> None:
        self._files.appending(
            self._path, lines, lambda: self._log.append(lines, durable=durable)
        )

    def size(self) -> int:
        return self._log.size()

    def close(self) -> None:
        self._log.close()
