"""The block in which a supervisor lives: how it is entered, and how it is left."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import trio
from trio.lowlevel import enable_ki_protection

from actors.env import Env
from actors.lowlevel import StoppedBy, require_trio

from ._children import Children
from ._errors import SupervisorError
from ._events import EventStream
from ._log import log
from ._spec import ChildSpec, Flags

S = TypeVar("S")

# How often what fails is done again in the same place.
_TRIES = 10


class Block(Generic[S]):
    """What the two context managers share: the block around a supervisor.

    Any call may fail before it has done anything, for want of memory or of stack,
    and trio falls with a nursery that nobody leaves. So `_leave` remembers what it
    has done, and is called until all is: by `__aexit__`, whose frame has no other
    work, and through it by `__aenter__` when that fails.
    """

    def __init__(
        self,
        flags: Flags,
        specs: Sequence[ChildSpec[Any]],
        name: str | None,
        env: Env | None,
        events: EventStream | None,
        *,
        dynamic: bool,
    ) -> None:
        self._flags = flags
        self._specs = specs
        self._name = name
        self._env = env
        self._events = events
        self._dynamic = dynamic
        self._entered = False
        self._children: Children
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
        try:
            if self._entered:
                raise SupervisorError("a supervisor's block can be entered only once")
            children = Children(
                self._flags,
                dynamic=self._dynamic,
                name=self._name,
                env=self._env,
                events=self._events,
            )
            supervisor = self._prepare(children)
        except Exception:
            # As in all that fails without waiting: see _yield_before_raising().
            await trio.lowlevel.checkpoint()  # noqa: ASYNC120
            raise
        self._entered = True
        self._children = children
        self._nursery_block = trio.open_nursery()
        children.nursery = await self._nursery_block.__aenter__()
        try:
            children.body.__enter__()
            self._in_scope = True
            await children.start_list(self._specs)
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
        children.closed()
        leaving = self._find_leaving(exc)
        self._has_left = True
        return leaving

    async def _stop_children(self, exc: BaseException | None) -> None:
        children = self._children
        if self._request is None:
            self._request = children.stopped_by(exc)
        if self._interrupt is not None or _find_interrupt(exc) is not None:
            children.hurry()
        if len(self._failures) >= _TRIES:
            # It fails wherever we are: another task's stack is empty.
            children.stop_from_a_task(*self._request)
            return
        # Waits for the children, whose own budgets are reported.
        with trio.CancelScope(shield=True):
            await children.stop_all(*self._request)
        children.all_stopped()

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
