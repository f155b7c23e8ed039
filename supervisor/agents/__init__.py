"""Agents as tasks of a runtime: what holds for all of them.

An agent is launched like a shell, ``runtime.launch(Agent(run, "..."))``, and is the
supervisor of its own tasks: it ends after them, and stopping it stops them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._policy import AgentPolicy

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "AgentPolicy",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load it with the first who wants it. A runtime without agents needs neither
        it nor the rules and hooks that it has."""
        global AgentPolicy
        if name != "AgentPolicy":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from ._policy import AgentPolicy

        return AgentPolicy

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
