"""Which tool calls an agent may make.

First the hooks before tool calls are called, whoever will decide; they can also
change the call. Then four things are asked in order, and the first that knows an
answer decides:

1. the rules, and what these hooks have said, which weighs as much: one that denies
   beats one that asks, which beats one that allows;
2. the agent's mode;
3. the functions of `Permissions.ask`, and then the hooks of permission requests;
4. in the mode ``bubble`` the host itself, through ``runtime.approvals``.

What nobody has allowed is denied, and by default nobody has allowed Bash. Nothing
that a task prints, answers or sends is ever asked.

What a mode allows of which no rule speaks, from the least on:

================  ================================================================
``deny``          only tools that look at tasks or talk, and nobody is asked
``plan``          also reading in the agent's directory; no editing, whatever the
                  rules allow; nobody is asked but where a rule asks
``default``       as much without a rule, and functions and hooks are asked
``bubble``        the same, and then the host
``accept_edits``  as ``default``, and also editing in the agent's directory, but not
                  below the runtime's own, and nothing that is protected
``bypass``        everything, and as the only one also editing below the runtime's
                  directory, where transcripts and what agents may do are kept
================  ================================================================

*Protected* is what is run, or says what may be done: everything below ``.git``,
``.claude``, ``.vscode``, ``.idea``, ``.husky``, ``.devcontainer`` and the like, and
files such as ``.mcp.json``, ``.gitconfig``, ``.npmrc`` and those that shells read when
they start. Only the mode ``bypass`` edits it without being asked, and no rule that
allows speaks of it, not even by its path, but ``Rule("allow", "*")``.

The names of Claude Code's modes mean these: ``acceptEdits`` is ``accept_edits``,
``bypassPermissions`` is ``bypass``, ``dontAsk`` is ``deny``, ``manual`` is
``default``. It has others that nothing here is like, and they are refused.

*In the agent's directory* is a path by its name and also by where it leads when links
are followed, both absolute; an agent without a directory has that of the program. A
call that names a path in an argument of which nobody knows what it means, or in a
form of which tools may make several things (``~``, a pattern with ``..``), is none of
these. So is a call that names more than 32 paths or more than 16,384 characters of
them, the alternatives of a search among them, and every rule that denies or asks about
a path speaks of it. Where links lead is seen before the judgement, once, and in the
loop: who can change them between that and the call can change what is reached, and a
file system that hangs holds up the loop as long as it does.

An agent has the mode of `Permissions`, or a lesser one that its
`actors.agent.Agent.permission_mode` names, and never more than the agent above it. A
runtime takes them with its policy::

    from supervisor.agents import AgentPolicy
    from supervisor.permissions import Permissions, Rule

    permissions = Permissions(
        rules=[
            Rule("allow", "Bash(git status*)"),
            Rule("allow", "Bash(pytest *)"),
            Rule("deny", "Bash(git push*)"),
        ],
        mode="accept_edits",
    )
    policy = AgentPolicy(permissions=permissions)  # open_runtime(directory, agents=policy)

What is no rule or no mode is refused where it is made, with a TypeError or ValueError
that names it; a function of `Permissions.ask` that raises fails its agent
(`AskFailed`).
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
)

import attrs

from actors.agent import ToolUse
from actors.lowlevel import publish as _publish
from actors.text import one_line

from ._errors import AskFailed as AskFailed
from ._path_patterns import (
    Place,
    home_directory,
    is_below,
    is_inside,
    paths_named,
    paths_to_follow,
    stays_below,
    unknown_arguments,
)
from ._protected import protected_part
from ._rules import Rule
from ._tool_names import EDITING, PATH_ARGUMENTS, READING, SEARCHING, newer

if TYPE_CHECKING:
    from ._approvals import Approvals, HostApprovals

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "MODES",
    "AskFailed",
    "Decision",
    "Mode",
    "ModeName",
    "Permissions",
    "Rule",
    "ToolRequest",
    "Verdict",
    "decide",
    "read_mode",
    "recheck",
    "resolve_mode",
]

T = TypeVar("T")

Mode: TypeAlias = Literal["default", "accept_edits", "plan", "bypass", "deny", "bubble"]
"""What a call may do of which no rule speaks: see the module."""
MODES: Final[tuple[Mode, ...]] = get_args(Mode)

ModeName: TypeAlias = (
    Mode | Literal["acceptEdits", "bypassPermissions", "dontAsk", "manual"]
)
"""What `Permissions.mode` is given, so that a type checker finds a misspelt one. Of a
name from elsewhere `read_mode` makes a mode."""

_RANK: Final[Mapping[Mode, int]] = {
    "deny": 0,
    "plan": 1,
    "default": 2,
    "bubble": 2,  # Who asks a person takes nothing by itself.
    "accept_edits": 3,
    "bypass": 4,
}

_OTHER_MODES: Final[Mapping[str, Mode]] = {
    "acceptEdits": "accept_edits",
    "bypassPermissions": "bypass",
    "dontAsk": "deny",
    "manual": "default",
}
_NOT_HERE: Final[Mapping[str, str]] = {
    "auto": "no classifier judges calls: write default, accept_edits or bubble",
    "delegate": "tools are taken away by Agent.tools: write default",
    "ask": "who is asked says Permissions.ask; or write bubble",
    "yolo": "write bypass",
}

TALKING: Final = frozenset(("TaskList", "TaskOutput", "TaskStop", "SendMessage"))
"""Tools that need no permission: they reach no further than the agent's own tasks
and messages."""


Fill: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]
Follow: TypeAlias = Callable[[str], "str | None"]


@attrs.frozen(kw_only=True)
class ToolRequest:
    """One tool call of an agent that is to be judged."""

    agent_id: str
    agent_type: str
    depth: int
    mode: Mode
    """The agent's mode, as `resolve_mode` has made it."""
    tool_use: ToolUse
    cwd: str | None = None
    """The agent's directory, absolute."""
    background: bool = False
    fill: Fill | None = attrs.field(default=None, eq=False, repr=False)
    """Returns the arguments of the call with what holds where it leaves something
    out: what the rules look at. None is the input as it is."""
    follow: Follow | None = attrs.field(default=None, eq=False, repr=False)
    """Returns where an absolute path leads if links are followed; None if that cannot
    be seen. Without it paths are judged by their names."""
    home: str | None = None
    """What ``~`` stands for, absolute; None is by the program's own environment."""
    runtime_directory: str | None = None
    """That of the runtime, in which no mode but ``bypass`` edits."""


