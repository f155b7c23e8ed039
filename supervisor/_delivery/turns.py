"""The turns of a parent: when it is busy, and with what.

A parent is one owner of tasks, and has one turn at a time. Its host begins turns of its
own, for what a user says. These wait for each other, first in first out. The turn of a
wake begins when no other is under way or waits. A turn of the host's own that is asked
for meanwhile waits for the end of the wake, and goes before the next one. A turn that
is begun inside another is a part of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextvars import ContextVar
from math import inf
from types import TracebackType
from typing import Final, Self
from weakref import WeakValueDictionary

import attrs
import trio
from trio.lowlevel import ParkingLot, current_task, enable_ki_protection

from ..tree._errors import SupervisorError, WouldDeadlock
from .outbox import Notification, Outbox

TOLD_AT_ONCE: Final = 250_000
"""The number of characters from which on no more notifications are added to what a
model reads at once: it could not read more."""

# The marks of the wakes' turns in which this code runs. A context variable, as tasks
# started inside the block inherit it.
_inside: ContextVar[frozenset[object]] = ContextVar("_inside", default=frozenset())


class Parent:
    """One owner, and its turns. Made by `Parents.of`."""

    def __init__(
        self,
        owner: str | None,
        outbox: Outbox,
        woken: set[Parent],
        spoken: dict[str | None, float],
    ) -> None:
        self.owner = owner
        self.outbox = outbox
        # The parents of which a wake is under way. It keeps them alive when the reader
        # of the wake drops it: `Parents` refers to them only weakly.
        self.woken = woken
        self.queue = outbox.ready_for(owner, everyone=False)
        """Its notifications. Those who wait for a wake park at ``queue.readers``."""
        self.own: set[Turn] = set()
        """The host's own turns that are under way: one, and those inside it."""
        self.wake: Turn | None = None
        """The turn of a wake that is under way."""
        # One object for each that waits for its turn, first in first out.
        self._line: deque[object] = deque()
        self._changed = ParkingLot()
        # Of all owners, in a dict of `Parents`. That drops a parent that nobody uses,
        # and what is kept here would be forgotten with it.
        self._spoken = spoken

    @property
    def spoke_at(self) -> float:
        """When the host last began, or asked for, a turn of its own."""
        return self._spoken.get(self.owner, -inf)

    def speaks(self) -> None:
        """The host begins, or asks for, a turn of its own."""
        self._spoken[self.owner] = trio.current_time()

    @property
    def is_busy(self) -> bool:
        """Whether a turn is under way."""
        return bool(self.own) or self.wake is not None

    @property
    def is_free(self) -> bool:
        """Whether a wake may begin, as far as turns go."""
        return not self.is_busy and not self._line

    @property
    def is_inside(self) -> bool:
        """Whether this code runs in a turn that is under way: in that of a wake, or in
        a task for whose end one of the host's own turns would wait."""
        # To wait for that turn from here would be to wait for oneself.
        if self.wake is not None and self.wake.mark in _inside.get():
            return True
        return any(turn.would_wait_for(current_task()) for turn in self.own)

    def refuse_own_turn(self) -> None:
        """Raise WouldDeadlock if the calling task is in the block of a turn."""
        turns = self.own if self.wake is None else {*self.own, self.wake}
        me = current_task()
        if any(turn.task is me for turn in turns):
            raise WouldDeadlock(
                f"the turn of owner {self.owner!r} that is under way would wait for "
                "its own end: ask for the next wake after it"
            )

    def drop_abandoned_wake(self) -> None:
        """End the wake that was handed out if nobody can enter its block any more."""
        if self.wake is not None and self.wake.is_abandoned:
            self.wake.end(well=False)

    async def wait_free(self) -> None:
        """Wait for the end of the turn that is under way, if any, and for those that
        wait already. No wake begins meanwhile."""
        self.drop_abandoned_wake()
        place = object()
        self._line.append(place)
        try:
            while self.is_busy or self._line[0] is not place:
                await self._changed.park()
        except BaseException:
            # Those behind this one, and those who wait for a wake, look again.
            self._line.remove(place)
            self.tell_change()
            raise
        self._line.popleft()

    def take(self, room: int) -> list[Notification]:
        """Take notifications for a turn until their text fills ``room`` characters."""
        self.outbox.catch_up()
        notes: list[Notification] = []
        while (
            room > 0
            and (note := self.outbox.take(self.queue, deferred=True, offered=True))
            is not None
        ):
            notes.append(note)
            room -= len(note.xml)
        return notes

    def tell_change(self) -> None:
        """Wake those who wait for the parent to be free; they look again."""
        self._changed.unpark_all()
        self.queue.readers.unpark_all()


