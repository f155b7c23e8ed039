"""What a host needs besides that builds a whole program round the runtime.

The command line is one. Others rarely need it: here are the words that the rest of
`supervisor` uses for itself, and what is behind a `supervisor.runtime.Runtime`. It
may change with the house, unlike what other modules offer.
"""

from __future__ import annotations

from actors.house import publish as _publish

from ._life.life import Life
from ._tasks.json import SCHEMA_VERSION
from .agents._host import REFUSALS
from .permissions._tool_names import is_listed
from .runtime import Runtime

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "REFUSALS",
    "SCHEMA_VERSION",
    "is_listed",
    "life_of",
]


def life_of(runtime: Runtime) -> Life:
    """Return the tasks behind ``runtime`` and what becomes of them."""
    return runtime._life  # pyright: ignore[reportPrivateUsage]


_publish(globals())
