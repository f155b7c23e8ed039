"""What the text of a rule says: pure.

What cannot be honoured is refused with what to write instead: also a text that was
written as if it held several rules. Such a text would be one rule to those who match
it, speak of nothing that anybody calls, and so deny nothing.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Final, Literal, TypeAlias

import attrs

from actors.house import frozen

from ._command_patterns import is_simple_command
from ._host_patterns import ascii_host
from ._path_patterns import BadPattern, check_pattern
from ._tool_names import (
    ARGUMENTS,
    PATH_ARGUMENTS,
    is_known,
    known_spelling,
    meant_tool,
    newer,
    newer_arguments,
)

_TEXT_ARGUMENTS: Final = {"Agent": "subagent_type", "SendMessage": "to"}
CONTENT: Final = {"Bash": "command", "WebFetch": "url", **PATH_ARGUMENTS}
"""The argument that a bare pattern is about."""

_SHAPE: Final = re.compile(r"([A-Za-z0-9_.*-]+)(?:\((.*)\))?", re.DOTALL)
_ARGUMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
PARAMETER: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*:\s*(.*)", re.DOTALL)
"""``NAME:VALUE``, for an argument as it stands in JSON."""
NAMED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*([:=])\s*(.*)", re.DOTALL)
"""Either of these."""
_CODEX: Final = re.compile(r"\s*(?:prefix_rule|host_executable|network_rule)\s*\(")

PatternKind: TypeAlias = Literal[
    "any", "command", "path", "text", "domain", "url", "skill", "argument", "parameter"
]


@frozen
class ParsedRule:
    """The parts of a rule's text."""

    name: str
    """Of a tool, or of several."""
    kind: PatternKind = "any"
    pattern: str = ""
    argument: str = ""
    """The one that the pattern is about."""


@lru_cache(maxsize=1024)
def parse_rule(text: str, *, allows: bool) -> ParsedRule:
    """Return what a rule says.

    Raises:
        ValueError: naming the rule, what is wrong, and what to write.
    """
    try:
        parsed = _read(text)
        if parsed.kind == "command":
            _refuse_commands(parsed.name, parsed.pattern, allows=allows)
        if allows:
            _check_allows(parsed)
    except BadPattern as error:
        raise ValueError(f"the rule {text!r} cannot be honoured: {error}") from None
    return parsed


def is_anchored(name: str) -> bool:
    """Tell whether the name in a rule is that of one tool, or begins with that of one
    server: ``mcp__SERVER__``."""
    return "*" not in name or re.match(r"mcp__[^*]+?__", name) is not None


def _read(text: str) -> ParsedRule:
    if _CODEX.match(text):
        raise BadPattern(
            "this is Codex's language; a prefix is written Bash(git status:*), and"
            " what is decided about it is the effect"
        )
    shape = _SHAPE.fullmatch(text)
    if shape is None:
        raise BadPattern(_what_shape(text))
    name, pattern = shape.groups()
    if (known := known_spelling(name)) is not None:
        raise BadPattern(f"write {json.dumps(text.replace(name, known, 1))}")
    if newer(name) == "Cd":
        raise BadPattern(
            "nothing here is called Cd; an agent's directory is Agent.cwd: leave the"
            " rule out"
        )
    if pattern is None:
        return ParsedRule(name)
    if not pattern.strip():
        raise BadPattern(
            f"there is nothing in the parentheses: write {name} for all calls"
        )
    _refuse_other_rule(name, pattern)
    parsed = _pattern_rule(name, pattern.strip())
    # As the arguments of a call.
    (argument,) = newer_arguments(name, {parsed.argument: None})
    parsed = attrs.evolve(parsed, argument=argument)
    if pattern != pattern.strip():
        if parsed.kind == "argument":
            return attrs.evolve(parsed, pattern=pattern.partition("=")[2])
        raise BadPattern(f"write {name}({pattern.strip()}), without the blanks")
    return parsed


def _what_shape(text: str) -> str:
    """Return what to write in the place of a text that is not a rule."""
    general = "a rule is TOOL or TOOL(PATTERN), such as Bash(git status*)"
    tight = re.sub(r"\A\s*([A-Za-z0-9_.*-]+)\s*\(", r"\1(", text).strip()
    if tight != text and _SHAPE.fullmatch(tight):
        return f"write {json.dumps(tight)}, without the blanks"
    if re.fullmatch(
        r"[A-Za-z0-9_.*-]+(\([^()]*\))?(\s*[,;|]\s*[A-Za-z0-9_.*-]+(\([^()]*\))?)+",
        text.strip(),
    ):
        return f"write a rule for each tool, as separate texts: {general}"
    if text.count("(") and not text.rstrip().endswith(")"):
        return f"the parenthesis is not closed: {general}"
    return general


