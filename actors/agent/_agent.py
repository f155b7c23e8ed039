"""The agent task: what it is given, checked before anything runs."""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from typing import ClassVar, TypeAlias, cast

import attrs
from trio.lowlevel import enable_ki_protection

from .._kernel.actor import Context
from .._kernel.checks import (
    check_all,
    check_number,
    check_text,
    check_type,
    check_whole,
    fspath,
)
from .._kernel.values import frozen
from ..text import first_line
from ..work import Report
from ._budget import Budget
from ._context import AgentContext
from ._events import AgentEvent, Message
from ._report import AgentReport
from ._running import run_agent

Run: TypeAlias = Callable[[AgentContext], AsyncIterator[AgentEvent]]
"""A model loop. It is an async generator function, or anything else that returns an
async iterator of events."""

# Those that may be None.
_TEXTS = ("system", "description", "model", "permission_mode", "cwd", "session")


def _as_names(names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, Iterable) and not isinstance(names, str):
        return tuple(names)
    return cast("tuple[str, ...]", names)


def _as_messages(history: Iterable[Message]) -> tuple[Message, ...]:
    """Copy the messages whole: nothing in them is shared with whoever has them."""
    if isinstance(history, Iterable) and not isinstance(history, str):
        return tuple(copy.deepcopy(message) for message in history)
    return cast("tuple[Message, ...]", history)


