"""What the simulator needs of trio and trio does not offer: the only file with private
names of trio.

A run of trio asks its source of chance to shuffle the tasks that can run, and then
runs them from the end of that very list. `Scheduler` stands in the place of that
source. It leaves one task in the list, and after each step it puts the next one there.
So it decides about every single step, and trio's own loop turns once for many steps.

`require_trio` looks for each name that is used here, and tries them in a small run.
What has changed is told by one error.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import ctypes
import inspect
import logging
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from itertools import pairwise
from math import inf
from types import FrameType
from typing import Any, NoReturn

import outcome
import trio
from trio.lowlevel import Task

from .._errors import SimulationError, UnsupportedTrio
from .sites import frames

try:
    from trio._core import _run as _loop
    from trio._core._ki import _CODE_KI_PROTECTION_STATUS_WMAP as _PROTECTED
    from trio._core._ki import KIManager as _KIManager
    from trio._core._mock_clock import MockClock as _MockClock
    from trio._core._thread_cache import ThreadCache as _ThreadCache
    from trio._threads import Run as _Asked
except ImportError as error:
    raise UnsupportedTrio(str(error)) from error

_run: Any = _loop
_log = logging.getLogger(__name__)

STRETCH = 32
"""After so many steps trio looks for input, signals and deadlines."""

CLOSES = 100
"""So often a task is closed that awaits again and again."""

OUTSIDE = 0.02
"""Real seconds that a wait for the outside is given before virtual time goes on."""

STILL = 5.0
"""Real seconds for which time stands still where a thread or a process works and nothing
comes from it. Then it goes on as real time does: they may be waiting for the run."""


class Abandoned(BaseException):
    """Breaks off a run that can be ended in no other way."""


class Scheduler:
    """Decides which task takes the next step, and what time it is when none can.

    A subclass says so by `choose` and `idle`, and hears of the rest. What one of them
    raises ends the run and is kept in ``broken``: trio itself would swallow it, and go
    on without them.
    """

    def __init__(self) -> None:
        clock: Any = _MockClock(autojump_threshold=0)
        self.clock = clock
        self.clock._autojump = self._on_idle
        self.clock.current_time = _reader(self.clock)
        self.abandoned = False
        """Set it to break the run off before its next step."""
        self.broken: BaseException | None = None
        """What a method of ours has raised. The run is worth nothing then."""
        self.crashed: trio.TrioInternalError | None = None
        """What trio itself would have ended with: see `crash`."""
        self.jobs: list[None] = []
        """One for each job that a thread of trio's does for the run."""
        self.jobs_begun = 0
        """How many of them there have been."""
        self.beside: list[trio.abc.Instrument] = []
        """Who else watches the run; they change nothing in it."""
        self.pressed = False
        """There was a real Ctrl+C."""
        self._pressing: Any = None  # What hears of it.
        self._jobs_ended = 0
        self._others = {*threading.enumerate()}  # Threads that are none of the run's.
        self.waiting: list[Task] = []
        """Who can run, but for one that trio has."""
        self.join: Callable[[list[Task]], object] = self.waiting.extend
        """Puts tasks that can run among them."""
        self._batch: list[Task] = []
        self._left = 0
        self._runner: Any = None
        self._queue: Any = None
        self._next_deadline: Any = None
        self._polled = False
        self._came = False  # Somebody has run since the last look at what is idle.
        self._jumped = False  # Because time went on then.
        self._stood = 0.0
        self._awaited: float | None = None

    def choose(self, waiting: list[Task]) -> int:
        """Return the place of the task that takes the next step."""
        raise NotImplementedError

    def spawned(self, task: Task) -> None:
        """Hear of a new task."""

    def exited(self, task: Task) -> None:
        """Hear that a task has ended."""

    def woke(self) -> None:
        """Hear that trio has looked at the time, and somebody can run."""

    def begins(self, task: Task) -> None:
        """Hear that a task is about to take a step."""

    def stepped(self, task: Task) -> None:
        """Hear that a task has taken a step, and has ended or is suspended."""

    def idle(self, now: float, deadline: float) -> float | None:
        """Return the time to go to, when nothing can run; None to stay.

        ``deadline`` is the next one of the run, or infinite.
        """
        raise NotImplementedError

    # ---- In the place of trio's source of chance -----------------------------------

    def shuffle(self, batch: list[Task]) -> None:
        """Take the tasks that can run, and leave the one that is chosen.

        trio runs ``batch`` from its end until it is empty, so what is appended to it
        later runs too.
        """
        if self._runner is None:
            self._runner = _run.GLOBAL_RUN_CONTEXT.runner
            self._queue = self._runner.runq
            self._next_deadline = self._runner.deadlines.next_deadline
        if self.abandoned:
            raise Abandoned
        self._batch = batch
        self._left = STRETCH
        self.join(batch)
        batch.clear()
        if self.waiting:
            self._polled, self._came = False, True
            try:
                self.woke()
                self._take()
            except BaseException as error:  # noqa: ASYNC103 (it is kept)
                self._fail(error)

    def _take(self) -> None:
        waiting = self.waiting
        task = waiting.pop(self.choose(waiting) if len(waiting) > 1 else 0)
        self.begins(task)
        self._batch.append(task)

    def after_task_step(self, task: Task) -> None:
        waiting, queue = self.waiting, self._queue
        try:
            self.stepped(task)
            if queue:
                self.join(queue)
                queue.clear()
            if not waiting:
                return
            self._left -= 1
            # If a deadline was set that has passed, trio looks at it before the next
            # step: `checkpoint` relies on that.
            is_due = self._next_deadline() <= self.clock._virtual_base
            if self._left > 0 and not (self.abandoned or is_due):
                self._take()
                return
        except BaseException as error:  # noqa: ASYNC103 (it is kept)
            self._fail(error)
        if waiting:  # One is enough: trio looks what is new, and comes back at once.
            queue.append(waiting.pop())

    def task_spawned(self, task: Task) -> None:
        try:
            self.spawned(task)
        except BaseException as error:  # noqa: ASYNC103 (it is kept)
            self._fail(error)

    def task_exited(self, task: Task) -> None:
        try:
            self.exited(task)
        except BaseException as error:  # noqa: ASYNC103 (it is kept)
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.broken = self.broken or error
        self.abandoned = True

    def crash(self, error: BaseException) -> None:
        """Break the run off as trio would: with an internal error, since what it calls
        and relies on has raised one."""
        if self.crashed is None:
            text = "internal error in Trio - please file a bug!"
            self.crashed = trio.TrioInternalError(text)
            self.crashed.__cause__ = error
        self.abandoned = True

    def drop(self) -> None:
        """Close and forget all tasks, after a run that was broken off."""
        if self._runner is None:
            return
        tasks: list[Any] = list(self._runner.tasks)
        for task in tasks:
            for nursery in task.child_nurseries:
                nursery._children.clear()  # Or it would complain of them.
        context = _run.GLOBAL_RUN_CONTEXT
        # Where there is no run every call of trio fails at once, and who goes on after
        # any error would go round for ever.
        context.runner, context.task = self._runner, None
        try:
            for context.task in tasks:
                _close(context.task.coro)
        finally:
            del context.runner, context.task
        self.waiting, self._batch = [], []
        self._runner = self._queue = self._next_deadline = None

    def release(self) -> None:
        """Leave trio's objects of a run that is over. They hold each other, and what
        they hold goes only when the collector comes."""
        self._runner = self._queue = self._next_deadline = None
        own: Any = self.clock.__dict__
        own.pop("_autojump", None)
        own.pop("current_time", None)

    # ---- Time ----------------------------------------------------------------------

    def _on_idle(self) -> None:
        runner = self._runner
        deadline: float = runner.deadlines.next_deadline()
        if self._came:
            self._awaited = None
            if not self._jumped:
                self._stood = 0.0
        self._came = self._jumped = False
        if not self.jobs and self.jobs_begun > self._jobs_ended:
            # The last one may have ended after trio has looked for what they deliver.
            self._jobs_ended = self.jobs_begun
            return
        waits = _waits_outside(runner)
        if (
            (self.jobs and len(self.jobs) > _asking(runner))
            or (waits and _waits_for_process(runner))
            or (deadline == inf and self._has_threads())
        ) and self._stands_still(deadline):
            return
        if waits and not self._polled:
            # What is on its way through a socket gets a little time.
            self._polled = True
            runner.clock_autojump_threshold = OUTSIDE
            return
        runner.clock_autojump_threshold = 0
        now = self.clock.current_time()
        try:
            at = self.idle(now, deadline)
        except BaseException as error:  # noqa: ASYNC103 (it is kept)
            self._fail(error)
            return  # noqa: ASYNC104
        if at is not None and at > now:
            self.go_to(at)
            self._jumped = True

    def _stands_still(self, deadline: float) -> bool:
        """Let time stand still for a moment, or, after `STILL`, until as much real time
        has gone by as there is to the deadline; return False then."""
        runner = self._runner
        if self._stood < STILL or deadline == inf:
            self._stood += OUTSIDE
            runner.clock_autojump_threshold = OUTSIDE
            return True
        if self._awaited == deadline:
            return False
        self._awaited = deadline
        runner.clock_autojump_threshold = deadline - self.clock.current_time()
        return True

    def _has_threads(self) -> bool:
        """Tell whether there are threads that the run has started, besides trio's."""
        return any(
            not it.name.startswith("Trio thread")
            for it in threading.enumerate()
            if it not in self._others
        )

    def go_to(self, time: float) -> None:
        """Set the clock. A jump by a difference would be rounded."""
        self.clock._virtual_base = time

    # ---- Ctrl+C --------------------------------------------------------------------

    def hear_ctrl_c(self) -> None:
        """Hear of each real Ctrl+C before trio does; call it in the run.

        By what comes out of a run nobody can tell it from one that was put in.
        """
        told: Any = signal.getsignal(signal.SIGINT)
        is_trios = getattr(told, "__module__", "") == _KIManager.__module__
        if not is_trios or threading.current_thread() is not threading.main_thread():
            return

        def pressed(number: int, frame: FrameType | None) -> None:
            self.pressed = True
            told(number, frame)

        self._pressing = pressed
        signal.signal(signal.SIGINT, pressed)

    def hear_no_more(self) -> None:
        """Let Ctrl+C be as it was before the run: trio has left that to us."""
        if self._pressing and signal.getsignal(signal.SIGINT) is self._pressing:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._pressing = None

    # ---- Tasks ---------------------------------------------------------------------

    def is_system(self, task: Task) -> bool:
        """Tell whether trio has started a task for itself, or somebody a system task."""
        parent = task.parent_nursery
        if parent is None:
            return True
        runner = _run.GLOBAL_RUN_CONTEXT.runner
        # The main task is spawned before anything else below the first one.
        return parent.parent_task is runner.init_task and runner.main_task is not None


