"""What rules and modes say of a tool call: pure, except for where its paths lead."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import attrs

from actors.agent import ToolUse
from actors.house import frozen
from actors.text import one_line

from ._modes import Mode
from ._paths import (
    Place,
    home_directory,
    is_below,
    is_inside,
    paths_named,
    paths_to_follow,
    protected_part,
    unknown_arguments,
)
from ._rules import Effect, Rule
from ._tool_names import EDITING, PATH_ARGUMENTS, READING, SEARCHING, newer

TALKING: Final = frozenset(
    ("TaskList", "TaskMonitor", "TaskOutput", "TaskStop", "SendMessage", "TodoWrite")
)
"""Tools that need no permission: they reach no further than the agent's own tasks,
messages and plan."""


Fill: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]
Follow: TypeAlias = Callable[[str], str | None]


@frozen(kw_only=True)
class ToolRequest:
    """One tool call of an agent, before it is judged."""

    agent_id: str
    agent_type: str
    depth: int
    mode: Mode
    """The agent's mode."""
    tool_use: ToolUse
    cwd: str | None = None
    """The agent's directory, absolute."""
    background: bool = False
    fill: Fill | None = attrs.field(default=None, eq=False, repr=False)
    """A function that returns the arguments of the call with its defaults. The rules
    look at these. None means the input as it is."""
    follow: Follow | None = attrs.field(default=None, eq=False, repr=False)
    """A function that returns where an absolute path leads if links are followed, or
    None if that cannot be seen. Without this function, paths are judged by their
    names."""
    home: str | None = None
    """The absolute directory that ``~`` stands for. None means that of the program's
    own environment."""
    runtime_directory: str | None = None
    """The directory of the runtime. Only the mode ``bypass`` edits in it."""


@frozen
class Decision:
    """What rules and mode say of a call, or a hook."""

    effect: Effect
    reason: str
    is_wanted: bool = attrs.field(default=False, kw_only=True, eq=False)
    """Whether a rule or a hook has asked; else it is what is left where none speaks."""


@frozen
class Verdict:
    """Whether a call may be made."""

    allowed: bool
    reason: str
    """Why. If the call may not be made, the model is told it."""
    by_default: bool = attrs.field(default=False, kw_only=True)
    """Whether the call is denied only because nobody has said anything about it."""
    unasked: bool = attrs.field(default=False, kw_only=True)
    """Whether the call is denied only because a rule or a hook asks, and nobody
    answers."""
    input: Mapping[str, Any] | None = attrs.field(default=None, kw_only=True)
    """The input with which the call is made instead. Rules that deny or ask are asked
    about this input, too. None changes nothing."""


def with_input(request: ToolRequest, arguments: Mapping[str, Any]) -> ToolRequest:
    """Return the request with other arguments."""
    use = request.tool_use
    changed = ToolUse(use.id, use.name, copy.deepcopy(dict(arguments)))
    return attrs.evolve(request, tool_use=changed)


def weigh(
    rules: tuple[Rule, ...], request: ToolRequest, said: Decision | None
) -> Decision:
    """Return what the rules and the mode of a call say of it, and hooks before it.

    Pure, after what the request's `fill` and `follow` have told.
    """
    if said is not None and said.effect == "deny":
        return said
    seen = look(rules, request)
    without = _by_rules(rules, request.mode, request, seen)
    if said is None:
        return without
    more = (*rules, Rule(said.effect, "*"))
    decision = _by_rules(more, request.mode, request, seen)
    if decision.effect == without.effect:
        return without
    if decision.effect == "deny":
        return Decision("deny", f"{said.reason}, and the mode {request.mode} not")
    return attrs.evolve(decision, reason=said.reason)


class Seen(NamedTuple):
    """What there is to know of a call."""

    name: str
    arguments: Mapping[str, Any]
    place: Place
    """Where it is made."""

    def is_meant_by(self, rule: Rule, *, widely: bool = False) -> bool:
        """Tell whether one of the rules for which it was looked speaks of it."""
        place = self.place
        return rule.matches(
            self.name,
            self.arguments,
            place.cwd,
            real=place.real,
            home=place.home,
            widely=widely,
        )


