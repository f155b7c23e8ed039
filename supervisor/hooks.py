"""Hooks: commands and functions of the program that are called round an agent's life.

They are called as those of Claude Code are, so that a script that was written for it
does here what it does there; `supervisor.settings_file` reads its settings files. A
hook is a command or an async function.

========================  ========================================================
list of `Hooks`           called
========================  ========================================================
``start``                 before the first prompt of a run (``SubagentStart``)
``pre_tool``              before every tool call, whatever allows it, in the mode
                          ``bypass`` as well (``PreToolUse``)
``permission_request``    about a call that neither a rule nor the agent's mode
                          decides (``PermissionRequest``)
``post_tool``             after a call that has succeeded (``PostToolUse``)
``post_tool_failure``     after one that has failed (``PostToolUseFailure``)
``stop``                  when a run ends (``SubagentStop``)
``main_stop``             when a run of an agent ends that the program itself has
                          started (``Stop``)
========================  ========================================================

A **command** runs under ``bash -c`` in the agent's directory, with the host's as
``CLAUDE_PROJECT_DIR``. It gets a JSON object on its standard input::

    hook_event_name  session_id  transcript_path  cwd  permission_mode
    agent_id  agent_type  session  mode

``permission_mode`` is the mode in the words of Claude Code, ``mode`` the same in
ours; ``transcript_path`` is that of the outermost agent, after whom ``session_id`` is
called if no session has a name. Hooks round tool calls have also ``tool_name``,
``tool_input``, in which the path of a tool for files is absolute, and
``tool_use_id``; after it ``duration_ms`` and ``tool_response`` or
``error``. Stop hooks have ``stop_hook_active`` (whether the agent goes on because of
one already), ``agent_transcript_path``, ``last_assistant_message``,
``background_tasks``, ``session_crons``, and ``status``: ``running`` if the hook can
still make the agent go on, or else how it has ended, ``completed``, ``failed`` or
``killed``. What the exit code says:

=========  ============  ============================  ============  ==============
exit code  start         pre_tool, permission_request  post_tool     stop
=========  ============  ============================  ============  ==============
0          stdout goes   stdout may decide             stdout may    stdout may
           to the agent                                tell          decide
2          ignored       denied: stderr says why       stderr goes   the agent goes
                                                       to the agent  on with stderr
any other  stderr goes to the people, as a warning, and the hook allows nothing
=========  ============  ============================  ============  ==============

What stdout may decide or tell is a JSON object: all that Claude Code and Codex
document. Before a call that is ``hookSpecificOutput`` with ``permissionDecision``
(``allow``, ``deny``, ``ask``; ``defer`` is taken for ``ask``),
``permissionDecisionReason``, ``updatedInput`` and ``additionalContext``, or flat
``decision`` and ``reason``; about a permission ``hookSpecificOutput`` with
``decision``, an object; after a call and at a stop ``decision: "block"`` with a
``reason``, ``additionalContext``, and ``updatedToolOutput``. ``continue: false``
fails the agent, with ``stopReason``; at a stop it lets it end, whatever other hooks
say. ``systemMessage`` goes to the people. ``async``, ``suppressOutput``,
``terminalSequence`` and ``classifierContext`` change nothing: each hook is waited for.

An answer that is not understood, for a key, a value, a type or a place that is
unknown, or since it is no JSON, is warned of and decides nothing; only what can mean
nothing but a denial is one all the same.

What hooks before a call say weighs as a rule about that call would: one that denies
beats one that asks, which beats one that allows. So no hook allows what a rule
denies, or what a rule asks about, and none lets an agent edit in the mode ``plan``.
What a hook changes in a call is judged in the place of what the model has asked for.

A **function** gets the same as a mapping, which is its own. It returns what a command would print, as a
mapping; or, before a call, a `Verdict` or a `Decision`; at the start and after a
call, the text for the agent; at the stop, the reason to go on; and None if it has
nothing to say.

All hooks of an event run at the same time; what they say is put together in their
order. One that raises, takes longer than its time or cannot be started is told of in
a warning and has said nothing: it stops no agent, and it allows and denies nothing.
The processes of a command are killed with their whole tree when it has ended, at its
timeout, and when the agent is stopped.

An agent that is not let go before the tests pass, and a function that says no::

    from supervisor.agents import AgentPolicy
    from supervisor.hooks import Hook, Hooks
    from supervisor.permissions import Verdict

    async def no_network(told):
        if "curl" in str(told["tool_input"]):
            return Verdict(False, "there is no network")

    hooks = Hooks(
        stop=[Hook("pytest -q >&2 || exit 2", timeout=600)],
        pre_tool=[Hook(no_network, "Bash")],
    )
    policy = AgentPolicy(hooks=hooks)  # open_runtime(directory, agents=policy)

What cannot be a hook is refused where it is made, with a TypeError or ValueError
that names the argument.
"""

