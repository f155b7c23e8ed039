"""The supervisor tree: supervisors, child specs, and their errors and events.

It works like OTP's, and has trio's guarantee: nothing outlives its block.
"""

# General layout:
# _spec          what a supervisor is told about a child, as data
# _restart       what follows an end: pure
# _errors _events _log _fair
#                what is raised, told and logged; failing without holding anybody up
# _children      starting and stopping children; it knows nothing of restarts
# _supervision   what follows an end that nobody asked for, and the restart of a group
# _block         entering and leaving a supervisor
# _supervisor    what users hold, and how it is opened

from __future__ import annotations

from actors.house import publish as _publish

from ._errors import (
    AlreadyPresent,
    AlreadyStarted,
    ChildIgnored,
    ChildNotFound,
    ChildRestarting,
    ChildRunning,
    InvalidChildSpec,
    InvalidSupervisorFlags,
    MaxChildrenReached,
    RestartIntensityExceeded,
    StartFailed,
    StillRunning,
    SupervisorError,
    SupervisorStopping,
    WouldDeadlock,
)
from ._events import (
    ChildExited,
    ChildStarted,
    Event,
    EventStream,
    Gap,
    GaveUp,
    RestartScheduled,
    SlowStart,
    StopRequested,
    Straggler,
    Subscription,
    SupervisorEnded,
)
from ._spec import Backoff, ChildSpec, ChildTemplate, child
from ._supervisor import (
    ChildCounts,
    ChildInfo,
    DynamicSupervisor,
    Supervisor,
    open_dynamic_supervisor,
    open_supervisor,
)

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "AlreadyPresent",
    "AlreadyStarted",
    "Backoff",
    "ChildCounts",
    "ChildExited",
    "ChildIgnored",
    "ChildInfo",
    "ChildNotFound",
    "ChildRestarting",
    "ChildRunning",
    "ChildSpec",
    "ChildStarted",
    "ChildTemplate",
    "DynamicSupervisor",
    "Event",
    "EventStream",
    "Gap",
    "GaveUp",
    "InvalidChildSpec",
    "InvalidSupervisorFlags",
    "MaxChildrenReached",
    "RestartIntensityExceeded",
    "RestartScheduled",
    "SlowStart",
    "StartFailed",
    "StillRunning",
    "StopRequested",
    "Straggler",
    "Subscription",
    "Supervisor",
    "SupervisorEnded",
    "SupervisorError",
    "SupervisorStopping",
    "WouldDeadlock",
    "child",
    "open_dynamic_supervisor",
    "open_supervisor",
]

_publish(globals())
