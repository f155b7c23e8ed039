"""Notes of progress: what a task has done since the last one, in the same queue as
the ends."""

from __future__ import annotations

from functools import partial
from typing import Final

import attrs

from actors import Progress
from actors.envelope import NOTE
from actors.house import class_name
from actors.text import escape, escaped_line, unescape

from .._delivery.outbox import Notify, Words
from .._tasks.kinds import KINDS
from .._tasks.record import Table, Task
from .._tasks.snapshot import TaskSnapshot
from .telling import Delivery

_PATH_SHOWN: Final = 4_096


class ProgressNotes:
    """The progress of each task that its parent knows of.

    A note says what is new when it is taken. Until then there is only one for each
    task, and the end of the task supersedes it.
    """

    def __init__(self, table: Table, delivery: Delivery) -> None:
        self._table = table
        self._delivery = delivery
        # Of tasks that have not ended, and of some that have.
        self._told: dict[str, Progress] = {}

    def tell(self, task: Task, notify: Notify) -> bool:
        """See `Runtime.tell_progress`."""
        outbox = self._delivery.outbox
        if (
            not task.background
            or task.status.is_terminal
            or outbox.has_untold_progress(task.task_id)
            or self._line(task) is None
        ):
            return False
        facts = partial(self._words, task)
        self._delivery.add_note("progress", task.task_id, task.owner, notify, facts)
        return True

    def _line(self, task: Task) -> str | None:
        before = self._told.get(task.task_id, Progress())
        snapshot = task.snapshot()
        if snapshot.progress is None:
            return None
        try:
            return progress_line(snapshot, before, snapshot.progress)
        # The boundary: a work may have written anything into its report.
        except Exception as error:
            task.warn(f"progress cannot be told: {class_name(error)}")
            return None

    def _words(self, task: Task) -> Words | None:
        line = self._line(task)
        if line is None or task.progress is None:
            return None
        before = self._told.get(task.task_id, Progress())
        live = self._table.live
        if len(self._told) > 2 * len(live) + 16:
            self._told = {id: p for id, p in self._told.items() if id in live}
        self._told[task.task_id] = furthest(before, task.progress)
        return Words(
            text=(
                "<task-progress>\n"
                f"<task-id>{escape(task.task_id)}</task-id>\n"
                f"<summary>{line}</summary>\n"
                f"<note>{NOTE}</note>\n"
                "</task-progress>"
            ),
            summary=unescape(line),
        )


def furthest(before: Progress, now: Progress) -> Progress:
    """Return ``now``, with no count below ``before``: a task that was run again
    counts from 0, and what it does for the second time is not new."""
    return attrs.evolve(
        now,
        bytes_written=max(before.bytes_written, now.bytes_written),
        tool_uses=max(before.tool_uses, now.tool_uses),
        total_tokens=max(before.total_tokens, now.total_tokens),
    )


def progress_line(task: TaskSnapshot, before: Progress, now: Progress) -> str | None:
    """Return what a task has done since ``before`` in one line, None if that is
    nothing worth telling."""
    file = (
        None
        if task.output_file is None
        else escaped_line(str(task.output_file), _PATH_SHOWN)
    )
    kind = KINDS[task.type]
    if kind.progress_by == "text":
        if not now.text or now.text == before.text:
            return None
        line = f"Remote task {task.id} progress: {escaped_line(now.text)}."
        return line if file is None else f"{line} Read {file} to see full output."
    news: list[str] = []
    what = kind.word
    if kind.progress_by == "bytes":
        if (count := now.bytes_written - before.bytes_written) > 0:
            news.append(f"{count} new byte{_plural(count)} of output")
    else:
        if (count := now.tool_uses - before.tool_uses) > 0:
            news.append(f"{count} new tool{_plural(count)} used")
        if (count := now.total_tokens - before.total_tokens) > 0:
            news.append(f"{count} new tokens")
    if not news:
        return None
    line = (
        f"{what} {task.id} progress: {', '.join(news)}. "
        f"The {what.lower()} is still running."
    )
    if file is not None:
        line += (
            f" You usually do not need to read {file} unless you need specific details "
            "right away."
        )
    if task.notify == "silent":
        return line
    return f"{line} You will receive a notification when the {what.lower()} is done."


def _plural(count: int) -> str:
    return "" if count == 1 else "s"
