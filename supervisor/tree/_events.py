"""The event stream: what happened, in order, as data that can be written down.

A reader subscribes and from then on sees every event once, in order of ``seq``.
A reader that is too slow holds nobody up. It sees a `Gap` with the number of events
that it missed. Each reader has objects of its own, so events are `plain`: frozen for
type checkers, and not at run time.

A supervisor also logs what it reports of its children: how they ended, and which
of them do not do what somebody waits for.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, TypeAlias, TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from actors import Completed, Exit, Failed, Stopped
from actors.house import check_type, check_whole, class_name, plain
from actors.lowlevel import Incarnation, is_normal
from actors.text import cut
from actors.work import WorkFailed

from ._errors import RestartIntensityExceeded
from ._log import log
from ._restart import has_declined

SCHEMA_VERSION = 1
"""Changes when a field of an event changes its meaning or goes away."""


@plain
class Event:
    """Something that happened."""

    seq: int
    """The number of the event. It counts up by one in each stream. Readers that are not
    told of `AgentSaid` miss the numbers of these."""
    time: float
    """The time of the event on trio's clock, in seconds."""


@plain
class Gap(Event):
    """This reader was too slow and missed events."""

    missed: int


@plain
class ChildStarted(Event):
    """An incarnation of a child acknowledged its start."""

    supervisor: str
    child: str
    incarnation: int


@plain
class StopRequested(Event):
    """A child was asked to stop."""

    supervisor: str
    child: str
    by: str
    reason: str | None


@plain
class ChildExited(Event):
    """An incarnation of a child ended."""

    supervisor: str
    child: str
    incarnation: int
    exit: str
    """``completed``, ``failed`` or ``stopped``."""
    detail: str
    abnormal: bool
    """Whether it is worth a report. Every failure is, and so is any end of a permanent
    child that nobody asked for."""


@plain
class RestartScheduled(Event):
    """A child will be restarted, with the others that its supervisor's strategy
    names."""

    supervisor: str
    child: str
    delay: float
    """The seconds until the restart."""


@plain
class GaveUp(Event):
    """A supervisor ran out of restarts and ends itself."""

    supervisor: str
    child: str
    detail: str


@plain
class Straggler(Event):
    """A child has outlived its budget for stopping. Its supervisor still waits for
    it."""

    supervisor: str
    child: str
    waited: float
    """The seconds since it was asked to stop."""
    stack: str
    """The stacks of its tasks."""


@plain
class SlowStart(Event):
    """A child with ``wait_started`` has not called ``ctx.started()`` for 30 seconds, or
    for 30 more. Its supervisor still waits for it."""

    supervisor: str
    child: str
    waited: float
    """The seconds since it was started."""
    stack: str
    """The stacks of its tasks."""


@plain
class SupervisorEnded(Event):
    """A supervisor ended, after all its children."""

    supervisor: str
    exit: str
    detail: str


E = TypeVar("E", bound=Event)

# The kind of an event, and all its fields: the number and the time come first.
_Told: TypeAlias = tuple[type[Event], tuple[Any, ...]]

WaitBy: TypeAlias = Callable[[Callable[[], Awaitable[object]]], Awaitable[object]]
"""Waits by calling what it is given."""


