"""Why a sweep has nothing to strike, in words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from .._errors import NothingToStrike
from .._steering.tape import CHECKPOINT, Fault
from .._steering.targets import any_named, is_named


def no_call(called: Collection[str], names: Sequence[str]) -> str:
    """Say which operations on the world are called, beside the names that none has."""
    if called:
        known = ", ".join(sorted(called))
        text = f"no operation that is called has one of the names {', '.join(names)}"
        return f"{text}; there are {known}"
    return "nothing is called that can go wrong: use `sim.network()` or `sim.env()`"


def no_point(
    begun: Mapping[str, bool],
    there: Iterable[Fault],
    able: Iterable[Fault],
    arrivals: Sequence[str],
    names: Sequence[str],
) -> str:
    """Say why no target, or none that has one of some names, has a point; "" if nothing
    is a target.

    ``begun`` are all targets, with whether `nursery.start` had to wait for them, ``there``
    their points by any fault and arrival, and ``able`` those at which the fault of the
    sweep could arrive.
    """
    for name in names:
        if begun and not any_named(begun, name):
            known = ", ".join(sorted(begun))
            return f"{NothingToStrike(tuple(names))}; there are {known}"
    met = sorted(it for it in begun if is_named(it, names or None))
    if not met:
        return ""
    who = ", ".join(met)
    ways = {(it.kind, it.arrival) for it in there if it.target in met}
    if any(it.target in met for it in able):
        return f"no fault arrives {' or '.join(arrivals)} at {who}"
    if not ways and (waited := [it for it in met if begun[it]]):
        text = f"only who starts {', '.join(waited)} can strike it"
        return f"{text}: `nursery.start` waits for it to the end"
    if not ways:
        return f"nothing can strike {who}: it never waits, and makes no checkpoint"
    others = "a cancel (cancel_everywhere)"
    if ("raise", CHECKPOINT) in ways:
        others += " or a KeyboardInterrupt"
    return (
        f"no error can come out of {who}: it makes checkpoints and waits for nothing, so "
        f"only {others} can strike it"
    )
