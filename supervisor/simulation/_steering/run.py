"""One run of one program: schedule, time, log, digest, and how it is ended if it does
not end by itself.

A run is steered by a `Driver`. What watches it gets called by it and never raises.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import count
from math import inf
from operator import index
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs
import trio
from trio.lowlevel import Task

from .._errors import Deadlock, Hang, Stuck
from . import loop, sites
from .checks import require_number
from .order import Order
from .policies import Pick
from .session import collect
from .tape import Deviation, Fault, Tape

if TYPE_CHECKING:
    from .probes import Met

LIMIT = 3600.0
"""Virtual seconds that a run may take."""

STEPS = 100_000
"""Steps that a run may take."""

GRACE = 10_000
"""Steps in which a run that was ended must have ended."""

HELD = 1_000
"""Steps for which a task is held back at most, where others run for ever."""

_CLOSER = "close asyncgen "  # So trio calls the task that closes a dropped one.

Entry = tuple[object, ...]


@attrs.frozen(eq=False)
class Run:
    """What came of one run. Nothing of it was raised."""

    value: Any
    """What the program returned; None if it raised."""
    error: BaseException | None
    """What it raised; `Deadlock` or `Hang` if it had to be ended."""
    log: Sequence[Entry] = attrs.field(repr=False)
    """What happened, in order: virtual time, kind, task, and what `Sim.log` was given."""
    digest: str
    """Of the log and of who took each step. Equal digests: the same run."""
    tape: Tape
    """What replays it."""
    faults: Sequence[Fault]
    """The faults that struck, with where and when."""
    findings: Sequence[Finding]
    """What was wrong at its end that nobody had to assert."""
    steps: int
    """How many steps tasks took."""
    seconds: float
    """How long it took, in virtual time."""
    thrown: Sequence[BaseException] = ()
    """The errors that were put in."""
    choices: Sequence[tuple[int, int]] = attrs.field(default=(), repr=False)
    """The steps that several could have taken, and how many."""
    notes: Sequence[str] = ()
    """What is worth a line and not wrong."""
    trail: Sequence[int] = attrs.field(default=(), repr=False)
    """Who took each step, as the number of its birth."""
    called: Mapping[int, str] = attrs.field(default={}, repr=False)
    """The names of the program's tasks, by these numbers."""
    probes: Sequence[Met] = attrs.field(default=(), repr=False)
    """What the probes of the program have told (`actors.probe`)."""

    @property
    def schedule(self) -> Sequence[Deviation]:
        """The steps that deviated from round robin."""
        return self.tape.deviations


@attrs.frozen
class Finding:
    """Something wrong that needs no assert."""

    kind: str
    """Which invariant it breaks: ``left``, ``held``, ``streams``, ..."""
    text: str
    """What is wrong, and whose it is."""


@attrs.define(order=True)
class Timer:
    """Calls a function when virtual time has come to a point."""

    time: float
    number: int
    fn: Callable[[], object] | None = attrs.field(order=False)

    def cancel(self) -> None:
        """Call nothing any more."""
        self.fn = None