def _pattern_rule(name: str, pattern: str) -> ParsedRule:
    tool = newer(name)
    argument = _ARGUMENT.fullmatch(pattern)
    parameter = PARAMETER.fullmatch(pattern)
    known = ARGUMENTS.get(tool, frozenset())
    if pattern == "*" and tool != "Bash" and tool not in PATH_ARGUMENTS:
        return ParsedRule(name)
    if tool in CONTENT:
        content = CONTENT[tool]
        for found in (argument, parameter):
            if found is not None and found[1] == content:
                raise BadPattern(f"write {name}({found[2] or 'PATTERN'})")
    if tool == "Bash" and parameter is not None and parameter[2] == "*":
        # `Bash(timeout:*)` is the program, as all that end in this.
        return _command_rule(name, pattern)
    if parameter is not None and parameter[1] in known and parameter[1] != "domain":
        return _parameter_rule(name, parameter[1], parameter[2])
    if argument is not None and argument[1] in known:
        return ParsedRule(name, "argument", argument[2], argument[1])
    if tool == "Bash":
        return _command_rule(name, pattern)
    if tool in PATH_ARGUMENTS:
        check_pattern(pattern)
        _refuse_paths(name, pattern)
        return ParsedRule(name, "path", pattern, PATH_ARGUMENTS[tool])
    if tool == "WebFetch":
        return _address_rule(name, pattern)
    if tool in ("Skill", "SlashCommand"):
        return _skill_rule(name, tool, pattern)
    if tool in _TEXT_ARGUMENTS:
        _refuse_list(name, pattern, _BETWEEN_NAMES)
        if pattern.endswith(":*"):
            raise BadPattern(f"`:*` is for commands: write {name}({pattern[:-2]})")
        return ParsedRule(name, "text", pattern, _TEXT_ARGUMENTS[tool])
    if argument is not None:
        return ParsedRule(name, "argument", argument[2], argument[1])
    if parameter is not None and parameter[2]:
        return _parameter_rule(name, parameter[1], parameter[2])
    meant = meant_tool(name)
    if meant is not None and not is_known(name):
        raise BadPattern(
            f"no tool is known that is called {name}; {meant} may be meant: write"
            f" {meant}({pattern}), or {name}(ARGUMENT={pattern}) about a tool of your"
            " own"
        )
    raise BadPattern(
        f"a rule about {name} must name an argument:"
        f" {name}(ARGUMENT={pattern}), or {name} for all calls"
    )


def _parameter_rule(name: str, argument: str, value: str) -> ParsedRule:
    if not value:
        raise BadPattern(f"it names no value: write {name}({argument}:VALUE)")
    if newer(name) == "Agent" and argument == "subagent_type":
        return ParsedRule(name, "text", value, argument)
    return ParsedRule(name, "parameter", value, argument)


def _command_rule(name: str, pattern: str) -> ParsedRule:
    prefix = pattern.removesuffix(":*")
    if prefix != pattern and (not prefix or prefix == "*"):
        raise BadPattern(f"write {name} for all calls")
    if prefix.endswith(":*"):
        raise BadPattern(f"`:*` stands there once: write {name}({prefix})")
    if re.search(r"\w:\*\s*[,;|]", prefix):
        each = [part.strip() for part in re.split("[,;|]", pattern) if part.strip()]
        better = " and ".join(f"{name}({part})" for part in each)
        raise BadPattern(_SEPARATE + better)
    if re.search(r"\w:\*\s", prefix):
        better = " ".join(prefix.replace(":*", " *").split())
        raise BadPattern(f"`:*` stands at the end only: write {name}({better})")
    if re.search(r":\s+\*\Z", pattern):
        better = re.sub(r":\s+\*\Z", ":*", pattern)
        raise BadPattern(f"write {name}({better}), without the blank")
    return ParsedRule(name, "command", pattern, "command")


def _address_rule(name: str, pattern: str) -> ParsedRule:
    if pattern[:7].lower() == "domain:":
        domain = pattern[7:].strip().rstrip(".").lower()
        if re.fullmatch(r"[a-z][a-z0-9+.-]*://.*|[^/]*[/?#:@].*", domain):
            host = re.sub(r"\A[a-z][a-z0-9+.-]*://", "", domain)
            host = re.split(r"[/?#:]", host.rpartition("@")[2])[0]
            raise BadPattern(f"a domain is a host's name: write {name}(domain:{host})")
        if not re.fullmatch(r"[\w*-]+(\.[\w*-]+)*", domain):
            raise BadPattern(f"a domain is one host's name: {name}(domain:example.com)")
        try:
            return ParsedRule(name, "domain", ascii_host(domain), "url")
        except UnicodeError:
            raise BadPattern(f"no host has this name: {domain!r}") from None
    if re.match(r"\*|[a-z]+\*?://", pattern):
        _refuse_list(name, pattern, _BETWEEN_ADDRESSES)
        return ParsedRule(name, "url", pattern, "url")
    if "," in pattern or "|" in pattern:
        raise BadPattern(f"write a rule for each host: {name}(domain:example.com)")
    # `domains:X` and `domain=X` as well as X alone.
    host = re.sub(r"(?i)\A(?:domains?|hosts?|hostname|sites?|url)\s*[:=]", "", pattern)
    host = re.sub(r"\A[a-z][a-z0-9+.-]*://", "", host.strip())
    raise BadPattern(f"write {name}(domain:{re.split('[/:]', host)[0]})")


