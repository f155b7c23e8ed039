"""When a monitor tells what a command has printed, and when it gives up: pure.

A monitor makes a note of new lines at most once a second. As long as a note waits for
its reader there is no second one: what comes meanwhile is added to it, as far as it
has room.

**A note woke nobody** in two cases.

1. Turns have taken it (`supervisor._delivery.turns.Turn`: that of a
   `supervisor._delivery.wakes.Wake`, or the host's own), and none of them had
   `Turn.progressed` at its end, so `Outbox.give_back` has offered it for the last time.
   Or somebody has acknowledged it as ``silent``.
2. A second after it was told there are new lines, and it still waits, although its
   owner could have been woken: the owner is in no turn (`Parents.is_busy`), nobody
   waits for its notifications (a `Wakes` that holds a wake back does), and nobody has
   taken one that is not acknowledged yet. Then another note takes its place, with its
   lines, and tries again.

The owner of a note in the second case is never an agent: its inbox is read when its
model is asked for the next time, however long that takes.

Any other acknowledgement says that the note was read, and begins the count anew. As
long as a note was taken and is not acknowledged, it is neither.
"""

from __future__ import annotations

from math import inf
from typing import Final, Literal, NamedTuple

EVERY: Final = 1.0
"""Seconds between two notes."""
GATHER: Final = 0.2
"""Seconds for the lines that follow a first one: what is printed at once is told at
once."""
IN_VAIN: Final = 10
"""So many notes in a row that woke nobody end a monitor."""
UNDECIDED: Final = 50
"""Notes of one monitor that may be taken and not acknowledged: more than a model reads
in one turn."""


class Pace(NamedTuple):
    """What is looked at."""

    fresh: float | None
    """When the first line came for which there is no note, None if there is none."""
    told: float
    """When the last note was told."""
    waits: bool
    """Whether that one waits for a reader, and takes new lines."""
    is_heard: bool
    """Whether its reader is at work, or waits for it: see above."""
    undecided: int
    """How many notes were taken and are not acknowledged."""
    most_undecided: int
    """How many of these there may be."""
    in_vain: int
    """How many in a row woke nobody."""


class Next(NamedTuple):
    """What a monitor does: nothing until ``at`` or until something changes; tell a
    note; tell one in the place of that which woke nobody; or stop."""

    do: Literal["rest", "tell", "again", "stop"]
    at: float = inf


def decide(pace: Pace, now: float) -> Next:
    """Return what a monitor does at the time ``now``."""
    if pace.in_vain >= IN_VAIN:
        return Next("stop")
    if pace.fresh is None:
        return Next("rest")
    due = max(pace.told + EVERY, pace.fresh + GATHER)
    if now < due:
        return Next("rest", due)
    if pace.waits:
        if pace.is_heard:
            return Next("rest")
        return Next("stop" if pace.in_vain + 1 >= IN_VAIN else "again")
    return Next("rest" if pace.undecided >= pace.most_undecided else "tell")
