"""When an agent that calls its tools in a circle is to be held up."""

from __future__ import annotations

import attrs
import orjson

from ._events import ToolUse


@attrs.define(eq=False, repr=False)
class Breaker:
    """Counts the tool calls of one agent and says when they are too many.

    It does nothing but count: whoever runs the tools asks it before each call and
    refuses the call with the words that it returns.

    Args:
        repeats: the call of the same tool with the same input that has this number
            in a row trips the breaker, and so do those after it: one fewer may be
            made. None for any number. The order of keys does not matter, and no input is
            the same as an empty one; input that JSON cannot hold is like none
            other.
        calls: how many calls there may be in all, whatever `repeats` is.
    """

    _repeats: int | None = 20
    _calls: int = attrs.field(default=4_000, alias="calls")
    count: int = attrs.field(default=0, init=False)
    """The calls so far."""
    _ids: set[str] = attrs.field(factory=set[str], init=False)
    _last: tuple[str, bytes] | None = attrs.field(default=None, init=False)
    _in_a_row: int = attrs.field(default=0, init=False)

    def begin_anew(self) -> None:
        """The agent was told something that it did not know: what it calls next is the
        first in its row. All its calls are still counted."""
        self._last = None
        self._in_a_row = 0

    def check(self, use: ToolUse) -> str | None:
        """Count one call, once for each id; return why it must not be made, or
        None."""
        if use.id not in self._ids:
            self.count += 1
            # A run that goes on regardless must not fill the memory.
            if self.count <= self._calls:
                self._ids.add(use.id)
            call = _call(use)
            if call is None or call != self._last:
                self._in_a_row = 0
            self._in_a_row += 1
            self._last = call
        if self.count > self._calls:
            return f"more than {self._calls} tool calls in one run"
        if self._repeats is not None and self._in_a_row >= self._repeats:
            return (
                f"{use.name} was called with the same input {self._in_a_row} times "
                "in a row"
            )
        return None


def _call(use: ToolUse) -> tuple[str, bytes] | None:
    """Return what is the same for the same call, or None if it cannot be known."""
    try:
        return use.name, orjson.dumps(
            dict(use.input or {}), option=orjson.OPT_SORT_KEYS
        )
    # The boundary: a stranger's input, which may be anything.
    except (TypeError, ValueError):
        return None
