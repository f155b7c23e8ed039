"""Which commands a pattern speaks of: pure.

To allow, a pattern with ``*`` speaks of one simple command only; to deny or to ask,
of anything in a command that could be run.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from ._command_reading import COMPOUND, CommandLine, read_command
from ._glob import matches_glob

_AS_IT_IS: Final = r"[^\x00-\x08\x0a-\x1f\x7f'\"\\$`;&|<>(){}#]*"
_QUOTED: Final = r"""'[^\x00-\x08\x0a-\x1f\x7f']*'|"[^\x00-\x08\x0a-\x1f\x7f"\\$`]*\""""
# Not by a possessive quantifier, which takes a quote that is not closed in Python 3.11.2.
# Each character fits in one place alone, so there is nothing to go back for either.
_PLAIN: Final = re.compile(f"{_AS_IT_IS}(?:(?:{_QUOTED}){_AS_IT_IS})*")
"""One line of words, quoted or not, that a shell takes for one command."""

COMMAND_LIMIT: Final = 131_072
"""Characters of a command that rules look at. Linux runs none that is longer."""

_FINDING: Final = re.compile(
    r"-(?:exec|execdir|ok|okdir|delete|fls|fprint0?|fprintf)\Z"
)


def is_simple_command(command: str) -> bool:
    """Tell whether a shell would run this as one program with plain arguments."""
    program = re.split("[ \t]", command.lstrip(" \t"), maxsplit=1)[0]
    return (
        bool(program)
        and program not in COMPOUND
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


def matches_command(pattern: str, command: str) -> bool:
    """Tell whether a pattern for commands is all of ``command``. A blank and ``*`` at
    the end, also written ``:*``, stand for nothing as well if there is no other."""
    # Behind a blank it may be no sign of a prefix, but a colon: `lsof -i :*`.
    if pattern.endswith(":*") and not pattern.endswith(" :*"):
        pattern = pattern.removesuffix(":*") + " *"
    bare = pattern.removesuffix(" *")
    return matches_glob(pattern, command) or (
        bare != pattern and "*" not in bare and command == bare
    )


def allows_command(pattern: str, command: str) -> bool:
    """Tell whether a pattern that allows speaks of a command."""
    if len(command) > COMMAND_LIMIT:
        return False
    command = command.strip(" \t")
    if "*" not in pattern:
        return command == pattern
    return (
        is_simple_command(command)
        and matches_command(pattern, command)
        and not _finds_and_does(command)
    )


def _finds_and_does(command: str) -> bool:
    """Tell whether it is a ``find`` that does something with what it finds."""
    words = command.replace("'", "").replace('"', "").split()
    return words[0].rpartition("/")[2] == "find" and any(map(_FINDING.match, words))


def forbids_command(pattern: str, command: str) -> bool:
    """Tell whether a pattern that denies or asks speaks of anything in a command."""
    if len(command) > COMMAND_LIMIT:
        return True
    reading = read_command(command)
    if not reading.is_complete:
        return True
    wanted, whole = _compiled(pattern)
    return any(
        matches_glob(one, text) for one in whole for text in reading.whole
    ) or any(matches(line) for matches in wanted for line in reading.lines)


@lru_cache(maxsize=1024)
def _compiled(
    pattern: str,
) -> tuple[tuple[_ProgramPattern, ...], tuple[str, ...]]:
    """Return what a pattern wants of one command, and of the whole text."""
    prefix = pattern.removesuffix(":*")
    plain = " ".join(prefix.split())
    texts = [prefix, plain, plain.translate(_QUOTES)]
    program, blank, rest = plain.partition(" ")
    texts.append(program.rpartition("/")[2] + blank + rest)
    texts = [text for text in dict.fromkeys(texts) if text]
    whole = [pattern, *texts]
    if any(sign in plain for sign in ";&|<>(){}`$\n"):
        whole += [f"*{text}*" for text in texts]
    found = [_ProgramPattern(text, is_prefix=prefix != pattern) for text in texts]
    if prefix != pattern:
        found.append(_ProgramPattern(pattern))
    return tuple(found), tuple(dict.fromkeys(whole))


_QUOTES: Final = str.maketrans("", "", "'\"\\")
_IN_NAME: Final = re.compile(r"[\w.-]")


class _ProgramPattern:
    """Looks for a pattern at each place of a line where a program may begin."""

    def __init__(self, pattern: str, *, is_prefix: bool = False) -> None:
        bare = pattern.removesuffix(" *")
        # One word alone means the program, whatever it is given.
        self._is_prefix = is_prefix or (bare == pattern and " " not in pattern)
        self._needs_blank = not is_prefix
        self._globs = (pattern, bare)
        if bare != pattern and "*" not in bare:
            pattern, self._is_prefix, self._needs_blank = bare, True, True
        elif self._is_prefix:
            self._globs = (f"{pattern} *", pattern)
        self._pattern = pattern
        self._first, *self._rest = pattern.split("*")

    def __call__(self, line: CommandLine) -> bool:
        text = line.text
        if self._rest:
            return any(self._matches_glob(line, one) for one in self._globs)
        if self._is_prefix:
            return any(self._ends(text, it) for it in line.starts)
        start = len(text) - len(self._pattern)
        return start in line.starts and text.endswith(self._pattern)

    def _matches_glob(self, line: CommandLine, pattern: str) -> bool:
        text = line.text
        if not self._first:
            return matches_glob(pattern, text)
        # If it does not match from the first place on, it does from no later one.
        for start in line.starts:
            if text.startswith(self._first, start):
                return matches_glob(pattern, text[start:])
        return False

    def _ends(self, text: str, start: int) -> bool:
        """Tell whether the pattern stands at ``start``, and ends with a word."""
        if not text.startswith(self._pattern, start):
            return False
        following = text[start + len(self._pattern) :][:1]
        if following in ("", " "):
            return True
        return not self._needs_blank and not (
            _IN_NAME.match(following) and _IN_NAME.match(self._pattern[-1])
        )
