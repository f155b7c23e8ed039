"""Which public operations there are, each of which some scene has to strike.

An operation is what a caller awaits, goes through by ``async for`` or enters by ``async
with``. `operations` finds them in what modules export, and in what that hands out: the
classes that a public function, method or property says it returns, however far.

Not looked at are fields, arguments, and what a function of the user's gets: nothing of
ours comes that way but what a module exports as well.
"""

from __future__ import annotations

import builtins
import collections.abc
import inspect
import re
import sys
import typing
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cached_property, partialmethod
from types import ModuleType
from typing import Any, cast

import trio

import actors
import actors.agent
import actors.shell
import supervisor.runtime
import supervisor.tree

# So that the classes in them are known.
from supervisor import agents as agents
from supervisor import schedule as schedule
from supervisor import tools as tools

MODULES = (actors, actors.agent, actors.shell, supervisor.tree, supervisor.runtime)

PUBLIC = {name for module in MODULES for name in module.__all__}

LEFT_OUT = {
    "OwnTask.*": "a protocol; what an agent is given is a TaskHandle, which is struck",
    "Task.*": "the record of a task, which a handle gives to its own runtime",
    "Growth.*": "likewise, what a record knows of its output",
    "TranscriptLog.*": "what the run of an agent writes by; `TranscriptStore.load` and "
    "`flush` wait for it",
    "TranscriptStore.finish": "for the one writer that a runtime has",
    "TranscriptStore.wait_settled": "what `TranscriptStore.flush` waits by",
    "TranscriptStore.write": "for the one writer that a runtime has",
    "TranscriptStore.write_wanted": "for the one writer that a runtime has",
}
"""What no scene strikes by itself, and why. The faults of the world and the crashes of
the disk meet it all the same."""

NEVER_WAIT = {
    "AgentEvents.aclose": "it lets others run after it has closed",
    "Supervisor.delete_child": "it lets others run, and then forgets the child at once",
    "Wake": "it is entered and left at once; what strikes it arrives in its block",
}
"""Out of what nothing can come but a cancel or a Ctrl+C, and why: it only makes
checkpoints."""

# ---- What is one -------------------------------------------------------------------------

_PROMISES = re.compile(
    r"\b(Awaitable|Coroutine|Async(Iterator|Iterable|Generator|ContextManager)"
    r"|AbstractAsyncContextManager)\b"
)

_ELSEWHERE = (builtins, collections.abc, typing, trio, re)
"""Whose names a return type may have that is none of ours."""


def operations(modules: Iterable[ModuleType] = MODULES) -> set[str]:
    """Return the name of every public operation that is not left out."""
    return {it for it in found(modules) if not is_left_out(it)}


def is_left_out(name: str) -> bool:
    """Tell whether no scene has to strike an operation by itself."""
    return any(fnmatchcase(name, it) for it in LEFT_OUT)


def found(modules: Iterable[ModuleType] = MODULES) -> set[str]:
    """Return the name of every operation that modules export or hand out."""
    modules = list(modules)
    ours = _classes(modules)
    names: set[str] = set()
    todo = [(it, getattr(module, it)) for module in modules for it in module.__all__]
    seen: list[object] = []
    while todo:
        name, it = todo.pop()
        if any(it is other for other in seen):
            continue
        seen.append(it)
        parts = _parts(name, it) if inspect.isclass(it) else [(name, it)]
        for part, value in parts:
            fn = function_of(value)
            if part.endswith(".__aenter__"):
                names.add(name)
            elif part.endswith((".__anext__", ".__await__")) or is_operation(fn):
                names.add(part)
            todo += [(kind.__name__, kind) for kind in _returned(part, fn, ours)]
    return names


def is_operation(fn: Any) -> bool:
    """Tell whether to call a function gives something to await, enter or go through."""
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        return True
    return _PROMISES.search(_promised(fn)) is not None


def _parts(name: str, kind: type) -> Iterator[tuple[str, Any]]:
    """Yield what is public of a class, inherited or not, as it is written there."""
    for part in dir(kind):
        if not part.startswith("_") or part in SPECIAL:
            yield f"{name}.{part}", inspect.getattr_static(kind, part)


SPECIAL = ("__aenter__", "__aiter__", "__anext__", "__await__", "__call__")


def function_of(it: Any) -> Any:
    """Return the function in a method of any sort; None for what is no function."""
    match it:
        case classmethod() | staticmethod():
            it = it.__func__  # pyright: ignore[reportUnknownMemberType]
        case property():
            it = it.fget
        case cached_property() | partialmethod():
            it = it.func  # pyright: ignore[reportUnknownMemberType]
        case _:
            pass
    if inspect.isclass(it) or not callable(it):
        return None
    it = inspect.unwrap(cast("Any", it))
    if inspect.isroutine(it):
        return it
    return inspect.getattr_static(type(it), "__call__")


def _promised(fn: Any) -> str:
    return str(getattr(fn, "__annotations__", {}).get("return", ""))


def _returned(name: str, fn: Any, ours: dict[str, list[type]]) -> Iterator[type]:
    """Yield the classes of ours that a function says it returns. Raises LookupError for
    a class that nobody knows, which would hide what it has."""
    names: dict[str, Any] = getattr(fn, "__globals__", {})
    for word in re.findall(r"\b[A-Z]\w+", re.sub(r"'.*?'", "", _promised(fn))):
        if word in ours:
            yield from ours[word]
        elif word not in names and not any(hasattr(it, word) for it in _ELSEWHERE):
            raise LookupError(f"import the module of {word}, which {name} returns")


def _classes(modules: Iterable[ModuleType]) -> dict[str, list[type]]:
    """Return each name in modules of ours that are loaded, and in some others, with the
    classes that have it."""
    all_of: dict[str, list[type]] = defaultdict(list)
    for module in {**sys.modules, **{it.__name__: it for it in modules}}.values():
        name = getattr(module, "__name__", "")
        if name.startswith(("actors.testing", "supervisor.simulation")):
            continue  # They are no part of what is struck.
        if name.partition(".")[0] in ("actors", "supervisor") or module in modules:
            for known, it in list(vars(module).items()):
                named = all_of[known]
                if inspect.isclass(it) and it.__module__ == name and it not in named:
                    named.append(it)
    return all_of
