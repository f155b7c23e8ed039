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
    # Last in the path: no file beside us may hide a module of the standard library.
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
"""What a terminal, a service manager or a clumsy ``kill`` may send to us: caught."""


def _nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing on a signal. (Programs inherit that a signal is ignored, but not this.)"""


def _become_hard_to_hold() -> None:
    # Not dumpable: nobody can trace us who may not trace every process. And if somebody
    # has stopped us, the death of our parent continues us.
    prctl(PR_SET_DUMPABLE, 0)
    prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def _open_parent(parent: int) -> int | None:
    """Return a pidfd of the parent, or None where there are none.

    Raises:
        ProcessLookupError: if the parent has ended.
    """
    descriptor = open_pidfd(parent)
    # Another process may have got its pid: the pidfd is the parent's only if that was
    # still our parent after the pidfd was opened.
    if os.getppid() != parent:
        raise ProcessLookupError
    return descriptor


def main() -> None:
    """Run as the guardian of the parent process; descriptor 0 is its control."""
    parent, variable = int(sys.argv[1]), os.fsencode(sys.argv[2])
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in CATCHABLE:
        # We inherit what our parent ignores, and programs would inherit it from us.
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
        # Not to find orphans, but to reap them: a group that has only zombies is still
        # there for the kernel, so the tree would never be gone.
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=0)
    control.setblocking(False)
    server = Server(control, variable, runtime, outer)
    try:
        server.serve()
    except BaseException:
        # Close kills the rest. Without this the runtime would read that SIGKILL as the
        # reason for which these processes ended.
        server.lose()
        raise
    finally:
        try:
            server.close()
        finally:
            # At once, without the interpreter's cleanup: the runtime waits.
            os._exit(0)


def _begin_inner(variable: bytes, runtime: int | None) -> int | None:
    """Go on as the inner guardian; return a pidfd of the outer one."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    gc.freeze()  # The two share their memory as long as nobody writes to it.
    outer = os.getpid()
    inner = os.fork()
    if inner:
        try:
            # Keep only the pidfd of the runtime. An open end of the control socket
            # would hide the death of the inner one from the runtime.
            os.closerange(0, 64 if runtime is None else runtime)
            os.closerange(64 if runtime is None else runtime + 1, 64)
            guardian = Outer(inner, runtime)
            try:
                guardian.watch()
            finally:
                guardian.end_the_rest(variable)
        finally:
            os._exit(0)
    # A session and group of its own: a signal to the group of one half does not reach
    # the other.
    os.setsid()
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _become_hard_to_hold()
    return _open_parent(outer)


if __name__ == "__main__":
    main()
