"""Experiments with structured concurrency, as code: what is a decision elsewhere is a
parameter here.

    async def program(sim, delivery, depth):        # returns what is measured
        async with open_group(delivery=delivery) as group:
            ...
        return {"latency": ...}

    rows = experiment(program, seeds=20, delivery=["level", "edge"], depth=range(1, 9))

Each row is one run, with its parameters, what it returned, and the manifest. The same
call gives the same rows, but for the time at which they were ``written``.
`supervisor.simulation.studies` has two that are worked out.

A group is a nursery of which two things can be chosen: when it ends (`Join`), and how a
cancel is delivered (`Delivery`). Strategies and restart policies are parameters of
`supervisor.tree` already.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Container,
    Iterable,
    Mapping,
)
from contextlib import asynccontextmanager
from functools import partial, wraps
from inspect import signature
from itertools import product
from typing import Any, Literal, cast

import trio
from trio.lowlevel import Task

from ._errors import NotAProgram
from ._public import publish
from ._search.explore import read_seeds
from ._steering import loop
from ._steering.policies import POLICY
from ._steering.sim import Sim
from ._steering.simulate import called, simulate
from .trace import manifest

Delivery = Literal["level", "edge"]
"""``level`` is trio's: who is cancelled is told at each checkpoint, until the scope is
left. By ``edge`` it is told once, as in asyncio: through the abort function of what it
waits for, so at the next checkpoint that waits for something. One that only lets others
run, as `trio.lowlevel.checkpoint`, has none."""

Join = Literal["all", "first", "body"]
"""When a group ends: when all have ended, as a nursery; it is cancelled when the first
task has returned; or when its block has ended."""

DELIVERIES: tuple[Delivery, ...] = ("level", "edge")

JOINS: tuple[Join, ...] = ("all", "first", "body")


def experiment(
    program: Callable[..., Awaitable[Mapping[str, Any] | None]],
    *,
    seeds: int | Iterable[int] = 1,
    limit: float = 3600.0,
    **parameters: Iterable[Any],
) -> list[dict[str, Any]]:
    """Run a program under the simulator for each combination of parameters and each
    seed, and return one row for each run.

    ``program`` gets a `Sim` and one value of each parameter by its name, and returns
    what it has measured. A row has the parameters, the seed, that, how the run ended
    (``error``, or nothing), its ``steps`` and virtual ``seconds``, its digest, and the
    manifest with the ``policy`` that has made the schedule of the seed. No two of these
    have one name: raises ValueError, and TypeError for what is not measured by names.
    """
    for name, values in parameters.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise TypeError(f"{name} must be several values, not {values!r}")
    numbers = [*read_seeds(seeds)]
    every = [*product(*map(list, parameters.values()))]
    if not (every and numbers):
        raise ValueError(
            "seeds or a parameter has no value, and no run measures nothing"
        )
    rows: list[dict[str, Any]] = []
    about = manifest(policy=POLICY)
    own = {"seed", "error", "steps", "seconds", "digest", *about}
    _require_free("there is a parameter", parameters, own)
    _require_taken(program, parameters)
    for values in every:
        chosen = dict(zip(parameters, values, strict=True))
        for seed in numbers:
            run = simulate(_with(program, chosen), seed=seed, limit=limit)
            told = _told(program, run.value)
            _require_free(f"{called(program)} returns", told, own | {*chosen})
            rows.append(
                {
                    **chosen,
                    "seed": seed,
                    **told,
                    "error": "" if run.error is None else type(run.error).__name__,
                    "steps": run.steps,
                    "seconds": run.seconds,
                    "digest": run.digest,
                    **about,
                }
            )
    return rows


def _with(program: Any, chosen: Mapping[str, Any]) -> Callable[[Sim], Awaitable[Any]]:
    # Not a partial of a lambda: the simulator looks at the file of the program.
    return wraps(program)(partial(program, **chosen))


def _require_free(what: str, names: Iterable[str], taken: Container[str]) -> None:
    for name in names:
        if name in taken:
            text = "which each row has already: give it another name"
            raise ValueError(f"{what} {name!r}, {text}")


def _require_taken(program: Any, parameters: Iterable[str]) -> None:
    """Raise NotAProgram for a program that does not take what it is to get."""
    try:
        signature(program).bind(None, **dict.fromkeys(parameters))
    except TypeError as error:
        given = ", ".join(["a `Sim`", *parameters])
        raise NotAProgram(f"{called(program)} is given {given}: {error}") from error
    except ValueError:  # It does not say what it takes.
        pass


def _told(program: Any, value: object) -> Mapping[str, Any]:
    """Return what a program has measured. Raises TypeError for what has no names."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        text = "must return what it has measured by names, as {'latency': 2.5}"
        raise TypeError(f"{called(program)} {text}, not {value!r:.80}")
    return cast("Mapping[str, Any]", value)


