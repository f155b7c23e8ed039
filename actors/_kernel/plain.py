"""Values that nobody changes, and that are made often.

`plain` is `attrs.frozen` for type checkers, which refuse to set a field. At run time
nothing does: to make a frozen object of seven fields takes nine times as long. It is for
objects that each reader gets for himself, so that one who changes his own harms nobody.
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
