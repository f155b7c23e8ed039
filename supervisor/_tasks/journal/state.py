"""What the lines of a journal add up to: pure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import attrs

from actors.house import define, frozen

from .records import (
    Acked,
    Continued,
    Ended,
    Header,
    Moved,
    NewerJournal,
    NotALine,
    Paused,
    Record,
    Started,
    from_line,
)

_DIGITS: Final = 12
"""A number with more of them was written by somebody else, and is not believed: none is
left behind it."""
_ERROR: Final = 1_000
"""Characters that are kept of the error of an agent for its own file."""


@define
class Known:
    """What a journal knows of one task."""

    started: Started
    ended: Ended | None = None
    paused: Paused | None = None
    tries: list[Paused] = attrs.Factory(list[Paused])
    """Its pauses since its model has last answered, each once."""


@define
class State:
    """What a journal knows."""

    tasks: dict[str, Known] = attrs.Factory(dict[str, Known])
    """Each task that has not ended, or whose notification is not acknowledged, or that
    has a key; by the id of its first run; in the order of the starts."""
    notes: dict[str, str] = attrs.Factory(dict[str, str])
    """Each notification that is not acknowledged, in the order of the ends, with that
    run."""
    unfinished: dict[str, str] = attrs.Factory(dict[str, str])
    """Of each task that has not ended, by its id, that run."""
    agents: dict[str, Ended] = attrs.Factory(dict[str, Ended])
    """The last ends of agents, by the id of the agent: what their own files say may be
    older, also after a program that was killed before it could correct them. Without
    those that the end of a program has ended: they can go on."""
    program: str = ""
    """Who has written it last."""
    last_note: int = 0
    """The highest number of a notification."""

    def add(self, record: Record) -> None:
        """Take the next record."""
        match record:
            # First what each task has.
            case Started():
                task = record.task
                before = self.unfinished.get(task)
                if before is not None:
                    # One that had not ended goes on in this one.
                    self.tasks.pop(before, None)
                self.unfinished[task] = record.run
                if not self._knows_later_end(task, record.run):
                    self.agents.pop(task, None)
                self.tasks[record.run] = Known(record)
            case Ended():
                self._ended(record)
            case Acked():
                self._acked(record.note)
            case Header():
                if record.last_note < 10**_DIGITS:
                    self.last_note = max(self.last_note, record.last_note)
                # One that only reserves numbers names none.
                self.program = record.program or self.program
            case Moved():
                known = self.tasks.get(record.run)
                if known is not None and known.ended is None:
                    known.started = attrs.evolve(known.started, background=True)
            case Paused():
                self._paused(record)
            case Continued():
                self._continued(record)

    def _paused(self, record: Paused) -> None:
        known = self.tasks.get(record.run)
        if known is None or known.ended is not None:
            return
        known.paused = record
        if record.attempt > 0:
            fewer = [it for it in known.tries if it.attempt < record.attempt]
            known.tries = [*fewer, record]

    def _continued(self, record: Continued) -> None:
        known = self.tasks.get(record.run)
        if known is None or known.ended is not None:
            return
        known.paused = None
        if record.answered:
            known.tries = []

    def _ended(self, record: Ended) -> None:
        known = self.tasks.get(record.run)
        task = record.run.rpartition("-")[0]
        if known is None and record.note is None and task not in self.unfinished:
            # The end of an agent that is kept for its own file alone.
            self.agents[task] = _for_its_file(record)
        if known is None or known.ended is not None:
            return
        known.ended, known.paused, known.tries = record, None, []
        self.unfinished.pop(task, None)
        if known.started.agent is not None:
            # Its own file says it, or will.
            known.started = attrs.evolve(known.started, agent="")
            if record.by != "shutdown" and not self._knows_later_end(task, record.run):
                self.agents[task] = _for_its_file(record)
        if record.note is not None:
            self.notes[record.note] = record.run
            self.last_note = max(self.last_note, number_in(record.note))
        elif known.started.key is None:
            del self.tasks[record.run]

    def _knows_later_end(self, task: str, run: str) -> bool:
        """Whether that of a later run is known: the records of a file that is made anew
        are in the order of the notifications."""
        over = self.agents.get(task)
        return over is not None and number_in(over.run) > number_in(run)

    def _acked(self, note: str) -> None:
        run = self.notes.pop(note, None)
        if run is None:
            return
        known = self.tasks[run]
        if known.started.key is None:
            del self.tasks[run]
        elif known.ended is not None:
            known.ended = attrs.evolve(known.ended, note=None)

    def forget(self, before: str) -> None:
        """Let go of what has ended before that time and is kept for its key alone, or for
        the file of an agent."""
        for run, known in [*self.tasks.items()]:
            ended = known.ended
            if ended is not None and ended.note is None and ended.at < before:
                del self.tasks[run]
        for agent_id, ended in [*self.agents.items()]:
            if ended.at < before:
                del self.agents[agent_id]

    def place(self, known: Known) -> int:
        """Return a number by which tasks that have ended are in the order of that."""
        return number_in((known.ended and known.ended.note) or "")

    def records(self) -> Iterable[Record]:
        """Return the fewest records that add up to this state."""
        # In the order of the ends, which is that of the notifications. Each before what
        # may have begun under the same id since.
        ended = [it for it in self.tasks.values() if it.ended is not None]
        for known in sorted(ended, key=_end):
            yield known.started
            if known.ended is not None:
                yield known.ended
        for over in self.agents.values():
            if over.run not in self.tasks:
                yield over
        for run in self.unfinished.values():
            known = self.tasks[run]
            yield known.started
            yield from known.tries
            if known.paused is None:
                if known.tries:
                    yield Continued(run=run)
            elif known.paused not in known.tries:
                yield known.paused


def _for_its_file(ended: Ended) -> Ended:
    """Return what the file of an agent is to say of its end."""
    return Ended(
        run=ended.run,
        last_run=ended.last_run,
        status=ended.status,
        at=ended.at,
        by=ended.by,
        error=ended.error and ended.error[:_ERROR],
    )


def _end(known: Known) -> tuple[int, str]:
    ended = known.ended
    return (0, "") if ended is None else (number_in(ended.note or ""), ended.at)


def number_in(id: str) -> int:
    """Return the number at the end of the id of a run or of a notification, 0 if there
    is none that one of ours can have."""
    digits = id.rpartition("-")[2].lstrip("n")
    is_one = len(digits) <= _DIGITS and digits.isascii() and digits.isdecimal()
    return int(digits) if is_one else 0


@frozen
class Read:
    """What was read of a file."""

    state: State
    whole: int
    """So many bytes are whole lines. What follows is torn, and is to be cut."""
    torn: int
    """So many bytes are not."""
    bad: tuple[int, ...]
    """The numbers of lines, from 1, that are whole and say nothing that is known."""
    is_damaged: bool = False
    """Whether something is in it that no death of its program explains: it does not
    begin with a header, or a whole line says nothing that is known."""
    kept: Path | None = None
    """Where it lies as it was, if it was damaged."""


def read(contents: bytes) -> Read:
    """Read a journal.

    What is behind the last line that says something is a torn tail. A line before that
    which says nothing is left out, and told by its number.

    Raises:
        NewerJournal: if a later version has written it.
    """
    state, bad, whole, at, has_header = State(), list[int](), 0, 0, False
    for number, line in enumerate(contents.split(b"\n"), 1):
        at += len(line) + 1
        if at > len(contents):
            break  # It has no newline: it is torn, whatever it says.
        try:
            record = from_line(line)
        except NotALine:
            bad.append(number)
            continue
        state.add(record)
        has_header |= whole == 0 and isinstance(record, Header)
        whole = at
    last = contents[:whole].count(b"\n")
    return Read(
        state,
        whole,
        len(contents) - whole,
        tuple(it for it in bad if it <= last),
        is_damaged=bool(bad) or (not has_header and contents != b""),
    )


__all__ = ["Known", "NewerJournal", "Read", "State", "number_in", "read"]
