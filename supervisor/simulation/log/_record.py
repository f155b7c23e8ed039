"""Writes down what happens in a runtime or a supervisor, as it happens.

The events of its stream are heard in the step in which they are told. What nobody tells
is seen from outside: the calls, and what they do to the world. Nothing of that waits,
and nothing of it fails where it is: see `Log.failure`.
"""

# A recorder looks at what it records from outside, and at its settings inside.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import inspect
import platform
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache, partial, wraps
from itertools import takewhile
from math import inf
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import trio
from trio.lowlevel import enable_ki_protection

from actors import ActorRef
from actors.env import real_env
from actors.shell import Shell

from ..._delivery.outbox import Notification
from ..._delivery.readers import Notifications
from ..._life.handles import TaskHandle
from ...runtime import AgentSaid, Runtime, open_runtime
from ...tree import (
    ChildExited,
    ChildSpec,
    ChildStarted,
    Event,
    Gap,
    SlowStart,
    StopRequested,
    Straggler,
    SupervisorEnded,
)
from ...tree._events import EventStream, Subscription
from ...tree._supervisor import _Supervisor
from .._steering.sim import Sim, driver_of
from . import _handed
from . import _kinds as kinds  # pyright: ignore[reportPrivateUsage]
from ._format import Entry, to_line
from ._world import seen_through

if TYPE_CHECKING:
    from ...tree._children import Child, Children
    from ...tree._supervision import Supervision

T = TypeVar("T")


