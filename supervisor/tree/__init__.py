"""The supervisor tree: supervisors, child specs, and what they raise and tell.

Like OTP's, with trio's guarantee: nothing outlives its block.
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

from ._errors import AlreadyPresent as AlreadyPresent
from ._errors import AlreadyStarted as AlreadyStarted
from ._errors import ChildIgnored as ChildIgnored
from ._errors import ChildNotFound as ChildNotFound
from ._errors import ChildRestarting as ChildRestarting
from ._errors import ChildRunning as ChildRunning
from ._errors import InvalidChildSpec as InvalidChildSpec
from ._errors import InvalidSupervisorFlags as InvalidSupervisorFlags
from ._errors import MaxChildrenReached as MaxChildrenReached
from ._errors import RestartIntensityExceeded as RestartIntensityExceeded
from ._errors import StartFailed as StartFailed
from ._errors import StillRunning as StillRunning
from ._errors import SupervisorError as SupervisorError
from ._errors import SupervisorStopping as SupervisorStopping
from ._errors import WouldDeadlock as WouldDeadlock
from ._events import ChildExited as ChildExited
from ._events import ChildStarted as ChildStarted
from ._events import Event as Event
from ._events import EventStream as EventStream
from ._events import Gap as Gap
from ._events import GaveUp as GaveUp
from ._events import RestartScheduled as RestartScheduled
from ._events import SlowStart as SlowStart
from ._events import StopRequested as StopRequested
from ._events import Straggler as Straggler
from ._events import Subscription as Subscription
from ._events import SupervisorEnded as SupervisorEnded
from ._spec import Backoff as Backoff
from ._spec import ChildSpec as ChildSpec
from ._spec import ChildTemplate as ChildTemplate
from ._spec import child as child
from ._supervisor import ChildCounts as ChildCounts
from ._supervisor import ChildInfo as ChildInfo
from ._supervisor import DynamicSupervisor as DynamicSupervisor
from ._supervisor import Supervisor as Supervisor
from ._supervisor import open_dynamic_supervisor as open_dynamic_supervisor
from ._supervisor import open_supervisor as open_supervisor

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
