"""The animals of `bench.zoo`: process trees that leave their task in some way."""

from __future__ import annotations

import shlex
import sys
import uuid
from pathlib import Path
from typing import Any

import attrs

_DOUBLE_FORK = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvpe("sleep", ["sleep", sys.argv[1]], {})
    os._exit(0)
os.wait()
"""

# From /proc/self/stat: where the environment is that others read.
_OVERWRITE = """
import ctypes, signal
with open("/proc/self/stat") as file:
    fields = file.read().rpartition(") ")[2].split()
start, end = int(fields[47]), int(fields[48])
ctypes.memset(start, 0, end - start)
signal.pause()
"""

_FORK_CHAIN = """
import os, time
os.setsid()
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.004)
"""

_STOPPED = """
import os, signal, sys
if sys.argv[2:]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(os.getpid(), signal.SIGSTOP)
signal.pause()
"""


def _python(program: str) -> str:
    return f"{shlex.quote(sys.executable)} -S -c {shlex.quote(program)} {{word}}"


@attrs.frozen(kw_only=True)
class Animal:
    """A kind of process tree."""

    name: str
    setup: str
    """What the leader does first. ``{word}`` is in every command line of it."""
    others: int
    """The processes there are then, at least, besides the leader and shells."""
    deaf: bool = False
    """Whether the leader ignores SIGTERM."""


ANIMALS = [
    Animal(name="a plain command", setup="", others=0),
    Animal(name="env -i setsid", setup="env -i setsid sleep {word} &", others=1),
    Animal(name="a double fork", setup=_python(_DOUBLE_FORK), others=1),
    Animal(name="nohup", setup="nohup sleep {word} >/dev/null 2>&1 &", others=1),
    Animal(
        name="ignored TERM, HUP, INT",
        setup="trap '' TERM HUP INT; setsid sleep {word} &",
        others=1,
        deaf=True,
    ),
    Animal(
        name="a grandchild on the pipe",
        setup="(setsid sleep {word} &); (sleep {word} &)",
        others=2,
    ),
    Animal(
        name="an overwritten environment",
        setup=f"(setsid {_python(_OVERWRITE)} &)",
        others=1,
    ),
    # Two generations, as the observer looks longer than one lives.
    Animal(name="a fork chain", setup=f"env -i {_python(_FORK_CHAIN)} &", others=2),
    Animal(
        name="a stopped child",
        setup=f"{_python(_STOPPED)} & (setsid {_python(_STOPPED)} deaf &)",
        others=2,
    ),
    Animal(
        name="a sub-shell in the background",
        setup="(trap '' TERM; sleep {word}; sleep {word}) &",
        others=1,
    ),
]


@attrs.define
class Specimen:
    """An animal that is let loose."""

    animal: Animal
    directory: Path
    word: str = attrs.field(factory=lambda: f"9{uuid.uuid4().int % 10**11:011}")
    pid: int = 0
    escaped: tuple[str, ...] = ()
    misses: list[str] = attrs.Factory(list[str])

    def command(self, *, leader_ends: bool) -> str:
        """Return the command line; its leader sleeps, or ends when told to."""
        setup = self.animal.setup.replace("{word}", self.word)
        last = f"exec sleep {self.word}"
        if leader_ends:
            last = (
                f"until [ -e {shlex.quote(str(self.go))} ]; do sleep 0.02; done; exit 3"
            )
        return f"{setup}\n: > {shlex.quote(str(self.ready))}\n{last}"

    @property
    def ready(self) -> Path:
        return self.directory / f"ready-{self.word}"

    @property
    def go(self) -> Path:
        return self.directory / f"go-{self.word}"

    def is_settled(self, seen: list[dict[str, Any]]) -> bool:
        """Whether it has become what it is to be."""
        others = [
            process
            for process in seen
            if process["pid"] != self.pid
            and (
                process["program"] == "sleep"
                or process["state"] in "tT"
                or (process["program"].startswith("python") and not process["marked"])
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
