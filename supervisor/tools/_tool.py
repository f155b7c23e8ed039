"""What a tool is: a name, a description, a schema, and a call."""

from __future__ import annotations

import copy
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Self, TypeAlias

import attrs
import trio

from actors.house import check_all, check_text, check_type, frozen, of

from .._tasks.errors import BacklogFull, RuntimeStopping
from ..permissions import as_tuple, is_async_function
from ..tree._errors import WouldDeadlock
from ._arguments import Field, Refused, object_schema, read_arguments, repeated

_NAME: Final = re.compile("[A-Za-z0-9_-]+").fullmatch
"""What all providers take as the name of a tool. Each has a length of its own."""


@frozen
class ToolResult:
    """The answer of a call: what ``act`` of a `Tool` returns.

    Raises:
        TypeError: naming the argument and its value.
    """

    text: str = attrs.field(validator=of(str))
    """The text for the model. If it holds output of a task, the output comes last, so
    that it cannot pass for what stands before it."""
    is_error: bool = attrs.field(default=False, validator=of(bool))
    """Whether the call was refused, or has failed."""
    data: dict[str, Any] = attrs.field(factory=dict[str, Any])
    """The same for programs, as JSON can hold it. A call that was refused has
    ``error``, one short word for why."""


@frozen
class Call:
    """One call of a tool, checked."""

    arguments: dict[str, Any]
    """A value for each field; None for one that is optional and did not come."""
    tool_use_id: str | None


Act: TypeAlias = Callable[[Call], Awaitable[ToolResult]]
Fill: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]
Guard: TypeAlias = Callable[
    ["Tool", Mapping[str, Any], "str | None"], Awaitable["Mapping[str, Any] | None"]
]
"""A function that judges a call of a tool, with these arguments and this id. It returns
the arguments with which the call is made instead, or None for the same. It raises
`Refused` if the call may not be made."""


class Tool:
    """One tool, for one owner. `supervisor.runtime.Runtime.tools_for` makes ours. A
    host makes those that `supervisor.agents.AgentPolicy.tools` adds::

        async def weather(call):
            if call.arguments["city"] != "Oslo":
                return ToolResult("I know only Oslo.", is_error=True)
            return ToolResult(f"At {call.arguments['hour']} it rains.")

        city = Field("city", "The name of the city.")
        hour = Field("hour", "When.", "integer", default=12, minimum=0, maximum=23)
        tool = Tool("Weather", "Tells the weather.", [city, hour], weather)
        policy = AgentPolicy(tools=lambda runtime, agent_id: [tool])

    Agents may call it once `supervisor.agents.AgentPolicy.permissions` allow that.

    Args:
        name: what the model calls it by: letters (a to z), digits, ``_`` and ``-``.
        description: what the model is told of it.
        fields: its arguments.
        act: an async function that does one call and returns a `ToolResult`. It gets
            the call, which has two attributes. ``arguments`` is a dict with a value for
            each field. That is None if the field has no default and did not come.
            ``tool_use_id`` is the id of the model's call, or None. If ``act`` raises,
            the agent is told of the error in one line. The host gets a `Warned` event,
            and the log has the traceback.
        fill: a function that gets the arguments of a call, with the defaults of their
            fields, and returns those that rules look at. None is for the same. It is
            for a tool that acts on something that its arguments do not name, such as
            the directory it works in.

    Raises:
        TypeError, ValueError: naming the argument and its value.
    """

    def __init__(
        self,
        name: str,
        description: str,
        fields: Sequence[Field],
        act: Act,
        fill: Fill | None = None,
    ) -> None:
        check_text("Tool.name", name)
        if _NAME(name) is None:
            raise ValueError(
                f"Tool.name must be of a-z, A-Z, 0-9, _ and -, not {name!r}"
            )
        check_text(f"description of {name}", description)
        fields = as_tuple(fields)
        check_all(f"fields of {name}", fields, Field)
        if twice := repeated(field.name for field in fields):
            raise ValueError(f"fields of {name} has two of a name: {', '.join(twice)}")
        if not is_async_function(act):
            raise TypeError(f"act of {name} must be an async function, not {act!r}")
        self.name = name
        """What the model calls it by."""
        self.description = description
        """Its description for the model."""
        self.schema = object_schema(fields)
        """The JSON schema of its arguments, which `call` holds to strictly."""
        self._fields = fields
        self._act = act
        self._fill = fill
        self._guard: Guard | None = None

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"

    def fill(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of a call with their defaults. Rules look at these."""
        defaults = {
            field.name: field.default
            for field in self._fields
            if field.default is not None
        }
        filled = defaults | dict(arguments)
        return filled if self._fill is None else self._fill(filled)

    def guarded(self, guard: Guard) -> Self:
        """Return the same tool, but with a judgement before each call."""
        tool = copy.copy(self)
        tool._guard = guard
        return tool

    async def call(
        self, arguments: object, *, tool_use_id: str | None = None
    ) -> ToolResult:
        """Do what ``arguments`` ask for, whatever they are.

        If arguments do not fit the schema, or a request cannot be granted, the answer
        is an error that says what to do instead. Then nothing has changed. Several
        calls may run at once.

        A cancelled call leaves nothing behind that the model does not know. A command
        in the foreground is stopped, and a wait is given up.

        Args:
            arguments: the model's arguments, parsed from JSON.
            tool_use_id: the id of the model's call. The notification of a task that the
                call starts repeats it.

        Raises:
            TypeError: if ``tool_use_id`` is not text, or if ``act`` of the tool has
                returned something else than a `ToolResult`.
            AskFailed: if calls are judged, and a function that was asked has failed.
        """
        check_type("tool_use_id", tool_use_id, str | None)
        await trio.lowlevel.checkpoint()
        try:
            checked = read_arguments(self._fields, arguments)
            if self._guard is not None:
                # What is judged is what has been read, whatever becomes of it.
                judged = {name: it for name, it in checked.items() if it is not None}
                changed = await self._guard(self, judged, tool_use_id)
                if changed is not None:
                    checked = read_arguments(self._fields, changed)
            result: object = await self._act(Call(checked, tool_use_id))
            if not isinstance(result, ToolResult):
                raise TypeError(
                    f"act of {self.name} must return a ToolResult, not {result!r}"
                )
            return result
        except Refused as error:
            return _refusal(error.code, error.text)
        except RuntimeStopping:
            return _refusal(
                "stopping", "The runtime is stopping: nothing can be started any more."
            )
        except BacklogFull as error:
            return _refusal(
                "backlog_full",
                f"No background task can be started now: {error.waiting} notifications "
                "of ended tasks have not been read. Run it in the foreground, or try "
                "again later.",
            )
        except WouldDeadlock:
            return _refusal(
                "own_task", "This is the task that asks: it would wait for its own end."
            )


def _refusal(code: str, text: str) -> ToolResult:
    return ToolResult(text, is_error=True, data={"error": code})