def _reader(clock: Any) -> Callable[[], float]:
    """Return what tells the time of a clock that stands still, as ours does, without a
    look at the real one; trio asks for it at every turn."""
    real: Callable[[], float] = clock.current_time

    def current_time() -> float:
        now: float = clock._virtual_base if clock._rate == 0 else real()
        return now

    return current_time


def can_throw(task: Task) -> bool:
    """Tell whether a task is blocked in something that can be given up."""
    inside: Any = task
    return inside._abort_func is not None and inside._next_send_fn is None


def throw(task: Task, error: BaseException) -> bool:
    """Let what a blocked task waits for raise an error; ask `can_throw` before. Return
    whether it will; what it waits for may not let it go.

    It goes the way of a cancel: an operation that has completed is never turned into
    one that has failed, and so a task that can run is to be left alone.
    """

    def raise_it() -> NoReturn:
        raise error

    inside: Any = task
    inside._attempt_abort(raise_it)
    return inside._next_send_fn is not None


_CHECKPOINT = (
    trio.lowlevel.checkpoint.__code__,
    trio.lowlevel.cancel_shielded_checkpoint.__code__,
)


def can_interrupt(task: Task) -> bool:
    """Tell whether a Ctrl+C may come out of the checkpoint in which a task is suspended.

    trio lets one out of a checkpoint of the main task. In any other task it raises one
    wherever that is not protected, and so behind its checkpoint too. A checkpoint
    that trio does not show, as behind `anext` with a default, is none.
    """
    inside: Any = task
    if inside._abort_func is not None or not isinstance(
        inside._next_send, outcome.Value
    ):
        return False
    codes = [frame.f_code for frame, _ in frames(task)]
    # Only in `checkpoint` does a cancel come out of it. The other one by itself stands
    # behind an operation that is done.
    if _CHECKPOINT not in pairwise(codes):
        return False
    if task is _run.GLOBAL_RUN_CONTEXT.runner.main_task:
        return True
    for code in reversed(codes):
        try:
            return not _PROTECTED[code]
        except KeyError:
            pass
    return not inside._ki_protected


