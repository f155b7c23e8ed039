"""A program in memory: what a script can do while it plays one."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import trio

from ..env import Terminal

if TYPE_CHECKING:
    from ._process import FakeProcess


class Program:
    """One process of a fake tree, as its script sees it.

    SIGTERM and SIGKILL end it at once. Its script is then cancelled. A script that
    shields itself is like a process in an uninterruptible sleep. It ends, by that
    signal, when the shield does.
    """

    def __init__(self, tree: FakeProcess, pid: int, *, prints: bool) -> None:
        self.pid = pid
        """Its process id; the fake ones count up from 1000."""
        self.sigterm = trio.Event()
        """Set by the first SIGTERM, for a script that ignores its effect."""
        self.cpu_seconds = 0.0
        """What `Process.usage` says of it; for the script to set."""
        self.memory_bytes = 0
        """Likewise."""
        self._tree = tree
        self._prints = prints
        self._ignores_sigterm = False
        self._scope = trio.CancelScope()
        self._signal: int | None = None

    def __repr__(self) -> str:
        return f"<Program {self.pid} of {self.command!r}>"

    @property
    def command(self) -> str:
        """The command line that started its tree."""
        return self._tree.command

    @property
    def env(self) -> Mapping[str, str]:
        """The environment variables."""
        return self._tree.env

    @property
    def cwd(self) -> str | None:
        """The directory in which it was started. There are no files in it."""
        return self._tree.cwd

    @property
    def terminal(self) -> Terminal | None:
        """The terminal that it runs on, or None."""
        return self._tree.terminal

    async def print(self, output: str | bytes) -> None:
        """Write to stdout. Nothing is added to it.

        It waits while the pipe is full, like a program that prints faster than it is
        read. SIGPIPE ends it where nobody can read any more.
        """
        await self._print(output, to_stderr=False)

    async def print_error(self, output: str | bytes) -> None:
        """Write to stderr. It is stdout unless the tree has a stderr of its own."""
        await self._print(output, to_stderr=True)

    async def _print(self, output: str | bytes, *, to_stderr: bool) -> None:
        data = output.encode() if isinstance(output, str) else output
        await trio.lowlevel.checkpoint()
        if not self._prints:
            return
        try:
            await self._tree.print(data, to_stderr=to_stderr)
        except trio.BrokenResourceError:
            # Nobody can read it any more.
            if self._signal is None:
                self.end_by(signal.SIGPIPE)
            await trio.lowlevel.checkpoint()

    async def read(self, max_bytes: int = 65_536) -> bytes:
        """Wait for input and return what is there. ``b""`` means the end of the
        input."""
        if self is not self._tree.leader:
            await trio.lowlevel.checkpoint()
            return b""
        return await self._tree.read_input(max_bytes)

    async def read_line(self) -> str:
        """Read a line from the standard input, with its newline. ``""`` means the end
        of the input."""
        line = b""
        while not line.endswith(b"\n") and (byte := await self.read(1)):
            line += byte
        return line.decode(errors="replace")

    def ignore_sigterm(self) -> None:
        """Ignore SIGTERM from now on. It only sets `sigterm`."""
        self._ignores_sigterm = True

    def close_output(self) -> None:
        """Close stdout and stderr, and go on. What it prints from now on is lost."""
        self._prints = False
        self._tree.output_changed()

    def fork(self, script: Script, *, prints: bool = True) -> Program:
        """Start another process of this tree. It goes on when this one ends.

        It holds the output pipe open until it ends. With ``prints`` False its output
        goes elsewhere, and it does not hold the pipe. Its input is ``/dev/null``.
        """
        return self._tree.start(script, prints=prints)

    # For the tree

    @property
    def holds_output(self) -> bool:
        """Whether it has the output pipe open, while it lives."""
        return self._prints

    @property
    def signal(self) -> int | None:
        """The signal that ends it, or None."""
        return self._signal

    def receive_sigterm(self) -> None:
        """Take a SIGTERM."""
        self.sigterm.set()
        if not self._ignores_sigterm and self._signal is None:
            self.end_by(15)

    def end_by(self, number: int) -> None:
        """Take a signal that nothing can ignore."""
        self._signal = number
        self._scope.cancel()

    async def run(self, script: Script) -> int:
        """Play ``script`` until it ends or a signal ends it, and return the exit code.

        Raises:
            TypeError, ValueError: if the script returns something else.
        """
        code: object = None
        with self._scope:
            # A signal that comes before the first step leaves nothing to do.
            if self._signal is None:
                code = await script(self)
        if code is None:
            return 0
        if isinstance(code, bool) or not isinstance(code, int):
            raise TypeError(f"a script returns an exit code or None, not {code!r}")
        check_exit_code("what a script returns", code)
        return code


def check_exit_code(what: str, code: int) -> None:
    """Refuse a number that is not an exit code.

    Raises:
        ValueError: naming ``what`` and the number.
    """
    if not -64 <= code <= 255:
        raise ValueError(
            f"{what} must be an exit code, 0 to 255, or -N for signal N, not {code!r}"
        )


Script: TypeAlias = Callable[[Program], Awaitable[int | None]]
"""An async function that plays a program. It returns the exit code (None is 0,
-N is an end by signal N), and so does ``sys.exit``. An error in it, such as an assertion
that fails, is a mistake of the test: the program has no exit code then, the task fails with the
error's text, and leaving the runtime, which closes the processes, raises it."""
