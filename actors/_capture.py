"""Copying the output of a command to its log, and noticing a prompt in it."""

from __future__ import annotations

import trio

from ._progress import Progress
from .env import Process
from .output import OutputLog, QuotaExceeded
from .work import Report


class Capture:
    """Copies the output of a process to its log until no more can come.

    A command that has begun a line, has been silent since for ``prompt_after``
    seconds and still runs is told of as one that probably waits for an answer,
    once. This costs nothing for output that comes in whole lines.
    """

    def __init__(
        self,
        process: Process,
        log: OutputLog,
        report: Report,
        *,
        prompt_after: float | None,
    ) -> None:
        self._process = process
        self._log = log
        self._report = report
        # None once there is no more to tell.
        self._prompt_after = prompt_after
        self._line_is_open = False
        self._bytes_before = report.output_bytes
        # Cancelling the task does not end the copying: the last words of the
        # command count, and unread output would block it.
        self.scope = trio.CancelScope(shield=True)
        self.failure: Exception | None = None

    async def run(self) -> None:
        """Copy until the end of the output, or of `scope`."""
        with self.scope:
            while chunk := await self._receive_some():
                self._report.prompt = None
                if self.failure is None:
                    await self._keep(chunk)
                # After a carriage return comes a redraw: that is no question.
                self._line_is_open = not chunk.endswith((b"\n", b"\r"))

    def answered(self) -> None:
        """Somebody has written to the command: it waits for nothing now."""
        self._line_is_open = False
        self._report.prompt = None

    def command_ended(self) -> None:
        """The command has ended or is being ended: it waits for no answer."""
        self._prompt_after = None
        self._report.prompt = None

    async def _receive_some(self) -> bytes:
        try:
            return await self._receive()
        except OSError as error:
            # The rest cannot be kept either: see `_keep`.
            self.failure = self.failure or error
            self._process.kill()
            return b""

    async def _receive(self) -> bytes:
        if self._line_is_open and self._prompt_after is not None:
            with trio.move_on_after(self._prompt_after):
                return await self._process.receive()
            self._report_prompt()
        return await self._process.receive()

    def _report_prompt(self) -> None:
        # What it was may have been answered, or ended, meanwhile.
        if (
            not self._line_is_open
            or self._prompt_after is None
            or self.failure is not None
        ):
            return
        tail, _ = self._log.tail()
        line = tail[tail.rfind(b"\n") + 1 :].decode("utf-8", "replace").rstrip()
        # Only escape sequences, for instance, came after the last newline.
        if line:
            self._prompt_after = None
            self._report.report_prompt(line)

    async def _keep(self, chunk: bytes) -> None:
        # Output that cannot be kept ends the command; what it still prints is
        # read and dropped.
        try:
            await self._log.write(chunk)
        except (QuotaExceeded, OSError) as error:
            self.failure = error
            self._process.kill()
        self._report.output_bytes = self._bytes_before + self._log.bytes_written
        self._report.say(Progress(bytes_written=self._report.output_bytes))