@attrs.frozen
class Decision:
    """What rules and mode say of a call, or a hook."""

    effect: Literal["allow", "deny", "ask"]
    reason: str
    is_wanted: bool = attrs.field(default=False, kw_only=True, eq=False)
    """Whether a rule or a hook has asked; else it is what is left where none speaks."""


@attrs.frozen
class Verdict:
    """Whether a call may be made."""

    allowed: bool
    reason: str
    """Why, in words for the model if it may not."""
    by_default: bool = attrs.field(default=False, kw_only=True)
    """Whether it may not only because nobody has said anything of it."""
    unasked: bool = attrs.field(default=False, kw_only=True)
    """Whether it may not only because a rule or a hook asks, and nobody answers."""
    input: Mapping[str, Any] | None = attrs.field(default=None, kw_only=True)
    """What it is to be made with instead of what the model has asked for; rules
    that deny or ask are asked about that again. None changes nothing."""


Ask: TypeAlias = Callable[[ToolRequest], Awaitable[Verdict | None]]
"""An async function that is asked about a call; None means that it does not know."""


def read_mode(value: object, what: str = "mode") -> Mode:
    """Return the mode that a name means: one of `MODES`, or as Claude Code calls it.

    Raises:
        ValueError: naming ``what`` and the value, and saying what to write.
    """
    for mode in MODES:
        if value == mode:
            return mode
    if isinstance(value, str):
        if value in _OTHER_MODES:
            return _OTHER_MODES[value]
        plain = value.strip().lower().replace("-", "").replace("_", "")
        why = _NOT_HERE.get(plain)
        for name in (*_OTHER_MODES, *MODES):
            if name.lower().replace("_", "") == plain:
                why = f"write {name}"
        if why is not None:
            raise ValueError(
                f"{what} must be one of {', '.join(MODES)}, not {value!r}: {why}"
            )
    raise ValueError(f"{what} must be one of {', '.join(MODES)}, not {value!r}")


def resolve_mode(own: str | None, parent: Mode) -> Mode:
    """Return the mode of an agent that is to have ``own``, started by one in
    ``parent``: never one that allows more by itself, in the background or not.

    For an agent that the program itself has started ``parent`` is
    `Permissions.mode`. None, and a mode that allows more, become ``parent``; below
    ``plan`` everything is in ``plan``. ``bubble`` counts as ``default``, since what
    it allows beyond that a person has allowed.

    Raises:
        ValueError: if ``own`` is no mode.
    """
    if own is None:
        return parent
    mode = read_mode(own, "permission_mode")
    if parent == "plan":
        # Only in it the rules cannot allow editing, so no other is less.
        return "plan"
    return mode if _RANK[mode] <= _RANK[parent] else parent


