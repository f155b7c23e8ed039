"""Hooks: commands and functions of the program that are called round an agent's life.

``SubagentStart`` hooks are called before the first prompt of a run, ``SubagentStop``
hooks when it ends, and ``PermissionRequest`` hooks about a tool call that neither a
rule nor the agent's mode decides. A hook is a command or an async function.

A **command** runs under ``bash -c`` in the agent's directory. It gets a JSON object
on its standard input::

    hook_event_name  agent_id  agent_type  session  cwd

and ``SubagentStop`` also ``stop_hook_active`` (whether the agent goes on because of
a stop hook already), ``agent_transcript_path``, ``last_assistant_message``,
``background_tasks``, and ``status``: ``running`` if the hook can still make the
agent go on, or else how it has ended, ``completed``, ``failed`` or ``killed``.
``PermissionRequest`` has ``tool_name``, ``tool_input``, ``tool_use_id`` and
``permission_mode``. What the command says:

=================  ====================  =====================  =====================
exit code          SubagentStart         SubagentStop           PermissionRequest
=================  ====================  =====================  =====================
0                  stdout goes to the    nothing is shown       stdout may decide
                   agent                                        (see below)
2                  ignored               the agent goes on      denied; stderr says
                                         with stderr            why
any other          stderr goes to the people, as a warning, and the hook says nothing
=================  ====================  =====================  =====================

A ``PermissionRequest`` command decides by printing a JSON object with ``decision``
(``allow`` or ``deny``) and perhaps a ``reason``; broken JSON is warned of and decides
nothing. A ``SubagentStart`` command may
print ``{"hookSpecificOutput": {"additionalContext": TEXT}}`` instead of the text.

A **function** gets the same as a mapping. It returns, for ``SubagentStart``, the text
for the agent; for ``SubagentStop``, the reason to go on; for ``PermissionRequest``, a
`Verdict`; and None if it has nothing to say.

All hooks of an event run at the same time; what they say is put together in their
order. One that raises, takes longer than its time or cannot be started is told of in
a warning and has said nothing: it stops no agent, and it allows nothing. The
processes of a command are killed with their whole tree when it has ended, at its
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

import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, cast

import attrs
import trio

from actors.env import Env

from ._hook_command import CommandEnd, run_hook_command
from ._line import one_line
from .permissions import ToolRequest, Verdict, as_tuple, is_async_function

# For help(), which shows only what a module defines itself or lists here.
__all__ = ["STOP_BLOCKS", "AgentHooks", "Hook", "HookFacts", "HookFunction", "Hooks"]

STOP_BLOCKS: Final = 5
"""How many times in a row stop hooks can make an agent go on."""

END_BUDGET: Final = 3.0
"""Seconds that stop hooks have on a path on which they cannot make it go on."""

_BLOCKED: Final = 2
_EXACT: Final = re.compile(r"[A-Za-z0-9_ ,:-]+(?:\|[A-Za-z0-9_ ,:-]+)*")

HookFunction: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""A hook in the program itself; see the module."""

_START: Final = "SubagentStart"
_STOP: Final = "SubagentStop"
_TOOL: Final = "PermissionRequest"


@attrs.frozen
class Hook:
    """One hook.

    Args:
        run: a command for bash, or an async function.
        matcher: for which types of agents it is, and before tool calls for which
            tools: ``*`` or nothing for all; a name, or several with ``|`` between
            them; or else a regular expression that must match the whole name.
        timeout: the seconds that it may take; None for `Hooks.timeout`.

    Raises:
        TypeError, ValueError: naming the argument and its value.
    """

    run: str | HookFunction
    matcher: str = "*"
    timeout: float | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if isinstance(self.run, str):
            if not self.run.strip() or "\0" in self.run:
                raise ValueError(f"run must be a command, not {self.run!r}")
        elif not is_async_function(self.run):
            raise TypeError(
                "run must be a command or an async function (async def), not"
                f" {self.run!r}"
            )
        if not isinstance(self.matcher, str):
            raise TypeError(f"matcher must be a str, not {self.matcher!r}")
        try:
            re.compile("" if self.matcher == "*" else self.matcher)
        except re.error as error:
            raise ValueError(
                f"matcher must be names or a regular expression ({error}),"
                f" not {self.matcher!r}"
            ) from None
        if self.timeout is not None:
            _check_seconds(self.timeout)

    @property
    def name(self) -> str:
        """What it is called in warnings."""
        if isinstance(self.run, str):
            return one_line(self.run, 80)
        return one_line(getattr(self.run, "__qualname__", repr(self.run)), 80)

    def matches(self, name: str) -> bool:
        """Tell whether it is for this type of agent, or this tool."""
        if self.matcher in ("", "*"):
            return True
        if _EXACT.fullmatch(self.matcher):
            return name in [choice.strip() for choice in self.matcher.split("|")]
        return re.fullmatch(self.matcher, name) is not None


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


