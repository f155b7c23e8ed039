"""Which tool may be meant by a name that is none's: pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Final

from ._tool_names import KNOWN, all_names, is_known, known_spelling

_IN_OTHER_WORDS: Final = {
    **dict.fromkeys(
        "shell sh zsh terminal exec execute console command cmd localshell"
        " execcommand runcommand bashtool".split(),
        "Bash",
    ),
    **dict.fromkeys(("readfile", "viewfile", "openfile"), "Read"),
    **dict.fromkeys(("writefile", "createfile"), "Write"),
    **dict.fromkeys(("editfile", "applypatch"), "Edit"),
}
"""What other programs call these."""
_LONGEST: Final = 80
_WORD: Final = re.compile(r"[A-Za-z0-9_-]{3,}")
_NO_WORD: Final = re.compile(r"\\.|\[[^\]]*\]|\(\?[A-Za-z]+\)")
"""What in a regular expression stands for no letters, or for one of several."""
_RULE: Final = re.compile(r"\s*([A-Za-z]+)\s*\(.*\)\s*", re.DOTALL)


def meant_tool(name: str, there: Iterable[str] = ()) -> str | None:
    """Return the tool whose name is nearest to one that is no tool's, of those that
    are known and those that are ``there``; None if none is near."""
    plain = _plain(name)[:_LONGEST]
    if plain.startswith("mcp"):
        # The names of a server's tools are all alike.
        known = [tool for tool in there if _plain(tool) == plain]
        return known[0] if known else None
    by_plain = {_plain(tool): tool for tool in (*KNOWN, *there)}
    if plain not in by_plain and plain in _IN_OTHER_WORDS:
        return _IN_OTHER_WORDS[plain]
    found = get_close_matches(plain, by_plain, n=1, cutoff=0.75)
    return by_plain[found[0]] if found else None


def misspelt_in(
    expression: re.Pattern[str], there: Iterable[str] = ()
) -> Iterator[tuple[str, str]]:
    """Return the words in a regular expression that are in no tool's name, each with
    the tool that may be meant by it and is not matched."""
    tools = (*KNOWN, *there)
    for word in _WORD.findall(_NO_WORD.sub(" ", expression.pattern)):
        if word.startswith("mcp__") or any(word in tool for tool in tools):
            continue
        meant = meant_tool(word, there)
        if meant is not None and not any(map(expression.search, all_names(meant))):
            yield word, meant


def rule_for_a_name(matcher: str) -> tuple[str, str] | None:
    """Return the tool and the rule about it, rightly spelt, if a text is a rule, such
    as ``Bash(ls *)``, where the names of tools belong; None if it is none."""
    rule = _RULE.fullmatch(matcher)
    if rule is None:
        return None
    name = rule[1]
    tool = known_spelling(name) or (name if is_known(name) else meant_tool(name))
    return None if tool is None else (tool, matcher.strip().replace(name, tool, 1))


def _plain(name: str) -> str:
    return re.sub("[-_ ]", "", name).casefold()
