"""Killing everything that descends from this process."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Callable

from .proc import LastPid, Seen, look_at, look_at_processes, send_signal, variable_of

_MOST = 64
"""New processes that one step of a chase looks at."""


def end_descendants(
    variable: bytes, reap: Callable[[], bool], wait: Callable[[float], None]
) -> None:
    """Kill every descendant until there is no child any more.

    Args:
        variable: whoever has this one in its environment is killed, too.
        reap: takes the exits of children; tells whether a child is left.
        wait: waits for the end of a child, but at most so many seconds.
    """
    newest = LastPid()
    pause = 0.001
    everywhere = True
    while reap():
        _kill_descendants(variable if everywhere else None)
        if not everywhere:
            chase(newest)
        everywhere = False
        # The event is the death of a child. The pause is for a fork that was
        # missed, and for what cannot be killed at once.
        wait(pause)
        pause = min(pause * 2, 0.5)
    newest.close()


def chase(newest: LastPid, belongs: Callable[[Seen], bool] | None = None) -> None:
    """Kill the newest orphans that belong, as fast as they come.

    A chain of processes that fork, leave the session and end is always one
    link ahead of a look at all processes. On a busy machine the newest pids may
    be other people's, so all are looked at that came since the last look.
    """
    me = os.getpid()
    seen_to = newest()
    for _ in range(50):
        last = newest()
        for pid in range(last, max(min(seen_to, last) - 3, last - _MOST), -1):
            seen = look_at(pid)
            if seen is None or not seen.alive:
                continue
            # One link, or the next one, whose parent is just about to end.
            parent = seen if seen.parent == me else look_at(seen.parent)
            if (
                parent is not None
                and parent.parent == me
                and (belongs is None or belongs(seen))
            ):
                send_signal(pid, signal.SIGKILL)
        seen_to = last


def _kill_descendants(variable: bytes | None) -> None:
    me = os.getpid()
    others: dict[int, Seen] = {}
    children: defaultdict[int, list[Seen]] = defaultdict(list)
    for seen in look_at_processes():
        if seen.parent == me:
            send_signal(seen.pid, signal.SIGKILL)
        children[seen.parent].append(seen)
        others[seen.pid] = seen
    # Each once: the kernel walks a group, which may be thousands of the dead.
    groups: set[int] = set()
    found = children[me]
    while found:
        seen = found.pop()
        del others[seen.pid]
        groups.add(seen.group)
        found += children[seen.pid]
    for group in groups:
        send_signal(-group, signal.SIGKILL)
    if variable is not None:
        for pid in others:
            if variable_of(pid, variable) is not None:
                send_signal(pid, signal.SIGKILL)
