"""How the real files are opened: what all of them ask for, and which mode new ones get."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

# On Windows they do not exist, or only O_BINARY does.
COMMON: Final = (
    getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
)
CREATE: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | COMMON


def create(path: Path, how: int = CREATE) -> int:
    """Open ``path``, which is made if it is missing: for its owner alone, who can read
    and write it again whatever the umask is. What is there already, and may be without
    ``os.O_EXCL``, stays as it is."""
    try:
        fd = os.open(path, how | os.O_EXCL, 0o600)
    except FileExistsError:
        if how & os.O_EXCL:
            raise
        return os.open(path, how, 0o600)
    # For instance, the file system gives all files the same mode.
    with suppress(OSError):
        if sys.platform != "win32" and os.fstat(fd).st_mode & 0o600 != 0o600:
            os.fchmod(fd, 0o600)
    return fd
