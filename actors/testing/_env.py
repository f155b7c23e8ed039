"""The fake world, put together."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final, Self

import trio

from .._kernel.values import frozen
from ..env import Clock, Env, Ids
from ._commands import Commands
from ._faults import Faults, Ways, goes_wrong
from ._files import SEAMS as FILES
from ._files import FakeFiles
from ._processes import SEAMS as PROCESSES
from ._processes import FakeProcesses

EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)

_HOUR = 3600.0
_JUMPS = {"back": -_HOUR, "ahead": _HOUR}
_SHORT = 8  # Longer names come again in no lifetime.
_EXTREMES = {"least": 0.0, "most": 1.0 - 2.0**-53}

SEAMS: Mapping[str, Ways] = {
    "clock.now": {
        "back": "the wall clock is set back by an hour",
        "ahead": "it is set ahead by an hour",
    },
    "clock.suspend": {"suspend": "the machine has slept for an hour"},
    "ids.hex": {"again": "it is the short name that was given before"},
    "ids.uniform": {"least": "it is 0.0", "most": "it is just below 1.0"},
}
"""What can go wrong by itself with each operation of the clock and of ids."""


class FakeClock(Clock):
    """Wall-clock time that follows trio's: its zero is the year 2000.

    Under `trio.testing.MockClock` each run of a test sees the same times.
    """

    def __init__(self) -> None:
        self.faults: Faults | None = None
        """Who decides which calls go wrong; None for nobody."""
        self.ahead = 0.0
        """Seconds that it is ahead of trio's, for a test to set."""

    def now(self) -> datetime:
        if self.faults is not None:
            self._meet(self.faults)
        return EPOCH + timedelta(seconds=trio.current_time() + self.ahead)

    def seconds(self) -> float:
        """Return it in seconds since 1970, outside of trio as it was at the start. What
        can go wrong with `now` does not concern this."""
        try:
            return EPOCH.timestamp() + trio.current_time() + self.ahead
        except RuntimeError:
            return EPOCH.timestamp() + self.ahead

    def _meet(self, faults: Faults) -> None:
        self.ahead += _JUMPS.get(goes_wrong(faults, "clock.now"), 0.0)
        if goes_wrong(faults, "clock.suspend"):
            faults.suspend(_HOUR)


class FakeIds(Ids):
    """Names that count up from 1, and the middle for a random number."""

    def __init__(self) -> None:
        self.faults: Faults | None = None
        """Who decides which calls go wrong; None for nobody."""
        self.given = 0
        """How many names were given. A program that comes after another one begins
        with the number of that, or it gives the same names."""
        self._last: dict[int, str] = {}

    def hex(self, digits: int) -> str:
        """Return the next number in ``digits`` hexadecimal digits."""
        may_come_again = digits <= _SHORT and digits in self._last
        if may_come_again and goes_wrong(self.faults, "ids.hex"):
            return self._last[digits]
        self.given += 1
        name = self._last[digits] = f"{self.given % 16**digits:0{digits}x}"
        return name

    def uniform(self) -> float:
        """Return 0.5."""
        return _EXTREMES.get(goes_wrong(self.faults, "ids.uniform"), 0.5)


@frozen(kw_only=True)
class FakeEnv(Env):
    """An `Env` in memory, as `fake_env` makes it."""

    seams: ClassVar[Mapping[str, Mapping[str, str]]] = {
        **SEAMS,
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

    async def __aenter__(self) -> Self:
        """Let the scripts run in a nursery of this task, until the block ends.

        Nobody has to enter it. In a block, the scripts that are left are ended and
        waited for at its end, and one that was wrong is raised there.
        """
        await self.processes.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.processes.__aexit__(*raised)  # noqa: ASYNC102 - shields itself


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

    Nobody has to enter it. In ``async with fake_env(...) as env`` the scripts run in a
    nursery of the test, and have ended after the block.

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
    env.files.now = env.clock.seconds
    for part in (env.clock, env.ids, env.processes, env.files):
        part.faults = faults
    return env
