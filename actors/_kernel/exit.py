"""How an incarnation of an actor ended: `Exit` and its three forms."""

from __future__ import annotations

from typing import Generic, Literal, TypeAlias, TypeVar

import attrs

from .values import frozen

V_co = TypeVar("V_co", covariant=True)

StoppedBy: TypeAlias = Literal[
    "stop", "supervisor", "deadline", "outer", "owner", "auto_shutdown"
]


@frozen
class Completed(Generic[V_co]):
    """The actor's function returned, even if it was asked to stop by then."""

    value: V_co
    """What it returned."""


@frozen
class Failed:
    """The actor's function raised an exception, before or after a stop."""

    error: Exception
    """What it raised. If that is a group, it holds no cancellation."""


@frozen
class Stopped:
    """The actor was cancelled before it returned or raised."""

    by: StoppedBy
    """Who ended it: ``stop`` (``ref.stop()``), ``supervisor``, ``deadline`` (its own),
    or ``outer`` (a scope around its supervisor, or an interrupt). A supervisor may also
    be ended by ``owner`` (its block was left) or ``auto_shutdown``."""
    reason: str | None = None
    """Why, in the words of whoever stopped it."""
    suspect: BaseException | None = attrs.field(default=None, eq=False, repr=False)
    """An error of the actor that the cancellation replaced before it got out. It is a
    hint for people. Nothing is decided by it."""


Exit: TypeAlias = Completed[V_co] | Failed | Stopped


def is_normal(exit: Exit[object]) -> bool:
    """Whether OTP would call this end normal. It is neither a failure nor a missed
    deadline."""
    return not isinstance(exit, Failed) and not (
        isinstance(exit, Stopped) and exit.by == "deadline"
    )


def find_suspect(cancelled: BaseException) -> BaseException | None:
    """Return the actor's own error that ``cancelled`` displaced, if there is one.

    trio makes a Cancelled in the stack of whoever cancels, so its context may
    be a stranger's error. Ours has passed through a frame of the actor, which
    is then in both tracebacks.
    """
    context = cancelled.__context__
    frames = _frames(cancelled)
    seen = {id(cancelled)}
    while context is not None and id(context) not in seen:
        seen.add(id(context))
        if isinstance(context, Exception):
            return context if frames & _frames(context) else None
        context = context.__context__
    return None


def _frames(error: BaseException) -> set[int]:
    frames: set[int] = set()
    entry = error.__traceback__
    while entry is not None:
        frames.add(id(entry.tb_frame))
        entry = entry.tb_next
    return frames
