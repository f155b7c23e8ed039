"""Mutants by those who wrote the runtime and the checkers."""

from __future__ import annotations

from collections.abc import Sequence

from ._mutant import Mutant

LIFE = "supervisor/_life/life.py"
OUTBOX = "supervisor/_delivery/outbox.py"
CHILDREN = "supervisor/tree/_children.py"
BLOCK = "supervisor/tree/_block.py"
COMMAND = "actors/shell/_command.py"

OURS: Sequence[Mutant] = (
    # ---- The end of a task ----
    Mutant(
        name="terminal-after-an-await",
        file=LIFE,
        before="""\
            status, error = outcome_of(exit, task.own_exit)
        self.conclude(task, status, error)
""",
        after="""\
            status, error = outcome_of(exit, task.own_exit)

        async def later() -> None:
            await trio.lowlevel.checkpoint()
            self.conclude(task, status, error)

        ref.home.nursery.start_soon(later)
""",
        promise="P3",
        why="Between the end of the work and its record others run, and a cancel of the "
        "pool there loses the record.",
    ),
    Mutant(
        name="parts-of-the-end-done-again",
        file=LIFE,
        before="""\
            self._tell_end(task)
        except""",
        after="""\
            self._tell_end(task)
            self._tell_end(task)
        except""",
        promise="P3",
        why="What has succeeded is done again, so an end is told twice.",
    ),
    Mutant(
        name="terminal-at-the-request",
        file=LIFE,
        before="""\
            if task.ref is None:
                self.slots.leave_queue(task)
                self.conclude(task, TaskStatus.KILLED, None)
""",
        after="""\
            if task.ref is None:
                self.slots.leave_queue(task)
            self.conclude(task, TaskStatus.KILLED, None)
""",
        promise="P2",
        why="A task that runs is killed on record when its stop is asked for.",
    ),
    Mutant(
        name="told-before-the-end",
        file=LIFE,
        before="""\
        try:
            self._tell_end(task)
""",
        after="""\
        if task.background:
            self.delivery.tell(task, remaining, parent)
        try:
            self._tell_end(task)
""",
        promise="P2",
        why="The notification is on record before the end is.",
    ),
    Mutant(
        name="slot-leaked-on-a-stop",
        file=LIFE,
        before="""\
        if was_running:
            try:
                self.places.give_up(task)
""",
        after="""\
        if was_running and status is not TaskStatus.KILLED:
            try:
                self.places.give_up(task)
""",
        promise="P9",
        why="The place of a task that was stopped is never free again, and whoever waits "
        "for it waits for ever.",
    ),
    Mutant(
        name="slot-given-back-twice",
        file=LIFE,
        before="""\
        if was_running:
            try:
                self.places.give_up(task)
""",
        after="""\
        if was_running:
            self.places.give_up(task)
            try:
                self.places.give_up(task)
""",
        promise="P6",
        why="After each end there is one place more than the cap allows.",
    ),
    Mutant(
        name="lost-wake-up-of-a-pending-task",
        file=LIFE,
        before="""\
        if was_running and self.slots.waiting:
""",
        after="""\
        if was_running and self.slots.waiting and status is not TaskStatus.FAILED:
""",
        promise="P9",
        why="A failure frees a place and starts nobody in it.",
    ),
    Mutant(
        name="foreground-outlives-its-turn",
        file="supervisor/_life/foreground.py",
        before="""\
        if not task.background:
            why =""",
        after="""\
        if task.background:
            why =""",
        promise="P8",
        why="Whoever runs a task in the foreground is cancelled, and the task goes on; "
        "one that was moved is stopped.",
    ),
    Mutant(
        name="turn-takes-others-with-it",
        file="supervisor/_life/foreground.py",
        before="""\
                await end(life, [task], why, by, life.current_task())
""",
        after="""\
                tasks = life.table.unfinished(task.owner)
                await end(life, tasks, why, by, life.current_task())
""",
        promise="P8",
        why="The cancel of one foreground task stops all tasks of its owner.",
    ),
    Mutant(
        name="stop-all-stops-other-owners",
        file="supervisor/_tasks/record.py",
        before="""\
        return [task for task in live if owner is None or task.owner == owner]
""",
        after="""\
        return [task for task in live if owner is not None or task.owner == owner]
""",
        promise="P8",
        why="A stop of all tasks of one owner stops those of others.",
        alive_at_first="P8, once the owner of a call is recorded wherever it stands in the call",
    ),
    Mutant(
        name="survivors-not-told",
        file="supervisor/_life/stops.py",
        before="""\
    return (f"the task {task.task_id} itself: it is shielded or blocked", *words)
""",
        after="""\
    return tuple(words)
""",
        promise="P2",
        why="A stop that has not ended the task names no survivor.",
    ),
    Mutant(
        name="wait-that-polls",
        file="supervisor/_tasks/record.py",
        before="""\
            if self.changed is None:
                self.changed = trio.Event()
            await self.changed.wait()

    def begin_run""",
        after="""\
            await trio.sleep(0.25)

    def begin_run""",
        promise="P9",
        why="Who waits for an end looks for it four times a second.",
    ),
    # ---- Notifications ----
    Mutant(
        name="lost-wake-up-of-a-reader",
        file=OUTBOX,
        before="""\
            self._waking.add(note)
            if self.readers:
                self.readers.unpark_all()
""",
        after="""\
            self._waking.add(note)
""",
        promise="P9",
        why="A notification comes, and the reader who waits for it is not woken.",
        alive_at_first="an assert in `ends` that a reader is left nothing",
    ),
    Mutant(
        name="ack-not-counted",
        file=OUTBOX,
        before="""\
            # Nothing of this can fail.
            self.unacknowledged, self.routed = waiting, routed
            note._facts""",
        after="""\
            # Nothing of this can fail.
            self.routed = routed
            note._facts""",
        promise="P6",
        why="What is acknowledged counts as backlog for ever, and launches are refused.",
    ),
    Mutant(
        name="ack-lost-where-nobody-had-read",
        file=OUTBOX,
        before="""\
        on_ack(note, how)
        if note.kind ==""",
        after="""\
        if place in (_OFFERED, _TAKEN):
            on_ack(note, how)
        if note.kind ==""",
        promise="P4",
        why="The ack of a silent record is told to nobody.",
    ),
    Mutant(
        name="handed-to-two-readers",
        file=OUTBOX,
        before="""\
        if self._ready_of and (queue := self._of(note.owner)) is not None:
            queue.leave(note)

    def taken""",
        after="""\

    def taken""",
        promise="P4",
        why="A record that the reader of all has had stays there for its owner's.",
    ),
    Mutant(
        name="newest-end-told-first",
        file=OUTBOX,
        before="""\
        notes = self._notes
        while (note := notes[0]) not in self._ready:
            notes.popleft()
        return note
""",
        after="""\
        notes = self._notes
        while (note := notes[-1]) not in self._ready:
            notes.pop()
        return note
""",
        promise="P4",
        why="A reader who comes late gets the ends in the reverse of their order.",
    ),
    Mutant(
        name="envelopes-lost-with-the-notifier",
        file="actors/notifier.py",
        before="""\
    tell_progress(None)
    await _write_all(outbox)
    async for""",
        after="""\
    tell_progress(None)
    async for""",
        promise="P4",
        why="What an incarnation of the notifier has left without an envelope waits "
        "there until something else ends.",
        alive_at_first="a program whose notifier fails",
    ),
    Mutant(
        name="progress-not-conflated",
        file=OUTBOX,
        before="""\
        return any(map(self.is_waiting, self._progress.get(task_id, ())))
""",
        after="""\
        return len(self._progress.get(task_id, ())) > 5
""",
        promise="P6",
        why="Notes of the progress of one task pile up for a reader who does not read.",
        alive_at_first="P6, by a program in which it runs long enough",
    ),
    Mutant(
        name="progress-told-at-once",
        file="actors/work.py",
        before="""\
        if now - self.progress_told_at >= PROGRESS_EVERY:
""",
        after="""\
        if now - self.progress_told_at >= 0:
""",
        promise="P6",
        why="Each chunk of output is an event.",
    ),
    Mutant(
        name="backlog-not-refused",
        file=LIFE,
        before="""\
        if waiting >= limit:
            raise BacklogFull(waiting)
""",
        after="""\
        if waiting > limit:
            raise BacklogFull(waiting)
""",
        promise="P6",
        why="One more is launched than the backlog allows.",
        alive_at_first="P6, by a program that comes to the very limit",
    ),
    # ---- Envelopes ----
    Mutant(
        name="envelope-not-escaped",
        file="actors/envelope.py",
        before="""\
        ready.append(escape(tail, quotes=True))
""",
        after="""\
        ready.append(tail)
""",
        promise="P5",
        why="A task that prints a mark and an escape sequence writes its own envelope.",
    ),
    Mutant(
        name="envelope-not-cleaned",
        file="actors/envelope.py",
        before="""\
        if clean_text(whole) != whole:
            return None
""",
        after="""\
        del whole
""",
        promise="P5",
        why="Characters that XML or a terminal understands stay in the envelope.",
    ),
    # ---- Shells ----
    Mutant(
        name="no-shield-for-the-output",
        file=COMMAND,
        before="""\
        failure = await _close(log, report)  # noqa: ASYNC102 - shields itself
""",
        after="""\
        await trio.lowlevel.checkpoint()
        failure = await _close(log, report)
""",
        promise="P2",
        why="A task that is stopped ends while its output is open.",
    ),
    Mutant(
        name="leftovers-not-awaited",
        file=COMMAND,
        before="""\
    process.kill()
    await process.wait_gone()


async def _end(""",
        after="""\
    process.kill()


async def _end(""",
        promise="P2",
        why="A task ends while processes that its command has left are being ended.",
        alive_at_first="P2, by a command that leaves a process for longer than it may linger",
    ),
    Mutant(
        name="deaf-processes-never-killed",
        file=COMMAND,
        before="""\
            await _wait_gone_or_hurry(process, report)
    process.kill()
""",
        after="""\
            await _wait_gone_or_hurry(process, report)
""",
        promise="P1",
        why="Whoever ignores SIGTERM is waited for, for ever.",
    ),
    Mutant(
        name="exit-code-swallowed",
        file=COMMAND,
        before="""\
    if exit.code == 0 and exit.lost is None:
        return None
""",
        after="""\
    if exit.lost is None and exit.signal is None:
        return None
""",
        promise="P10",
        why="A command that exits with another code than 0 completes.",
    ),
    Mutant(
        name="late-stop-wins",
        file=COMMAND,
        before="""\
        else:
            capture.command_ended()
""",
        after="""\
        else:
            await trio.lowlevel.checkpoint()
            capture.command_ended()
""",
        promise="P2",
        why="A command that had failed before it was stopped is told as stopped.",
    ),
    Mutant(
        name="quota-not-enforced",
        file="actors/output/__init__.py",
        before="""\
                data = _whole_to_end(data[:room])
            else:
""",
        after="""\
                data = _whole_to_end(data)
            else:
""",
        promise="P7",
        why="What does not fit is written all the same, once.",
    ),
    Mutant(
        name="quota-without-a-warning",
        file="actors/output/__init__.py",
        before="""\
        self._warned = True
        self._on_warning(
            f"the output has""",
        after="""\
        self._warned = True
        str(
            f"the output has""",
        promise="P7",
        why="A task is killed for its output without a warning before.",
    ),
    # ---- The tree ----
    Mutant(
        name="end-that-nobody-hears-of",
        file="actors/_kernel/actor.py",
        before="""\
        if self._ended is not None:
            self._ended.set()
        self.cell""",
        after="""\
        if self._ended is not None and not isinstance(exit, Failed):
            self._ended.set()
        self.cell""",
        promise="P9",
        why="Who waits for the end of an actor that fails as it is stopped waits for ever.",
    ),
    Mutant(
        name="failed-turned-into-stopped",
        file="actors/_kernel/actor.py",
        before="""\
                        exit = _failed(error, fn)
                    except BaseException""",
        after="""\
                        exit = _failed(error, fn)
                        if self.stop_request is not None:
                            exit = self._stopped(None)
                    except BaseException""",
        promise="P10",
        why="The error of an actor that was being stopped is swallowed.",
    ),
    Mutant(
        name="interrupt-kept",
        file="actors/_kernel/actor.py",
        before="""\
        passes = (*_INTERRUPTS, trio.Cancelled) if is_cancelled else _INTERRUPTS
""",
        after="""\
        passes = (trio.Cancelled,) if is_cancelled else ()
""",
        promise="P10",
        why="A KeyboardInterrupt in an actor is a failure like any other.",
    ),
    Mutant(
        name="sibling-restarted",
        file="supervisor/tree/_restart.py",
        before="""\
    if flags.strategy == "one_for_one":
        return "child"
""",
        after="""\
    if flags.strategy == "one_for_one" and flags.intensity > 5:
        return "child"
""",
        promise="P10",
        why="A failure under one_for_one stops the siblings.",
    ),
    Mutant(
        name="intensity-one-too-many",
        file="supervisor/tree/_restart.py",
        before="""\
        if len(recent) >= flags.intensity:
""",
        after="""\
        if len(recent) > flags.intensity:
""",
        promise="P10",
        why="A supervisor gives up one restart too late.",
    ),
    Mutant(
        name="restarts-never-forgotten",
        file="supervisor/tree/_restart.py",
        before="""\
        recent = tuple(t for t in history.restarts if t >= now - flags.period)
""",
        after="""\
        recent = history.restarts
""",
        promise="P10",
        why="A supervisor gives up for restarts that are out of the period.",
    ),
    Mutant(
        name="transient-always-restarted",
        file="supervisor/tree/_restart.py",
        before="""\
    return spec.restart == "transient" and not is_normal(exit)
""",
        after="""\
    return spec.restart == "transient"
""",
        promise="P10",
        why="A transient child that has completed is started again.",
    ),
    Mutant(
        name="order-of-stop-not-reversed",
        file=BLOCK,
        before="""\
        children = list(reversed(supervision.by_key.values()))
""",
        after="""\
        children = list(supervision.by_key.values())
""",
        promise="P8",
        why="The children that others depend on are stopped first.",
    ),
    Mutant(
        name="children-stopped-all-at-once",
        file=BLOCK,
        before="""\
                elif supervision.dynamic:
                    supervision.ask_to_stop(child, by, reason)
""",
        after="""\
                else:
                    supervision.ask_to_stop(child, by, reason)
""",
        promise="P8",
        why="Static children are asked to stop together, not one by one.",
    ),
    Mutant(
        name="no-shield-round-the-stop",
        file=BLOCK,
        before="""\
        with trio.CancelScope(shield=True):
            await self._stop_all(*self._request)
        self._end_nursery()
""",
        after="""\
        await self._stop_all(*self._request)
        self._end_nursery()
""",
        promise="P8",
        why="A supervisor that is cancelled does not stop its children in order.",
    ),
    Mutant(
        name="group-started-before-it-has-ended",
        file="supervisor/tree/_supervision.py",
        before="""\
                await incarnation.wait_ended()
        if not supervision.is_ending:
            # Members""",
        after="""\
                await trio.lowlevel.checkpoint()
        if not supervision.is_ending:
            # Members""",
        promise="P10",
        why="The first of a group comes back while others of it still end.",
    ),
    Mutant(
        name="start-that-is-cancelled-leaves-a-child",
        file=CHILDREN,
        before="""\
            with trio.CancelScope(shield=True):
                with contextlib.suppress(StillRunning):
                    await self.terminate(child, START_CANCELLED)
""",
        after="""\
            await trio.lowlevel.cancel_shielded_checkpoint()
""",
        promise="P1",
        why="A child whose starter is cancelled runs on, and nobody has its reference.",
    ),
    Mutant(
        name="restart-during-shutdown",
        file="supervisor/tree/_supervision.py",
        before="""\
            and self.is_ending
            and needs_restart(child.spec, exit)
""",
        after="""\
            and self.closing
            and needs_restart(child.spec, exit)
""",
        promise="P10",
        why="A failure after the request for a stop is followed by a restart.",
    ),
    Mutant(
        name="decided-restart-begins-in-a-stop",
        file=CHILDREN,
        before="""\
        return self.home.is_ending and not self.is_awaited
""",
        after="""\
        return False
""",
        promise="P10",
        why="A restart that was decided before the request for a stop begins after it.",
        alive_at_first="a program that closes when it hears of a restart",
    ),
    Mutant(
        name="own-task-restarted-while-its-agent-stops",
        file=LIFE,
        before="""\
                task.ref.intent = "terminate"
""",
        after="""\
                pass
""",
        promise="P10",
        why="What is told to stop, and is stopped later, is run again until then.",
    ),
)