class Log:
    """What happened, in order: a context manager, which `record` makes.

    Inside of it, `recording` opens what is to be recorded.
    """

    def __init__(
        self,
        hear: Callable[[Entry], object],
        sim: Sim | None = None,
    ) -> None:
        self.failure: Exception | None = None
        """What has kept it from writing. From then on nothing was written."""
        self._hear = hear
        self._driver = None if sim is None else driver_of(sim)
        self._on_exit: list[Callable[[], object]] = []
        """Gives what is recorded its own methods again."""
        self._count = 0
        self._seq = 0
        self._calls = 0
        self._ended = False
        self._is_recording = False
        self._lends: Callable[[], bool] = bool  # nobody does

    def __enter__(self) -> Self:
        if self._driver is not None:
            slept = partial(self.add, kinds.Suspended)
            self._driver.on_suspend.append(slept)
        self.add(
            kinds.LogStarted,
            self._driver is not None,
            platform.python_version(),
            trio.__version__,
        )
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.add(kinds.LogEnded, None if exc_type is None else exc_type.__name__)
        self._ended = True
        # What was recorded would keep the log, and the whole run, for the collector.
        for give_back in self._on_exit:
            give_back()
        self._on_exit.clear()
        self._lends = bool

    @asynccontextmanager
    async def recording(
        self, block: AbstractAsyncContextManager[T]
    ) -> AsyncGenerator[T]:
        """Open ``block``, which is an `open_runtime`, an `open_supervisor` or an
        `open_dynamic_supervisor`, and record what happens until it is left.

        In the block, use what this yields: calls of its methods are recorded, and so
        are those of the task handles that it gives. The world of a runtime is seen
        through its `Env`. A log records one at a time.
        """
        if self._is_recording:
            raise RuntimeError("a log records one runtime or supervisor at a time")
        self._is_recording = True
        try:
            async with self._recording(block) as opened:
                yield opened
        finally:
            self._is_recording = False

    @asynccontextmanager
    async def _recording(
        self, block: AbstractAsyncContextManager[T]
    ) -> AsyncGenerator[T]:
        if isinstance(block, open_runtime):
            block._env = seen_through(block._env or real_env(), self.add)
        async with block as opened:
            if not isinstance(opened, Runtime | _Supervisor):
                raise TypeError(
                    f"expected a runtime or a supervisor to record, not {opened!r}"
                )
            top = opened.root if isinstance(opened, Runtime) else opened
            path, children, events = top.path, top._children, top.events
            self._seq = events.seq
            if isinstance(opened, Runtime):
                self._open_runtime(opened)
            # Of a runtime, too: a schedule is a child of its root, and ends by a call.
            for name in _TREE_CALLS:
                if hasattr(top, name):
                    self._wrap(top, name)
            supervisors = {path: children}
            for it in _all_below(children):
                supervisors[it.path] = it
                self._tell_of(it)
                if it.closing:
                    del supervisors[it.path]
                    self.add(kinds.Closing, it.path)
            events.attach(_Ear(events, self, supervisors), agents=True)
            try:
                yield cast("T", opened)
            finally:
                supervisors.pop(path, None)
                self.add(kinds.Closing, path)
        self.add(kinds.Closed, path)

    def _tell_of(self, children: Children) -> None:
        flags = children.flags
        self.add(
            kinds.Supervised,
            children.path,
            flags.strategy,
            flags.intensity,
            flags.period,
            children.dynamic,
            cast("Supervision", children).count_restarts(),
        )
        for child in children.by_key.values():
            live = child.incarnation.started_by is not None and child.is_live
            asked = live and child.incarnation.stop_request is not None
            self.specify(child, live, asked)

    def specify(
        self,
        child: Child[Any],
        live: bool,
        asked: bool = False,
        *,
        time: float | None = None,
    ) -> None:
        """Write down what a supervisor does with a child, and how that is by now."""
        path, spec = child.home.path, child.spec
        said = path, child.id, spec.restart, live, spec.wait_started, asked
        self.add(kinds.Specified, *said, time=time)

    # Writing

    # Or the line in which an interrupt comes would be lost.
    @enable_ki_protection
    def add(
        self, kind: type[Event], *fields: object, time: float | None = None
    ) -> None:
        """Write down something that no stream tells; with ``time``, before what was
        told then."""
        if not self._ended:  # or there may be no trio any more
            now = trio.current_time() if time is None else time
            self.write(kind, self._seq, now, fields)

    @enable_ki_protection
    def write(
        self, kind: type[Event], seq: int, time: float, fields: tuple[object, ...]
    ) -> None:
        """Write down an event."""
        if self.failure is not None or self._ended:
            return
        # What was kept for the first reader is from before.
        self._seq = max(self._seq, seq)
        self._count += 1
        # The boundary: what is recorded may be the end of a task.
        try:
            step: int | None = None
            make: Callable[..., Event] = kind
            driver = self._driver
            if driver is not None:
                step = driver.steps
                # Stacks show tasks in the order of a set.
                shown = fields[:-1] if kind in (Straggler, SlowStart) else fields
                driver.log.append((time, kind.__name__, *shown))
            self._hear(Entry(self._count, step, make(seq, time, *fields)))
        except Exception as error:
            self.failure = error

    # Calls

    def _open_runtime(self, runtime: Runtime) -> None:
        life, limits = runtime._life, runtime._life.limits
        self.add(kinds.RuntimeOpened, runtime.root.path, limits.backlog)
        caps = limits.total, limits.shells, limits.agents
        if any(caps) or limits.models or limits.providers:
            self._lends = lambda: life.current_task() is not None
        for name in _RUNTIME_CALLS:
            self._wrap(runtime, name)
        notifications = runtime.notifications
        runtime.notifications = _handed.Reader(self, notifications)
        self._on_exit.append(partial(setattr, runtime, "notifications", notifications))
        handle, reader = runtime.handle, runtime.notifications_for

        @wraps(handle)
        def handle_of(*args: Any, **options: Any) -> TaskHandle:
            return _handed.Handle(self, handle(*args, **options))

        @wraps(reader)
        def reader_of(*args: Any, **options: Any) -> Notifications:
            return _handed.Reader(self, reader(*args, **options))

        self._replace(runtime, "handle", handle_of)
        self._replace(runtime, "notifications_for", reader_of)

    def _wrap(self, opened: object, name: str) -> None:
        """Record the calls of a method. Whatever it is given, it gets, and it alone
        refuses what is wrong with that."""
        method: Callable[..., Awaitable[Any]] = getattr(opened, name)
        # To look at it takes long, and most programs call few methods.
        signature = cache(partial(inspect.signature, method))

        @wraps(method)
        async def recorded(*args: Any, **options: Any) -> Any:
            try:
                given = signature().bind(*args, **options)
            except TypeError:
                return await self.call(name, (), partial(method, *args, **options))
            said = given.arguments
            for key in said.keys() & {"tasks", "refs"}:
                if isinstance(said[key], Iterable) and not isinstance(said[key], str):
                    said[key] = _Twice(said[key])
            named = next((said[it] for it in _NAMES if it in said), None)
            number = self.begin(name, _ids(named), said.get("owner"))
            if name == "run":
                status = said.get("task_status", trio.TASK_STATUS_IGNORED)
                began = partial(self._tell_began, number, said)
                said["task_status"] = _handed.Told(self, status, began)

            async def call() -> Any:
                result = await method(*given.args, **given.kwargs)
                if not isinstance(result, TaskHandle):
                    return result
                if name == "launch":
                    self._tell_began(number, said, result)
                return _handed.Handle(self, result)

            return await self.call(name, (), call, number=number)

        self._replace(opened, name, recorded)

    def _replace(self, opened: object, name: str, by: object) -> None:
        setattr(opened, name, by)
        self._on_exit.append(partial(delattr, opened, name))

    async def call(
        self,
        name: str,
        tasks: Sequence[str],
        method: Callable[[], Awaitable[T]],
        number: int | None = None,
    ) -> T:
        """Call a method, and write down what it is about and what came of it."""
        number = self.begin(name, tasks, None) if number is None else number
        try:
            result = await method()
        except BaseException as error:
            self.add(kinds.Raised, number, name, type(error).__name__)
            raise
        self.add(kinds.Returned, number, name, *_said_of(result))
        return result

    def begin(self, name: str, tasks: Sequence[str], owner: object) -> int:
        """Write down that something is called; return the number of the call."""
        self._calls += 1
        owner = owner if isinstance(owner, str) else None
        self.add(kinds.Called, self._calls, name, tasks, owner, self._lends())
        return self._calls

    def _tell_began(
        self, number: int, said: dict[str, Any], handle: TaskHandle
    ) -> None:
        work = said["work"]
        self.add(
            kinds.Began,
            number,
            handle.id,
            said.get("restart", "temporary"),
            said.get("intensity", 1),
            said.get("period", 5.0),
            work.quota if isinstance(work, Shell) else None,
        )

    def handed(self, notes: Iterable[Notification]) -> None:
        """Write down that a reader was handed these."""
        for note in notes:
            self.add(kinds.Envelope, note.id, note.task_id, note.xml)


