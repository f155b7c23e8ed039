"""The journal of a directory: a file to which one runtime appends what it must not
forget, and from which the next one learns what became of the tasks.

A record is added in memory, in the step in which what it tells happens. It is written
before anybody sees what it tells: who makes that visible calls `Journal.flush` first, or
waits by `Journal.settle`. All that waits then goes out in one write.

Those lines of the file that may still count are kept in memory, so it is made anew from
them, and not read again while it is open.

One runtime writes, the first that has the directory open. What the records of another
one add up to stays in its memory until the first has ended, in whatever way; then it
takes over.

A disk that cannot be written holds up and ends nothing. It is warned of, once for each
time that it begins, and what could not be written is written when that is possible
again; until then a crash of the program loses it.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Final

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from actors import Context
from actors.env import Files
from actors.hosting import LogFile, Share

from .lines import Lines
from .records import Header, NewerJournal, Record, to_line
from .state import Read, State, read

NAME: Final = "journal.jsonl"
_SLOW: Final = 0.02
"""Seconds. After a write that took longer, writes go through a thread for a while."""
_THREADED: Final = 64
"""So many."""
_PATIENCE: Final = 10.0
"""Seconds for which a disk may hold up whoever waits for it."""
_AGAIN: Final = 1.0
"""Seconds after which a write that has failed is tried again, and after which one asks
again whether the runtime that writes has ended: no event tells that."""
_TURNS: Final = 2
"""Turns of the loop for which the actor waits for more before it writes. One is not
enough for those who have to be woken first."""
_SMALL: Final = 2**20
_GROWN: Final = 4
"""A file with more than ``_SMALL`` bytes is written anew once it has so many times the
bytes that it had then."""


class Journal:
    """The records of one runtime.

    Args:
        is_kept: whether there is a journal at all; without one nothing is written.
        durable: whether what is written must survive the death of the machine.
        kept_since: returns a time; what has ended before that, and is kept for its key
            or for the file of its agent alone, is left out when the file is made anew.
        warn: told of what goes wrong, for people.
        wrote: told, after a write that somebody may wait for, how many records are
            written.
    """

    def __init__(
        self,
        files: Files,
        share: Share,
        directory: Path,
        *,
        is_kept: bool,
        durable: bool,
        kept_since: Callable[[], str],
        warn: Callable[[str], object],
        wrote: Callable[[int], object],
    ) -> None:
        self.is_kept = is_kept
        self.added = 0
        """How many records were added."""
        self.failure: OSError | None = None
        """Why they cannot be written at the moment."""
        self.other: str | None = None
        """Who writes the journal, if that is another runtime."""
        self._files = files
        self._share = share
        self._path = directory / NAME
        self.durable = durable
        """Whether what is written must survive the death of the machine."""
        self._kept_since = kept_since
        self._warn = warn
        self._wrote = wrote
        self._waiting: list[Record] = []
        # What the one who writes would have to know, as long as that is another one.
        self._untold: State | None = State()
        # What of the file may still count.
        self._lines = Lines()
        # What was written while the file is made anew, if it is.
        self._meanwhile: list[tuple[Record, bytes]] | None = None
        self._log: LogFile | None = None
        self._header = Header(at="")
        # With what it was tried last.
        self._begin: tuple[str, str] | None = None
        # How many bytes may be written before the file is made anew.
        self._room = _SMALL
        self._is_writing = False
        self._is_over = False
        # The clock, while the actor is there, which writes what must not be written
        # inline. Bound once: two more frames for each look are felt by each task.
        self._now: Callable[[], float] | None = None
        self._threaded = 0
        self._news = trio.Event()
        self._settled = trio.lowlevel.ParkingLot()
        # How many wait there.
        self._parked = 0

    # The beginning and the end

    def begin(self, at: str, program: str = "") -> Read | None:
        """Become the one who writes, unless there is another: see `other`. Return what
        was there; of that, only what still counts is left in the file. One that is
        damaged, or no journal, is kept beside it as it was.

        Args:
            at: the time now.
            program: who begins, as `actors.env.Processes.program` tells it.

        Raises:
            NewerJournal: if a later version has written it. Nothing is changed.
            OSError: if it cannot be read or written.
        """
        self._begin = at, program
        other = self._who_writes()
        if other is not None:
            self.other = other
            return None
        try:
            contents = self._contents()
            there = self._read(contents)
            if there.is_damaged:
                there = attrs.evolve(there, kept=self._keep(contents))
            there.state.forget(self._kept_since())
            untold = self._untold or State()
            records = chain(there.state.records(), untold.records())
            lines = Lines(records, there.state.last_note)
            self._header = Header(at=at, program=program)
            try:
                self._put(lines)
            except OSError:
                # It may be there all the same, if the names of a directory could not be
                # synced. Then the next attempt, or another runtime, would take what this
                # one has for what the dead have left.
                if self._contents() != self._joined(lines):
                    raise
                self._lines = lines
        except BaseException:
            self._share.release(NAME)
            raise
        # Not before: who asks once a second would tell the same failure each time.
        self._untold = self.other = None
        return there

    def look(self) -> Read:
        """Return what is in the file, and leave it as it is.

        Raises:
            NewerJournal: if a later version has written it.
            OSError: if it cannot be read.
        """
        return self._read(self._contents())

    def _read(self, contents: bytes) -> Read:
        try:
            return read(contents)
        except NewerJournal as error:
            hint = "use the library that has written it, or another directory"
            raise NewerJournal(f"{self._path}: {error}; {hint}") from None

    def _contents(self) -> bytes:
        size, at = self._files.size(self._path) or 0, 0
        pieces: list[bytes] = []
        while at < size and (piece := self._files.read_at(self._path, at, size - at)):
            pieces.append(piece)
            at += len(piece)
        return b"".join(pieces)

    def _keep(self, contents: bytes) -> Path:
        """Keep what is not to be lost beside the journal, once."""
        for number in count(1):
            ending = ".bad" if number == 1 else f".bad.{number}"
            path = self._path.with_name(f"{NAME}{ending}")
            with suppress(FileExistsError):
                self._files.reserve(path)
                try:
                    self._files.replace(path, contents, durable=self.durable)
                except OSError:
                    self._files.remove(path)  # Or each attempt would leave one.
                    raise
                return path
            # Who has kept it was killed before the journal was written anew.
            size = len(contents)
            if (
                self._files.size(path) == size
                and self._files.read_at(path, 0, size) == contents
            ):
                return path
        raise AssertionError

    def _who_writes(self) -> str | None:
        """Claim the journal, and return in words who else has it."""
        try:
            return self._share.holder(NAME) or self._share.claim(NAME)
        except OSError as error:
            if self._share.is_alone():
                return None
            return f"perhaps another runtime ({error.strerror})"

    def end(self) -> None:
        """Close the file. What is acknowledged later is written all the same. If the
        runtime that wrote has ended by now, what this one has is written first.
        Idempotent."""
        if self._is_over:
            return
        if self._untold is not None and self._begin is not None:
            # What is wrong with it, the next runtime will tell.
            with suppress(OSError, NewerJournal):
                self.begin(*self._begin)
        self.flush()
        self._is_over = True
        if self._untold is not None and (self._untold.unfinished or self._untold.notes):
            self._warn(
                f"{self.other} keeps the journal and has not ended: a later runtime does "
                "not know the tasks of this one, nor what nobody has acknowledged of them"
            )
        if self._waiting and self.failure is not None:
            # The warning may be old, and it was of a crash.
            self._warn(
                f"the journal lacks {len(self._waiting)} records at the end, so the "
                "next runtime may take what has ended for lost, and tell again what is "
                f"acknowledged: {self.failure}"
            )
        log, self._log = self._log, None
        if log is not None:
            try:
                try:
                    log.close()
                except FileNotFoundError:
                    # Somebody has moved it away since the last write.
                    contents = self._joined(self._lines)
                    self._files.replace(self._path, contents, durable=self.durable)
            except OSError as error:
                self._warn(f"the journal may lack what was written last: {error}")

    def _put(self, lines: Lines) -> None:
        """Make the file anew, with these lines alone."""
        contents = self._joined(lines)
        self._files.replace(self._path, contents, durable=self.durable)
        self._lines = lines
        log, self._log = self._log, None
        if log is not None:
            # All that it had is in the new one.
            with suppress(OSError):
                log.close()
        self._has_size(len(contents))
        # If it cannot be opened, who writes next makes it anew.
        with suppress(OSError):
            self._log = self._files.open_log(self._path)

    def _made_anew(self) -> LogFile:
        self._put(self._lines)
        if self._log is None:
            self._log = self._files.open_log(self._path)
        return self._log

    # Records

    @property
    def written(self) -> int:
        """How many of them are written; with ``durable``, on the disk. As long as
        another runtime writes, all of them count."""
        return self.added - len(self._waiting)

    def add(self, record: Record) -> int:
        """Add a record, and return its number. It is written by whoever flushes."""
        if not self.is_kept:
            return 0
        if self._untold is None:
            self._waiting.append(record)
        else:
            self._untold.add(record)
        self.added += 1
        return self.added

    @enable_ki_protection
    def flush(self) -> None:
        """Write what waits, if that can be done at once: while the disk is slow or
        fails, or with ``durable``, the actor of the journal does it."""
        if not self._waiting or self._is_writing:
            return
        # Without an actor also what was told in the block and is acknowledged long
        # after it.
        is_served = self._now is not None
        if is_served and (self.durable or self._threaded or self.failure is not None):
            self._news.set()
        else:
            self._write_waiting()

    @property
    def is_behind(self) -> bool:
        """Whether some of them are not written, so that `settle` would do something."""
        return bool(self._waiting)

    def is_told(self, number: int) -> bool:
        """Whether one may see what the record with that number tells: it is written, or
        that cannot be done and everybody was warned."""
        return number <= self.added - len(self._waiting) or self.failure is not None

    async def settle(self, number: int | None = None, *, shield: bool = True) -> None:
        """Wait until a record, or all, are written, or cannot be. What others add in
        this turn of the loop goes out in the same write. This cannot be cancelled,
        unless ``shield`` is False, but a disk that does not answer counts after some
        seconds as one that fails."""
        number = self.added if number is None else number
        self.flush()
        if self.is_told(number):
            return
        self._parked += 1
        try:
            with trio.move_on_after(_PATIENCE, shield=shield) as scope:
                while not self.is_told(number):
                    await self._settled.park()
        finally:
            self._parked -= 1
        if scope.cancelled_caught and not self.is_told(number):
            what = f"the disk has not answered for {_PATIENCE:g} seconds"
            self._fails(OSError(errno.ETIMEDOUT, what, str(self._path)))

    # The actor

    async def serve(self) -> None:
        """Write what waits, whenever somebody asks for it, and make the file anew when it
        has grown."""
        self._now = trio.lowlevel.current_clock().current_time
        if self._waiting:
            # The one before has crashed, and somebody may wait for it.
            self._news.set()
        try:
            while True:
                if self.failure is None:
                    await self._news.wait()
                else:
                    await trio.sleep(_AGAIN)
                # Whoever the last write has let go on adds what goes out in this one.
                for _ in range(_TURNS):
                    await trio.lowlevel.checkpoint()
                self._news = trio.Event()
                await self._write_aside()
        finally:
            self._now = None
            self.flush()

    async def ask_for_it(self, take_over: Callable[[], Awaitable[object]]) -> None:
        """Ask from time to time whether nobody else writes any more, by ``take_over``,
        which calls `begin`."""
        while self._untold is not None:
            await trio.sleep(_AGAIN)
            await take_over()

    async def _write_aside(self) -> None:
        if self._is_writing:
            return
        if self._waiting and not (self.durable or self._threaded):
            # As long as a thread writes nobody else can, and an ack cannot wait.
            self._write_waiting()
            if self.failure is None:
                self._wrote(self.written)
        if self.durable or self._threaded:
            self._is_writing = True
            try:
                await self._write_in_thread()
            finally:
                self._is_writing = False
        elif self._is_large():
            if self._lines.are_fewest:
                self._compact()
            else:
                await self._compact_beside()
        if self._waiting:
            self._news.set()

    async def _write_in_thread(self) -> None:
        if self._waiting:
            batch, began = [*self._waiting], trio.current_time()
            lines, error = await self._files.in_thread(self._write, batch)
            if self._threaded and trio.current_time() - began > _SLOW:
                # Or the loop would stand still each time that this runs out.
                self._threaded = _THREADED
            self._done(batch, lines, error)
            if error is None:
                self._wrote(self.written)
        if self._is_large():
            since = self._kept_since()
            await self._files.in_thread(self._try_to_compact, since)

    def _write_waiting(self) -> None:
        batch, now = [*self._waiting], self._now
        if now is None:
            self._done(batch, *self._write(batch))
            return
        began = now()
        lines, error = self._write(batch)
        seconds = now() - began
        self._done(batch, lines, error)
        if seconds > _SLOW:
            self._threaded = _THREADED

    # In a thread, perhaps.
    def _write(self, batch: Sequence[Record]) -> tuple[list[bytes], OSError | None]:
        lines = [*map(to_line, batch)]
        joined = b"".join(lines)
        try:
            if self._is_over:
                self._files.append_lines(self._path, joined, durable=self.durable)
                return lines, None
            log = self._log or self._made_anew()
            try:
                log.append(joined, durable=self.durable)
            except FileNotFoundError:
                # Somebody has removed it.
                self._made_anew().append(joined, durable=self.durable)
        except OSError as error:
            return lines, error
        self._room -= len(joined)
        return lines, None

    # In a thread, while nobody else writes.
    def _try_to_compact(self, since: str) -> None:
        lines = self._lines
        try:
            if not lines.are_fewest:
                lines = _fewest(self._joined(lines), since)
            self._put(lines)
        except OSError:
            self._is_as_small_as_can_be()

    def _compact(self) -> None:
        try:
            self._put(self._lines)
        except OSError:
            self._is_as_small_as_can_be()

    async def _compact_beside(self) -> None:
        """Make the file anew while others go on to append to it: what they append
        meanwhile, they may have told. Only the first and the last step hold them up."""
        log, contents, since = self._log, self._joined(self._lines), self._kept_since()
        self._meanwhile = meanwhile = list[tuple[Record, bytes]]()
        try:
            lines = await self._files.in_thread(_fewest, contents, since)
            # Otherwise it was made anew by who found it removed.
            if self._log is log:
                for record, line in meanwhile:
                    lines.add(record, line)
                self._put(lines)
        except OSError:
            self._is_as_small_as_can_be()
        finally:
            self._meanwhile = None

    def _joined(self, lines: Lines) -> bytes:
        return lines.joined(attrs.evolve(self._header, last_note=lines.last_note))

    def _is_as_small_as_can_be(self) -> None:
        # It is as long as it was. What is wrong will show when it is written.
        if self._log is not None:
            self._has_size(self._log.size())

    def _is_large(self) -> bool:
        return self._room < 0 and self._log is not None

    def _has_size(self, size: int) -> None:
        """The file is as small as it can be made now."""
        self._room = max(_SMALL, _GROWN * size) - size

    def _fails(self, error: OSError) -> None:
        began, self.failure = self.failure is None, error
        self._news.set()
        if began:
            self._warn(f"the journal cannot be written: a crash loses it: {error}")
        if self._parked:
            self._settled.unpark_all()

    def _done(
        self, batch: Sequence[Record], lines: Sequence[bytes], error: OSError | None
    ) -> None:
        try:
            if self._threaded:
                self._threaded -= 1
            if error is None:
                # What fails before the last of this is written again, which says
                # nothing new.
                for record, line in zip(batch, lines, strict=True):
                    self._lines.add(record, line)
                if self._meanwhile is not None:
                    self._meanwhile += zip(batch, lines, strict=True)
                del self._waiting[: len(batch)]
                self.failure = None
                if self._room < 0:
                    self._news.set()
            else:
                self._fails(error)
        finally:
            if self._parked:
                self._settled.unpark_all()


# In a thread.
def _fewest(contents: bytes, since: str) -> Lines:
    """Return the fewest lines that say the same, without what goes since then."""
    state = read(contents).state
    state.forget(since)
    return Lines(state.records(), state.last_note)


# An interrupt is for the host, and must not end the tree through these actors.
@enable_ki_protection
async def journal_writer(_: Context[object], journal: Journal) -> None:
    """The actor of a journal. What it had not written when it crashed, it writes next."""
    await journal.serve()


@enable_ki_protection
async def journal_successor(
    _: Context[object], journal: Journal, take_over: Callable[[], Awaitable[object]]
) -> None:
    """The actor that takes a journal over once the runtime that writes it has ended."""
    await journal.ask_for_it(take_over)
