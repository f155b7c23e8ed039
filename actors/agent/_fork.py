"""Forks: an agent that begins with the conversation of another.

A fork must not fork again, or a model that answers every problem with a fork
multiplies without end. Whether code runs inside a fork is a matter of where it
is called from, so a context variable holds it: what a fork starts, in the
background too, is inside.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import attrs

from ._conversation import mend, since_compaction
from ._errors import ForkRefused
from ._events import Message

if TYPE_CHECKING:
    from ._agent import Agent

_in_fork: ContextVar[bool] = ContextVar("in_fork", default=False)


def fork(
    agent: Agent, history: Iterable[Message], prompt: str, **changes: Any
) -> Agent:
    """Return an agent like ``agent`` that begins with ``history``, without what
    is not resolved in it, and then ``prompt``.

    It has the loop, the model, its system prompt, the restrictions and the
    directory of ``agent``; ``changes`` are other arguments of `Agent`.

    Raises:
        ForkRefused: inside a fork.
        TypeError, ValueError: for a bad argument, as `Agent`.
    """
    own = {"history": handed_down(history), "forked": True, "description": None}
    return attrs.evolve(agent, prompt=prompt, **{**own, **changes})


def handed_down(history: Iterable[Message]) -> list[Message]:
    """Return what of a conversation another agent can begin with.

    Raises:
        ForkRefused: inside a fork.
    """
    if in_fork():
        raise ForkRefused
    whole, _ = mend(since_compaction(history))
    return whole


def in_fork() -> bool:
    """Whether the call comes from inside a fork."""
    return _in_fork.get()


def enter_fork() -> None:
    """Say that the task of trio that calls is inside a fork, and so is what it
    starts from now on. Called by a fork before its first step."""
    _in_fork.set(True)
