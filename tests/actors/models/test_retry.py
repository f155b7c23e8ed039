"""Asking again within one run: how often, how long, what is told, and what the agent is
left with when it does not help."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import attrs
import pytest
import trio
import trio.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st

from actors.agent import (
    AssistantMessage,
    Message,
    Retrying,
    TextDelta,
    TransientError,
    UserMessage,
)
from actors.models import ModelFailed, loop
from actors.models._model import Told
from actors.models._retry import retrying
from actors.testing import FakeEnv, fake_env
from tests.actors.agent.agents import Stage

PATIENCE = 60.0
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
"""The zero of trio's clock, in `fake_env`."""


@attrs.frozen
class Outcome:
    """What one request comes to."""

    how: Literal["ok", "passes", "later", "stays"]
    """``later``: it passes, but the API wants no repetition."""
    words: int = 0
    """The words that come before the end, or before the error."""
    after: float | None = None
    """The seconds after which the API says that it passes."""


@attrs.define
class Api:
    """A model behind an API that comes to these outcomes, one after the other."""

    outcomes: Sequence[Outcome]
    retries: int
    env: FakeEnv = attrs.Factory(fake_env)
    asked_at: list[float] = attrs.Factory(list[float])
    closed: int = 0

    def reply(
        self, messages: Sequence[Message], tools: Any = (), system: str | None = None
    ) -> AsyncGenerator[Told, None]:
        return retrying(self._once, self.retries, self.env)

    async def _once(self) -> AsyncGenerator[Told, None]:
        number = len(self.asked_at)
        self.asked_at.append(trio.current_time())
        outcome = self.outcomes[number]
        said = ""
        try:
            for word in range(outcome.words):
                await trio.lowlevel.checkpoint()
                said += f"{number}.{word} "
                yield TextDelta(f"{number}.{word} ")
            if outcome.how == "ok":
                yield AssistantMessage(said or "yes")
                return
            resume_at = None
            if outcome.after is not None:
                resume_at = self.env.clock.now() + timedelta(seconds=outcome.after)
            raise ModelFailed(
                f"error {number}",
                said,
                temporary=outcome.how != "stays",
                resume_at=resume_at,
                at_once=outcome.how == "passes",
            )
        finally:
            self.closed += 1


@attrs.frozen
class Expected:
    """What must come of it, by the rules."""

    tries: int
    waits: tuple[float | None, ...]
    """None: as long as the backoff says."""
    end: Literal["ok", "pauses", "fails"]
    resume_after: float | None = None


def expected(outcomes: Sequence[Outcome], retries: int) -> Expected:
    """The rules, once more and in other words."""
    waits: list[float | None] = []
    for number, outcome in enumerate(outcomes):
        if outcome.how == "ok":
            return Expected(number + 1, tuple(waits), "ok")
        end: Literal["pauses", "fails"] = (
            "fails" if outcome.how == "stays" else "pauses"
        )
        may_repeat = outcome.how == "passes" and outcome.words == 0
        is_far = outcome.after is not None and outcome.after > PATIENCE
        if may_repeat and not is_far and number < retries:
            waits.append(outcome.after)
            continue
        resume_after = outcome.after
        # A hint that was followed and was wrong is worth no more.
        if may_repeat and not is_far and any(waits):
            resume_after = None
        return Expected(number + 1, tuple(waits), end, resume_after)
    raise AssertionError


OUTCOMES = st.builds(
    Outcome,
    st.sampled_from(["passes"] * 6 + ["ok", "later", "stays"]),
    st.sampled_from([0] * 8 + [1, 3]),
    st.sampled_from([None, None, 0.25, 30.0, 60.0, 61.0, 7200.0]),
)


WITH, WITHOUT = Outcome("passes", after=30.0), Outcome("passes")


