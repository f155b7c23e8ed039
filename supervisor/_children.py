"""The children of one supervisor: the effects. `_restart` decides.

Each incarnation of a child is a task of the block's nursery, under a scope of
its own that is shielded from the outside, so that the children can be stopped
in order whatever ends the block. There is no central loop: an end is handled
synchronously in the last step of the child that ended, and only what takes
time (a backoff, a group restart, a stop) is a task.
"""

from __future__ import annotations

import contextlib
import logging
from _thread import get_ident
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from actors import ActorRef, Exit, Failed, Ignore, Stopped
from actors.env import Env, real_env
from actors.lowlevel import Incarnation, StoppedBy, current_actor, is_normal
from actors.text import cut
from actors.work import WorkFailed

from ._child import Child, ChildCounts, ChildInfo, Intent, Watcher
from ._errors import (
    AlreadyStarted,
    ChildIgnored,
    RestartIntensityExceeded,
    StartFailed,
    StillRunning,
    SupervisorError,
    SupervisorStopping,
    WouldDeadlock,
)
from ._events import (
    ChildExited,
    EventStream,
    GaveUp,
    RestartScheduled,
    SlowStart,
    Straggler,
    SupervisorEnded,
)
from ._group_restart import Failure, GroupRestart
from ._log import log
from ._restart import (
    Decision,
    GiveUp,
    History,
    Restart,
    ShutDown,
    StayDown,
    count_failures,
    decide,
    needs_restart,
    restart_scope,
)
from ._spec import ChildSpec, Flags
from ._stragglers import Stragglers

M = TypeVar("M")


# Children that are stopped together are asked in batches. While one batch ends
# the other tasks run, and what it leaves behind is small and young.
_STOPPED_AT_ONCE = 64


