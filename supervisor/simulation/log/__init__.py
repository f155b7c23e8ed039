"""A log of what a runtime or a supervisor did: to write, to read, and to check.

    with record("run.jsonl") as log:
        async with log.recording(open_runtime("tasks")) as runtime:
            ...

    for entry in read(Path("run.jsonl").open("rb")):
        print(entry.number, entry.event)

Each line is a JSON object with its number ``n``, the ``kind`` of the event, the
``version`` of the schema, ``seq`` and ``time`` as in `supervisor.tree.Event`, and the
fields of that kind; in a simulated run also the ``step``. The kinds are those of
`supervisor.tree` and `supervisor.runtime`, as ``trio-supervisor run --json`` prints
them, and those of this module: what was seen from outside. `supervisor.simulation.
promises` checks it.
"""

from __future__ import annotations

from actors.house import publish as _publish

from ._format import KINDS, Entry, LogError, read, to_line
from ._kinds import (
    Began,
    Called,
    Closed,
    Closing,
    Drained,
    Envelope,
    LogEnded,
    LogStarted,
    OutputClosed,
    OutputOpened,
    ProcessExited,
    ProcessGone,
    ProcessSignalled,
    ProcessStarted,
    Raised,
    Returned,
    RuntimeOpened,
    Specified,
    Supervised,
    Suspended,
)
from ._record import Kept, Log, Recorder, record

__all__ = [
    "KINDS",
    "Began",
    "Called",
    "Closed",
    "Closing",
    "Drained",
    "Entry",
    "Envelope",
    "Kept",
    "Log",
    "LogEnded",
    "LogError",
    "LogStarted",
    "OutputClosed",
    "OutputOpened",
    "ProcessExited",
    "ProcessGone",
    "ProcessSignalled",
    "ProcessStarted",
    "Raised",
    "Recorder",
    "Returned",
    "RuntimeOpened",
    "Specified",
    "Supervised",
    "Suspended",
    "read",
    "record",
    "to_line",
]

_publish(globals())