def interrupt(task: Task, error: KeyboardInterrupt) -> None:
    """Let an error come out of a checkpoint; ask `can_interrupt` before."""
    inside: Any = task
    inside._next_send = outcome.Error(error)


def new_cancelled() -> trio.Cancelled:
    """Return a Cancelled of which no scope is the cause, so that no scope catches it."""
    return trio.Cancelled._create()


def is_shielded(task: Task, scope: trio.CancelScope) -> bool:
    """Tell whether a shield stands between a task and a scope that it is in."""
    status: Any = task._cancel_status
    while status is not None and status._scope is not scope:
        if status._scope.shield:
            return True
        status = status._parent
    return False


def has_waited(task: Task) -> bool:
    """Tell whether a task has ever been suspended."""
    inside: Any = task
    return bool(inside._schedule_points)


def is_told_to_end(task: Task, scope: trio.CancelScope) -> bool:
    """Tell whether a task is about to be sent a Cancelled that goes up to a scope: where
    that is cancelled, one that is inside of it lets the Cancelled through, though it may
    be the cause; a shield does not."""
    inside: Any = task
    sent = inside._next_send
    if not (isinstance(sent, outcome.Error) and isinstance(sent.error, trio.Cancelled)):
        return False
    status = inside._cancel_status
    while status is not None and status._scope is not scope:
        if status._scope.shield:
            return False
        status = status._parent
    return status is not None


