"""What agents may use, together and each."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from actors.agent import Budget


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
