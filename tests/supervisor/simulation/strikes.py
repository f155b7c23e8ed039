"""How scenes call operations, so that each call can be struck, and how far it is.

An operation is struck under its own name: `call` and `block` make a target of nothing
but the call, and a name of the method that is really called. So what a sweep strikes is
known, and is not said by anybody.
"""

from __future__ import annotations

import os.path
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, CoroutineType
from typing import Any, TypeAlias, cast

import attrs
import trio
from trio.lowlevel import Task

from supervisor.simulation import (
    NothingToStrike,
    Sim,
    SweepReport,
    cancel_everywhere,
    fault_everywhere,
    raise_everywhere,
)
from supervisor.simulation._steering import loop
from supervisor.simulation._steering.policies import policy_of
from supervisor.simulation._steering.session import session
from supervisor.simulation._steering.simulate import once
from supervisor.simulation._steering.tape import ARRIVALS, CHECKPOINT, IN_WAIT

from .operations import PUBLIC

Scene: TypeAlias = Callable[[Sim], Awaitable[None]]


class Struck(OSError):
    """Raised in an operation, as the world might."""


STRIKES = (Struck, KeyboardInterrupt)

TRIO = os.path.dirname(trio.__file__)

ERRORS = {"OSError": Struck, "KeyboardInterrupt": KeyboardInterrupt}

# ---- How one is called -----------------------------------------------------------------


def name_of(kind: type, method: str = "") -> str:
    """Return the name of an operation of a class: of the public one at or above it."""
    names = [above.__name__ for above in kind.__mro__]
    name = next((it for it in names if it in PUBLIC), names[0])
    return f"{name}.{method}" if method else name


UNDER_WAY: dict[Task, tuple[str, object]] = {}
"""Which operation each task is in just now, and its coroutine if that is at hand; "" in
the body of a block."""


@contextmanager
def under_way(name: str, awaited: object = None) -> Generator[None]:
    task = trio.lowlevel.current_task()
    before = UNDER_WAY.get(task)
    UNDER_WAY[task] = name, awaited
    try:
        yield
    finally:
        del UNDER_WAY[task]
        if before is not None:
            UNDER_WAY[task] = before


async def call(
    sim: Sim, fn: Callable[..., Awaitable[Any]], *args: Any, **options: Any
) -> Any:
    """Call an operation as a target of sweeps; return None if it was struck.

    What strikes before its first wait is pending when it begins.
    """

    async def operation() -> Any:
        await trio.lowlevel.cancel_shielded_checkpoint()
        awaited = fn(*args, **options)
        with under_way(operation.__name__, awaited):
            return await awaited

    method = cast("Any", fn)
    holder = method.__self__
    operation.__name__ = name_of(type(holder), method.__name__)
    return await _catching(sim.target(operation)())


async def block(sim: Sim, manager: Any, body: Callable[[Any], object] = str) -> None:
    """Enter and leave an async context manager as one target. The body awaits at most
    one step of virtual time."""

    async def operation() -> None:
        with under_way(operation.__name__):
            async with manager as held:
                with under_way(""):
                    if body(held) is not None:
                        await trio.sleep(0.05)

    operation.__name__ = name_of(type(manager))
    await _catching(sim.target(operation)())


async def each(sim: Sim, things: Any, name: str = "") -> AsyncIterator[Any]:
    """Go through an async iterator, each step as a target; it ends where one is struck.

    With a ``name`` the steps are those of what that method returns.
    """

    async def operation() -> Any:
        await trio.lowlevel.cancel_shielded_checkpoint()
        with under_way(operation.__name__):
            return await anext(things, None)

    operation.__name__ = name or name_of(type(things), "__anext__")
    target = sim.target(operation)
    while (found := await _catching(target())) is not None:
        yield found


async def _catching(awaited: Awaitable[Any]) -> Any:
    try:
        return await awaited
    except STRIKES:
        return None
    except BaseExceptionGroup as group:
        _, rest = group.split(STRIKES)
        if rest is not None:
            raise rest from None
        return None


INTERRUPT = "interrupt"
"""The kind of the points at which only a KeyboardInterrupt comes out: checkpoints."""


# ---- How far it is ---------------------------------------------------------------------


@attrs.define
class Reach:
    """Where calls of one operation can be struck while they are under way."""

    stops: int = 0
    """How often a call was suspended."""
    waits: int = 0
    """How often in what an error can come out of; else it was a checkpoint."""
    through: set[CodeType] = attrs.Factory(set[CodeType])
    """The functions of ours in which a call was suspended."""
    targets: dict[str, set[str]] = attrs.Factory(dict[str, set[str]])
    """The calls that can be struck, for each kind of fault."""
    points: dict[str, int] = attrs.Factory(dict[str, int])
    """At how many points, likewise."""

    def add(self, other: Reach) -> None:
        self.stops += other.stops
        self.waits += other.waits
        self.through |= other.through
        for kind, points in other.points.items():
            self.points[kind] = self.points.get(kind, 0) + points


@cache
def reached(scene: Scene, seed: int = 0) -> dict[str, Reach]:
    """Return the operations that a scene calls, and how far."""
    found: dict[str, Reach] = {}

    def stepped(task: Task) -> None:
        name, awaited = UNDER_WAY.get(task, ("", None))
        if name:
            reach = found.setdefault(name, Reach())
            reach.stops += 1
            reach.waits += loop.can_throw(task)
            reach.through.update(_functions(awaited))

    ways = [("cancel", ARRIVALS), ("raise", (*IN_WAIT, CHECKPOINT))]
    with session():
        _, points = once(
            scene,
            policy_of(None).start(seed),
            seed=seed,
            count=ways,
            listen=lambda driver: driver.on_step.append(stepped),
        )
    for point in points:
        reach = found.setdefault(point.target.partition("#")[0], Reach())
        kind = INTERRUPT if point.arrival == CHECKPOINT else point.kind
        reach.targets.setdefault(kind, set()).add(point.target)
        reach.points[kind] = reach.points.get(kind, 0) + 1
    return found


def _functions(awaited: object) -> Iterator[CodeType]:
    """Yield the functions that a call is in, from the operation on, without trio's."""
    while isinstance(awaited, CoroutineType):
        if not awaited.cr_code.co_filename.startswith(TRIO):
            yield awaited.cr_code
        awaited = awaited.cr_await


# ---- How it is swept -------------------------------------------------------------------


def sweep(
    scene: Scene, kind: str, name: str | None = None, **options: Any
) -> SweepReport | None:
    """Strike all operations of a scene, or one; None if there is no point of that kind.

    The kind is ``cancel``, an error of `ERRORS`, or ``fault``: one of the world.
    """
    options["check"] = False
    if kind == "fault":
        try:
            return fault_everywhere(scene, **options)
        except NothingToStrike:
            return None
    if name is not None:
        ways = {"cancel": ["cancel"], "KeyboardInterrupt": ["raise", INTERRUPT]}
        there = reached(scene)[name].targets
        targets = {it for way in ways.get(kind, ["raise"]) for it in there.get(way, ())}
        if not targets:
            return None
        # Under another schedule there may be more calls of it.
        more = [f"{name}#*"] if targets != {name} else []
        options["targets"] = [*({name} & targets), *more]
    if kind == "cancel":
        return cancel_everywhere(scene, **options)
    return raise_everywhere(scene, ERRORS[kind], **options)
