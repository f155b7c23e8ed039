"""The transcript of one agent, as it waits for the disk and is written to it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import attrs
import trio

from .._kernel.values import frozen
from ..agent import Message, UserMessage
from ..env import Files
from ..output._quota import DirectoryQuotaExceeded, DiskQuota, QuotaExceeded
from ._reading import LINE_LIMIT, Transcript, read_transcript
from ._records import Unrecorded, dump, encode

LOG_LIMIT: Final = 64 * 2**20
"""While so many bytes of one agent wait for the disk nothing is added to them."""
_GAP: Final = 512
"""A record that says how many messages are missing has no more bytes, beside what all
records of its log end with."""
_LINK: Final = len('"00000000-0000-0000-0000-000000000000"') - len("null")
"""By so many bytes the first record grows when it is written behind others."""
_LOST: Final = "{} messages at the end could not be recorded"
STORE_LIMIT: Final = 256 * 2**20
"""While so many bytes of all agents wait for the disk nothing is added to them."""


@attrs.define(slots=False, repr=False)
class TranscriptQuotaExceeded(QuotaExceeded):
    """Raised when an agent has said and was told more than its transcript may hold.

    All that came before is in the file. Its agent fails, because it could not be
    resumed from a conversation of which a part is missing. It can be resumed with a
    higher quota, which is ``Limits(transcript=...)``.
    """

    def __str__(self) -> str:
        return (
            f"the transcript reached its quota of {self.quota:,} bytes; what came "
            f"before is in {self.path}"
        )


class Queue(Protocol):
    """What a log wants of the store that it belongs to."""

    waiting: int
    """The bytes of all logs that wait for the disk."""
    is_stopped: bool
    """Whether nobody will ever write."""
    quota: int | None
    """The most bytes that the file of one log may have."""
    disk: DiskQuota | None
    """The quota of the directory."""
    wanted_logs: dict[str, TranscriptLog]
    """Those that are written next, by agent."""

    def time(self) -> str:
        """Return the time as records have it, to the millisecond or better."""
        ...

    def want(self, log: TranscriptLog) -> None:
        """Have ``log`` written."""
        ...

    async def wait_settled(self) -> None:
        """Wait until something has come of an attempt to write, or nothing ever will;
        it may return before."""
        ...

    def forget(self, log: TranscriptLog) -> None:
        """Nothing more will come of ``log``."""
        ...

    def warn(self, agent_id: str, text: str) -> None:
        """Tell that something could not be recorded."""
        ...


# ---- What waits for the disk ----------------------------------------------------


@frozen
class Written:
    """How much of a log is in its file."""

    count: int = 0
    """The number of the last record."""
    bytes: int = 0
    newest: str = ""
    """The latest time in the file. What follows is not earlier, whatever the clock
    says, so that it is found to be the newest."""


@attrs.define(eq=False, repr=False)
class LogJob:
    """What is to be written to one transcript, and what came of it."""

    log: TranscriptLog
    lines: list[bytes]
    before: Written
    after: Written | None = None
    error: Exception | None = None

    @property
    def last(self) -> int:
        """The number of the last line in its log."""
        return self.before.count + len(self.lines)

    @property
    def is_done(self) -> bool:
        """Whether it is written."""
        return self.after is not None

    def write(self, files: Files, durable: bool) -> None:
        """Write it, in a thread.

        Raises:
            Exception: if nothing has come of it.
        """
        lines, newest = self.lines, self.before.newest
        if self.before.count == 0 and self.log.follows_file:
            there = read_transcript(files, self.log.path, self.log.agent_id)
            if there is not None:
                lines = [_following(lines[0], there.leaf), *lines[1:]]
                newest = max(newest, there.newest)
        if _time(lines[0]) < newest:
            lines = [_not_before(newest, line) for line in lines]
        files.append_lines(self.log.path, b"".join(lines), durable=durable)
        size = self.before.bytes + sum(map(len, self.lines))
        self.after = Written(self.last, size, _time(lines[-1]))

    def settle(self) -> None:
        """Let the log know what came of it."""
        self.log.settle(self)


_NO_PARENT: Final = b'"parentUuid":null'
# No string in front of it can hold a quote that is not escaped.
_TIME: Final = re.compile(rb'"timestamp":"([^"]*)"')


def _following(line: bytes, leaf: str | None) -> bytes:
    return line.replace(_NO_PARENT, b'"parentUuid":' + _fact(leaf), 1)


def _time(line: bytes) -> str:
    found = _TIME.search(line)
    assert found is not None
    return found[1].decode()


def _not_before(newest: str, line: bytes) -> bytes:
    time = max(_time(line), newest)
    return _TIME.sub(lambda _: f'"timestamp":"{time}"'.encode(), line, count=1)


@attrs.define(eq=False, repr=False)
class TranscriptLog:
    """One agent's transcript, open for appending. Made by `TranscriptStore.open_log`."""

    _store: Queue
    path: Path
    agent_id: str
    # The first part of each record's id, and what is the same in all records.
    _name: str
    # The bytes that were in the file before.
    _earlier: int = attrs.field(default=0, alias="earlier", kw_only=True)
    _whose: str = attrs.field(init=False)
    _on_written: Callable[[], None] = attrs.field(init=False)
    _tail: bytes = attrs.field(default=b"}\n", init=False)
    lines: deque[bytes] = attrs.field(factory=deque[bytes], init=False)
    """Not yet in the file, oldest first."""
    written: Written = attrs.field(factory=Written, init=False)
    last_said: int = attrs.field(default=0, init=False)
    """The number of the record of the last message that is recorded as it was said."""
    heard: str = attrs.field(default="", init=False)
    """The id of the last record of a message that somebody has sent."""
    follows_file: bool = attrs.field(default=False, init=False)
    """Whether the first one follows what was in the file before, at which nobody has
    looked yet."""
    # What the next record follows, as JSON; None for what is in the file.
    _parent: str | None = attrs.field(default=None, init=False)
    _newest: str = attrs.field(default="", init=False)
    _appended: int = attrs.field(default=0, init=False)
    _bytes: int = attrs.field(default=0, init=False)
    # With so many, those that wait for the disk are as many as may wait.
    _full_at: int = attrs.field(default=LOG_LIMIT, init=False)
    # Taken for what the first line grows by when it is written.
    _link: int = attrs.field(default=0, init=False)
    # Messages that were dropped and not told of yet.
    _missing: int = attrs.field(default=0, init=False)
    _failures: int = attrs.field(default=0, init=False)
    # The number of the last record that an attempt to write has failed for.
    _failed: int = attrs.field(default=0, init=False)
    _warned: set[object] = attrs.field(factory=set[object], init=False)
    # The numbers of records that were given up.
    _lost: list[range] = attrs.field(factory=list[range], init=False)
    _closed: bool = attrs.field(default=False, init=False)
    # Why nothing more is put into the file.
    _full: QuotaExceeded | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._whose = f'"agentId":"{self.agent_id}","isSidechain":true,'

    def __repr__(self) -> str:
        return f"<TranscriptLog of {self.agent_id}, {self.unwritten:,} bytes to write>"

    @property
    def appended(self) -> int:
        """The number of the last record."""
        return self._appended

    def has_written(self, number: int) -> bool:
        """Whether the record with that number is in the file."""
        return number <= self.written.count and not any(
            number in lost for lost in self._lost
        )

    @property
    def unwritten(self) -> int:
        """The number of bytes that wait for the disk."""
        return self._bytes - self.written.bytes

    def append(self, message: Message) -> QuotaExceeded | None:
        """Record ``message``, as it is now. It never waits and never fails. Return
        None, or the error of a quota that has no room for it.

        What is not part of a conversation, such as progress, is not recorded. Once
        `LOG_LIMIT` bytes wait for the disk, or too many of all agents, the messages
        of this one are dropped until the disk has what waits. A warning says so,
        and a record in their place says how many they are. From the first message on
        for which a quota has no room, none is recorded until the next `reopen`.
        """
        if self._closed:
            self._warn("closed", "a message came after the end of its transcript")
            return None
        is_whole = True
        try:
            rest = encode(message)
        except Exception as error:
            # Of a value that JSON has no form for, or of its own methods.
            self._warn("form", f"a message could not be recorded: {error}")
            rest, is_whole = encode(Unrecorded(1)), False
        if rest is None:
            return None
        if self._full is not None:
            self._missing += 1
            return self._full
        if len(rest) > LINE_LIMIT:
            self._warn("size", f"a message of {len(rest):,} bytes is not recorded")
            rest, is_whole = encode(Unrecorded(1)) or b"", False
        if self._missing and not self.lines and self._store.waiting < STORE_LIMIT:
            # Those of others were in the way, and no write of its own has told of it.
            self._tell_missing()
        if (
            self._missing
            or self._bytes >= self._full_at
            or self._store.waiting >= STORE_LIMIT
        ):
            self._missing += 1
            self._warn(
                "limit",
                "messages are not recorded: the disk is too slow, or fails, and"
                f" {self._store.waiting:,} bytes wait for it",
            )
            return None
        # What is missing afterwards can be told in any case.
        if not self._add(rest, spare=len(self._tail) + _GAP):
            self._missing += 1
            return self._full
        if is_whole:
            self.last_said = self._appended
        if type(message) is UserMessage and message.origin == "message":
            self.heard = f"{self._name}-{self._appended:012x}"
        return None

    async def flush(self) -> None:
        """Wait until all that was appended is in the file, or an attempt to put it
        there has failed since. Cancelled, it gives up the wait only.

        It takes a `transcript_writer`; once that was stopped nothing is waited for.
        """
        wanted = self._appended
        failures = self._failures
        if self.written.count < wanted:
            self._store.want(self)
        while (
            self.written.count < wanted
            and not (self._failures > failures and self._failed >= wanted)
            and not self._store.is_stopped
        ):
            await self._store.wait_settled()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Nothing more will be appended. What was appended is still written; if that
        fails, it is given up and told by a warning."""
        self._closed = True
        if self._missing and not self.lines:
            self._tell_missing()
        if self.lines:
            self._store.want(self)
        else:
            self._store.forget(self)

    # For the store and its writer

    def reopen(
        self,
        cwd: str | None,
        session: str | None,
        agent_name: str | None,
        after: Transcript | None,
        on_written: Callable[[], None],
    ) -> None:
        """Begin a run, whose records follow ``after``, or without it the last one."""
        self._closed = False
        self._full = None
        self._on_written = on_written
        name = b"" if agent_name is None else b',"agentName":%b' % _fact(agent_name)
        where = _fact(cwd), _fact(session), name
        self._tail = b',"cwd":%b,"session":%b%b}\n' % where
        if after is not None:
            self.heard = after.last_heard
            self._parent = _fact(after.leaf).decode()
            self._newest = max(self._newest, after.newest)

    def settle(self, job: LogJob) -> None:
        """Apply the result of ``job``. Idempotent, even if an earlier call was
        interrupted."""
        if job.after is not None and job.after.count > self.written.count:
            number = job.after.bytes - self.written.bytes + self._link
            self._link = 0
            self._advance(job.after)
            self._on_written()
            if self._store.disk is not None:
                # Last, because it may raise: a quota that hears of the same bytes twice
                # allows too many, and one that never hears of them only keeps them.
                self._store.disk.wrote(number)
        self._drop_written()
        if job.error is not None:
            self._failures += 1
            self._failed = max(self._failed, job.last)
            cause = getattr(job.error, "errno", None) or type(job.error)
            self._warn(cause, f"the transcript could not be written: {job.error}")
            if self._closed:
                self._give_up()
        # Of one that is full only its last record tells that.
        if self._missing and not self.lines and (self._closed or not self._full):
            self._tell_missing()
        if self._closed and not self.lines:
            self._store.forget(self)

    def _add(self, rest: bytes, *, spare: int) -> bool:
        """Add a record, if the quotas have room for it and ``spare`` more bytes. Return
        whether they have."""
        store = self._store
        time = store.time()
        if time < self._newest:
            time = self._newest
        if self._parent is None:
            self.follows_file = True
            self._parent = "null"
        # Once the first is written it names the last record of the file.
        link = _LINK if self.follows_file and self._appended == 0 else 0
        grows = link if self._earlier else 0
        number = self._appended + 1
        uuid = f'"{self._name}-{number:012x}"'
        head = (
            f'{{"parentUuid":{self._parent},"uuid":{uuid},{self._whose}'
            f'"timestamp":"{time}",'
        )
        line = b"%b%b%b" % (head.encode(), rest, self._tail)
        size = len(line)
        self._full = self._take(size, spare + grows, link)
        if self._full is not None:
            self._warn("full", f"{self._full}; nothing more is recorded")
            return False
        self.lines.append(line)
        self._parent, self._newest = uuid, time
        self._appended = number
        self._bytes += size
        self._earlier += grows
        self._link = link or self._link
        store.waiting += size
        if self.agent_id not in store.wanted_logs:
            store.want(self)
        return True

    def _take(self, size: int, spare: int, link: int) -> QuotaExceeded | None:
        """Take so many bytes from the quotas, or return which has no room. With
        ``link`` more the first one is written if it follows what is in the file."""
        quota, disk = self._store.quota, self._store.disk
        used = self._earlier + self._bytes + size
        # Before what it warns of.
        if quota is not None and used + spare >= quota - quota // 5:
            self._warn(
                "quota",
                f"with its next record the transcript has {used:,} of the {quota:,} "
                f"bytes of its quota ({self.path})",
            )
        if quota is not None and used + spare > quota:
            return TranscriptQuotaExceeded(self.path, quota)
        if disk is not None and (taken := disk.take(size + link)) < size + link:
            disk.give_back(taken)
            return DirectoryQuotaExceeded(self.path, disk.limit)
        return None

    def _tell_missing(self) -> None:
        missing, self._missing = self._missing, 0
        if not self._add(encode(Unrecorded(missing)) or b"", spare=0):
            self._warn("lost", _LOST.format(missing))

    def _drop_written(self) -> None:
        lines = self.lines
        kept = self._appended - self.written.count
        if kept:
            for _ in range(len(lines) - kept):
                lines.popleft()
        else:
            lines.clear()

    def _advance(self, written: Written) -> None:
        self._store.waiting -= written.bytes - self.written.bytes
        self.written = written
        self._full_at = written.bytes + LOG_LIMIT

    def _give_up(self) -> None:
        lost = len(self.lines) + self._missing
        self._missing = 0
        self._lost.append(range(self.written.count + 1, self._appended + 1))
        self.lines.clear()
        number = self._bytes - self.written.bytes + self._link
        self._link = 0
        self._advance(
            attrs.evolve(self.written, count=self._appended, bytes=self._bytes)
        )
        self._warn("lost", _LOST.format(lost))
        if self._store.disk is not None:
            # Last, as in `settle`.
            self._store.disk.give_back(number)

    def _warn(self, cause: object, text: str) -> None:
        """Tell ``text``, once for each cause."""
        if cause not in self._warned:
            self._warned.add(cause)
            self._store.warn(self.agent_id, text)


def _fact(value: str | None) -> bytes:
    return b"null" if value is None else dump(value)
