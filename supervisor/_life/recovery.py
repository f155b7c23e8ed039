"""What a runtime makes of the tasks that an earlier one has left in the directory.

A task that had not ended ends now, as ``failed``: its program has died. A notification
that nobody has acknowledged comes again, under its id.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, cast

import attrs
import trio

from actors import Context, Progress, TaskStatus
from actors.envelope import TAIL_LIMIT, Envelope
from actors.hosting import Share
from actors.house import define, frozen
from actors.shell import Shell
from actors.work import Report, Work

from .._delivery.outbox import NOTIFY
from .._tasks.endings import as_ended_by
from .._tasks.errors import BacklogFull, NeverAgain, ResumeRefused
from .._tasks.journal.records import Acked, Ended, NewerJournal, Paused, Started
from .._tasks.journal.state import Known, Read, State, number_in
from .._tasks.kinds import KINDS
from .._tasks.pausing import Before
from .._tasks.record import Order, Task
from .._tasks.snapshot import Pause, TaskError
from .._tasks.task_events import TaskAbandoned
from .keys import what_of_command
from .pauses import tries_of
from .recording import time_of

if TYPE_CHECKING:
    from actors.transcript import AgentMeta
    from actors.transcript.hosting import Transcript

    from .life import Life

STATUSES = {it.value: it for it in TaskStatus}
_SHOWN = 5
_NOTE = re.compile("<notification-id>([^<]{1,64})</notification-id>").findall
_ORPHANS_WITHIN = 10.0
# How often, and after how many seconds each time, it is asked again whether nobody has
# the journal.
_LOOKS = 40
_PAUSE = 0.05

DIED = "the program that ran it has died; what it had done by then is not known"


@frozen
class Gone:
    """Stands for the work of a task whose program has died."""

    task_type: str
    writes_output: bool
    shutdown: float = 0.0

    def describe(self) -> str:
        return ""

    def run(self, ctx: Context[object], report: Report) -> Awaitable[object]:
        raise RuntimeError(DIED)


class HostDied(Exception):
    """Why a task has failed whose program has died."""


async def begin(life: Life) -> Read | None:
    """Begin the journal of a runtime, before anything else is there. Return what was in
    it; None if there is none, or another runtime has it.

    Raises:
        NewerJournal, OSError: as `Journal.begin`.
    """
    there = life.journal.begin(*_beginning(life)) if life.journal.is_kept else None
    for _ in range(_LOOKS):
        if life.journal.other != Share.UNNAMED:
            break
        # Of a program that was killed while it started another, a fork is left for some
        # moments more. No event tells of its end.
        await trio.sleep(_PAUSE)
        there = life.journal.begin(*_beginning(life))
    if there is None:
        # Whoever keeps the journal gives the same numbers.
        life.delivery.go_on_behind(0, f"{life.env.ids.hex(8)}-")
        life.keys.elsewhere = life.journal.other
    return there


async def take_over(life: Life) -> None:
    """Become the one who writes, if the other runtime has ended by now, and recover
    what that has left."""
    try:
        there = life.journal.begin(*_beginning(life))
    except (NewerJournal, OSError) as error:
        if life.journal.other != str(error):
            life.journal.other = str(error)
            life.delivery.warn(None, f"the journal cannot be taken over: {error}")
        return
    # The boundary: what is not recovered here is in the file, for the next one; and so
    # are its keys, which nobody knows here.
    try:
        await recover(life, there)
    except Exception as error:
        what = "what the other runtime has left cannot be recovered before the next opening"
        life.delivery.warn(None, f"{what}, nor can a key be used: {error!r}", error)


def _beginning(life: Life) -> tuple[str, str]:
    return time_of(life.env.clock.now()), life.env.processes.program()


@define
class Found:
    """What became of the tasks that had not ended."""

    lost: int = 0
    """So many have failed, because their program has died."""
    paused: int = 0
    """So many agents can go on, and wait."""
    loopless: int = 0
    """So many of these need a loop for that."""
    refused: list[str] = attrs.Factory(list[str])
    """Why others cannot go on here."""
    orphans: int = 0
    """So many processes still lived of those, and were ended."""
    left: list[int] = attrs.Factory(list[int])
    """The pids of those that could not be ended."""
    again: int = 0
    """So many notifications come again."""


async def recover(life: Life, there: Read | None) -> None:
    """Enter what a journal knows. A shell that had not ended ends now, an agent is
    paused, and what nobody has acknowledged comes again."""
    if there is None:
        return
    state, found = there.state, Found()
    # Each of these may have ended in the very write by which the journal began to fail,
    # and been told under a number that no record has.
    life.delivery.go_on_behind(state.last_note + len(state.unfinished))
    # Those above first: what is below them is told to them.
    unfinished = _outer_first(
        [state.tasks[run].started for run in state.unfinished.values()]
    )
    for started in unfinished:
        # Whoever goes on with one, or gives it up, may be faster.
        life.begun_before[started.task] = number_in(started.run)
    # The marker of a tree is the id of its run.
    shells = [f"{it.task}-" for it in unfinished if it.command is not None]
    if shells:
        # Before anything says that they have ended.
        found.orphans, found.left = await _end_orphans(life, state.program, shells)
    if life.is_stopping:
        # All of it is in the file, for the next one.
        return
    for agent_id, end in state.agents.items():
        _each(life, agent_id, partial(_correct, life, agent_id, end))
    gone: list[Task] = []
    for started in unfinished:
        if started.type == "local_agent":
            said = await _said(life, started.task)
            enter = partial(_recover_agent, life, started, said, state, found, gone)
            _each(life, started.task, enter)
    ended = [it for it in state.tasks.values() if it.ended is not None]
    knows: dict[str, set[str]] = {}
    for known in sorted(ended, key=state.place):
        started, end = known.started, cast("Ended", known.ended)
        parent = started.parent
        if parent is not None and end.note is not None:
            if parent not in knows:
                knows[parent] = _notes_in(await _said(life, parent))
            if end.note in knows[parent]:
                # Its program has died before that was recorded.
                life.journal.add(Acked(note=end.note))
                end = attrs.evolve(end, note=None)
        found.again += end.note is not None
        tell = partial(_recover_ended, life, started, end)
        if _is_for_later(life, started):
            life.parked.setdefault(started.parent or "", []).append(tell)
        else:
            _each(life, started.task, tell)
    lost: list[Task] = []
    for started in unfinished:
        if started.type != "local_agent":
            _each(life, started.task, partial(_enter_lost, life, started, lost))
    # All of them are known.
    life.keys.elsewhere = None
    # Now that all are there: the end of each says how many others there are.
    for task in gone:
        # Who has taken over may have resumed it just now.
        if task.task_id not in life.table.live:
            life.table.add(task)
    for task in gone:
        reader, others = task.parent, 0
        if life.table.is_live(task):
            # Of one whose file cannot be read, whoever asks is to hear why.
            is_known = task.given is not None
            leave = life.table.end if is_known else life.table.take_out
            others = leave(task)
        tell = partial(life.delivery.tell_of_agent, task, others, reader)
        _each(life, task.task_id, tell)
    for task in lost:
        life.conclude(task, TaskStatus.FAILED, HostDied(DIED))
    found.lost += len(lost)
    life.journal.flush()
    # Its readers may wait already.
    life.delivery.wake_notifier()
    text = summary(there, found)
    if text is not None:
        life.delivery.warn(None, text)


def _outer_first(unfinished: list[Started]) -> list[Started]:
    """Return them with each agent before what is below it."""
    by_task = {it.task: it for it in unfinished}

    def depth(started: Started) -> int:
        above, seen = started.parent, set[str]()
        # Anybody may have written to the directory: in a circle, too.
        while above in by_task and above not in seen:
            seen.add(above)
            above = by_task[above].parent
        return len(seen)

    return sorted(unfinished, key=depth)


def _has_begun_later(life: Life, task_id: str, run: str) -> bool:
    """Whether this program has gone on with that task behind that run, and knows it."""
    known = life.table.live.get(task_id) or life.table.ended.get(task_id)
    return known is not None and number_in(known.run_id) > number_in(run)


def _each(life: Life, task_id: str, recover: Callable[[], object]) -> None:
    # The boundary: one that cannot be recovered is no reason to lose the others.
    try:
        recover()
    except Exception as error:
        what = f"what the journal says of task {task_id} cannot be used"
        life.delivery.warn(None, f"{what}: {error!r}", error)


async def _end_orphans(
    life: Life, program: str, prefixes: list[str]
) -> tuple[int, list[int]]:
    what = "what still lives of the program before cannot be ended"
    # The boundary: what cannot be ended is no reason not to open.
    try:
        with trio.move_on_after(_ORPHANS_WITHIN, shield=True):
            return await life.env.processes.end_orphans(program, prefixes)
        why = f"that was not done in {_ORPHANS_WITHIN:g} seconds"
        life.delivery.warn(None, f"{what}: {why}")
    except Exception as error:
        life.delivery.warn(None, f"{what}: {error!r}", error)
    return 0, []


def _enter_lost(life: Life, started: Started, lost: list[Task]) -> None:
    task = _make(life, started)
    life.table.add(task)
    _find_by_key(life, started, task)
    task.cut_by = "crash"
    lost.append(task)


def _correct(life: Life, agent_id: str, over: Ended) -> None:
    """Have the file of an agent say that it has ended, if the program died before that
    was written: it would be gone on with, and its end be told twice."""
    if agent_id in life.table.live:
        return
    meta = life.agents.transcripts.read_meta(agent_id)
    if meta is None or STATUSES[meta.status].is_terminal:
        return
    if number_in(meta.run_id) <= number_in(over.last_run or over.run):
        error = over.error and over.error.partition(": ")[2]
        ended = attrs.evolve(
            meta, status=over.status, error=error, ended_by=as_ended_by(over.by)
        )
        life.agents.transcripts.write_meta(ended)


async def _said(life: Life, agent_id: str) -> Transcript | None:
    """Return what an agent has said and was told, as far as that can be read."""
    # The boundary: a message that is read twice is better than one that is lost.
    try:
        return await life.agents.transcripts.load(agent_id)
    except Exception:
        return None


def _recover_agent(
    life: Life,
    started: Started,
    said: Transcript | None,
    state: State,
    found: Found,
    gone: list[Task],
) -> None:
    """Pause an agent whose program has died. One whose agent has died with it ends: it
    is for that to go on with it. One that has ended is put with those that are ``gone``,
    to be told behind the ends of before."""
    agent_id, why = started.task, DIED
    if (
        agent_id in life.table.live
        or agent_id in life.abandoned
        or _has_begun_later(life, agent_id, started.run)
    ):
        # That was done here before its journal was taken over.
        return
    try:
        meta = life.agents.transcripts.read_meta(agent_id)
    except (OSError, ValueError) as error:
        meta, why = None, f"{DIED}, nor can its file be read: {error}"
    else:
        begun_as = _begun_as(started)
        if begun_as is not None and (
            meta is None or number_in(meta.run_id) < number_in(begun_as.run_id)
        ):
            # It was not written in time.
            meta = begun_as
            life.agents.transcripts.write_meta(meta)
    status = None if meta is None else STATUSES.get(meta.status)
    begun = number_in(started.run)
    is_over = status is not None and status.is_terminal
    if meta is not None and is_over and number_in(meta.run_id) < begun:
        # Its resume was not yet in its file: nobody has heard that it runs again.
        ended = Ended(
            run=started.run,
            status=meta.status,
            at=started.at,
            by=as_ended_by(meta.ended_by),
        )
        life.journal.add(ended)
        return
    if meta is not None and status is not None and not status.is_terminal:
        if started.parent not in state.unfinished:
            try:
                known = state.tasks[started.run]
                pause = _pause(life, known.paused)
                before = _before(known)
                entered = life.enter_paused(meta, pause, said, started, before)
                _find_by_key(life, started, entered)
                found.paused += 1
                found.loopless += entered.lacks is not None
                return
            except NeverAgain as error:
                why = f"{DIED}, and it cannot go on: {error.why}"
            except (ResumeRefused, BacklogFull) as error:
                found.refused.append(str(error))
                return
        failed = attrs.evolve(
            meta, status=TaskStatus.FAILED.value, error=why, ended_by="crash"
        )
        life.agents.transcripts.write_meta(failed)
    task = _make(life, started, meta)
    task.result = _last_words(said)
    if meta is not None and status is not None and is_over:
        # Its end was in its file already, and not in the journal.
        task.transition(status)
        task.ended_by = as_ended_by(meta.ended_by)
        if meta.error is not None:
            task.error = TaskError("AgentFailed", meta.error, "")
    else:
        task.transition(TaskStatus.FAILED)
        task.error = TaskError("HostDied", why, "")
        task.ended_by = "crash"
        found.lost += 1
    task.ended_at = life.env.clock.now()
    # So nobody knows how long it took.
    task.cut_by = "crash"
    _find_by_key(life, started, task)
    gone.append(task)


def abandon(life: Life, meta: AgentMeta) -> None:
    """Record that the agent of ``meta``, which only the directory knows, will not go on,
    since the host wants it so."""
    agent_id, killed = meta.agent_id, TaskStatus.KILLED.value
    killed_meta = attrs.evolve(meta, status=killed, ended_by="host")
    life.agents.transcripts.write_meta(killed_meta)
    # The run that the journal takes for unfinished; 0 if it knows none. It counts until
    # the file of the agent is written.
    run = f"{agent_id}-{life.begun_before.get(agent_id, 0):06}"
    at = time_of(life.env.clock.now())
    over = Ended(run=run, last_run=meta.run_id, status=killed, at=at, by="host")
    life.journal.add(over)
    life.journal.flush()
    life.abandoned.add(agent_id)
    for tell in life.parked.pop(agent_id, ()):
        _each(life, agent_id, tell)
    for note in life.delivery.outbox.untaken(agent_id):
        # As of any agent that ends and has not heard them.
        note.ack("consumed")
    life.events.emit(TaskAbandoned, agent_id, "host")


def _notes_in(said: Transcript | None) -> set[str]:
    """Return the ids of the notifications that an agent has read."""
    told = () if said is None else said.told
    return {note for text in told for note in _NOTE(text)}


def _last_words(said: Transcript | None) -> str | None:
    """Return what an agent has said last: its answer, if it has ended with one."""
    from actors.agent import AssistantMessage

    messages = () if said is None else reversed(said.messages)
    texts = (it.text for it in messages if isinstance(it, AssistantMessage))
    return next((text for text in texts if text.strip()), None)


def _begun_as(started: Started) -> AgentMeta | None:
    """Return what the file of an agent was to say when it began, None if the journal
    does not know it."""
    if not started.agent:
        return None
    from actors.transcript.hosting import decode_meta

    try:
        meta = decode_meta(started.agent.encode())
    except ValueError:
        # Anybody may have written to the directory.
        return None
    known = meta.agent_id, meta.run_id
    return meta if known == (started.task, started.run) else None


def _find_by_key(life: Life, started: Started, task: Task) -> None:
    if started.key is not None:
        what = started.what
        if not what and started.command is not None:
            what = what_of_command(started.command, started.cwd)
        life.keys.add(started.owner, started.key, what, task)


def _pause(life: Life, paused: Paused | None) -> Pause:
    """Return the pause of an agent whose program has died. If it waited for a limit,
    that still holds. If it only waited because of an earlier death, the policy of today
    says what becomes of it."""
    until = None if paused is None or paused.until is None else _time(paused.until)
    if paused is not None and paused.attempt and until is not None:
        return Pause(paused.reason, until, paused.attempt)
    goes_on = life.agents.after_crash == "resume"
    return Pause(DIED, life.env.clock.now() if goes_on else None)


def _before(known: Known) -> Before:
    is_told = known.paused is not None and known.paused.told
    return Before(tries_of(known.tries), is_told)


def summary(there: Read, found: Found) -> str | None:
    """Return in one line for people what was found, None if that is nothing."""
    parts: list[str] = []
    ran = found.lost + found.paused + len(found.refused)
    if ran:
        text = f"the program before died while {_count(ran, 'task')} ran"
        if found.paused:
            text = f"{text}, of which {_count(found.paused, 'agent')} can be resumed"
        if found.loopless:
            text = f"{text}, {found.loopless} of them by `Runtime.resume(agent=)` alone"
        parts.append(text)
    if found.orphans:
        one, more = "process that it had left was", "processes that it had left were"
        what = one if found.orphans == 1 else more
        parts.append(f"{found.orphans} {what} ended")
    if found.left:
        pids = ", ".join(map(str, found.left[:_SHOWN]))
        if len(found.left) > _SHOWN:
            pids = f"{pids} and {len(found.left) - _SHOWN} more"
        parts.append(f"what could not be ended of them still lives: process {pids}")
    if found.refused:
        parts.append(f"{_count(len(found.refused), 'agent')} cannot go on here")
        parts += found.refused[:_SHOWN]
    if found.again:
        notes = _count(found.again, "notification")
        verb = "comes" if found.again == 1 else "come"
        parts.append(f"{notes} that nobody had acknowledged {verb} again")
    if there.kept is not None and not there.whole:
        parts.append(f"what was in the place of the journal was none: {there.kept}")
    elif there.torn:
        parts.append(
            f"the journal ended within a line, and {there.torn} bytes were cut"
        )
    if there.bad:
        lines = ", ".join(map(str, there.bad[:_SHOWN]))
        if len(there.bad) > _SHOWN:
            lines = f"{lines} and {len(there.bad) - _SHOWN} more"
        parts.append(f"these lines of the journal say nothing known: {lines}")
    if there.kept is not None and there.whole:
        parts.append(f"the journal was damaged, and is kept as it was: {there.kept}")
    return "; ".join(parts) or None


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"


def _make(life: Life, started: Started, meta: AgentMeta | None = None) -> Task:
    """Return the record of a task that an earlier program has begun; of an agent with
    what the directory says of it.

    Raises:
        ValueError: if nobody can have begun it.
    """
    if started.type not in KINDS:
        raise ValueError(f"no task has the type {started.type!r:.80}")
    if not started.task:
        raise ValueError(f"no run has the id {started.run!r:.80}")
    is_shell = started.command is not None
    writes_output = started.output is not None
    work = cast("Work", Gone(started.type, writes_output))
    if is_shell:
        work = Shell(cast("str", started.command), cwd=started.cwd)
    order = Order(
        work=work,
        task_type=started.type,
        shutdown=0.0,
        writes_output=writes_output,
        takes_input=False,
        description=started.description,
        owner=started.owner,
        tool_use_id=started.tool_use,
        policy=None,
        notify=started.notify if started.notify in NOTIFY else "wake",
    )
    above = None if started.parent is None else life.table.live.get(started.parent)
    parent = None if above is None else above.as_agent
    make: Callable[..., Task] = Task
    if meta is not None:
        from .._tasks.agent_task import EndedAgent

        make = partial(EndedAgent, meta=meta)
    task = make(
        started.task,
        started.run,
        life.env,
        order,
        life.delivery,
        background=started.background,
        parent=parent,
    )
    if parent is None:
        task.was_own_of(started.parent)
    task.started_at = _time(started.at)
    # What its notification says of it.
    task.cwd = started.cwd
    if started.command is not None:
        task.command = started.command
    name = f"{started.task}.output"
    # No other one: it is removed with the record.
    if started.output == name:
        path = life.directory / name
        task.output_file = path
        try:
            tail, task.output_truncated = life.env.files.read_tail(path, TAIL_LIMIT)
        except OSError as error:
            # Its end is told all the same.
            life.delivery.warn(None, f"its last output cannot be read: {error}")
        else:
            _report(task).output_tail = tail.decode("utf-8", "replace")
    task.transition(TaskStatus.RUNNING)
    return task


def _time(at: str) -> datetime | None:
    """Return a time as `time_of` has told it, None if no clock could tell, or it is
    none."""
    try:
        time = datetime.fromisoformat(at)
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _is_for_later(life: Life, started: Started) -> bool:
    """Whether it is for an agent that does not run, and that may go on."""
    parent = started.parent
    if parent is None or parent in life.table.live:
        return False
    try:
        meta = life.agents.transcripts.read_meta(parent)
    except (OSError, ValueError):
        return False
    status = None if meta is None else STATUSES.get(meta.status)
    return status is not None and not status.is_terminal


def _recover_ended(life: Life, started: Started, ended: Ended) -> None:
    meta = _meta_of(life, started)
    task, status = _make(life, started, meta), TaskStatus(ended.status)
    if not status.is_terminal:
        raise ValueError(f"no task ends {status.value}")
    report = _report(task)
    report.exit_code, report.signal = ended.exit_code, ended.signal
    task.ended_by = as_ended_by(ended.by)
    name = f"{started.task}.output"
    # As in `_make`.
    if ended.output == name:
        task.output_file = life.directory / name
    task.transition(status)
    task.ended_at = _time(ended.at) or _time(started.at) or life.env.clock.now()
    task.result = task.output_tail if task.writes_output else ended.result
    if ended.last_run:
        task.first_run, task.run_id = task.run_id, ended.last_run
    if ended.error is not None:
        kind, _, message = ended.error.partition(": ")
        task.error = TaskError(kind, message, "")
    if ended.tokens is not None or ended.tools is not None:
        task.progress = Progress(
            total_tokens=ended.tokens or 0, tool_uses=ended.tools or 0
        )
    _find_by_key(life, started, task)
    if ended.note is not None:
        _tell_again(life, task, started, ended, ended.note)
    # Of an agent that may go on, or whose file cannot be read, the directory tells.
    is_over = meta is not None and STATUSES[meta.status].is_terminal
    if (
        task.task_id not in life.table.live
        and not _has_begun_later(life, task.task_id, task.run_id)
        and (is_over or started.type != "local_agent")
    ):
        life.table.add(task)
        life.table.end(task)
        if task.note is None:
            life.delivery.let_go(task)


def _meta_of(life: Life, started: Started) -> AgentMeta | None:
    """Return what the directory says of an agent that has ended, if that can be read."""
    if started.type != "local_agent":
        return None
    try:
        return life.agents.transcripts.read_meta(started.task)
    except (OSError, ValueError):
        return None


def _tell_again(
    life: Life, task: Task, started: Started, ended: Ended, note_id: str
) -> None:
    facts = Envelope(
        notification_id=note_id,
        task_id=task.task_id,
        run_id=task.run_id,
        task_type=task.task_type,
        status=ended.status,
        summary=ended.summary,
        remaining=ended.remaining,
        all_terminal=ended.remaining == 0,
        tool_use_id=started.tool_use,
        exit_code=ended.exit_code,
        signal=ended.signal,
        ended_by=task.ended_by,
        result=ended.result,
        error=ended.error,
        output_tail=task.output_tail,
        output_truncated=task.output_truncated,
        output_file=None if task.output_file is None else str(task.output_file),
        total_tokens=ended.tokens,
        tool_uses=ended.tools,
        duration_ms=ended.duration_ms,
    )
    note = life.delivery.make_note(task, note_id, facts, task.parent)
    note.record = 0
    if task.parent is not None:
        task.parent.routed[note.id] = note
    life.delivery.outbox.enter(note)
    task.note = note


def _report(task: Task) -> Report:
    """Return what the work of a task writes to."""
    return task
