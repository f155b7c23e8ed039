"""What an animal of `bench.zoo` is: a process tree that leaves its task in some way."""

from __future__ import annotations

import os
import shlex
import shutil
import uuid
from pathlib import Path
from typing import Any

import attrs

LIFE = 150
"""Seconds after which an animal ends by itself, whatever becomes of the zoo: longer
than anybody has patience."""
LAUNCHERS = ("python", "bash", "sh", "dash", "env", "setsid", "setpriv", "nohup")


@attrs.frozen(kw_only=True)
class Animal:
    """A kind of process tree."""

    name: str
    setup: str
    """What the leader does first. ``{word}`` is in every command line of it;
    ``{beast}`` is the program of `beast.c`, ``{rest}`` what the leader does then,
    quoted, if it is not to come after."""
    others: int
    """The processes there are then, at least, besides the leader and shells."""
    deaf: bool = False
    """Whether the leader ignores SIGTERM."""
    marked: bool = False
    """Whether its Python programs keep the environment of their task."""
    attacks: bool = False
    """Whether it attacks its guardian: it is met alone, and its task may have
    failed for that."""
    needs: tuple[str, ...] = ()
    """The tools it takes: see `missing`."""

    def missing(self) -> str | None:
        """Return why it cannot be let loose here, if so."""
        needs = [*self.needs, *(["cc"] if "{beast}" in self.setup else [])]
        for need in needs:
            if need == "root":
                if os.geteuid() != 0:
                    return "only root may do that"
            elif shutil.which(need) is None:
                return f"there is no {need}"
        return None


@attrs.define
class Specimen:
    """An animal that is let loose."""

    animal: Animal
    directory: Path
    beast: Path = Path("/nonexistent")
    word: str = attrs.field(factory=lambda: f"{LIFE}.{uuid.uuid4().int % 10**12:012}")
    """How long it sleeps, and what it is known by."""
    pid: int = 0
    escaped: tuple[str, ...] = ()
    misses: list[str] = attrs.Factory(list[str])
    _reader: int = -1

    def command(self, *, leader_ends: bool) -> str:
        """Return the command line; its leader sleeps, or ends when told to."""
        last = f"exec sleep {self.word}"
        if leader_ends:
            last = f"until [ -e {self._quoted(self.go)} ] || ((SECONDS > {LIFE}));"
            last += " do sleep 0.02; done; exit 3"
        rest = f": > {self._quoted(self.ready)}\n{last}"
        setup = self.animal.setup
        if "{rest}" in setup:
            rest, inner = "", rest
            setup = setup.replace("{rest}", shlex.quote(inner))
        setup = setup.replace("{word}", self.word)
        setup = setup.replace("{beast}", self._quoted(self.beast))
        setup = setup.replace("{directory}", self._quoted(self.directory))
        self._open_pipe()
        return f"exec 9>{self._quoted(self.pipe)}\n{setup}\n{rest}"

    def _quoted(self, path: Path) -> str:
        return shlex.quote(str(path))

    @property
    def ready(self) -> Path:
        return self.directory / f"ready-{self.word}"

    @property
    def go(self) -> Path:
        return self.directory / f"go-{self.word}"

    @property
    def pipe(self) -> Path:
        """What the leader opens and all it forks hold."""
        return self.directory / f"pipe-{self.word}"

    def _open_pipe(self) -> None:
        os.mkfifo(self.pipe)
        self._reader = os.open(self.pipe, os.O_RDONLY | os.O_NONBLOCK)

    def is_held(self) -> bool:
        """Tell whether one lives that did not close its pipe.

        That is exact, where a look at ``/proc`` may miss what forks on and on.
        """
        try:
            return self._reader >= 0 and os.read(self._reader, 1) != b""
        except BlockingIOError:
            return True

    def close(self) -> None:
        """Give the pipe back."""
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1

    def is_settled(self, seen: list[dict[str, Any]]) -> bool:
        """Whether it has become what it is to be."""
        others = [
            process
            for process in seen
            if process["pid"] != self.pid
            and (
                process["state"] in "tT"
                or not process["program"].startswith(LAUNCHERS)
                or (
                    process["program"].startswith("python")
                    and (self.animal.marked or not process["marked"])
                )
            )
        ]
        return self.ready.exists() and len(others) >= self.animal.others

    def look(self, seen: list[dict[str, Any]]) -> None:
        """Note how it has left its task."""
        family = {process["pid"] for process in seen}
        others = [process for process in seen if process["pid"] != self.pid]
        signs = {
            "session": any(it["session"] != self.pid for it in others),
            "parent": any(it["parent"] not in family for it in others),
            "marker": any(not it["marked"] for it in others),
            "SIGTERM": any(it["deaf"] for it in others),
            "stopped": any(it["state"] in "tT" for it in others),
        }
        self.escaped = tuple(sign for sign, is_so in signs.items() if is_so)

    def expect(self, what: str, actual: object, *expected: object) -> None:
        """Note a miss unless ``actual`` is one of those expected."""
        if actual not in expected:
            self.misses.append(f"{what} is {actual!r}, not {expected!r}")
