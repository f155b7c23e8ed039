"""The actor's loop: from an async function to exactly one `Exit`.

`Context` is what the function sees. `Incarnation` is the same object with what
a supervisor sees: it runs the function once and classifies its end. `Cell` is
an `ActorRef` with what a supervisor sees: it lives as long as the child and
goes through its incarnations one after the other. (Public face and private
powers share one object because there may be 100,000 of each.)
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextvars import ContextVar
from functools import lru_cache, partial
from types import TracebackType
from typing import Generic, Literal, TypeVar, cast

import trio
from trio.lowlevel import current_task, enable_ki_protection

from .class_name import class_name
from .errors import ActorEnded, AskUnanswered
from .exit import Completed, Exit, Failed, Stopped, StoppedBy, find_suspect
from .mailbox import Mailbox
from .ref import ActorRef
from .values import plain

M = TypeVar("M")

# Not failures of the actor. GeneratorExit closes a coroutine that never ended.
_INTERRUPTS = (KeyboardInterrupt, SystemExit, GeneratorExit)

# The words of Python up to 3.13, and since 3.14.
_NOT_AWAITABLE = re.compile(
    "object (.+) can't be used in 'await' expression|'(.+)' object can't be awaited"
)

# Thousands that are stopped together end alike.
_stopped_by = lru_cache(maxsize=1)(Stopped)

_current: ContextVar[Incarnation[object]] = ContextVar("current actor")


def current_actor() -> Cell[object] | None:
    """Return the actor in which the calling task runs, or None."""
    incarnation = _current.get(None)
    return None if incarnation is None else incarnation.cell


@plain
class StopRequest:
    """Who asked an incarnation to stop, and why."""

    by: StoppedBy
    reason: str | None


class Context(Generic[M]):
    """What an actor's function is given: its mailbox, its reference, its deadline, and
    whether it is to stop."""

    __slots__ = ("_deadline", "_scope", "_stopping", "cell", "number", "started_by")

    number: int
    """The number of this incarnation. The first one is 1."""

    # For its supervisor: see `Incarnation`.
    cell: Cell[M]
    started_by: Literal["step", "actor"] | None
    """What has acknowledged the start: the actor's first step, the actor itself, or
    nothing yet."""
    # None until it is set.
    _deadline: float | None
    _scope: trio.CancelScope
    _stopping: trio.Event | None

    def __repr__(self) -> str:
        return f"<Context of {self.cell.id}, incarnation {self.number}>"

    @property
    def id(self) -> str:
        """The actor's name within its supervisor."""
        return self.cell.id

    @property
    def ref(self) -> ActorRef[M]:
        """The reference under which others know this actor."""
        return self.cell

    @property
    def mailbox(self) -> Mailbox[M]:
        """The actor's mailbox, which survives restarts.

        The iteration ends when the actor was asked to stop and has handled what was
        queued at that moment. Later messages wait for the next incarnation.
        """
        return self.cell.mailbox

    @property
    def was_started(self) -> bool:
        """Whether the start was acknowledged."""
        return self.started_by is not None

    @property
    def stopping(self) -> trio.Event:
        """It is set when the actor is asked to stop, ``drain`` seconds before it is
        cancelled."""
        if self._stopping is None:
            self._stopping = trio.Event()
            if self.is_stopping:
                self._stopping.set()
        return self._stopping

    @property
    def is_stopping(self) -> bool:
        """Whether the actor was asked to stop."""
        raise NotImplementedError

    @property
    def deadline(self) -> float:
        """The time on trio's clock at which it is cancelled. `math.inf` means never.
        The exit is then ``Stopped("deadline")``, which a supervisor treats like a
        failure."""
        return math.inf if self._deadline is None else self._deadline

    @deadline.setter
    def deadline(self, deadline: float) -> None:
        if not self.is_stopping or deadline < self._scope.deadline:
            self._scope.deadline = deadline
        self._deadline = deadline

    def started(self, value: object = None) -> None:
        """Acknowledge the start. ``value`` becomes ``ref.started_value``.

        With ``wait_started``, the supervisor waits for this. Without it, the first step
        has acknowledged the start already, and only the value counts.

        Raises:
            RuntimeError: if this incarnation has called it before.
        """
        raise NotImplementedError


