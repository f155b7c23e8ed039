"""The outbox: one record for each background task that ended, until acknowledged.

A record enters synchronously with the terminal state. The notifier gives it its
envelope. Then a reader can take it, once, and acknowledges it.
`Notifications.unacknowledged` finds a record that its reader took and never
acknowledged. A record that a turn took and made nothing of comes back, once.

Beside these there are notes of progress and of monitors, and scheduled prompts, in the
same queue.
"""

# A notification and its outbox are two faces of one record.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Literal, NamedTuple, Protocol, TypeAlias, cast
from weakref import ref

import attrs
from trio.lowlevel import ParkingLot, enable_ki_protection

from actors import TaskStatus
from actors.envelope import Envelope
from actors.house import check_one_of
from actors.notifier import write_envelopes
from actors.probe import reachable
from actors.text import one_line

from .display import LINE_LIMIT, Toast, after

Notify: TypeAlias = Literal["wake", "defer", "silent"]
NOTIFY: tuple[Notify, ...] = ("wake", "defer", "silent")

Ack: TypeAlias = Literal["delivered", "consumed", "silent", "superseded"]
ACKS: tuple[Ack, ...] = ("delivered", "consumed", "silent", "superseded")

Kind: TypeAlias = Literal["task", "progress", "prompt", "pause", "monitor"]

# What these tell is known when they are taken.
_WORDED_LATE: tuple[Kind, ...] = ("progress", "monitor")

# Where a record is. It only moves on, but for one that a turn gives back.
_NEW, _UNSENT, _READY, _OFFERED, _TAKEN, _ACKED = range(6)

# How often a turn may take it.
_OFFERS = 2


class Words(NamedTuple):
    """What a notification says that is not an envelope."""

    text: str
    """For the parent's model: XML, cleaned and escaped."""
    summary: str
    """For people."""


Wording: TypeAlias = Callable[[], Words | None]
"""A function that returns what a notification tells, if that is not an end. It returns
None for a note of progress that has nothing new to tell any more."""


Facts: TypeAlias = Callable[[], Envelope]
"""A function that returns what the notification of an end tells. If it raises, for
instance without memory, the notifier asks it again."""


@attrs.define(eq=False, repr=False, weakref_slot=False)
class Notification:
    """The terminal state of one background task, or a note of progress or of a monitor,
    or a scheduled prompt, on its way to the parent."""

    _outbox: Outbox
    id: str
    """Its id. No other notification of the runtime has it. Ids sort in the order in
    which the tasks ended."""
    task_id: str
    """The id of the task, or of the schedule of a prompt."""
    owner: str | None
    """The owner of the task."""
    status: TaskStatus
    """How the task ended. For a pause it is ``paused``, for everything else
    ``running``."""
    notify: Notify
    """How it reaches its readers. With ``wake`` it wakes them. With ``defer`` it comes
    with the next one that wakes them."""
    _facts: Envelope | Facts | Wording | None
    _deliver: Callable[[Notification], None] | None = None
    kind: Kind = "task"
    """What it tells. ``task``: a task has ended. ``progress``: what a task has done
    since the last such note. ``pause``: an agent waits until what has stopped it has
    passed. ``prompt``: a scheduled prompt is due. ``monitor``: what a command has
    printed. None of them is a person's words."""
    # Nobody passes what follows. (With ``init=False`` each default would be looked up.)
    xml: str = ""
    """The envelope for the parent's model. A note of progress, or of a monitor, gets it
    when it is taken."""
    command: str | None = None
    """The whole command of a shell that has ended, as it was given."""
    cwd: str | None = None
    """The directory of a shell or agent that has ended, as it was given. None means
    that of the host."""
    description: str | None = None
    """The description of a task that has ended, as it was given."""
    duration_ms: int | None = None
    """The milliseconds from the start to the end of a task that has ended. It is None
    if the task never began, and until the envelope is written."""
    record: int | None = None
    """Its number in the journal, if it is there."""
    _summary: str = ""
    _number: int = 0
    _offers: int = 0
    _place: int = _NEW
    _acked: Ack | None = None

    @property
    def facts(self) -> Envelope | None:
        """What it is to say, until it has its envelope."""
        return self._facts if isinstance(self._facts, Envelope) else None

    def __repr__(self) -> str:
        what = self.status.value if self.kind == "task" else self.kind
        return f"<Notification {self.id} of task {self.task_id}, {what}>"

    @property
    def display(self) -> str:
        """One clean line of at most 200 characters for people. It never holds the
        result. The end of a task that took a second or more is told with its duration,
        such as ``3m 2s``."""
        more = after(self.duration_ms)
        return one_line(self._summary, LINE_LIMIT - len(more), "...") + more

    @property
    def toast(self) -> Toast:
        """The same as a notice with a title, to be shown for some seconds."""
        return Toast.of(self)

    @property
    def acked(self) -> Ack | None:
        """How it was acknowledged, or None."""
        return self._acked

    @enable_ki_protection
    def ack(self, how: Ack = "delivered") -> bool:
        """Say that the parent has it, for good. Return True the first time.

        - ``delivered``: the parent was given the envelope.
        - ``consumed``: the result was read in another way before.
        - ``silent``: the parent does not want it.
        - ``superseded``: it is a note of progress, and its task has ended since.

        Raises:
            ValueError: if ``how`` is none of these.
        """
        if how not in ACKS:
            check_one_of("how", how, ACKS)
        if self._acked is not None:
            return False
        # Last, so that whoever tries again after a failure goes on.
        self._outbox.acknowledged(self, how)
        self._acked = how
        return True


