"""What follows when an agent has an answer, or its run has returned: pure."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Next: TypeAlias = Literal[
    "resume", "again", "remind", "give up", "wait", "no answer", "judge", "finish"
]
"""``resume``: let the run go on behind its `FinalResult`. ``again``: call `run` anew.
``remind``: put the plan into the inbox. ``give up``: fail, the plan is not done.
``wait``: for own tasks, or a message. ``no answer``: fail. ``judge``: ask the
host. ``finish``: done."""


class Standing(NamedTuple):
    """How an agent stands at that moment."""

    returned: bool
    """Whether its run has returned."""
    ignores: bool
    """Whether it was resumed with messages and has answered without taking them."""
    one_shot: bool
    messages: bool
    """Whether any wait."""
    asks: bool
    """Whether any wait that is not merely the end of an own task."""
    plan_open: bool
    may_remind: bool
    own_tasks: int
    has_answer: bool
    judged: bool
    """Whether the host has agreed since anything last happened."""


def decide(now: Standing) -> Next:
    """Return what follows.

    A run that has returned, or pays no attention, is not called again for the end
    of an own task: only for what somebody wants of it.
    """
    can_resume = not now.returned and not now.ignores
    can_go_on = can_resume or not now.one_shot
    if can_go_on and (now.messages if can_resume else now.asks):
        return "resume" if can_resume else "again"
    if now.plan_open:
        return "remind" if can_go_on and now.may_remind else "give up"
    if now.own_tasks:
        return "wait"
    if not now.has_answer:
        return "no answer"
    return "finish" if now.judged else "judge"
