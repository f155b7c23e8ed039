"""Values are equal, hashed and shown as those of attrs are."""

from __future__ import annotations

import copy
import importlib
import pickle
from typing import Any, TypeVar

import attrs
import pytest

from actors._kernel.values import define, frozen, plain
from bench.house import modules, public_names

_T = TypeVar("_T")


def _is_value(offered: object) -> bool:
    return (
        isinstance(offered, type)
        and attrs.has(offered)
        and offered.__eq__ is not object.__eq__
        and not issubclass(offered, BaseException)
    )


PUBLIC: list[type[Any]] = sorted(
    {
        offered
        for module, names in public_names(modules()).items()
        for name in names
        if _is_value(offered := getattr(importlib.import_module(module), name))
    },
    key=lambda kind: (kind.__module__, kind.__qualname__),
)
"""All values that users import."""


def unmade(kind: type[_T], /, **fields: object) -> _T:
    """Return one with ``fields``, and with their number in all others. Nothing checks
    them."""
    one = kind.__new__(kind)
    for number, field in enumerate(attrs.fields(kind)):  # type: ignore[arg-type,misc]
        object.__setattr__(one, field.name, fields.get(field.name, number))
    return one


@attrs.frozen
class Theirs:
    a: int
    b: Any = attrs.field(default=None, eq=False)
    c: str = attrs.field(default="c", repr=False, kw_only=True)


@frozen
class Ours:
    a: int
    b: Any = attrs.field(default=None, eq=False)
    c: str = attrs.field(default="c", repr=False, kw_only=True)


@frozen
class Empty:
    pass


@frozen(kw_only=True)
class One:
    it: Any


@plain
class Below(Ours):
    d: float = 0.0


@define
class Counted:
    it: int = 0


@frozen
class Told:
    it: int

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1

    def __repr__(self) -> str:
        return "told"


def test_they_are_equal_if_the_fields_that_count_are() -> None:
    for kind in (Theirs, Ours):
        assert kind(1, 2) == kind(1, 3)
        assert hash(kind(1, 2)) == hash(kind(1, 3))
        assert kind(1) != kind(2)
        assert kind(1) != kind(1, c="d")
        assert len({kind(1), kind(1, c="d"), kind(1, 5)}) == 2
    assert Ours(1) != Theirs(1)
    assert Empty() == Empty() != One(it=1)
    assert One(it=(1, 2)) == One(it=(1, 2)) != One(it=(1, 3))
    assert hash(Empty()) == hash(Empty())


def test_one_of_another_class_is_another_value() -> None:
    assert Below(1) != Ours(1) and Ours(1) != Below(1)
    assert Below(1, d=1.0) != Below(1, d=2.0)
    assert Below(1, 3, d=1.0) == Below(1, 4, d=1.0)
    assert hash(Below(1)) != hash(Ours(1))


def test_one_that_holds_what_has_no_hash_has_none() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(One(it=[]))


def test_one_that_changes_is_equal_to_what_it_was_and_has_no_hash() -> None:
    counted = Counted()
    counted.it += 1
    assert counted == Counted(1) != Counted()
    assert repr(counted) == "Counted(it=1)"
    with pytest.raises(TypeError, match="unhashable"):
        hash(counted)


def test_they_show_their_fields_and_end_where_one_holds_itself() -> None:
    class Inside(One):
        """A class that is no own one of attrs."""

    assert repr(Theirs(1, "b")) == "Theirs(a=1, b='b')"
    assert repr(Ours(1, "b")) == "Ours(a=1, b='b')"
    assert repr(Below(1, d=2.0)) == "Below(a=1, b=None, d=2.0)"
    assert repr(Empty()) == "Empty()"
    assert repr(Inside(it=1)) == "Inside(it=1)"
    held: list[Any] = []
    held.append(One(it=held))
    assert repr(held[0]) == "One(it=[...])"
    assert repr(One(it=held)) == "One(it=[One(it=[...])])"


def test_what_a_class_says_itself_stands() -> None:
    assert Told(1) == Told(2) and hash(Told(1)) == 1 and repr(Told(3)) == "told"


def test_they_are_values_of_attrs_in_all_else() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Ours(1).a = 2  # type: ignore[misc]
    below = Below(1, d=2.0)
    assert attrs.asdict(below) == {"a": 1, "b": None, "c": "c", "d": 2.0}
    assert attrs.evolve(below, a=3) == Below(3, d=2.0)
    assert pickle.loads(pickle.dumps(below)) == below == copy.deepcopy(below)
    assert not hasattr(below, "__dict__")


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__qualname__)
def test_a_public_value_is_what_its_fields_are(kind: type[Any]) -> None:
    one, same = unmade(kind), unmade(kind)
    assert one == same
    assert one.__eq__(object()) is NotImplemented
    is_hashable = kind.__hash__ is not None
    assert not is_hashable or hash(one) == hash(same)
    for field in attrs.fields(kind):
        other = unmade(kind, **{field.name: "another"})
        assert (one != other) == field.eq, field.name
        assert not is_hashable or (hash(one) != hash(other)) == field.eq
    shown = [
        f"{field.name}={number}"
        for number, field in enumerate(attrs.fields(kind))
        if field.repr
    ]
    assert repr(one) == f"{kind.__qualname__}({', '.join(shown)})"


@pytest.mark.parametrize("first", ["__eq__", "__hash__", "__repr__"])
def test_attrs_writes_them_all_when_one_of_them_is_called(first: str) -> None:
    @frozen
    class Fresh:
        it: int

    others = (Fresh(1),) if first == "__eq__" else ()
    late = {name: vars(Fresh)[name] for name in ("__eq__", "__hash__", "__repr__")}
    assert getattr(Fresh(1), first)(*others) == late[first](Fresh(1), *others)
    for name, method in late.items():
        written = vars(Fresh)[name]
        assert written is not method
        assert written.__code__.co_filename.startswith("<attrs generated")
    assert Fresh(1) == Fresh(1) and hash(Fresh(1)) == hash(Fresh(1))
    assert repr(Fresh(1)).endswith("Fresh(it=1)")