@settings(max_examples=400)
@example([WITH, WITHOUT, WITH], 2)
@given(st.lists(OUTCOMES, max_size=7), st.integers(0, 5))
def test_any_sequence_of_outcomes_is_told_and_ends_by_the_rules(
    drawn: list[Outcome], retries: int
) -> None:
    outcomes = [*drawn, Outcome("ok")]
    wanted = expected(outcomes, retries)
    api = Api(outcomes, retries)
    stage = Stage(loop(api))
    failure: Exception | None = None
    began = 0.0

    async def main() -> None:
        nonlocal failure, began
        began = trio.current_time()
        try:
            await stage.run()
        except Exception as error:
            failure = error

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    last = outcomes[wanted.tries - 1]

    # As often as the rules say, at their times, and with nothing left behind.
    assert len(api.asked_at) == api.closed == wanted.tries
    told = [event for event in stage.events if isinstance(event, Retrying)]
    assert [event.attempt for event in told] == [*range(1, wanted.tries)]
    assert [event.reason for event in told] == [f"error {n}" for n in range(len(told))]
    due = began
    for place, (event, hint) in enumerate(zip(told, wanted.waits, strict=True)):
        backoff = min(0.5 * 2**place, 8.0) * (1 - 0.25 * 0.5)
        assert event.wait == pytest.approx(backoff if hint is None else hint)
        due += event.wait
        assert api.asked_at[place + 1] == pytest.approx(due)

    # It ends as it must, and says when it can go on.
    if wanted.end == "ok":
        assert failure is None
    elif wanted.end == "pauses":
        assert isinstance(failure, TransientError)
        assert failure.reason == f"error {wanted.tries - 1}"
        if wanted.resume_after is None:
            assert failure.resume_at is None
        else:
            assert failure.resume_at is not None
            passed = (failure.resume_at - EPOCH).total_seconds()
            assert passed == pytest.approx(api.asked_at[-1] + wanted.resume_after)
    else:
        assert failure is not None and not isinstance(failure, TransientError)

    # What was said is in the conversation, once. If it broke off and the agent is to go
    # on, that is said behind it, and nothing else is.
    words = "".join(f"{wanted.tries - 1}.{word} " for word in range(last.words))
    if wanted.end == "ok":
        words = words or "yes"
    said = stage.said()
    if wanted.end == "pauses" and words:
        assert said.pop().startswith("Your last message broke off")
    assert said == ["do it", *([words] if words else [])]
    assert stage.report.result == (words or None)
    deltas = [event.text for event in stage.events if isinstance(event, TextDelta)]
    assert "".join(deltas) == (words if last.words else "")


async def test_the_next_run_asks_anew_behind_what_was_said_of_an_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """No word is lost, and none is taken for the answer."""
    api = Api([Outcome("passes", words=2), Outcome("ok", words=2)], retries=3)
    first = Stage(loop(api))
    with pytest.raises(TransientError):
        await first.run()
    second = Stage(loop(api))
    second.host.history = first.host.messages
    assert await second.run() == "1.0 1.1 "
    (*before, again), (goes_on, *after) = first.said(), second.said()
    assert [before, after] == [["do it", "0.0 0.1 "], ["1.0 1.1 "]]
    assert again.startswith("Your last message broke off")
    assert goes_on.startswith("Continue working")


async def test_a_model_that_fails_for_a_time_without_a_word_is_no_mistake_of_the_loop() -> (
    None
):
    async def reply(*_: Any) -> AsyncGenerator[Told, None]:
        raise ModelFailed(" ", temporary=True)
        yield AssistantMessage("")

    model: Any = type("Model", (), {"reply": staticmethod(reply)})()
    with pytest.raises(TransientError, match="the model failed for a time") as raised:
        await Stage(loop(model)).run()
    assert raised.value.__cause__ is None


async def test_a_retry_is_the_last_activity_and_not_in_the_transcript(
    autojump_clock: trio.testing.MockClock,
) -> None:
    api = Api([Outcome("passes", after=30.0), Outcome("ok", words=1)], retries=1)
    stage = Stage(loop(api))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.run)
        await trio.testing.wait_all_tasks_blocked()
        last = stage.report.progress.text
        assert last == "Trying again in 30 s, after try 1: error 0"
    assert {type(message) for message in stage.host.messages} == {
        UserMessage,
        AssistantMessage,
    }
    assert type(stage.events[1]) is Retrying


async def test_a_cancellation_in_a_wait_asks_no_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    api = Api([Outcome("passes", after=30.0), Outcome("ok")], retries=1)
    with trio.move_on_after(29):
        async with aclosing(api.reply(())) as events:
            assert [type(event) async for event in events] == [Retrying]
    assert len(api.asked_at) == api.closed == 1


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"attempt": 0}, ValueError, "Retrying.attempt must be a whole number, 1 or"),
        ({"reason": None}, TypeError, "Retrying.reason must be a str, not None"),
        ({"wait": -1}, ValueError, "Retrying.wait must be seconds, 0 or more, not -1"),
    ],
)
def test_a_bad_argument_of_a_retry_is_named(
    arguments: dict[str, Any], error: type[Exception], named: str
) -> None:
    given: Any = {"attempt": 1, "reason": "x", "wait": 0.5, **arguments}
    with pytest.raises(error, match=named):
        Retrying(**given)