from __future__ import annotations

import copy
import json
import math
import posixpath
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, cast

import attrs
import trio

from actors.agent import AgentFailed
from actors.env import Env
from actors.lowlevel import by, check_number, check_type
from actors.lowlevel import publish as _publish
from actors.text import clean_text, one_line

from ._hook_answer import TAKEN, Answer, Effect, Event, read_object, read_output
from ._hook_command import CommandEnd, run_hook_command
from ._judging import look
from ._modes import CLAUDE_NAMES
from ._paths import home_directory
from ._rules import name_in, speaks_of_any
from ._tool_names import KNOWN, PATH_ARGUMENTS, all_names, newer
from .permissions import (
    Decision,
    Mode,
    Rule,
    ToolRequest,
    Verdict,
    as_tuple,
    is_async_function,
)

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "STOP_BLOCKS",
    "Advice",
    "AgentHooks",
    "Comment",
    "Hook",
    "HookFacts",
    "HookFunction",
    "Hooks",
]

STOP_BLOCKS: Final = 5
"""How many times in a row stop hooks can make an agent go on."""

END_BUDGET: Final = 3.0
"""Seconds that stop hooks have on a path on which they cannot make it go on."""

_BLOCKED: Final = 2
NAMES: Final = re.compile(r"[A-Za-z0-9_ ,|-]*")
"""A matcher that is names, and no regular expression."""
_ALL: Final = ("", "*")
TOOL_LISTS: Final = (
    "pre_tool",
    "permission_request",
    "post_tool",
    "post_tool_failure",
)

HookFunction: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""A hook in the program itself; see the module."""


@attrs.frozen
class Hook:
    """One hook.

    Args:
        run: a command for bash, or an async function.
        matcher: for which types of agents it is, and round tool calls for which
            tools: ``*`` or nothing for all; a name, or several with ``|`` or ``,``
            between them; or else a regular expression that is found anywhere in
            the name.
        timeout: the seconds that it may take; None for `Hooks.timeout`.
        only: round tool calls, of which of them it is called: of those that this
            rule would speak of if it denied them, whatever its effect is. One of
            which ``matcher`` excludes all is refused.

    A matcher that no tool is called by may be for one that comes later. If it is
    like the name of a tool, or a rule, a warning says so when an agent begins.

    Raises:
        TypeError, ValueError: naming the argument and its value.
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
                f" {rule.text!r} speaks of none that {self.matcher!r} matches, and the"
                f" hook would never be called; write the matcher {right!r}"
            )

    @property
    def name(self) -> str:
        """What it is called in warnings."""
        if isinstance(self.run, str):
            return one_line(self.run, 80)
        return one_line(getattr(self.run, "__qualname__", repr(self.run)), 80)

    def matches(self, name: str) -> bool:
        """Tell whether it is for this type of agent, or this tool."""
        return _matches(self.matcher, name)

    def matches_call(self, request: ToolRequest) -> bool:
        """Tell whether it is for this tool call."""
        return bool(_of_call([self], request))

    @property
    def speaks_of(self) -> Rule | None:
        """The rule for the calls that it is for, None for all."""
        # As wide as a denial: rather once too often than once too seldom.
        return None if self.only is None else attrs.evolve(self.only, effect="deny")

    @property
    def is_for_all(self) -> bool:
        """Whether its matcher is none, and matches whatever there is."""
        return self.matcher.strip() in _ALL

    @property
    def names(self) -> Sequence[str]:
        """Those in a matcher that is names, and no regular expression."""
        return _names(self.matcher) if NAMES.fullmatch(self.matcher) else ()


def _names(matcher: str) -> Sequence[str]:
    return [one.strip() for one in re.split("[|,]", matcher)]