class Driver(loop.Scheduler):
    """Steers one run."""

    def __init__(self, pick: Pick, limit: float = LIMIT, steps: int = STEPS) -> None:
        super().__init__()
        require_number("limit", limit)
        self.log: list[Entry] = []
        self.names: dict[Task, str] = {}
        """Each living task of the program with its name, in the order of their birth."""
        self.steps = 0
        self.begun: dict[str, bool] = {}
        """Each call that is a target, and whether `nursery.start` had to wait for it."""
        self.on_spawn: list[Callable[[Task, Task | None], object]] = []
        """Who is told of each new task, and of who has started it."""
        self.on_note: list[Callable[[Entry], object]] = []
        """Who is told of each line of the log."""
        self.on_time: list[Callable[[], object]] = []
        """Who is told that virtual time has gone on, before the first step then."""
        self.on_next: list[Callable[[Task], object]] = []
        """Who is told of each step before it is taken."""
        self.on_step: list[Callable[[Task], object]] = []
        """Who is told of each step that was taken."""
        self.on_suspend: list[Callable[[float], object]] = []
        """Who is told that the machine has slept, for how many seconds."""
        self.deviations: list[Deviation] = []
        self.choices: list[tuple[int, int]] = []
        self.thrown: list[BaseException] = []
        """The errors that were put in."""
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        """What is worth a line, and not wrong."""
        self._dropped: list[tuple[str, str]] = []
        # (a generator that is dropped and not closed yet, who has begun it)
        self.held: Task | None = None
        """Who runs last of all that can run."""
        self.whole = trio.CancelScope()
        self.stuck: Stuck | None = None
        self._pick = pick
        self._limit = limit
        self._most = steps
        self.trail: list[int] = []
        """Who took each step, as the number of its birth."""
        self.called: dict[int, str] = {}
        """The name of each task that the program has ever had, by that number."""
        self._now = 0.0
        self._held_for = 0
        self._order = Order()
        self.waiting, self.join = self._order.tasks, self._order.join
        self._used: dict[str, int] = {}  # {name: how many have had it}
        self._numbers = count()
        self._timers: list[Timer] = []

    # ---- What happens ----------------------------------------------------------------

    def note(self, kind: str, *fields: object) -> None:
        """Write a line of the log."""
        entry = (self.clock.current_time(), kind, *fields)
        self.log.append(entry)
        for heard in self.on_note:
            heard(entry)

    def at(self, time: float, fn: Callable[[], object]) -> Timer:
        """Call a function when virtual time has come to a point, and nobody can run."""
        timer = Timer(time, next(self._numbers), fn)
        heappush(self._timers, timer)
        return timer

    def suspend(self, seconds: float) -> None:
        """Let time go on at once; it does not count as time that the run takes."""
        self._limit += seconds
        self.go_to(self.clock.current_time() + seconds)
        for heard in self.on_suspend:
            heard(seconds)

    def watch_generators(self) -> None:
        """Remember who begins an async generator; call it in the run."""
        begin, finalize = sys.get_asyncgen_hooks()
        # By address: no weak reference is left when a generator is dropped.
        begun: dict[int, str] = {}

        def firstiter(generator: Any) -> None:
            begun[id(generator)] = self.name(current_task()) or "trio"
            if begin is not None:
                begin(generator)

        def finalizer(generator: Any) -> None:
            by = begun.get(id(generator), "trio")
            if where := sites.nearest(generator.ag_frame):
                by = f"{by}; it stands at {where}"
            self._dropped.append((generator.__qualname__, by))
            if finalize is not None:
                finalize(generator)

        sys.set_asyncgen_hooks(firstiter, finalizer)

    def _beginner(self, generator: str) -> str:
        for dropped in self._dropped:
            if generator.endswith(dropped[0]):  # trio has its module before it.
                self._dropped.remove(dropped)
                return dropped[1]
        return "nobody who is known"

    def tree(self) -> str:
        """Return each task of the program with the line where it is."""
        return sites.tree(self.names.items())

    def name(self, task: Task | None) -> str:
        """Return the name of a task of the program; "" of any other."""
        return self.names.get(task, "") if task is not None else ""

    def lives(self, task: Task) -> bool:
        """Tell whether a task, also one of the system, has not ended."""
        return task in self._order.numbers

    def unused(self, name: str) -> str:
        """Return a name that nobody else has: itself, ``name#2``, and so on."""
        times = self._used[name] = self._used.get(name, 0) + 1
        return name if times == 1 else f"{name}#{times}"

    def spawned(self, task: Task) -> None:
        number = self._order.born(task)
        if self.is_system(task):
            return
        name = "main"
        if self._used:
            name = _short(task.name)
        self.names[task] = self.called[number] = self.unused(name)
        self.note("spawn", self.names[task])
        for heard in self.on_spawn:
            heard(task, current_task())

    def exited(self, task: Task) -> None:
        self._order.dead(task)
        if task.name.startswith(_CLOSER):
            generator = task.name.removeprefix(_CLOSER).partition(" ")[0]
            by = self._beginner(generator)
            text = f"generator {generator} was dropped with"
            if loop.has_waited(task):
                text = f"{text} something left to await, begun by {by}"
                self.findings.append(Finding("generators", text))
            else:
                self.notes.append(f"{text} nothing left to await, begun by {by}")
        if task in self.names:
            self.note("exit", self.names[task])
            del self.names[task]

    def choose(self, waiting: list[Task]) -> int:
        able: Sequence[int] = self._order
        count, last = len(waiting), None
        if self.held is not None and (last := self._last(waiting)) is not None:
            able = [it for place, it in enumerate(able) if place != last]
            count -= 1
        place = 0
        if count > 1:
            self.choices.append((self.steps, count))
            place = index(self._pick(able, self.steps))  # True is no text of a tape.
            if not 0 <= place < count:
                raise IndexError(f"a policy chose {place} of {count} tasks")
        chosen = place if last is None else place + (place >= last)
        if place:
            name = self.names.get(waiting[chosen], "trio")
            self.deviations.append(Deviation(self.steps, place, name))
        return chosen

    def _last(self, waiting: list[Task]) -> int | None:
        """Return the place of the task that is held back, if it can run."""
        self._held_for += 1
        if self.held not in waiting or self._held_for > HELD:
            return None
        return waiting.index(self.held)

    def hold(self, task: Task) -> None:
        """Let all others run that can before a task takes its next step."""
        self.held, self._held_for = task, 0

    def woke(self) -> None:
        now = self.clock.current_time()
        if now > self._now:
            self._now = now
            for heard in self.on_time:
                heard()

    def begins(self, task: Task) -> None:
        if task is self.held:
            self.held = None
        self.trail.append(self._order.numbers[task])
        for heard in self.on_next:
            heard(task)

    def stepped(self, task: Task) -> None:
        since = self._order.since
        if task in since:
            since[task] = self.steps
        for heard in self.on_step:
            heard(task)
        self.steps += 1
        if self.steps >= self._most:
            what = f"still running after {self.steps} steps, as many as a run may take"
            self._stop(Hang, what)

    # ---- Time, and the end -------------------------------------------------------------

    def idle(self, now: float, deadline: float) -> float | None:
        timers = self._timers
        while timers and timers[0].fn is None:
            heappop(timers)
        at = min(deadline, timers[0].time if timers else inf)
        if at == inf:
            self._stop(Deadlock, f"a deadlock at {now:g} virtual seconds")
            return None
        if at > self._limit:
            self._stop(
                Hang,
                f"still waiting at {now:g} virtual seconds; the limit is {self._limit:g}",
            )
            return None
        while timers and timers[0].time <= at:
            self.go_to(at)
            fn = heappop(timers).fn
            if fn is not None:
                fn()
        return at

    def _stop(self, kind: type[Stuck], what: str) -> None:
        """End the run: cancel it, under its shields too; at the second time for good."""
        if self.stuck is not None:
            self.abandoned = True
            return
        self.stuck = kind(what, self.tree())
        self.note("stuck", what)
        self._most = self.steps + GRACE
        self._limit += self._limit
        try:
            loop.lift_shields(list(self.names))
            self.whole.cancel()
        except BaseException:  # noqa: ASYNC103 (an abort function of the program)
            self.abandoned = True

    def forget(self) -> None:
        """Drop the tasks of a run that was broken off; they get no say in it."""
        self.names.clear()
        self._order.clear()
        self.held, self.whole = None, trio.CancelScope()
        for heard in (
            self.on_spawn,
            self.on_time,
            self.on_next,
            self.on_step,
            self._timers,
        ):
            heard.clear()
        saved = sys.unraisablehook
        sys.unraisablehook = lambda _: None
        try:
            with warnings.catch_warnings():
                # Of a target that has not begun what it runs.
                text = "coroutine .* was never awaited"
                warnings.filterwarnings("ignore", text, RuntimeWarning)
                self.drop()
                gc.collect()
        finally:
            sys.unraisablehook = saved

    def release(self) -> None:
        super().release()
        for heard in (
            self.on_spawn,
            self.on_note,
            self.on_time,
            self.on_next,
            self.on_step,
            self.on_suspend,
            self._timers,
        ):
            heard.clear()

    def digest(self) -> str:
        """Return the digest of the log and of who took each step."""
        seen = blake2b(
            repr(self.log).encode("utf-8", "backslashreplace"), digest_size=8
        )
        seen.update(repr(self.trail).encode())
        return seen.hexdigest()


