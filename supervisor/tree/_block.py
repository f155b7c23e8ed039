"""The block in which a supervisor lives: how it is entered, and how it is left."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import trio
from trio.lowlevel import enable_ki_protection

from actors import Failed, Stopped
from actors.house import fewer_collections, require_trio
from actors.lowlevel import StoppedBy

from ._children import STOPPED_AT_ONCE, Child, Children, checked
from ._errors import AlreadyStarted, ChildIgnored, SupervisorError
from ._events import SupervisorEnded, describe_exit
from ._log import log
from ._spec import ChildSpec
from ._supervision import Supervision

S = TypeVar("S")

# How often what fails is done again in the same place.
_TRIES = 10


class Block(Generic[S]):
    """What the two context managers share: the block around a supervisor.

    Any call may fail before it has done anything, for lack of memory or stack,
    and trio falls with a nursery that nobody leaves. So `_leave` remembers what it
    has done, and is called until all is: by `__aexit__`, whose frame has no other
    work, and through it by `__aenter__` when that fails.
    """

    def __init__(
        self,
        make_children: Callable[[], Supervision],
        specs: Sequence[ChildSpec[Any]] = (),
    ) -> None:
        # Called when the block is entered, since they belong to the task that does.
        self._make_children = make_children
        self._specs = specs
        self._entered = False
        self._children: Supervision
        self._nursery_block: AbstractAsyncContextManager[trio.Nursery]
        # How far it has come.
        self._in_scope = False
        self._are_stopped = False
        self._is_closed = False
        self._has_left = False
        # On whose behalf the children are stopped.
        self._request: tuple[StoppedBy, str | None] | None = None
        # What has struck on the way out: the errors, and the last interrupt.
        self._failures: list[Exception] = []
        self._interrupt: BaseException | None = None
        # What the body's scope has left of its error, and what came out of the
        # nursery.
        self._rest: BaseException | None = None
        self._passing: BaseException | None = None

    def _prepare(self, children: Children) -> S:
        """Return the supervisor of ``children``.

        Raises:
            InvalidChildSpec: if one cannot be a child there.
        """
        raise NotImplementedError

    @enable_ki_protection
    async def __aenter__(self) -> S:
        require_trio(type(self).__name__)
        children, supervisor = await checked(self._make)
        self._entered = True
        self._children = children
        self._nursery_block = trio.open_nursery()
        children.nursery = await self._nursery_block.__aenter__()
        try:
            children.body.__enter__()
            self._in_scope = True
            await self._start_list()
        except BaseException as error:
            for _ in range(_TRIES):
                try:
                    if await self.__aexit__(type(error), error, None):  # noqa: ASYNC102
                        raise AssertionError("swallowed") from error  # noqa: ASYNC104
                    break
                except GeneratorExit:
                    raise
                except Exception as struck:
                    if self._has_left:
                        raise
                    self._failures.append(struck)
                except BaseException as struck:  # noqa: ASYNC103 - it leaves in the end
                    if self._has_left:
                        raise
                    self._interrupt = struck
            raise
        return supervisor

    def _make(self) -> tuple[Supervision, S]:
        if self._entered:
            raise SupervisorError("a supervisor's block can be entered only once")
        children = self._make_children()
        return children, self._prepare(children)

    async def _start_list(self) -> None:
        """Start the children of the list one after the other.

        Raises:
            StartFailed, AlreadyStarted: of the first that fails.
            RestartIntensityExceeded: if that happened already.
        """
        children = self._children
        if children.child_above is not None:
            children.child_above.below += (children,)
        children.to_come = sum(spec.significant for spec in self._specs)
        with trio.CancelScope() as children.opening:
            for spec in self._specs:
                if children.closing:
                    break
                children.to_come -= spec.significant
                if spec.id in children.by_key:
                    raise AlreadyStarted(
                        f"child {spec.id!r} was started by a sibling before its turn came"
                    )
                with contextlib.suppress(ChildIgnored):
                    await children.start(Child(children, spec, spec.args, spec.id))
        children.opening = None
        if children.overflow is not None:
            raise children.overflow
        # Which one is the last had to wait until the list was complete.
        children.check_ended_early()
        if children.closing:
            reason = f"supervisor {children.path} ended while it opened"
            children.body.cancel(reason=reason)

    @enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        while True:
            try:
                leaving = await self._leave(exc)  # noqa: ASYNC102 - shields itself
                break
            except GeneratorExit:
                raise
            except Exception as error:
                self._failures.append(error)
                if len(self._failures) >= 2 * _TRIES:
                    raise
            except BaseException as error:  # noqa: ASYNC103 - it leaves in the end
                self._interrupt = error  # noqa: ASYNC104
        if leaving is None:
            return True
        if leaving is exc:
            return False
        raise leaving

    async def _leave(self, exc: BaseException | None) -> BaseException | None:
        """End the block as ``exc`` did, and return what leaves it. After an error it
        is called again and goes on with what is not done yet."""
        children = self._children
        if not self._are_stopped:
            await self._stop_children(exc)
            self._are_stopped = True
        if self._in_scope:
            self._rest = _leave_scope(children.body, exc)
            self._in_scope = False
        if not self._is_closed:
            await self._close_nursery()
            self._is_closed = True
        self._record_end()
        leaving = self._find_leaving(exc)
        self._has_left = True
        return leaving

    async def _stop_children(self, exc: BaseException | None) -> None:
        children = self._children
        if self._request is None:
            self._request = _stopped_by(children, exc)
        if self._interrupt is not None or _find_interrupt(exc) is not None:
            children.hurry()
        if len(self._failures) >= _TRIES:
            # It fails wherever we are: another task's stack is empty.
            children.closing = True
            children.nursery.start_soon(self._stop_from_a_task, *self._request)
            return
        # Waits for the children, whose own budgets are reported.
        with trio.CancelScope(shield=True):
            await self._stop_all(*self._request)
        self._end_nursery()

    @enable_ki_protection
    async def _stop_from_a_task(self, by: StoppedBy, reason: str | None) -> None:
        try:
            with trio.CancelScope(shield=True):
                await self._stop_all(by, reason)
        finally:
            self._end_nursery()

    async def _stop_all(self, by: StoppedBy, reason: str | None) -> None:
        """Stop every child in the order that is this supervisor's. Begin again
        if an interrupt comes in between."""
        supervision = self._children
        supervision.closing = True
        if supervision.group is not None:
            supervision.group.cancel()
        children = list(reversed(supervision.by_key.values()))
        # As in `Children.terminate_together`.
        with fewer_collections():
            for number, child in enumerate(children, 1):
                if number % STOPPED_AT_ONCE == 0:
                    await trio.lowlevel.cancel_shielded_checkpoint()
                if child.incarnation.exit is not None:
                    if child.state != "stopped":
                        supervision.finish(child, supervision.stopping_error())
                elif supervision.dynamic:
                    supervision.ask_to_stop(child, by, reason)
        for child in children:
            incarnation = child.incarnation
            if incarnation.exit is None:
                if not supervision.dynamic:
                    supervision.ask_to_stop(child, by, reason)
                await incarnation.wait_ended()

    def _end_nursery(self) -> None:
        """No child is left, and no task but our own."""
        children = self._children
        children.stragglers.close()
        children.slow_starts.close()
        # While it waits for a task the nursery can be left again after an error, and
        # keeps what has come to it.
        children.nursery.start_soon(trio.lowlevel.cancel_shielded_checkpoint)
        children.nursery.cancel_scope.cancel()

    async def _close_nursery(self) -> None:
        """Leave the nursery, which no child is in, or another task stops the last.

        So what comes out is what goes in, cancellations, and interrupts that ended
        a child."""
        nursery = self._children.nursery
        own = self._find_own()
        rest = self._rest if own is None else None
        if nursery not in trio.lowlevel.current_task().child_nurseries:
            # A call that was struck has left it, but not its scope.
            self._passing = _leave_scope(nursery.cancel_scope, rest)
            return
        try:
            await self._nursery_block.__aexit__(
                None if rest is None else type(rest), rest, None
            )
        except (trio.Cancelled, BaseExceptionGroup) as error:  # noqa: ASYNC103
            self._passing = error  # it leaves in the end

    def _record_end(self) -> None:
        """The nursery has ended. Once more if an error has struck in here."""
        children = self._children
        if children.exit is None:
            exit = _exit_of(children)
            kind, detail = type(exit).__name__.lower(), describe_exit(exit)
            children.events.emit(SupervisorEnded, children.path, kind, detail)
            children.exit = exit
        children.ended.set()
        above = children.child_above
        if above is not None:
            above.below = tuple(c for c in above.below if c is not children)
        if children.owns_events:
            children.events.close()

    def _find_own(self) -> BaseException | None:
        """Return the error of the body's own, which stays out of the nursery, which
        would wrap it; a cancellation may be the nursery's."""
        rest = self._rest
        if isinstance(rest, trio.Cancelled):
            return None
        if isinstance(rest, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", rest)
            return group if group.subgroup(trio.Cancelled) is None else None
        return rest

    def _find_leaving(self, exc: BaseException | None) -> BaseException | None:
        """Return what leaves the block."""
        own, passing = self._find_own(), _unwrap(self._passing)
        interrupt = _find_interrupt(passing) or self._interrupt or _find_interrupt(exc)
        leaving = passing if own is None else own
        if own is not None and not isinstance(own, Exception):
            pass  # an interrupt of the body itself
        elif interrupt is not None:
            leaving = interrupt
        elif self._children.overflow is not None:
            leaving = self._children.overflow
        elif self._failures:
            leaving = self._failures[0]
        if self._failures and leaving is not self._failures[0]:
            log(
                logging.ERROR,
                "%s could not be left at once",
                self._children.path,
                error=self._failures[0],
            )
        if leaving is not None and own is not None and leaving is not own:
            leaving.__cause__ = own
        return leaving


def _stopped_by(
    children: Children, error: BaseException | None
) -> tuple[StoppedBy, str | None]:
    """Return on whose behalf the children are stopped if the block ends with
    ``error``."""
    if isinstance(error, trio.Cancelled) and not children.closing:
        actor = children.actor
        request = None if actor is None else actor.incarnation.stop_request
        return ("outer", None) if request is None else (request.by, request.reason)
    return "supervisor", None


def _exit_of(children: Supervision) -> Failed | Stopped:
    if children.overflow is not None:
        return Failed(children.overflow)
    if children.auto_shutdown_by is not None:
        return Stopped("auto_shutdown", children.auto_shutdown_by)
    return Stopped("owner")


def _unwrap(passing: BaseException | None) -> BaseException | None:
    """Return what leaves a block whose nursery was left by ``passing``."""
    if not isinstance(passing, BaseExceptionGroup):
        return passing
    group = cast("BaseExceptionGroup[BaseException]", passing)
    others = [e for e in group.exceptions if not isinstance(e, trio.Cancelled)]
    if not others:
        return group.exceptions[0]
    return others[0] if len(others) == 1 else group


def _leave_scope(
    scope: trio.CancelScope, exc: BaseException | None
) -> BaseException | None:
    """Leave ``scope`` with ``exc``; return what is left of that."""
    try:
        if scope.__exit__(None if exc is None else type(exc), exc, None):
            return None
    except BaseException as error:  # noqa: ASYNC103 - _leave() raises it
        return error  # noqa: ASYNC104
    return exc


def _find_interrupt(error: BaseException | None) -> BaseException | None:
    """Return the first KeyboardInterrupt, or the like, in ``error``."""
    rest = [] if error is None else [error]
    while rest:
        found = rest.pop(0)
        if isinstance(found, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", found)
            rest[:0] = group.exceptions
        elif not isinstance(found, Exception | trio.Cancelled):
            return found
    return None
