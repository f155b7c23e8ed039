"""What agents may use, together and each."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from actors.agent import (
    AssistantMessage,
    Budget,
    FinalResult,
    TokensUsed,
    UserMessage,
)
from tests.actors.agent.agents import Stage, told


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        (
            {"tokens": "1"},
            TypeError,
            "tokens must be a whole number, 0 or more, or None, not '1'",
        ),
        (
            {"tokens": True},
            TypeError,
            "tokens must be a whole number, 0 or more, or None, not True",
        ),
        (
            {"tokens": -1},
            ValueError,
            "tokens must be a whole number, 0 or more, or None, not -1",
        ),
        (
            {"cost": "1"},
            TypeError,
            "cost must be a number, 0 or more, or None, not '1'",
        ),
        (
            {"cost": float("inf")},
            ValueError,
            "cost must be a number, 0 or more, or None, not inf",
        ),
        (
            {"cost": -0.5},
            ValueError,
            "cost must be a number, 0 or more, or None, not -0.5",
        ),
        ({"parent": 5}, TypeError, "parent must be a Budget or None, not 5"),
    ],
)
def test_a_bad_argument_is_refused_by_its_name_and_value(arguments, error, named):
    with pytest.raises(error) as raised:
        Budget(**arguments)
    assert str(raised.value) == named


def test_it_says_what_is_used_up():
    budget = Budget(tokens=100, cost=2.5)
    budget.charge(99, 2.0)
    assert budget.exceeded is None
    assert budget.left() == (1, 0.5)
    budget.charge(cost=0.5)
    assert budget.exceeded == "its budget of 2.5 is used up: 2.5"
    budget.charge(2)
    assert budget.exceeded == "its budget of 100 tokens is used up: 101"
    assert budget.left() == (0, 0.0)
    assert repr(budget) == "<Budget: 101 of 100 tokens, 2.5 of 2.5 in cost>"


def test_without_limits_it_only_counts():
    budget = Budget()
    budget.charge(10**9, 10.0**9)
    assert (budget.used_tokens, budget.used_cost) == (10**9, 10.0**9)
    assert (budget.exceeded, budget.left()) == (None, (None, None))


def test_a_part_is_used_up_as_soon_as_the_whole_is():
    """HL15: so the sum of the parts never passes the whole."""
    whole = Budget(tokens=100)
    first, second = whole.child(tokens=80), whole.child(tokens=80)
    below = first.child()
    below.charge(60)
    assert (whole.used_tokens, first.used_tokens, second.used_tokens) == (60, 60, 0)
    assert second.left() == (40, None)
    second.charge(40)
    for budget in (whole, first, second, below):
        assert budget.exceeded == "its budget of 100 tokens is used up: 100"
    assert first.left() == (0, None)


def test_a_part_that_is_used_up_leaves_the_rest_to_the_others():
    whole = Budget(tokens=100)
    first, second = whole.child(tokens=10), whole.child()
    first.charge(10)
    assert first.exceeded is not None
    assert (whole.exceeded, second.exceeded) == (None, None)
    assert second.left() == (90, None)


@pytest.mark.parametrize("charge", [(-1, 0.0), (0, -1.0), ("1", 0.0), (1, None)])
def test_a_bad_charge_changes_nothing(charge):
    whole = Budget(tokens=100)
    with pytest.raises((TypeError, ValueError)):
        whole.child().charge(*charge)
    assert (whole.used_tokens, whole.used_cost) == (0, 0.0)


async def test_whoever_waits_hears_of_the_end_of_any_budget_above():
    """HL15."""
    whole = Budget(tokens=100)
    part, other = whole.child(tokens=50), whole.child()
    heard = []

    async def wait(name, budget):
        heard.append((name, await budget.wait_exceeded()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "part", part)
        nursery.start_soon(wait, "below", part.child())
        nursery.start_soon(wait, "other", other)
        await trio.testing.wait_all_tasks_blocked()
        part.charge(50)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(name for name, _ in heard) == ["below", "part"]
        whole.charge(50)
    assert heard[-1] == ("other", "its budget of 100 tokens is used up: 100")
    with trio.fail_after(10):
        assert "100 tokens" in await other.wait_exceeded()


@pytest.mark.parametrize(
    ("limits", "charges", "marks"),
    [
        (
            (100, None),
            [(49, 0), (1, 0), (29, 0), (1, 0), (20, 0)],
            [0, 0.5, 0.5, 0.8, 1],
        ),
        ((None, 2.0), [(10**6, 0.9), (0, 0.2), (0, 0.8), (0, 9)], [0, 0.5, 0.8, 1]),
        ((100, 2.0), [(60, 0.1), (0, 1.6), (40, 0.0)], [0.5, 0.8, 1]),
        ((0, None), [(0, 0)], [1]),
        ((None, None), [(10**9, 1e9)], [0]),
    ],
)
def test_the_mark_is_the_part_of_which_somebody_is_told(limits, charges, marks):
    budget = Budget(*limits)
    seen = []
    for charge in charges:
        budget.charge(*charge)
        seen.append(budget.mark)
    assert seen == marks


@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 60), st.none() | st.floats(0, 6)),
        min_size=3,
        max_size=3,
    ),
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 20), st.floats(0, 2)), max_size=15
    ),
)
def test_whoever_waits_hears_of_each_mark_once_and_no_later_than_it_is_reached(
    limits, charges
):
    """A whole, a part of it, and a part of that; charged anywhere."""

    async def main():
        whole = Budget(*limits[0])
        part = whole.child(*limits[1])
        budgets = [whole, part, part.child(*limits[2])]
        heard = [[0.0], [0.0], [0.0]]

        async def watch(place):
            while heard[place][-1] < 1.0:
                above = heard[place][-1]
                heard[place].append(await budgets[place].wait_mark(above))

        async with trio.open_nursery() as nursery:
            for place in range(3):
                nursery.start_soon(watch, place)
            await trio.testing.wait_all_tasks_blocked()
            for place, tokens, cost in charges:
                budgets[place].charge(tokens, cost)
                await trio.testing.wait_all_tasks_blocked()
                for budget, said in zip(budgets, heard, strict=True):
                    assert said[-1] == budget.mark
                    assert (budget.mark == 1.0) == (budget.exceeded is not None)
                    assert said == sorted(set(said))
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_part_knows_what_it_is_a_part_of():
    whole = Budget(10)
    part = whole.child().child()
    assert part.is_part_of(whole) and part.is_part_of(part)
    assert not whole.is_part_of(part) and not part.is_part_of(Budget(10))


# What an agent is told of it


def spender(*rounds, take=True):
    """Use so many tokens in each round, and take what has come after each."""

    async def run(context):
        for tokens in rounds:
            yield TokensUsed(input_tokens=tokens)
            yield AssistantMessage(f"used {tokens}")
            await trio.testing.wait_all_tasks_blocked()
            if take:
                context.inbox.take()
        yield FinalResult("done")

    return run


def reminders(stage):
    return [
        message.text.partition(",")[0]
        for message in stage.host.messages
        if isinstance(message, UserMessage) and message.origin == "reminder"
    ]


@pytest.mark.parametrize(
    ("rounds", "parts"),
    [
        ((10, 39), []),
        ((10, 40), ["50%"]),
        ((10, 40, 5, 5, 19), ["50%"]),
        ((10, 40, 30, 1, 1), ["50%", "80%"]),
        ((10, 85, 1, 1), ["80%"]),
    ],
)
async def test_an_agent_and_its_host_are_told_once_when_half_and_when_most_is_used(
    rounds, parts
):
    stage = Stage(spender(*rounds), budget=Budget(tokens=100))
    assert await stage.run() == "done"
    assert reminders(stage) == [f"{part} of your budget is used" for part in parts]
    assert [text.partition(" ")[0] for text in stage.report.warnings] == parts
    assert all("tokens left" in text for text in stage.report.warnings)
    # It is no reason to go on for an agent that is done.
    assert stage.events[-1] == FinalResult("done")


async def test_a_warning_that_nobody_takes_keeps_no_agent_from_its_end():
    stage = Stage(spender(60, 30, take=False), budget=Budget(tokens=100))
    assert await stage.run() == "done"
    assert reminders(stage) == []
    assert [text[:3] for text in stage.report.warnings] == ["50%", "80%"]


async def test_the_next_run_of_a_conversation_is_not_told_again():
    budget = Budget(tokens=100)
    first = Stage(spender(60), budget=budget)
    await first.run()
    second = Stage(spender(10, 15), budget=budget)
    second.host.history = first.host.messages
    await second.run()
    assert [text[:3] for text in second.report.warnings] == ["80%"]


async def test_a_warning_of_the_budget_comes_behind_what_has_waited():
    async def run(context):
        yield TokensUsed(input_tokens=50)
        await trio.testing.wait_all_tasks_blocked()
        context.inbox.put(told("hello"))
        assert len(context.inbox) == len(context.inbox.waiting()) == 1
        assert [m.origin for m in context.inbox.take()] == ["message", "reminder"]
        assert context.inbox.take() == []
        yield FinalResult("done")

    assert await Stage(run, budget=Budget(tokens=100)).run() == "done"
