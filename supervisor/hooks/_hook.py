"""What a host declares: hooks, and what each of them is for."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from actors.house import by, check_number, check_type, frozen
from actors.text import one_line

from ..permissions import Rule, as_tuple, check_list, is_async_function
from ..permissions._tool_names import KNOWN, all_names, is_whole_server

_NAMES: Final = re.compile(r"[A-Za-z0-9_ ,|-]*")
TOOL_LISTS: Final = (
    "pre_tool",
    "permission_request",
    "post_tool",
    "post_tool_failure",
)
"""The lists of hooks round tool calls."""
_LISTS: Final = ("start", "stop", "main_stop", *TOOL_LISTS)

HookFunction: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""A hook in the program itself: see the module."""


@frozen
class Hook:
    """One hook.

    Args:
        run: a command for bash, or an async function.
        matcher: which agent types, or which tools, it is for:
            - ``*`` or an empty text: all of them;
            - a name, or several with ``|`` or ``,`` between them;
            - anything else: a regular expression that is found anywhere in the name.
        timeout: the seconds that it may take. None means `Hooks.timeout`.
        only: a rule. The hook is called only for tool calls that this rule matches. It
            matches as a deny rule does, whatever its effect is. A rule is refused if
            ``matcher`` excludes every call that the rule matches.

    A matcher that is not the name of any tool may be for a tool that comes later. If it
    is like the name of a tool, or like a rule, a warning says so when an agent begins.

    Raises:
        TypeError, ValueError: for a bad argument. The error names it and its value.
    """

    run: str | HookFunction
    matcher: str = "*"
    timeout: float | None = attrs.field(default=None, kw_only=True)
    only: Rule | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if isinstance(self.run, str):
            if not self.run.strip() or "\0" in self.run:
                raise ValueError(f"run must be a command, not {self.run!r}")
        elif not is_async_function(self.run):
            raise TypeError(
                "run must be a command or an async function (async def), not"
                f" {self.run!r}"
            )
        check_type("matcher", self.matcher, str)
        try:
            re.compile("" if self.matcher == "*" else self.matcher)
        except re.error as error:
            raise ValueError(
                f"matcher must be names or a regular expression ({error}),"
                f" not {self.matcher!r}"
            ) from None
        check_number("timeout", self.timeout, "seconds", zero=False, none=True)
        check_type("only", self.only, Rule | None)
        # What cannot deny is refused here, and not at the first call.
        rule = self.speaks_of
        if rule is not None and (right := matcher_for(rule, self.matcher)) is not None:
            raise ValueError(
                f"only must be a rule about tools that matcher is for: the rule"
                f" {rule.text!r} is about none that {self.matcher!r} matches, so the"
                f" hook would never be called; write the matcher {right!r}"
            )

    @property
    def name(self) -> str:
        """Its name in warnings."""
        if isinstance(self.run, str):
            return one_line(self.run, 80)
        return one_line(getattr(self.run, "__qualname__", repr(self.run)), 80)

    def matches(self, name: str) -> bool:
        """Return whether it is for this type of agent, or this tool."""
        return _matches(self.matcher, name)

    @property
    def speaks_of(self) -> Rule | None:
        """The rule that matches the calls that it is for. None means all calls."""
        # As wide as a denial: rather once too often than once too seldom.
        return None if self.only is None else attrs.evolve(self.only, effect="deny")


def is_for_all(matcher: str) -> bool:
    """Tell whether it matches everything."""
    return matcher.strip() in ("", "*")


def names_in(matcher: str) -> Sequence[str] | None:
    """Return the names in a matcher; None if it is a regular expression."""
    if not _NAMES.fullmatch(matcher):
        return None
    return [one.strip() for one in re.split("[|,]", matcher)]


def _matches(matcher: str, name: str) -> bool:
    if is_for_all(matcher):
        return True
    names = names_in(matcher)
    return re.search(matcher, name) is not None if names is None else name in names


def matcher_for(only: Rule, matcher: str) -> str | None:
    """Return the matcher that a hook with ``only`` needs, if ``matcher`` excludes every
    call that ``only`` is about; None if it does not."""
    # Who has no such hook need not load what rules mean.
    from ..permissions._matching import name_in, speaks_of_any

    name = name_in(only)
    if is_for_all(matcher):
        return None
    if (tools := names_in(matcher)) is not None:
        pass
    elif "*" in name or name.startswith("mcp__"):
        # Nobody knows the names of all tools of a server.
        return None
    else:
        tools = [
            tool
            for tool in (*KNOWN, name)
            if any(_matches(matcher, one) for one in all_names(tool))
        ]
    if speaks_of_any(only, tools):
        return None
    if is_whole_server(name):
        return f"{name}__.*"
    return "*" if "*" in name else name


def _as_hooks(hooks: Iterable[Hook]) -> tuple[Hook, ...]:
    return as_tuple(hooks)


@frozen(kw_only=True)
class Hooks:
    """The hooks of all agents of a runtime, or of one kind of them.

    Args:
        start: hooks that are called before the first prompt of a run
            (``SubagentStart``).
        stop: hooks that are called when a run ends (``SubagentStop``). They can make
            the run go on.
        main_stop: hooks that are called, besides ``stop``, when a run of an agent ends
            that the program itself has started (``Stop``).
        pre_tool: hooks that are called before every tool call (``PreToolUse``). They
            can deny it, have somebody asked about it, allow it, and change it.
        permission_request: hooks that are asked about a tool call if neither a rule nor
            the mode decides (``PermissionRequest``).
        post_tool: hooks that are called after a tool call that has succeeded
            (``PostToolUse``). They can tell the agent something about it, and replace
            its answer.
        post_tool_failure: hooks that are called after a tool call that has failed
            (``PostToolUseFailure``).
        timeout: the seconds that a hook may take if it has no timeout of its own.

    Raises:
        TypeError, ValueError: for a bad argument. The error names it and its value.
    """

    start: tuple[Hook, ...] = attrs.field(default=(), converter=_as_hooks)
    stop: tuple[Hook, ...] = attrs.field(default=(), converter=_as_hooks)
    main_stop: tuple[Hook, ...] = attrs.field(default=(), converter=_as_hooks)
    pre_tool: tuple[Hook, ...] = attrs.field(default=(), converter=_as_hooks)
    permission_request: tuple[Hook, ...] = attrs.field(default=(), converter=_as_hooks)
    post_tool: tuple[Hook, ...] = attrs.field(default=(), converter=_as_hooks)
    post_tool_failure: tuple[Hook, ...] = attrs.field(default=(), converter=_as_hooks)
    timeout: float = attrs.field(
        default=60.0, validator=by(check_number, "seconds", zero=False)
    )

    def __attrs_post_init__(self) -> None:
        for name in _LISTS:
            hooks: tuple[Hook, ...] = getattr(self, name)
            check_list(name, hooks, Hook, lambda value: f"Hook({value!r})")
            for hook in hooks:
                if hook.only is not None and name not in TOOL_LISTS:
                    raise ValueError(
                        f"{name} is not about tool calls, so its hooks have no only:"
                        f" {hook!r}"
                    )

    def with_more(self, more: Hooks) -> Hooks:
        """Return these hooks and then ``more``. Each keeps the timeout that it has
        now."""
        lists: dict[str, Any] = {
            name: (
                *getattr(self, name),
                *(
                    attrs.evolve(hook, timeout=hook.timeout or more.timeout)
                    for hook in getattr(more, name)
                ),
            )
            for name in _LISTS
        }
        return attrs.evolve(self, **lists)
