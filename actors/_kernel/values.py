"""Values: objects that are what their fields are.

`define` and `frozen` are those of attrs, but for when it writes ``__eq__``,
``__hash__`` and ``__repr__`` of a class: with the first call of one of them. Else it
compiles them at each import, which was a quarter of what that of a runtime takes, and
those of most classes are never called. It is for classes that are no exceptions, and
for frozen ones there is `frozen`. Objects that are themselves, and not what they
hold, are made by attrs, with ``eq=False, repr=False``.

`plain` is `frozen` for type checkers, which refuse to set a field. At run time nothing
does: to make a frozen object of seven fields takes three to five times as long. It is
for events and snapshots, of which each reader has objects of his own, so that one who
changes his harms nobody; and for messages that stay inside.
"""

from __future__ import annotations

from collections.abc import Container
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from attrs import define as define
    from attrs import frozen as frozen
    from attrs import frozen as plain
else:

    def define(
        kind: type | None = None,
        /,
        *,
        unsafe_hash: bool | None = None,
        **options: Any,
    ) -> Any:
        if kind is None:
            return partial(define, unsafe_hash=unsafe_hash, **options)
        own = vars(kind)
        value = attrs.define(kind, eq=False, repr=False, **options)
        _write_late(value, own, unsafe_hash)
        return value

    frozen = partial(define, frozen=True, unsafe_hash=True)
    plain = partial(define, unsafe_hash=True)

__all__ = ["define", "frozen", "plain"]


def _write_late(kind: Any, own: Container[str], unsafe_hash: bool | None) -> None:
    """Let attrs write the methods that ``kind`` has not as its ``own`` when one of them
    is called."""

    def write() -> None:
        written = _written(kind, unsafe_hash)
        for name in late:
            setattr(kind, name, getattr(written, name))

    def __eq__(self: Any, other: object) -> Any:
        write()
        return kind.__eq__(self, other)

    def __hash__(self: Any) -> int:
        write()
        return kind.__hash__(self)  # type: ignore[no-any-return]

    def __repr__(self: Any) -> str:
        write()
        return kind.__repr__(self)  # type: ignore[no-any-return]

    late = {
        method.__name__: method
        for method in (__eq__, __hash__, __repr__)
        if method.__name__ not in own
    }
    for name, method in late.items():
        setattr(kind, name, method)
    if "__hash__" in late and not unsafe_hash:
        kind.__hash__ = None


def _written(kind: type[Any], unsafe_hash: bool | None) -> type[Any]:
    """Make a class whose methods are those of ``kind``."""
    fields = {
        field.name: attrs.field(
            eq=field.eq_key or field.eq, hash=field.hash, repr=field.repr
        )
        for field in attrs.fields(kind)
    }
    space = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return attrs.define(
        type(kind.__name__, (), space),
        these=fields,
        unsafe_hash=unsafe_hash,
        init=False,
        slots=False,
    )
