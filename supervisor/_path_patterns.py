"""Which paths a pattern speaks of, and where a path leads: pure.

A pattern is one of gitignore's: ``*`` and ``?`` stand for characters of one name,
``**`` for any directories, ``[...]`` for one of several characters, and a backslash
takes the meaning of the next one. A directory that matches does so with all that is
below.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import attrs

from ._tool_names import ARGUMENTS, PATH_ARGUMENTS, SEARCHING

PATH_LIMIT: Final = 4096
"""Characters of a path that rules look at. Linux opens none that is longer."""
PATHS: Final = 32
"""Paths of one call that rules look at, and alternatives of one pattern."""
_CHARACTERS: Final = 4 * PATH_LIMIT
"""Characters of all paths of one call that rules look at."""

_HERE: Final = "."
"""The directory of an agent of which nobody knows it."""


def home_directory(environ: Mapping[str, str] | None = None) -> str | None:
    """Return what ``~`` stands for by an environment: the program's own, as it is
    now, if none is given, since a rule is judged without a runtime, too."""
    home = dict(os.environ if environ is None else environ).get("HOME", "")
    return resolve(home, None) if posixpath.isabs(home) else None


@attrs.frozen
class Place:
    """Where a call is made, and where the paths in it lead."""

    cwd: str | None = None
    """The agent's directory; None if it is not known."""
    root: str | None = None
    """What ``/`` at the beginning of a pattern stands for; None for `cwd`."""
    real: Mapping[str, str] | None = None
    """Where paths lead if links are followed, by the absolute path as it is named;
    of those that are missing nothing is known. None if nobody has looked."""
    home: str | None = attrs.field(factory=home_directory)
    """What ``~`` stands for; None if nobody knows."""

    def follow(self, path: str) -> str | None:
        """Return where a path leads; None if that is not known."""
        return None if self.real is None else self.real.get(path)


def resolve(path: str, cwd: str | None) -> str:
    """Return ``path`` in ``cwd`` without ``.`` and ``..``; links are not followed.
    Without a ``cwd`` it stays relative."""
    whole = posixpath.normpath(posixpath.join(cwd or _HERE, path))
    # Two slashes at the start are one, but for POSIX.
    return "/" + whole.lstrip("/") if whole.startswith("/") else whole


def below(path: str, directory: str) -> list[str] | None:
    """Return the names that lead from a directory to a path, both without ``.`` and
    ``..``; None if the path is not below it. The directory itself is."""
    if path == directory:
        return []
    if directory == _HERE:
        outside = path.startswith(("/", "../")) or path == ".."
        return None if outside else path.split("/")
    beginning = directory.rstrip("/") + "/"
    if not path.startswith(beginning):
        return None
    return path.removeprefix(beginning).split("/")


# ---- What a call names --------------------------------------------------------


def paths_named(tool: str, arguments: Mapping[str, Any]) -> list[str] | None:
    """Return every path that a call of a tool for files names, and for a search also
    those that its pattern may; None if nobody knows which, or they are too many or
    too long to be looked at."""
    named = _every_path_named(tool, arguments)
    if named is None or len(named) > PATHS or sum(map(len, named)) > _CHARACTERS:
        return None
    return named


def _every_path_named(tool: str, arguments: Mapping[str, Any]) -> list[str] | None:
    path = arguments.get(PATH_ARGUMENTS[tool])
    if path is None and tool in SEARCHING:
        path = "."
    strange = unknown_arguments(tool, arguments)
    texts = islice(_texts([arguments[name] for name in strange]), PATHS + 1)
    if not isinstance(path, str):
        named = [*texts]
        return named if path is None and named else None
    named = [path, *texts]
    for pattern in (arguments.get(name) for name in _pattern_names(tool)):
        if isinstance(pattern, str):
            every = alternatives(pattern)
            if every is None:
                return None
            named += [posixpath.join(path, one) for one in every]
    return named


def _pattern_names(tool: str) -> tuple[str, ...]:
    return {"Glob": ("pattern",), "Grep": ("glob",)}.get(tool, ())


def unknown_arguments(tool: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return the arguments of which nobody knows what they mean to a tool for files."""
    return [name for name in arguments if name not in ARGUMENTS[tool]]


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a value."""
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            rest += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple):
            rest += one


def alternatives(pattern: str) -> list[str] | None:
    """Return what a pattern for files comes to if braces in it are alternatives; None
    if that is too much."""
    if len(pattern) > PATH_LIMIT:
        return None
    done: list[str] = []
    rest = [pattern]
    while rest:
        one = rest.pop()
        # The innermost pair first.
        found = re.search(r"\{([^{},]*,[^{}]*)\}", one)
        if found is None:
            done.append(one)
        else:
            before, behind = one[: found.start()], one[found.end() :]
            rest += [before + choice + behind for choice in found[1].split(",")]
        if len(done) + len(rest) > PATHS:
            return None
    return done


def meanings(path: str, cwd: str | None, home: str | None) -> list[str] | None:
    """Return the absolute paths that a path in a call may mean, as they are named,
    with ``..`` and all; None if nobody knows."""
    if len(path) > PATH_LIMIT or "\0" in path:
        return None
    found: list[str] = []
    for one in dict.fromkeys((path, path.strip())):
        if re.match(r"~[^/]", one):
            return None  # The home of somebody else.
        if one.startswith("~"):
            if home is None:
                return None
            found.append(home + one[1:])
        if one[:7].lower() == "file://":
            found.append("/" + one[7:].partition("/")[2])
        found.append(posixpath.join(cwd or _HERE, one))
    return found