def _matches(matcher: str, name: str) -> bool:
    if matcher.strip() in _ALL:
        return True
    if NAMES.fullmatch(matcher):
        return name in _names(matcher)
    return re.search(matcher, name) is not None


def matcher_for(only: Rule, matcher: str) -> str | None:
    """Return the matcher that a hook for the calls of which ``only`` speaks needs, if
    ``matcher`` excludes all of them; None if it does not."""
    name = name_in(only)
    if matcher.strip() in _ALL:
        return None
    if NAMES.fullmatch(matcher):
        tools = _names(matcher)
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
    if name.startswith("mcp__") and "__" not in name.removeprefix("mcp__"):
        return f"{name}__.*"
    return "*" if "*" in name else name


def _check_hooks(_: object, field: Any, hooks: object) -> None:
    name = field.name
    if not isinstance(hooks, tuple):
        inner = repr(hooks) if isinstance(hooks, Hook) else f"Hook({hooks!r})"
        raise TypeError(
            f"{name} must be a list of Hook objects, not {hooks!r}: write"
            f" {name}=[{inner}]"
        )
    for hook in cast("tuple[object, ...]", hooks):
        if not isinstance(hook, Hook):
            raise TypeError(
                f"{name} must be Hook objects, not {hook!r}: write"
                f" {name}=[Hook({hook!r})]"
            )
        if hook.only is not None and name not in TOOL_LISTS:
            raise ValueError(
                f"{name} is not about tool calls, so its hooks have no only: {hook!r}"
            )


def _as_hooks(hooks: Iterable[Hook]) -> tuple[Hook, ...]:
    return as_tuple(hooks)


@attrs.frozen(kw_only=True)
class Hooks:
    """The hooks of all agents of a runtime, or of one kind of them.

    Args:
        start: called before the first prompt of a run (``SubagentStart``).
        stop: called when a run ends (``SubagentStop``); they can make it go on.
        main_stop: likewise, of agents that the program itself has started
            (``Stop``), besides ``stop``.
        pre_tool: called before every tool call (``PreToolUse``); they can deny it,
            have it asked about, allow it, and change it.
        permission_request: asked about a tool call that neither a rule nor the mode
            decides (``PermissionRequest``).
        post_tool: called after a tool call that has succeeded (``PostToolUse``);
            they can tell the agent something of it, and replace its answer.
        post_tool_failure: called after one that has failed (``PostToolUseFailure``).
        timeout: the seconds that a hook may take that says nothing else.

    Raises:
        TypeError, ValueError: naming the argument and its value.
    """

    start: tuple[Hook, ...] = attrs.field(
        default=(), converter=_as_hooks, validator=_check_hooks
    )
    stop: tuple[Hook, ...] = attrs.field(
        default=(), converter=_as_hooks, validator=_check_hooks
    )
    main_stop: tuple[Hook, ...] = attrs.field(
        default=(), converter=_as_hooks, validator=_check_hooks
    )
    pre_tool: tuple[Hook, ...] = attrs.field(
        default=(), converter=_as_hooks, validator=_check_hooks
    )
    permission_request: tuple[Hook, ...] = attrs.field(
        default=(), converter=_as_hooks, validator=_check_hooks
    )
    post_tool: tuple[Hook, ...] = attrs.field(
        default=(), converter=_as_hooks, validator=_check_hooks
    )
    post_tool_failure: tuple[Hook, ...] = attrs.field(
        default=(), converter=_as_hooks, validator=_check_hooks
    )
    timeout: float = attrs.field(
        default=60.0, validator=by(check_number, "seconds", zero=False)
    )

    def with_more(self, more: Hooks) -> Hooks:
        """Return these and then ``more``, each with the time that it has now."""
        lists: dict[str, Any] = {}
        for name in (field.name for field in attrs.fields(Hooks)):
            if name != "timeout":
                lists[name] = (
                    *getattr(self, name),
                    *(
                        attrs.evolve(hook, timeout=hook.timeout or more.timeout)
                        for hook in getattr(more, name)
                    ),
                )
        return attrs.evolve(self, **lists)