by_number = attrgetter("_number")


@attrs.define(eq=False, repr=False)
class _Ready:
    """What a view's readers can take, in the order of ending, and its readers."""

    # Those that another view has given away stay in it until their turn
    # comes, or until they are the larger part.
    _notes: deque[Notification] = attrs.Factory(deque[Notification])
    _ready: set[Notification] = attrs.Factory(set[Notification])
    _waking: set[Notification] = attrs.Factory(set[Notification])
    readers: ParkingLot = attrs.Factory(ParkingLot)

    # Twice the same does no harm: the notifier may crash in between.
    def put(self, note: Notification) -> None:
        self._notes.append(note)
        # Not before: who finds it here looks for it there.
        self._ready.add(note)
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

    def put_back(self, notes: Iterable[Notification]) -> None:
        """They are here again, at their old places."""
        for note in notes:
            # For all that it does besides: the next line makes the deque anew, in order.
            self.put(note)
        self._notes = deque(sorted(self._ready, key=by_number))

    def all(self) -> list[Notification]:
        return [note for note in dict.fromkeys(self._notes) if note in self._ready]


class Recorded(Protocol):
    """Where records are written before they are told."""

    def is_told(self, number: int) -> bool:
        """Whether what the record with that number says may be told."""
        ...

    def flush(self) -> None:
        """Write what waits, if that can be done at once."""
        ...

    async def settle(self, *, shield: bool = True) -> None:
        """Wait until all of them may be told, whoever cancels that, if ``shield``."""
        ...


