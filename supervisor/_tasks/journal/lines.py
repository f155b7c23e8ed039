"""The lines of a journal that may still count, as a file is made anew from them.

Each task that is over has left them: nobody has to read the file for that, nor to know
more of a record than its kind. So of each line there is no more than its bytes, which
are nothing to the collector.
"""

from __future__ import annotations

from collections.abc import Iterable

from .records import Acked, Ended, Header, Record, Started, to_line
from .state import number_in


class Lines:
    """What was written of the tasks that are not over. What that adds up to, a
    `State`, is what the whole file adds up to.

    A task is over once its end is acknowledged, or needs not be, and neither a key nor
    the file of an agent asks for it any more.
    """

    __slots__ = ("_has_more", "_is_kept", "_of", "_run", "_unfinished", "last_note")

    def __init__(self, records: Iterable[Record] = (), last_note: int = 0) -> None:
        # By run, in the order of the starts.
        self._of: dict[str, bytes] = {}
        # The run of each notification that is not acknowledged.
        self._run: dict[str, str] = {}
        # The run of each task that has not ended.
        self._unfinished: dict[str, str] = {}
        # The runs of those with a key, and of agents.
        self._is_kept: set[str] = set()
        # Whether one has more of them than say what became of it.
        self._has_more = False
        self.last_note = last_note
        """The highest number of a notification."""
        for record in records:
            self.add(record, to_line(record))

    def add(self, record: Record, line: bytes) -> None:
        """Take what was written next. If that fails for want of memory, the same once
        more makes good what it had begun."""
        if isinstance(record, Started):
            self._started(record, line)
        elif isinstance(record, Ended):
            self._ended(record, line)
        elif isinstance(record, Acked):
            run = self._run.get(record.note)
            if run is not None:
                self._end(run, line)
                del self._run[record.note]
        elif isinstance(record, Header):
            self.last_note = max(self.last_note, record.last_note)
        elif record.run in self._of:
            self._of[record.run] += line
            self._has_more = True

    def _started(self, record: Started, line: bytes) -> None:
        run = record.run
        # As `Started.task`.
        task = run.rpartition("-")[0]
        before = self._unfinished.get(task)
        if before is not None and before != run:
            # One that had not ended goes on in this one.
            self._of.pop(before, None)
        self._unfinished[task] = run
        if record.key is not None or record.agent is not None:
            self._is_kept.add(run)
        self._of[run] = _alone(line)

    def _ended(self, record: Ended, line: bytes) -> None:
        run, note = record.run, record.note
        if note is None:
            self._end(run, line)
        else:
            before = self._of.get(run)
            self._of[run] = _alone(line) if before is None else before + line
            self.last_note = max(self.last_note, number_in(note))
            self._run[note] = run
        self._unfinished.pop(run.rpartition("-")[0], None)

    def _end(self, run: str, line: bytes) -> None:
        before = self._of.get(run)
        if before is None or run in self._is_kept:
            # Of a run that is not known, it is the end of an agent.
            self._is_kept.add(run)
            self._of[run] = _alone(line) if before is None else before + line
        else:
            del self._of[run]

    @property
    def are_fewest(self) -> bool:
        """Whether fewer could not say the same, whatever the time is: no task has more
        than its start and its end, and none is kept for a while. So nobody has to read
        them for that."""
        return not (self._has_more or self._is_kept)

    def joined(self, header: Header) -> bytes:
        """Return them behind that header."""
        return b"".join([to_line(header), *self._of.values()])


def _alone(line: bytes) -> bytes:
    """Return a line in a block of its own length: orjson leaves it in one of 4 KiB."""
    return bytes(memoryview(line))
