"""What every command needs round its work: where it writes, what stops it, and the
code that it exits with."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

from ._patient import say_aside
from ._stdout import Stdout
from ._stopping import Stopping, open_signals

EVENTS_KEPT = 100_000
"""For a reader of ours that is slow; then it is told how many it missed."""


@asynccontextmanager
async def open_program() -> AsyncGenerator[tuple[Stopping, Stdout]]:
    """Open standard output, and listen to what asks to stop."""
    stopping = Stopping(lambda: stdout.hurry())
    stdout = Stdout(stopping.request)
    with open_signals(stopping) as received:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stopping.listen, received)
            nursery.start_soon(stdout.watch)
            yield stopping, stdout
            nursery.cancel_scope.cancel()


def exit_code(
    stopping: Stopping,
    stdout: Stdout,
    has_failed: bool,
    *,
    therefore: str | None = None,
    problem: str | None = None,
) -> int:
    """Return what to exit with, after `open_program`, and say aside what has ended it
    early: ``problem``, or that standard output takes nothing more.

    ``therefore`` says what followed if the reader has gone; with None nothing is said
    then, not even that it has gone.
    """
    why = problem if stopping.number is None else None
    if stopping.number == 0 and stdout.failure is not None:
        why = f"standard output: {stdout.failure.strerror}"
    elif stopping.number == signal.SIGPIPE and therefore is not None:
        why = f"whoever read the output has gone{therefore}"
    if why is not None:
        say_aside(why)
    return int(has_failed) if stopping.number is None else stopping.exit_code
