"""What a supervisor needs to run actors. Programs rarely need it.

A supervisor subclasses `Cell`, one per child, and calls `Cell.begin` for each
incarnation; the cell's ``on_`` methods tell it, synchronously, what becomes of
it. It decides what follows and says so through `Cell.await_restart` or
`Cell.end`.
"""

from __future__ import annotations

from ._kernel.actor import Cell as Cell
from ._kernel.actor import Incarnation as Incarnation
from ._kernel.actor import StopRequest as StopRequest
from ._kernel.actor import current_actor as current_actor
from ._kernel.checks import by as by
from ._kernel.checks import check_all as check_all
from ._kernel.checks import check_number as check_number
from ._kernel.checks import check_one_of as check_one_of
from ._kernel.checks import check_text as check_text
from ._kernel.checks import check_type as check_type
from ._kernel.checks import check_whole as check_whole
from ._kernel.checks import is_number as is_number
from ._kernel.checks import of as of
from ._kernel.errors import require_trio as require_trio
from ._kernel.exit import StoppedBy as StoppedBy
from ._kernel.exit import is_normal as is_normal
from ._kernel.public import publish as publish
from ._kernel.ref import ActorState as ActorState
from ._kernel.status import LEGAL_TRANSITIONS as LEGAL_TRANSITIONS
from ._kernel.status import Guard as Guard

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "LEGAL_TRANSITIONS",
    "ActorState",
    "Cell",
    "Guard",
    "Incarnation",
    "StopRequest",
    "StoppedBy",
    "by",
    "check_all",
    "check_number",
    "check_one_of",
    "check_text",
    "check_type",
    "check_whole",
    "current_actor",
    "is_normal",
    "is_number",
    "of",
    "publish",
    "require_trio",
]

publish(globals())
