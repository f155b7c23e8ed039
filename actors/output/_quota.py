"""How much output may be kept: of one task, and of all tasks of a directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs

from .._kernel.checks import check_whole


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
    """Raised when all tasks together have more output than their directory may hold.
    The task that wants to write more is the one that fails.

    That need not be the one that has written most. Remove old output, raise the
    quota of the directory, or give each task a quota of its own.
    """

    def __str__(self) -> str:
        return (
            f"the output of all tasks reached the quota of {self.quota:,} bytes of the "
            f"directory {self.path.parent}; what came before is in {self.path}"
        )


class DiskQuota:
    """The bytes of output that all tasks of one directory may keep together.

    Args:
        limit: how many.
        on_warning: called with a message at 80 % use, and again only after use has
            fallen below 50 %.

    Raises:
        TypeError, ValueError: if ``limit`` is not a positive number of bytes.
    """

    __slots__ = ("_on_warning", "_warned", "limit", "used")

    used: int
    """The bytes taken and not given back."""

    def __init__(
        self, limit: int, on_warning: Callable[[str], None] | None = None
    ) -> None:
        check_whole("limit", limit, 1)
        self.limit = limit
        self.used = 0
        self._on_warning = on_warning
        self._warned = False

    def __repr__(self) -> str:
        return f"<DiskQuota {self.used:,} of {self.limit:,} bytes>"

    def take(self, wanted: int) -> int:
        """Take ``wanted`` bytes, or what is left of them, and return how many."""
        granted = min(wanted, self.limit - self.used)
        self.used += granted
        if not self._warned and self.used >= self.limit - self.limit // 5:
            self._warned = True
            if self._on_warning is not None:
                self._on_warning(
                    f"the output of all tasks has used {self.used:,} of the "
                    f"{self.limit:,} bytes of the quota of their directory"
                )
        return granted

    def give_back(self, number: int) -> None:
        """Give back bytes that are not on the disk (any more)."""
        self.used -= number
        assert self.used >= 0
        if 2 * self.used < self.limit:
            self._warned = False