class Incarnation(Context[M]):
    """One run of an actor's function. `Cell.begin` makes it."""

    __slots__ = (
        "_coroutine",
        "_ended",
        "_reads_before",
        "_task",
        "exit",
        "stop_request",
    )

    exit: Exit[object] | None
    """How it ended, or None while it has not."""
    stop_request: StopRequest | None
    """Who asked it to stop first, if anybody did."""

    _coroutine: Coroutine[object, object, None]

    def __init__(self, cell: Cell[M], number: int) -> None:
        self.cell = cell
        self.number = number
        self.started_by = None
        self.exit = None
        self.stop_request = None
        self._stopping = None
        self._ended: trio.Event | None = None
        self._deadline = None
        self._task: trio.lowlevel.Task | None = None
        # Nobody reads a mailbox before its first actor does.
        self._reads_before = 0 if number == 1 else cell.read_count
        # Shielded, because the supervisor passes an outer cancellation on in
        # its own order.
        self._scope = trio.CancelScope(shield=True)

    @property
    def is_stopping(self) -> bool:
        return self.stop_request is not None

    def started(self, value: object = None) -> None:
        if self.started_by == "actor":
            raise RuntimeError(f"actor {self.id!r} called started() twice")
        self.cell.started_value = value
        is_first = self.started_by is None
        self.started_by = "actor"
        if is_first:
            self.cell.note_start(self)

    # Stopping

    @enable_ki_protection
    def stop(
        self, by: StoppedBy, reason: str | None = None, *, drain: float = 0.0
    ) -> None:
        """Ask it to end. It is cancelled at once, or after ``drain`` seconds in which
        it may finish what it has. The first request names the stopper. A deadline that
        has passed counts as a request. A later request can only make the end come
        sooner. This never blocks."""
        if self.exit is not None:
            return
        if (
            self._task is None
            and inspect.getcoroutinestate(self._coroutine) == inspect.CORO_CLOSED
        ):
            # An interrupt struck before the coroutine's first line, so nothing
            # has recorded the end.
            self._settle(None)
            return
        # Made before anything is recorded, since that may fail.
        mailbox = self.cell.mailbox if drain > 0 else None
        if self.stop_request is None:
            self.stop_request = (
                StopRequest("deadline", None)
                if self._deadline is not None and self._is_late()
                else StopRequest(by, reason)
            )
            self.cell.note_stopping()
            if self._stopping is not None:
                self._stopping.set()
        if mailbox is not None:
            mailbox.begin_drain(self._scope.cancel)
            self._scope.deadline = min(
                self._scope.deadline, trio.current_time() + drain
            )
        else:
            self._scope.cancel(reason=f"actor stopped by {self.stop_request.by}")

    def _is_late(self) -> bool:
        # Before a stop only the deadline can have cancelled the scope, and
        # asking the scope costs a look at the clock.
        return self._deadline is not None and self._scope.cancel_called

    def stop_softly(self, reason: str | None) -> None:
        """See `ActorRef.stop`."""
        if self.stop_request is not None:
            return
        # Has it ever read? Whether it waits there now would say nothing: what was
        # just sent has woken it.
        if self.cell.read_count > self._reads_before:
            self.stop("stop", reason, drain=max(self.cell.drain, self.cell.shutdown))
        else:
            self.stop("stop", reason, drain=self.cell.drain)

    async def wait_ended(self) -> Exit[object]:
        """Wait until it has ended, and return how."""
        if self.exit is None:
            if self._ended is None:
                self._ended = trio.Event()
            await self._ended.wait()
            assert self.exit is not None
        else:
            await trio.lowlevel.checkpoint()
        return self.exit

    def format_stack(self) -> str:
        """Return where its task and the tasks below it are, for people."""
        return "" if self._task is None else "\n".join(_stack_lines(self._task))

    # Running

    def run(
        self,
        fn: Callable[..., Awaitable[object]],
        args: tuple[object, ...],
        acknowledge: bool,
    ) -> Coroutine[object, object, None]:
        """Run ``fn(context, *args)`` to its one exit. This is the body of its trio
        task.

        With ``acknowledge``, the start counts as acknowledged as soon as this task
        runs. It raises only a cancellation from outside, and what is not an Exception.
        The exit is recorded before that.
        """
        self._coroutine = self._run(fn, args, acknowledge)
        return self._coroutine

    # 100,000 of these frames may be waiting, so the function keeps few locals.
    async def _run(
        self,
        fn: Callable[..., Awaitable[object]],
        args: tuple[object, ...],
        acknowledge: bool,
    ) -> None:
        exit: Exit[object] | None = None
        try:
            _current.set(self)  # type: ignore[arg-type] # a reader does not use M
            with self._scope:
                if (
                    self.number > 1
                    and self.stop_request is None
                    and self.cell.is_held()
                ):
                    await trio.sleep_forever()
                # A stop, or the deadline, may have come before the first step.
                if self.stop_request is None and (
                    self._deadline is None or not self._is_late()
                ):
                    self._task = current_task()
                    if acknowledge:
                        self.cell.started_value = None
                        self.started_by = "step"
                        self.cell.note_start(self)
                    try:
                        exit = Completed(await fn(self, *args))
                    # The boundary: an actor's failure becomes data here and
                    # never travels through the nursery of its supervisor.
                    except Exception as error:
                        exit = _failed(error, fn)
                    except BaseException as error:  # noqa: ASYNC103 - or it ends here
                        exit, passing = self._weigh(error)
                        if passing is not None:
                            raise passing  # noqa: ASYNC104, B904 - the error, or a part
            if exit is None:
                exit = self._stopped(None)
            elif isinstance(exit, Stopped) and exit.by == "outer":
                # The scope has ended a group of cancellations.
                exit = self._stopped(exit.suspect)
        except Exception as error:
            # trio says so if the actor has left a scope of its own open.
            exit = Failed(error)
        finally:
            # An interrupt may strike in any line above, because the actor's own
            # code, which runs in this frame, is not protected from it; but not
            # between here and the protected frame of _settle.
            self._settle(exit)
            # The exit may hold a traceback, which holds this frame.
            del exit

    def _weigh(
        self, error: BaseException
    ) -> tuple[Failed | Stopped, BaseException | None]:
        """Return the exit that ``error`` means, and the part of it to raise again,
        such as an interrupt; an Exception is never raised again."""
        is_cancelled = self._scope.cancel_called
        if is_cancelled and isinstance(error, trio.Cancelled):
            # Our scope is shielded, so only that scope can have cancelled it.
            suspect = None if error.__context__ is None else find_suspect(error)
            return self._stopped(suspect), None
        # Where nobody has cancelled our scope, a Cancelled belongs to another task
        # that kept it: a failure. Raised on, it would end the actors beside us.
        passes = (*_INTERRUPTS, trio.Cancelled) if is_cancelled else _INTERRUPTS
        passing: BaseException | None
        failure: BaseException | None
        group = _as_group(error)
        if group is not None:
            passing, failure = group.split(passes)
        elif isinstance(error, passes):
            passing, failure = error, None
        else:
            passing, failure = None, error
        if passing is None:
            assert failure is not None
            return Failed(_as_exception(failure)), None
        if _is_interrupt(passing) and self.stop_request is None:
            # Its supervisor must see the interrupt, also where an error came with it.
            self.stop_request = StopRequest("outer", class_name(passing))
        if failure is None:
            suspect = find_suspect(error)
            return Stopped("outer", class_name(error), suspect), passing
        passing.__suppress_context__ = True
        return Failed(_as_exception(failure)), passing

    def _stopped(self, suspect: BaseException | None) -> Stopped:
        request = self.stop_request
        if request is None:
            return Stopped("deadline", None, suspect)
        if suspect is None and (request.reason is None or type(request.reason) is str):
            return _stopped_by(request.by, request.reason)
        return Stopped(request.by, request.reason, suspect)

    @enable_ki_protection
    def _settle(self, exit: Exit[object] | None) -> None:
        self.exit = exit = exit or Stopped("outer", "KeyboardInterrupt")
        self._task = None
        # Before anything that could fail, or a waiter would wait for ever.
        if self._ended is not None:
            self._ended.set()
        self.cell.note_exit(self, exit)


