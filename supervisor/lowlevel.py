"""What a host needs besides that builds a whole program round the runtime.

The command line is one. Others rarely need it: here are the words that the rest of
`supervisor` uses for itself.
"""

from __future__ import annotations

from actors.lowlevel import publish as _publish

from ._agent_host import REFUSED_BY_DEFAULT as REFUSED_BY_DEFAULT
from ._agent_host import REFUSED_UNASKED as REFUSED_UNASKED
from ._json import SCHEMA_VERSION as SCHEMA_VERSION
from ._rules import is_about as is_about
from ._tool_names import is_listed as is_listed

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "REFUSED_BY_DEFAULT",
    "REFUSED_UNASKED",
    "SCHEMA_VERSION",
    "is_about",
    "is_listed",
]

_publish(globals())
