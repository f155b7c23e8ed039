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

from actors import TaskStatus
from actors.text import encodable

from ... import runtime, tree
from ..._tasks.endings import ENDED_BY
from ..._tasks.json import SCHEMA_VERSION
from ...runtime import AgentSaid
from ...tree import Event
from ...tree._spec import Restart, Strategy
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
    simulated: bool | None = None
    for place, line in enumerate(lines, 1):
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise LogError(f"line {place}: it is no JSON: {error}") from None
        if not isinstance(fields, dict) or not isinstance(_kind(fields), str):
            raise LogError(
                f"line {place}: expected an object with a kind, got {line!r}"
            )
        said = cast("dict[str, Any]", fields)
        version = said.get("version")
        if type(version) is not int or version != SCHEMA_VERSION:
            raise LogError(
                f"line {place}: expected version {SCHEMA_VERSION} of the schema, got "
                f"{version!r}"
            )
        kind = KINDS.get(said["kind"])
        if kind is None:
            if said["kind"] not in _UNKEPT:
                unknown.setdefault(said["kind"], place)
            continue
        if last is not None:  # `run --json` tells no time of an Envelope.
            said.setdefault("seq", last.seq)
            said.setdefault("time", last.time)
        try:
            last = kind(*[take(said) for take in _plan(cast("Any", kind))])
            number = cast("int", _optional(said, "n", place))
            step = _optional(said, "step", None)
            if simulated not in (None, step is not None):
                raise _Misfit("step: expected it in all lines or none, not in some")
            simulated = step is not None
            yield Entry(number, step, last)
        except _Misfit as error:
            raise LogError(f"line {place}: {error} of {kind.__name__}") from None
    for name, place in unknown.items():
        text = f"lines of the kind {name!r}, the first in line {place}, are left out"
        warnings.warn(f"{text}: it is not known here", stacklevel=2)


class _Misfit(Exception):
    pass


def _kind(fields: Any) -> object:
    return fields.get("kind")


def _optional(said: dict[str, Any], name: str, default: int | None) -> int | None:
    value = said.get(name, default)
    if type(value) is not int and value is not default:
        raise _Misfit(f"{name}: expected int, got {value!r}")
    return value


_WORDS: dict[str, tuple[str, ...]] = {
    "exit": ("completed", "failed", "stopped"),
    "status": tuple(it.value for it in TaskStatus if it.is_terminal),
    "ended_by": ENDED_BY,
    "restart": get_args(Restart),
    "strategy": get_args(Strategy),
    "signal": ("term", "kill"),
}
"""What the fields of these names say, if it is a text. What a checker does not
understand would pass it."""

_SIGNED = ("time", "code", "exit_code")
"""Numbers that may be below 0."""


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(it.name for it in attrs.fields(kind))


@cache
def _plan(kind: Any) -> tuple[Callable[[dict[str, Any]], Any], ...]:
    """Return what takes each field of a kind out of a line."""
    types = get_type_hints(kind)
    return tuple(_taker(it, types[it.name]) for it in attrs.fields(kind))


def _are_texts(values: Any) -> bool:
    return all(isinstance(it, str) for it in values)


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
    words = _WORDS.get(name, ())

    def require(value: Any) -> None:
        if words and isinstance(value, str) and value not in words:
            raise _Misfit(f"{name}: expected {' or '.join(words)}, got {value!r}")
        if isinstance(value, int | float) and value < 0 and name not in _SIGNED:
            raise _Misfit(f"{name}: expected at least 0, got {value!r}")
        if list in classes and not _are_texts(value):
            raise _Misfit(f"{name}: expected texts, got {value!r}")

    def take(said: dict[str, Any]) -> Any:
        value = said.get(name, default)
        if isinstance(value, classes) and (type(value) is not bool or bool in classes):
            require(value)
            return value
        if value is default and value is not attrs.NOTHING:
            return value
        if value is attrs.NOTHING:
            raise _Misfit(f"there is no {name}")
        what = " or ".join(it.__name__ for it in classes)
        raise _Misfit(f"{name}: expected {what}, got {value!r}")

    return take
