"""From the end of a background task to whoever acknowledges it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from actors import ActorRef, Ended, Progress, Progressed, TaskStatus
from actors.envelope import Envelope

from .._delivery.outbox import Ack, Facts, Kind, Notification, Notify, Outbox
from .._tasks.agent_task import AgentTask
from .._tasks.ends import bare_envelope, envelope
from .._tasks.record import Task
from .._tasks.table import Table
from .._tasks.task_events import Acked, Notified, TaskProgress
from ..tree._events import EventStream


class Delivery:
    """Puts each end into the outbox, once, and lets go of tasks of which nobody
    waits to hear any more."""

    # Set when the tree stands.
    notifier: ActorRef[Progressed | Ended]

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
        # The id of the last that was told to have been made.
        self._told = ""
        self.outbox = Outbox(
            self._on_ack, partial(on_warning, None), self._tell_progress
        )
        self.latest: dict[str, Progressed] = {}
        """How far tasks have come, of each the latest that nobody was told. The
        mailbox of the notifier has a message for each."""
        self.refused = 0
        """How many messages came too late, or twice."""

    def tell(self, task: Task, remaining: int, parent: AgentTask | None) -> None:
        """Record the end of a background task, in the step in which it ends;
        ``remaining`` others of its owner have not ended. That of an agent's own
        task is for its ``parent`` alone. Called again after a failure it goes on."""
        outbox, note = self.outbox, task.note
        if note is None:
            number = self._notes + 1
            note_id = f"n{number:06}"
            note = Notification(
                outbox,
                note_id,
                task.task_id,
                task.owner,
                task.status,
                task.notify,
                partial(self._facts, task, note_id, remaining),
                None if parent is None else parent.deliver,
            )
            if task.rare is not None:
                # As they lie there: most tasks have neither.
                note.command, note.cwd = task.rare.get("command"), task.rare.get("cwd")
            # From here on it is this one.
            self._notes, task.note = number, note
        if self._told != note.id:
            self._events.emit(Notified, note.id, task.task_id)
            self._told = note.id
        outbox.enter(note)
        if note.notify == "silent":
            note.ack("silent")
            # Last, or a failure above would make another.
            task.note = None
            return
        if parent is not None:
            parent.routed[note.id] = note
        # The guard: a second one is refused.
        ended = Ended(task.task_id, task.run_id, task.status, note.id)
        if not task.admits(ended):
            self.refused += 1
        elif self.notifier.state != "stopped":
            self.notifier.tell(ended)
            # Last, so that whoever tries again after a failure goes on.
            task.has_told_end = True

    def progressed(self, task: Task) -> None:
        """Send how far ``task`` has come. Of what is not told yet only the latest is
        kept."""
        message = Progressed(task.task_id, task.run_id, task.progress or Progress())
        if not task.admits(message):
            self.refused += 1
            return
        is_news = message.task_id not in self.latest
        self.latest[message.task_id] = message
        if is_news and self.notifier.state != "stopped":
            self.notifier.tell(message)

    def _tell_progress(self) -> None:
        latest, self.latest = self.latest, {}
        for message in latest.values():
            self._emit_progress(message)

    def tell_last_progress(self, task: Task) -> None:
        """Tell what the notifier has not told yet, before the end is told."""
        message = self.latest.pop(task.task_id, None)
        if message is not None:
            self._emit_progress(message)

    def _emit_progress(self, message: Progressed) -> None:
        progress = message.progress
        self._events.emit(
            TaskProgress,
            message.task_id,
            progress.text,
            progress.bytes_written,
            progress.tool_uses,
            progress.total_tokens,
        )

    def _facts(self, task: Task, note_id: str, remaining: int) -> Envelope:
        try:
            return envelope(task, note_id, remaining)
        # The boundary: whatever the work has written into its report, its end
        # is told. See `_ends.describe`.
        except BaseException as error:  # noqa: ASYNC103
            self._on_warning(task, f"told without its details: {type(error)!r}")
            return bare_envelope(task, note_id, remaining)  # noqa: ASYNC104

    def add_note(
        self,
        kind: Kind,
        task_id: str,
        owner: str | None,
        notify: Notify,
        facts: Facts,
    ) -> Notification:
        """Put a note of progress, or a scheduled prompt, into the same queue: for
        an owner that is an agent which runs, into its inbox."""
        self._notes += 1
        note_id = f"n{self._notes:06}"
        self._events.emit(Notified, note_id, task_id, kind)
        reader = None if owner is None else self._table.live.get(owner)
        parent = None if reader is None else reader.as_agent
        note = self.outbox.add(
            note_id,
            task_id,
            owner,
            TaskStatus.RUNNING,
            notify,
            facts,
            deliver=None if parent is None else parent.deliver,
            kind=kind,
        )
        if parent is not None:
            parent.routed[note_id] = note
        # It ends no task, so no message tells the notifier of it.
        self.outbox.catch_up()
        return note

    def consume(self, task: Task) -> bool:
        """See `Runtime.consume`."""
        return task.note is not None and self.outbox.consume(task.note)

    def _on_ack(self, note: Notification, how: Ack) -> None:
        # Called again after a failure it goes on; told is what has been done.
        task = self._table.find(note.task_id)
        # Under its id there may be a later record.
        if task is not None and task.note is note:
            self.let_go(task)
            # Of a silent one `tell` has not done yet.
            if note.notify != "silent":
                task.note = None
        reader = None if note.owner is None else self._table.live.get(note.owner)
        if reader is not None and reader.as_agent is not None:
            reader.as_agent.acknowledged(note)
        self._events.emit(Acked, note.id, note.task_id, how)

    def let_go(self, task: Task) -> None:
        """Nobody waits to hear of this ended task any more: it may be forgotten.
        One whose turn that is goes, with its output file."""
        forgotten = self._table.release(task)
        if forgotten is not None and forgotten.rare is not None:
            forgotten.remove_output()
