"""What follows the end of a child that nobody asked for: the effects. `_restart`
decides.

A failure is followed here from the end of the incarnation to the start of the last
member of its group; OTP has that in one file, too. `_children` below starts and stops
children and knows nothing of restarts. It leads here when a child ends by itself, and
when somebody ends a child on which a group restart, or an auto-shutdown, counts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from itertools import dropwhile
from typing import Any, TypeAlias

import attrs
import trio
from trio.lowlevel import checkpoint, enable_ki_protection

from actors import ActorRef, Exit, Failed, Stopped
from actors.env import Env
from actors.lowlevel import Incarnation
from actors.probe import reachable, sometimes

from ._children import Child, Children, Intent, Start
from ._errors import (
    ChildIgnored,
    DeadlinePassed,
    RestartIntensityExceeded,
    StartFailed,
    SupervisorError,
)
from ._events import EventStream, GaveUp, RestartScheduled, describe_exit
from ._restart import (
    GiveUp,
    History,
    RestartDecision,
    ShutDown,
    StartAgain,
    StayDown,
    count_failures,
    decide_restart,
    has_declined,
    needs_restart,
    restart_scope,
)
from ._spec import ChildSpec, Flags

OnRestart: TypeAlias = Callable[[ActorRef[Any], float], None]

SIBLING_RESTARTED = "a sibling is restarted"
"""Why a member of a group is asked to stop."""


class Supervision(Children):
    """The children of one supervisor, with what it does when they end by themselves.

    Its block in `_block` starts those of the list, and stops all of them.
    """

    def __init__(
        self,
        flags: Flags,
        name: str | None,
        env: Env | None,
        events: EventStream | None,
        *,
        dynamic: bool = False,
        on_restart: OnRestart | None = None,
    ) -> None:
        super().__init__(flags, name, env, events, dynamic=dynamic)
        self._on_restart = on_restart
        self._clock = trio.lowlevel.current_clock()
        self._history = History()
        self._last_ends: deque[tuple[str, str]] = deque(maxlen=5)
        self.overflow: RestartIntensityExceeded | None = None
        self.auto_shutdown_by: str | None = None
        self.group: GroupRestart | None = None
        # Round the start of the list, while it lasts.
        self.opening: trio.CancelScope | None = None
        # How many significant children of the list are still to be started.
        self.to_come = 0

    # What follows

    def follow(
        self,
        child: Child[Any],
        incarnation: Incarnation[Any],
        exit: Exit[object],
        intent: Intent | None,
    ) -> None:
        if intent == "group":
            if child.spec.restart == "temporary":
                self.finish_stopped(child, "a sibling's restart ended it")
            else:
                child.await_restart()
            return
        if incarnation.started_by is None:
            unstarted = self._end_start(child, exit)
            if unstarted is None:
                return
            exit = unstarted
        group = self.group
        if group is None or group.is_waiting or not needs_restart(child.spec, exit):
            self._follow_now(child, exit)
        else:
            child.await_restart()
            reachable("a child fails while a group is restarted")
            # Its group is decided now: siblings may be terminated, or forgotten,
            # before its turn comes.
            group.defer(Failure(child, incarnation, exit, self.group_of(child)))

    def _end_start(self, child: Child[Any], exit: Exit[object]) -> Exit[object] | None:
        """Deal with an incarnation that ended before its start was acknowledged.
        Return the end to follow like any other, or None if nothing is left to do."""
        if child.is_awaited:
            self.finish(child, _start_error(child, exit))
        elif isinstance(exit, Stopped) and not needs_restart(child.spec, exit):
            # By its ref, while it was being restarted: as if it had run.
            self.leave_group(child)
            return exit
        elif child.start is not None:
            # A group restart tried to start it, and decides what follows.
            child.await_restart()
            child.settle_start(_start_error(child, exit))
        elif has_declined(exit):
            self.finish(child, None)
        else:
            return Failed(_start_error(child, exit))
        return None

    def follow_deferred(self, failure: Failure) -> None:
        """Act on an end that was put off, unless another incarnation has begun
        or somebody has ended the child since."""
        child = failure.child
        if (
            not self.closing
            and child.incarnation is failure.incarnation
            and child.state == "restarting"
        ):
            self._follow_now(child, failure.exit, failure.members)

    def _follow_now(
        self,
        child: Child[Any],
        exit: Exit[object],
        members: dict[Child[Any], None] | None = None,
    ) -> None:
        """Decide what follows an end, and begin it; with ``members``, the group that
        was decided for it already."""
        restart = child.spec.restart
        if (
            restart != "temporary"
            and self.is_ending
            and needs_restart(child.spec, exit)
        ):
            # It stays down, as all others soon will.
            self.ended_early = None
            self.finish_stopped(child, None)
            return
        backoff = child.spec.backoff
        if backoff is not None:
            known = child.know_restarts()
            ran_for = self._clock.current_time() - known.began_at
            known.failures = count_failures(backoff, known.failures, ran_for)
        match self.decide(child, child.spec, exit):
            case StartAgain(delay):
                child.await_restart()
                if restart_scope(self.flags) == "child":
                    self._restart_after(child, delay)
                else:
                    self._restart_group(members or self.group_of(child), delay)
            case GiveUp():
                self.give_up(child, exit)
            case ShutDown():
                self.ended_early = None
                self.finish(child, None)
                self._shut_down(child)
            case StayDown():
                self.finish(child, None)
                # No other one runs, but some may be on their way up. If none of them
                # comes, this was the last one.
                if child.spec.significant and not any(
                    other.spec.significant and other.state == "running"
                    for other in self.by_key.values()
                ):
                    self.ended_early = child

    def decide(
        self, child: Child[Any], spec: ChildSpec[Any], exit: Exit[object]
    ) -> RestartDecision:
        """Ask the pure function, and remember what it says."""
        # Chance is drawn only where it counts, so that one seed gives one history.
        jitter = spec.backoff is not None and spec.backoff.jitter > 0
        decision, self._history = decide_restart(
            spec,
            self.flags,
            self._history,
            exit,
            self._clock.current_time(),
            failures=0 if child.restarts is None else child.restarts.failures,
            chance=self.env.ids.uniform() if jitter else 0.0,
            last_significant=spec.significant and self._is_last_significant(child),
        )
        if isinstance(decision, StartAgain | GiveUp):
            self._last_ends.append((child.id, describe_exit(exit)))
        if isinstance(decision, StartAgain):
            self.events.emit(RestartScheduled, self.path, child.id, decision.delay)
            if self._on_restart is not None:
                self._on_restart(child, decision.delay)
        return decision

    def count_restarts(self) -> int:
        """Return how many restarts count for what is decided now."""
        since = self._clock.current_time() - self.flags.period
        return sum(time >= since for time in self._history.restarts)

    # Ending the supervisor

    def _is_last_significant(self, child: Child[Any]) -> bool:
        """Whether no other one is active, nor still to be started from the list."""
        return not self.to_come and not any(
            other.spec.significant and other is not child and other.state != "stopped"
            for other in self.by_key.values()
        )

    def check_ended_early(self) -> None:
        early = self.ended_early
        if (
            early is not None
            # Until the list is complete nobody knows which one is the last.
            and self.opening is None
            and not self.closing
            and early.state == "stopped"
            and self._is_last_significant(early)
        ):
            self._shut_down(early)

    def _shut_down(self, child: Child[Any]) -> None:
        """End the supervisor because of its significant children."""
        self.auto_shutdown_by = child.id
        self._end_by_itself()

    def give_up(self, child: Child[Any], exit: Exit[object]) -> None:
        """End the supervisor because of too many restarts."""
        self.ended_early = None
        self.finish(child, None)
        self.overflow = RestartIntensityExceeded(
            self.path, self.flags.intensity, self.flags.period, tuple(self._last_ends)
        )
        if isinstance(exit, Failed):
            self.overflow.__cause__ = exit.error
        elif isinstance(exit, Stopped) and exit.by == "deadline":
            self.overflow.__cause__ = DeadlinePassed("its deadline passed")
        self.events.emit(GaveUp, self.path, child.id, describe_exit(exit))
        self._end_by_itself()

    def _end_by_itself(self) -> None:
        self.closing = True
        scope = self.body if self.opening is None else self.opening
        scope.cancel(reason=f"supervisor {self.path} ends by itself")

    # Restarting one child

    def _restart_after(self, child: Child[Any], delay: float) -> None:
        if delay == 0:
            child.begin_next(self.nursery, child.incarnation.number + 1)
        else:
            child.know_restarts().retry = retry = trio.CancelScope()
            self.nursery.start_soon(self._wait_and_restart, child, delay, retry)

    @enable_ki_protection
    async def _wait_and_restart(
        self, child: Child[Any], delay: float, retry: trio.CancelScope
    ) -> None:
        with retry:
            await trio.sleep(delay)
            # Whoever ends the child in the tick in which this wakes comes too late to
            # cancel it. By now the child may also wait for another restart.
            known = child.know_restarts()
            if known.retry is retry and not self.is_ending:
                known.retry = None
                child.begin_next(self.nursery, child.incarnation.number + 1)

    # Restarting a group

    def group_of(self, child: Child[Any]) -> dict[Child[Any], None]:
        """Return the children that are restarted with ``child``, in start order,
        except those that somebody is terminating."""
        members = (c for c in self.by_key.values() if c.intent != "terminate")
        if restart_scope(self.flags) == "rest":
            return dict.fromkeys(dropwhile(lambda c: c is not child, members))
        return dict.fromkeys(members)

    def _restart_group(self, members: dict[Child[Any], None], delay: float) -> None:
        # There is one group at a time. If there is one already, it waits: see follow().
        if self.group is not None:
            self.group.widen(members, delay)
        else:
            self.group = GroupRestart(self, members, delay)
            self.nursery.start_soon(self.group.run)

    def leave_group(self, child: Child[Any]) -> None:
        if self.group is not None:
            self.group.leave(child)

    def group_restarted(self, deferred: Iterable[Failure]) -> None:
        """The members run again; ``deferred`` has the failures that came meanwhile."""
        self.group = None
        for failure in deferred:
            # The first that needs a restart begins a group; the rest waits for that.
            if self.group is None:
                self.follow_deferred(failure)
            else:
                self.group.defer(failure)


def _start_error(child: Child[Any], exit: Exit[object]) -> SupervisorError:
    if has_declined(exit):
        return ChildIgnored(f"child {child.id!r} declined to start")
    if isinstance(exit, Failed):
        error = StartFailed(child.id, describe_exit(exit))
        error.__cause__ = exit.error
        return error
    if isinstance(exit, Stopped):
        return StartFailed(child.id, f"it was stopped ({exit.by}) before ctx.started()")
    return StartFailed(child.id, "it returned before ctx.started()")


# ---- A group restart: a child together with the siblings that its strategy names ----


@attrs.frozen(eq=False, repr=False)
class Failure:
    """An end that asks for the restart of a group."""

    child: Child[Any]
    incarnation: Incarnation[Any]
    exit: Exit[object]
    members: dict[Child[Any], None]
    """The group, in start order: decided when the child ended. A member that is
    terminated from then on leaves it."""


class GroupRestart:
    """Stops its members in reverse order, waits, and starts them in order.

    Its members are decided when it begins. From then on they leave, one by one,
    when somebody ends them, and the rest goes on without them. While it stops
    or starts, failures that ask for a restart of their own are put off; while
    it waits, they widen it.
    """

    def __init__(
        self, supervision: Supervision, members: dict[Child[Any], None], delay: float
    ) -> None:
        self._supervision = supervision
        self._members = members
        self._delay = delay
        # When a wait that was widened would have ended, which still counts, and when the
        # present one ends.
        self._not_before = -math.inf
        self._until = -math.inf
        self._scope = trio.CancelScope()
        # The wait, while it lasts: ended early when the group is widened, or empty.
        self._nap: trio.CancelScope | None = None
        # Whether it was widened since the present round of stop, wait and start began:
        # then there are members to stop again.
        self._was_widened = False
        self._deferred: list[Failure] = []
        self.is_waiting = False
        """Whether a failure may widen it."""
        self._revive()

    def cancel(self) -> None:
        """The supervisor stops, and stops the members itself."""
        self._scope.cancel()

    def defer(self, failure: Failure) -> None:
        """Follow this end when the group waits or runs, unless its incarnation
        was replaced by then."""
        self._deferred.append(failure)

    def leave(self, child: Child[Any]) -> None:
        """Somebody ends this child: go on without it."""
        self._members.pop(child, None)
        for failure in self._deferred:
            failure.members.pop(child, None)
        if not self._members and self._nap is not None:
            self._nap.cancel()  # it would wait for nobody

    def widen(self, members: dict[Child[Any], None], delay: float) -> None:
        """Add the group of another failure, which came while this one waits.

        If the new group has all members of this one and no delay, it begins at once.
        Otherwise both delays are waited out."""
        begins = delay <= 0 and members.keys() >= self._members.keys()
        sometimes("a group that waits is widened by one that begins at once", begins)
        if begins:
            self._not_before = -math.inf
        else:
            self._not_before = max(self._not_before, self._until)
        self._delay = delay
        now = trio.current_time()
        self._until = max(self._not_before, now + delay)
        # One that begins at once has begun, for whoever fails in the same tick.
        self.is_waiting = self._until > now
        # In start order, whichever of the two has come first.
        self._members = {
            child: None
            for child in self._supervision.by_key.values()
            if child in members or child in self._members
        }
        self._revive()
        self._was_widened = True
        if self._nap is not None:
            self._nap.cancel()

    def _revive(self) -> None:
        """A group restart revives what had finished or was stopped by hand."""
        for member in self._members:
            if member.state == "stopped":
                member.begin_again()
                member.await_restart()

    @enable_ki_protection
    async def run(self) -> None:
        supervision = self._supervision
        with self._scope:
            while self._members and not supervision.is_ending:
                self._was_widened = False
                await self._stop()
                await self._wait()
                if not self._was_widened and await self._start():
                    break
        if not supervision.closing:  # closing ends whatever was put off, too
            supervision.group_restarted(self._deferred)

    async def _stop(self) -> None:
        supervision = self._supervision
        for member in reversed(list(self._members)):
            if supervision.is_ending:
                return  # it may have begun to close since the last checkpoint
            if member in self._members and member.is_live:
                incarnation = member.incarnation
                supervision.ask_to_stop(
                    member, "supervisor", SIBLING_RESTARTED, intent="group"
                )
                await incarnation.wait_ended()
        if not supervision.is_ending:
            # Members that have finished by themselves meanwhile come back as well.
            self._revive()

    async def _wait(self) -> None:
        now = trio.current_time()
        self._until = max(self._not_before, now + self._delay)
        if self._until <= now:
            # To stop and to start is one step for whatever comes in between.
            await checkpoint()
            return
        with trio.CancelScope(deadline=self._until) as self._nap:
            self._follow_deferred()
            await trio.sleep_forever()
        self._nap = None
        self.is_waiting = False

    async def _start(self) -> bool:
        """Start the members; return whether all that stayed have come up."""
        for member in list(self._members):
            if self._supervision.is_ending:
                return False
            if member in self._members:
                error = await self._start_one(member)
                if error is not None and not self._supervision.is_ending:
                    self._try_again(member, error)
                    return False
        return True

    async def _start_one(self, member: Child[Any]) -> SupervisorError | None:
        """Start a member; return what went wrong, unless that is dealt with."""
        # A caller may wait for its first start already: this one answers that.
        if member.start is None:
            member.start = Start(awaited=False)
        start = member.start  # it leaves the member when it is settled
        member.begin_next(self._supervision.nursery, member.incarnation.number + 1)
        incarnation = member.incarnation
        await start.settled.wait()
        if incarnation.started_by is not None or start.awaited:
            return None  # the caller who waits for its first start has the error
        if member not in self._members:
            return None  # whoever has ended it meanwhile deals with that
        if isinstance(start.error, ChildIgnored):
            self._supervision.finish(member, None)
            return None
        return start.error

    def _try_again(self, failed: Child[Any], error: SupervisorError) -> None:
        """Count a failed attempt like any restart, and prepare the next."""
        supervision = self._supervision
        failed.know_restarts().failures += 1
        again = supervision.group_of(failed)
        self._members = {m: None for m in self._members if m in again}
        self._not_before = -math.inf
        self._until = trio.current_time()
        # As in OTP, others are served between two attempts. An attempt counts only when
        # the next one is due, and not if a wider restart has replaced that.
        self._follow_deferred()
        self.is_waiting = False
        if self._was_widened or supervision.is_ending:
            return
        # Whatever its restart type: the group is not complete without it.
        spec = failed.spec.as_permanent()
        exit = Failed(error)
        decision = supervision.decide(failed, spec, exit)
        if isinstance(decision, StartAgain):
            self._delay = decision.delay
        else:
            supervision.give_up(failed, exit)

    def _follow_deferred(self) -> None:
        """Follow what was put off, except for members: they are restarted anyway."""
        # What is followed now widens this group, and is not put off again.
        self.is_waiting = True
        deferred, self._deferred = self._deferred, []
        for failure in deferred:
            if failure.child in self._members:
                self._deferred.append(failure)
            else:
                self._supervision.follow_deferred(failure)
