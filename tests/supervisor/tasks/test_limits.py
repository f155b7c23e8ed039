"""Places and queues: all synchronous, all data."""

from __future__ import annotations

from collections import deque
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor._tasks.places import Limits, Slots


@attrs.define(eq=False)
class Item:
    task_type: str = "local_bash"
    limit_key: str | None = None


def agent(model: str | None = None) -> Item:
    return Item("local_agent", model)


@pytest.mark.parametrize("name", ["total", "shells", "agents", "backlog"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "5", float("nan")])
def test_a_bad_limit_is_refused_by_name(name: str, value: object) -> None:
    """CO4: only whole numbers from 1 on."""
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"{name}.*{value!r}"):
        Limits(**arguments)


@pytest.mark.parametrize("name", ["models", "providers"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, None, "5", float("nan")])
def test_a_bad_cap_of_a_model_is_refused_by_name(name: str, value: object) -> None:
    """CO4, CO8: told, and not passed over."""
    arguments: dict[str, Any] = {name: {"good": 1, "opus": value}}
    with pytest.raises(ValueError, match=rf"{name}\['opus'\].*{value!r}"):
        Limits(**arguments)


@pytest.mark.parametrize("name", ["models", "providers"])
@pytest.mark.parametrize("value", [None, 3, "opus", ["opus"], {3: 1}, {"": 1}])
def test_caps_of_models_that_are_no_mapping_are_refused_by_name(
    name: str, value: object
) -> None:
    """CO4."""
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(TypeError, match=name):
        Limits(**arguments)


def test_nobody_changes_the_caps_afterwards() -> None:
    caps = {"opus": 1}
    limits = Limits(models=caps, providers=caps)
    caps["opus"] = 2
    assert limits.models == limits.providers == {"opus": 1}


def test_every_cap_but_the_backlog_may_be_missing() -> None:
    assert Limits() == Limits(
        total=None, shells=None, agents=None, models={}, providers={}, backlog=10_000
    )
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


def test_those_who_come_back_are_served_in_order_and_before_all_others() -> None:
    """CO5, CO6: and one of them may give up."""
    slots: Slots[Item] = Slots(Limits(total=2))
    lenders, others = [Item() for _ in range(3)], [Item() for _ in range(3)]
    for lender in lenders:
        assert slots.take(lender)
        slots.give_back(lender)
    assert [slots.take(item) for item in others] == [True, True, False]
    assert not any(slots.take_again(lender) for lender in lenders)
    assert slots.waiting == 4
    slots.leave_queue(lenders[1])
    slots.leave_queue(lenders[1])
    for item in others[:2]:
        slots.give_back(item)
    assert [slots.take_next() for _ in range(3)] == [lenders[0], lenders[2], None]
    slots.give_back(lenders[0])
    assert slots.take_next() is others[2]
    assert slots.waiting == 0
    slots.give_back(others[2])
    assert slots.take_again(lenders[0])


def test_ten_thousand_who_wait_are_served_in_linear_time() -> None:
    slots: Slots[Item] = Slots(Limits(total=1))
    items = [Item() for _ in range(100_000)]
    for item in items:
        slots.take(item)
    for item in items:
        slots.give_back(item)
        slots.take_next()
    assert slots.take(Item())


# Models and providers


def test_a_model_at_its_cap_does_not_hold_up_another() -> None:
    """CO8: the caps apply together with the total, first in first out for each."""
    slots: Slots[Item] = Slots(Limits(total=3, models={"a/big": 1}))
    big = [agent("a/big") for _ in range(3)]
    small = [agent("a/small") for _ in range(3)]
    assert [slots.take(item) for item in big] == [True, False, False]
    assert [slots.take(item) for item in small] == [True, True, False]
    slots.give_back(small[0])
    assert slots.take_next() is small[2]
    assert slots.take_next() is None
    for item in big:
        slots.give_back(item)
        assert slots.take_next() is next(iter(big[big.index(item) + 1 :]), None)


def test_the_caps_of_a_model_and_of_its_provider_both_apply() -> None:
    """CO9."""
    limits = Limits(models={"a/big": 1, "small": 2}, providers={"a": 2})
    slots: Slots[Item] = Slots(limits)
    assert slots.take(agent("a/big"))
    assert not slots.take(agent("a/big"))
    assert slots.take(agent("a/small"))
    third = agent("a/small")
    assert not slots.take(third)
    assert slots.take(agent("b/small"))
    assert not slots.take(agent("small")), "two of any provider"
    assert slots.take(agent("b/big")), "the cap is for that of a"
    assert slots.take(agent()) and slots.take(Item())


def test_the_cap_of_provider_and_model_goes_before_that_of_the_model() -> None:
    """CO9."""
    slots: Slots[Item] = Slots(Limits(models={"a/big": 2, "big": 1}))
    assert [slots.take(agent("a/big")) for _ in range(3)] == [True, True, False]
    assert [slots.take(agent("b/big")) for _ in range(2)] == [True, False]
    assert not slots.take(agent("big"))


def test_a_model_whose_name_holds_a_slash_has_its_own_cap() -> None:
    """CO9: the provider ends at the first one."""
    slots: Slots[Item] = Slots(Limits(models={"meta/big": 1}, providers={"hub": 9}))
    assert slots.take(agent("hub/meta/big"))
    assert not slots.take(agent("hub/meta/big"))
    assert not slots.take(agent("meta/big"))