def _skill_rule(name: str, tool: str, pattern: str) -> ParsedRule:
    if ":*" in pattern.removesuffix(":*"):
        raise BadPattern("`:*` stands at the end only")
    if pattern.startswith("*"):
        raise BadPattern(f"write {name} for all")
    _refuse_list(name, pattern.split()[0], _BETWEEN_NAMES)
    argument = "skill" if tool == "Skill" else "command"
    return ParsedRule(name, "skill", pattern.removeprefix("/"), argument)


def _check_allows(parsed: ParsedRule) -> None:
    """Refuse what can never allow anything, or would allow what nobody has named."""
    name, kind, pattern = parsed.name, parsed.kind, parsed.pattern
    if kind == "any" and name != "*" and not is_anchored(name):
        raise BadPattern(
            "it would allow tools that nobody has named; write a rule for each tool, or"
            " mcp__SERVER__* for those of one server"
        )
    if kind == "parameter":
        raise BadPattern(
            "one argument does not make a call safe; to allow it all the same write"
            f" {name}({parsed.argument}={pattern})"
        )
    if kind == "url" and not re.fullmatch(r"https?://[\w.-]+(:\d+)?/.*", pattern):
        raise BadPattern(f"it would also allow other hosts; write {name}(domain:HOST)")
    if kind == "command" and "*" in pattern:
        example = pattern.removesuffix(":*").replace("*", "x")
        if not is_simple_command(example):
            raise BadPattern(
                "with `*` a rule allows one simple command, and this is not one (see"
                " Rule); write a rule for each command in it, or the whole command"
                " without `*`"
            )


# ---- Several rules in one text ------------------------------------------------

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


def _refuse_other_rule(name: str, pattern: str) -> None:
    for found in _ANOTHER.finditer(pattern):
        other = found[1]
        if is_known(other) or other.startswith("mcp__"):
            first = f"{name}({pattern[: found.start()].rstrip()})"
            raise BadPattern(f"{_SEPARATE}{first}, and {other}(...)")


def _refuse_commands(name: str, pattern: str, *, allows: bool) -> None:
    # A command that is allowed word for word may hold whatever it does.
    if allows and "*" not in pattern:
        return
    plain = _masked(_QUOTED, pattern)
    otherwise = ", or a pipe with blanks round its |"
    _refuse_list(name, pattern, _BETWEEN_COMMANDS, otherwise, masked=plain)
    if plain.endswith(")") and plain.count(")") > plain.count("("):
        better = pattern.rstrip(")")
        raise BadPattern(f"there is a parenthesis too many: write {name}({better})")


def _refuse_paths(name: str, pattern: str) -> None:
    if pattern[0] in "\"'" and pattern[0] == pattern[-1] and len(pattern) > 2:
        raise BadPattern(
            f"quotes would be part of the path: write {name}({pattern[1:-1]})"
        )
    otherwise, plain = ", or a backslash before the character", _masked(_CLASS, pattern)
    _refuse_list(name, pattern, _BETWEEN_PATHS, otherwise, masked=plain)


def _masked(hidden: re.Pattern[str], text: str) -> str:
    return hidden.sub(lambda found: "_" * len(found[0]), text)


def _refuse_list(
    name: str,
    pattern: str,
    between: re.Pattern[str],
    otherwise: str = "",
    *,
    masked: str | None = None,
) -> None:
    """Refuse a pattern in which ``between`` stands, or in what is ``masked`` of it."""
    found = between.search(pattern if masked is None else masked)
    if found is None:
        return
    # The star in `a *,b` belongs to what stands before the comma.
    place = found.start() + (found[0] == "*,")
    first, second = pattern[:place].strip(), pattern[place:].strip(" \t,;|\"'")
    if not first or not second:
        raise BadPattern(f"{_SEPARATE}{name}({first or second}){otherwise}")
    raise BadPattern(f"{_SEPARATE}{name}({first}) and {name}({second}){otherwise}")