class Subscription:
    """One reader's view of an `EventStream`. It is an async iterator of events for one
    task, and ends when the stream does. The end of its ``with`` block ends it earlier.
    A subscription that is dropped without that goes on to keep events."""

    __slots__ = (
        "_batch",
        "_capacity",
        "_closed",
        "_missed",
        "_news",
        "_stream",
        "_wait",
        "_room",
        "agent_id",
        "most",
        "pending",
    )

    def __init__(
        self,
        stream: EventStream,
        capacity: int,
        agent_id: str | None = None,
        wait: WaitBy | None = None,
    ) -> None:
        self._stream = stream
        self._capacity = capacity
        # The agent whose words it reads, and nothing else; None for all events.
        self.agent_id = agent_id
        # How it waits for the next event; None for the usual way.
        self._wait = wait
        # Made into events only when they are read: whoever emits goes on at once.
        self.pending: list[_Told] = []
        self._batch: list[_Told] = []  # what is being read, last first
        # So many are just appended; none where somebody's own `offer` is to hear each.
        self._room = capacity if type(self).offer is Subscription.offer else 0
        # While ``pending`` has fewer, an event only has to be appended to it. It is 0
        # while the reader has to be woken, or to be told what it has missed.
        self.most = self._room
        self._missed = 0
        self._news: trio.Event | None = None
        self._closed = False

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event. A checkpoint whenever it takes a new batch.

        Raises:
            trio.BusyResourceError: if another task waits for it.
        """
        if not self._batch:
            await trio.lowlevel.checkpoint()
            while not self._take_batch():
                if self._closed:
                    raise StopAsyncIteration
                if self._news is not None:
                    raise trio.BusyResourceError(
                        "another task waits for the next event"
                    )
                self.most = 0
                self._news = news = trio.Event()
                try:
                    await (news.wait() if self._wait is None else self._wait(news.wait))
                except BaseException:
                    self._wake()  # Nobody waits any more.
                    raise
        kind, fields = self._batch.pop()
        return kind(*fields)

    def _take_batch(self) -> bool:
        if not self.pending and self._missed:
            self._add_gap(self._stream.seq, self._stream.now())
        self.pending, self._batch = self._batch, self.pending
        self._batch.reverse()
        return bool(self._batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def drain(self) -> list[Event]:
        """Take every event that is there already, without waiting."""
        told = self._batch[::-1]
        self._batch = []
        while self._take_batch():
            told += self._batch[::-1]
            self._batch = []
        return [kind(*fields) for kind, fields in told]

    def close(self) -> None:
        """See no further events. Those that are there already can be read."""
        self._stream.forget(self)
        self._closed = True
        self._wake()

    def offer(self, event: _Told) -> None:
        """Take an event. The stream calls this with each event that it cannot just
        append."""
        pending = self.pending
        if len(pending) >= self._capacity:
            self.most = 0
            self._missed += 1
            return
        if self._missed:
            seq, time = event[1][:2]
            self._add_gap(seq, time)
        pending.append(event)
        news = self._news
        if news is not None:
            # As `_wake`, without a call.
            self._news = None
            news.set()
            if not self._missed:
                self.most = self._room

    def missed_one(self) -> None:
        """Note that an event could not be kept for this reader. The stream calls
        this."""
        self.most = 0
        self._missed += 1

    def _add_gap(self, seq: int, time: float) -> None:
        self.pending.append((Gap, (seq, time, self._missed)))
        self._missed = 0
        self.most = self._room

    def _wake(self) -> None:
        news, self._news = self._news, None
        if news is not None:
            news.set()
            if not self._missed:
                self.most = self._room


_EARLY = 100
"""So many events are kept for the first reader."""


class EventStream:
    """The stream of events. The outermost supervisor or the runtime makes it."""

    def __init__(self) -> None:
        self._seq = 0
        self.now = trio.lowlevel.current_clock().current_time
        """Returns the time of an event, on trio's clock."""
        # Replaced, never changed: a reader may leave while it is told.
        self._readers: tuple[Subscription, ...] = ()
        # Those that are told what an agent says, by its id, or all agents: by None.
        self._listeners: dict[str | None, tuple[Subscription, ...]] = {}
        self._closed = False
        # Kept for the first reader.
        self._early: list[_Told] = []
        self.has_readers = False
        """Whether anybody would see an event; what is costly to describe need
        not be described otherwise."""

    @property
    def seq(self) -> int:
        """The number of the last event. It is 0 if there was none."""
        return self._seq

    def subscribe(
        self, capacity: int = 10_000, *, agents: bool = False
    ) -> Subscription:
        """Return an iterator of the events from now on. It keeps at most ``capacity``
        of them for a slow reader.

        With ``agents``, everything that agents say is among them, as `AgentSaid`
        events, in the order in which it happened. These may be many.

        Raises:
            TypeError: if ``capacity`` is no whole number, or ``agents`` is neither True
                nor False.
            ValueError: if ``capacity`` is not 1 or more.
        """
        check_whole("capacity", capacity, 1)
        check_type("agents", agents, bool)
        subscription = Subscription(self, capacity)
        self.attach(subscription, agents=agents)
        return subscription

    def attach(self, reader: Subscription, *, agents: bool) -> None:
        """Tell a reader every event from now on."""
        if self._closed:
            reader.close()
        else:
            self._readers = (*self._readers, reader)
            self.has_readers = True
            early, self._early = self._early, []
            for event in early:
                reader.offer(event)
            if agents:
                self._listen(reader)

    def listen(self, agent_id: str, wait: WaitBy) -> Subscription:
        """Return an iterator of what one agent says from now on, and of nothing else.
        It waits by calling ``wait``."""
        subscription = Subscription(self, 10_000, agent_id, wait)
        self._listen(subscription)
        return subscription

    def _listen(self, reader: Subscription) -> None:
        others = self._listeners.get(reader.agent_id, ())
        self._listeners[reader.agent_id] = (*others, reader)

    def __aiter__(self) -> Subscription:
        return self.subscribe()

    def emit(self, kind: type[E], *fields: object) -> None:
        """Tell every reader. This never blocks, and never fails because of a reader."""
        seq = self._seq + 1
        readers = self._readers
        if not readers:
            self._seq = seq
        else:
            # By another name, or Python 3.11 looks for it among the methods first; and
            # not by a star, which makes a list of the fields.
            now = self.now
            event = (kind, (seq, now()) + fields)  # noqa: RUF005
            self._seq = seq
            for reader in readers:
                # The boundary: what is told may be the end of a task.
                try:
                    # Not by a call for each reader, of which there may be many.
                    pending = reader.pending
                    if len(pending) < reader.most:
                        pending.append(event)
                    else:
                        reader.offer(event)
                except Exception:
                    reader.missed_one()

    def emit_early(self, kind: type[Event], *fields: object) -> None:
        """Tell every reader or, if nobody has subscribed yet, the first who does: what
        is told while something opens would be heard by nobody else."""
        had_readers = self.has_readers
        self.emit(kind, *fields)
        if not had_readers and len(self._early) < _EARLY:
            self._early.append((kind, (self._seq, self.now(), *fields)))

    def emit_to(self, agent_id: str, kind: type[E], *fields: object) -> None:
        """Tell those readers who listen to one agent, or to all of them."""
        listeners = self._listeners
        if not listeners:
            return
        readers = (*listeners.get(None, ()), *listeners.get(agent_id, ()))
        if readers:
            self._seq += 1
            event = (kind, (self._seq, self.now(), *fields))
            for reader in readers:
                reader.offer(event)

    def ended(self, agent_id: str) -> None:
        """End the iterations of those who read only this agent, because it has
        ended."""
        for reader in self._listeners.get(agent_id, ()):
            reader.close()

    def forget(self, reader: Subscription) -> None:
        """Stop telling this reader."""
        self._readers = tuple(r for r in self._readers if r is not reader)
        self.has_readers = bool(self._readers)
        others = self._listeners.pop(reader.agent_id, ())
        others = tuple(other for other in others if other is not reader)
        if others:
            self._listeners[reader.agent_id] = others

    def close(self) -> None:
        """End every reader's iteration after what it has not read yet."""
        self._closed = True
        for reader in self._readers:
            reader.close()