def every_place(path: str, place: Place) -> list[str] | None:
    """Return every place that a path in a call may mean, by its name and with links
    followed; None if nobody knows."""
    named = meanings(path, place.cwd, place.home)
    if named is None:
        return None
    places = [*named, *(resolve(one, None) for one in named)]
    for one in [*places]:
        real = place.follow(one)
        if real is not None:
            places.append(real)
    return [*dict.fromkeys(places)]


# ---- Patterns -----------------------------------------------------------------

_ANY: Final = "**"


@attrs.frozen
class _Anchored:
    """A pattern from a directory on."""

    directory: str
    names: tuple[re.Pattern[str] | None, ...]
    """One for each name of a path; None is any number of them."""

    def matches(self, path: str, place: Place, *, widely: bool) -> bool:
        directories = [self.directory]
        real = place.follow(self.directory)
        if real is not None:
            directories.append(real)
        return any(
            (names := below(path, directory)) is not None
            and _match_names(self.names, names, widely=widely)
            for directory in directories
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
            "braces are no alternatives here: write a rule for each, or \\{ for the"
            " character"
        )
    if len(pattern) > PATH_LIMIT or "\0" in pattern:
        raise BadPattern("no path is like that")
    for name in pattern.split("/"):
        _name(name)


@lru_cache(maxsize=1024)
def _name(name: str) -> re.Pattern[str] | None:
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
    return _Anchored(directory, tuple(_name(name) for name in rest))


_WILD: Final = re.compile(r"[*?\[\\]")


def _literal(directory: str, names: Iterable[str]) -> _Anchored:
    """Return the pattern of which every character stands for itself."""
    return _Anchored(directory, tuple(re.compile(re.escape(name)) for name in names))


def _read_pattern(
    pattern: str, place: Place, widely: bool
) -> tuple[_Anchored, ...] | None:
    """Return what a pattern means, to allow or, widely, to deny; None if nobody
    knows."""
    home = place.home if pattern.startswith("~") else None
    return _read_pattern_at(pattern, place.cwd, place.root, widely, home)


@lru_cache(maxsize=1024)
def _read_pattern_at(
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
    found = _read_pattern(pattern, place, True) or ()
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
    if not stays_below(*(arguments.get(name, "") for name in _pattern_names(tool))):
        return False
    named = meanings(path, place.cwd, place.home)
    found = _read_pattern(pattern, place, False)
    if named is None or found is None or path != path.strip():
        return False
    if path.startswith("~"):
        named = named[:1]
    if place.real is not None and not all(one in place.real for one in named):
        return False
    places = {resolve(one, None) for one in named}
    for one in [*named, *places]:
        if (real := place.follow(one)) is not None:
            places.add(real)
    return all(_covers(found, one, tool, place) for one in places)


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
    patterns = _read_pattern(pattern, place, True)
    for path in named:
        places = every_place(path, place)
        if places is None or patterns is None:
            return True
        for one in places:
            if any(it.matches(one, place, widely=True) for it in patterns):
                return True
    return False


# ---- The agent's own directory ------------------------------------------------


def is_inside(path: Any, place: Place) -> bool:
    """Tell whether a path that a call asks for (None: none) is in the agent's
    directory, by its name and with links followed."""
    if path is None:
        return True
    if not isinstance(path, str) or not _is_plain(path):
        return False
    whole = posixpath.join(place.cwd or _HERE, path)
    named = resolve(whole, None)
    home = resolve(".", place.cwd)
    if place.real is None:
        return below(named, home) is not None
    homes = [home, *(it for it in [place.follow(home)] if it is not None)]
    real = [place.follow(whole), place.follow(named)]
    return any(below(named, one) is not None for one in homes) and all(
        one is not None and below(one, homes[-1]) is not None for one in real
    )


def is_below(path: Any, directory: str, place: Place) -> bool:
    """Tell whether a path in a call may lead to ``directory`` or below it."""
    if not isinstance(path, str):
        return True
    places = every_place(path, place)
    directories = [directory, place.follow(directory) or directory]
    return places is None or any(
        below(one, it) is not None for one in places for it in directories
    )


_STRANGE: Final = re.compile(r"\A[\s~]|\s\Z|[\x00-\x1f\x7f]|://|\A[A-Za-z]:|\\")


def _is_plain(path: str) -> bool:
    """Tell whether every tool takes a path for the same one."""
    return len(path) <= PATH_LIMIT and _STRANGE.search(path) is None


_GLOB: Final = re.compile(r"[\w\s.*?!^@+,={}\[\]/-]*")


def stays_below(*patterns: Any) -> bool:
    """Tell whether patterns for the names of files find only what is below the
    directory in which it is looked for, however much a tool makes of them."""
    return all(isinstance(it, str) and _stays_below(it) for it in patterns)


def _stays_below(pattern: str) -> bool:
    if len(pattern) > PATH_LIMIT or ".." in pattern or _GLOB.fullmatch(pattern) is None:
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
        matcher = _name(name.strip().lstrip("+@!"))
    except BadPattern:
        return True
    return matcher is None or matcher.fullmatch("..") is not None


def paths_to_follow(
    tool: str, arguments: Mapping[str, Any], cwd: str | None, home: str | None
) -> list[str]:
    """Return the absolute paths of which a judgement of a call wants to know where
    they lead."""
    paths: list[str] = []
    if tool in PATH_ARGUMENTS:
        for path in paths_named(tool, arguments) or ():
            for one in meanings(path, cwd, home) or ():
                paths += [one, resolve(one, None)]
    elif tool == "Bash":
        where = arguments.get("cwd")
        if isinstance(where, str) and len(where) <= PATH_LIMIT:
            whole = posixpath.join(cwd or _HERE, where)
            paths += [whole, resolve(whole, None)]
    if paths and cwd is not None:
        paths.append(resolve(".", cwd))
    return [*dict.fromkeys(paths)]
