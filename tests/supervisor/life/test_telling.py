"""What an exit means, and what is told of an error."""

from __future__ import annotations

import pytest

from actors import Completed, Exit, Failed, Stopped, TaskStatus
from supervisor._life.telling import describe, describe_error, outcome_of

OWN = ValueError("own")


@pytest.mark.parametrize(
    ("exit", "own_exit", "status", "error"),
    [
        (Completed(1), None, "completed", None),
        (Failed(OWN), None, "failed", "ValueError"),
        (Stopped("supervisor"), None, "killed", None),
        (Stopped("stop"), None, "killed", None),
        (Stopped("outer"), None, "killed", None),
        (Stopped("owner"), None, "killed", None),
        (Stopped("deadline"), None, "failed", "TimeoutError"),
        (Stopped("supervisor"), Completed(None), "completed", None),
        (Stopped("deadline"), Completed(None), "completed", None),
        (Stopped("supervisor"), Failed(OWN), "failed", "ValueError"),
        (Failed(KeyError()), Completed(None), "failed", "KeyError"),
        (Completed(None), Stopped("stop"), "killed", None),
        (Completed(None), Stopped("deadline"), "failed", "TimeoutError"),
    ],
)
def test_an_exit_means_a_status(
    exit: Exit[object], own_exit: Exit[object] | None, status: str, error: str | None
) -> None:
    """The brief, section 6: killed, failed, completed."""
    found, reason = outcome_of(exit, own_exit)
    assert found is TaskStatus(status)
    assert (None if reason is None else type(reason).__name__) == error


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class Odd(str):
    def __str__(self) -> str:
        return self


def test_any_error_becomes_text() -> None:
    """P3: nobody's own methods cost a task its end."""
    shown = describe_error(LookupError("there"))
    assert (shown.type, shown.message) == ("LookupError", "there")
    assert shown.traceback == "LookupError: there\n"
    hidden = describe_error(Silent())
    assert hidden.type == "Silent"
    assert hidden.message == "a Silent that cannot be shown: RuntimeError"
    assert "Silent" in hidden.traceback
    long = describe_error(ValueError("x" * 10**6))
    assert len(long.message) == len(long.traceback) == 65_536


def test_any_value_becomes_a_real_str() -> None:
    assert describe(5) == "5"
    assert type(describe(Odd("odd"))) is str and describe(Odd("odd")) == "odd"
    assert describe(Silent()) == "a Silent that cannot be shown: RuntimeError"
