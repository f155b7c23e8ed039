"""`ActorRef`: what one holds of an actor, and `Reply`: what answers a question."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

import trio
from outcome import Error, Outcome, Value
from trio.lowlevel import (
    Abort,
    RaiseCancelT,
    Task,
    current_task,
    enable_ki_protection,
    reschedule,
    wait_task_rescheduled,
)

from .errors import (
    ActorEnded,
    ActorRestarting,
    ActorStopping,
    ActorUnavailable,
    ForeignThread,
    MailboxClosed,
    MailboxFull,
)
from .mailbox import Mailbox, MailboxStatistics

if TYPE_CHECKING:
    from .actor import Incarnation
    from .exit import Exit

M = TypeVar("M")
R = TypeVar("R")

ActorState: TypeAlias = Literal[
    "starting", "running", "restarting", "stopping", "stopped"
]


class Reply(Generic[R]):
    """Where the answer to one question goes. Put it into the message.

    The first answer counts. Later answers are dropped, and so is one that comes after
    the asker has stopped waiting.
    """

    __slots__ = ("_answer", "_state", "_task")

    def __init__(self) -> None:
        self._state: Literal["open", "answered", "failed", "dropped"] = "open"
        # An answer that came before anybody waited for it.
        self._answer: Outcome[R] | None = None
        self._task: Task | None = None

    def __repr__(self) -> str:
        return f"<Reply {self._state}>"

    @enable_ki_protection
    def tell(self, value: R) -> bool:
        """Give the answer. Return whether anybody will see it."""
        if self._state != "open":
            return False
        self._state = "answered"
        if self._task is None:
            self._answer = Value(value)
        else:
            reschedule(self._task, Value(value))
        return True

    @enable_ki_protection
    def fail(self, error: Exception) -> bool:
        """Let `ask` raise ``error``. Return whether anybody will see it."""
        if self._state != "open":
            return False
        self._state = "failed"
        if self._task is None:
            self._answer = Error(error)
        else:
            reschedule(self._task, Error(error))
        return True

    def drop(self) -> None:
        """Note that nobody waits any more."""
        self._task = None
        if self._state == "open":
            self._state = "dropped"

    def wait(self) -> Coroutine[Any, Any, R]:
        """Wait for the answer. Whoever asked calls this once and awaits it at once."""
        if self._answer is not None:
            return self._read(self._answer)
        # The task is woken with the answer itself.
        self._task = current_task()
        return wait_task_rescheduled(self._abort)  # noqa: ASYNC105 - see above

    async def _read(self, answer: Outcome[R]) -> R:
        await trio.lowlevel.checkpoint()
        return answer.unwrap()

    def _abort(self, _: RaiseCancelT) -> Abort:
        self._state = "dropped"
        return Abort.SUCCEEDED


# What `ask` raises in the states in which nobody would answer.
_REFUSALS: dict[ActorState, type[ActorUnavailable]] = {
    "restarting": ActorRestarting,
    "stopping": ActorStopping,
    "stopped": ActorEnded,
}


class FinalEnd:
    """What `ActorRef.wait_stopped` waits for."""

    __slots__ = ("event", "exit")

    def __init__(self) -> None:
        self.event = trio.Event()
        self.exit: Exit[object] | None = None


class ActorRef(Generic[M]):
    """A reference to an actor, which may be passed around freely.

    It belongs to the actor over all its incarnations. After a restart it is still
    valid, and what was queued is still there. A supervisor makes it.
    """

    __slots__ = (
        "_asks",
        "_capacity",
        "_final_end",
        "_mailbox",
        "_news",
        "_state",
        "_thread",
        "_token",
        "id",
        "incarnation",
        "drain",
        "shutdown",
        "spawned_by",
        "started_value",
    )

    id: str
    """Its name within its supervisor."""
    started_value: object
    """The value that the actor gave to ``ctx.started``, or None."""
    spawned_by: ActorRef[object] | None
    """The actor that asked for it. It need not be above it. None means that no actor
    did, or that its supervisor has forgotten that actor."""

    # Every question in the mailbox or taken from it that waits for its answer, with
    # the number of its message: see `Mailbox.put_count`.
    _asks: dict[Reply[Any], int] | None
    _state: ActorState
    _final_end: FinalEnd | None
    # For those in `wait_running`: set when it runs again, and when it has ended.
    _news: trio.Event | None
    _thread: int
    _token: trio.lowlevel.TrioToken
    # For its supervisor: see `Cell`.
    drain: float
    shutdown: float
    incarnation: Incarnation[M]
    # Made when somebody first needs it: most tasks never do.
    _mailbox: Mailbox[M] | None
    _capacity: int | None

    def __repr__(self) -> str:
        return f"<ActorRef {self.id} {self._state}>"

    @property
    def state(self) -> ActorState:
        """``starting``, ``running``, ``restarting``, ``stopping`` or ``stopped``."""
        return self._state

    @property
    @enable_ki_protection
    def mailbox(self) -> Mailbox[M]:
        """The mailbox, for its supervisor and the actor itself."""
        mailbox = self._mailbox
        if mailbox is None:
            made: Mailbox[M] = Mailbox(self._capacity)
            if self._state == "stopped":
                made.close(partial(ActorEnded, self.id))
            # Unless a finalizer that ran meanwhile has needed it as well.
            mailbox = self._mailbox = self._mailbox or made
        return mailbox

    def statistics(self) -> MailboxStatistics:
        """Return the state of its mailbox."""
        if self._mailbox is not None:
            return self._mailbox.statistics()
        # Another thread may ask, and must not make one.
        return MailboxStatistics(
            queued=0,
            received=0,
            capacity=self._capacity,
            receivers_waiting=0,
            senders_waiting=0,
            closed=self._state == "stopped",
        )

    @property
    def read_count(self) -> int:
        """See `Mailbox.read_count`; for the actor itself."""
        return 0 if self._mailbox is None else self._mailbox.read_count

    def tell(self, message: M) -> None:
        """Put ``message`` into the mailbox and return at once.

        Raises:
            MailboxFull: if the mailbox is bounded and full.
            ActorEnded: if the actor has ended.
            ForeignThread: in another thread than trio's.
        """
        if get_ident() != self._thread:
            raise ForeignThread(self.id)
        mailbox = self._mailbox
        if mailbox is None:
            mailbox = self.mailbox
        queue = mailbox.open_queue
        if queue is None:
            mailbox.put_nowait(message)
        else:
            queue.append(message)

    def send(self, message: M) -> Coroutine[object, object, None]:
        """Put ``message`` into the mailbox. If it is bounded and full, wait for room.

        Await what it returns. If it is cancelled, it has put nothing. It raises
        `ActorEnded` as `tell` does.
        """
        return self.mailbox.put(message)

    async def ask(self, make_message: Callable[[Reply[Any]], M]) -> Any:
        """Send ``make_message(reply)`` and wait for ``reply.tell(answer)``.

        A question that is still queued survives a restart. A question that was taken
        fails when its incarnation ends. An answer that comes after the wait was
        cancelled is dropped. (The return type is Any, because no type checker can infer
        the type of a lambda's ``reply``.)

        Raises:
            ActorStopping, ActorRestarting, ActorEnded: without waiting, if nobody would
                answer now. `wait_running` waits until somebody would. ActorEnded is
                also raised if the actor ends before it takes the question.
            AskUnanswered: if the incarnation that took it ended.
            Exception: whatever the actor gave to ``reply.fail``.
        """
        state = self._state
        if state != "running" and state != "starting":
            # Whoever asks again at once must not starve everybody else.
            await trio.lowlevel.checkpoint()
            raise _REFUSALS[state](self.id)
        reply: Reply[Any] = Reply()
        message = make_message(reply)
        mailbox = self.mailbox
        asks = self._asks
        if asks is None:
            asks = self._asks = {}
        try:
            if mailbox.is_full:
                await mailbox.put(message, partial(asks.__setitem__, reply))
            else:
                try:
                    mailbox.put_nowait(message)
                except MailboxClosed:  # by the actor itself
                    # A cancellation goes first.
                    await trio.lowlevel.checkpoint()  # noqa: ASYNC120
                    raise
                asks[reply] = mailbox.put_count
            return await reply.wait()
        finally:
            # An interrupt may strike before anybody waits.
            reply.drop()
            asks.pop(reply, None)

    def from_thread(self, message: M) -> None:
        """Do as `tell`, from any other thread. It cannot say whether a message reached
        the actor.

        Raises:
            ActorEnded: if the trio run of the actor is over.
        """
        try:
            self._token.run_sync_soon(self._tell_if_possible, message)
        except trio.RunFinishedError:
            raise ActorEnded(self.id) from None

    def _tell_if_possible(self, message: M) -> None:
        try:
            self.mailbox.put_nowait(message)
        except (ActorEnded, MailboxClosed, MailboxFull):
            pass  # the sender has gone on long ago

    def stop(self, reason: str | None = None) -> None:
        """Ask the running incarnation to end, softly, and return at once.

        ``ctx.stopping`` is set. An actor that reads its mailbox handles what is queued
        now, and then sees the end of the iteration (`receive` is cancelled there). It
        has its shutdown budget for all that. Any other actor is cancelled after its
        ``drain`` seconds. Its supervisor then decides as after any end, so a permanent
        child comes back. A second call does nothing, and so does a call without a
        running incarnation.
        """
        self.incarnation.stop_softly(reason)

    async def wait_exit(self) -> Exit[object]:
        """Wait until the incarnation that runs now has ended, and return how.

        Between incarnations, and after the last one, it returns the latest end at once.
        """
        return await self.incarnation.wait_ended()

    async def wait_running(self) -> None:
        """Wait until an incarnation runs that has acknowledged its start. Do this
        before you ask an actor again that was restarting.

        It returns at once if one runs already. The one that runs when it returns
        may end at any time.

        Raises:
            ActorEnded: if the actor has ended, or ends meanwhile, and its
                supervisor will not restart it by itself.
        """
        if self._state in ("running", "stopped"):
            await trio.lowlevel.checkpoint()
        while self._state not in ("running", "stopped"):
            if self._news is None:
                self._news = trio.Event()
            await self._news.wait()
        if self._state == "stopped":
            raise ActorEnded(self.id)

    async def wait_stopped(self) -> Exit[object]:
        """Wait until the actor has ended and its supervisor will not restart it by
        itself. Return how its last incarnation ended."""
        if self._state == "stopped":
            exit = self.incarnation.exit
            await trio.lowlevel.checkpoint()
        else:
            if self._final_end is None:
                self._final_end = FinalEnd()
            # Kept apart from the ref, which may have been started again before
            # this task runs.
            final_end = self._final_end
            await final_end.event.wait()
            exit = final_end.exit
        assert exit is not None
        return exit