# ---- Groups -------------------------------------------------------------------------------


class Group:
    """Tasks that end together. `open_group` makes one."""

    def __init__(self, nursery: trio.Nursery, delivery: Delivery, join: Join) -> None:
        self._nursery = nursery
        self._join: Join = join
        self._edge = _edge() if delivery == "edge" else None
        self._host = trio.lowlevel.current_task()
        self._tasks: dict[Task, None] = {}  # in the order of their births
        self._told: dict[Task, trio.Cancelled] = {}  # by this group
        self.errors: list[Exception] = []
        """Of tasks and of the block, by edge."""
        self._is_cancelled = False
        self._in_block = True
        self._changed = trio.Event()

    def start_soon(
        self, fn: Callable[..., Awaitable[object]], *args: Any, name: object = None
    ) -> None:
        """Start a task in the group."""
        self._nursery.start_soon(self._run, fn, args, name=fn if name is None else name)

    def cancel(self) -> None:
        """Cancel the block and all tasks of the group, in the way that was chosen.

        By edge, each of them is told once, when it waits for something that can be
        given up and no shield stands before it. A task that opens a group of its own
        hands it on when it is told; so does nobody else. A nursery would catch it.
        """
        if self._edge is None:
            self._nursery.cancel_scope.cancel()
            return
        if self._is_cancelled:
            return
        self._is_cancelled = True
        tasks = [*self._tasks, *([self._host] if self._in_block else [])]
        for task in tasks:
            self._tell(self._edge, task)

    async def _run(
        self, fn: Callable[..., Awaitable[object]], args: tuple[Any, ...]
    ) -> None:
        if self._edge is None:
            await fn(*args)
        else:
            await self._run_by_edge(self._edge, fn, args)
        if self._join == "first":
            self.cancel()

    async def _run_by_edge(
        self, edge: _Edge, fn: Callable[..., Awaitable[object]], args: tuple[Any, ...]
    ) -> None:
        task = trio.lowlevel.current_task()
        self._tasks[task] = None
        try:
            if self._is_cancelled:
                self._tell(edge, task)
            await fn(*args)
        except trio.Cancelled as error:  # noqa: ASYNC103 (it is ours, and ends here)
            if error is not self._told.get(task):
                raise
        except Exception as error:
            self.fail(error)  # Not to the nursery, which would cancel by level.
        finally:
            del self._tasks[task]
            self._forget(edge, task)
            self._changed.set()

    def _tell(self, edge: _Edge, task: Task) -> None:
        error = self._told[task] = loop.new_cancelled()
        edge.tell(task, error, self._nursery.cancel_scope)

    def _forget(self, edge: _Edge, task: Task) -> None:
        """A task is no more in the group, whether it was told by now or not."""
        error = self._told.pop(task, None)
        if error is not None:
            edge.forget(task, error)

    # ---- For `open_group` ----------------------------------------------------------

    def has_told(self, error: trio.Cancelled) -> bool:
        """Tell whether this group or one above has told an error, and not trio."""
        return self._edge is not None and self._edge.is_ours(error)

    def has_told_host(self, error: trio.Cancelled) -> bool:
        """Tell whether this group has told its block of an error."""
        return error is self._told.get(self._host)

    def fail(self, error: Exception) -> None:
        """Cancel the group because of an error, which comes out at its end."""
        self.errors.append(error)
        self.cancel()

    async def wait(self) -> trio.Cancelled | None:
        """Wait until all tasks have ended; return what a group above has told."""
        told: trio.Cancelled | None = None
        edge, self._in_block = self._edge, False
        if edge is None:
            return None  # The nursery waits.
        self._forget(edge, self._host)
        while self._nursery.child_tasks:
            self._changed = trio.Event()
            try:
                await self._changed.wait()
            except trio.Cancelled as error:  # noqa: ASYNC103 (it is ours, and ends here)
                if not edge.is_ours(error):
                    raise
                told = error
                self.cancel()
        return told


