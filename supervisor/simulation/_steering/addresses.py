"""Where a program goes by the addresses of objects: it goes through a set of them, or
takes a hash or a text that is made of one.

The interpreter tells of no such thing, so lines are read. Where one is about to do it
with a name or an attribute, what that is just now is looked at. Nothing is called but
what an attribute calls.
"""

from __future__ import annotations

import ast
import linecache
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from types import FrameType
from typing import Any, TypeAlias, cast
from weakref import WeakSet

Look: TypeAlias = tuple[str, ast.expr, Callable[[Any], bool]]
"""What a line may be doing, with what, and whether it is so for a value of that."""

# They hand on what is in their argument in its order.
_IN_ORDER = ("enumerate", "filter", "iter", "list", "map", "next", "tuple", "zip")
_TEXTS = ("format", "print", "repr", "str")
_SETS = (set, frozenset, WeakSet)
_HELD = (*_SETS, list, tuple, dict, deque)

_KEYED = ("add", "discard", "get", "pop", "remove", "setdefault")
"""Methods for which an address is as good as any other key."""

_TIMES = tuple(f"st_{it}time{ns}" for it in "acm" for ns in ("", "_ns"))
"""What `os.stat` tells and no tape decides. No call reads it, so it is looked for here."""

_files: dict[str, dict[int, list[Look]]] = {}
_keys: dict[str, set[tuple[int, int]]] = {}


def goes_by_address(frame: FrameType) -> str:
    """Return what the line that a frame is about to run does by addresses; "" if
    nothing is seen."""
    file = frame.f_code.co_filename
    if file not in _files:
        _files[file] = _looks(file)
    for what, node, is_so in _files[file].get(frame.f_lineno, ()):
        try:
            if is_so(_value(node, frame)):
                return what
        # It is not there yet, or is one that cannot be looked at.
        except Exception:
            continue
    return ""


def is_only_a_key(frame: FrameType) -> bool:
    """Tell whether what a frame is just calling gives what is compared or looked up, and
    nothing else. So it does not matter which address it is."""
    file = frame.f_code.co_filename
    if file not in _keys:
        _keys[file] = {
            (it.lineno, it.col_offset)
            for node in ast.walk(_tree(file))
            for it in _only_keys(node)
        }
    at = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    return (at[0], at[2]) in _keys[file]


def _only_keys(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Compare(left=it, comparators=more):
            return [it, *more]
        case ast.Subscript(slice=it) | ast.SetComp(elt=it) | ast.DictComp(key=it):
            return [it]
        case ast.Set(elts=held):
            return held
        case ast.Dict(keys=keys):
            return [it for it in keys if it is not None]
        case ast.Call(func=ast.Attribute(attr=name), args=[it, *_]) if name in _KEYED:
            return [it]
        case _:
            return []


def _tree(file: str) -> ast.AST:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])  # It was made by other means than Python's.


def _looks(file: str) -> dict[int, list[Look]]:
    found: dict[int, list[Look]] = defaultdict(list)
    for what, node, is_so in _places(_tree(file)):
        if _is_plain(node):
            found[node.lineno].append((what, node, is_so))
    return found


def _places(tree: ast.AST) -> Iterator[Look]:
    for node in ast.walk(tree):
        match node:
            case (
                ast.For(iter=it)
                | ast.comprehension(iter=it)
                | ast.Starred(value=it)
                | ast.Call(func=ast.Attribute(value=it, attr="pop"), args=[])
            ):
                yield _order(it)
            case ast.Call(func=ast.Name(id=name), args=[*_, it]) if name in _IN_ORDER:
                yield _order(it)
            case ast.Call(func=ast.Name(id="hash"), args=[it]):
                yield "an address (hash)", it, _is_hashed_by_address
            case ast.Attribute(attr=name) if name in _TIMES:
                read = ast.copy_location(ast.Constant(True), node)
                yield "the time of a file", read, bool
            case ast.FormattedValue(value=it):
                yield "an address in a text", it, shows_address
            case ast.Call(func=ast.Name(id=name), args=[it]) if name in _TEXTS:
                yield "an address in a text", it, shows_address
            case _:
                pass


def _order(node: ast.expr) -> Look:
    what = "the order of a set of objects"
    match node:
        case ast.Call(func=ast.Name(id="set" | "frozenset"), args=[it]):
            # What is in it will be in a set. A generator would be used up by a look.
            return what, it, partial(_holds_objects, _HELD)
        case _:
            return what, node, partial(_holds_objects, _SETS)


def _is_plain(node: ast.expr) -> bool:
    """Tell whether to look at it calls nothing but what an attribute calls."""
    match node:
        case ast.Name(ctx=ast.Load()) | ast.Constant():
            return True
        case ast.Attribute(value=it, ctx=ast.Load()):
            return _is_plain(it)
        case ast.Set(elts=held):
            return all(_is_plain(it) for it in held)
        case _:
            return False


def _value(node: ast.AST, frame: FrameType) -> Any:
    match node:
        case ast.Attribute(value=it, attr=name):
            return getattr(_value(it, frame), name)
        case ast.Set(elts=held):
            return {_value(it, frame) for it in held}
        case ast.Constant(value=it):
            return it
        case ast.Name(id=name):
            return {**frame.f_globals, **frame.f_locals}[name]
        case _:
            raise LookupError


def _holds_objects(kinds: tuple[type[Any], ...], held: Any) -> bool:
    found: list[Any] = list(held) if isinstance(held, kinds) else []
    return len(found) > 1 and any(_is_hashed_by_address(it) for it in found)


def _is_hashed_by_address(it: Any) -> bool:
    if isinstance(it, tuple | frozenset):
        return any(_is_hashed_by_address(one) for one in it)  # pyright: ignore[reportUnknownVariableType]
    kind = cast("Any", type(it))  # pyright: ignore[reportUnknownArgumentType]
    return kind.__hash__ is object.__hash__


def shows_address(it: Any) -> bool:
    """Tell whether the text of an object has its address."""
    kind = cast("Any", type(it))
    return kind.__repr__ is object.__repr__ and kind.__str__ is object.__str__
