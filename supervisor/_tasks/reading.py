"""Read the output of a task: its end, a part, as it comes, or until it says
something.

Output is read from the task's file, so a slow reader holds up nobody and keeps
nothing in memory. Offsets are bytes of the output as it was kept, from the first run
on. With a rotated file they go on, and a reader is told what was dropped. Nothing here
waits for the disk. What cannot be read, or is not a regular file, reads as
empty.

The output of an agent is its transcript, as it is in the file: one line of JSON for
each message.

The last line of a running command, while it is unfinished, is not in the file
yet, because a carriage return may replace it. Readers see it nevertheless, after
the end of the file: a prompt has no newline.
"""

from __future__ import annotations

import codecs
import contextlib
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, Self, TypeAlias

import trio

from actors.hosting import older_file
from actors.house import check_whole, frozen
from actors.text import whole_characters

from .record import Task
from .snapshot import OutputEnded

WaitFor: TypeAlias = Callable[
    [Callable[[], Awaitable[object]], Task], Awaitable[object]
]
"""How a reader waits for the growth of a task's output, who may be a task with a place
to lend: `supervisor._life.life.Life.wait_for`."""

CHUNK: Final = 65_536
"""Bytes that are read at once."""

WINDOW: Final = 8192
"""Characters of what came before in which a match of a regular expression may
begin."""

_AGAIN: Final = 1.0
"""Seconds after which what could not be read is read again."""


@frozen
class OutputPart:
    """A part of a task's output."""

    text: str
    offset: int
    """Where it begins. More than was asked for if that was inside of a character,
    or is no longer kept."""
    next_offset: int
    """Where the next part begins."""
    done: bool
    """Whether the task has ended and this is the end of its output."""
    unfinished: str = ""
    """The line that follows, if this is all there is yet, and that line is not
    complete: it may still be replaced, and ``next_offset`` is before it."""


def read_tail(task: Task, limit: int = 65_536, *, whole_lines: bool = False) -> str:
    """Return the end of the output, unfinished line included, as at most
    ``limit`` characters.

    If that is not all, it begins with a line that says so and names the file,
    and has exactly ``limit`` characters with it. (A ``limit`` that has no room
    for that line gives the end alone.)

    Args:
        whole_lines: leave out the rest of a line that was cut; then it may have
            fewer characters.

    Raises:
        TypeError, ValueError: for bad arguments.
    """
    check_whole("limit", limit)
    end = _end(task)
    # A character has at most 4 bytes; one more tells whether there are more.
    begin = max(0, end - 4 * (limit + 1))
    begin = _kept_from(task, begin)
    data = _read(task, begin, end - begin)
    is_cut = begin > 0
    kept = whole_characters(data) if is_cut else data
    text = kept.decode("utf-8", "replace") + _unfinished(task)
    if not is_cut and len(text) <= limit:
        return text
    header = f"[Truncated. Full output: {task.output_source}]\n"
    if len(header) > limit:
        header = ""
    start = max(0, len(text) - (limit - len(header)))
    if whole_lines and (is_cut or start) and text[start - 1 : start] != "\n":
        start = text.find("\n", start) + 1 or len(text)
    return header + text[start:]


def read_from(
    task: Task, offset: int = 0, limit: int = 65_536, *, whole_lines: bool = False
) -> OutputPart:
    """Return at most ``limit`` bytes of the output from ``offset`` on, as whole
    characters (one, if ``limit`` is less than that has).

    A character of which only the beginning is there is left for the next part.
    What is not UTF-8, in raw output, reads as U+FFFD.

    Args:
        whole_lines: begin with the first line that begins at ``offset`` or
            later.

    Raises:
        TypeError, ValueError: for bad arguments.
    """
    check_whole("offset", offset)
    check_whole("limit", limit, 1)
    ended = task.status.is_terminal
    first = _kept_from(task, max(0, offset - 3))
    begin = max(offset, first)
    context = begin - first
    data = _read(task, first, context + max(limit, 4))
    before, data = data[:context], data[context:]
    skipped = _rest_of_character(before, data)
    if whole_lines and begin and before[-1:] != b"\n":
        skipped = data.find(b"\n") + 1 or len(data)
    begin += skipped
    data = data[skipped:]
    end = _end(task)
    text, used = "", 0
    for size in range(limit, limit + 4):
        is_last = ended and begin + size >= end
        text, used = codecs.utf_8_decode(data[:size], "replace", is_last)
        if used or size >= len(data):
            break
    after = begin + used
    is_end = after >= end
    return OutputPart(
        text=text,
        offset=begin,
        next_offset=after,
        done=ended and is_end,
        unfinished=_unfinished(task) if is_end else "",
    )


