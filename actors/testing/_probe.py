"""Eyes and ears of a test: what an actor is told, and what happens."""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Callable
from typing import Any, Generic, TypeVar, overload

import trio

from .._kernel.actor import Context

M = TypeVar("M")
T = TypeVar("T")
E = TypeVar("E")


class Probe(Generic[M]):
    """An actor that gives its messages to the test, in order::

        probe = Probe[int]()
        ref = await sup.start_child(child("probe", probe.run))
        worker = await sup.start_child(child("worker", worker, ref))
        worker.tell(3)
        assert await probe.receive() == 9

    It belongs to the test, not to an incarnation. So its messages survive a restart,
    and several children may share it.
    """

    def __init__(self) -> None:
        self.received: list[M] = []
        """All that it was ever told, in order."""
        self.starts = 0
        """How many times it was started."""
        self._put, self._unread = trio.open_memory_channel[M](math.inf)

    def __repr__(self) -> str:
        return f"<Probe {len(self.received)} received>"

    async def run(self, ctx: Context[M]) -> None:
        """Run as the actor's function, until the actor is stopped."""
        self.starts += 1
        async for message in ctx.mailbox:
            self.received.append(message)
            self._put.send_nowait(message)

    async def receive(self) -> M:
        """Wait for the next message that this method has not returned, and return it. A
        cancellation loses none."""
        return await self._unread.receive()


@overload
async def wait_event(events: AsyncIterable[object], wanted: type[E]) -> E: ...


@overload
async def wait_event(events: AsyncIterable[T], wanted: Callable[[T], object]) -> T: ...


async def wait_event(
    events: AsyncIterable[Any], wanted: Callable[[Any], object]
) -> object:
    """Read ``events`` up to the next one that is wanted, and return it.

    Subscribe before the cause, so that no event is missed::

        events = runtime.events.subscribe()
        await runtime.stop(task.id)
        ended = await wait_event(events, TaskEnded)

    Args:
        events: a subscription, or any other async iterator. Earlier events are read and
            dropped. Later ones are left.
        wanted: a type, or a function that is true of the event.

    Raises:
        LookupError: if the iterator ends first.
    """
    async for event in events:
        if isinstance(event, wanted) if isinstance(wanted, type) else wanted(event):
            return event
    name = getattr(wanted, "__name__", repr(wanted))
    raise LookupError(f"the events ended, and none was {name}")
