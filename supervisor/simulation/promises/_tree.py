"""The promises about supervisors and their children."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping

import attrs

from ...runtime import TaskEnded, TaskStopRequested
from ...tree import (
    ChildExited,
    ChildStarted,
    Event,
    GaveUp,
    RestartScheduled,
    StopRequested,
    Straggler,
    SupervisorEnded,
)
from ...tree._children import START_CANCELLED
from ...tree._supervision import SIBLING_RESTARTED
from ..log import (
    Called,
    Closed,
    Closing,
    Entry,
    LogEnded,
    Raised,
    Returned,
    Specified,
    Supervised,
)
from ._checker import Broken, Checker, Judge

REPORTED_EVERY = 31.0
"""Seconds after which whoever still does not end is told of again."""


class Children(Checker):
    """No child outlives its supervisor, and no incarnation begins or ends twice."""

    promise = "P1"
    title = "no child outlives its supervisor"

    def __init__(self, broken: Broken) -> None:
        super().__init__(broken)
        # By supervisor, of each child: how many of that name run, and since when.
        self._live: dict[str, dict[str, list[int]]] = {}
        # Who does not end, and when it was last told so.
        self._late: dict[str, tuple[float, int]] = {}

    def judges(self) -> Mapping[type[Event], Judge]:
        return {
            Specified: self._specified,
            ChildStarted: self._started,
            ChildExited: self._exited,
            Straggler: self._straggles,
            SupervisorEnded: self._supervisor_ended,
            Closed: self._closed,
        }

    def _straggles(self, event: Straggler, at: Entry) -> None:
        self._late[f"{event.supervisor}/{event.child}"] = event.time, at.number

    def _specified(self, event: Specified, at: Entry) -> None:
        if event.live:
            self._add(event.supervisor, event.child, at)

    def _started(self, event: ChildStarted, at: Entry) -> None:
        self.judged += 1
        self._add(event.supervisor, event.child, at)

    def _add(self, path: str, child: str, at: Entry) -> None:
        self._live.setdefault(path, {}).setdefault(child, []).append(at.number)

    def _exited(self, event: ChildExited, at: Entry) -> None:
        self.judged += 1
        path = event.supervisor
        told, line = self._late.pop(f"{path}/{event.child}", (event.time, 0))
        if event.time - told > REPORTED_EVERY:
            text = f"it did not end for {event.time - told:g} s, and nobody was told"
            self.breaks(f"{path}/{event.child}", text, line, at.number)
        there = self._live.get(path, {})
        # One that failed to start is not among them.
        if since := there.get(event.child):
            since.pop()
            if since:
                return  # Another one of that name may have what is below.
            del there[event.child]
        self._look(f"{path}/{event.child}", f"child {event.child} ended", at)

    def _supervisor_ended(self, event: SupervisorEnded, at: Entry) -> None:
        self.judged += 1
        self._look(event.supervisor, "its supervisor ended", at)

    def _closed(self, event: Closed, at: Entry) -> None:
        self.judged += 1
        for path in list(self._live):
            if f"{path}/".startswith(f"{event.supervisor}/"):
                self._look(path, "the block was left", at)

    def _look(self, path: str, what: str, at: Entry) -> None:
        for child, since in self._live.pop(path, {}).items():
            text = f"it runs, and {what}"
            self.breaks(f"{path}/{child}", text, since[-1], at.number)


@attrs.define(eq=False)
class _Supervisor:
    """What is known of one supervisor."""

    flags: Supervised | None = None
    places: dict[str, int] = attrs.Factory(dict[str, int])
    """Of each child: its place in start order."""
    restart: dict[str, str] = attrs.Factory(dict[str, str])
    waits: set[str] = attrs.Factory(set[str])
    """The children that begin before it is told."""
    live: dict[str, int] = attrs.Factory(dict[str, int])
    """The children that run, and since which line."""
    asked: dict[str, int] = attrs.Factory(dict[str, int])
    """Those that were asked to stop and have not ended: in a dynamic supervisor several
    may have the same name."""
    terminated: set[str] = attrs.Factory(set[str])
    """Those of them that no restart of a group has asked: it goes on without them."""
    closing: int | None = None
    """Since which line it stops its children."""
    told: int | None = None
    """Since which line it restarts nobody, because it was told to stop."""
    restarts: deque[float] = attrs.Factory(deque[float])
    group: str | None = None
    """The child of which a group restart has begun and started nobody yet."""
    group_since: int = 0
    """The line in which its members were decided."""
    unstarted: set[str] = attrs.Factory(set[str])
    """Those that ended before it was told that they had begun."""
    over: dict[str, int] = attrs.Factory(dict[str, int])
    """Children that have ended and must not come back by themselves."""

    @property
    def is_static(self) -> bool:
        """Whether it is known, and its children have an order."""
        return self.flags is not None and not self.flags.dynamic


class Supervisors:
    """What is known of all supervisors. It hears of an event when those have judged it
    who ask for what was before."""

    def __init__(self) -> None:
        self.known = defaultdict[str, _Supervisor](_Supervisor)
        self.of = self.known.__getitem__
        """What is known of a supervisor. It is asked for at each event."""
        # The tasks that are to stop: each that restarts has a supervisor of its own.
        self._stopping: dict[str, int] = {}
        self._calls: dict[int, Called] = {}
        self._top = ""  # The one whose calls are recorded.

    def is_called(self, child: str) -> bool:
        """Whether somebody has called for a change of the child."""
        calls = self._calls.values()
        return any(not call.tasks or child in call.tasks for call in calls)

    def told(self, path: str) -> int | None:
        """Return the line since which a supervisor restarts nobody, if it does not."""
        found = self.of(path)
        return found.told or self._stopping.get(path.rpartition("/")[2])

    def judges(self) -> Mapping[type[Event], Judge]:
        """Return what to call with events of each kind."""
        return {
            TaskStopRequested: self._task_stop_requested,
            TaskEnded: self._task_ended,
            Called: self._called,
            Returned: self._returned,
            Raised: self._returned,
            Supervised: self._supervised,
            Specified: self._specified,
            ChildStarted: self._started,
            StopRequested: self._stop_requested,
            ChildExited: self._exited,
            Closing: self._closing,
            GaveUp: self._closing,
            SupervisorEnded: self._ended,
        }

    def _called(self, event: Called, at: Entry) -> None:
        if not event.what.endswith("_child"):
            return
        self._calls[event.call] = event
        if event.what == "terminate_child":
            # It may have been asked before, by its ref.
            top = self.of(self._top)
            top.terminated.update(top.live.keys() & set(event.tasks))

    def _returned(self, event: Returned | Raised, at: Entry) -> None:
        self._calls.pop(event.call, None)

    def _supervised(self, event: Supervised, at: Entry) -> None:
        found = self.known[event.supervisor] = _Supervisor(flags=event)
        above, _, name = event.supervisor.rpartition("/")
        if self.of(above).flags is None:
            self._top = event.supervisor
        if self.of(above).asked.get(name):
            found.told = at.number

    def _specified(self, event: Specified, at: Entry) -> None:
        found = self.of(event.supervisor)
        found.restart[event.child] = event.restart
        (found.waits.add if event.wait_started else found.waits.discard)(event.child)
        found.places.pop(event.child, None)
        found.places[event.child] = at.number
        if event.live:
            found.live[event.child] = at.number
        if event.asked:
            found.asked[event.child] = 1

    def _started(self, event: ChildStarted, at: Entry) -> None:
        found = self.of(event.supervisor)
        found.live[event.child] = at.number
        found.places.setdefault(event.child, at.number)

    def _stop_requested(self, event: StopRequested, at: Entry) -> None:
        asked = self.of(event.supervisor).asked
        asked[event.child] = asked.get(event.child, 0) + 1
        if event.by == "supervisor" and event.reason != SIBLING_RESTARTED:
            self.of(event.supervisor).terminated.add(event.child)
        # Its own children stop now, if it has any, or after its drain.
        inner = self.known.get(f"{event.supervisor}/{event.child}")
        if inner is not None:
            inner.told = inner.told or at.number
            if event.by != "stop":
                inner.closing = inner.closing or at.number

    def _exited(self, event: ChildExited, at: Entry) -> None:
        found = self.of(event.supervisor)
        was_live = found.live.pop(event.child, None) is not None
        (found.unstarted.discard if was_live else found.unstarted.add)(event.child)
        found.terminated.discard(event.child)
        if found.asked.get(event.child, 0) > 0:
            found.asked[event.child] -= 1

    def _closing(self, event: Closing | GaveUp, at: Entry) -> None:
        found = self.of(event.supervisor)
        found.closing = found.told = at.number

    def _task_stop_requested(self, event: TaskStopRequested, at: Entry) -> None:
        self._stopping[event.task_id] = at.number

    def _task_ended(self, event: TaskEnded, at: Entry) -> None:
        self._stopping.pop(event.task_id, None)

    def _ended(self, event: SupervisorEnded, at: Entry) -> None:
        self.known.pop(event.supervisor, None)


class Order(Checker):
    """Static children stop one by one, in the reverse of their start order; whoever is
    stopped was asked to."""

    promise = "P8"
    title = "children stop in reverse order"

    def __init__(self, broken: Broken, supervisors: Supervisors) -> None:
        super().__init__(broken)
        self._supervisors = supervisors

    def judges(self) -> Mapping[type[Event], Judge]:
        return {StopRequested: self._stop_requested, ChildExited: self._exited}

    def _stop_requested(self, event: StopRequested, at: Entry) -> None:
        found = self._supervisors.of(event.supervisor)
        if not found.is_static or found.closing is None or event.by == "stop":
            return
        if event.reason == START_CANCELLED or self._supervisors.is_called(event.child):
            return  # Whoever has called for it does not wait for its turn.
        self.judged += 1
        child = event.child
        place = found.places.get(child, 0)
        for other, since in found.live.items():
            if other != child and found.places.get(other, 0) > place:
                text = f"it was asked to stop, and {other}, a later one, ran"
                self.breaks(f"{event.supervisor}/{child}", text, since, at.number)

    def _exited(self, event: ChildExited, at: Entry) -> None:
        if event.exit == "stopped" and event.detail.startswith(("stop", "supervisor")):
            self.judged += 1
            if not self._supervisors.of(event.supervisor).asked.get(event.child):
                owner = f"{event.supervisor}/{event.child}"
                self.breaks(owner, "it was stopped, and nobody has asked", at.number)


class Restarts(Checker):
    """A child that fails comes back as its supervisor says, or ends it; nobody else is
    touched."""

    promise = "P10"
    title = "a failure is followed as the strategy says"

    def __init__(self, broken: Broken, supervisors: Supervisors) -> None:
        super().__init__(broken)
        self._supervisors = supervisors
        # The child that has just ended and has to come back.
        self._next: tuple[str, str, int] | None = None

    def judges(self) -> Mapping[type[Event], Judge]:
        return {
            ChildStarted: self._started,
            StopRequested: self._stop_requested,
            ChildExited: self._exited,
            RestartScheduled: self._scheduled,
            GaveUp: self._gave_up,
            Called: self._called,
            LogEnded: self._log_ended,
        }

    def _called(self, event: Called, at: Entry) -> None:
        self._must_follow(at)

    def _log_ended(self, event: LogEnded, at: Entry) -> None:
        self._must_follow(at)

    def _must_follow(self, at: Entry) -> None:
        """In a supervisor that restarts one for one, what follows an end comes in the
        same step, before anything else."""
        if self._next is None:
            return
        path, child, since = self._next
        self._next = None
        text = "it failed, and was neither restarted nor given up"
        self.breaks(f"{path}/{child}", text, since, at.number)

    def _exited(self, event: ChildExited, at: Entry) -> None:
        self._must_follow(at)
        found = self._supervisors.of(event.supervisor)
        was_live = event.child in found.live
        was_asked = found.asked.get(event.child, 0) > 0
        restart = found.restart.get(event.child)
        is_told = self._supervisors.told(event.supervisor) is not None
        if restart is None or found.flags is None or is_told:
            return
        self.judged += 1
        failed = event.exit == "failed" or event.detail.startswith("deadline")
        comes_back = restart == "permanent" or (restart == "transient" and failed)
        is_alone = found.is_static and found.flags.strategy == "one_for_one"
        if is_alone and was_live and comes_back and not was_asked:
            self._next = event.supervisor, event.child, at.number
        if not comes_back:
            found.over[event.child] = at.number

    def _scheduled(self, event: RestartScheduled, at: Entry) -> None:
        self._next = None
        self.judged += 1
        path, child = event.supervisor, event.child
        found, owner = self._supervisors.of(path), f"{path}/{event.child}"
        if child in found.live:
            text = "it is restarted, and has not ended"
            self.breaks(owner, text, found.live[child], at.number)
        told = self._supervisors.told(path)
        if told is not None:
            text = "it is restarted, and its supervisor is to stop"
            self.breaks(owner, text, told, at.number)
        if child in found.over and found.restart.get(child) == "temporary":
            text = "it is restarted, and it is temporary"
            self.breaks(owner, text, found.over[child], at.number)
        flags = found.flags
        if flags is None:
            return
        found.restarts.append(event.time)
        while found.restarts[0] < event.time - flags.period:
            found.restarts.popleft()
        if len(found.restarts) > flags.intensity:
            text = f"{len(found.restarts)} restarts in {flags.period:g} s"
            self.breaks(owner, f"{text}: {flags.intensity} are allowed", at.number)
        if flags.strategy != "one_for_one":
            # The next attempt at a group is one at the same group.
            if found.group is None and child not in found.unstarted:
                found.group_since = at.number
            found.group = child

    def _gave_up(self, event: GaveUp, at: Entry) -> None:
        self._next = None
        found = self._supervisors.of(event.supervisor)
        flags = found.flags
        if flags is not None:
            self.judged += 1
            since = event.time - flags.period
            recent = sum(time >= since for time in found.restarts)
            if since <= flags.time:
                recent += flags.restarts
            if recent < flags.intensity:
                text = f"it gave up after {recent} restarts in {flags.period:g} s"
                self.breaks(event.supervisor, text, at.number)

    def _started(self, event: ChildStarted, at: Entry) -> None:
        self._must_follow(at)
        path, child = event.supervisor, event.child
        found = self._supervisors.of(path)
        owner = f"{path}/{child}"
        if event.incarnation > 1:
            self.judged += 1
            told = self._supervisors.told(path)
            is_exact = child not in found.waits  # or it may have begun before
            if told is not None and is_exact and not self._supervisors.is_called(child):
                text = "it was started again, and its supervisor is to stop"
                self.breaks(owner, text, told, at.number)
            if child in found.live:
                text = "two incarnations of it run"
                self.breaks(owner, text, found.live[child], at.number)
            self._check_group(found, owner, at)

    def _check_group(self, found: _Supervisor, owner: str, at: Entry) -> None:
        """Before the first of a group starts, all of the group have ended."""
        failed, found.group = found.group, None
        if failed is None or found.flags is None:
            return
        place = found.places.get(failed, 0)
        for other, since in found.live.items():
            if other in found.terminated or since > found.group_since:
                continue
            is_later = found.places.get(other, 0) >= place
            if found.flags.strategy == "one_for_all" or is_later:
                text = f"its group was started again, and {other} of it still ran"
                self.breaks(owner, text, since, at.number)

    def _stop_requested(self, event: StopRequested, at: Entry) -> None:
        self._must_follow(at)
        child = event.child
        found = self._supervisors.of(event.supervisor)
        flags = found.flags
        if flags is None or flags.dynamic or event.by != "supervisor":
            return
        # The calls of those below it are not recorded.
        above = self._supervisors.of(event.supervisor.rpartition("/")[0])
        is_top = above.flags is None
        if found.closing is None and flags.strategy == "one_for_one" and is_top:
            self.judged += 1
            if not self._supervisors.is_called(child):
                owner = f"{event.supervisor}/{child}"
                self.breaks(owner, "nobody has asked for its stop", at.number)