def output_size(task: Task) -> int:
    """Return the bytes of the output of all runs, unfinished line included, and also
    those that are no longer kept."""
    unfinished = 0 if task.log is None else len(task.log.unfinished)
    return _end(task) + unfinished


def output_end(task: Task) -> int:
    """Return the byte at which what comes next will be kept: the unfinished line is
    before it."""
    return _end(task)


class Follower(AsyncIterator[str]):
    """The output of a task from the byte ``offset`` on, as it comes.

    Any number may follow one task, also one that is pending or has ended.
    Output that was dropped by a rotation before it was read is told in a line.
    What was shown of an unfinished line is not repeated. If it is replaced then,
    by a carriage return, the line that is kept in its place comes after a
    newline, once it is complete; so all pieces together are the file, but for
    such lines.

    Cancelling the wait for the next piece loses nothing, and the iteration can
    be gone on with. It ends after the task's last byte.

    Raises:
        TypeError, ValueError: for bad arguments.
    """

    def __init__(self, task: Task, offset: int, wait_for: WaitFor) -> None:
        check_whole("offset", offset)
        self.offset = offset
        """Where in the output the next piece of the file begins."""
        self._task = task
        self._wait_for = wait_for
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._shown = ""  # of the unfinished line
        self._in_line = False  # whether the last piece ended inside of a line
        self._is_beyond = offset > _end(task)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        await trio.lowlevel.checkpoint()
        while True:
            # No checkpoint from here to the wait: nothing is missed.
            if text := self._next():
                self._in_line = not text.endswith("\n")
                return text
            if self._task.status.is_terminal:
                raise StopAsyncIteration
            await _wait_more(self._task, self.offset, self._wait_for)

    def _next(self) -> str:
        """Return what there is; nothing only if there is nothing yet."""
        dropped = _kept_from(self._task, self.offset) - self.offset
        if dropped > 0:
            self.offset += dropped
            self._decoder.reset()
            self._shown = ""
            return "\n" * self._in_line + (
                f"[{dropped:,} bytes of output are no longer kept]\n"
            )
        while data := _read(self._task, self.offset, CHUNK):
            self.offset += len(data)
            self._is_beyond = False
            if text := self._without_shown(self._decoder.decode(data)):
                return text
        if self._task.status.is_terminal:
            return self._decoder.decode(b"", final=True)
        return self._more_of_line()

    def _without_shown(self, text: str) -> str:
        shown, self._shown = self._shown, ""
        if text.startswith(shown):
            return text[len(shown) :]
        if shown.startswith(text):
            # Only a part of the line has reached the file.
            self._shown = shown[len(text) :]
            return ""
        return "\n" + text

    def _more_of_line(self) -> str:
        line = "" if self._is_beyond else _unfinished(self._task)
        if not line.startswith(self._shown):
            # It was redrawn, and may be many times: only the last one counts.
            return ""
        more = line[len(self._shown) :]
        self._shown = line
        return more


