"""Which tool calls an agent may make.

First the hooks before tool calls are called. They can also change the call. Then four
things are asked in order. The first that has an answer decides:

1. the rules, and what these hooks have said, which counts as a rule: deny beats ask,
   and ask beats allow;
2. the agent's mode;
3. the functions of `Permissions.ask`, and then the hooks of permission requests;
4. in the mode ``bubble`` the host itself, through ``runtime.approvals``.

A call that nobody allows is denied, and by default nobody allows Bash. Nothing that a
task prints, answers or sends can allow a call.

This is what each mode allows if no rule decides. The first allows least:

================  ================================================================
``deny``          only tools that look at tasks or talk; nobody is asked
``plan``          also reading in the agent's directory; no editing, whatever the
                  rules allow; somebody is asked only where a rule asks
``default``       reading as in ``plan``; functions and hooks are asked about the rest
``bubble``        the same, and then the host
``accept_edits``  as ``default``, and also editing in the agent's directory, but not
                  below the runtime's own, and nothing that is protected
``bypass``        everything; only this mode edits below the runtime's directory,
                  where transcripts and what agents may do are kept
================  ================================================================

A path is *protected* if its contents are run, or say what may be done. Such paths are
all below ``.git``, ``.claude``, ``.vscode``, ``.idea``, ``.husky``, ``.devcontainer``
and the like, and files such as ``.mcp.json``, ``.gitconfig``, ``.npmrc`` and those that
shells read when they start. Only the mode ``bypass`` edits them without a question. No
rule allows that, not even by the path, except ``Rule("allow", "*")``.

The modes of Claude Code have these names here: ``acceptEdits`` is ``accept_edits``,
``bypassPermissions`` is ``bypass``, ``dontAsk`` is ``deny``, ``manual`` is
``default``. Its other modes have no counterpart here and are refused.

A path is *in the agent's directory* if its name is below it, and the place to which its
links lead is, too. Both are absolute. An agent without a directory has that of the
program. A call is not known to stay there if it names a path in an argument of unknown
meaning, or in a form that tools read in several ways (``~``, a pattern with ``..``).
The same holds for a call that names more than 32 paths or more than 16,384 characters
of them. The alternatives of a search count, too. Every rule that denies or asks about a
path matches such a call. Links are followed once, before the judgement, in the loop. If
somebody changes a link between that and the call, the call reaches another file. A file
system that hangs holds up the loop.

An agent has the mode of `Permissions`, or a lesser one that its
`actors.agent.Agent.permission_mode` names. It never has more than the agent above it.
A runtime takes both with its policy::

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

A bad rule or mode is refused where it is made, with a TypeError or ValueError that
names it. A function of `Permissions.ask` that raises fails its agent (`AskFailed`).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import attrs

from actors.house import frozen
from actors.house import publish as _publish
from actors.text import one_line

from ..tree._errors import AskFailed
from ._judging import Decision, ToolRequest, Verdict, weigh, with_input
from ._modes import MODES, Mode, ModeName, read_mode
from ._rules import Rule

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "MODES",
    "AskFailed",
    "Mode",
    "Permissions",
    "Rule",
    "ToolRequest",
    "Verdict",
    "read_mode",
]

T = TypeVar("T")

Ask: TypeAlias = Callable[[ToolRequest], Awaitable[Verdict | None]]
"""An async function that is asked about a call. It returns None if it does not know."""


class Desk(Protocol):
    """Where calls wait for somebody's answer."""

    async def wait(self, request: ToolRequest) -> Verdict:
        """Return the answer."""
        ...


