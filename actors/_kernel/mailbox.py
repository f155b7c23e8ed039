"""A queue of messages for tasks: any number of senders and of receivers.

It is built for throughput. A receiver that takes a whole batch pays for one wake-up,
however many messages came. `Mailbox` is usable on its own. An actor reads its own as
``ctx.mailbox``.
"""

# The iteration's awaitable is a part of the mailbox.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, NoReturn, TypeVar

import trio
from outcome import Error, Value
from trio.lowlevel import (
    Abort,
    RaiseCancelT,
    Task,
    checkpoint,
    current_task,
    enable_ki_protection,
    reschedule,
    wait_task_rescheduled,
)

from .checks import check_whole
from .errors import MailboxClosed, MailboxFull
from .values import frozen

T = TypeVar("T")

# A full checkpoint for every message costs 15 times what the message costs;
# one in 64 still lets other tasks run and cancellation arrive.
_CHECKPOINT_EVERY = 64


@frozen
class MailboxStatistics:
    """A mailbox at one moment."""

    queued: int
    """Messages waiting to be taken."""
    received: int
    """Messages taken since the mailbox was made."""
    capacity: int | None
    """How many messages it holds at most; None means no bound."""
    receivers_waiting: int
    """Tasks that wait for a message."""
    senders_waiting: int
    """Tasks that wait for room."""
    closed: bool
    """Whether it takes no more messages."""


class _WaitingSender(Generic[T]):
    """A message that waits for room, and its sender."""

    __slots__ = ("message", "on_put", "refusal", "task")

    def __init__(self, message: T, on_put: Callable[[int], None] | None) -> None:
        self.task = current_task()
        self.message = message
        self.on_put = on_put
        self.refusal: Exception | None = None


class _Next(Generic[T]):
    """What an iteration awaits when there is no message.

    100,000 actors may be waiting there, so it leaves no frame behind: the
    task is woken with the message itself.
    """

    __slots__ = ("_begun", "_mailbox")

    def __init__(self, mailbox: Mailbox[T]) -> None:
        self._mailbox = mailbox
        # `anext` with a default asks for it anew at each step.
        self._begun: Generator[Any, Any, T] | None = None

    @enable_ki_protection
    def __await__(self) -> Generator[Any, Any, T]:
        if self._begun is None:
            mailbox = self._mailbox
            if mailbox._can_go_on():
                self._begun = mailbox._take_next().__await__()
            else:
                self._begun = mailbox._park(iterates=True).__await__()
        return self._begun


