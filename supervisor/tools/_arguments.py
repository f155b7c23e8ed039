"""The arguments of a tool: one description for the schema and for the check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, cast

import attrs

from actors.house import check_one_of, check_text, check_type, check_whole, frozen
from actors.text import is_encodable

_SHOWN: Final = 80
_LISTED: Final = 5
_NAMES: Final = {
    "string": "a string",
    "integer": "a whole number",
    "boolean": "true or false",
}
_MOST: Final = 2**53
"""The largest whole number that every reader of JSON knows exactly."""


@attrs.define(slots=False, repr=False)
class Refused(Exception):
    """Raised when a call cannot be done as it was asked for; nothing was done.

    ``str()`` of it is for the model, ``code`` is for programs.
    """

    code: str
    text: str

    def __str__(self) -> str:
        return self.text


def unfit(text: str) -> Refused:
    """Return the answer to arguments that do not fit."""
    return Refused("invalid_arguments", text)


def some(words: Sequence[str], limit: int) -> str:
    """Return the first ``limit`` of ``words``, and how many more there are."""
    more = f" and {len(words) - limit} more" if len(words) > limit else ""
    return ", ".join(words[:limit]) + more


def _has_no_default(field: Field) -> bool:
    return field.default is None


@frozen
class Field:
    """One argument of a `Tool`. The model must give it, unless it has a ``default`` or
    is not ``required``.

    Args:
        name: what the model calls it.
        description: what the model is told of it.
        type: ``string``, ``integer`` or ``boolean``.
        default: the value of an argument that did not come. Without one it is None.
        required: whether a call without it is refused. Say False for one that has no
            default and may be left out.
        minimum, maximum: the bounds of an integer. Both belong to it.

    Raises:
        TypeError, ValueError: naming the argument and its value.
    """

    name: str
    description: str
    type: Literal["string", "integer", "boolean"] = "string"
    default: str | int | bool | None = attrs.field(default=None, kw_only=True)
    required: bool = attrs.field(
        default=attrs.Factory(_has_no_default, takes_self=True), kw_only=True
    )
    minimum: int | None = attrs.field(default=None, kw_only=True)
    maximum: int | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        check_text("Field.name", self.name)
        of_it = f"of the field {self.name}"
        check_text(f"description {of_it}", self.description)
        check_one_of(f"type {of_it}", self.type, _NAMES)
        check_type(f"required {of_it}", self.required, bool)
        check_type(f"default {of_it}", self.default, str | int | None)
        check_whole(f"maximum {of_it}", self.maximum, -_MOST, _MOST, none=True)
        most = _MOST if self.maximum is None else self.maximum
        check_whole(f"minimum {of_it}", self.minimum, -_MOST, most, none=True)
        if self.type != "integer" and (self.minimum, self.maximum) != (None, None):
            raise ValueError(f"bounds {of_it} must be None: it is not an integer")
        if self.default is None:
            return
        if self.required:
            raise ValueError(f"required {of_it} must be False: it has a default")
        try:
            self.check(self.default)
        except ValueError as error:
            raise ValueError(f"default {of_it} {error}") from None

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the argument."""
        schema: dict[str, Any] = {"type": self.type, "description": self.description}
        for keyword in ("minimum", "maximum", "default"):
            value = getattr(self, keyword)
            if value is not None:
                schema[keyword] = value
        return schema

    def check(self, value: object) -> object:
        """Return ``value`` as a plain str, int or bool.

        Raises:
            ValueError: if it is not valid. It says what is wrong, without the field's
                name.
        """
        if self.type == "boolean" and isinstance(value, bool):
            return value
        if self.type == "string" and isinstance(value, str):
            return str.__str__(value)
        if self.type == "integer" and not isinstance(value, bool):
            # 1.0 is as whole as 1, for JSON.
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, int):
                return self._in_range(int(value))
        raise ValueError(f"must be {_NAMES[self.type]}, not {shown(value)}")

    def _in_range(self, value: int) -> int:
        if self.minimum is not None and value < self.minimum:
            raise ValueError(f"must be at least {self.minimum}, not {shown(value)}")
        if self.maximum is not None and value > self.maximum:
            raise ValueError(f"must be at most {self.maximum}, not {shown(value)}")
        return value


optional: Final = partial(Field, required=False)
"""Makes an argument that may be left out, and is None then."""


def repeated(names: Iterable[str]) -> list[str]:
    """Return those of ``names`` that come more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def object_schema(fields: Sequence[Field]) -> dict[str, Any]:
    """Return the JSON schema of an object with ``fields`` and no others."""
    return {
        "type": "object",
        "properties": {field.name: field.schema() for field in fields},
        "required": [field.name for field in fields if field.required],
        "additionalProperties": False,
    }


def read_arguments(fields: Sequence[Field], arguments: object) -> dict[str, Any]:
    """Return a value for each of ``fields``: what came, or the default, or None.

    Raises:
        Refused: naming everything that is wrong.
    """
    if not isinstance(arguments, Mapping):
        raise unfit(f"The arguments must be an object, not {shown(arguments)}.")
    given = cast("Mapping[object, object]", arguments)
    wrong: list[str] = []
    values: dict[str, Any] = {}
    for field in fields:
        if field.name not in given:
            values[field.name] = field.default
            if field.required:
                wrong.append(f"{field.name} is missing")
            continue
        try:
            values[field.name] = field.check(given[field.name])
        except ValueError as error:
            wrong.append(f"{field.name} {error}")
    names = [field.name for field in fields]
    unknown = [key for key in given if key not in names]
    if unknown:
        listed = some([*map(shown, unknown)], _LISTED)
        allowed = ", ".join(names) or "no argument"
        wrong.append(f"unknown: {listed}; allowed: {allowed}")
    if wrong:
        raise unfit(f"Nothing was done: {'; '.join(wrong)}.")
    return values


def check_words(name: str, text: str, nothing: str) -> None:
    """Refuse a text that could not be said to an agent; ``nothing`` says that nothing
    was done with it."""
    if not text.strip():
        raise unfit(f"{nothing}: {name} is empty.")
    check_encodable(name, text, nothing)


def check_encodable(name: str, text: str, nothing: str) -> None:
    """Refuse a text that UTF-8 cannot hold."""
    if not is_encodable(text):
        raise unfit(
            f"{nothing}: {name} holds half a surrogate pair, which is not a character."
        )


def shown(value: object) -> str:
    """Return ``value`` in a few characters, as whoever wrote the JSON knows it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # repr shows what cannot be printed as an escape.
        return repr(value[:_SHOWN]) + ("..." if len(value) > _SHOWN else "")
    if isinstance(value, int):
        # Python refuses to write a number of many digits.
        return str(value) if abs(value) < 10**_SHOWN else "a number of many digits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, Sequence):
        return "an array"
    return f"a {type(value).__name__}"
