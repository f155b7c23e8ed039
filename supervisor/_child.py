"""A child, and what its supervisor knows of it."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import attrs
import trio

from actors import ActorRef, Exit, Mailbox
from actors.lowlevel import ActorState, Cell, Incarnation

from ._errors import SupervisorError
from ._events import ChildStarted, StopRequested
from ._log import log
from ._spec import ChildSpec, Kind
from ._stragglers import REPORT_EVERY

if TYPE_CHECKING:
    from ._children import Children

M = TypeVar("M")

Intent: TypeAlias = Literal["terminate", "group"]

Watcher: TypeAlias = Callable[[ActorRef[Any], Exit[object]], None]

# A child that only has to unwind needs a few steps for that, even without a
# budget; whoever is not through by then is stuck.
_SHORTEST_BUDGET = 0.1


@attrs.frozen
class ChildInfo:
    """One line of `which_children`."""

    id: str
    ref: ActorRef[Any]
    kind: Kind
    state: ActorState


@attrs.frozen
class ChildCounts:
    """How many children there are."""

    specs: int
    """Children known, running or not."""
    active: int
    """Children with a running incarnation."""
    supervisors: int
    """Children of kind ``supervisor``, running or not."""
    workers: int
    """Children of kind ``worker``, running or not."""


class Child(Cell[M]):
    """A child and its supervisor's notes on it."""

    __slots__ = (
        "args",
        "awaited",
        "began_at",
        "below",
        "context",
        "failures",
        "home",
        "intent",
        "is_new",
        "outcome",
        "retry",
        "spec",
        "start_error",
        "watcher",
    )

    def __init__(
        self, home: Children, spec: ChildSpec[M], args: tuple[object, ...], id: str
    ) -> None:
        super().__init__(
            id,
            mailbox=Mailbox(spec.mailbox),
            drain=spec.drain,
            shutdown=spec.budget,
            thread=home.thread,
            token=home.token,
        )
        self.home = home
        self.spec = spec
        self.args = args
        # Of whoever asked for it: a new incarnation must not inherit what the
        # one before, or the sibling that failed, has put there.
        self.context = (
            None if spec.restart == "temporary" else contextvars.copy_context()
        )
        self.failures = 0
        self.began_at = 0.0
        # Why the supervisor stopped it, which says what follows its end.
        self.intent: Intent | None = None
        # Whether nothing is kept of it if its start fails.
        self.is_new = True
        # Set when a start that somebody waits for has succeeded or failed.
        self.outcome: trio.Event | None = None
        # Whether that is a caller of the supervisor, not a group restart.
        self.awaited = False
        self.start_error: SupervisorError | None = None
        # The wait before a restart.
        self.retry: trio.CancelScope | None = None
        # Told of the final end.
        self.watcher: Watcher | None = None
        # The supervisors that are open in its task.
        self.below: tuple[Children, ...] = ()

    @property
    def is_live(self) -> bool:
        """Whether an incarnation has begun and not ended."""
        return self.incarnation.exit is None

    @property
    def patience(self) -> float:
        """How long it may take to end once it was asked to."""
        return self.spec.drain + max(self.spec.budget, _SHORTEST_BUDGET)

    def begin_next(self, nursery: trio.Nursery, number: int) -> None:
        """Begin the next incarnation."""
        spec = self.spec
        if spec.backoff is not None:
            self.began_at = trio.current_time()
        begin = partial(
            self.begin,
            nursery,
            spec.fn,
            self.args,
            number=number,
            acknowledge=not spec.wait_started,
        )
        home = self.home
        key = self if home.dynamic else self.id
        if number == 1:
            home.by_key[key] = self
        try:
            if self.context is None:
                begin()
            else:
                self.context.run(begin)
        except BaseException:
            if number == 1:
                # It has no incarnation that could end.
                del home.by_key[key]
            raise
        if spec.wait_started:
            home.slow_starts.watch(nursery, self.incarnation, REPORT_EVERY)

    def let_go(self) -> None:
        """It will not come back: keep nothing that only a start needs, nor who
        asked for it, which may be the last of a long line."""
        self.args = ()
        self.context = None
        self.spawned_by = None

    def settle_start(self, error: SupervisorError | None) -> None:
        """Tell whoever waits for this start."""
        if self.outcome is not None:
            self.start_error = error
            self.outcome.set()
            self.outcome = None
            self.awaited = False

    # What the incarnation tells

    def on_started(self, incarnation: Incarnation[M]) -> None:
        self.is_new = False
        home = self.home
        if self.spec.significant:
            home.ended_early = None
        home.events.emit(ChildStarted, home.path, self.id, incarnation.number)
        if self.spec.wait_started:
            home.slow_starts.forget(incarnation)
        if self.outcome is not None:
            self.settle_start(None)

    def on_stopping(self) -> None:
        request = self.incarnation.stop_request
        assert request is not None
        home = self.home
        if self.spec.wait_started:
            # From now on its end is waited for, and no more its start.
            home.slow_starts.forget(self.incarnation)
        home.events.emit(StopRequested, home.path, self.id, request.by, request.reason)

    def on_exit(self, incarnation: Incarnation[M], exit: Exit[object]) -> None:
        self.home.on_child_exit(self, incarnation, exit)

    def end(self) -> None:
        super().end()
        if self.retry is not None:
            self.retry.cancel()
            self.retry = None
        if self.watcher is not None:
            watcher, self.watcher = self.watcher, None
            exit = self.incarnation.exit
            assert exit is not None
            # The boundary: a host's mistake must not end the supervisor.
            try:
                watcher(self, exit)
            except Exception as error:
                log(logging.CRITICAL, "the watcher of %s failed", self.id, error=error)
