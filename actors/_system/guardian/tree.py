"""What the guardian knows of one tree."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence

from .starting import Started

_TOLD_EVERY = 0.1
"""The least CPU time of orphans, in seconds, that is worth a report to the runtime."""
_TOLD_SHARE = 0.25
"""The time is reported again when it has grown by this part. So there are some 100
reports in all, and they do not fill the channel of a runtime that does not read for
hours: the report of the tree's end still fits."""
_FOR_NOW = (
    errno.EAGAIN,
    errno.ENOBUFS,
    errno.ENOMEM,
    errno.ETOOMANYREFS,  # Descriptors that nobody has received yet.
)
"""Errors that pass: the line can be sent later."""


class Tree:
    """A tree, from its request until nothing of it is left."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.descriptor = channel.fileno()
        self.request = bytearray()
        self.wishes = b""
        """What the runtime asked for that is not done yet, a letter each."""
        self.unsent = bytearray()
        """What is still to be sent to it."""
        self._handed: list[int] = []
        """Descriptors that are sent with the next piece of `unsent`."""
        self.pid = 0
        self.session = 0
        self.holder: int | None = None
        self._terminal: int | None = None
        self.marker = b""
        self.mark = 0
        """See `proc.set_mark`."""
        self.output = ""
        """What ``/proc`` calls the output of a member."""
        self.since = 0
        """Clock ticks since boot, no later than any member's start."""
        self.stopped = False
        """Whether a signal was asked for."""
        self.looked = False
        """Whether a look for strangers was made after its last descendant ended."""
        self.gone = False
        """Whether nothing is left, or nothing was ever started."""
        self.next_sweep = 0.0
        self.pause = 0.0
        self._used = 0.0
        self._used_told = 0.0

    def begin(self, started: Started) -> None:
        """Record what was started for it."""
        self.pid = started.pid
        self.session = started.session
        self.holder = started.holder
        self._terminal = started.terminal
        self.output = started.name

    def let_output_end(self) -> None:
        """Close our side of its terminal: nobody is left who writes to it."""
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None

    def add_use(self, seconds: float) -> None:
        """Count the CPU time of an orphan that has ended."""
        self._used += seconds
        news = self._used - self._used_told
        if news >= max(_TOLD_EVERY, _TOLD_SHARE * self._used_told):
            self.tell(self.use())

    def use(self) -> str:
        """Return the line that reports what orphans have used."""
        self._used_told = self._used
        return f"used {self._used:.3f}"

    def has_untold_use(self) -> bool:
        """Return whether orphans have used more than was reported."""
        return self._used > self._used_told

    def tell(self, line: str, descriptors: Sequence[int] = ()) -> None:
        """Write a line to the runtime, or keep it in ``unsent``.

        It takes over the descriptors and closes them once they are sent.
        """
        self.unsent += line.encode() + b"\n"
        self._handed += descriptors
        self.send()

    def send(self) -> None:
        """Send as much of ``unsent`` as goes without waiting."""
        try:
            while self.unsent:
                if self._handed:
                    sent = socket.send_fds(self.channel, [self.unsent], self._handed)
                    self._close_handed()
                else:
                    sent = self.channel.send(self.unsent)
                del self.unsent[:sent]
        except OSError as error:
            if error.errno not in _FOR_NOW:
                self._hang_up()

    def _hang_up(self) -> None:
        """End the stream. Both sides deal with that end where they read it."""
        self.unsent.clear()
        self._close_handed()
        try:
            self.channel.shutdown(socket.SHUT_RDWR)
        except OSError:  # The runtime has gone, or the channel is closed.
            pass

    def _close_handed(self) -> None:
        while self._handed:
            try:
                os.close(self._handed.pop())
            except OSError:
                pass
