"""Whether an agent still gives signs of life."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager

import trio

# How long a suspension of the host may go unnoticed: nothing tells of one, only
# that the watch wakes later than it asked for.
LOOK_EVERY = 15.0
LATE = 1.0


class Pulse:
    """When the agent last gave a sign of life, on trio's clock."""

    __slots__ = ("_pauses", "awaits_answer", "last")

    def __init__(self) -> None:
        self.last = trio.current_time()
        self._pauses = 0
        # Until the next event.
        self.awaits_answer = False

    @property
    def is_paused(self) -> bool:
        """Whether it waits for something that may take its time."""
        return self._pauses > 0 or self.awaits_answer

    @contextmanager
    def paused(self) -> Generator[None]:
        """While it waits for something that may take its time."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            self.last = trio.current_time()


async def watch(
    pulse: Pulse,
    *,
    warning: float | None,
    limit: float | None,
    deadline: float,
    on_silence: Callable[[float], None],
    on_stall: Callable[[], None],
    on_deadline: Callable[[], None],
) -> None:
    """Call ``on_silence`` once for each silence of ``warning`` seconds; return
    after ``on_stall``, after one of ``limit`` seconds, or after ``on_deadline``."""
    warned_of = -math.inf
    while True:
        looked = trio.current_time()
        due = min(looked + LOOK_EVERY, deadline)
        if not pulse.is_paused:
            if warning is not None and warned_of < pulse.last:
                due = min(due, pulse.last + warning)
            if limit is not None:
                due = min(due, pulse.last + limit)
        # Or it would wake a moment before its time, again and again.
        await trio.sleep_until(max(due, looked))
        now = trio.current_time()
        if now >= deadline:
            on_deadline()
            return
        if pulse.is_paused:
            continue
        if now - due > LATE:
            # The host was suspended for an unknown part of the time.
            pulse.last = min(now, pulse.last + (now - looked))
        silence = now - pulse.last
        if limit is not None and silence >= limit:
            on_stall()
            return
        if warning is not None and silence >= warning and warned_of < pulse.last:
            warned_of = pulse.last
            on_silence(silence)
