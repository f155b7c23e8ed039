"""Killing everything that descends from this process."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from .proc import all_pids, descendants_of, send_signal, signal_groups, variable_of

_CHASES = 64
"""How often to look for new children before other work has its turn."""


def end_descendants(
    children: Callable[[], list[int]],
    variable: bytes,
    reap: Callable[[], bool],
    wait: Callable[[float], object],
) -> None:
    """Kill every descendant until no child is left.

    It returns only then. A look that fails, for instance without memory, is repeated.

    Args:
        children: a `Children` that was opened early, while descriptors were free.
        variable: a process with this variable in its environment is killed, too.
        reap: takes the exits of children; returns whether a child is left.
        wait: waits for the end of a child, at most so many seconds.
    """
    pause = 0.001
    everywhere = True
    while True:
        try:
            if not reap():
                return
            signal_groups(descendants_of(children()), signal.SIGKILL)
            chase(children)
            # Only once, as this reads all of /proc.
            if everywhere:
                for pid in all_pids():
                    if variable_of(pid, variable) is not None:
                        send_signal(pid, signal.SIGKILL)
                everywhere = False
        except (OSError, MemoryError):
            pass
        # The death of a child wakes us. The pause is for what cannot be killed at
        # once, such as a process in a system call: no event reports that.
        try:
            wait(pause)
        except (OSError, MemoryError):
            time.sleep(pause)
        pause = min(pause * 2, 0.5)


def chase(
    children: Callable[[], list[int]],
    belongs: Callable[[int], bool] = lambda _: True,
) -> None:
    """Kill the children that belong, the newest first, as fast as they come.

    In a chain of processes, each of which forks and ends, the newest link is missed by
    a slow look. So this looks again at once until it sees nothing new.
    """
    killed: set[int] = set()
    for _ in range(_CHASES):
        new = [pid for pid in reversed(children()) if pid not in killed]
        for pid in new:
            if belongs(pid):
                signal_groups([pid], signal.SIGKILL)
        killed.update(new)
        if not new:
            return
