"""What happens in one moment of the campaign: pure, of a seed and a number."""

from __future__ import annotations

from random import Random
from typing import Final, Literal, TypeAlias

import attrs

Place: TypeAlias = Literal["before", "within", "after"]
Write: TypeAlias = Literal["append", "replace"]
Mode: TypeAlias = Literal["inline", "threaded", "durable"]
"""How the journal is written: by whoever adds a record, as on a disk that is slow, or
with ``durable=True``."""

PLACES: Final[tuple[Place, ...]] = ("before", "within", "after")
_WRITES: Final[tuple[Write, ...]] = ("append", "replace")
MODES: Final[tuple[Mode, ...]] = ("inline", "inline", "threaded", "durable")
# Of ten: in the others nothing dies while it recovers.
_RECOVERIES: Final = 4
_RECOVERY_SECONDS: Final = 0.12


@attrs.frozen(kw_only=True)
class Blow:
    """When a program dies."""

    write: Write | None = None
    """At a write of the journal of that kind; None is for the clock. An append has
    records; the journal is replaced when it is begun, and when it is compacted."""
    number: int = 1
    """At which one of them, from 1, since the program opened the runtime; for a
    replacement 1 is that of the opening."""
    place: Place = "before"
    share: float = 0.0
    """How much of the write is made, of those that are struck within."""
    seconds: float = 0.0
    """By the clock, since it began to open."""


@attrs.frozen(kw_only=True)
class Plan:
    """What happens in a moment."""

    seed: int
    number: int
    mode: Mode
    first: Blow
    """What ends the program with the 40 tasks."""
    second: Blow | None
    """What ends the one that recovers, if anything does."""
    resumes: bool
    """Whether the last program goes on with the agents that it finds."""

    @property
    def is_at_write(self) -> bool:
        return self.number % 2 == 0


@attrs.frozen
class Whole:
    """What a program does that nobody kills."""

    seconds: float
    appends: int
    replaces: int


def plan(seed: int, number: int, whole: Whole) -> Plan:
    """Return what happens in that moment. ``whole`` is what the program does when it
    is left alone, so that the moments are spread over all of it."""
    random = Random(f"{seed}/{number}")
    mode = random.choice(MODES)
    at_write = number % 2 == 0
    second: Blow | None = None
    if at_write and random.random() < 0.3:
        # The blow of this moment is to the recovery; the first one is by the clock.
        first = Blow(seconds=random.uniform(0, whole.seconds))
        second = _at_write(random, random.choice(_WRITES), 2)
    elif at_write:
        what: Write = random.choice((*_WRITES, "append", "append"))
        most = whole.appends if what == "append" else whole.replaces
        first = _at_write(random, what, most)
    else:
        first = Blow(seconds=random.uniform(0, whole.seconds))
    if second is None and random.randrange(10) < _RECOVERIES:
        second = Blow(seconds=random.uniform(0, _RECOVERY_SECONDS))
    return Plan(
        seed=seed,
        number=number,
        mode=mode,
        first=first,
        second=second,
        resumes=random.random() < 0.5,
    )


def _at_write(random: Random, what: Write, most: int) -> Blow:
    return Blow(
        write=what,
        number=random.randint(1, max(1, most)),
        place=random.choice(PLACES),
        share=random.random(),
    )
