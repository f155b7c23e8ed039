"""The block in which a supervisor lives: how it is entered, and how it is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, cast

import trio
from trio.lowlevel import enable_ki_protection

from actors.env import Env

from ._children import Children
from ._errors import SupervisorError
from ._events import EventStream
from ._spec import ChildSpec, Flags

# How often stopping the children is begun again in the same place after errors.
_TRIES = 10


class Block:
    """What the two context managers share: the block around a supervisor."""

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

    async def _enter(self) -> Children:
        if self._entered:
            await trio.lowlevel.checkpoint()
            raise SupervisorError("a supervisor's block can be entered only once")
        self._entered = True
        self._children = children = Children(
            self._flags,
            dynamic=self._dynamic,
            name=self._name,
            env=self._env,
            events=self._events,
        )
        self._nursery_block = trio.open_nursery()
        children.nursery = await self._nursery_block.__aenter__()
        children.body.__enter__()
        try:
            await children.start_list(self._specs)
        except BaseException as error:
            if not await self._leave(error):  # noqa: ASYNC102 - shields itself
                raise
            raise AssertionError("swallowed while opening") from error  # noqa: ASYNC104
        return children

    @enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return await self._leave(exc)  # noqa: ASYNC102 - shields itself

    async def _leave(self, exc: BaseException | None) -> bool:
        """End the block as ``exc`` did; return whether that is dealt with."""
        children = self._children
        interrupt, failure = await self._stop_children(exc)
        rest = _leave_scope(children.body, exc)
        # An error of the body's own stays out of the nursery, which would wrap
        # it; a cancellation may be the nursery's.
        own = (
            None if any(isinstance(e, trio.Cancelled) for e in _leaves(rest)) else rest
        )
        try:
            passing = await self._close_nursery(rest if own is None else None)
        finally:
            children.closed()
        interrupt = _find_interrupt(passing) or interrupt
        leaving = own or passing
        if own is not None and not isinstance(own, Exception):
            pass  # an interrupt of the body itself
        elif interrupt is not None:
            leaving = interrupt
        elif children.overflow is not None:
            leaving = children.overflow
        elif failure is not None:
            leaving = failure
        if leaving is None:
            return True
        if leaving is exc:
            return False
        if own is None or leaving is own:
            raise leaving
        raise leaving from own

    async def _stop_children(
        self, exc: BaseException | None
    ) -> tuple[BaseException | None, Exception | None]:
        """Stop every child, however often that is interrupted, and return the
        last interrupt and the first error of that, which leave the block
        afterwards."""
        children = self._children
        by, reason = children.stopped_by(exc)
        interrupt = _find_interrupt(exc)
        failures: list[Exception] = []
        while True:
            if interrupt is not None:
                children.hurry()
            try:
                # Waits for the children, whose own budgets are reported.
                with trio.CancelScope(shield=True):
                    await children.stop_all(by, reason)
            except (KeyboardInterrupt, SystemExit) as error:
                interrupt = error
            # No memory, or no stack left: the children must end all the same,
            # or the nursery would stay open and trio with it.
            except Exception as error:
                failures.append(error)
                if len(failures) == _TRIES:
                    # It fails wherever we are: another task's stack is empty.
                    children.stop_from_a_task(by, reason)
                    break
            else:
                children.all_stopped()
                break
        return None if interrupt is exc else interrupt, next(iter(failures), None)

    async def _close_nursery(self, rest: BaseException | None) -> BaseException | None:
        """Leave the nursery with ``rest``; return what comes out.

        No child is left, or another task stops the last, so what comes out is
        ``rest``, cancellations, and interrupts that ended a child."""
        try:
            await self._nursery_block.__aexit__(
                None if rest is None else type(rest), rest, None
            )
        except trio.Cancelled as cancelled:  # noqa: ASYNC103 - _leave() raises it
            return cancelled  # noqa: ASYNC104
        except BaseExceptionGroup as group:
            others = [e for e in group.exceptions if not isinstance(e, trio.Cancelled)]
            if len(others) == 1:
                return others[0]
            return group if others else group.exceptions[0]
        return None


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


def _leaves(error: BaseException | None) -> Iterator[BaseException]:
    """Yield what ``error`` is, or groups."""
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaves(inner)
    elif error is not None:
        yield error


def _find_interrupt(error: BaseException | None) -> BaseException | None:
    """Return the first KeyboardInterrupt, or the like, in ``error``."""
    return next(
        (e for e in _leaves(error) if not isinstance(e, Exception | trio.Cancelled)),
        None,
    )