class Children:
    """Starts, restarts and stops the children of one supervisor.

    Its block in `_block` sets ``nursery`` before anything else, and calls
    `start_list`, `stop_all` and `closed` in this order.
    """

    nursery: trio.Nursery

    def __init__(
        self,
        flags: Flags,
        *,
        dynamic: bool,
        name: str | None,
        env: Env | None,
        events: EventStream | None,
    ) -> None:
        self.flags = flags
        self.dynamic = dynamic
        # The actor in whose task this supervisor's block runs, if any.
        self.actor = current_actor()
        self._child_above = self.actor if isinstance(self.actor, Child) else None
        above = None if self._child_above is None else self._child_above.home
        own_name = name or (self.actor.id if self.actor is not None else "supervisor")
        self.path: str = own_name if above is None else f"{above.path}/{own_name}"
        self._own_events = events is None and above is None
        self.events: EventStream = events or (
            EventStream() if above is None else above.events
        )
        self.env: Env = env or (real_env() if above is None else above.env)
        self.thread: int = get_ident()
        self.token: trio.lowlevel.TrioToken = trio.lowlevel.current_trio_token()
        self.body = trio.CancelScope()
        self.by_key: dict[object, Child[Any]] = {}
        """Every child in start order, by id or, in a dynamic one, by itself."""
        self.closing = False
        self.ended = trio.Event()
        self.exit: Failed | Stopped | None = None
        self.overflow: RestartIntensityExceeded | None = None
        # Whether an interrupt ends it, which leaves no time for draining.
        self._interrupted: bool = above is not None and above._interrupted
        self._history = History()
        self._last_ends: deque[tuple[str, str]] = deque(maxlen=5)
        self._opening: trio.CancelScope | None = None
        self._auto_shutdown_by: str | None = None
        self._group: GroupRestart | None = None
        # How many significant children of the list are still to be started.
        self._to_come = 0
        # The significant child that ended while no other one ran and some were
        # on their way: it was the last one if none of these comes up.
        self.ended_early: Child[Any] | None = None
        self._stragglers = Stragglers(self._report_straggler)
        self.slow_starts = Stragglers(self._report_slow_start)
        self._clock = trio.lowlevel.current_clock()

    # Asking

    def infos(self) -> list[ChildInfo]:
        return [ChildInfo(c.id, c, c.spec.kind, c.state) for c in self.by_key.values()]

    def counts(self) -> ChildCounts:
        children = self.by_key.values()
        supervisors = sum(c.spec.kind == "supervisor" for c in children)
        return ChildCounts(
            specs=len(children),
            active=sum(c.is_live and c.state != "restarting" for c in children),
            supervisors=supervisors,
            workers=len(children) - supervisors,
        )

    # Starting

    def check_open(self) -> None:
        if self.closing:
            raise self._stopping_error()

    def _stopping_error(self) -> SupervisorStopping:
        return SupervisorStopping(
            f"supervisor {self.path!r} is stopping and starts nothing"
        )

    def add(
        self, spec: ChildSpec[M], args: tuple[object, ...], id: str | None = None
    ) -> Child[M]:
        """Return a child that is one of ours as soon as it begins."""
        return Child(self, spec, args, id or spec.id)

    def knows(self, child: Child[Any]) -> bool:
        """Whether it is, still, one of ours."""
        return self.by_key.get(child if self.dynamic else child.id) is child

    def forget(self, child: Child[Any]) -> None:
        key = child if self.dynamic else child.id
        if self.by_key.get(key) is child:
            del self.by_key[key]
            if self._group is not None:
                self._group.leave(child)
            child.let_go()

    @enable_ki_protection
    async def start(self, child: Child[Any]) -> None:
        """Start a new child; nothing is kept of it if that fails."""
        await self._start(child, 1)

    @enable_ki_protection
    async def start_again(self, child: Child[Any]) -> None:
        """Start a stopped child, which is kept if that fails."""
        child.is_new = False
        child.failures = 0
        await self._start(child, child.incarnation.number + 1)

    async def _start(self, child: Child[Any], number: int) -> None:
        is_new = child.is_new
        child.awaited = True
        child.outcome = outcome = trio.Event()
        try:
            if number > 1:
                child.begin_again()
            child.begin_next(self.nursery, number)
            await outcome.wait()
        except BaseException as struck:
            # Nobody will ever hold its reference: end it, within its budget.
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
                    await self.terminate(child, "its start was cancelled")
            if is_new and not child.is_live:
                self.forget(child)
            raise
        if child.start_error is not None:
            error, child.start_error = child.start_error, None
            raise error

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

    # Ends

    def on_child_exit(
        self, child: Child[Any], incarnation: Incarnation[Any], exit: Exit[object]
    ) -> None:
        """Called by the child in its last step, protected from interrupts."""
        intent, child.intent = child.intent, None
        if child.spec.wait_started:
            self.slow_starts.forget(incarnation)
        if incarnation.stop_request is not None or isinstance(exit, Stopped):
            self._stragglers.forget(incarnation)
            if not self.closing and _is_interrupted(incarnation, exit):
                # It leaves through the nursery, which cancels the block.
                self.closing = True
                self.hurry()
        if self.events.has_readers or isinstance(exit, Failed):
            self._report_exit(child, incarnation, exit, intent)
        if self.closing:
            self._finish_stopped(child, None)
        elif intent == "terminate":
            self._finish_stopped(child, "it was stopped while it started")
        elif intent == "group" and child.spec.restart == "temporary":
            self._finish_stopped(child, "a sibling's restart ended it")
        elif intent == "group":
            child.await_restart()
        elif incarnation.was_started:
            self.follow_or_defer(child, incarnation, exit)
        elif child.awaited:
            self.finish(child, _start_error(child, exit))
        elif isinstance(exit, Stopped) and not needs_restart(child.spec, exit):
            # By its ref, while it was being restarted: as if it had run.
            self._leave_group(child)
            self.follow(child, exit)
        elif child.outcome is not None:
            # A group restart tried to start it, and decides what follows.
            child.await_restart()
            child.settle_start(_start_error(child, exit))
        elif _is_ignored(exit):
            self.finish(child, None)
        else:
            self.follow_or_defer(child, incarnation, Failed(_start_error(child, exit)))

    def _finish_stopped(self, child: Child[Any], why: str | None) -> None:
        """Finish a child that was stopped for ``why``, or with the supervisor."""
        if child.outcome is None:
            self.finish(child, None)
        elif why is None:
            self.finish(child, self._stopping_error())
        else:
            self.finish(child, StartFailed(child.id, why))

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
        child.end()
        if child.outcome is not None:
            child.settle_start(error)
        if self.ended_early is not None:
            self._ask_again()

    def follow_or_defer(
        self, child: Child[Any], incarnation: Incarnation[Any], exit: Exit[object]
    ) -> None:
        """Act on an end that nobody asked for, now or after the group restart
        that is under way."""
        group = self._group
        if group is None or group.is_waiting or not needs_restart(child.spec, exit):
            self.follow(child, exit)
        else:
            child.await_restart()
            members = self.group_of(child)
            group.defer(Failure(child, incarnation, exit, members))

    def follow_deferred(self, failure: Failure) -> None:
        """Act on an end that was put off, unless another incarnation has begun
        or somebody has ended the child since."""
        child = failure.child
        if (
            not self.closing
            and child.incarnation is failure.incarnation
            and child.state == "restarting"
        ):
            self.follow(child, failure.exit, failure.members)

    def follow(
        self,
        child: Child[Any],
        exit: Exit[object],
        members: dict[Child[Any], None] | None = None,
    ) -> None:
        """Decide what follows an end that nobody asked for, and begin it; with
        ``members``, the group that was decided for it already."""
        backoff = child.spec.backoff
        if backoff is not None:
            ran_for = self._clock.current_time() - child.began_at
            child.failures = count_failures(backoff, child.failures, ran_for)
        match self.decide(child, child.spec, exit):
            case Restart(delay):
                child.await_restart()
                if restart_scope(self.flags) == "child":
                    self._restart_after(child, delay)
                else:
                    self._restart_group(members or self.group_of(child), delay)
            case GiveUp():
                self.give_up(child, exit)
            case ShutDown():
                self.ended_early = None
                self.finish(child, None)
                self._shut_down(child)
            case StayDown():
                self.finish(child, None)
                if child.spec.significant and not any(
                    other.spec.significant and other.state == "running"
                    for other in self.by_key.values()
                ):
                    self.ended_early = child

    def decide(
        self, child: Child[Any], spec: ChildSpec[Any], exit: Exit[object]
    ) -> Decision:
        """Ask the pure function, and remember what it says."""
        jitter = spec.backoff is not None and spec.backoff.jitter > 0
        decision, self._history = decide(
            spec,
            self.flags,
            self._history,
            exit,
            self._clock.current_time(),
            failures=child.failures,
            chance=self.env.ids.uniform() if jitter else 0.0,
            last_significant=spec.significant and self._is_last_significant(child),
        )
        if isinstance(decision, Restart | GiveUp):
            self._last_ends.append((child.id, describe(exit)))
        if isinstance(decision, Restart):
            self.events.emit(RestartScheduled, self.path, child.id, decision.delay)
        return decision

    def _is_last_significant(self, child: Child[Any]) -> bool:
        """Whether no other one is active, nor still to be started from the list."""
        return not self._to_come and not any(
            other.spec.significant and other is not child and other.state != "stopped"
            for other in self.by_key.values()
        )

    def _ask_again(self) -> None:
        """See whether those that were on their way have all come to nothing."""
        early = self.ended_early
        if (
            early is not None
            and self._opening is None
            and not self.closing
            and early.state == "stopped"
            and self._is_last_significant(early)
        ):
            self._shut_down(early)

    def _shut_down(self, child: Child[Any]) -> None:
        """End the supervisor because of its significant children."""
        self._auto_shutdown_by = child.id
        self._end_by_itself()

    def give_up(self, child: Child[Any], exit: Exit[object]) -> None:
        """End the supervisor because of too many restarts."""
        self.ended_early = None
        self.finish(child, None)
        self.overflow = RestartIntensityExceeded(
            self.path, self.flags.intensity, self.flags.period, tuple(self._last_ends)
        )
        if isinstance(exit, Failed):
            self.overflow.__cause__ = exit.error
        self.events.emit(GaveUp, self.path, child.id, describe(exit))
        self._end_by_itself()

    def _end_by_itself(self) -> None:
        self.closing = True
        scope = self.body if self._opening is None else self._opening
        scope.cancel(reason=f"supervisor {self.path} ends by itself")

    # Restarting one child

    def _restart_after(self, child: Child[Any], delay: float) -> None:
        if delay == 0:
            child.begin_next(self.nursery, child.incarnation.number + 1)
        else:
            child.retry = trio.CancelScope()
            self.nursery.start_soon(self._wait_and_restart, child, delay, child.retry)

    @enable_ki_protection
    async def _wait_and_restart(
        self, child: Child[Any], delay: float, retry: trio.CancelScope
    ) -> None:
        with retry:
            await trio.sleep(delay)
            if child.retry is retry and not self.closing:
                child.retry = None
                child.begin_next(self.nursery, child.incarnation.number + 1)

    # Restarting a group

    def group_of(self, child: Child[Any]) -> dict[Child[Any], None]:
        """Return the children that are restarted with ``child``, in start order:
        not those that somebody is terminating."""
        members = dict.fromkeys(
            c for c in self.by_key.values() if c.intent != "terminate"
        )
        if restart_scope(self.flags) == "rest":
            for earlier in list(members):
                if earlier is child:
                    break
                del members[earlier]
        return members

    def _restart_group(self, members: dict[Child[Any], None], delay: float) -> None:
        if self._group is not None:
            self._group.widen(members, delay)
        else:
            self._group = GroupRestart(self, members, delay)
            self.nursery.start_soon(self._group.run)

    def group_restarted(self, deferred: Iterable[Failure]) -> None:
        """The group runs; ``deferred`` is what has come meanwhile."""
        self._group = None
        for failure in deferred:
            if self._group is None:
                self.follow_deferred(failure)
            else:
                self._group.defer(failure)

    def _leave_group(self, child: Child[Any]) -> None:
        if self._group is not None:
            self._group.leave(child)

    # Stopping

    @enable_ki_protection
    async def terminate(self, child: Child[Any], reason: str | None = None) -> None:
        """Stop ``child`` for good and wait for its end.

        Raises:
            StillRunning: when its budget is over.
        """
        self._leave_group(child)
        if child.spec.significant and not child.awaited and child.state != "stopped":
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
            self.terminate_waiting(child)
            await trio.lowlevel.checkpoint()

    def terminate_waiting(self, child: Child[Any]) -> None:
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
        for number, child in enumerate(children, 1):
            if number % _STOPPED_AT_ONCE == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()
            incarnation = child.incarnation
            if incarnation.exit is None:
                live.append((child, incarnation))
                self.ask_to_stop(child, "supervisor", reason, intent="terminate")
            else:
                self.terminate_waiting(child)
        await trio.lowlevel.checkpoint()
        for child, incarnation in live:
            if incarnation.exit is None:
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
        if child.intent != "terminate":
            child.intent = intent
        drain = 0.0 if self._interrupted else child.spec.drain
        child.incarnation.stop(by, reason, drain=drain)
        self._stragglers.watch(self.nursery, child.incarnation, child.patience)

    async def stop_all(self, by: StoppedBy, reason: str | None) -> None:
        """Stop every child in the order that is this supervisor's. Begin again
        if an interrupt comes in between."""
        self.closing = True
        if self._group is not None:
            self._group.cancel()
        children = list(reversed(self.by_key.values()))
        for number, child in enumerate(children, 1):
            if number % _STOPPED_AT_ONCE == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()
            if child.incarnation.exit is not None:
                if child.state != "stopped":
                    self.finish(child, self._stopping_error())
            elif self.dynamic:
                self.ask_to_stop(child, by, reason)
        for child in children:
            incarnation = child.incarnation
            if incarnation.exit is None:
                if not self.dynamic:
                    self.ask_to_stop(child, by, reason)
                await incarnation.wait_ended()

    def stop_from_a_task(self, by: StoppedBy, reason: str | None) -> None:
        """Let a task of the nursery's own stop every child: for an owner that
        can only wait."""
        self.closing = True

        @enable_ki_protection
        async def stop() -> None:
            try:
                with trio.CancelScope(shield=True):
                    await self.stop_all(by, reason)
            finally:
                self.all_stopped()

        self.nursery.start_soon(stop)

    def hurry(self) -> None:
        """Nobody drains from now on, here and below."""
        rest: list[Children] = [self]
        while rest:
            children = rest.pop()
            children._interrupted = True
            for child in children.by_key.values():
                if child.is_live:
                    rest.extend(child.below)
                    if child.incarnation.is_stopping:
                        child.incarnation.stop("supervisor")

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

    # Reporting

    def _report_exit(
        self,
        child: Child[Any],
        incarnation: Incarnation[Any],
        exit: Exit[object],
        intent: Intent | None,
    ) -> None:
        failed = isinstance(exit, Failed) and (
            incarnation.was_started or not _is_ignored(exit)
        )
        if failed:
            assert isinstance(exit, Failed)
            self._log_failure(child, exit.error)
        if not self.events.has_readers:
            return
        ignored = isinstance(exit, Failed) and not failed
        unasked = not self.closing and intent is None
        self.events.emit(
            ChildExited,
            self.path,
            child.id,
            incarnation.number,
            type(exit).__name__.lower(),
            describe(exit),
            not ignored
            and (
                not is_normal(exit) or (child.spec.restart == "permanent" and unasked)
            ),
        )

    def _log_failure(self, child: Child[Any], error: Exception) -> None:
        result = _bad_end(error)
        if result is None:
            log(logging.ERROR, "%s/%s failed", self.path, child.id, error=error)
        else:
            # A result, such as an exit code, and nobody's mistake.
            what = f"{result} ({result.subject})" if result.subject else str(result)
            log(logging.INFO, "%s/%s failed: %s", self.path, child.id, what)

    def _report_straggler(self, incarnation: Incarnation[Any], waited: float) -> None:
        stack = incarnation.format_stack()
        self.events.emit(Straggler, self.path, incarnation.id, waited, stack)
        log(
            logging.WARNING,
            "%s/%s has not ended %.1f s after it was told to stop:",
            self.path,
            incarnation.id,
            waited,
            stack=stack,
        )

    def _report_slow_start(self, incarnation: Incarnation[Any], waited: float) -> None:
        stack = incarnation.format_stack()
        self.events.emit(SlowStart, self.path, incarnation.id, waited, stack)
        log(
            logging.WARNING,
            "%s/%s has not called ctx.started() %.1f s after its start, which "
            "wait_started=True waits for:",
            self.path,
            incarnation.id,
            waited,
            stack=stack,
        )

    # For the block

    async def start_list(self, specs: Sequence[ChildSpec[Any]]) -> None:
        """Start the children of the list one after the other.

        Raises:
            StartFailed, AlreadyStarted: of the first that fails.
            RestartIntensityExceeded: if that happened already.
        """
        if self._child_above is not None:
            self._child_above.below += (self,)
        self._to_come = sum(spec.significant for spec in specs)
        with trio.CancelScope() as self._opening:
            for spec in specs:
                if self.closing:
                    break
                self._to_come -= spec.significant
                if spec.id in self.by_key:
                    raise AlreadyStarted(
                        f"child {spec.id!r} was started by a sibling before its turn came"
                    )
                with contextlib.suppress(ChildIgnored):
                    await self.start(self.add(spec, spec.args))
        self._opening = None
        if self.overflow is not None:
            raise self.overflow
        # Which one is the last had to wait until the list was complete.
        self._ask_again()
        if self.closing:
            self.body.cancel(reason=f"supervisor {self.path} ended while it opened")

    def stopped_by(self, error: BaseException | None) -> tuple[StoppedBy, str | None]:
        """Return on whose behalf the children are stopped if the block ends
        with ``error``."""
        if isinstance(error, trio.Cancelled) and not self.closing:
            request = (
                None if self.actor is None else self.actor.incarnation.stop_request
            )
            return ("outer", None) if request is None else (request.by, request.reason)
        return "supervisor", None

    def all_stopped(self) -> None:
        """No child is left, and no task but our own."""
        self._stragglers.close()
        self.slow_starts.close()
        # While it waits for a task the nursery can be left again after an error, and
        # keeps what has come to it.
        self.nursery.start_soon(trio.lowlevel.cancel_shielded_checkpoint)
        self.nursery.cancel_scope.cancel()

    def closed(self) -> None:
        """The nursery has ended. Once more if an error has struck in here."""
        if self.exit is None:
            exit = self._find_exit()
            self.events.emit(
                SupervisorEnded, self.path, type(exit).__name__.lower(), describe(exit)
            )
            self.exit = exit
        self.ended.set()
        if self._child_above is not None:
            self._child_above.below = tuple(
                c for c in self._child_above.below if c is not self
            )
        if self._own_events:
            self.events.close()

    def _find_exit(self) -> Failed | Stopped:
        if self.overflow is not None:
            return Failed(self.overflow)
        if self._auto_shutdown_by is not None:
            return Stopped("auto_shutdown", self._auto_shutdown_by)
        return Stopped("owner")


