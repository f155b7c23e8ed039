"""Checks of arguments: each error names the argument, its value and what it must be.

A value of the wrong type is a TypeError, any other bad one a ValueError. True and
False are not numbers here, and neither are NaN and what no float can hold. With
``none`` (or ``| None``) None is valid, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from math import inf
from types import NoneType, UnionType
from typing import Any, TypeAlias, TypeGuard, cast, get_args

import attrs

# No float can hold more.
_MOST = sys.float_info.max
_WORDS: Mapping[type, str] = {
    NoneType: "None",
    bool: "True or False",
    Mapping: "a mapping",
}


def is_whole(value: object, least: float = 0, most: float = inf) -> TypeGuard[int]:
    """Whether ``value`` is a whole number in these bounds."""
    return isinstance(value, int) and type(value) is not bool and least <= value <= most


def is_number(value: object, *, zero: bool = True) -> TypeGuard[float]:
    """Whether ``value`` is a finite number, at least 0; without ``zero``, above 0."""
    if not isinstance(value, int | float) or type(value) is bool:
        return False
    return 0 <= value <= _MOST and (zero or value > 0)


def check_type(name: str, value: object, kind: type | UnionType) -> None:
    """Refuse what is not of this type, or of none of several: ``str | None``."""
    if not isinstance(value, kind):
        raise TypeError(_said(name, " or ".join(map(_named, _parts(kind))), value))


def check_text(name: str, value: object, *, none: bool = False) -> None:
    """Refuse what is not a str, or is empty or blank."""
    if none and value is None:
        return
    if not isinstance(value, str):
        raise TypeError(_said(name, f"a str{' or None' if none else ''}", value))
    if not value.strip():
        raise ValueError(f"{name} must not be empty: {value!r}")


def check_whole(
    name: str,
    value: object,
    least: int = 0,
    most: float = inf,
    *,
    none: bool = False,
    wrong: type[Exception] = TypeError,
) -> None:
    """Refuse what is not a whole number in these bounds. What is not a whole number
    at all is an error of the type ``wrong``."""
    # The usual case first, without a call: every Shell that is made comes here.
    if type(value) is int and least <= value <= most:
        return
    if is_whole(value, least, most) or (none and value is None):
        return
    wanted = f", {least} or more" if most == inf else f" from {least} to {most}"
    raise (ValueError if is_whole(value, -inf) else wrong)(
        _said(name, f"a whole number{wanted}{', or None' if none else ''}", value)
    )


def check_number(
    name: str,
    value: object,
    what: str = "a number",
    *,
    zero: bool = True,
    none: bool = False,
) -> None:
    """Refuse what is not a finite number, 0 or more; without ``zero``, more than 0."""
    # The usual case first, without a call: every Shell comes here four times.
    if type(value) is float and 0.0 < value < inf:
        return
    if is_number(value, zero=zero) or (none and value is None):
        return
    wanted = f"{what}, {'0 or more' if zero else 'more than 0'}"
    right = isinstance(value, int | float) and type(value) is not bool
    raise (ValueError if right else TypeError)(
        _said(name, f"{wanted}{', or None' if none else ''}", value)
    )


def check_one_of(name: str, value: object, known: Collection[str | None]) -> None:
    """Refuse what is not one of these."""
    if not (value is None or isinstance(value, str)) or value not in known:
        raise ValueError(_said(name, f"one of {', '.join(map(str, known))}", value))


def check_spawn(
    stdin: str,
    stderr: str,
    size: tuple[int, int] | None,
    nice: int | None,
    rlimits: Mapping[str, int],
    is_limit: Callable[[str], bool],
) -> None:
    """Refuse with a ValueError what `actors.env.Processes.spawn` cannot be given;
    ``size`` is that of the terminal."""
    check_one_of("stdin", stdin, ("null", "pipe"))
    check_one_of("stderr", stderr, ("stdout", "pipe"))
    if stderr == "pipe" and size is not None:
        raise ValueError("stderr must be 'stdout' on a terminal, not 'pipe'")
    for what, number in zip(("rows", "columns"), size or (), strict=False):
        check_whole(f"terminal.{what}", number, 1, 0xFFFF, wrong=ValueError)
    check_whole("nice", nice, -20, 19, none=True, wrong=ValueError)
    for name, limit in rlimits.items():
        if not is_limit(name):
            raise ValueError(f"rlimits has an unknown name: {name!r}")
        check_whole(f"rlimits[{name!r}]", limit, -1, 2**63 - 1, wrong=ValueError)


def check_all(name: str, values: object, kind: type | UnionType) -> None:
    """Refuse what is not a tuple of values of this type."""
    if not isinstance(values, tuple):
        raise TypeError(_said(name, f"a tuple or list of {_plain(kind)}", values))
    for value in cast("tuple[object, ...]", values):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must hold only {_plain(kind)}, not {value!r}")


def fspath(path: str | os.PathLike[str] | None) -> str | None:
    """Convert a path. What is not a path stays as it is, for a check to name it."""
    return os.fspath(path) if isinstance(path, os.PathLike) else path


Validator: TypeAlias = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def of(kind: type | UnionType) -> Validator:
    """Return `check_type` as a validator of attrs: ``field(validator=of(str))``."""

    def validate(owner: object, field: attrs.Attribute[Any], value: object) -> None:
        # A valid value costs no further call.
        if not isinstance(value, kind):
            check_type(f"{type(owner).__name__}.{field.name}", value, kind)

    return validate


def by(check: Callable[..., None], *args: object, **options: Any) -> Validator:
    """Return another check as a validator: ``field(validator=by(check_one_of, KINDS))``."""

    def validate(owner: object, field: attrs.Attribute[Any], value: object) -> None:
        try:
            check(field.name, value, *args, **options)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{type(owner).__name__}.{error}") from None

    return validate


def _said(name: str, wanted: str, value: object) -> str:
    return f"{name} must be {wanted}, not {value!r}"


def _parts(kind: type | UnionType) -> tuple[type, ...]:
    return get_args(kind) or (cast("type", kind),)


def _plain(kind: type | UnionType) -> str:
    return " or ".join(part.__name__ for part in _parts(kind))


def _named(kind: type) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    name = kind.__name__
    if name.endswith("s") and not name.endswith("ss"):
        return name  # Limits, Hooks: several.
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"
