"""The children of one supervisor: who they are, and how each starts and ends.

Each incarnation of a child is a task of the block's nursery, under a scope of its
own that is shielded from the outside, so that the children can be stopped in order
whatever ends the block. There is no central loop: the cell of a child calls its
supervisor, synchronously, in the step in which something happens to it, and only
what takes time (a backoff, a group restart, a stop) is a task.

This file does what somebody asks for: it starts a child, stops it, and deals with
an end that was asked for. `_supervision` deals with every other end; its class
derives from this one. The two are cut where they share least: from here only
`Children.follow`, `Children.leave_group` and `Children.check_ended_early` lead there.
`_block` does what happens once: it starts the children of the list, and stops all.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
from _thread import get_ident
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, TypeVarTuple

import trio
from trio.lowlevel import enable_ki_protection

from actors import ActorRef, Exit, Failed, Stopped
from actors.env import Env, real_env
from actors.house import fewer_collections
from actors.lowlevel import Cell, Incarnation, StoppedBy, current_actor

from ._errors import (
    ChildIgnored,
    StartFailed,
    StillRunning,
    SupervisorError,
    SupervisorStopping,
    WouldDeadlock,
)
from ._events import (
    REPORT_EVERY,
    ChildStarted,
    EventStream,
    SlowStart,
    StopRequested,
    Straggler,
    Stragglers,
    report_exit,
)
from ._log import log
from ._spec import ChildSpec, Flags

M = TypeVar("M")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")

START_CANCELLED = "its start was cancelled"
"""Why a child is terminated whose starter was cancelled."""

Intent: TypeAlias = Literal["terminate", "group"]

Watcher: TypeAlias = Callable[[ActorRef[Any], Exit[object]], None]

# A child that only has to unwind needs a few steps for that, even without a
# budget. One that needs longer is stuck.
_SHORTEST_BUDGET = 0.1

# Children that are stopped together are asked in batches. While one batch ends
# the other tasks run, and what it leaves behind is small and young.
STOPPED_AT_ONCE = 64


async def checked(check: Callable[[*Ts], R], *args: *Ts) -> R:
    """Return what ``check`` returns, at once. If it raises, others run first: whoever
    tries again at once, in a loop, must not starve everybody else, nor run where
    nothing can cancel it."""
    try:
        return check(*args)
    except Exception:
        await trio.lowlevel.checkpoint()  # noqa: ASYNC120 - a cancellation goes first
        raise


class Start:
    """A start that somebody waits for."""

    __slots__ = ("awaited", "error", "settled")

    def __init__(self, *, awaited: bool) -> None:
        self.awaited = awaited
        """Whether it is a caller of the supervisor who waits, not a group restart."""
        self.settled = trio.Event()
        """Set when it has succeeded or failed."""
        self.error: SupervisorError | None = None


class Restarts:
    """What decides about the next restart of a child."""

    __slots__ = ("began_at", "failures", "retry")

    def __init__(self) -> None:
        self.began_at = 0.0
        """When the incarnation began, if the child has a backoff."""
        self.failures = 0
        """So many in a row, for the backoff."""
        self.retry: trio.CancelScope | None = None
        """The wait before it."""


class Child(Cell[M]):
    """A child and its supervisor's notes on it."""

    __slots__ = (
        "args",
        "below",
        "context",
        "home",
        "intent",
        "is_new",
        "restarts",
        "spec",
        "start",
        "watcher",
    )

    def __init__(
        self, home: Children, spec: ChildSpec[M], args: tuple[object, ...], id: str
    ) -> None:
        # Not by super() and names, which cost as much again; thousands are made.
        Cell.__init__(  # pyright: ignore[reportUnknownMemberType]
            self, id, spec.mailbox, spec.drain, spec.budget, home.thread, home.token
        )
        self.home = home
        self.spec = spec
        self.args = args
        # The context of whoever asked for it. A new incarnation must not inherit what
        # the previous one, or the sibling that failed, has set in theirs.
        self.context = (
            None if spec.restart == "temporary" else contextvars.copy_context()
        )
        # Made when it first matters, which it never does for most children.
        self.restarts: Restarts | None = None
        # Why the supervisor stopped it, which says what follows its end.
        self.intent: Intent | None = None
        # Whether nothing is kept of it if its start fails.
        self.is_new = True
        # While somebody waits for its start.
        self.start: Start | None = None
        # Called at the final end.
        self.watcher: Watcher | None = None
        # The supervisors that are open in its task.
        self.below: tuple[Children, ...] = ()

    @property
    def is_live(self) -> bool:
        """Whether an incarnation has begun and not ended."""
        return self.incarnation.exit is None

    @property
    def is_awaited(self) -> bool:
        """Whether a caller of the supervisor waits for its start."""
        return self.start is not None and self.start.awaited

    @property
    def patience(self) -> float:
        """How long it may take to end once it was asked to."""
        return self.spec.drain + max(self.spec.budget, _SHORTEST_BUDGET)

    def know_restarts(self) -> Restarts:
        """Return what is known of its restarts."""
        if self.restarts is None:
            self.restarts = Restarts()
        return self.restarts

    def begin_next(self, nursery: trio.Nursery, number: int) -> None:
        """Begin the next incarnation."""
        spec = self.spec
        if spec.backoff is not None:  # or nobody asks how long it ran
            self.know_restarts().began_at = trio.current_time()
        home = self.home
        key = self if home.dynamic else self.id
        # In the books before it begins: it may never be alive outside of them.
        if number == 1:
            home.by_key[key] = self
        try:
            if self.context is None:
                self.begin(nursery, spec.fn, self.args, number, not spec.wait_started)
            else:
                begin = self.context.run
                begin(
                    self.begin,
                    nursery,
                    spec.fn,
                    self.args,
                    number,
                    not spec.wait_started,
                )
        except BaseException:
            if number == 1:
                # It has no incarnation that could end.
                del home.by_key[key]
            raise
        if spec.wait_started:
            home.slow_starts.watch(nursery, self.incarnation, REPORT_EVERY)

    def settle_start(self, error: SupervisorError | None) -> None:
        """Tell whoever waits for this start."""
        if self.start is not None:
            self.start.error = error
            self.start.settled.set()
            self.start = None

    # What the cell tells

    def on_started(self, incarnation: Incarnation[M]) -> None:
        self.is_new = False
        home = self.home
        if self.spec.significant:
            # Then the one that ended early was not the last.
            home.ended_early = None
        home.events.emit(ChildStarted, home.path, self.id, incarnation.number)
        if self.spec.wait_started:
            home.slow_starts.watched.pop(incarnation, None)
        if self.start is not None:
            self.settle_start(None)

    def on_stopping(self) -> None:
        request = self.incarnation.stop_request
        assert request is not None
        home = self.home
        if self.spec.wait_started:
            # From now on somebody waits for its end, and no longer for its start.
            home.slow_starts.watched.pop(self.incarnation, None)
        home.events.emit(StopRequested, home.path, self.id, request.by, request.reason)

    def is_held(self) -> bool:
        # The supervisor was told to stop since it decided the restart, and stops this
        # one in its turn. Whoever waits for a start gets it, as before.
        return self.home.is_ending and not self.is_awaited

    def on_exit(self, incarnation: Incarnation[M], exit: Exit[object]) -> None:
        self.home.on_child_exit(self, incarnation, exit)


