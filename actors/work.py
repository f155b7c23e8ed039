"""What a background task does, and where it says how that goes.

A `Work` is the description of a task, such as `actors.shell.Shell`. The host of
the task calls its `run` as the body of an actor and gives it a `Report`. The work fills
this in as it learns things. What it says there outlives a cancellation.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, cast

import trio

from ._kernel.actor import Context
from ._kernel.exit import Exit
from ._kernel.public import publish as _publish
from ._kernel.rare import HasRare, Rare
from ._kernel.ref import ActorRef
from ._kernel.status import Guard, Progress, TaskStatus
from .env import Env, ProcessUsage
from .output import Growth, OutputLog, older_file
from .output._quota import DiskQuota

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "Report",
    "Work",
    "WorkFailed",
]

# Seconds between two reports of progress; what comes between them is only kept.
PROGRESS_EVERY = 1.0


class Work(Protocol):
    """What a task does: anything with these members.

    The properties and `describe` are read once, when the task is launched. An error in
    one of them comes out of `launch`. A work that will set `Report.input` also has a
    true ``takes_input``. Whoever writes early then waits for it.

    A work with ``writes_output`` finds an empty file at `Report.output_file`. It writes
    to the file through an `actors.output.OutputLog`, which cleans what it is given and
    keeps to a quota. `actors.shell.Shell` does the same::

        async def run(self, ctx, report):
            log = OutputLog(
                report.env.files.open_output(report.output_file),
                quota=2**20,
                used=report.output_bytes,  # by the runs before this one
                disk=report.disk,
                on_warning=report.warn,
                on_output=report.output_changed,  # wakes those who follow it
            )
            report.log = log  # to show them the unfinished line, too
            before = report.output_bytes
            try:
                async for line in self.lines():
                    await log.write(line)
                    report.output_bytes = before + log.bytes_written
            finally:
                try:
                    await log.aclose()  # shields itself, for 5 s at most
                finally:
                    report.log = None
                    report.output_bytes = before + log.bytes_written
                    tail, report.output_truncated = log.tail()
                    report.output_tail = tail.decode("utf-8", "replace")

    ``examples/work.py`` is a whole one.
    """

    @property
    def task_type(self) -> str:
        """``local_bash``, ``local_agent``, ``remote_agent`` or, for anything else,
        ``local_work``."""
        ...

    @property
    def shutdown(self) -> float:
        """The seconds that it has for cleaning up after a cancellation."""
        ...

    @property
    def writes_output(self) -> bool:
        """Whether it needs an output file."""
        ...

    def describe(self) -> str:
        """Return a few words for people. They are used if the task was given no
        description."""
        ...

    async def run(self, ctx: Context[object], report: Report) -> object:
        """Do the work. What it returns is the result. What it raises is the failure.

        If it returns a value other than None, only the text ``str(value)`` is kept, as
        the task's `result`. But once a run has set `Report.output_tail`, that is the
        result, however the run ends. The value is dropped.

        A stop cancels it. Then it has `shutdown` seconds to clean up. It must shield
        what it awaits there.
        """
        ...


class WorkFailed(Exception):
    """Raised by a work that failed without an error in its own code. If it has no
    cause, it is logged as one line, at the level INFO, and not as a crash."""

    subject: str = ""
    """What failed, for the log, for instance a command."""


class Input(Protocol):
    """The standard input of a run, for whoever may write to the task.

    It may be kept. Once the run has ended, both calls raise.
    """

    async def write(self, data: bytes) -> None:
        """Write all of ``data``. Wait while the task does not read.

        Calls at the same time are written one after the other, in the order of
        the calls. After a cancellation an unknown part was written.

        Raises:
            trio.BrokenResourceError: if nobody can read it any more.
            trio.ClosedResourceError: after `close`, or after the end of the run.
        """
        ...

    async def close(self) -> None:
        """Tell the task that nothing more will come. A second call does nothing.

        Raises:
            trio.BrokenResourceError: as for `write`.
            trio.ClosedResourceError: after the end of the run.
        """
        ...


class _RareInput(Rare[Input | None]):
    """`Report.input`: setting it wakes whoever waits for it."""

    def __set__(self, record: HasRare, value: Input | None) -> None:
        super().__set__(record, value)
        if value is not None:
            cast("Report", record).on_input()


class Report(Guard):
    """What a running task says about itself, on the record that holds its status.

    A work calls `say` for its progress and `warn` for trouble. It may read these:

    - ``task_id``, ``run_id``: the ids of the task and of this run.
    - ``env``: the seam to the world, for files, processes, time and names.
    - ``output_file``: the path of its output. It is None if it writes none.
    - ``disk``: the quota of the directory, for the log. It is None if there is none.
    - ``hurry``: whether a stop grants no time for cleaning up. `wait_hurry` waits for
      that.

    It may set these, for `TaskSnapshot` and whoever asks:

    - ``result``: a str, the result so far. What `Work.run` returns replaces it.
    - ``output_bytes``: the bytes of output of all runs so far. It is the work's
      own count: the next run finds it here.
    - ``log``: the `OutputLog` that is being written. It is None after its close.
    - ``output_tail``, ``output_truncated``: what `OutputLog.tail` returns at the
      end of the run, as a str, and whether output precedes it.
    - ``exit_code``, ``signal``, ``pid``: those of a process, if the task is one.
    - ``measure``: a function that returns the present `ProcessUsage`, or None if that
      cannot be known.
    - ``cpu_seconds``: the CPU time of a run that has ended.
    - ``input``: an `Input` while the run takes input, else None.

    The other attributes are for the host. Use all of them in the event loop's thread.
    """

    # There may be 100,000 of them: what most tasks never need is made only when it
    # is needed.

    __slots__ = (
        "env",
        "own_exit",
        "progress",
        "rare",
        "result",
        "run_id",
        "task_id",
    )

    output_file = Rare[Path | None](None)
    # The bytes kept so far, of all runs, and the offsets in them at which the
    # output file and its older one begin: more than 0 only after a rotation.
    output_bytes = Rare[int](0)
    output_start = Rare[int](0)
    output_dropped = Rare[int](0)
    # Where in the output the run that is under way, or the last one, begins.
    output_run = Rare[int](0)
    # Of the run that writes now: its unfinished line is what readers see
    # after the end of the file.
    log = Rare[OutputLog | None](None)
    output_tail = Rare[str | None](None)
    output_truncated = Rare[bool](False)
    # Whether what is at the path of the output is not the output.
    output_lost = Rare[bool](False)
    # What all tasks of the directory may write together; its owner sets it.
    disk = Rare[DiskQuota | None](None)
    exit_code = Rare[int | None](None)
    signal = Rare[int | None](None)
    pid = Rare[int | None](None)
    # Processes that a command had left in the background, ended with it.
    left_behind = Rare[int](0)
    survivors = Rare[tuple[int, ...]](())
    # Set while a run has processes; it returns None for what cannot be known.
    measure = Rare[Callable[[], ProcessUsage | None] | None](None)
    # Of the last run that has ended, with all its processes.
    cpu_seconds = Rare[float | None](None)
    # The unfinished last line of a run that probably waits for an answer.
    prompt = Rare[str | None](None)
    # Whether a stop, now or later, is to grant no time for cleaning up.
    hurry = Rare[bool](False)
    progress_told_at = Rare[float](-PROGRESS_EVERY)
    # On trio's clock: when it last had progress. Of a task that has ended: how many
    # seconds before its end that was.
    said_at = Rare[float | None](None)
    quiet_for = Rare[float | None](None)
    # That moment, and the same as a date, once somebody has asked for it.
    active_at = Rare[tuple[float, datetime] | None](None)
    # While a run takes input: what to write to.
    input = _RareInput(None)
    # The model's call that has launched it.
    tool_use_id = Rare[str | None](None)
    # Whether a run will have one.
    takes_input = Rare[bool](False)
    # Of a task that has ended: its command, and the directory if one was given.
    command = Rare[str | None](None)
    cwd = Rare[str | None](None)
    # Of a task that has ended: the id of the agent whose own task it was.
    last_parent = Rare[str | None](None)
    # While it waits for a place: the context of whoever launched it.
    context = Rare[contextvars.Context | None](None)
    # Of one that may be restarted: the child of its actor that is one run after the other.
    runs = Rare[ActorRef[Any] | None](None)
    # Of a task that has begun again: the id of its first run.
    first_run = Rare[str | None](None)
    # How many of its calls wait. While one does, its place is lent to others.
    waits = Rare[int](0)
    _hurried = Rare[trio.Event | None](None)
    _growth = Rare[Growth | None](None)

    def __init__(self, task_id: str, run_id: str, env: Env) -> None:
        self.status = TaskStatus.PENDING
        self.has_told_end = False
        self.task_id = task_id
        # Of the run under way; each run has its own.
        self.run_id = run_id
        self.env = env
        self.rare: dict[str, Any] | None = None
        self.result: str | None = None
        self.progress: Progress | None = None
        # How the work ended, if it ended by itself and before a stop.
        self.own_exit: Exit[object] | None = None

    def on_input(self) -> None:
        """Note that there is an input to write to."""

    def say(self, progress: Progress) -> None:
        """Replace the progress. It is reported now or with a later one. After the
        end of the task it is dropped.

        Raises:
            TypeError: if ``progress`` is not a `Progress`.
        """
        if type(progress) is not Progress:
            raise TypeError(f"expected a Progress, got {progress!r}")
        if self.status.is_terminal:
            # Sent all the same: the guard refuses it and counts that it did.
            self.on_progress()
            return
        self.progress = progress
        self.said_at = now = trio.current_time()
        if now - self.progress_told_at >= PROGRESS_EVERY:
            self.progress_told_at = now
            self.on_progress()

    def on_progress(self) -> None:
        """Report the progress now."""

    @property
    def growth(self) -> Growth:
        """It wakes those who follow the output. It is made for the first of them."""
        if self._growth is None:
            self._growth = Growth()
        return self._growth

    def output_changed(self) -> None:
        """Note that there is more output than before, or that there will be no more."""
        if self._growth is not None:
            self._growth.grew()

    def output_rotated(self, size: int, dropped: int) -> None:
        """Note that the output file, of ``size`` bytes, has become the older one. The
        file that it replaced had ``dropped`` bytes."""
        self.output_start += size
        self.output_dropped += dropped

    def remove_output(self) -> None:
        """Remove the output file and the older one of a task that has ended. If one
        cannot be removed, a warning says so."""
        path = self.output_file
        if path is None:
            return
        try:
            if not self.output_lost:
                self.env.files.remove(path)
            if self.output_start:
                self.env.files.remove(older_file(path))
        except OSError as error:
            self.warn(f"the output could not be removed: {error}")
            return
        if self.disk is not None:
            self.disk.freed(self.output_bytes - self.output_dropped)
        self.output_file = None

    def report_prompt(self, line: str) -> None:
        """Report that the run is silent after this unfinished line, as if it waited for
        an answer. A run reports that once. It sets `prompt` to None when it goes on."""
        self.prompt = line
        self.on_prompt()

    def on_prompt(self) -> None:
        """Report the prompt now."""

    def hurry_up(self) -> None:
        """Grant no time for cleaning up, neither to a present stop nor to a later one.
        This stops nothing by itself."""
        self.hurry = True
        if self._hurried is not None:
            self._hurried.set()
            self._hurried = None

    async def wait_hurry(self) -> None:
        """Wait until a stop grants no time for cleaning up."""
        if self.hurry:
            await trio.lowlevel.checkpoint()
            return
        if self._hurried is None:
            self._hurried = trio.Event()
        await self._hurried.wait()

    def warn(self, text: str) -> None:
        """Warn that something is not as it should be, for instance that the quota is
        nearly used."""

    def report_survivors(self, pids: tuple[int, ...]) -> None:
        """Report that processes of the task are still there although they were
        killed."""
        self.survivors = pids


_publish(globals())
