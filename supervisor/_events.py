"""The event stream: what happened, in order, as data that can be written down.

Events are told, not asked about: a reader subscribes and from then on sees
every event once, in order of ``seq``. A reader that is too slow holds nobody
up; it sees a `Gap` with the number of events that it missed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import attrs
import trio

from actors.lowlevel import check_type

if TYPE_CHECKING:
    from actors.agent import AgentEvent

SCHEMA_VERSION = 1
"""Changes when a field of an event changes its meaning or goes away."""


@attrs.frozen
class Event:
    """Something that happened."""

    seq: int
    """Counts up by one in each stream; readers that are not told of `AgentSaid`
    miss the numbers of these."""
    time: float
    """When, on trio's clock, in seconds."""


@attrs.frozen
class Gap(Event):
    """This reader was too slow and missed events."""

    missed: int


@attrs.frozen
class ChildStarted(Event):
    """An incarnation of a child acknowledged its start."""

    supervisor: str
    child: str
    incarnation: int


@attrs.frozen
class StopRequested(Event):
    """A child was asked to stop."""

    supervisor: str
    child: str
    by: str
    reason: str | None


@attrs.frozen
class ChildExited(Event):
    """An incarnation of a child ended."""

    supervisor: str
    child: str
    incarnation: int
    exit: str
    """``completed``, ``failed`` or ``stopped``."""
    detail: str
    abnormal: bool
    """Whether it is worth a report: any end of a permanent child that nobody
    asked for, and every failure."""


@attrs.frozen
class RestartScheduled(Event):
    """A child, and what its supervisor's strategy adds, will be restarted."""

    supervisor: str
    child: str
    delay: float
    """The seconds until then."""


@attrs.frozen
class GaveUp(Event):
    """A supervisor ran out of restarts and ends itself."""

    supervisor: str
    child: str
    detail: str


@attrs.frozen
class Straggler(Event):
    """A child has outlived its budget for stopping and is waited for."""

    supervisor: str
    child: str
    waited: float
    """The seconds since it was asked to stop."""
    stack: str
    """Where it is."""


@attrs.frozen
class SlowStart(Event):
    """A child with ``wait_started`` has not called ``ctx.started()`` for 30
    seconds, or 30 more, and is waited for."""

    supervisor: str
    child: str
    waited: float
    """The seconds since it was started."""
    stack: str
    """Where it is."""


@attrs.frozen
class SupervisorEnded(Event):
    """A supervisor ended, after all its children."""

    supervisor: str
    exit: str
    detail: str


E = TypeVar("E", bound=Event)

# The kind, the number and the time of an event, and its own fields.
_Told: TypeAlias = tuple[type[Event], int, float, tuple[object, ...]]

WaitBy: TypeAlias = Callable[[Callable[[], Awaitable[object]]], Awaitable[object]]
"""Waits by calling what it is given."""