def is_cancelled(scope: trio.CancelScope) -> bool:
    """Tell whether a scope is entered and cancelled, by itself or from outside."""
    status = scope._cancel_status
    return status is not None and status.effectively_cancelled


def shield_that_expires(task: Task, scope: trio.CancelScope) -> trio.CancelScope | None:
    """Return the innermost shield under which a task waits inside of a scope that is
    cancelled, if its deadline may end it; None if none keeps the cancel from it."""
    if not scope.cancel_called:
        return None
    status: Any = task._cancel_status
    while status is not None and status._scope is not scope:
        inner: trio.CancelScope = status._scope
        if inner.cancel_called:
            return None
        if inner.shield:
            return inner if inner.deadline < inf else None
        status = status._parent
    return None


def lift_shields(tasks: Iterable[Task]) -> None:
    """Let a cancel from outside reach all of these tasks."""
    for task in tasks:
        status: Any = task._cancel_status
        while status is not None:
            if status._scope.shield:
                status._scope.shield = False
            status = status._parent


def is_entered(scope: trio.CancelScope) -> bool:
    """Tell whether a task is inside of a scope."""
    return scope._cancel_status is not None


def is_told(task: Task) -> bool:
    """Tell whether a task is cancelled and no shield stands before it."""
    status: Any = task._cancel_status  # None of trio's first task, and after the end.
    return status is not None and bool(status.effectively_cancelled)