@attrs.frozen(kw_only=True)
class HookFacts:
    """What hooks are told of their agent."""

    agent_id: str
    agent_type: str
    cwd: str | None = None
    session: str | None = None
    transcript: str | None = None
    """The path of its transcript."""
    session_transcript: str | None = None
    """That of the outermost agent; None if it is itself."""
    mode: Mode = "default"
    project: str | None = None
    """The host's directory."""
    is_main: bool = False
    """Whether the program itself has started it."""


@attrs.frozen(kw_only=True)
class Advice:
    """What hooks say of a call before it is judged."""

    decision: Decision | None = None
    """None if no hook has decided anything."""
    input: Mapping[str, Any] | None = None
    """What it is to be made with instead."""
    text: str | None = None
    """What the agent is to know of it."""


@attrs.frozen(kw_only=True)
class Comment:
    """What hooks say of a call that was made."""

    text: str | None = None
    """What the agent is to know of it."""
    output: str | None = None
    """What it is to see instead of the answer."""


class AgentHooks:
    """The hooks of one run of one agent: an async context manager round it.

    It keeps the pair: once `on_start` was called, stop hooks are called on whatever
    path the block is left, also on a stop, a failure, a shutdown and an interrupt.
    There they cannot make the agent go on; they have `END_BUDGET` seconds, or what
    there is, and are not cancelled meanwhile. If `on_stop` has let the agent end,
    that was the call, unless the agent went on for another reason (`went_on`,
    `before_tool`).

    Every method but `on_stop` raises `actors.agent.AgentFailed` if a hook says that
    the agent is to end.

    Args:
        on_warning: told what people should know, in a line or a few.
        last_words: returns the last that the agent has said, for a run that ends
            otherwise than by its answer.
        background_tasks: returns the agent's tasks that have not ended, as JSON
            may have them.
        time_left: returns how many seconds there are at the end.
    """

    def __init__(
        self,
        hooks: Hooks,
        env: Env,
        facts: HookFacts,
        *,
        on_warning: Callable[[str], None],
        last_words: Callable[[], str | None] = lambda: None,
        background_tasks: Callable[[], Sequence[Mapping[str, Any]]] = list,
        time_left: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._hooks = hooks
        self._env = env
        self._facts = facts
        self._warn = on_warning
        self._last_words = last_words
        self._background_tasks = background_tasks
        self._time_left = time_left
        self._started = False
        self._owes_stop = False
        self._blocks = 0
        """How many times in a row stop hooks have made it go on."""
        self.was_killed = False
        """Whether a run that has returned counts as killed; to be set before the
        block is left."""

    @property
    def hooks(self) -> Hooks:
        """Those that it calls."""
        return self._hooks

    async def on_start(self) -> str | None:
        """Call the start hooks; return what they have to say to the agent.

        To be called in the block, before the first prompt.
        """
        self._started = self._owes_stop = True
        answers = await self._ask("SubagentStart", self._of_type(self._hooks.start))
        _end_if_told(answers)
        return _joined(answer.context for answer in answers)

    async def on_stop(self, answer: str) -> str | None:
        """Call the stop hooks because the agent has an answer and nothing else to do;
        return what it is to go on with, None if it may end.

        After it has gone on `STOP_BLOCKS` times in a row it may end whatever they
        say, which is warned of.
        """
        self._owes_stop = True
        reasons = await self._ask_stop("running", answer)
        if reasons and self._blocks >= STOP_BLOCKS:
            self._warn(
                f"stop hooks have made the agent go on {self._blocks} times in a row;"
                f" it ends now, although: {one_line(reasons)}"
            )
            reasons = None
        if reasons:
            self._blocks += 1
            return reasons
        self._blocks = 0
        self._owes_stop = False
        return None

    def went_on(self) -> None:
        """The agent goes on although `on_stop` has let it end: a message came."""
        self._owes_stop = self._started

    async def before_tool(self, request: ToolRequest) -> Advice:
        """Call the hooks before a tool call, whatever will allow or deny it."""
        self.went_on()
        chosen = _of_call(self._hooks.pre_tool, request)
        if not chosen:
            return Advice()
        told = _of_use(request)
        if any(isinstance(hook.run, str) for hook in chosen):
            try:
                _as_json(self._told("PreToolUse", told))
            except (TypeError, ValueError, RecursionError) as error:
                # Or it would be called without its guard.
                why = one_line(f"{type(error).__name__}: {error}")
                reason = f"its arguments cannot be told to the hooks ({why})"
                return Advice(decision=Decision("deny", reason))
        answers = await self._ask("PreToolUse", chosen, told)
        _end_if_told(answers)
        decision = _decision(answers)
        changed = [answer.input for answer in answers if answer.input is not None]
        if any(one != changed[0] for one in changed):
            self._warn(
                "two PreToolUse hooks change one call in different ways: what the last"
                " one says counts"
            )
        return Advice(
            decision=decision,
            input=changed[-1] if changed else None,
            text=_joined(answer.context for answer in answers),
        )

    async def on_permission(self, request: ToolRequest) -> Verdict | None:
        """Ask the hooks about a call that nobody has decided; None if none of them
        does. One that denies decides, and otherwise one that allows."""
        chosen = _of_call(self._hooks.permission_request, request)
        if not chosen:
            return None
        answers = await self._ask("PermissionRequest", chosen, _of_use(request))
        _end_if_told(answers)
        decision = _decision(answers)
        if decision is None or decision.effect == "ask":
            return None
        if decision.effect == "deny":
            return Verdict(False, decision.reason)
        changed = [
            it.input for it in answers if it.effect == "allow" and it.input is not None
        ]
        return Verdict(True, decision.reason, input=changed[-1] if changed else None)

    async def after_tool(
        self,
        request: ToolRequest,
        text: str,
        *,
        is_error: bool,
        data: Mapping[str, Any],
        seconds: float,
    ) -> Comment:
        """Call the hooks after a tool call.

        Args:
            text, data: what it has answered.
            is_error: whether it has failed.
            seconds: how long it has taken.
        """
        hooks = self._hooks.post_tool_failure if is_error else self._hooks.post_tool
        chosen = _of_call(hooks, request)
        if not chosen:
            return Comment()
        told = _of_use(request) | {"duration_ms": round(seconds * 1000)}
        if is_error:
            told |= {"error": text, "is_interrupt": False}
        else:
            told["tool_response"] = {**data, "text": text}
        event: Event = "PostToolUseFailure" if is_error else "PostToolUse"
        answers = await self._ask(event, chosen, told)
        _end_if_told(answers)
        outputs = [answer.output for answer in answers if answer.output is not None]
        said: list[str | None] = []
        for answer in answers:
            if answer.effect == "deny":
                said.append(answer.reason or "A hook has found fault with it.")
            said.append(answer.context)
        return Comment(text=_joined(said), output=outputs[-1] if outputs else None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Call the stop hooks if they are still owed."""
        if not self._owes_stop:
            return
        self._owes_stop = False
        budget = min(END_BUDGET, self._time_left())
        with trio.move_on_after(budget, shield=True):
            await self._ask_stop(self._status(exc), self._last_words(), budget)

    # Calling

    async def _ask_stop(
        self, status: str, said_last: str | None, most: float = math.inf
    ) -> str | None:
        told = {
            "stop_hook_active": self._blocks > 0,
            "agent_transcript_path": self._facts.transcript,
            "last_assistant_message": said_last,
            "background_tasks": [dict(task) for task in self._background_tasks()],
            # Its own, of which it has none: schedules are the host's.
            "session_crons": [],
            "status": status,
        }
        jobs = _jobs(self._of_type(self._hooks.stop), "SubagentStop", told)
        if self._facts.is_main:
            # What the matcher of these says means nothing, as in Claude Code.
            jobs += _jobs(self._hooks.main_stop, "Stop", told)
        answers = await self._ask_all(jobs, most)
        if any(answer.ends is not None for answer in answers):
            return None
        said: list[str | None] = []
        for answer in answers:
            if answer.effect == "deny":
                default = "A stop hook has found that it is not done."
                said.append(answer.reason or default)
            said.append(answer.context)
        return _joined(said)

    async def _ask(
        self,
        event: Event,
        hooks: Sequence[Hook],
        told: Mapping[str, Any] | None = None,
    ) -> list[Answer]:
        return await self._ask_all(_jobs(hooks, event, told or {}))

    async def _ask_all(
        self, jobs: Sequence[_Job], most: float = math.inf
    ) -> list[Answer]:
        """Call hooks, all at the same time; return what each has said, in their
        order."""
        # All before the first function runs, and each gets its own: none can change
        # what another one sees.
        told = [self._prepare(*job) for job in jobs]
        answers = [Answer()] * len(jobs)
        ends: list[BaseException] = []

        async def call(number: int, job: _Job) -> None:
            hook, event, _ = job
            try:
                answers[number] = await self._ask_one(hook, event, told[number], most)
            except (KeyboardInterrupt, SystemExit) as error:
                # Nobody's failure: it goes on as it is, and in no group.
                ends.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for number, job in enumerate(jobs):
                nursery.start_soon(call, number, job)
        if ends:
            raise ends[0]
        return answers

    def _prepare(self, hook: Hook, event: Event, more: Mapping[str, Any]) -> _Told:
        """Return what a hook is told; if that cannot be, why."""
        told = self._told(event, more)
        try:
            if isinstance(hook.run, str):
                return _as_json(told)
            return copy.deepcopy(told)
        except Exception as error:
            # As what it raises itself.
            return error

    async def _ask_one(
        self, hook: Hook, event: Event, told: _Told, most: float
    ) -> Answer:
        seconds = min(hook.timeout or self._hooks.timeout, most)
        said: object = None
        try:
            if isinstance(told, Exception):
                raise told
            with trio.move_on_after(seconds) as scope:
                if not isinstance(hook.run, str):
                    said = await hook.run(cast("dict[str, Any]", told))
                else:
                    said = await run_hook_command(
                        hook.run,
                        self._env,
                        stdin=cast("bytes", told),
                        cwd=self._facts.cwd,
                        project=self._facts.project,
                    )
            # Not by a TooSlowError, which may be one of its own.
            if scope.cancelled_caught:
                answer = Answer(faults=(f"it took longer than {seconds:g} s",))
            else:
                answer = _understood(event, said)
        except Exception as error:
            # The boundary: a hook is a guest of the agent, not a part of it.
            answer = Answer(faults=(f"{type(error).__name__}: {error}",))
        faults = list(answer.faults)
        if faults and answer == Answer(faults=answer.faults, message=answer.message):
            # An exception may have no words.
            faults[-1] = f"{faults[-1].removesuffix(': ')}; {_WITHOUT[event]}"
        for fault in faults:
            self._warn(clean_text(f"the {event} hook {hook.name!r}: {fault}"))
        if answer.message is not None:
            self._warn(f"the {event} hook {hook.name!r} says: {answer.message}")
        return answer

    def _told(self, event: Event, more: Mapping[str, Any]) -> dict[str, Any]:
        facts = self._facts
        return {
            "hook_event_name": event,
            "session_id": facts.session,
            "transcript_path": facts.session_transcript or facts.transcript,
            "cwd": facts.cwd,
            "permission_mode": CLAUDE_NAMES[facts.mode],
            "agent_id": facts.agent_id,
            "agent_type": facts.agent_type,
            "session": facts.session,
            "mode": facts.mode,
            **more,
        }

    def _of_type(self, hooks: Iterable[Hook]) -> list[Hook]:
        return [hook for hook in hooks if hook.matches(self._facts.agent_type)]

    def _status(self, error: BaseException | None) -> str:
        if error is None:
            return "killed" if self.was_killed else "completed"
        return "failed" if isinstance(error, Exception) else "killed"


_WITHOUT: Final[Mapping[Event, str]] = {
    "SubagentStart": "the agent begins without it",
    "PreToolUse": "the call goes on without it",
    "PermissionRequest": "the call is judged without it",
    "PostToolUse": "the agent goes on without it",
    "PostToolUseFailure": "the agent goes on without it",
    "SubagentStop": "the agent may end without it",
    "Stop": "the agent may end without it",
}
"""What becomes of what a hook was called about, if that has said nothing."""

_Job: TypeAlias = tuple[Hook, Event, Mapping[str, Any]]
_Told: TypeAlias = bytes | dict[str, Any] | Exception


def _jobs(hooks: Iterable[Hook], event: Event, told: Mapping[str, Any]) -> list[_Job]:
    return [(hook, event, told) for hook in hooks]


def _of_call(hooks: Iterable[Hook], request: ToolRequest) -> list[Hook]:
    # Under whatever name the model has called it.
    names = all_names(request.tool_use.name)
    chosen = [
        (hook, hook.speaks_of)
        for hook in hooks
        if any(hook.matches(name) for name in names)
    ]
    rules = [rule for _, rule in chosen if rule is not None]
    if not rules:
        return [hook for hook, _ in chosen]
    # Once for all of them: it follows links.
    seen = look(rules, request)
    return [hook for hook, rule in chosen if rule is None or seen.is_meant_by(rule)]


def _of_use(request: ToolRequest) -> dict[str, Any]:
    use = request.tool_use
    # A copy: nobody changes what was asked for by the way.
    arguments = copy.deepcopy(dict(use.input))
    name = PATH_ARGUMENTS.get(newer(use.name), "")
    path = arguments.get(name)
    if isinstance(path, str) and path and request.cwd is not None:
        # In one spelling, or a hook that looks at paths could be passed by another.
        if path == "~" or path.startswith("~/"):
            path = (request.home or home_directory() or "~") + path[1:]
        arguments[name] = posixpath.normpath(posixpath.join(request.cwd, path))
    return {
        "tool_name": use.name,
        "tool_input": arguments,
        "tool_use_id": use.id,
    }


def _as_json(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told, default=str, allow_nan=False).encode()


def _joined(texts: Iterable[str | None]) -> str | None:
    return "\n\n".join(text for text in texts if text) or None


def _decision(answers: Iterable[Answer]) -> Decision | None:
    """Return what counts of what several hooks say of one call."""
    found = {answer.effect: answer.reason for answer in reversed([*answers])}
    for effect, default in _BY_DEFAULT:
        if effect in found:
            return Decision(effect, found[effect] or default)
    return None


_BY_DEFAULT: Final[Sequence[tuple[Effect, str]]] = (
    ("deny", "a hook denies it"),
    ("ask", "a hook asks"),
    ("allow", "a hook allows it"),
)
"""What counts more stands before what counts less."""


def _end_if_told(answers: Iterable[Answer]) -> None:
    for answer in answers:
        if answer.ends is not None:
            raise AgentFailed("error", f"a hook has ended the agent: {answer.ends}")


# What they say


def _understood(event: Event, said: object) -> Answer:
    """Return what a hook has said, in whatever way."""
    if said is None:
        return Answer()
    if isinstance(said, CommandEnd):
        return _printed(event, said)
    if isinstance(said, Mapping):
        return read_object(event, cast("Mapping[str, Any]", said))
    if event in ("PreToolUse", "PermissionRequest"):
        if isinstance(said, Verdict):
            return Answer(
                effect="allow" if said.allowed else "deny",
                reason=said.reason,
                input=said.input,
            )
        if isinstance(said, Decision):
            return Answer(effect=said.effect, reason=said.reason)
        return Answer(faults=(f"it returned {said!r}, no Verdict",))
    if not isinstance(said, str):
        return Answer(faults=(f"it returned {said!r}, no text",))
    if event in ("SubagentStop", "Stop"):
        return Answer(effect="deny", reason=said) if said else Answer()
    return Answer(context=said)


def _printed(event: Event, end: CommandEnd) -> Answer:
    answer = read_output(event, end.stdout, is_cut=end.is_cut)
    if isinstance(answer, str):
        context = answer if event == "SubagentStart" else None
        answer = Answer(context=context)
    code = end.exit.code
    if code == 0:
        return answer
    if code == _BLOCKED:
        if event == "SubagentStart":
            return Answer(message=answer.message)
        reason = answer.reason if answer.effect == "deny" else None
        return attrs.evolve(
            answer, effect="deny", reason=reason or end.stderr or None, input=None
        )
    if answer.effect == "deny" and event in ("PreToolUse", "PermissionRequest"):
        faults = (f"{_describe(end)}; its denial counts", *answer.faults)
        return Answer(effect="deny", reason=answer.reason, faults=faults)
    # Whatever it has said, nothing follows from it.
    said = (fault.removesuffix(TAKEN) for fault in answer.faults)
    return Answer(faults=(*said, _describe(end)))


def _describe(end: CommandEnd) -> str:
    exit = end.exit
    if exit.lost is not None:
        what = exit.lost
    elif exit.signal is not None:
        what = f"ended by signal {exit.signal}"
    else:
        what = f"exit code {exit.code}"
    return f"{what}: {end.stderr}" if end.stderr else what


_publish(globals())
