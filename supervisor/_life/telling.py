"""From the end of a task to whoever acknowledges it.

An exit of the task's actor becomes a terminal status and an error as text; the record
of an ended task becomes the facts of its envelope, which the outbox keeps. What a work
has raised or returned is a stranger's: none of its methods can cost the task its end.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from actors import (
    ActorEnded,
    ActorRef,
    Ended,
    Exit,
    Failed,
    Progress,
    Progressed,
    Stopped,
    TaskStatus,
)
from actors.agent import AgentFailed
from actors.env import Ids
from actors.envelope import LABEL_LIMIT, NOTE, Envelope
from actors.house import class_name
from actors.text import clean_text, escape, one_line

from .._delivery.outbox import (
    Ack,
    Facts,
    Kind,
    Notification,
    Notify,
    Outbox,
    Wording,
    Words,
)
from .._tasks.journal.records import Acked as Acknowledged
from .._tasks.journal.records import Continued, Header
from .._tasks.journal.writer import Journal
from .._tasks.kinds import KINDS
from .._tasks.record import Table, Task
from .._tasks.snapshot import Pause, TaskError
from .._tasks.task_events import (
    Acked,
    AgentSaid,
    Notified,
    TaskProgress,
    TaskPrompted,
    Warned,
)
from ..tree._errors import RestartIntensityExceeded
from ..tree._events import EventStream
from ..tree._log import LINE, log
from .recording import over

if TYPE_CHECKING:
    from actors.agent import AgentEvent

    from .._tasks.agent_task import AgentTask, Taken

# ---- What an end means, and what is told of it ----

TEXT_LIMIT = 65_536
"""Characters kept of an error's message, and of its traceback."""

# Characters of them in a summary.
_COMMAND_SHOWN = 200
_DIRECTORY_SHOWN = 200
# Numbers of notifications that are reserved by one record.
_AT_ONCE = 100

_BARE_SUMMARY = "A task ended; its report could not be read"


