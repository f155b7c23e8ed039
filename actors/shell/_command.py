"""One run of a shell command: from its start until nothing of it is left.

`run_command` owns all of it, from opening the log of the output to the verdict. It
copies the output itself while that is little and the disk fast. Then, and when the
command is ended, a task of its own copies.
"""

from __future__ import annotations

import errno
import signal as signals
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, cast

import trio

from .._kernel.exit import Completed, Failed
from .._kernel.status import Progress
from ..env import Process, ProcessExit, Terminal
from ..output import OutputLog, QuotaExceeded
from ..work import Input, Report, WorkFailed

if TYPE_CHECKING:
    from . import Shell

T = TypeVar("T")

# So many bytes at once are much: then a task of its own copies, which stands in line
# with the other loud ones. Most commands end without one.
_MUCH: Final = 4096
# Seconds, at least, in which more of what a command left in the pipe at its end must
# come, and the bytes that are read of it: twice what the largest pipe of a user holds.
_LAST_WORDS = 1.0
_MOST_LAST_WORDS: Final = 2**21
# Seconds for a look at what is there behind that, and for all of them.
_LOOK: Final = 0.5
_LOOKS: Final = 2.0
# Seconds for keeping each piece of it, as many as for closing the file.
_KEEPING: Final = 5.0
# Seconds after SIGKILL between reports of processes that are still there.
REPORT_SURVIVORS_EVERY = 5.0
# What tells programs that nobody is watching a terminal.
_QUIET = {
    "NO_COLOR": "1",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
}
_BLANK = " \t\n"
# An ampersand after one of these is a part of an operator, or a mistake that
# the shell itself should name.
_OPERATORS = "&|;<>("


class CommandFailed(WorkFailed):
    """Raised for a command that did not exit with 0."""


class CommandInput(Input):
    """The input of one run: see `actors.work.Input`.

    It exists from the first step of the run. A write that comes before the command
    has started waits for that.
    """

    def __init__(self) -> None:
        self._begun = trio.Event()
        self._process: Process | None = None
        self._on_write: Callable[[], None]

    def begin(self, process: Process, on_write: Callable[[], None]) -> None:
        """The command has started; ``on_write`` is called before each write."""
        self._process = process
        self._on_write = on_write
        self._begun.set()

    def end(self) -> None:
        """The run has ended, or there never was a command."""
        self._process = None
        self._begun.set()

    async def write(self, data: bytes) -> None:
        process = await self._wait_begun()
        self._on_write()
        await process.send(data)

    async def close(self) -> None:
        process = await self._wait_begun()
        self._on_write()
        await process.send_eof()

    async def _wait_begun(self) -> Process:
        await self._begun.wait()
        if self._process is None:
            raise trio.ClosedResourceError("the run has ended")
        return self._process


async def run_command(shell: Shell, report: Report) -> str:
    """Run the command of ``shell`` until none of its processes is left, and return
    the tail of its output.

    When cancelled it ends every process first: SIGTERM, ``grace`` seconds or less in
    a hurry, then SIGKILL until none is left.

    Raises:
        OSError: if it cannot be started or its output cannot be kept.
        CommandFailed: if it did not exit with 0.
        QuotaExceeded: if it wrote more than its quota.
    """
    path, dropped = report.output_file, report.output_dropped
    assert path is not None
    log = OutputLog(
        report.env.files.open_output(path),
        quota=shell.quota,
        used=report.output_bytes - dropped,
        older=report.output_start - dropped,
        raw=shell.raw,
        rotate=shell.rotate,
        disk=report.disk,
        on_warning=report.warn,
        on_rotate=report.output_rotated,
        on_output=report.output_changed,
    )
    report.log = log
    # Before the first await, so that a host can write at once.
    stdin = None
    if shell.takes_input:
        report.input = stdin = CommandInput()
    failure: Exception | None = None
    try:
        exit = await _run(shell, report, log, stdin)
    finally:
        if stdin is not None:
            report.input = None
            stdin.end()
        # The output is complete before the end is recorded. Closing has a deadline.
        failure = await _close(log, report)  # noqa: ASYNC102 - shields itself
    failure = failure or _verdict(exit, shell.command)
    if failure is not None:
        raise failure
    return report.output_tail or ""


