"""The outer guardian. It is not in the script, which is compiled at each start."""

from __future__ import annotations

import os
import signal
import time

from .ending import end_descendants
from .proc import Children, is_frozen, open_pidfd, send_signal
from .serving import Poll, drain, open_wakeup

_WATCH = 0.2
"""Seconds between two looks at the inner one, once the runtime has ended, and after a
look that failed."""


class Outer:
    """Waits for the end of the inner one, then ends the rest."""

    def __init__(self, inner: int, runtime: int | None) -> None:
        """Args: the inner one's pid, and a pidfd of the runtime."""
        self._inner = inner
        self._runtime = runtime
        self._pidfd = open_pidfd(inner)
        self._wakeup, self._waker = open_wakeup()
        # Opened now: at the end no descriptor may be free.
        self._children = Children()
        self._poll = Poll(self._wakeup.fileno())
        for pidfd in (self._pidfd, runtime):
            if pidfd is not None:
                self._poll.add(pidfd)

    def watch(self) -> None:
        """Return when the inner one has ended."""
        patience = None
        while True:
            try:
                ready = self._wait(patience)
                news = os.waitid(
                    os.P_PID, self._inner, os.WEXITED | os.WSTOPPED | os.WNOHANG
                )
            except ChildProcessError:
                return
            except OSError:  # That says nothing about the inner one: look again.
                time.sleep(_WATCH)
                continue
            # The pidfd, too: the tracer of a traced child gets the exit first, and until
            # then waitid does not report that end.
            if self._pidfd in ready or (news and news.si_code != os.CLD_STOPPED):
                return
            if self._runtime is not None and self._runtime in ready:
                # It stays ready for ever. The inner one should now end by itself, so
                # from here on keep it going until it has.
                self._poll.discard(self._runtime)
                patience = _WATCH
            if news is not None or patience is not None:
                send_signal(self._inner, signal.SIGCONT)
            # No event reports a tracer: we look when the runtime asks us to.
            if is_frozen(self._inner):
                send_signal(self._inner, signal.SIGKILL)

    def end_the_rest(self, variable: bytes) -> None:
        """Kill what the dead inner one has left to us, until no child is left."""
        self._poll = Poll(self._wakeup.fileno())
        end_descendants(self._children, variable, _reap, self._wait)

    def _wait(self, seconds: float | None) -> set[int]:
        ready = self._poll.wait(seconds)
        drain(self._wakeup)
        return ready


def _reap() -> bool:
    try:
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
            pass
    except ChildProcessError:
        return False
    return True
