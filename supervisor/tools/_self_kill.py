"""Commands that would end the host itself, by its name or by its process id."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from ..permissions._command_reading import plain_commands

_KILLERS: Final = frozenset({"pkill", "killall"})
# What may stand before a command.
_PREFIXES: Final = frozenset(
    "sudo doas env command exec nohup nice setsid time then do else ! { (".split()
)
_TAKES_A_VALUE: Final = frozenset(
    "-u -U -g -G -P -s -t -o -y -F --signal --user --session --terminal".split()
)


def ends_host(command: str, programs: Iterable[str]) -> str | None:
    """Return the name among ``programs`` that ``command`` would end all
    processes of, or None.

    It finds the plain ``pkill`` and ``killall``, which a model writes to end
    what it has started; it does not protect against malice.
    """
    if not any(killer in command for killer in _KILLERS):
        return None
    names = tuple(programs)
    for words in plain_commands(command):
        for pattern in _patterns(_without_prefixes(words)):
            for name in names:
                if _matches(pattern, name):
                    return name
    return None


def killed_process(
    command: str, processes: Callable[[], Collection[int]]
) -> int | None:
    """Return the id among ``processes`` to which ``command`` would send a signal,
    -1 if to every process there is, or None.

    It finds an id, or that of a group, that stands in the command as a number.
    ``processes`` is called if there is a plain ``kill`` at all.
    """
    if "kill" not in command:
        return None
    for words in plain_commands(command):
        targets = list(_targets(_without_prefixes(words)))
        if -1 in targets:
            return -1
        if targets:
            ours = processes()
            for target in targets:
                if abs(target) in ours:
                    return abs(target)
    return None


def _targets(words: list[str]) -> Iterator[int]:
    """Yield the numbers of those to which a ``kill`` sends a signal."""
    if not words or words[0].rpartition("/")[2] != "kill":
        return
    words = words[1:]
    signal = "TERM"
    if words and words[0] in ("-s", "-n", "--signal"):
        signal, words = "".join(words[1:2]), words[2:]
    elif words and words[0].startswith("-") and words[0] != "--":
        signal, words = words[0].lstrip("-"), words[1:]
    # 0 only looks whether it is there, and -l translates names.
    if signal in ("0", "l", "L", "list", "table"):
        return
    for word in words:
        if re.fullmatch(r"-?[0-9]{1,10}", word):
            yield int(word)


def _without_prefixes(words: list[str]) -> list[str]:
    first = 0
    while first < len(words) and (
        words[first] in _PREFIXES
        or re.match(r"\w+=", words[first])
        # An option of a prefix.
        or (first and words[first].startswith("-"))
    ):
        first += 1
    return words[first:]


def _patterns(words: list[str]) -> Iterator[str]:
    """Yield what a killer is told to end."""
    if not words or words[0].rpartition("/")[2] not in _KILLERS:
        return
    skip = False
    for word in words[1:]:
        if skip:
            skip = False
        elif word.startswith("-"):
            skip = word in _TAKES_A_VALUE
        else:
            yield word


def _matches(pattern: str, name: str) -> bool:
    """Whether ``pattern`` means the program as such and not, say, one script."""
    return pattern.strip("^$*.") == name
