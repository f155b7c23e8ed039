"""The lines that a monitor is to tell, and no more of them than a note has room for.

Pure. What a command prints is data: each line is cleaned, then cut, then escaped, so
none can pass for another line, for a part of the note or for its end. The first lines
are kept, the others are counted, so memory is bounded however much a command prints.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from actors.envelope import NOTE
from actors.text import clean_text, cut, escape, escaped_line, one_line, unescape

from .outbox import Words

NOTE_LIMIT: Final = 4_000
"""The most characters of a note, all that is in it together."""
LINES: Final = 200
"""The most lines of a note."""
LINE_SHOWN: Final = 500
"""The most characters of a line."""

# What is left of a note for its lines, escaped: all that stands beside them is shorter
# than the rest.
_ROOM: Final = 3_000
_DESCRIPTION_SHOWN: Final = 60
_WHY_SHOWN: Final = 40


_LOOKED_AT: Final = 4_096
"""Characters of a line that are looked at."""


@attrs.define(eq=False, repr=False)
class Lines:
    """The lines since the last note."""

    more: int = attrs.field(default=0, init=False)
    """How many were left out."""
    more_from: int = attrs.field(default=0, init=False)
    """The byte of the output at which the first of these begins."""
    unread: int = attrs.field(default=0, init=False)
    """Bytes of output that were gone before they were read, or came too fast."""
    why: str | None = attrs.field(default=None, init=False)
    """Why there will be no other note."""
    _kept: list[str] = attrs.field(factory=list[str], init=False)
    _size: int = attrs.field(default=0, init=False)

    def __bool__(self) -> bool:
        return bool(self._kept or self.more or self.unread or self.why)

    def __len__(self) -> int:
        return len(self._kept) + self.more

    def add(self, line: str, at: int) -> None:
        """Add a line, which begins at the byte ``at`` of the output. From the first on
        that is left out, all are."""
        if not self.more and len(self._kept) < LINES:
            # Cut before it is cleaned, too: it may be long.
            read = line[:_LOOKED_AT]
            text = clean_text(read) + "…" * (len(read) < len(line))
            shown = escape(cut(text, LINE_SHOWN))
            if self._size + len(shown) + 1 <= _ROOM:
                self._kept.append(shown)
                self._size += len(shown) + 1
                return
        if not self.more:
            self.more_from = at
        self.more += 1

    def words(self, monitor_id: str, task_id: str, description: str) -> Words:
        """Return what the parent is told: the same as long as nothing is added."""
        what = f'Command "{escaped_line(description, _DESCRIPTION_SHOWN)}"'
        if len(self):
            says = "1 line" if len(self) == 1 else f"{len(self):,} lines"
            what = f"{what} has printed {says}"
        parts = [
            "<task-lines>",
            f"<monitor-id>{escape(monitor_id)}</monitor-id>",
            f"<task-id>{escape(task_id)}</task-id>",
            f"<summary>{what}</summary>",
        ]
        if self._kept:
            parts.append("\n".join(["<lines>", *self._kept, "</lines>"]))
        if more := self._more():
            parts.append(f"<more>{more}</more>")
        if self.why is not None:
            why = f"This was the last note: {escaped_line(self.why, _WHY_SHOWN)}"
            parts.append(f"<ended>{why}</ended>")
        parts += [f"<note>{NOTE}</note>", "</task-lines>"]
        return Words(text="\n".join(parts), summary=self._summary(description))

    def _more(self) -> str:
        told: list[str] = []
        if self.more:
            told.append(
                f"and {self.more:,} more, from byte {self.more_from} of the output on"
            )
        if self.unread:
            told.append(f"{self.unread:,} bytes of output were not looked at")
        return "; ".join(told)

    def _summary(self, description: str) -> str:
        """Return the line for people: what the command has printed first."""
        what = f'Monitor "{one_line(description, _DESCRIPTION_SHOWN)}"'
        if not self._kept:
            return f"{what}: {self.why or self._more()}"
        # The number comes before what a command may have made long.
        more = len(self) - 1
        count = f" (and {more:,} more)" if more else ""
        return f"{what}{count}: {one_line(unescape(self._kept[0]))}"


@attrs.define(eq=False, repr=False)
class LineReader:
    """Makes lines of output that comes piece by piece, and picks those that hold
    ``pattern``. How the output is cut into pieces changes nothing in them."""

    _pattern: str | re.Pattern[str] | None
    # The line that is not complete, and the byte at which it begins.
    _line: str = attrs.field(default="", init=False)
    _line_at: int = attrs.field(default=0, init=False)

    @property
    def is_quick(self) -> bool:
        """Whether it need not look at each line by itself."""
        return not isinstance(self._pattern, re.Pattern)

    def leap(self, offset: int) -> None:
        """Go on at the byte ``offset``: what was there of a line is forgotten."""
        self._line, self._line_at = "", offset

    def feed(self, text: str, offset: int, lines: Lines) -> bool:
        """Add to ``lines`` those that ``text``, which begins at the byte ``offset``,
        completes. Return whether there was any."""
        end = text.rfind("\n") + 1
        if not end:
            self._line = (self._line + text)[: _LOOKED_AT + 1]
            return False
        before = len(lines)
        newline = text.index("\n")
        line = self._line + text[:newline]
        if self._wants(line):
            lines.add(line, self._line_at)
        begins = newline + 1
        while (begins := self._next(text, begins, end)) < end:
            if self._pattern is None and lines.more:
                # Nothing of them is shown.
                lines.more += text.count("\n", begins)
                break
            newline = text.index("\n", begins)
            line = text[begins:newline]
            if self._wants(line):
                # Where it begins is asked for once a note.
                at = 0 if lines.more else offset + len(text[:begins].encode())
                lines.add(line, at)
            begins = newline + 1
        self._line = text[end : end + _LOOKED_AT + 1]
        self._line_at = offset + len(text[:end].encode())
        return len(lines) > before

    def finish(self, lines: Lines) -> bool:
        """Add the line that is not complete, after which nothing comes. Return whether
        there was one."""
        line, self._line = self._line, ""
        if not line or not self._wants(line):
            return False
        lines.add(line, self._line_at)
        return True

    def _next(self, text: str, begins: int, end: int) -> int:
        """Return where the next line begins that may be wanted, from ``begins`` on."""
        if not isinstance(self._pattern, str):
            return begins
        found = text.find(self._pattern, begins, end)
        return end if found < 0 else text.rfind("\n", 0, found) + 1

    def _wants(self, line: str) -> bool:
        pattern = self._pattern
        if isinstance(pattern, str):
            return pattern in line[:_LOOKED_AT]
        return pattern is None or pattern.search(line, 0, _LOOKED_AT) is not None
