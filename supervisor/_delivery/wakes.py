"""What wakes a parent that is idle, and in which words.

Whoever iterates over `Wakes` gets one wake at a time, when the parent is free. It
contains everything that waits, capped at what a model can read at once. The turn of a
wake begins in the step that hands it out, so nothing that is in it can be read,
consumed or reported meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, nextafter
from types import TracebackType
from typing import TYPE_CHECKING

import attrs
import trio
from trio.lowlevel import checkpoint, enable_ki_protection

from actors.house import check_number

from ..tree._errors import SupervisorError
from ..tree._fair import fair
from .display import cap_lines
from .outbox import Notification
from .turns import TOLD_AT_ONCE, Parent, Turn

if TYPE_CHECKING:
    from actors.agent import UserMessage

_SAYS = {
    "task": ("1 background task has ended.", "{} background tasks have ended."),
    "progress": (
        "There is progress of 1 background task.",
        "There is progress of {} background tasks.",
    ),
    "pause": (
        "1 background agent was paused.",
        "{} background agents were paused.",
    ),
    "monitor": (
        "There is output of 1 monitored command.",
        "There is output of monitored commands, in {} notes.",
    ),
    "prompt": ("1 scheduled prompt is due.", "{} scheduled prompts are due."),
}

_NO_PERSON = (
    "No human input has occurred: this is an automatic report by the task supervisor."
    " Nothing in it is an answer, a decision or an approval by the user."
)


def as_reminder(notes: Iterable[Notification]) -> str:
    """Return the text with which a parent's model is told ``notes``. It is one system
    reminder with all of them, in their order. It says that no human input has occurred.

    The text is the same between turns and in the middle of one. No text of a task can
    end it or pass for a part of it. Without notes it is empty.
    """
    notes = list(notes)
    if not notes:
        return ""
    kinds = [note.kind for note in notes]
    says = [
        (one if (count := kinds.count(kind)) == 1 else more.format(count))
        for kind, (one, more) in _SAYS.items()
        if kind in kinds
    ]
    texts = "\n".join(note.xml for note in notes)
    return (
        f"<system-reminder>\n{' '.join(says)} {_NO_PERSON}\n\n{texts}\n"
        "</system-reminder>"
    )


def as_message(notes: Iterable[Notification]) -> UserMessage | None:
    """Return ``notes`` as a message for a conversation that is recorded. Its origin is
    ``notification``, so that it never passes for a person's words. Its text is
    `as_reminder`, for the model. Its ``display`` has the lines for people, at most
    three. Both come back when the conversation does. Without notes there is none."""
    notes = list(notes)
    if not notes:
        return None
    from actors.agent import UserMessage

    shown = "\n".join(cap_lines([note.display for note in notes]))
    return UserMessage(as_reminder(notes), origin="notification", display=shown)


@attrs.define(eq=False, repr=False, weakref_slot=False)
class Wake:
    """One reason for a turn of the parent. It holds all that the parent has to be told.

    Its block, ``async with wake as turn``, is that `Turn`. Enter the block before you
    ask for the next wake, in the task that got this one. Otherwise the wake counts as
    one that led to nothing.
    """

    _turn: Turn
    owner: str | None
    """The owner that is woken."""
    notes: tuple[Notification, ...]
    """The notifications in it, in the order in which the tasks ended. There is at least
    one."""

    def __repr__(self) -> str:
        return f"<Wake of {self.owner!r}, {len(self.notes)} notifications>"

    @property
    def text(self) -> str:
        """The text for the parent's model: see `as_reminder`."""
        return as_reminder(self.notes)

    @property
    def display(self) -> list[str]:
        """The text for people. It has at most three short clean lines. If lines are
        left out, the last one counts them."""
        return cap_lines([note.display for note in self.notes])

    @property
    def message(self) -> UserMessage:
        """The same as a message for a conversation that is recorded: see
        `as_message`."""
        message = as_message(self.notes)
        assert message is not None
        return message

    @enable_ki_protection
    async def __aenter__(self) -> Turn:
        if not self._turn.is_under_way or self._turn.task is not None:
            await checkpoint()
            raise SupervisorError(
                "the block of a wake is entered once, and before the next wake is "
                "asked for"
            )
        self._turn.enter_wake()
        return self._turn

    @enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._turn.leave_wake()
        self._turn.end(well=exc_type is None)


class Wakes:
    """The wakes of one owner, as an async iterator. `Runtime.wakes` makes it.

    Several tasks may iterate. Each wake goes to one of them, and wakes never overlap.
    The iteration ends when the runtime begins to close. With ``after_end`` it ends when
    the runtime has ended and everything was told.
    """

    def __init__(
        self, parent: Parent, window: float, *, after_end: bool = True
    ) -> None:
        check_number("window", window, "seconds")
        self._parent = parent
        self._window = window
        self._after_end = after_end
        # What was handed out last.
        self._last: Turn | None = None

    def __aiter__(self) -> Wakes:
        return self

    # What was taken must reach the reader, interrupt or not.
    @enable_ki_protection
    @fair
    async def __anext__(self) -> Wake:
        """Wait until there is something to tell and the parent is free, and take
        all that is there, or of very many what a model can read. Cancelled, it has
        taken nothing.

        Raises:
            WouldDeadlock: in a turn of the owner, which it would wait for.
        """
        last, self._last = self._last, None
        if last is not None and last.is_under_way and last.task is None:
            last.end(well=False)
        parent = self._parent
        parent.refuse_own_turn()
        parent.drop_abandoned_wake()
        await checkpoint()
        while True:
            if parent.outbox.is_ending and not self._after_end:
                raise StopAsyncIteration
            until = inf
            if parent.is_free:
                if parent.outbox.first(parent.queue) is None:
                    if parent.outbox.closed:
                        raise StopAsyncIteration
                elif (opens := self._opens()) > trio.current_time():
                    until = opens
                elif notes := self._take():
                    return self._hand_out(notes)
                else:
                    continue
            with trio.move_on_at(until):
                await parent.queue.readers.park()

    def _opens(self) -> float:
        """Return the first moment that is outside the user's window."""
        if not self._window:
            return -inf
        return nextafter(self._parent.spoke_at + self._window, inf)

    def _take(self) -> list[Notification]:
        parent = self._parent
        first = parent.outbox.take(parent.queue, deferred=False, offered=True)
        # None if that was progress which is none any more.
        if first is None:
            return []
        return [first, *parent.take(TOLD_AT_ONCE - len(first.xml))]

    def _hand_out(self, notes: list[Notification]) -> Wake:
        self._last = turn = Turn(self._parent)
        turn.begin_wake(notes)
        return Wake(turn, self._parent.owner, tuple(notes))
