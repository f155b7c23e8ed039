"""When an agent goes on whose run was stopped by something that passes, and whether it
does: a pure function of what it has tried. And what is there of it while it waits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import attrs
import trio

from actors.agent import AgentFailed, TransientError
from actors.text import one_line

from .journal.records import Paused
from .places import Wait
from .snapshot import Pause

if TYPE_CHECKING:
    from .._delivery.outbox import Notification

PATIENCE: Final = 6 * 3600.0
"""The seconds for which an agent tries again, unless its host says otherwise."""

_MINUTES: Final = (1, 2, 5, 10, 20, 30)
# By so much of it, at most, a wait is shorter or longer: many agents of one host meet
# one limit together.
_JITTER: Final = 0.1
_REASON_SHOWN: Final = 200
FARTHEST: Final = timedelta(days=32)
"""Limits are reset within a month. A time that is farther away is a mistake of somebody,
and who believed it would never go on."""

ContinuedBy: TypeAlias = Literal["time", "message", "host"]
"""What ends a pause."""


class Try(NamedTuple):
    """One run that has ended in a pause, or would have."""

    at: datetime
    """When it has ended."""
    reason: str
    waited: float = 0.0
    """The seconds of the agent's patience that its pause takes."""


class Before(NamedTuple):
    """What is known of a paused agent from a program that has died."""

    tries: tuple[Try, ...] = ()
    """Those since its model has last answered."""
    is_told: bool = False
    """Whether its owner has acknowledged the note of this pause."""


def next_pause(
    tries: Sequence[Try],
    error: TransientError,
    now: datetime,
    patience: float,
    chance: float,
) -> tuple[Try, Pause | None]:
    """Return what counts as tried with a run that ``error`` has ended ``now``, and the
    pause that follows; None if the agent has no patience left.

    After a first try it waits until the error is over, if that is known. A time that is
    more than `FARTHEST` away is not known. Otherwise it waits 1, 2, 5, 10, 20 and then
    always 30 minutes, a tenth more or less, and longer if it is known that the error
    lasts longer. Only the former counts against ``patience``, and the last wait is cut
    to what is left of that.

    Args:
        tries: those before, since the model of the agent has last answered.
        chance: a random number, at least 0.0 and below 1.0.
    """
    known = _known(error, now)
    attempt = len(tries) + 1
    if known is not None and not tries:
        return Try(now, error.reason), Pause(error.reason, known, attempt)
    left = patience - sum(it.waited for it in tries)
    # Not 0: sums of floats are seldom exact.
    if left < 1e-3:
        return Try(now, error.reason), None
    minutes = _MINUTES[min(len(tries), len(_MINUTES) - 1)]
    delay = min(left, minutes * 60 * (1 - _JITTER + 2 * _JITTER * chance))
    until = now + timedelta(seconds=delay)
    if known is not None:
        until = max(until, known)
    return Try(now, error.reason, delay), Pause(error.reason, until, attempt)


def _known(error: TransientError, now: datetime) -> datetime | None:
    """Return when ``error`` is over, if that can be believed."""
    if error.resume_at is None:
        return None
    # A difference, because not every time with a zone can be said in another one.
    left = error.resume_at - now
    return now + max(left, timedelta(0)) if left <= FARTHEST else None


def gave_up(tries: Sequence[Try]) -> AgentFailed:
    """Return the error of an agent that has no patience left, with all it has tried."""
    first, last = tries[0].at, tries[-1].at
    hours = (last - first).total_seconds() / 3600
    told = "; ".join(
        f"{it.at.isoformat(timespec='seconds')} {one_line(it.reason, _REASON_SHOWN)}"
        for it in tries
    )
    times = "1 time" if len(tries) == 1 else f"{len(tries)} times in {hours:.1f} h"
    return AgentFailed("error", f"it was tried {times} and did not pass: {told}")


@attrs.define(eq=False, repr=False)
class Rest:
    """What is there of a pause while it lasts."""

    place: Wait
    """Its place, which others may have."""
    over: trio.Event = attrs.field(factory=trio.Event)
    """Set when somebody lets it go on."""
    by: ContinuedBy = "time"
    """What has ended it."""
    record: Paused | None = None
    """What the journal has of it."""
    note: Notification | None = None
    """What tells its owner."""
