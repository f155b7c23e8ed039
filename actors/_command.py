"""One run of a shell command: from its start until nothing of it is left."""

from __future__ import annotations

import contextlib
import signal as signals
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import trio

from ._capture import Capture
from ._exit import Completed, Exit, Failed
from ._script import in_foreground
from .env import Process, ProcessExit, Terminal
from .output import OutputLog
from .work import Report, WorkFailed

if TYPE_CHECKING:
    from .shell import Shell

# For the last words of a command that are still in the pipe, at least.
_LAST_WORDS = 1.0
# After SIGKILL: how long to wait before saying that something is still there.
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


class CommandFailed(WorkFailed):
    """Raised for a command that did not exit with 0."""


class CommandInput:
    """The input of one run: see `actors.work.Input`.

    There from the first step of the run; what is written before the command has
    started waits for it.
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
        """See `actors.work.Input.write`."""
        process = await self._wait_begun()
        self._on_write()
        await process.send(data)

    async def close(self) -> None:
        """See `actors.work.Input.close`."""
        process = await self._wait_begun()
        self._on_write()
        await process.send_eof()

    async def _wait_begun(self) -> Process:
        await self._begun.wait()
        if self._process is None:
            raise trio.ClosedResourceError("the run has ended")
        return self._process


async def run_command(shell: Shell, report: Report, log: OutputLog) -> ProcessExit:
    """Run the command of ``shell`` until none of its processes is left.

    Cancelled, it ends every process first: SIGTERM, ``grace`` seconds or less if
    there is a hurry, SIGKILL until none is left.

    Raises:
        OSError: if it cannot be started or its output cannot be kept.
        QuotaExceeded: if it wrote more than its quota.
    """
    report.cpu_seconds = None
    process = await _spawn(shell, report)
    report.pid = process.pid
    report.measure = process.usage
    capture = Capture(process, log, report, prompt_after=shell.prompt_after)
    if isinstance(report.input, CommandInput):
        report.input.begin(process, capture.answered)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(capture.run)
            try:
                exit = await process.wait_exit()
                capture.command_ended()
                await _end_leftovers(process, shell, report)
                _note(report, process, exit)
            except BaseException:
                # Whatever ends this task ends the command first.
                failure = capture.failure
                capture.command_ended()
                with trio.CancelScope(shield=True):
                    exit = await _end(process, shell, report)
                    _note(report, process, exit)
                    # Its own end counts if it came first.
                    if failure is not None:
                        report.own_exit = Failed(failure)
                    elif not exit.after_stop:
                        report.own_exit = _own_exit(exit)
                raise
            finally:
                # Nothing of the command is left, so the end of its output
                # is near, unless somebody else got hold of the pipe.
                capture.scope.deadline = trio.current_time() + max(
                    shell.linger, _LAST_WORDS
                )
    except ExceptionGroup as group:  # What has failed names itself.
        raise _first(group) from None
    finally:
        report.measure = None
        with trio.CancelScope(shield=True):
            await process.aclose()
    if capture.failure is not None:
        raise capture.failure
    return exit


def _first(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    return error


def raise_for(exit: ProcessExit, command: str = "") -> None:
    """Raise `CommandFailed` unless that is an exit with 0 of ``command``."""
    why = _what_failed(exit)
    if why is not None:
        failure = CommandFailed(why)
        failure.subject = command
        raise failure


def _what_failed(exit: ProcessExit) -> str | None:
    if exit.lost is not None:
        return f"the exit code could not be read: {exit.lost}"
    if exit.signal is not None:
        with contextlib.suppress(ValueError):
            return (
                f"ended by signal {exit.signal} ({signals.Signals(exit.signal).name})"
            )
        return f"ended by signal {exit.signal}"
    return f"exit code {exit.code}" if exit.code != 0 else None


async def _spawn(shell: Shell, report: Report) -> Process:
    processes = report.env.processes
    environment = processes.environment() | _QUIET | (shell.env or {})
    terminal = None
    if shell.pty:
        rows, columns = shell.size
        terminal = Terminal(rows=rows, columns=columns)
    for program in ("bash", "sh"):
        try:
            return await processes.spawn(
                [program, "-c", in_foreground(shell.command)],
                cwd=shell.cwd,
                env=environment,
                marker=report.run_id,
                stdin=shell.stdin or "null",
                terminal=terminal,
                nice=shell.nice,
                rlimits=shell.rlimits,
            )
        except FileNotFoundError as error:
            if program == "sh" or error.filename != program:
                raise
    raise AssertionError("unreachable")


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
        # The truth has no deadline: a process that does not die is waited
        # for, and named again and again.
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
    # The leader knows what it has waited for, the tree knows of the others.
    known = [exit.cpu_seconds, None if usage is None else usage.cpu_seconds]
    report.cpu_seconds = max((it for it in known if it is not None), default=None)


def _own_exit(exit: ProcessExit) -> Exit[object]:
    try:
        raise_for(exit)
    except CommandFailed as error:
        return Failed(error)
    return Completed(None)
