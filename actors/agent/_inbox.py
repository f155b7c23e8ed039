"""Where messages to an agent wait until it takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Hashable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from .._kernel.checks import check_type
from ._errors import InboxClosed, InboxFull
from ._events import UserMessage

INBOX_LIMIT = 1_000
"""Messages that may wait for one agent."""
INBOX_SIZE = 1_000_000
"""The characters of these, together: no model could read more at once."""


WaitBy: TypeAlias = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
"""Waits by calling what it is given, and for whatever else must be waited for."""


async def _wait(wait: Callable[[], Awaitable[None]]) -> None:
    await wait()


@attrs.frozen(eq=False, repr=False)
class _Entry:
    message: UserMessage
    key: Hashable
    on_take: Callable[[], bool] | None


@attrs.define(eq=False, repr=False)
class Inbox:
    """The messages that wait for one agent, in the order in which they came.

    It belongs to the agent's record and not to one run of it, so what waits survives a
    restart. `put` and the calls without `async` are one step each, so a message is
    either handed out, left for whoever closes the inbox, or refused.

    Args:
        messages: whether those with the origin ``message`` are taken. A one-shot agent
            takes none.
        on_change: it is called when other messages of that origin wait than before,
            with the number of all that wait.
    """

    _takes_messages: bool = attrs.field(default=True, alias="messages", kw_only=True)
    on_change: Callable[[int], None] | None = attrs.field(default=None, kw_only=True)
    """As it was given."""
    closed: bool = attrs.field(default=False, init=False)
    """Whether it takes nothing more."""
    takes: int = attrs.field(default=0, init=False)
    """How often `take` was called."""
    _entries: deque[_Entry] = attrs.field(factory=deque[_Entry], init=False)
    # For the next take, whenever that is: nothing waits for it, or because of it.
    _aside: UserMessage | None = attrs.field(default=None, init=False)
    _arrival: trio.Event | None = attrs.field(default=None, init=False)
    # Of the run that reads it: what keeps the messages, and what says that it
    # is not idle but waits, and how it waits.
    _record: Callable[[UserMessage], None] | None = attrs.field(
        default=None, init=False
    )
    _pause: Callable[[], AbstractContextManager[None]] = attrs.field(
        default=nullcontext, init=False
    )
    _wait_by: WaitBy = attrs.field(default=_wait, init=False)
    # The characters of those that count for the limit.
    _size: int = attrs.field(default=0, init=False)

    def __len__(self) -> int:
        return len(self._entries)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        state = "closed, " if self.closed else ""
        return f"<Inbox: {state}{len(self)} waiting>"

    @enable_ki_protection
    def put(
        self,
        message: UserMessage,
        *,
        key: Hashable = None,
        on_take: Callable[[], bool] | None = None,
    ) -> None:
        """Add a message, the last of those that wait.

        Args:
            message: the message.
            key: the key by which `discard` may find it.
            on_take: it is called when the message is handed out. If it returns False,
                the message is dropped instead, because it was told in another way. Such
                a message is on record already, so there is always room for it.

        Raises:
            TypeError: if ``message`` is not a `UserMessage`.
            InboxClosed: if nothing more is taken.
            InboxFull: if too many wait, or too long ones.
        """
        if not isinstance(message, UserMessage):
            check_type("message", message, UserMessage)
        if self.closed:
            raise InboxClosed
        if message.origin == "message" and not self._takes_messages:
            raise InboxClosed("the agent takes no messages while it runs")
        if on_take is None:
            if len(self._entries) >= INBOX_LIMIT:
                raise InboxFull(INBOX_LIMIT)
            if self._size + _size(message) > INBOX_SIZE:
                raise InboxFull(INBOX_SIZE, "characters")
        self._add(_Entry(message, key, on_take))
        self._wake()
        if message.origin == "message":
            self._tell_change()

    def add_own(self, message: UserMessage) -> None:
        """For the run that reads it: add a message, whatever the limit."""
        self._add(_Entry(message, None, None))

    def say_aside(self, message: UserMessage) -> None:
        """For the run that reads it: hand ``message`` out behind what is taken next,
        in the place of an earlier one. It does not count as waiting."""
        self._aside = message

    def waiting(self) -> list[UserMessage]:
        """Return all messages that wait, and leave them there."""
        return [entry.message for entry in self._entries]

    @enable_ki_protection
    def take(self) -> list[UserMessage]:
        """Return all messages that wait, in the order in which they came, and empty the
        inbox. Each is then in the agent's history and transcript."""
        self.takes += 1
        messages: list[UserMessage] = []
        while self._entries:
            entry = self._entries.popleft()
            if entry.on_take is not None and not entry.on_take():
                continue
            messages.append(entry.message)
            if self._record is not None:
                self._record(entry.message)
        self._size = 0
        if self._aside is not None:
            message, self._aside = self._aside, None
            messages.append(message)
            if self._record is not None:
                self._record(message)
        if any(message.origin == "message" for message in messages):
            self._tell_change()
        return messages

    def discard(self, key: Hashable) -> bool:
        """Drop what waits under ``key``. Return whether anything did."""
        if key is None:
            return False
        kept = [entry for entry in self._entries if entry.key != key]
        found = len(kept) < len(self._entries)
        if found:
            self._entries = deque(kept)
            self._size = sum(_size(e.message) for e in kept if e.on_take is None)
        return found

    async def wait(self) -> None:
        """Wait until something is there or the inbox is closed. The time does not
        count as idle."""
        if self._entries or self.closed:
            await trio.lowlevel.checkpoint()
            return
        with self._pause():
            while not self._entries and not self.closed:
                await self._wait_by(self._wait_arrival)

    async def _wait_arrival(self) -> None:
        await self.next_arrival().wait()

    def next_arrival(self) -> trio.Event:
        """Return an event that is set by the next message, and by the close."""
        if self._arrival is None or self._arrival.is_set():
            self._arrival = trio.Event()
            if self.closed:
                self._arrival.set()
        return self._arrival

    def asks(self) -> bool:
        """Whether something waits that is not merely the end of an own task."""
        return any(entry.message.origin != "notification" for entry in self._entries)

    @enable_ki_protection
    def close_if_empty(self, *, ends_count: bool = True) -> bool:
        """Take nothing more if nothing waits, and say whether that is so.

        With ``ends_count`` False, the inbox does not stay open for the ends of own
        tasks that wait. They are left for `close`.
        """
        if self._entries if ends_count else self.asks():
            return False
        self.close()
        return True

    @enable_ki_protection
    def close(self) -> list[UserMessage]:
        """Take nothing more, and return what still waits. It may be called more than
        once. The inbox cannot be opened again."""
        self.closed = True
        self._wake()
        return self.waiting()

    @contextmanager
    def read_by(
        self,
        record: Callable[[UserMessage], None],
        pause: Callable[[], AbstractContextManager[None]],
        wait_by: WaitBy | None = None,
    ) -> Generator[None]:
        """For the run that reads it: what is handed out goes through ``record``, and
        it waits by ``wait_by``."""
        self._record, self._pause, self._wait_by = record, pause, wait_by or _wait
        try:
            yield
        finally:
            self._record, self._pause, self._wait_by = None, nullcontext, _wait

    def _add(self, entry: _Entry) -> None:
        self._entries.append(entry)
        if entry.on_take is None:
            self._size += _size(entry.message)

    def _tell_change(self) -> None:
        if self.on_change is not None:
            self.on_change(len(self._entries))

    def _wake(self) -> None:
        if self._arrival is not None:
            self._arrival.set()
            self._arrival = None


def _size(message: UserMessage) -> int:
    return len(message.text) + len(message.sender or "")
