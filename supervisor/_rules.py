"""Rules about tool calls, and how their patterns match: pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs

Effect: TypeAlias = Literal["allow", "deny", "ask"]

PATH_ARGUMENTS: Final = {
    "Edit": "file_path",
    "MultiEdit": "file_path",
    "NotebookEdit": "notebook_path",
    "Write": "file_path",
    "NotebookRead": "notebook_path",
    "Read": "file_path",
    "Glob": "path",
    "Grep": "path",
    "LS": "path",
}
"""Of which argument a bare pattern speaks, for tools that take a path."""

_TEXT_ARGUMENTS: Final = {
    "Agent": "subagent_type",
    "SendMessage": "to",
    "WebFetch": "url",
}

_SHAPE: Final = re.compile(r"([A-Za-z0-9_.*-]+)(?:\((.*)\))?", re.DOTALL)
_ARGUMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


@attrs.frozen
class Rule:
    """One rule about tool calls, such as ``Rule("allow", "Bash(git status*)")``.

    ``text`` is the name of a tool, in which ``*`` stands for any characters, and
    after it in parentheses, if the rule is not for all calls, a pattern. In a
    pattern, too, ``*`` stands for any characters, and everything else for itself.
    A pattern speaks of one argument:

    - ``Bash(PATTERN)``: of the command. To allow, the pattern must match a
      command that is *one simple command*: words, and quotes round them, on one
      line, and nothing that a shell could make more of. So no ``;``, ``&``,
      ``|``, ``<``, ``>``, ``$``, backquote, backslash (but between single
      quotes), ``(``, ``)``, ``{``, ``}`` or ``#`` outside of quotes, no ``$``,
      backquote or backslash between double quotes, no line break or other
      control character anywhere, no variable set before the program, and no
      ``*``, ``?``, ``[``, ``~`` or ``/../`` in its name. And the directory that
      the call asks for must be the agent's, or below it.
      `` *`` at the end also stands for nothing: ``Bash(ls *)`` matches ``ls`` and
      ``ls -l``, not ``lsof``; ``Bash(ls*)`` matches all three.
      To deny or to ask, it is enough that the pattern matches the whole command
      or any part of it that could be a command of its own, without quotes,
      backslashes, variables set before it, and the directory of the program.
      A command of more than 131,072 characters is allowed by no pattern, and
      matched by each that denies or asks.
      That is a seat belt and no wall: a program can be called in ways that no
      pattern sees. What must not happen is not allowed in the first place.
    - ``Read(PATTERN)`` and others that take a path: of the path, after ``.`` and
      ``..`` are resolved by name (links are not followed), both in the agent's
      directory; but ``*`` at the beginning stands for any directory.
    - ``Agent(PATTERN)``, ``SendMessage(PATTERN)``, ``WebFetch(PATTERN)``: of the
      type of the agent, the receiver, the address.
    - ``Anything(argument=PATTERN)`` for every other tool: of that argument.

    Of an argument that is no text, or not there, nothing is known: a rule that
    allows does not match then, and one that denies or asks does if it is there.

    Raises:
        TypeError, ValueError: naming the rule and what is wrong with it.
    """

    effect: Effect
    text: str

    def __attrs_post_init__(self) -> None:
        if self.effect not in get_args(Effect):
            raise ValueError(
                f"effect must be 'allow', 'deny' or 'ask', not {self.effect!r}"
            )
        if not isinstance(self.text, str):
            raise TypeError(f"text must be a str, not {self.text!r}")
        _parse(self.text)

    def matches(
        self, tool: str, arguments: Mapping[str, Any], cwd: str | None = None
    ) -> bool:
        """Tell whether this rule speaks of a call, made by an agent in ``cwd``."""
        name, argument, pattern = _parse(self.text)
        if not matches_glob(name, tool):
            return False
        if argument is None:
            return True
        value = arguments.get(argument)
        if value is None:
            return False
        allows = self.effect == "allow"
        if not isinstance(value, str):
            return not allows
        # By the tool and not by the rule: that may speak of several.
        if tool == "Bash" and argument == "command":
            if allows:
                return is_inside(arguments.get("cwd"), cwd) and _allows(pattern, value)
            return _forbids(pattern, value)
        if PATH_ARGUMENTS.get(tool) == argument:
            return _matches_path(pattern, value, cwd, also_raw=not allows)
        return matches_glob(pattern, value)


@lru_cache(maxsize=1024)
def _parse(text: str) -> tuple[str, str | None, str]:
    """Return the tool, the argument (None: any call), and the pattern.

    Raises:
        ValueError: naming the rule.
    """
    shape = _SHAPE.fullmatch(text)
    if shape is None:
        raise ValueError(
            f"a rule must be TOOL or TOOL(PATTERN), such as 'Bash(git status*)',"
            f" not {text!r}"
        )
    name, pattern = shape.groups()
    if pattern is None:
        return name, None, ""
    if not pattern:
        raise ValueError(f"the pattern of a rule must not be empty: {text!r}")
    if name == "Bash":
        return name, "command", pattern
    short = PATH_ARGUMENTS.get(name) or _TEXT_ARGUMENTS.get(name)
    if short is not None:
        return name, short, pattern
    named = _ARGUMENT.fullmatch(pattern)
    if named is None:
        raise ValueError(
            f"a rule about {name} must say of which argument it speaks,"
            f" TOOL(ARGUMENT=PATTERN): {text!r}"
        )
    return name, named[1], named[2]


def matches_glob(pattern: str, text: str) -> bool:
    """Tell whether ``pattern``, in which ``*`` stands for any characters, is all of
    ``text``. The time goes with the length of both: no backtracking."""
    first, *parts = pattern.split("*")
    if not parts:
        return text == first
    last = parts.pop()
    end = len(text) - len(last)
    place = len(first)
    if place > end or not text.startswith(first) or not text.endswith(last):
        return False
    for part in parts:
        found = text.find(part, place, end)
        if found < 0:
            return False
        place = found + len(part)
    return True


def _matches_command(pattern: str, command: str) -> bool:
    bare = pattern.removesuffix(" *")
    return matches_glob(pattern, command) or (
        bare != pattern and matches_glob(bare, command)
    )


# ---- Shell commands -----------------------------------------------------------

_PLAIN: Final = re.compile(
    r"""
    (?:
        [^\x00-\x08\x0a-\x1f\x7f'"\\$`;&|<>(){}\#]    # as it is
      | '[^\x00-\x08\x0a-\x1f\x7f']*'
      | "[^\x00-\x08\x0a-\x1f\x7f"\\$`]*"
    )*+
    """,
    re.VERBOSE,
)
"""One line of words, quoted or not, that a shell takes for one command."""

COMMAND_LIMIT: Final = 131_072
"""Characters of a command that rules look at. Linux runs none that is longer."""

_COMPOUND: Final = frozenset(
    "! [[ ]] case coproc do done elif else esac fi for function if in select then"
    " time until while".split()
)
"""Words that make more than one simple command of what follows them."""


def is_simple_command(command: str) -> bool:
    """Tell whether a shell would run this as one program with plain arguments."""
    program = re.split("[ \t]", command.lstrip(" \t"), maxsplit=1)[0]
    return (
        bool(program)
        and program not in _COMPOUND
        and not any(character in program for character in "=~*?[")
        and not _climbs(program)
        and _PLAIN.fullmatch(command) is not None
    )


def _climbs(path: str) -> bool:
    """Tell whether a path leaves again a directory that it has named."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    while parts and parts[0] == ".." and not path.startswith("/"):
        parts.pop(0)
    return ".." in parts


def _allows(pattern: str, command: str) -> bool:
    if len(command) > COMMAND_LIMIT:
        return False
    command = command.strip(" \t")
    return is_simple_command(command) and _matches_command(pattern, command)


_SEPARATOR: Final = re.compile(r"[;&|<>(){}`\n\r]|\$\(")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_CONTINUED: Final = re.compile(r"\\\n")
_QUOTING: Final = str.maketrans("", "", "'\"\\")


def _forbids(pattern: str, command: str) -> bool:
    if len(command) > COMMAND_LIMIT:
        return True
    return any(_matches_command(pattern, text) for text in _readings(command))


@lru_cache(maxsize=4)
def _readings(command: str) -> frozenset[str]:
    """Return the command, and whatever in it could be a command of its own."""
    command = _CONTINUED.sub("", command)
    texts = [command, command.translate(_QUOTING)]
    readings: set[str] = set()
    for text in texts:
        for part in [text, *_SEPARATOR.split(text)]:
            words = part.split()
            readings |= {part, " ".join(words)}
            start = 0
            while start < len(words) and (
                words[start] in _COMPOUND or _ASSIGNMENT.match(words[start])
            ):
                start += 1
            words = words[start:]
            if words:
                base = posixpath.basename(words[0])
                readings |= {" ".join(words), " ".join([base, *words[1:]])}
    return frozenset(readings)


# ---- Paths --------------------------------------------------------------------


def _matches_path(pattern: str, path: str, cwd: str | None, *, also_raw: bool) -> bool:
    resolved = _resolve(path, cwd)
    patterns = [pattern]
    if not pattern.startswith(("/", "*")):
        patterns = [posixpath.normpath(posixpath.join(cwd or ".", pattern))]
        if pattern.endswith("/"):
            patterns[0] += "/"
    if also_raw:
        patterns.append(pattern)
    paths = [resolved, path] if also_raw else [resolved]
    return any(matches_glob(one, it) for one in patterns for it in paths)


def _resolve(path: str, cwd: str | None) -> str:
    """Return ``path`` in ``cwd`` without ``.`` and ``..``; links are not followed.
    Without a ``cwd`` it stays relative."""
    whole = posixpath.normpath(posixpath.join(cwd or ".", path))
    # Two slashes at the start are one, but for POSIX.
    return "/" + whole.lstrip("/") if whole.startswith("/") else whole


_LEAVES: Final = re.compile(r"(?:^|[{,(|])\s*[/~\\]|\.\.|[A-Za-z]:")


def stays_below(pattern: Any) -> bool:
    """Tell whether a pattern for the names of files finds only what is below the
    directory in which it is looked for, however much the tool makes of it."""
    return isinstance(pattern, str) and _LEAVES.search(pattern) is None


def is_inside(path: Any, cwd: str | None) -> bool:
    """Tell whether a path that a call asks for (None: none) is ``cwd`` or below."""
    if path is None:
        return True
    if not isinstance(path, str) or "\0" in path:
        return False
    home = _resolve(".", cwd)
    resolved = _resolve(path, cwd)
    if home == ".":
        return not resolved.startswith(("/", "../")) and resolved != ".."
    return resolved == home or resolved.startswith(home.rstrip("/") + "/")
