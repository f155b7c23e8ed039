"""What the journal is told of a task: its record becomes a line."""

from __future__ import annotations

from datetime import datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import orjson

from actors.envelope import RESULT_LIMIT, Envelope
from actors.transcript.hosting import encode_meta

from .._tasks.journal.records import Ended, Started
from .keys import what_of_command

if TYPE_CHECKING:
    from .._delivery.outbox import Notification
    from .._tasks.agent_task import AgentTask
    from .._tasks.record import Order, Task


# An envelope has less of it.
_RESULT: Final = 4 * RESULT_LIMIT


def time_of(at: datetime | None) -> str:
    """Return a time as a journal has it."""
    if at is None:
        return ""
    # A quarter of what isoformat() costs, except for a class of somebody's clock.
    return orjson.dumps(at, default=datetime.isoformat)[1:-1].decode()


def begun(task: Task, order: Order, at: datetime | None) -> Started:
    """Return the record of a task that was entered."""
    rare = task.rare or {}
    # That of an agent is its transcript.
    file = rare.get("output_file") if task.writes_output else None
    command, cwd = getattr(task.work, "command", None), getattr(task.work, "cwd", None)
    what = order.what
    if what and command is not None and what == what_of_command(command, cwd):
        what = ""
    return Started(
        run=task.run_id,
        type=task.task_type,
        at=time_of(at),
        description=task.description,
        owner=task.owner,
        parent=task.parent_id,
        background=task.background,
        notify=task.notify,
        tool_use=rare.get("tool_use_id"),
        command=command,
        cwd=cwd,
        output=None if file is None else file.name,
        key=order.key,
        what=what,
        agent=None if task.as_agent is None else _said_of(task.as_agent),
    )


def _said_of(task: AgentTask) -> str | None:
    """Return what the file of an agent is to say; None if that is more than it may, or
    if the agent could not be made ready."""
    try:
        return None if task.meta is None else encode_meta(task.meta).decode()
    except ValueError:
        return None  # It will be warned of when the file is written.


def over(
    task: Task, note: Notification | None = None, facts: Envelope | None = None
) -> Ended:
    """Return the record of a task that has ended."""
    rare = task.rare or {}
    file = result = None
    if facts is not None and not task.writes_output:
        file, result = facts.output_file, facts.result
    return Ended(
        run=task.entered_as,
        last_run=None if task.run_id == task.entered_as else task.run_id,
        status=task.status._value_,
        by=rare.get("ended_by"),
        at=time_of(task.ended_at),
        note=None if note is None else note.id,
        summary="" if facts is None else facts.summary,
        remaining=0 if facts is None else facts.remaining,
        exit_code=rare.get("exit_code"),
        signal=rare.get("signal"),
        error=None if facts is None else facts.error,
        result=None if result is None else result[:_RESULT],
        output=None if file is None else PurePath(file).name,
        tokens=None if facts is None else facts.total_tokens,
        tools=None if facts is None else facts.tool_uses,
        duration_ms=None if facts is None else facts.duration_ms,
    )
