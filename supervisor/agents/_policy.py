"""What holds for all agents of a runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from actors.agent import Run
from actors.house import check_number, check_one_of, check_type, check_whole, frozen
from actors.house import publish as _publish

from .._tasks.pausing import PATIENCE
from ..hooks import Hooks
from ..permissions import Permissions

if TYPE_CHECKING:
    from ..definitions import AgentDefinition
    from ..runtime import Runtime
    from ..tools import Tool

__all__ = ["AgentPolicy"]

MoreTools: TypeAlias = "Callable[[Runtime, str], Sequence[Tool]]"
"""Returns tools for the agent of a runtime that has this id."""


@frozen(kw_only=True)
class AgentPolicy:
    """What holds for all agents of a runtime.

    Args:
        definitions: the kinds of agents that a model may start, by name. They need
            ``run``.
        run: the loop of agents that a tool starts, or that are resumed from disk. None
            means that there are none.
        permissions: what judges their tool calls. The default denies what no rule
            allows, also Bash, and reports that by a `Warned` event.
            ``Permissions(rules=[Rule("allow", "Bash(ls *)")])`` allows ``ls``, and
            ``Permissions(mode="bypass")`` everything.
        hooks: what is called when one starts, stops and uses a tool.
        tools: a function that is called with the runtime and the id of an agent. It
            returns a list of `supervisor.tools.Tool` that the agent has besides those
            of `Runtime.tools_for`. A tool of the same name replaces one of these. The
            help of `supervisor.tools.Tool` has an example. An agent fails if the
            function returns something else, or two tools of one name.
        max_depth: how many agents may be above one. With 0, no agent can start another.
        breaker: the number of calls of one tool with the same arguments, in a row, at
            which the call is refused. Later ones are refused, too, until the agent is
            told something: a message, the end of a task of its own, or a prompt.
        todo_aware: whether an agent goes on while a step of its plan is neither
            completed nor cancelled. It is reminded of the plan then, as often as
            ``Agent(reminders=)`` says. With False, its answer counts all the same.
        patience: the seconds for which an agent tries again what should pass, and for
            which no time is known at which it does. A time that is more than 32 days
            away is taken for a mistake, and not believed. It pauses for 1, 2, 5, 10, 20
            and then always 30 minutes, a tenth more or less. From the second try on it
            does so, at least, also where a time is known. The seconds are counted from
            the last answer of its model, also over the death of its program. After them
            the agent fails, and its error tells all tries. With 0 it fails at once.
        after_crash: what becomes of an agent whose program has died, once the next
            runtime is open. ``pause``: it is paused, until `Runtime.resume` or a
            message lets it go on. ``resume``: it goes on by itself. It is told which of
            its calls were cut, and which of its tasks have ended. An agent of which
            nobody here knows the loop waits for `Runtime.resume(agent=)`.

    Raises:
        TypeError, ValueError: for a bad argument. The error names it and its value.
    """

    definitions: Mapping[str, AgentDefinition] = attrs.field(
        factory=dict[str, "AgentDefinition"]
    )
    run: Run | None = None
    permissions: Permissions = attrs.field(factory=Permissions)
    hooks: Hooks = attrs.field(factory=Hooks)
    tools: MoreTools | None = None
    max_depth: int = 3
    breaker: int = 20
    todo_aware: bool = True
    patience: float = PATIENCE
    after_crash: Literal["pause", "resume"] = "pause"

    def __attrs_post_init__(self) -> None:
        check_whole("max_depth", self.max_depth, wrong=ValueError)
        check_whole("breaker", self.breaker, 1, wrong=ValueError)
        check_number("patience", self.patience, "seconds")
        check_one_of("after_crash", self.after_crash, ("pause", "resume"))
        for name in ("run", "tools"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(f"{name} must be callable or None, not {value!r}")
        check_type("todo_aware", self.todo_aware, bool)
        check_type("permissions", self.permissions, Permissions)
        check_type("hooks", self.hooks, Hooks)
        check_type("definitions", self.definitions, Mapping)
        if self.definitions:
            self._check_definitions()

    def _check_definitions(self) -> None:
        # Who has none need not load what reads them.
        from ..definitions import AgentDefinition

        for name, definition in self.definitions.items():
            if not isinstance(name, str) or not isinstance(definition, AgentDefinition):
                raise TypeError(
                    f"definitions must be AgentDefinitions by name, not {definition!r}"
                )
        if self.run is None:
            raise ValueError(
                "definitions need `run`, the loop that their agents run: "
                f"{', '.join(self.definitions)}"
            )


_publish(globals(), "supervisor.agents")
