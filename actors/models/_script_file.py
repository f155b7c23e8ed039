"""Files of a script: YAML or JSON, with the place of everything in them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeAlias, cast

import attrs

from .._kernel.errors import ActorError
from .._kernel.values import define, frozen

_NODES = 100_000
"""The most that a file may hold, aliases counted as often as they are used."""

Path: TypeAlias = tuple[str | int, ...]


@attrs.define(slots=False, repr=False)
class ScriptError(ActorError):
    """Raised for a script that cannot be played. The error's text names the file, the
    place in it, and what to do. Whoever wrote the script must mend it."""

    source: str
    """The file."""
    line: int | None
    """The line, counted from 1. It is None where it is not known."""
    text: str
    """What is wrong."""

    def __str__(self) -> str:
        line = "" if self.line is None else f":{self.line}"
        return f"{self.source}{line}: {self.text}"


@define
class _Source:
    name: str
    lines: dict[Path, int] = attrs.Factory(dict[Path, int])


@frozen
class Item:
    """Something in a file, at its place."""

    value: Any
    _path: Path
    _source: _Source

    def fail(self, text: str) -> NoReturn:
        """Raise a `ScriptError` that names this place."""
        raise self.error(text)

    def error(self, text: str) -> ScriptError:
        """Return a `ScriptError` that names this place."""
        path = self._path
        while path and path not in self._source.lines:
            path = path[:-1]
        place = f"{_words(self._path)}: " if self._path else ""
        line = self._source.lines.get(path)
        return ScriptError(self._source.name, line, place + text)

    def _inner(self, key: str | int, value: Any) -> Item:
        return Item(value, (*self._path, key), self._source)

    def fields(self, *known: str) -> dict[str, Item]:
        """Return what a mapping holds.

        Raises:
            ScriptError: if it is not a mapping, or has a key that is not ``known``.
        """
        found = self.mapping()
        for key in found:
            if key not in known:
                self.fail(f"{key!r} is not known here; write {_listed(known)}")
        return found

    def mapping(self) -> dict[str, Item]:
        """Return what a mapping holds, whatever its keys are.

        Raises:
            ScriptError: if it is not a mapping, or a key is not a text.
        """
        inner: object = self.value
        if not isinstance(inner, dict):
            self.fail(f"this must be a mapping (key: value), not {self._shown()}")
        found: dict[str, Item] = {}
        for key, value in cast(Mapping[object, Any], inner).items():
            if not isinstance(key, str):
                self.fail(f"the key {key!r} must be text: put it in quotes")
            found[key] = self._inner(key, value)
        return found

    def items(self) -> list[Item]:
        """Return what a list holds.

        Raises:
            ScriptError: if it is not a list.
        """
        inner: object = self.value
        if not isinstance(inner, list):
            self.fail(f"this must be a list (- one, - two), not {self._shown()}")
        values = cast(Sequence[Any], inner)
        return [self._inner(place, value) for place, value in enumerate(values)]

    def text(self) -> str:
        """Return a text that says something.

        Raises:
            ScriptError: if it is not a text, or is empty.
        """
        if not isinstance(self.value, str):
            self.fail(f"this must be text, not {self._shown()}: put it in quotes")
        if not self.value.strip():
            self.fail("this must not be empty")
        return self.value

    def seconds(self) -> float:
        """Return a number of seconds.

        Raises:
            ScriptError: if it is not a number, 0 or more.
        """
        value = self.value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < 0:
            self.fail(f"this must be seconds, 0 or more, not {self._shown()}")
        return float(value)

    def times(self) -> int:
        """Return how often something happens.

        Raises:
            ScriptError: if it is not a whole number, 1 or more.
        """
        value = self.value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self.fail(f"this must be a number of times, 1 or more, not {self._shown()}")
        return value

    def flag(self) -> bool:
        """Return whether it is ``true``.

        Raises:
            ScriptError: if it is neither that nor ``false``.
        """
        if not isinstance(self.value, bool):
            self.fail(f"this must be true or false, not {self._shown()}")
        return self.value

    def _shown(self) -> str:
        return f"{self.value!r:.60}"


def _words(path: Path) -> str:
    """Return a place for people: as in ``agent 'lead', turn 3, 'text'``."""
    words: list[str] = []
    for place, key in enumerate(path):
        above = path[place - 1] if place else None
        if isinstance(key, int):
            kind = {"turns": "turn", "host": "step"}.get(str(above), "entry")
            words.append(f"{kind} {key + 1}")
        elif above == "agents" and place == 1:
            words.append(f"agent {key!r}")
        elif key not in ("agents", "turns") or place == len(path) - 1:
            words.append(repr(key))
    return ", ".join(words)


def _listed(words: tuple[str, ...]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def read_file(text: str, source: str) -> Item:
    """Return what a file holds: JSON if its name says so, or YAML.

    Raises:
        ScriptError: if it holds neither, or PyYAML is not installed.
    """
    found = _Source(source)
    if source.endswith(".json"):
        data = _read_json(text, source)
    else:
        data = _read_yaml(text, found)
    return Item(data, (), found)


def _read_json(text: str, source: str) -> Any:
    def pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict[str, Any]()
        for key, value in pairs:
            if key in found:
                raise ScriptError(source, None, f"the key {key!r} stands there twice")
            found[key] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        raise ScriptError(source, error.lineno, f"no JSON: {error.msg}") from error
    except RecursionError:
        raise ScriptError(source, None, "too deeply nested") from None


def _read_yaml(text: str, source: _Source) -> Any:
    try:
        import yaml
    except ImportError:
        raise ScriptError(
            source.name,
            None,
            "reading YAML needs PyYAML: pip install 'trio-supervisor[agents]', or "
            "write it in JSON, in a file called .json",
        ) from None

    loader: Any = None
    nodes = 0

    def convert(node: Any, path: Path) -> Any:
        nonlocal nodes
        nodes += 1
        line = node.start_mark.line + 1
        source.lines[path] = line
        if nodes > _NODES or len(path) > 50:
            raise ScriptError(source.name, line, "there is too much in it")
        if isinstance(node, yaml.SequenceNode):
            return [
                convert(inner, (*path, place)) for place, inner in enumerate(node.value)
            ]
        if not isinstance(node, yaml.MappingNode):
            return loader.construct_object(node)
        found: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = convert(key_node, path)
            if not isinstance(key, str | int | float | bool):
                line = key_node.start_mark.line + 1
                raise ScriptError(source.name, line, f"{key!r:.60} is not a key")
            if key in found:
                line = key_node.start_mark.line + 1
                text = f"the key {key!r} stands there twice"
                raise ScriptError(source.name, line, text)
            found[key] = convert(value_node, (*path, str(key)))
        source.lines[path] = line
        return found

    try:
        # It refuses characters that YAML forbids.
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        return None if root is None else convert(root, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        raise ScriptError(source.name, line, f"no YAML: {error.problem}") from error
    except RecursionError:
        raise ScriptError(source.name, None, "too deeply nested") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ScriptError(source.name, None, f"no YAML: {error!s:.200}") from error
    finally:
        if loader is not None:
            loader.dispose()