@lru_cache(1024)
def _short(name: str) -> str:
    """Return what trio calls a task, without its module and what is another each time."""
    return sites.ADDRESS.sub("", name).rpartition(".")[2]


def current_task() -> Task | None:
    """Return the task that runs; None in a callback."""
    try:
        return trio.lowlevel.current_task()
    except RuntimeError:
        return None


Value = TypeVar("Value")


def steer(
    driver: Driver, program: Callable[[], Awaitable[Value]]
) -> tuple[Value | None, BaseException | None]:
    """Run a program to its end, inside of `session`; return its value and its error.

    A Ctrl+C that nobody has put in is raised, also where the program has kept it to
    itself, and so is `SaidByTest`.
    """
    value: Value | None = None

    async def main() -> None:
        nonlocal value
        driver.watch_generators()
        driver.hear_ctrl_c()
        with driver.whole:
            value = await program()

    error: BaseException | None = None
    try:
        loop.run(driver, main)
    except loop.Abandoned:
        pass  # Its traceback has all tasks, so they go only after this block.
    except BaseException as raised:  # noqa: ASYNC103 (trio has ended: nobody waits)
        if isinstance(raised, SaidByTest):
            raise
        if not any(isinstance(it, KeyboardInterrupt) for it in driver.thrown):
            pressed = _ctrl_c(raised)
            if pressed is not None:
                raise pressed from None  # noqa: ASYNC104
        error = raised
    if driver.abandoned or isinstance(error, trio.TrioInternalError):
        driver.forget()
    collect()
    if driver.pressed:
        raise KeyboardInterrupt
    if driver.broken is not None:
        raise driver.broken
    if driver.crashed is not None:
        error = driver.crashed
    elif driver.stuck is not None:
        driver.stuck.__context__ = error
        error = driver.stuck
    return (None if error else value), error


def _ctrl_c(error: BaseException) -> BaseException | None:
    """Return the Ctrl+C in an error; in a nursery it comes out of a group."""
    if isinstance(error, BaseExceptionGroup):
        inside: Sequence[BaseException] = cast("Any", error).exceptions
        return next(filter(None, map(_ctrl_c, inside)), None)
    return error if isinstance(error, KeyboardInterrupt) else None


class SaidByTest(BaseException):
    """Ends the whole search that it is raised in: a test is to be skipped, or may fail."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind, self.reason = kind, reason
