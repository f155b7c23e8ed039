"""Read a conversation back from its file.

Each record names the one before it, so a file may hold several conversations, and
branches of one that were given up. What counts is the chain from the newest record
that no other follows.
"""

from __future__ import annotations

import errno
import re
from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import attrs

from .._kernel.collector import fewer_collections
from ..agent import (
    AssistantMessage,
    CompactBoundary,
    Message,
    TodoList,
    UserMessage,
)
from ..agent._conversation import mend, opened, unanswered
from ..env import Files
from ._records import (
    LONGEST_ID,
    OWN_HEAD,
    STEP,
    Chain,
    Recorded,
    Unrecorded,
    decode,
    parse,
    read_straight,
)

READ_LIMIT: Final = 128 * 2**20
"""So much is read from the end of a file, at most: of a longer one what was said since
the last compaction must be in that."""
LINE_LIMIT: Final = 16 * 2**20
"""A line that is longer is neither written nor read."""

_PIECE: Final = 4 * 2**20
# What stands for a line that is too long.
_NO_LINE: Final = b"?"
# Of a tail: what is read at first, and for each message; most are smaller.
_WINDOW: Final = 2**16
_RECORD: Final = 1024
# Others may write it otherwise, but what follows is never earlier than the newest, so
# it comes into later records as it is.
_TIMESTAMP: Final = re.compile(r"[0-9T:.Z+-]{1,40}").fullmatch


class Transcript(NamedTuple):
    """A conversation as it was read."""

    messages: list[Message]
    """From the last compaction on. Its summary is then the first of them, and what it
    has kept follows. They are such as a model accepts: see `TranscriptStore.load`."""
    leaf: str | None
    """The id of the last record that takes part, which the next one is to follow;
    None if there is none."""
    newest: str = ""
    """The latest time of any record, in ISO format."""
    skipped: int = 0
    """How many lines could not be read."""
    missing: int = 0
    """How many messages are known to be missing between the others. Each such
    place has a message that says so."""
    plan: TodoList | None = None
    """The plan of the agent at that compaction."""
    answers: UserMessage | None = None
    """The answers to the calls that were cut, if such were asked for. They are among
    the messages, and in no record yet."""
    heard: Sequence[tuple[str, UserMessage]] = ()
    """The messages among them that somebody has sent, each with the id of its
    record."""
    told: Sequence[str] = ()
    """What is in them of the notifications that it was handed."""

    @property
    def last_heard(self) -> str:
        """The id of the last of these; "" if there is none."""
        return self.heard[-1][0] if self.heard else ""


@attrs.define(eq=False, repr=False)
class _Record:
    uuid: bytes
    parent: bytes | None
    ours: bool
    """Whether it belongs to the agent in question."""
    timestamp: bytes
    line: bytes
    number: int
    """Its place among the records."""
    before: bytes | None = None
    """The id of the record of this agent in the lines before."""

    @property
    def age(self) -> tuple[bytes, int]:
        """Of the same time, the one that was written later is newer."""
        return self.timestamp, self.number

    def said(self) -> Recorded | None:
        """Return what it says.

        Raises:
            ValueError: if its head alone could be read.
        """
        return decode(parse(self.line))


class TranscriptTooLarge(ValueError):
    """A file is so large that the conversation in it cannot be read."""


class _Cut(Exception):
    """The part that is needed lies before the part of the file that was read."""


def _go_on() -> None:
    """Nobody stops it."""


