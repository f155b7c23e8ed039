"""Asking an API again when it could not answer.

The SDKs can do so themselves, but only until a response has begun, so not when a
stream breaks off before it has said anything; and one of them waits as long as the
API says, be it days. So theirs is off, and this is all there is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from email.utils import parsedate_to_datetime

import trio

from ..agent import TextDelta
from ..env import Env
from ._model import ModelFailed, Told

_FIRST = 0.5
"""Seconds before the first repetition; each further one waits twice as long."""
_LONGEST = 8.0
_JITTER = 0.25
"""The part of a wait by which it may be shorter, at random."""
_PATIENCE = 60.0
"""The most seconds to wait because the API says so; if it wants more, it fails."""


async def retrying(
    ask: Callable[[], AsyncGenerator[Told, None]], retries: int, env: Env
) -> AsyncGenerator[Told, None]:
    """Tell what ``ask()`` tells; while it fails for a time and has said nothing yet,
    call it again, ``retries`` times at most.

    Raises:
        ModelFailed: its last.
    """
    for attempt in range(retries + 1):
        has_said = False
        try:
            async with aclosing(ask()) as events:
                async for event in events:
                    has_said |= isinstance(event, TextDelta)
                    yield event  # noqa: ASYNC119 - who reads closes
            return
        except ModelFailed as error:
            # What was shown once must not be shown again in other words.
            if has_said or not error.temporary or attempt == retries:
                raise
            wait = _wait(attempt, error.retry_after, env)
            if wait is None:
                raise
        await trio.sleep(wait)


def _wait(attempt: int, retry_after: float | None, env: Env) -> float | None:
    if retry_after is not None and retry_after > 0:
        return retry_after if retry_after <= _PATIENCE else None
    longest: float = min(_FIRST * 2.0**attempt, _LONGEST)
    return longest * (1 - _JITTER * env.ids.uniform())


def is_temporary(status: int, headers: Mapping[str, str]) -> bool:
    """Return whether a request with that outcome may succeed another time."""
    told = headers.get("x-should-retry", "")
    if told in ("true", "false"):
        return told == "true"
    return status in (408, 409, 429) or status >= 500


def retry_after(headers: Mapping[str, str], env: Env) -> float | None:
    """Return the seconds that a response tells one to wait, if it does."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return float(headers.get(name, "")) / unit
        except ValueError:
            continue
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
        return (date - env.clock.now()).total_seconds()
    except (ValueError, TypeError):  # no date, or one without a time zone
        return None
