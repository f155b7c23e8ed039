"""Values that nobody changes, and that are made often.

`plain` is `attrs.frozen` for type checkers, which refuse to set a field. At run time
nothing does: to make a frozen object of seven fields takes three to five times as long.
It is for events and snapshots, of which each reader has objects of his own, so that one
who changes his harms nobody; and for messages that stay inside.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from attrs import frozen as plain
else:
    plain = partial(attrs.define, unsafe_hash=True)

__all__ = ["plain"]