class Mailbox(Generic[T]):
    """A first-in-first-out queue, bounded or not.

    Messages of one sender arrive in the order in which they were sent. Each is taken by
    one receiver. An operation that was cancelled has changed nothing. A message is
    never lost between the queue and the receiver, and never taken twice. Senders that
    wait for room get it in the order in which they began to wait. Receivers that wait
    are woken in that order, too. `put` and `receive` are checkpoints when they wait or
    fail, and otherwise at least once in 64 calls.

    Args:
        capacity: the number of messages at which `put` waits and `put_nowait` raises.
            None means no bound.
    """

    # The queue is two stacks: messages are appended to _incoming, and taken
    # from the end of _outgoing, into which _incoming is reversed whenever it
    # is empty. Unlike a deque this costs an idle mailbox next to nothing, and
    # a batch is handed over without copying it.
    #
    # An interrupt cannot split an operation: whatever touches more than one
    # attribute is protected.
    __slots__ = (
        "_calls",
        "_capacity",
        "_checked",
        "_closed",
        "_incoming",
        "_iterates",
        "_on_drained",
        "_outgoing",
        "_receiver",
        "_receivers",
        "_senders",
        "_taken",
        "_waits",
        "drain_left",
        "open_queue",
    )

    def __init__(self, capacity: int | None = None) -> None:
        if capacity is not None:
            check_whole("capacity", capacity, 1, none=True, wrong=ValueError)
        self._capacity = capacity
        # Made with the first message that must wait.
        self._incoming: list[T] | None = None
        self._outgoing: list[T] | None = None
        # The same list as _incoming while a put only has to append to it: no
        # bound, not closed, nobody to wake. Else None. For `ActorRef.tell`.
        self.open_queue: list[T] | None = None
        self._taken = 0
        self._waits = 0
        self._closed: Callable[[], Exception] | None = None
        self._checked = capacity is not None  # whether a put may be refused
        self._calls = 0
        # The task that is woken next; those after it are in _receivers. If there
        # is no next one, _receivers is empty. A task that iterates is woken with
        # its message in hand; any other is woken to look for itself.
        self._receiver: Task | None = None
        self._iterates = False
        self._receivers: OrderedDict[Task, bool] | None = None
        self._senders: OrderedDict[_WaitingSender[T], None] | None = None
        # How many messages a drain still gives out; None while there is no drain.
        self.drain_left: int | None = None
        self._on_drained: Callable[[], None] | None = None

    def __len__(self) -> int:
        incoming, outgoing = self._incoming, self._outgoing
        return (len(incoming) if incoming else 0) + (len(outgoing) if outgoing else 0)

    def __repr__(self) -> str:
        bound = "" if self._capacity is None else f"/{self._capacity}"
        return f"<Mailbox {len(self)}{bound} queued{', closed' if self._closed is not None else ''}>"

    def statistics(self) -> MailboxStatistics:
        """Return the mailbox's state at this moment."""
        return MailboxStatistics(
            queued=len(self),
            received=self._taken,
            capacity=self._capacity,
            receivers_waiting=int(self._receiver is not None)
            + len(self._receivers or ()),
            senders_waiting=len(self._senders or ()),
            closed=self._closed is not None,
        )

    @property
    def is_full(self) -> bool:
        """Whether `put` would wait now."""
        if self._capacity is None:
            return False
        return self._closed is None and len(self) >= self._capacity

    @property
    def put_count(self) -> int:
        """How many messages were ever put. This is also the number of the latest
        one."""
        # Not through len(), which would be one call more for each ask.
        incoming, outgoing = self._incoming, self._outgoing
        queued = (len(incoming) if incoming else 0) + (len(outgoing) if outgoing else 0)
        return self._taken + queued

    @property
    def taken_count(self) -> int:
        """How many messages were ever taken. These have the numbers up to this one."""
        return self._taken

    @property
    def read_count(self) -> int:
        """How often it was read. It counts the messages taken, and the waits for
        one."""
        return self._taken + self._waits

    # Sending

    @enable_ki_protection
    def put_nowait(self, message: T) -> None:
        """Append ``message`` without waiting.

        Raises:
            MailboxFull: if it is bounded and has no room.
            MailboxClosed: if it is closed.
        """
        if self._checked:
            if self._closed is not None:
                raise self._closed()
            if self._capacity is not None and len(self) >= self._capacity:
                raise MailboxFull(self._capacity)
        if self._receiver is not None:
            self._put_for(self._receiver, message)
            return
        self._append(message)
        if not self._checked:
            self.open_queue = self._incoming

    @enable_ki_protection
    async def put(
        self, message: T, on_put: Callable[[int], None] | None = None
    ) -> None:
        """Append ``message``. If there is no room, wait for it first.

        ``on_put(place)`` is called in the step that appends it, with `put_count`
        as it is then. For a sender that waits this is a step of another task.

        Raises:
            MailboxClosed: if it is closed, also while waiting.
        """
        self._calls += 1
        if self._calls >= _CHECKPOINT_EVERY:
            self._calls = 0
            await checkpoint()
        if self._checked:
            if self._closed is not None:
                await self._refuse(self._closed())
            if self._capacity is not None and len(self) >= self._capacity:
                await self._wait_for_room(_WaitingSender(message, on_put))
                return
        if self._receiver is None:
            self._append(message)
        else:
            self._put_for(self._receiver, message)
        if on_put is not None:
            on_put(self.put_count)

    async def _refuse(self, error: Exception) -> NoReturn:
        # Whoever tries again at once must not starve everybody else.
        await checkpoint()
        raise error

    async def _wait_for_room(self, sender: _WaitingSender[T]) -> None:
        if self._senders is None:
            self._senders = OrderedDict()
        senders = self._senders
        senders[sender] = None

        def abort(_: RaiseCancelT) -> Abort:
            del senders[sender]
            return Abort.SUCCEEDED

        await wait_task_rescheduled(abort)
        if sender.refusal is not None:
            raise sender.refusal

    def _admit_senders(self) -> None:
        # Whoever makes room appends for the senders, in their order: were they
        # only woken, trio would run them in any order.
        assert self._senders is not None and self._capacity is not None
        while self._senders and len(self) < self._capacity:
            sender, _ = self._senders.popitem(last=False)
            if self._receiver is None:
                self._append(sender.message)
            else:
                self._put_for(self._receiver, sender.message)
            if sender.on_put is not None:
                sender.on_put(self.put_count)
            reschedule(sender.task)

    def _append(self, message: T) -> None:
        if self._incoming is None:
            self._incoming = [message]
        else:
            self._incoming.append(message)

    def _put_for(self, receiver: Task, message: T) -> None:
        """Append ``message`` while ``receiver`` is the first who waits."""
        if not self._iterates:
            self._append(message)
            self._next_receiver()
            reschedule(receiver)
        elif self.drain_left is not None:
            self._append(message)  # for after the drain
        elif self._incoming or self._outgoing:
            # Receivers were woken for what is there and have not looked yet.
            self._append(message)
            self._next_receiver()
            reschedule(receiver, Value(self._take()))
        else:
            # First, since it may fail, and then the receiver must be here still.
            given = Value(message)
            self._taken += 1
            self._next_receiver()
            reschedule(receiver, given)

    # Receiving

    @enable_ki_protection
    async def receive(self) -> T:
        """Take the next message, waiting for one.

        Raises:
            MailboxClosed: if the mailbox is closed and empty.
        """
        await self._wait_message()
        return self._take()

    @enable_ki_protection
    def receive_nowait(self) -> T:
        """Take the next message if there is one.

        It is not a checkpoint. A loop that does nothing else starves every other task.

        Raises:
            trio.WouldBlock: if there is none.
            MailboxClosed: if the mailbox is closed and empty.
        """
        if self._has_message():
            return self._take()
        if self._closed is not None:
            raise self._closed()
        raise trio.WouldBlock

    @enable_ki_protection
    async def receive_batch(self) -> list[T]:
        """Take every message that is queued, waiting for at least one.

        This is the fastest way to read, because the whole list takes one wake-up. The
        list belongs to the caller. What the caller does not handle is lost.

        Raises:
            MailboxClosed: if the mailbox is closed and empty.
        """
        await self._wait_message()
        if self._outgoing or self.drain_left is not None:
            count = len(self)
            if self.drain_left is not None:
                count = min(count, self.drain_left)
            return [self._take() for _ in range(count)]
        batch, self._incoming = self._incoming, None
        self.open_queue = None
        assert batch is not None
        self._taken += len(batch)
        if self._senders:
            self._admit_senders()
        return batch

    def __aiter__(self) -> Mailbox[T]:
        return self

    @enable_ki_protection
    def __anext__(self) -> Awaitable[T]:
        """Take the next message; the end comes when the mailbox is closed and
        empty, or, in an actor that was asked to stop, when it has handled what
        was queued at that moment."""
        if self._incoming or self._outgoing:
            return self._take_next()
        return _Next(self)

    def _can_go_on(self) -> bool:
        """Whether an iteration has a message, or its end, without waiting."""
        return (
            bool(self._incoming or self._outgoing)
            or self.drain_left is not None
            or self._closed is not None
        )

    @enable_ki_protection
    async def _take_next(self) -> T:
        self._calls += 1
        if self._calls >= _CHECKPOINT_EVERY:
            self._calls = 0
            await checkpoint()
        if self._has_message():
            return self._take()
        if self.drain_left == 0 or self._closed is not None:
            await self._refuse(StopAsyncIteration())
        return await _Next(self)

    async def _wait_message(self) -> None:
        self._calls += 1
        if self._calls >= _CHECKPOINT_EVERY:
            self._calls = 0
            await checkpoint()
        while not self._has_message():
            if self._on_drained is not None:
                # Drained: this receiver does not see the end of an iteration, so
                # it is cancelled where it would wait for what will not come.
                self._on_drained()
            elif self._closed is not None:
                await self._refuse(self._closed())
            await self._park(iterates=False)

    def _has_message(self) -> bool:
        return self.drain_left != 0 and bool(self._incoming or self._outgoing)

    def _take(self) -> T:
        outgoing = self._outgoing
        if not outgoing:
            outgoing, self._incoming = self._incoming, None
            self.open_queue = None
            assert outgoing is not None
            outgoing.reverse()
            self._outgoing = outgoing
        self._taken += 1
        message = outgoing.pop()
        if self.drain_left is not None:
            self.drain_left -= 1
            if self.drain_left == 0:
                self._end_all()
        if self._senders:
            self._admit_senders()
        return message

    def _park(self, *, iterates: bool) -> Coroutine[Any, Any, Any]:
        # It returns the awaitable: to await it here would keep one more frame.
        self._calls = 0
        self._waits += 1
        self.open_queue = None
        if self._receiver is None:
            self._receiver = current_task()
            self._iterates = iterates
            return wait_task_rescheduled(self._forget_first)  # noqa: ASYNC105 - see above
        if self._receivers is None:
            self._receivers = OrderedDict()
        task = current_task()
        self._receivers[task] = iterates

        def abort(_: RaiseCancelT) -> Abort:
            assert self._receivers is not None
            if self._receiver is task:
                self._next_receiver()
            else:
                del self._receivers[task]
            return Abort.SUCCEEDED

        return wait_task_rescheduled(abort)  # noqa: ASYNC105 - see above

    def _forget_first(self, _: RaiseCancelT) -> Abort:
        # Whoever began to wait as the first stays the first until it is woken.
        self._next_receiver()
        return Abort.SUCCEEDED

    def _next_receiver(self) -> None:
        if self._receivers:
            self._receiver, self._iterates = self._receivers.popitem(last=False)
        else:
            self._receiver = None

    def _end_all(self) -> None:
        """Tell all receivers that wait that there is no further message."""
        while self._receiver is not None:
            receiver, iterates = self._receiver, self._iterates
            self._next_receiver()
            if iterates:
                reschedule(receiver, Error(StopAsyncIteration()))
            else:
                reschedule(receiver)

    def _serve_all(self) -> None:
        """Let the receivers that wait have what is queued."""
        while self._receiver is not None and (self._incoming or self._outgoing):
            receiver, iterates = self._receiver, self._iterates
            self._next_receiver()
            if iterates:
                reschedule(receiver, Value(self._take()))
            else:
                reschedule(receiver)

    # Closing

    @enable_ki_protection
    def close(self, error: Callable[[], Exception] = MailboxClosed) -> None:
        """Take no more messages. What is queued can still be received.

        From now on senders raise ``error()``, and so do receivers at the end. Senders
        that wait raise it at once.
        """
        self._closed = error
        self._checked = True
        self.open_queue = None
        if self._receiver is not None:
            self._end_all()
        while self._senders:
            sender, _ = self._senders.popitem(last=False)
            sender.refusal = error()
            reschedule(sender.task)

    @enable_ki_protection
    def reopen(self) -> None:
        """Take messages again. What was left in the queue is still there."""
        self._closed = None
        self._checked = self._capacity is not None

    # Draining: the soft stop of an actor

    @enable_ki_protection
    def begin_drain(self, on_drained: Callable[[], None]) -> None:
        """Let the receivers have what is queued now and then see the end.

        The iteration ends there. `receive` and `receive_batch` call ``on_drained``,
        which must cancel them. New messages are kept until `end_drain`. A second call
        before that does nothing.
        """
        if self.drain_left is None:
            self.drain_left = len(self)
            self._on_drained = on_drained
            if self.drain_left == 0:
                self._end_all()

    @enable_ki_protection
    def end_drain(self) -> None:
        """Go back to serving every message."""
        self.drain_left = None
        self._on_drained = None
        self._serve_all()
