"""The restart of a child together with the siblings that its strategy names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import trio
from trio.lowlevel import enable_ki_protection

from actors import Exit, Failed
from actors.lowlevel import Incarnation

from ._child import Child
from ._errors import ChildIgnored, SupervisorError
from ._restart import Restart

if TYPE_CHECKING:
    from ._children import Children


class GroupRestart:
    """Stops the siblings that the strategy names, waits, and starts them again."""

    def __init__(self, children: Children, trigger: Child[Any], delay: float) -> None:
        self._children = children
        self._failed = trigger
        self._delay = delay
        self._scope = trio.CancelScope()
        # Ends that came meanwhile and ask for a restart of their own.
        self._deferred: list[tuple[Child[Any], Incarnation[Any], Exit[object]]] = []

    def cancel(self) -> None:
        self._scope.cancel()

    def defer(
        self, child: Child[Any], incarnation: Incarnation[Any], exit: Exit[object]
    ) -> None:
        """Follow this end when the group runs, unless it was replaced by then."""
        self._deferred.append((child, incarnation, exit))

    @enable_ki_protection
    async def run(self) -> None:
        children = self._children
        with self._scope:
            while await self._try() == "failed" and not children.closing:
                pass
        if children.closing:
            return
        children.group_restarted()
        while self._deferred:
            child, incarnation, exit = self._deferred.pop(0)
            if child.incarnation is not incarnation or child.state != "restarting":
                continue  # replaced by this restart, or terminated
            if not children.closing:
                children.follow_or_defer(child, incarnation, exit)

    async def _try(self) -> Literal["done", "failed"]:
        group = self._children.group_of(self._failed)
        for member in reversed(group):
            await self._stop(member)
        await trio.sleep(self._delay)
        for index, member in enumerate(group):
            if member.state != "restarting" or member.is_live:
                continue  # terminated meanwhile, or temporary and gone
            error = await self._start(member)
            if error == "terminated":
                for rest in group[index + 1 :]:
                    if rest.state == "restarting" and not rest.is_live:
                        self._children.finish(rest, None)
                return "done"
            if error is not None:
                self._count(member, Failed(error))
                return "failed"
        return "done"

    async def _stop(self, member: Child[Any]) -> None:
        if self._children.closing:
            return  # it may have begun to since the last checkpoint
        if member.is_live:
            incarnation = member.incarnation
            self._children.ask_to_stop(
                member, "supervisor", "a sibling is restarted", intent="group"
            )
            await incarnation.wait_ended()
        elif member.state == "stopped" and self._children.knows(member):
            # A group restart revives what had finished or was stopped by hand.
            member.begin_again()
            member.await_restart()

    async def _start(
        self, member: Child[Any]
    ) -> SupervisorError | Literal["terminated"] | None:
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
        if isinstance(error, ChildIgnored):
            self._children.finish(member, None)
            return None
        return error if member.state == "restarting" else "terminated"

    def _count(self, child: Child[Any], exit: Exit[object]) -> None:
        """Count a failed attempt like any restart."""
        child.failures += 1
        # Whatever its restart type: the group is not complete without it.
        spec = child.spec.as_permanent()
        decision = self._children.decide(child, spec, exit)
        self._failed = child
        if isinstance(decision, Restart):
            self._delay = decision.delay
        else:
            self._children.give_up(child, exit)
