"""A shell command as a background task."""

from __future__ import annotations

import contextlib
import math
import os
import signal as signals
from collections.abc import Mapping

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from ._actor import Context
from ._exit import Completed, Exit, Failed
from ._progress import Progress
from .env import Process, ProcessExit
from .output import OutputLog, QuotaExceeded
from .work import Report, WorkFailed

# For the last words of a command that are still in the pipe, at least.
_LAST_WORDS = 1.0
# After SIGKILL: how long to wait before saying that something is still there.
_REPORT_SURVIVORS_EVERY = 5.0
# What tells programs that nobody is watching a terminal.
_QUIET = {
    "NO_COLOR": "1",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
}


def _as_text(path: str | os.PathLike[str] | None) -> str | None:
    # What is no path stays as it is, for the check to name it.
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def _copy(env: Mapping[str, str] | None) -> dict[str, str] | None:
    # A task that has to wait must not see what its host does to it meanwhile.
    return dict(env) if isinstance(env, Mapping) else env


class CommandFailed(WorkFailed):
    """Raised for a command that did not exit with 0."""


@attrs.frozen
class Shell:
    """A command for ``bash -c``, or for ``sh -c`` where there is no bash.

    It runs in a session of its own with ``/dev/null`` as its input; its stdout
    and stderr go to the task's output file in the order in which they arrive,
    cleaned of what only a terminal understands. The task ends when no process
    of the command is left and its output is on the disk.

    Args:
        command: the command line.
        cwd: where to run it; the default is where the host runs.
        env: variables on top of the inherited ones and of those that keep
            programs from colouring and paging.
        stdin: None, the only one yet: there is nothing to read.
        grace: the seconds between SIGTERM and SIGKILL when it is stopped.
        linger: the seconds that processes it started in the background have
            after its own end, before they are ended too.
        quota: the bytes of output, over all its runs, beyond which it is killed
            and fails.
        deadline: the seconds after which a run is stopped and fails; None for
            no deadline.
        raw: keep the output as it comes.

    Raises:
        TypeError, ValueError: naming the argument and its value.
    """

    command: str
    cwd: str | None = attrs.field(default=None, kw_only=True, converter=_as_text)
    env: dict[str, str] | None = attrs.field(
        default=None, kw_only=True, converter=_copy
    )
    stdin: None = attrs.field(default=None, kw_only=True)
    grace: float = attrs.field(default=5.0, kw_only=True)
    linger: float = attrs.field(default=1.0, kw_only=True)
    quota: int = attrs.field(default=2**30, kw_only=True)
    deadline: float | None = attrs.field(default=None, kw_only=True)
    raw: bool = attrs.field(default=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        _check_text("command", self.command)
        if not self.command.strip():
            raise ValueError(f"command must not be empty: {self.command!r}")
        if self.cwd is not None:
            _check_text("cwd", self.cwd)
        if self.env is not None:
            if not isinstance(self.env, dict):
                raise TypeError(f"env must be a dict or None, not {self.env!r}")
            for name, value in self.env.items():
                _check_text("a name in env", name)
                _check_text(f"env[{name!r}]", value)
                if not name or "=" in name:
                    raise ValueError(f"env has an impossible name: {name!r}")
        if self.stdin is not None:
            raise ValueError(f"stdin must be None, not {self.stdin!r}")
        _check_seconds("grace", self.grace)
        _check_seconds("linger", self.linger)
        if self.deadline is not None:
            _check_seconds("deadline", self.deadline)
        if (
            isinstance(self.quota, bool)
            or not isinstance(self.quota, int)
            or self.quota < 1
        ):
            raise ValueError(
                f"quota must be a positive number of bytes, not {self.quota!r}"
            )
        if not isinstance(self.raw, bool):
            raise TypeError(f"raw must be True or False, not {self.raw!r}")

    @property
    def task_type(self) -> str:
        return "local_bash"

    @property
    def shutdown(self) -> float:
        return self.grace + self.linger + _REPORT_SURVIVORS_EVERY

    @property
    def writes_output(self) -> bool:
        return True

    def describe(self) -> str:
        first, *more = self.command.strip().splitlines()
        line = f"{first} ..." if more else first
        return line if len(line) <= 80 else line[:77] + "..."

    # An interrupt is for the host, not for whichever command is served just now.
    @enable_ki_protection
    async def run(self, ctx: Context[object], report: Report) -> str:
        """Run the command to its end and return the tail of its output.

        Cancelled, it ends every process first: SIGTERM, `grace` seconds,
        SIGKILL until none is left.

        Raises:
            OSError: if it cannot be started or its output cannot be kept.
            CommandFailed: if it did not exit with 0.
            QuotaExceeded: if it wrote more than its quota.
        """
        assert report.output_file is not None
        if self.deadline is not None:
            ctx.deadline = trio.current_time() + self.deadline
        log = OutputLog(
            report.env.files.open_output(report.output_file),
            quota=self.quota - report.output_bytes,
            raw=self.raw,
            on_warning=report.warn,
        )
        failure: OSError | None = None
        try:
            exit = await self._run_process(report, log)
        finally:
            # What it printed is there before the end is recorded. The log has
            # its own deadline for closing.
            with trio.CancelScope(shield=True):
                failure = await _close(log, report)
        if failure is not None:
            raise failure
        _raise_for(exit)
        return report.output_tail or ""

    async def _run_process(self, report: Report, log: OutputLog) -> ProcessExit:
        process = await self._spawn(report)
        report.pid = process.pid
        copier = _Copier(process, log, report, self.quota)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(copier.run)
                try:
                    exit = await process.wait_exit()
                    await self._end_leftovers(process, report)
                    _note(report, exit)
                except BaseException:
                    # Whatever ends this task ends the command first.
                    failure = copier.failure
                    with trio.CancelScope(shield=True):
                        exit = await self._end(process, report)
                        _note(report, exit)
                        # Its own end counts if it came first.
                        if failure is not None:
                            report.own_exit = Failed(failure)
                        elif not exit.after_stop:
                            report.own_exit = _own_exit(exit)
                    raise
                finally:
                    # Nothing of the command is left, so the end of its output
                    # is near, unless somebody else got hold of the pipe.
                    copier.scope.deadline = trio.current_time() + max(
                        self.linger, _LAST_WORDS
                    )
        finally:
            with trio.CancelScope(shield=True):
                await process.aclose()
        if copier.failure is not None:
            raise copier.failure
        return exit

    async def _spawn(self, report: Report) -> Process:
        processes = report.env.processes
        environment = processes.environment() | _QUIET | (self.env or {})
        for shell in ("bash", "sh"):
            try:
                return await processes.spawn(
                    [shell, "-c", self.command],
                    cwd=self.cwd,
                    env=environment,
                    marker=report.task_id,
                )
            except FileNotFoundError as error:
                if shell == "sh" or error.filename != shell:
                    raise
        raise AssertionError("unreachable")

    async def _end_leftovers(self, process: Process, report: Report) -> None:
        """The command itself has ended: give the rest a moment, then end it."""
        with trio.move_on_after(self.linger):
            await process.wait_gone()
            return
        if left := await process.members():
            report.warn(
                f"ended with the command, after {self.linger:g} s, what it left behind: "
                f"process {', '.join(map(str, left))}"
            )
        process.kill()
        await process.wait_gone()

    async def _end(self, process: Process, report: Report) -> ProcessExit:
        process.terminate()
        with trio.move_on_after(self.grace):
            await process.wait_gone()
        process.kill()
        while True:
            # The truth has no deadline: a process that does not die is waited
            # for, and named again and again.
            with trio.move_on_after(_REPORT_SURVIVORS_EVERY):
                await process.wait_gone()
                if report.survivors:
                    report.report_survivors(())
                return await process.wait_exit()
            with trio.move_on_after(_REPORT_SURVIVORS_EVERY):
                report.report_survivors(await process.members())


class _Copier:
    """Copies the output of a process to its log until no more can come."""

    def __init__(
        self, process: Process, log: OutputLog, report: Report, quota: int
    ) -> None:
        self._process = process
        self._log = log
        self._report = report
        self._quota = quota
        self._bytes_before = report.output_bytes
        # Cancelling the task does not end the copying: the last words of the
        # command count, and unread output would block it.
        self.scope = trio.CancelScope(shield=True)
        self.failure: Exception | None = None

    async def run(self) -> None:
        with self.scope:
            while chunk := await self._process.receive():
                if self.failure is None:
                    await self._keep(chunk)

    async def _keep(self, chunk: bytes) -> None:
        # Output that cannot be kept ends the command; what it still prints is
        # read and dropped.
        try:
            await self._log.write(chunk)
        except QuotaExceeded as error:
            # The log knows what this run had left of it.
            self.failure = QuotaExceeded(error.path, self._quota)
            self._process.kill()
        except OSError as error:
            self.failure = error
            self._process.kill()
        self._report.output_bytes = self._bytes_before + self._log.bytes_written
        self._report.say(Progress(bytes_written=self._report.output_bytes))


async def _close(log: OutputLog, report: Report) -> OSError | None:
    """Close the log, report the end of the output, and return what went wrong."""
    written = log.bytes_written
    failure = None
    try:
        await log.aclose()
    except OSError as error:
        report.warn(f"the end of the output could not be kept: {error}")
        failure = error
    report.output_bytes += log.bytes_written - written
    tail, report.output_truncated = log.tail()
    report.output_tail = tail.decode("utf-8", "replace")
    return failure


def _note(report: Report, exit: ProcessExit) -> None:
    report.exit_code = exit.code
    report.signal = exit.signal


def _raise_for(exit: ProcessExit) -> None:
    if exit.lost is not None:
        raise CommandFailed(f"the exit code could not be read: {exit.lost}")
    if exit.signal is not None:
        with contextlib.suppress(ValueError):
            raise CommandFailed(
                f"ended by signal {exit.signal} ({signals.Signals(exit.signal).name})"
            )
        raise CommandFailed(f"ended by signal {exit.signal}")
    if exit.code != 0:
        raise CommandFailed(f"exit code {exit.code}")


def _own_exit(exit: ProcessExit) -> Exit[object]:
    try:
        _raise_for(exit)
    except CommandFailed as error:
        return Failed(error)
    return Completed(None)


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {value!r}")
    if "\0" in value:
        raise ValueError(f"{what} must not hold a NUL character: {value!r}")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise ValueError(
            f"{what} holds what no program can be given: {value!r}"
        ) from None


def _check_seconds(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be seconds, not {value!r}")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{what} must be seconds, 0 or more, not {value!r}")
