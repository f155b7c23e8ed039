"""The instrument: it watches one run of trio."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Literal

import attrs
import trio
from trio.lowlevel import Task

from .._steering import loop
from .._steering.checks import require_whole
from .._steering.policies import Policy, policy_of
from .._steering.run import Driver, Entry, Run
from .._steering.session import session
from .._steering.simulate import Program, once, played
from .._steering.tape import Tape
from ._chrome import instant, named
from ._drawing import Node, dot, mermaid, tree
from ._rows import csv_text, manifest

Format = Literal["perfetto", "mermaid", "dot", "json", "csv"]

FORMATS: tuple[Format, ...] = ("perfetto", "mermaid", "dot", "json", "csv")


@attrs.frozen(kw_only=True)
class Cancelling:
    """A cancel that has reached a task, until the task has left what was cancelled."""

    task: int
    """The number of the task."""
    requested: float
    """When its scope was cancelled, in seconds of trio's clock."""
    ended: float
    """When the task had ended; of a scope inside of the task, when it had left that.
    Infinite if it never did."""
    steps: int
    """How many steps all tasks together took in between, that of the end too."""
    own_steps: int
    """How many of them this task took."""
    shielded: float
    """For how many seconds of them a shield stood before it."""
    whole: bool
    """The task was cancelled as a whole, and not inside of a scope of its own."""

    @property
    def latency(self) -> float:
        """The seconds from the request to the end."""
        return self.ended - self.requested


@attrs.frozen(kw_only=True)
class Traced:
    """What one task did."""

    number: int
    """From 1, in the order in which the tasks were met."""
    name: str
    """The name of its function, with ``#2`` and so on from the second task on."""
    parent: int | None
    """The number of the task whose nursery it is in; None if that was not met."""
    began: float
    """In seconds on the axis of the trace, from its begin."""
    ended: float | None
    steps: int
    wakes: int
    """How often it became able to run. trio wakes a task once for each of its steps, so
    there is another number only at the edges of the trace: a step whose wake-up came
    before its begin, or a wake-up whose step never came."""
    busy: float
    """Seconds in its steps; in virtual time they take none."""
    longest: float
    """Seconds in the longest step."""
    queued: float
    """Seconds for which it could run, and others ran."""
    cancels: Sequence[Cancelling]


@attrs.define
class _Known:
    number: int
    name: str
    parent: int | None
    began: int
    wakes: int
    ended: int | None = None


@attrs.define(eq=False)
class _Pending:
    task: int
    requested: float
    at: int
    scope: trio.CancelScope | None
    """None if the task as a whole is cancelled."""
    looked: float
    is_shielded: bool
    shielded: float = 0.0


