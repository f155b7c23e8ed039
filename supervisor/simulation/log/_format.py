"""The log as lines: one JSON object each, with its number, its kind and the version of
the schema.

The lines of ``trio-supervisor run --json`` are such a log, too, of events alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import attrs
import orjson

from actors.text import encodable

from ... import runtime, tree
from ..._tasks.json import SCHEMA_VERSION
from ...runtime import AgentSaid
from ...tree import Event
from . import _kinds as kinds  # pyright: ignore[reportPrivateUsage]


class LogError(ValueError):
    """Raised for a line that is no line of a log. It names the line and what is wrong
    with it."""


@attrs.frozen
class Entry:
    """One line of a log."""

    number: int
    """The number of the line, as it says itself; from its place if it says none."""
    step: int | None
    """In a simulated run: how many steps tasks had taken."""
    event: Event


KINDS: dict[str, type[Event]] = {
    name: kind
    for module in (tree, runtime, kinds)
    for name, kind in vars(module).items()
    if isinstance(kind, type)
    and issubclass(kind, Event)
    and kind not in (Event, AgentSaid)
}
"""Every kind of line by its name."""

_UNKEPT = ("AgentEvent",)
"""Kinds that are known and left out: what agents say is theirs."""


def to_line(entry: Entry) -> bytes:
    """Return a line of a log, with its newline."""
    event = entry.event
    fields: dict[str, Any] = {
        "n": entry.number,
        "kind": type(event).__name__,
        "version": SCHEMA_VERSION,
    }
    if entry.step is not None:
        fields["step"] = entry.step
    for name in _names(cast("Any", type(event))):
        value = getattr(event, name)
        fields[name] = encodable(value) if isinstance(value, str) else value
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def read(lines: Iterable[bytes | str]) -> Iterator[Entry]:
    """Yield the entries of a log, in order.

    Lines of a kind that is not known here are left out, with one warning for each kind.

    Raises:
        LogError: for a line that is not one of a log, or of another version of the
            schema. It names the line.
    """
    unknown: dict[str, int] = {}
    last: Event | None = None
    for place, line in enumerate(lines, 1):
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise LogError(f"line {place}: it is no JSON: {error}") from None
        if not isinstance(fields, dict) or "kind" not in fields:
            raise LogError(
                f"line {place}: expected an object with a kind, got {line!r}"
            )
        said = cast("dict[str, Any]", fields)
        if said.get("version") != SCHEMA_VERSION:
            raise LogError(
                f"line {place}: expected version {SCHEMA_VERSION} of the schema, got "
                f"{said.get('version')!r}"
            )
        kind = KINDS.get(said["kind"])
        if kind is None:
            if said["kind"] not in _UNKEPT:
                unknown.setdefault(str(said["kind"]), place)
            continue
        if last is not None:  # `run --json` tells no time of an Envelope.
            said.setdefault("seq", last.seq)
            said.setdefault("time", last.time)
        try:
            last = kind(*[take(said) for take in _plan(cast("Any", kind))])
            yield Entry(_optional(said, "n", place), said.get("step"), last)
        except _Misfit as error:
            raise LogError(f"line {place}: {error} of {kind.__name__}") from None
    for name, place in unknown.items():
        text = f"lines of the kind {name!r}, the first in line {place}, are left out"
        warnings.warn(f"{text}: it is not known here", stacklevel=2)


class _Misfit(Exception):
    pass


def _optional(said: dict[str, Any], name: str, default: int) -> int:
    value = said.get(name, default)
    if type(value) is not int:
        raise _Misfit(f"{name}: expected int, got {value!r}")
    return value


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(it.name for it in attrs.fields(kind))


@cache
def _plan(kind: Any) -> tuple[Callable[[dict[str, Any]], Any], ...]:
    """Return what takes each field of a kind out of a line."""
    types = get_type_hints(kind)
    return tuple(_taker(it, types[it.name]) for it in attrs.fields(kind))


def _taker(field: attrs.Attribute[Any], wanted: Any) -> Callable[[dict[str, Any]], Any]:
    name, default = field.name, field.default
    allowed = (
        get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
    )
    classes: tuple[type, ...] = tuple(
        list if get_origin(it) is not None else it for it in allowed
    )
    if float in classes:
        classes += (int,)

    def take(said: dict[str, Any]) -> Any:
        value = said.get(name, default)
        if isinstance(value, classes) and (type(value) is not bool or bool in classes):
            return value
        if value is default and value is not attrs.NOTHING:
            return value
        if value is attrs.NOTHING:
            raise _Misfit(f"there is no {name}")
        what = " or ".join(it.__name__ for it in classes)
        raise _Misfit(f"{name}: expected {what}, got {value!r}")

    return take