class _Scan:
    """The records in a part of a file, by their ids.

    Of a line that begins as we write them only that is read here: whether the rest
    can be is seen once it takes part in the conversation.
    """

    def __init__(self, agent_id: str) -> None:
        self.records: dict[bytes, _Record] = {}
        self.skipped = 0
        # By the id of a record that unreadable lines precede: the id of the record
        # of this agent before those.
        self._bridges: dict[bytes, bytes | None] = {}
        self._agent = agent_id.encode()
        self._last: bytes | None = None
        self._bridge_next = False

    def add(self, line: bytes) -> None:
        record = self._read(line)
        if record is None or (
            # It would take the place of one that may be whole.
            record.uuid in self.records and not _is_readable(record)
        ):
            self.skipped += 1
            self._bridge_next = True
            return
        if record.ours:
            if self._bridge_next:
                self._bridges[record.uuid] = self._last
                self._bridge_next = False
            record.before, self._last = self._last, record.uuid
        self.records[record.uuid] = record

    def _read(self, line: bytes) -> _Record | None:
        own = OWN_HEAD(line)
        number = len(self.records)
        if own is not None and line.endswith(b"}"):
            parent, uuid, agent, timestamp, _ = own.groups()
            ours = agent == self._agent
            return _Record(uuid, parent, ours, timestamp, line, number)
        try:
            fields = parse(line)
            decode(fields)
            parent = fields.get("parentUuid")
            return _Record(
                _id(fields["uuid"]),
                None if parent is None else _id(parent),
                fields.get("agentId") == self._agent.decode()
                and fields.get("isSidechain") is True,
                _timestamp(fields["timestamp"]),
                line,
                number,
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def newest_leaf(self) -> _Record | None:
        """Return the newest record that can be read and that no other follows, None
        if none can be read. Newer ones that cannot be read are taken out."""
        ours = [record for record in self.records.values() if record.ours]
        followers = Counter(record.parent for record in ours)
        # Where all are followed they go round in a circle.
        leaves = [record for record in ours if record.uuid not in followers] or ours
        leaves = sorted(leaves, key=_age)
        while leaves:
            leaf = leaves.pop()
            if _is_readable(leaf):
                return leaf
            if self.records.pop(leaf.uuid, None) is None:
                continue
            self.skipped += 1
            followers[leaf.parent] -= 1
            above = None if leaf.parent is None else self.records.get(leaf.parent)
            if above is not None and above.ours and not followers[above.uuid]:
                insort(leaves, above, key=_age)
        return None

    def bridge(self, record: _Record) -> bytes | None:
        """Return the id of the record to go on with behind ``record``, of which the
        one that it follows is not there; None if nothing was unreadable between."""
        if record.uuid in self._bridges:
            return self._bridges[record.uuid]
        # It may stand in the rest of a line that has only a head.
        before = None if record.before is None else self.records.get(record.before)
        return None if before is None or _is_readable(before) else before.uuid


_age = attrgetter("age")


def _is_readable(record: _Record) -> bool:
    try:
        record.said()
    except ValueError:
        return False
    return True


def _timestamp(value: Any) -> bytes:
    if _TIMESTAMP(value) is None:
        raise ValueError(f"no time: {value!r}")
    return _id(value)


def _id(value: Any) -> bytes:
    if type(value) is not str or len(value) > LONGEST_ID:
        raise ValueError(f"expected an id, got {value!r:.80}")
    return value.encode("utf-8", "surrogatepass")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogatepass")


def read_transcript(
    files: Files,
    path: Path,
    agent_id: str,
    interrupted: str | None = None,
    go_on: Callable[[], None] = _go_on,
) -> Transcript | None:
    """Read a file; return None if it is not there or has nothing of this agent. It
    may take long: about a second for 100,000 messages. Again and again it calls
    ``go_on``, and what that raises comes out. With ``interrupted``, the calls at the
    end that were never answered get this text as their answer.

    Raises:
        OSError: if it is there and cannot be read, also only in part.
        TranscriptTooLarge: if what would have to be read is more than `READ_LIMIT`.
    """
    size = files.size(path) or 0
    start = max(0, size - READ_LIMIT)
    lines = _read_lines(files, path, start, go_on, least=size)
    with fewer_collections():
        try:
            return _read_chain(
                lines, agent_id, interrupted, is_cut=start > 0, go_on=go_on
            )
        except _Cut:
            raise TranscriptTooLarge(
                f"of its {size:,} bytes {READ_LIMIT:,} can be read, and all that was "
                "said since the last compaction is not in these"
            ) from None


def read_tail(
    files: Files,
    path: Path,
    agent_id: str,
    count: int,
    go_on: Callable[[], None] = _go_on,
) -> list[Message]:
    """Return the last ``count`` messages as they were recorded; fewer if there are
    no more in the last `READ_LIMIT` bytes. Lines that cannot be read are passed over.
    It calls ``go_on`` as `read_transcript`.

    Raises:
        OSError: if the file is there and cannot be read.
    """
    size = files.size(path) or 0
    window = max(_WINDOW, count * _RECORD)
    while True:
        window = min(window, READ_LIMIT)
        start = max(0, size - window)
        lines = _read_lines(files, path, start, go_on, end=size)
        scan = _scan(lines, agent_id, go_on)
        is_whole = start == 0 or window == READ_LIMIT
        messages = _last_messages(scan, count, is_whole=is_whole)
        if messages is not None:
            return messages
        window *= 4


def _last_messages(scan: _Scan, count: int, *, is_whole: bool) -> list[Message] | None:
    """Return the last messages, or None if some of them may be further ahead."""
    found: list[Message] = []
    seen: set[bytes] = set()
    record = scan.newest_leaf()
    while record is not None and record.uuid not in seen and len(found) < count:
        seen.add(record.uuid)
        try:
            said = record.said() if record.ours else None
        except ValueError:
            said = None
        if said is not None:
            found.append(
                _gap_note(said.missing) if isinstance(said, Unrecorded) else said
            )
        if record.parent is None:
            is_whole = True
            break
        record = scan.records.get(record.parent)
    if len(found) < count and not is_whole:
        return None
    found.reverse()
    return found


def _read_lines(
    files: Files,
    path: Path,
    start: int,
    go_on: Callable[[], None],
    end: int | None = None,
    least: int = 0,
) -> list[bytes]:
    """Return the lines of a file, the first of which is left out if ``start`` is
    not its beginning: it may be a part of one.

    Raises:
        OSError: if it cannot be read, or has ended before ``least``.
    """
    lines: list[bytes] = []
    rest: list[bytes] = []
    length = 0
    offset = start
    while True:
        go_on()
        wanted = _PIECE if end is None else min(_PIECE, end - offset)
        piece = files.read_at(path, offset, wanted)
        if not piece:
            break
        offset += len(piece)
        first, *others = piece.split(b"\n")
        length += len(first)
        # What is too long is not kept: a file may have holes, and cost nothing.
        rest = [*rest, first] if length <= LINE_LIMIT else [_NO_LINE]
        if others:
            lines.append(b"".join(rest))
            lines += others[:-1]
            rest = [others[-1]]
            length = len(others[-1])
    if offset < least:
        raise OSError(errno.EIO, "it was cut while it was read", str(path))
    # A last line without a newline is torn, unless only the newline is missing.
    last = b"".join(rest)
    if last or (start and not lines):
        lines.append(last)
    if start:
        del lines[0]
    return lines


def _scan(lines: Sequence[bytes], agent_id: str, go_on: Callable[[], None]) -> _Scan:
    scan = _Scan(agent_id)
    for first in range(0, len(lines), STEP):
        go_on()
        for line in lines[first : first + STEP]:
            if line.strip():
                scan.add(line)
    return scan


def _read_chain(
    lines: Sequence[bytes],
    agent_id: str,
    interrupted: str | None = None,
    *,
    is_cut: bool = False,
    go_on: Callable[[], None] = _go_on,
) -> Transcript | None:
    """Return the conversation in ``lines``, of which others may come before, if it
    ``is_cut``."""
    chain = read_straight(lines, agent_id, go_on)
    if chain is None:
        scan = _scan(lines, agent_id, go_on)
        leaf = scan.newest_leaf()
        if leaf is not None:
            chain = _walk(scan, leaf, is_cut, go_on)
        elif is_cut:
            raise _Cut
        else:
            return None
    said: list[Message] = [*chain.said]
    answers = None if interrupted is None else unanswered(said, interrupted)
    if answers is not None:
        said.append(answers)
    messages, needed = mend(said)
    needed = min(needed, len(chain.ids))
    return Transcript(
        messages=messages,
        leaf=chain.ids[needed - 1] if needed else None,
        answers=answers,
        newest=chain.newest,
        skipped=chain.skipped,
        missing=chain.missing,
        plan=chain.plan,
        heard=[
            (uuid, said)
            for uuid, said in zip(chain.ids, chain.said, strict=True)
            if type(said) is UserMessage and said.origin == "message"
        ],
        told=[
            said.text
            for said in chain.said
            if type(said) is UserMessage and said.origin == "notification"
        ],
    )


def _walk(scan: _Scan, leaf: _Record, is_cut: bool, go_on: Callable[[], None]) -> Chain:
    """Return what was said from the root, or the last compaction, to ``leaf``."""
    ids: list[bytes] = []
    said: list[AssistantMessage | UserMessage] = []
    missing = 0
    plan: TodoList | None = None
    seen: set[bytes] = set()
    record: _Record | None = leaf
    while record is not None and record.uuid not in seen:
        seen.add(record.uuid)
        if len(seen) % STEP == 0:
            go_on()
        try:
            message = record.said() if record.ours else None
        except ValueError:
            scan.skipped += 1
            message = Unrecorded(1)
        if isinstance(message, CompactBoundary):
            kept = [*opened(message)]
            ids += [record.uuid] * len(kept)
            said += reversed(kept)
            plan = message.plan
            break
        if isinstance(message, Unrecorded):
            missing += message.missing
            message = _gap_note(message.missing)
        if message is not None:
            ids.append(record.uuid)
            said.append(message)
        parent = record.parent
        if parent is not None and parent not in scan.records:
            parent = scan.bridge(record)
            if is_cut and parent is None:
                raise _Cut
            missing += 1
            ids.append(record.uuid)
            said.append(_gap_note(1))
        record = None if parent is None else scan.records.get(parent)
    newest = max(record.timestamp for record in scan.records.values() if record.ours)
    found = said[::-1], [*map(_text, ids[::-1])], _text(newest)
    return Chain(*found, scan.skipped, missing, plan)


def _gap_note(missing: int) -> UserMessage:
    some = "A message is" if missing == 1 else f"{missing} messages are"
    return UserMessage(
        f"[{some} missing here: what was said could not be recorded.]",
        origin="reminder",
    )