# ---- What a supervisor reports ----

REPORT_EVERY = 30.0
"""The seconds between two reports of one incarnation."""

# For the log, with the supervisor's path, the child's id and the seconds.
_LATE: Mapping[type[Straggler | SlowStart], str] = {
    Straggler: "%s/%s has not ended %.1f s after it was told to stop:",
    SlowStart: "%s/%s has not called ctx.started() %.1f s after its start, which "
    "wait_started=True waits for:",
}


class Stragglers:
    """Watches incarnations for which somebody waits: until they end when they were
    told to stop, or until they acknowledge their start. It reports each that is
    still watched when the patience with it is over, and every 30 seconds from then
    on.

    One task does that for all children of a supervisor. It outlives a
    cancellation, as the children do, and ends with `close`.
    """

    def __init__(
        self, kind: type[Straggler | SlowStart], path: str, events: EventStream
    ) -> None:
        self._kind = kind
        self._path = path
        self._events = events
        # Since when it is waited for, and when a report is due. Whatever has done
        # what was waited for is taken out.
        self.watched: dict[Incarnation[Any], tuple[float, float]] = {}
        self._nap: trio.CancelScope | None = None
        self._clock = trio.lowlevel.current_clock()

    def watch(
        self, nursery: trio.Nursery, incarnation: Incarnation[Any], patience: float
    ) -> None:
        """Report ``incarnation`` if it is still watched in ``patience`` seconds.
        The second time for the same one it does nothing."""
        if incarnation in self.watched or patience == math.inf:
            return
        now = self._clock.current_time()
        self.watched[incarnation] = (now, now + patience)
        if self._nap is None:
            self._nap = trio.CancelScope(shield=True, deadline=now + patience)
            nursery.start_soon(self._report_when_due)
        elif now + patience < self._nap.deadline:
            self._nap.deadline = now + patience

    def close(self) -> None:
        """End the reports, so that the nursery can be left."""
        self.watched.clear()
        if self._nap is not None:
            self._nap.cancel()

    @enable_ki_protection
    async def _report_when_due(self) -> None:
        while self.watched:
            due = min(due for _, due in self.watched.values())
            self._nap = trio.CancelScope(shield=True, deadline=due)
            with self._nap:
                await trio.sleep_forever()
            now = trio.current_time()
            for incarnation, (asked_at, due) in list(self.watched.items()):
                if due <= now:
                    self.watched[incarnation] = (asked_at, due + REPORT_EVERY)
                    self._report(incarnation, now - asked_at)
        self._nap = None

    def _report(self, incarnation: Incarnation[Any], waited: float) -> None:
        path, id, stack = self._path, incarnation.id, incarnation.format_stack()
        self._events.emit(self._kind, path, id, waited, stack)
        log(logging.WARNING, _LATE[self._kind], path, id, waited, stack=stack)


