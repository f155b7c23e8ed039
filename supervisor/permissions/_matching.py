"""What a rule speaks of, and how its pattern matches a call: pure.

It is loaded by the first rule, so that who has none need not wait for the patterns.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from ._command_patterns import allows_command, forbids_command, matches_command
from ._glob import matches_glob
from ._host_patterns import matches_domain, plain_host, possible_hosts
from ._path_patterns import pattern_allows, pattern_forbids
from ._paths import Place, is_inside
from ._rule_reading import CONTENT, NAMED, ParsedRule, PatternKind, parse_rule
from ._tool_names import (
    ARGUMENTS,
    EDITING,
    KNOWN,
    PATH_ARGUMENTS,
    READING,
    all_names,
    is_known,
    is_of_server,
    meant_tool,
    newer,
)

if TYPE_CHECKING:
    from ._rules import Rule


def parsed_rule(rule: Rule) -> ParsedRule:
    """Return what is written in a rule."""
    return parse_rule(rule.text, allows=rule.effect == "allow")


def name_in(rule: Rule) -> str:
    """Return the name of a tool, or of several, that stands in a rule."""
    return parsed_rule(rule).name


def speaks_of_any(rule: Rule, tools: Iterable[str]) -> bool:
    """Tell whether one of ``tools`` has a call of which the rule could speak, as wide
    as if it denied."""
    parsed = parsed_rule(rule)
    # As a call of SendMessage that revives an agent.
    arguments = {"subagent_type": ""}
    return any(speaks_of(parsed, tool, arguments, allows=False) for tool in tools)


def is_about_paths(rule: Rule) -> bool:
    """Tell whether a rule has a pattern for paths."""
    return parsed_rule(rule).kind == "path"


def misspelt(rule: Rule, there: Sequence[str]) -> str | None:
    """Return the tool that is nearest to the name in a rule that speaks of no tool
    that is known or ``there``; None if it does, or none is near."""
    if speaks_of_any(rule, (*KNOWN, *there)):
        return None
    return meant_tool(parsed_rule(rule).name.replace("*", ""), there)


def doubtful(rule: Rule) -> str | None:
    """Return what in a rule is hardly what its writer has meant; None if nothing."""
    parsed = parsed_rule(rule)
    name, text = parsed.name, f"the rule {rule.text!r}"
    if not any(sign in name for sign in "_*") and not is_known(name):
        hint = meant_tool(name)
        meant = f"{hint} may be meant" if hint else "MCP tools are mcp__SERVER__TOOL"
        return f"{text} speaks of no tool that is known: {meant}"
    if parsed.kind == "path" and name not in ("Edit", "Read"):
        better = "Edit" if name in EDITING else "Read"
        instead = f"use {better}({parsed.pattern}) in place of {rule.text}"
        if rule.effect == "allow":
            return f"{text} allows this tool alone: {instead}"
        return f"{text} is read for every tool like it: {instead}"
    why = no_such_argument(rule, {})
    return None if why is None else f"{text} may be misspelt: {why}"


def no_such_argument(rule: Rule, takes: Mapping[str, Collection[str]]) -> str | None:
    """Return what is wrong with the argument that a rule names and its tool has not,
    as ``takes`` tells of tools by their newer names; None if nothing is.

    What stands for a command, a path or a name may be right: it is doubted only if a
    known argument is like it."""
    parsed = parsed_rule(rule)
    name, tool = parsed.name, newer(parsed.name)
    known = ARGUMENTS.get(tool, frozenset())
    if parsed.kind in ("argument", "parameter"):
        has = takes.get(tool)
        if has is None or parsed.argument in known or parsed.argument in has:
            return None
        there = ", ".join(sorted(has)) or "none"
        return f"{name} has no argument {parsed.argument}; it has {there}"
    named = NAMED.fullmatch(parsed.pattern)
    if parsed.kind not in ("text", "path", "command") or named is None:
        return None
    said, sign, value = named.groups()
    near = get_close_matches(said, sorted(known - {said}), cutoff=0.75)
    # `Bash(timeouts:*)` is a program.
    if not near or said in known or (parsed.kind == "command" and sign + value == ":*"):
        return None
    # Two letters that have changed their places are nearest.
    meant = min(near, key=lambda one: sorted(one) != sorted(said))
    right = value if meant == CONTENT.get(tool) else f"{meant}{sign}{value}"
    return f"{name} has no argument {said}; {name}({right}) may be meant"


# ---- Of which tools it speaks -------------------------------------------------


def speaks_of(
    parsed: ParsedRule, tool: str, arguments: Mapping[str, Any], *, allows: bool
) -> bool:
    """Tell whether a rule is about such a call of ``tool``, whatever its pattern is."""
    name, today = parsed.name, newer(tool)
    if name == "Read" and today in READING:
        return True
    if name == "Edit" and today in EDITING:
        return True
    if parsed.kind == "path" and not allows:
        # What is not to be changed is so by no tool; what not to be read is not to
        # be changed either: who writes a file knows what is in it.
        if name in EDITING and today in EDITING:
            return True
        if name in READING and today in PATH_ARGUMENTS:
            return True
    if name == "Bash" and today == "TaskWrite":
        # A shell may read it.
        return not allows and parsed.kind == "command"
    if newer(name) == "Agent" and tool == "SendMessage":
        # It would go on with an agent that has ended.
        return not allows and "subagent_type" in arguments
    if newer(name) == today or is_of_server(name, tool):
        return True
    if "*" not in name:
        return False
    names = (tool, today) if allows else all_names(tool)
    return any(matches_glob(name, one) for one in names)


def _kind_for(parsed: ParsedRule, tool: str) -> PatternKind:
    # By the tool and not by the rule: that may speak of several.
    if parsed.kind == "argument":
        if tool == "Bash" and parsed.argument == "command":
            return "command"
        if PATH_ARGUMENTS.get(tool) == parsed.argument:
            return "path"
    return parsed.kind


def allows_call(
    parsed: ParsedRule, tool: str, arguments: Mapping[str, Any], place: Place
) -> bool:
    """Tell whether the pattern of a rule that allows matches a call."""
    kind, pattern = _kind_for(parsed, tool), parsed.pattern
    if kind == "path":
        return pattern_allows(pattern, tool, arguments, place)
    value = arguments.get(parsed.argument)
    if not isinstance(value, str):
        return False
    match kind:
        case "command":
            home = is_inside(arguments.get("cwd"), place)
            return home and allows_command(pattern, value)
        case "domain":
            host = plain_host(value)
            return host is not None and matches_domain(pattern, host)
        case "url":
            return plain_host(value) is not None and matches_glob(pattern, value)
        case "skill":
            known = isinstance(arguments.get("args"), str | None)
            return known and matches_command(pattern, _skill(value, arguments))
        case _:
            return matches_glob(pattern, value)


def forbids_call(
    parsed: ParsedRule, tool: str, arguments: Mapping[str, Any], place: Place
) -> bool:
    """Tell whether that of a rule that denies or asks does."""
    kind, pattern = _kind_for(parsed, tool), parsed.pattern
    if kind == "path":
        return pattern_forbids(pattern, tool, arguments, place)
    if kind == "parameter":
        value = arguments.get(parsed.argument)
        return _is_huge(value) or _matches_parameter(pattern, value)
    value = arguments.get("text" if tool == "TaskWrite" else parsed.argument)
    if value is None:
        return False
    if not isinstance(value, str):
        return True
    match kind:
        case "command":
            return forbids_command(pattern, value)
        case "domain":
            hosts = possible_hosts(value)
            return hosts is None or any(matches_domain(pattern, it) for it in hosts)
        case "url":
            return matches_glob(pattern.casefold(), value.strip().casefold())
        case "skill":
            whole = _skill(value, arguments).casefold()
            pattern = pattern.casefold()
            return any(
                matches_command(pattern, it) for it in (whole, *whole.split()[:1])
            )
        case "text":
            return matches_glob(pattern.casefold(), value.strip().casefold())
        case _:
            return matches_glob(pattern, value)


def _matches_parameter(pattern: str, value: object) -> bool:
    if value is None:
        return False
    if isinstance(value, bool | int | float) and not _is_huge(value):
        return matches_glob(pattern.casefold(), json.dumps(value))
    return not isinstance(value, str) or matches_glob(pattern, value)


def _is_huge(value: object) -> bool:
    """Tell whether it is a number that Python writes down for nobody."""
    return isinstance(value, int) and abs(value) >= 10**4000


def _skill(name: str, arguments: Mapping[str, Any]) -> str:
    more = arguments.get("args")
    if more is not None and not isinstance(more, str):
        more = None  # Nobody knows what a skill makes of it.
    return f"{name.removeprefix('/')} {more or ''}".strip() or name
