"""The name of a class, whatever its own metaclass does."""

from __future__ import annotations

from typing import Any, cast

_name_of: Any = type.__dict__["__name__"].__get__


def class_name(value: object) -> str:
    """Return the name of the class of ``value``. A metaclass may have another
    ``__name__``, which may raise anything."""
    return cast("str", _name_of(type(value)))
