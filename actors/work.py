"""What a background task does, and where it says how that goes.

A `Work` is the description of a task, such as `actors.shell.Shell`. The host of
the task calls its `run` as the body of an actor and gives it a `Report`, which
the work fills in as it learns things: what it says there outlives a cancellation.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import trio

from ._actor import Context
from ._exit import Exit
from ._progress import Progress
from ._status import Guard, TaskStatus
from .env import Env, ProcessUsage
from .output import DiskQuota, Growth, OutputLog, older_file

# Progress is told at most this often; what lies between is only kept.
PROGRESS_EVERY = 1.0


class Work(Protocol):
    """What a task does: anything with these members.

    The properties and `describe` are read once, when the task is launched; an
    error in one of them comes out of `launch`.
    """

    @property
    def task_type(self) -> str:
        """``local_bash``, ``local_agent`` or ``remote_agent``."""
        ...

    @property
    def shutdown(self) -> float:
        """The seconds it has for cleaning up once it was cancelled."""
        ...

    @property
    def writes_output(self) -> bool:
        """Whether it needs an output file."""
        ...

    def describe(self) -> str:
        """Return a few words for people, for a task that was given none."""
        ...

    async def run(self, ctx: Context[object], report: Report) -> object:
        """Do it. What it returns is the result, what it raises the failure."""
        ...


class WorkFailed(Exception):
    """Raised by a work that came to a bad end which is not an error of ours."""


class Input(Protocol):
    """The standard input of a run, for whoever may write to the task.

    It may be kept: once the run has ended, both calls raise.
    """

    async def write(self, data: bytes) -> None:
        """Write all of ``data``; wait while the task does not read.

        Calls at the same time are written one after the other, in the order of
        the calls. After a cancellation an unknown part was written.

        Raises:
            trio.BrokenResourceError: if nobody can read it any more.
            trio.ClosedResourceError: after `close`, or after the end of the run.
        """
        ...

    async def close(self) -> None:
        """Tell the task that nothing more will come. More than once is fine.

        Raises:
            trio.BrokenResourceError: as for `write`.
            trio.ClosedResourceError: after the end of the run.
        """
        ...


class Report(Guard):
    """What a running task says about itself, on the record that holds its status.

    There may be 100,000 of them: what most tasks never need is made when it is
    needed.
    """

    __slots__ = (
        "_growth",
        "_hurried",
        "cpu_seconds",
        "disk",
        "env",
        "exit_code",
        "hurry",
        "input",
        "log",
        "measure",
        "output_bytes",
        "output_dropped",
        "own_exit",
        "output_file",
        "output_start",
        "output_tail",
        "output_truncated",
        "pid",
        "progress",
        "progress_told_at",
        "prompt",
        "result",
        "signal",
        "survivors",
        "task_id",
    )

    def __init__(self, task_id: str, env: Env) -> None:
        super().__init__()
        self.task_id = task_id
        self.env = env
        self.output_file: Path | None = None
        # The bytes kept so far, of all runs; where in them the output file
        # begins, and its older one: more than 0 only after a rotation.
        self.output_bytes = 0
        self.output_start = 0
        self.output_dropped = 0
        # Of the run that writes now: its unfinished line is what readers see
        # after the end of the file.
        self.log: OutputLog | None = None
        self.output_tail: str | None = None
        self.output_truncated = False
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.result: str | None = None
        self.pid: int | None = None
        self.progress: Progress | None = None
        self.progress_told_at = -PROGRESS_EVERY
        self.survivors: tuple[int, ...] = ()
        # How the work ended by itself, if that was before a stop could touch it.
        self.own_exit: Exit[object] | None = None
        # While a run takes input.
        self.input: Input | None = None
        # While a run has processes; None is what cannot be known.
        self.measure: Callable[[], ProcessUsage | None] | None = None
        # Of the last run that has ended, with all its processes.
        self.cpu_seconds: float | None = None
        # The unfinished last line of a run that probably waits for an answer.
        self.prompt: str | None = None
        # Whether a stop, if there is one, is to grant no time for cleaning up.
        self.hurry = False
        self._hurried: trio.Event | None = None
        # What all tasks of the directory may write together; its owner sets it.
        self.disk: DiskQuota | None = None
        self._growth: Growth | None = None

    def say(self, progress: Progress) -> None:
        """Replace the progress; it is told now or with a later one. A task that
        has ended makes none.

        Raises:
            TypeError: if that is no `Progress`.
        """
        if type(progress) is not Progress:
            raise TypeError(f"a Progress is wanted, not {progress!r}")
        if self.status.is_terminal:
            return
        self.progress = progress
        now = trio.current_time()
        if now - self.progress_told_at >= PROGRESS_EVERY:
            self.progress_told_at = now
            self.on_progress()

    def on_progress(self) -> None:
        """The progress is worth telling."""

    @property
    def growth(self) -> Growth:
        """What wakes those who follow the output. Made by the first of them."""
        if self._growth is None:
            self._growth = Growth()
        return self._growth

    def output_changed(self) -> None:
        """There is more output than before, or there will be no more."""
        if self._growth is not None:
            self._growth.grew()

    def output_rotated(self, size: int, dropped: int) -> None:
        """The output file, of ``size`` bytes, is the older one now; the one it
        has replaced had ``dropped`` bytes."""
        self.output_start += size
        self.output_dropped += dropped

    def remove_output(self) -> None:
        """Remove the output file and its older one. What cannot be removed is
        told by a warning. The task has ended."""
        if self.output_file is None:
            return
        try:
            self.env.files.remove(self.output_file)
            if self.output_start:
                self.env.files.remove(older_file(self.output_file))
        except OSError as error:
            self.warn(f"the output could not be removed: {error}")
            return
        if self.disk is not None:
            self.disk.give_back(self.output_bytes - self.output_dropped)
        self.output_file = None

    def transition(self, status: TaskStatus) -> bool:
        """See `Guard`. Whoever follows the output learns of the end."""
        changed = super().transition(status)
        if changed and self._growth is not None:
            self._growth.grew()
        return changed

    def report_prompt(self, line: str) -> None:
        """The run is silent after this unfinished line, as if it waited for an
        answer. A run says so once; it sets `prompt` to None when it goes on."""
        self.prompt = line
        self.on_prompt()

    def on_prompt(self) -> None:
        """The prompt is worth telling."""

    def hurry_up(self) -> None:
        """Grant no time for cleaning up, neither to a stop that is under way
        nor to one that is to come. It stops nothing by itself."""
        self.hurry = True
        if self._hurried is not None:
            self._hurried.set()
            self._hurried = None

    async def wait_hurry(self) -> None:
        """Wait until there is no time for cleaning up."""
        if self.hurry:
            await trio.lowlevel.checkpoint()
            return
        if self._hurried is None:
            self._hurried = trio.Event()
        await self._hurried.wait()

    def warn(self, text: str) -> None:
        """Something is not as it should be, for instance the quota is nearly used."""

    def report_survivors(self, pids: tuple[int, ...]) -> None:
        """Processes of the task are still there although they were killed."""
        self.survivors = pids
