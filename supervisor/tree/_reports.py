"""What a supervisor reports of its children, as events and in the log: how they
ended, and which of them do not do what somebody waits for."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import trio
from trio.lowlevel import enable_ki_protection

from actors import Exit, Failed, Stopped
from actors.lowlevel import Incarnation, is_normal
from actors.text import cut
from actors.work import WorkFailed

from ._errors import RestartIntensityExceeded
from ._events import ChildExited, EventStream, SlowStart, Straggler
from ._log import log
from ._restart import has_declined

REPORT_EVERY = 30.0
"""The seconds between two reports of one incarnation."""

# For the log, with the supervisor's path, the child's id and the seconds.
_LATE: Mapping[type[Straggler | SlowStart], str] = {
    Straggler: "%s/%s has not ended %.1f s after it was told to stop:",
    SlowStart: "%s/%s has not called ctx.started() %.1f s after its start, which "
    "wait_started=True waits for:",
}


class Stragglers:
    """Watches incarnations for which somebody waits: until they end when they were
    told to stop, or until they acknowledge their start. It reports each that is
    still watched when the patience with it is over, and every 30 seconds from then
    on.

    One task does that for all children of a supervisor. It outlives a
    cancellation, as the children do, and ends with `close`.
    """

    def __init__(
        self, kind: type[Straggler | SlowStart], path: str, events: EventStream
    ) -> None:
        self._kind = kind
        self._path = path
        self._events = events
        # Since when it is waited for, and when a report is due.
        self._watched: dict[Incarnation[Any], tuple[float, float]] = {}
        self._nap: trio.CancelScope | None = None
        self._clock = trio.lowlevel.current_clock()

    def watch(
        self, nursery: trio.Nursery, incarnation: Incarnation[Any], patience: float
    ) -> None:
        """Report ``incarnation`` if it is not forgotten within ``patience`` seconds.
        The second time for the same one it does nothing."""
        if incarnation in self._watched or patience == math.inf:
            return
        now = self._clock.current_time()
        self._watched[incarnation] = (now, now + patience)
        if self._nap is None:
            self._nap = trio.CancelScope(shield=True, deadline=now + patience)
            nursery.start_soon(self._report_when_due)
        elif now + patience < self._nap.deadline:
            self._nap.deadline = now + patience

    def forget(self, incarnation: Incarnation[Any]) -> None:
        """It has done what was waited for, or is none of ours."""
        self._watched.pop(incarnation, None)

    def close(self) -> None:
        """End the reports, so that the nursery can be left."""
        self._watched.clear()
        if self._nap is not None:
            self._nap.cancel()

    @enable_ki_protection
    async def _report_when_due(self) -> None:
        while self._watched:
            due = min(due for _, due in self._watched.values())
            self._nap = trio.CancelScope(shield=True, deadline=due)
            with self._nap:
                await trio.sleep_forever()
            now = trio.current_time()
            for incarnation, (asked_at, due) in list(self._watched.items()):
                if due <= now:
                    self._watched[incarnation] = (asked_at, due + REPORT_EVERY)
                    self._report(incarnation, now - asked_at)
        self._nap = None

    def _report(self, incarnation: Incarnation[Any], waited: float) -> None:
        path, id, stack = self._path, incarnation.id, incarnation.format_stack()
        self._events.emit(self._kind, path, id, waited, stack)
        log(logging.WARNING, _LATE[self._kind], path, id, waited, stack=stack)


def report_exit(
    events: EventStream,
    path: str,
    incarnation: Incarnation[Any],
    exit: Exit[object],
    *,
    expected: bool,
) -> None:
    """Report the end of an incarnation below the supervisor ``path``. A normal end is
    abnormal, too, if it was not ``expected``."""
    declined = False
    if isinstance(exit, Failed):
        declined = not incarnation.was_started and has_declined(exit)
        if not declined:
            _log_failure(path, incarnation.id, exit.error)
    if events.has_readers:
        events.emit(
            ChildExited,
            path,
            incarnation.id,
            incarnation.number,
            type(exit).__name__.lower(),
            describe_exit(exit),
            not declined and not (expected and is_normal(exit)),
        )


def _log_failure(path: str, id: str, error: Exception) -> None:
    result = _bad_end(error)
    if result is None:
        log(logging.ERROR, "%s/%s failed", path, id, error=error)
    else:
        # A result, such as an exit code, and nobody's mistake.
        what = f"{result} ({result.subject})" if result.subject else str(result)
        log(logging.INFO, "%s/%s failed: %s", path, id, what)


def _bad_end(error: BaseException | None) -> WorkFailed | None:
    """Return the bad end of a work that ``error`` is, or that it was too often; None
    if somebody has made a mistake."""
    if isinstance(error, RestartIntensityExceeded):
        error = error.__cause__
    if isinstance(error, WorkFailed) and error.__cause__ is None:
        return error
    return None


def describe_exit(exit: Exit[object]) -> str:
    """Return a line of text about ``exit``."""
    if isinstance(exit, Stopped):
        return exit.by if exit.reason is None else f"{exit.by}: {exit.reason}"
    subject = exit.error if isinstance(exit, Failed) else exit.value
    try:
        text = "".join((repr(subject), ""))  # a real str, whatever it returns
    # The boundary: whatever a stranger's __repr__ does, an end is recorded. Our
    # callers are protected from interrupts, so none that comes is anybody's wish.
    except BaseException:  # noqa: ASYNC103
        text = f"<{type(subject).__name__} whose repr() fails>"
    return cut(text, 1_000)
