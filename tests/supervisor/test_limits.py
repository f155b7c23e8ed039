"""Places and queues: all synchronous, all data."""

from __future__ import annotations

from collections import deque
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor._limits import Limits, Slots


@attrs.define(eq=False)
class Item:
    task_type: str = "local_bash"


def agent() -> Item:
    return Item("local_agent")


@pytest.mark.parametrize("name", ["total", "shells", "agents", "backlog"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "5", float("nan")])
def test_a_bad_limit_is_refused_by_name(name: str, value: object) -> None:
    """CO4: only whole numbers from 1 on."""
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"{name}.*{value!r}"):
        Limits(**arguments)


def test_every_cap_but_the_backlog_may_be_missing() -> None:
    assert Limits() == Limits(total=None, shells=None, agents=None, backlog=10_000)
    with pytest.raises(ValueError, match=r"backlog.*None"):
        Limits(backlog=None)  # type: ignore[arg-type]


def test_without_limits_everybody_has_a_place() -> None:
    slots: Slots[Item] = Slots(Limits())
    assert all(slots.take(Item()) for _ in range(1000))
    assert slots.take_next() is None


def test_those_who_wait_are_served_first_in_first_out() -> None:
    """CO5, CO10."""
    slots: Slots[Item] = Slots(Limits(total=1))
    first, *others = [Item() for _ in range(5)]
    assert slots.take(first)
    assert not any(slots.take(other) for other in others)
    served: list[Item | None] = []
    for previous in [first, *others]:
        slots.give_back(previous)
        served.append(slots.take_next())
        assert slots.take_next() is None
    assert served == [*others, None]


def test_nobody_overtakes_those_who_wait() -> None:
    """CO6: not even when a place is free for a moment."""
    slots: Slots[Item] = Slots(Limits(shells=1))
    first, second, racer = Item(), Item(), Item()
    slots.take(first)
    slots.take(second)
    slots.give_back(first)
    assert not slots.take(racer)
    assert slots.take_next() is second


def test_a_kind_at_its_cap_does_not_hold_up_the_other() -> None:
    slots: Slots[Item] = Slots(Limits(total=3, shells=1))
    shells, agents = [Item() for _ in range(3)], [agent() for _ in range(3)]
    assert [slots.take(item) for item in shells] == [True, False, False]
    assert [slots.take(item) for item in agents] == [True, True, False]
    slots.give_back(agents[0])
    assert slots.take_next() is agents[2]
    slots.give_back(shells[0])
    assert slots.take_next() is shells[1]


def test_local_and_remote_agents_share_a_cap() -> None:
    slots: Slots[Item] = Slots(Limits(agents=1))
    assert slots.take(agent())
    assert not slots.take(Item("remote_agent"))
    assert slots.take(Item())


def test_leaving_the_queue_moves_up_the_others() -> None:
    """CO5, CO11."""
    slots: Slots[Item] = Slots(Limits(total=1))
    first, second, third = Item(), Item(), Item()
    for item in (first, second, third):
        slots.take(item)
    slots.leave_queue(second)
    slots.leave_queue(second)
    slots.leave_queue(agent())
    slots.give_back(first)
    assert slots.take_next() is third


def test_a_place_taken_beyond_the_cap_is_given_to_nobody_else() -> None:
    slots: Slots[Item] = Slots(Limits(total=1))
    lender, first, second = Item(), Item(), Item()
    slots.take(lender)
    slots.take(first)
    slots.take(second)
    slots.give_back(lender)
    assert slots.take_next() is first
    slots.occupy(lender)
    slots.give_back(first)
    assert slots.take_next() is None
    slots.give_back(lender)
    assert slots.take_next() is second


def test_ten_thousand_who_wait_are_served_in_linear_time() -> None:
    slots: Slots[Item] = Slots(Limits(total=1))
    items = [Item() for _ in range(100_000)]
    for item in items:
        slots.take(item)
    for item in items:
        slots.give_back(item)
        slots.take_next()
    assert slots.take(Item())


@given(
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from([None, 1, 2]),
    st.sampled_from([None, 1, 2]),
    st.lists(
        st.tuples(
            st.sampled_from(["shell", "agent", "end", "leave"]), st.integers(0, 9)
        )
    ),
)
def test_the_caps_hold_and_no_place_stays_free(
    total: int | None,
    shells: int | None,
    agents: int | None,
    steps: list[tuple[str, int]],
) -> None:
    """Against a model: as many run as may, in order within each kind."""
    slots: Slots[Item] = Slots(Limits(total=total, shells=shells, agents=agents))
    running: list[Item] = []
    waiting: deque[Item] = deque()

    def caps_hold(items: list[Item]) -> bool:
        of_kind = [
            sum(i.task_type == t for i in items) for t in ("local_bash", "local_agent")
        ]
        return all(
            cap is None or count <= cap
            for cap, count in zip(
                (total, shells, agents), (len(items), *of_kind), strict=True
            )
        )

    for what, which in steps:
        if what in ("shell", "agent"):
            item = Item() if what == "shell" else agent()
            (running if slots.take(item) else waiting).append(item)
        elif what == "end" and running:
            slots.give_back(running.pop(which % len(running)))
            while (served := slots.take_next()) is not None:
                assert served is next(
                    i for i in waiting if i.task_type == served.task_type
                )
                waiting.remove(served)
                running.append(served)
        elif what == "leave" and waiting:
            item = waiting[which % len(waiting)]
            waiting.remove(item)
            slots.leave_queue(item)
        assert caps_hold(running)
        assert not any(caps_hold([*running, item]) for item in waiting)
