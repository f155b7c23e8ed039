"""Which paths a tool call names, and where they lead: pure."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import attrs

from actors.house import frozen

from ._tool_names import ARGUMENTS, PATH_ARGUMENTS, SEARCHING

PATH_LIMIT: Final = 4096
"""Characters of a path that rules look at. Linux opens none that is longer."""
PATHS: Final = 32
"""Paths of one call that rules look at, and alternatives of one pattern."""
_CHARACTERS: Final = 4 * PATH_LIMIT
"""Characters of all paths of one call that rules look at."""

PATTERN_ARGUMENTS: Final[Mapping[str, str]] = {"Glob": "pattern", "Grep": "glob"}
"""In which argument a search takes the names of files."""

HERE: Final = "."
"""The directory of an agent whose directory is not known."""


def home_directory(environ: Mapping[str, str] | None = None) -> str | None:
    """Return what ``~`` stands for by an environment: the program's own, as it is
    now, if none is given, since a rule is judged without a runtime, too."""
    home = dict(os.environ if environ is None else environ).get("HOME", "")
    return resolve(home, None) if posixpath.isabs(home) else None


@frozen
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

    def ways(self, path: str) -> list[str]:
        """Return a path, and where it leads, if that is known."""
        real = self.follow(path)
        return [path] if real is None else [path, real]


def resolve(path: str, cwd: str | None) -> str:
    """Return ``path`` in ``cwd`` without ``.`` and ``..``; links are not followed.
    Without a ``cwd`` it stays relative."""
    whole = posixpath.normpath(posixpath.join(cwd or HERE, path))
    # Two slashes at the start are one, but for POSIX.
    return "/" + whole.lstrip("/") if whole.startswith("/") else whole


def below(path: str, directory: str) -> list[str] | None:
    """Return the names that lead from a directory to a path, both without ``.`` and
    ``..``; None if the path is not below it. The directory itself is."""
    if path == directory:
        return []
    if directory == HERE:
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
    path = arguments.get(PATH_ARGUMENTS[tool])
    if path is None and tool in SEARCHING:
        path = "."
    strange = unknown_arguments(tool, arguments)
    named = [*islice(_texts([arguments[name] for name in strange]), PATHS + 1)]
    if isinstance(path, str):
        named.insert(0, path)
        pattern = arguments.get(PATTERN_ARGUMENTS.get(tool, ""))
        if isinstance(pattern, str):
            every = alternatives(pattern)
            if every is None:
                return None
            named += [posixpath.join(path, one) for one in every]
    elif path is not None or not named:
        return None
    if len(named) > PATHS or sum(map(len, named)) > _CHARACTERS:
        return None
    return named


def unknown_arguments(tool: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return the arguments of a tool for files whose meaning is not known."""
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
        found.append(posixpath.join(cwd or HERE, one))
    return found


def every_place(path: str, place: Place) -> list[str] | None:
    """Return every place that a path in a call may mean, by its name and with links
    followed; None if nobody knows."""
    named = meanings(path, place.cwd, place.home)
    if named is None:
        return None
    every = [*named, *(resolve(one, None) for one in named)]
    return [*dict.fromkeys(it for one in every for it in place.ways(one))]


def paths_to_follow(
    tool: str, arguments: Mapping[str, Any], cwd: str | None, home: str | None
) -> list[str]:
    """Return the absolute paths that must be followed in order to judge a call."""
    paths: list[str] = []
    if tool in PATH_ARGUMENTS:
        for path in paths_named(tool, arguments) or ():
            for one in meanings(path, cwd, home) or ():
                paths += [one, resolve(one, None)]
    elif tool == "Bash":
        where = arguments.get("cwd")
        if isinstance(where, str) and len(where) <= PATH_LIMIT:
            whole = posixpath.join(cwd or HERE, where)
            paths += [whole, resolve(whole, None)]
    if paths and cwd is not None:
        paths.append(resolve(".", cwd))
    return [*dict.fromkeys(paths)]


# ---- The agent's own directory ------------------------------------------------


def is_inside(path: Any, place: Place) -> bool:
    """Tell whether a path that a call asks for (None: none) is in the agent's
    directory, by its name and with links followed."""
    if path is None:
        return True
    if not isinstance(path, str) or not _is_plain(path):
        return False
    whole = posixpath.join(place.cwd or HERE, path)
    named = resolve(whole, None)
    home = resolve(".", place.cwd)
    if place.real is None:
        return below(named, home) is not None
    homes = place.ways(home)
    real = [place.follow(whole), place.follow(named)]
    return any(below(named, one) is not None for one in homes) and all(
        one is not None and below(one, homes[-1]) is not None for one in real
    )


def is_below(path: Any, directory: str, place: Place) -> bool:
    """Tell whether a path in a call may lead to ``directory`` or below it."""
    if not isinstance(path, str):
        return True
    places = every_place(path, place)
    return places is None or any(
        below(one, it) is not None for one in places for it in place.ways(directory)
    )


_STRANGE: Final = re.compile(r"\A[\s~]|\s\Z|[\x00-\x1f\x7f]|://|\A[A-Za-z]:|\\")


def _is_plain(path: str) -> bool:
    """Tell whether every tool takes a path for the same one."""
    return len(path) <= PATH_LIMIT and _STRANGE.search(path) is None


# ---- What is not edited for being in it ---------------------------------------

# What is written in these is run, or says what may be done: by git, by editors, by
# shells, by programs for agents.
_DIRECTORIES: Final = frozenset(
    ".git .claude .codex .vscode .idea .husky .devcontainer .cargo .yarn .mvn .ssh"
    " .config".split()
)
_FILES: Final = frozenset(
    ".gitconfig .gitmodules .bashrc .bash_profile .bash_login .bash_aliases .bash_logout"
    " .zshrc .zshenv .zprofile .zlogin .zlogout .profile .kshrc .cshrc .tcshrc .envrc"
    " .npmrc .yarnrc .yarnrc.yml .pnp.cjs .pnp.loader.mjs .pnpmfile.cjs .bazelrc"
    " .bazelversion .bazeliskrc .pre-commit-config.yaml .ripgreprc .mcp.json"
    " .claude.json lefthook.yml lefthook.yaml .lefthook.yml .lefthook.yaml"
    " gradle-wrapper.properties maven-wrapper.properties".split()
)


def protected_part(path: object, place: Place) -> str | None:
    """Return the protected name that a path in a call goes through, by its name or by
    where it leads; None if there is none."""
    if not isinstance(path, str):
        return None
    homes = place.ways(resolve(place.cwd or ".", None))
    for one in every_place(path, place) or []:
        inside = [names for home in homes if (names := below(one, home)) is not None]
        # An agent may itself live in such a directory, in a worktree of it.
        for name in inside[-1] if inside else one.split("/"):
            if name.lower() in _DIRECTORIES or name.lower() in _FILES:
                return name
    return None
