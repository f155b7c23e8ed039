"""A reader's view of the outbox."""

from __future__ import annotations

import trio
from trio.lowlevel import checkpoint, checkpoint_if_cancelled, enable_ki_protection

from actors.house import check_whole

from .outbox import Notification, Outbox, by_number

# A reader of a long queue lets others run this often.
_CHECKPOINT_EVERY = 16


class Notifications:
    """A reader's view of the outbox. It is an async iterator of notifications, in the
    order in which the tasks ended.

    Each notification goes to one reader, once. The iteration ends when the runtime has
    ended and everything was read. Reading does not acknowledge. `Notification.ack`
    does. A reader may take over from one that died. It finds in `unacknowledged` what
    that one had taken.

    A notification with ``notify`` ``defer`` wakes nobody. It comes, in its place in the
    order, with the next one that wakes, with `drain`, and at the end.
    """

    def __init__(self, outbox: Outbox, owner: str | None, everyone: bool) -> None:
        self._outbox = outbox
        self._owner = owner
        self._everyone = everyone
        self._ready = outbox.ready_for(owner, everyone=everyone)
        self._calls = 0

    def __aiter__(self) -> Notifications:
        return self

    # What was taken must reach the reader, interrupt or not.
    @enable_ki_protection
    async def __anext__(self) -> Notification:
        self._calls += 1
        if self._calls % _CHECKPOINT_EVERY == 0:
            await checkpoint()
        else:
            await checkpoint_if_cancelled()
        while True:
            note = self._outbox.take(self._ready, deferred=False)
            if note is not None:
                return note
            if not await self._outbox.wait(self._ready):
                await checkpoint()
                raise StopAsyncIteration

    @enable_ki_protection
    async def receive_batch(self, limit: int | None = None) -> list[Notification]:
        """Wait until there is one that wakes, and take all that are ready. So what has
        ended since the last call takes one wake-up.

        The list is never empty, and never longer than ``limit``. A cancelled call has
        taken nothing.

        Raises:
            trio.EndOfChannel: if the runtime has ended and everything was read.
            ValueError: if ``limit`` is not 1 or more.
        """
        await checkpoint()
        check_whole("limit", limit, 1, none=True, wrong=ValueError)
        while (first := self._outbox.take(self._ready, deferred=False)) is None:
            if not await self._outbox.wait(self._ready):
                raise trio.EndOfChannel
        return [first, *self._take(None if limit is None else limit - 1)]

    @enable_ki_protection
    def drain(self) -> list[Notification]:
        """Take all at once, without waiting. There is one for every background task
        that has ended, unless a reader has had it."""
        self._outbox.catch_up()
        return self._take(None)

    def _take(self, limit: int | None) -> list[Notification]:
        notes: list[Notification] = []
        while limit is None or len(notes) < limit:
            note = self._outbox.take(self._ready, deferred=True)
            if note is None:
                break
            notes.append(note)
        return notes

    def unacknowledged(self) -> list[Notification]:
        """Return what readers have taken and not acknowledged, in the order in
        which the tasks ended.

        It is for a reader that takes over from one that died. That one may have handled
        them or not, so they may be told twice. A reader that lives sees its own among
        them.
        """
        notes = [
            note
            for note in self._outbox.taken()
            if self._everyone or note.owner == self._owner
        ]
        return sorted(notes, key=by_number)
