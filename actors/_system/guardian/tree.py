"""What the guardian knows of one tree."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence

from .starting import Started

_TOLD_EVERY = 0.1
"""Seconds of CPU time of orphans after which the runtime is told of them."""
_TOLD_SHARE = 0.25
"""The least part by which that time has grown since it was told. So it is told
some 100 times in all, and a runtime that does not listen for hours has room for
the end of the tree."""
_FOR_NOW = (
    errno.EAGAIN,
    errno.ENOBUFS,
    errno.ENOMEM,
    errno.ETOOMANYREFS,  # Descriptors that nobody has received yet.
)
"""What keeps a line from being sent, but not for good."""


class Tree:
    """A tree, from its request until nothing of it is left."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.descriptor = channel.fileno()
        self.request = bytearray()
        self.wishes = b""
        """What the runtime wants and has not got yet."""
        self.unsent = bytearray()
        """What it has not been told yet."""
        self._handed: list[int] = []
        """Descriptors that go with that."""
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
        """Clock ticks since boot, not after any member's start."""
        self.stopped = False
        """Whether a signal was asked for."""
        self.looked = False
        """Whether strangers were looked for since its last descendant ended."""
        self.gone = False
        """Whether nothing is left, or nothing was ever started."""
        self.next_sweep = 0.0
        self.pause = 0.0
        self._used = 0.0
        self._used_told = 0.0

    def begin(self, started: Started) -> None:
        """Take notice of its leader."""
        self.pid = started.pid
        self.session = started.session
        self.holder = started.holder
        self._terminal = started.terminal
        self.output = started.name

    def let_output_end(self) -> None:
        """Give up its terminal, which nobody is left to write to."""
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
        """Return the line that tells what orphans have used."""
        self._used_told = self._used
        return f"used {self._used:.3f}"

    def has_untold_use(self) -> bool:
        """Tell whether `use` would be news."""
        return self._used > self._used_told

    def tell(self, line: str, descriptors: Sequence[int] = ()) -> None:
        """Write a line to the runtime, or keep it in ``unsent``.

        The descriptors are ours no more.
        """
        self.unsent += line.encode() + b"\n"
        self._handed += descriptors
        self.send()

    def send(self) -> None:
        """Send what goes of what the runtime has not been told."""
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
        """End the stream, which is dealt with where it is read: on both sides."""
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