class Subscription:
    """One reader's view of an `EventStream`: an async iterator of events, which
    ends when the stream does. Leaving its ``with`` block ends it earlier; one
    that is dropped without that goes on to keep events. For one task."""

    __slots__ = (
        "_batch",
        "_capacity",
        "_closed",
        "_missed",
        "_news",
        "_pending",
        "_stream",
        "_wait",
        "agent_id",
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
        # Of whom alone it tells what that says; None for everybody.
        self.agent_id = agent_id
        # How it waits for the next event; None for as anybody does.
        self._wait = wait
        # Made into events when they are read: what they tell of goes on at once.
        self._pending: list[_Told] = []
        self._batch: list[_Told] = []  # what is being read, last first
        self._missed = 0
        self._news: trio.Event | None = None
        self._closed = False

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event. A checkpoint whenever it takes a new batch."""
        if not self._batch:
            await trio.lowlevel.checkpoint()
            while not self._take_batch():
                if self._closed:
                    raise StopAsyncIteration
                self._news = news = trio.Event()
                await (news.wait() if self._wait is None else self._wait(news.wait))
        kind, seq, time, fields = self._batch.pop()
        return kind(seq, time, *fields)

    def _take_batch(self) -> bool:
        if not self._pending and self._missed:
            self._stream.tell_gap(self)
        self._pending, self._batch = self._batch, self._pending
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
        return [kind(seq, time, *fields) for kind, seq, time, fields in told]

    def close(self) -> None:
        """See no further events; those that are there already can be read."""
        self._stream.forget(self)
        self._closed = True
        self._wake()

    def offer(self, event: _Told) -> None:
        """Called by the stream with each event."""
        pending = self._pending
        if len(pending) >= self._capacity:
            self._missed += 1
            return
        if self._missed:
            _, seq, time, _ = event
            pending.append((Gap, seq, time, (self._missed,)))
            self._missed = 0
        pending.append(event)
        if self._news is not None:
            self._wake()

    def missed_one(self) -> None:
        """Called by the stream when an event could not be kept for this reader."""
        self._missed += 1

    def offer_gap(self, seq: int, time: float) -> None:
        """Called by the stream when the reader has caught up."""
        self._pending.append((Gap, seq, time, (self._missed,)))
        self._missed = 0

    def _wake(self) -> None:
        news, self._news = self._news, None
        if news is not None:
            news.set()


class EventStream:
    """Where events are told. Made by the outermost supervisor or the runtime."""

    def __init__(self) -> None:
        self._seq = 0
        self._now = trio.lowlevel.current_clock().current_time
        # Replaced, never changed: a reader may leave while it is told.
        self._readers: tuple[Subscription, ...] = ()
        # Those that are told what an agent says, by its id, or all agents: by None.
        self._listeners: dict[str | None, tuple[Subscription, ...]] = {}
        self._closed = False
        self.has_readers = False
        """Whether anybody would see an event; what is costly to describe need
        not be described otherwise."""

    @property
    def seq(self) -> int:
        """The number of the last event; 0 if there was none."""
        return self._seq

    def subscribe(
        self, capacity: int = 10_000, *, agents: bool = False
    ) -> Subscription:
        """Return an iterator of the events from now on, which keeps at most
        ``capacity`` of them for a slow reader.

        With ``agents`` everything that agents say is among them, as `AgentSaid`
        events, in the order in which it all happened. These may be many.

        Raises:
            TypeError: if ``agents`` is neither True nor False.
        """
        check_type("agents", agents, bool)
        subscription = Subscription(self, capacity)
        if self._closed:
            subscription.close()
        else:
            self._readers = (*self._readers, subscription)
            self.has_readers = True
            if agents:
                self._listen(subscription)
        return subscription

    def listen(self, agent_id: str, wait: WaitBy) -> Subscription:
        """Return an iterator of what one agent says from now on and of nothing else,
        which waits by calling ``wait``."""
        subscription = Subscription(self, 10_000, agent_id, wait)
        self._listen(subscription)
        return subscription

    def _listen(self, reader: Subscription) -> None:
        others = self._listeners.get(reader.agent_id, ())
        self._listeners[reader.agent_id] = (*others, reader)

    def __aiter__(self) -> Subscription:
        return self.subscribe()

    def emit(self, kind: type[E], *fields: object) -> None:
        """Tell every reader. Never blocks and never fails because of one."""
        seq = self._seq + 1
        readers = self._readers
        if not readers:
            self._seq = seq
        else:
            event = (kind, seq, self._now(), fields)
            self._seq = seq
            for reader in readers:
                # The boundary: what is told may be the end of a task.
                try:
                    reader.offer(event)
                except Exception:
                    reader.missed_one()

    def emit_said(self, task_id: str, run_id: str, said: object) -> None:
        """Tell those readers who asked for it what an agent has said."""
        listeners = self._listeners
        if not listeners:
            return
        readers = (*listeners.get(None, ()), *listeners.get(task_id, ()))
        if readers:
            self._seq += 1
            event = (AgentSaid, self._seq, self._now(), (task_id, run_id, said))
            for reader in readers:
                reader.offer(event)

    def ended(self, agent_id: str) -> None:
        """An agent will say no more."""
        for reader in self._listeners.get(agent_id, ()):
            reader.close()

    def tell_gap(self, reader: Subscription) -> None:
        """Tell a reader that has read everything what it missed last."""
        reader.offer_gap(self._seq, self._now())

    def forget(self, reader: Subscription) -> None:
        """Tell this reader no more."""
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


@attrs.frozen
class TaskStarted(Event):
    """A task got its place and begins."""

    task_id: str
    run_id: str
    task_type: str
    description: str
    owner: str | None


@attrs.frozen
class TaskProgress(Event):
    """How far a task has come; at most one a second for each task."""

    task_id: str
    text: str
    bytes_written: int
    tool_uses: int
    total_tokens: int


@attrs.frozen
class TaskRestartScheduled(Event):
    """A run of a task has ended, and the task will run again, under the same id."""

    task_id: str
    run_id: str
    """Of the run that has ended."""
    delay: float
    """The seconds until then."""
    error: str | None
    """What that run has failed with; None if it has not failed."""


@attrs.frozen
class TaskRestarted(Event):
    """A task runs again, under the same id."""

    task_id: str
    run_id: str


@attrs.frozen
class TaskResumed(Event):
    """An agent that had ended goes on, under the same id. If its new run fails
    before it has waited for anything that is as if it had not been resumed: it
    ends without a notification, and the record of the end before is back."""

    task_id: str
    run_id: str
    resumes: int
    """How often it was resumed, this time included."""


@attrs.frozen
class TaskBackgrounded(Event):
    """A foreground task was moved to the background."""

    task_id: str


@attrs.frozen
class TaskPrompted(Event):
    """A task has been silent after an unfinished line, as if it waited for an
    answer; told once for each run."""

    task_id: str
    line: str


@attrs.frozen
class TaskStopRequested(Event):
    """A task was asked to stop."""

    task_id: str
    reason: str | None


@attrs.frozen
class TaskEnded(Event):
    """A task ended, for good. A task that was stopped while it waited for its
    place, or for which there could be no output file, has no `TaskStarted`
    before it: it never began."""

    task_id: str
    status: str
    exit_code: int | None
    signal: int | None
    error: str | None


@attrs.frozen
class Warned(Event):
    """Something about a task is not as it should be. It is also logged, as a
    warning of the logger ``supervisor``, whoever reads the events."""

    task_id: str | None
    text: str


@attrs.frozen
class Notified(Event):
    """The end of a background task is on record for its owner, or progress or a
    scheduled prompt is."""

    notification_id: str
    task_id: str
    """Of the task, or of the schedule."""
    what: str = "task"
    """``task``, ``progress`` or ``prompt``."""


@attrs.frozen
class Acked(Event):
    """A notification was acknowledged."""

    notification_id: str
    task_id: str
    how: str


@attrs.frozen
class ApprovalRequested(Event):
    """A tool call waits for an answer of the host; see
    `supervisor.runtime.Approvals`."""

    approval_id: str
    task_id: str
    """Of the agent; of a call of the host's own model `Approval.agent_id`."""
    tool_use_id: str
    description: str


@attrs.frozen
class ApprovalAnswered(Event):
    """A tool call waits no more."""

    approval_id: str
    task_id: str
    allowed: bool
    by: str
    """``host``: by `answer`. ``end``: denied, because its agent ends, or the runtime.
    ``withdrawn``: the call was given up, and nobody has answered."""
    reason: str | None


@attrs.frozen
class AgentSaid(Event):
    """An agent has said something, or was given a message. Told to those who have
    subscribed with ``agents``; `supervisor.runtime.TaskHandle.events` has the same
    of one agent alone."""

    task_id: str
    run_id: str
    event: Any
    """An `actors.agent.AgentEvent`."""


class AgentEvents:
    """The events of one agent task from now on, in order, also across a move to
    the background and a restart: an async iterator, which ends with the task.

    It buffers 10,000 events for a slow reader. Beyond that events are dropped, and
    one `supervisor.tree.Gap` in their place says how many. For one task; `aclose`
    ends it earlier.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __aiter__(self) -> AgentEvents:
        return self

    async def __anext__(self) -> AgentEvent | Gap:
        """Wait for the next event."""
        event = await anext(self._subscription)
        if isinstance(event, AgentSaid):
            said: AgentEvent = event.event
            return said
        assert isinstance(event, Gap)
        return event

    async def aclose(self) -> None:
        """See no further events. Idempotent."""
        self._subscription.close()
        await trio.lowlevel.checkpoint()