@frozen
class Agent:
    """A task that a model works on.

    One task iterates ``run(context)`` and closes it before it ends, in whatever way it
    ends. The run has half of `shutdown` for what it awaits while it is closed. The
    result is the answer, which is the text of its `FinalResult`. If the run returns
    without one, the answer is what it has said last. A run that raises, is ended, or
    has said nothing fails. Then the result is what it has said last.

    An agent is done when it has an answer, no message waits for it, its plan is done,
    its own tasks have ended and its host agrees. Until then its run goes on behind the
    `FinalResult`. A run that has returned, or takes no messages there, is called again
    with the whole history.

    Args:
        run: an async generator function of an `AgentContext`, or anything else
            that returns an async iterator of events for it.
        prompt: the task, word for word what the model gets.
        system: the system prompt. None means the loop's own.
        type: what kind of agent it is, by the name of its definition.
        description: a few words for people. None means the beginning of the prompt.
        model: the model, as ``"provider/model"`` or ``"model"``.
        tools: the names of the tools that it may use. Older names are valid, too, and
            ``mcp__SERVER`` means those of a server. None means all of the host's. A
            warning names those that no tool has, when it runs.
        disallowed_tools: the names of the tools that it may not use, whatever ``tools``
            says.
        permission_mode: how its tool calls are judged. Under a runtime it is a mode of
            `supervisor.permissions`, by its name here or in Claude Code. None means the
            host's mode. A mode can only forbid more: one that allows more than the
            host's, or than that of the agent above, is lowered to that, with a warning.
            A call that nobody allows is denied, by default also Bash: see
            `supervisor.agents.AgentPolicy`.
        cwd: its working directory. None means that of the host when the agent is
            launched.
        session: the session that its transcript names.
        deadline: the seconds after which a run of it ends with ``timeout``. None means
            never. The time in which the host was suspended counts.
        max_turns: how many messages of the model may ask for tools. With the next one a
            run ends with ``max_turns``. None means any number.
        budget: what it may use. A run ends with ``budget`` when it is used up. What it
            uses counts against the budget of the agent above it, too, also if it has
            none of its own.
        history: a conversation that comes before the prompt. It is copied.
        stall_warning: the seconds without any event after which a warning is given.
            None means never. Time in tools does not count, nor time in waiting for
            tasks, messages or approvals, nor time in which the host was suspended.
        stall_limit: the seconds without any event after which a run ends with
            ``stalled``. They are counted in the same way.
        reminders: how often it is reminded of a plan that is not done, before it fails.
            The count begins again when the plan changes.
        one_shot: whether it takes no messages and calls ``run`` only once.
        forked: whether it is a fork, as `AgentContext.fork` makes it. Neither it nor
            what it starts can fork.
        shutdown: the seconds for cleaning up. The closing of its run, the writing of
            its transcript and, under a runtime, its stop hooks share them.

    Raises:
        TypeError, ValueError: for a bad argument. The error names it and its value.
    """

    loop: Run = attrs.field(alias="run")
    prompt: str
    system: str | None = attrs.field(default=None, kw_only=True, repr=False)
    type: str = attrs.field(default="general-purpose", kw_only=True)
    description: str | None = attrs.field(default=None, kw_only=True)
    model: str | None = attrs.field(default=None, kw_only=True)
    tools: tuple[str, ...] | None = attrs.field(
        default=None, kw_only=True, converter=attrs.converters.optional(_as_names)
    )
    disallowed_tools: tuple[str, ...] = attrs.field(
        default=(), kw_only=True, converter=_as_names
    )
    permission_mode: str | None = attrs.field(default=None, kw_only=True)
    cwd: str | None = attrs.field(default=None, kw_only=True, converter=fspath)
    session: str | None = attrs.field(default=None, kw_only=True)
    deadline: float | None = attrs.field(default=None, kw_only=True)
    max_turns: int | None = attrs.field(default=None, kw_only=True)
    budget: Budget | None = attrs.field(default=None, kw_only=True)
    history: tuple[Message, ...] = attrs.field(
        default=(), kw_only=True, converter=_as_messages, repr=False
    )
    stall_warning: float | None = attrs.field(default=300.0, kw_only=True)
    stall_limit: float | None = attrs.field(default=600.0, kw_only=True)
    reminders: int = attrs.field(default=5, kw_only=True)
    one_shot: bool = attrs.field(default=False, kw_only=True)
    forked: bool = attrs.field(default=False, kw_only=True)
    shutdown: float = attrs.field(default=5.0, kw_only=True)

    # Not ClassVar: pyright would not take it for a `Work` then.
    task_type = "local_agent"
    writes_output = False
    has_tasks: ClassVar[bool] = True
    """Whether it may have tasks of its own."""
    background: ClassVar[bool] = False
    """Whether it runs in the background, whatever its caller says."""

    def __attrs_post_init__(self) -> None:
        _check_run(self.loop)
        if self.tools is not None:
            _check_names("tools", self.tools)
        _check_names("disallowed_tools", self.disallowed_tools)
        check_text("prompt", self.prompt)
        check_text("type", self.type)
        for name in _TEXTS:
            check_text(name, getattr(self, name), none=True)
        for name in ("deadline", "stall_warning", "stall_limit"):
            check_number(name, getattr(self, name), "seconds", none=True)
        check_number("shutdown", self.shutdown, "seconds")
        check_whole("max_turns", self.max_turns, none=True)
        check_whole("reminders", self.reminders)
        check_type("budget", self.budget, Budget | None)
        check_all("history", self.history, Message)
        check_type("one_shot", self.one_shot, bool)
        check_type("forked", self.forked, bool)

    @property
    def takes_messages(self) -> bool:
        """Whether it takes messages while it runs."""
        return not self.one_shot

    @property
    def limit_key(self) -> str | None:
        """Its model. The place of the agent counts for the limit of that model."""
        return self.model

    def describe(self) -> str:
        return self.description or first_line(
            self.prompt.strip() or self.type, 80, "..."
        )

    @enable_ki_protection
    async def run(self, ctx: Context[object], report: Report) -> str:
        """Run it to its end and return its answer.

        Raises:
            AgentFailed: if it ends without an answer.
            Exception: what its loop has raised.
            TypeError: if ``report`` is not an `AgentReport`.
        """
        if not isinstance(report, AgentReport):
            raise TypeError(f"an agent runs with an AgentReport, not {report!r}")
        return await run_agent(self, report)


def _check_run(run: object) -> None:
    if not callable(run):
        raise TypeError(f"run must be an async generator function, not {run!r}")
    if inspect.iscoroutinefunction(run):
        name = getattr(run, "__qualname__", repr(run))
        raise TypeError(
            f"run must be an async generator function, and {name} is only async: "
            "it has no `yield`"
        )


def _check_names(what: str, names: tuple[str, ...]) -> None:
    check_all(what, names, str)
    for name in names:
        check_text(f"a name in {what}", name)