async def _run(
    shell: Shell, report: Report, log: OutputLog, stdin: CommandInput | None
) -> ProcessExit:
    report.cpu_seconds = None
    process = await _spawn(shell, report)
    report.pid = process.pid
    report.measure = process.usage
    capture = _Capture(process, log, report, prompt_after=shell.prompt_after)
    if stdin is not None:
        stdin.begin(process, capture.answered)
    try:
        exit = await _copy_until_exit(shell, report, process, capture)
        if exit is None or not process.is_over:
            exit = await _run_beside_copying(shell, report, process, capture)
        else:
            capture.command_ended()
            _note(report, process, exit)
    except ExceptionGroup as group:  # a nursery's, round the one error
        raise _first(group) from None
    finally:
        report.measure = None
        await process.aclose()
    if capture.failure is not None:
        raise capture.failure
    return exit


async def _copy_until_exit(
    shell: Shell, report: Report, process: Process, capture: _Capture
) -> ProcessExit | None:
    """Copy the output in this task, as long as it is little. Return how the leader has
    ended, or None if the rest must be copied beside waiting for that."""
    try:
        return await capture.copy_until_exit()
    except BaseException:
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(capture.run)
                await _end_cut_short(shell, report, process, capture)
        raise


async def _run_beside_copying(
    shell: Shell, report: Report, process: Process, capture: _Capture
) -> ProcessExit:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(capture.run)
        try:
            exit = await process.wait_exit()
            capture.command_ended()
            await _end_leftovers(process, shell, report)
            _note(report, process, exit)
        except BaseException:
            with trio.CancelScope(shield=True):
                await _end_cut_short(shell, report, process, capture)
            raise
        finally:
            capture.end_soon(shell.linger)
    return exit


async def _end_cut_short(
    shell: Shell, report: Report, process: Process, capture: _Capture
) -> None:
    """Whatever ends this task ends the command first."""
    failure = capture.failure
    capture.command_ended()
    try:
        exit = await _end(process, shell, report)
        _note(report, process, exit)
        # Its own end counts if it came before the cancellation.
        if failure is None and not exit.after_stop:
            report.own_exit = Completed(None)
            failure = _verdict(exit, shell.command)
        if failure is not None:
            report.own_exit = Failed(failure)
    finally:
        capture.end_soon(shell.linger)


async def _close(log: OutputLog, report: Report) -> OSError | None:
    """Close the log, report the end of the output, and return what went wrong."""
    written = log.bytes_written
    failure = None
    try:
        await log.finish()
    except OSError as error:
        report.warn(f"the end of the output could not be kept: {error}")
        failure = error
    report.log = None
    report.output_bytes += log.bytes_written - written
    tail, report.output_truncated = log.tail()
    if log.lost:
        report.output_lost = True
    report.output_tail = tail.decode("utf-8", "replace")
    return failure


