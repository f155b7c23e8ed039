"""What asks the program to stop, and what a second request does."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from types import FrameType

import trio

from ..runtime import Runtime

SIGNAL_GRACE = 2.0
"""Seconds that a first signal leaves to the tasks, however long their own grace:
whoever sends one waits, and soon sends another that nothing survives."""


class Stopping:
    """The first request to stop cancels `work`; if it is a signal, the tasks of
    `runtime` have `SIGNAL_GRACE` seconds. Each signal after the first calls
    ``on_another`` and leaves them none."""

    def __init__(self, on_another: Callable[[], None]) -> None:
        self.runtime: Runtime | None = None
        """To be set by whoever opens it."""
        self.number: int | None = None
        """The signal that asked first; 0 if it was not a signal."""
        self.work = trio.CancelScope()
        """To be entered by whoever does the work."""
        self._on_another = on_another

    @property
    def reason(self) -> str:
        """What asked, in a word."""
        return signal.Signals(self.number).name if self.number else "no output possible"

    @property
    def exit_code(self) -> int:
        """What tells the caller of this program about it."""
        return 128 + self.number if self.number else 1

    def request(self, number: int) -> None:
        """Ask to stop, as that signal does; 0 if it is like none."""
        if self.number is None:
            self.number = number
            self.work.cancel(self.reason)

    async def listen(self, received: AsyncIterator[int]) -> None:
        """Take what `open_signals` receives, until cancelled."""
        async for number in received:
            self.request(number)
            break
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hurry_later)
            async for _ in received:
                self._on_another()
                await self._hurry()

    async def _hurry_later(self) -> None:
        await trio.sleep(SIGNAL_GRACE)
        await self._hurry()

    async def _hurry(self) -> None:
        if self.runtime is not None:
            await self.runtime.stop_all(reason=self.reason, now=True, by="user")


@contextmanager
def open_signals(stopping: Stopping) -> Generator[AsyncIterator[int]]:
    """Receive what asks a program to stop, for the length of a block.

    If that has stopped it, signals are ignored from then on: one that comes late
    must not change how the program ends, which its exit code says.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    # What nohup has ignored stays ignored.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}

    def late(number: int, _: FrameType | None) -> None:
        # What the receiver has not handed out comes here when it is closed.
        if stopping.number is None:
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)

    for number in numbers:
        signal.signal(number, late)
    # Whoever started this may have left them blocked, and could end it by no other.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    try:
        with trio.open_signal_receiver(*numbers) as received:
            yield received
    finally:
        for number in numbers:
            is_over = stopping.number is not None
            signal.signal(number, signal.SIG_IGN if is_over else before[number])
