"""The outbox: one record for each background task that ended, until acknowledged.

A record enters synchronously with the terminal state. The notifier gives it its
envelope; then a reader can take it, once; then the reader acknowledges it. A
record that its reader took and never acknowledged is found again by
`Notifications.unacknowledged`.
"""

# A notification and its outbox are two faces of one record.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias
from weakref import ref

import trio
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

Notify: TypeAlias = Literal["wake", "defer", "silent"]
NOTIFY: tuple[Notify, ...] = ("wake", "defer", "silent")

Ack: TypeAlias = Literal["delivered", "consumed", "silent"]
ACKS: tuple[Ack, ...] = ("delivered", "consumed", "silent")

# Where a record is. It only moves on.
_UNSENT, _READY, _TAKEN, _ACKED = range(4)


class Notification:
    """The terminal state of one background task, on its way to the parent."""

    __slots__ = (
        "_acked",
        "_facts",
        "_outbox",
        "_place",
        "_summary",
        "id",
        "notify",
        "owner",
        "status",
        "task_id",
        "xml",
    )

    def __init__(
        self,
        outbox: Outbox,
        id: str,
        task_id: str,
        owner: str | None,
        status: TaskStatus,
        notify: Notify,
        facts: Callable[[], Envelope] | None,
    ) -> None:
        self.id = id
        """Unique among all notifications of the runtime; they sort in the order
        in which the tasks ended."""
        self.task_id = task_id
        """Of the task that ended."""
        self.owner = owner
        """Whose task it was."""
        self.status = status
        """How it ended."""
        self.notify: Notify = notify
        """``wake``: it wakes its readers. ``defer``: it comes with the next one
        that does."""
        self.xml = ""
        """The envelope for the parent's model."""
        self._summary = ""
        self._facts = facts
        self._outbox = outbox
        self._place = _UNSENT
        self._acked: Ack | None = None

    def __repr__(self) -> str:
        return f"<Notification {self.id} of task {self.task_id}, {self.status.value}>"

    @property
    def display(self) -> str:
        """One short clean line for people; it never holds the result."""
        return _one_line(self._summary)

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
        self._outbox.acknowledged(self, how)
        return True


class _Ready:
    """What a view's readers can take, in the order of ending, and its readers."""

    __slots__ = ("__weakref__", "_notes", "_ready", "_waking", "readers")

    def __init__(self) -> None:
        # Those that another view has given away stay in it until their turn
        # comes, or until they are the larger part.
        self._notes: deque[Notification] = deque()
        self._ready: set[Notification] = set()
        self._waking: set[Notification] = set()
        self.readers = ParkingLot()

    # Twice the same does no harm: the notifier may crash in between.
    def put(self, note: Notification) -> None:
        self._ready.add(note)
        self._notes.append(note)
        if note.notify == "wake":
            self._waking.add(note)
            if self.readers:
                self.readers.unpark_all()

    def leave(self, note: Notification) -> None:
        """It was given away."""
        self._waking.discard(note)
        self._ready.discard(note)
        if len(self._notes) > 2 * len(self._ready) + 16:
            self._notes = deque(n for n in self._notes if n in self._ready)

    def first(self, *, deferred: bool) -> Notification | None:
        """Return the oldest, or None; without ``deferred``, only if one of them
        wakes its readers."""
        if not self._ready or not (deferred or self._waking):
            return None
        notes = self._notes
        while (note := notes[0]) not in self._ready:
            notes.popleft()
        return note

    def all(self) -> list[Notification]:
        return [note for note in dict.fromkeys(self._notes) if note in self._ready]


