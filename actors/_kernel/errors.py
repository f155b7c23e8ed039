"""What actors raise.

ActorError
+- MailboxFull
+- MailboxClosed
+- ActorUnavailable
|  +- ActorStopping
|  +- ActorRestarting
|  +- ActorEnded
+- AskUnanswered
+- ForeignThread
+- NotInTrio (and RuntimeError)
Ignore
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

if TYPE_CHECKING:
    from .exit import Exit


class ActorError(Exception):
    """The root of what `actors` raises by itself."""


# Without the repr of attrs: an error is shown in the very step in which an end is
# recorded, and Python's own repr cannot fail there for lack of memory or stack.
@attrs.define(slots=False, repr=False)
class MailboxFull(ActorError):
    """Raised when a bounded mailbox has no room and the caller will not wait.

    The consumer is slower than its senders. Use ``await ref.send(message)``, which
    waits for room, or give the actor a larger mailbox.
    """

    capacity: int

    def __str__(self) -> str:
        return (
            f"the mailbox holds its {self.capacity} messages already; "
            "use `await send(...)` to wait for room"
        )


class MailboxClosed(ActorError):
    """Raised when a message is put into a closed mailbox, or taken from one
    that is closed and empty."""

    def __str__(self) -> str:
        return "the mailbox is closed"


@attrs.define(slots=False, repr=False)
class ActorUnavailable(ActorError):
    """Raised at once when an actor cannot take what was sent."""

    state = "unavailable"

    actor_id: str

    def __str__(self) -> str:
        return f"actor {self.actor_id!r} {self.state}"


class ActorStopping(ActorUnavailable):
    """Raised by `ask` when the actor was asked to stop, because nobody would answer."""

    state = "is stopping and answers no more questions"


class ActorRestarting(ActorUnavailable):
    """Raised by `ask` between two incarnations. Wait with `ActorRef.wait_running` until
    the actor runs, and ask again."""

    state = "is restarting; ask again after `await ref.wait_running()`"


class ActorEnded(ActorUnavailable):
    """Raised when the actor has ended, and by an `ask` if it ends before it takes the
    question."""

    state = "has ended"


@attrs.define(slots=False, repr=False)
class AskUnanswered(ActorError):
    """Raised by `ask` when the actor took the question and ended without an answer.
    ``exit`` says how it ended. Nobody knows whether it acted on the question."""

    actor_id: str
    exit: Exit[object]

    def __str__(self) -> str:
        return f"actor {self.actor_id!r} took the question and ended without an answer: {self.exit}"


@attrs.define(slots=False, repr=False)
class ForeignThread(ActorError):
    """Raised when a thread other than the actor's own calls `tell`.

    The mailbox belongs to trio's thread. Use ``ref.from_thread(message)``.
    """

    actor_id: str

    def __str__(self) -> str:
        return (
            f"tell() for actor {self.actor_id!r} was called from a foreign thread; "
            "use ref.from_thread(message) there"
        )


@attrs.define(slots=False, repr=False)
class NotInTrio(ActorError, RuntimeError):
    """Raised when something that needs trio is opened outside a task of trio, for
    instance under ``asyncio.run``. Nothing was opened.

    Use ``trio.run(main)`` or ``anyio.run(main, backend="trio")``. In a program that
    must stay with asyncio, use trio's guest mode (`trio.lowlevel.start_guest_run`).
    """

    what: str

    def __str__(self) -> str:
        return (
            f"{self.what} works in trio only, and no task of trio runs this code: call"
            " it below trio.run(main) instead of asyncio.run(main()), below"
            ' anyio.run(main, backend="trio"), or, where asyncio must stay, in trio\'s'
            " guest mode (trio.lowlevel.start_guest_run)"
        )


class Ignore(Exception):
    """Raise it before ``ctx.started()`` to decline to start without an error.

    It is a signal and not an error. OTP has the same word for it."""


def require_trio(what: str) -> None:
    """Check that a task of trio runs the calling code.

    Raises:
        NotInTrio: if no task of trio does. ``what`` is what was called.
    """
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        raise NotInTrio(what) from None