def tasks_in(scope: trio.CancelScope) -> list[tuple[Task, bool]]:
    """Return all tasks inside of a scope that is entered, also behind shields; each with
    whether it is inside as a whole, or itself has entered the scope, or one in it."""
    found: list[tuple[Task, bool]] = []
    inside: list[Any] = [scope._cancel_status]
    for status in inside:
        inside.extend(status._children)
    if len(inside) == 1 and any(map(_sleeps, inside[0]._tasks)):
        return []  # So `trio.sleep` ends, by a scope of its own.
    statuses = {*map(id, inside)}
    for status in inside:
        for task in status._tasks:
            nursery = task.parent_nursery
            above = None if nursery is None else nursery.cancel_scope._cancel_status
            found.append((task, id(above) in statuses))
    return found


def _sleeps(task: Task) -> bool:
    code = trio.sleep_until.__code__
    return any(frame.f_code is code for frame, _ in frames(task))


_hearing: dict[Any, list[Callable[[trio.CancelScope], object]]] = {}  # {runner: ...}
_changing = threading.Lock()


class _End(trio.abc.Instrument):
    """Hears of the end of a run."""

    __slots__ = ("after_run",)

    def __init__(self, after_run: Callable[[], object]) -> None:
        self.after_run = after_run  # type: ignore[assignment,method-assign]


def on_cancel(
    hear: Callable[[trio.CancelScope], object], ended: Callable[[], object]
) -> Callable[[], None]:
    """Call a function with each scope of the current run that is cancelled while it is
    entered, but for those that are cancelled from outside already; and another one when
    the run is over, whichever instruments were removed before.

    Returns what ends the first. It is to be called at last by ``ended``.
    """
    runner = _run.GLOBAL_RUN_CONTEXT.runner
    with _changing:
        if not _hearing:
            _run.CancelScope._cancel = _heard
        _hearing.setdefault(runner, []).append(hear)
    trio.lowlevel.add_instrument(_End(ended))

    def stop() -> None:
        with _changing:
            _hearing[runner].remove(hear)
            if not _hearing[runner]:
                del _hearing[runner]
            if not _hearing:
                _run.CancelScope._cancel = _real_cancel

    return stop


def is_instrument(instrument: trio.abc.Instrument) -> bool:
    """Tell whether the current run has an instrument, and nobody has removed it."""
    return instrument in _run.GLOBAL_RUN_CONTEXT.runner.instruments["_all"]


_real_cancel: Any = getattr(_run.CancelScope, "_cancel", None)


@trio.lowlevel.enable_ki_protection
def _heard(scope: Any, *reason: Any) -> None:
    status = scope._cancel_status
    new = not (scope._cancel_called or status is None or status.effectively_cancelled)
    _real_cancel(scope, *reason)
    if new:
        runner = getattr(_run.GLOBAL_RUN_CONTEXT, "runner", None)
        for hear in _hearing.get(runner, ()):
            try:
                hear(scope)
            except Exception:
                _log.exception("a cancel could not be traced")


def _close(coro: Any) -> None:
    """Close what a task runs. What will not be closed is kept suspended for ever: the
    interpreter would try it again, and outside of a run."""
    for _ in range(CLOSES):
        try:
            coro.close()
        except BaseException:  # noqa: ASYNC103 (it awaits something, or fails)
            if inspect.getcoroutinestate(coro) == inspect.CORO_CLOSED:
                return  # noqa: ASYNC104
        else:
            return
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(coro))


def _asking(runner: Any) -> int:
    """Return how many threads wait until a task has run something for them."""
    asking: Any = _Asked
    asked = {asking.run.__code__, asking.run_system.__code__}
    tasks: Iterable[Task] = runner.tasks
    return sum(
        any(frame.f_code in asked for frame, _ in frames(task)) for task in tasks
    )


