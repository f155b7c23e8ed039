"""The one home of checks: what is refused, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import attrs
import pytest

from actors._kernel.checks import (
    by,
    check_all,
    check_number,
    check_one_of,
    check_text,
    check_type,
    check_whole,
    of,
)

Check = Callable[..., None]

RIGHT: list[tuple[Check, object, tuple[object, ...], dict[str, Any]]] = [
    (check_type, None, (str | None,), {}),
    (check_text, None, (), {"none": True}),
    (check_whole, 10**400, (), {}),
    (check_whole, None, (), {"none": True}),
    (check_number, 0, (), {}),
    (check_number, None, (), {"none": True}),
    (check_one_of, None, ((None, "pipe"),), {}),
    (check_all, (1, "x"), (int | str,), {}),
]


@pytest.mark.parametrize(("check", "value", "arguments", "options"), RIGHT)
def test_what_is_right_passes(
    check: Check, value: object, arguments: tuple[object, ...], options: dict[str, Any]
) -> None:
    check("it", value, *arguments, **options)


class Limits:
    """Several, by its name."""


WRONG: list[tuple[Check, object, tuple[object, ...], dict[str, Any], type, str]] = [
    (check_type, 3, (str | None,), {}, TypeError, "a str or None, not 3"),
    (check_type, 3, (OSError,), {}, TypeError, "an OSError, not 3"),
    (check_type, 3, (Limits,), {}, TypeError, "Limits, not 3"),
    (check_type, 1, (bool,), {}, TypeError, "True or False, not 1"),
    (check_text, b"", (), {"none": True}, TypeError, "a str or None, not b''"),
    (check_whole, True, (), {}, TypeError, "a whole number, 0 or more, not True"),
    (check_whole, 1.0, (), {}, TypeError, "a whole number, 0 or more, not 1.0"),
    (check_whole, 1.5, (), {"wrong": ValueError}, ValueError, "a whole number"),
    (check_whole, 0, (1, 9), {}, ValueError, "a whole number from 1 to 9, not 0"),
    (check_whole, 10, (1, 9), {"none": True}, ValueError, "to 9, or None, not 10"),
    (check_number, True, (), {}, TypeError, "a number, 0 or more, not True"),
    (check_number, "1", (), {"none": True}, TypeError, "0 or more, or None, not '1'"),
    (check_number, -0.1, ("seconds",), {}, ValueError, "seconds, 0 or more, not -0.1"),
    (check_number, nan, (), {}, ValueError, "a number, 0 or more, not nan"),
    (check_number, inf, (), {}, ValueError, "a number, 0 or more, not inf"),
    (check_number, 10**400, (), {}, ValueError, "a number, 0 or more, not 1000"),
    (check_number, 0.0, (), {"zero": False}, ValueError, "more than 0, not 0.0"),
    (check_one_of, "x", (("a", "b"),), {}, ValueError, "one of a, b, not 'x'"),
    (check_one_of, [], (("a",),), {}, ValueError, r"one of a, not \[\]"),
    (check_all, "x", (str,), {}, TypeError, "a tuple or list of str, not 'x'"),
]


@pytest.mark.parametrize(
    ("check", "value", "arguments", "options", "kind", "text"), WRONG
)
def test_what_is_wrong_is_refused_by_name_and_value(
    check: Check,
    value: object,
    arguments: tuple[object, ...],
    options: dict[str, Any],
    kind: type[Exception],
    text: str,
) -> None:
    with pytest.raises(kind, match=f"^it must be .*{text}") as caught:
        check("it", value, *arguments, **options)
    assert caught.type is kind


def test_an_empty_text_and_what_a_tuple_may_not_hold_are_told() -> None:
    with pytest.raises(ValueError, match=r"^it must not be empty: ' '$"):
        check_text("it", " ")
    with pytest.raises(TypeError, match=r"^it must hold only int or str, not None$"):
        check_all("it", (1, None), int | str)


def test_a_validator_names_the_class_and_the_field() -> None:
    @attrs.frozen
    class Point:
        name: str = attrs.field(validator=of(str))
        kind: str = attrs.field(default="a", validator=by(check_one_of, ("a", "b")))

    Point("x", "b")
    with pytest.raises(TypeError, match=r"^Point\.name must be a str, not 3$"):
        Point(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^Point\.kind must be one of a, b, not 'c'$"):
        Point("x", "c")
