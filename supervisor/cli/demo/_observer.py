"""Looks at processes from outside, for `demo`. Run as a script, alone: it shares
no code with what it judges.

Called with a mark and a pid, it answers each line of its input with one line of
JSON: which living processes have the mark in their environment or arguments, the
children of that pid (but for itself), and the number of its open descriptors.
Where there is no ``/proc`` it asks ``ps``, and knows of no environment and of no
descriptors.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def look(mark: str, parent: int) -> dict[str, Any]:
    """Return what there is to see now."""
    processes = (
        _from_proc(mark) if os.path.exists("/proc/self/stat") else _from_ps(mark)
    )
    marked: dict[int, int] = {}
    children: list[int] = []
    for pid, above, session, has_mark in processes:
        if pid == os.getpid() or above == os.getpid():
            continue
        if has_mark:
            marked[pid] = session
        if above == parent:
            children.append(pid)
    return {"marked": marked, "children": children, "descriptors": _descriptors(parent)}


def _from_proc(mark: str) -> list[tuple[int, int, int, bool]]:
    found: list[tuple[int, int, int, bool]] = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        stat = _read(name, "stat")
        if not stat:
            continue
        state, above, _, session = stat[stat.rindex(b")") + 2 :].split()[:4]
        texts = _read(name, "environ") + b"\0" + _read(name, "cmdline")
        has_mark = os.fsencode(mark) in texts and state not in b"ZX"
        found.append((int(name), int(above), int(session), has_mark))
    return found


def _read(pid: str, what: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{what}", "rb") as file:
            return file.read()
    except OSError:  # It has ended, or is somebody else's.
        return b""


def _from_ps(mark: str) -> list[tuple[int, int, int, bool]]:
    listing = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,pgid=,stat=,command="],
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    found: list[tuple[int, int, int, bool]] = []
    for line in listing.splitlines():
        pid, above, group, state, *command = line.split(None, 4)
        has_mark = (
            any(os.fsencode(mark) in text for text in command) and state[:1] != b"Z"
        )
        found.append((int(pid), int(above), int(group), has_mark))
    return found


def _descriptors(pid: int) -> int | None:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None


def main() -> None:
    """Answer until the input ends."""
    mark, parent = sys.argv[1], int(sys.argv[2])
    for _ in sys.stdin:
        print(json.dumps(look(mark, parent)), flush=True)


if __name__ == "__main__":
    main()
