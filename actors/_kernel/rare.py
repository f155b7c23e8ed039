"""Fields that few of very many records have."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class HasRare(Protocol):
    """A record with a dict for such fields."""

    rare: dict[str, Any] | None
    """None until the first such field is set."""


class Rare(Generic[T]):
    """A field that few records ever set. Its value is in a dict, which is made for
    the first such field of a record; until then it reads as its default."""

    def __init__(self, default: T) -> None:
        self._default = default

    def __set_name__(self, owner: type[HasRare], name: str) -> None:
        self._name = name

    def __get__(self, record: HasRare, owner: type[HasRare]) -> T:
        rare = record.rare
        return self._default if rare is None else rare.get(self._name, self._default)

    def __set__(self, record: HasRare, value: T) -> None:
        if record.rare is None:
            if value is self._default:
                return
            record.rare = {}
        record.rare[self._name] = value
