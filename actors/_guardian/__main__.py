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

from .ending import end_descendants  # noqa: E402
from .proc import HAS_PROC  # noqa: E402
from .serving import Server  # noqa: E402
from .starting import CATCHABLE  # noqa: E402

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


def _become_subreaper() -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _open_parent(parent: int) -> int | None:
    """Return a pidfd of the parent, or None where there are none.

    Raises:
        ProcessLookupError: if the parent has ended.
    """
    descriptor = None
    if sys.platform == "linux":
        try:
            descriptor = os.pidfd_open(parent)
        except ProcessLookupError:
            raise
        except OSError:  # An old kernel, or a sandbox.
            pass
    # The pidfd is of the parent only if the parent was there after it was opened.
    if os.getppid() != parent:
        raise ProcessLookupError
    return descriptor


def _watch_over(inner: int, variable: bytes) -> None:
    """Be the outer guardian: wait for the end of the inner one, then end the rest."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        news = os.waitid(os.P_PID, inner, os.WEXITED | os.WSTOPPED)
        if news is not None and news.si_code != os.CLD_STOPPED:
            break
        os.kill(inner, signal.SIGCONT)
    end_descendants(variable, _reap, _wait_for_child)


def _reap() -> bool:
    try:
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
            pass
    except ChildProcessError:
        return False
    return True


def _wait_for_child(seconds: float) -> None:
    if sys.platform != "darwin":
        signal.sigtimedwait([signal.SIGCHLD], seconds)


def main() -> None:
    """Run as the guardian of the parent process; descriptor 0 is its control."""
    parent, variable = int(sys.argv[1]), os.fsencode(sys.argv[2])
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in CATCHABLE:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    for number in (*_SURVIVED, signal.SIGCHLD):
        signal.signal(number, _nothing)
    try:
        runtime = _open_parent(parent)
        outer = _begin_inner(variable) if HAS_PROC else None
    except ProcessLookupError:
        return
    if not HAS_PROC and sys.platform == "linux":
        # Not to find orphans, but to reap them: a group of the dead is still one.
        _become_subreaper()
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=0)
    control.setblocking(False)
    server = Server(control, variable, runtime, outer)
    try:
        server.serve()
    finally:
        server.close()
        os._exit(0)  # At once: somebody waits for it.


def _begin_inner(variable: bytes) -> int | None:
    """Go on as the inner guardian; return a pidfd of the outer one."""
    _become_subreaper()
    gc.freeze()  # The two share their memory as long as nobody writes to it.
    outer = os.getpid()
    inner = os.fork()
    if inner:
        try:
            os.closerange(0, 64)
            _watch_over(inner, variable)
        finally:
            os._exit(0)
    # A signal to the group of one does not reach the other.
    os.setsid()
    _become_subreaper()
    return _open_parent(outer)


if __name__ == "__main__":
    main()
