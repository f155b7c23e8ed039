"""The script: ``__main__.py PARENT VARIABLE``, with the control socket as stdin."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from types import FrameType

if sys.platform == "win32":
    raise ImportError("the guardian needs a Unix system")

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
if __name__ == "__main__" and not __package__:
    # At the end: nothing beside us may hide a module of the standard library.
    sys.path.append(os.path.dirname(_PACKAGE))
    __package__ = os.path.basename(_PACKAGE)

from .outer import Outer  # noqa: E402
from .proc import HAS_PROC, PR_SET_DUMPABLE, open_pidfd, prctl  # noqa: E402
from .serving import Server  # noqa: E402
from .starting import CATCHABLE  # noqa: E402

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SURVIVED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGPIPE,
)
"""What a terminal, a service manager or a clumsy ``kill`` may send to us."""


def _nothing(number: int, frame: FrameType | None) -> None:
    """Catch a signal: unlike an ignored one it is not ignored by programs."""


def _become_hard_to_hold() -> None:
    # Nobody may trace us who may not trace everybody; and who has stopped us and
    # then kills our parent has not stopped us.
    prctl(PR_SET_DUMPABLE, 0)
    prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def _open_parent(parent: int) -> int | None:
    """Return a pidfd of the parent, or None where there are none.

    Raises:
        ProcessLookupError: if the parent has ended.
    """
    descriptor = open_pidfd(parent)
    # The pidfd is of the parent only if the parent was there after it was opened.
    if os.getppid() != parent:
        raise ProcessLookupError
    return descriptor


def main() -> None:
    """Run as the guardian of the parent process; descriptor 0 is its control."""
    parent, variable = int(sys.argv[1]), os.fsencode(sys.argv[2])
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in CATCHABLE:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    for number in (*_SURVIVED, signal.SIGCHLD):
        signal.signal(number, _nothing)
    if sys.platform == "linux":
        _become_hard_to_hold()
    try:
        runtime = _open_parent(parent)
        outer = _begin_inner(variable, runtime) if HAS_PROC else None
    except ProcessLookupError:
        return
    if not HAS_PROC and sys.platform == "linux":
        # Not to find orphans, but to reap them: a group of the dead is still one.
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=0)
    control.setblocking(False)
    server = Server(control, variable, runtime, outer)
    try:
        server.serve()
    except BaseException:
        # Or our own SIGKILL would read as the reason why the others have ended.
        server.lose()
        raise
    finally:
        try:
            server.close()
        finally:
            os._exit(0)  # At once: somebody waits for it.


def _begin_inner(variable: bytes, runtime: int | None) -> int | None:
    """Go on as the inner guardian; return a pidfd of the outer one."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    gc.freeze()  # The two share their memory as long as nobody writes to it.
    outer = os.getpid()
    inner = os.fork()
    if inner:
        try:
            os.closerange(0, 64 if runtime is None else runtime)
            os.closerange(64 if runtime is None else runtime + 1, 64)
            guardian = Outer(inner, runtime)
            try:
                guardian.watch()
            finally:
                guardian.end_the_rest(variable)
        finally:
            os._exit(0)
    # A signal to the group of one does not reach the other.
    os.setsid()
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _become_hard_to_hold()
    return _open_parent(outer)


if __name__ == "__main__":
    main()