class Outbox:
    """Every notification of a runtime that is not acknowledged yet."""

    def __init__(
        self,
        on_ack: Callable[[Notification, Ack], None],
        on_warning: Callable[[str], None],
    ) -> None:
        self._on_ack = on_ack
        self._on_warning = on_warning
        self._unsent: deque[Notification] = deque()
        self._ready = _Ready()
        # Of the owners whose views somebody holds.
        self._ready_of: dict[str | None, ref[_Ready]] = {}
        # Taken by a reader and not acknowledged.
        self._taken: dict[Notification, None] = {}
        self.unacknowledged = 0
        """How many notifications wait for their ack."""
        self.closed = False

    def add(
        self,
        id: str,
        task_id: str,
        owner: str | None,
        status: TaskStatus,
        notify: Notify,
        facts: Callable[[], Envelope],
    ) -> Notification:
        """Record a terminal state, which is acknowledged at once if it is
        ``silent``. Synchronous and without a failure."""
        note = Notification(self, id, task_id, owner, status, notify, facts)
        self.unacknowledged += 1
        if notify == "silent":
            note.ack("silent")
        else:
            self._unsent.append(note)
        return note

    @property
    def has_first_unsent(self) -> bool:
        """Whether exactly one record has no envelope, so that the notifier must
        be woken."""
        return len(self._unsent) == 1

    def acknowledged(self, note: Notification, how: Ack) -> None:
        """Called by the notification itself, once."""
        self.unacknowledged -= 1
        place, note._place = note._place, _ACKED
        note._facts = None
        if place == _TAKEN:
            del self._taken[note]
        else:
            self._leave(note)
        self._on_ack(note, how)

    def consume(self, note: Notification) -> bool:
        """Acknowledge it as consumed, unless a reader has taken it."""
        return note._place < _TAKEN and note.ack("consumed")

    # For the notifier

    def next_unsent(self) -> Envelope | None:
        """Return the facts of the oldest record without an envelope."""
        unsent = self._unsent
        while unsent:
            note = unsent[0]
            if note._place == _UNSENT:
                assert note._facts is not None
                envelope = note._facts()
                note._summary = envelope.summary
                return envelope
            # Acknowledged meanwhile, or the notifier crashed just here.
            unsent.popleft()
        return None

    # Each line of it can be the last before a crash, after which it is called
    # for the same record again.
    @enable_ki_protection
    def publish(self, xml: str) -> None:
        """Give that record its envelope, and let its readers have it."""
        note = self._unsent[0]
        note.xml = xml
        self._ready.put(note)
        if self._ready_of and (queue := self._of(note.owner)) is not None:
            queue.put(note)
        note._place = _READY
        note._facts = None
        self._unsent.popleft()

    def warn(self, text: str) -> None:
        """An envelope could not be built as it should be."""
        self._on_warning(text)

    # For readers

    def ready_for(self, owner: str | None, *, everyone: bool) -> _Ready:
        """Return what the readers of a view can take."""
        if everyone:
            return self._ready
        queue = self._of(owner)
        if queue is None:
            queue = _Ready()
            for note in self._ready.all():
                if note.owner == owner:
                    queue.put(note)
            self._ready_of[owner] = ref(queue, partial(self._forget, owner))
        return queue

    def _of(self, owner: str | None) -> _Ready | None:
        held = self._ready_of.get(owner)
        return None if held is None else held()

    def _forget(self, owner: str | None, held: ref[_Ready]) -> None:
        # Its place may be another's already.
        if self._ready_of.get(owner) is held:
            del self._ready_of[owner]

    @enable_ki_protection
    def take(self, queue: _Ready, *, deferred: bool) -> Notification | None:
        """Return the oldest notification that no reader has had, or None."""
        note = queue.first(deferred=deferred or self.closed)
        if note is None:
            return None
        note._place = _TAKEN
        self._taken[note] = None
        self._leave(note)
        return note

    def _leave(self, note: Notification) -> None:
        self._ready.leave(note)
        if self._ready_of and (queue := self._of(note.owner)) is not None:
            queue.leave(note)

    def taken(self) -> list[Notification]:
        """Return those that a reader has taken and nobody acknowledged."""
        return list(self._taken)

    async def wait(self, queue: _Ready) -> bool:
        """Wait for a change; return False if there will be no other."""
        if self.closed:
            return False
        await queue.readers.park()
        return True

    def close(self) -> None:
        """Nothing more will come; what is here stays readable."""
        # The notifier was the last to stop and left none, unless it failed.
        write_envelopes(self)
        self.closed = True
        self._ready.readers.unpark_all()
        for held in list(self._ready_of.values()):
            if (queue := held()) is not None:
                queue.readers.unpark_all()


class Notifications:
    """A reader's view of the outbox: an async iterator of notifications, in the
    order in which the tasks ended.

    Each is handed to one reader, once. The iteration ends when the runtime has
    ended and everything was read. Reading does not acknowledge: `Notification.ack`
    does. A reader that takes over from one that died finds what that one had
    taken in `unacknowledged`.

    A notification whose policy is ``defer`` wakes nobody. It comes, in its
    place in the order, with the next one that wakes, with `drain`, and at the
    end.
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
        """Wait until there is one that wakes, and take all that are ready: one
        wake-up for whatever has ended since the last.

        Never an empty list, never more than ``limit``. Cancelled, it has taken
        nothing.

        Raises:
            trio.EndOfChannel: if the runtime has ended and everything was read.
            ValueError: if ``limit`` is not 1 or more.
        """
        if limit is not None and (
            isinstance(limit, bool) or not isinstance(limit, int) or limit < 1
        ):
            raise ValueError(f"limit must be 1 or more, or None, not {limit!r}")
        await checkpoint()
        while (first := self._outbox.take(self._ready, deferred=False)) is None:
            if not await self._outbox.wait(self._ready):
                raise trio.EndOfChannel
        return [first, *self._take(None if limit is None else limit - 1)]

    @enable_ki_protection
    def drain(self) -> list[Notification]:
        """Take all at once, without waiting: one for every background task
        that has ended and that no reader has had."""
        # The notifier may have had no time yet for the last ones.
        write_envelopes(self._outbox)
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

        It is for a reader that takes over from one that died: that one may have
        handled them, or not, so they are the ones that can be told twice. A
        reader that lives sees its own among them.
        """
        notes = [
            note
            for note in self._outbox.taken()
            if self._everyone or note.owner == self._owner
        ]
        notes.sort(key=lambda note: (len(note.id), note.id))
        return notes


def _one_line(text: str) -> str:
    line = " ".join(clean_text(text[: 4 * _DISPLAY_LIMIT]).split())
    return line if len(line) <= _DISPLAY_LIMIT else line[: _DISPLAY_LIMIT - 3] + "..."