_RUNTIME_CALLS = (
    "launch",
    "run",
    "stop",
    "stop_all",
    "stop_foreground",
    "wait_any",
    "wait_all",
    "wait_idle",
    "resume",
    "send",
)

_TREE_CALLS = (
    "start_child",
    "terminate_child",
    "terminate_children",
    "restart_child",
    "delete_child",
)

_NAMES = ("task", "tasks", "agent", "id", "ref", "refs", "spec")
"""The parameters that name tasks or children, whichever comes first."""


class _Twice:
    """What an iterable gives, and the error in which it ends, for two who read it."""

    def __init__(self, source: Iterable[object]) -> None:
        self.items: list[object] = []
        self._error: Exception | None = None
        # The boundary: the error is for whoever is given it.
        try:
            for item in source:
                self.items.append(item)
        except Exception as error:
            self._error = error

    def __iter__(self) -> Iterator[object]:
        yield from self.items
        if self._error is not None:
            raise self._error


def _ids(named: object) -> Sequence[str]:
    """Return the tasks or children that an argument names, if it names any."""
    several = named.items if isinstance(named, _Twice) else [named]
    return [
        it if isinstance(it, str) else it.id
        for it in several
        if isinstance(it, str | TaskHandle | ActorRef | ChildSpec)
    ]


