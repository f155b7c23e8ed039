"""The restart of a child together with the siblings that its strategy names."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import trio
from trio.lowlevel import checkpoint, enable_ki_protection

from actors import Exit, Failed
from actors.lowlevel import Incarnation

from ._child import Child
from ._errors import ChildIgnored, SupervisorError
from ._restart import Restart

if TYPE_CHECKING:
    from ._children import Children


@attrs.frozen(eq=False)
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
        self, children: Children, members: dict[Child[Any], None], delay: float
    ) -> None:
        self._children = children
        self._members = members
        self._delay = delay
        # When the wait that was widened would have ended, and the present one.
        self._not_before = -math.inf
        self._until = -math.inf
        self._scope = trio.CancelScope()
        self._nap: trio.CancelScope | None = None
        self._was_widened = False
        self._deferred: list[Failure] = []
        self.is_waiting = False
        """Whether a failure may widen it."""
        self._revive()

    def cancel(self) -> None:
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
            self._nap.cancel()

    def widen(self, members: dict[Child[Any], None], delay: float) -> None:
        """Take the group of another failure in, which came while this one waits.

        One that has all of these members replaces it, and is held up by its own
        delay only if it has one; then both delays are waited out."""
        if delay > 0 or not members.keys() >= self._members.keys():
            self._not_before = max(self._not_before, self._until)
        else:
            self._not_before = -math.inf
        self._delay = delay
        now = trio.current_time()
        self._until = max(self._not_before, now + delay)
        # One that begins at once has begun, for whoever fails in the same tick.
        self.is_waiting = self._until > now
        self._members = {
            child: None
            for child in self._children.by_key.values()
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
        children = self._children
        with self._scope:
            while self._members and not children.closing:
                self._was_widened = False
                await self._stop()
                await self._wait()
                if not self._was_widened and await self._start():
                    break
        if not children.closing:
            children.group_restarted(self._deferred)

    async def _stop(self) -> None:
        for member in reversed(list(self._members)):
            if self._children.closing:
                return  # it may have begun to since the last checkpoint
            if member in self._members and member.is_live:
                incarnation = member.incarnation
                self._children.ask_to_stop(
                    member, "supervisor", "a sibling is restarted", intent="group"
                )
                await incarnation.wait_ended()
        if not self._children.closing:
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
            if self._children.closing:
                return False
            if member in self._members:
                error = await self._start_one(member)
                if error is not None and not self._children.closing:
                    self._try_again(member, error)
                    return False
        return True

    async def _start_one(self, member: Child[Any]) -> SupervisorError | None:
        """Start a member; return what went wrong, unless that is dealt with."""
        awaited = member.awaited
        if member.outcome is None:
            member.outcome = trio.Event()
        outcome = member.outcome
        member.begin_next(self._children.nursery, member.incarnation.number + 1)
        incarnation = member.incarnation
        await outcome.wait()
        if incarnation.was_started or awaited:
            return None  # whoever waits for its first start was told
        error, member.start_error = member.start_error, None
        if member not in self._members:
            return None
        if isinstance(error, ChildIgnored):
            self._children.finish(member, None)
            return None
        return error

    def _try_again(self, failed: Child[Any], error: SupervisorError) -> None:
        """Count a failed attempt like any restart, and prepare the next."""
        failed.failures += 1
        again = self._children.group_of(failed)
        self._members = {m: None for m in self._members if m in again}
        self._not_before = -math.inf
        self._until = trio.current_time()
        # As in OTP others are served between two attempts, and the attempt counts
        # when the next one is due: not if a wider restart has replaced that.
        self._follow_deferred()
        self.is_waiting = False
        if self._was_widened or self._children.closing:
            return
        # Whatever its restart type: the group is not complete without it.
        spec = failed.spec.as_permanent()
        exit = Failed(error)
        decision = self._children.decide(failed, spec, exit)
        if isinstance(decision, Restart):
            self._delay = decision.delay
        else:
            self._children.give_up(failed, exit)

    def _follow_deferred(self) -> None:
        """Follow what was put off, but for members, who are restarted anyhow."""
        self.is_waiting = True
        deferred, self._deferred = self._deferred, []
        for failure in deferred:
            if failure.child in self._members:
                self._deferred.append(failure)
            else:
                self._children.follow_deferred(failure)