def _is_interrupted(incarnation: Incarnation[Any], exit: Exit[object]) -> bool:
    """Whether a KeyboardInterrupt, or the like, ended it. A supervisor itself
    stops on behalf of what is outside only when it is closing."""
    request = incarnation.stop_request
    return (isinstance(exit, Stopped) and exit.by == "outer") or (
        request is not None and request.by == "outer"
    )


def _bad_end(error: BaseException | None) -> WorkFailed | None:
    """Return the bad end of a work that ``error`` is, or that it was too often; None
    if somebody has made a mistake."""
    if isinstance(error, RestartIntensityExceeded):
        error = error.__cause__
    if isinstance(error, WorkFailed) and error.__cause__ is None:
        return error
    return None


def _is_ignored(exit: Exit[object]) -> bool:
    return isinstance(exit, Failed) and isinstance(exit.error, Ignore)


def _start_error(child: Child[Any], exit: Exit[object]) -> SupervisorError:
    if _is_ignored(exit):
        return ChildIgnored(f"child {child.id!r} declined to start")
    if isinstance(exit, Failed):
        error = StartFailed(child.id, describe(exit))
        error.__cause__ = exit.error
        return error
    if isinstance(exit, Stopped):
        return StartFailed(child.id, f"it was stopped ({exit.by}) before ctx.started()")
    return StartFailed(child.id, "it returned before ctx.started()")


def describe(exit: Exit[object]) -> str:
    """Return a line of text about ``exit``."""
    if isinstance(exit, Stopped):
        return exit.by if exit.reason is None else f"{exit.by}: {exit.reason}"
    subject = exit.error if isinstance(exit, Failed) else exit.value
    try:
        text = "".join((repr(subject), ""))  # a real str, whatever it returns
    # The boundary: whatever a stranger's __repr__ does, an end is recorded. Our
    # callers are protected from interrupts, so none that comes is anybody's wish.
    except BaseException:  # noqa: ASYNC103
        text = f"<{type(subject).__name__} whose repr() fails>"
    return cut(text, 1_000)