class Children:
    """Starts and ends the children of one supervisor.

    Its block in `_block` sets ``nursery`` before anything else.
    """

    nursery: trio.Nursery

    def __init__(
        self,
        flags: Flags,
        name: str | None,
        env: Env | None,
        events: EventStream | None,
        *,
        dynamic: bool,
    ) -> None:
        self.flags = flags
        self.dynamic = dynamic
        # The actor in whose task this supervisor's block runs, if any.
        self.actor = current_actor()
        self.child_above = self.actor if isinstance(self.actor, Child) else None
        above = None if self.child_above is None else self.child_above.home
        own_name = name or (self.actor.id if self.actor is not None else "supervisor")
        self.path: str = own_name if above is None else f"{above.path}/{own_name}"
        # The stream that is made here is closed with this supervisor.
        self.owns_events = events is None and above is None
        self.events: EventStream = events or (
            EventStream() if above is None else above.events
        )
        self.env: Env = env or (real_env() if above is None else above.env)
        # For the refs of the children, which other threads may hold.
        self.thread: int = get_ident()
        self.token: trio.lowlevel.TrioToken = trio.lowlevel.current_trio_token()
        # Round the body of the block: cancelled when the supervisor ends by itself.
        self.body = trio.CancelScope()
        self.by_key: dict[object, Child[Any]] = {}
        """Every child in start order, by id or, in a dynamic one, by itself."""
        # From the decision to stop on: nothing starts, and no end is followed.
        self.closing = False
        self.ended = trio.Event()
        self.exit: Failed | Stopped | None = None
        # Whether an interrupt ends it, which leaves no time for draining.
        self._interrupted: bool = above is not None and above._interrupted
        # The significant child that ended while no other one ran and some were
        # on their way: it was the last one if none of these comes up.
        self.ended_early: Child[Any] | None = None
        self.stragglers = Stragglers(Straggler, self.path, self.events)
        self.slow_starts = Stragglers(SlowStart, self.path, self.events)

    # What `_supervision` answers

    def follow(
        self,
        child: Child[Any],
        incarnation: Incarnation[Any],
        exit: Exit[object],
        intent: Intent | None,
    ) -> None:
        """Act on an end that no caller has asked for; ``intent`` is that of a group
        restart, if one has."""
        raise NotImplementedError

    def leave_group(self, child: Child[Any]) -> None:
        """Somebody ends this child: a group restart goes on without it."""
        raise NotImplementedError

    def check_ended_early(self) -> None:
        """A child stays down: end the supervisor if the significant one that ended
        early was so the last one after all."""
        raise NotImplementedError

    # The books

    @property
    def is_ending(self) -> bool:
        """Whether it closes, or the actor in which it lives is told to stop, or is to
        be told so: from then on nothing is restarted."""
        actor, child = self.actor, self.child_above
        if self.closing or actor is None or actor.incarnation.exit is not None:
            return self.closing
        return actor.incarnation.is_stopping or (
            child is not None and child.intent == "terminate"
        )

    def check_open(self) -> None:
        if self.closing:
            raise self.stopping_error()

    def stopping_error(self) -> SupervisorStopping:
        what = "has ended" if self.ended.is_set() else "is stopping"
        return SupervisorStopping(f"supervisor {self.path!r} {what} and starts nothing")

    def refuse_deadlock(self, *children: Child[Any]) -> None:
        """Raise WouldDeadlock if one of them itself, or one below it, asks."""
        actor = current_actor()
        while isinstance(actor, Child):
            if actor in children:
                raise WouldDeadlock(
                    f"a task of child {actor.id!r} would wait for its own end; "
                    "ctx.ref.stop() does not wait"
                )
            actor = actor.home.actor

    def knows(self, child: Child[Any]) -> bool:
        """Whether it is (still) one of ours."""
        return self.by_key.get(child if self.dynamic else child.id) is child

    def forget(self, child: Child[Any]) -> None:
        key = child if self.dynamic else child.id
        if self.by_key.get(key) is child:
            del self.by_key[key]
            if not self.dynamic:  # where there are no groups
                self.leave_group(child)
            # It will not come back: keep nothing that only a start needs, nor who
            # asked for it, which may be the last of a long line.
            child.args = ()
            child.context = None
            child.spawned_by = None

    def finish(self, child: Child[Any], error: SupervisorError | None) -> None:
        """The child stays down: end it, forget it where that is due, and tell
        whoever waits for its start of the error."""
        if (
            self.dynamic
            or child.spec.restart == "temporary"
            or (child.is_new and not isinstance(error, ChildIgnored))
        ):
            self.forget(child)
        child.is_new = False
        # The watcher hears of it, too, where there is no memory to wake others.
        try:
            child.end()
            if child.restarts is not None and child.restarts.retry is not None:
                child.restarts.retry.cancel()
                child.restarts.retry = None
        finally:
            if child.watcher is not None:
                watcher, child.watcher = child.watcher, None
                exit = child.incarnation.exit
                assert exit is not None
                # The boundary: a host's mistake must not end the supervisor.
                try:
                    watcher(child, exit)
                except Exception as fault:
                    text = "the watcher of %s failed"
                    log(logging.CRITICAL, text, child.id, error=fault)
        if child.start is not None:
            child.settle_start(error)
        if self.ended_early is not None:
            self.check_ended_early()

    def finish_stopped(self, child: Child[Any], why: str | None) -> None:
        """Finish a child that was stopped for ``why``, or with the supervisor."""
        if child.start is None:
            self.finish(child, None)
        elif why is None:
            self.finish(child, self.stopping_error())
        else:
            self.finish(child, StartFailed(child.id, why))

    # Starting

    @enable_ki_protection
    async def start(self, child: Child[Any]) -> None:
        """Start a new child, which is one of ours as soon as it begins; nothing is
        kept of it if that fails."""
        await self._start(child, 1)

    @enable_ki_protection
    async def start_again(self, child: Child[Any]) -> None:
        """Start a stopped child, which is kept if that fails."""
        child.is_new = False
        if child.restarts is not None:
            child.restarts.failures = 0
        await self._start(child, child.incarnation.number + 1)

    async def _start(self, child: Child[Any], number: int) -> None:
        is_new = child.is_new
        child.start = start = Start(awaited=True)
        try:
            if number > 1:
                child.begin_again()
            child.begin_next(self.nursery, number)
            await start.settled.wait()
        except BaseException as struck:
            # Nobody will ever hold its reference: end it, within its budget, as new
            # as it was, though it may have come up in this very tick.
            child.is_new = is_new
            if not self.knows(child):
                raise  # it has not begun, or ended
            # Not one that has come up, failed and been restarted in this tick.
            if child.incarnation.number < number:
                self.finish(child, None)
                raise
            if isinstance(struck, GeneratorExit):
                # The caller's frame was struck, and nothing can wait in this one.
                if child.is_live:
                    self.ask_to_stop(child, "supervisor", None, intent="terminate")
                raise
            with trio.CancelScope(shield=True):
                with contextlib.suppress(StillRunning):
                    await self.terminate(child, START_CANCELLED)
            if is_new and not child.is_live:
                self.forget(child)
            raise
        if start.error is not None:
            raise start.error

    def start_nowait(self, child: Child[Any], watcher: Watcher | None) -> None:
        child.watcher = watcher
        try:
            child.begin_next(self.nursery, 1)
        except BaseException:
            if self.knows(child):
                # Nobody will ever hold its reference.
                child.watcher = None
                self.ask_to_stop(child, "supervisor", None, intent="terminate")
            raise

    # Ending

    def on_child_exit(
        self, child: Child[Any], incarnation: Incarnation[Any], exit: Exit[object]
    ) -> None:
        """Called by the child in its last step, protected from interrupts."""
        # The next incarnation, if there is one, was not told to stop.
        intent, child.intent = child.intent, None
        if child.spec.wait_started:
            self.slow_starts.watched.pop(incarnation, None)
        if incarnation.stop_request is not None or isinstance(exit, Stopped):
            self.stragglers.watched.pop(incarnation, None)
            if not self.closing and _is_interrupted(incarnation, exit):
                # It leaves through the nursery, which cancels the block.
                self.closing = True
                self.hurry()
        if self.events.has_readers or isinstance(exit, Failed):
            # A permanent child is there to stay: what it returns is a surprise.
            asked = self.closing or intent is not None
            expected = asked or child.spec.restart != "permanent"
            # The boundary: no memory for the report ends neither the supervisor nor
            # the children beside this one.
            try:
                report_exit(
                    self.events, self.path, incarnation, exit, expected=expected
                )
            except Exception as fault:
                text = "the end of %s cannot be reported"
                log(logging.CRITICAL, text, child.id, error=fault)
        if child.spec.stays_down and child.start is None:
            # So it is for nearly all, and it is where the other ways lead as well.
            self.finish(child, None)
        elif self.closing:
            self.finish_stopped(child, None)
        elif intent == "terminate":
            self.finish_stopped(child, "it was stopped while it started")
        else:
            self.follow(child, incarnation, exit, intent)

    @enable_ki_protection
    async def terminate(self, child: Child[Any], reason: str | None = None) -> None:
        """Stop ``child`` for good and wait for its end.

        Raises:
            StillRunning: when its budget is over.
        """
        # Before the wait, or the group might start it again meanwhile.
        self.leave_group(child)
        if child.spec.significant and not child.is_awaited and child.state != "stopped":
            # On its way back it counts as active, and ending it as no end.
            self.ended_early = None
        if child.is_live:
            incarnation = child.incarnation
            self.ask_to_stop(child, "supervisor", reason, intent="terminate")
            with trio.move_on_after(child.patience):
                await incarnation.wait_ended()
            if incarnation.exit is None:
                raise StillRunning(
                    child.id, child.spec.budget, incarnation.format_stack()
                )
        else:
            self._terminate_waiting(child)
            await trio.lowlevel.checkpoint()

    def _terminate_waiting(self, child: Child[Any]) -> None:
        """Stop a child that has no incarnation at the moment."""
        if child.state == "restarting":
            self.finish(child, StartFailed(child.id, "it was terminated"))
        elif self.dynamic:
            self.forget(child)

    @enable_ki_protection
    async def terminate_together(
        self, children: Sequence[Child[Any]], reason: str | None
    ) -> list[ActorRef[Any]]:
        """Stop all, and return those that have outlived their budgets. For a
        dynamic supervisor, where no groups are restarted."""
        asked_at = trio.current_time()
        live: list[tuple[Child[Any], Incarnation[Any]]] = []
        # What ends was made long ago: a look at all there is would find little.
        with fewer_collections():
            for number, child in enumerate(children, 1):
                if number % STOPPED_AT_ONCE == 0:
                    await trio.lowlevel.cancel_shielded_checkpoint()
                incarnation = child.incarnation
                if incarnation.exit is None:
                    live.append((child, incarnation))
                    self.ask_to_stop(child, "supervisor", reason, intent="terminate")
                else:
                    self._terminate_waiting(child)
            await trio.lowlevel.checkpoint()
        for child, incarnation in live:
            if incarnation.exit is None:
                # Their budgets run side by side: each from the request on.
                with trio.CancelScope(deadline=asked_at + child.patience):
                    await incarnation.wait_ended()
        return [child for child, incarnation in live if incarnation.exit is None]

    def ask_to_stop(
        self,
        child: Child[Any],
        by: StoppedBy,
        reason: str | None,
        *,
        intent: Intent | None = None,
    ) -> None:
        """Ask a live child to stop, and report it if it does not."""
        # Who terminates a child has the last word on what follows its end.
        if child.intent != "terminate":
            child.intent = intent
        drain = 0.0 if self._interrupted else child.spec.drain
        patience = child.patience
        child.incarnation.stop(by, reason, drain=drain)
        self.stragglers.watch(self.nursery, child.incarnation, patience)

    def hurry(self) -> None:
        """Nobody drains from now on, here and below."""
        # A stack, so that depth costs no recursion.
        rest: list[Children] = [self]
        while rest:
            children = rest.pop()
            children._interrupted = True
            for child in children.by_key.values():
                if child.is_live:
                    rest.extend(child.below)
                    if child.incarnation.is_stopping:
                        child.incarnation.stop("supervisor")


def _is_interrupted(incarnation: Incarnation[Any], exit: Exit[object]) -> bool:
    """Whether a KeyboardInterrupt, or the like, ended it. A supervisor itself
    stops on behalf of what is outside only when it is closing."""
    request = incarnation.stop_request
    return (isinstance(exit, Stopped) and exit.by == "outer") or (
        request is not None and request.by == "outer"
    )
