"""What the loop of an agent raises, and what the agent makes of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import trio

from actors.agent import AssistantMessage, TextDelta, TransientError
from actors.work import WorkFailed
from tests.actors.agent.agents import Stage

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ((3,), TypeError, "reason must be a str, not 3"),
        ((" ",), ValueError, "reason must not be empty: ' '"),
        (("x", 5.0), TypeError, "resume_at must be a datetime or None, not 5.0"),
        (
            ("x", datetime(2026, 5, 1)),
            ValueError,
            "resume_at must have a time zone, and datetime.datetime(2026, 5, 1, 0, 0)",
        ),
    ],
)
def test_a_bad_argument_of_a_transient_error_is_refused(arguments, error, named):
    with pytest.raises(error) as raised:
        TransientError(*arguments)
    assert named in str(raised.value)


def test_a_transient_error_is_a_failure_of_no_code_and_says_its_reason():
    error = TransientError("overloaded", NOON)
    assert isinstance(error, WorkFailed)
    assert (str(error), error.resume_at) == ("overloaded", NOON)


async def test_a_transient_error_fails_an_agent_with_all_it_has_said_kept():
    passing = TransientError("the API is overloaded", NOON)

    async def run(context):
        yield AssistantMessage("I have begun.")
        yield TextDelta("Next I ")
        raise passing

    stage = Stage(run)
    with pytest.raises(TransientError) as raised:
        await stage.run()
    assert raised.value is passing
    assert stage.report.terminate == "error"
    assert stage.report.result == "Next I "
    assert stage.said() == ["do it", "I have begun."]


@pytest.mark.parametrize("others", [0, 1])
async def test_it_comes_out_of_a_nursery_unless_another_error_is_beside_it(others):
    passing = TransientError("the API is overloaded")

    async def fail(error: Exception) -> None:
        raise error

    async def run(context):
        yield AssistantMessage("I have begun.")
        async with trio.open_nursery() as outer, trio.open_nursery() as inner:
            outer.start_soon(fail, passing)
            inner.start_soon(fail, passing)
            for _ in range(others):
                inner.start_soon(fail, OSError("no disk"))

    kind: Any = ExceptionGroup if others else TransientError
    with pytest.raises(kind) as raised:
        await Stage(run).run()
    if not others:
        assert raised.value is passing
    else:
        assert raised.group_contains(OSError)
