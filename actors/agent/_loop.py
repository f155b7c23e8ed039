"""The stepping and the closing of what an agent's `run` returns."""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import trio
from trio.lowlevel import disable_ki_protection

if TYPE_CHECKING:
    from ._agent import Run
    from ._context import AgentContext

T = TypeVar("T")

END: Final = object()
"""What there is instead of an event when there will be none."""

# A generator may yield in its `finally`, but not for ever.
_TRIES = 64
_PATIENCE = 8


class Loop:
    """One call of an agent's `run`: an async iterator, mostly a generator.

    All of it happens in one task. No scope is open round a step that was not
    before the first one, so those that the generator opens are well nested even
    if it yields inside them. Its code is not protected from interrupts, as that
    of any actor.

    Raises:
        TypeError: if ``run`` returns no async iterator.
    """

    __slots__ = ("_athrow", "_iterator", "name", "returned")

    name: str
    returned: bool
    """Whether it has ended, in whatever way: there is nothing to close."""

    @disable_ki_protection
    def __init__(self, run: Run, context: AgentContext) -> None:
        self.name = getattr(run, "__qualname__", None) or repr(run)
        self.returned = False
        events: object = run(context)
        if inspect.iscoroutine(events):
            # Or Python warns that nobody has awaited it.
            events.close()
        if not hasattr(events, "__aiter__"):
            raise TypeError(
                f"{self.name} returned {events!r}: run must be an async generator "
                "function, or return another async iterator"
            )
        self._iterator: Any = aiter(events)
        self._athrow: Callable[[BaseException], Awaitable[object]] | None = getattr(
            self._iterator, "athrow", None
        )

    @property
    def can_be_thrown_at(self) -> bool:
        """Whether it is a generator."""
        return self._athrow is not None

    @disable_ki_protection
    async def next(self) -> object:
        """Return its next event, or END."""
        try:
            return await anext(self._iterator, END)
        except BaseException:
            self.returned = True
            raise

    @disable_ki_protection
    async def throw(self, cancelled: trio.Cancelled) -> object:
        """Raise ``cancelled`` where it is suspended, and return its next event, or
        END."""
        assert self._athrow is not None
        try:
            return await self._athrow(cancelled)
        except StopAsyncIteration:
            return END
        except BaseException:
            self.returned = True
            raise

    @disable_ki_protection
    async def close(self) -> int:
        """Let it clean up, and return how many events it has yielded meanwhile.

        Raises:
            RuntimeError: if it does not end.
            BaseException: what it raises.
        """
        self.returned = True
        if self._athrow is None:
            if hasattr(self._iterator, "aclose"):
                await self._iterator.aclose()
            return 0
        # Not `aclose`, after whose failure a generator cannot be closed again.
        leave = GeneratorExit()
        for events in range(_TRIES):
            try:
                # What follows a `yield` in its cleaning up is cleaning up as well.
                if events % _PATIENCE == 0:
                    await self._athrow(leave)
                elif await anext(self._iterator, END) is END:
                    return events
            except StopAsyncIteration:
                return events
            except GeneratorExit as left:  # noqa: ASYNC103 - ours, and it has arrived
                if left is not leave:
                    raise
                return events
            except BaseExceptionGroup as group:  # noqa: ASYNC103 - its other part is
                # It has left through a nursery.
                other = group.split(GeneratorExit)[1]
                if other is not None:
                    raise other from None
                return events
        raise RuntimeError(f"{self.name} goes on yielding although it is closed")


@types.coroutine
def told_of_its_wait(
    step: Coroutine[Any, Any, T], tell: Callable[[], None]
) -> Generator[Any, Any, T]:
    """Await ``step``, and call ``tell`` when that gives up control for the first
    time, before anybody else gets it, and when it is done."""
    # By hand: nothing else shows that a step waits.
    try:
        trap = step.send(None)
        tell()
        while True:
            try:
                answer = yield trap
            # The boundary: whatever is thrown here was meant for the step.
            except BaseException as error:  # noqa: ASYNC103
                trap = step.throw(error)
            else:
                trap = step.send(answer)
    except StopIteration as end:
        tell()
        return cast("T", end.value)
