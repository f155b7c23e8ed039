"""The hooks of one run of an agent: which are called when, and with what."""

from __future__ import annotations

import copy
import json
import math
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar

import attrs
import trio

from actors.agent import AgentFailed, TransientError
from actors.env import Env
from actors.house import frozen
from actors.text import clean_text, one_line

from ..permissions import ToolRequest, Verdict
from ..permissions._judging import Decision, look
from ..permissions._modes import CLAUDE_NAMES, Mode
from ..permissions._paths import home_directory
from ..permissions._rules import Effect
from ..permissions._tool_names import PATH_ARGUMENTS, all_names, newer
from ._advice import Advice, Comment
from ._answer import understood
from ._command import run_hook_command
from ._hook import Hook, Hooks
from ._object import Answer, Event

T = TypeVar("T")

STOP_BLOCKS: Final = 5
"""How many times in a row stop hooks can make an agent go on."""

END_BUDGET: Final = 3.0
"""Seconds that stop hooks have on a path on which they cannot make it go on."""


@frozen(kw_only=True)
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


@attrs.define(eq=False, repr=False)
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

    hooks: Hooks
    """Those that it calls."""
    env: Env
    facts: HookFacts
    on_warning: Callable[[str], None] = attrs.field(kw_only=True)
    last_words: Callable[[], str | None] = attrs.field(
        default=lambda: None, kw_only=True
    )
    background_tasks: Callable[[], Sequence[Mapping[str, Any]]] = attrs.field(
        default=list, kw_only=True
    )
    time_left: Callable[[], float] = attrs.field(default=lambda: math.inf, kw_only=True)
    _started: bool = attrs.field(default=False, init=False)
    owes_stop: bool = attrs.field(default=False, init=False)
    """Whether stop hooks are to be called: not before `on_start`, nor once `on_stop` has
    let it end."""
    _blocks: int = attrs.field(default=0, init=False)
    """How many times in a row stop hooks have made it go on."""
    was_killed: bool = attrs.field(default=False, init=False)
    """Whether a run that has returned counts as killed; to be set before the
    block is left."""

    async def on_start(self) -> str | None:
        """Call the start hooks; return what they have to say to the agent.

        To be called in the block, before the first prompt.
        """
        self._started = self.owes_stop = True
        answers = await self._ask("SubagentStart", self._of_type(self.hooks.start))
        return _joined(answer.context for answer in answers)

    async def on_stop(self, answer: str) -> str | None:
        """Call the stop hooks because the agent has an answer and nothing else to do;
        return what it is to go on with, None if it may end.

        After it has gone on `STOP_BLOCKS` times in a row it may end whatever they
        say, which is warned of.
        """
        self.owes_stop = True
        reasons = await self._ask_stop("running", answer)
        if reasons and self._blocks >= STOP_BLOCKS:
            self.on_warning(
                f"stop hooks have made the agent go on {self._blocks} times in a row;"
                f" it ends now, although: {one_line(reasons)}"
            )
            reasons = None
        if reasons:
            self._blocks += 1
            return reasons
        self._blocks = 0
        self.owes_stop = False
        return None

    def went_on(self) -> None:
        """The agent goes on although `on_stop` has let it end: a message came."""
        self.owes_stop = self._started

    async def before_tool(self, request: ToolRequest) -> Advice:
        """Call the hooks before a tool call, whatever will allow or deny it."""
        self.went_on()
        chosen = _of_call(self.hooks.pre_tool, request)
        if not chosen:
            return Advice()
        told = _of_use(request)
        if any(isinstance(hook.run, str) for hook in chosen):
            try:
                _as_json(self._message("PreToolUse", told))
            except (TypeError, ValueError, RecursionError) as error:
                # Or it would be called without its guard.
                why = one_line(f"{type(error).__name__}: {error}")
                reason = f"its arguments cannot be told to the hooks ({why})"
                return Advice(decision=Decision("deny", reason))
        answers = await self._ask("PreToolUse", chosen, told)
        decision = _strictest(answers)
        changed = [answer.input for answer in answers if answer.input is not None]
        if any(one != changed[0] for one in changed):
            self.on_warning(
                "two PreToolUse hooks change one call in different ways: what the last"
                " one says counts"
            )
        return Advice(
            decision=decision,
            input=_last(changed),
            text=_joined(answer.context for answer in answers),
        )

    async def on_permission(self, request: ToolRequest) -> Verdict | None:
        """Ask the hooks about a call that nobody has decided; None if none of them
        does. One that denies decides, and otherwise one that allows."""
        chosen = _of_call(self.hooks.permission_request, request)
        if not chosen:
            return None
        answers = await self._ask("PermissionRequest", chosen, _of_use(request))
        decision = _strictest(answers)
        if decision is None or decision.effect == "ask":
            return None
        if decision.effect == "deny":
            return Verdict(False, decision.reason)
        changed = _last(it.input for it in answers if it.effect == "allow")
        return Verdict(True, decision.reason, input=changed)

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
        hooks = self.hooks.post_tool_failure if is_error else self.hooks.post_tool
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
        return Comment(
            text=_objections(answers, "A hook has found fault with it."),
            output=_last(answer.output for answer in answers),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Call the stop hooks if they are still owed."""
        if not self.owes_stop or not any(self._stop_hooks()):
            return
        self.owes_stop = False
        budget = min(END_BUDGET, self.time_left())
        with trio.move_on_after(budget, shield=True):
            await self._ask_stop(self._status(exc), self.last_words(), budget)

    # Calling

    async def _ask_stop(
        self, status: str, said_last: str | None, most: float = math.inf
    ) -> str | None:
        own, main = self._stop_hooks()
        if not own and not main:
            await trio.lowlevel.checkpoint()
            return None
        told = {
            "stop_hook_active": self._blocks > 0,
            "agent_transcript_path": self.facts.transcript,
            "last_assistant_message": said_last,
            "background_tasks": [dict(task) for task in self.background_tasks()],
            # Its own, of which it has none: schedules are the host's.
            "session_crons": [],
            "status": status,
        }
        jobs = [*_jobs(own, "SubagentStop", told), *_jobs(main, "Stop", told)]
        answers = await self._ask_all(jobs, most)
        if any(answer.ends is not None for answer in answers):
            return None
        return _objections(answers, "A stop hook has found that it is not done.")

    async def _ask(
        self,
        event: Event,
        hooks: Sequence[Hook],
        told: Mapping[str, Any] | None = None,
    ) -> list[Answer]:
        answers = await self._ask_all(_jobs(hooks, event, told or {}))
        for answer in answers:
            if answer.ends is not None:
                raise AgentFailed("error", f"a hook has ended the agent: {answer.ends}")
        return answers

    async def _ask_all(
        self, jobs: Sequence[_Job], most: float = math.inf
    ) -> list[Answer]:
        """Call hooks, all at the same time; return what each has said, in their
        order."""
        answers = [Answer()] * len(jobs)
        ends: list[BaseException] = []

        async def call(number: int, job: _Job) -> None:
            try:
                answers[number] = await self._ask_one(*job, most)
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

    async def _ask_one(
        self, hook: Hook, event: Event, more: Mapping[str, Any], most: float
    ) -> Answer:
        seconds = min(hook.timeout or self.hooks.timeout, most)
        said: object = None
        try:
            told = self._message(event, more)
            with trio.move_on_after(seconds) as scope:
                if isinstance(hook.run, str):
                    said = await run_hook_command(
                        hook.run,
                        self.env,
                        stdin=_as_json(told),
                        cwd=self.facts.cwd,
                        project=self.facts.project,
                    )
                else:
                    # Its own: none can change what another one sees.
                    said = await hook.run(copy.deepcopy(told))
            # Not by a TooSlowError, which may be one of its own.
            if scope.cancelled_caught:
                answer = Answer(faults=(f"it took longer than {seconds:g} s",))
            else:
                answer = understood(event, said)
        except Exception as error:
            # The boundary: a hook is a guest of the agent, not a part of it.
            answer = Answer(faults=(f"{type(error).__name__}: {error}",))
        faults = list(answer.faults)
        if faults and answer == Answer(faults=answer.faults, message=answer.message):
            # An exception may have no words.
            faults[-1] = f"{faults[-1].removesuffix(': ')}; {_WITHOUT[event]}"
        for fault in faults:
            self.on_warning(clean_text(f"the {event} hook {hook.name!r}: {fault}"))
        if answer.message is not None:
            self.on_warning(f"the {event} hook {hook.name!r} says: {answer.message}")
        return answer

    def _message(self, event: Event, more: Mapping[str, Any]) -> dict[str, Any]:
        facts = self.facts
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
        return [hook for hook in hooks if hook.matches(self.facts.agent_type)]

    def _stop_hooks(self) -> tuple[Sequence[Hook], Sequence[Hook]]:
        # What the matcher of the second says means nothing, as in Claude Code.
        main = self.hooks.main_stop if self.facts.is_main else ()
        return self._of_type(self.hooks.stop), main

    def _status(self, error: BaseException | None) -> str:
        if error is None:
            return "killed" if self.was_killed else "completed"
        if isinstance(error, TransientError):
            return "paused"
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
"""What happens if a hook that was called has said nothing."""

_Job: TypeAlias = tuple[Hook, Event, Mapping[str, Any]]


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


def _last(values: Iterable[T | None]) -> T | None:
    found = [value for value in values if value is not None]
    return found[-1] if found else None


def _objections(answers: Iterable[Answer], default: str) -> str | None:
    """Return what hooks say of something that is over; ``default`` stands for a reason
    that is not given."""
    said: list[str | None] = []
    for answer in answers:
        if answer.effect == "deny":
            said.append(answer.reason or default)
        said.append(answer.context)
    return _joined(said)


def _joined(texts: Iterable[str | None]) -> str | None:
    return "\n\n".join(text for text in texts if text) or None


def _strictest(answers: Iterable[Answer]) -> Decision | None:
    """Return the strictest of what several hooks say of one call."""
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
