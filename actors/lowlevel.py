"""What a supervisor needs to run actors. Programs rarely need it.

A supervisor subclasses `Cell`, with one cell for each child, and calls `Cell.begin` for
each incarnation. The cell's ``on_`` methods tell the supervisor, synchronously, what
becomes of the incarnation. The supervisor decides what follows, and says so through
`Cell.await_restart` or `Cell.end`.
"""

from __future__ import annotations

from ._kernel.actor import Cell, Incarnation, StopRequest, current_actor
from ._kernel.exit import StoppedBy, is_normal
from ._kernel.public import publish

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "Cell",
    "Incarnation",
    "StopRequest",
    "StoppedBy",
    "current_actor",
    "is_normal",
]

publish(globals())
