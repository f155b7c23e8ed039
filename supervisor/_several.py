"""Rules that were written as if one text held several: pure.

Such a text is one rule to those who match it, speaks of nothing that anybody calls,
and so denies nothing.
"""

from __future__ import annotations

import re
from typing import Final

from ._tool_names import is_known

_ANOTHER: Final = re.compile(r"\)[\s,;|&]*([A-Za-z_][\w.-]*)\(")
_QUOTED: Final = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_CLASS: Final = re.compile(r"\\.|\[[!^]?\]?[^\]]*\]", re.DOTALL)
_BETWEEN_COMMANDS: Final = re.compile(
    r"""
      ,\s | \*,                # a, b and a *,b
    | (?<=[\w*])\|(?=[\w./])   # a|b, but none of the pipes a | b and a|sh
      (?!(?:sudo\s+)?(?:/\S*/)?(?:\w*sh|python[\d.]*|perl|ruby|node|tee|xargs)\b)
    """,
    re.VERBOSE,
)
_BETWEEN_ADDRESSES: Final = re.compile(r"[,;|]?\s|\||,(?=[a-z]+://)")
_BETWEEN_PATHS: Final = re.compile(r"[,;|]|\s(?=\.{1,2}/|~/|/|\*\*/)")
_BETWEEN_NAMES: Final = re.compile(r"[,;|]")

_SEPARATE: Final = "one text is one rule: write them as separate texts, "


def several_rules(name: str, pattern: str) -> str | None:
    """Return what is wrong with a text ``NAME(PATTERN)`` that holds another rule."""
    for found in _ANOTHER.finditer(pattern):
        other = found[1]
        if is_known(other) or other.startswith("mcp__"):
            first = f"{name}({pattern[: found.start()].rstrip()})"
            return f"{_SEPARATE}{first}, and {other}(...)"
    return None


def several_commands(name: str, pattern: str, *, allows: bool) -> str | None:
    """Return what is wrong with a pattern for commands that lists some. A command
    that is allowed word for word may hold whatever it does."""
    if allows and "*" not in pattern:
        return None
    plain = _masked(_QUOTED, pattern)
    found = _BETWEEN_COMMANDS.search(plain)
    if found is not None:
        return _apart(name, pattern, found, ", or a pipe with blanks round its |")
    if plain.endswith(")") and plain.count(")") > plain.count("("):
        return f"there is a parenthesis too many: write {name}({pattern.rstrip(')')})"
    return None


def several_paths(name: str, pattern: str) -> str | None:
    """Return what is wrong with a pattern for paths that lists some."""
    if pattern[0] in "\"'" and pattern[0] == pattern[-1] and len(pattern) > 2:
        return f"quotes would be part of the path: write {name}({pattern[1:-1]})"
    found = _BETWEEN_PATHS.search(_masked(_CLASS, pattern))
    if found is None:
        return None
    return _apart(name, pattern, found, ", or a backslash before the character")


def several_addresses(name: str, pattern: str) -> str | None:
    """Return what is wrong with a pattern for addresses that lists some."""
    found = _BETWEEN_ADDRESSES.search(pattern)
    return None if found is None else _apart(name, pattern, found, "")


def several_names(name: str, pattern: str) -> str | None:
    """Return what is wrong with a pattern for a name that lists some."""
    found = _BETWEEN_NAMES.search(pattern)
    return None if found is None else _apart(name, pattern, found, "")


def _masked(hidden: re.Pattern[str], text: str) -> str:
    return hidden.sub(lambda found: "_" * len(found[0]), text)


def _apart(name: str, pattern: str, found: re.Match[str], otherwise: str) -> str:
    # The star in `a *,b` belongs to what stands before the comma.
    place = found.start() + (found[0] == "*,")
    first, second = pattern[:place].strip(), pattern[place:].strip(" \t,;|\"'")
    if not first or not second:
        return f"{_SEPARATE}{name}({first or second}){otherwise}"
    return f"{_SEPARATE}{name}({first}) and {name}({second}){otherwise}"
