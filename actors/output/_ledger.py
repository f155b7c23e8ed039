"""What lies in a directory, and what each runtime that shares it may still write there.

A runtime promises itself bytes before it writes them. Its promise is a small file in
the directory, which the others read. The name of the file is claimed, so that a promise
ends with its process, however that ends.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..env import Env, Share

_LEASE: Final = re.compile(r"disk-[0-9a-f]{16}\.lease").fullmatch
_NUMBER: Final = re.compile(rb"[0-9]{20}\n").fullmatch
_DIGITS: Final = 20


class Ledger:
    """One runtime's view of a directory. Its methods raise an OSError if the directory
    cannot be read or written."""

    def __init__(self, directory: Path, env: Env, share: Share) -> None:
        self.directory = directory
        self._files = env.files
        self._share = share
        self._name = f"disk-{env.ids.hex(16)}.lease"
        self._is_claimed = False

    def promise(self, number: int) -> None:
        """Have all others know that so many bytes may still be written from here. It
        replaces the promise before."""
        if not self._is_claimed:
            # Before the file is there: one that nobody has claimed is a dead one.
            self._share.claim(self._name)
            self._is_claimed = True
        # Of one length, so that a new promise does not change what lies there.
        self._files.replace(self.directory / self._name, b"%020d\n" % number)

    def promised_by_others(self) -> int:
        """Return how many bytes the others may still write. Promises of those that are
        gone are removed."""
        promised = 0
        for name in self._files.names(self.directory):
            if name == self._name or not _LEASE(name):
                continue
            path = self.directory / name
            if self._share.holder(name) is None:
                with suppress(OSError):
                    self._files.remove(path)
                continue
            number = self._files.read_at(path, 0, _DIGITS + 2)
            # Anybody may have written to the directory.
            promised += int(number) if _NUMBER(number) else 0
        return promised

    def size(self) -> int:
        """Return how many bytes all files have that are in the directory itself."""
        return sum(entry.size for entry in self._files.entries(self.directory))

    def close(self) -> None:
        """Take the promise back. A second call does nothing."""
        if self._is_claimed:
            # If it cannot be removed, it is dead all the same.
            with suppress(OSError):
                self._files.remove(self.directory / self._name)
            self._share.release(self._name)
            self._is_claimed = False
