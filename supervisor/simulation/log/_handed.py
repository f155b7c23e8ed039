"""What a runtime that is recorded hands out: handles, readers, the status of a start."""

# A recorder looks at what it records from outside, and at its settings inside.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from trio.lowlevel import enable_ki_protection

from ..._delivery.outbox import Notification
from ..._delivery.readers import Notifications
from ..._life.handles import TaskHandle
from . import _kinds as kinds  # pyright: ignore[reportPrivateUsage]

if TYPE_CHECKING:
    from ._record import Log


class Handle(TaskHandle):
    """A handle of which each call is recorded."""

    __slots__ = ("_log",)

    def __init__(self, log: Log, handle: TaskHandle) -> None:
        super().__init__(handle._life, handle._task)
        self._log = log

    async def wait(self, *args: Any, **options: Any) -> Any:
        call = partial(super().wait, *args, **options)
        return await self._log.call("wait", (self.id,), call)

    async def stop(self, *args: Any, **options: Any) -> Any:
        call = partial(super().stop, *args, **options)
        return await self._log.call("stop", (self.id,), call)


class Told:
    """The status of a start, which says so first."""

    def __init__(
        self, log: Log, status: Any, began: Callable[[TaskHandle], None]
    ) -> None:
        self._log = log
        self._status = status
        self._began = began

    @property
    def started(self) -> Callable[[TaskHandle], None]:
        started = self._status.started

        def tell(handle: TaskHandle) -> None:
            self._began(handle)
            started(Handle(self._log, handle))

        return tell


class Reader(Notifications):
    """A reader of notifications that says what it was handed."""

    def __init__(self, log: Log, inner: Notifications) -> None:
        super().__init__(inner._outbox, inner._owner, inner._everyone)
        self._log = log

    # What was taken must reach the reader, interrupt or not.
    @enable_ki_protection
    async def __anext__(self) -> Notification:
        note = await self._log.call("next", (), super().__anext__)
        self._log.handed([note])
        return note

    @enable_ki_protection
    async def receive_batch(self, *args: Any, **options: Any) -> list[Notification]:
        call = partial(super().receive_batch, *args, **options)
        notes = await self._log.call("receive_batch", (), call)
        self._log.handed(notes)
        return notes

    @enable_ki_protection
    def drain(self) -> list[Notification]:
        notes = super().drain()
        self._log.handed(notes)
        if self._outbox.closed and self._everyone:
            self._log.add(kinds.Drained)
        return notes