class Parents:
    """Every owner that has a turn, or for which somebody waits."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._parents: WeakValueDictionary[str | None, Parent] = WeakValueDictionary()
        self._woken: set[Parent] = set()
        # When each owner's host last spoke. Kept here, as a `Parent` lives only while
        # somebody holds it, and one who looks for a wake may come later.
        self._spoken: dict[str | None, float] = {}

    def of(self, owner: str | None) -> Parent:
        """Return the parent ``owner``; None is an owner, too."""
        parent = self._parents.get(owner)
        if parent is None:
            self._parents[owner] = parent = Parent(
                owner, self._outbox, self._woken, self._spoken
            )
        return parent

    def is_busy(self, owner: str | None) -> bool:
        """Whether a turn of ``owner`` is under way."""
        parent = self._parents.get(owner)
        return parent is not None and parent.is_busy


@attrs.define(eq=False, repr=False, weakref_slot=False)
class Turn:
    """A time in which the parent is busy. `Runtime.turn` and a `Wake` make it.

    The notifications that the turn took are acknowledged at its end, if it has
    `progressed` and the block was left without an exception. Otherwise a wake offers
    them again, once. The host can acknowledge each by itself before.
    """

    _parent: Parent
    _is_under_way: bool = attrs.field(default=False, init=False)
    _progressed: bool = attrs.field(default=False, init=False)
    _notes: list[Notification] = attrs.field(factory=list[Notification], init=False)
    task: trio.lowlevel.Task | None = attrs.field(default=None, init=False)
    """The task that entered its block."""
    # How many nurseries that task had open before the block: those opened later
    # are inside the block.
    _nurseries: int = attrs.field(default=0, init=False)
    # Of a wake: the task to which it was handed.
    _reader: trio.lowlevel.Task | None = attrs.field(default=None, init=False)
    # For `_inside`: not the turn itself, which would then live as long as every
    # task launched in it.
    mark: object = attrs.field(factory=object, init=False)
    """What stands for the turn of a wake in `_inside`, where code runs in it."""

    @property
    def is_under_way(self) -> bool:
        """Whether it has begun and not ended."""
        return self._is_under_way

    @enable_ki_protection
    async def __aenter__(self) -> Self:
        if self._is_under_way:
            await trio.lowlevel.checkpoint()
            raise SupervisorError("the block of a turn that is under way is entered")
        parent = self._parent
        if not parent.is_inside:
            # Before the wait, as the user has spoken already.
            parent.speaks()
            await parent.wait_free()
        self._begin()
        parent.own.add(self)
        self.task = current_task()
        self._nurseries = len(self.task.child_nurseries)
        return self

    # An interrupt in `end` would leave the turn under way for ever: nobody would begin
    # another, and what it took would neither be acknowledged nor offered again.
    @enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end(well=exc_type is None)

    def would_wait_for(self, task: trio.lowlevel.Task) -> bool:
        """Whether the end of its block waits for ``task``, because ``task`` entered the
        block, or runs in a nursery inside it."""
        while task is not self.task:
            nursery = task.parent_nursery
            if nursery is None:
                return False
            task = nursery.parent_task
            if task is self.task:
                # A nursery outside the block does not keep the block from ending.
                return nursery in task.child_nurseries[self._nurseries :]
        return True

    def progressed(self) -> None:
        """Say that the parent has made something of what it took, which is an answer
        with at least one word or one tool call. Do not call it for an empty answer."""
        self._progressed = True

    def take(self) -> list[Notification]:
        """Take the notifications of the owner for the model of this turn, in the order
        in which the tasks ended: see `as_reminder`. Those that do not wake a parent by
        themselves are among them. It never waits, and often returns none. It stops
        after about 400,000 characters. The others are left for the next call.

        Raises:
            SupervisorError: if the turn is not under way. Nothing was taken.
        """
        if not self._is_under_way:
            raise SupervisorError("only a turn that is under way takes notifications")
        notes = self._parent.take(TOLD_AT_ONCE)
        self._notes += notes
        return notes

    # For wakes

    def begin_wake(self, notes: Iterable[Notification]) -> None:
        """Begin the turn of a wake, in the step that hands it out."""
        self._begin()
        self._notes += notes
        self._reader = current_task()
        self._parent.wake = self
        self._parent.woken.add(self._parent)

    @property
    def is_abandoned(self) -> bool:
        """Whether the task to which it was handed has ended, or asks for another turn,
        without entering its block."""
        reader = self._reader
        if self.task is not None or reader is None:
            return False
        # trio does not say whether a task has ended, but a coroutine that has ended
        # has no frame. Where it cannot be asked it counts as running.
        has_ended = getattr(reader.coro, "cr_frame", reader) is None
        return has_ended or reader is current_task()

    def enter_wake(self) -> None:
        """Note that the block of the wake is entered."""
        self.task = current_task()
        _inside.set(_inside.get() | {self.mark})

    def leave_wake(self) -> None:
        """Note that the block of the wake is left."""
        _inside.set(_inside.get() - {self.mark})

    @enable_ki_protection
    def end(self, *, well: bool) -> None:
        """End the turn. Acknowledge what it took, or offer that again."""
        parent = self._parent
        notes, self._notes = self._notes, []
        if well and self._progressed:
            for note in notes:
                note.ack()
        else:
            parent.outbox.give_back(notes)
        self._is_under_way = False
        self.task = None
        parent.own.discard(self)
        if parent.wake is self:
            parent.wake = None
            parent.woken.discard(parent)
        parent.tell_change()

    def _begin(self) -> None:
        self._is_under_way = True
        self._progressed = False
