"""A guardian to which something happens in the middle of a look.

It is run in the place of the real one. What it does is the real one's code; but
once the file named by ``BESET`` holds ``PID WANTED SINCE LOOKS``, the process PID
is killed before one of its looks at ``/proc``, and the look goes on when PID is
``Z``, a zombie, or ``-``, reaped by its parent, as WANTED. The look is the one
after LOOKS others, counted from the first at process SINCE, if that is not 0.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any


class Fate:
    """Strikes once."""

    def __init__(self, orders: Path) -> None:
        self._orders = orders
        self._victim: int | None = None
        self._looks: int | None = None
        self._is_over = False

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Be an audit hook: Python tells it of each file that is opened."""
        if event == "resource.prlimit":
            pid = str(args[0])
        elif event == "open" and str(args[0]).startswith("/proc/"):
            pid = str(args[0]).split("/")[2]
        else:
            return
        if not self._is_over and os.path.exists(self._orders):
            self._looked(pid)

    def count_read(self, *args: Any) -> bytes:
        """Read a file that is open; no hook tells of that."""
        self("open", ("/proc/self",))
        return PREAD(*args)

    def _looked(self, looked_at: str) -> None:
        self._is_over = True  # Not by what we open here.
        pid, wanted, since, looks = self._orders.read_text().split()
        if self._victim is None:
            self._victim = os.pidfd_open(int(pid))
        if self._looks is None:
            if since in ("0", looked_at):
                self._looks = 0
        elif since != looked_at:
            self._looks += 1
        if self._looks is None or self._looks <= int(looks):
            self._is_over = False
        elif not has_ended(self._victim):
            signal.pidfd_send_signal(self._victim, signal.SIGKILL)
            limit = time.monotonic() + 10
            while not has_ended(self._victim, reaped=wanted == "-"):
                assert time.monotonic() < limit


PREAD = os.pread


def has_ended(pidfd: int, *, reaped: bool = False) -> bool:
    if not select.select([pidfd], [], [], 0)[0]:
        return False
    try:
        signal.pidfd_send_signal(pidfd, 0)
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ProcessLookupError:  # It was reaped.
        return True
    except ChildProcessError:  # Its parent may still reap it.
        return not reaped
    return True  # It has become our child, so we are to reap it.


def main() -> None:
    sys.path.append(str(Path(__file__).absolute().parents[3] / "actors" / "_system"))
    from guardian import serving  # type: ignore[import-not-found]
    from guardian.__main__ import main  # type: ignore[import-not-found]

    fate = Fate(Path(os.environ["BESET"]))
    serve = serving.Server.serve

    def serve_on(server: Any) -> None:
        # Only in the process that works.
        os.pread = fate.count_read
        sys.addaudithook(fate)
        serve(server)

    serving.Server.serve = serve_on
    main()


if __name__ == "__main__":
    main()
