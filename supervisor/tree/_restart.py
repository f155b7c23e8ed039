"""The restart decision, pure: from what ended, when and how, to what follows.

Nothing here acts. `decide_restart` is called once for each end that nobody asked for,
and for each failed attempt to restart.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from actors import Exit, Failed, Ignore
from actors.house import frozen
from actors.lowlevel import is_normal

from ._spec import Backoff, ChildSpec, Flags


@frozen
class History:
    """What a supervisor remembers between two decisions."""

    restarts: tuple[float, ...] = ()
    """When it restarted, on a monotonic clock, oldest first; never more than
    the intensity allows."""


@frozen
class StartAgain:
    """Restart the child, and its siblings as the strategy says, after ``delay``
    seconds."""

    delay: float


@frozen
class GiveUp:
    """The budget is spent: stop everything and fail."""


@frozen
class ShutDown:
    """A significant child has ended: stop everything, without an error."""


@frozen
class StayDown:
    """Nothing follows."""


_GIVE_UP, _SHUT_DOWN, _STAY_DOWN = GiveUp(), ShutDown(), StayDown()

RestartDecision: TypeAlias = StartAgain | GiveUp | ShutDown | StayDown


def has_declined(exit: Exit[object]) -> bool:
    """Whether a child that ended before its start declined to start."""
    return isinstance(exit, Failed) and isinstance(exit.error, Ignore)


def needs_restart(spec: ChildSpec[object], exit: Exit[object]) -> bool:
    """Whether a child that ended by itself comes back."""
    if spec.restart == "permanent":
        return True
    return spec.restart == "transient" and not is_normal(exit)


def decide_restart(
    spec: ChildSpec[object],
    flags: Flags,
    history: History,
    exit: Exit[object],
    now: float,
    *,
    failures: int = 1,
    chance: float = 0.0,
    last_significant: bool = True,
) -> tuple[RestartDecision, History]:
    """Return what follows the end of a child, and the history that includes it.

    Args:
        spec: the child's.
        flags: its supervisor's.
        history: what the previous decision returned.
        exit: how the child ended.
        now: the time, on a monotonic clock.
        failures: how often in a row this child has ended, for its backoff.
        chance: a random number from 0.0 to 1.0, for the jitter.
        last_significant: whether no other significant child is active.
    """
    if needs_restart(spec, exit):
        # Restarts exactly one period old still count.
        recent = tuple(t for t in history.restarts if t >= now - flags.period)
        if len(recent) >= flags.intensity:
            return _GIVE_UP, History(recent)
        delay = 0.0 if spec.backoff is None else spec.backoff.delay(failures, chance)
        return StartAgain(delay), History((*recent, now))
    if spec.significant and (
        flags.auto_shutdown == "any_significant"
        or (flags.auto_shutdown == "all_significant" and last_significant)
    ):
        return _SHUT_DOWN, history
    return _STAY_DOWN, history


def count_failures(backoff: Backoff | None, failures: int, ran_for: float) -> int:
    """Return how often in a row a child has now ended, which ran ``ran_for``
    seconds and had ended ``failures`` times before."""
    if backoff is not None and ran_for >= backoff.forgets_after():
        return 1
    return failures + 1


def restart_scope(flags: Flags) -> Literal["child", "rest", "all"]:
    """Return which children a restart touches."""
    if flags.strategy == "one_for_one":
        return "child"
    return "rest" if flags.strategy == "rest_for_one" else "all"
