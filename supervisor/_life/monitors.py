"""Monitors: the lines of a running command, told to its owner as they come.

A monitor is an actor below the runtime's root. It reads the output of the command from
its file, as everybody does who follows it, so it holds up nobody. What it tells is a
notification of the kind ``monitor``, in one queue with the ends of tasks. How much of
the output that is, and when it is told, `supervisor._delivery.lines` and
`supervisor._delivery.pace` say.

The lines that are left when the command ends are told in the step that records its end,
before that is told, so the end is the last that is heard of it.
"""

from __future__ import annotations

import re
from functools import partial
from math import inf
from typing import Final

import trio
from trio.lowlevel import enable_ki_protection

from actors import Context
from actors.house import check_one_of, check_type

from .._delivery.lines import LineReader, Lines
from .._delivery.outbox import Ack, Notification, Notify, Words
from .._delivery.pace import IN_VAIN, UNDECIDED, Pace, decide
from .._delivery.turns import Parents
from .._tasks.endings import STOPPED_BY, StoppedBy
from .._tasks.errors import RuntimeStopping
from .._tasks.record import Task
from .._tasks.task_events import MonitorEnded, MonitorStarted
from ..tree._errors import AlreadyStarted, SupervisorError, SupervisorStopping
from ..tree._fair import fair
from ..tree._spec import child
from ..tree._supervisor import Supervisor
from .life import Life
from .stops import end, stop

MOST: Final = 16
"""Monitors that one owner may have at a time."""

_CHUNK: Final = 65_536
# Pieces that are looked at in one step, a few milliseconds, and if each line is looked at
# by itself; and how many times as many in the step in which the command ends: what it
# has printed since the monitor was there last, which is there after every write.
_QUICKLY: Final = 16
_SLOWLY: Final = 1
_AT_END: Final = 4
_ID_ATTEMPTS: Final = 100

_IN_VAIN: Final = f"{IN_VAIN} notes in a row woke nobody"


class TooManyMonitors(SupervisorError):
    """Raised when an owner has as many monitors as it may have. Stop one of them."""


class Monitor:
    """What tells the lines of a running command to its owner. `Runtime.monitor` makes
    it."""

    __slots__ = ("_watch",)

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __repr__(self) -> str:
        return f"<Monitor {self.id} of task {self.task_id}: {self.ended or 'runs'}>"

    @property
    def id(self) -> str:
        """Its id."""
        return self._watch.id

    @property
    def task_id(self) -> str:
        """The id of the command's task."""
        return self._watch.task_id

    @property
    def owner(self) -> str | None:
        """The owner of that task, who is told the lines."""
        return self._watch.owner

    @property
    def ended(self) -> str | None:
        """Why it tells nothing more, or None."""
        return self._watch.ended

    @fair
    async def stop(
        self, reason: str | None = None, *, by: StoppedBy | None = None
    ) -> None:
        """End the monitor. If it has begun the command itself, that is stopped, too, and
        waited for, as by `Runtime.stop`. Otherwise the command goes on. A note that
        waits for its reader is told all the same. A second call does nothing.

        Raises:
            WouldDeadlock: if the command itself calls, or what is below it.
            TypeError, ValueError: for bad arguments.
        """
        check_type("reason", reason, str | None)
        if by is not None:
            check_one_of("by", by, STOPPED_BY)
        await self._watch.stop(reason, by)


