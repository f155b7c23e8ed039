"""Asking an API again when it could not answer.

The SDKs can do so themselves, but only until a response has begun, so not when a
stream breaks off before it has said anything; and one of them waits as long as the
API says, be it days. So theirs is off, and this is all there is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import datetime
from typing import Final

import trio

from ..agent import Retrying, TextDelta
from ..env import Env
from ._model import ModelFailed, Told

RETRIES: Final = 4
"""How often a request is made again, unless somebody says otherwise."""

_FIRST = 0.5
"""Seconds before the first repetition; each further one waits twice as long."""
_LONGEST = 8.0
_JITTER = 0.25
"""The part of a wait by which it may be shorter, at random."""
_PATIENCE = 60.0
"""The most seconds to wait because the API says so. What takes longer is no matter of
one request: the agent pauses."""


async def retrying(
    ask: Callable[[], AsyncGenerator[Told, None]], retries: int, env: Env
) -> AsyncGenerator[Told, None]:
    """Tell what ``ask()`` tells. While it fails with what may be over in seconds, and
    has said nothing yet, tell that and call it again, ``retries`` times at most.

    Raises:
        ModelFailed: its last.
    """
    was_told_when = False
    for attempt in range(1, retries + 2):
        has_said = False
        try:
            async with aclosing(ask()) as events:
                async for event in events:
                    has_said |= isinstance(event, TextDelta)
                    yield event  # noqa: ASYNC119 - who reads closes
            return
        except ModelFailed as error:
            # What was shown once must not be shown again in other words.
            if has_said or not error.at_once:
                raise
            left = _left(error.resume_at, env)
            if left is not None and left > _PATIENCE:
                raise
            if attempt > retries:
                if was_told_when:
                    # The API has said that before, and it was not so.
                    error.resume_at = None
                raise
            was_told_when |= left is not None
            wait = _backoff(attempt, env) if left is None else left
            reason = error.message
        yield Retrying(attempt=attempt, reason=reason, wait=wait)
        await trio.sleep(wait)


def _left(resume_at: datetime | None, env: Env) -> float | None:
    """Return the seconds until then, or None if nobody knows a time to come."""
    if resume_at is None:
        return None
    left = (resume_at - env.clock.now()).total_seconds()
    return left if left > 0 else None


def _backoff(attempt: int, env: Env) -> float:
    longest: float = min(_FIRST * 2.0 ** (attempt - 1), _LONGEST)
    return longest * (1 - _JITTER * env.ids.uniform())