@asynccontextmanager
async def open_group(
    *, delivery: Delivery = "level", join: Join = "all"
) -> AsyncGenerator[Group]:
    """Open a group of tasks, which have all ended when its block has.

    By level it is a nursery. By edge, its tasks and its block are told of a cancel once,
    and go on if they keep it to themselves. An error of a task cancels the others and
    comes out in an ExceptionGroup.

    Raises ValueError for a way that there is not.
    """
    if delivery not in DELIVERIES:
        raise ValueError(f"deliveries are {', '.join(DELIVERIES)}; not {delivery!r}")
    if join not in JOINS:
        raise ValueError(f"joins are {', '.join(JOINS)}; not {join!r}")
    above: trio.Cancelled | None = None
    async with trio.open_nursery() as nursery:
        group = Group(nursery, delivery, join)
        try:
            yield group
        except trio.Cancelled as error:  # noqa: ASYNC103 (it is ours, and ends here)
            if not group.has_told(error):
                raise
            if not group.has_told_host(error):
                above = error
            group.cancel()
        except Exception as error:
            if delivery == "level":
                raise
            group.fail(error)
        if join == "body":
            group.cancel()
        above = await group.wait() or above
    if group.errors:
        raise ExceptionGroup("errors of a group", group.errors)
    if above is not None:
        raise above  # It goes on to the group that has told it.


class _Edge(trio.abc.Instrument):
    """Tells tasks of a cancel once: at once, or when they wait for something next."""

    def __init__(self) -> None:
        self._waiting: dict[Task, dict[trio.Cancelled, trio.CancelScope]] = {}
        self._ours: dict[int, trio.Cancelled] = {}

    def tell(self, task: Task, error: trio.Cancelled, scope: trio.CancelScope) -> None:
        """Let a task raise an error where it waits inside of a scope."""
        self._ours[id(error)] = error
        self._waiting.setdefault(task, {})[error] = scope
        if task is not trio.lowlevel.current_task():
            self.after_task_step(task)

    def after_task_step(self, task: Task) -> None:
        """Hear that a task has taken a step, and may wait for something now."""
        for error, scope in [*self._waiting.get(task, {}).items()]:
            can_be_told = loop.can_throw(task) and not loop.is_shielded(task, scope)
            if can_be_told and loop.throw(task, error):
                del self._waiting[task][error]

    def task_exited(self, task: Task) -> None:
        """Hear that a task has ended."""
        self._waiting.pop(task, None)

    def is_ours(self, error: trio.Cancelled) -> bool:
        """Tell whether an error is one by which a task was told."""
        return id(error) in self._ours

    def forget(self, task: Task, error: trio.Cancelled) -> None:
        """Tell a task no more, if it was not told by now."""
        self._ours.pop(id(error), None)
        self._waiting.get(task, {}).pop(error, None)


_edges: trio.lowlevel.RunVar[_Edge] = trio.lowlevel.RunVar("edges")


def _edge() -> _Edge:
    """Return the instrument of this run."""
    try:
        return _edges.get()
    except LookupError:
        edge = _Edge()
        _edges.set(edge)
        trio.lowlevel.add_instrument(edge)
        return edge


__all__ = ["Group", "experiment", "open_group"]

publish(globals())