def report_exit(
    events: EventStream,
    path: str,
    incarnation: Incarnation[Any],
    exit: Exit[object],
    *,
    expected: bool,
) -> None:
    """Report the end of an incarnation below the supervisor ``path``. A normal end is
    abnormal, too, if it was not ``expected``."""
    id, kind, abnormal = incarnation.cell.id, "completed", not expected
    if type(exit) is not Completed:
        kind = type(exit).__name__.lower()
        abnormal = not (expected and is_normal(exit))
    if isinstance(exit, Failed):
        if incarnation.started_by is None and has_declined(exit):
            abnormal = False
        else:
            _log_failure(path, id, exit.error)
    if events.has_readers:
        number, detail = incarnation.number, describe_exit(exit)
        events.emit(ChildExited, path, id, number, kind, detail, abnormal)


def _log_failure(path: str, id: str, error: Exception) -> None:
    result = _bad_end(error)
    if result is None:
        log(logging.ERROR, "%s/%s failed", path, id, error=error)
    else:
        # A result, such as an exit code, and nobody's mistake.
        what = f"{result} ({result.subject})" if result.subject else str(result)
        log(logging.INFO, "%s/%s failed: %s", path, id, what)


def _bad_end(error: BaseException | None) -> WorkFailed | None:
    """Return the bad end of a work that ``error`` is, or that it was too often; None
    if somebody has made a mistake."""
    if isinstance(error, RestartIntensityExceeded):
        error = error.__cause__
    if isinstance(error, WorkFailed) and error.__cause__ is None:
        return error
    return None


def describe_exit(exit: Exit[object]) -> str:
    """Return a line of text about ``exit``."""
    if isinstance(exit, Stopped):
        return exit.by if exit.reason is None else f"{exit.by}: {exit.reason}"
    subject = exit.error if isinstance(exit, Failed) else exit.value
    try:
        text = repr(subject)
        if type(text) is not str:
            text = str.__str__(text)
    # The boundary: whatever a stranger's __repr__ does, an end is recorded. Our
    # callers are protected from interrupts, so none that comes is anybody's wish.
    except BaseException:  # noqa: ASYNC103
        text = f"<{class_name(subject)} whose repr() fails>"
    return text if len(text) <= 1_000 else cut(text, 1_000)
