"""Rules and hooks that match nothing, because no tool has the name in them: pure.

A name that is like no other causes no warning: the tools of an MCP server, and those
that a host gives to one agent and not to another, may come later. A name that is nearly
that of a tool causes one, because that tool is what goes unguarded. So does the name
of an argument that the tool does not have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from actors.agent import AgentTool
from actors.text import one_line

from ..permissions._matching import misspelt, no_such_argument, speaks_of_any
from ..permissions._rules import Rule
from ..permissions._tool_names import (
    KNOWN,
    all_names,
    is_of_server,
    known_spelling,
    meant_tool,
    misspelt_in,
    newer,
    newer_arguments,
    rule_for_a_name,
)
from ._hook import TOOL_LISTS, Hook, Hooks, is_for_all, names_in

_SHOWN = 80
_LONGEST = 200
_NAMED = re.compile(r"\(\w+\s*[:=]")
"""Where a rule names an argument, or may be meant to."""
_MORE = "additionalProperties patternProperties allOf anyOf oneOf $ref".split()
"""What in a schema allows arguments that its ``properties`` do not list."""


def idle_guards(
    rules: Iterable[Rule], hooks: Hooks, tools: Callable[[], Iterable[AgentTool]]
) -> Iterator[str]:
    """Return a warning for each rule, and for each hook round tool calls, that matches
    no known tool and none that ``tools`` returns, but may be meant for one of them, and
    for those that name an argument which their tool does not have."""
    suspects = [rule for rule in rules if _is_suspect(rule)]
    called = [
        (field, hook)
        for field in TOOL_LISTS
        for hook in getattr(hooks, field)
        if not is_for_all(hook.matcher)
        or (hook.only is not None and _is_suspect(hook.only))
    ]
    if not suspects and not called:
        return
    present = tuple(tools())
    there, takes = [tool.name for tool in present], _arguments_of(present)
    for rule in suspects:
        if (meant := misspelt(rule, there)) is not None:
            yield (
                f"the rule {_shown(rule.text)}, which is to {rule.effect}, matches"
                f" nothing: no tool here has its name; {meant} may be meant"
            )
        elif (why := no_such_argument(rule, takes)) is not None:
            yield (
                f"the rule {_shown(rule.text)}, which is to {rule.effect}, may be"
                f" misspelt: {one_line(why, _LONGEST)}"
            )
    for field, hook in called:
        for why in _why_idle(hook, there):
            yield f"the {field} hook {hook.name!r} is never called: {why}"


@lru_cache(maxsize=1024)
def _is_suspect(rule: Rule) -> bool:
    # The tools of the runtime are not looked at: they would have to be made first.
    return not speaks_of_any(rule, KNOWN) or bool(_NAMED.search(rule.text))


def _arguments_of(tools: Iterable[AgentTool]) -> dict[str, set[str]]:
    """Return what tools take, by their newer names; without those that take more than
    their schema lists."""
    takes: dict[str, set[str]] = {}
    for tool in tools:
        schema = tool.schema
        if "properties" in schema and not any(map(schema.get, _MORE)):
            names = newer_arguments(tool.name, schema["properties"])
            takes.setdefault(newer(tool.name), set()).update(names)
    return takes


def _why_idle(hook: Hook, there: Sequence[str]) -> Iterator[str]:
    if (names := names_in(hook.matcher)) is not None:
        for name in names:
            if (right := _right(name, there)) is not None:
                yield f"no tool is called {_shown(name)}; {right}"
    elif not is_for_all(hook.matcher):
        yield from _why_no_match(hook, there)
    if hook.only is not None and (meant := misspelt(hook.only, there)) is not None:
        yield (
            f"its rule {_shown(hook.only.text)} is about no tool here;"
            f" {meant} may be meant"
        )


def _right(name: str, there: Sequence[str]) -> str | None:
    """Return what to write in the place of a name in a matcher; None if it is that of
    a tool, or like none."""
    if not name or any(name in all_names(tool) for tool in (*there, *KNOWN)):
        return None
    if any(is_of_server(name, tool) for tool in there):
        return f"write {name}__.*"
    meant = known_spelling(name) or meant_tool(name, there)
    if meant is None:
        return None
    is_sure = meant.casefold() == name.casefold()
    return f"write {meant}" if is_sure else f"{meant} may be meant"


def _why_no_match(hook: Hook, there: Sequence[str]) -> Iterator[str]:
    expression = re.compile(hook.matcher)
    matches = any(map(expression.search, (*KNOWN, *there)))
    meant_rule = None if matches else rule_for_a_name(hook.matcher)
    if meant_rule is not None:
        tool, rule = meant_rule
        yield (
            f"its matcher is a rule, which matches no tool's name; write the matcher"
            f' "{tool}", and only=Rule("deny", {json.dumps(rule, ensure_ascii=False)})'
        )
        return
    for word, meant in misspelt_in(expression, there):
        yield f"no tool is called {_shown(word)}; {meant} may be meant"


def _shown(text: str) -> str:
    return repr(one_line(text, _SHOWN))
