"""What the journal is told of a task: its record becomes a line."""

from __future__ import annotations

from datetime import datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import orjson

from actors.envelope import RESULT_LIMIT, Envelope

from .._tasks.journal.records import Ended, Started, exact
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
    if command is not None or cwd is not None:
        command, cwd = exact(command), exact(cwd)
    what = order.what
    if what and command is not None and what == what_of_command(command, cwd):
        what = ""
    # What few tasks have is set: each argument by its name is felt.
    started = Started(
        run=task.run_id,
        type=task.task_type,
        at=time_of(at),
        description=task.description,
        owner=task.owner,
        parent=task.parent_id,
        background=task.background,
        notify=task.notify,
    )
    if rare:
        started.tool_use = rare.get("tool_use_id")
        started.output = None if file is None else file.name
    if command is not None or cwd is not None:
        started.command, started.cwd = command, cwd
    if order.key is not None:
        started.key = order.key
    if what:
        started.what = exact(what)
    if task.as_agent is not None:
        started.agent = _said_of(task.as_agent)
    return started


def _said_of(task: AgentTask) -> str | None:
    """Return what the file of an agent is to say; None if that is more than it may, or
    if the agent could not be made ready."""
    from actors.transcript.hosting import encode_meta

    try:
        return None if task.meta is None else encode_meta(task.meta).decode()
    except ValueError:
        return None  # It will be warned of when the file is written.


def over(
    task: Task, note: Notification | None = None, facts: Envelope | None = None
) -> Ended:
    """Return the record of a task that has ended."""
    rare = task.rare
    first_run: str | None = None if rare is None else rare.get("first_run")
    ended = Ended(
        run=first_run or task.run_id,
        status=task.status._value_,
        at=time_of(task.ended_at),
    )
    if first_run is not None:
        ended.last_run = task.run_id
    if task.ended_by is not None:
        ended.by = exact(task.ended_by)
    if rare:
        ended.exit_code = exact(rare.get("exit_code"))
        ended.signal = exact(rare.get("signal"))
    if note is not None:
        ended.note = note.id
    if facts is not None:
        ended.summary, ended.remaining = facts.summary, facts.remaining
        ended.error, ended.duration_ms = facts.error, facts.duration_ms
        if facts.total_tokens is not None or facts.tool_uses is not None:
            ended.tokens = exact(facts.total_tokens)
            ended.tools = exact(facts.tool_uses)
        if not task.writes_output:
            if facts.output_file is not None:
                ended.output = PurePath(facts.output_file).name
            if facts.result is not None:
                ended.result = facts.result[:_RESULT]
    return ended