def recheck(mode: str | None, allowed: Mode) -> Mode:
    """Return the mode of a resumed agent that was in ``mode``, if now ``allowed`` is
    the most. What it may do never grows by a resume; a mode that nobody knows
    (it may come from a file) allows nothing."""
    try:
        return resolve_mode(mode, allowed)
    except ValueError:
        return resolve_mode("deny", allowed)


def decide(rules: Iterable[Rule], mode: Mode, request: ToolRequest) -> Decision:
    """Return what the rules and the mode say of a call.

    Pure, after what the request's `fill` and `follow` have told.
    """
    rules = tuple(rules)
    return _decide(rules, mode, request, look(rules, request))


@attrs.frozen
class Seen:
    """What there is to know of a call."""

    name: str
    arguments: Mapping[str, Any]
    cwd: str | None
    real: Mapping[str, str] | None
    home: str | None

    @property
    def place(self) -> Place:
        """Where the call is made."""
        return Place(self.cwd, None, self.real, self.home)

    def is_meant_by(self, rule: Rule, *, widely: bool = False) -> bool:
        """Tell whether one of the rules for which it was looked speaks of it."""
        return rule.matches(
            self.name,
            self.arguments,
            self.cwd,
            real=self.real,
            home=self.home,
            widely=widely,
        )


def look(rules: Iterable[Rule], request: ToolRequest) -> Seen:
    """See what a call means, and where the paths lead of which it or a rule speaks."""
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
    return Seen(use.name, arguments, cwd, real, home)