def _check_seconds(seconds: object) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"timeout must be seconds, not {seconds!r}")
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"timeout must be seconds, more than 0, not {seconds!r}")


@attrs.frozen(kw_only=True)
class Hooks:
    """The hooks of all agents of a runtime.

    Args:
        start: called before the first prompt of a run (``SubagentStart``).
        stop: called when a run ends (``SubagentStop``); they can make it go on.
        pre_tool: asked about a tool call that neither a rule nor the mode decides
            (``PermissionRequest``).
        timeout: the seconds that a hook may take that says nothing else.

    Raises:
        TypeError, ValueError: naming the argument and its value.
    """

    start: tuple[Hook, ...] = attrs.field(
        default=(), converter=as_tuple, validator=_check_hooks
    )
    stop: tuple[Hook, ...] = attrs.field(
        default=(), converter=as_tuple, validator=_check_hooks
    )
    pre_tool: tuple[Hook, ...] = attrs.field(
        default=(), converter=as_tuple, validator=_check_hooks
    )
    timeout: float = attrs.field(
        default=60.0, validator=lambda _, __, seconds: _check_seconds(seconds)
    )


@attrs.frozen(kw_only=True)
class HookFacts:
    """What hooks are told of their agent."""

    agent_id: str
    agent_type: str
    cwd: str | None = None
    session: str | None = None
    transcript: str | None = None
    """The path of its transcript."""


