"""When an agent goes on whose run was stopped by something that passes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.agent import TransientError
from supervisor._tasks.pausing import PATIENCE, Try, gave_up, next_pause

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = 3600.0


def waits(
    patience: float, chance: float = 0.5, known: timedelta | None = None
) -> list[float]:
    """Return the seconds of all pauses of an agent of which every try fails."""
    tries: tuple[Try, ...] = ()
    now, found = NOW, list[float]()
    while True:
        error = TransientError("overloaded", None if known is None else now + known)
        tried, pause = next_pause(tries, error, now, patience, chance)
        tries = (*tries, tried)
        if pause is None:
            return found
        assert pause.attempt == len(tries) and pause.resume_at is not None
        found.append((pause.resume_at - now).total_seconds())
        now = pause.resume_at


def test_without_a_known_time_the_pauses_grow_to_half_an_hour() -> None:
    minutes = [wait / 60 for wait in waits(PATIENCE)]
    assert minutes[:8] == pytest.approx([1, 2, 5, 10, 20, 30, 30, 30])
    assert sum(minutes) == pytest.approx(6 * 60)
    assert max(minutes) == pytest.approx(30)


@given(
    patience=st.floats(0, 100 * HOUR),
    chance=st.floats(0, 1, exclude_max=True),
    known=st.none() | st.floats(-HOUR, HOUR).map(lambda it: timedelta(seconds=it)),
)
def test_no_agent_tries_again_for_longer_than_its_patience(
    patience: float, chance: float, known: timedelta | None
) -> None:
    """However often a time is named. Only the first such pause is not counted."""
    found = waits(patience, chance, known)
    assert all(wait >= 0 for wait in found)
    if known is None:
        assert sum(found) == pytest.approx(patience, abs=0.01)
        assert all(wait <= 33 * 60 + 1 for wait in found)
    else:
        longest = max(known.total_seconds(), 33 * 60)
        # Each of them but the first and the last takes a minute of its patience.
        assert len(found) <= 2 + patience / 54
        assert all(wait <= longest + 1 for wait in found)


@given(st.floats(0, 1, exclude_max=True))
def test_chance_makes_a_pause_a_tenth_shorter_or_longer(chance: float) -> None:
    _, pause = next_pause((), TransientError("x"), NOW, PATIENCE, chance)
    assert pause is not None and pause.resume_at is not None
    assert 54 <= (pause.resume_at - NOW).total_seconds() <= 66


def test_a_time_that_is_known_is_kept_to_also_if_it_is_days_away() -> None:
    """In UTC, whatever zone it was told in, and also without any patience."""
    zone = timezone(timedelta(hours=5))
    until = (NOW + timedelta(days=3)).astimezone(zone)
    tried, pause = next_pause((), TransientError("the week", until), NOW, 0.0, 0.5)
    assert pause is not None and tried.waited == 0
    assert pause.resume_at is not None and pause.resume_at.tzinfo is UTC
    assert pause.resume_at == until


def test_a_time_that_is_over_is_now() -> None:
    error = TransientError("x", NOW - timedelta(hours=1))
    _, pause = next_pause((), error, NOW, PATIENCE, 0.5)
    assert pause is not None and pause.resume_at == NOW


@pytest.mark.parametrize(
    "until",
    [
        NOW + timedelta(days=33),
        datetime(2058, 1, 1, tzinfo=UTC),
        # It has no name in UTC.
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))),
    ],
)
def test_a_time_that_is_absurdly_far_is_none(until: datetime) -> None:
    _, pause = next_pause((), TransientError("x", until), NOW, PATIENCE, 0.5)
    assert pause is not None and pause.resume_at == NOW + timedelta(minutes=1)


def test_the_first_of_all_times_is_over() -> None:
    first = datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))
    _, pause = next_pause((), TransientError("x", first), NOW, PATIENCE, 0.5)
    assert pause is not None and pause.resume_at == NOW


def test_a_time_that_did_not_help_is_believed_only_beside_the_schedule() -> None:
    """Or a server that always says "in a second" is asked every second for ever."""
    found = waits(PATIENCE, known=timedelta(seconds=1))
    assert found[:4] == pytest.approx([1, 2 * 60, 5 * 60, 10 * 60])


def test_the_last_error_tells_all_tries() -> None:
    tries = [
        Try(NOW + timedelta(hours=hour), f"because {hour}\nof it") for hour in range(3)
    ]
    error = gave_up(tries)
    assert error.mode == "error"
    assert error.message == (
        "it was tried 3 times in 2.0 h and did not pass: "
        "2030-01-01T00:00:00+00:00 because 0 of it; "
        "2030-01-01T01:00:00+00:00 because 1 of it; "
        "2030-01-01T02:00:00+00:00 because 2 of it"
    )
    assert "1 time and" in gave_up(tries[:1]).message