class Trace(trio.abc.Instrument):
    """An instrument that writes down the steps, wake-ups and cancels of one run.

    Give it to ``trio.run(..., instruments=[trace])``, or to
    `trio.lowlevel.add_instrument` in the middle of a run: it then knows of tasks that
    are older from their next step on, and who removes it ends it.
    `traced` does it for a simulated run.

    Args:
      virtual: the axis is trio's clock, which is for virtual time: a step takes no time
        then, and is shown as one microsecond. Otherwise it is the time that has passed.

    Raises UnsupportedTrio if trio does not have the private names by which cancels are
    heard.
    """

    def __init__(self, *, virtual: bool = False) -> None:
        loop.require_names()
        self.virtual = virtual
        self.seconds = 0.0
        """How long the run took on trio's clock."""
        self._now: Callable[[], int] = self._tick if virtual else perf_counter_ns
        self._wake: Callable[[], int] = self._hold if virtual else perf_counter_ns
        self._last = 0
        self._start = -1
        self._began_at = 0.0
        self._numbers: dict[Task, int] = {}  # only of living tasks
        self._woken: dict[Task, int] = {}  # {task that can run: since when}
        self._known: list[_Known] = []
        self._used: dict[str, int] = {}
        self._steps: list[tuple[int, int, int, int]] = []  # task, woken, begun, ended
        self._marks: list[tuple[int, int, str, Sequence[object]]] = []
        self._pending: dict[int, list[_Pending]] = {}
        self._cancels: list[tuple[Cancelling, int, int]] = []  # and its steps
        self._stop: Callable[[], None] | None = None
        self._current = self._since = self._begun = 0

    def mark(self, name: str, *fields: object) -> None:
        """Put an instant on the track of the task that runs, or on that of the run."""
        task = _running()
        number = 0 if task is None else self._numbers.get(task, 0)
        self._marks.append((self._now(), number, name, fields))

    # ---- What trio tells ---------------------------------------------------------------

    def before_run(self) -> None:
        """Hear that the run begins."""
        self._listen()

    def after_run(self) -> None:
        """Hear that the run is over."""
        if self._stop is None:
            return  # It was heard already.
        self.seconds = trio.current_time() - self._began_at
        self._stop()
        self._stop = None
        for number in [*self._pending]:
            self._settle(number, inf)
        self._numbers.clear()
        self._woken.clear()

    def task_spawned(self, task: Task) -> None:
        """Hear of a new task."""
        number = self._meet(task)
        if loop.is_told(task):  # It is born into a nursery that was cancelled before.
            self._request(task, number, None)

    def task_scheduled(self, task: Task) -> None:
        """Hear that a task can run."""
        self._woken[task] = self._wake()
        if task in self._numbers:  # Else it is counted when it is met.
            self._known[self._numbers[task] - 1].wakes += 1

    def before_task_step(self, task: Task) -> None:
        """Hear that a task is about to take a step."""
        try:
            self._current = self._numbers[task]
            self._since = self._woken.pop(task)
        except KeyError:  # It is older than the trace.
            if task not in self._numbers:
                self._meet(task)
            self._current = self._numbers[task]
            self._since = self._woken.pop(task, self._wake())
        self._begun = self._now()

    def after_task_step(self, task: Task) -> None:
        """Hear that a task has taken a step."""
        if not self._begun:
            return  # The trace was begun in the middle of it.
        self._steps.append((self._current, self._since, self._begun, self._now()))
        if self._pending and self._current in self._pending:
            self._look(task, self._current)

    def task_exited(self, task: Task) -> None:
        """Hear that a task has ended; its last step is not told as taken yet."""
        number = self._numbers.pop(task, None)
        self._woken.pop(task, None)
        if number is not None:
            self._known[number - 1].ended = self._now()
            self._settle(number, trio.current_time())

    # ---- Inside ------------------------------------------------------------------------

    def _tick(self) -> int:
        """Return the time on the axis of virtual time, on which each tick is seen."""
        self._last = max(self._last + 1000, round(trio.current_time() * 1e9))
        return self._last

    def _hold(self) -> int:
        # Who wakes together does so in the order of a set, so nobody comes first.
        self._last = max(self._last, round(trio.current_time() * 1e9))
        return self._last

    def _listen(self) -> None:
        self._start = min([self._now(), *self._woken.values()])
        self._began_at = trio.current_time()
        self._stop = loop.on_cancel(self._cancelled, self.after_run)

    def _meet(self, task: Task) -> int:
        if self._stop is None:
            self._listen()
        nursery = task.eventual_parent_nursery or task.parent_nursery
        parent = None if nursery is None else self._numbers.get(nursery.parent_task)
        name = task.name
        if not name.startswith("<"):  # So trio calls some of its own.
            name = name.rpartition(".")[2]
        times = self._used[name] = self._used.get(name, 0) + 1
        number = len(self._known) + 1
        name = name if times == 1 else f"{name}#{times}"
        wakes = int(task in self._woken)
        self._known.append(_Known(number, name, parent, self._now(), wakes))
        self._numbers[task] = number
        return number

    def _cancelled(self, scope: trio.CancelScope) -> None:
        """Hear that a scope is cancelled which was not before, nor from outside."""
        if _running() is trio.lowlevel.current_root_task():
            return  # The program has ended, and trio ends its own tasks.
        if not loop.is_instrument(self):
            return
        inside = sorted(loop.tasks_in(scope), key=lambda it: it[0].name)
        reached = [
            (self._numbers.get(task) or self._meet(task), task, is_whole)
            for task, is_whole in inside
        ]
        if reached:
            self.mark("cancel")
        for number, task, is_whole in sorted(reached, key=lambda it: it[0]):
            if not any(it.scope is None for it in self._pending.get(number, ())):
                self._request(task, number, None if is_whole else scope)

    def _request(self, task: Task, number: int, scope: trio.CancelScope | None) -> None:
        now, shielded = trio.current_time(), not loop.is_told(task)
        pending = _Pending(number, now, self._count(), scope, now, shielded)
        self._pending.setdefault(number, []).append(pending)

    def _count(self) -> int:
        """Return how many steps have begun."""
        return len(self._steps) + (_running() is not None)

    def _look(self, task: Task, number: int) -> None:
        """Add up the time behind shields, and see which scopes the task has left."""
        now, shielded = trio.current_time(), not loop.is_told(task)
        left: list[_Pending] = []
        for pending in self._pending[number]:
            if pending.is_shielded:
                pending.shielded += now - pending.looked
            pending.looked, pending.is_shielded = now, shielded
            if pending.scope is not None and not loop.is_entered(pending.scope):
                left.append(pending)
        for pending in left:
            self._end(pending, now, len(self._steps))
            self._pending[number].remove(pending)
        if not self._pending[number]:
            del self._pending[number]

    def _settle(self, number: int, now: float) -> None:
        for pending in self._pending.pop(number, ()):
            if pending.is_shielded and now < inf:
                pending.shielded += now - pending.looked
            self._end(pending, now, self._count())

    def _end(self, pending: _Pending, now: float, at: int) -> None:
        cancelling = Cancelling(
            task=pending.task,
            requested=pending.requested,
            ended=now,
            steps=at - pending.at,
            own_steps=0,  # They are counted when somebody asks.
            shielded=pending.shielded,
            whole=pending.scope is None,
        )
        self._cancels.append((cancelling, pending.at, at))

    # ---- What can be had of it ---------------------------------------------------------

    def _seconds(self, at: int) -> float:
        return (at - self._start) / 1e9

    def cancels(self) -> list[Cancelling]:
        """Return the cancels that reached tasks, in the order of their ends."""
        found: list[Cancelling] = []
        for it, first, last in self._cancels:
            own = sum(1 for step in self._steps[first:last] if step[0] == it.task)
            found.append(attrs.evolve(it, own_steps=own))
        return found

    def tasks(self) -> list[Traced]:
        """Return what each task did, in the order in which they were met."""
        spans: dict[int, list[tuple[int, int]]] = {it.number: [] for it in self._known}
        for number, woken, begun, ended in self._steps:
            # What is shown as a microsecond has taken no virtual time.
            taken = (0, 0) if self.virtual else (ended - begun, begun - woken)
            spans[number].append(taken)
        cancels: dict[int, list[Cancelling]] = {}
        for cancelling in self.cancels():
            cancels.setdefault(cancelling.task, []).append(cancelling)
        return [
            Traced(
                number=it.number,
                name=it.name,
                parent=it.parent,
                began=self._seconds(it.began),
                ended=None if it.ended is None else self._seconds(it.ended),
                steps=len(spans[it.number]),
                wakes=it.wakes,
                busy=sum(taken for taken, _ in spans[it.number]) / 1e9,
                longest=max((taken for taken, _ in spans[it.number]), default=0) / 1e9,
                queued=sum(queued for _, queued in spans[it.number]) / 1e9,
                cancels=cancels.get(it.number, []),
            )
            for it in self._known
        ]

    def nodes(self) -> list[Node]:
        """Return the tree of tasks, for `tree`, `mermaid` and `dot`."""
        return [
            Node(
                id=f"t{it.number}",
                name=it.name,
                parent=None if it.parent is None else f"t{it.parent}",
                began=it.began,
                ended=it.ended,
            )
            for it in self.tasks()
        ]

    def row(self) -> dict[str, Any]:
        """Return the run as one row of a table; times are in seconds."""
        tasks, cancels = self.tasks(), self.cancels()
        return {
            "tasks": len(tasks),
            "steps": len(self._steps),
            "wakes": sum(it.wakes for it in tasks),
            "seconds": self.seconds,
            "busy": sum(it.busy for it in tasks),
            "longest_step": max((it.longest for it in tasks), default=0.0),
            "cancels": len(cancels),
            "cancel_latency": max((it.latency for it in cancels), default=0.0),
            "cancel_steps": max((it.steps for it in cancels), default=0),
            "shielded": sum(it.shielded for it in cancels),
        }

    def table(self) -> str:
        """Return what each task did as text, but for trio's own tasks: when it began, for
        how long it lived, and its worst cancel, with times in seconds.

        In virtual time steps take none, so nothing is told of how long they took.
        """
        spent = () if self.virtual else ("busy", "longest", "queued")
        head = ["began", "lived", "steps", "wakes"]
        head += [*spent, "cancel", "in steps", "shielded"]
        lines = [f"{'task':28} {' '.join(f'{it:>11}' for it in head)}"]
        for it in self.tasks():
            if it.name.startswith("<"):
                continue
            lived = "to the end" if it.ended is None else it.ended - it.began
            row = [it.began, lived, it.steps, it.wakes]
            row += [getattr(it, name) for name in spent]
            if it.cancels:
                worst = max(it.cancels, key=lambda one: one.latency)
                row += [worst.latency, worst.steps, worst.shielded]
            cells = (f"{it:.6f}" if isinstance(it, float) else str(it) for it in row)
            lines.append(f"{it.name:28} {' '.join(f'{cell:>11}' for cell in cells)}")
        return "\n".join(lines)

    def perfetto(self, about: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the trace as Chrome's JSON has it, which Perfetto reads.

        Each task is a track with a span for each step, and instants for its spawn, exit
        and wake-ups, and for what `mark` was told: cancels, and of a simulated run its
        faults and log. From the request of a cancel to its end there is a span of its
        own. Times are in microseconds from the begin. ``about`` is kept beside them.
        """
        events: list[dict[str, Any]] = [named("process_name", 0, "trio")]
        for it in self._known:
            events.append(named("thread_name", it.number, f"{it.name} ({it.number})"))
            events.append(instant("spawn", it.number, self._micro(it.began)))
            if it.ended is not None:
                events.append(instant("exit", it.number, self._micro(it.ended)))
        for number, woken, begun, ended in self._steps:
            events.append(instant("wake", number, self._micro(woken)))
            events.append(
                {
                    "ph": "X",
                    "name": "step",
                    "pid": 1,
                    "tid": number,
                    "ts": self._micro(begun),
                    "dur": (ended - begun) / 1e3,
                }
            )
        for at, number, name, fields in self._marks:
            event = instant(name, number, self._micro(at))
            events.append(event | {"args": {"fields": [str(it) for it in fields]}})
        for nth, (cancelling, first, last) in enumerate(self._cancels):
            span = {"cat": "cancel", "name": "cancelling", "id": nth, "pid": 1}
            where = span | {"tid": cancelling.task}
            begin, end = self._end_of(first), self._end_of(last)
            told = {"latency": str(cancelling.latency), "shielded": cancelling.shielded}
            events.append(where | {"ph": "b", "ts": begin, "args": told})
            events.append(where | {"ph": "e", "ts": end})
        return {
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "otherData": dict(manifest() if about is None else about),
        }

    def _micro(self, at: int) -> float:
        return (at - self._start) / 1e3

    def _end_of(self, steps: int) -> float:
        """Return when so many steps had been taken."""
        at = self._steps[min(steps, len(self._steps)) - 1][3] if steps else self._start
        return self._micro(at)

    def text(self, format: Format | str, about: Mapping[str, Any] | None = None) -> str:
        """Return the trace in a format: ``perfetto``, the tree of tasks as ``mermaid``,
        ``dot`` or ``json``, or the run as a row of ``csv``.

        Raises ValueError for another one.
        """
        if format == "perfetto":
            return json.dumps(self.perfetto(about), separators=(",", ":"))
        if format == "mermaid":
            return mermaid(self.nodes())
        if format == "dot":
            return dot(self.nodes())
        if format == "json":
            return json.dumps(tree(self.nodes()), indent=1)
        if format == "csv":
            more = manifest() if about is None else about
            return csv_text([{**self.row(), **more}]).removesuffix("\n")
        raise ValueError(f"formats are {', '.join(FORMATS)}; not {format!r}")

    def save(
        self,
        path: str | Path,
        format: Format = "perfetto",
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the trace into a file, as `text` has it."""
        Path(path).write_text(self.text(format, about) + "\n", encoding="utf-8")


def _running() -> Task | None:
    try:
        return trio.lowlevel.current_task()
    except RuntimeError:
        return None  # trio itself runs: a deadline has come.


def traced(
    program: Program,
    *,
    seed: int = 0,
    policy: Policy | str | None = None,
    tape: Tape | str | None = None,
) -> tuple[Run, Trace]:
    """Run a program once under the simulator, as `simulate` does, and return what came
    of it with its trace.

    The trace is in virtual time, and the same each time. The faults that struck and the
    lines of `Sim.log` are instants in it. Raises what `simulate` raises.
    """
    trace = Trace(virtual=True)

    def listen(driver: Driver) -> None:
        driver.beside.append(trace)
        driver.on_note.append(heard)

    def heard(entry: Entry) -> None:
        _, kind, *fields = entry
        if kind not in ("spawn", "exit"):
            trace.mark(str(kind), *fields)

    if tape is not None:
        return played(program, tape, listen=listen), trace
    with session():
        require_whole("seed", seed)
        pick = policy_of(policy).start(seed)
        return once(program, pick, seed=seed, listen=listen, chance=True)[0], trace
