"""How much output may be kept: of one task, and of all tasks of a directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from .._kernel.checks import check_whole
from ._ledger import Ledger


@attrs.define(slots=False, repr=False)
class QuotaExceeded(Exception):
    """Raised when a task has more output than it may keep.

    Its file is full. It ends at the quota or, if it is text, with the last whole
    character before that. The task that prints so much is at fault. Give it a larger
    quota or have it print less.
    """

    path: Path
    quota: int

    def __str__(self) -> str:
        return f"the output reached its quota of {self.quota:,} bytes; what came before is in {self.path}"


class DirectoryQuotaExceeded(QuotaExceeded):
    """Raised when a task wants to write more than its directory may hold. That task is
    the one that fails.

    It need not be the one that has written most, and what others have put into the
    directory counts, too. Remove old files, raise the quota of the directory, or give
    each task a quota of its own.
    """

    def __str__(self) -> str:
        return (
            f"the directory {self.path.parent} reached its quota of {self.quota:,} "
            f"bytes; what came before is in {self.path}"
        )


_SHARES: Final = 64
"""A runtime takes so small a part of the quota at once for what it will write, or what
it wants if that is more. It looks at the directory again when more is wanted than is
left of that. Once it has lowered its promise, half of such a part is left at most."""


class DiskQuota:
    """The bytes that a directory may have.

    With a ledger, everything counts that lies in the directory itself, whoever has
    written it, and what all runtimes on it are about to write. What is taken is never
    more than that leaves, with any number of runtimes. Each of them may keep up to a
    64th of the quota to itself, so with several of them the directory can be full for
    one when the others still have that much. What others ask for or write just then may
    count twice. What grows without asking here counts from the next look on. There is a
    look when more is wanted than is left of the last 64th.

    Without a ledger, only what is taken here counts.

    Args:
        limit: how many.
        on_warning: called with a message at 80 % use, and again only after use has
            fallen below 50 %. It is also called, once for each cause, when nobody can
            look at the directory, or tell the others.
        ledger: what lies in the directory.

    Raises:
        TypeError, ValueError: if ``limit`` is not a positive number of bytes.
    """

    __slots__ = (
        "_granted",
        "_kept",
        "_ledger",
        "_on_warning",
        "_promised",
        "_troubles",
        "_unwritten",
        "_warned",
        "limit",
        "used",
    )

    used: int
    """The bytes that were there at the last look, and those taken since and not given
    back."""

    def __init__(
        self,
        limit: int,
        on_warning: Callable[[str], None] | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        check_whole("limit", limit, 1)
        self.limit = limit
        self.used = 0
        self._on_warning = on_warning
        self._ledger = ledger
        self._warned = False
        # What was taken and is not in a file yet, and what may be taken besides before
        # the next look. Both together are no more than what the others were told.
        self._unwritten = 0
        self._granted = 0
        self._promised = 0
        # The most that may be promised beyond what is unwritten.
        self._kept = max(1, limit // _SHARES)
        self._troubles: set[object] = set()

    def __repr__(self) -> str:
        return f"<DiskQuota {self.used:,} of {self.limit:,} bytes>"

    def take(self, wanted: int) -> int:
        """Take ``wanted`` bytes, or what is left of them, and return how many."""
        room = self.limit - self.used
        if self._ledger is not None:
            if wanted > self._granted:
                self.look(wanted)
            room = self._granted
        taken = max(0, min(wanted, room))
        self.used += taken
        self._unwritten += taken
        self._granted -= taken
        self._warn_if_full()
        return taken

    def wrote(self, number: int) -> None:
        """So many of the bytes that were taken are in a file now. It may tell the
        others, and warn if it cannot."""
        self._unwritten -= number
        self._keep_less()

    def give_back(self, number: int) -> None:
        """Give back bytes that were taken and will not be written. It may tell the
        others, as `wrote` does."""
        self._unwritten -= number
        self._granted += number
        self._is_less(number)
        self._keep_less()

    def freed(self, number: int) -> None:
        """So many bytes that were written are not on the disk any more."""
        self._is_less(number)

    def look(self, wanted: int = 0) -> None:
        """See what lies in the directory now, and have room for ``wanted`` bytes, if
        there is. It may warn. Without a ledger it does nothing."""
        ledger = self._ledger
        if ledger is None:
            return
        wanted = max(wanted, self._kept)
        # In this order. Of two who look at once each sees the promise of the other,
        # so both may have less than there is, and never more. What somebody writes
        # between the last two steps counts twice.
        self._promise(ledger, self._unwritten + wanted)
        try:
            others = ledger.promised_by_others()
            self.used = ledger.size() + others + self._unwritten
        except OSError as error:
            self._warn_of_trouble(error)
        self._granted = max(0, min(wanted, self.limit - self.used))
        if self._granted < wanted:
            self._promise(ledger, self._unwritten + self._granted)
        self._warn_if_full()

    def close(self) -> None:
        """Nothing more will be taken. A second call does nothing."""
        if self._ledger is not None:
            self._promised = 0
            self._ledger.close()

    def _keep_less(self) -> None:
        """Let the others have what was promised and is written, or was given back, if
        that is more than may be kept.

        Until then it counts twice for them, or is kept from them.
        """
        more = self._promised - self._unwritten
        if self._ledger is not None and more > self._kept:
            # Half of what may be kept, so that the next time is not at the next write.
            self._granted = min(self._granted, self._kept // 2)
            self._promise(self._ledger, self._unwritten + self._granted)

    def _promise(self, ledger: Ledger, number: int) -> None:
        try:
            ledger.promise(number)
        except OSError as error:
            self._warn_of_trouble(error)
        else:
            self._promised = number

    def _is_less(self, number: int) -> None:
        self.used -= number
        assert self.used >= 0 or self._ledger is not None
        if 2 * self.used < self.limit:
            self._warned = False

    def _warn_if_full(self) -> None:
        if 2 * self.used < self.limit:
            self._warned = False
        if self._warned or self.used < self.limit - self.limit // 5:
            return
        self._warned = True
        self._warn(
            f"{self._where()} has used {self.used:,} of the {self.limit:,} bytes of its"
            " quota"
        )

    def _warn_of_trouble(self, error: OSError) -> None:
        if error.errno not in self._troubles:
            self._troubles.add(error.errno)
            self._warn(
                f"nobody can look at all that lies in {self._where()}, or tell others: "
                f"only what was known and what this runtime writes counts: {error}"
            )

    def _where(self) -> str:
        where = "" if self._ledger is None else f" {self._ledger.directory}"
        return f"the directory{where}"

    def _warn(self, text: str) -> None:
        if self._on_warning is not None:
            self._on_warning(text)
