"""What a host puts before the model without being asked: which tasks run.

`reminder` is for every turn. `after_compaction` is for a conversation that has just
been shortened. Such a conversation loses the ids of running tasks, the news of ended
ones and what skills have said. `ProgressReports` is for what has happened since the
last look.

The texts stand among the host's own words. Names and output of tasks must not pass for
those, so they are cleaned, made one line, cut, and escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from actors import Progress
from actors.house import frozen
from actors.house import publish as _publish
from actors.text import duration_words, escaped_line

from ._life.progress_notes import furthest, progress_line
from ._tasks.snapshot import TaskSnapshot
from .lowlevel import life_of

if TYPE_CHECKING:
    from .runtime import Runtime

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "InvokedSkill",
    "ProgressReports",
    "after_compaction",
    "reminder",
]

_PATH_SHOWN: Final = 4_096

LISTED: Final = 50
"""Tasks that are named; of more there is only the number."""

SKILLS: Final = 10
"""Skills that are named, likewise."""

_PREVIEW_SHOWN: Final = 500
_LATEST_SHOWN: Final = 300
_WAITS_FOR: Final = {
    "tasks": "waits for its own tasks",
    "approval": "waits for approval",
}


@frozen(kw_only=True)
class InvokedSkill:
    """A skill that the model has used in this conversation. The host knows which."""

    name: str
    path: Path
    """The file that holds it."""
    content: str = ""
    """Its text, or the beginning of the text."""
    invoked_at: datetime
    """The time at which it was used last, aware."""

    def __attrs_post_init__(self) -> None:
        when: object = self.invoked_at
        if not isinstance(when, datetime) or when.tzinfo is None:
            raise TypeError(f"invoked_at must be an aware datetime, not {when!r}")


def reminder(runtime: Runtime, owner: str | None) -> str | None:
    """Return a reminder of the background tasks of ``owner`` that have not ended, in
    the order of launch. Return None if there are none."""
    listed = listing(runtime, owner)
    if listed is None:
        return None
    return f"<system-reminder>\n{listed}\n</system-reminder>"


def listing(runtime: Runtime, owner: str | None) -> str | None:
    """Return the text of `reminder` alone, escaped."""
    tasks = _unfinished(runtime, owner)
    if not tasks:
        return None
    lines: list[str] = []
    for task in tasks[:LISTED]:
        lines.append(
            f"- [{task.id}] {task.type} ({task.status.value}): "
            f"{escaped_line(task.description)}"
        )
        if task.started_at is not None and task.usage.duration_ms is not None:
            begun = task.started_at.strftime("%Y-%m-%d %H:%M:%S UTC")
            lasts = duration_words(task.usage.duration_ms)
            lines.append(f"  started at {begun}, {lasts} ago")
        if task.waiting is not None:
            lines.append(f"  {_WAITS_FOR[task.waiting]}")
        if task.pause is not None:
            lines.append(f"  {escaped_line(str(task.pause))}")
        if task.progress is not None and task.progress.activities:
            latest = "; ".join(task.progress.activities)
            lines.append(f"  latest activities: {escaped_line(latest, _LATEST_SHOWN)}")
        if task.prompt is not None and task.depth is None:
            lines.append(
                f"  seems to wait for an answer to: {escaped_line(task.prompt)}"
            )
    listed = "\n".join(lines + _more(tasks))
    return (
        f"Background tasks:\n{listed}\n\n"
        "Use TaskOutput to check task results. Use TaskStop to terminate running "
        "tasks."
    )


def after_compaction(
    runtime: Runtime, owner: str | None, *, skills: Iterable[InvokedSkill] = ()
) -> str | None:
    """Return what the model must be told again when earlier messages have been cut
    away, or None if that is nothing. It names the background tasks of ``owner`` that
    have not ended, those that have ended and wait to be acknowledged, and the
    ``skills`` that the model has used. In each of these groups the newest come first.
    If there are many, only the newest are named.

    It takes no notifications. They come as before.
    """
    tasks = [task for task in runtime.tasks(owner) if task.owner == owner]
    running = [t for t in tasks if t.background and not t.status.is_terminal]
    unread = [t for t in tasks if t.status.is_terminal and _is_unread(runtime, t)]
    used = sorted(skills, key=attrgetter("invoked_at"), reverse=True)
    parts: list[str] = []
    if running:
        lines = _newest(running, _running_line)
        parts.append(
            f"## Running Background Tasks\n\n{lines}\n\n"
            "Use TaskOutput to check progress or results."
        )
    if unread:
        lines = _newest(unread, _ended_line)
        parts.append(
            f"## Ended Tasks With Unread Results\n\n{lines}\n\n"
            "Use TaskOutput to read a result."
        )
    if used:
        lines = "\n".join([_skill_line(skill) for skill in used[:SKILLS]])
        if len(used) > SKILLS:
            lines += f"\nand {len(used) - SKILLS} more"
        parts.append(
            f"## Recently Invoked Skills\n\n{lines}\n\n"
            "Read the file of a skill before you go on with it."
        )
    return "\n\n".join(parts) or None


def _is_unread(runtime: Runtime, task: TaskSnapshot) -> bool:
    record = life_of(runtime).table.find(task.id)
    # Kept until it is acknowledged, by whomever.
    return record is not None and record.note is not None


def _newest(tasks: list[TaskSnapshot], line: Callable[[TaskSnapshot], str]) -> str:
    newest = [line(task) for task in tasks[: -LISTED - 1 : -1]]
    return "\n".join(newest + _more(tasks))


def _running_line(task: TaskSnapshot) -> str:
    what = task.type
    if task.waiting is not None:
        what += f", {_WAITS_FOR[task.waiting]}"
    if task.pause is not None:
        what += f", {escaped_line(str(task.pause))}"
    return f"- {task.id}: {escaped_line(task.description)} ({what})"


def _ended_line(task: TaskSnapshot) -> str:
    return (
        f"- {task.id}: {escaped_line(task.description)} "
        f"({task.type}, {task.status.value})"
    )


def _skill_line(skill: InvokedSkill) -> str:
    line = (
        f"- {escaped_line(skill.name)} ({escaped_line(str(skill.path), _PATH_SHOWN)})"
    )
    preview = escaped_line(skill.content, _PREVIEW_SHOWN)
    return f"{line}: {preview}" if preview else line


class ProgressReports:
    """It reports what the background tasks of ``owner`` have done since the last
    report.

    Make one for each conversation, because it remembers what it has told.
    """

    def __init__(self, runtime: Runtime, owner: str | None) -> None:
        self._runtime = runtime
        self._owner = owner
        self._told: dict[str, Progress] = {}

    def new(self) -> list[str]:
        """Return one line for each task that has not ended and has something new to
        tell. Often there is none."""
        tasks = [
            task
            for task in _unfinished(self._runtime, self._owner)
            if task.progress is not None
        ]
        lines: list[str] = []
        told: dict[str, Progress] = {}
        for task in tasks:
            assert task.progress is not None
            before = self._told.get(task.id, Progress())
            if line := progress_line(task, before, task.progress):
                lines.append(line)
            told[task.id] = furthest(before, task.progress)
        # Those that have ended are not remembered.
        self._told = told
        return lines


def _unfinished(runtime: Runtime, owner: str | None) -> list[TaskSnapshot]:
    return [
        task
        for task in runtime.tasks(owner)
        if task.owner == owner and task.background and not task.status.is_terminal
    ]


def _more(tasks: list[TaskSnapshot]) -> list[str]:
    return [f"and {len(tasks) - LISTED} more"] if len(tasks) > LISTED else []


_publish(globals())
