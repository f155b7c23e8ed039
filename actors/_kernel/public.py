"""Public names that give their public module as their own, and not the private one in
which they are written: in tracebacks, in `repr`, and in `help`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import FunctionType
from typing import Any, cast, get_origin, get_type_hints

import attrs


def publish(namespace: Mapping[str, Any], home: str | None = None) -> None:
    """Set ``__module__`` of what a module lists in ``__all__`` to that module, where it
    names a private one, and let `help` show how the classes are called.

    Call it at the end of the module, with its ``globals()``. A private module whose
    names another loads late calls it with that one as ``home``.
    """
    module: str = home or namespace["__name__"]
    known = dict[str, dict[str, Any]]()
    for name in namespace["__all__"]:
        offered = namespace.get(name)
        if not isinstance(offered, type | FunctionType):
            continue
        if any(part.startswith("_") for part in offered.__module__.split(".")):
            if isinstance(offered, type) and attrs.has(offered):
                _resolve(offered, known)
            offered.__module__ = module
        if isinstance(offered, type):
            _show_call(offered)


def _resolve(kind: type[Any], known: dict[str, dict[str, Any]]) -> None:
    # Annotations are looked up in the module that a class names, also by cattrs when
    # it makes JSON: so they must be resolved before that name changes. What attrs has
    # for it evaluates each of them, and most are there many times.
    found = dict[str, Any]()
    try:
        for base in reversed(kind.__mro__):
            own = vars(base).get("__annotations__", {})
            types = known.setdefault(base.__module__, {})
            texts = {
                it: it for it in own.values() if isinstance(it, str) and it not in types
            }
            if texts:
                space = {"__module__": base.__module__, "__annotations__": texts}
                types |= get_type_hints(type("Texts", (), space), include_extras=True)
            for name, given in own.items():
                found[name] = types[given] if isinstance(given, str) else given
    except NameError:  # It is there for type checkers only.
        return
    kind.__annotations__.update({name: found[name] for name in kind.__annotations__})
    for field in attrs.fields(kind):
        # As attrs.resolve_types does it.
        object.__setattr__(field, "type", found[field.name])


def _show_call(kind: type[Any]) -> None:
    init = kind.__dict__.get("__init__")
    if not isinstance(init, FunctionType):
        return
    # help() would show that a call of the class returns None.
    init.__annotations__.pop("return", None)
    if not attrs.has(kind):
        return
    made = {
        field.alias: _Made(field.default)
        for field in attrs.fields(kind)
        if isinstance(field.default, attrs.Factory)  # type: ignore[arg-type]
    }
    if made:
        shown = inspect.signature(init)
        parameters = [
            parameter.replace(default=made[name]) if name in made else parameter
            for name, parameter in shown.parameters.items()
        ]
        shown = shown.replace(parameters=parameters)
        cast("Any", init).__signature__ = shown


class _Made:
    """Stands in a signature for a default that is made anew each time."""

    def __init__(self, default: Any) -> None:
        made = get_origin(default.factory) or default.factory
        self._shown = "{}" if made is dict else f"{made.__name__}()"

    def __repr__(self) -> str:
        return self._shown
