"""What a running task says about itself."""

from __future__ import annotations

from typing import Final

import attrs

ACTIVITIES: Final = 5
"""Activities of an agent that are kept."""


@attrs.frozen
class Progress:
    """How far a background task has come. A later one replaces an earlier one
    that nobody has seen yet."""

    text: str = ""
    """The latest activity, for people."""
    bytes_written: int = 0
    """Output kept so far."""
    tool_uses: int = 0
    """Tools used so far, of an agent."""
    total_tokens: int = 0
    """Tokens spent so far, of an agent."""
    activities: tuple[str, ...] = ()
    """The last few of an agent, newest last, each one line."""