def outcome_of(
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
        trace = f"a traceback that cannot be shown: {class_name(second)}"
    if isinstance(error, RestartIntensityExceeded):
        # Of its runs, in the words of one who knows nothing of supervisors.
        message = (
            f"had to be run again more than {error.intensity} time(s) within "
            f"{error.period:g} s; last: {describe(error.__cause__)}"
        )
    else:
        message = describe(error)
    return TaskError(class_name(error), message[:TEXT_LIMIT], trace[:TEXT_LIMIT])


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
        what, why = class_name(value), class_name(error)
        return f"a {what} that cannot be shown: {why}"  # noqa: ASYNC104


def whole(task: Task, notification_id: str, remaining: int) -> Envelope:
    """Return the facts of an ended task.

    Raises:
        Exception: if the work has written nonsense into its report.
    """
    facts = Envelope(
        notification_id,
        task.task_id,
        task.run_id,
        task.task_type,
        task.status._value_,
        _summary(task),
        remaining,
        remaining == 0,
    )
    error, progress, rare = task.error, task.progress, task.rare
    if rare is not None:
        # As they lie there: most tasks have few of them.
        facts.tool_use_id = rare.get("tool_use_id")
        facts.exit_code = rare.get("exit_code")
        facts.signal = rare.get("signal")
        facts.output_tail = rare.get("output_tail")
        facts.output_truncated = rare.get("output_truncated", False)
        file = rare.get("output_file")
        if file is not None:
            facts.output_file = str(file)
    facts.ended_by = task.ended_by
    # What a work has printed is told as such.
    if not task.writes_output or facts.output_tail is None:
        facts.result = task.result
    if error is not None:
        facts.error = f"{error.type}: {error.message}"
    if progress is not None and KINDS[task.task_type].progress_by != "bytes":
        facts.total_tokens = progress.total_tokens
        facts.tool_uses = progress.tool_uses
    facts.duration_ms = task.duration_ms()
    return facts


def bare(task: Task, notification_id: str, remaining: int) -> Envelope:
    """Return those facts of an ended task that no work can touch."""
    return Envelope(
        notification_id,
        task.task_id,
        task.run_id,
        task.task_type,
        task.status._value_,
        _BARE_SUMMARY,
        remaining,
        remaining == 0,
    )


def _summary(task: Task) -> str:
    what, rare = KINDS[task.task_type].word, task.rare
    code = None if rare is None else rare.get("exit_code")
    if task.status is TaskStatus.KILLED:
        why = task.stop_reason
        end = "was stopped" if why is None else f"was stopped: {why}"
    elif task.status is TaskStatus.FAILED:
        end = f"failed: {'unknown error' if task.error is None else task.error.message}"
    elif code is not None:
        end = f"completed (exit code {code})"
    else:
        end = "completed"
    description = task.description
    if "\x1b" in description:
        # Or a sequence that it leaves unfinished takes what follows.
        description = clean_text(description)
    summary = f'{what} "{description}" {end}'
    if rare is None:
        return summary
    return _with_place(summary, task.description, rare)


def _paused_words(
    task_id: str, description: str, pause: Pause, own_tasks: int
) -> Words:
    """Return what the owner of an agent is told of a pause."""
    summary = f'Agent "{clean_text(description)}" is {pause}'
    if own_tasks:
        summary = f"{summary}. Its own tasks go on."
    summary = one_line(summary, LABEL_LIMIT)
    return Words(
        text=(
            "<task-paused>\n"
            f"<task-id>{escape(task_id)}</task-id>\n"
            f"<summary>{escape(summary)}</summary>\n"
            f"<note>{NOTE}</note>\n"
            "</task-paused>"
        ),
        summary=summary,
    )


def leftovers(count: int) -> str | None:
    """Return a sentence on so many processes that a command had left behind, None
    if there were none."""
    if not count:
        return None
    if count == 1:
        return "1 process that it left in the background was ended with it"
    return f"{count} processes that it left in the background were ended with it"


def _with_place(summary: str, description: str, rare: Mapping[str, Any]) -> str:
    """Return the summary with the command, if the description is another text, with
    the directory, if one was given, and with what was left behind. They are there
    however long the rest is."""
    more = ""
    command, cwd, left = rare.get("command"), rare.get("cwd"), rare.get("left_behind")
    if command is not None and command.strip() != description.strip():
        more = f": {one_line(command, _COMMAND_SHOWN)}"
    if cwd is not None:
        more += f", in {one_line(cwd, _DIRECTORY_SHOWN)}"
    if left:
        more += f" ({leftovers(left)})"
    return one_line(summary, LABEL_LIMIT - len(more)) + more if more else summary


# ---- The way of a notification ----


class Watcher(Protocol):
    """Who tells what a task prints."""

    def task_ends(self) -> None:
        """The task ends, and that is told next."""
        ...

    def acked(self, note: Notification, how: Ack) -> None:
        """A note of what the task prints was acknowledged. It may be another's."""
        ...

    def fail(self, error: Exception) -> None:
        """It has failed: it says so."""
        ...


class Delivery:
    """Puts each end into the outbox, once, and lets go of tasks of which nobody
    waits to hear any more."""

    # Set when the tree stands.
    notifier: ActorRef[Progressed | Ended | None]

    def __init__(
        self, table: Table, events: EventStream, journal: Journal, ids: Ids
    ) -> None:
        self._ids = ids
        self._table = table
        self._journal = journal
        self._events = events
        self._notes = 0
        self._note_prefix = "n"
        # No later runtime gives a number up to this one; and the record that says so.
        self._reserved = 0
        self._reservation: int | None = None
        # The id of the last one for which `Notified` was emitted.
        self._told = ""
        self.outbox = Outbox(self._on_ack, partial(self.warn, None), journal)
        self.latest: dict[str, Progressed] = {}
        """By task, the latest progress that was not told yet."""
        # The tasks of which a `Progressed` waits in the mailbox of the notifier.
        self._queued: set[str] = set()
        self.watchers: dict[str, list[Watcher]] = {}
        """By task, who tells what it prints."""
        self.kept: set[str] = set()
        """The ended tasks that are not to be forgotten, because they are found by the
        key of their launch."""
        self.refused = 0
        """How many messages came too late, or twice."""

    def tell(self, task: Task, remaining: int, parent: AgentTask | None) -> None:
        """Record the end of a background task, in the step in which it ends.

        ``remaining`` others of its owner have not ended. The end of an agent's own
        task is for its ``parent`` alone. A call after a failure does what is left."""
        if self.watchers:
            self._tell_last_lines(task)
        outbox, note = self.outbox, task.note
        if note is None:
            number = self._notes + 1
            note_id = self._note_id(number)
            facts: Envelope | Facts | None = None
            if task.notify != "silent":
                # An ended task does not change: the notifier asks for them, and whoever
                # waits need not wait for that. The journal has them at once.
                facts = partial(self._facts, task, note_id, remaining)
                if self._journal.is_kept:
                    facts = facts()
            note = self.make_note(task, note_id, facts, parent)
            # From here on it is this one.
            self._notes, task.note = number, note
        if note.record is None and self._journal.is_kept:
            self._record(task, note)
        outbox.enter(note)
        if self._told != note.id:
            self._events.emit(Notified, note.id, task.task_id)
            self._told = note.id
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
        else:
            try:
                self.notifier.tell(ended)
            except ActorEnded:
                return
            # Last, so that whoever tries again after a failure goes on.
            task.has_told_end = True

    def _tell_last_lines(self, task: Task) -> None:
        for watcher in self.watchers.pop(task.task_id, ()):
            # The boundary: the end is told, whatever becomes of the lines.
            try:
                watcher.task_ends()
            except Exception as error:
                watcher.fail(error)

    def _record(self, task: Task, note: Notification) -> None:
        told, facts = note, note.facts
        if note.notify == "silent":
            # Nobody hears of it, but by its events.
            self._reserve(self._notes)
            note.record = self._journal.add(over(task))
            return
        try:
            record = over(task, told, facts)
        # The boundary: whatever the work has written into its report. See `_facts`.
        except BaseException as error:  # noqa: ASYNC103
            self.warn(task, f"recorded without its details: {class_name(error)}")
            record = over(task, told, bare(task, note.id, 0))
        note.record = self._journal.add(record)

    def make_note(
        self,
        task: Task,
        note_id: str,
        facts: Envelope | Facts | None,
        parent: AgentTask | None,
    ) -> Notification:
        """Return the notification of the end of ``task``, for its ``parent`` alone if
        it has one."""
        note = Notification(
            self.outbox,
            note_id,
            task.task_id,
            task.owner,
            task.status,
            task.notify,
            facts,
            None if parent is None else parent.deliver,
        )
        note.description = task.description
        if task.rare is not None:
            # As they lie there: most tasks have neither.
            note.command, note.cwd = task.rare.get("command"), task.rare.get("cwd")
        return note

    def tell_of_agent(
        self, task: Task, remaining: int, parent: AgentTask | None
    ) -> None:
        """Tell the end of an agent that has ended with its program, as `tell`."""
        if not task.background or task.notify == "silent":
            self._journal.add(over(task))
            self.let_go(task)
            return
        self._notes += 1
        note_id = self._note_id(self._notes)
        facts = self._facts(task, note_id, remaining)
        note = self.make_note(task, note_id, facts, parent)
        note.record = self._journal.add(over(task, note, facts))
        task.note = note
        self.outbox.enter(note)
        self._events.emit(Notified, note.id, task.task_id)
        if parent is not None:
            parent.routed[note.id] = note

    def wake_notifier(self) -> None:
        """Let it write what was entered without a message to it."""
        if self.notifier.state != "stopped":
            self.notifier.tell(None)

    def hand_over(self, agent: AgentTask) -> None:
        """Let an agent that goes on have what was told of its own tasks meanwhile."""
        for note in self.outbox.untaken(agent.task_id):
            agent.routed[note.id] = note
            self.outbox.route(note, agent.deliver)

    def _note_id(self, number: int) -> str:
        if self._journal.failure is not None and self._note_prefix == "n":
            # If the program died now, nothing would say that the number is taken. The
            # letter lets them sort behind those before, so they stay as they are.
            self._note_prefix = f"nx{self._ids.hex(8)}-"
        return f"{self._note_prefix}{number:06}"

    def go_on_behind(self, last_note: int, prefix: str = "") -> None:
        """Notifications have had numbers up to this one. With a ``prefix`` those of
        this runtime have others, because another one gives them, too."""
        self._notes = max(self._notes, last_note)
        self._note_prefix = f"n{prefix}"
        self._reserved = 0

    def _reserve(self, number: int) -> None:
        """Reserve the number of a notification that is in no record: what somebody has
        seen under it must not be taken for what a later runtime tells."""
        if number > self._reserved and self._journal.is_kept:
            most = number + _AT_ONCE
            self._reservation = self._journal.add(Header(at="", last_note=most))
            self._reserved = most
            self._journal.flush()

    def progressed(self, task: Task) -> None:
        """Send how far ``task`` has come. Of what is not told yet only the latest is
        kept."""
        message = Progressed(task.task_id, task.run_id, task.progress or Progress())
        if not task.admits(message):
            self.refused += 1
            return
        self.latest[message.task_id] = message
        if message.task_id not in self._queued and self.notifier.state != "stopped":
            self.notifier.tell(message)
            self._queued.add(message.task_id)

    def warn(
        self, task: Task | None, text: str, error: BaseException | None = None
    ) -> None:
        """Warn of something about ``task``, or about none, in one line. The log has the
        traceback of ``error`` below it."""
        text = one_line(text, LINE)
        task_id = None if task is None else task.task_id
        if task_id is None:
            log(logging.WARNING, "%s", text, error=error)
            # While the runtime opens nobody can have subscribed.
            self._events.emit_early(Warned, None, text)
        else:
            log(logging.WARNING, "task %s: %s", task_id, text, error=error)
            self.tell_latest(task_id)
            self._events.emit(Warned, task_id, text)

    def prompted(self, task: Task) -> None:
        """Tell that ``task`` probably waits for an answer."""
        assert task.prompt is not None
        self.tell_latest(task.task_id)
        self._events.emit(TaskPrompted, task.task_id, task.prompt)

    def agent_said(self, task: Task, event: AgentEvent) -> None:
        """Tell what the agent of ``task`` has said."""
        task_id = task.task_id
        self.tell_latest(task_id)
        self._events.emit_to(task_id, AgentSaid, task_id, task.run_id, event)

    def tell_progress(self, message: Progressed | None) -> None:
        """Tell how far the task of ``message`` has come by now. None is for all tasks:
        an incarnation of the notifier has crashed, and may have had their messages."""
        if message is None:
            self._queued.clear()
            for task_id in [*self.latest]:
                self.tell_latest(task_id)
        else:
            self._queued.discard(message.task_id)
            self.tell_latest(message.task_id)

    def tell_latest(self, task_id: str) -> None:
        """Tell what the notifier has not told yet, if there is such progress."""
        message = self.latest.get(task_id)
        if message is not None:
            progress = message.progress
            self._events.emit(
                TaskProgress,
                task_id,
                progress.text,
                progress.bytes_written,
                progress.tool_uses,
                progress.total_tokens,
            )
            # Last, or what fails in between is never told.
            self.latest.pop(task_id, None)

    def _facts(self, task: Task, note_id: str, remaining: int) -> Envelope:
        try:
            return whole(task, note_id, remaining)
        # The boundary: whatever the work has written into its report, its end
        # is told. See `describe`.
        except BaseException as error:  # noqa: ASYNC103
            self.warn(task, f"told without its details: {class_name(error)}")
            return bare(task, note_id, remaining)  # noqa: ASYNC104

    def add_note(
        self,
        kind: Kind,
        task_id: str,
        owner: str | None,
        notify: Notify,
        facts: Wording,
    ) -> Notification:
        """Put a note of progress or of a monitor, or a scheduled prompt, into the same
        queue: for an owner that is an agent which runs, into its inbox."""
        self._notes += 1
        note_id = self._note_id(self._notes)
        self._reserve(self._notes)
        self._events.emit(Notified, note_id, task_id, kind)
        reader = None if owner is None else self._table.live.get(owner)
        parent = None if reader is None else reader.as_agent
        note = self.outbox.add(
            note_id,
            task_id,
            owner,
            TaskStatus.PAUSED if kind == "pause" else TaskStatus.RUNNING,
            notify,
            facts,
            deliver=None if parent is None else parent.deliver,
            kind=kind,
        )
        note.record = self._reservation
        if parent is not None:
            parent.routed[note_id] = note
        # It ends no task, so no message tells the notifier of it.
        self.outbox.catch_up()
        if self.outbox.is_behind:
            # The journal writes it aside, and who waits for it would not be woken.
            self.wake_notifier()
        return note

    def tell_pause(self, task: Task, pause: Pause) -> Notification:
        """Tell the owner of ``task`` that it waits, with the next that wakes: the model
        of the owner would probably meet the same limit."""
        agent = task.as_agent
        own_tasks = 0 if agent is None else len(agent.own)
        words = partial(_paused_words, task.task_id, task.description, pause, own_tasks)
        return self.add_note("pause", task.task_id, task.owner, "defer", words)

    def consume(self, task: Task) -> bool:
        """See `Runtime.consume`."""
        return task.note is not None and self.outbox.consume(task.note)

    def _on_ack(self, note: Notification, how: Ack) -> None:
        # A call after a failure does what is left. The event comes last.
        task, is_silent = self._table.ended.get(note.task_id), note.notify == "silent"
        # Under its id there may be a later record.
        if task is not None and task.note is note:
            self.let_go(task)
            # Of a silent one `tell` has not done yet.
            if not is_silent:
                task.note = None
        reader = None if note.owner is None else self._table.live.get(note.owner)
        agent = None if reader is None else reader.as_agent
        if agent is not None:
            agent.acknowledged(note)
        if note.kind == "task":
            if note.record is not None and not is_silent:
                if agent is None:
                    # As `confirm`. It cannot wait, so it writes itself.
                    self._journal.add(Acknowledged(note=note.id, how=how))
                    self._journal.flush()
                else:
                    # If the program died now, nothing would say that it knows.
                    agent.has_taken(note.id, how)
                note.record = None
        elif note.kind == "monitor":
            for watcher in self.watchers.get(note.task_id, ()):
                watcher.acked(note, how)
        elif note.kind == "pause":
            self._pause_heard(note)
        self._events.emit(Acked, note.id, note.task_id, how)

    def _pause_heard(self, note: Notification) -> None:
        """The owner of a paused agent has heard of it: a program that finds it so after
        a crash need not tell that again."""
        task = self._table.live.get(note.task_id)
        agent = None if task is None else task.as_agent
        rest = None if agent is None else agent.rest
        if rest is not None and rest.note is note and rest.record is not None:
            rest.record = attrs.evolve(rest.record, told=True)
            self._journal.add(rest.record)
            self._journal.flush()

    def answered(self, task: Task) -> None:
        """The model of the agent ``task`` has answered, after it had failed."""
        self._journal.add(Continued(run=task.entered_as, answered=True))
        self._journal.flush()

    def confirm(self, taken: Iterable[Taken]) -> None:
        """Record acknowledgements: what they are of does not come again."""
        for it in taken:
            self._journal.add(Acknowledged(note=it.note_id, how=it.how))
        self._journal.flush()

    def let_go(self, task: Task) -> None:
        """Nobody waits to hear of this ended task any more: it may be forgotten. If
        there are too many of these, the first to end is forgotten now, and its output
        file is removed."""
        if task.task_id in self.kept:
            return
        forgotten = self._table.release(task)
        if forgotten is not None and forgotten.rare is not None:
            forgotten.remove_output()