class Watch:
    """One monitor, and how far it is. It is behind its `Monitor`, and on the list of
    those who hear of the end of the task and of each note that was acknowledged."""

    def __init__(
        self,
        monitors: Monitors,
        id: str,
        owner: str | None,
        pattern: str | re.Pattern[str] | None,
        *,
        began: bool,
    ) -> None:
        self.id = id
        self.task_id = ""
        self.owner = owner
        self.ended: str | None = None
        self.monitor = Monitor(self)
        # Why it ends with the command, if not because that has ended by itself.
        self._why = "the command has ended"
        self._monitors = monitors
        # Whether it has begun the command itself.
        self._began = began
        self._task: Task | None = None
        self._attached = trio.Event()
        # Where in the output it is.
        self._offset = 0
        self._reader = LineReader(pattern)
        self._at_once = _QUICKLY if self._reader.is_quick else _SLOWLY
        # What is to be told. A note that waits for a reader tells what is here then.
        self._lines = Lines()
        self._fresh: float | None = None
        self._told = -inf
        self._waiting: Notification | None = None
        # Taken, and not acknowledged.
        self._undecided: set[Notification] = set()
        self._in_vain = 0
        self._nap: trio.CancelScope | None = None

    async def stop(self, reason: str | None, by: StoppedBy | None) -> None:
        """See `Monitor.stop`."""
        task = self._task
        if self.ended is None and self._began and task is not None:
            self._why = reason or "it was stopped"
            why = reason or "its monitor was stopped"
            await stop(self._monitors.life, [task], why, by)
        else:
            await trio.lowlevel.checkpoint()
        self.end(reason or "it was stopped")

    # Its beginning and its end

    @enable_ki_protection
    def attach(self, task: Task, offset: int) -> None:
        """Watch ``task`` from the byte ``offset`` of its output on."""
        self._task, self.task_id, self.owner = task, task.task_id, task.owner
        self._offset = offset
        self._reader.leap(offset)
        delivery = self._monitors.life.delivery
        delivery.watchers.setdefault(task.task_id, []).append(self)
        self._monitors.life.events.emit(
            MonitorStarted, self.id, self.task_id, self.owner
        )
        self._attached.set()
        if task.status.is_terminal:
            self.task_ends()

    @enable_ki_protection
    def end(self, why: str) -> None:
        """Tell nothing more, but what waits already. A second call does nothing."""
        if self.ended is not None:
            return
        self.ended = why
        self._monitors.live.pop(self.id, None)
        self._attached.set()
        self._wake_up()
        if self._task is None:
            return
        life = self._monitors.life
        watchers = life.delivery.watchers.get(self.task_id, [])
        if self in watchers:
            watchers.remove(self)
            if not watchers:
                del life.delivery.watchers[self.task_id]
        life.events.emit(MonitorEnded, self.id, self.task_id, why)

    def fail(self, error: Exception) -> None:
        """It has failed itself: say so, and end."""
        delivery = self._monitors.life.delivery
        delivery.warn(self._task, f"its monitor has failed: {type(error)!r}", error)
        self.end("it has failed")

    def task_ends(self) -> None:
        """Called in the step in which the command ends, before that is told."""
        if self.ended is not None or self._task is None:
            return
        from .._tasks.reading import output_size

        self._read_on(_AT_END * self._at_once)
        unread = output_size(self._task) - self._offset
        if unread > 0:
            self._lines.unread += unread
            self._note_change()
        elif self._reader.finish(self._lines):
            self._note_change()
        if self._fresh is not None and self._waiting is None:
            self._tell("wake")
        self.end(self._why)

    # What it does

    async def run(self) -> None:
        """Read and tell, until it has ended."""
        await self._attached.wait()
        while self.ended is None:
            has_more = self._read_on(self._at_once)
            now = trio.current_time()
            following = decide(self._pace(), now)
            if following.do == "stop":
                await self._give_up()
                return
            if following.do == "again":
                self._in_vain += 1
                self._supersede()
            if following.do != "rest":
                self._tell("wake")
            if has_more or following.do != "rest":
                await trio.lowlevel.checkpoint()
            else:
                await self._rest(following.at)

    async def _rest(self, until: float) -> None:
        """Wait for more output, for a change, or for that time. No checkpoint is
        between this and the look at what there is, so nothing is missed."""
        assert self._task is not None
        with trio.CancelScope(deadline=until) as self._nap:
            await self._task.growth.wait()
        self._nap = None

    def _wake_up(self) -> None:
        if self._nap is not None:
            self._nap.cancel()

    def _pace(self) -> Pace:
        life, waits = self._monitors.life, self._waiting is not None
        is_agent = self._monitors.is_agent(self.owner)
        return Pace(
            fresh=self._fresh,
            told=self._told,
            waits=waits,
            is_heard=waits
            and (
                is_agent
                or self._monitors.parents.is_busy(self.owner)
                or life.delivery.outbox.is_listened_to(self.owner)
            ),
            undecided=len(self._undecided),
            # What an inbox holds cannot be added to.
            most_undecided=1 if is_agent else UNDECIDED,
            in_vain=self._in_vain,
        )

    async def _give_up(self) -> None:
        task = self._task
        assert task is not None
        if self._began:
            self._why = _IN_VAIN
            reason = f"its monitor has stopped: {_IN_VAIN}"
            await end(self._monitors.life, [task], reason, "limit", None)
        elif self.ended is None:
            self._lines.why = _IN_VAIN
            if self._waiting is None:
                # It would wake nobody.
                self._tell("defer")
        self.end(_IN_VAIN)

    # Reading

    def _read_on(self, pieces: int) -> bool:
        """Look at so many pieces of output; return whether there may be more."""
        return all(self._read() for _ in range(pieces))

    def _read(self) -> bool:
        """Look at the next piece of output; return whether there was any."""
        from .._tasks.reading import read_from

        assert self._task is not None
        part = read_from(self._task, self._offset, _CHUNK)
        if part.offset > self._offset:
            self._lines.unread += part.offset - self._offset
            self._reader.leap(part.offset)
            self._offset = part.offset
            self._note_change()
        if not part.text:
            return False
        self._offset = part.next_offset
        if self._reader.feed(part.text, part.offset, self._lines):
            self._note_change()
        return True

    def _note_change(self) -> None:
        if self._fresh is None:
            self._fresh = trio.current_time()

    # Telling

    def _tell(self, notify: Notify) -> None:
        lines, self._fresh, self._told = self._lines, None, trio.current_time()
        note = self._monitors.life.delivery.add_note(
            "monitor", self.task_id, self.owner, notify, partial(self._words, lines)
        )
        if note.acked is not None:
            self._judge(note, note.acked)
        elif lines is self._lines:
            self._waiting = note
        else:
            self._undecided.add(note)

    def _words(self, lines: Lines) -> Words:
        """Return what the note of ``lines`` says, which is told now. It may be asked
        again, if whoever has asked has failed."""
        assert self._task is not None
        words = lines.words(self.id, self.task_id, self._task.description)
        if lines is self._lines:
            self._lines = Lines()
            if self._waiting is not None:
                self._undecided.add(self._waiting)
                self._waiting = None
        return words

    def _supersede(self) -> None:
        """Take back the note that waits. Its lines are for the next one."""
        note, self._waiting = self._waiting, None
        if note is not None:
            note.ack("superseded")

    def acked(self, note: Notification, how: Ack) -> None:
        """Called when a note of a monitor of this command was acknowledged."""
        if note is self._waiting:
            # By somebody who has not read it.
            self._waiting, self._lines = None, Lines()
        elif note in self._undecided:
            self._undecided.discard(note)
        else:
            return
        self._judge(note, how)
        self._wake_up()

    def _judge(self, note: Notification, how: Ack) -> None:
        """Count whether it woke somebody: see `supervisor._delivery.pace`."""
        if how == "silent" or self._monitors.life.delivery.outbox.was_in_vain(note):
            self._in_vain += 1
        elif how != "superseded":
            self._in_vain = 0


