"""Which tool calls an agent may make.

Four things are asked in order, and the first that knows an answer decides:

1. the rules: one that denies beats one that asks, which beats one that allows;
2. the agent's mode;
3. the functions of `Permissions.ask`, and then the hooks before tool calls;
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
``accept_edits``  as ``default``, and also editing in the agent's directory
``bypass``        everything
================  ================================================================

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

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar, cast, get_args

import attrs

from actors.agent import ToolUse

from ._errors import AskFailed as AskFailed
from ._line import one_line
from ._rules import PATH_ARGUMENTS, Rule, is_inside, stays_below

if TYPE_CHECKING:
    from ._approvals import Approvals

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "MODES",
    "AskFailed",
    "Decision",
    "Mode",
    "Permissions",
    "Rule",
    "ToolRequest",
    "Verdict",
    "decide",
    "recheck",
    "resolve_mode",
]

T = TypeVar("T")

Mode: TypeAlias = Literal["default", "accept_edits", "plan", "bypass", "deny", "bubble"]
"""What a call may do of which no rule speaks: see the module."""
MODES: Final[tuple[Mode, ...]] = get_args(Mode)

_RANK: Final[Mapping[Mode, int]] = {
    "deny": 0,
    "plan": 1,
    "default": 2,
    "bubble": 2,  # Who asks a person takes nothing by itself.
    "accept_edits": 3,
    "bypass": 4,
}

TALKING: Final = frozenset(
    ("TaskList", "TaskOutput", "TaskStop", "KillShell", "SendMessage")
)
"""Tools that need no permission: they reach no further than the agent's own tasks
and messages."""
EDITING: Final = frozenset(("Edit", "MultiEdit", "NotebookEdit", "Write"))
"""Names of tools that change a file at a path."""
READING: Final = frozenset(PATH_ARGUMENTS) - EDITING
"""Names of tools that read what is at a path."""


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
    """The agent's directory, absolute; None for that of the host."""
    background: bool = False


@attrs.frozen
class Decision:
    """What rules and mode say of a call."""

    effect: Literal["allow", "deny", "ask"]
    reason: str


@attrs.frozen
class Verdict:
    """Whether a call may be made."""

    allowed: bool
    reason: str
    """Why, in words for the model if it may not."""
    by_default: bool = attrs.field(default=False, kw_only=True)
    """Whether it may not only because nobody has said anything of it."""


Ask: TypeAlias = Callable[[ToolRequest], Awaitable[Verdict | None]]
"""An async function that is asked about a call; None means that it does not know."""


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
    mode = _as_mode("permission_mode", own)
    if parent == "plan":
        # Only in it the rules cannot allow editing, so no other is less.
        return "plan"
    return mode if _RANK[mode] <= _RANK[parent] else parent


def recheck(mode: str | None, allowed: Mode) -> Mode:
    """Return the mode of a resumed agent that was in ``mode``, if now ``allowed`` is
    the most. What it may do never grows by a resume; a mode that nobody knows
    (it may come from a file) allows nothing."""
    if mode is not None and mode not in MODES:
        return resolve_mode("deny", allowed)
    return resolve_mode(mode, allowed)


def decide(rules: Iterable[Rule], mode: Mode, request: ToolRequest) -> Decision:
    """Return what the rules and the mode say of a call. Pure."""
    use = request.tool_use
    matching = [
        rule for rule in rules if rule.matches(use.name, use.input, request.cwd)
    ]
    for rule in matching:
        if rule.effect == "deny":
            return Decision("deny", f"the rule {rule.text} denies it")
    if mode == "plan" and use.name in EDITING:
        return Decision("deny", "nothing may be changed in the mode plan")
    for rule in matching:
        if rule.effect == "ask":
            if mode == "deny":
                return Decision("deny", f"the rule {rule.text} asks, and mode deny not")
            return Decision("ask", f"the rule {rule.text} asks")
    for rule in matching:
        if rule.effect == "allow":
            return Decision("allow", f"the rule {rule.text} allows it")
    return _decide_by_mode(mode, request)


def _decide_by_mode(mode: Mode, request: ToolRequest) -> Decision:
    name = request.tool_use.name
    if name in TALKING:
        return Decision("allow", f"{name} needs no permission")
    if mode == "bypass":
        return Decision("allow", "the mode bypass allows everything")
    if mode == "deny":
        return Decision("deny", "no rule allows it, and the mode is deny")
    if name in READING and _is_at_home(request):
        return Decision("allow", "it reads in the agent's directory")
    if mode == "accept_edits" and name in EDITING and _is_at_home(request):
        return Decision("allow", "it edits in the agent's directory")
    if mode == "plan":
        return Decision("deny", "no rule allows it, and the mode is plan")
    return Decision("ask", "no rule allows it")


def _is_at_home(request: ToolRequest) -> bool:
    use = request.tool_use
    path = use.input.get(PATH_ARGUMENTS[use.name])
    if use.name in EDITING and path is None:
        return False
    if use.name == "Glob" and not stays_below(use.input.get("pattern", "")):
        return False
    return is_inside(path, request.cwd)


def _as_mode(what: str, value: object) -> Mode:
    for mode in MODES:
        if value == mode:
            return mode
    raise ValueError(f"{what} must be one of {', '.join(MODES)}, not {value!r}")


def as_tuple(values: Iterable[T]) -> tuple[T, ...]:
    """Return what a list holds. What is none, or a str, is left for a validator,
    which knows what it is to be."""
    if isinstance(values, Iterable) and not isinstance(values, str | Mapping):
        return tuple(values)
    return cast("tuple[T, ...]", values)


# Not `as_tuple` itself: a type checker takes a converter's T for that of the caller.
def _as_rules(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    return as_tuple(rules)


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


def _check_mode(_: object, __: object, mode: object) -> None:
    _as_mode("mode", mode)


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
            ``accept_edits`` and ``bypass``; see the module.
        ask: async functions that are asked, one after the other, about calls that
            rules and mode leave open. The first that returns a `Verdict` decides.
            If one raises, the agent fails: see `judge`.

    Raises:
        TypeError, ValueError: naming the argument and its value.
    """

    rules: tuple[Rule, ...] = attrs.field(
        default=(), converter=_as_rules, validator=_check_rules
    )
    mode: Mode = attrs.field(default="default", validator=_check_mode)
    ask: tuple[Ask, ...] = attrs.field(
        default=(), converter=_as_functions, validator=_check_ask
    )

    async def judge(
        self, request: ToolRequest, approvals: Approvals, hooks: Ask | None = None
    ) -> Verdict:
        """Return whether a call may be made; wait for whoever must be asked.

        Cancelled, it leaves no question behind.

        Args:
            approvals: where the host answers, in the mode ``bubble``.
            hooks: `supervisor.hooks.AgentHooks.before_tool` of the agent.

        Raises:
            AskFailed: if a function of `ask` has raised, or has returned something
                else than it may. It names the call and the agent.
        """
        decision = decide(self.rules, request.mode, request)
        if decision.effect != "ask":
            return _verdict(request, decision.effect == "allow", decision.reason)
        for function in self.ask:
            verdict = await _ask(function, request)
            if verdict is not None:
                return _verdict(request, verdict.allowed, verdict.reason)
        if hooks is not None and (verdict := await hooks(request)) is not None:
            return _verdict(request, verdict.allowed, verdict.reason)
        if request.mode == "bubble":
            verdict = await approvals.wait(request)
            return _verdict(request, verdict.allowed, verdict.reason)
        verdict = _verdict(
            request, False, f"{decision.reason}, and nobody has allowed it"
        )
        return attrs.evolve(verdict, by_default=True)


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
