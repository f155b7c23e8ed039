"""Which paths a pattern speaks of: pure.

A pattern is one of gitignore's: ``*`` and ``?`` stand for characters of one name,
``**`` for any directories, ``[...]`` for one of several characters, and a backslash
takes the meaning of the next one. A directory that matches does so with all that is
below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from actors.house import frozen

from ._paths import (
    PATH_LIMIT,
    PATTERN_ARGUMENTS,
    Place,
    alternatives,
    below,
    every_place,
    meanings,
    paths_named,
    resolve,
    unknown_arguments,
)
from ._tool_names import PATH_ARGUMENTS, SEARCHING

_ANY: Final = "**"


@frozen
class _Anchored:
    """A pattern from a directory on."""

    directory: str
    names: tuple[re.Pattern[str] | None, ...]
    """One for each name of a path; None is any number of them."""

    def matches(self, path: str, place: Place, *, widely: bool) -> bool:
        return any(
            (names := below(path, directory)) is not None
            and _match_names(self.names, names, widely=widely)
            for directory in place.ways(self.directory)
        )


def _match_names(
    pattern: tuple[re.Pattern[str] | None, ...], names: list[str], *, widely: bool
) -> bool:
    end = len(pattern)

    def closed(states: set[int]) -> set[int]:
        """Add those that are reached without a name."""
        found = set(states)
        for state in sorted(states):
            while state < end and pattern[state] is None:
                # At the end it stands for one name at least, but for a denial.
                if state == end - 1 and not widely:
                    break
                state += 1
                found.add(state)
        return found

    states = closed({0})
    for name in names:
        if end in states:
            return True  # A directory above it.
        following: set[int] = set()
        for state in states:
            part = pattern[state]
            if part is None:
                following |= {state, end} if state == end - 1 else {state}
            elif part.fullmatch(name):
                following.add(state + 1)
        states = closed(following)
        if not states:
            return False
    return end in states


class BadPattern(ValueError):
    """Raised for a pattern that cannot be honoured; its text says what to write."""


def check_pattern(pattern: str) -> None:
    """Refuse a pattern for paths that could not mean what was meant.

    Raises:
        BadPattern: saying what to write.
    """
    if pattern.startswith("!"):
        raise BadPattern(
            "a rule stands by itself and takes nothing back of another: leave it out,"
            " and name in the other what is meant, or write \\! for the character"
        )
    if re.match(r"~[^/]", pattern):
        raise BadPattern(
            "the home of somebody else is named by its path, //home/NAME/..., and ~/"
            " is one's own"
        )
    if re.match(r"\$|%[A-Za-z]+%", pattern):
        raise BadPattern("variables are not read: write ~/PATH, //ABSOLUTE or ./HERE")
    if re.match(r"[A-Za-z]:[\\/]|\\\\", pattern):
        raise BadPattern("an absolute path is written //PATH, with slashes")
    if re.search(r"(?<!\\)\{[^}]*,", pattern):
        raise BadPattern(
            "braces do not mean alternatives here: write a rule for each, or \\{ for the"
            " character"
        )
    if len(pattern) > PATH_LIMIT or "\0" in pattern:
        raise BadPattern("no path is like that")
    for name in pattern.split("/"):
        _compiled_name(name)


@lru_cache(maxsize=1024)
def _compiled_name(name: str) -> re.Pattern[str] | None:
    """Return what a name in a pattern stands for.

    Raises:
        BadPattern: if it cannot be read.
    """
    if name == _ANY:
        return None
    pieces: list[str] = []
    stars = 0
    place = 0
    while place < len(name):
        sign = name[place]
        place += 1
        if sign == "*":
            if not pieces or pieces[-1] != "*":
                pieces.append("*")
                stars += 1
        elif sign == "?":
            pieces.append(r"[\s\S]")
        elif sign == "\\":
            if place == len(name):
                raise BadPattern("a backslash at the end of a name means nothing")
            pieces.append(re.escape(name[place]))
            place += 1
        elif sign == "[":
            found = re.compile(r"([!^]?)(\]?(?:\\.|[^\]\\])*)\]").match(name, place)
            if found is None:
                raise BadPattern(r"a [ that is not closed: write \[ for the character")
            pieces.append(_class(found[1], found[2]))
            place = found.end()
        else:
            pieces.append(re.escape(sign))
    # Each star but the last takes as little as it can, once and for all: no
    # backtracking.
    text, group = "", ""
    for piece in pieces:
        if piece == "*":
            stars -= 1
            text += f"(?>[\\s\\S]*?{group})" if text else group
            group = ""
            text = text or "(?:)"
        else:
            group += piece
    text = f"{text}[\\s\\S]*{group}" if text else group
    return re.compile(text)


def _class(negation: str, inside: str) -> str:
    members: list[str] = []
    characters = re.findall(r"\\?([\s\S])", inside)
    place = 0
    while place < len(characters):
        if place + 2 < len(characters) and characters[place + 1] == "-":
            low, high = characters[place], characters[place + 2]
            if low <= high:
                members.append(f"{re.escape(low)}-{re.escape(high)}")
            place += 3
        else:
            members.append(re.escape(characters[place]))
            place += 1
    if not members:
        return r"[^\s\S]"
    return f"[{'^' if negation else ''}{''.join(members)}]"


def _split(pattern: str) -> tuple[str, ...]:
    return tuple(name for name in pattern.split("/") if name not in ("", "."))


def _anchored(directory: str, names: Iterable[str], *, widely: bool) -> _Anchored:
    """Return a pattern, with ``..`` at its beginning resolved, and widely with the
    names without wildcards, of which somebody may see where they lead."""
    rest = [*names]
    while rest and (rest[0] == ".." or (widely and not _WILD.search(rest[0]))):
        directory = resolve(rest.pop(0), directory)
    return _Anchored(directory, tuple(_compiled_name(name) for name in rest))


_WILD: Final = re.compile(r"[*?\[\\]")


def _literal(directory: str, names: Iterable[str]) -> _Anchored:
    """Return a pattern in which every character stands for itself."""
    return _Anchored(directory, tuple(re.compile(re.escape(name)) for name in names))


def _meaning(pattern: str, place: Place, widely: bool) -> tuple[_Anchored, ...] | None:
    """Return what a pattern means, to allow or, widely, to deny; None if nobody
    knows."""
    home = place.home if pattern.startswith("~") else None
    return _meaning_at(pattern, place.cwd, place.root, widely, home)


@lru_cache(maxsize=1024)
def _meaning_at(
    pattern: str, cwd: str | None, root: str | None, widely: bool, home: str | None
) -> tuple[_Anchored, ...] | None:
    here = resolve(".", cwd)
    if pattern == "~" or pattern.startswith("~/"):
        if home is None:
            return None
        names, bases = _split(pattern[1:]), [home]
    elif pattern.startswith("//"):
        names, bases = _split(pattern), ["/"]
    elif pattern.startswith("/"):
        names, bases = _split(pattern), [here if root is None else resolve(root, cwd)]
        if widely:
            bases += [here, "/"]
    else:
        names, bases = _split(pattern), [here]
        if widely and root is not None:
            bases.append(resolve(root, cwd))
        is_anywhere = len(names) == 1 and not pattern.startswith("./")
        if widely and (is_anywhere or pattern.startswith("*")):
            bases.append("/")
        if is_anywhere or (widely and names[:1] != ("..",)):
            names = (_ANY, *names)
    found = [_anchored(base, names, widely=widely) for base in bases]
    if widely:
        found += [_literal(base, _split(pattern.lstrip("~"))) for base in bases]
    return tuple(found)


def anchors(pattern: str, place: Place) -> list[str]:
    """Return the directories from which a pattern speaks of paths, as far as it names
    them without a wildcard."""
    found = _meaning(pattern, place, True) or ()
    return [*dict.fromkeys(one.directory for one in found if one.directory != "/")]


def pattern_allows(
    pattern: str, tool: str, arguments: Mapping[str, Any], place: Place
) -> bool:
    """Tell whether all that a call names is what a pattern speaks of."""
    path = arguments.get(PATH_ARGUMENTS[tool])
    if path is None and tool in SEARCHING:
        path = "."
    if not isinstance(path, str) or unknown_arguments(tool, arguments):
        return False
    if not stays_below(arguments.get(PATTERN_ARGUMENTS.get(tool, ""), "")):
        return False
    named = meanings(path, place.cwd, place.home)
    found = _meaning(pattern, place, False)
    if named is None or found is None or path != path.strip():
        return False
    if path.startswith("~"):
        named = named[:1]
    if place.real is not None and not all(one in place.real for one in named):
        return False
    plain = {resolve(one, None) for one in named}
    real = {it for one in (*named, *plain) if (it := place.follow(one)) is not None}
    return all(_covers(found, one, tool, place) for one in plain | real)


def _covers(patterns: Iterable[_Anchored], path: str, tool: str, place: Place) -> bool:
    for one in patterns:
        if one.matches(path, place, widely=False):
            return True
        # A search in a directory of which all that is below is meant.
        whole = tool in SEARCHING and one.names[-1:] == (None,)
        if whole and _Anchored(one.directory, one.names[:-1]).matches(
            path, place, widely=False
        ):
            return True
    return False


def pattern_forbids(
    pattern: str, tool: str, arguments: Mapping[str, Any], place: Place
) -> bool:
    """Tell whether anything that a call may name is what a pattern speaks of."""
    named = paths_named(tool, arguments)
    if named is None:
        return True
    patterns = _meaning(pattern, place, True)
    for path in named:
        places = every_place(path, place)
        if places is None or patterns is None:
            return True
        for one in places:
            if any(it.matches(one, place, widely=True) for it in patterns):
                return True
    return False


# ---- Searches -----------------------------------------------------------------

_GLOB: Final = re.compile(r"[\w\s.*?!^@+,={}\[\]/-]*")


def stays_below(pattern: Any) -> bool:
    """Tell whether a pattern for the names of files finds only what is below the
    directory in which it is looked for, however much a tool makes of it."""
    if not isinstance(pattern, str) or len(pattern) > PATH_LIMIT or ".." in pattern:
        return False
    if _GLOB.fullmatch(pattern) is None:
        return False
    every = alternatives(pattern)
    if every is None:
        return False
    for one in every:
        if one.strip().startswith("/") or "{" in one or "}" in one or ".." in one:
            return False
        for name in one.split("/"):
            # Some take `.*` and `.?` for the directory above as well.
            if name.strip()[:1] in (".", "[", "+", "@", "!") and _may_be_above(name):
                return False
    return True


def _may_be_above(name: str) -> bool:
    try:
        matcher = _compiled_name(name.strip().lstrip("+@!"))
    except BadPattern:
        return True
    return matcher is None or matcher.fullmatch("..") is not None
