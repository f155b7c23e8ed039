"""The outbox: one record for each background task that ended, until acknowledged.

A record enters synchronously with the terminal state. The notifier gives it its
envelope; then a reader can take it, once; then the reader acknowledges it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Literal, TypeAlias

from trio.lowlevel import (
    ParkingLot,
    checkpoint,
    checkpoint_if_cancelled,
    enable_ki_protection,
)

from actors import TaskStatus
from actors.envelope import Envelope, clean_text
from actors.notifier import write_envelopes

# A reader of a long queue lets others run this often.
_CHECKPOINT_EVERY = 16

# Characters of `Notification.display`.
_DISPLAY_LIMIT = 200

Ack: TypeAlias = Literal["delivered", "consumed", "silent"]
ACKS: tuple[Ack, ...] = ("delivered", "consumed", "silent")


class Notification:
    """The terminal state of one background task, on its way to the parent."""

    __slots__ = (
        "_acked",
        "_outbox",
        "display",
        "id",
        "owner",
        "status",
        "task_id",
        "xml",
    )

    def __init__(self, outbox: Outbox, envelope: Envelope, owner: str | None) -> None:
        self.id = envelope.notification_id
        """Unique among all notifications of the runtime."""
        self.task_id = envelope.task_id
        """Of the task that ended."""
        self.owner = owner
        """Whose task it was."""
        self.status = TaskStatus(envelope.status)
        """How it ended."""
        self.xml = ""
        """The envelope for the parent's model."""
        self.display = _one_line(envelope.summary)
        """One short clean line for people; it never holds the result."""
        self._outbox = outbox
        self._acked: Ack | None = None

    def __repr__(self) -> str:
        return f"<Notification {self.id} of task {self.task_id}, {self.status.value}>"

    @property
    def acked(self) -> Ack | None:
        """How it was acknowledged, or None."""
        return self._acked

    @enable_ki_protection
    def ack(self, how: Ack = "delivered") -> bool:
        """Say that the parent has it, for good. True the first time.

        ``delivered`` is the envelope handed to the parent, ``consumed`` the
        result read in another way before, ``silent`` a parent that does not
        want it.

        Raises:
            ValueError: if ``how`` is none of these.
        """
        if how not in ACKS:
            raise ValueError(f"how must be one of {', '.join(ACKS)}, not {how!r}")
        if self._acked is not None:
            return False
        self._acked = how
        self._outbox.acknowledged(self)
        return True


class Outbox:
    """Every notification of a runtime that is not acknowledged yet."""

    def __init__(
        self, on_ack: Callable[[Notification], None], on_warning: Callable[[str], None]
    ) -> None:
        self._on_ack = on_ack
        self._on_warning = on_warning
        # Each with the facts for its envelope.
        self._unsent: deque[tuple[Notification, Envelope]] = deque()
        # Ready and taken by nobody yet, in order; the same ones for each owner.
        self._ready: OrderedDict[Notification, None] = OrderedDict()
        self._ready_of: dict[str | None, OrderedDict[Notification, None]] = {}
        self._waiting = ParkingLot()
        self._unacked = 0
        self._closed = False

    @property
    def unacknowledged(self) -> int:
        """How many notifications wait for their ack."""
        return self._unacked

    def add(self, envelope: Envelope, owner: str | None) -> Notification:
        """Record a terminal state. Synchronous and without a failure."""
        note = Notification(self, envelope, owner)
        self._unsent.append((note, envelope))
        self._unacked += 1
        return note

    @property
    def has_first_unsent(self) -> bool:
        """Whether exactly one record has no envelope, so that the notifier must
        be woken."""
        return len(self._unsent) == 1

    def acknowledged(self, note: Notification) -> None:
        """Called by the notification itself, once."""
        self._unacked -= 1
        self._on_ack(note)

    # For the notifier

    def next_unsent(self) -> Envelope | None:
        """Return the facts of the oldest record without an envelope."""
        return self._unsent[0][1] if self._unsent else None

    @enable_ki_protection
    def publish(self, xml: str) -> None:
        """Give that record its envelope, and let its readers have it."""
        note, _ = self._unsent.popleft()
        note.xml = xml
        self._ready[note] = None
        self._ready_of.setdefault(note.owner, OrderedDict())[note] = None
        self._waiting.unpark_all()

    def warn(self, text: str) -> None:
        """An envelope could not be built as it should be."""
        self._on_warning(text)

    # For readers

    @enable_ki_protection
    def take(self, owner: str | None, everyone: bool) -> Notification | None:
        """Return the oldest notification that no reader has had, or None."""
        queue = self._ready if everyone else self._ready_of.get(owner)
        if not queue:
            return None
        note = next(iter(queue))
        del self._ready[note]
        of_owner = self._ready_of[note.owner]
        del of_owner[note]
        if not of_owner:
            del self._ready_of[note.owner]
        return note

    async def wait(self) -> bool:
        """Wait for a change; return False if there will be no other."""
        if self._closed:
            return False
        await self._waiting.park()
        return True

    def close(self) -> None:
        """Nothing more will come; what is here stays readable."""
        # The notifier was the last to stop and left none, unless it failed.
        write_envelopes(self)
        self._closed = True
        self._waiting.unpark_all()


class Notifications:
    """A reader's view of the outbox: an async iterator of notifications, in the
    order in which the tasks ended.

    Each is handed to one reader, once. The iteration ends when the runtime has
    ended and everything was read. Reading does not acknowledge: `Notification.ack`
    does.
    """

    def __init__(self, outbox: Outbox, owner: str | None, everyone: bool) -> None:
        self._outbox = outbox
        self._owner = owner
        self._everyone = everyone
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
            note = self._outbox.take(self._owner, self._everyone)
            if note is not None:
                return note
            if not await self._outbox.wait():
                await checkpoint()
                raise StopAsyncIteration

    @enable_ki_protection
    def drain(self) -> list[Notification]:
        """Take all at once, without waiting: one for every background task
        that has ended and that no reader has had."""
        # The notifier may have had no time yet for the last ones.
        write_envelopes(self._outbox)
        notes: list[Notification] = []
        while (note := self._outbox.take(self._owner, self._everyone)) is not None:
            notes.append(note)
        return notes


def _one_line(text: str) -> str:
    line = " ".join(clean_text(text[: 4 * _DISPLAY_LIMIT]).split())
    return line if len(line) <= _DISPLAY_LIMIT else line[: _DISPLAY_LIMIT - 3] + "..."
