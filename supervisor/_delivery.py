"""From the end of a background task to whoever acknowledges it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from actors import ActorRef
from actors.envelope import Envelope

from ._ends import bare_envelope, envelope
from ._events import Acked, EventStream, Notified
from ._outbox import Ack, Notification, Outbox
from ._table import Table, Task


class Delivery:
    """Puts each end into the outbox, once, and lets go of tasks of which nobody
    waits to hear any more."""

    # Set when the tree stands.
    notifier: ActorRef[None]

    def __init__(
        self,
        table: Table,
        events: EventStream,
        on_warning: Callable[[Task | None, str], None],
    ) -> None:
        self._table = table
        self._events = events
        self._on_warning = on_warning
        self._notes = 0
        self.outbox = Outbox(self._on_ack, partial(on_warning, None))

    def tell(self, task: Task, remaining: int) -> None:
        """Record the end of a background task, in the step in which it ends;
        ``remaining`` others of its owner have not ended."""
        self._notes += 1
        note_id = f"n{self._notes:06}"
        self._events.emit(Notified, note_id, task.task_id)
        outbox = self.outbox
        note = outbox.add(
            note_id,
            task.task_id,
            task.owner,
            task.status,
            task.notify,
            partial(self._facts, task, note_id, remaining),
        )
        if task.notify == "silent":
            return
        task.note = note
        # One message is enough for all records that have come since.
        if outbox.has_first_unsent and self.notifier.state != "stopped":
            self.notifier.tell(None)

    def _facts(self, task: Task, note_id: str, remaining: int) -> Envelope:
        try:
            return envelope(task, note_id, remaining)
        # The boundary: whatever the work has written into its report, its end
        # is told. See `_ends.describe`.
        except BaseException as error:  # noqa: ASYNC103
            self._on_warning(task, f"told without its details: {type(error)!r}")
            return bare_envelope(task, note_id, remaining)  # noqa: ASYNC104

    def consume(self, task: Task) -> bool:
        """See `Runtime.consume`."""
        return task.note is not None and self.outbox.consume(task.note)

    def _on_ack(self, note: Notification, how: Ack) -> None:
        self._events.emit(Acked, note.id, note.task_id, how)
        task = self._table.find(note.task_id)
        if task is not None:
            task.note = None
            self.let_go(task)

    def let_go(self, task: Task) -> None:
        """Nobody waits to hear of this ended task any more: it may be forgotten.
        One whose turn that is goes, with its output file."""
        forgotten = self._table.release(task)
        if forgotten is not None and forgotten.rare is not None:
            forgotten.remove_output()
