"""What hooks say about a call of a tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.house import frozen

from ..permissions._judging import Decision


@frozen(kw_only=True)
class Advice:
    """What hooks say about a call before it is judged."""

    decision: Decision | None = None
    """The decision of the hooks. It is None if no hook has decided anything."""
    input: Mapping[str, Any] | None = None
    """The input with which the call is made instead."""
    text: str | None = None
    """What the agent is told about the call."""


@frozen(kw_only=True)
class Comment:
    """What hooks say about a call that was made."""

    text: str | None = None
    """What the agent is told about the call."""
    output: str | None = None
    """What the agent gets instead of the answer."""
