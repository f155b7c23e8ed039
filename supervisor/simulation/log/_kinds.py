"""What a recorder adds to the events of a runtime and of a tree: what can be seen from
outside."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ...tree import Event


@attrs.frozen
class LogStarted(Event):
    """The log begins."""

    simulated: bool
    """Whether time is virtual, and steps are counted."""
    python: str
    trio: str


@attrs.frozen
class RuntimeOpened(Event):
    """A runtime was opened."""

    supervisor: str
    """The path of its root."""
    backlog: int
    """How many notifications may wait to be acknowledged."""


@attrs.frozen
class Supervised(Event):
    """What a supervisor does with its children."""

    supervisor: str
    strategy: str
    intensity: int
    period: float
    dynamic: bool
    restarts: int = 0
    """How many restarts there were, within its period, before the log began."""


@attrs.frozen
class Specified(Event):
    """A child of a supervisor that was there when the log began, or is new."""

    supervisor: str
    child: str
    restart: str
    live: bool
    """Whether an incarnation of it runs of which no `ChildStarted` tells."""
    wait_started: bool = False
    """Whether it begins before a `ChildStarted` tells so: it says itself when it has."""
    asked: bool = False
    """Whether that was asked to stop before the log began."""


@attrs.frozen
class Closing(Event):
    """The block of a runtime or a supervisor is being left: nothing starts any more."""

    supervisor: str


@attrs.frozen
class Closed(Event):
    """The block was left: nothing of it is there any more."""

    supervisor: str


@attrs.frozen
class Called(Event):
    """A method was called from outside."""

    call: int
    what: str
    """The name of the method."""
    tasks: Sequence[str] = ()
    """The tasks, or the children, that it is about."""
    owner: str | None = None
    lends: bool = False
    """Whether a task calls, where there are caps. While it waits it lends its place, and
    goes on when it has one again."""


@attrs.frozen
class Began(Event):
    """A call has given a task its id."""

    call: int
    task_id: str
    restart: str
    intensity: int
    period: float
    quota: int | None
    """The most bytes of output that it may keep, if that is known."""


@attrs.frozen
class Returned(Event):
    """A call has returned."""

    call: int
    what: str
    ended: Sequence[str] = ()
    """The tasks of which it has said that they have ended."""
    survivors: int = 0
    """How many survivors it has named."""
    runs: Sequence[str] = ()
    """The last run of each of those that have ended: an agent may have gone on since."""


@attrs.frozen
class Raised(Event):
    """A call has raised."""

    call: int
    what: str
    error: str
    """The class of what it raised."""


@attrs.frozen
class ProcessStarted(Event):
    """A process was started, for the run of a task."""

    run_id: str
    pid: int


@attrs.frozen
class ProcessSignalled(Event):
    """A process tree was told to end."""

    run_id: str
    pid: int
    signal: str
    """``term`` or ``kill``."""


@attrs.frozen
class ProcessExited(Event):
    """The first process of a tree has ended, and the runtime was told how."""

    run_id: str
    pid: int
    code: int | None
    signal: int | None


@attrs.frozen
class ProcessGone(Event):
    """Nothing is left of a process tree, and the runtime was told so."""

    run_id: str
    pid: int


@attrs.frozen
class OutputOpened(Event):
    """The output file of a task was opened."""

    task_id: str


@attrs.frozen
class OutputClosed(Event):
    """It was closed."""

    task_id: str
    bytes_written: int
    """What was written to it since it was opened."""
    rotated: bool
    """Whether it was rotated meanwhile, so that less than this is kept."""


@attrs.frozen
class Envelope(Event):
    """A reader was handed a notification."""

    notification_id: str
    task_id: str
    xml: str


@attrs.frozen
class Drained(Event):
    """A reader has taken what was there when the runtime had ended."""


@attrs.frozen
class Suspended(Event):
    """In a simulated run: the machine has slept."""

    seconds: float


@attrs.frozen
class LogEnded(Event):
    """The log ends."""

    error: str | None
    """The class of what has ended it, if it was ended by an error."""