class AgentHooks:
    """The hooks of one run of one agent: an async context manager round it.

    It keeps the pair: once `on_start` was called, stop hooks are called on whatever
    path the block is left, also on a stop, a failure, a shutdown and an interrupt.
    There they cannot make the agent go on; they have `END_BUDGET` seconds, or what
    there is, and are not cancelled meanwhile. If `on_stop` has let the agent end,
    that was the call, unless the agent went on for another reason (`went_on`,
    `before_tool`).

    Args:
        on_warning: told what people should know, in a line or a few.
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
        background_tasks: Callable[[], Sequence[Mapping[str, Any]]] = list,
        time_left: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._hooks = hooks
        self._env = env
        self._facts = facts
        self._warn = on_warning
        self._background_tasks = background_tasks
        self._time_left = time_left
        self._started = False
        self._owes_stop = False
        self._blocks = 0
        """How many times in a row stop hooks have made it go on."""
        self._answer: str | None = None
        self.was_killed = False
        """Whether a run that has returned counts as killed; to be set before the
        block is left."""

    async def on_start(self) -> str | None:
        """Call the start hooks; return what they have to say to the agent.

        To be called in the block, before the first prompt.
        """
        self._started = self._owes_stop = True
        told = self._told(_START)
        texts: list[str] = []
        for hook, said in await self._call(self._hooks.start, _START, told):
            if isinstance(said, CommandEnd):
                said = _context(said.stdout) if said.exit.code == 0 else None
            text = self._as_text(hook, _START, said)
            if text:
                texts.append(text)
        return "\n\n".join(texts) or None

    async def on_stop(self, answer: str) -> str | None:
        """Call the stop hooks because the agent has an answer and nothing else to do;
        return what it is to go on with, None if it may end.

        After it has gone on `STOP_BLOCKS` times in a row it may end whatever they
        say, which is warned of.
        """
        self._owes_stop = True
        self._answer = answer
        reasons = await self._call_stop("running")
        if reasons and self._blocks >= STOP_BLOCKS:
            self._warn(
                f"stop hooks have made the agent go on {self._blocks} times in a row;"
                f" it ends now, although: {one_line(reasons)}"
            )
            reasons = ""
        if reasons:
            self._blocks += 1
            return reasons
        self._blocks = 0
        self._owes_stop = False
        return None

    def went_on(self) -> None:
        """The agent goes on although `on_stop` has let it end: a message came."""
        self._owes_stop = self._started

    async def before_tool(self, request: ToolRequest) -> Verdict | None:
        """Ask the hooks about a tool call; None if none of them decides.

        One that denies decides, and otherwise one that allows.
        """
        self.went_on()
        use = request.tool_use
        told = self._told(
            _TOOL,
            tool_name=use.name,
            tool_input=dict(use.input),
            tool_use_id=use.id,
            permission_mode=request.mode,
        )
        verdicts: list[Verdict] = []
        for hook, said in await self._call(
            self._hooks.pre_tool, _TOOL, told, name=use.name
        ):
            verdict: object = said
            if isinstance(said, CommandEnd):
                verdict = self._verdict(hook, said)
            if isinstance(verdict, Verdict):
                verdicts.append(verdict)
            elif verdict is not None:
                self._complain(hook, _TOOL, f"it returned {verdict!r}, no Verdict")
        denials = [verdict for verdict in verdicts if not verdict.allowed]
        return next(iter(denials + verdicts), None)

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
            await self._call_stop(self._status(exc), most=budget)

    # Calling

    async def _call_stop(self, status: str, most: float = math.inf) -> str:
        told = self._told(
            _STOP,
            stop_hook_active=self._blocks > 0,
            agent_transcript_path=self._facts.transcript,
            last_assistant_message=self._answer,
            background_tasks=[dict(task) for task in self._background_tasks()],
            status=status,
        )
        reasons: list[str] = []
        for hook, said in await self._call(self._hooks.stop, _STOP, told, most=most):
            if isinstance(said, CommandEnd):
                if said.exit.code != _BLOCKED:
                    continue
                said = said.stderr or "A stop hook has found that it is not done."
            text = self._as_text(hook, _STOP, said)
            if text:
                reasons.append(text)
        return "\n\n".join(reasons)

    async def _call(
        self,
        hooks: Sequence[Hook],
        event: str,
        told: Mapping[str, Any],
        *,
        name: str | None = None,
        most: float = math.inf,
    ) -> list[tuple[Hook, object]]:
        """Call those that match, all at the same time; return what each has said, in
        their order. A command that has neither exited with 0 nor with 2 is left out.
        """
        name = self._facts.agent_type if name is None else name
        chosen = [hook for hook in hooks if hook.matches(name)]
        answers: list[object] = [None] * len(chosen)
        ends: list[BaseException] = []

        async def call(number: int, hook: Hook) -> None:
            seconds = min(hook.timeout or self._hooks.timeout, most)
            try:
                answers[number] = await self._call_one(hook, event, told, seconds)
            except (KeyboardInterrupt, SystemExit) as error:
                # Nobody's failure: it goes on as it is, and in no group.
                ends.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for number, hook in enumerate(chosen):
                nursery.start_soon(call, number, hook)
        if ends:
            raise ends[0]
        return [*zip(chosen, answers, strict=True)]

    async def _call_one(
        self, hook: Hook, event: str, told: Mapping[str, Any], seconds: float
    ) -> object:
        try:
            with trio.fail_after(seconds):
                if not isinstance(hook.run, str):
                    return await hook.run(told)
                end = await run_hook_command(
                    hook.run,
                    self._env,
                    stdin=json.dumps(told, default=str).encode(),
                    cwd=self._facts.cwd,
                )
        except trio.TooSlowError:
            self._complain(hook, event, f"it took longer than {seconds:g} s")
            return None
        except Exception as error:
            # The boundary: a hook is a guest of the agent, not a part of it.
            self._complain(hook, event, f"{type(error).__name__}: {error}")
            return None
        if end.exit.code in (0, _BLOCKED):
            return end
        self._complain(hook, event, _describe(end))
        return None

    def _told(self, event: str, **more: Any) -> dict[str, Any]:
        return {
            "hook_event_name": event,
            "agent_id": self._facts.agent_id,
            "agent_type": self._facts.agent_type,
            "session": self._facts.session,
            "cwd": self._facts.cwd,
            **more,
        }

    def _complain(self, hook: Hook, event: str, what: str) -> None:
        self._warn(f"the {event} hook {hook.name!r}: {what}")

    def _as_text(self, hook: Hook, event: str, said: object) -> str | None:
        if said is None or isinstance(said, str):
            return said
        self._complain(hook, event, f"it returned {said!r}, no text")
        return None

    def _status(self, error: BaseException | None) -> str:
        if error is None:
            return "killed" if self.was_killed else "completed"
        return "failed" if isinstance(error, Exception) else "killed"

    def _verdict(self, hook: Hook, end: CommandEnd) -> Verdict | None:
        """Return what a command says of a tool call."""
        if end.exit.code == _BLOCKED:
            return Verdict(False, end.stderr or "a hook denies it")
        said = _as_object(end.stdout)
        if said is None:
            if end.stdout.startswith("{"):
                shown = one_line(end.stdout, 80)
                self._complain(hook, _TOOL, f"it printed broken JSON: {shown}")
            return None
        decision = said.get("decision")
        if decision is None:
            return None
        if decision not in ("allow", "deny"):
            self._complain(hook, _TOOL, f"unknown decision {decision!r}")
            return None
        reason = said.get("reason")
        allowed = decision == "allow"
        if not isinstance(reason, str) or not reason:
            reason = "a hook allows it" if allowed else "a hook denies it"
        return Verdict(allowed, reason)


def _describe(end: CommandEnd) -> str:
    exit = end.exit
    if exit.lost is not None:
        what = exit.lost
    elif exit.signal is not None:
        what = f"ended by signal {exit.signal}"
    else:
        what = f"exit code {exit.code}"
    return f"{what}: {end.stderr}" if end.stderr else what


def _as_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that a text is; None if it is none."""
    if not text.startswith("{"):
        return None
    try:
        value: object = json.loads(text, object_pairs_hook=_once_each)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # A shell script may have put a text of the model between quotes.
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _context(stdout: str) -> str:
    specific = (_as_object(stdout) or {}).get("hookSpecificOutput")
    if isinstance(specific, dict):
        text: object = cast("dict[str, object]", specific).get("additionalContext")
        if isinstance(text, str):
            return text
    return stdout
