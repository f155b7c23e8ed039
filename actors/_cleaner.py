"""Make plain text of what a process prints for a terminal.

`Cleaner` takes the raw bytes piece by piece and gives clean UTF-8. It is pure,
and holds no more than a fixed amount, however much a process prints.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

ESCAPE_SEQUENCE: Final = (
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]?"  # CSI
    r"|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC
    r"|[PX^_][^\x1b\n]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    r"|[()*+][0-~]?"  # choice of a character set
    r"|[@-Z\\78=>]"  # the rest of Fe; cursor and keypad
    r")?"
)
"""A pattern for terminal escape sequences, and for an ESC that begins none.

A sequence that is not finished takes what it has, at most the rest of its line.
So a cut anywhere inside of one leaves nothing of its first part behind, and
every ESC begins a match of its own wherever the matching started.
"""

_SEQUENCE: Final = re.compile(ESCAPE_SEQUENCE.encode())
_UNFINISHED: Final = re.compile(
    rb"\x1b(?:\[[0-?]*([ -/])?[ -/]*|\][^\x07\x1b\n]*|[PX^_][^\x1b\n]*|[()*+])?\Z"
)
_C1: Final = re.compile(rb"\xc2[\x80-\x9f]")
_REMOVED: Final = bytes(code for code in (*range(32), 127) if code not in b"\t\n\r")

LINE_LIMIT: Final = 65_536
"""How many bytes of one unfinished line are held back, by default."""


class Cleaner:
    """Makes clean UTF-8 text of terminal output, piece by piece.

    How the input is cut into pieces never changes the result as a whole:

    - Invalid UTF-8 becomes U+FFFD; a character cut in two stays whole.
    - Escape sequences go (`ESCAPE_SEQUENCE`), and so do the C0 controls but
      tab and newline, DEL, and the C1 controls.
    - Of a line that was redrawn with carriage returns the last frame that is
      not empty stays; ``\\r\\n`` is a newline.

    To replace a frame it must not have been given out, so the unfinished line
    is held back. A frame that reaches ``line_limit`` bytes is given out at once
    and no longer replaced: a frame that follows it on that line comes after a
    newline instead. No more than about ``line_limit`` bytes are ever held.
    """

    __slots__ = ("_character", "_held", "_limit", "_open", "_sequence")

    def __init__(self, *, line_limit: int = LINE_LIMIT) -> None:
        self._limit = line_limit
        self._character = b""  # the first bytes of a character
        self._sequence = b""  # stands for the sequence that is being skipped
        # The frame that can still be replaced, and "\r" once it is complete.
        # When the line is open (a long frame of it was given out), empty while
        # that frame still grows, and else "\r" and then the same.
        self._held = b""
        self._open = False

    @property
    def unfinished(self) -> bytes:
        """The frame held back: what `finish` would give out of the last line."""
        frame = self._held.strip(b"\r")
        return b"\n" + frame if frame and self._open else frame

    def feed(self, data: bytes) -> bytes:
        """Take the next piece and return the text that is settled by it."""
        is_ascii = data.isascii()
        if self._character or self._sequence or not is_ascii:
            data = self._decode(data, final=False)
        # A search for one byte runs at memory speed, so thirty of them are
        # faster than the one translate() or regular expression.
        if self._sequence or any(map(data.__contains__, _REMOVED)):
            data = self._strip(data)
        elif not is_ascii and b"\xc2" in data:
            data = _C1.sub(b"", data)
        return self._settle(data)

    def finish(self) -> bytes:
        """Return the rest. The cleaner is as new after it."""
        rest = self._settle(self._strip(self._decode(b"", final=True)))
        self._sequence = b""
        return rest + self._end_line()

    def _decode(self, data: bytes, *, final: bool) -> bytes:
        data = self._character + data
        text, used = codecs.utf_8_decode(data, "replace", final)
        self._character = data[used:]
        return text.encode() if "\ufffd" in text else data[:used]

    def _strip(self, data: bytes) -> bytes:
        if self._sequence or b"\x1b" in data:
            data = self._sequence + data
            self._sequence = b""
            last = data.rfind(b"\x1b")
            if unfinished := _UNFINISHED.match(data, last):
                # The shortest sequence that goes on like this one: what it has
                # so far is skipped and need not be remembered.
                self._sequence = data[last : last + 2] + (unfinished[1] or b"")
                data = data[:last]
            data = _SEQUENCE.sub(b"", data)
        data = data.translate(None, _REMOVED)
        return _C1.sub(b"", data) if b"\xc2" in data else data

    def _settle(self, data: bytes) -> bytes:
        has_frames = b"\r" in data
        if has_frames:
            data = data.replace(b"\r\n", b"\n")
            has_frames = b"\r" in data
        if not has_frames and b"\r" not in self._held:
            end = data.rfind(b"\n") + 1
            if not end:
                return self._draw(data)
            done = self._held + memoryview(data)[:end]
            self._held, self._open = b"", False
            return done + self._draw(data[end:])
        *lines, rest = data.split(b"\n")
        done = b"".join([self._draw(line) + self._end_line() + b"\n" for line in lines])
        return done + self._draw(rest)

    def _draw(self, part: bytes) -> bytes:
        """Go on with the current line; return what cannot be replaced any more."""
        line = self._held + part
        done = b""
        if self._open:
            done, closed, line = line.partition(b"\r")
            if not closed:
                self._held = b""
                return done
        frames = line.split(b"\r")
        kept = b""
        for frame in frames:
            if len(frame) >= self._limit:
                done += b"\n" + frame if self._open else frame
                self._open = True
                kept = b""
            elif frame:
                kept = frame
        current = frames[-1]
        if len(current) >= self._limit:
            self._held = b""
        else:
            complete = bool(kept) and not current
            self._held = b"\r" * self._open + kept + b"\r" * complete
        return done

    def _end_line(self) -> bytes:
        frame = self.unfinished
        self._held, self._open = b"", False
        return frame


def whole_characters(data: bytes) -> bytes:
    """Return ``data`` without the rest of a UTF-8 character cut off before it."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def whole_to_end(data: bytes) -> bytes:
    """Return ``data`` without the beginning of a UTF-8 character cut off after it."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            size = 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
            return data if size <= back else data[:-back]
    return data
