"""Killing everything that descends from this process."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from .proc import all_pids, descendants_of, send_signal, signal_groups, variable_of

_CHASES = 64


def end_descendants(
    children: Callable[[], list[int]],
    variable: bytes,
    reap: Callable[[], bool],
    wait: Callable[[float], object],
) -> None:
    """Kill every descendant until there is no child any more.

    Nothing else ends this: a look that fails is repeated.

    Args:
        children: what `Children` is, opened when there still was what it takes.
        variable: whoever has this one in its environment is killed, too.
        reap: takes the exits of children; tells whether a child is left.
        wait: waits for the end of a child, but at most so many seconds.
    """
    pause = 0.001
    everywhere = True
    while True:
        try:
            if not reap():
                return
            signal_groups(descendants_of(children()), signal.SIGKILL)
            chase(children)
            if everywhere:
                for pid in all_pids():
                    if variable_of(pid, variable) is not None:
                        send_signal(pid, signal.SIGKILL)
                everywhere = False
        except (OSError, MemoryError):
            pass
        # The event is the death of a child. The pause is for what cannot be
        # killed at once.
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

    A chain of processes that fork and end is always one link ahead of whoever
    looks, unless that is quick.
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