async def wait_output(
    task: Task, pattern: str | re.Pattern[str], wait_for: WaitFor
) -> re.Match[str]:
    """Wait until the output holds ``pattern`` and return the first match.

    Output of before the call counts, as far as it is kept, and so does the
    unfinished line; but what a run has printed that another has followed, or is to
    follow, does not. A frame of a redrawn line that was replaced within one
    write is not seen.

    Args:
        pattern: text as it stands, or a compiled regular expression. That
            matches as soon as it can, perhaps before all of a line is there: let
            it end with what must follow. Its match may begin in the last
            `WINDOW` characters before the latest piece.

    Raises:
        OutputEnded: if the task ends and its output does not hold it.
        TypeError, ValueError: if that is not such a pattern, or is empty text.
    """
    expression, overlap = _compile(pattern)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    between_runs = task.runs is not None and task.runs.state == "restarting"
    offset = task.output_bytes if between_runs else task.output_run
    # One character more than may match tells where a line or word begins.
    seen, first = "", 0
    await trio.lowlevel.checkpoint()
    while True:
        kept_from = max(task.output_run, _kept_from(task, offset))
        if kept_from > offset:
            offset = kept_from
            decoder.reset()
            seen, first = "", 0
        ended = task.status.is_terminal
        data = _read(task, offset, CHUNK)
        offset += len(data)
        seen += decoder.decode(data, final=ended and not data)
        if match := expression.search(seen + _unfinished_after(task, data), first):
            return match
        if len(seen) > overlap:
            first = 1
            seen = seen[len(seen) - overlap - 1 :]
        if data:
            await trio.lowlevel.checkpoint()
        elif ended:
            raise OutputEnded(task.snapshot())
        else:
            await _wait_more(task, offset, wait_for)


async def _wait_more(task: Task, offset: int, wait_for: WaitFor) -> None:
    """Wait for more output; not for long, if there is some that could not be read."""
    unread = task.output_bytes > offset
    with trio.move_on_after(_AGAIN if unread else math.inf):
        await wait_for(task.growth.wait, task)


def _compile(pattern: str | re.Pattern[str]) -> tuple[re.Pattern[str], int]:
    """Return it compiled, and how much of what came before a match may need."""
    if isinstance(pattern, str):
        if not pattern:
            raise ValueError("pattern must not be empty")
        return re.compile(re.escape(pattern)), len(pattern) - 1
    if not isinstance(pattern, re.Pattern) or not isinstance(pattern.pattern, str):
        raise TypeError(
            f"pattern must be a str or a compiled one for text, not {pattern!r}"
        )
    return pattern, WINDOW


def _kept_from(task: Task, offset: int) -> int:
    """Return ``offset``, or where the output begins that is still kept."""
    path = task.output_source
    if offset >= task.output_start or path is None:
        return offset
    size = _size(task, older_file(path))
    if size != task.output_start - task.output_dropped:
        # Somebody has taken it away.
        return task.output_start
    return max(offset, task.output_dropped)


def _read(task: Task, offset: int, limit: int) -> bytes:
    """Return at most ``limit`` bytes of the output that is kept."""
    path = task.output_source
    if path is None:
        return b""
    data = b""
    if offset < task.output_start:
        data = _read_at(
            task,
            older_file(path),
            offset - task.output_dropped,
            min(limit, task.output_start - offset),
        )
        offset += len(data)
        if offset < task.output_start:
            return data
    limit -= len(data)
    return data + _read_at(task, path, offset - task.output_start, limit)


# What cannot be read reads as empty. No agent goes on from it, as from a transcript.


def _read_at(task: Task, path: Path, offset: int, limit: int) -> bytes:
    try:
        return task.env.files.read_at(path, offset, limit)
    except OSError:
        return b""


def _size(task: Task, path: Path) -> int | None:
    try:
        return task.env.files.size(path)
    except OSError:
        return None


def _end(task: Task) -> int:
    path = task.output_source
    if path is None:
        return 0  # Nothing is left, also not of what a rotation had kept.
    return task.output_start + (_size(task, path) or 0)


def _unfinished(task: Task) -> str:
    return "" if task.log is None else task.log.unfinished.decode()


def _unfinished_after(task: Task, data: bytes) -> str:
    """Return the unfinished line, if nothing follows ``data`` in the file."""
    return _unfinished(task) if not data else ""


def _rest_of_character(before: bytes, data: bytes) -> int:
    """Return how many bytes of ``data`` belong to a character that begins in
    ``before``; invalid bytes belong to none."""
    for distance in range(1, len(before) + 1):
        for rest in range(1, min(5 - distance, len(data) + 1)):
            with contextlib.suppress(UnicodeDecodeError):
                if len((before[-distance:] + data[:rest]).decode()) == 1:
                    return rest
    return 0