def test_who_leaves_the_queue_of_a_model_leaves_the_others_in_theirs() -> None:
    """CO5, CO11: those on the same model move up, the others do not notice."""
    slots: Slots[Item] = Slots(Limits(models={"big": 1, "small": 1}))
    first, second, third = (agent("big") for _ in range(3))
    other, waits = agent("small"), agent("small")
    for item in (first, second, third, other, waits):
        slots.take(item)
    slots.leave_queue(second)
    slots.leave_queue(second)
    assert slots.waiting == 2
    slots.give_back(first)
    assert slots.take_next() is third
    assert slots.take_next() is None
    slots.give_back(other)
    assert slots.take_next() is waits
    assert slots.waiting == 0


def test_a_place_of_a_model_can_be_lent_and_taken_again() -> None:
    """CO6, AG28: whoever waits for its own task lends the place of its model, too."""
    slots: Slots[Item] = Slots(Limits(models={"big": 1}))
    lender, first, second = (agent("big") for _ in range(3))
    slots.take(lender)
    slots.take(first)
    slots.give_back(lender)
    assert slots.take_next() is first
    assert not slots.take(second)
    assert not slots.take_again(lender)
    assert slots.take(agent("small"))
    slots.give_back(first)
    assert slots.take_next() is lender
    assert slots.take_next() is None
    slots.give_back(lender)
    assert slots.take_next() is second


def test_names_that_nobody_has_capped_leave_nothing_behind() -> None:
    """P7: a model's name is anybody's text."""
    slots: Slots[Item] = Slots(Limits(total=1, models={"big": 1}, providers={"a": 1}))
    for number in range(1_000):
        item = agent(f"p{number}/m{number}")
        assert slots.take(item)
        slots.give_back(item)
    assert len(slots._lanes) == 1  # pyright: ignore[reportPrivateUsage]


def test_very_many_of_several_models_are_served_in_linear_time() -> None:
    models = {f"m{n}": 1 for n in range(10)}
    slots: Slots[Item] = Slots(Limits(total=1, models=models))
    items = [agent(f"m{n % 10}") for n in range(50_000)]
    for item in items:
        slots.take(item)
    for item in items:
        slots.give_back(item)
        slots.take_next()
    assert slots.waiting == 0 and slots.take(Item())


KEYS = (None, "big", "small", "a/big", "a/small", "b/big", "b/small")
KINDS = ("local_bash", "local_agent", "remote_agent")
CAPS = st.sampled_from([None, 1, 2, 3])


@attrs.frozen
class Model:
    """What the caps say, in the most naive way."""

    limits: Limits

    def holds(self, items: list[Item]) -> bool:
        limits = self.limits
        counts = [
            (limits.total, items),
            (limits.shells, [i for i in items if i.task_type == "local_bash"]),
            (limits.agents, [i for i in items if i.task_type != "local_bash"]),
            *(
                (cap, [i for i in items if self.model(i) == name])
                for name, cap in limits.models.items()
            ),
            *(
                (cap, [i for i in items if (i.limit_key or "").startswith(f"{name}/")])
                for name, cap in limits.providers.items()
            ),
        ]
        return all(cap is None or len(which) <= cap for cap, which in counts)

    def model(self, item: Item) -> str | None:
        key = item.limit_key
        if key is None or key in self.limits.models:
            return key
        return key.partition("/")[2]


@settings(deadline=None)
@given(
    st.builds(
        Limits,
        total=CAPS,
        shells=CAPS,
        agents=CAPS,
        models=st.dictionaries(st.sampled_from(KEYS[1:]), st.integers(1, 3)),
        providers=st.dictionaries(st.sampled_from("abc"), st.integers(1, 3)),
    ),
    st.lists(
        st.one_of(
            st.builds(Item, st.sampled_from(KINDS), st.sampled_from(KEYS)),
            st.tuples(
                st.sampled_from(["end", "leave", "lend", "return"]), st.integers(0, 9)
            ),
        ),
        max_size=60,
    ),
)
def test_the_caps_hold_and_no_place_stays_free(
    limits: Limits, steps: list[Item | tuple[str, int]]
) -> None:
    """CO5, CO6, CO8, CO10, CO11, SM29: against a model. As many run as may, the
    first of those that may is served first, those who come back before all others,
    and nobody is lost."""
    slots: Slots[Item] = Slots(limits)
    caps = Model(limits)
    running: list[Item] = []
    lent: list[Item] = []
    returning: deque[Item] = deque()
    waiting: deque[Item] = deque()

    def serve() -> None:
        while (served := slots.take_next()) is not None:
            queues = (*returning, *waiting)
            assert served is next(i for i in queues if caps.holds([*running, i]))
            (returning if served in returning else waiting).remove(served)
            running.append(served)

    for step in steps:
        if isinstance(step, Item):
            item = Item(step.task_type, step.limit_key)
            (running if slots.take(item) else waiting).append(item)
        else:
            what, which = step
            if what == "end" and running:
                slots.give_back(running.pop(which % len(running)))
                serve()
            elif what == "lend" and running:
                lent.append(running.pop(which % len(running)))
                slots.give_back(lent[-1])
                serve()
            elif what == "return" and lent:
                item = lent.pop(which % len(lent))
                (running if slots.take_again(item) else returning).append(item)
            elif what == "leave" and (queues := [*returning, *waiting]):
                item = queues[which % len(queues)]
                (returning if item in returning else waiting).remove(item)
                slots.leave_queue(item)
        assert slots.waiting == len(waiting) + len(returning)
        assert caps.holds(running)
        assert not any(caps.holds([*running, item]) for item in (*returning, *waiting))
    while running:
        slots.give_back(running.pop())
        serve()
    assert not waiting and not returning
