"""What the end of a task means, and what is told of it.

An exit of the task's actor becomes a terminal status and an error as text, and
the record of an ended task the facts of its envelope. What a work has raised or
returned is a stranger's: none of its methods can cost the task its end.
"""

from __future__ import annotations

import traceback

from actors import Exit, Failed, Stopped, TaskStatus
from actors.agent import AgentFailed
from actors.envelope import LABEL_LIMIT, Envelope
from actors.text import clean_text, one_line

from ..tree._errors import RestartIntensityExceeded
from .record import Task
from .snapshot import TaskError

TEXT_LIMIT = 65_536
"""Characters kept of an error's message, and of its traceback."""

# Characters of them in a summary.
_COMMAND_SHOWN = 200
_DIRECTORY_SHOWN = 200

_BARE_SUMMARY = "A task ended; its report could not be read"


def conclude(
    exit: Exit[object], own_exit: Exit[object] | None
) -> tuple[TaskStatus, Exception | None]:
    """Return the terminal status that an exit of the task's actor means.

    ``own_exit`` is the end of the work itself, where that came before the end
    of the actor: it counts, unless the actor failed after it.
    """
    if own_exit is not None and not isinstance(exit, Failed):
        exit = own_exit
    if isinstance(exit, Failed):
        return TaskStatus.FAILED, exit.error
    if isinstance(exit, Stopped):
        if exit.by == "deadline":
            return TaskStatus.FAILED, TimeoutError("the deadline of the task passed")
        return TaskStatus.KILLED, None
    return TaskStatus.COMPLETED, None


def describe_error(error: Exception) -> TaskError:
    """Return ``error`` as text, whatever its own methods do."""
    try:
        return _describe_error(error)
    # The boundary: even the class of an error may raise when it is looked at.
    except BaseException:  # noqa: ASYNC103 - see `describe`
        return TaskError(  # noqa: ASYNC104
            "Exception", "an error that cannot be shown", ""
        )


def _describe_error(error: Exception) -> TaskError:
    try:
        trace = "" if _is_verdict(error) else _traceback_of(error)
    # The boundary: see `describe`.
    except BaseException as second:  # noqa: ASYNC103
        trace = f"a traceback that cannot be shown: {type(second).__name__}"
    if isinstance(error, RestartIntensityExceeded):
        # Of its runs, in the words of one who knows nothing of supervisors.
        message = (
            f"had to be run again more than {error.intensity} time(s) within "
            f"{error.period:g} s; last: {describe(error.__cause__)}"
        )
    else:
        message = describe(error)
    return TaskError(type(error).__name__, message[:TEXT_LIMIT], trace[:TEXT_LIMIT])


def _traceback_of(error: Exception) -> str:
    return "".join(traceback.format_exception(error))


def _is_verdict(error: Exception) -> bool:
    """Whether it says why an agent was ended, and nothing was raised by that."""
    return (
        isinstance(error, AgentFailed)
        and error.mode != "error"
        and error.__cause__ is None
    )


def describe(value: object) -> str:
    """Return ``value`` as a real str, whatever its own methods do."""
    if type(value) is str:
        return value
    try:
        return "".join((str(value), ""))
    # The boundary: somebody's __str__ must not cost the task its end, which is
    # being recorded in this very step. No interrupt strikes here, so what looks
    # like one, or like a SystemExit, is nobody's wish to leave the program.
    except BaseException as error:  # noqa: ASYNC103
        what, why = type(value).__name__, type(error).__name__
        return f"a {what} that cannot be shown: {why}"  # noqa: ASYNC104


def envelope(task: Task, notification_id: str, remaining: int) -> Envelope:
    """Return the facts of an ended task.

    Raises:
        Exception: if the work has written nonsense into its report.
    """
    error, progress = task.error, task.progress
    is_shell = task.task_type == "local_bash"
    facts = Envelope(
        notification_id=notification_id,
        task_id=task.task_id,
        run_id=task.run_id,
        task_type=task.task_type,
        status=task.status._value_,
        summary=_summary(task),
        remaining=remaining,
        all_terminal=remaining == 0,
        tool_use_id=task.tool_use_id,
        # What a work has printed is told as such.
        result=(
            None if task.writes_output and task.output_tail is not None else task.result
        ),
        error=None if error is None else f"{error.type}: {error.message}",
        total_tokens=None if is_shell or progress is None else progress.total_tokens,
        tool_uses=None if is_shell or progress is None else progress.tool_uses,
        duration_ms=task.duration_ms(),
    )
    if task.rare is not None:
        facts.exit_code = task.exit_code
        facts.signal = task.signal
        facts.output_tail = task.output_tail
        facts.output_truncated = task.output_truncated
        if task.output_file is not None:
            facts.output_file = str(task.output_file)
    return facts


def bare_envelope(task: Task, notification_id: str, remaining: int) -> Envelope:
    """Return only those facts that no work can touch."""
    return Envelope(
        notification_id=notification_id,
        task_id=task.task_id,
        run_id=task.run_id,
        task_type=task.task_type,
        status=task.status._value_,
        summary=_BARE_SUMMARY,
        remaining=remaining,
        all_terminal=remaining == 0,
    )


def _summary(task: Task) -> str:
    what = "Command" if task.task_type == "local_bash" else "Agent"
    if task.status is TaskStatus.KILLED:
        why = task.stop_reason
        end = "was stopped" if why is None else f"was stopped: {why}"
    elif task.status is TaskStatus.FAILED:
        end = f"failed: {'unknown error' if task.error is None else task.error.message}"
    elif task.rare is not None and task.exit_code is not None:
        end = f"completed (exit code {task.exit_code})"
    else:
        end = "completed"
    description = task.description
    if "\x1b" in description:
        # Or a sequence that it leaves unfinished takes what follows.
        description = clean_text(description)
    summary = f'{what} "{description}" {end}'
    # As they lie there: most tasks have neither.
    rare = task.rare or {}
    command, cwd = rare.get("command"), rare.get("cwd")
    left = leftovers(rare.get("left_behind", 0))
    if command is None and cwd is None and left is None:
        return summary
    return _with_place(summary, task.description, command, cwd, left)


def leftovers(count: int) -> str | None:
    """Return a sentence on so many processes that a command had left behind, None
    if there were none."""
    if not count:
        return None
    if count == 1:
        return "1 process that it left in the background was ended with it"
    return f"{count} processes that it left in the background were ended with it"


def _with_place(
    summary: str,
    description: str,
    command: str | None,
    cwd: str | None,
    left: str | None,
) -> str:
    """Return the summary with the command, if the description is another text, with
    the directory, if one was given, and with what was left behind. They are there
    however long the rest is."""
    more = ""
    if command is not None and command.strip() != description.strip():
        more = f": {one_line(command, _COMMAND_SHOWN)}"
    if cwd is not None:
        more += f", in {one_line(cwd, _DIRECTORY_SHOWN)}"
    if left is not None:
        more += f" ({left})"
    return one_line(summary, LABEL_LIMIT - len(more)) + more if more else summary
