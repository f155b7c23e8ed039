"""How many tokens and how much money agents may use, together and each."""

from __future__ import annotations

from typing import Final

import attrs
from trio.lowlevel import ParkingLot, enable_ki_protection

from .._kernel.checks import check_number, check_type, check_whole

_MARKS: Final = (0.8, 0.5)
"""The parts of a budget of which somebody is told when they are used."""


@attrs.define(eq=False, repr=False)
class Budget:
    """The tokens and the money that an agent may use, and has used.

    An agent is warned when 50 and when 80 % of what it may use are used, and so is its
    host, each once in the whole conversation.

    What is charged to a budget is charged to all above it in the same step. A budget is
    exceeded as soon as one above it is. So the sum of all below a budget can pass its
    limit only by what was under way when it was reached. Under a runtime, what an agent
    uses counts against the budget of the agent that started it, whether it has a
    `Budget` of its own or not.

    Args:
        tokens: the tokens that may be used. None means any number.
        cost: the money that may be used, in the unit of `TokensUsed`. None means any
            amount.
        parent: the budget above this one, which this one is a part of.

    Raises:
        TypeError, ValueError: for a bad argument. The error names it and its value.
    """

    tokens: int | None = None
    """The limit of tokens, as it was given."""
    cost: float | None = None
    """The limit of money, as it was given."""
    _above: Budget | None = attrs.field(default=None, alias="parent", kw_only=True)
    # Whoever waits for any budget of the tree parks at its root.
    _lot: ParkingLot = attrs.field(init=False)
    used_tokens: int = attrs.field(default=0, init=False)
    """The tokens used so far, with all budgets below."""
    used_cost: float = attrs.field(default=0.0, init=False)
    """The money used so far, with all budgets below."""

    def __attrs_post_init__(self) -> None:
        check_whole("tokens", self.tokens, none=True)
        check_number("cost", self.cost, none=True)
        check_type("parent", self._above, Budget | None)
        self._lot = ParkingLot() if self._above is None else self._above._lot

    def __repr__(self) -> str:
        return (
            f"<Budget: {self.used_tokens} of {self.tokens} tokens, "
            f"{self.used_cost:g} of {self.cost} in cost>"
        )

    @enable_ki_protection
    def charge(self, tokens: int = 0, cost: float = 0.0) -> None:
        """Add what was used, here and in every budget above.

        Raises:
            TypeError, ValueError: for a bad argument. The error names it and its value.
                Nothing was charged.
        """
        check_whole("tokens", tokens)
        check_number("cost", cost)
        budget: Budget | None = self
        is_news = False
        while budget is not None:
            before = budget._own_mark()
            budget.used_tokens += tokens
            budget.used_cost += cost
            is_news = is_news or budget._own_mark() != before
            budget = budget._above
        if is_news:
            self._lot.unpark_all()

    @property
    def exceeded(self) -> str | None:
        """What is used up, here or above, in words. It is None while nothing is."""
        budget: Budget | None = self
        while budget is not None:
            excess = budget._own_excess()
            if excess is not None:
                return excess
            budget = budget._above
        return None

    async def wait_exceeded(self) -> str:
        """Wait until the budget is exceeded, and return in words what is used up."""
        while (excess := self.exceeded) is None:
            await self._lot.park()
        return excess

    @property
    def mark(self) -> float:
        """The part that is used, here or above, whichever is more: 0.5 and 0.8 as soon
        as it is so much, 1.0 once it is exceeded, and 0.0 before."""
        most, budget = self._own_mark(), self._above
        while budget is not None:
            most = max(most, budget._own_mark())
            budget = budget._above
        return most

    async def wait_mark(self, above: float) -> float:
        """Wait until `mark` is more than ``above``, and return it. It never falls."""
        while (mark := self.mark) <= above:
            await self._lot.park()
        return mark

    @property
    def used(self) -> tuple[int, float]:
        """The tokens and the cost that were used so far, with all below."""
        return self.used_tokens, self.used_cost

    def left(self) -> tuple[int | None, float | None]:
        """Return the tokens and the cost that are left. Each is 0 or more, and None
        where there is no limit."""
        tokens: int | None = None
        cost: float | None = None
        budget: Budget | None = self
        while budget is not None:
            if budget.tokens is not None:
                here = max(0, budget.tokens - budget.used_tokens)
                tokens = here if tokens is None else min(tokens, here)
            if budget.cost is not None:
                rest = max(0.0, budget.cost - budget.used_cost)
                cost = rest if cost is None else min(cost, rest)
            budget = budget._above
        return tokens, cost

    def is_part_of(self, other: Budget) -> bool:
        """Whether what is charged here is charged to ``other`` too."""
        budget: Budget | None = self
        while budget is not None:
            if budget is other:
                return True
            budget = budget._above
        return False

    def child(self, tokens: int | None = None, cost: float | None = None) -> Budget:
        """Return a budget that is a part of this one."""
        return Budget(tokens, cost, parent=self)

    def _own_mark(self) -> float:
        if self._own_excess() is not None:
            return 1.0
        for mark in _MARKS:
            if self.tokens is not None and self.used_tokens >= mark * self.tokens:
                return mark
            if self.cost is not None and self.used_cost >= mark * self.cost:
                return mark
        return 0.0

    def _own_excess(self) -> str | None:
        if self.tokens is not None and self.used_tokens >= self.tokens:
            return f"its budget of {self.tokens} tokens is used up: {self.used_tokens}"
        if self.cost is not None and self.used_cost >= self.cost:
            return f"its budget of {self.cost:g} is used up: {self.used_cost:g}"
        return None