def _first(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    return error


def _verdict(exit: ProcessExit, command: str) -> CommandFailed | None:
    """Return the failure of ``command``, or None if it exited with 0."""
    if exit.code == 0 and exit.lost is None:
        return None
    failure = CommandFailed(
        exit_words(exit.code, exit.signal)
        if exit.lost is None
        else f"the exit code could not be read: {exit.lost}"
    )
    failure.subject = command
    return failure


def exit_words(code: int | None, signal: int | None) -> str:
    """Return how a command ended: ``exit code 1``, ``ended by signal 9 (SIGKILL)``."""
    if signal is None:
        return f"exit code {code}"
    try:
        return f"ended by signal {signal} ({signals.Signals(signal).name})"
    except ValueError:  # a real-time signal
        return f"ended by signal {signal}"


async def _spawn(shell: Shell, report: Report) -> Process:
    processes = report.env.processes
    environment = processes.environment()
    environment.update(_QUIET)
    if shell.env:
        environment.update(shell.env)
    terminal = None
    if shell.pty:
        rows, columns = shell.size
        terminal = Terminal(rows=rows, columns=columns)
    spawn = partial(
        processes.spawn,
        cwd=shell.cwd,
        env=environment,
        marker=report.run_id,
        stdin=shell.stdin or "null",
        terminal=terminal,
        nice=shell.nice,
        rlimits=shell.rlimits,
    )
    return await spawn_shell(spawn, in_foreground(shell.command))


async def spawn_shell(
    spawn: Callable[[Sequence[str]], Awaitable[Process]], command: str
) -> Process:
    """Start ``command`` by ``spawn`` for ``bash -c``, or for ``sh -c`` where there is
    no bash.

    Raises:
        OSError: if it cannot be started.
    """
    try:
        return await spawn(["bash", "-c", command])
    except FileNotFoundError as error:
        if error.filename != "bash":
            raise
    return await spawn(["sh", "-c", command])


def in_foreground(command: str) -> str:
    """Return ``command`` without the one bare ``&`` that ends it, if one does.

    Models write it out of habit. A command that puts itself into the background
    ends at once, and with it the task, before what it started.

    Bare is an ``&`` that is last but for blanks and newlines, that no backslash
    escapes, and before which stands something other than an operator: ``&&``,
    ``\\&``, ``|&``, ``>&`` and ``; &`` stay, and so does every ``&`` further in.
    Nothing is parsed. That is safe for quotes, as a quote that is closed ends
    with its mark and not with ``&``, and for a comment, where the ``&`` means
    nothing; the exception is a here-document whose last line ends with ``&``,
    which no delimiter follows. An ``&`` with a comment behind it stays.

    Linear in the length of the command.
    """
    end = len(command.rstrip(_BLANK))
    if not command.endswith("&", 0, end) or _is_escaped(command, end - 1):
        return command
    kept = command[: end - 1]
    before = kept.rstrip(_BLANK)
    last = len(before) - 1
    if not before or (before[last] in _OPERATORS and not _is_escaped(before, last)):
        return command
    return kept


def _is_escaped(text: str, index: int) -> bool:
    """Whether an odd number of backslashes stands before ``index``."""
    return (index - len(text[:index].rstrip("\\"))) % 2 == 1


async def _end_leftovers(process: Process, shell: Shell, report: Report) -> None:
    """The command itself has ended: give the rest a moment, then end it."""
    with trio.move_on_after(shell.linger):
        await process.wait_gone()
        return
    if left := await process.members():
        report.left_behind = len(left)
        report.warn(
            f"ended with the command, after {shell.linger:g} s, what it left behind: "
            f"process {', '.join(map(str, left))}"
        )
    process.kill()
    await process.wait_gone()


async def _end(process: Process, shell: Shell, report: Report) -> ProcessExit:
    if not report.hurry:
        process.terminate()
        with trio.move_on_after(shell.grace):
            await _wait_gone_or_hurry(process, report)
    process.kill()
    while True:
        # No deadline: the task has not ended while a process of it is there. One
        # that does not die is reported again and again.
        with trio.move_on_after(REPORT_SURVIVORS_EVERY):
            await process.wait_gone()
            if report.survivors:
                report.report_survivors(())
            return await process.wait_exit()
        with trio.move_on_after(REPORT_SURVIVORS_EVERY):
            report.report_survivors(await process.members())


async def _wait_gone_or_hurry(process: Process, report: Report) -> None:
    async with trio.open_nursery() as nursery:

        async def wait_hurry() -> None:
            await report.wait_hurry()
            nursery.cancel_scope.cancel()

        nursery.start_soon(wait_hurry)
        await process.wait_gone()
        nursery.cancel_scope.cancel()


def _note(report: Report, process: Process, exit: ProcessExit) -> None:
    report.exit_code = exit.code
    report.signal = exit.signal
    usage = process.usage()
    # The exit counts what the leader waited for, the usage the other processes, too.
    # Each may miss something, so the larger one is nearer to the truth.
    known = [exit.cpu_seconds, None if usage is None else usage.cpu_seconds]
    report.cpu_seconds = max((it for it in known if it is not None), default=None)


class _Capture:
    """Copies the output of a process to its log until no more can come.

    A command probably waits for an answer if it runs, has begun a line, and has been
    silent since for ``prompt_after`` seconds. That is reported once. It costs nothing
    for output that comes in whole lines.
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
        # None once there is nothing more to report.
        self._prompt_after = prompt_after
        self._line_is_open = False
        self._received = b""
        """What `copy_until_exit` has left to `run`."""
        self._bytes_before = report.output_bytes
        # Shielded: a cancelled task goes on copying, because the last words of the
        # command count, and unread output would block the command.
        self._scope = trio.CancelScope(shield=True)
        # Once the end is near: for how long more is waited for, and how much of it is
        # read. What comes then is not the command's.
        self._patience: float | None = None
        self._rest = _MOST_LAST_WORDS
        self._is_keeping = False
        self.failure: Exception | None = None

    async def copy_until_exit(self) -> ProcessExit | None:
        """Copy until the leader has ended; return how. Return None before if the output
        is much, or whoever copies may have to wait for the disk, or cannot wait for the
        leader: `run` goes on then."""
        while True:
            news = await self._receive(self._receive_little)
            if not isinstance(news, bytes):
                return news
            if len(news) == _MUCH or not self._log.is_quick:
                self._received = news
                return None
            await self._take(news)

    async def run(self) -> None:
        """Copy until the end of the output, or until `end_soon` says."""
        # Whatever has struck `copy_until_exit` in the middle of a piece.
        self._is_keeping = False
        with self._scope:
            if self._received:
                await self._take(self._received)
            while self._rest > 0 and (chunk := await self._receive_some()):
                await self._take(chunk)
        if self._is_keeping:
            self._give_up()
        elif self._scope.cancelled_caught:
            await self._copy_what_is_there()

    def end_soon(self, linger: float) -> None:
        """Nothing of the command is left, so the end of its output is near, unless
        somebody else got hold of the pipe."""
        self._patience = max(linger, _LAST_WORDS)
        seconds = _KEEPING if self._is_keeping else self._patience
        self._scope.deadline = trio.current_time() + seconds

    async def _copy_what_is_there(self) -> None:
        # Nothing came in time, or nobody has looked, because all of this program was
        # late, or the disk. A look that was late itself is repeated; the others have a
        # time in all, since whoever has got hold of the pipe may say a little for ever.
        left = _LOOKS
        while self._rest > 0 and left > 0:
            chunk, began = None, trio.current_time()
            with trio.move_on_after(_LOOK, shield=True):
                chunk = await self._receive_some()
            took = trio.current_time() - began
            is_in_time = took < 2 * _LOOK
            if is_in_time:
                left -= took
            if chunk:
                await self._take(chunk)
            elif chunk is not None or is_in_time:
                break

    async def _take(self, chunk: bytes) -> None:
        self._report.prompt = None
        is_before_end = self._patience is None
        if self.failure is not None:
            pass
        elif is_before_end:
            self._is_keeping = True
            await self._keep(chunk)
            self._is_keeping = False
        else:
            # It has its own time: what is behind it in the pipe would be lost as well.
            with trio.move_on_after(_KEEPING, shield=True) as scope:
                await self._keep(chunk)
            if scope.cancelled_caught:
                self._give_up()
        if self._patience is not None:
            self._rest -= len(chunk)
            if is_before_end:
                # `end_soon` has given it the time to be kept.
                self._scope.deadline = trio.current_time() + self._patience
        # A carriage return announces a redraw, so that is not a question.
        self._line_is_open = not chunk.endswith((b"\n", b"\r"))

    def answered(self) -> None:
        """Somebody has written to the command: it waits for nothing now."""
        self._line_is_open = False
        self._report.prompt = None

    def command_ended(self) -> None:
        """The command has ended or is being ended: it waits for no answer."""
        self._prompt_after = None
        self._report.prompt = None

    async def _receive_little(self) -> bytes | ProcessExit | None:
        return await self._process.receive_or_exit(_MUCH)

    def _give_up(self) -> None:
        text = f"the end of the output could not be kept in {_KEEPING:g} s"
        self._report.warn(text)
        self.failure = TimeoutError(errno.ETIMEDOUT, text)

    async def _receive_some(self) -> bytes:
        try:
            return await self._receive(self._process.receive)
        except OSError as error:
            # As for what cannot be kept: see `_keep`.
            self.failure = self.failure or error
            self._process.kill()
            return b""

    async def _receive(self, receive: Callable[[], Awaitable[T]]) -> T:
        if self._line_is_open and self._prompt_after is not None:
            with trio.move_on_after(self._prompt_after):
                return await receive()
            self._report_prompt()
        return await receive()

    def _report_prompt(self) -> None:
        # Meanwhile the prompt may have been answered, or the command ended.
        if (
            not self._line_is_open
            or self._prompt_after is None
            or self.failure is not None
        ):
            return
        tail, _ = self._log.tail()
        line = tail[tail.rfind(b"\n") + 1 :].decode("utf-8", "replace").rstrip()
        # Empty if, for instance, only escape sequences came after the newline.
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