def _waits_outside(runner: Any) -> bool:
    found = runner.io_manager.statistics()
    read = getattr(found, "tasks_waiting_read", 1)
    # One is trio's own, for calls from other threads.
    return bool(read > 1 or getattr(found, "tasks_waiting_write", 0))


_PROCESS = {trio.Process.wait.__code__}

if hasattr(trio.lowlevel, "FdStream"):
    _PROCESS.add(trio.lowlevel.FdStream.receive_some.__code__)
    _PROCESS.add(trio.lowlevel.FdStream.send_all.__code__)


def _waits_for_process(runner: Any) -> bool:
    """Tell whether a task waits for the end, the output or the input of a process."""
    tasks: Iterable[Task] = runner.tasks
    return any(frame.f_code in _PROCESS for task in tasks for frame, _ in frames(task))


# ---- Taking the place -----------------------------------------------------------------


class _Place:
    """Stands where trio has its source of chance, for as long as runs are steered."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.thread = threading.get_ident()
        self.scheduler: Scheduler | None = None

    def shuffle(self, batch: list[Task]) -> None:
        scheduler = self.scheduler
        if scheduler is None or not _is_run_of(scheduler):
            self.real.shuffle(batch)
        else:
            scheduler.shuffle(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def _is_run_of(scheduler: Scheduler) -> bool:
    return bool(_run.GLOBAL_RUN_CONTEXT.runner.clock is scheduler.clock)


_place: _Place | None = None


def is_steering() -> bool:
    """Tell whether a block of `steering` is entered.

    Raises SimulationError inside of a run, and where another thread has entered one.
    """
    if _place is not None and (
        _place.scheduler is not None or _place.thread != threading.get_ident()
    ):
        raise SimulationError("a simulation is under way in this process already")
    return _place is not None


@contextmanager
def steering() -> Generator[None]:
    """Have trio's runs of this process steered by `run`, until the block ends.

    Raises UnsupportedTrio.
    """
    global _place
    require_trio()
    with _taken() as _place:
        try:
            yield
        finally:
            _place = None


@contextmanager
def _taken() -> Generator[_Place]:
    saved = _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING
    start = _ThreadCache.start_thread_soon
    place = _Place(saved[0])
    here: Callable[[], bool] = lambda: (  # noqa: E731
        place.scheduler is not None
        and getattr(_run.GLOBAL_RUN_CONTEXT, "runner", None) is not None
        and _is_run_of(place.scheduler)
    )

    def counted(self: Any, fn: Any, deliver: Any, *args: Any, **options: Any) -> None:
        if not here():
            return start(self, fn, deliver, *args, **options)

        jobs = place.scheduler.jobs  # type: ignore[union-attr]

        def delivered(result: Any) -> None:
            try:
                deliver(result)
            finally:
                jobs.pop()

        jobs.append(None)
        place.scheduler.jobs_begun += 1  # type: ignore[union-attr]
        return start(self, fn, delivered, *args, **options)

    _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING = place, True
    _ThreadCache.start_thread_soon = counted  # type: ignore[method-assign]
    try:
        yield place
    finally:
        _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING = saved
        _ThreadCache.start_thread_soon = start  # type: ignore[method-assign]


class _Heard(trio.abc.Instrument):
    """What trio tells a scheduler. It looks at all attributes of an instrument in each
    run, and a scheduler has many."""

    __slots__ = ("after_task_step", "task_exited", "task_spawned")

    def __init__(self, scheduler: Any) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(scheduler, name))

    def close(self) -> None:
        """Keep nothing of the scheduler: see `Scheduler.release`."""
        for name in self.__slots__:
            delattr(self, name)


def run(scheduler: Scheduler, fn: Any) -> None:
    """Run an async function under a scheduler, inside of `steering`.

    What it raises comes out. `Abandoned` comes out as itself.
    """
    place = _place
    assert place is not None
    _steer(place, scheduler, fn)


def _steer(place: _Place, scheduler: Scheduler, fn: Any) -> None:
    place.scheduler = scheduler
    heard = _Heard(scheduler)
    try:
        instruments = [heard, *scheduler.beside]
        trio.run(fn, clock=scheduler.clock, instruments=instruments)
    except trio.TrioInternalError as error:
        if isinstance(error.__cause__, Abandoned):
            raise error.__cause__ from None
        raise
    finally:
        place.scheduler = None
        scheduler.hear_no_more()
        heard.close()


# ---- Is this a trio that can be steered? ------------------------------------------------

_USED = {
    "trio._core._run": "_r _ALLOW_DETERMINISTIC_SCHEDULING GLOBAL_RUN_CONTEXT",
    "Runner": "runq deadlines clock_autojump_threshold init_task main_task io_manager",
    "Task": "_abort_func _next_send _next_send_fn _attempt_abort _cancel_status _schedule_points _ki_protected",
    "CancelStatus": "_scope _parent _children _tasks effectively_cancelled",
    "CancelScope": "_cancel_status _cancel_called _cancel",
    "trio._threads.Run": "run run_system",
}

_tested = False


def require_trio() -> None:
    """Raise `UnsupportedTrio` unless the trio that is installed can be steered.

    It is tried once in a process, in a few milliseconds.
    """
    global _tested
    if _tested:
        return
    require_names()
    _try()
    _tested = True


def require_names() -> None:
    """Raise `UnsupportedTrio` if a private name is not there any more."""
    places = {"trio._core._run": _run, "trio._threads.Run": _Asked}
    for holder, names in _USED.items():
        held = places.get(holder) or getattr(_run, holder, None)
        fields = {it.name for it in getattr(held, "__attrs_attrs__", ())}
        for name in names.split():
            if not hasattr(held, name) and name not in fields:
                raise UnsupportedTrio(f"{holder} has no {name}")
    for name in ("_virtual_base", "_rate"):
        if not hasattr(_MockClock(), name):
            raise UnsupportedTrio(f"MockClock has no {name}")


class _Backwards(Scheduler):
    """Runs the youngest task first, and goes from deadline to deadline."""

    def __init__(self) -> None:
        super().__init__()
        self.born: list[Task] = []

    def spawned(self, task: Task) -> None:
        self.born.append(task)

    def choose(self, waiting: list[Task]) -> int:
        return max(range(len(waiting)), key=lambda i: self.born.index(waiting[i]))

    def idle(self, now: float, deadline: float) -> float | None:
        if deadline == inf:
            self.abandoned = True
        return deadline


def _try() -> None:
    seen: list[object] = []
    boom = Exception("thrown")

    async def note(name: int) -> None:
        for _ in range(2):
            seen.append(name)
            await trio.lowlevel.checkpoint()
        await trio.sleep(10 - name)
        seen.append((name, trio.current_time()))

    async def blocked() -> None:
        try:
            await trio.sleep_forever()
        except Exception as error:
            seen.append(error)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for name in (1, 2, 3):
                nursery.start_soon(note, name)
            nursery.start_soon(blocked)
            await trio.sleep(1)
            (last,) = [t for t in nursery.child_tasks if "blocked" in t.name]
            throw(last, boom)

    scheduler = _Backwards()
    try:
        with _taken() as place:
            _steer(place, scheduler, main)
    except Exception as error:
        raise UnsupportedTrio(f"a run of it failed with {error!r}") from error
    except Abandoned:
        raise UnsupportedTrio("it does not wake tasks as it did") from None
    expected = [3, 3, 2, 2, 1, 1, boom, (3, 7.0), (2, 8.0), (1, 9.0)]
    if seen != expected:
        raise UnsupportedTrio(f"it ran {seen} where {expected} was decided")
