"""The turns of a parent: when it is busy, and with what.

A parent is one owner of tasks, and has one turn at a time. Those that its host begins
by itself, for what a user says, wait for each other, in the order in which they are
asked for. That of a wake begins when no other is under way or waits; one of the host's
own that comes meanwhile waits for its end, and then goes first. What is begun inside a
turn is a part of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextvars import ContextVar
from math import inf
from types import TracebackType
from typing import Final, Self
from weakref import WeakValueDictionary

import trio
from trio.lowlevel import ParkingLot, current_task, enable_ki_protection

from ..tree._errors import SupervisorError, WouldDeadlock
from .outbox import Notification, Outbox

TOLD_AT_ONCE: Final = 250_000
"""So many characters, and one more notification, a model is told at once: it could
not read more."""

# Of the wakes' turns in which this code runs.
_inside: ContextVar[frozenset[object]] = ContextVar("_inside", default=frozenset())


class Parent:
    """One owner, and the turns of it. Made by `Parents.of`."""

    def __init__(
        self,
        owner: str | None,
        outbox: Outbox,
        woken: set[Parent],
        spoken: dict[str | None, float],
    ) -> None:
        self.owner = owner
        self.outbox = outbox
        # Those of which a wake is under way: its reader may forget it.
        self.woken = woken
        self.queue = outbox.ready_for(owner, everyone=False)
        """Its notifications; those who wait for a wake park at its readers."""
        self.own: set[Turn] = set()
        """The host's own turns that are under way: one, and those inside it."""
        self.wake: Turn | None = None
        """The turn of a wake that is under way."""
        # Those that wait for their turn, in order.
        self._line: deque[object] = deque()
        self._changed = ParkingLot()
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
        """Whether this code runs in a turn that is under way: in that of a wake, or
        where one of the host's own would wait for it."""
        if self.wake is not None and self.wake.mark in _inside.get():
            return True
        return any(turn.would_wait_for(current_task()) for turn in self.own)

    def refuse_own_turn(self) -> None:
        """Raise WouldDeadlock if the call comes from a turn under way."""
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
        """Wait for the end of the turn that is under way, if any, and of those that
        wait already; no wake begins before."""
        self.drop_abandoned_wake()
        place = object()
        self._line.append(place)
        try:
            while self.is_busy or self._line[0] is not place:
                await self._changed.park()
        except BaseException:
            self._line.remove(place)
            self.tell_change()
            raise
        self._line.popleft()

    def take(self, room: int) -> list[Notification]:
        """Take those that are there, for a turn, until their text fills ``room``."""
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
        """Let those look again who wait for it to be free."""
        self._changed.unpark_all()
        self.queue.readers.unpark_all()


class Parents:
    """Every owner that has a turn, or for which somebody waits."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._parents: WeakValueDictionary[str | None, Parent] = WeakValueDictionary()
        self._woken: set[Parent] = set()
        # By owner: who looks for a wake may come when nobody holds the parent.
        self._spoken: dict[str | None, float] = {}

    def of(self, owner: str | None) -> Parent:
        """Return that of ``owner``, of which None is one too."""
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


class Turn:
    """The parent is busy. Made by `Runtime.turn`, and by a `Wake`.

    What the turn took of the notifications is acknowledged at its end, if it has
    `progressed` and nothing was raised or cancelled out of the block; else it is
    offered again, in a wake, once. The host can acknowledge each by itself before.
    """

    __slots__ = (
        "_is_under_way",
        "_notes",
        "_nurseries",
        "_parent",
        "_progressed",
        "_reader",
        "mark",
        "task",
    )

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._is_under_way = False
        self._progressed = False
        self._notes: list[Notification] = []
        self.task: trio.lowlevel.Task | None = None
        """The task that entered its block."""
        # How many nurseries that has round the block.
        self._nurseries = 0
        # Of a wake: the task that it was handed to.
        self._reader: trio.lowlevel.Task | None = None
        # Not the turn itself, which would live as long as all that it launches.
        self.mark = object()
        """What says that code runs in it, if it is a wake's."""

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
            # Also while it waits: the user has spoken.
            parent.speaks()
            await parent.wait_free()
        self._begin()
        parent.own.add(self)
        self.task = current_task()
        self._nurseries = len(self.task.child_nurseries)
        return self

    @enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end(well=exc_type is None)

    def would_wait_for(self, task: trio.lowlevel.Task) -> bool:
        """Whether its block cannot be left before ``task`` has ended, or is that of
        ``task`` itself."""
        while task is not self.task:
            nursery = task.parent_nursery
            if nursery is None:
                return False
            task = nursery.parent_task
            if task is self.task:
                return nursery in task.child_nurseries[self._nurseries :]
        return True

    def progressed(self) -> None:
        """Say that the parent has made something of what it was told: an answer
        with at least one word or one tool call. An empty one is none."""
        self._progressed = True

    def take(self) -> list[Notification]:
        """Take the notifications of the owner that are there, also those that
        would wait for another, in the order of ending, for this turn to tell its
        model of: see `as_reminder`. Often there are none. Never waits. Of very many
        it takes the first `TOLD_AT_ONCE` characters, and a little more; the others
        are left for the next call.

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
        """Begin the turn of a wake, when it is handed out."""
        self._begin()
        self._notes += notes
        self._reader = current_task()
        self._parent.wake = self
        self._parent.woken.add(self._parent)

    @property
    def is_abandoned(self) -> bool:
        """Whether its block was not entered by the task that it was handed to, which
        has ended or asks for another turn."""
        reader = self._reader
        if self.task is not None or reader is None:
            return False
        # A coroutine that has ended has no frame.
        has_ended = getattr(reader.coro, "cr_frame", reader) is None
        return has_ended or reader is current_task()

    def enter_wake(self) -> None:
        """Its block is entered."""
        self.task = current_task()
        _inside.set(_inside.get() | {self.mark})

    def leave_wake(self) -> None:
        """Its block is left."""
        _inside.set(_inside.get() - {self.mark})

    @enable_ki_protection
    def end(self, *, well: bool) -> None:
        """End it: acknowledge what it took, or offer it again."""
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
