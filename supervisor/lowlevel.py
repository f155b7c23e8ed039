"""What else a host needs if it builds a whole program around the runtime.

The command line is such a host. Others rarely need this module. It has the words that
the rest of `supervisor` uses for itself, and what is behind a
`supervisor.runtime.Runtime`. Unlike other modules it may change with the house.
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
    """Return the `Life` of ``runtime``, which holds its tasks."""
    return runtime._life  # pyright: ignore[reportPrivateUsage]


_publish(globals())
