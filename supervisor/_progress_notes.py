"""Notes of progress: what a task has done since the last one, in the same queue as
the ends."""

# The words are those that a host puts before its model by itself.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from functools import partial
from html import escape, unescape

from actors import Progress

from ._delivery import Delivery
from ._outbox import Notify, Words
from ._table import Table, Task
from .attachments import _furthest, _progress_line


class ProgressNotes:
    """Which progress of each task its parent was told of.

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
            return _progress_line(snapshot, before, snapshot.progress)
        # The boundary: a work may have written anything into its report.
        except Exception as error:
            task.host.on_warning(task, f"progress cannot be told: {type(error)!r}")
            return None

    def _words(self, task: Task) -> Words | None:
        line = self._line(task)
        if line is None or task.progress is None:
            return None
        before = self._told.get(task.task_id, Progress())
        live = self._table.live
        if len(self._told) > 2 * len(live) + 16:
            self._told = {id: p for id, p in self._told.items() if id in live}
        self._told[task.task_id] = _furthest(before, task.progress)
        return Words(
            text=(
                "<task-progress>\n"
                f"<task-id>{escape(task.task_id)}</task-id>\n"
                f"<summary>{line}</summary>\n"
                "</task-progress>"
            ),
            summary=unescape(line),
        )
