"""The rules of text: what may stand in it, and how much of it is shown.

`clean_text` takes out what deceives a terminal or a parser, and `Cleaner` does it
for the bytes that a process prints, piece by piece. `one_line`, `first_line` and
`cut` make a text short, `escape` makes it harmless between tags, and `encodable`
makes it something that UTF-8 can hold. All of it is pure.

It is for `actors` and `supervisor` themselves, so it has no ``__all__`` and no name
of it is promised.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, cast

ESCAPE_SEQUENCE: Final = (
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]?"  # CSI
    r"|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC
    r"|[PX^_][^\x1b\n]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    r"|[()*+][0-~]?"  # choice of a character set
    r"|[@-Z\\78=>]"  # the rest of Fe; cursor and keypad
    r")?"
)
"""A pattern for terminal escape sequences, and for an ESC that does not begin one.

An unfinished sequence matches as far as it goes, at most to the end of its line.
So a cut inside a sequence leaves nothing of its first part behind, and every ESC
begins a match of its own wherever the matching started.
"""

_SEQUENCE: Final = re.compile(ESCAPE_SEQUENCE)
_SEQUENCE_BYTES: Final = re.compile(ESCAPE_SEQUENCE.encode())
_UNFINISHED: Final = re.compile(
    rb"\x1b(?:\[[0-?]*([ -/])?[ -/]*|\][^\x07\x1b\n]*|[PX^_][^\x1b\n]*|[()*+])?\Z"
)
_C1: Final = re.compile(rb"\xc2[\x80-\x9f]")
_REMOVED: Final = bytes(code for code in (*range(32), 127) if code not in b"\t\n\r")

LINE_LIMIT: Final = 65_536
"""How many bytes of one unfinished line are held back, by default."""

_FORBIDDEN: Final = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional controls
    "\ud800-\udfff\ufffe\uffff]"  # not in XML
)
_PLAIN: Final = bytes((*b"\t\n", *range(32, 127)))
# To keep n characters, at most this many times n are read before cleaning.
_READ_AHEAD: Final = 4

# Parsers refuse data that is nested much deeper, and no honest program nests so.
_DEPTH: Final = 200
_TOO_DEEP: Final = "[nested too deeply]"


def clean_text(text: str) -> str:
    """Return ``text`` without what could deceive a terminal or an XML parser.

    Terminal escape sequences go, and of the other characters: the C0 controls
    but tab and newline, DEL, the C1 controls, the bidirectional controls, lone
    surrogates, U+FFFE and U+FFFF. So ``\\r\\n`` becomes a newline.
    """
    if "\x1b" in text:
        text = _SEQUENCE.sub("", text)
    # Only what is not plain ASCII is searched: a search for a set of characters
    # takes ten times as long per character as translate() does.
    odd = text.encode("utf-8", "surrogatepass").translate(None, _PLAIN)
    if odd and _FORBIDDEN.search(odd.decode("utf-8", "surrogatepass")):
        text = _FORBIDDEN.sub("", text)
    return text


def one_line(text: str, limit: int | None = 200, mark: str = "…") -> str:
    """Return ``text`` cleaned, with single spaces for all white space, and cut
    to ``limit`` characters. A text that was cut ends with ``mark``."""
    read = text if limit is None else text[: limit * _READ_AHEAD]
    line = " ".join(clean_text(read).split())
    if limit is not None and (len(read) < len(text) or len(line) > limit):
        line = line[: limit - len(mark)] + mark
    return line


def escaped_line(text: str, limit: int = 200) -> str:
    """Return `one_line`, escaped for a place between tags of XML."""
    return escape(one_line(text, limit))


def first_line(text: str, limit: int = 200, mark: str = "") -> str:
    """Return the first line of ``text`` that is not empty, cut to ``limit``
    characters. It ends with ``mark`` if the text has more."""
    text = text.strip()
    line = "".join(text[: limit + 1].splitlines()[:1]).rstrip()
    if mark and len(line) < len(text):
        line = f"{line} {mark}"
    return cut(line, limit, mark).rstrip()


def duration_words(milliseconds: int) -> str:
    """Return a duration for people, such as ``3m 2s``. Below a second it is in
    milliseconds and below ten in tenths of a second. What is left of that is cut."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 10_000:
        return f"{milliseconds // 100 / 10:g}s"
    minutes, seconds = divmod(milliseconds // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes}m {seconds}s"
    return f"{minutes}m {seconds}s" if minutes else f"{seconds}s"


def cut(text: str, limit: int, mark: str = "…") -> str:
    """Return ``text``, cut to ``limit`` characters if it is longer. A text that was
    cut ends with ``mark``."""
    return text if len(text) <= limit else text[: limit - len(mark)] + mark


def escape(text: str, *, quotes: bool = False) -> str:
    """Return ``text`` escaped for a place between tags of XML. For an attribute, escape
    ``quotes``, too."""
    if type(text) is not str:  # or its own methods could let a tag through
        text = str.__str__(text)
    # Looked for first: that takes a tenth of the time, and most texts have few of them.
    if "&" in text:
        text = text.replace("&", "&amp;")
    if "<" in text:
        text = text.replace("<", "&lt;")
    if ">" in text:
        text = text.replace(">", "&gt;")
    if quotes:
        if '"' in text:
            text = text.replace('"', "&quot;")
        if "'" in text:
            text = text.replace("'", "&apos;")
    return text


def unescape(text: str) -> str:
    """Return what `escape` has made harmless, as it was."""
    for character, name in (("<", "lt"), (">", "gt"), ('"', "quot"), ("'", "apos")):
        text = text.replace(f"&{name};", character)
    return text.replace("&amp;", "&")


def is_encodable(text: str) -> bool:
    """Whether UTF-8 can hold ``text``: no half of a surrogate pair is in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encodable(text: str) -> str:
    """Return ``text`` as UTF-8 can hold it: the two halves of a surrogate pair become
    their character, and a half alone becomes a question mark."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        return whole.encode("utf-8", "replace").decode()
    return text


def encodable_data(data: Any) -> Any:
    """Return ``data``, of dicts, lists, text and numbers, as JSON in UTF-8 can hold
    it. Each text and key becomes `encodable`, NaN and infinities become null, and
    data nested more than 200 levels deep becomes a text that says so. If nothing had
    to change, the same object is returned."""
    try:
        json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
    # A TypeError is about a value that JSON has no form for. It stays as it is, so
    # that the error of the real encoding names it.
    except (ValueError, RecursionError, TypeError):
        return _encodable(data, _DEPTH)
    return data


def _encodable(data: Any, depth: int) -> Any:
    if isinstance(data, str):
        return encodable(data)
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if not isinstance(data, Mapping | list | tuple):
        return data
    if depth == 0:
        return _TOO_DEEP
    if isinstance(data, Mapping):
        return {
            encodable(key) if isinstance(key, str) else key: _encodable(item, depth - 1)
            for key, item in cast("Mapping[object, object]", data).items()
        }
    return [_encodable(item, depth - 1) for item in cast("list[object]", data)]


class Cleaner:
    """Makes clean UTF-8 text of terminal output, piece by piece.

    How the input is cut into pieces never changes the result as a whole:

    - Invalid UTF-8 becomes U+FFFD; a character cut in two stays whole.
    - Escape sequences go (`ESCAPE_SEQUENCE`), and so do the C0 controls but
      tab and newline, DEL, and the C1 controls.
    - Of a line that was redrawn with carriage returns only the last frame that
      is not empty stays; ``\\r\\n`` is a newline.

    A frame can be replaced only before it is returned, so the unfinished line is
    held back. A frame that reaches ``line_limit`` bytes is returned at once and no
    longer replaced: the next frame of that line comes after a newline instead. At
    most about ``line_limit`` bytes are held.
    """

    __slots__ = ("_character", "_held", "_limit", "_open", "_sequence")

    def __init__(self, *, line_limit: int = LINE_LIMIT) -> None:
        self._limit = line_limit
        self._character = b""  # the first bytes of a character
        self._sequence = b""  # stands for the sequence that is being skipped
        # The frame that can still be replaced, and "\r" once it is complete.
        # If the line is open (a long frame of it was given out), it is empty while
        # that frame still grows, and then "\r" followed by the frame.
        self._held = b""
        self._open = False

    @property
    def unfinished(self) -> bytes:
        """The frame held back: what `finish` would return of the last line."""
        frame = self._held.strip(b"\r")
        return b"\n" + frame if frame and self._open else frame

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held back, so `finish` would return nothing."""
        return not (self._held or self._character or self._sequence)

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
        """Return the rest, and start afresh."""
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
                # The shortest sequence that can end like this one stands for it,
                # so an endless sequence is not kept in memory.
                self._sequence = data[last : last + 2] + (unfinished[1] or b"")
                data = data[:last]
            data = _SEQUENCE_BYTES.sub(b"", data)
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
        """Add to the current line; return what cannot be replaced any more."""
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
