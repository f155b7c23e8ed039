"""Why a sweep has nothing to strike, in words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from .._errors import NothingToStrike
from .._steering.tape import Fault
from .._steering.targets import any_named, is_named


def no_call(called: Collection[str], names: Sequence[str]) -> str:
    """Say which operations on the world are called, beside the names that none has."""
    if called:
        known = ", ".join(sorted(called))
        text = f"no operation that is called has one of the names {', '.join(names)}"
        return f"{text}; there are {known}"
    return "nothing is called that can go wrong: use `sim.network()` or `sim.env()`"


def no_point(
    there: Iterable[Fault], kind: str, arrivals: Sequence[str], names: Sequence[str]
) -> str:
    """Say why no target, or none that has one of some names, has a point; "" if nothing
    is a target. ``there`` are all points that targets have, by any fault and arrival."""
    there = list(there)
    targets = {it.target for it in there}
    for name in names:
        if targets and not any_named(targets, name):
            known = ", ".join(sorted(targets))
            return f"{NothingToStrike(tuple(names))}; there are {known}"
    met = sorted(it for it in targets if is_named(it, names or None))
    if not met:
        return ""
    if any(it.kind == kind and it.target in met for it in there):
        return f"no fault arrives {' or '.join(arrivals)} at {', '.join(met)}"
    return (
        f"no error can come out of {', '.join(met)}: it makes checkpoints and waits for "
        "nothing, so only a cancel can strike it (cancel_everywhere)"
    )