def _said_of(result: object) -> tuple[Sequence[str], int, Sequence[str]]:
    """Return the tasks that a result says have ended, how many survivors it has, and
    the runs of those tasks."""
    results = cast("Any", result if isinstance(result, list) else [result])
    snapshots: list[Any] = [getattr(it, "snapshot", it) for it in results]
    over = [it for it in snapshots if getattr(it, "ended_at", None)]
    survivors = sum(len(getattr(it, "survivors", ())) for it in results)
    return [str(it.id) for it in over], survivors, [str(it.run_id) for it in over]


def _all_below(top: Children) -> Iterable[Children]:
    rest = [top]
    while rest:
        children = rest.pop(0)
        yield children
        for child in children.by_key.values():
            rest += child.below


class _Ear(Subscription):
    """Hears each event in the step in which it is told."""

    __slots__ = ("_log", "_supervisors", "_told")

    def __init__(
        self, stream: EventStream, log: Log, supervisors: dict[str, Children]
    ) -> None:
        super().__init__(stream, capacity=cast("int", inf))
        self._log = log
        self._supervisors = supervisors
        # Of each supervisor: the children that the log knows, maybe more.
        self._told = {it: set(it.by_key.values()) for it in supervisors.values()}

    @enable_ki_protection
    def offer(self, event: tuple[type[Event], tuple[Any, ...]]) -> None:
        kind, told = event
        if kind is AgentSaid:
            return
        seq, time, fields = told[0], told[1], told[2:]
        if kind is ChildStarted:
            self._look_at(time, *fields)
        elif kind is StopRequested or kind is ChildExited:
            self._look_whether_it_closes(time, fields[0])
        elif kind is SupervisorEnded:
            self._supervisors.pop(fields[0], None)
        self._log.write(kind, seq, time, fields)

    def _look_whether_it_closes(self, time: float, path: str) -> None:
        """Tell of one of the supervisors that it ends by itself: no stream does."""
        children = self._supervisors.get(path)
        if children is not None and children.closing:
            del self._supervisors[path]
            self._log.add(kinds.Closing, path, time=time)

    def missed_one(self) -> None:
        self._log.add(Gap, 1)

    def _look_at(self, time: float, path: str, id: str, number: int) -> None:
        """Tell of a child that is new to one of the supervisors, and of those that
        have a place before it and make their first step later."""
        children = self._supervisors.get(path)
        if children is None or children.dynamic or number != 1:
            return
        told, there = self._told[children], children.by_key.values()
        new = [*takewhile(lambda it: it not in told, reversed(there))]
        for child in reversed(new):
            self._log.specify(child, False, time=time)
        told.update(new)
        if len(told) > 2 * len(there):  # some were forgotten
            told.intersection_update(there)


def record(path: str | Path) -> Recorder:
    """Return a log that is written into a file, line by line.

    Use it round a real run, and `Log.recording` in it::

        with record("run.jsonl") as log:
            async with log.recording(open_runtime("tasks")) as runtime:
                ...

    ``trio-supervisor sim check run.jsonl`` tells whether all promises were kept. A line
    is in the file when what it tells has happened. If the file cannot be written any
    more, recording ends there, and a warning at the end says so. There is a trio when
    it begins and ends.

    Raises:
        OSError: if the file cannot be opened.
    """
    return Recorder(Path(path))


class Recorder(Log):
    """A `Log` in a file. `record` makes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb", buffering=0)
        super().__init__(self._keep)

    def _keep(self, entry: Entry) -> None:
        self._file.write(to_line(entry))

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(exc_type, exc, traceback)
        self._file.close()
        if self.failure is not None:
            import warnings

            text = f"{self.path} is not complete: {self.failure!r}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)


class Kept(Log):
    """A `Log` that is kept in memory."""

    def __init__(self, sim: Sim | None = None) -> None:
        self.entries: list[Entry] = []
        super().__init__(self.entries.append, sim)
