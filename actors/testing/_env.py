"""The fake world, put together."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs
import trio

from ..env import Clock, Env, Ids
from ._commands import Commands
from ._files import FakeFiles
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

    clock: FakeClock
    ids: FakeIds
    processes: FakeProcesses
    """What was started, and how: `FakeProcesses.started`."""
    files: FakeFiles
    """What was written: `FakeFiles.contents`."""


def fake_env(
    commands: Commands | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> FakeEnv:
    """Return an `Env` without processes, files, chance or real time.

    It touches nothing outside, so a test on it may run in virtual time
    (``autojump_clock``), and comes to the same end each time. Make one for each
    runtime.

    Args:
        commands: what each command does: a mapping from command lines, or a
            function of the command line. To a line belongs a script, which is
            an async function of a `Program` that returns the exit code, or None
            for 0, or -N for an end by signal N; or a str, which is printed
            before an exit with 0; or an int, the exit code of a command that
            prints nothing; or an OSError, with which it cannot be started.
            A command of which nothing was said fails its task with `Unscripted`.
        environment: what programs inherit; nothing unless said.

    An error that a script raises is a mistake of the test: its task fails, and
    leaving the runtime raises it, within an ExceptionGroup.

    Raises:
        TypeError, ValueError: naming a key of ``commands`` and its value, if that
            is nothing that a command does.
    """
    return FakeEnv(
        clock=FakeClock(),
        ids=FakeIds(),
        processes=FakeProcesses(commands, environment=environment),
        files=FakeFiles(),
    )
