"""Which processes this program consists of, and depends on."""

from __future__ import annotations

import os
from pathlib import Path


def host_processes() -> frozenset[int]:
    """Return the ids of this process, of its process group, and of its parents:
    of all of them where ``/proc`` tells, else of the nearest."""
    parents: set[int] = set()
    parent = os.getppid()
    # Ids are given again: what ends between two looks could make a circle.
    while parent > 0 and parent not in parents:
        parents.add(parent)
        parent = _parent_of(parent)
    return frozenset({os.getpid(), os.getpgrp(), *parents})


def _parent_of(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return 0
    return int(status.partition("\nPPid:")[2].split()[0])