# Or an interrupt would be taken for what the error raises.
@enable_ki_protection
def _failed(error: Exception, fn: Callable[..., object]) -> Failed:
    try:
        # Whoever hears of it looks at these.
        trace, _ = error.__traceback__, error.__class__
    # The boundary: what an error of the actor's own class raises when it is looked
    # at is a failure of this actor, and nobody's wish to leave the program.
    except BaseException as other:  # noqa: ASYNC103
        what, why = class_name(error), class_name(other)
        return Failed(  # noqa: ASYNC104
            RuntimeError(f"the actor raised a {what} that cannot be looked at: {why}")
        )
    _name_what_is_not_async(error, trace, fn)
    return Failed(error)


def _name_what_is_not_async(
    error: Exception, trace: TracebackType | None, fn: Callable[..., object]
) -> None:
    """Add to the error of awaiting what ``fn`` returned that ``fn`` is not async."""
    # Raised in the frame of _run itself, so not by an await of the actor's own.
    if type(error) is TypeError and trace is not None and trace.tb_next is None:
        found = _NOT_AWAITABLE.fullmatch(str(error))
        if found:
            kind = found[1] or found[2]
            what = "None" if kind == "NoneType" else f"an object of type {kind}"
            name = getattr(fn, "__qualname__", None) or repr(fn)
            error.args = (
                f"{name} returned {what}: an actor must be an async function",
            )


def _as_exception(error: BaseException) -> Exception:
    if isinstance(error, Exception):
        return error
    what = (
        "a cancellation of another scope"
        if isinstance(error, trio.Cancelled)
        else f"a {class_name(error)}, which is not an Exception"
    )
    failure = RuntimeError(f"the actor raised {what}")
    failure.__cause__ = error
    return failure


