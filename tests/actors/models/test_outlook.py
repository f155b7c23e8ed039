"""Which errors of the APIs pass, and when, by the shapes that real ones have."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.models._outlook import (
    NEVER,
    Outlook,
    is_too_long,
    of_error,
    of_response,
)

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
HTTP = "Fri, 01 May 2026 12:05:00 GMT"
STAMP = str(int(NOW.timestamp()) + 3600)


def said(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


def test_an_error_passes_by_its_status_and_only_so() -> None:
    passing = {
        status for status in range(300, 600) if of_response(status, {}, {}, NOW).passes
    }
    assert passing == {408, 409, 429, *range(500, 600)}


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
def test_nothing_that_is_said_makes_an_error_of_the_request_pass(status: int) -> None:
    headers = {
        "retry-after": "30",
        "x-should-retry": "true",
        "anthropic-ratelimit-unified-status": "rejected",
        "anthropic-ratelimit-unified-reset": STAMP,
    }
    body = said("Overloaded. Try again in 20s.", type="overloaded_error", code=529)
    outlook = of_response(status, headers, body, NOW)
    assert outlook == Outlook(passes=False, at_once=True)
    assert of_response(status, {}, body, NOW) == NEVER


# What the API says, and after how many seconds it passes; None: it does not say.
Case = tuple[str, Mapping[str, str], Any, float | None]

CASES: list[Case] = [
    ("nothing", {}, {}, None),
    ("no JSON", {}, "<html>Bad Gateway</html>", None),
    ("seconds", {"retry-after": "30"}, None, 30),
    ("parts of a second", {"retry-after": "0.5"}, None, 0.5),
    ("a date of HTTP", {"retry-after": HTTP}, None, 300),
    ("milliseconds first", {"retry-after-ms": "1500", "retry-after": "1"}, {}, 1.5),
    ("what is no number", {"retry-after-ms": "soon", "retry-after": "7"}, {}, 7),
    ("the past", {"retry-after": "-5"}, {}, None),
    ("a past date", {"retry-after": "Fri, 01 May 2026 11:00:00 GMT"}, {}, None),
    ("no time at all", {"retry-after": "nan"}, {}, None),
    ("a duration and more", {"retry-after": "20s or so"}, {}, None),
    ("a duration behind more", {"retry-after": "about 20s"}, {}, None),
    ("for ever", {"retry-after": "inf"}, {}, None),
    ("a time that no calendar has", {"retry-after": "9" * 30}, {}, None),
    (
        "Anthropic: of two limits one is used up",
        {
            "anthropic-ratelimit-requests-remaining": "0",
            "anthropic-ratelimit-requests-reset": "2026-05-01T12:00:12Z",
            "anthropic-ratelimit-tokens-remaining": "16000",
            "anthropic-ratelimit-tokens-reset": "2026-05-01T12:00:40Z",
        },
        {"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}},
        12,
    ),
    (
        "Anthropic: both are",
        {
            "anthropic-ratelimit-input-tokens-remaining": "0",
            "anthropic-ratelimit-input-tokens-reset": "2026-05-01T12:00:12Z",
            "anthropic-ratelimit-output-tokens-remaining": "0",
            "anthropic-ratelimit-output-tokens-reset": "2026-05-01T12:00:40Z",
        },
        {},
        40,
    ),
    (
        "Anthropic: the limit of a subscription, and the API's own wish",
        {
            "anthropic-ratelimit-unified-status": "rejected",
            "anthropic-ratelimit-unified-reset": STAMP,
            "anthropic-ratelimit-unified-5h-reset": STAMP,
            "retry-after": "3590",
        },
        {"type": "error", "error": {"type": "rate_limit_error", "message": "limit"}},
        3600,
    ),
    (
        "Anthropic: that limit is not the one",
        {
            "anthropic-ratelimit-unified-status": "allowed",
            "anthropic-ratelimit-unified-reset": STAMP,
        },
        {},
        None,
    ),
    (
        "Claude Code: a stamp in the words",
        {},
        said(f"Claude AI usage limit reached|{STAMP}", type="rate_limit_error"),
        3600,
    ),
    (
        "OpenAI: durations",
        {
            "x-ratelimit-remaining-requests": "59",
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-tokens": "6m0s",
        },
        {"message": "Rate limit", "type": "tokens", "code": "rate_limit_exceeded"},
        360,
    ),
    (
        "OpenAI: none is used up, so the nearest",
        {
            "x-ratelimit-remaining-requests": "59",
            "x-ratelimit-reset-requests": "8.64s",
            "x-ratelimit-remaining-tokens": "12",
            "x-ratelimit-reset-tokens": "120ms",
        },
        {},
        0.12,
    ),
    (
        "OpenAI: the words know better than the headers",
        {"x-ratelimit-reset-requests": "24h0m0s"},
        {
            "message": "Rate limit reached for gpt-4o on tokens per min (TPM): Limit "
            "30000, Used 14567, Requested 24754. Please try again in 18.642s. Visit x.",
            "code": "rate_limit_exceeded",
        },
        18.642,
    ),
    (
        "Groq",
        {},
        said(
            "Limit 100000, Used 97050, Requested 3619. Please try again in 9m38.016s. "
            "Need more tokens? Upgrade today",
            type="tokens",
        ),
        578.016,
    ),
    ("Groq, tiny", {}, said("Please try again in 6ms."), 0.006),
    ("Azure", {}, said("Please retry after 26 seconds."), 26),
    ("in days", {}, said("Try again in 2 days, 3 hours and 5 minutes."), 183_900),
    (
        "Codex",
        {},
        {
            "type": "usage_limit_reached",
            "message": "The usage limit has been reached",
            "plan_type": "free",
            "resets_at": int(NOW.timestamp()) + 529_498,
            "resets_in_seconds": 529_498,
        },
        529_498,
    ),
    ("a date in a field", {}, said("x", resets_at="2026-05-01T14:00:00Z"), 7200),
    (
        "Gemini, in OpenAI's form",
        {},
        [
            said(
                "You exceeded your quota. Please retry in 53.016342s.",
                details=[
                    {
                        "@type": "type.googleapis.com/google.rpc.RetryInfo",
                        "retryDelay": "53s",
                    }
                ],
            )
        ],
        53.016342,
    ),
    (
        "OpenRouter: milliseconds since 1970",
        {},
        said(
            "Rate limit exceeded",
            metadata={"headers": {"X-RateLimit-Reset": f"{STAMP}000"}},
        ),
        3600,
    ),
    ("GitHub", {"x-ratelimit-remaining": "0", "x-ratelimit-reset": STAMP}, {}, 3600),
    ("the draft of the IETF", {"ratelimit-reset": "50"}, {}, 50),
    ("a time of the day", {}, said("Try again at 2026-05-01 13:30 UTC."), 5400),
    ("with a zone", {}, said("Try again at 2026-05-01T15:30:00+02:00."), 5400),
    ("a day", {}, said("You will regain access on 2026-05-02 at 00:00 UTC."), 43_200),
    ("an hour that no zone has", {}, said("try again at 3:05 PM"), None),
    ("words without a time", {}, said("Please try again later."), None),
    ("no unit", {}, said("please try again in 5"), None),
    ("a flag", {}, said("x", retry_after=True), None),
]


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [case[1:] for case in CASES],
    ids=[c[0] for c in CASES],
)
def test_when_a_limit_is_reset_is_understood_as_the_apis_say_it(
    headers: Mapping[str, str], body: Any, seconds: float | None
) -> None:
    resume_at = None if seconds is None else NOW + timedelta(seconds=seconds)
    wanted = Outlook(passes=True, at_once=True, resume_at=resume_at)
    assert of_response(429, headers, body, NOW) == wanted
    assert of_response(429, httpx2.Headers(dict(headers)), body, NOW) == wanted


def test_the_windows_of_limits_say_nothing_of_an_api_that_is_overloaded() -> None:
    """They come with every response."""
    headers = {"x-ratelimit-reset-tokens": "6m0s"}
    assert of_response(503, headers, {}, NOW) == Outlook(True, at_once=True)
    headers["retry-after"] = "9"
    outlook = of_response(529, headers, {}, NOW)
    assert outlook.resume_at == NOW + timedelta(seconds=9)


def test_a_limit_passes_also_if_the_api_wants_no_repetition_now() -> None:
    no = {"x-should-retry": "false"}
    assert of_response(429, no, {}, NOW) == Outlook(True, at_once=False)
    limited = of_response(429, {**no, "retry-after": "9000"}, {}, NOW)
    assert limited == Outlook(True, False, NOW + timedelta(seconds=9000))
    assert of_response(500, no, {}, NOW) == NEVER


@pytest.mark.parametrize(
    "body",
    [
        {"message": "You exceeded your current quota", "code": "insufficient_quota"},
        said("You exceeded your current quota", type="insufficient_quota"),
        {"error_type": "usage_not_included", "message": "not in your plan"},
    ],
)
def test_what_waits_for_money_does_not_pass(body: Any) -> None:
    assert of_response(429, {"retry-after": "9"}, body, NOW) == NEVER
    assert of_error(body, NOW) == NEVER


@pytest.mark.parametrize(
    ("body", "passes"),
    [
        (
            {"type": "error", "error": {"type": "overloaded_error", "message": "x"}},
            True,
        ),
        ({"type": "error", "error": {"type": "api_error", "message": "x"}}, True),
        ({"type": "error", "error": {"type": "invalid_request_error"}}, False),
        ({"code": "server_error", "message": "x"}, True),
        ({"code": 502, "message": "Provider disconnected"}, True),
        ({"code": "400", "message": "no"}, False),
        ({"code": "invalid_api_key", "message": "Mend it and try again"}, False),
        (
            {"type": "invalid_request_error", "message": "Shorten it and try again"},
            False,
        ),
        # Some that speak this form call everything so.
        ({"type": "invalid_request_error", "code": "rate_limit_exceeded"}, True),
        ("Overloaded", True),
        ("the context is too long", False),
        ({}, False),
        (None, False),
    ],
)
def test_an_error_inside_a_stream_is_judged_by_its_name(
    body: Any, passes: bool
) -> None:
    assert of_error(body, NOW) == Outlook(passes, at_once=passes)


def test_an_error_inside_a_stream_may_say_when_as_well() -> None:
    body = {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "Please try again in 90s"},
    }
    assert of_error(body, NOW).resume_at == NOW + timedelta(seconds=90)


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["type", "code", "message", "resets_at", "retry_after", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
WORDS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["1e400", "-1", "0", "²", "1_0", "9" * 400, "0001-01-01", HTTP]),
    st.builds(
        "{}{}{}".format,
        st.integers(),
        st.sampled_from(["s", "h ", "d"]),
        st.text(max_size=3),
    ),
)


@given(
    st.integers(300, 600),
    st.dictionaries(
        st.sampled_from(
            [
                "retry-after",
                "retry-after-ms",
                "x-ratelimit-reset",
                "x-should-retry",
                "anthropic-ratelimit-unified-status",
                "anthropic-ratelimit-tokens-reset",
            ]
        ),
        WORDS,
    ),
    JSON | WORDS.map(lambda text: said(f"Please try again in {text}")),
)
def test_whatever_is_said_an_outlook_makes_sense(
    status: int, headers: dict[str, str], body: Any
) -> None:
    for outlook in (of_response(status, headers, body, NOW), of_error(body, NOW)):
        assert outlook.resume_at is None or (outlook.passes and outlook.resume_at > NOW)
    if status < 500 and status not in (408, 409, 429):
        assert not of_response(status, headers, body, NOW).passes


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        (
            "HTTP 400, invalid_request_error: prompt is too long: 208310 tokens > 200000",
            True,
        ),
        (
            "HTTP 400, context_length_exceeded: This model's maximum context length is",
            True,
        ),
        ("HTTP 400, the request exceeds the available context size", True),
        ("HTTP 413, request_too_large: Request exceeds the maximum size", True),
        ("HTTP 400, Input is too long for requested model.", True),
        ("HTTP 400, invalid_request_error: max_tokens: must be positive", False),
        ("HTTP 401, authentication_error: invalid x-api-key", False),
    ],
)
def test_what_apis_say_of_a_conversation_that_is_too_long_is_known(
    told: str, wanted: bool
) -> None:
    assert is_too_long(told) is wanted