def as_tuple(values: Iterable[T]) -> tuple[T, ...]:
    """Return what a list holds. What is not a list, or is a str, is left for a check
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


def check_list(
    name: str, values: object, kind: type, suggest: Callable[[object], str]
) -> None:
    """Refuse what is not a list of these; ``suggest`` returns what to write instead."""
    what = f"{kind.__name__} objects"
    if not isinstance(values, tuple):
        inner = repr(values) if isinstance(values, kind) else suggest(values)
        raise TypeError(
            f"{name} must be a list of {what}, not {values!r}: write {name}=[{inner}]"
        )
    for value in cast("tuple[object, ...]", values):
        if not isinstance(value, kind):
            raise TypeError(
                f"{name} must be {what}, not {value!r}: write {name}=[{suggest(value)}]"
            )


def _as_rule(value: object) -> str:
    text = value if isinstance(value, str) else "Bash(ls *)"
    return f'Rule("allow", {json.dumps(text, ensure_ascii=False)})'


def _check_ask(functions: object) -> None:
    if not isinstance(functions, tuple):
        raise TypeError(
            f"ask must be a list of async functions, not {functions!r}: write ask=[...]"
        )
    for function in cast("tuple[object, ...]", functions):
        if not is_async_function(function):
            raise TypeError(
                f"ask must be async functions (async def), not {function!r}"
            )


@frozen(kw_only=True)
class Permissions:
    """The rules, the mode and the functions that decide what agents may do.

    Args:
        rules: see `Rule`. Their order does not matter.
        mode: the mode of agents that the program starts. No agent can have a mode that
            allows more. It is one of ``deny``, ``plan``, ``default``, ``bubble``,
            ``accept_edits`` and ``bypass``. Only ``bypass`` also edits below the
            runtime's directory. The module says what each mode allows.
        ask: async functions that are asked, one after the other, about calls that
            rules and mode leave open. The first that returns a `Verdict` decides.
            If one raises, the agent fails: see `judge`.

    Raises:
        TypeError, ValueError: for a bad argument. The error names it and its value.
    """

    rules: tuple[Rule, ...] = attrs.field(default=(), converter=_as_rules)
    mode: Mode = attrs.field(default="default", converter=_as_mode)
    ask: tuple[Ask, ...] = attrs.field(default=(), converter=_as_functions)

    def __attrs_post_init__(self) -> None:
        check_list("rules", self.rules, Rule, _as_rule)
        _check_ask(self.ask)

    async def judge(
        self,
        request: ToolRequest,
        approvals: Desk,
        hooks: Ask | None = None,
        *,
        said: Decision | None = None,
    ) -> Verdict:
        """Return whether a call may be made. Wait for whoever must be asked.

        A cancelled call leaves no question behind.

        Args:
            approvals: what waits for the host's answer, in the mode ``bubble``.
            hooks: an async function that is asked after those of `ask`. For an agent it
                calls the hooks ``permission_request``.
            said: what hooks before the call have said about it.

        Raises:
            AskFailed: if a function of `ask` has raised, or has returned what it may
                not return. It names the call and the agent.
        """
        decision = weigh(self.rules, request, said)
        changed: Mapping[str, Any] | None = None
        asked: list[Ask] = [partial(_ask, function) for function in self.ask]
        for ask in asked if hooks is None else [*asked, hooks]:
            if decision.effect != "ask":
                break
            # A copy: what is judged is what is called, whatever they do with it.
            verdict = await ask(with_input(request, request.tool_use.input))
            if verdict is None:
                continue
            if not verdict.allowed or verdict.input is None:
                return _settled(request, verdict.allowed, verdict.reason, changed)
            # Another call than that of which rules and mode have spoken.
            request = with_input(request, verdict.input)
            changed = request.tool_use.input
            decision = weigh(self.rules, request, Decision("allow", verdict.reason))
        if decision.effect != "ask":
            allowed = decision.effect == "allow"
            return _settled(request, allowed, decision.reason, changed)
        if request.mode == "bubble":
            verdict = await approvals.wait(with_input(request, request.tool_use.input))
            return _settled(request, verdict.allowed, verdict.reason, changed)
        nothing_said = said is None and changed is None and not decision.is_wanted
        return attrs.evolve(
            _settled(
                request, False, f"{decision.reason}, and nobody has allowed it", None
            ),
            by_default=nothing_said,
            unasked=decision.is_wanted,
        )


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


def _settled(
    request: ToolRequest,
    allowed: bool,
    reason: str,
    changed: Mapping[str, Any] | None,
) -> Verdict:
    if allowed:
        return Verdict(True, reason, input=changed)
    name = one_line(request.tool_use.name, 80)
    return Verdict(False, f"{name} is not allowed: {reason}.")


_publish(globals())
