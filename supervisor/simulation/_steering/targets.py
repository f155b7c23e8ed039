"""Whom a sweep strikes: calls of functions, each in a cancel scope of ours.

Nothing of the program is touched: the scope is around the call, so a cancel of it is
what a caller could do at any time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial, wraps
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast

import attrs
import trio
from trio.lowlevel import Task

from . import sites
from .checks import require_texts
from .run import Driver

Fn = TypeVar("Fn", bound=Callable[..., Awaitable[Any]])


@attrs.define(eq=False)
class Target:
    """One call that can be struck."""

    name: str
    task: Task
    scope: trio.CancelScope
    given: tuple[trio.Nursery, ...]
    """The nurseries that are its arguments, or attributes of one."""
    chosen: bool
    """The program has named it."""
    started: list[Task] = attrs.Factory(list[Task])
    """Whom it has started, at any distance."""
    struck: str = ""
    """Where it was when it was struck."""
    told: bool = False
    """It was sent a Cancelled of which our scope is the only cause."""

    @property
    def can_be_struck(self) -> bool:
        """A task that `nursery.start` waits for can be cancelled by its starter only."""
        return self.task.eventual_parent_nursery is None


class Targets:
    """The targets of one run, by name."""

    def __init__(self, driver: Driver, own: tuple[str, str]) -> None:
        self.live: dict[str, Target] = {}
        self.chosen = False
        """The program has named its targets."""
        self.on_end: list[Callable[[Target, bool], object]] = []
        self._driver = driver
        self._own = own
        self._calls: dict[str, int] = {}
        driver.on_spawn.append(self._spawned)

    def choose(self, fn: Fn) -> Fn:
        """Return a function of which each call is a target, and no other call is."""
        if not self.chosen:
            self.chosen = True
            self.live.clear()
            self._driver.begun.clear()
        wrapped: Fn = self._wrap(fn, chosen=True)
        return wrapped

    def starts(self, fn: Any) -> Any:
        """Return what a nursery is to start instead of a function."""
        code = None if getattr(fn, "is_target", False) else file_of(fn)
        if code is None or not sites.is_own(code, self._own):
            return fn
        return self._wrap(fn, chosen=False)

    def _wrap(self, fn: Any, chosen: bool) -> Any:
        name = getattr(function_of(fn), "__name__", "call")
        kind: Any = Awaitable if chosen else Coroutine

        # No async function: the number is that of the call, and what is wrong with the
        # call is told at once, by trio if nothing can be awaited.
        @wraps(function_of(fn))
        def target(*args: Any, **options: Any) -> Any:
            begun: Any = fn(*args, **options)
            if not isinstance(begun, kind):
                return begun
            times = self._calls[name] = self._calls.get(name, 0) + 1
            full = name if times == 1 else f"{name}#{times}"
            holder = getattr(function_of(fn), "__self__", None)
            held = (*args, *options.values(), *_held_by(fn), holder)
            call: Any = self._call(full, chosen, begun, held)
            # Whoever looks at the coroutine of a task sees the name of his own.
            call.__name__ = getattr(begun, "__name__", name)
            call.__qualname__ = getattr(begun, "__qualname__", name)
            return call

        target.is_target = True  # type: ignore[attr-defined]
        return target

    async def _call(
        self, name: str, chosen: bool, begun: Awaitable[Any], given: tuple[Any, ...]
    ) -> Any:
        if self.chosen and not chosen:
            return await begun
        scope = trio.CancelScope()
        task = trio.lowlevel.current_task()
        target = Target(name, task, scope, _nurseries(given), chosen)
        self.live[name] = target
        self._driver.begun[name] = not target.can_be_struck
        returned = False
        try:
            with scope:
                value = await begun
                returned = True
                return value
        finally:
            self.live.pop(name, None)
            for heard in self.on_end:
                heard(target, returned)

    def _spawned(self, task: Task, by: Task | None) -> None:
        if by is not None:
            for target in self.live.values():
                if by is target.task or by in target.started:
                    target.started.append(task)


def read_names(names: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """Return the names that are asked for, with ``*``; None if all are. Raises ValueError
    if there is none."""
    if names is None:
        return None
    read = require_texts("targets", (names,) if isinstance(names, str) else names)
    if not read:
        raise ValueError("no name strikes nobody: give some, or None for all")
    return read


def any_named(there: Iterable[str], name: str) -> bool:
    """Tell whether a name that is asked for, with ``*``, is that of something there."""
    return any(fnmatchcase(it, name) for it in there)


def is_named(name: str, names: Sequence[str] | None) -> bool:
    """Tell whether a name is one that is asked for."""
    return names is None or any(fnmatchcase(name, it) for it in names)


def function_of(fn: Any) -> Any:
    """Return the function inside of partials."""
    while isinstance(fn, partial):
        fn = fn.func
    return fn


def _held_by(fn: Any) -> list[Any]:
    """Return the arguments that partials have: for a nursery the only way of keywords."""
    held: list[Any] = []
    while isinstance(fn, partial):
        held += [*fn.args, *fn.keywords.values()]
        fn = fn.func
    return held


def file_of(fn: Any) -> str | None:
    """Return the file in which a callable is written; None if it says none."""
    if isinstance(fn, MethodType):
        fn = fn.__func__
    if isinstance(fn, FunctionType) and not fn.__dict__:
        return fn.__code__.co_filename  # As most are, in each task of each run.
    fn = function_of(fn)
    while hasattr(fn, "__wrapped__"):
        fn = fn.__wrapped__
    fn = getattr(function_of(fn), "__func__", fn)
    if not hasattr(fn, "__code__"):
        kind = cast("Any", type(fn))
        fn = getattr(kind, "__call__", fn)  # noqa: B004 (its code is wanted)
    code = getattr(fn, "__code__", None)
    return None if code is None else str(code.co_filename)


def _nurseries(given: tuple[Any, ...]) -> tuple[trio.Nursery, ...]:
    found: list[trio.Nursery] = []
    for it in given:
        held = list(getattr(it, "__dict__", {}).values())
        for kind in type(it).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            names = (slots,) if isinstance(slots, str) else slots
            held += [getattr(it, name, None) for name in names]
        found += [one for one in (it, *held) if isinstance(one, trio.Nursery)]
    return tuple(found)