class Monitors:
    """Every monitor of a runtime."""

    def __init__(self, life: Life, parents: Parents) -> None:
        self.life = life
        self.parents = parents
        self.live: dict[str, Watch] = {}
        """Those that have not ended, by id."""

    def is_agent(self, owner: str | None) -> bool:
        """Whether ``owner`` is an agent that has not ended."""
        task = None if owner is None else self.life.table.live.get(owner)
        return task is not None and task.as_agent is not None

    async def start(
        self,
        root: Supervisor,
        owner: str | None,
        pattern: str | re.Pattern[str] | None,
        *,
        began: bool,
    ) -> Watch:
        """Return one that waits for its `Watch.attach`, or its end.

        Raises:
            RuntimeStopping: if the runtime is stopping or has ended.
            TooManyMonitors: if the owner has as many as it may have.
        """
        theirs = sum(it.owner == owner for it in self.live.values())
        if theirs >= MOST:
            raise TooManyMonitors(
                f"owner {owner!r} has {MOST} monitors already: stop one of them first"
            )
        for _ in range(_ID_ATTEMPTS):
            id = f"m{self.life.env.ids.hex(8)}"
            if id in self.live:
                continue
            begun = Watch(self, id, owner, pattern, began=began)
            self.live[id] = begun
            # It belongs to one monitor: its failure is no reason to end anything else.
            spec = child(id, watch, begun, restart="temporary")
            try:
                await root.start_child(spec)
            except AlreadyStarted:
                self.live.pop(id, None)
                continue  # Something else has this id.
            except SupervisorStopping as error:
                self.live.pop(id, None)
                raise RuntimeStopping(
                    "the runtime is stopping and starts no monitor"
                ) from error
            except BaseException:
                self.live.pop(id, None)
                raise
            return begun
        raise SupervisorError(f"no free id was found in {_ID_ATTEMPTS} attempts")


# An interrupt is for the host, and must not end a monitor that nobody would miss.
@enable_ki_protection
async def watch(_: Context[None], monitor: Watch) -> None:
    """The actor of a monitor."""
    try:
        await monitor.run()
    # The boundary: the host's own pattern may fail, and nobody waits for this.
    except Exception as error:
        monitor.fail(error)


def check_watched(task: Task) -> None:
    """Raise ValueError if the lines of ``task`` cannot be told."""
    if task.as_agent is not None or not task.writes_output:
        raise ValueError(f"task {task.task_id} is no command: it prints no lines")
    if not task.background:
        raise ValueError(
            f"task {task.task_id} runs in the foreground: whoever runs it reads what it "
            "prints. Move it to the background first"
        )


def check_pattern(
    pattern: str | re.Pattern[str] | None,
) -> str | re.Pattern[str] | None:
    """Return the pattern of the lines that are told, None for all lines.

    Raises:
        TypeError, ValueError: if it is none.
    """
    if pattern is None:
        return None
    if isinstance(pattern, str):
        if not pattern or "\n" in pattern:
            raise ValueError(f"pattern must be in a line of text, not {pattern!r}")
        return pattern
    if not isinstance(pattern, re.Pattern) or not isinstance(pattern.pattern, str):
        raise TypeError(
            f"pattern must be a str or a compiled one for text, not {pattern!r}"
        )
    return pattern
