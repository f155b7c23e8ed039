"""Which errors of an API pass, and when, and which are about a conversation's length:
pure.

When a limit is reset stands in a header, in a field of the body, or only in its words:
each API has a way of its own, and those behind another's form keep theirs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast

from .._kernel.values import frozen

_PASSING: Final = {408, 409, 429}
"""And those from 500 on. The others are about the request, which stays as it is."""
_PASSING_KINDS: Final = {
    "api_error",
    "internal_server_error",
    "overloaded_error",
    "rate_limit_error",
    "rate_limit_exceeded",
    "server_error",
    "server_is_overloaded",
    "timeout_error",
    "usage_limit_reached",
}
"""What an error inside a stream is called that may be over the next time."""
_PASSING_WORDS: Final = re.compile(
    r"overloaded|rate limit|too many requests|temporarily|try again", re.IGNORECASE
)
_STAYING_KINDS: Final = {
    "authentication_error",
    "context_length_exceeded",
    "invalid_api_key",
    "invalid_prompt",
    "invalid_request_error",
    "model_not_found",
    "not_found_error",
    "permission_error",
    "request_too_large",
}
"""What it is called that is about the request: 400, 401, 403, 404, 413. Whatever its
words are: "shorten it and try again" is no reason to ask for the same once more."""
_USED_UP: Final = {
    "billing_error",
    "billing_hard_limit_reached",
    "billing_not_active",
    "insufficient_quota",
    "usage_not_included",
}
"""What a 429 is called that waits for somebody's money."""

_TOO_LONG: Final = re.compile(
    r"prompt is too long|input is too long|context[ _](?:length|window|size)"
    r"|maximum context|request_too_large|exceed\w* the (?:maximum|limit)\b.{0,60}tokens",
    re.IGNORECASE,
)
"""What APIs say of a conversation that does not fit into the model's context."""

_KINDS: Final = {"code", "type", "error_type"}
_TIMES: Final = {
    "quotaresettimestamp",
    "reset_at",
    "resets_at",
    "resets_in_seconds",
    "retry_after",
    "retry_after_seconds",
    "retrydelay",
    "x-ratelimit-reset",
}
"""The fields of a body that say when, or after how long; in small letters."""
_NODES: Final = 1_000
_CHARACTERS: Final = 8_192
"""So much of a body is looked at."""

_PIECE: Final = (
    r"(\d+(?:\.\d+)?)\s*"
    r"(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)"
    r"(?![a-z])[\s,]*(?:and\s+)?"
)
_PIECES: Final = re.compile(_PIECE, re.IGNORECASE)
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LATER: Final = (
    r"(?:try(?:ing)? again|retry|resets?|access|available)(?: your request)?"
)
_IN_WORDS: Final = re.compile(
    rf"{_LATER} (?:in|after)(?: about)? ((?:{_PIECE})+)", re.IGNORECASE
)
_AT_WORDS: Final = re.compile(
    rf"{_LATER} (?:at|on|after) (\d{{4}}-\d\d-\d\d)(?:T| +| at )"
    r"(\d\d:\d\d(?::\d\d(?:\.\d+)?)?) ?(Z|UTC|GMT|[+-]\d\d:?\d\d)?",
    re.IGNORECASE,
)
_STAMP: Final = re.compile(r"limit reached\|(\d{10,13})(?!\d)")
_WINDOW: Final = re.compile(
    r"(?:(?:anthropic|x)-)?ratelimit-(?:[a-z-]+-)?reset(?:-[a-z-]+)?"
)
_UNIFIED: Final = "anthropic-ratelimit-unified-"


@frozen
class Outlook:
    """What is to be expected after an error."""

    passes: bool
    """Whether the same request may succeed later."""
    at_once: bool = False
    """Whether it may do so within seconds."""
    resume_at: datetime | None = None
    """When a limit is reset. It is later than now."""


NEVER: Final = Outlook(passes=False)
SOON: Final = Outlook(passes=True, at_once=True)


def of_response(
    status: int, headers: Mapping[str, str], body: object, now: datetime
) -> Outlook:
    """Return what is to be expected after a response that is an error.

    ``headers`` has names in small letters, or looks them up in any.
    """
    if status not in _PASSING and status < 500:
        # It is the API that knows.
        told = headers.get("x-should-retry") == "true"
        return Outlook(passes=False, at_once=told)
    at_once = headers.get("x-should-retry") != "false"
    if status == 429:
        if _kinds(body) & _USED_UP:
            return NEVER
    elif not at_once:
        return NEVER
    return Outlook(True, at_once, _reset(status, headers, body, now))