def _decide(
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
    return _decide_by_mode(rules, mode, request, seen)


def _decide_by_mode(
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


def as_tuple(values: Iterable[T]) -> tuple[T, ...]:
    """Return what a list holds. What is none, or a str, is left for a validator,
    which knows what it is to be."""
    if isinstance(values, Iterable) and not isinstance(values, str | Mapping):
        return tuple(values)
    return cast("tuple[T, ...]", values)


# Not `as_tuple` itself: a type checker takes a converter's T for that of the caller.
def _as_rules(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    return as_tuple(rules)


# Not `read_mode` itself, which takes what comes from anywhere.
def _as_mode(mode: ModeName) -> Mode:
    return read_mode(mode)


def _as_functions(functions: Iterable[Ask]) -> tuple[Ask, ...]:
    return as_tuple(functions)


def is_async_function(function: object) -> bool:
    """Tell whether it is a function, or an object to be called, with ``async def``."""
    call = getattr(type(function), "__call__", None)  # noqa: B004 - which one
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _check_rules(_: object, __: object, rules: object) -> None:
    if not isinstance(rules, tuple):
        inner = repr(rules) if isinstance(rules, Rule) else _as_rule(rules)
        raise TypeError(
            f"rules must be a list of Rule objects, not {rules!r}: write rules=[{inner}]"
        )
    for rule in cast("tuple[object, ...]", rules):
        if not isinstance(rule, Rule):
            raise TypeError(
                f"rules must be Rule objects, not {rule!r}: write"
                f" rules=[{_as_rule(rule)}]"
            )


def _as_rule(value: object) -> str:
    """Return what to write in the place of ``value``."""
    text = value if isinstance(value, str) else "Bash(ls *)"
    return f'Rule("allow", {json.dumps(text, ensure_ascii=False)})'


def _check_ask(_: object, __: object, functions: object) -> None:
    if not isinstance(functions, tuple):
        raise TypeError(
            f"ask must be a list of async functions, not {functions!r}: write ask=[...]"
        )
    for function in cast("tuple[object, ...]", functions):
        if not is_async_function(function):
            raise TypeError(
                f"ask must be async functions (async def), not {function!r}"
            )


@attrs.frozen(kw_only=True)
class Permissions:
    """What agents may do.

    Args:
        rules: see `Rule`; their order does not matter.
        mode: the mode of agents that the program starts, and the most that any
            agent can have: one of ``deny``, ``plan``, ``default``, ``bubble``,
            ``accept_edits`` and ``bypass``, the only one that also edits below the
            runtime's directory; see the module.
        ask: async functions that are asked, one after the other, about calls that
            rules and mode leave open. The first that returns a `Verdict` decides.
            If one raises, the agent fails: see `judge`.

    Raises:
        TypeError, ValueError: naming the argument and its value.
    """

    rules: tuple[Rule, ...] = attrs.field(
        default=(), converter=_as_rules, validator=_check_rules
    )
    mode: Mode = attrs.field(default="default", converter=_as_mode)
    ask: tuple[Ask, ...] = attrs.field(
        default=(), converter=_as_functions, validator=_check_ask
    )

    async def judge(
        self,
        request: ToolRequest,
        approvals: Approvals | HostApprovals,
        hooks: Ask | None = None,
        *,
        said: Decision | None = None,
    ) -> Verdict:
        """Return whether a call may be made; wait for whoever must be asked.

        Cancelled, it leaves no question behind.

        Args:
            approvals: where the host answers, in the mode ``bubble``.
            hooks: `supervisor.hooks.AgentHooks.on_permission` of the agent.
            said: what hooks before the call have said of it.

        Raises:
            AskFailed: if a function of `ask` has raised, or has returned something
                else than it may. It names the call and the agent.
        """
        decision = self._decide(request, said)
        if decision.effect != "ask":
            return _verdict(request, decision.effect == "allow", decision.reason)
        changed: Mapping[str, Any] | None = None
        for answers in (*self._functions(), *(() if hooks is None else (hooks,))):
            # A copy: what is judged is what is called, whatever they do with it.
            verdict = await answers(with_input(request, request.tool_use.input))
            if verdict is None:
                continue
            if not verdict.allowed or verdict.input is None:
                return self._final(request, verdict, changed)
            # Another call than that of which rules and mode have spoken.
            request = with_input(request, verdict.input)
            changed = request.tool_use.input
            decision = self._decide(request, Decision("allow", verdict.reason))
            if decision.effect != "ask":
                verdict = Verdict(decision.effect == "allow", decision.reason)
                return self._final(request, verdict, changed)
        if request.mode == "bubble":
            verdict = await approvals.wait(with_input(request, request.tool_use.input))
            return self._final(request, verdict, changed)
        verdict = _verdict(
            request, False, f"{decision.reason}, and nobody has allowed it"
        )
        nothing_said = said is None and changed is None and not decision.is_wanted
        return attrs.evolve(
            verdict, by_default=nothing_said, unasked=decision.is_wanted
        )

    def _functions(self) -> Iterable[Ask]:
        return (partial(_ask, function) for function in self.ask)

    def _final(
        self,
        request: ToolRequest,
        verdict: Verdict,
        changed: Mapping[str, Any] | None,
    ) -> Verdict:
        if not verdict.allowed:
            return _verdict(request, False, verdict.reason)
        return Verdict(True, verdict.reason, input=changed)

    def _decide(self, request: ToolRequest, said: Decision | None) -> Decision:
        """Return what rules, mode and hooks say of a call."""
        if said is not None and said.effect == "deny":
            return said
        seen = look(self.rules, request)
        without = _decide(self.rules, request.mode, request, seen)
        if said is None:
            return without
        rules = (*self.rules, Rule(said.effect, "*"))
        decision = _decide(rules, request.mode, request, seen)
        if decision.effect == without.effect:
            return without
        if decision.effect == "deny":
            return Decision("deny", f"{said.reason}, and the mode {request.mode} not")
        return attrs.evolve(decision, reason=said.reason)


def with_input(request: ToolRequest, arguments: Mapping[str, Any]) -> ToolRequest:
    """Return the request with other arguments."""
    use = request.tool_use
    changed = ToolUse(use.id, use.name, copy.deepcopy(dict(arguments)))
    return attrs.evolve(request, tool_use=changed)


async def _ask(function: Ask, request: ToolRequest) -> Verdict | None:
    try:
        verdict: object = await function(request)
        if verdict is None or isinstance(verdict, Verdict):
            return verdict
        raise TypeError(f"it must return a Verdict or None, not {verdict!r}")
    except Exception as error:
        # A stranger's failure: the agent cannot go on as if nobody was asked.
        use = request.tool_use
        raise AskFailed(request.agent_id, use.name, use.id, error) from error


def _verdict(request: ToolRequest, allowed: bool, reason: str) -> Verdict:
    if allowed:
        return Verdict(True, reason)
    name = one_line(request.tool_use.name, 80)
    return Verdict(False, f"{name} is not allowed: {reason}.")


_publish(globals())