def _is_interrupt(error: BaseException) -> bool:
    group = _as_group(error)
    if group is None:
        return not isinstance(error, trio.Cancelled)
    return group.split(trio.Cancelled)[1] is not None


def _as_group(error: BaseException) -> BaseExceptionGroup[BaseException] | None:
    if not isinstance(error, BaseExceptionGroup):
        return None
    return cast("BaseExceptionGroup[BaseException]", error)


class Cell(ActorRef[M]):
    """An actor as its supervisor sees it. A supervisor subclasses it and overrides
    the ``on_`` methods. They are called synchronously, in the actor's own step, after
    the cell has recorded what happened. They do nothing here.

    ``incarnation`` is the one that runs, or the last one. All incarnations have the
    same ``mailbox``."""

    __slots__ = ()

    def __init__(
        self,
        id: str,
        capacity: int | None,
        drain: float,
        shutdown: float,
        thread: int,
        token: trio.lowlevel.TrioToken,
    ) -> None:
        self.id = id
        self.started_value = None
        spawner = _current.get(None)
        self.spawned_by = None if spawner is None else spawner.cell
        self.drain = drain
        self.shutdown = shutdown
        self._capacity = capacity
        self._mailbox = None
        self._state = "starting"
        self._final_end = None
        self._news = None
        self._asks = None
        self._thread = thread
        self._token = token

    @enable_ki_protection
    def begin(
        self,
        nursery: trio.Nursery,
        fn: Callable[..., Awaitable[object]],
        args: tuple[object, ...],
        number: int,
        acknowledge: bool,
    ) -> Incarnation[M]:
        """Start the next incarnation in ``nursery``. It has not run a step yet
        when this returns."""
        incarnation = Incarnation(self, number)
        nursery.start_soon(incarnation.run, fn, args, acknowledge, name=self.id)
        self.incarnation = incarnation
        return incarnation

    # What the incarnation reports: recorded first, then passed to the supervisor

    def note_start(self, incarnation: Incarnation[M]) -> None:
        # Asked to stop before it came up, it stays "stopping".
        if incarnation.stop_request is None:
            self._state = "running"
            if self._news is not None:
                self._news.set()
                self._news = None
        self.on_started(incarnation)

    def note_stopping(self) -> None:
        self._state = "stopping"
        self.on_stopping()

    def note_exit(self, incarnation: Incarnation[M], exit: Exit[object]) -> None:
        mailbox = self._mailbox
        if mailbox is not None and mailbox.drain_left is not None:
            mailbox.end_drain()
        if self._asks:
            # A question still in the queue waits for the next incarnation.
            assert mailbox is not None
            taken = mailbox.taken_count
            for reply, place in list(self._asks.items()):
                if place <= taken:
                    reply.fail(AskUnanswered(self.id, exit))
        self.on_exit(incarnation, exit)

    def on_started(self, incarnation: Incarnation[M]) -> None:
        """The incarnation acknowledged its start. A supervisor may override this."""

    def on_stopping(self) -> None:
        """The incarnation was asked to stop. A supervisor may override this."""

    def is_held(self) -> bool:
        """Whether an incarnation after the first, which is to make its first step, does
        nothing until it is stopped. A supervisor may override this."""
        return False

    def on_exit(self, incarnation: Incarnation[M], exit: Exit[object]) -> None:
        """The incarnation ended. This is called once, and the exit is recorded already.
        A supervisor may override it."""

    # What the supervisor says

    def await_restart(self) -> None:
        """Another incarnation will come. Messages are kept for it."""
        self._state = "restarting"

    def begin_again(self) -> None:
        """Leave ``stopped``. Messages are taken again, and what was queued is still
        there."""
        self._state = "starting"
        if self._mailbox is not None:
            self._mailbox.reopen()

    @enable_ki_protection
    def end(self) -> None:
        """Take no more messages, because no other incarnation will come by itself."""
        self._state = "stopped"
        if self._mailbox is not None:
            self._mailbox.close(partial(ActorEnded, self.id))
        if self._asks:
            for reply in list(self._asks):
                reply.fail(ActorEnded(self.id))
        if self._news is not None:
            news, self._news = self._news, None
            news.set()
        if self._final_end is not None:
            final_end, self._final_end = self._final_end, None
            final_end.exit = self.incarnation.exit
            final_end.event.set()


def _stack_lines(task: trio.lowlevel.Task) -> Iterator[str]:
    # A tree may be deeper than Python's recursion limit.
    rest = [(task, "")]
    while rest:
        task, indent = rest.pop()
        yield f"{indent}task {task.name}:"
        for frame, line in task.iter_await_frames():
            code = frame.f_code
            yield f"{indent}  {code.co_filename}:{line} in {code.co_qualname}"
        rest.extend(
            (child, indent + "    ")
            for nursery in task.child_nurseries
            for child in nursery.child_tasks
        )