def look(rules: Iterable[Rule], request: ToolRequest) -> Seen:
    """Return what a call means, and where the paths lead that it or a rule names."""
    use, cwd, follow = request.tool_use, request.cwd, request.follow
    arguments = use.input if request.fill is None else request.fill(use.input)
    home = request.home or home_directory()
    real: dict[str, str] | None = None
    if follow is not None:
        paths = paths_to_follow(newer(use.name), arguments, cwd, home)
        if paths:
            paths += [
                path for rule in rules for path in rule.places(use.name, cwd, home)
            ]
            if request.runtime_directory is not None:
                paths.append(request.runtime_directory)
        found = ((path, follow(path)) for path in dict.fromkeys(paths))
        real = {path: leads for path, leads in found if leads is not None}
    return Seen(use.name, arguments, Place(cwd, None, real, home))


def _by_rules(
    rules: tuple[Rule, ...], mode: Mode, request: ToolRequest, seen: Seen
) -> Decision:
    matching = [rule for rule in rules if seen.is_meant_by(rule)]
    for rule in matching:
        if rule.effect == "deny":
            return Decision("deny", f"the rule {rule.text} denies it")
    if mode == "plan" and seen.name in EDITING:
        return Decision("deny", "nothing may be changed in the mode plan")
    for rule in matching:
        if rule.effect == "ask":
            if mode == "deny":
                return Decision("deny", f"the rule {rule.text} asks, and mode deny not")
            return Decision("ask", f"the rule {rule.text} asks", is_wanted=True)
    for rule in matching:
        if rule.effect == "allow" and (rule.text == "*" or not _is_protected(seen)):
            return Decision("allow", f"the rule {rule.text} allows it")
    return _by_mode(rules, mode, request, seen)


def _by_mode(
    rules: tuple[Rule, ...], mode: Mode, request: ToolRequest, seen: Seen
) -> Decision:
    name = seen.name
    if newer(name) in TALKING:
        return Decision("allow", f"{name} needs no permission")
    if mode == "bypass":
        return Decision("allow", "the mode bypass allows everything")
    if mode == "deny":
        return Decision("deny", "no rule allows it, and the mode is deny")
    why = "no rule allows it"
    if name in READING or (name in EDITING and mode == "accept_edits"):
        elsewhere = _why_not_at_home(request, seen)
        if elsewhere is None:
            does = "reads" if name in READING else "edits"
            return Decision("allow", f"it {does} in the agent's directory")
        why = f"{why}, and {elsewhere}"
    near = _nearly(rules, seen)
    if near is not None:
        why = f"{why} ({near.text} allows less than this: see Rule)"
    if mode == "plan":
        return Decision("deny", f"{why}, and the mode is plan")
    return Decision("ask", why)


def _is_protected(seen: Seen) -> bool:
    """Tell whether a call edits what no rule for a tool allows to edit."""
    if seen.name not in EDITING:
        return False
    path = seen.arguments.get(PATH_ARGUMENTS[seen.name])
    return protected_part(path, seen.place) is not None


def _nearly(rules: tuple[Rule, ...], seen: Seen) -> Rule | None:
    """Return a rule that would have matched if it had been one that denies: whoever
    wrote it may wonder why it does not allow the call."""
    for rule in rules:
        if rule.effect == "allow" and seen.is_meant_by(rule, widely=True):
            return rule
    return None


def _why_not_at_home(request: ToolRequest, seen: Seen) -> str | None:
    """Return why a call of a tool for files is not known to stay in the agent's
    directory; None if it is."""
    from ._path_patterns import stays_below

    name, arguments = seen.name, seen.arguments
    place = seen.place
    path = arguments.get(PATH_ARGUMENTS[name])
    if unknown := unknown_arguments(name, arguments):
        return f"nobody knows what its argument {one_line(unknown[0], 40)} means"
    if path is None and name not in SEARCHING:
        return "it names no path"
    if paths_named(newer(name), arguments) is None:
        return "it names more than is looked at"
    if not stays_below(arguments.get("pattern", "") if name == "Glob" else ""):
        return "its pattern may lead to other directories"
    if not is_inside(path, place):
        return "it is not in the agent's directory"
    if name in EDITING and (part := protected_part(path, place)) is not None:
        return f"{one_line(part, 40)} is not edited for being there"
    own = request.runtime_directory
    if name in EDITING and own is not None and is_below(path, own, place):
        return "it is in the runtime's own directory"
    return None