def of_error(body: object, now: datetime) -> Outlook:
    """Return what is to be expected after an error that came inside a stream."""
    kinds = _kinds(body)
    if kinds & _USED_UP:
        return NEVER
    for kind in kinds:
        if re.fullmatch(r"[1-5]\d\d", kind):
            return of_response(int(kind), {}, body, now)
    if kinds & _PASSING_KINDS or (not kinds & _STAYING_KINDS and _says_so(body)):
        return Outlook(True, at_once=True, resume_at=_reset(429, {}, body, now))
    return NEVER


def is_too_long(told: str) -> bool:
    """Whether an error that does not pass says that the conversation is too long."""
    return _TOO_LONG.search(told[:_CHARACTERS]) is not None


def _says_so(body: object) -> bool:
    """Whether an error says in words that it passes."""
    return any(
        isinstance(value, str) and _PASSING_WORDS.search(value[:_CHARACTERS])
        for _, value in _fields(body)
    )


def _kinds(body: object) -> set[str]:
    return {
        str(value)
        for key, value in _fields(body)
        if key in _KINDS and isinstance(value, str | int)
    }


def _reset(
    status: int, headers: Mapping[str, str], body: object, now: datetime
) -> datetime | None:
    told = [
        _time(headers.get("retry-after-ms"), now, unit=0.001),
        _time(headers.get("retry-after"), now),
        *_told_in(body, now),
    ]
    if headers.get(_UNIFIED + "status") == "rejected":
        told.append(_time(headers.get(_UNIFIED + "reset"), now))
    # Each says that it is of no use before.
    known = [at for at in told if at is not None and at > now]
    if known:
        return max(known)
    return _window(headers, now) if status == 429 else None


def _window(headers: Mapping[str, str], now: datetime) -> datetime | None:
    """Return when a limit is reset, of several that the headers tell of. They do not
    say which of them it is, unless nothing is left of one."""
    empty: list[datetime] = []
    others: list[datetime] = []
    for name, value in headers.items():
        low = name.lower()
        if not _WINDOW.fullmatch(low) or low.startswith(_UNIFIED):
            continue
        at = _time(value, now)
        if at is not None and at > now:
            left = headers.get(low.replace("reset", "remaining"))
            (empty if left == "0" else others).append(at)
    if empty:
        return max(empty)
    return min(others, default=None)


def _told_in(body: object, now: datetime) -> Iterator[datetime | None]:
    for key, value in _fields(body):
        if key.lower() in _TIMES:
            yield _time(value, now)
        elif isinstance(value, str):
            yield from _in_words(value[:_CHARACTERS], now)


def _in_words(text: str, now: datetime) -> Iterator[datetime | None]:
    for found in _IN_WORDS.finditer(text):
        yield _time(found[1], now)
    for found in _AT_WORDS.finditer(text):
        day, hour, zone = found.groups()
        zone = (zone or "Z").upper().replace("UTC", "Z").replace("GMT", "Z")
        yield _time(f"{day}T{hour}{zone}", now)
    for found in _STAMP.finditer(text):
        yield _time(found[1], now)


def _fields(body: object) -> Iterator[tuple[str, object]]:
    """Yield what a body holds, at any depth, with the name that it has there."""
    waiting: list[tuple[str, object]] = [("", body)]
    for _ in range(_NODES):
        if not waiting:
            return
        key, value = waiting.pop()
        if isinstance(value, dict):
            fields = cast("dict[object, object]", value)
            waiting += [(str(name), inner) for name, inner in fields.items()]
        elif isinstance(value, list):
            waiting += [(key, inner) for inner in cast("list[object]", value)]
        else:
            yield key, value


def _time(value: Any, now: datetime, *, unit: float = 1.0) -> datetime | None:
    """Return the time that ``value`` means: a number of seconds from now or since
    1970, a duration, or a date."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        text = str(value).strip()
        return _duration(text, now) or _date(text)
    try:
        if number < 1e9:
            return now + timedelta(seconds=number * unit)
        if number > 1e11:
            number /= 1000
        return datetime.fromtimestamp(number, UTC)
    except (ValueError, OverflowError, OSError):  # Not a number, or far too large.
        return None


def _duration(text: str, now: datetime) -> datetime | None:
    """Read ``6m0s``, ``20 seconds``, ``2 days and 3 hours``."""
    seconds = end = 0.0
    for found in _PIECES.finditer(text):
        if found.start() != end:
            return None
        number, name = float(found[1]), found[2].lower()
        is_milli = name == "ms" or name.startswith("milli")
        seconds += number * (0.001 if is_milli else _UNITS[name[0]])
        end = found.end()
    if not end or end != len(text) or not math.isfinite(seconds):
        return None
    try:
        return now + timedelta(seconds=seconds)
    except OverflowError:
        return None


def _date(text: str) -> datetime | None:
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        try:
            date = parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError):
            return None
    # An API that names no zone means this one, as HTTP does.
    return date.replace(tzinfo=UTC) if date.utcoffset() is None else date
