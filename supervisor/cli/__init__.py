"""The command `trio-supervisor`. It needs the extra ``cli``."""

from __future__ import annotations

import errno
import os
import signal
import sys
from importlib import import_module
from typing import cast

from ._patient import Unwritten, make_streams_patient, say_aside

_NEEDED = ("click", "rich")


def main() -> None:
    """Run the command line of this process and exit with its code.

    0 is success, 1 a failure of what was run, 2 a mistake in the call, and
    128 + n the end by signal n.
    """
    # Until there is something to stop, Ctrl+C ends this program as SIGTERM does.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        _open_missing_descriptors()
        make_streams_patient()
        code = _run()
        sys.stdout.flush()
    except Unwritten as error:
        code = _without_output(error)
    sys.exit(code)


def _without_output(error: Unwritten) -> int:
    """Tell that standard output takes nothing more; return the exit code."""
    # What is left in the buffer must not fail again when the interpreter ends, whose
    # exit code would be another.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    why = cast("OSError", error.__cause__)
    if why.errno == errno.EPIPE:
        # Whoever read it has gone, and need not be told.
        return 128 + getattr(signal, "SIGPIPE", 13)
    say_aside(f"standard output: {why.strerror}")
    return error.code


def _run() -> int:
    try:
        for name in _NEEDED:
            import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise  # It is there, but what it needs itself is not.
        say_aside(
            f"the command needs {' and '.join(_NEEDED)}: pip install"
            " 'trio-supervisor[cli]', or '.[cli]' in its source"
        )
        return 2
    import logging

    from ._command import command

    # It shows what happens, and a log would run into that.
    logging.getLogger("supervisor").addHandler(logging.NullHandler())

    return command(sys.argv[1:])


def _open_missing_descriptors() -> None:
    # Started with `>&-`: else the next descriptor opened would be taken for
    # standard output, whatever it is.
    missing = (sys.stdin is None, sys.stdout is None, sys.stderr is None)
    if any(missing):
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(descriptor)
        sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
