"""The fake world, put together."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final

import attrs
import trio

from ..env import Clock, Env, Ids
from ._commands import Commands
from ._faults import Faults
from ._files import SEAMS as FILES
from ._files import FakeFiles
from ._processes import SEAMS as PROCESSES
from ._processes import FakeProcesses

EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)


class FakeClock(Clock):
    """Wall-clock time that follows trio's: its zero is the year 2000.

    Under `trio.testing.MockClock` each run of a test sees the same times.
    """

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=trio.current_time())


class FakeIds(Ids):
    """Names that count up from 1, and the middle for a random number."""

    def __init__(self) -> None:
        self._given = 0

    def hex(self, digits: int) -> str:
        """Return the next number in ``digits`` hexadecimal digits."""
        self._given += 1
        return f"{self._given % 16**digits:0{digits}x}"

    def uniform(self) -> float:
        """Return 0.5."""
        return 0.5


@attrs.frozen(kw_only=True)
class FakeEnv(Env):
    """An `Env` in memory, as `fake_env` makes it."""

    seams: ClassVar[Mapping[str, Mapping[str, str]]] = {
        **PROCESSES,
        **FILES,
    }
    """What can go wrong by itself with each operation, and what that means."""

    clock: FakeClock
    ids: FakeIds
    processes: FakeProcesses
    """Its ``started`` lists what was started, and how."""
    files: FakeFiles
    """`FakeFiles.contents` returns what was written."""


def fake_env(
    commands: Commands | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    faults: Faults | None = None,
) -> FakeEnv:
    """Return an `Env` without processes, files, chance or real time.

    It touches nothing outside, so a test on it may run in virtual time
    (``autojump_clock``), and has the same result each time. Make one for each runtime.

    Args:
        commands: what each command does: a mapping from command lines, or a function of
            the command line. A command that is not in ``commands`` fails its task with
            `Unscripted`. What a command does is one of these:
            - a script, which is an async function of a `Program`. It returns the exit
              code. None means 0, and -N means an end by signal N.
            - a str. The command prints it and exits with 0.
            - an int. The command prints nothing and exits with this code.
            - an OSError. The command cannot be started, for this error.
        environment: what programs inherit; by default nothing.
        faults: who decides which calls go wrong; by default none does.

    An error that a script raises is a mistake of the test. Its task fails, and the end
    of the runtime's block raises the error in an ExceptionGroup.

    Raises:
        TypeError, ValueError: if a value in ``commands`` is none of these; it names the
            key and the value.
    """
    env = FakeEnv(
        clock=FakeClock(),
        ids=FakeIds(),
        processes=FakeProcesses(commands, environment=environment),
        files=FakeFiles(),
    )
    env.processes.faults = env.files.faults = faults
    return env
