"""TaskWrite: the standard input of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from .._tasks.errors import InputClosed
from ._arguments import Field, Refused, check_encodable, unfit
from ._owned import find
from ._tool import Call, Tool, ToolResult

if TYPE_CHECKING:
    from ..runtime import Runtime

# Seconds for a task that does not read, or that has no place to run in yet.
_PATIENCE: Final = 30.0

_DESCRIPTION: Final = f"""\
Writes text to the standard input of a running task.

- Use it to answer a command that asks for something, or to drive an interactive program. The command must have been started with an open input (stdin: true).
- The text is written as it is: end a line with \\n yourself.
- With end_of_input the input is closed after the text: the command then reads the end of its input, which many programs wait for. Nothing can be written afterwards.
- Returns once the text has been handed over; read the command's answer with TaskOutput. If the command does not read for {_PATIENCE:g} seconds the answer is an error, and a part of the text may have been written.
- A task that takes no input, or has ended, is an error that changes nothing.
"""


def task_write(runtime: Runtime, owner: str | None) -> Tool:
    """Return the tool for ``owner``."""

    async def act(call: Call) -> ToolResult:
        task = find(runtime, owner, call.arguments["task_id"])
        check_encodable("text", call.arguments["text"], "Nothing was done")
        data = call.arguments["text"].encode()
        ends = call.arguments["end_of_input"]
        if not data and not ends:
            raise unfit("Nothing was done: text is empty, and end_of_input is not set.")
        try:
            with trio.move_on_after(_PATIENCE) as scope:
                if data:
                    await task.write(data)
                if ends:
                    await task.close_input()
        except InputClosed as error:
            raise Refused(
                "no_input",
                f"{error}. Only a command that was started with stdin: true takes "
                "input, and only until it ends.",
            ) from None
        if scope.cancelled_caught:
            raise Refused(
                "not_read",
                f"Task {task.id} did not read its input within {_PATIENCE:g} s. A part "
                "of the text may have been written, and the input is still open.",
            )
        text = f"{len(data)} bytes were written to task {task.id}."
        if ends:
            text += " Its input is closed now."
        return ToolResult(
            text,
            data={"task_id": task.id, "bytes_written": len(data), "input_closed": ends},
        )

    fields = (
        Field("task_id", "The id of the task to write to."),
        Field("text", "What to write; empty only with end_of_input."),
        Field(
            "end_of_input",
            "Whether to close the input after the text.",
            "boolean",
            default=False,
        ),
    )
    return Tool("TaskWrite", _DESCRIPTION, fields, act)