class Outbox:
    """Every notification of a runtime that is not acknowledged yet."""

    def __init__(
        self,
        on_ack: Callable[[Notification, Ack], None],
        on_warning: Callable[[str], None],
        journal: Recorded,
    ) -> None:
        self._journal = journal
        self._on_ack = on_ack
        self._on_warning = on_warning
        # How a reader waits, who may be a task with a place to lend.
        self.wait_by: Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]
        self.wait_by = _wait
        self._unsent: deque[Notification] = deque()
        self._ready = _Ready()
        # Of the owners whose views somebody holds.
        self._ready_of: dict[str | None, ref[_Ready]] = {}
        # Taken by a reader or a turn, and not acknowledged.
        self._taken: dict[Notification, None] = {}
        # Notes of progress that are not acknowledged, by their task.
        self._progress: dict[str, list[Notification]] = {}
        self._added = 0
        self.unacknowledged = 0
        """How many notifications wait for their ack."""
        self.routed = 0
        """How many of these are handed to somebody instead of the readers."""
        self.closed = False
        self.is_ending = False
        """Whether what comes is of the end of the runtime."""

    def add(
        self,
        id: str,
        task_id: str,
        owner: str | None,
        status: TaskStatus,
        notify: Notify,
        facts: Envelope | Wording,
        *,
        deliver: Callable[[Notification], None] | None = None,
        kind: Kind = "task",
    ) -> Notification:
        """Make a record and `enter` it; one that is ``silent`` is acknowledged at
        once.

        One with ``deliver`` is handed to that, with its envelope, and to no
        reader: for a parent that takes its messages in another way. It may be
        handed over twice, if the notifier crashes just then, so the parent
        acknowledges it in the step in which it takes it, and drops it if
        `Notification.ack` returns False; until then it can be consumed.
        ``deliver`` must not fail; if it does, the readers get the record.

        Notes of progress of the task that nobody has had are superseded by its
        end.
        """
        note = Notification(
            self, id, task_id, owner, status, notify, facts, deliver, kind
        )
        self.enter(note)
        if notify == "silent":
            note.ack("silent")
        return note

    def enter(self, note: Notification) -> None:
        """Enter a new record. After a failure nothing is changed, and once it is
        entered nothing happens."""
        if note._place != _NEW:
            return
        if note.kind == "progress":
            self._progress.setdefault(note.task_id, []).append(note)
        elif self._progress and note.kind == "task":
            for old in tuple(self._progress.get(note.task_id, ())):
                old.ack("superseded")
        # First all that may want memory; then nothing can fail.
        number, waiting = self._added + 1, self.unacknowledged + 1
        routed = self.routed + (note._deliver is not None)
        if note.notify != "silent":
            self._unsent.append(note)
        note._number = self._added = number
        self.unacknowledged, self.routed = waiting, routed
        note._place = _UNSENT

    def acknowledged(self, note: Notification, how: Ack) -> None:
        """Called by the notification itself, and again after a failure, when it
        goes on."""
        place = note._place
        if place != _ACKED:
            counts = place != _NEW
            waiting = self.unacknowledged - counts
            routed = self.routed - (counts and note._deliver is not None)
            if place >= _OFFERED:
                self._taken.pop(note, None)
            else:
                self._leave(note)
            # Nothing of this can fail.
            self.unacknowledged, self.routed = waiting, routed
            note._facts = note._deliver = None
            note._place = _ACKED
        # By another name, or Python 3.11 looks for it among the methods first.
        on_ack = self._on_ack
        on_ack(note, how)
        if note.kind == "progress":
            # Last, or nobody would try again.
            self._leave_progress(note)

    def _leave_progress(self, note: Notification) -> None:
        notes = self._progress.get(note.task_id)
        if notes is not None:
            if note in notes:
                notes.remove(note)
            if not notes:
                del self._progress[note.task_id]

    def consume(self, note: Notification) -> bool:
        """Acknowledge it as consumed, unless a reader has taken it. One that a
        turn has taken is not offered again."""
        # Also again, after a failure.
        return note._place != _TAKEN and note.ack("consumed")

    def has_untold_progress(self, task_id: str) -> bool:
        """Whether a note of progress of the task waits for a reader."""
        return any(map(self.is_waiting, self._progress.get(task_id, ())))

    def is_waiting(self, note: Notification) -> bool:
        """Whether nobody has had it yet."""
        return note._place < _OFFERED

    def was_in_vain(self, note: Notification) -> bool:
        """Whether turns have taken it as often as they may, and made nothing of it."""
        return note._offers >= _OFFERS

    def is_listened_to(self, owner: str | None) -> bool:
        """Whether somebody waits for notifications of ``owner``, or has taken one that
        is not acknowledged."""
        queue = self._of(owner)
        return (
            bool(self._ready.readers)
            or (queue is not None and bool(queue.readers))
            or any(note.owner == owner for note in self._taken)
        )

    # For the notifier

    @enable_ki_protection
    def catch_up(self) -> None:
        """Write the envelopes that the notifier had no time for yet, for a reader who
        is faster or comes after it. Nobody else but the notifier writes any."""
        if self._unsent:
            write_envelopes(self)

    @property
    def is_behind(self) -> bool:
        """Whether some wait for their envelope: the journal may not have them yet."""
        return bool(self._unsent)

    def ends_on_the_way(self, deliver: Callable[[Notification], None]) -> int:
        """Return how many ends of tasks wait for their envelope that are handed over
        there."""
        return sum(
            note.kind == "task" and note._deliver == deliver for note in self._unsent
        )

    async def settle(self, *, shield: bool = True) -> None:
        """Wait until what is to be told is written in the journal, whoever cancels
        that, if ``shield``."""
        await self._journal.settle(shield=shield)

    def next_unsent(self) -> Envelope | None:
        """Return the facts of the oldest record without an envelope, if the journal has
        it."""
        while self._unsent:
            note = self._unsent[0]
            if note.record is not None and not self._is_told(note.record):
                return None
            facts = note._facts
            if note._place != _UNSENT or facts is None:
                # Acknowledged meanwhile, or the notifier crashed just here.
                reachable("a record is gone before its envelope is written")
                self._unsent.popleft()
            elif note.kind == "task":
                if not isinstance(facts, Envelope):
                    note._facts = facts = cast("Facts", facts)()
                note._summary, note.duration_ms = facts.summary, facts.duration_ms
                return facts
            else:
                self._publish_words(note, cast("Wording", facts))
        return None

    def _is_told(self, record: int) -> bool:
        journal = self._journal
        if journal.is_told(record):
            return True
        journal.flush()
        return journal.is_told(record)

    def _publish_words(self, note: Notification, facts: Wording) -> None:
        if note.kind in _WORDED_LATE and note._deliver is None:
            self.publish("")
            return
        words = facts()
        if words is None:
            note.ack("superseded")
        else:
            note._summary = words.summary
            self.publish(words.text)

    # Each line of it can be the last before a crash, after which it is called
    # for the same record again.
    @enable_ki_protection
    def publish(self, xml: str) -> None:
        """Give that record its envelope, and let its readers have it."""
        note = self._unsent[0]
        note.xml = xml
        if note._deliver is None or not self._hand_over(note, note._deliver):
            self._ready.put(note)
            if self._ready_of and (queue := self._of(note.owner)) is not None:
                queue.put(note)
        # It may have been acknowledged where it was handed over.
        if note._acked is None:
            note._place = _READY
        if note.kind not in _WORDED_LATE or note._deliver is not None:
            note._facts = None
        # Not another: a call above may have let somebody in who has had it told.
        if self._unsent and self._unsent[0] is note:
            self._unsent.popleft()

    def _hand_over(
        self, note: Notification, deliver: Callable[[Notification], None]
    ) -> bool:
        try:
            deliver(note)
        # The boundary: whatever is wrong there, the record is told.
        except Exception as error:
            if note._place == _ACKED:
                # At most the last step of its ack has failed.
                note.ack("consumed")
                return True
            self._on_warning(f"notification {note.id} goes to the readers: {error!r}")
            return False
        return True

    def untaken(self, owner: str) -> list[Notification]:
        """Return the ends that wait for the readers of an owner."""
        # If the notifier has crashed, one may be in both.
        notes = dict.fromkeys((*self._ready.all(), *self._unsent))
        return [
            note
            for note in notes
            if note.owner == owner
            and note.kind == "task"
            and note._deliver is None
            and note._place < _OFFERED
        ]

    def route(
        self, note: Notification, deliver: Callable[[Notification], None]
    ) -> None:
        """Hand a notification that waits for its readers to somebody else."""
        note._deliver = deliver
        self.routed += 1
        # Also if the notifier has crashed just before it was there for good.
        self._leave(note)
        if note._place == _READY and not self._hand_over(note, deliver):
            note._deliver = None
            self.routed -= 1
            self._put_back((note,))

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
    def take(
        self, queue: _Ready, *, deferred: bool, offered: bool = False
    ) -> Notification | None:
        """Return the oldest notification that no reader has had, or None.
        ``offered`` is one that may be given back."""
        while (note := queue.first(deferred=deferred or self.closed)) is not None:
            # Of another kind the notifier may have crashed before it let go of its words.
            if note.kind in _WORDED_LATE and not self._is_told_now(note):
                note.ack("superseded")
                continue
            note._place = _OFFERED if offered else _TAKEN
            self._taken[note] = None
            self._leave(note)
            return note
        return None

    def _is_told_now(self, note: Notification) -> bool:
        facts = note._facts
        if facts is None or isinstance(facts, Envelope):
            return True
        words, note._facts = cast("Wording", facts)(), None
        if words is None:
            return False
        note.xml, note._summary = words.text, words.summary
        return True

    def first(self, queue: _Ready) -> Notification | None:
        """Return the oldest that `take` would return, without taking it."""
        return queue.first(deferred=self.closed)

    @enable_ki_protection
    def give_back(self, notes: Iterable[Notification]) -> None:
        """Offer again what a turn took, made nothing of and did not acknowledge;
        what has been offered twice is acknowledged, with a warning."""
        again: list[Notification] = []
        for note in notes:
            if note._place != _OFFERED:
                continue
            note._offers += 1
            if note._offers < _OFFERS:
                again.append(note)
                continue
            self._on_warning(
                f"notification {note.id} of task {note.task_id} was offered "
                f"{_OFFERS} times and led to no output: it is not offered again"
            )
            note.ack("delivered")
        for note in again:
            note._place = _READY
            del self._taken[note]
        if again:
            self._put_back(again)

    def _put_back(self, notes: Iterable[Notification]) -> None:
        by_owner: dict[str | None, list[Notification]] = {}
        for note in notes:
            by_owner.setdefault(note.owner, []).append(note)
        self._ready.put_back(notes)
        for owner, theirs in by_owner.items():
            if (queue := self._of(owner)) is not None:
                queue.put_back(theirs)

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
        await self.wait_by(queue.readers.park)
        return True

    def begin_end(self) -> None:
        """What comes from now on is of the end of the runtime."""
        self.is_ending = True
        self._wake_all()

    def close(self) -> None:
        """Nothing more will come; what is here stays readable."""
        # The notifier was the last to stop and left none, unless it failed.
        self.catch_up()
        self.closed = True
        self._wake_all()

    def _wake_all(self) -> None:
        self._ready.readers.unpark_all()
        for held in list(self._ready_of.values()):
            if (queue := held()) is not None:
                queue.readers.unpark_all()


async def _wait(wait: Callable[[], Awaitable[object]]) -> None:
    await wait()
